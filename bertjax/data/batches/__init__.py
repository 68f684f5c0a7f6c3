"""Conversion of records to batches: the arrays of a batch, masking and packing."""
