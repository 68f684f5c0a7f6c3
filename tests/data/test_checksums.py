"""A damaged shard is found before the first step, is named, and is looked for once per machine."""

import dataclasses
import hashlib
import json
import os
import random
import shutil
from pathlib import Path

import numpy as np
import pytest
from array_record.python.array_record_module import ArrayRecordReader

from bertjax import prepare
from bertjax.data import checksums
from bertjax.data.batches.masking import Masking
from bertjax.data.batches.pretraining_batches import HeldOutRows, RowFormat, Rows, train_batches
from bertjax.data.checksums import verify_shards
from bertjax.data.metadata import METADATA_FILE, RowSource, open_prepared, shard_paths

# What metadata.json of an older version says of a shard; the fingerprint of a run hashes it.
OLD_FIELDS = {"file", "records"}


@pytest.fixture
def data(prepared, tmp_path) -> Path:
    """A copy of the prepared directory, which this machine has not verified yet."""
    return Path(shutil.copytree(prepared, tmp_path / "data"))


@pytest.fixture
def without_checksums(data) -> Path:
    """The same directory as an older version would have written it."""
    content = json.loads((data / METADATA_FILE).read_text())
    for summary in content["splits"].values():
        for length in summary["lengths"].values():
            for shard in length["shards"]:
                del shard["size"], shard["sha256"]
    (data / METADATA_FILE).write_text(json.dumps(content, indent=1))
    return data


def flip(path: Path, byte: int, bit: int = 0) -> None:
    content = bytearray(path.read_bytes())
    content[byte] ^= 1 << bit
    path.write_bytes(content)


def test_every_shard_has_its_size_and_checksum_in_the_metadata(data):
    metadata = open_prepared(data)
    for summary in metadata.splits.values():
        for content in summary.lengths.values():
            for shard in content.shards:
                whole = (data / shard.file).read_bytes()
                assert shard.size == len(whole)
                assert shard.sha256 == hashlib.sha256(whole).hexdigest()


def test_every_flipped_bit_is_found_and_its_shard_named(data):
    metadata = open_prepared(data)
    file = metadata.splits["train"].lengths["16"].shards[0].file
    whole = (data / file).read_bytes()
    rng = random.Random(0)
    for _ in range(40):
        flip(data / file, rng.randrange(len(whole)), rng.randrange(8))
        with pytest.raises(ValueError, match=rf"SHA-256 differ.*{file}"):
            verify_shards(data, metadata)
        (data / file).write_bytes(whole)
    assert verify_shards(data, metadata).shards > 0


def test_shards_are_read_once_per_machine_and_again_when_they_change(data, monkeypatch):
    metadata = open_prepared(data)
    first = verify_shards(data, metadata)
    assert first.shards == len(list(data.glob("*.array_record")))
    assert verify_shards(data, metadata).shards == 0
    file = next(data.glob("*.array_record"))
    os.utime(file, ns=(1, 1))
    assert verify_shards(data, metadata).shards == 1
    # The other part of what is remembered is the checksum, which changes with the preparation.
    flip(file, 100)
    with pytest.raises(ValueError, match=file.name):
        verify_shards(data, metadata)


def test_a_cache_that_cannot_be_written_or_read_costs_only_time(data, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setattr(checksums, "cache_folder", lambda: tmp_path / "file")
    metadata = open_prepared(data)
    assert verify_shards(data, metadata).shards == verify_shards(data, metadata).shards > 0
    monkeypatch.setattr(checksums, "cache_folder", lambda: tmp_path / "cache")
    verify_shards(data, metadata)
    for file in (tmp_path / "cache" / "verified").glob("*.json"):
        file.write_bytes(b"\xff{")
    assert verify_shards(data, metadata).shards > 0
    assert verify_shards(data, metadata).shards == 0


def test_data_without_checksums_is_read_with_a_note_and_keeps_its_fingerprint(without_checksums):
    metadata = open_prepared(without_checksums)
    seen = verify_shards(without_checksums, metadata)
    assert seen.shards == 0 and "without checksums" in seen.note and "\n" not in seen.note
    again = json.loads(metadata.to_json())
    for summary in again["splits"].values():
        for content in summary["lengths"].values():
            assert all(shard.keys() == OLD_FIELDS for shard in content["shards"])


def test_a_shard_damaged_before_or_after_the_end_is_prepared_again(small_chunks, capsys):
    config = dataclasses.replace(small_chunks, num_processes=1)
    metadata = prepare.run(config)
    (shard,) = Path(config.output).glob("train-16-*.array_record")
    before = shard.read_bytes()
    for complete in (True, False):
        # The flipped bit is in a row: the number of records is still right.
        flip(shard, 320)
        if not complete:
            (Path(config.output) / METADATA_FILE).unlink()
        else:
            open_prepared(config.output)
        assert prepare.run(config) == metadata
        assert shard.read_bytes() == before
    assert shard.name in capsys.readouterr().out


def test_a_row_that_cannot_be_read_is_one_line_that_names_its_shard(without_checksums):
    paths = shard_paths(without_checksums, "train", 16)
    reader = ArrayRecordReader(paths[0])
    record = reader.read([7])[0]
    reader.close()
    flip(Path(paths[0]), Path(paths[0]).read_bytes().index(record) + 12)
    masking = Masking(
        probability=0.15, max_predictions=3, vocab_size=200, mask_token_id=4, never_masked=(2, 3)
    )
    form = RowFormat(16, 0)
    message = rf"^Row 7 of {paths[0]} cannot be read, because it is damaged"
    batches = train_batches(
        [RowSource("", 1, paths)],
        masking,
        form,
        seed=0,
        phase=0,
        batch_size=8,
        first_row=0,
        host_rows=np.arange(8),
        num_threads=2,
    )
    with pytest.raises(ValueError, match=message) as raised:
        for _ in range(1000):
            next(batches)
    assert "\n" not in str(raised.value) and len(str(raised.value)) < 500
    with pytest.raises(ValueError, match=message):
        _ = HeldOutRows(paths, masking, form, seed=0, max_rows=10**6).token_counts


def test_a_shard_whose_storage_fails_is_not_called_damaged(without_checksums, monkeypatch):
    paths = shard_paths(without_checksums, "train", 16)
    count = len(Rows(paths))
    moved = Path(paths[0]).rename(f"{paths[0]}.moved")
    message = rf"^{paths[0]} cannot be read \(No such file or directory\)"
    with pytest.raises(OSError, match=message) as raised:
        Rows(paths)
    assert "damaged" not in str(raised.value)
    moved.rename(paths[0])
    assert Rows(paths)[0].lengths

    def unreachable(path, *_):
        raise PermissionError(13, "Permission denied", str(path))

    flip(Path(paths[0]), 320)
    monkeypatch.setattr(Path, "open", unreachable)
    with pytest.raises(OSError, match=rf"^{paths[0]} cannot be read .*Permission denied"):
        for row in range(count):
            Rows(paths)[row]


def test_a_missing_split_or_length_is_named(without_checksums):
    with pytest.raises(ValueError, match="has no split 'test', only .*--eval_fraction"):
        shard_paths(without_checksums, "test", 16)
    with pytest.raises(ValueError, match="no rows of 17 tokens, only of 16.*--max_length 17"):
        shard_paths(without_checksums, "train", 17)
