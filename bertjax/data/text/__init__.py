"""Reads documents from text files, archives and data sets; splits documents into sentences."""
