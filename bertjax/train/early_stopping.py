"""Early stopping: ends a run whose dev metric has stopped improving."""

from typing import Any

from bertjax.record.labels import held_out_label


class EarlyStopping:
    """Counts the consecutive evaluations in which a metric did not improve on its best value.

    Args:
        patience: the number of consecutive evaluations without improvement after which the run
            should stop; 0: the run never stops early.
        metric: the name of the metric that should improve.
        higher_is_better: whether a higher value of the metric is an improvement.
        state: the best value and the count (attribute `state`) at a checkpoint; None: a new run.
    """

    def __init__(
        self,
        patience: int,
        metric: str,
        state: dict[str, Any] | None = None,
        *,
        higher_is_better: bool = True,
    ):
        self._patience, self._metric = patience, metric
        self._sign = 1 if higher_is_better else -1
        self._said = False
        self.state = dict(state) if state else {"best": None, "stale": 0}

    def see(self, evaluation: dict[str, float]) -> dict[str, float]:
        """Updates the count from an evaluation, {metric: value}; returns `evaluation` unchanged.

        An evaluation that lacks the metric does not change the count.
        """
        value = evaluation.get(self._metric)
        if value is not None:
            better = self.state["best"] is None or self._sign * (value - self.state["best"]) > 0
            self.state = (
                {"best": value, "stale": 0}
                if better
                else {**self.state, "stale": self.state["stale"] + 1}
            )
        return evaluation

    def __call__(self) -> bool:
        """Returns whether the last `patience` evaluations, or more, brought no improvement.

        The result is always False if `patience` is 0. The first time that it is True, a line is
        printed that says so.
        """
        stops = 0 < self._patience <= self.state["stale"]
        if stops and not self._said:
            self._said = True
            print(
                f"training ends early: the {held_out_label(self._metric)} has not improved on its "
                f"best value in {self.state['stale']} evaluations (--patience {self._patience})"
            )
        return stops
