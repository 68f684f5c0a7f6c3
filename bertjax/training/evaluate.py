"""Evaluation: computes mean losses and metrics over held-out batches."""

from collections.abc import Callable, Iterable
from typing import Any

import jax

# The number of batches that the host prepares while the device computes earlier ones.
BATCHES_AHEAD = 2


def evaluate(
    eval_step: Callable[[Any, Any], Any], params: Any, batches: Iterable[Any]
) -> dict[str, float]:
    """Returns the means of metrics: sums over all batches, divided by sums of their weights.

    `eval_step(params, batch)` returns a pair (sum, weight) per metric.

    The sums are copied to the host once, at the end, so that the device never waits for the host.
    """
    sums: list[Any] = []
    for batch in batches:
        sums.append(eval_step(params, batch))
        if len(sums) > BATCHES_AHEAD:
            # Without this wait, the inputs of all batches could be in memory at once.
            jax.block_until_ready(sums[-1 - BATCHES_AHEAD])
    return means(add_sums(jax.device_get(sums)))


def add_sums(sums: Iterable[dict[str, Any]]) -> dict[str, tuple[float, float]]:
    """Adds the (sum, weight) pairs of each metric in double precision, in the given order."""
    total: dict[str, tuple[float, float]] = {}
    for item in sums:
        for key, (value, weight) in item.items():
            before = total.get(key, (0.0, 0.0))
            total[key] = (before[0] + float(value), before[1] + float(weight))
    return total


def means(total: dict[str, tuple[float, float]]) -> dict[str, float]:
    """Returns sum / weight of each (sum, weight) pair; metrics of weight 0 are left out."""
    return {key: value / weight for key, (value, weight) in total.items() if weight}
