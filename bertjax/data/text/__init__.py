"""From files to sentences: formats, archives, documents, sentence splitting."""
