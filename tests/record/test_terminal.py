"""The terminal and the log file of a run: the live line, the table of evaluations, log lines."""

import io
import json
import os
import re
import subprocess
import sys
import time
from unittest import mock

import pytest
from rich.console import Console

from bertjax.devices import activity
from bertjax.record import labels as metric_labels
from bertjax.record import terminal
from bertjax.record.events import (
    Evaluated,
    Finished,
    Logged,
    Skipped,
    StepDone,
    Stopped,
)
from bertjax.record.terminal import Terminal
from tests.pseudo_terminal import shown_on_terminal

TRAIN = {
    "train/mlm_loss": 4.2,
    "train/mlm_accuracy": 0.25,
    "train/loss": 4.9,
    "train/learning_rate": 1e-3,
    "train/grad_norm": 1.5,
    "train/tokens_per_second": 12345.6,
}
EVAL = {
    "eval/mlm_accuracy": 0.231,
    "eval/mlm_loss": 4.985,
    "eval/nsp_accuracy": 0.5,
    "eval/nsp_loss": 0.693,
    "eval/unigram_entropy": 6.02,
}


@pytest.fixture
def console(monkeypatch):
    """Makes all terminals write to one `StringIO`; a function (is it a terminal?, width)."""

    def make(is_terminal: bool, width: int = 100) -> io.StringIO:
        file = io.StringIO()
        made = Console(file=file, force_terminal=is_terminal, force_interactive=is_terminal,
                       width=width, color_system=None)  # fmt: skip
        monkeypatch.setattr(terminal.printable, "console", lambda quiet: made)
        return file

    return make


def without_codes(text: str) -> str:
    """Removes colours and movements of the cursor from the output to a terminal."""
    return re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", text)


def line_of(step, values):
    kind = next(iter(values), "train/").partition("/")[0]
    return {"train": Logged, "eval": Evaluated, "skipped": Skipped}[kind](step, values)


def shown_in_a_log(console, entries, **settings) -> list[str]:
    file = console(False)
    log = Terminal("pretraining", clock=activity.Clock(), num_steps=2000, **settings)
    for step, values in entries:
        log.read(StepDone(step, {}, None, 0, 0, 0.0))
        log.read(line_of(step, values))
    log.read(Finished())
    return file.getvalue().splitlines()


def test_the_lines_of_a_log_align_and_have_no_control_characters(console):
    later = {**EVAL, "eval/mlm_loss": 12.5, "eval/mlm_accuracy": 1.0, "eval/nsp_loss": 0.6}
    entries = [
        (9, {**TRAIN, "train/loss": 10.12345, "train/learning_rate": 0.0}),
        (100, EVAL),
        (1000, TRAIN),
        (1100, later),
    ]
    lines = shown_in_a_log(console, entries)
    text = "\n".join(lines)
    assert not re.search(r"[^\x20-\x7e\n]", text) and "/" not in text.replace("tokens/s", "")
    assert max(map(len, lines)) <= terminal.LOG_WIDTH
    train, evaluations = [lines[0], lines[2]], [lines[1], lines[3]]
    for pair, names in (
        (train, ("of 2,000", "loss", "MLM accuracy", "learning rate", "tokens/s", "left")),
        (evaluations, ("held-out", "MLM loss", "MLM accuracy", "NSP loss", "unigram entropy")),
    ):
        for name in names:
            assert len({line.index(name) for line in pair}) == 1, name
    assert "loss  10.123  MLM accuracy  25.0%  learning rate 0.00e+00" in lines[0]
    assert "MLM loss  4.985 " in lines[1] and "(" not in lines[1]
    assert "MLM loss 12.500 (+7.515)  MLM accuracy 100.0%  (+76.9)" in lines[3]
    assert lines[3].endswith("unigram entropy  6.020")


