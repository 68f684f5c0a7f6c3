"""From records to batches: the batch contract, masking and packing."""
