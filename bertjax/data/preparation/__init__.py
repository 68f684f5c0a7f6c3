"""From sentences to records: encoding, examples, packing, and worker processes."""
