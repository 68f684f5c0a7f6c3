"""Configs of fine-tuning, one per task; each holds the defaults of `--task`."""
