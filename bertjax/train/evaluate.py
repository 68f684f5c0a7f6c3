"""Evaluation: computes mean losses and metrics over held-out batches."""

from collections.abc import Callable, Iterable
from typing import Any

import jax

from bertjax.record.metrics import add_sums, means

# The number of batches that the host prepares while the device computes earlier ones.
BATCHES_AHEAD = 2


def evaluate(
    eval_step: Callable[[Any, Any], Any], params: Any, batches: Iterable[Any]
) -> dict[str, float]:
    """Evaluates `params` on `batches`; returns {metric: weighted mean over all batches}.

    `eval_step` is a function (params, batch) -> {metric: (weighted sum, sum of weights)}, such as
    that of `make_eval_step`.
    """
    return means(evaluation_sums(eval_step, params, batches))


def evaluation_sums(
    eval_step: Callable[[Any, Any], Any], params: Any, batches: Iterable[Any]
) -> dict[str, tuple[float, float]]:
    """Evaluates `params` on `batches`; returns {metric: (sum of weighted values, sum of weights)}.

    `eval_step(params, batch)` returns {metric: (sum of weighted values, sum of weights)}. The sums
    of all batches are copied to the host once, at the end, so that the device never waits for the
    host.
    """
    sums: list[Any] = []
    for batch in batches:
        sums.append(eval_step(params, batch))
        if len(sums) > BATCHES_AHEAD:
            # Without this wait, the inputs of all batches could be in memory at once.
            jax.block_until_ready(sums[-1 - BATCHES_AHEAD])
    return add_sums(jax.device_get(sums))
