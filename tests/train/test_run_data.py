"""Data in a bucket: a run begins with the rows of its first phase, and the others follow."""

import threading
from pathlib import Path

import fsspec
import pytest

from bertjax.base import addresses
from bertjax.cloud import copies
from bertjax.data.metadata import shard_paths
from bertjax.train.run_data import RunData
from tests.bucket_servers import first_with, upload

pytestmark = first_with("gs")


@pytest.fixture
def address(bucket, prepared):
    return upload(prepared, f"{bucket}/data")


def contents(directory, split, length):
    return [Path(path).read_bytes() for path in shard_paths(directory, split, length)]


def is_of_later_phase(file):
    return "-32-" in file.name


def test_rows_of_later_phases_come_while_the_first_phase_is_trained(
    address, prepared, tmp_path, monkeypatch
):
    block, may_go_on = copies._block, threading.Event()

    def waits(system, file, start, end):
        assert not is_of_later_phase(file) or may_go_on.wait(20)
        return block(system, file, start, end)

    monkeypatch.setattr(copies, "_block", waits)
    data = RunData(address, str(tmp_path))
    data.require(16)
    data.require_in_background([32])
    for split in ("train", "eval"):
        assert contents(data.directory, split, 16) == contents(prepared, split, 16)
    assert not [*tmp_path.rglob("*-32-*.array_record")]
    may_go_on.set()
    data.require(32)  # waits for the thread, or copies itself
    assert contents(data.directory, "train", 32) == contents(prepared, "train", 32)
    for thread in threading.enumerate():
        if thread.name == "copies data":
            thread.join()


def test_a_failed_copy_in_the_background_is_tried_again(
    address, prepared, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(addresses, "FIRST_WAIT", 0.01)
    block, works = copies._block, []

    def fails(system, file, start, end):
        if is_of_later_phase(file) and not works:
            raise ConnectionResetError("the connection was cut")
        return block(system, file, start, end)

    monkeypatch.setattr(copies, "_block", fails)
    data = RunData(address, str(tmp_path))
    data.require_in_background([16, 32])
    (thread,) = (thread for thread in threading.enumerate() if thread.name == "copies data")
    thread.join()
    assert "rows of a later phase are not copied yet" in capsys.readouterr().out
    with pytest.raises(OSError, match="the connection was cut.*run the same command again"):
        data.require(32)
    works.append(True)
    data.require(32)
    again = RunData(address, str(tmp_path))
    again.require(16)
    again.require(32)


def test_a_bucket_that_lacks_shards_is_named(address, tmp_path):
    system = fsspec.filesystem(address.partition(":")[0])
    for path in system.glob(f"{address.partition('://')[2]}/train-16-*"):
        system.rm(path)
    data = RunData(address, str(tmp_path))
    with pytest.raises(FileNotFoundError, match="shards are missing"):
        data.require(16)
