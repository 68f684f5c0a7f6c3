"""What the terminal or the log file shows of a training run.

On a terminal and in notebooks, one live line shows the present step, and each evaluation is a row
of a table. In a log file, each entry of the metrics is a line of text, with columns of fixed width.
"""

import collections
import contextlib
import math
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from bertjax.base import printable, progress
from bertjax.devices import activity
from bertjax.devices.activity import Clock
from bertjax.record.events import (
    Evaluated,
    Finished,
    Logged,
    Reader,
    Skipped,
    Started,
    StepDone,
    Stopped,
)
from bertjax.record.labels import (
    Cell,
    cells,
    in_lines,
    label,
    main_accuracy,
    number,
    value_text,
)

# The width of the lines in a log file; longer evaluations are continued on further lines.
LOG_WIDTH = 160
# Activities that last less long are not shown; waiting for input is part of training for longer.
SHOWN_SECONDS = 0.5
INPUT_SECONDS = 5.0
# Seconds between the updates of the metrics in the live line before the first log line.
PREVIEW_SECONDS = 1.0
BAR_WIDTH = 20
LEAST_BAR_WIDTH = 8
# Seconds without a line in a log file, after which the step before gets one.
LINE_SECONDS = 60.0
# The time left is estimated from so many of the last steps, and only after so many seconds: the
# first steps are slow, and a run of short ones would seem to take hours.
STEPS_TIMED = 100
FIRST_SECONDS = 5.0
# A step that takes so many times as long as the median has compiled another row shape.
SLOW_STEP = 10.0


