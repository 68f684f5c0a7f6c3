"""Progress of long work on stderr: a bar on a terminal, a line now and then in a log file.

Work that ends within `SILENT_SECONDS` shows nothing. A thread draws `UPDATES_PER_SECOND` times per
second; the work itself only sets numbers, so that it is not slowed down.
"""

import contextlib
import dataclasses
import importlib.util
import sys
import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from bertjax.base import printable

if TYPE_CHECKING:
    from rich.console import Console

SILENT_SECONDS = 1.0
UPDATES_PER_SECOND = 8
# A log file gets the first line after FIRST_LINE_SECONDS, and further ones after LINE_SECONDS each.
FIRST_LINE_SECONDS = 10.0
LINE_SECONDS = 30.0
BYTES = "bytes"

# A terminal shows one live display at a time: this lock is held by the one that is shown.
_terminal = threading.Lock()
_is_hidden = False


def hide() -> None:
    """Shows no progress in this process from now on; for hosts other than the first."""
    global _is_hidden
    _is_hidden = True


def shows_bars(console: "Console") -> bool:
    """Returns whether `console` is a terminal, or a notebook with ipywidgets."""
    widgets = importlib.util.find_spec("ipywidgets") is not None
    return console.is_interactive or (console.is_jupyter and widgets)


@contextlib.contextmanager
def live_display() -> Iterator[bool]:
    """Reserves the terminal for a live display; yields False if another one has reserved it."""
    is_free = _terminal.acquire(blocking=False)
    try:
        yield is_free
    finally:
        if is_free:
            _terminal.release()


def duration(seconds: float) -> str:
    """Returns a number of seconds as h:mm:ss, after a number of days if necessary."""
    return str(timedelta(seconds=round(seconds)))


@dataclasses.dataclass
class Progress:
    """The state of a piece of work, which began when this object was created.

    `total` (None: unknown) and `done` are amounts of work in `unit`s, such as "texts" or `BYTES`;
    `what` is being done, such as "counting words"; `note` replaces the amount if it is not empty.
    """

    what: str
    total: float | None = None
    unit: str = ""
    done: float = 0.0
    note: str = ""
    _began: float = dataclasses.field(default_factory=time.monotonic)
    _lock: Any = dataclasses.field(default_factory=threading.Lock)

    def advance(self, amount: float = 1) -> None:
        """Adds `amount` to the work that is done; several threads may call this at a time."""
        with self._lock:
            self.done += amount

    def update(self, done: float, note: str = "") -> None:
        """Sets the amount of work that is done, and `note`."""
        self.done = done
        self.note = note

    @property
    def seconds(self) -> float:
        """The seconds since the beginning of the work."""
        return time.monotonic() - self._began

    @property
    def share(self) -> float | None:
        """The fraction of the work that is done; None if the total is unknown."""
        if self.total:
            return min(self.done / self.total, 1.0)
        return None

    def amount(self) -> str:
        """Returns the amount and the speed, such as "1,200 texts, 300 texts/s", or the note."""
        if self.note or not self.done:
            return self.note
        speed = self.done / max(self.seconds, 1e-3)
        if self.unit == BYTES:
            of = ""
            if self.total:
                of = f" of {file_size(self.total)}"
            return f"{file_size(self.done)}{of}, {file_size(speed)}/s"
        if not self.unit:
            return ""
        of = f" of {self.total:,.0f}" if self.total else ""
        digits = 0 if speed >= 10 else 1
        return f"{self.done:,.0f}{of} {self.unit}, {speed:,.{digits}f} {self.unit}/s"

    def time_left(self) -> str:
        """Returns the expected time until the end, such as "0:01:20 left"; "" if unknown."""
        if not self.share or self.share == 1:
            return ""
        return f"{duration(self.seconds * (1 / self.share - 1))} left"

    def line(self) -> str:
        """Returns the state as a line of text."""
        parts = [self.amount(), self.time_left()]
        if self.share is not None:
            parts.insert(0, f"{self.share:.0%}")
        shown = ", ".join(filter(None, parts)) or duration(self.seconds)
        return f"{self.what}: {shown}"

    def summary(self) -> str:
        """Returns a line of text about the finished work."""
        amount = ""
        if self.unit:
            amount = f"{self.done:,.0f} {self.unit}"
        if self.unit == BYTES:
            amount = file_size(self.done) if self.done else ""
        amount = self.note or amount
        if amount:
            amount += " in "
        return f"{self.what}: {amount}{duration(self.seconds)}"


