"""Training: state, optimizer, sharding, step, loop, evaluation, checkpoints, metrics."""
