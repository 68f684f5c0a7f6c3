"""Pretraining, fine-tuning and conversion of BERT-family encoders in JAX/Flax."""

import importlib
from typing import TYPE_CHECKING, Any

from bertjax.base import process, signals

if TYPE_CHECKING:
    from bertjax.finetune import finetune as finetune
    from bertjax.inference.evaluation import evaluate as evaluate
    from bertjax.inference.mteb_model import mteb_model as mteb_model
    from bertjax.inference.pretrained import load_pretrained as load_pretrained
    from bertjax.prepare import prepare as prepare
    from bertjax.pretrain import pretrain as pretrain
    from bertjax.train_tokenizer import train_tokenizer as train_tokenizer

__version__ = "1.0.0"
__all__ = [
    "evaluate",
    "finetune",
    "load_pretrained",
    "mteb_model",
    "prepare",
    "pretrain",
    "train_tokenizer",
]

# Maps a public name to its module. Command modules are callable (`command_line.CallableModule`).
_HOMES = {
    "evaluate": "bertjax.inference.evaluation",
    "load_pretrained": "bertjax.inference.pretrained",
    "mteb_model": "bertjax.inference.mteb_model",
}
_COMMANDS = ("finetune", "prepare", "pretrain", "train_tokenizer")

if process.is_command():
    process.settle()
    signals.hold_signals()


def __getattr__(name: str) -> Any:
    # Modules are imported on first access: most commands and all workers of `prepare` need no jax.
    if name in _COMMANDS:
        return importlib.import_module(f"bertjax.{name}")
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'bertjax' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*globals(), *__all__]
