"""From files to sentences: file formats, archives, documents, and sentence splitting."""
