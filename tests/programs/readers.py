"""The readers that `fuzz` feeds, and how each reads a file with all that its content leads to."""

import codecs
import dataclasses
import hashlib
import importlib.util
import json
import random
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from charset_normalizer import constant, from_bytes

from bertjax.base.files import naming_read_errors, read_json
from bertjax.config import BertConfig
from bertjax.data import records
from bertjax.data.metadata import open_prepared, shard_paths
from bertjax.data.text.corpus import Corpus, ReadOptions
from bertjax.data.text.sentences import sentences_of
from bertjax.inference.saved_task import with_task
from bertjax.tasks.sources import squad
from bertjax.tasks.sources.conll import read_conll
from bertjax.tasks.sources.glue import GLUE, read_glue_file
from bertjax.tasks.sources.official import ParquetRows
from bertjax.tasks.sources.own_files import count_choices, learn_labels, with_indices
from bertjax.tasks.sources.squad import read_questions
from bertjax.tasks.sources.swag import read_swag
from bertjax.tokenization import load_tokenizer
from bertjax.weights import originals, sentence_transformers
from bertjax.weights.hf import open_hf, open_weights
from bertjax.weights.load import load_model
from bertjax.weights.sentence_transformers import read_sentence_modules
from bertjax.weights.source import usage_of
from bertjax.weights.tf1 import find_tf1, open_tf1
from bertjax.weights.torch_files import open_bin
from tests.programs import seeds
from tests.programs.mutations import mutate_bytes, mutate_json
from tests.tables import read_tables

# The codecs are code, which is not to be imported while readers are watched.
from_bytes("Привет, мир".encode("cp1251"))
for encoding in constant.IANA_SUPPORTED:
    codecs.lookup(encoding)


def _as_is(content: bytes, rng: random.Random) -> bytes:
    return content


@dataclasses.dataclass(frozen=True, kw_only=True)
class Reader:
    """A reader of files.

    Attributes:
        name: the name on the command line.
        file: the name of the file that is fuzzed.
        seeds: returns whole and hostile contents, without what `wrap` adds.
        read: reads the file and everything that its content leads to; returns what it read.
        beside: writes the other files that the reader needs into the folder.
        is_json: whether the structure of JSON is mutated, besides bytes.
        wrap: encloses a content, as in an archive; half of the mutations come before it.
        checked: whether no flipped bit of the file may change what is read.
        folder_named: whether a message may name the folder in place of the file, because several
            files contradict each other.
        weight: number of inputs relative to other readers.
    """

    name: str
    file: str
    seeds: Callable[[], list[bytes]]
    read: Callable[[Path], Any]
    beside: Callable[[Path], Any] = lambda folder: None
    is_json: bool = False
    wrap: Callable[[bytes, random.Random], bytes] = _as_is
    checked: bool = False
    folder_named: bool = False
    weight: float = 30

    def prepare(self, folder: Path) -> Path:
        """Writes the other files into the folder; returns the path of the file to fuzz."""
        self.beside(folder)
        return folder / self.file

    def wrapped(self, content: bytes, rng: random.Random) -> bytes:
        """Returns a file with the content."""
        return self.wrap(content, rng)

    def mutated(self, rng: random.Random, seed: bytes, others: Sequence[bytes]) -> bytes:
        """Returns a file with a mutated content, or a mutated file with the content."""
        inner = self.wrap is _as_is or rng.random() < 0.5
        if not inner:
            return mutate_bytes(rng, self.wrap(seed, rng), others)
        mutate = mutate_json if self.is_json and rng.random() < 0.7 else mutate_bytes
        return self.wrap(mutate(rng, seed, others), rng)


# Text corpora.


def _read_corpus(path: Path) -> Any:
    digest, count = hashlib.sha256(), 0
    corpus = Corpus([str(path)], ReadOptions())
    for document in corpus.documents():
        digest.update(repr(document).encode("utf-8", "surrogatepass"))
        if count < 20 and len(document.text) < 10_000:
            sentences_of(document)
        count += 1
    return count, digest.hexdigest()


def _corpus(name: str, texts: Callable[[], list[bytes]], **fields: Any) -> Reader:
    return Reader(name=name, file=f"input-{name}", seeds=texts, read=_read_corpus, **fields)


# Tokenizers.


