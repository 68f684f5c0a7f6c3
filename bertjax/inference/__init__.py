"""Inference: predictions of tasks, mask filling, embeddings, `load_pretrained`."""
