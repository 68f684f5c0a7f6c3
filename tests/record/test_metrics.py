"""Metric files after a resumed run hold each step once, whatever a kill or a disk did to them."""

import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tensorboardX.proto.event_pb2 import Event

from bertjax.record.metrics import MetricWriter, read_events


def write(directory, start, steps):
    writer = MetricWriter(directory, start)
    for step in steps:
        writer.write(step, {"loss": 1.0 / step, "note": "text stays out of events"})
    writer.close()


def lines(directory):
    return [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]


def event_steps(directory):
    found = []
    for path in sorted(directory.glob("events.out.tfevents.*")):
        events, damaged = read_events(path)
        assert not damaged
        found += [event.step for event in events if "loss" in event.tags]
    return found


def test_both_files_are_cut_back_to_the_restored_step(tmp_path):
    write(tmp_path, 0, range(1, 11))
    write(tmp_path, 6, range(7, 9))
    assert [line["step"] for line in lines(tmp_path)] == [1, 2, 3, 4, 5, 6, 7, 8]
    assert sorted(event_steps(tmp_path)) == [1, 2, 3, 4, 5, 6, 7, 8]


def test_a_line_and_an_event_cut_short_by_a_crash_are_dropped(tmp_path):
    write(tmp_path, 0, range(1, 4))
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 4, "lo')
    (events,) = tmp_path.glob("events.out.tfevents.*")
    events.write_bytes(events.read_bytes()[:-3])
    write(tmp_path, 3, [4])
    assert [line["step"] for line in lines(tmp_path)] == [1, 2, 3, 4]
    assert sorted(event_steps(tmp_path)) == [1, 2, 3, 4]


def numbers(directory) -> list[tuple[int, str, float]]:
    """(step, tag, number) of all events, in the order of files and events."""
    found = []
    for path in sorted(directory.glob("events.out.tfevents.*")):
        for record in read_events(path)[0]:
            event = Event()
            event.ParseFromString(record.content[12:-4])
            found += [(event.step, v.tag, v.simple_value) for v in event.summary.value]
    return found


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text + b"\0" * 500,
        lambda text: text + b"\0" * 500 + b"\n",
        lambda text: text + b"\x93\xff garbage\n",
        lambda text: b"\xff\xfe\n[1]\n" + text + b"{}\n",
        lambda text: text.replace(b'{"step": 2,', b"\0" * 40 + b'{"step": 2,'),
        lambda text: text + b"[" * 100_000 + b"\n",
    ],
    ids=["NUL tail", "NUL line", "garbage", "other JSON", "NUL inside", "deep"],
)
def test_a_damaged_log_keeps_its_good_lines_and_a_copy_and_says_so(tmp_path, capsys, damage):
    write(tmp_path, 0, range(1, 6))
    file = tmp_path / "metrics.jsonl"
    before = lines(tmp_path)
    file.write_bytes(damage(file.read_bytes()))
    damaged = file.read_bytes()
    write(tmp_path, 5, [6])
    assert lines(tmp_path)[:5] == before and lines(tmp_path)[5]["step"] == 6
    assert (tmp_path / "metrics.jsonl.damaged-1").read_bytes() == damaged
    out = capsys.readouterr().out
    assert out.count("\n") == 1 and str(file) in out and "damaged-1" in out
    write(tmp_path, 6, [7])  # it is whole again
    assert not capsys.readouterr().out and len(lines(tmp_path)) == 7


def test_any_flipped_byte_of_an_events_file_costs_nothing_but_a_line(tmp_path, capsys):
    write(tmp_path, 0, range(1, 6))
    expected = numbers(tmp_path)
    (file,) = tmp_path.glob("events.out.tfevents.*")
    whole = file.read_bytes()
    rng = random.Random(0)
    for trial in range(1, 41):
        content = bytearray(whole)
        content[rng.randrange(len(whole))] ^= rng.randrange(1, 256)
        file.write_bytes(content)
        MetricWriter(tmp_path, 5).close()
        assert [n for n in numbers(tmp_path)] == expected
        assert capsys.readouterr().out.count("\n") == 1
        assert len(list(tmp_path.glob("*.damaged-*"))) == trial
        # TensorBoard must not take the copies for events.
        assert not any("tfevents" in copy.name for copy in tmp_path.glob("*.damaged-*"))


def test_lost_event_files_are_made_again_from_the_lines_in_order(tmp_path):
    write(tmp_path, 0, range(1, 6))
    write(tmp_path, 5, range(6, 11))
    expected = numbers(tmp_path)
    first, second = sorted(tmp_path.glob("events.out.tfevents.*"))
    first.write_bytes(first.read_bytes()[: len(first.read_bytes()) // 2])
    MetricWriter(tmp_path, 10).close()
    assert numbers(tmp_path) == expected
    for file in tmp_path.glob("events.out.tfevents.*"):
        file.unlink()
    MetricWriter(tmp_path, 10).close()
    assert numbers(tmp_path) == expected


def test_numbers_that_are_not_finite_are_null_in_json(tmp_path):
    writer = MetricWriter(tmp_path, 0)
    writer.write(1, {"loss": float("nan"), "scale": float("inf"), "other": 1.0})
    writer.close()

    def refuse(name):
        raise AssertionError(f"{name} is no JSON")

    text = (tmp_path / "metrics.jsonl").read_text()
    assert json.loads(text, parse_constant=refuse) == {
        "step": 1,
        "loss": None,
        "scale": None,
        "other": 1.0,
    }
    # What an older version wrote is corrected.
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "loss": NaN}\n')
    MetricWriter(tmp_path, 1).close()
    assert '"loss": null' in (tmp_path / "metrics.jsonl").read_text()


KILLED = """
import os, signal, sys
from pathlib import Path
from bertjax.record.metrics import MetricWriter
writer = MetricWriter(Path(sys.argv[1]), 0)
for step in range(1, 51):
    writer.write(step, {"loss": 1.0 / step, "note": "text stays out of events"})
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="kills as Linux does")
def test_a_kill_loses_no_event(tmp_path):
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], env=environment)
    assert done.returncode == -signal.SIGKILL
    assert event_steps(tmp_path) == [line["step"] for line in lines(tmp_path)] == [*range(1, 51)]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("name", ["metrics.jsonl", "events.out.tfevents"])
def test_a_full_disk_is_said_with_the_name_of_the_file(tmp_path, name):
    writer = MetricWriter(tmp_path, 0)
    path = next(path for path in writer._files if path.name.startswith(name))
    writer._files[path].close()
    writer._files[path] = open("/dev/full", "wb", buffering=0)
    with pytest.raises(OSError, match=rf"Writing .*{name}.* failed \(.*No space left.*Make room"):
        writer.write(1, {"loss": 1.0})
    writer.close()
