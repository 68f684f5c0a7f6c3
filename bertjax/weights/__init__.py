"""Loads models from Hugging Face directories, TF1 checkpoints and training runs; saves models."""

from bertjax.weights.fill import init_params
from bertjax.weights.hf import save_hf
from bertjax.weights.load import LoadedModel, load_model

__all__ = ["LoadedModel", "init_params", "load_model", "save_hf"]
