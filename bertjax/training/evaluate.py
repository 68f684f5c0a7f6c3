"""Means over held-out batches."""

from collections.abc import Callable, Iterable
from typing import Any

import jax


def evaluate(
    eval_step: Callable[[Any, Any], Any], params: Any, batches: Iterable[Any]
) -> dict[str, float]:
    """Adds up the sums that `eval_step(params, batch)` gives and returns their means."""
    sums = [jax.device_get(eval_step(params, batch)) for batch in batches]
    return means(add_sums(sums))


def add_sums(sums: Iterable[dict[str, Any]]) -> dict[str, tuple[float, float]]:
    """Adds (sum, weight) pairs in double precision, in the order given."""
    total: dict[str, tuple[float, float]] = {}
    for item in sums:
        for key, (value, weight) in item.items():
            before = total.get(key, (0.0, 0.0))
            total[key] = (before[0] + float(value), before[1] + float(weight))
    return total


def means(total: dict[str, tuple[float, float]]) -> dict[str, float]:
    """(sum, weight) pairs -> sum / weight; what was never weighed has no mean and is left out."""
    return {key: value / weight for key, (value, weight) in total.items() if weight}
