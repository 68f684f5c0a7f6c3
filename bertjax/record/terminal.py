"""What the terminal or the log file shows of a training run.

On a terminal and in notebooks, one live line shows the present step, and each evaluation is a row
of a table. In a log file, each entry of the metrics is a line of text, with columns of fixed width.
"""

import collections
import contextlib
import itertools
import statistics
import sys
import time
from collections.abc import Mapping

from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from bertjax.base import printable, progress
from bertjax.devices import activity
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
SHOWN_SECONDS, INPUT_SECONDS = 0.5, 5.0
# Seconds between the updates of the metrics in the live line before the first log line.
VALUES_EVERY = 1.0
BAR_WIDTH, LEAST_BAR_WIDTH = 20, 8
# The time left is estimated from so many of the last steps, and only after so many steps: the first
# ones are slow, and a run that begins would seem to take hours.
STEPS_TIMED, FIRST_STEPS = 100, 10
# A step that takes so many times as long as the median has compiled another row shape.
SLOW_STEP = 10.0


class Terminal:
    """Shows a run on standard output.

    Args:
        name: the name of the run.
        num_steps: the number of steps of the run.
        step: the step at which the run starts or resumes.
        last_evaluation: the metrics of the last evaluation before, by name without "eval/".
        quiet: whether nothing is shown; for hosts other than the first.
    """

    def __init__(
        self,
        name: str,
        *,
        clock: activity.Clock,
        num_steps: int,
        step: int,
        last_evaluation: Mapping[str, float] | None = None,
        quiet: bool = False,
    ):
        self._name, self._num_steps, self._step = name, num_steps, step
        self._evaluation = dict(last_evaluation or {})
        self._header: list[str] = []
        self._values: dict[str, float] = {}
        self._values_at = time.monotonic()
        self._has_line = False
        self._activities, self._clock = clock, TimeLeft(clock)
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

    def close(self) -> None:
        """Ends the live line."""
        self._stack.close()

    def did_step(self, step: int) -> None:
        """Moves the live line to `step`."""
        self._step = step
        self._clock.did_step(step)

    @property
    def wants_values(self) -> bool:
        """Whether the live line needs the metrics so far, because none have been logged yet."""
        due = time.monotonic() - self._values_at >= VALUES_EVERY
        return self._is_live and not self._has_line and due

    def set_values(self, values: Mapping[str, float]) -> None:
        """Sets the training metrics, named without "train/", of the live line."""
        if values:
            self._values, self._values_at = dict(values), time.monotonic()

    def show(self, step: int, values: Mapping[str, float]) -> None:
        """Shows metrics of a step; all names begin with "train/", "eval/" or "skipped/"."""
        self._step = step
        kind = next(iter(values), "").partition("/")[0]
        metrics = {key.partition("/")[2]: value for key, value in values.items()}
        if kind == "train":
            self.set_values(metrics)
            self._has_line = True
            if not self._is_live:
                share = f"{step / max(self._num_steps, 1):>4.0%}"
                self._print("  ".join([self._at(step), share, *self._columns()]))
        elif kind == "eval":
            self._show_evaluation(step, metrics)
        elif kind == "skipped":
            self._print(_skipped(step, metrics))

    def _show_evaluation(self, step: int, metrics: Mapping[str, float]) -> None:
        found = cells(metrics, self._evaluation)
        self._evaluation = dict(metrics)
        if self._is_live:
            self._print_row(step, found)
            return
        begin = f"{self._at(step).partition(' of ')[0]}  held-out "
        texts = [f"{cell.label} {cell.value} {cell.change}".rstrip() for cell in found]
        widths = [len(cell.label) + 1 + cell.width for cell in found]
        for row in in_lines(widths, LOG_WIDTH - len(begin)):
            self._print((begin + "  ".join(texts[n].ljust(widths[n]) for n in row)).rstrip())
            begin = " " * len(begin)

    def _print_row(self, step: int, row: list[Cell]) -> None:
        first = max(len(f"{self._num_steps:,}"), len("step"))
        widths = [max(len(cell.label), cell.width) for cell in row]
        lines = in_lines(widths, self._console.width - first - 2)
        if [cell.label for cell in row] != self._header:
            if not self._header:
                self._print("Held-out metrics, with the change since the last evaluation:")
            self._header = [cell.label for cell in row]
            for number_, line in enumerate(lines):
                texts = (f"{row[n].label:<{widths[n]}}" for n in line)
                begin = ("" if number_ else "step").rjust(first)
                self._print("  ".join([begin, *texts]).rstrip(), "bold")
        for number_, line in enumerate(lines):
            texts = (f"{row[n].value} {row[n].change}".ljust(widths[n]) for n in line)
            begin = ("" if number_ else f"{step:,}").rjust(first)
            self._print("  ".join([begin, *texts]).rstrip())

    def _print(self, text: str, style: str = "") -> None:
        self._console.print(Text(text, style), soft_wrap=True)

    def _at(self, step: int) -> str:
        return f"step {step:>{len(f'{self._num_steps:,}')},} of {self._num_steps:,}"

    def _columns(self) -> list[str]:
        values = self._values
        accuracy = main_accuracy(values)
        speed = values.get("tokens_per_second")
        left = self._clock.seconds_left(self._num_steps)
        columns = [f"loss {number(values.get('loss', float('nan'))):>7}"]
        if accuracy is not None:
            columns.append(f"{label(accuracy)} {value_text(accuracy, values[accuracy]):>6}")
        if "learning_rate" in values:
            columns.append(f"learning rate {values['learning_rate']:>8.2e}")
        columns.append(f"{'-' if speed is None else f'{speed:,.0f}':>9} tokens/s")
        if self._step < self._num_steps:
            columns.append(f"{'-' if left is None else progress.duration(left):>8} left")
        return columns

    def _live_line(self) -> Table:
        total = f"{self._num_steps:,}"
        position = f"{self._step:>{len(total)},}/{total}"
        form, bar_width = _form_of(self._console.width, len(self._name) + 1, len(position))
        is_named, names, is_short = form
        texts = _live_texts(self._values, self._clock.seconds_left(self._num_steps), is_short)
        shown = (texts[name] for name in names if name in texts)
        text = _present_activity(self._activities) or "  ".join(shown)
        if not bar_width:
            return _line(Text.assemble((position, "bold"), f"  {text}"))
        head = Text(f"{self._name} {position}" if is_named else position, "bold")
        return _line(head, ProgressBar(self._num_steps, self._step, width=bar_width), Text(text))