def test_a_resumed_run_compares_with_the_evaluation_before(console):
    (line,) = shown_in_a_log(
        console, [(500, {"eval/mlm_loss": 4.903})], last_evaluation={"eval/mlm_loss": 4.985}
    )
    assert line.endswith("MLM loss  4.903 (-0.082)")
    # NaN is null in metrics.jsonl.
    (line,) = shown_in_a_log(
        console, [(500, {"eval/mlm_loss": 4.903})], last_evaluation={"eval/mlm_loss": None}
    )
    assert line.endswith("MLM loss  4.903")


def test_a_skipped_update_is_a_sentence(console):
    entry = {
        **{"skipped/in_a_row": 2, "skipped/loss": float("nan"), "skipped/grad_norm": 3.0},
        **{"skipped/phase": 0, "skipped/first_row": 32, "skipped/last_row": 63},
    }
    assert shown_in_a_log(console, [(5, entry)]) == [
        "step 5: the update was skipped (2 in a row): loss nan, gradient norm 3, rows 32 to 63 of "
        "phase 0"
    ]


def test_long_evaluations_are_continued_on_aligned_lines(console):
    many = {f"eval/mlm_loss_source_{n}": 4.0 + n for n in range(9)}
    lines = shown_in_a_log(console, [(10, many), (20, many)])
    assert len(lines) == 6 and max(map(len, lines)) <= terminal.LOG_WIDTH
    for n, name in enumerate(f"MLM loss (source_{n})" for n in range(9)):
        first, second = (line.index(name) for line in (lines[n // 3], lines[3 + n // 3]))
        assert first == second == lines[0].index(f"MLM loss (source_{n % 3})")


@pytest.mark.parametrize("width", (60, 100))
def test_the_table_has_one_header_until_the_columns_change(console, width):
    file = console(True, width)
    table = Terminal("pretraining", clock=activity.Clock(), num_steps=2000)
    later = {**EVAL, "eval/mlm_loss": 4.903, "eval/nsp_loss": 0.7}
    for step, values in ((100, EVAL), (200, later), (300, {"eval/mlm_loss": 4.8})):
        table.read(line_of(step, values))
    table.read(Stopped())
    text = without_codes(file.getvalue())
    assert text.count("MLM loss") == 2 and text.count("NSP accuracy") == 1
    lines = text.replace("\r", "\n").splitlines()
    header = next(line for line in lines if line.startswith(" step"))
    (row,) = [line for line in lines if line.startswith("  200")]
    assert row.index("4.903 (-0.082)") - 1 == header.index("MLM loss")
    assert row.index("23.1%") - 1 == header.index("MLM accuracy")
    assert "4.800 (-0.103)" in text
    assert max(map(len, (header, row))) <= width


def live_line(width: int, values, *, name="pretraining", step=500) -> str:
    """The live line at a step of 2,000, after steps of 2 ms, on a terminal of a width."""
    clock = activity.Clock()
    shown = Terminal(name, clock=clock, num_steps=2000, quiet=True)
    shown.read(Logged(0, {f"train/{key}": value for key, value in values.items()}))
    with clock.doing(activity.STEPPING):
        for number in range(max(step - 10, 0), step + 1):
            time.sleep(0.002)
            clock.step = number
            shown.read(StepDone(number, {}, None, 0, 0, 0.0))
    file = io.StringIO()
    shown._console = Console(file=file, width=width)
    with mock.patch.object(terminal, "FIRST_SECONDS", 0.0):
        shown._console.print(shown._live_line())
    return file.getvalue()


@pytest.mark.parametrize("width", (40, 60, 80, 100, 140))
def test_the_live_line_is_one_line_of_any_terminal(width):
    values = {key.removeprefix("train/"): value for key, value in TRAIN.items()}
    line = live_line(width, values)
    assert line.count("\n") == 1 and "500/2,000" in line and "loss 4.900" in line
    if width >= 80:
        for text in ("━", "train", "25.0%", "tok", "left"):
            assert text in line
    if width >= 140:
        assert line.startswith("pretraining") and "MLM accuracy 25.0%" in line
        assert "training loss" in line and "learning rate 1.00e-03" in line


@pytest.mark.parametrize("width", (60, 80, 100, 120, 140))
def test_the_live_line_keeps_its_form_from_the_first_step_to_the_last(width):
    """What stands there stays in its place, whatever becomes known later."""
    known = [{}, {"loss": 10.123}, {"loss": 4.9, "accuracy": 1.0}]
    known.append({**known[-1], "learning_rate": 1e-4, "tokens_per_second": 999_499.0})
    lines = [
        live_line(width, values, name="classify", step=step)
        for values, step in zip(known, (0, 30, 300, 2000), strict=True)
    ]
    lines.append(live_line(width, known[-1], name="classify", step=1990))
    assert len({line.startswith("classify") for line in lines}) == 1
    assert len({line.find("train") for line in lines[1:]}) == 1
    assert "left" not in lines[0] and "left" in lines[1]
    assert all("…" not in line and len(line) <= width + 1 for line in lines if width >= 80)


def test_no_time_left_is_said_before_it_can_be_estimated(monkeypatch):
    record = activity.Clock()
    seconds = dict.fromkeys(activity.ACTIVITIES, 0.0)
    monkeypatch.setattr(record, "seconds", lambda: dict(seconds))
    monkeypatch.setattr(terminal.time, "monotonic", lambda: 0.0)
    clock = terminal.TimeLeft(record)
    for step in range(1, 31):
        # The first step and one later have compiled.
        seconds[activity.STEPPING] += 60.0 if step in (1, 20) else 2.0
        clock.did_step(step)
        expected = None if step == 1 else pytest.approx(2.0 * (100 - step))
        assert clock.seconds_left(100) == expected


def test_the_time_left_is_said_after_two_long_steps_or_some_short_ones(monkeypatch):
    record = activity.Clock()
    seconds = dict.fromkeys(activity.ACTIVITIES, 0.0)
    monkeypatch.setattr(record, "seconds", lambda: dict(seconds))
    monkeypatch.setattr(terminal.time, "monotonic", lambda: 0.0)
    for duration, first in ((30.0, 2), (0.75, 7)):
        clock = terminal.TimeLeft(record)
        for step in range(1, 13):
            seconds[activity.STEPPING] += duration
            clock.did_step(step)
            assert (clock.seconds_left(12) is not None) == (step >= first)


def test_a_log_has_a_line_each_minute_and_no_second_one_of_a_step(console, monkeypatch):
    file = console(False)
    now = [0.0]
    monkeypatch.setattr(terminal.time, "monotonic", lambda: now[0])
    means = {"loss": 2.5, "mlm_accuracy": 0.25}
    log = Terminal("pretraining", clock=activity.Clock(), num_steps=12, preview=lambda: dict(means))
    for step in range(1, 13):
        now[0] += 25.0
        log.read(StepDone(step, {}, None, 0, 0, 0.0))
        if step % 10 == 0:
            log.read(Logged(step, TRAIN))
    for step in (13, 14):  # each takes longer than a minute, and is logged
        now[0] += 100.0
        log.read(StepDone(step, {}, None, 0, 0, 0.0))
        log.read(Logged(step, TRAIN))
    lines = file.getvalue().splitlines()
    assert [int(line.split()[1]) for line in lines] == [2, 5, 8, 10, 12, 13, 14]
    assert "loss   2.500  MLM accuracy  25.0%  learning rate        -" in lines[0]
    assert len({line.index("tokens/s") for line in lines}) == 1
    assert file.getvalue().count("4.900") == 3


def test_the_live_line_says_what_else_the_process_does(monkeypatch):
    monkeypatch.setattr(terminal, "SHOWN_SECONDS", 0.0)
    clock = activity.Clock()
    shown = Terminal("pretraining", clock=clock, num_steps=2000, quiet=True)

    def line() -> str:
        file = io.StringIO()
        Console(file=file, width=100).print(shown._live_line())
        return file.getvalue()

    with clock.compiling("the training step"):
        assert "compiling the training step... 0 s" in line()
    with clock.doing(activity.STEPPING):
        assert "..." not in line()
        with clock.doing(activity.EVALUATING):
            assert "evaluating... 0 s" in line()
        with clock.doing(activity.SAVING, "saving a checkpoint"):
            assert "saving a checkpoint... 0 s" in line()
        with clock.doing(activity.STEPPING, "reading"):
            assert "reading... 0 s" in line()


def test_the_time_left_counts_evaluations_and_not_the_compilation(monkeypatch):
    record = activity.Clock()
    seconds = dict.fromkeys(activity.ACTIVITIES, 0.0)
    monkeypatch.setattr(record, "seconds", lambda: dict(seconds))
    monkeypatch.setattr(terminal.time, "monotonic", lambda: 0.0)
    clock = terminal.TimeLeft(record)
    seconds[activity.COMPILING] = 100.0
    for step in range(1, 11):
        seconds[activity.STEPPING] += 2.0
        clock.did_step(step)
    seconds[activity.EVALUATING] = 10.0
    # 2 s per step, and evaluations take half as long as the steps.
    assert clock.seconds_left(20) == pytest.approx(10 * 2.0 * 1.5)


def test_names_are_plain():
    names = ("mlm_loss", "macro_f1", "HasAns_f1", "mismatched_accuracy", "mlm_loss_wiki_en", "mae")
    assert [metric_labels.label(name) for name in names] == [
        *("MLM loss", "macro F1", "answerable F1", "mismatched accuracy"),
        *("MLM loss (wiki_en)", "MAE"),
    ]


RUN = "import sys; from bertjax import pretrain; sys.exit(pretrain.main(sys.argv[1:]))"


@pytest.mark.slow
@pytest.mark.exhaustive
def test_a_run_on_a_terminal_and_one_in_a_log_write_the_same_metrics(small_run, prepared, tmp_path):
    config = small_run(steps=6, save_every=6)
    config.write_text(config.read_text().replace("eval_every=0", "eval_every=3"))
    env = os.environ | {"COLUMNS": "100"}

    def command(workdir):
        flags = ["--config", config, "--data", prepared, "--workdir", workdir]
        return [sys.executable, "-c", RUN, *map(str, flags)]

    shown = shown_on_terminal(command(tmp_path / "a"), COLUMNS="100")
    with (tmp_path / "log").open("wb") as log:
        subprocess.run(command(tmp_path / "b"), stdout=log, stderr=log, env=env, check=True)
    terminal_text, log_text = without_codes(shown), (tmp_path / "log").read_text()
    assert re.search(r"pretraining.* \d/6 .*━", terminal_text)
    assert terminal_text.count("unigram entropy") == 1
    assert len(re.findall(r"[\r\n]   [36]  .*\d\.\d{3}", terminal_text)) == 2
    assert "train/" not in terminal_text and "eval/" not in terminal_text
    assert "\x1b" not in log_text and "\r" not in log_text
    lines = [line for line in log_text.splitlines() if line.startswith("step ")]
    steps = [line for line in lines if "held-out" not in line]
    held_out = [line for line in lines if "held-out" in line]
    assert (len(steps), len(held_out)) == (6, 2)
    assert len({line.index("tokens/s") for line in steps}) == 1
    assert len({line.index("unigram entropy") for line in held_out}) == 1
    assert re.search(r"MLM loss +\d\.\d{3} \([+-]\d\.\d{3}\)", held_out[1])

    def metrics(name):
        entries = map(json.loads, (tmp_path / name / "metrics.jsonl").read_text().splitlines())
        timed = ("train/tokens_per_second", "train/mfu")
        return [{k: v for k, v in entry.items() if k not in timed} for entry in entries]

    assert metrics("a") == metrics("b")
