"""Metric files after a resumed run hold each step once."""

import json

from tensorboardX.proto.event_pb2 import Event

from bertjax.training.writers import MetricWriter, _records


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
        for record in _records(path.read_bytes()):
            event = Event()
            event.ParseFromString(record[12:-4])
            found += [event.step for value in event.summary.value if value.tag == "loss"]
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
    assert sorted(event_steps(tmp_path)) == [1, 2, 4]
