"""Joined shards hold the rows of the chunks' shards in their order, whatever happens meanwhile."""

import dataclasses
import hashlib
import json
import resource
from pathlib import Path

import numpy as np
import pytest

from bertjax import prepare
from bertjax.data.batches import pretraining_batches
from bertjax.data.batches.pretraining_batches import Rows
from bertjax.data.metadata import Shard, open_prepared, shard_paths
from bertjax.data.preparation import prepared_dir
from bertjax.data.preparation.prepared_dir import MAX_SHARDS, _groups, _least, join_shards
from bertjax.data.records import Row, read_shard, write_shard
from tests.rows import encode_row


@pytest.fixture
def config(small_chunks):
    return dataclasses.replace(small_chunks, num_processes=1)


def rows(directory) -> list[bytes]:
    paths = shard_paths(directory, "train", 16)
    return [record for path in paths for record in read_shard(path)]


def contents(directory) -> dict[str, str]:
    return {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(Path(directory).rglob("*"))
        if path.is_file()
    }


@pytest.fixture
def unjoined(config, tmp_path, monkeypatch):
    """A directory as older versions wrote it, with one shard per chunk."""
    old = dataclasses.replace(config, output=str(tmp_path / "old"))
    with monkeypatch.context() as patch:
        patch.setattr(prepared_dir, "join_shards", lambda _, __, shards, **___: shards)
        prepare.run(old)
    return Path(old.output)


@pytest.mark.parametrize("shard_bytes", [1, 1 << 20])
def test_rows_and_their_order_are_those_of_the_chunks(config, unjoined, monkeypatch, shard_bytes):
    monkeypatch.setattr(prepared_dir, "SHARD_BYTES", shard_bytes)
    monkeypatch.setattr(prepared_dir, "MAX_SHARDS", 3)
    metadata = prepare.run(config)
    assert metadata == open_prepared(config.output)
    assert rows(config.output) == rows(unjoined)
    before, after = (
        len(list(Path(folder).glob("train-16-*.array_record")))
        for folder in (unjoined, config.output)
    )
    assert before > 4 and after == len(shard_paths(config.output, "train", 16))
    assert after == 1 if shard_bytes > 1 else after in (3, 4)
    assert prepare.run(dataclasses.replace(config, output=str(unjoined))) == open_prepared(unjoined)


def test_no_size_of_data_needs_many_shards():
    rng = np.random.default_rng(0)
    for count in (1, 30, 1250, 20_000):
        for size in (1_000, 6_000_000, 40_000_000):
            sizes = rng.integers(1, 2 * size, count).tolist()
            shards = [Shard(file=str(i), records=1, size=n) for i, n in enumerate(sizes)]
            groups = list(_groups(shards, _least(shards)))
            assert [shard for group in groups for shard in group] == shards
            assert len(groups) <= MAX_SHARDS + 1
    assert list(_groups([], _least([]))) == []


