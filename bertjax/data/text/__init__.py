"""Turns files into sentences: file formats, archives, documents, and sentence splitting."""
