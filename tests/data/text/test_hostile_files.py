"""Damaged and hostile text files end in one error that names them, and never lose text in silence.

`tests/reliability` feeds many more of them to every reader.
"""

import bz2
import gzip
import lzma
import random
import struct
import tarfile
import time
import tracemalloc
import zlib

import pyarrow
import pyarrow.parquet
import pytest
import zstandard

from bertjax.data.text.corpus import Corpus, ReadOptions
from bertjax.data.text.streams import FREE_BYTES, MAX_DEPTH, MAX_JSON_CHARACTERS
from tests.programs.seeds import tar_of

TEXT = b"The first sentence is here. The second one follows it.\n\nAnother paragraph ends it.\n"


def read(path):
    return [document.text for document in Corpus([str(path)], ReadOptions()).documents()]


def refusal(path, data):
    path.write_bytes(data)
    with pytest.raises(ValueError) as error:
        for _ in Corpus([str(path)], ReadOptions()).documents():  # none is kept
            pass
    message = str(error.value)
    # The folder of temporary files may have a long name.
    assert str(path) in message and len(message.replace(str(path.parent), "x" * 60)) <= 400
    return message


FIVE = tar_of({f"{i}.txt": TEXT.replace(b"first", b"number %d" % i) for i in range(5)})
MEMBER = 1024  # bytes of a member: its header and one block


def test_a_flipped_bit_in_any_header_of_a_tar_is_refused_or_changes_nothing(tmp_path):
    rng = random.Random(0)
    path = tmp_path / "a.tar"
    path.write_bytes(FIVE)
    whole = read(path)
    assert len(whole) == 5
    for member in range(5):
        for at in rng.sample(range(512), 30):
            data = bytearray(FIVE)
            data[member * MEMBER + at] ^= 1 << rng.randrange(8)
            path.write_bytes(bytes(data))
            if 148 <= at < 156:  # the same checksum may be written with spaces or zeros
                try:
                    assert read(path) == whole
                except ValueError:
                    continue
            else:
                refusal(path, bytes(data))


@pytest.mark.parametrize("members", range(1, 6))
def test_a_tar_cut_at_a_header_is_refused(tmp_path, members):
    assert "without the zeros" in refusal(tmp_path / "a.tar", FIVE[: members * MEMBER])
    assert "cut" in refusal(tmp_path / "a.tar", FIVE[: members * MEMBER - 400])


def test_a_tar_with_text_after_its_end_is_refused(tmp_path):
    assert "--concatenate" in refusal(tmp_path / "a.tar", FIVE + FIVE)
    zeroed = FIVE[:MEMBER] + bytes(512) + FIVE[MEMBER + 512 :]
    assert "follow the zeros" in refusal(tmp_path / "a.tar", zeroed)


def test_sparse_members_are_refused_as_their_size_has_no_bound(tmp_path):
    header = bytearray(tar_of({"a": b""})[:512])
    header[156:157] = b"S"
    header[483:495] = b"%011o " % 2**32  # the size after expansion
    header[148:156] = b"%06o\0 " % (sum(header[:148]) + 8 * 32 + sum(header[156:]))
    assert "sparse" in refusal(tmp_path / "a.tar", bytes(header) + bytes(1024))
    posix = tar_of({"a": TEXT}, pax_headers={"GNU.sparse.major": "1", "GNU.sparse.minor": "0"})
    assert "sparse" in refusal(tmp_path / "b.tar", posix)


def test_an_extended_header_of_a_tar_is_bounded(tmp_path):
    long = tar_of({"x" * 3_000_000: TEXT})
    assert "extended header has" in refusal(tmp_path / "a.tar", long)


def test_latin_text_in_a_long_name_is_refused_in_a_short_line(tmp_path):
    latin = "déjà vu. Même chose, été comme hiver. ".encode("latin-1") * 20
    long = "x" * 5000 + "/french.txt"
    assert "x/french.txt is not UTF-8" in refusal(tmp_path / "a.tar", tar_of({long: latin}))


def test_links_and_outside_names_in_a_tar_touch_no_other_file(tmp_path):
    (tmp_path / "secret").write_text("A secret sentence is here.")
    folder = tmp_path / "in"
    folder.mkdir()
    path = folder / "a.tar"
    for kind in (tarfile.SYMTYPE, tarfile.LNKTYPE):
        path.write_bytes(tar_of({"l": b"", "../../b": TEXT}, type=kind, linkname="../secret"))
        assert read(path) == [TEXT.decode().removesuffix("\n")]
    path.write_bytes(tar_of({"../escape": TEXT, "/tmp/absolute": TEXT}))
    assert len(read(path)) == 2
    assert sorted(p.name for p in tmp_path.rglob("*")) == ["a.tar", "in", "secret"]


