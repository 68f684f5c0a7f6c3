import dataclasses

import numpy as np
import pytest
from array_record.python.array_record_module import ArrayRecordReader

from bertjax.data.metadata import open_prepared
from bertjax.data.records import Row, count_or_none, decode_row, has_records, write_shard
from tests.programs import seeds
from tests.rows import encode_row


@pytest.mark.parametrize("largest", [255, 65_535, 65_536, 119_546])
@pytest.mark.parametrize("sequences", [1, 3])
def test_a_row_survives_the_way_to_disk_and_back(largest, sequences):
    ids = np.arange(4 * sequences, dtype=np.int64)
    ids[-1] = largest
    row = Row(ids, (4,) * sequences, (2,) * sequences, (-1, 0, 1)[:sequences])
    found = decode_row(encode_row(row))
    assert found.input_ids.dtype == np.int32
    np.testing.assert_array_equal(found.input_ids, ids)
    assert (found.lengths, found.a_lengths, found.labels) == (
        row.lengths,
        row.a_lengths,
        row.labels,
    )


@pytest.mark.parametrize(
    "garbage",
    [b"", b"\x01", b"\x02" * 40, b"\x01\x02\x01\x00\x05\x00\x02\x00\x00\x00\x01", b"x" * 99],
)
def test_garbage_is_refused(garbage):
    with pytest.raises(ValueError, match="A record of .* bytes"):
        decode_row(garbage)


def test_a_cut_row_is_refused():
    record = encode_row(Row(np.arange(10), (10,), (5,), (0,)))
    for size in range(len(record)):
        with pytest.raises(ValueError):
            decode_row(record[:size])


def test_a_shard_holds_its_records_in_order(tmp_path):
    records = [bytes([n]) * (n + 1) for n in range(50)]
    assert write_shard(tmp_path / "s.array_record", iter(records)) == 50
    reader = ArrayRecordReader(str(tmp_path / "s.array_record"))
    assert reader.read_all() == records
    assert reader.read([33]) == [records[33]]
    reader.close()


def test_a_shard_that_fails_midway_leaves_nothing(tmp_path):
    def records():
        yield b"one"
        raise KeyError("not a matter of the disk")

    with pytest.raises(KeyError):
        write_shard(tmp_path / "s.array_record", records())
    assert list(tmp_path.iterdir()) == []
    assert write_shard(tmp_path / "s.array_record", iter([])) == 0
    assert list(tmp_path.iterdir()) == []


def test_a_cut_shard_is_no_shard(tmp_path):
    path = tmp_path / "s.array_record"
    write_shard(path, [b"x" * 100] * 3000)
    path.write_bytes(path.read_bytes()[:-70_000])
    assert (count_or_none(path), has_records(path, 3000)) == (None, False)


def test_a_directory_without_metadata_is_never_taken_for_whole(tmp_path):
    with pytest.raises(FileNotFoundError, match="incomplete"):
        open_prepared(tmp_path)
    (tmp_path / "metadata.json").write_text('{"format_version": 999}')
    with pytest.raises(ValueError, match="999"):
        open_prepared(tmp_path)
    (tmp_path / "metadata.json").write_text("{")
    with pytest.raises(ValueError, match="cannot be read"):
        open_prepared(tmp_path)


@pytest.mark.parametrize("name", ["../one", "..", "", "x" * 5000])
def test_a_shard_whose_name_is_no_file_name_is_refused(tmp_path, name):
    content = seeds.metadata()[0].decode()
    assert '"train-16-0"' in content
    (tmp_path / "metadata.json").write_text(content.replace('"train-16-0"', f'"{name}"'))
    with pytest.raises(ValueError, match="is not a plain file name") as error:
        open_prepared(tmp_path)
    assert str(tmp_path / "metadata.json") in str(error.value) and len(str(error.value)) <= 400


def test_rows_are_immutable():
    with pytest.raises(dataclasses.FrozenInstanceError):
        Row(np.arange(2), (2,), (2,), (0,)).lengths = ()  # type: ignore[misc]
