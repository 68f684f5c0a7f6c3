"""Text on disk to batches in memory. Numpy only; jax is needed by `pipeline` alone, for grain."""
