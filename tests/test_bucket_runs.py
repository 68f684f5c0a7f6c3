"""Runs whose data, models and files are in a bucket read what runs on a disk read."""

import dataclasses
import json
import shutil

import fsspec
import jax
import numpy as np
import pytest
from safetensors.numpy import load_file

import bertjax
from bertjax import embed, prepare, pretrain
from bertjax.cloud.copies import local_copy
from bertjax.config import OptimizerConfig, Phase, PretrainConfig
from bertjax.embed import EmbedConfig
from bertjax.tokenization import load_tokenizer
from bertjax.train.pretraining import make_job
from tests import bucket_servers
from tests.bucket_servers import first_with


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """An empty cache of the user; the client libraries keep their files elsewhere."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "bertjax" / "buckets"


@pytest.fixture
def upload(bucket):
    return lambda folder, name: bucket_servers.upload(folder, f"{bucket}/{name}")


@first_with("gs")
def test_pretraining_reads_data_and_model_from_a_bucket(
    upload, prepared, one_layer, tmp_path, cache
):
    config = PretrainConfig(
        data=str(prepared),
        init=str(one_layer),
        phases=(Phase(num_steps=3, max_length=16, batch_size=16),),
        optimizer=OptimizerConfig(warmup_steps=1),
    )
    remote = dataclasses.replace(
        config,
        data=upload(prepared, "data"),
        init=upload(one_layer, "model"),
        data_cache=str(tmp_path / "disk"),
    )
    local, found = (
        make_job(dataclasses.replace(each, workdir=str(tmp_path / "run")))
        for each in (config, remote)
    )
    batches, expected = found.batches(0, 0), local.batches(0, 0)
    for _ in range(3):
        jax.tree.map(np.testing.assert_array_equal, next(batches), next(expected))
    jax.tree.map(np.testing.assert_array_equal, found.initial_params(), local.initial_params())
    assert {path.name for path in (tmp_path / "disk").iterdir()} == {remote.data.partition(":")[0]}
    assert len([*cache.rglob("config.json")]) == 1  # the model is in the user's cache


@first_with("gs")
@pytest.mark.slow
@pytest.mark.exhaustive
def test_finetuning_reads_files_and_model_from_a_bucket(upload, one_layer, sentences, tmp_path):
    files = tmp_path / "files"
    files.mkdir()
    rows = [{"text": text, "label": ["a", "b"][i % 2]} for i, text in enumerate(sentences[:24])]
    (files / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    address, model = upload(files, "files"), upload(one_layer, "model")
    fields = {"task": "classify", "max_steps": 3, "batch_size": 8, "max_length": 16, "unroll": 1}
    results = [
        bertjax.finetune(
            train=f"{folder}/train.jsonl", init=init, workdir=str(tmp_path / name), **fields
        )
        for name, folder, init in (
            ("local", str(files), str(one_layer)),
            ("remote", address, model),
        )
    ]
    assert results[0].scores == results[1].scores
    first, second = (
        load_file(tmp_path / name / "model" / "model.safetensors") for name in ("local", "remote")
    )
    for key, value in first.items():
        np.testing.assert_array_equal(second[key], value)
    vectors = bertjax.load_pretrained(upload(tmp_path / "remote" / "model", "tuned"), None)
    assert vectors.labels == ["a", "b"]


@pytest.mark.slow
@pytest.mark.exhaustive
@first_with("gs")
def test_preparation_reads_text_from_a_bucket(upload, corpus, small_chunks, tmp_path):
    folder = tmp_path / "texts"
    folder.mkdir()
    shutil.copy(corpus / "text.txt", folder)
    local = dataclasses.replace(small_chunks, input=(str(folder),), output=str(tmp_path / "local"))
    remote = dataclasses.replace(
        local, input=(upload(folder, "texts"),), output=str(tmp_path / "remote")
    )
    prepare.run(local)
    prepare.run(remote)
    first, second = (
        {file.name: file.read_bytes() for file in (tmp_path / name).glob("*.array_record")}
        for name in ("local", "remote")
    )
    assert first == second and first


@first_with("gs")
def test_vectors_of_a_file_in_a_bucket(upload, one_layer, sentences, tmp_path):
    folder = tmp_path / "texts"
    folder.mkdir()
    (folder / "a.txt").write_text("\n".join(sentences[:9]) + "\n")
    for name, file in (("local", str(folder)), ("remote", upload(folder, "texts"))):
        config = EmbedConfig(
            model=str(one_layer), input=f"{file}/a.txt", output=str(tmp_path / f"{name}.npy")
        )
        embed.run(config)
    np.testing.assert_array_equal(np.load(tmp_path / "remote.npy"), np.load(tmp_path / "local.npy"))


@first_with("gs")
def test_a_tokenizer_in_a_bucket(upload, one_layer, tokenizer):
    read = load_tokenizer(upload(one_layer, "model"))
    assert read.encode("abc") == tokenizer.encode("abc")


@first_with("gs")
def test_half_copied_data_is_refused(upload, prepared, tmp_path):
    address = upload(prepared, "data")
    copy = local_copy(address)
    fsspec.open(f"{address}/metadata.json").fs.rm(f"{address}/metadata.json")
    config = PretrainConfig(
        data=address,
        workdir=str(tmp_path / "run"),
        phases=(Phase(num_steps=3, max_length=16, batch_size=16),),
    )
    with pytest.raises((ValueError, OSError), match=f"{copy}.*metadata.json|not complete|prepare"):
        pretrain.run(config)
