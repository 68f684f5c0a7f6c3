"""The models that come with bertjax, in one folder each: `bertjax:NAME`."""

from bertjax.shipped.shipped_models import PREFIX, shipped_model, shipped_names

__all__ = ["PREFIX", "shipped_model", "shipped_names"]