def _read_tokenizer(path: Path) -> None:
    tokenizer = load_tokenizer(path.parent)
    tokenizer.encode(["Hello wörld [MASK] 12", "", "\0 x"])
    tokenizer.encode_prompt("word1 [MASK] <mask>", "is a", 8)
    tokenizer.decode([0, tokenizer.mask_token_id])
    assert len(tokenizer.word_starts) == tokenizer.vocab_size and tokenizer.fingerprint


def _tokenizer(name: str, kind: str, file: str, *beside: str, **fields: Any) -> Reader:
    def write_others(folder: Path) -> None:
        for other in beside:
            (folder / other).write_bytes(seeds.tokenizer_files(kind)[other])

    return Reader(
        name=name,
        file=file,
        seeds=lambda: [seeds.tokenizer_files(kind)[file]],
        read=_read_tokenizer,
        beside=write_others,
        folder_named=bool(beside),
        **fields,
    )


# Models.


def _read_original(path: Path) -> int:
    tensors, _ = originals.in_transformers(open_bin(path), {}, path, None)
    return _read_all(tensors)


def _read_all(tensors: Any) -> int:
    return sum(np.asarray(tensors[name]).nbytes for name in tensors)


def _tiny_model(folder: Path) -> None:
    for file in seeds.TINY_BERT.iterdir():
        if file.suffix != ".npz":
            shutil.copy(file, folder)


def _read_model(path: Path) -> None:
    load_model(path.parent, None)


def _read_config(path):
    with naming_read_errors(path):
        return BertConfig.from_dict(read_json(path))


def _read_task(path: Path) -> None:
    global _loaded
    if _loaded is None or _loaded.source.where != path.parent:
        _loaded = load_model(path.parent, "token_classification")._replace(absent=[])
    source = _loaded.source._replace(usage=usage_of(path.parent))
    with_task(_loaded._replace(source=source))


_loaded: Any = None


def _shard_of_model(folder: Path) -> None:
    (folder / "one").write_bytes(seeds.safetensors_header(seeds.headers()[0], random.Random(0)))


def _read_tf1(path: Path) -> None:
    _read_all(open_tf1(path.parent))


def _tf1_beside(folder: Path) -> None:
    (folder / "a.ckpt.data-00000-of-00001").write_bytes(bytes(100))
    (folder / "a.ckpt.index").write_bytes(bytes(100))


def _read_row(path: Path) -> None:
    try:
        records.decode_row(path.read_bytes())
    except ValueError as error:  # the caller knows the shard
        raise ValueError(f"{path}: {error}") from error


def _read_metadata(path: Path) -> None:
    metadata = open_prepared(path.parent)
    assert metadata.max_sequences and metadata.has_sentence_pairs in (True, False)
    for split, summary in metadata.splits.items():
        for length, content in summary.lengths.items():
            shard_paths(path.parent, split, int(length))
            assert content.attended >= 0


def _table(
    name: str, kind: str, suffix: str, files: Callable[[], list[bytes]], **fields: Any
) -> Reader:
    def read(path: Path) -> None:
        source = read_tables(kind, train=path)
        for _ in source.examples("train"):
            pass
        if kind == "choice":
            assert count_choices(with_indices(source)) >= 0
        if kind in ("classify", "tag"):
            learn_labels(source)

    fields["is_json"] = suffix in (".jsonl", ".json")
    return Reader(name=name, file=f"train{suffix}", seeds=files, read=read, **fields)


def _pooling(folder: Path) -> None:
    (folder / "1_Pooling").mkdir(exist_ok=True)
    (folder / "1_Pooling" / "config.json").write_bytes(seeds.POOLING)


def _read_squad(path: Path) -> None:
    source = read_questions({"train": path, "dev": path})
    for split in source.splits:
        for _ in source.examples(split):
            pass


def _read_answers(path: Path) -> None:
    squad._score_files("2.0", path.parent / "gold.json", path)


def _glue(name: str, rows: Sequence[Sequence[str]], header: Sequence[str]) -> Reader:
    def read(path: Path) -> None:
        for split in ("train",) if GLUE[name].no_header else ("train", "test"):
            for _ in read_glue_file(GLUE[name], path, split):
                pass

    files = [seeds.table(header, rows, "\t")]
    return Reader(name=f"glue-{name}", file="train.tsv", seeds=lambda: files, read=read)


def _list_of(read: Callable[[Path], Any]) -> Callable[[Path], None]:
    def read_all(path: Path) -> None:
        for _ in read(path):
            pass

    return read_all


