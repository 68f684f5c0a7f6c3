"""Local copies of buckets: equal to the bucket, continued, updated, and clear when they fail."""

import logging
import random
import re
import subprocess
import sys
import threading
import time
from collections import Counter

import fsspec
import numpy as np
import pytest
from fsspec.utils import glob_translate

from bertjax.base import addresses
from bertjax.cloud import copies
from bertjax.cloud.copies import LIST_FILE, glob_matcher, local_copy
from bertjax.data.text.streams import find_files
from bertjax.train import checkpoint  # noqa: F401 (it changes what Orbax logs)


def put(address, content):
    with fsspec.open(address, "wb") as file:
        file.write(content)


def contents(folder):
    return {
        file.relative_to(folder).as_posix(): file.read_bytes()
        for file in folder.rglob("*")
        if file.is_file() and not file.name.startswith(".")
    }


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(addresses, "FIRST_WAIT", 0.01)
    monkeypatch.setattr(copies, "BLOCK", 1000)


@pytest.fixture
def files():
    rng = np.random.default_rng(0)
    return {"a.json": b"{}", "empty": b"", "deep/er/b.bin": rng.bytes(4321), "c": rng.bytes(2000)}


@pytest.fixture
def folder(bucket, files):
    """A folder in a bucket; another one has a name with the same beginning."""
    for name, content in files.items():
        put(f"{bucket}/data/{name}", content)
    put(f"{bucket}/data2/other", b"x")
    return f"{bucket}/data"


def test_a_folder_is_copied_and_only_changes_are_copied_again(folder, files, tmp_path, monkeypatch):
    copy = local_copy(folder, tmp_path)
    assert contents(copy) == files and str(copy).endswith(folder.partition("://")[2])
    read = []
    block = copies._block
    monkeypatch.setattr(
        copies,
        "_block",
        lambda system, file, *at: read.append(file.name) or block(system, file, *at),
    )
    assert local_copy(folder + "/", tmp_path) == copy and not read
    put(f"{folder}/c", b"new")
    put(f"{folder}/d", b"added")
    fsspec.open(f"{folder}/a.json").fs.rm(f"{folder}/a.json")
    local_copy(folder, tmp_path)
    expected = files | {"c": b"new", "d": b"added"}
    del expected["a.json"]
    assert contents(copy) == expected and sorted(read) == ["c", "d"]
    (copy / "d").write_bytes(b"ad")  # damaged on the disk
    local_copy(folder, tmp_path)
    assert contents(copy) == expected


def test_a_file_is_copied_without_its_neighbours(folder, files, tmp_path):
    copy = local_copy(f"{folder}/deep/er/b.bin", tmp_path)
    assert copy.read_bytes() == files["deep/er/b.bin"]
    local_copy(f"{folder}/c", tmp_path)
    assert copy.is_file() and [*contents(tmp_path)].count("a.json") == 0


def test_globs_copy_what_they_match(folder, files, tmp_path):
    for name in ("a.txt", "deep/b.txt", "deep/er/c.txt"):
        put(f"{folder}/{name}", name.encode())
    everything = {"a.txt", "deep/b.txt", "deep/er/c.txt"}
    for glob, names in {
        "*.txt": {"a.txt"},
        "deep/*.txt": {"deep/b.txt"},
        "**/*.txt": everything,
    }.items():
        cache = tmp_path / glob[0]
        found = find_files(str(local_copy(f"{folder}/{glob}", cache)))
        copied = {file.split("/data/")[1] for file in found}
        assert copied == names and sum(len(contents(f)) for f in [cache]) == len(names)
    with pytest.raises(FileNotFoundError, match=r"No file in .*/data matches \*.csv"):
        local_copy(f"{folder}/*.csv", tmp_path)


def test_files_of_a_folder_are_chosen_by_name(folder, files, tmp_path):
    copy = local_copy(folder, tmp_path, choose=lambda names: set(names) - {"c"})
    assert contents(copy).keys() == files.keys() - {"c"}
    local_copy(folder, tmp_path, choose=lambda names: {"c"})
    assert contents(copy) == files  # the others remain


