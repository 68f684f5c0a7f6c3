"""The ledger of a run's time: its parts sum to the wall time, and lost steps are counted."""

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time

import pytest

from bertjax.base.signals import Interrupted
from bertjax.devices import activity, host_watch
from bertjax.record import ledger as ledgers
from bertjax.record.events import Saved, Started, StepDone
from bertjax.record.ledger import IDLE, LOST, Ledger, read_ledger, totals
from bertjax.train.run import Session

# A step takes long enough for kills to hit different steps.
PROGRAM = """
import sys, time
from bertjax import pretrain
import bertjax.data.batches.pretraining_batches as batches

read = batches._HostBatches.__getitem__
def slowly(self, index):
    time.sleep(0.02)
    return read(self, index)

batches._HostBatches.__getitem__ = slowly
status = pretrain.main(sys.argv[1:])
print("returned at", time.time())
sys.exit(status)
"""


@pytest.fixture
def clock(monkeypatch):
    """A clock that the test moves."""

    class Clock:
        now = 1000.0

        def time(self):
            return self.now

        monotonic = time

    made = Clock()
    monkeypatch.setattr(activity, "time", made)
    made.activities = activity.Clock()
    return made


def test_time_belongs_to_the_innermost_activity(clock):
    record = clock.activities
    clock.now += 1
    with record.doing(activity.STEPPING):
        clock.now += 2
        items = record.waiting_for([1, 2])
        clock.now += 3
        for _ in items:
            clock.now += 4
            with record.doing(activity.SAVING):
                clock.now += 5
    seconds = {name: value for name, value in record.seconds().items() if value}
    assert seconds == {activity.START_UP: 1, activity.STEPPING: 13, activity.SAVING: 10}
    assert sum(seconds.values()) == clock.now - record.start


def test_start_up_begins_with_the_process_or_with_the_clock(clock, monkeypatch):
    monkeypatch.setattr(activity, "_age_of_process", lambda: 60.0)
    assert activity.Clock.of_process().seconds()[activity.START_UP] == 60
    of_command = activity.Clock()
    clock.now += 2
    assert of_command.seconds()[activity.START_UP] == 2


def opened(folder, step, clock) -> Ledger:
    """The ledger of a process that starts or resumes at a step."""
    ledger = Ledger(clock)
    ledger.read(Started(folder, "run", step, {}))
    return ledger


def steps(clock, ledger, first, last, *, save_every=4):
    with clock.activities.doing(activity.STEPPING):
        for step in range(first, last + 1):
            clock.now += 2
            ledger.read(StepDone(step, {}, None, 0, step - 1, 0.0))
            if step % save_every == 0:
                with clock.activities.doing(activity.SAVING):
                    clock.now += 1
                ledger.read(Saved(step))


def test_steps_after_the_last_checkpoint_of_a_killed_process_are_lost(clock, tmp_path):
    clock.activities.restart()
    clock.now += 3
    killed = opened(tmp_path, 0, clock.activities)
    steps(clock, killed, 1, 10)  # 20 s of stepping, checkpoints of 4 and 8
    killed._is_closed.set()  # as if it were killed
    clock.now += 50
    clock.activities.restart()
    clock.now += 1
    ledger = opened(tmp_path, 8, clock.activities)
    steps(clock, ledger, 9, 12)
    ledger.close()
    first, second = read_ledger(tmp_path)
    assert (first["lost_steps"], first["lost_seconds"]) == (2, 4)
    assert (second["lost_steps"], second["first_step"], second["last_step"]) == (0, 8, 12)
    found = totals([first, second])
    assert {name: value for name, value in found.items() if value} == {
        activity.START_UP: 4,
        activity.STEPPING: 24,
        activity.SAVING: 3,
        LOST: 4,
        IDLE: 50,
    }
    assert sum(found.values()) == clock.now - 1000.0
    assert not (tmp_path / ledgers.PRESENT).exists()


def test_a_process_that_goes_back_loses_steps_itself(clock, tmp_path):
    with host_watch.watching(clock.activities) as watch:
        with Session(tmp_path, clock.activities, watch) as session:
            session.ledger.read(Started(tmp_path, "run", 0, {}))
            steps(clock, session.ledger, 1, 11)
            session.ledger.read(Started(tmp_path, "run", 4, {}))  # a rollback
            steps(clock, session.ledger, 5, 6)
    (line,) = read_ledger(tmp_path)
    assert (line["lost_steps"], line["lost_seconds"], line["last_step"]) == (7, 14, 6)


