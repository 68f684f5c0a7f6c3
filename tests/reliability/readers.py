"""The readers that `fuzz` feeds: what each reads, whole files to mutate, and hostile ones."""

import bz2
import dataclasses
import gzip
import hashlib
import importlib.util
import io
import json
import lzma
import os
import random
import shutil
import struct
import tarfile
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import zstandard

from bertjax.config import BertConfig
from bertjax.data import records
from bertjax.data.text.corpus import Corpus, ReadOptions
from bertjax.data.text.documents import sentences_of
from bertjax.inference.saved_task import with_task
from bertjax.tasks.sources import custom, squad
from bertjax.tasks.sources.columns import CustomKind
from bertjax.tasks.sources.conll import read_conll
from bertjax.tasks.sources.glue import GLUE
from bertjax.tasks.sources.glue_files import read_glue_file
from bertjax.tasks.sources.squad import SquadSource
from bertjax.tasks.sources.swag import SwagSource
from bertjax.tokenization import load_tokenizer, train_bpe, train_unigram
from bertjax.weights.hf import SafetensorsFiles, open_hf
from bertjax.weights.load_model import load_model
from bertjax.weights.tf1 import find_tf1, open_tf1
from bertjax.weights.torch_bin import open_bin
from tests.reliability.mutations import mutate_bytes, mutate_json
from tests.weights import test_torch_bin as bins

TINY_BERT = Path(__file__).parents[1] / "golden" / "tiny_bert"
TEXT = "The first sentence is here.\nThe second one, é.\n\nAnother document.\nIt ends here.\n"
WORDS = [f"word{i} is a word of text, and {chr(97 + i % 26)}{i} another." for i in range(60)]


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
    beside: Callable[[Path], None] = lambda folder: None
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


def _read_number_of_documents(path: Path) -> int:
    return _read_corpus(path)[0]


def _lines(rows: Sequence[Any]) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def _texts() -> list[bytes]:
    return [TEXT.encode(), ("\n\n".join(WORDS)).encode(), b"\xef\xbb\xbf" + TEXT.encode() * 5]


def _json_lines() -> list[bytes]:
    rows = [
        {"id": i, "url": "u", "title": "Ham", "text": f"Ham\n\n{w}"} for i, w in enumerate("ab")
    ]
    return [
        _lines([{"text": word} for word in WORDS[:5]]),
        _lines(rows),
        b'{"text": "a \\ud83d b"}\n',
        b'{"text": ' + b"[" * 100_000,
    ]


def _wiki() -> list[bytes]:
    page = '<doc id="{i}" url="u{i}" title="Ham &amp; eggs">\nHam &amp; eggs\n\n{w}\n</doc>\n'
    text = "".join(page.format(i=i, w=word) for i, word in enumerate(WORDS[:6]))
    return [text.encode(), text.replace("</doc>", "").encode(), b'<doc title="' + b"&#" * 50_000]


