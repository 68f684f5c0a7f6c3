"""Log lines: means of the metrics of steps, which are on the device, every `log_every` steps."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax

from bertjax.devices import activity
from bertjax.devices.activity import Clock
from bertjax.record.events import STEPS_AHEAD, Began, Ended, Logged, Reader, StepDone
from bertjax.record.metrics import add_sums, means


class MetricLogger(Reader):
    """Emits the training metrics every `every` steps, and after the last of `num_steps`.

    Losses and accuracies are means since the last log line; the learning rate and the gradient norm
    are the last step's. The model FLOP utilisation (MFU) compares the time of the steps with that
    at the peak of the devices. The first step of each segment may compile and is not timed.

    Args:
        emit: takes the log lines.
        clock: its time of training and of waiting for input is the time of the steps.
        pending: the sums of metrics not yet logged, from a checkpoint.
        loss_weights: {name of a loss: its factor in the total loss}, if the train step returns no
            metric "loss".
    """

    on_all_hosts = True

    def __init__(
        self,
        emit: Callable[[Any], None],
        clock: Clock,
        *,
        every: int,
        num_steps: int,
        pending: Mapping[str, Any] | None = None,
        loss_weights: Mapping[str, float] | None = None,
    ):
        self._emit, self._clock = emit, clock
        self._every, self._num_steps = every, num_steps
        self._sums = {key: tuple(value) for key, value in (pending or {}).items()}
        self._loss_weights = loss_weights or {}
        self._unread: list[dict[str, Any]] = []
        self._tokens: list[Any] = []  # of each timed step
        self._seconds = self._peak_seconds = 0.0  # of the timed steps
        self._since: float | None = None

    def read(self, event: Any) -> None:
        match event:
            case StepDone():
                self._did_step(event)
            case Began(activity.EVALUATING | activity.SAVING):
                jax.block_until_ready(self._unread)
            case Ended(activity.STEPPING):
                self._stop_time()

    def _did_step(self, event: StepDone) -> None:
        self._unread.append(event.metrics)
        if self._since is None:
            jax.block_until_ready(event.metrics)
            self._since = self._now()
        else:
            self._tokens.append(event.metrics["tokens"])
            self._peak_seconds += event.peak_seconds
        if event.step % self._every == 0 or event.step == self._num_steps:
            self._log(event.step)

    def _now(self) -> float:
        return self._clock.seconds_of(activity.STEPPING, activity.INPUT)

    def _stop_time(self) -> None:
        jax.block_until_ready(self._unread)
        if self._since is not None:
            self._seconds += self._now() - self._since
        self._since = None

    def _log(self, step: int) -> None:
        unread, tokens = jax.device_get((self._unread, self._tokens))
        values = self._means(unread)
        for name in ("learning_rate", "grad_norm"):
            values[name] = float(unread[-1][name])
        self._stop_time()
        if tokens:
            values["tokens_per_second"] = sum(map(float, tokens)) / self._seconds
            if self._peak_seconds:
                values["mfu"] = self._peak_seconds / self._seconds
        self._emit(Logged(step, {f"train/{key}": value for key, value in values.items()}))
        self._sums, self._unread, self._tokens = {}, [], []
        self._seconds = self._peak_seconds = 0.0
        self._since = self._now()

    def means_so_far(self) -> dict[str, float]:
        """Returns the means since the last log line, of steps that the device has done."""
        return self._means(jax.device_get(self._unread[:-STEPS_AHEAD]))

    def remembered(self) -> dict[str, Any]:
        """Returns the metric sums since the last log line, {metric: (sum, weight)}."""
        return {"pending": self._total(jax.device_get(self._unread))}

    def _total(self, unread: Sequence[Mapping[str, Any]]) -> dict[str, tuple[float, float]]:
        return add_sums([self._sums, *(metrics["sums"] for metrics in unread)])

    def _means(self, unread: Sequence[Mapping[str, Any]]) -> dict[str, float]:
        values = means(self._total(unread))
        if "loss" not in values and values:
            values["loss"] = 0.0
            for key, weight in self._loss_weights.items():
                values["loss"] += weight * values.get(key, 0.0)
        return values