def file_size(number: float) -> str:
    """Returns a number of bytes in kB, MB or GB (powers of 1,000)."""
    for unit, factor in (("GB", 1e9), ("MB", 1e6)):
        if number >= factor:
            return f"{number / factor:,.1f} {unit}"
    return f"{number / 1e3:,.0f} kB"


@contextlib.contextmanager
def progress(
    what: str, total: float | None = None, unit: str = "", *, shown: bool = True
) -> Iterator[Progress]:
    """Shows the progress of the work in the `with` block, which the block reports to the result.

    The arguments are the attributes of `Progress`; without a `unit`, the amount is not shown.
    """
    state = Progress(what, total, unit)
    if _is_hidden or not shown:
        yield state
        return
    display = _Display(state)
    display.start()
    try:
        yield state
    except BaseException:
        display.finish()
        raise
    if display.finish():
        print(state.summary(), file=sys.stderr, flush=True)


@contextlib.contextmanager
def waiting(what: str) -> Iterator[None]:
    """Says on stderr, after FIRST_LINE_SECONDS, that the `with` block waits for `what`."""
    where = {"file": sys.stderr, "flush": True}
    timer = threading.Timer(FIRST_LINE_SECONDS, print, (f"waiting for {what}",), where)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


class _Display(threading.Thread):
    """The thread that shows a `Progress`, from `SILENT_SECONDS` on until `finish` is called."""

    def __init__(self, state: Progress):
        super().__init__(daemon=True, name="progress")
        self._state = state
        self._ended = threading.Event()
        self._has_shown = False

    def finish(self) -> bool:
        """Ends the display; returns whether it has shown anything."""
        self._ended.set()
        self.join()
        return self._has_shown

    def run(self) -> None:
        if self._ended.wait(SILENT_SECONDS):
            return
        console = printable.console(stderr=True)
        # A terminal that is closed while the work goes on must not end the work.
        with contextlib.suppress(OSError, ValueError):
            if not shows_bars(console):
                self._lines()
                return
            with live_display() as is_free:
                if is_free:
                    self._bar(console)

    def _lines(self) -> None:
        wait = FIRST_LINE_SECONDS - SILENT_SECONDS
        while not self._ended.wait(wait):
            self._has_shown = True
            print(self._state.line(), file=sys.stderr, flush=True)
            wait = LINE_SECONDS

    def _bar(self, console: "Console") -> None:
        from rich import progress as rich_progress
        from rich.table import Column

        state = self._state
        columns = (
            rich_progress.BarColumn(24) if state.unit else rich_progress.SpinnerColumn(),
            rich_progress.TextColumn(
                "{task.description}",
                markup=False,
                table_column=Column(no_wrap=True, overflow="ellipsis"),
            ),
        )
        # Where stdout is a file or a pipe, what is printed must get there as it is.
        with rich_progress.Progress(
            *columns,
            console=console,
            auto_refresh=False,
            transient=True,
            redirect_stdout=sys.stdout.isatty(),
        ) as bar:
            printable.filter_above_live_display()
            task = bar.add_task(state.line(), total=state.total)
            self._has_shown = True
            while True:
                done = state.done
                total = state.total
                line = state.line()
                bar.update(task, completed=done, total=total, description=line, refresh=True)
                if self._ended.wait(1 / UPDATES_PER_SECOND):
                    return
