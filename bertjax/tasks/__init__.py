"""Tasks to fine-tune on: their examples, features, answers and metrics."""