def test_copies_at_the_same_time_share_the_work(folder, files, tmp_path, monkeypatch):
    block, read = copies._block, []
    monkeypatch.setattr(
        copies,
        "_block",
        lambda system, file, *at: read.append((file.name, *at)) or block(system, file, *at),
    )
    threads = [threading.Thread(target=local_copy, args=(folder, tmp_path)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert contents(local_copy(folder, tmp_path)) == files
    assert len(read) == len(set(read)) > 5


def test_an_interrupted_copy_goes_on_where_it_stopped(folder, files, tmp_path, monkeypatch):
    block, starts = copies._block, []

    def stopped(system, file, start, end):
        if file.name == "deep/er/b.bin":
            starts.append(start)
            if start == 3000 and len(starts) < 5:
                raise KeyboardInterrupt
        return block(system, file, start, end)

    monkeypatch.setattr(copies, "_block", stopped)
    with pytest.raises(KeyboardInterrupt):
        local_copy(folder, tmp_path)
    assert contents(local_copy(folder, tmp_path)) == files
    assert starts == [0, 1000, 2000, 3000, 3000, 4000]


def test_failed_requests_are_repeated_and_said(folder, files, tmp_path, monkeypatch, capsys):
    block, calls = copies._block, Counter()

    def unreliable(system, file, start, end):
        calls[file, start] += 1
        if calls[file, start] < 3:
            raise ConnectionResetError("the connection was cut")
        return block(system, file, start, end)

    monkeypatch.setattr(copies, "_block", unreliable)
    assert contents(local_copy(folder, tmp_path)) == files
    assert "ConnectionResetError: the connection was cut); again in" in capsys.readouterr().out


def test_a_request_that_never_succeeds_is_an_error_and_keeps_what_arrived(
    folder, files, tmp_path, monkeypatch
):
    block = copies._block

    def fails(system, file, start, end):
        if start >= 2000:
            raise ConnectionResetError("the connection was cut")
        return block(system, file, start, end)

    monkeypatch.setattr(copies, "_block", fails)
    with pytest.raises(OSError, match="the connection was cut.*run the same command again"):
        local_copy(folder, tmp_path)
    (part,) = tmp_path.rglob("*.part")
    assert part.read_bytes() == files["deep/er/b.bin"][:2000]
    assert not list(tmp_path.rglob("b.bin"))


@pytest.mark.parametrize("bucket_server", ["gs"], indirect=True)  # S3 tells no MD5
def test_a_damaged_transfer_is_refused(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(copies, "_block", lambda system, file, start, end: bytes(end - start))
    with pytest.raises(OSError, match="has another MD5 than the file in the bucket"):
        local_copy(folder, tmp_path)


@pytest.mark.parametrize("name", ["{}/absent", "{}-absent/data"])
def test_what_does_not_exist_is_named(bucket, name, tmp_path):
    address = name.format(bucket)
    with pytest.raises(OSError, match=f"{address}.*check the name"):
        local_copy(address, tmp_path)


def test_a_bucket_without_rights_is_named(folder, tmp_path, monkeypatch):
    def denied(*_):
        raise PermissionError("Forbidden: storage.objects.get")

    monkeypatch.setattr(copies, "_block", denied)
    with pytest.raises(PermissionError, match=f"{folder} may not be read.*get the right"):
        local_copy(folder, tmp_path)


def test_a_move_that_fails_leaves_the_folder_whole(folder, files, bucket, monkeypatch):
    system, path = addresses.file_system(folder)
    copy = type(system)._cp_file

    async def failing(self, one, other, **kwargs):
        if one.endswith(sorted(files)[-1]):
            raise OSError("a request failed")
        await copy(self, one, other, **kwargs)

    def held(folder):
        return {
            name.removeprefix(folder)[1:]: system.cat_file(name) for name in system.find(folder)
        }

    def move(target):
        addresses.move_folder(addresses.place(folder), addresses.place(target))

    with monkeypatch.context() as patch:
        patch.setattr(type(system), "_cp_file", failing)
        with pytest.raises(OSError, match="a request failed"):
            move(f"{folder}-half")
    assert held(path) == files
    move(f"{folder}-moved")
    assert held(f"{path}-moved") == files and not held(path)
    assert held(f"{path}2") == {"other": b"x"}


def test_local_paths_and_other_schemes(tmp_path):
    assert local_copy(tmp_path) == tmp_path
    with pytest.raises(ValueError, match="ftp:// is not supported"):
        local_copy("ftp://host/data")


def test_a_list_that_is_damaged_is_made_again(folder, files, tmp_path):
    copy = local_copy(folder, tmp_path)
    (copy / LIST_FILE).write_text("[")
    assert contents(local_copy(folder, tmp_path)) == files


def test_buckets_are_accessed_without_tensorflow_where_it_is_installed(tmp_path):
    (tmp_path / "tensorflow").mkdir()
    (tmp_path / "tensorflow" / "__init__.py").write_text("raise AssertionError('imported')")
    code = (
        "import importlib.util, sys\n"
        "sys.path.insert(0, sys.argv[1])\n"
        "from bertjax.base.addresses import place\n"
        "assert importlib.util.find_spec('tensorflow')\n"
        "backends = {type(place(f'{s}://b/x')._backend).__name__ for s in ('gs', 's3')}\n"
        "assert backends == {'_FileSystemSpecBackend'}, backends"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True)


def test_globs_match_as_those_of_fsspec_do():
    rng = random.Random(0)
    paths = ["a", "b", "a/b", "a/a/b", "b/a.b", "ab/b.a/a", "a.b", "ab/ab", "a/b/a/b"]
    for _ in range(2000):
        parts = [
            "".join(rng.choices("ab*?.", k=rng.randint(1, 4))) for _ in range(rng.randint(1, 3))
        ]
        parts = ["**" if "**" in part else part for part in parts]
        glob = "/".join(parts)
        theirs = re.compile(glob_translate(glob))
        for path in paths:
            assert glob_matcher(glob)(path) == bool(theirs.match(path)), (glob, path)


@pytest.mark.parametrize(
    "glob", ["*a" * 40 + "b", "**/*a" * 12 + "b", "?*" * 40 + "b", "[a-z]*" * 40]
)
def test_the_time_of_a_hostile_glob_is_bounded(glob):
    begin = time.process_time()
    for path in ("a" * 400, "a/" * 200 + "c"):
        glob_matcher(glob)(path)
    assert time.process_time() - begin < 5


@pytest.mark.parametrize("wanted", ["", "1"])
def test_errors_that_libraries_log_and_raise_are_one_line_in_the_log(caplog, monkeypatch, wanted):
    monkeypatch.setenv("BERTJAX_TRACEBACK", wanted)
    addresses.place("gs://bucket/file")
    for name in ("gcsfs", "absl"):
        try:
            raise OSError("503")
        except OSError as error:
            logging.getLogger(name).exception("out of retries on exception: %s", error)
    assert [record.getMessage() for record in caplog.records] == [
        "out of retries on exception: 503"
    ] * 2
    assert all(bool(record.exc_info) == bool(wanted) for record in caplog.records)
