"""Inference: predictions for tasks, mask filling, embeddings, and `load_pretrained`."""
