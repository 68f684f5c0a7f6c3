"""The code blocks of the documentation run as they stand, in the order of the pages.

A block that is not executed has a comment <!-- not executed: REASON --> on the line before it; on
the page about clusters, commands have tests of their own (test_clusters_page.py). Flags are
appended that make models and runs small, because the last of equal flags counts. Nothing is
downloaded: the Hub is a folder.
"""

import dataclasses
import importlib
import importlib.util
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from bertjax.model import named_config
from bertjax.tokenization import WordPieceTokenizer, load_tokenizer, train_wordpiece
from bertjax.train import experiments as variants
from tests.test_readme import ROOT
from tests.tokenization.test_esm_tokenizer import VOCABULARY

# Pages whose blocks are executed, in this order, in one folder: later pages use what earlier ones
# have written.
PAGES = (
    *(
        "index",
        "pretrain",
        "languages",
        "proteins",
        "continue_pretraining",
        "distillation",
        "finetune",
        "settings",
        "predict",
    ),
    *(
        "embeddings",
        "search",
        "late_interaction",
        "sparse",
        "serving",
        "visualize",
        "weights",
        "python_api",
        "hub",
        "performance",
        "reliability",
    ),
    *("fidelity", "troubleshooting", "read_the_code", "prepared_data"),
    *("command_line", "data_formats", "results", "promises"),
)
COMMAND = "python -m bertjax."
# Guides whose first block makes all files that it needs. Those of pretrain (the quickstart),
# clusters and serving have tests of their own; those of hub and proteins need the Hub.
BEGINNINGS = (
    *("index", "languages", "continue_pretraining", "distillation", "finetune", "predict"),
    *("embeddings", "search", "late_interaction", "sparse", "visualize", "weights"),
    *("python_api", "prepared_data"),
)
NOT_PROGRAMS = {"csv", "json", "jsonl", "text", "bibtex", "toml", "console"}
NOT_PROGRAMS |= {"javascript", "yaml"}  # on the page about serving, with tests of their own


SMALL_MODEL = (
    "--model.num_hidden_layers 4 --model.hidden_size 32 --model.num_attention_heads 2 "
    "--model.intermediate_size 64 --model.vocab_size 120 --dtype float32 --unroll 1"
)
SMALL_PHASE = "--phases.{0}.num_steps 2 --phases.{0}.max_length {1} --phases.{0}.batch_size 8"
SMALL_STEP = f"{SMALL_MODEL} --optimizer.warmup_steps 1"
SMALL_RUN = f"{SMALL_STEP} --eval_rows 8"
SMALL_PHASES = f"{SMALL_PHASE.format(0, 128)} {SMALL_PHASE.format(1, 512)}"
DISTIL = (
    f"{SMALL_RUN} --optimizer.warmup_steps 0 {SMALL_PHASE.format(0, 512)} "
    "--phases.0.accumulation_steps 1 --distillation.teacher my-bert --distillation.layers 0 1 2 3"
)
CONTINUE = "pretrain --config configs/pretrain/continue_pretraining.py"
FINETUNE = "--max_steps 2 --max_length 64 --batch_size 8 --unroll 1"
# The beginning of a command -> the flags that make it small.
SMALL = {
    "train_tokenizer --extend": "--add 20",
    "train_tokenizer": "--vocab_size 120",
    "prepare": "--num_processes 1",
    "pretrain --config configs/pretrain/bert_base.py": f"{SMALL_RUN} {SMALL_PHASES}",
    "pretrain --config bert_tiny --data language-data": (
        f"{SMALL_RUN} {SMALL_PHASE.format(0, 64)} {SMALL_PHASE.format(1, 128)}"
    ),
    f"{CONTINUE} --init bert-base-uncased --data long": (
        f"{SMALL_PHASE.format(0, 1024)} --optimizer.warmup_steps 1 --eval_rows 8 --unroll 1"
    ),
    CONTINUE: (f"{SMALL_PHASE.format(0, 128)} --optimizer.warmup_steps 1 --eval_rows 8 --unroll 1"),
    "pretrain --config configs/pretrain/distilbert.py --data data --workdir distilled": DISTIL,
    "pretrain --config configs/pretrain/distilbert.py --data data --workdir half": (
        f"{DISTIL} --model.num_hidden_layers 2 --distillation.layers 0 3"
    ),
    "pretrain --config configs/pretrain/electra_small.py": (
        f"{SMALL_RUN} {SMALL_PHASE.format(0, 128)}"
    ),
    "pretrain --config configs/pretrain/esm2_8m.py": (
        f"{SMALL_PHASE.format(0, 128)} --optimizer.warmup_steps 1 --eval_rows 8 --unroll 1"
    ),
    "pretrain --config continue_pretraining": "--phases.0.num_steps 2 --optimizer.warmup_steps 1",
    "pretrain --config distilbert --data manual-data": "--phases.0.num_steps 2",
    "finetune --task=rte --init my-bert": f"{FINETUNE} --seeds 2",
    "finetune --task=rte --init distilled": FINETUNE,
    "finetune --task=classify": f"{FINETUNE} --optimizer.learning_rate 1e-3",
    "finetune --task=embed": FINETUNE,
    "finetune --task=colbert": FINETUNE,
    "finetune --task=rerank": f"{FINETUNE} --init my-bert",
    "finetune --task=mrpc": "--max_length 64 --unroll 1",
    "finetune": FINETUNE,
    "benchmark": f"{SMALL_STEP} {SMALL_PHASES} --steps 2",
}
NEEDS = {
    "convert run": "transformers",
    "convert uncased_L": "tensorflow",
    "convert my-bert google": "tensorflow",
    "plan": "libtpu",
}


