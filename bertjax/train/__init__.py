"""Training: pretraining and fine-tuning, with the loop, the train step and the checkpoints."""
