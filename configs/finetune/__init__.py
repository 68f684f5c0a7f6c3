"""Pretraining runs, one a file."""
