"""Small models of every kind that is served."""

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

import bertjax
from bertjax.inference import predictor
from bertjax.weights import load_model, save_hf
from bertjax.weights.sentence_transformers import Read
from bertjax.weights.sparse_modules import NO_FILES, SparseModules, sparse_files

PROMPTS = {"query": "abc de: ", "document": "", "other": "fgh: "}


@contextlib.contextmanager
def few_shapes() -> Iterator[None]:
    """Half of the usual shapes of batches, as a server compiles all of them when it starts."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(predictor, "SMALLEST_ROW", 32)
        patch.setattr(predictor, "TOKENS_ON_CPU", 256)
        yield


def write_models(folder: Path, one_layer: Path | str) -> dict[str, Path]:
    """Writes models with the encoder of `one_layer`; returns {kind: directory}."""
    directories = {name: folder / name for name in ("dense", "sparse", "tokens", "rank", "class")}
    bertjax.load_pretrained(one_layer, head=None).save(directories["dense"])
    files = {
        "modules.json": [
            {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
            for i, (path, kind) in enumerate((("", "Transformer"), ("1_Pooling", "Pooling")))
        ],
        "1_Pooling/config.json": {"pooling_mode_cls_token": True},
        "sentence_bert_config.json": {"max_seq_length": 40},
        "config_sentence_transformers.json": {"prompts": PROMPTS},
    }
    (directories["dense"] / "1_Pooling").mkdir()
    for name, content in files.items():
        (directories["dense"] / name).write_text(json.dumps(content))
    loaded = load_model(one_layer, "sparse", head_fields={"static_queries": True})
    read = Read(NO_FILES._replace(sparse=SparseModules(max_active_dims=30)))
    save_hf(
        directories["sparse"],
        loaded.params,
        loaded.config,
        loaded.tokenizer,
        head="sparse",
        files=sparse_files(loaded.model, loaded.params, 30, read, loaded.tokenizer),
    )
    bertjax.load_pretrained(one_layer, head="late_interaction").save(directories["tokens"])
    for name, count in (("rank", 1), ("class", 3)):
        model = bertjax.load_pretrained(one_layer, "sequence_classification", num_labels=count)
        model.save(directories[name])
    return directories


def write_tagger(directory: Path, one_layer: Path) -> Path:
    """Writes a tagger of persons and places."""
    labels = ("O", "B-PER", "I-PER", "B-LOC", "I-LOC")
    model = bertjax.load_pretrained(one_layer, "token_classification", num_labels=len(labels))
    model.save(directory)
    config = json.loads((directory / "config.json").read_text())
    config["id2label"] = dict(enumerate(labels))
    config["label2id"] = {label: index for index, label in enumerate(labels)}
    (directory / "config.json").write_text(json.dumps(config))
    (directory / "checksums.json").unlink()
    return directory
