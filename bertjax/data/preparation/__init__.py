"""From sentences to records: encoding, examples of an objective, packing, chunks, workers."""
