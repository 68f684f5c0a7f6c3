"""The trainer: setup, train step, loop, hooks, checkpoints; pretraining and fine-tuning."""
