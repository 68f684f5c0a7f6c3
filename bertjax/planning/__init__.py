"""Planning: compiles the training step ahead of time for hardware that is not available."""
