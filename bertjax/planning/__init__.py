"""Planning: compiles the train step ahead of time for hardware that is not available."""
