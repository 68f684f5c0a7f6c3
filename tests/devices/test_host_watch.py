"""A run without progress says what it is doing, and which processes are behind."""

import json
import threading
import time

import pytest

from bertjax.devices import activity, host_watch
from bertjax.devices.host_watch import StallWatch


def state(count, doing=activity.STEPPING, step=7, beat=0):
    return json.dumps({"beat": beat, "activity": doing, "step": step, "count": count})


@pytest.fixture
def stalled(monkeypatch):
    """A record whose last progress is 30 s ago, and a clock that can be moved."""
    record = activity.Clock()
    record.step = 12
    record.progressed()
    now = time.monotonic() + 30
    clock = type(
        "Clock", (), {"monotonic": staticmethod(lambda: clock.now), "now": now, "process": record}
    )
    monkeypatch.setattr(host_watch, "time", clock)
    return clock


def test_a_process_that_is_behind_is_named_with_its_activity(stalled, capfd):
    with stalled.process.doing(activity.EVALUATING):
        stalled.process.progress_at = stalled.now - 30
        watch = StallWatch(stalled.process, 20, rank=0)
        watch.check({0: state(9), 1: state(9), 2: state(4, activity.SAVING, 11), 3: state(9)})
    err = capfd.readouterr().err
    assert "process 0 has made no progress for 30 s; it is evaluating, after step 12." in err
    assert "Process 2 has not arrived: it is saving, after step 11." in err
    assert "Process 1" not in err and "Process 3" not in err
    assert "test_host_watch.py" in err  # the stacks


def test_a_process_that_does_not_respond_is_named_instead(stalled, capfd):
    watch = StallWatch(stalled.process, 40, rank=0)
    for beat in range(8):
        stalled.now += 3
        watch.check({0: state(9, beat=beat), 1: state(8, beat=beat), 2: state(6), 3: "damaged"})
    err = capfd.readouterr().err
    assert err.count("warning:") == 2  # before and after process 2 is known to be silent
    first, second = err.split("warning:")[1:]
    assert "Process 2 has not arrived" in first
    assert "Process 2 does not respond since" in second
    assert "it was stepping, after step 7." in second and "not arrived" not in second
    StallWatch(stalled.process, 20, rank=0).check({0: state(10), 1: state(10, beat=1)})
    assert "All processes are at the same point" in capfd.readouterr().err


def test_nothing_is_said_with_progress_or_without_a_limit(stalled, capfd):
    StallWatch(stalled.process, 0).check()
    StallWatch(stalled.process, 31).check()
    assert capfd.readouterr().err == ""


def test_one_process_is_watched_by_a_thread(monkeypatch, capfd):
    monkeypatch.setattr(host_watch, "POLL_SECONDS", 0.01)
    clock = activity.Clock()
    before = threading.active_count()
    with host_watch.watching(clock, 0.05), clock.doing(activity.RESTORING):
        time.sleep(0.5)
    err = capfd.readouterr().err
    assert "the run has made no progress for 0 s; it is restoring, after step 0" in err
    time.sleep(0.1)
    assert threading.active_count() == before


def test_states_are_described():
    clock = activity.Clock()
    clock.step = 3
    clock.progressed()
    assert host_watch.described(host_watch.state(clock, 1)) == "start-up, after step 3"
    assert host_watch.described("x") == "starting"


def test_an_error_while_a_stop_ends_the_process_is_not_printed(monkeypatch):
    # The other host has gone, so that a collective operation fails.
    slept = []
    monkeypatch.setattr(host_watch.time, "sleep", slept.append)
    watch = host_watch.HostWatch(activity.Clock())
    watch.is_watching = True
    thread = threading.Thread(target=watch.announce, args=("stopped by SIGTERM",))
    thread.start()
    thread.join()
    watch.announce_error(RuntimeError("Gloo all-reduce failed"))
    assert slept == [host_watch.SILENCE_SECONDS]
