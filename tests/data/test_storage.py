"""Prepared data in a bucket is that of a disk. The bucket is a folder behind gs://."""

import dataclasses
import hashlib
from pathlib import Path

import fsspec
import pytest
from etils.epath import backend, gpath
from fsspec.implementations.dirfs import DirFileSystem
from fsspec.implementations.local import LocalFileSystem

from bertjax import prepare
from bertjax.base import addresses
from bertjax.data.metadata import open_prepared


@pytest.fixture
def bucket(tmp_path, monkeypatch):
    """gs://bucket, as a folder."""
    root = tmp_path / "buckets"

    class Folder(DirFileSystem):
        def __init__(self, **_):
            super().__init__(path=str(root), fs=LocalFileSystem(auto_mkdir=True))

        def _join(self, path):
            if isinstance(path, str):
                path = path.removeprefix("gs://")
            return super()._join(path)

    fsspec.register_implementation("gcs", Folder, clobber=True)
    backend.fsspec_backend._get_filesystem.cache_clear()
    # TensorFlow, where it is installed, would go to the network.
    monkeypatch.setattr(gpath, "_is_tf_installed", lambda: False)
    (root / "bucket").mkdir(parents=True)
    yield root / "bucket"
    backend.fsspec_backend._get_filesystem.cache_clear()


@pytest.fixture
def config(small_chunks):
    return dataclasses.replace(small_chunks, num_processes=1)


def contents(folder: Path) -> dict[str, str]:
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    return {str(f.relative_to(folder)): hashlib.sha256(f.read_bytes()).hexdigest() for f in files}


def test_a_bucket_holds_what_a_disk_would(config, bucket):
    prepare.run(config)
    remote = dataclasses.replace(config, output="gs://bucket/data")
    metadata = prepare.run(remote)
    assert contents(bucket / "data") == contents(Path(config.output))
    assert metadata is not None and metadata.chunks > 2
    # It is known again, and another run's is refused.
    assert open_prepared("gs://bucket/data") == metadata
    assert prepare.run(remote) == metadata
    with pytest.raises(ValueError, match="begun with other settings: seed was 0, now 1"):
        prepare.run(dataclasses.replace(remote, seed=1))


def test_preparation_in_a_bucket_goes_on_and_starts_anew(config, bucket):
    remote = dataclasses.replace(config, output="gs://bucket/data")
    prepare.run(remote)
    before = contents(bucket / "data")
    (bucket / "data" / "metadata.json").unlink()
    (bucket / "data" / "chunks" / "00001.json").unlink()
    prepare.run(remote)
    assert contents(bucket / "data") == before
    prepare.run(dataclasses.replace(remote, seed=1, overwrite=True))
    prepare.run(dataclasses.replace(config, seed=1))
    assert contents(bucket / "data") == contents(Path(config.output))


def test_parts_meet_in_a_bucket(config, bucket):
    prepare.run(config)
    remote = dataclasses.replace(config, output="gs://bucket/data")
    for part in range(3):
        prepare.run(dataclasses.replace(remote, shard=f"{part}/3"))
    written = {k: v for k, v in contents(bucket / "data").items() if not k.startswith("metadata-")}
    assert written == contents(Path(config.output))


def test_places_that_are_not_known_are_refused():
    with pytest.raises(ValueError, match="ftp://host/x: ftp:// is not supported, use gs://, s3://"):
        addresses.place("ftp://host/x")
    with pytest.raises(ImportError, match=r"pip install 'bertjax\[gcs\]'"):
        with addresses.naming_bucket_errors("gs://bucket"):
            raise ImportError("gcsfs")
