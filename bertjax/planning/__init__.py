"""What a pretraining needs of hardware that is not at hand: compiled, counted, never run."""
