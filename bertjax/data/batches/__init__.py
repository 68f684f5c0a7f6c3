"""From records to batches: the batch contract, masking, packed features."""
