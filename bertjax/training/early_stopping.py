"""Early stopping: ends a run whose dev metric has stopped improving."""

from typing import Any


class EarlyStopping:
    """Counts the consecutive evaluations that did not improve the best value of a metric.

    Args:
        patience: the number of evaluations without improvement after which to stop; 0: never stop.
        metric: the name of the metric that should improve; higher is better.
        state: the attribute `state` as a checkpoint stored it; None: no evaluation so far.
    """

    def __init__(self, patience: int, metric: str, state: dict[str, Any] | None = None):
        self._patience, self._metric = patience, metric
        self.state = dict(state) if state else {"best": None, "stale": 0}

    def see(self, evaluation: dict[str, float]) -> dict[str, float]:
        """Counts an evaluation, given its metrics by name, and returns the metrics unchanged."""
        value = evaluation.get(self._metric)
        if value is not None:
            better = self.state["best"] is None or value > self.state["best"]
            self.state = (
                {"best": value, "stale": 0}
                if better
                else {**self.state, "stale": self.state["stale"] + 1}
            )
        return evaluation

    def __call__(self) -> bool:
        """Whether the run should stop."""
        return 0 < self._patience <= self.state["stale"]
