"""Configs of fine-tuning, one per task: the defaults of `--task`."""
