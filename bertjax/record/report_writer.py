"""Writes `report.html` while a run goes on, and notes its processes in `processes.jsonl`."""

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bertjax.base.files import write_text
from bertjax.base.signals import Interrupted
from bertjax.base.workdir_files import METRICS, REPORT
from bertjax.devices.activity import SAVING, Clock
from bertjax.record.events import Closed, Evaluated, Line, Reader, Started
from bertjax.record.ledger import FINISHED, process_ended, process_started
from bertjax.record.report import (
    RUNNING,
    STOPPED,
    RunMetrics,
    read_metrics,
    report_page,
    run_data,
)

# A page is written again at a log line if it is older than this number of seconds.
REFRESH_SECONDS = 60.0


class ReportWriter(Reader):
    """Writes the reports of the runs that this process trains, one after the other.

    Whatever fails is a warning, the first time, and the run goes on.

    Args:
        folder: the workdir, or the parent folder of several runs, whose report.html compares them.
        clock: counts the time of writing.
    """

    def __init__(self, folder: Path, clock: Clock):
        self._folder = folder
        self._clock = clock
        self._started: Started | None = None  # the present run
        self._runs: set[Path] = set()
        self._has_failed = False

    def read(self, event: Any) -> None:
        with self._surviving():
            match event:
                case Started():
                    self._begin(event)
                case Line():
                    self._add(event)
                case Closed():
                    self._end(FINISHED)

    def _begin(self, event: Started) -> None:
        self._started = event
        self._state = RUNNING
        self._written = float("-inf")
        self._runs.add(event.workdir)
        self._metrics: RunMetrics | None = None  # None: those in the file, until there are new ones
        process_started(event.workdir, event.facts)
        self._show()

    def _add(self, line: Line) -> None:
        assert self._started is not None
        is_due = self._metrics is None or time.monotonic() - self._written >= REFRESH_SECONDS
        if self._metrics is None:
            self._metrics = read_metrics(self._started.workdir / METRICS)
        else:
            self._metrics.add(line.step, line.metrics)
        if is_due or isinstance(line, Evaluated):
            self._show()

    def _end(self, state: str, reason: str = "") -> None:
        assert self._started is not None
        self._state = state
        process_ended(self._started.workdir, state, reason)
        self._show()

    def close(self, error: BaseException | None = None) -> None:
        """Writes the last reports; `error` is why the process ends before its work is done."""
        if self._started is None:
            return
        if error is not None and self._state == RUNNING:
            with self._surviving():
                self._end(STOPPED, _reason(error))
        if self._folder not in self._runs:
            with self._surviving():
                runs = [run_data(path.parent) for path in sorted(self._folder.glob(f"*/{METRICS}"))]
                write_text(
                    self._folder / REPORT, report_page(runs, {str(self._folder): self._folder})
                )

    def _show(self) -> None:
        assert self._started is not None
        with self._clock.doing(SAVING):
            data = run_data(
                self._started.workdir,
                metrics=self._metrics,
                state=self._state,
                address=self._started.address,
            )
            write_text(self._started.workdir / REPORT, report_page([data]))
            self._written = time.monotonic()

    @contextlib.contextmanager
    def _surviving(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # a report is no part of the training, whatever it raises
            if not self._has_failed and self._started is not None:
                print(
                    f"warning: {self._started.workdir / REPORT} was not written "
                    f"({type(error).__name__}: {error}). The run goes on; `python -m "
                    f"bertjax.report {self._started.address}` writes it later.",
                    flush=True,
                )
            self._has_failed = True


def _reason(error: BaseException) -> str:
    if isinstance(error, Interrupted):
        return str(error)
    if isinstance(error, SystemExit):  # such as of a command whose output was closed
        return "the command ended early"
    return f"{type(error).__name__}: {error}"
