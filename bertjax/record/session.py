"""`Session`: what one call of `pretrain` or `finetune` records, of one run or of several."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bertjax.base.files import write_text
from bertjax.base.signals import Interrupted
from bertjax.base.workdir_files import METRICS, REPORT
from bertjax.devices import hosts
from bertjax.devices.activity import Clock
from bertjax.devices.host_watch import HostWatch
from bertjax.record import journal
from bertjax.record.journal import FINISHED, Ledger
from bertjax.record.report import RUNNING, STOPPED, ReportWriter, report_page, run_data


class Session:
    """The clock, the watch over the hosts, the ledger of time and the reports of a process.

    At the end of the `with` block, the ledger is closed and its table printed, and the last reports
    are written.

    Args:
        folder: the workdir, or the parent folder of several runs, whose report.html compares them.
        clock: what this process is doing.
        watch: tells the other hosts if this one ends.
    """

    def __init__(self, folder: Path, clock: Clock, watch: HostWatch):
        self._folder, self.clock, self.watch = folder, clock, watch
        self._writers: dict[Path, ReportWriter] = {}
        self._ledger: Ledger | None = None

    def begin_run(self, workdir: Path, step: int) -> None:
        """Opens the ledger of the run in `workdir`, or notes that the run went back to `step`.

        Only the first host keeps a ledger. The ledger of another run is closed, and the time of the
        new run begins now.
        """
        if not hosts.is_first():
            return
        if self._ledger is not None and self._ledger.workdir == workdir:
            self._ledger.returned_to(step)
            return
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
        if self._ledger is not None:
            self._ledger.close()
            journal.print_table(self._ledger.workdir)
        if error is None:
            self._finish(FINISHED, "")
        elif isinstance(error, SystemExit):  # such as of a command whose output was closed
            self._finish(STOPPED, "the command ended early")
        else:
            name = "" if isinstance(error, Interrupted) else f"{type(error).__name__}: "
            self._finish(STOPPED, f"{name}{error}")

    def _finish(self, state: str, reason: str) -> None:
        for workdir, writer in self._writers.items():
            with writer.surviving():
                (*_, last) = journal.read_processes(workdir) or [None]
                if last is not None and last["ended"] is None:
                    journal.ended(workdir, state, reason)
                    writer.show(state)
                elif last is not None:
                    writer.show(last["ended"]["state"])
        folder = self._folder
        if self._writers and folder not in self._writers:
            with next(iter(self._writers.values())).surviving():
                found = [path.parent for path in sorted(folder.glob(f"*/{METRICS}"))]
                write_text(folder / REPORT, report_page([run_data(run) for run in found]))