# The width of the longest usual text of each metric of the live line: in full, and abbreviated.
_LIVE_WIDTHS = {
    "loss": (len("training loss 12.345"), len("train loss 12.345")),
    "accuracy": (len("MLM accuracy 100.0%"), len("acc 100.0%")),
    "learning_rate": (len("learning rate 1.00e-04"), len("lr 1.0e-4")),
    "tokens_per_second": (len("999,999 tokens/s"), len("999k tok/s")),
    "left": (len("00:00:00 left"),) * 2,
}
_EVERYTHING = tuple(_LIVE_WIDTHS)
_NO_RATE = tuple(name for name in _EVERYTHING if name != "learning_rate")
_NO_SPEED = tuple(name for name in _NO_RATE if name != "tokens_per_second")
# What the live line shows, from the most text to the least: whether it names the run, the metrics
# of `_LIVE_WIDTHS`, and whether these are abbreviated.
_FORMS = (
    (True, _EVERYTHING, False),
    (True, _EVERYTHING, True),
    (True, _NO_RATE, True),
    (False, _NO_RATE, True),
    (False, _NO_SPEED, True),
)


def _form_of(
    width: int, name_width: int, position_width: int
) -> tuple[tuple[bool, tuple[str, ...], bool], int]:
    """Returns the first of `_FORMS` for which a terminal has room, and the width of the bar or 0.

    The form depends on the width of the terminal alone, so that it never changes.
    """
    for is_named, names, is_short in _FORMS:
        texts = sum(_LIVE_WIDTHS[name][is_short] + 2 for name in names)
        room = width - name_width * is_named - position_width - texts - 2
        if room >= LEAST_BAR_WIDTH:
            return (is_named, names, is_short), min(room, BAR_WIDTH)
    return _FORMS[-1], 0