def test_the_table_names_training_and_counts_processes_if_there_are_several(
    clock, tmp_path, capsys
):
    for first in (0, 4):
        clock.activities.restart()
        ledger = opened(tmp_path, first, clock.activities)
        steps(clock, ledger, first + 1, first + 4)
        ledger.close()
    one, several = capsys.readouterr().out.split("Where the time went:")[1:]
    assert "training" in one and activity.STEPPING not in one and "process" not in one
    assert several.startswith(" 18 s in 2 processes")
    assert f"(therun{tmp_path})" in "".join(several.split())  # lines may be wrapped


def test_the_table_names_lost_steps_even_if_they_took_little_time(clock, tmp_path, capsys):
    clock.activities.restart()
    clock.now += 10_000
    killed = opened(tmp_path, 0, clock.activities)
    steps(clock, killed, 1, 5)
    killed._is_closed.set()
    clock.activities.restart()
    opened(tmp_path, 4, clock.activities).close()
    out = capsys.readouterr().out
    assert "lost steps (1 step)" in out and "saving" not in out


def test_damaged_lines_are_left_out(clock, tmp_path, capsys):
    (tmp_path / ledgers.PRESENT).write_bytes(b"\0" * 100)
    clock.activities.restart()
    ledger = opened(tmp_path, 0, clock.activities)
    ledger.close()
    assert "is damaged and left out" in capsys.readouterr().out
    with (tmp_path / ledgers.LEDGER).open("a") as file:
        file.write('{"start": 1}\nnonsense\n')
    assert len(read_ledger(tmp_path)) == 1
    assert read_ledger(tmp_path / "nothing") == [] and sum(totals([]).values()) == 0


def test_a_clock_that_is_set_back_adds_no_idle_time(clock, tmp_path):
    for first, moved in ((0, -86_400.0), (4, 10.0), (8, 0.0)):
        clock.activities.restart()
        ledger = opened(tmp_path, first, clock.activities)
        steps(clock, ledger, first + 1, first + 4)
        ledger.close()
        clock.now += moved
    lines = read_ledger(tmp_path)
    assert [line["first_step"] for line in lines] == [0, 4, 8]
    assert totals(lines)[IDLE] == 10


def test_steps_after_the_last_checkpoint_of_a_process_with_an_error_are_lost(clock, tmp_path):
    cases = [(OSError("full"), 10), (Interrupted("second signal"), 10), (Interrupted("saved"), 8)]
    for error, last in (*cases, (OSError("while saving"), 8), (None, 10)):
        folder = tmp_path / repr(error)
        folder.mkdir()
        clock.activities.restart()
        with contextlib.suppress(BaseException):
            with host_watch.watching(clock.activities) as watch:
                with Session(folder, clock.activities, watch) as session:
                    session.ledger.read(Started(folder, "run", 0, {}))
                    steps(clock, session.ledger, 1, last)
                    if error is not None:
                        raise error
        clock.now += 5
        clock.activities.restart()
        resumed = 4 if str(error) == "while saving" else 8
        opened(folder, resumed, clock.activities).close()
        lines = read_ledger(folder)
        lost = last - resumed if error is not None else 0
        assert [line["lost_steps"] for line in lines] == [lost, 0]
        assert bool(lines[0]["lost_seconds"]) == bool(lost) and totals(lines)[IDLE] == 5


@pytest.mark.parametrize("jump", [86_400.0, -86_400.0, 40.0])
@pytest.mark.parametrize("same_boot", [True, False])
def test_a_clock_that_is_set_changes_nothing_on_one_machine(
    clock, tmp_path, monkeypatch, jump, same_boot
):
    shift = iter((0.0, jump, 0.0))
    for first in (0, 4, 8):
        moved = next(shift)
        monkeypatch.setattr(clock, "time", lambda moved=moved: clock.now + moved)
        if not same_boot:
            monkeypatch.setattr(ledgers, "_boot", lambda first=first: str(first))
        clock.activities.restart()
        ledger = opened(tmp_path, first, clock.activities)
        steps(clock, ledger, first + 1, first + 4)
        ledger.close()
        clock.now += 10
    idle = totals(read_ledger(tmp_path))[IDLE]
    # Other machines have only the clock in common; but no time is negative.
    assert idle == 20 if same_boot else idle >= 10


