"""Plans: the training step compiled ahead of time for hardware that is not at hand."""
