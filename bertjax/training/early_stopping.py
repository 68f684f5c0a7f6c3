"""Ends a run that no longer gets better."""

from typing import Any


class EarlyStopping:
    """Counts evaluations since the best one.

    Args:
        patience: stop after so many without a better one; 0: never.
        metric: which of an evaluation's values counts; higher is better.
        state: of the run that is resumed.
    """

    def __init__(self, patience: int, metric: str, state: dict[str, Any] | None = None):
        self._patience, self._metric = patience, metric
        self.state = dict(state) if state else {"best": None, "stale": 0}

    def see(self, evaluation: dict[str, float]) -> dict[str, float]:
        """Notes an evaluation and returns it."""
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
        return 0 < self._patience <= self.state["stale"]