def tar_of(members: dict[str, bytes], **fields: Any) -> bytes:
    """Returns an archive; `fields` are attributes of its first member."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for i, (name, content) in enumerate(members.items()):
            member = tarfile.TarInfo(name)
            member.size = len(content)
            for field, value in fields.items() if i == 0 else ():
                setattr(member, field, value)
            archive.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def _tars() -> list[bytes]:
    text = TEXT.encode()
    files = {f"a/{name}.txt": text for name in "bcd"}
    return [
        tar_of(files),
        tar_of({"x" * 150: text, "é" * 90: text}),
        tar_of({"../../escape.txt": text, "/etc/absolute.txt": text}),
        tar_of({"link": b"", **files}, type=tarfile.SYMTYPE, linkname="/etc/passwd"),
        tar_of({"hard": b"", **files}, type=tarfile.LNKTYPE, linkname="../../secret"),
        tar_of({"device": b"", **files}, type=tarfile.CHRTYPE),
        tar_of(files, pax_headers={"GNU.sparse.major": "1", "GNU.sparse.realsize": "1" + "0" * 12}),
        tar_of(files, pax_headers={"size": "9" * 18, "path": "p" * 5000}),
    ]


def with_checksum(data: bytes, rng: random.Random) -> bytes:
    """Corrects the checksum of the first header, in half of the cases."""
    if len(data) < 512 or rng.random() < 0.5:
        return data
    total = sum(data[:148]) + 8 * 32 + sum(data[156:512])
    return data[:148] + b"%06o\0 " % (total % (1 << 18)) + data[156:]


def _zst(data: bytes, rng: random.Random) -> bytes:
    return zstandard.ZstdCompressor(write_checksum=True).compress(data)


_COMPRESSORS: tuple[Callable[[bytes, random.Random], bytes], ...] = (
    lambda data, rng: gzip.compress(data, mtime=0),
    lambda data, rng: bz2.compress(data),
    lambda data, rng: lzma.compress(data),
    _zst,
)


def _nested(data: bytes, rng: random.Random) -> bytes:
    for _ in range(rng.choice((1, 2, 3, 5, 9, 30))):
        data = rng.choice((*_COMPRESSORS, lambda data, rng: tar_of({"m": data})))(data, rng)
    return data


def _parquet() -> list[bytes]:
    made = []
    for compression in ("snappy", "zstd", "none"):
        buffer = io.BytesIO()
        table = pyarrow.table({"id": list(range(30)), "text": [*WORDS[:29], None]})
        pyarrow.parquet.write_table(
            table, buffer, row_group_size=10, compression=compression, write_page_checksum=True
        )
        made.append(buffer.getvalue())
    return made


def _corpus(name: str, seeds: Callable[[], list[bytes]], **fields: Any) -> Reader:
    read = fields.pop("read", _read_corpus)
    return Reader(name=name, file=f"input-{name}", seeds=seeds, read=read, **fields)


# Tokenizers.


def _read_tokenizer(path: Path) -> None:
    tokenizer = load_tokenizer(path.parent)
    tokenizer.encode(["Hello wörld [MASK] 12", "", "\0 x"])
    tokenizer.encode_prompt("word1 [MASK] <mask>", "is a", 8)
    tokenizer.decode([0, tokenizer.mask_token_id])
    assert len(tokenizer.word_starts) == tokenizer.vocab_size and tokenizer.fingerprint


def _tokenizer_files(kind: str) -> dict[str, bytes]:
    folder = _scratch()
    if kind == "bpe":
        train_bpe(WORDS, vocab_size=300).save(folder)
    elif kind == "unigram":
        train_unigram(WORDS * 5, vocab_size=90).save(folder)
    else:
        load_tokenizer(TINY_BERT).save(folder)
    files = {file.name: file.read_bytes() for file in folder.iterdir()}
    shutil.rmtree(folder)
    return files


def _scratch() -> Path:
    return Path(tempfile.mkdtemp(prefix="bertjax-fuzz-seeds-"))


def _tokenizer(name: str, kind: str, file: str, *beside: str, **fields: Any) -> Reader:
    def write_others(folder: Path) -> None:
        for other in beside:
            (folder / other).write_bytes(_tokenizer_files(kind)[other])

    return Reader(
        name=name,
        file=file,
        seeds=lambda: [_tokenizer_files(kind)[file]],
        read=_read_tokenizer,
        beside=write_others,
        folder_named=bool(beside),
        **fields,
    )


# Models.


def _read_all(tensors: Any) -> int:
    return sum(np.asarray(tensors[name]).nbytes for name in tensors)


def _tiny_model(folder: Path) -> None:
    for file in TINY_BERT.iterdir():
        if file.suffix != ".npz":
            shutil.copy(file, folder)


def _configs() -> list[bytes]:
    config = json.loads((TINY_BERT / "config.json").read_bytes())
    families = [
        {**config, "model_type": "roberta"},
        {**config, "model_type": "albert", "embedding_size": 8, "num_hidden_groups": 1},
        {"model_type": "distilbert", "dim": 24, "n_layers": 3, "n_heads": 3, "hidden_dim": 40},
        {**config, "num_hidden_layers": 1_000_000},
        {**config, "vocab_size": 2**31 - 1, "hidden_size": 3 * 2**29},
        {**config, "layer_norm_eps": -1, "pad_token_id": -5},
        {**config, "id2label": {"0": "no", "1": "yes"}, "problem_type": "x", "architectures": [7]},
    ]
    return [json.dumps(c).encode() for c in (config, *families)]


def _read_model(path: Path) -> None:
    load_model(path.parent, None)


def _read_task(path: Path) -> None:
    global _loaded
    if _loaded is None or _loaded.source.where != path.parent:
        _loaded = load_model(path.parent, "token_classification")._replace(absent=[])
    with_task(_loaded)


_loaded: Any = None


def _task_descriptions() -> list[bytes]:
    tagger = {"layers": [-1], "join": "concat", "kind": "linear", "size": 8}
    description = {"task": "tag", "label_kind": "tokens", "max_length": 32}
    span = {"task": "qa", "label_kind": "span", "max_length": 32, "doc_stride": 8}
    return [
        json.dumps(content).encode()
        for content in (
            description,
            {**description, "label_kind": "classes", "columns": {"text": "text", "choices": []}},
            {**span, "max_query_length": 8, "max_answer_length": 4, "null_threshold": 0.0},
            {**description, "tagger": tagger},
            {**description, "tagger": {**tagger, "kind": "bilstm", "size": 10**9}},
        )
    ]


def _safetensors_header(data: bytes, rng: random.Random) -> bytes:
    """Puts a header of JSON before the tensors of the tiny model."""
    return struct.pack("<Q", len(data)) + data + bytes(2_000)


def _headers() -> list[bytes]:
    header = {
        "__metadata__": {"format": "pt"},
        "a": {"dtype": "F32", "shape": [10, 20], "data_offsets": [0, 800]},
        "b": {"dtype": "BF16", "shape": [500], "data_offsets": [800, 1800]},
        "c": {"dtype": "I8", "shape": [200], "data_offsets": [1800, 2000]},
    }
    huge = {"a": {"dtype": "F32", "shape": [2**40, 2**40], "data_offsets": [0, 2000]}}
    return [json.dumps(h).encode() for h in (header, huge)]


def _shard_of_model(folder: Path) -> None:
    (folder / "one").write_bytes(_safetensors_header(_headers()[0], random.Random(0)))


def _pickles() -> list[bytes]:
    marker = Path("/nonexistent/bertjax-was-here")
    return [
        bins.program(bins.mapping({"a": bins.tensor(), "b.c": bins.tensor(offset=0)})),
        bins.program(bins.mapping({"state_dict": bins.mapping({"a": bins.tensor()})})),
        *(bins.program(make(marker)) for make in bins.LIVE.values()),
    ]


def _legacy_pickles() -> list[bytes]:
    tensor = bins.mapping({"a": bins.tensor(legacy=True)})
    folder = _scratch()
    whole = bins.write(folder / "a.bin", tensor, legacy=True).read_bytes()
    shutil.rmtree(folder)
    marker = Path("/nonexistent/bertjax-was-here")
    return [whole, *(bins.program(make(marker)) for make in bins.LIVE.values())]


def _zip_bin(body: bytes, rng: random.Random) -> bytes:
    folder = _scratch()
    path = bins.write_zip(folder / "a.bin", body, {"0": bins.SIX.tobytes()})
    content = path.read_bytes()
    shutil.rmtree(folder)
    return content


def _read_tf1(path: Path) -> None:
    _read_all(open_tf1(path.parent))


def _tf1_beside(folder: Path) -> None:
    (folder / "a.ckpt.data-00000-of-00001").write_bytes(bytes(100))
    (folder / "a.ckpt.index").write_bytes(bytes(100))


# Prepared data.


def _row_bytes() -> list[bytes]:
    rng = np.random.default_rng(0)
    made = []
    for high, lengths in ((100, (5,)), (1 << 20, (7, 3)), (60_000, (1,) * 20)):
        ids = rng.integers(0, high, sum(lengths))
        ends = tuple(max(n - 1, 0) for n in lengths)
        labels = (1,) * len(lengths)
        made.append(records.encode_row(records.Row(ids, lengths, ends, labels)))
    return made


def _read_row(path: Path) -> None:
    try:
        records.decode_row(path.read_bytes())
    except ValueError as error:  # the caller knows the shard
        raise ValueError(f"{path}: {error}") from error


def _shards() -> list[bytes]:
    folder = _scratch()
    records.write_shard(folder / "a", _row_bytes() * 4)
    content = (folder / "a").read_bytes()
    shutil.rmtree(folder)
    return [content]


def _metadata() -> list[bytes]:
    length = records.LengthSummary(
        shards=[records.Shard(file="train-16-0", records=12)],
        records=12,
        sequences=12,
        tokens=100,
        labels={"-1": 12},
        random_from_same_document=0,
        length_counts=[0] * 8 + [12],
    )
    summary = records.SplitSummary(
        documents=3,
        sentences=9,
        text_bytes=900,
        text_tokens=100,
        unigram_entropy_nats=1.5,
        lengths={"16": length},
    )
    metadata = records.Metadata(
        settings={"pack": True, "max_sequences": 4},
        inputs=[["a.txt", 900, "0123"]],
        tokenizer_fingerprint="0123",
        vocab_size=100,
        objective="nsp",
        max_lengths=[16],
        chunks=1,
        counts={},
        splits={"train": summary},
    )
    return [metadata.to_json().encode()]


def _read_metadata(path: Path) -> None:
    metadata = records.open_prepared(path.parent)
    assert metadata.max_sequences and metadata.has_sentence_pairs in (True, False)
    for split, summary in metadata.splits.items():
        for length, content in summary.lengths.items():
            records.shard_paths(path.parent, split, int(length))
            assert content.attended >= 0


# Files of tasks.


def _rows(header: Sequence[str], rows: Sequence[Sequence[str]], separator: str) -> bytes:
    return "".join(separator.join(row) + "\n" for row in (header, *rows)).encode()


def _table(name: str, kind: CustomKind, suffix: str, seeds: Callable[[], list[bytes]]) -> Reader:
    def read(path: Path) -> None:
        source = custom.CustomSource(kind, train=path)
        for _ in source.examples("train"):
            pass
        if kind == "choice":
            assert source.num_choices >= 0
        if kind in ("classify", "tag"):
            custom.learn_labels(source)

    is_json = suffix == ".jsonl"
    return Reader(name=name, file=f"train{suffix}", seeds=seeds, read=read, is_json=is_json)


def _texts_csv() -> list[bytes]:
    rows = [(f'"{w}"', "low" if i % 2 else "high") for i, w in enumerate(WORDS[:9])]
    return [_rows(("text", "label"), rows, ","), _rows(("text", "label"), rows, ";")]


def _squads() -> list[bytes]:
    question = {"id": "q1", "question": "What is word1?", "is_impossible": False}
    answers = [{"text": "a word", "answer_start": 9}]
    paragraph = {"context": WORDS[1], "qas": [{**question, "answers": answers}]}
    data = {"version": "2.0", "data": [{"title": "t", "paragraphs": [paragraph] * 2}]}
    return [json.dumps(data).encode()]


def _gold() -> bytes:
    content = json.loads(_squads()[0])
    del content["data"][0]["paragraphs"][1]
    return json.dumps(content).encode()


def _read_squad(path: Path) -> None:
    source = SquadSource({"train": path, "dev": path})
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

    seeds = [_rows(header, rows, "\t")]
    return Reader(name=f"glue-{name}", file="train.tsv", seeds=lambda: seeds, read=read)


def _conll() -> list[bytes]:
    text = "-DOCSTART- -X- O O\n\nEU NNP I-NP I-ORG\nrejects VBZ I-VP O\nGerman JJ I-NP I-MISC\n\n"
    bare = "EU B-ORG\nrejects O\n\nPeter S-PER\n"
    return [text.encode() * 2, bare.encode(), b"one\ntwo\n"]


def _swag() -> list[bytes]:
    header = ("", "sent1", "sent2", "ending0", "ending1", "ending2", "ending3", "label")
    rows = [(str(i), "He sits.", "He", "a", "b", "c", "d", str(i % 4)) for i in range(4)]
    return [_rows(header, rows, ",")]


def _list_of(read: Callable[[Path], Any]) -> Callable[[Path], None]:
    def read_all(path: Path) -> None:
        for _ in read(path):
            pass

    return read_all


_TSV = [("0", "a text", "another", "1"), ("1", "b text", "other", "0")]
_ALL = (
    _corpus("text", _texts),
    _corpus("json-lines", _json_lines, is_json=True),
    _corpus("wikiextractor", _wiki),
    *(
        _corpus(name, _texts, wrap=compress, checked=True)
        for name, compress in zip(("gz", "bz2", "xz", "zst"), _COMPRESSORS, strict=True)
    ),
    _corpus("tar", _tars, wrap=with_checksum),
    _corpus("nested", _texts, wrap=_nested, weight=10),
    _corpus("parquet", _parquet),
    _tokenizer("vocab.txt", "wordpiece", "vocab.txt"),
    _tokenizer("tokenizer.json-wordpiece", "wordpiece", "tokenizer.json", is_json=True),
    _tokenizer("tokenizer.json-bpe", "bpe", "tokenizer.json", is_json=True),
    _tokenizer("tokenizer.json-unigram", "unigram", "tokenizer.json", is_json=True),
    _tokenizer("tokenizer_config.json", "wordpiece", "tokenizer_config.json", "vocab.txt",
               "tokenizer.json", is_json=True),
    _tokenizer("vocab.json", "bpe", "vocab.json", "merges.txt", is_json=True),
    _tokenizer("merges.txt", "bpe", "merges.txt", "vocab.json"),
    _tokenizer("spiece.model", "unigram", "spiece.model"),
    Reader(name="config.json", file="config.json", seeds=_configs, read=_read_model, is_json=True,
           beside=_tiny_model, folder_named=True, weight=1),
    Reader(name="model.safetensors", file="model.safetensors", read=_read_model, weight=1,
           seeds=lambda: [(TINY_BERT / "model.safetensors").read_bytes()], beside=_tiny_model,
           folder_named=True),
    Reader(name="safetensors-header", file="a.safetensors", seeds=_headers, is_json=True,
           wrap=_safetensors_header, read=lambda path: _read_all(SafetensorsFiles([path]))),
    Reader(name="safetensors-index", file="model.safetensors.index.json", is_json=True,
           seeds=lambda: [b'{"metadata": {}, "weight_map": {"a": "one", "b": "one"}}',
                          b'{"weight_map": {"a": "/etc/passwd", "b": "../one"}}'],
           beside=_shard_of_model, folder_named=True,
           read=lambda path: _read_all(open_hf(path.parent))),
    Reader(name="bert_config.json", file="bert_config.json", seeds=_configs, is_json=True,
           read=BertConfig.from_json_file),
    Reader(name="task.json", file="task.json", seeds=_task_descriptions, read=_read_task,
           is_json=True, beside=_tiny_model, folder_named=True, weight=3),
    Reader(name="bin-zip", file="a.bin", seeds=_pickles, wrap=_zip_bin,
           read=lambda path: _read_all(open_bin(path))),
    Reader(name="bin-legacy", file="a.bin", seeds=_legacy_pickles,
           read=lambda path: _read_all(open_bin(path))),
    Reader(name="tf1-index", file="a.ckpt.index", seeds=lambda: [bytes(100)], read=_read_tf1,
           beside=_tf1_beside, folder_named=True, weight=5),
    Reader(name="tf1-pointer", file="checkpoint", read=lambda path: find_tf1(path.parent),
           seeds=lambda: [b'model_checkpoint_path: "a.ckpt"\n'], beside=_tf1_beside),
    Reader(name="metadata.json", file="metadata.json", seeds=_metadata, read=_read_metadata,
           is_json=True, folder_named=True,
           beside=lambda folder: (folder / "train-16-0").write_bytes(_shards()[0]) and None),
    Reader(name="array_record", file="shard", seeds=_shards, read=records.count_records),
    Reader(name="record", file="record", seeds=_row_bytes, read=_read_row),
    _table("csv-classify", "classify", ".csv", _texts_csv),
    _table("tsv-regress", "regress", ".tsv",
           lambda: [_rows(("sentence1", "sentence2", "score"), [("a", "b", "1.5")] * 3, "\t")]),
    _table("jsonl-classify", "classify", ".jsonl",
           lambda: [_lines([{"text": w, "label": str(i % 2)} for i, w in enumerate(WORDS[:4])]),
                    _lines([{"text": w, "labels": ["a", "b"]} for w in WORDS[:4]])]),
    _table("jsonl-tag", "tag", ".jsonl",
           lambda: [_lines([{"words": ["a", "b"], "tags": ["O", "B-X"]}] * 3)]),
    _table("jsonl-choice", "choice", ".jsonl",
           lambda: [_lines([{"text": "t", "choices": ["a", "b"], "label": 1}] * 3)]),
    Reader(name="squad", file="train.json", seeds=_squads, read=_read_squad, is_json=True),
    Reader(name="squad-predictions", file="predictions.json", read=_read_answers, is_json=True,
           seeds=lambda: [b'{"q1": "a word"}'], folder_named=True,
           beside=lambda folder: (folder / "gold.json").write_bytes(_gold()) and None),
    _glue("cola", [("x", "1", "*", "A text."), ("y", "0", "", "B text.")], ("z", "1", "", "C.")),
    _glue("stsb", _TSV, ("index", "sentence1", "sentence2", "score")),
    _glue("qqp", [("0", "1", "2", "a?", "b?", "1")] * 3,
          ("id", "qid1", "qid2", "question1", "question2", "is_duplicate")),
    Reader(name="conll", file="train.txt", seeds=_conll, read=_list_of(read_conll)),
    Reader(name="swag", file="train.csv", seeds=_swag,
           read=lambda path: _list_of(lambda p: SwagSource(p.parent).examples("train"))(path)),
)  # fmt: skip
# Without TensorFlow, no reader of the checkpoints exists.
_ABSENT = () if importlib.util.find_spec("tensorflow") else ("tf1-index",)
READERS = {reader.name: reader for reader in _ALL if reader.name not in _ABSENT}
os.environ.setdefault("JAX_PLATFORMS", "cpu")
