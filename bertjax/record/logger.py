"""The training hook that logs metrics."""

import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax

from bertjax.devices.activity import Clock
from bertjax.record.metrics import MetricWriter, add_sums, means
from bertjax.record.terminal import Terminal
from bertjax.record.trackers import Listener

# The number of steps by which the host may be ahead of the device, so that the device need not
# wait for the host.
STEPS_AHEAD = 2


class MetricLogger:
    """Logs the training metrics every `every` steps, to files and the terminal.

    Losses and accuracies are means since the last log line; the learning rate and the gradient norm
    are those of the last step.

    Args:
        writer: writes the metric files; None on hosts other than the first.
        trackers: get the same metrics, such as experiment trackers and the report.
        every: the number of steps between two log lines.
        num_steps: the number of steps of the whole run.
        name: the name of the run, for the terminal.
        step: the step at which the run starts or resumes.
        pending: the sums of metrics not yet logged, from a checkpoint.
        loss_weights: {name of a loss: its factor in the total loss}, if the train step returns no
            metric "loss".
        last_evaluation: the metrics with which the terminal compares the next evaluation.
    """

    def __init__(
        self,
        writer: MetricWriter | None,
        *,
        clock: Clock,
        trackers: Sequence[Listener] = (),
        every: int,
        num_steps: int,
        step: int,
        pending: dict[str, Any] | None = None,
        name: str = "pretraining",
        loss_weights: Mapping[str, float] | None = None,
        last_evaluation: Mapping[str, Any] | None = None,
    ):
        self._loss_weights, self._trackers = loss_weights or {}, trackers
        self._writer, self._every, self._num_steps = writer, every, num_steps
        self._sums = {key: tuple(value) for key, value in (pending or {}).items()}
        self._unread: list[dict[str, Any]] = []
        self._flops_per_step, self._peak_flops = 0.0, 1.0
        self._tokens, self._flops, self._steps, self._seconds = 0.0, 0.0, 0, 0.0
        self._since: float | None = None
        self._terminal = Terminal(
            name,
            clock=clock,
            num_steps=num_steps,
            step=step,
            last_evaluation=last_evaluation,
            quiet=writer is None,
        )

    def start_phase(self, flops_per_step: float, peak_flops: float) -> None:
        """Begins a phase, whose steps take `flops_per_step` FLOP on all devices together.

        The model FLOP utilisation compares them with `peak_flops`, in FLOP/s of all devices. The
        first step of a phase includes compilation and is not timed.
        """
        self._stop_clock()
        self._flops_per_step, self._peak_flops = flops_per_step, peak_flops

    def _stop_clock(self) -> None:
        if self._since is not None:
            jax.block_until_ready(self._unread)
            self._seconds += time.perf_counter() - self._since
        self._since = None

    def __call__(self, step: int, metrics: dict[str, Any]) -> None:
        """Notes the `metrics` of `step`, on the device; writes their means if a log line is due."""
        self._unread.append({**metrics, "timed": self._since is not None})
        if self._since is None:
            jax.block_until_ready(metrics)
            self._since = time.perf_counter()
        else:
            self._steps += 1
            self._flops += self._flops_per_step
        self._terminal.did_step(step)
        if step % self._every == 0 or step == self._num_steps:
            self._write(step)
        if self._terminal.wants_values:
            self._terminal.set_values(self._means_so_far())

    def _read(self) -> None:
        unread = jax.device_get(self._unread)
        self._sums = add_sums([self._sums, *(metrics["sums"] for metrics in unread)])
        self._tokens += sum(float(m["tokens"]) for m in unread if m["timed"])
        self._unread = []

    @property
    def pending(self) -> dict[str, Any]:
        """The metric sums since the last log line, {metric: (sum, weight)}, for a checkpoint."""
        unread = jax.device_get([metrics["sums"] for metrics in self._unread])
        return add_sums([self._sums, *unread])

    def _means(self, sums: Mapping[str, Any]) -> dict[str, float]:
        values = means(dict(sums))
        if "loss" not in values and values:
            values["loss"] = sum(w * values.get(key, 0.0) for key, w in self._loss_weights.items())
        return values

    def _means_so_far(self) -> dict[str, float]:
        """Returns the means since the last log line, of the steps that the device has finished."""
        finished = jax.device_get([metrics["sums"] for metrics in self._unread[:-STEPS_AHEAD]])
        return self._means(add_sums([self._sums, *finished]))

    def _write(self, step: int) -> None:
        last = jax.device_get(self._unread[-1])
        self._read()
        assert self._since is not None
        seconds = self._seconds + time.perf_counter() - self._since
        values = self._means(self._sums)
        values |= {key: float(last[key]) for key in ("learning_rate", "grad_norm")}
        if self._steps:
            values["tokens_per_second"] = self._tokens / seconds
        if self._flops:
            values["mfu"] = self._flops / seconds / self._peak_flops
        self.report(step, {f"train/{key}": value for key, value in values.items()})
        self._sums, self._tokens, self._flops = {}, 0.0, 0.0
        self._steps, self._seconds = 0, 0.0
        self._since = time.perf_counter()

    def flush(self) -> None:
        """Syncs the metric files to the disk."""
        if self._writer is not None:
            self._writer.flush()

    def report(self, step: int, values: dict[str, float]) -> None:
        """Writes {metric: number} of a step to files, trackers and the terminal."""
        if self._writer is None:
            return
        self._writer.write(step, values)
        for tracker in self._trackers:
            tracker.write(step, values)
        self._terminal.show(step, values)

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Excludes the time spent in this context from the measured training time."""
        running = self._since is not None
        self._stop_clock()
        yield
        if running:
            self._since = time.perf_counter()

    def close(self) -> None:
        """Ends the live line of the terminal and closes the metric files."""
        self._terminal.close()
        if self._writer is not None:
            self._writer.close()
