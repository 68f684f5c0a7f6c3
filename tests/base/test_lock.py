"""One process at a time: with locks of the file system, and without them."""

import errno
import fcntl
import multiprocessing
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from bertjax.base import lock, progress
from bertjax.base.lock import Lock, Locked, waiting_lock


def lock_at(folder: Path) -> Lock:
    return Lock(folder / "x.lock", place="--output x", what="command", remedy="wait")


UNSUPPORTED = """
import errno, fcntl
def unsupported(file, how):
    raise OSError(errno.%s, "not supported")
fcntl.flock = unsupported
"""


@pytest.fixture(params=["", "ENOSYS", "ENOTSUP", "ENOLCK"])
def kind(request, monkeypatch):
    """With `flock`, and on file systems that refuse it; "" or the name of the error."""
    monkeypatch.setattr(lock, "HEARTBEAT_SECONDS", 0.02)
    monkeypatch.setattr(lock, "POLL_SECONDS", 0.05)
    if request.param:
        without_flock(monkeypatch, request.param)
    return request.param


def without_flock(monkeypatch, name="ENOTSUP"):
    def flock(file, how):
        raise OSError(getattr(errno, name), "not supported")

    monkeypatch.setattr(fcntl, "flock", flock)


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
    second.take()
    with pytest.raises(Locked):
        first.take(wait=False)
    second.release()
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
{UNSUPPORTED % kind if kind else ""}
held = lock.Lock(Path({str(tmp_path)!r}) / "x.lock", place="x", what="c", remedy="wait")
held.take()
os.kill(os.getpid(), signal.SIGKILL)
"""
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    subprocess.run([sys.executable, "-c", script], env=environment)
    assert list(tmp_path.iterdir())
    taken = lock_at(tmp_path)
    taken.take()
    assert taken.held
    taken.release()
    assert list(tmp_path.iterdir()) == []


def test_a_living_process_is_not_taken_for_dead_however_old_its_clock_says_it_is(
    tmp_path, monkeypatch
):
    without_flock(monkeypatch)
    monkeypatch.setattr(lock, "HEARTBEAT_SECONDS", 0.05)
    monkeypatch.setattr(lock, "POLL_SECONDS", 0.1)
    monkeypatch.setattr(time, "time", lambda: 0.0)  # only the clock of the file system counts
    taken = lock_at(tmp_path)
    taken.take()
    begin = time.monotonic()
    with pytest.raises(Locked):
        lock_at(tmp_path).take()
    assert time.monotonic() - begin < 5
    taken.release()


def count(folder: str, rounds: int) -> None:
    """Adds to a number in a file, which loses additions of two processes at the same time."""
    exec(UNSUPPORTED % "ENOTSUP", {})
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
    before = fcntl.flock
    try:
        threads = [threading.Thread(target=count, args=(str(tmp_path), 20)) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        fcntl.flock = before
    process.join()
    assert (tmp_path / "number").read_text() == "80"


def test_a_folder_without_rights_is_an_error_of_the_file_system(tmp_path, kind):
    with pytest.raises(OSError, match="missing"):
        lock_at(tmp_path / "missing").take()


def test_a_process_that_has_lost_its_lease_ends(tmp_path):
    """Another process has taken it, for example while this one was suspended."""
    script = f"""
import pathlib, time
from bertjax.base import lock
{UNSUPPORTED % "ENOTSUP"}
lock.HEARTBEAT_SECONDS = 0.02
folder = pathlib.Path({str(tmp_path)!r})
held = lock.Lock(folder / "x.lock", place="x", what="run", remedy="wait")
held.take()
(lease,) = folder.iterdir()
lease.unlink()
lease.write_text("another")
time.sleep(60)
"""
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, timeout=50, text=True
    )
    assert done.returncode == 1
    assert "x is no longer locked by this run (owner-changed)" in done.stderr


def test_one_that_outlives_its_module_is_left_to_the_system(tmp_path, monkeypatch):
    """While Python shuts down, the names of modules are None; an error would be printed."""
    kept = lock_at(tmp_path)
    kept.take()
    with monkeypatch.context() as shutdown:
        for name in [name for name in vars(lock) if not name.startswith("__")]:
            shutdown.setattr(lock, name, None)
        kept.__del__()
    assert kept.held
    kept.release()


def test_a_lock_of_another_process_is_named_while_it_is_waited_for(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(progress, "FIRST_LINE_SECONDS", 0.05)
    with (tmp_path / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        threading.Timer(0.5, fcntl.flock, (file, fcntl.LOCK_UN)).start()
        with waiting_lock(tmp_path / "lock"):
            pass
    assert f"waiting for another process that has locked {tmp_path / 'lock'}" in (
        capsys.readouterr().err
    )
