"""Inference: predictions of tasks, mask filling, embeddings, and `load_pretrained`."""
