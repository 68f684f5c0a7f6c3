"""Turns records into batches: the batch contract, masking and packing."""