class Terminal(Reader):
    """Shows a run on standard output.

    Args:
        name: the name of the run.
        clock: what the run is doing, and its present step.
        num_steps: the number of steps of the run.
        last_evaluation: the line of metrics.jsonl of the last evaluation before, if any.
        preview: returns the training metrics, named without "train/", before they are logged.
        quiet: whether nothing is shown.
    """

    def __init__(
        self,
        name: str,
        *,
        clock: Clock,
        num_steps: int,
        last_evaluation: Mapping[str, float] | None = None,
        preview: Callable[[], Mapping[str, float]] = dict,
        quiet: bool = False,
    ):
        self._name = name
        self._clock = clock
        self._num_steps = num_steps
        self._evaluation = _without_kind(last_evaluation or {})
        self._preview = preview
        self._header: list[str] = []
        self._values: Mapping[str, float] = {}
        self._values_at = time.monotonic()
        self._line_at = time.monotonic()
        self._line_step = 0
        self._has_log_line = False
        self._time_left = TimeLeft(clock)
        self._console = printable.console(quiet=quiet)
        self._stack = contextlib.ExitStack()
        self._is_live = not quiet and progress.shows_bars(self._console)
        if self._is_live and self._stack.enter_context(progress.live_display()):
            live = Live(
                console=self._console,
                get_renderable=self._live_line,
                refresh_per_second=progress.UPDATES_PER_SECOND,
                transient=True,
                # What is printed to a file or a pipe must get there.
                redirect_stderr=sys.stderr.isatty(),
            )
            self._stack.enter_context(live)
            printable.filter_above_live_display()

    def read(self, event: Any) -> None:
        match event:
            case Started(step=step):
                self._line_step = step
                self._time_left = TimeLeft(self._clock)
            case StepDone(step=step):
                self._show_step_before(step)
                self._time_left.did_step(step)
                self._show_preview()
            case Logged(step=step, metrics=metrics):
                self._show_training(step, _without_kind(metrics))
            case Evaluated(step=step, metrics=metrics):
                self._show_evaluation(step, _without_kind(metrics))
            case Skipped(step=step, metrics=metrics):
                self._print(_skipped(step, _without_kind(metrics)))
            case Stopped() | Finished():
                self._stack.close()

    def _print(self, text: str, style: str = "") -> None:
        self._console.print(Text(text.rstrip(), style), soft_wrap=True)

    def _show_preview(self) -> None:
        """Shows the metrics before the first log line, which may take minutes, in the live line."""
        now = time.monotonic()
        if self._is_live and not self._has_log_line and now - self._values_at >= PREVIEW_SECONDS:
            self._values = self._preview() or self._values
            self._values_at = now

    def _show_step_before(self, step: int) -> None:
        """Writes a line of the step before `step` if a log file has had none for long.

        If that step is logged, it has its line by now.
        """
        if self._is_live or self._line_step >= step - 1:
            return
        if time.monotonic() - self._line_at >= LINE_SECONDS and (values := self._preview()):
            self._print_line(step - 1, values)

    def _show_training(self, step: int, values: Mapping[str, float]) -> None:
        self._values = values
        self._has_log_line = True
        if not self._is_live:
            self._print_line(step, values)

    def _print_line(self, step: int, values: Mapping[str, float]) -> None:
        self._line_at = time.monotonic()
        self._line_step = step
        rate = "-"  # the values between two entries lack it
        if "learning_rate" in values:
            rate = f"{values['learning_rate']:.2e}"
        columns = [
            f"step {self._number(step)} of {self._num_steps:,}",
            f"{step / max(self._num_steps, 1):>4.0%}",
            f"loss {number(values.get('loss', math.nan)):>7}",
        ]
        if (accuracy := main_accuracy(values)) is not None:
            columns.append(f"{label(accuracy)} {value_text(accuracy, values[accuracy]):>6}")
        columns.append(f"learning rate {rate:>8}")
        speed = "-"
        if "tokens_per_second" in values:
            speed = f"{values['tokens_per_second']:,.0f}"
        columns.append(f"{speed:>9} tokens/s")
        if step < self._num_steps:
            seconds = self._time_left.seconds_left(self._num_steps)
            left = "-"
            if seconds is not None:
                left = progress.duration(seconds)
            columns.append(f"{left:>8} left")
        self._print("  ".join(columns))

    def _show_evaluation(self, step: int, metrics: Mapping[str, float]) -> None:
        row = cells(metrics, self._evaluation)
        self._evaluation = dict(metrics)
        if self._is_live:
            self._show_row(step, row)
            return
        begin = f"step {self._number(step)}  held-out "
        texts = [f"{cell.label} {cell.value} {cell.change}" for cell in row]
        widths = [len(cell.label) + 1 + cell.width for cell in row]
        self._print_in_lines(begin, texts, widths, LOG_WIDTH)

    def _number(self, step: int) -> str:
        return f"{step:,}".rjust(len(f"{self._num_steps:,}"))

    def _show_row(self, step: int, row: Sequence[Cell]) -> None:
        """Shows an evaluation as a row of the table, after its header if that is another one."""
        labels = [cell.label for cell in row]
        widths = [max(len(cell.label), cell.width) for cell in row]
        begin = f"{self._number(step):>4}  "
        room = self._console.width
        if labels != self._header:
            if not self._header:
                self._print("Held-out metrics, with the change since the last evaluation:")
            self._header = labels
            self._print_in_lines(f"{'step':>{len(begin) - 2}}  ", labels, widths, room, "bold")
        texts = [f"{cell.value} {cell.change}" for cell in row]
        self._print_in_lines(begin, texts, widths, room)

    def _print_in_lines(
        self, begin: str, texts: Sequence[str], widths: Sequence[int], width: int, style: str = ""
    ) -> None:
        """Prints columns after `begin`, in as many lines of `width` characters as they need."""
        for line in in_lines(widths, width - len(begin)):
            columns = [texts[n].ljust(widths[n]) for n in line]
            self._print(begin + "  ".join(columns), style)
            begin = " " * len(begin)

    def _live_line(self) -> Table:
        step = self._clock.step
        position = f"{self._number(step)}/{self._num_steps:,}"
        form, bar_width = _form_of(self._console.width, len(self._name) + 1, len(position))
        text = _present_activity(self._clock)
        if not text:
            left = self._time_left.seconds_left(self._num_steps)
            texts = _live_texts(self._values, left, is_short=form.is_short)
            text = "  ".join(texts[name] for name in form.metrics if name in texts)
        if not bar_width:
            return _grid(Text.assemble((position, "bold"), f"  {text}"))
        if form.is_named:
            position = f"{self._name} {position}"
        bar = ProgressBar(self._num_steps, step, width=bar_width)
        return _grid(Text(position, "bold"), bar, Text(text))


def _without_kind(metrics: Mapping[str, float]) -> dict[str, float]:
    """Returns metrics without "train/", "eval/" or "skipped/" in their names."""
    return {name.partition("/")[2]: value for name, value in metrics.items()}


# The width of the longest usual text of each metric of the live line: in full, and abbreviated.
# The longest usual text of each metric of the live line: in full, and abbreviated.
_USUAL = {
    "loss": ("training loss 12.345", "train loss 12.345"),
    "accuracy": ("MLM accuracy 100.0%", "acc 100.0%"),
    "learning_rate": ("learning rate 1.00e-04", "lr 1.0e-4"),
    "tokens_per_second": ("999,999 tokens/s", "999k tok/s"),
    "left": ("00:00:00 left", "00:00:00 left"),
}


class _Form(NamedTuple):
    """What the live line shows: the name of the run, metrics, and whether they are abbreviated."""

    is_named: bool
    metrics: tuple[str, ...]
    is_short: bool

    def width(self, name_width: int) -> int:
        """Returns the usual width of the line without its position and its bar."""
        width = 2
        if self.is_named:
            width += name_width
        for name in self.metrics:
            width += len(_USUAL[name][self.is_short]) + 2
        return width


