"""BERT-family encoders in JAX/Flax: pretrain them, fine-tune them, convert them."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bertjax.inference.pretrained import load_pretrained as load_pretrained

__version__ = "0.1.0"
__all__ = ["load_pretrained"]


def __getattr__(name: str) -> Any:
    # Loaded when asked for: the workers of `prepare` import bertjax and have no use for jax.
    if name == "load_pretrained":
        from bertjax.inference.pretrained import load_pretrained

        return load_pretrained
    raise AttributeError(f"module 'bertjax' has no attribute {name!r}")