def test_damage_around_nested_archives_is_named_once_and_briefly(tmp_path):
    def wrapped(content):
        for _ in range(MAX_DEPTH - 1):
            content = tar_of({"a rather long name of a member " * 3: content})
        return content

    path = tmp_path / "a"
    packed = bytearray(gzip.compress(wrapped(TEXT)))
    packed[-6] ^= 1  # the checksum of the whole
    message = refusal(path, bytes(packed))
    assert message.startswith(f"{path} is damaged") and message.count(str(path)) == 1
    message = refusal(path, wrapped(gzip.compress(TEXT)[:-4]))
    assert message.startswith(f"{path}:a rather long name") and message.count(str(path)) == 1


@pytest.mark.parametrize("format", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT, tarfile.USTAR_FORMAT])
def test_archives_of_all_formats_are_read_whole(tmp_path, format):
    folder = tmp_path / "files"
    names = ["a.txt", "ä.txt", "d" * 90 + ".txt", "deep/" * 20 + "e.txt", "empty"]
    for i, name in enumerate(names):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(f"A document number {i} is here.\n" if name != "empty" else "")
    with tarfile.open(tmp_path / "a.tar", "w", format=format) as archive:
        archive.add(folder, "files")
    assert len(read(tmp_path / "a.tar")) == 4


def zst_bomb(gigabytes):
    """A frame of blocks of 4 bytes that repeat a letter 128 Ki times each."""
    blocks = gigabytes << 13
    block, last = ((1 << 17) << 3 | 1 << 1 | end for end in (0, 1))
    head = b"\x28\xb5\x2f\xfd\x00\x38"
    repeated = struct.pack("<I", block)[:3] + b"a"
    return head + repeated * (blocks - 1) + struct.pack("<I", last)[:3] + b"a"


def test_bombs_are_refused_in_little_time_and_memory(tmp_path):
    data = zst_bomb(8)
    assert len(data) < 300_000
    tracemalloc.start()
    started = time.process_time()
    assert "bombs" in refusal(tmp_path / "a.zst", data)
    seconds, peak = time.process_time() - started, tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert seconds < 20 and peak < 150 << 20


@pytest.mark.slow
def test_nested_bombs_are_refused(tmp_path):
    inner = gzip.compress(bytes(2 * FREE_BYTES).replace(b"\0", b" "))
    assert "bombs" in refusal(tmp_path / "a", bz2.compress(inner))


def test_the_dictionary_of_xz_is_bounded(tmp_path):
    # Compressing would need ten times the dictionary: its size is patched into a small file.
    data = bytearray(lzma.compress(TEXT))
    at = data.index(b"\x21\x01") + 2  # the filter of LZMA2 with one byte, which codes the size
    data[at] = 40  # 4 GiB
    header = (data[12] + 1) * 4
    data[12 + header - 4 : 12 + header] = struct.pack("<I", zlib.crc32(data[12 : 12 + header - 4]))
    assert "Memory" in refusal(tmp_path / "a.xz", bytes(data))


def test_layers_of_compression_are_bounded(tmp_path):
    data = TEXT
    for _ in range(MAX_DEPTH):
        data = gzip.compress(data)
    (tmp_path / "deep").write_bytes(data)
    assert len(read(tmp_path / "deep")) == 1
    for _ in range(120):
        data = gzip.compress(data)
    assert f"more than {MAX_DEPTH} layers" in refusal(tmp_path / "a", data)


@pytest.mark.parametrize(
    "compress", [gzip.compress, bz2.compress, lzma.compress, zstandard.compress]
)
def test_damage_between_concatenated_streams_is_refused(tmp_path, compress):
    first, second = compress(TEXT), compress(TEXT * 2)
    for at in range(2):
        damaged = bytearray(second)
        damaged[at] ^= 4
        refusal(tmp_path / "a", first + bytes(damaged))
    refusal(tmp_path / "a", first + second[: len(second) // 2])
    whole = tmp_path / "b"
    whole.write_bytes(first + second + bytes(512))  # as tapes are filled up
    assert "".join(read(whole)).count("first") == 3


def test_zeros_are_no_text(tmp_path):
    assert "not text" in refusal(tmp_path / "a.txt", b"abc" + bytes(300))


def test_a_line_of_json_is_bounded(tmp_path):
    line = b'{"text": "' + b"a " * (MAX_JSON_CHARACTERS // 2) + b'"}'
    assert "more than 16,777,216 characters" in refusal(tmp_path / "a.jsonl", line)


def test_messages_about_json_stay_short(tmp_path):
    fields = ", ".join(f'"field {i}": 1' for i in range(1000))
    assert "has no text field" in refusal(tmp_path / "a.jsonl", f"{{{fields}}}".encode())


def test_damage_of_any_part_of_a_parquet_file_names_it(tmp_path):
    path = tmp_path / "a.parquet"
    table = pyarrow.table({"text": [f"Sentence number {i} is here." for i in range(200)]})
    pyarrow.parquet.write_table(table, path, row_group_size=50)
    whole = path.read_bytes()
    rng = random.Random(0)
    refused = 0
    for _ in range(300):
        data = bytearray(whole)
        data[rng.randrange(4, len(data))] = rng.randrange(256)
        path.write_bytes(bytes(data))
        try:
            read(path)
        except ValueError as error:
            assert str(path) in str(error) and len(str(error)) <= 400
            refused += 1
    assert refused > 50
