"""Configs of pretraining, one run per file."""
