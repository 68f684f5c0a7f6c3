"""Writes `report.html` of a run while it goes on, and once more when it ends.

The page is written when the training begins, before it has any curve, and again, atomically, after
each evaluation, after the first log line, and when it is older than a minute. A report never stops
a run: whatever fails is one line of warning.
"""

import contextlib
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from bertjax.devices import activity
from bertjax.files import write_text
from bertjax.interruption import Interrupted
from bertjax.training import process_log
from bertjax.training.process_log import FINISHED
from bertjax.training.run_metrics import RunMetrics, read_metrics
from bertjax.training.run_report import METRICS, report_page, run_data
from bertjax.training.run_state import RUNNING, STOPPED
from bertjax.training.workdir import REPORT

# A page is written again at a log line if it is older than this number of seconds.
REFRESH_SECONDS = 60.0

# The runs that this process has started: {local folder: its writer}.
_runs: dict[Path, "ReportWriter"] = {}


class ReportWriter:
    """Writes the report of a run, as a listener of its metrics.

    Args:
        workdir: the local folder of the run.
        address: what messages and the page call the workdir.

    Attributes:
        seconds: the seconds that the last report took.
    """

    def __init__(self, workdir: Path, address: str):
        self._workdir, self._address = workdir, address
        self._metrics: RunMetrics | None = None
        self._written = float("-inf")
        self._has_failed = False
        self.seconds = 0.0

    def write(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Notes metrics that were written to metrics.jsonl; writes the report if that is due.

        Args:
            step: the step of the metrics.
            metrics: {name: value}, with names such as "train/loss".
        """
        with self._surviving():
            is_due = self._metrics is None or time.monotonic() - self._written >= REFRESH_SECONDS
            if self._metrics is None:
                self._metrics = read_metrics(self._workdir / METRICS)
            else:
                self._metrics.add(step, metrics)
            if is_due or any(name.startswith("eval/") for name in metrics):
                with activity.doing(activity.SAVING):
                    self._write(RUNNING)

    def start(self) -> None:
        """Writes the first report of this process, so that the page can be opened at once."""
        with self._surviving(), activity.doing(activity.SAVING):
            self._write(RUNNING)

    def finish(self, state: str) -> None:
        """Writes the last report of this process; `state` is "finished" or "stopped"."""
        with self._surviving():
            self._write(state)

    def _write(self, state: str) -> None:
        start = time.monotonic()
        data = run_data(self._workdir, metrics=self._metrics, state=state, address=self._address)
        write_text(self._workdir / REPORT, report_page([data]))
        self._written = time.monotonic()
        self.seconds = self._written - start

    @contextlib.contextmanager
    def _surviving(self) -> Iterator[None]:
        """Prints an error of the `with` block as a warning, the first time, and goes on."""
        try:
            yield
        except Exception as error:  # a report is no part of the training, whatever it raises
            if not self._has_failed:
                print(
                    f"warning: {self._workdir / REPORT} was not written "
                    f"({type(error).__name__}: {error}). The run goes on; `python -m "
                    f"bertjax.report {self._address}` writes it later.",
                    flush=True,
                )
            self._has_failed = True


def begin(workdir: Path, address: str, facts: Mapping[str, Any]) -> ReportWriter:
    """Notes that this process trains the run in `workdir`, and writes the first report.

    The writer of the reports is returned.

    Only the first host may call this function.

    Args:
        workdir: the local folder of the run.
        address: what messages and the page call the workdir, such as its address in a bucket.
        facts: JSON values about the run, such as the step from which it is trained.
    """
    writer = _runs[workdir] = ReportWriter(workdir, address)
    with writer._surviving():
        process_log.started(workdir, facts)
    writer.start()
    return writer


def end(workdir: Path) -> None:
    """Notes that the run in `workdir`, one of several of this process, has finished."""
    if workdir in _runs:  # only on the first host
        process_log.ended(workdir, FINISHED)


@contextlib.contextmanager
def reported(folder: Path) -> Iterator[None]:
    """A context of a run or of several runs, at whose end the last reports are written.

    If `folder` is the parent folder of several runs, such as those of a sweep, its report.html
    compares them.
    """
    _runs.clear()
    try:
        yield
    except BaseException as error:
        if isinstance(error, SystemExit):  # such as that of a command whose output was closed
            reason = "the command ended early"
        else:
            name = "" if isinstance(error, Interrupted) else f"{type(error).__name__}: "
            reason = f"{name}{error}"
        _finish(folder, STOPPED, reason)
        raise
    _finish(folder, FINISHED, "")


def _finish(folder: Path, state: str, reason: str) -> None:
    for workdir, writer in _runs.items():
        with writer._surviving():
            (*_, last) = process_log.read_processes(workdir) or [None]
            if last is not None and last["ended"] is None:
                process_log.ended(workdir, state, reason)
                writer.finish(state)
            elif last is not None:
                writer.finish(last["ended"]["state"])
    if _runs and folder not in _runs:
        with next(iter(_runs.values()))._surviving():
            runs = [run_data(run) for run in sorted(folder.iterdir()) if (run / METRICS).is_file()]
            write_text(folder / REPORT, report_page(runs))
    _runs.clear()
