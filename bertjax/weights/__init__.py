"""Reads and writes model directories."""

from bertjax.weights.hf import load_hf, save_hf
from bertjax.weights.load import load_model

__all__ = ["load_hf", "load_model", "save_hf"]
