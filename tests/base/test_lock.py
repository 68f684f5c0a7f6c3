"""One process at a time: with locks of the file system, and without them."""

import multiprocessing
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from bertjax.base import lock
from bertjax.base.lock import Lock, Locked


def lock_at(folder: Path) -> Lock:
    return Lock(folder / "x.lock", place="--output x", what="command", remedy="wait")


@pytest.fixture(params=["flock", "no flock", "unsupported"])
def kind(request, monkeypatch):
    """With `flock`, on a platform without it, and on a file system that does not support it."""
    monkeypatch.setattr(lock, "HEARTBEAT_SECONDS", 0.02)
    monkeypatch.setattr(lock, "POLL_SECONDS", 0.05)
    if request.param == "no flock":
        monkeypatch.setattr(lock, "fcntl", None)
    elif request.param == "unsupported":

        def flock(file, how):
            raise OSError(95, "Operation not supported")

        monkeypatch.setattr(lock.fcntl, "flock", flock)
    elif lock.fcntl is None:
        pytest.skip("no flock here")
    return request.param


def test_a_second_one_is_refused_by_name_until_the_first_releases(tmp_path, kind):
    first, second = lock_at(tmp_path), lock_at(tmp_path)
    first.take()
    assert first.held
    message = rf"--output x is being written by another command \(process {os.getpid()} on .*: wait"
    for _ in range(2):
        with pytest.raises(Locked, match=message):
            second.take()
    assert not second.held
    first.release()
    with second:
        with pytest.raises(Locked):
            first.take(wait=False)
    assert list(tmp_path.iterdir()) == []


def test_a_release_leaves_the_lock_file_of_another_process(tmp_path, kind):
    """Somebody removed the first lock file, so a second process could take the lock."""
    first, second = lock_at(tmp_path), lock_at(tmp_path)
    first.take()
    for path in tmp_path.iterdir():
        path.unlink()
    second.take()
    first.release()
    with pytest.raises(Locked):
        lock_at(tmp_path).take()
    second.release()
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_process_left_is_taken_over(tmp_path, kind, monkeypatch):
    monkeypatch.setattr(lock, "STALE_SECONDS", 0.3)
    script = f"""
import os, signal
from pathlib import Path
from bertjax.base import lock
if {kind != "flock"}:
    lock.fcntl = None
held = lock.Lock(Path({str(tmp_path)!r}) / "x.lock", place="x", what="c", remedy="wait")
held.take()
os.kill(os.getpid(), signal.SIGKILL)
"""
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    subprocess.run([sys.executable, "-c", script], env=environment)
    assert list(tmp_path.iterdir())
    with lock_at(tmp_path) as taken:
        assert taken.held
    assert list(tmp_path.iterdir()) == []


def test_a_living_process_is_not_taken_for_dead_however_old_its_clock_says_it_is(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(lock, "fcntl", None)
    monkeypatch.setattr(lock, "HEARTBEAT_SECONDS", 0.05)
    monkeypatch.setattr(lock, "POLL_SECONDS", 0.1)
    monkeypatch.setattr(time, "time", lambda: 0.0)  # only the clock of the file system counts
    with lock_at(tmp_path):
        begin = time.monotonic()
        with pytest.raises(Locked):
            lock_at(tmp_path).take()
        assert time.monotonic() - begin < 5


def count(folder: str, rounds: int) -> None:
    """Adds to a number in a file, which loses additions of two processes at the same time."""
    lock.fcntl = None
    file = Path(folder) / "number"
    for _ in range(rounds):
        while True:
            mine = lock_at(Path(folder))
            try:
                mine.take(wait=False)
                break
            except Locked:
                time.sleep(0.001)
        number = int(file.read_text())
        time.sleep(0.001)
        file.write_text(str(number + 1))
        mine.release()


def test_many_threads_and_processes_never_have_it_at_once(tmp_path):
    (tmp_path / "number").write_text("0")
    context = multiprocessing.get_context("spawn")
    process = context.Process(target=count, args=(str(tmp_path), 20))
    process.start()
    before = lock.fcntl
    try:
        threads = [threading.Thread(target=count, args=(str(tmp_path), 20)) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        lock.fcntl = before
    process.join()
    assert (tmp_path / "number").read_text() == "80"


def test_a_folder_without_rights_is_an_error_of_the_file_system(tmp_path, kind):
    with pytest.raises(OSError, match="x.lock"):
        lock_at(tmp_path / "missing").take()
