"""Early stopping: ends a run whose evaluations have not improved for a while (--patience)."""

from collections.abc import Mapping
from typing import Any

from bertjax.record.events import Evaluated, Reader
from bertjax.record.labels import held_out_label


class EarlyStopping(Reader):
    """Asks for a stop after `patience` evaluations in a row that do not improve on the best one.

    Args:
        metric: the metric of the evaluation, such as "eval/accuracy".
        higher_is_better: whether its highest value is the best.
        patience: the number of evaluations; 0: the run is never ended.
        progress: the JSON values in the checkpoint that the run resumes from.
    """

    on_all_hosts = True

    def __init__(
        self, metric: str, *, higher_is_better: bool, patience: int, progress: Mapping[str, Any]
    ):
        self._metric = metric
        self._higher_is_better = higher_is_better
        self._patience = patience
        stored = progress.get("patience") or {"best": None, "stale": 0}
        self._best: float | None = stored["best"]
        self._stale: int = stored["stale"]  # evaluations since the best one

    def read(self, event: Any) -> None:
        if isinstance(event, Evaluated) and self._metric in event.metrics:
            value = event.metrics[self._metric]
            if self._best is None or self._is_better(value, self._best):
                self._best = value
                self._stale = 0
            else:
                self._stale += 1

    def _is_better(self, value: float, best: float) -> bool:
        if self._higher_is_better:
            return value > best
        return value < best

    @property
    def stop_reason(self) -> str:
        """Why the run is to end now; "": it is not."""
        if not 0 < self._patience <= self._stale:
            return ""
        return (
            f"training ends early: the {held_out_label(self._metric)} has not improved on its best "
            f"value in {self._stale} evaluations (--patience {self._patience})"
        )

    def remembered(self) -> dict[str, Any]:
        return {"patience": {"best": self._best, "stale": self._stale}}
