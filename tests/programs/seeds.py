"""Whole and hostile files of every format, which `fuzz` mutates."""

import argparse
import bz2
import gzip
import io
import json
import lzma
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

from bertjax.data import records
from bertjax.data.metadata import LengthSummary, Metadata, Shard, SplitSummary
from bertjax.tokenization import load_tokenizer, train_bpe, train_unigram
from tests.rows import encode_row
from tests.weights import test_torch_files as bins

TINY_BERT = Path(__file__).parents[1] / "golden" / "tiny_bert"


TEXT = "The first sentence is here.\nThe second one, é.\n\nAnother document.\nIt ends here.\n"


WORDS = [f"word{i} is a word of text, and {chr(97 + i % 26)}{i} another." for i in range(60)]


def json_rows(rows: Sequence[Any]) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def texts() -> list[bytes]:
    return [TEXT.encode(), ("\n\n".join(WORDS)).encode(), b"\xef\xbb\xbf" + TEXT.encode() * 5]


def json_lines() -> list[bytes]:
    rows = [
        {"id": i, "url": "u", "title": "Ham", "text": f"Ham\n\n{w}"} for i, w in enumerate("ab")
    ]
    return [
        json_rows([{"text": word} for word in WORDS[:5]]),
        json_rows(rows),
        b'{"text": "a \\ud83d b"}\n',
        b'{"text": ' + b"[" * 100_000,
    ]


def wiki() -> list[bytes]:
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


def tars() -> list[bytes]:
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


def zst(data: bytes, rng: random.Random) -> bytes:
    return zstandard.ZstdCompressor(write_checksum=True).compress(data)


COMPRESSORS: tuple[Callable[[bytes, random.Random], bytes], ...] = (
    lambda data, rng: gzip.compress(data, mtime=0),
    lambda data, rng: bz2.compress(data),
    lambda data, rng: lzma.compress(data),
    zst,
)


def nested(data: bytes, rng: random.Random) -> bytes:
    for _ in range(rng.choice((1, 2, 3, 5, 9, 30))):
        data = rng.choice((*COMPRESSORS, lambda data, rng: tar_of({"m": data})))(data, rng)
    return data


def parquet() -> list[bytes]:
    made = []
    for compression in ("snappy", "zstd", "none"):
        buffer = io.BytesIO()
        table = pyarrow.table({"id": list(range(30)), "text": [*WORDS[:29], None]})
        pyarrow.parquet.write_table(
            table, buffer, row_group_size=10, compression=compression, write_page_checksum=True
        )
        made.append(buffer.getvalue())
    return made


ROWS: list[dict[str, Any]] = [{"text": w, "label": w[4]} for w in WORDS[:5]]
QUESTIONS: list[dict[str, Any]] = [
    {
        "id": str(i),
        "question": "Who left?",
        "context": "Anna left.",
        "answers": {"text": ["Anna"][:i], "answer_start": [0][:i]},
    }
    for i in range(2)
]
MODULES = json.dumps(
    [
        {"idx": i, "path": path, "type": f"sentence_transformers.models.{kind}"}
        for i, (path, kind) in enumerate((("", "Transformer"), ("1_Pooling", "Pooling")))
    ]
).encode()
POOLING = b'{"word_embedding_dimension": 8, "pooling_mode_mean_tokens": true}'


def parquet_rows(rows: Sequence[Any]) -> bytes:
    buffer = io.BytesIO()
    table = pyarrow.Table.from_pylist(list(rows))
    features = {"label": {"names": ["0", "1"], "_type": "ClassLabel"}}
    metadata = {"huggingface": json.dumps({"info": {"features": features}})}
    table = table.replace_schema_metadata(metadata)
    pyarrow.parquet.write_table(table, buffer, row_group_size=2, write_page_checksum=True)
    return buffer.getvalue()


def tokenizer_files(kind: str) -> dict[str, bytes]:
    folder = scratch()
    if kind == "bpe":
        tokenizer = train_bpe(WORDS, vocab_size=300)
        tokenizer.save(folder)
        shutil.copy(folder / "merges.txt", folder / "vocab.bpe")
        numbers = range(257 + len(tokenizer.merges))
        (folder / "dict.txt").write_text("".join(f"{number} 9\n" for number in numbers))
    elif kind == "unigram":
        train_unigram(WORDS * 5, vocab_size=90).save(folder)
    else:
        load_tokenizer(TINY_BERT).save(folder)
    files = {file.name: file.read_bytes() for file in folder.iterdir()}
    shutil.rmtree(folder)
    return files