@dataclasses.dataclass(frozen=True)
class Block:
    """A fenced block of code: its page, line, language, text, and why it is not executed."""

    page: str
    line: int
    language: str
    text: str
    reason: str

    def __str__(self):
        return f"{self.page}:{self.line}"


def blocks(page):
    """The code blocks of a page, a path relative to the checkout."""
    lines = (ROOT / page).read_text(encoding="utf-8").split("\n")
    start = None
    for number, line in enumerate(lines):
        if line.startswith("```") and start is None:
            start = number
        elif line.startswith("```"):
            before = re.fullmatch(r"<!-- not executed: (.*) -->", lines[start - 1])
            text = "\n".join(lines[start + 1 : number])
            reason = before[1] if before else ""
            yield Block(page, start + 1, lines[start].strip("`"), text, reason)
            start = None


def documents():
    """README and all pages of the documentation but that about clusters."""
    pages = [f"docs/{file.name}" for file in sorted((ROOT / "docs").glob("*.md"))]
    return ["README.md", *(page for page in pages if page != "docs/clusters.md")]


def statements(block):
    """The commands of a block for a shell: lines, with their continuations and here-documents."""
    end, statement = "", ""
    for line in block.text.split("\n"):
        statement += line + "\n"
        if not end and (document := re.search(r"<<'(\w+)'$", line)):
            end = document[1]
        elif end == line:
            end = ""
        if not end and not line.endswith("\\"):
            if statement.strip() and not statement.startswith("#"):
                yield statement.strip().replace("\\\n", " ")
            statement = ""


@pytest.mark.parametrize("page", documents())
def test_every_block_is_executed_or_says_why_not(page):
    assert page == "README.md" or page[5:-3] in PAGES, "add the page to PAGES"
    for block in blocks(page):
        assert block.language in {"bash", "python", *NOT_PROGRAMS}, f"{block}: no known language"
        assert block.language not in NOT_PROGRAMS or not block.reason, f"{block}: not a program"