_ALL = (
    _corpus("text", seeds.texts),
    _corpus("json-lines", seeds.json_lines, is_json=True),
    _corpus("wikiextractor", seeds.wiki),
    *(
        _corpus(name, seeds.texts, wrap=compress, checked=True)
        for name, compress in zip(("gz", "bz2", "xz", "zst"), seeds.COMPRESSORS, strict=True)
    ),
    _corpus("tar", seeds.tars, wrap=seeds.with_checksum),
    _corpus("nested", seeds.texts, wrap=seeds.nested, weight=10),
    _corpus("parquet", seeds.parquet),
    _tokenizer("vocab.txt", "wordpiece", "vocab.txt"),
    _tokenizer("tokenizer.json-wordpiece", "wordpiece", "tokenizer.json", is_json=True),
    _tokenizer("tokenizer.json-bpe", "bpe", "tokenizer.json", is_json=True),
    _tokenizer("tokenizer.json-unigram", "unigram", "tokenizer.json", is_json=True),
    _tokenizer("tokenizer_config.json", "wordpiece", "tokenizer_config.json", "vocab.txt",
               "tokenizer.json", is_json=True),
    _tokenizer("vocab.json", "bpe", "vocab.json", "merges.txt", is_json=True),
    _tokenizer("merges.txt", "bpe", "merges.txt", "vocab.json"),
    _tokenizer("dict.txt", "bpe", "dict.txt", "vocab.bpe"),
    _tokenizer("spiece.model", "unigram", "spiece.model"),
    Reader(name="config.json", file="config.json", seeds=seeds.configs, read=_read_model,
           is_json=True, beside=_tiny_model, folder_named=True, weight=1),
    Reader(name="model.safetensors", file="model.safetensors", read=_read_model, weight=1,
           seeds=lambda: [(seeds.TINY_BERT / "model.safetensors").read_bytes()], beside=_tiny_model,
           folder_named=True),
    Reader(name="safetensors-header", file="a.safetensors", seeds=seeds.headers, is_json=True,
           wrap=seeds.safetensors_header, read=lambda path: _read_all(open_weights([path]))),
    Reader(name="safetensors-index", file="model.safetensors.index.json", is_json=True,
           seeds=lambda: [b'{"metadata": {}, "weight_map": {"a": "one", "b": "one"}}',
                          b'{"weight_map": {"a": "/etc/passwd", "b": "../one"}}'],
           beside=_shard_of_model, folder_named=True,
           read=lambda path: _read_all(open_hf(path.parent))),
    Reader(name="bert_config.json", file="bert_config.json", seeds=seeds.configs, is_json=True,
           read=_read_config),
    Reader(name="task.json", file="task.json", seeds=seeds.task_descriptions, read=_read_task,
           is_json=True, beside=_tiny_model, folder_named=True, weight=3),
    Reader(name="bin-zip", file="a.bin", seeds=seeds.pickles, wrap=seeds.zip_bin,
           read=lambda path: _read_all(open_bin(path))),
    Reader(name="bin-fairseq", file="a.pt", seeds=seeds.fairseq_pickles, wrap=seeds.zip_bin,
           read=_read_original),
    Reader(name="bin-legacy", file="a.bin", seeds=seeds.legacy_pickles,
           read=lambda path: _read_all(open_bin(path))),
    Reader(name="tf1-index", file="a.ckpt.index", seeds=lambda: [bytes(100)], read=_read_tf1,
           beside=_tf1_beside, folder_named=True, weight=5),
    Reader(name="tf1-pointer", file="checkpoint", read=lambda path: find_tf1(path.parent),
           seeds=lambda: [b'model_checkpoint_path: "a.ckpt"\n'], beside=_tf1_beside),
    Reader(name="metadata.json", file="metadata.json", seeds=seeds.metadata, read=_read_metadata,
           is_json=True, folder_named=True,
           beside=lambda folder: (folder / "train-16-0").write_bytes(seeds.shards()[0])),
    Reader(name="array_record", file="shard", seeds=seeds.shards, read=records.count_or_none),
    Reader(name="record", file="record", seeds=seeds.row_bytes, read=_read_row),
    _table("csv-classify", "classify", ".csv", seeds.texts_csv),
    _table("tsv-regress", "regress", ".tsv",
           lambda: [seeds.table(("text_a", "text_b", "score"), [("a", "b", "1.5")] * 3, "\t")]),
    _table("jsonl-classify", "classify", ".jsonl",
           lambda: [seeds.json_rows([{"text": w, "label": w[4]} for w in seeds.WORDS[:4]]),
                    seeds.json_rows([{"text": w, "labels": ["a", "b"]} for w in seeds.WORDS[:4]])]),
    _table("jsonl-tag", "tag", ".jsonl",
           lambda: [seeds.json_rows([{"words": ["a", "b"], "tags": ["O", "B-X"]}] * 3)]),
    _table("jsonl-choice", "choice", ".jsonl",
           lambda: [seeds.json_rows([{"text": "t", "choices": ["a", "b"], "label": i % 2}
                                      for i in range(3)])]),
    _table("jsonl-embed", "embed", ".jsonl", lambda: [seeds.json_rows(seeds.PAIRS)]),
    _table("csv-embed", "embed", ".csv", seeds.scored_pairs),
    _table("jsonl-rerank", "rerank", ".jsonl",
           lambda: [seeds.json_rows([{**row, "scores": [2, 0.5, -1]} for row in seeds.PAIRS])]),
    _table("json-array", "classify", ".json",
           lambda: [json.dumps(seeds.ROWS, indent=1).encode(), json.dumps(seeds.ROWS).encode()]),
    *(
        _table(f"csv-{suffix}", "classify", f".csv.{suffix}", seeds.texts_csv, wrap=compress)
        for suffix, compress in zip(("gz", "bz2", "xz", "zst"), seeds.COMPRESSORS, strict=True)
    ),
    _table("parquet-rows", "classify", ".parquet", lambda: [seeds.parquet_rows(seeds.ROWS)]),
    _table("jsonl-entities", "tag", ".jsonl",
           lambda: [seeds.json_rows([{"text": "Anna left.", "entities": [[0, 4, "PER"]]}] * 3)]),
    _table("label-studio", "tag", ".json", seeds.label_studio),
    _table("prodigy", "tag", ".jsonl", seeds.prodigy),
    _table("doccano", "tag", ".jsonl", seeds.doccano),
    _table("brat", "tag", ".ann", seeds.brat,
           beside=lambda folder: (folder / "train.txt").write_text("Anna left.\r\nBob too.\r\n")),
    _table("webanno", "tag", ".tsv", seeds.webanno),
    Reader(name="hub-parquet", file="train-00000-of-00001.parquet",
           seeds=lambda: [seeds.parquet_rows(seeds.ROWS)],
           read=lambda path: ParquetRows([path]).__getitems__(range(9))),
    Reader(name="questions", file="train.jsonl", read=_read_squad, is_json=True,
           seeds=lambda: [seeds.json_rows(seeds.QUESTIONS)]),
    Reader(name="sentence-modules", file="modules.json", is_json=True, folder_named=True,
           seeds=lambda: [seeds.MODULES], beside=_pooling,
           read=lambda path: read_sentence_modules(path.parent)),
    Reader(name="sentence-pooling", file="config.json", is_json=True, folder_named=True,
           seeds=lambda: [seeds.POOLING], beside=lambda folder: None,
           read=lambda path: sentence_transformers.read_pooling(path)),
    Reader(name="squad", file="train.json", seeds=seeds.squads, read=_read_squad, is_json=True),
    Reader(name="squad-predictions", file="predictions.json", read=_read_answers, is_json=True,
           seeds=lambda: [b'{"q1": "a word"}'], folder_named=True,
           beside=lambda folder: (folder / "gold.json").write_bytes(seeds.gold())),
    _glue("cola", [("x", "1", "*", "A text."), ("y", "0", "", "B text.")], ("z", "1", "", "C.")),
    _glue("stsb", seeds.TSV, ("index", "sentence1", "sentence2", "score")),
    _glue("qqp", [("0", "1", "2", "a?", "b?", "1")] * 3,
          ("id", "qid1", "qid2", "question1", "question2", "is_duplicate")),
    Reader(name="conll", file="train.txt", seeds=seeds.conll, read=_list_of(read_conll)),
    Reader(name="swag", file="train.csv", seeds=seeds.swag,
           read=lambda path: _list_of(lambda p: read_swag(p.parent).examples("train"))(path)),
)  # fmt: skip
# Without TensorFlow, no reader of the checkpoints exists.
_ABSENT = () if importlib.util.find_spec("tensorflow") else ("tf1-index",)
READERS = {reader.name: reader for reader in _ALL if reader.name not in _ABSENT}
