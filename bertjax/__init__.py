"""BERT-family encoders in JAX/Flax: pretrain them, fine-tune them, convert them."""

__version__ = "0.1.0"
