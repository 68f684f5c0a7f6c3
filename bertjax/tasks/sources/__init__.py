"""Sources of labelled examples: official files, downloaded datasets, the user's own files."""