def _line(*parts: Text | ProgressBar) -> Table:
    grid = Table.grid(padding=(0, 2, 0, 0))
    for _ in parts:
        grid.add_column(no_wrap=True, overflow="ellipsis")
    grid.add_row(*parts)
    return grid


class TimeLeft:
    """Estimates the time left from the times of the last steps and of all evaluations and saves."""

    def __init__(self, clock: activity.Clock):
        self._clock = clock
        self._steps: collections.deque[tuple[int, float]] = collections.deque(maxlen=STEPS_TIMED)
        self._at = time.monotonic()
        # A run of the same process may have had other evaluations before.
        self._before = clock.seconds()

    def did_step(self, step: int) -> None:
        """Notes that the training step `step` is done."""
        self._steps.append((step, self._seconds(activity.STEPPING, activity.INPUT)))
        self._at = time.monotonic()

    def _seconds(self, *activities: str) -> float:
        seconds = self._clock.seconds()
        return sum(seconds[name] - self._before[name] for name in activities)

    def seconds_left(self, num_steps: int) -> float | None:
        """Returns the expected seconds until the end; None after too few steps."""
        if len(self._steps) < FIRST_STEPS:
            return None
        steps = list(self._steps)
        durations = [after[1] - before[1] for before, after in itertools.pairwise(steps)]
        longest = SLOW_STEP * statistics.median(durations)
        step_seconds = statistics.fmean(seconds for seconds in durations if seconds <= longest)
        last, end = steps[-1]
        pauses = self._seconds(activity.EVALUATING, activity.SAVING) / end if end else 0.0
        left = step_seconds * (num_steps - last) * (1 + pauses)
        return max(left - (time.monotonic() - self._at), 0.0)


def _present_activity(clock: activity.Clock) -> str:
    """Returns what the process does, such as "evaluating... 12 s"; "" while it trains."""
    doing = clock.activities[-1]
    seconds = time.monotonic() - doing.since
    if doing.what in (activity.START_UP, activity.STEPPING):
        return ""
    least = INPUT_SECONDS if doing.activity == activity.INPUT else SHOWN_SECONDS
    return f"{doing.what}... {seconds:.0f} s" if seconds >= least else ""


def _live_texts(values: Mapping[str, float], left: float | None, is_short: bool) -> dict[str, str]:
    texts = {}
    if "loss" in values:
        texts["loss"] = f"{'train' if is_short else 'training'} loss {number(values['loss'])}"
    if (accuracy := main_accuracy(values)) is not None:
        name = "acc" if is_short else label(accuracy)
        texts["accuracy"] = f"{name} {value_text(accuracy, values[accuracy])}"
    if (rate := values.get("learning_rate")) is not None:
        short = f"lr {rate:.1e}".replace("e-0", "e-")
        texts["learning_rate"] = short if is_short else f"learning rate {rate:.2e}"
    if (speed := values.get("tokens_per_second")) is not None:
        short = f"{speed / 1e3:,.0f}k tok/s" if speed >= 1e3 else f"{speed:,.0f} tok/s"
        texts["tokens_per_second"] = short if is_short else f"{speed:,.0f} tokens/s"
    if left:
        texts["left"] = f"{progress.duration(left)} left"
    return texts


def _skipped(step: int, metrics: Mapping[str, float]) -> str:
    return (
        f"step {step:,}: the update was skipped ({metrics['in_a_row']:.0f} in a row): loss "
        f"{metrics['loss']:.4g}, gradient norm {metrics['grad_norm']:.4g}, rows "
        f"{metrics['first_row']:.0f} to {metrics['last_row']:.0f} of phase {metrics['phase']:.0f}"
    )
