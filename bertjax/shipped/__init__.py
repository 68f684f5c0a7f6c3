"""The models that come with bertjax, in one folder each: `bertjax:NAME`."""

from bertjax.shipped.shipped_models import shipped_model, shipped_names

__all__ = ["shipped_model", "shipped_names"]
