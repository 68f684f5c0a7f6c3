"""What a process records: `MetricLogger` of a run's steps, and `Session` of one or several runs."""

import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax

from bertjax.base.files import write_text
from bertjax.base.signals import Interrupted
from bertjax.base.workdir_files import METRICS, REPORT
from bertjax.devices import hosts
from bertjax.devices.activity import Clock
from bertjax.devices.host_watch import HostWatch
from bertjax.record import journal
from bertjax.record.journal import FINISHED, Ledger
from bertjax.record.metrics import MetricWriter, add_sums, means
from bertjax.record.report import RUNNING, STOPPED, ReportWriter, report_page, run_data
from bertjax.record.terminal import Terminal
from bertjax.record.trackers import Listener

# The number of steps by which the host may be ahead of the device, so that the device need not
# wait for the host.
STEPS_AHEAD = 2


class MetricLogger:
    """Logs the training metrics every `every` steps, to files and the terminal.

    Losses and accuracies are means since the last log line; the learning rate and the gradient norm
    are the last step's.

    Args:
        writer: writes the metric files; None on hosts other than the first.
        terminal: shows the metrics; `close` closes it.
        trackers: get the same metrics, such as experiment trackers and the report.
        every: the number of steps between two log lines.
        num_steps: the number of steps of the whole run.
        pending: the sums of metrics not yet logged, from a checkpoint.
        loss_weights: {name of a loss: its factor in the total loss}, if the train step returns no
            metric "loss".
    """

    def __init__(
        self,
        writer: MetricWriter | None,
        terminal: Terminal,
        *,
        trackers: Sequence[Listener] = (),
        every: int,
        num_steps: int,
        pending: dict[str, Any] | None = None,
        loss_weights: Mapping[str, float] | None = None,
    ):
        self._loss_weights, self._trackers = loss_weights or {}, trackers
        self._writer, self._terminal = writer, terminal
        self._every, self._num_steps = every, num_steps
        self._sums = {key: tuple(value) for key, value in (pending or {}).items()}
        self._unread: list[dict[str, Any]] = []
        self._flops_per_step, self._peak_flops, self._seconds = 0.0, 1.0, 0.0
        self._since: float | None = None

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
        is_timed = self._since is not None
        self._unread.append({**metrics, "flops": self._flops_per_step if is_timed else None})
        if not is_timed:
            jax.block_until_ready(metrics)
            self._since = time.perf_counter()
        self._terminal.did_step(step)
        if step % self._every == 0 or step == self._num_steps:
            self._write(step)
        if self._terminal.wants_values:
            self._terminal.set_values(self._means(self._sums_until(-STEPS_AHEAD)))

    def _sums_until(self, end: int | None) -> dict[str, Any]:
        unread = jax.device_get([metrics["sums"] for metrics in self._unread[:end]])
        return add_sums([self._sums, *unread])

    @property
    def pending(self) -> dict[str, Any]:
        """The metric sums since the last log line, {metric: (sum, weight)}, for a checkpoint."""
        return self._sums_until(None)

    def _means(self, sums: Mapping[str, Any]) -> dict[str, float]:
        values = means(dict(sums))
        if "loss" not in values and values:
            values["loss"] = sum(w * values.get(key, 0.0) for key, w in self._loss_weights.items())
        return values

    def _write(self, step: int) -> None:
        unread = jax.device_get(self._unread)
        values = self._means(add_sums([self._sums, *(metrics["sums"] for metrics in unread)]))
        values |= {key: float(unread[-1][key]) for key in ("learning_rate", "grad_norm")}
        self._stop_clock()
        timed = [metrics for metrics in unread if metrics["flops"] is not None]
        if timed:
            values["tokens_per_second"] = sum(float(m["tokens"]) for m in timed) / self._seconds
        if flops := sum(metrics["flops"] for metrics in timed):
            values["mfu"] = flops / self._seconds / self._peak_flops
        self.report(step, {f"train/{key}": value for key, value in values.items()})
        self._sums, self._unread, self._seconds = {}, [], 0.0
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


class Session:
    """The clock, the watch over the hosts, the ledger of time and the reports of a process.

    At the end of the `with` block, the ledger is closed and, unless an error has lost steps, its
    table printed; and the last reports are written.

    Args:
        folder: the workdir, or the parent folder of several runs, whose report.html compares them.
        clock: what this process is doing.
        watch: tells the other hosts if this one ends.
    """

    def __init__(self, folder: Path, clock: Clock, watch: HostWatch):
        self._folder, self.clock, self.watch = folder, clock, watch
        self._writers: dict[Path, ReportWriter] = {}
        self._ledger: Ledger | None = None
        watch.at_end.append(lambda reason: self.__exit__(None, reason, None))

    def begin_run(self, workdir: Path, step: int) -> None:
        """Opens the ledger of the run in `workdir`, or notes that the run went back to `step`.

        Only the first host keeps a ledger. The ledger of another run is closed, and the time of the
        new run begins now.
        """
        if not hosts.is_first():
            return
        if self._ledger is not None and self._ledger.workdir == workdir:
            return self._ledger.returned_to(step)
        if self._ledger is not None:
            self._ledger.close()
            self.clock.restart()
        self._ledger = Ledger(workdir, step, self.clock)

    def did_step(self, step: int) -> None:
        """Notes that the training step `step` is done."""
        if self._ledger is not None:
            self._ledger.did_step(step)

    def saved(self, step: int) -> None:
        """Notes that a checkpoint of `step` is being written."""
        if self._ledger is not None:
            self._ledger.saved(step)

    def report(self, workdir: Path, address: str, facts: Mapping[str, Any]) -> ReportWriter:
        """Notes that this process trains the run in `workdir`, and writes the first report.

        Only the first host may call this method. `facts` are JSON values about the run, such as the
        step from which it is trained; `address` is what messages and the page call the workdir.
        """
        writer = self._writers[workdir] = ReportWriter(workdir, address, self.clock)
        with writer.surviving():
            journal.started(workdir, facts)
        writer.show(RUNNING)
        return writer

    def end_run(self, workdir: Path) -> None:
        """Notes that the run in `workdir`, one of several, has finished."""
        if workdir in self._writers:  # only on the first host
            journal.ended(workdir, FINISHED)

    def __enter__(self) -> "Session":
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if self._ledger is not None and self._ledger.close(error):
            journal.print_table(self._ledger.workdir)
        state, reason = STOPPED, f"{type(error).__name__}: {error}"
        if error is None:
            state, reason = FINISHED, ""
        elif isinstance(error, Interrupted):
            reason = str(error)
        elif isinstance(error, SystemExit):  # such as of a command whose output was closed
            reason = "the command ended early"
        for workdir, writer in self._writers.items():
            with writer.surviving():
                (*_, last) = journal.read_processes(workdir) or [None]
                if last is not None and last["ended"] is None:
                    journal.ended(workdir, state, reason)
                    last["ended"] = {"state": state}
                if last is not None:
                    writer.show(last["ended"]["state"])
        if self._writers and self._folder not in self._writers:
            with next(iter(self._writers.values())).surviving():
                runs = [run_data(path.parent) for path in sorted(self._folder.glob(f"*/{METRICS}"))]
                write_text(self._folder / REPORT, report_page(runs))