def scratch() -> Path:
    return Path(tempfile.mkdtemp(prefix="bertjax-fuzz-seeds-"))


def configs() -> list[bytes]:
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


def task_descriptions() -> list[bytes]:
    tagger = {"layers": [-1], "join": "concat", "kind": "linear", "size": 768}
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


def safetensors_header(data: bytes, rng: random.Random) -> bytes:
    """Puts a header of JSON before the tensors of the tiny model."""
    return struct.pack("<Q", len(data)) + data + bytes(2_000)


def headers() -> list[bytes]:
    header = {
        "__metadata__": {"format": "pt"},
        "a": {"dtype": "F32", "shape": [10, 20], "data_offsets": [0, 800]},
        "b": {"dtype": "BF16", "shape": [500], "data_offsets": [800, 1800]},
        "c": {"dtype": "I8", "shape": [200], "data_offsets": [1800, 2000]},
    }
    huge = {"a": {"dtype": "F32", "shape": [2**40, 2**40], "data_offsets": [0, 2000]}}
    return [json.dumps(h).encode() for h in (header, huge)]


def pickles() -> list[bytes]:
    marker = Path("/nonexistent/bertjax-was-here")
    return [
        bins.program(bins.mapping({"a": bins.tensor(), "b.c": bins.tensor(offset=0)})),
        bins.program(bins.mapping({"state_dict": bins.mapping({"a": bins.tensor()})})),
        *(bins.program(make(marker)) for make in bins.LIVE.values()),
    ]


def fairseq_pickles() -> list[bytes]:
    layer = "encoder.sentence_encoder.layers.0.self_attn.in_proj_weight"
    words = "encoder.sentence_encoder.embed_tokens.weight"
    heads = {f"classification_heads.a.{x}.weight": bins.tensor() for x in ("dense", "out_proj")}
    model = bins.mapping({words: bins.tensor(), layer: bins.tensor(), **heads})
    settings = {"encoder_attention_heads": 1, "max_positions": 32, "quant_noise_pq": 0, "arch": "a"}
    args = bins.pickled(argparse.Namespace(**settings))
    cfg = bins.mapping({"model": args, "common": bins.pickled(settings)})
    files = [{"args": args, "model": model}, {"args": b"N", "cfg": cfg, "model": model}]
    return [bins.program(bins.mapping(file)) for file in files]


def legacy_pickles() -> list[bytes]:
    tensor = bins.mapping({"a": bins.tensor(legacy=True)})
    folder = scratch()
    whole = bins.write(folder / "a.bin", tensor, legacy=True).read_bytes()
    shutil.rmtree(folder)
    marker = Path("/nonexistent/bertjax-was-here")
    return [whole, *(bins.program(make(marker)) for make in bins.LIVE.values())]


def zip_bin(body: bytes, rng: random.Random) -> bytes:
    folder = scratch()
    path = bins.write_zip(folder / "a.bin", body, {"0": bins.SIX.tobytes()})
    content = path.read_bytes()
    shutil.rmtree(folder)
    return content


def row_bytes() -> list[bytes]:
    rng = np.random.default_rng(0)
    made = []
    for high, lengths in ((100, (5,)), (1 << 20, (7, 3)), (60_000, (1,) * 20)):
        ids = rng.integers(0, high, sum(lengths))
        ends = tuple(max(n - 1, 0) for n in lengths)
        labels = (1,) * len(lengths)
        made.append(encode_row(records.Row(ids, lengths, ends, labels)))
    return made


def shards() -> list[bytes]:
    folder = scratch()
    records.write_shard(folder / "a", row_bytes() * 4)
    content = (folder / "a").read_bytes()
    shutil.rmtree(folder)
    return [content]