@pytest.mark.parametrize("missing", [["boot"], ["uptime"], ["boot", "uptime"]])
def test_lines_of_versions_without_uptime_are_read(clock, tmp_path, missing):
    for first in (0, 4):
        clock.activities.restart()
        ledger = opened(tmp_path, first, clock.activities)
        steps(clock, ledger, first + 1, first + 4)
        ledger.close()
        clock.now += 10
    file = tmp_path / ledgers.LEDGER
    first, second = map(json.loads, file.read_text().splitlines())
    for name in missing:
        del first[name]
    file.write_text(json.dumps(first) + "\n" + json.dumps(second) + "\n")
    lines = read_ledger(tmp_path)
    assert len(lines) == 2 and (totals(lines)[IDLE] == 10 or "boot" not in missing)


@pytest.mark.parametrize(
    ("change", "count"),
    [
        ({"dreaming": 7.0}, 2),
        ({"dreaming": "x"}, 1),
        ({activity.STEPPING: None}, 1),
        ({activity.SAVING: []}, 1),
    ],
)
def test_activities_of_other_versions_are_counted(clock, tmp_path, capsys, change, count):
    for first in (0, 4):
        clock.activities.restart()
        ledger = opened(tmp_path, first, clock.activities)
        steps(clock, ledger, first + 1, first + 4)
        ledger.close()
    file = tmp_path / ledgers.LEDGER
    first, second = map(json.loads, file.read_text().splitlines())
    first["seconds"] |= change
    file.write_text(json.dumps(first) + "\n" + json.dumps(second) + "\n")
    ledgers.print_table(tmp_path)
    assert len(read_ledger(tmp_path)) == count
    assert ("dreaming" in capsys.readouterr().out) == (count == 2)


def done_steps(workdir):
    lines = (workdir / "metrics.jsonl").read_text().splitlines()
    found = [json.loads(line) for line in lines if line.endswith("}")]
    return max((line["step"] for line in found if "train/loss" in line), default=0)


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.parametrize("kills", [1, 20])
def test_random_kills(prepared, small_run, tmp_path, kills):
    total = 60 * (kills + 1)
    config, workdir = small_run(total, save_every=10), tmp_path / "run"
    command = [sys.executable, "-c", PROGRAM, "--config", str(config), "--data", str(prepared)]
    rng = random.Random(0)
    begin, lost, process = time.time(), [], None
    for kill in range(kills + 1):
        process = subprocess.Popen(
            [*command, "--workdir", str(workdir)],
            env=os.environ | {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        if kill == kills:
            break
        before = done_steps(workdir) if kill else 0
        while not (workdir / "metrics.jsonl").exists() or done_steps(workdir) < before + 12:
            assert process.poll() is None, process.communicate()
            time.sleep(0.05)
        time.sleep(rng.uniform(0, 1.0))
        process.send_signal(signal.SIGKILL)
        process.communicate()
        done = done_steps(workdir)
        saved = max(
            int(path.name)
            for path in (workdir / "checkpoints").glob("[0-9]*")
            if path.name.isdigit()
        )
        lost.append(done - saved)
    assert process is not None
    output = process.communicate(timeout=300)[0]
    assert process.returncode == 0, output
    # Python itself takes a second or more to end, which is nobody's activity.
    end = float(output.rpartition("returned at")[2])
    lines = read_ledger(workdir)
    assert len(lines) == kills + 1
    found = totals(lines)
    print({"wall time": end - begin, "sum": sum(found.values()), "lost": lost, **found})
    assert sum(found.values()) == pytest.approx(end - begin, rel=0.01, abs=1.0)
    assert [line["lost_steps"] for line in lines[:-1]] == lost
    assert lines[-1]["lost_steps"] == 0 and lines[-1]["last_step"] == total
    assert f"{lost and sum(lost)} steps" in output or sum(lost) == 0
