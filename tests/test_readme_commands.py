"""Every command of the README runs, in its order, on small files; those of TPUs are only parsed.

Flags are appended that make models and runs small, because the last of equal flags counts. Nothing
is downloaded: the hub is a folder.
"""

import dataclasses
import importlib
import json
import shlex
import shutil

import pyarrow
import pyarrow.parquet
import pytest

from bertjax.tokenization import load_tokenizer
from bertjax.training import variants
from tests.test_readme import COMMAND, ROOT

pytestmark = [pytest.mark.slow, pytest.mark.exhaustive, pytest.mark.parity]

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
FINETUNE = "--max_steps 2 --max_length 64 --batch_size 8 --unroll 1"
# The beginning of a command -> the flags that make it small.
SMALL = {
    "train_tokenizer": "--vocab_size 120",
    "prepare": "--num_processes 1",
    "pretrain --config configs/pretrain/bert_base.py": f"{SMALL_RUN} {SMALL_PHASES}",
    "pretrain --config configs/pretrain/distilbert.py --data data --workdir distilled": DISTIL,
    "pretrain --config configs/pretrain/distilbert.py --data data --workdir half": (
        f"{DISTIL} --model.num_hidden_layers 2 --distillation.layers 0 3"
    ),
    "finetune --task=rte --init my-bert": f"{FINETUNE} --seeds 2",
    "finetune --task=rte --init distilled": FINETUNE,
    "finetune --task=classify": f"{FINETUNE} --init my-bert --optimizer.learning_rate 1e-3",
    "finetune --task=mrpc": "--max_length 64 --unroll 1 --init my-bert",
    "finetune": f"{FINETUNE} --init my-bert",
    "benchmark": f"{SMALL_STEP} {SMALL_PHASES} --steps 2",
}
NEEDS = {"convert run": "transformers", "convert uncased_L": "tensorflow", "plan": "libtpu"}


def commands():
    """The commands of the README in their order, but a student after its teacher."""
    lines = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    found = [match for line in lines if (match := COMMAND.match(line.strip()))]
    commands = [f"{match[1]} {match[2].split('  #')[0]}".strip() for match in found]
    return sorted(commands, key=lambda command: "--teacher " in command)


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
    write_table(folder / "new.csv", ("text",), [(text,) for text in sentences[:9]])
    write_table(folder / "reviews.csv", ("id", "review"), list(enumerate(sentences[:9])))
    (folder / "texts.txt").write_text("\n".join(sentences[:9]) + "\n")
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


def is_installed(package):
    return importlib.util.find_spec(package) is not None


def test_every_command_runs(tmp_path, monkeypatch, sentences, written, tiny_config):
    write_files(tmp_path, sentences)
    monkeypatch.setattr("huggingface_hub.snapshot_download", write_hub(tmp_path / "hub", sentences))
    monkeypatch.setattr("bertjax.tasks.sources.datasets.is_prepared", lambda *_: False)
    monkeypatch.setattr(variants, "SWEEP_BATCH_SIZES", (8,))
    monkeypatch.setattr(variants, "SWEEP_LEARNING_RATES", (5e-5, 3e-5))
    monkeypatch.setattr(variants, "SWEEP_EPOCHS", (1,))
    monkeypatch.chdir(tmp_path)
    run, skipped = [], []
    for command in commands():
        needed = next(
            (package for start, package in NEEDS.items() if command.startswith(start)), ""
        )
        if needed and (needed == "libtpu" or not is_installed(needed)):
            skipped.append(command)
            continue
        program, _, flags = command.partition(" ")
        if "hf:" in flags or "--push_to_hub" in flags:  # see test_hub_inputs, test_hub_pushes
            importlib.import_module(f"bertjax.{program}").parse(shlex.split(flags))
            continue
        small = next((more for start, more in SMALL.items() if command.startswith(start)), "")
        if "my-bert" in f"{flags} {small}" and not (tmp_path / "my-bert").exists():
            config = dataclasses.replace(
                tiny_config,
                vocab_size=load_tokenizer("tokenizer").vocab_size,
                max_position_embeddings=512,
                num_hidden_layers=4,
                num_attention_heads=2,
                intermediate_size=64,
            )
            written(tmp_path / "my-bert", config, "pretraining", load_tokenizer("tokenizer"))
        main = importlib.import_module(f"bertjax.{program}").main
        assert main([*shlex.split(flags), *shlex.split(small)]) == 0, command
        run.append(command)
    assert len(run) >= 20, skipped
    assert (tmp_path / "answers.csv").read_text().count("\n") == 10
    assert (tmp_path / "glue.zip").is_file() and (tmp_path / "vectors.parquet").is_file()
