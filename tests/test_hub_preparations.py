"""A preparation from the Hugging Face Hub that is killed continues with the same commit."""

import io
import json
import subprocess
import sys
import time

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bertjax.prepare import prepare
from tests.hub_server import unique


def shards_of_text(megabytes, shards):
    """{path: content} of a dataset with so much text that does not compress well."""
    rng = np.random.default_rng(0)
    words = np.array(["".join(rng.choice(list("abcdefghij"), 5)) for _ in range(5000)])
    files = {}
    for number in range(shards):
        texts, size = [], 0
        while size < megabytes * 1e6 / shards:
            sentences = rng.choice(words, (40, 8))
            texts.append(" ".join(" ".join(sentence) + "." for sentence in sentences))
            size += len(texts[-1])
        buffer = io.BytesIO()
        pq.write_table(pa.table({"text": texts}), buffer, row_group_size=1000)
        files[f"data/train-{number:05d}-of-{shards:05d}.parquet"] = buffer.getvalue()
    return files


def arguments(name, tokenizer_folder, output, chunk_mb):
    return [
        *("--input", name, "--tokenizer", str(tokenizer_folder), "--output", str(output)),
        *("--max_length", "64", "--num_processes", "1", "--chunk_mb", str(chunk_mb)),
    ]


def contents(folder):
    return {path.name: path.read_bytes() for path in sorted(folder.glob("*.array_record"))}


def local_copy_of(files, folder):
    folder.mkdir()
    for path, content in files.items():
        (folder / path.replace("/", "_")).write_bytes(content)
    return str(folder)


@pytest.mark.slow
def test_a_killed_preparation_goes_on_with_its_commit(hub, tokenizer, tmp_path):
    tokenizer.save(tmp_path / "tokenizer")
    name, files = unique(), shards_of_text(1.2, 3)
    repository = hub.dataset(name, files)
    commit = repository.heads["main"]
    output = tmp_path / "hub"
    flags = arguments(f"hf:{name}", tmp_path / "tokenizer", output, 0.05)
    process = subprocess.Popen([sys.executable, "-m", "bertjax.prepare", *flags])
    deadline = time.monotonic() + 120
    while len(list((output / "chunks").glob("*.json"))) < 2:
        assert process.poll() is None and time.monotonic() < deadline, "it was not interrupted"
        time.sleep(0.01)
    process.kill()
    process.wait()
    assert not (output / "metadata.json").exists()
    # The dataset has changed meanwhile.
    repository.commit("main", dict(list(files.items())[::2]))
    fields = {
        **{"tokenizer": str(tmp_path / "tokenizer"), "max_length": (64,)},
        **{"num_processes": 1, "chunk_mb": 0.05},
    }
    with pytest.raises(ValueError, match=f"begun with other settings.*{commit}"):
        prepare(input=(f"hf:{name}",), output=str(output), **fields)
    prepare(input=(f"hf:{name}@{commit}",), output=str(output), **fields)
    inputs = json.loads((output / "metadata.json").read_text())["inputs"]
    assert [entry[0] for entry in inputs] == [f"hf:{name}@{commit}:default/{p}" for p in files]
    local = local_copy_of(files, tmp_path / "files")
    prepare(input=(local,), output=str(tmp_path / "local"), **fields)
    assert contents(output) == contents(tmp_path / "local") != {}
