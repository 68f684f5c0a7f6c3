"""Progress of long work: a bar on a terminal, lines in a log, nothing for short work."""

import re
import sys
import threading
import time
import tracemalloc

import pytest

from bertjax.base import progress
from tests.pseudo_terminal import shown_on_terminal

WORK = """
import sys, time
from bertjax.base import progress
with progress.progress("counting", 40, "texts") as state:
    for number in range(40):
        time.sleep(0.04)
        print("output", number)
        state.advance()
"""
FAST_WORK = """
import time
from bertjax.base import progress
from tests.pseudo_terminal import shown_on_terminal
with progress.progress("counting", 800, "texts") as state:
    for _ in range(800):
        time.sleep(0.002)
        state.advance()
"""


@pytest.fixture
def quick(monkeypatch):
    """Work counts as long after a few milliseconds."""
    monkeypatch.setattr(progress, "SILENT_SECONDS", 0.01)
    monkeypatch.setattr(progress, "FIRST_LINE_SECONDS", 0.02)
    monkeypatch.setattr(progress, "LINE_SECONDS", 0.02)


def test_short_work_shows_nothing(capsys):
    with progress.progress("counting", 10, "texts") as state:
        state.advance(10)
    assert capsys.readouterr() == ("", "")


def test_a_log_gets_plain_lines_on_stderr_with_share_speed_and_time_left(quick, capsys):
    with progress.progress("counting", 400, "texts") as state:
        state.advance(100)
        time.sleep(0.1)
        state.advance(300)
    out, err = capsys.readouterr()
    lines = err.splitlines()
    assert not out and len(lines) >= 2
    assert re.fullmatch(
        r"counting: 25%, 100 of 400 texts, [\d,.]+ texts/s, 0:00:0\d left", lines[0]
    )
    assert lines[-1] == "counting: 400 texts in 0:00:00"
    assert not re.search(r"[^\x20-\x7e\n]", err)


def test_work_whose_amount_was_not_counted_ends_with_its_time_alone(quick, capsys):
    with progress.progress("counting", None, progress.BYTES):
        time.sleep(0.1)
    assert capsys.readouterr().err.splitlines()[-1] == "counting: 0:00:00"


def test_failed_work_is_not_called_finished(quick, capsys):
    with pytest.raises(ValueError), progress.progress("compiling"):
        time.sleep(0.1)
        raise ValueError
    assert set(capsys.readouterr().err.splitlines()) == {"compiling: 0:00:00"}
    assert not [t for t in threading.enumerate() if t.name == "progress"]


def test_what_is_waited_for_is_said_only_if_it_takes_long(quick, capsys):
    with progress.waiting("a pipe"):
        pass
    time.sleep(0.05)
    assert capsys.readouterr() == ("", "")
    with progress.waiting("a pipe"):
        time.sleep(0.2)
    assert capsys.readouterr() == ("", "waiting for a pipe\n")


def test_other_hosts_show_nothing(quick, capsys, monkeypatch):
    monkeypatch.setattr(progress, "_is_hidden", False)
    progress.hide()
    with progress.progress("compiling"):
        time.sleep(0.05)
    assert capsys.readouterr() == ("", "")


def test_threads_together_count_everything():
    state = progress.Progress("copying", unit=progress.BYTES)

    def count():
        for _ in range(5000):
            state.advance(2)

    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert state.done == 4 * 5000 * 2 and "40 kB" in state.line()


def test_memory_does_not_grow_with_the_work():
    with progress.progress("counting", unit="texts") as state:
        tracemalloc.start()
        for _ in range(50_000):
            state.advance()
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert peak < 100_000


def on_a_terminal(work: str, stdout: int | None = None) -> str:
    """Runs `work`, Python code, with stderr and, unless it is given, stdout on a terminal."""
    return shown_on_terminal([sys.executable, "-c", work], stdout=stdout)


@pytest.mark.slow
@pytest.mark.exhaustive
def test_a_terminal_shows_a_bar_that_updates_at_most_ten_times_a_second():
    shown = on_a_terminal(FAST_WORK)
    states = re.findall(r"counting: \d+%, (\d+) of 800 texts", shown)
    end = re.search(r"counting: 800 texts in 0:00:0(\d)", shown)
    assert end and "━" in shown
    # The first second is silent; the seconds are rounded, and the bar is drawn at its end.
    assert 2 <= len(set(states)) <= 10 * (int(end[1]) - progress.SILENT_SECONDS + 0.5) + 1


@pytest.mark.slow
def test_the_output_goes_to_its_file_while_the_bar_is_on_the_terminal(tmp_path):
    with (tmp_path / "out").open("wb") as file:
        shown = on_a_terminal(WORK, file.fileno())
    assert (tmp_path / "out").read_text() == "".join(f"output {n}\n" for n in range(40))
    assert "counting" in shown and "output" not in shown