_EVERYTHING = tuple(_USUAL)
_NO_RATE = ("loss", "accuracy", "tokens_per_second", "left")
_NO_SPEED = ("loss", "accuracy", "left")
# From the most text to the least.
_FORMS = (
    _Form(True, _EVERYTHING, False),
    _Form(True, _EVERYTHING, True),
    _Form(True, _NO_RATE, True),
    _Form(False, _NO_RATE, True),
    _Form(False, _NO_SPEED, True),
)


def _form_of(width: int, name_width: int, position_width: int) -> tuple[_Form, int]:
    """Returns the first of `_FORMS` for which a terminal has room, and the width of the bar or 0.

    The form depends on the width of the terminal alone, so that it never changes.
    """
    for form in _FORMS:
        room = width - position_width - form.width(name_width)
        if room >= LEAST_BAR_WIDTH:
            return form, min(room, BAR_WIDTH)
    return _FORMS[-1], 0


def _grid(*parts: Text | ProgressBar) -> Table:
    grid = Table.grid(padding=(0, 2, 0, 0))
    for _ in parts:
        grid.add_column(no_wrap=True, overflow="ellipsis")
    grid.add_row(*parts)
    return grid


class TimeLeft:
    """Estimates the time left from the times of the last steps and of all evaluations and saves."""

    def __init__(self, clock: Clock):
        self._clock = clock
        # The number of each of the last steps, and the seconds of training when it was done.
        self._steps: collections.deque[int] = collections.deque(maxlen=STEPS_TIMED)
        self._seconds: collections.deque[float] = collections.deque(maxlen=STEPS_TIMED)
        self._at = time.monotonic()
        # A run of the same process may have had other evaluations before.
        self._trained_before, self._paused_before = self._trained(), self._paused()

    def _trained(self) -> float:
        return self._clock.seconds_of(activity.STEPPING, activity.INPUT)

    def _paused(self) -> float:
        return self._clock.seconds_of(activity.EVALUATING, activity.SAVING)

    def did_step(self, step: int) -> None:
        """Notes that the training step `step` is done."""
        self._steps.append(step)
        self._seconds.append(self._trained() - self._trained_before)
        self._at = time.monotonic()

    def seconds_left(self, num_steps: int) -> float | None:
        """Returns the expected seconds until the end; None if it is too early for that."""
        seconds = self._seconds.copy()
        if len(seconds) < 2 or seconds[-1] < FIRST_SECONDS:
            return None
        durations = np.diff(seconds)
        usual = durations[durations <= SLOW_STEP * np.median(durations)]
        left = float(usual.mean()) * (num_steps - self._steps[-1])
        if seconds[-1]:
            left *= 1 + (self._paused() - self._paused_before) / seconds[-1]
        return max(left - (time.monotonic() - self._at), 0.0)


def _present_activity(clock: Clock) -> str:
    """Returns what the process does, such as "evaluating... 12 s"; "" while it trains."""
    doing = clock.activities[-1]
    seconds = time.monotonic() - doing.since
    least = SHOWN_SECONDS
    if doing.activity == activity.INPUT:
        least = INPUT_SECONDS
    if doing.what in (activity.START_UP, activity.STEPPING) or seconds < least:
        return ""
    return f"{doing.what}... {seconds:.0f} s"


def _live_texts(
    values: Mapping[str, float], left: float | None, *, is_short: bool
) -> dict[str, str]:
    """Returns {metric: its text} of those metrics of the live line that are known."""
    texts = {}
    if "loss" in values:
        texts["loss"] = f"training loss {number(values['loss'])}"
    if (accuracy := main_accuracy(values)) is not None:
        name = "acc" if is_short else label(accuracy)
        texts["accuracy"] = f"{name} {value_text(accuracy, values[accuracy])}"
    if "learning_rate" in values:
        rate = values["learning_rate"]
        texts["learning_rate"] = f"learning rate {rate:.2e}"
        if is_short:
            texts["learning_rate"] = f"lr {rate:.1e}".replace("e-0", "e-")
    if "tokens_per_second" in values:
        speed = values["tokens_per_second"]
        texts["tokens_per_second"] = f"{speed:,.0f} tokens/s"
        if is_short and speed >= 1e3:
            texts["tokens_per_second"] = f"{speed / 1e3:,.0f}k tokens/s"
    if left:
        texts["left"] = f"{progress.duration(left)} left"
    if is_short:
        for name, text in texts.items():
            texts[name] = text.replace("training", "train").replace("tokens", "tok")
    return texts


def _skipped(step: int, metrics: Mapping[str, float]) -> str:
    return (
        f"step {step:,}: the update was skipped ({metrics['in_a_row']:.0f} in a row): loss "
        f"{metrics['loss']:.4g}, gradient norm {metrics['grad_norm']:.4g}, rows "
        f"{metrics['first_row']:.0f} to {metrics['last_row']:.0f} of phase {metrics['phase']:.0f}"
    )