def write_table(path, header, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    separator = "," if path.suffix == ".csv" else "\t"
    path.write_text("".join(separator.join(map(str, row)) + "\n" for row in [header, *rows]))


def write_glue(folder, sentences):
    pairs = list(zip(sentences[:16], sentences[16:32], strict=True))
    quality = ("Quality", "#1 ID", "#2 ID", "#1 String", "#2 String")
    for split in ("train", "dev", "test"):
        labels = ["entailment", "not_entailment"] * 8
        rows = [
            (i, *pair, label) for i, (pair, label) in enumerate(zip(pairs, labels, strict=True))
        ]
        last = None if split != "test" else -1
        header = ("index", "sentence1", "sentence2", "label")[:last]
        write_table(folder / "RTE" / f"{split}.tsv", header, [row[:last] for row in rows])
        rows = [(i % 2, i, i + 100, *pair) for i, pair in enumerate(pairs)]
        if split == "test":
            header = ("index", *quality[1:])
            write_table(folder / "MRPC" / "test.tsv", header, rows)
        else:
            write_table(folder / "MRPC" / f"{split}.tsv", quality, rows)
    header = ("index", "sentence1", "sentence2", "label")
    rows = [(i, *pair, "neutral") for i, pair in enumerate(pairs)]
    write_table(folder / "diagnostic" / "diagnostic.tsv", header, rows)


def write_hub(folder, sentences):
    """Writes Parquet files as the hub has them; returns a function that takes their place."""

    def write(name, rows):
        path = folder / f"{name}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)

    pairs = list(zip(sentences[:16], sentences[16:32], strict=True))
    mnli = [
        {"premise": a, "hypothesis": b, "label": i % 3, "idx": i} for i, (a, b) in enumerate(pairs)
    ]
    rte = [
        {"sentence1": a, "sentence2": b, "label": i % 2, "idx": i} for i, (a, b) in enumerate(pairs)
    ]
    for split in ("train", "validation_matched", "validation_mismatched"):
        write(f"nyu-mll/glue/mnli/{split}-00000-of-00001", mnli)
    for split in ("train", "validation"):
        write(f"nyu-mll/glue/rte/{split}-00000-of-00001", rte)
        tagged = [
            {"tokens": text.split(), "ner_tags": [1] * len(text.split())} for text, _ in pairs
        ]
        write(f"eriktks/conll2003/conll2003/{split}/0000", tagged)
    return lambda repository, **_: str(folder / repository)


def write_files(folder, sentences):
    documents = [" ".join(sentences[i : i + 40]).replace(". ", ".\n") for i in range(0, 400, 40)]
    for name in ("text", "wiki", "books"):
        (folder / name).mkdir(exist_ok=True)
        (folder / name / "a.txt").write_text("\n\n".join(documents * 6))
    for name in ("a", "b"):
        rows = [(text, "yes" if text[0] < "e" else "no") for text in sentences[:24]]
        write_table(folder / f"{name}.csv", ("text", "label"), rows)
    notes = [
        (text, f"p{i % 8}", "ill" if i % 8 < 4 else "well") for i, text in enumerate(sentences[:24])
    ]
    write_table(folder / "notes.csv", ("note", "patient", "label"), notes)
    pairs = list(zip(sentences[:24], sentences[24:48], strict=True))
    write_table(folder / "pairs.csv", ("anchor", "positive"), pairs)
    scored = [(*pair, i % 6) for i, pair in enumerate(pairs)]
    write_table(folder / "scored.csv", ("sentence1", "sentence2", "score"), scored)
    passages = [(a, c, int(b == c)) for a, b in pairs for c in (b, b[::-1])]
    write_table(folder / "passages.csv", ("query", "passage", "label"), passages)
    negatives = [
        {"query": a, "positive": b, "negatives": [b[::-1]], "scores": [3, -1]} for a, b in pairs
    ]
    (folder / "negatives.jsonl").write_text("".join(json.dumps(row) + "\n" for row in negatives))
    candidates = [{"query": a, "candidates": [b, b[::-1]]} for a, b in pairs]
    (folder / "candidates.jsonl").write_text("".join(json.dumps(row) + "\n" for row in candidates))
    triplets = [{"anchor": a, "positive": b, "negatives": [b[::-1]]} for a, b in pairs]
    (folder / "triplets.jsonl").write_text("".join(json.dumps(row) + "\n" for row in triplets))
    write_table(folder / "new.csv", ("text",), [(text,) for text in sentences[:9]])
    write_table(folder / "reviews.csv", ("id", "review"), list(enumerate(sentences[:9])))
    for name in ("texts", "questions"):
        (folder / f"{name}.txt").write_text("\n".join(sentences[:9]) + "\n")
    (folder / "beir" / "qrels").mkdir(parents=True)
    for name in ("corpus", "queries"):
        rows = ({"_id": f"{name[0]}{i}", "text": text} for i, text in enumerate(sentences[:9]))
        lines = "".join(json.dumps(row) + "\n" for row in rows)
        (folder / "beir" / f"{name}.jsonl").write_text(lines)
    judged = [(f"q{i}", f"c{i}", 1) for i in range(9)]
    header = ("query-id", "corpus-id", "score")
    write_table(folder / "beir" / "qrels" / "test.tsv", header, judged)
    for name in ("train.conll", "dev.conll", "valid.txt", "tagged.txt"):
        lines = [
            "".join(f"{word} {'B-X' if word < 'e' else 'O'}\n" for word in text.split())
            for text in sentences[:16]
        ]
        (folder / name).write_text("\n".join(lines))
    answer = {"id": "1", "question": "Who?", "answers": [{"text": "Ann", "answer_start": 0}]}
    content = {"data": [{"paragraphs": [{"context": "Ann left.", "qas": [answer]}]}]}
    (folder / "dev-v1.1.json").write_text(json.dumps(content))
    (folder / "predictions.json").write_text(json.dumps({"1": "Ann"}))
    write_table(folder / "MRPC.tsv", ("index", "prediction"), [(i, i % 2) for i in range(16)])
    write_glue(folder / "glue", sentences)
    shutil.copytree(folder / "glue" / "MRPC", folder / "MRPC")


def write_model(folder, written, tiny_config, vocabulary):
    """Writes a small BERT that reads 512 tokens."""
    config = dataclasses.replace(
        tiny_config,
        vocab_size=len(vocabulary),
        max_position_embeddings=512,
        num_hidden_layers=4,
        num_attention_heads=2,
        intermediate_size=64,
    )
    vocab = {token: number for number, token in enumerate(vocabulary)}
    written(folder, config, "pretraining", WordPieceTokenizer(vocab, do_lower_case=True))


def write_esm(folder, written):
    """Writes a small ESM-2 with the vocabulary of the published ones."""
    tokenizer = folder.with_name("tokenizer")
    tokenizer.mkdir(parents=True)
    (tokenizer / "vocab.txt").write_text("\n".join(VOCABULARY))
    (tokenizer / "tokenizer_config.json").write_text('{"tokenizer_class": "EsmTokenizer"}')
    sizes = {"hidden_size": 32, "num_attention_heads": 4, "intermediate_size": 64}
    config = named_config("esm2-t6-8m", num_hidden_layers=2, **sizes)
    written(folder, config, "masked_lm", load_tokenizer(tokenizer))


@pytest.fixture
def reader(tmp_path, monkeypatch, sentences, written, tiny_config):
    """The folder of a reader who has the files that the pages name; returns the folder."""
    write_files(tmp_path, sentences)
    shutil.copytree(ROOT / "configs", tmp_path / "configs")
    monkeypatch.setattr("huggingface_hub.snapshot_download", write_hub(tmp_path / "hub", sentences))
    monkeypatch.setattr("bertjax.tasks.sources.official.is_prepared", lambda *_: False)
    monkeypatch.setattr(variants, "SWEEP_BATCH_SIZES", (8,))
    monkeypatch.setattr(variants, "SWEEP_LEARNING_RATES", (5e-5, 3e-5))
    monkeypatch.setattr(variants, "SWEEP_EPOCHS", (1,))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run_command(statement):
    """Runs a command of bertjax in this process; returns whether what it needs is installed."""
    program, _, flags = re.sub(r"\s+#\s.*", "", statement).removeprefix(COMMAND).partition(" ")
    command = f"{program} {flags}"
    module = importlib.import_module(f"bertjax.{program}")
    needed = next((package for start, package in NEEDS.items() if command.startswith(start)), "")
    if needed and (needed == "libtpu" or importlib.util.find_spec(needed) is None):
        module.parse(shlex.split(flags))
        return False
    small = next((more for start, more in SMALL.items() if command.startswith(start)), "")
    assert module.main([*shlex.split(flags), *shlex.split(small)]) == 0, command
    return True


def run_shell(statement):
    """Runs what is not a command of bertjax: programs of Python, and tools of the shell."""
    if program := re.fullmatch(r"python - <<'EOF'\n(.*)\nEOF", statement, re.DOTALL):
        exec(program[1], {"__name__": "__main__"})
        return
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = os.environ | {"PATH": path, "PYTHONPATH": str(ROOT)}
    subprocess.run(["bash", "-ec", statement], check=True, timeout=100, env=environment)


def make_configs_small(folder):
    """Configs that programs of a page load have a model and a run of seconds."""
    file = folder / "configs/pretrain/bert_base.py"
    flags = shlex.split(f"--config {file} {SMALL_RUN} {SMALL_PHASES}")
    config, _ = importlib.import_module("bertjax.pretrain").parse(flags)
    file.write_text(f"from bertjax.config import *\n\nconfig = {config!r}\n")


def programs(page):
    """The blocks of a page that are executed."""
    for block in blocks(page):
        if block.language not in NOT_PROGRAMS and not block.reason:
            yield block


def run_block(block, namespace):
    """Runs a block; returns the commands that were only parsed."""
    if block.language == "python":
        exec(compile(block.text, str(block), "exec"), namespace)
        return []
    only_parsed = []
    for statement in statements(block):
        print(f"{block}: {statement}")
        if not statement.startswith(COMMAND):
            run_shell(statement)
        elif not run_command(statement):
            only_parsed.append(statement)
    return only_parsed


def run_blocks(page, reader, make_model):
    """Runs the blocks of a page; returns the commands that were only parsed."""
    only_parsed = []
    namespace: dict[str, object] = {}
    for block in programs(page):
        if "my-bert" in block.text and not (reader / "my-bert").exists():
            make_model(reader / "my-bert")
        if f"{COMMAND}convert run my-bert" in block.text:
            # The stand-in was not written by bertjax, so that no command replaces it.
            shutil.rmtree(reader / "my-bert")
        if "bert_base.py" in block.text and block.language == "python":
            make_configs_small(reader)
        only_parsed += run_block(block, namespace)
    return only_parsed


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.parametrize("page", BEGINNINGS)
def test_a_guide_begins_with_commands_that_need_no_files(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    first = next(programs(f"docs/{page}.md"))
    assert COMMAND in first.text or "bertjax.load_pretrained" in first.text
    assert run_block(first, {}) == []


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.parity
@pytest.mark.parametrize(
    "pages", [[f"docs/{name}.md" for name in PAGES], ["README.md"]], ids=["docs", "readme"]
)
def test_every_block_runs(reader, written, tiny_config, sentences, pages):
    learnt = train_wordpiece(sentences, vocab_size=100).tokens

    def make_model(folder):
        # Distillation needs a teacher with the tokenizer of the data.
        of_data = folder.parent / "tokenizer"
        vocabulary = load_tokenizer(of_data).tokens if of_data.exists() else learnt
        write_model(folder, written, tiny_config, vocabulary)

    write_model(reader / "hub/bert-base-uncased", written, tiny_config, learnt)
    write_esm(reader / "hub/facebook/esm2_t6_8M_UR50D", written)
    parsed = [command for page in pages for command in run_blocks(page, reader, make_model)]
    print("only parsed:", *parsed, sep="\n")
    assert (reader / "answers.csv").read_text().count("\n") == 10
    if "docs/predict.md" in pages:
        assert (reader / "glue.zip").is_file() and (reader / "vectors.parquet").is_file()