def metadata() -> list[bytes]:
    length = LengthSummary(
        shards=[Shard(file="train-16-0", records=12)],
        records=12,
        sequences=12,
        tokens=100,
        labels={"-1": 12},
        random_from_same_document=0,
        length_counts=[0] * 8 + [12],
    )
    summary = SplitSummary(
        documents=3,
        sentences=9,
        text_bytes=900,
        text_tokens=100,
        unigram_entropy_nats=1.5,
        lengths={"16": length},
    )
    metadata = Metadata(
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


def table(header: Sequence[str], rows: Sequence[Sequence[str]], separator: str) -> bytes:
    return "".join(separator.join(row) + "\n" for row in (header, *rows)).encode()


def texts_csv() -> list[bytes]:
    rows = [(f'"{w}"', "low" if i % 2 else "high") for i, w in enumerate(WORDS[:9])]
    return [table(("text", "label"), rows, ","), table(("text", "label"), rows, ";")]


PAIRS = [{"anchor": w, "positive": w[::-1], "negatives": ["no", w + "x"]} for w in WORDS[:9]]


def scored_pairs() -> list[bytes]:
    rows = [(f'"{w}"', f'"{w[::-1]}"', str(i / 2)) for i, w in enumerate(WORDS[:9])]
    return [table(("sentence1", "sentence2", "score"), rows, ",")]


def squads() -> list[bytes]:
    question = {"id": "q1", "question": "What is word1?", "is_impossible": False}
    answers = [{"text": "a word", "answer_start": 9}]
    paragraph = {"context": WORDS[1], "qas": [{**question, "answers": answers}]}
    data = {"version": "2.0", "data": [{"title": "t", "paragraphs": [paragraph] * 2}]}
    return [json.dumps(data).encode()]


def gold() -> bytes:
    content = json.loads(squads()[0])
    del content["data"][0]["paragraphs"][1]
    return json.dumps(content).encode()


def conll() -> list[bytes]:
    text = "-DOCSTART- -X- O O\n\nEU NNP I-NP I-ORG\nrejects VBZ I-VP O\nGerman JJ I-NP I-MISC\n\n"
    bare = "EU B-ORG\nrejects O\n\nPeter S-PER\n"
    return [text.encode() * 2, bare.encode(), b"one\ntwo\n"]


def label_studio() -> list[bytes]:
    value = {"start": 0, "end": 4, "text": "Anna", "labels": ["PER"]}
    result = {"from_name": "label", "to_name": "text", "type": "labels", "value": value}
    annotations = [{"id": 1, "was_cancelled": False, "result": [result]}]
    tasks = [{"id": i, "data": {"text": "Anna left."}, "annotations": annotations} for i in (1, 2)]
    flat = {"text": "Anna left.", "id": 1, "label": [value], "annotator": 1, "annotation_id": 2}
    return [json.dumps(tasks).encode(), json.dumps([flat, {**flat, "id": 3}]).encode()]


def prodigy() -> list[bytes]:
    span = {"start": 0, "end": 4, "label": "PER", "token_start": 0, "token_end": 0}
    row = {"text": "Anna left.", "spans": [span], "answer": "accept", "_task_hash": 1}
    return [json_rows([row, {**row, "answer": "reject"}, row])]


def doccano() -> list[bytes]:
    row = {"id": 1, "text": "Anna left.", "label": [[0, 4, "PER"]], "Comments": []}
    entity = {"id": 1, "label": "PER", "start_offset": 0, "end_offset": 4}
    related = {"id": 2, "text": "Anna left.", "entities": [entity], "relations": []}
    return [json_rows([row] * 3), json_rows([related] * 3)]


def brat() -> list[bytes]:
    text = "T1\tPER 0 4\tAnna\nT2\tPER 12 15\tBob\nR1\tknows Arg1:T1 Arg2:T2\n#1\tNote T1\ta\n"
    return [text.encode()]


def webanno() -> list[bytes]:
    lines = [
        "#FORMAT=WebAnno TSV 3.3",
        "#T_SP=de.tudarmstadt.ukp.dkpro.core.api.ner.type.NamedEntity|identifier|value",
        "", "", "#Text=Anna Lee left.",
        "1-1\t0-4\tAnna\t*[1]\tPER[1]\t", "1-2\t5-8\tLee\t*[1]\tPER[1]\t",
        "1-3\t9-13\tleft\t_\t_\t", "1-4\t13-14\t.\t_\t_\t", "",
    ]  # fmt: skip
    return ["\n".join(lines).encode()]


def swag() -> list[bytes]:
    header = ("", "sent1", "sent2", "ending0", "ending1", "ending2", "ending3", "label")
    rows = [(str(i), "He sits.", "He", "a", "b", "c", "d", str(i % 4)) for i in range(4)]
    return [table(header, rows, ",")]


TSV = [("0", "a text", "another", "1"), ("1", "b text", "other", "0")]
