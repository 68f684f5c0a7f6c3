"""Sources of labelled examples: official files, TensorFlow Datasets, the user's own files."""
