"""Temporary files of a killed process are removed by the next one; those of living ones are not."""

import fcntl
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from bertjax.base.lock import (
    SCRATCH_ATTEMPTS,
    SCRATCH_PREFIX,
    remove_left_behind,
    scratch_folder,
)
from tests.base.test_lock import UNSUPPORTED, without_flock

KILLED = """
import os, signal
from bertjax.base.lock import scratch_folder
if os.environ.get("NO_FLOCK"):
    exec(os.environ["NO_FLOCK"], {})
with scratch_folder() as folder:
    (folder / "train.array_record").write_text("features")
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def root(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


@pytest.mark.skipif(sys.platform == "win32", reason="kills as Linux does")
@pytest.mark.parametrize("has_flock", [True, False])
def test_the_next_process_removes_what_a_killed_one_left(root, monkeypatch, has_flock):
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1]), "TMPDIR": str(root)}
    if not has_flock:
        without_flock(monkeypatch)
        environment["NO_FLOCK"] = UNSUPPORTED % "ENOTSUP"
    done = subprocess.run([sys.executable, "-c", KILLED], env=environment)
    assert done.returncode == -signal.SIGKILL
    (left,) = root.glob(f"{SCRATCH_PREFIX}*/train.array_record")
    with scratch_folder() as folder:
        assert not left.parent.exists() and [*root.iterdir()] == [folder]
    assert not [*root.iterdir()]


def test_folders_of_living_processes_and_of_others_stay(root):
    (root / f"{SCRATCH_PREFIX}young").mkdir()
    (root / "other").mkdir()
    with scratch_folder() as first, scratch_folder() as second:
        assert first != second and first.is_dir()
    assert sorted(path.name for path in root.iterdir()) == [f"{SCRATCH_PREFIX}young", "other"]


@pytest.mark.parametrize("times", [1, 3, SCRATCH_ATTEMPTS])
def test_a_new_folder_that_another_process_removes_before_it_is_locked_is_replaced(
    root, monkeypatch, times
):
    """The other process looks for folders between the creation of the lock file and its lock."""
    flock, removed = fcntl.flock, []

    def late(file, operation):
        folder = next(root.glob(f"{SCRATCH_PREFIX}*"), None)
        if operation != fcntl.LOCK_UN and len(removed) < times and folder not in removed:
            removed.append(folder)
            remove_left_behind(root)
        flock(file, operation)

    monkeypatch.setattr(fcntl, "flock", late)
    if times == SCRATCH_ATTEMPTS:
        with pytest.raises(OSError, match="removed 100 new .* TMPDIR"), scratch_folder():
            pass
    else:
        with scratch_folder() as folder:
            (folder / "rows").write_text("features")
            assert [*root.iterdir()] == [folder]
    assert len(removed) == times and not [*root.iterdir()]
