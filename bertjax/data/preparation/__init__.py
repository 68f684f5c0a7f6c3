"""Turns sentences into records: encoding, examples, packing, and worker processes."""
