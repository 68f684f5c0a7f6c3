"""Training: pretraining and fine-tuning, with the train step, loop, hooks and checkpoints."""
