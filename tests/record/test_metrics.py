"""After a resumed run, metrics.jsonl and TensorBoard show each step once, whatever happened."""

import json
import os
import random
import resource
import signal
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from tensorboardX.proto.event_pb2 import Event, SessionLog
from tensorboardX.record_writer import masked_crc32c

from bertjax.record.metrics import MetricWriter, shown_events
from tests.lines import json_lines


def write(directory, start, steps):
    writer = MetricWriter(directory, start)
    for step in steps:
        writer.write(step, {"loss": 1.0 / step, "note": "text stays out of events"})
    writer.close()


def lines(directory):
    return json_lines(directory / "metrics.jsonl")


def records(content):
    """The records of an event file up to the first damage, as TensorBoard's reader takes them."""
    at = 0
    while at + 12 <= len(content):
        length, crc = struct.unpack_from("<QI", content, at)
        data = content[at + 12 : at + 12 + length]
        if crc != masked_crc32c(content[at : at + 8]) or len(content) < at + 16 + length:
            return
        if struct.unpack_from("<I", content, at + 12 + length)[0] != masked_crc32c(data):
            return
        yield data
        at += 16 + length


def curve(directory, tag="loss"):
    """[(step, value)] of a tag as TensorBoard keeps it: a start purges later steps."""
    points = []
    for path in sorted(directory.glob("*tfevents*")):
        for number, data in enumerate(records(path.read_bytes())):
            event = Event.FromString(data)
            assert (event.file_version == "brain.Event:2") == (number == 0)
            if event.HasField("session_log") and event.session_log.status == SessionLog.START:
                points = [point for point in points if point[0] < event.step]
            points += [(event.step, v.simple_value) for v in event.summary.value if v.tag == tag]
    return points


def logged(directory, key="loss"):
    return [(line["step"], pytest.approx(line[key])) for line in lines(directory) if key in line]


def test_both_files_are_cut_back_to_the_restored_step(tmp_path):
    write(tmp_path, 0, range(1, 11))
    write(tmp_path, 6, range(7, 9))
    assert [line["step"] for line in lines(tmp_path)] == [1, 2, 3, 4, 5, 6, 7, 8]
    assert curve(tmp_path) == logged(tmp_path)


def test_a_line_and_an_event_cut_short_by_a_crash_are_dropped(tmp_path):
    write(tmp_path, 0, range(1, 4))
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 4, "lo')
    (events,) = tmp_path.glob("events.out.tfevents.*")
    events.write_bytes(events.read_bytes()[:-3])
    write(tmp_path, 3, [4])
    assert [line["step"] for line in lines(tmp_path)] == [1, 2, 3, 4]
    assert curve(tmp_path) == logged(tmp_path)


def test_an_evaluation_that_is_due_again_leaves_the_losses_of_its_step(tmp_path):
    writer = MetricWriter(tmp_path, 0)
    for step in (1, 2, 3):
        writer.write(step, {"loss": 1.0 / step})
        writer.write(step, {"eval/loss": 2.0 / step})
    writer.close()
    writer = MetricWriter(tmp_path, 2, evaluation_due=True)
    assert curve(tmp_path) == logged(tmp_path) and len(curve(tmp_path)) == 2
    assert curve(tmp_path, "eval/loss") == logged(tmp_path, "eval/loss") == [(1, 2.0)]
    writer.write(2, {"eval/loss": 0.5})
    writer.close()
    assert curve(tmp_path, "eval/loss") == [(1, 2.0), (2, 0.5)]


def test_files_of_before_are_not_touched_and_a_whole_record_is_not_written_again(tmp_path):
    write(tmp_path, 0, range(1, 11))
    (first,) = tmp_path.glob("*tfevents*")
    before = first.read_bytes()
    write(tmp_path, 10, range(11, 13))
    write(tmp_path, 5, range(6, 8))
    assert first.read_bytes() == before
    second, third = sorted(set(tmp_path.glob("*tfevents*")) - {first})
    assert len(list(records(second.read_bytes()))) == 1 + 2
    assert len(list(records(third.read_bytes()))) == 1 + 1 + 2
    assert curve(tmp_path) == logged(tmp_path)


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


def test_any_flipped_byte_of_an_events_file_costs_no_point(tmp_path):
    write(tmp_path, 0, range(1, 6))
    expected = curve(tmp_path)
    (file,) = tmp_path.glob("events.out.tfevents.*")
    whole = file.read_bytes()
    rng = random.Random(0)
    for _ in range(40):
        content = bytearray(whole)
        content[rng.randrange(len(whole))] ^= rng.randrange(1, 256)
        for made in set(tmp_path.glob("*tfevents*")) - {file}:
            made.unlink()
        file.write_bytes(content)
        MetricWriter(tmp_path, 5).close()
        assert {*shown_events(tmp_path).items()} == {((s, "loss"), v) for s, v in expected}


def test_lost_event_files_are_made_again_from_the_lines_in_order(tmp_path):
    write(tmp_path, 0, range(1, 6))
    write(tmp_path, 5, range(6, 11))
    first, second = sorted(tmp_path.glob("events.out.tfevents.*"))
    first.write_bytes(first.read_bytes()[: len(first.read_bytes()) // 2])
    MetricWriter(tmp_path, 10).close()
    assert curve(tmp_path) == logged(tmp_path) and len(curve(tmp_path)) == 10
    for file in tmp_path.glob("events.out.tfevents.*"):
        file.unlink()
    MetricWriter(tmp_path, 10).close()
    assert curve(tmp_path) == logged(tmp_path) and len(curve(tmp_path)) == 10


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


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="kills as Linux does")
def test_a_kill_loses_no_event_and_a_resume_shows_one_curve(tmp_path):
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], env=environment)
    assert done.returncode == -signal.SIGKILL
    assert [line["step"] for line in lines(tmp_path)] == [*range(1, 51)]
    assert curve(tmp_path) == logged(tmp_path)
    write(tmp_path, 30, range(31, 41))
    assert curve(tmp_path) == logged(tmp_path) and len(curve(tmp_path)) == 40


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_is_said_with_the_name_of_the_file(tmp_path):
    (tmp_path / "metrics.jsonl").symlink_to("/dev/full")
    writer = MetricWriter(tmp_path, 0)
    with pytest.raises(OSError, match=r"Writing .*metrics.jsonl failed \(.*No space.*Make room"):
        writer.write(1, {"loss": 1.0})
    writer.close()


def test_an_events_file_that_cannot_grow_is_said_with_its_name(tmp_path):
    (tmp_path / "metrics.jsonl").symlink_to("/dev/null")
    writer = MetricWriter(tmp_path, 0)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (64, before[1]))
    try:
        with pytest.raises(OSError, match=r"Writing .*events.out.tfevents.* failed .*Make room"):
            for step in range(9):
                writer.write(step, {"loss": 1.0})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    writer.close()
