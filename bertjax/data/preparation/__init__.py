"""Conversion of text to records: tokenization, examples, packing, and worker processes."""
