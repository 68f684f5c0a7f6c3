"""Hooks of the training loop: logging, evaluation and saving between steps."""

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from bertjax.training.checkpoint import Checkpointer
from bertjax.training.evaluate import add_sums, means
from bertjax.training.state import TrainState
from bertjax.training.writers import MetricWriter


class Interrupted(KeyboardInterrupt):
    """Raised when a stop signal ended a run and its checkpoint has been written."""


class MetricLogger:
    """Writes the mean metrics of every `every` steps to files and to the terminal.

    Args:
        writer: writes the files; None on hosts other than the first.
        every: the number of steps between two lines.
        num_steps: the number of steps of the whole run, for the progress bar.
        name: the name of the run, for the progress bar.
        step: the step at which the run starts or resumes.
        pending: the metric sums since the last line, if the run was interrupted between two lines.
        loss_weights: {mean: its weight in the loss}, used if the metrics have no "loss".
    """

    def __init__(
        self,
        writer: MetricWriter | None,
        *,
        every: int,
        num_steps: int,
        step: int,
        pending: dict[str, Any] | None = None,
        name: str = "pretraining",
        loss_weights: Mapping[str, float] | None = None,
    ):
        self._loss_weights = loss_weights or {}
        self._writer, self._every, self._num_steps = writer, every, num_steps
        self._sums = {key: tuple(value) for key, value in (pending or {}).items()}
        self._unread: list[dict[str, Any]] = []
        self._flops_per_step, self._peak_flops = 0.0, 1.0
        self._tokens, self._flops, self._steps, self._seconds = 0.0, 0.0, 0, 0.0
        self._since: float | None = None
        self._console = Console(quiet=writer is None)
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            console=self._console,
            disable=writer is None or not self._console.is_terminal,
        )
        self._task = self._bar.add_task(name, total=num_steps, completed=step)
        self._bar.start()

    def start_phase(self, flops_per_step: float, peak_flops: float) -> None:
        """Sets the FLOP per step of a phase; its first step is not timed, because it compiles."""
        self._stop_clock()
        self._flops_per_step, self._peak_flops = flops_per_step, peak_flops

    def _stop_clock(self) -> None:
        if self._since is not None:
            jax.block_until_ready(self._unread)
            self._seconds += time.perf_counter() - self._since
        self._since = None

    def __call__(self, step: int, state: TrainState, metrics: dict[str, Any]) -> None:
        del state
        self._unread.append({**metrics, "timed": self._since is not None})
        if self._since is None:
            jax.block_until_ready(metrics)
            self._since = time.perf_counter()
        else:
            self._steps += 1
            self._flops += self._flops_per_step
        if step % self._every == 0 or step == self._num_steps:
            self._write(step)
        self._bar.update(self._task, completed=step)

    def _read(self) -> None:
        unread = jax.device_get(self._unread)
        self._sums = add_sums([self._sums, *(metrics["sums"] for metrics in unread)])
        self._tokens += sum(float(m["tokens"]) for m in unread if m["timed"])
        self._unread = []

    @property
    def pending(self) -> dict[str, Any]:
        """The metric sums since the last line, which a checkpoint stores."""
        unread = jax.device_get([metrics["sums"] for metrics in self._unread])
        return add_sums([self._sums, *unread])

    def _write(self, step: int) -> None:
        last = jax.device_get(self._unread[-1])
        self._read()
        assert self._since is not None
        seconds = self._seconds + time.perf_counter() - self._since
        values = means(self._sums)
        if "loss" not in values:
            values["loss"] = sum(w * values.get(key, 0.0) for key, w in self._loss_weights.items())
        values |= {key: float(last[key]) for key in ("learning_rate", "grad_norm")}
        if self._steps:
            values["tokens_per_second"] = self._tokens / seconds
        if self._flops:
            values["mfu"] = self._flops / seconds / self._peak_flops
        self.report(step, {f"train/{key}": value for key, value in values.items()})
        self._sums, self._tokens, self._flops = {}, 0.0, 0.0
        self._steps, self._seconds = 0, 0.0
        self._since = time.perf_counter()

    def report(self, step: int, values: dict[str, float]) -> None:
        """Writes named numbers to the files and as one line to the terminal."""
        if self._writer is None:
            return
        self._writer.write(step, values)
        numbers = "  ".join(f"{key} {value:.4g}" for key, value in values.items())
        self._console.print(f"step {step}  {numbers}", highlight=False, soft_wrap=True)

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Excludes the time spent in this context from the measured training time."""
        running = self._since is not None
        self._stop_clock()
        yield
        if running:
            self._since = time.perf_counter()

    def close(self) -> None:
        """Stops the progress bar and closes the files."""
        self._bar.stop()
        if self._writer is not None:
            self._writer.close()


class EvaluateAndSave:
    """Evaluates every `eval_every` steps, saves every `save_every` steps, and both at `last_step`.

    Args:
        checkpointer: writes the checkpoints.
        logger: reports the metrics; its clock is stopped during evaluations and saves.
        evaluate: a function params -> metrics.
        progress: a function step -> the position in the data, which the checkpoint stores.
        phase: the index of the phase, which matters for the choice of the best checkpoint.
    """

    def __init__(
        self,
        checkpointer: Checkpointer,
        logger: MetricLogger,
        evaluate: Callable[[Any], dict[str, float]],
        progress: Callable[[int], dict[str, Any]],
        *,
        phase: int,
        eval_every: int,
        save_every: int,
        last_step: int,
    ):
        self._checkpointer, self._logger = checkpointer, logger
        self._evaluate, self._progress = evaluate, progress
        self._phase = phase
        self._eval_every, self._save_every, self._last = eval_every, save_every, last_step

    def __call__(self, step: int, state: TrainState, metrics: dict[str, Any]) -> None:
        del metrics
        last = step == self._last
        evaluation = None
        if last or (self._eval_every and step % self._eval_every == 0):
            with self._logger.paused():
                evaluation = self._evaluate(state.params)
            if evaluation:
                self._logger.report(step, evaluation)
        if last or step % self._save_every == 0:
            with self._logger.paused():
                self.save(step, state, evaluation)

    def save(
        self, step: int, state: TrainState, evaluation: dict[str, float] | None = None
    ) -> None:
        """Saves a checkpoint now, unless this step has been saved already."""
        if self._checkpointer.latest_step != step:
            progress = {**self._progress(step), "pending": self._logger.pending}
            metrics = evaluation and {**evaluation, "phase": self._phase}
            self._checkpointer.save(step, state, progress, metrics)
