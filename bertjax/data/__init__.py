"""The data pipeline, from text on disk to batches of numpy arrays."""
