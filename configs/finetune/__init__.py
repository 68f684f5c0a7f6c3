"""Fine-tuning runs, one a task; `--task` takes its defaults from here."""