@pytest.mark.parametrize("where", ["write_shard", "write_text", "unlink"])
@pytest.mark.parametrize("calls", [0, 1, 3])
def test_an_interrupted_join_continues_and_gives_the_same(
    config, tmp_path, monkeypatch, where, calls
):
    monkeypatch.setattr(prepared_dir, "SHARD_BYTES", 1 << 12)
    expected = prepare.run(dataclasses.replace(config, output=str(tmp_path / "whole")))
    target, left = (Path if where == "unlink" else prepared_dir), calls
    original, joining = getattr(target, where), prepared_dir.join_shards

    def stopping(*args, **kwargs):
        nonlocal left
        if left == 0:
            raise KeyboardInterrupt
        left -= 1
        return original(*args, **kwargs)

    def interrupted(*args, **kwargs):
        with monkeypatch.context() as patch:
            patch.setattr(target, where, stopping)
            return joining(*args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(prepared_dir, "join_shards", interrupted)
        with pytest.raises(KeyboardInterrupt):
            prepare.run(config)
    with pytest.raises(FileNotFoundError, match="incomplete"):
        open_prepared(config.output)
    assert prepare.run(config) == expected
    assert contents(config.output) == contents(tmp_path / "whole")


def test_a_damaged_joined_shard_costs_its_own_chunks_alone(config, monkeypatch):
    monkeypatch.setattr(prepared_dir, "SHARD_BYTES", 1 << 12)
    metadata = prepare.run(config)
    before = contents(config.output)
    summaries = sorted((Path(config.output) / "chunks").glob("?????.json"))
    times = [path.stat().st_mtime_ns for path in summaries]
    _, second, *_ = sorted(Path(config.output).glob("train-16-*.array_record"))
    second.write_bytes(second.read_bytes()[:-1000])
    assert prepare.run(config) == metadata
    assert contents(config.output) == before
    now = [path.stat().st_mtime_ns for path in summaries]
    again = sum(before != after for before, after in zip(times, now, strict=True))
    parts = json.loads((Path(config.output) / "chunks" / f"{second.stem}.json").read_text())
    assert again == len(parts["chunk_shards"]) < len(summaries)


def some_shards(folder: Path, count: int) -> list[Shard]:
    shards = []
    for number in range(count):
        ids = np.arange(number, number + 5)
        file = f"train-16-{number:05d}.array_record"
        write_shard(folder / file, [encode_row(Row(ids, (5,), (5,), (0,)))] * (1 + number % 3))
        shards.append(Shard(file=file, records=1 + number % 3, size=1))
    return shards


def test_two_processes_may_join_the_same_shards(tmp_path, monkeypatch):
    (tmp_path / "chunks").mkdir()
    shards = some_shards(tmp_path, 4)
    expected = [record for shard in shards for record in read_shard(tmp_path / shard.file)]
    write, results = prepared_dir.write_shard, []

    def overtaken(path, records, **options):
        with monkeypatch.context() as patch:
            patch.setattr(prepared_dir, "write_shard", write)
            results.append(join_shards(tmp_path, "train-16", [shards], several=True))
        return write(path, records, **options)

    monkeypatch.setattr(prepared_dir, "write_shard", overtaken)
    ((joined,),) = join_shards(tmp_path, "train-16", [shards], several=True)
    assert results == [[[joined]]]
    assert list(read_shard(tmp_path / joined.file)) == expected
    assert [path.name for path in tmp_path.glob("*.array_record*")] == [joined.file]


def test_a_damaged_shard_of_a_chunk_is_named_and_the_others_are_kept(tmp_path):
    (tmp_path / "chunks").mkdir()
    shards = some_shards(tmp_path, 3)
    (tmp_path / shards[1].file).write_bytes(b"x" * 1000)
    with pytest.raises(ValueError, match=f"{shards[1].file} cannot be read .*delete this file"):
        join_shards(tmp_path, "train-16", [shards])
    assert len(list(tmp_path.glob("*"))) == 4


def test_more_shards_than_files_may_be_open_are_read(tmp_path, monkeypatch):
    shards = [str(tmp_path / shard.file) for shard in some_shards(tmp_path, 40)]
    expected = [row.input_ids.tolist() for row in map(Rows(shards).__getitem__, range(79))]
    monkeypatch.setattr(pretraining_batches, "files_to_keep_open", lambda wanted: 16)
    few = Rows(shards)
    order = np.random.default_rng(0).permutation(79).tolist()
    found = {index: few[index].input_ids.tolist() for index in order}
    assert [found[index] for index in range(79)] == expected
    assert len(few._readers) == 16


def test_the_limit_of_open_files_is_raised_as_far_as_the_system_allows():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (200, hard))
        assert pretraining_batches.files_to_keep_open(50) == 50
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == 200
        assert pretraining_batches.files_to_keep_open(300) == 300
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == 428
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
