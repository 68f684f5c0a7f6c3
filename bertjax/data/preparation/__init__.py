"""Turns sentences into records: tokenization, examples, packing, and worker processes."""
