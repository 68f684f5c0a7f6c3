"""Temporary files of a killed process are removed by the next one; those of living ones are not."""

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from bertjax import lock
from bertjax.scratch import PREFIX, scratch_folder

KILLED = """
import os, signal
from bertjax import lock
from bertjax.scratch import scratch_folder
if os.environ.get("NO_FLOCK"):
    lock.fcntl = None
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
        monkeypatch.setattr(lock, "fcntl", None)
        monkeypatch.setattr(lock, "STALE_SECONDS", 0.0)
        environment["NO_FLOCK"] = "1"
    done = subprocess.run([sys.executable, "-c", KILLED], env=environment)
    assert done.returncode == -signal.SIGKILL
    (left,) = root.glob(f"{PREFIX}*/train.array_record")
    with scratch_folder() as folder:
        assert not left.parent.exists() and [*root.iterdir()] == [folder]
    assert not [*root.iterdir()]


def test_folders_of_living_processes_and_of_others_stay(root):
    (root / f"{PREFIX}young").mkdir()
    (root / "other").mkdir()
    with scratch_folder() as first, scratch_folder() as second:
        assert first != second and first.is_dir()
    assert sorted(path.name for path in root.iterdir()) == [f"{PREFIX}young", "other"]
