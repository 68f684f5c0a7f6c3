"""Trains the model that comes with bertjax: `nice python benchmarks/shipped_model.py WORK`.

Takes about 20 minutes of one CPU core; an interrupted run resumes. The text is the documentation of
Python and of the installed packages, so that nothing is downloaded. The folders of the training are
in WORK. The model, with weights in float16 and its card, replaces bertjax/shipped/tiny.
"""

import itertools
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file, save_file

import bertjax
from bertjax.base.checksums import write_checksums
from bertjax.base.outputs import replacing_folder
from bertjax.data.metadata import open_prepared
from bertjax.weights.hf import CARD, SAFETENSORS

TARGET = Path(bertjax.__file__).parent / "shipped" / "tiny"
CONFIG = "configs/pretrain/tiny_shipped.py"
FILES = ("config.json", "tokenizer.json", "tokenizer_config.json", "vocab.txt")
COMMANDS = """
train_tokenizer --input pydocs --vocab_size 4096 --output {work}/tokenizer
prepare --input pydocs --tokenizer {work}/tokenizer --max_length 64 128 --eval_fraction 0.03 --output {work}/data
pretrain --config {config} --data {work}/data --workdir {work}/run
"""  # noqa: E501
CARD_TEXT = """---
license: apache-2.0
language: en
library_name: transformers
tags:
- bert
---
# bertjax:tiny

A very small BERT for first steps, examples and tests: {layers} layers, hidden size {hidden}, {heads}
attention heads, {parameters:,} parameters, an uncased WordPiece vocabulary of {vocab:,} entries, and
inputs of at most {positions} tokens. It is part of the package bertjax, and has both heads of
pretraining: masked LM and next-sentence prediction.

```bash
bertjax fill_mask --model bertjax:tiny "The file does not [MASK]."
bertjax visualize "The file does not [MASK]."
```

The directory has Hugging Face's format. `config.json` says float32, into which transformers and
bertjax convert the weights, which are stored in float16.

## What it is not good for

It has read little text, and only technical English: docstrings and comments. It knows neither facts
nor other subjects, its vocabulary splits most other words into pieces, and it repeats whatever bias
that documentation has. As a start of a fine-tuning it is far worse than BERT-base; use it to learn how
the tools work, and do not compare results with it.

## How it was made

`nice python benchmarks/shipped_model.py WORK` in the repository repeats it. It runs these commands:

```bash
{commands}
```

The text is `pydocs`: the docstrings and long comments of Python's standard library and of the
packages that bertjax depends on, {train_tokens:,} tokens for training. The packages keep their
licenses; the model contains no file of them. It was trained from random weights in {steps}
with a quarter of the tokens masked, in bfloat16 on one CPU core, with bertjax {version}.

| on {pairs:,} held-out pairs of at most {length} tokens, at the end | |
|---|---|
| masked LM loss (nats) | {mlm_loss:.3f} |
| unigram entropy of the same text, the least loss of a model that ignores context (nats) | {entropy:.3f} |
| masked LM accuracy | {mlm_accuracy:.3f} |
| next-sentence accuracy | {nsp_accuracy:.3f} |
| share of the larger class of pairs | {majority:.3f} |
"""  # noqa: E501


def main(work: str) -> int:
    """Trains the model in the folder `work`, or goes on, and writes it into the package."""
    root = TARGET.parents[2]
    for line in COMMANDS.strip().splitlines():
        words = [
            word.format(work=Path(work).absolute(), config=root / CONFIG) for word in line.split()
        ]
        if words[0] == "train_tokenizer" and (Path(work) / "tokenizer" / "vocab.txt").is_file():
            continue
        done = subprocess.run([sys.executable, "-m", "bertjax", *words], check=False)
        if done.returncode:
            return done.returncode
    write_model(Path(work), TARGET)
    size = sum(file.stat().st_size for file in TARGET.iterdir())
    print(f"{TARGET}: {size:,} bytes")
    return 0


def write_model(work: Path, target: Path) -> None:
    """Writes the model of the run in `work` to `target`, with weights in float16 and a card.

    Raises:
        ValueError: a weight is too large for float16.
    """
    model = work / "run" / "model"
    weights = load_file(model / SAFETENSORS)
    halves = {name: value.astype(np.float16) for name, value in weights.items()}
    too_large = [name for name, value in halves.items() if not np.isfinite(value).all()]
    if too_large:
        raise ValueError(f"{too_large[0]} has values beyond the range of float16: train it again.")
    parameters = sum(value.size for value in weights.values())
    (target / CARD).unlink(missing_ok=True)  # it may have no checksum
    with replacing_folder(target) as beside:
        save_file(halves, beside / SAFETENSORS, metadata={"format": "pt"})
        (beside / SAFETENSORS).chmod(0o644)  # safetensors lets only the owner read it
        for name in FILES:
            (beside / name).write_bytes((model / name).read_bytes())
        text = CARD_TEXT.format(**facts(work), parameters=parameters)
        (beside / CARD).write_text(text, encoding="utf-8")
        write_checksums(beside)


def facts(work: Path) -> dict[str, object]:
    """Returns the values of the card: sizes of the model and the data, and the last metrics."""
    config = json.loads((work / "run" / "model" / "config.json").read_text())
    lines = [json.loads(line) for line in (work / "run" / "metrics.jsonl").open()]
    evaluations = [line for line in lines if "eval/mlm_loss" in line]
    phases = json.loads((work / "run" / "run.json").read_text())["config"]["phases"]
    last, planned = evaluations[-1], sum(phase["num_steps"] for phase in phases)
    # The phase of the last evaluation: the first one that ends with it or later.
    ends = itertools.accumulate(phase["num_steps"] for phase in phases)
    length = next(
        p["max_length"] for p, end in zip(phases, ends, strict=True) if end >= last["step"]
    )
    splits = open_prepared(work / "data").splits
    held_out = splits["eval"].lengths[str(length)]
    stopped = "" if last["step"] == planned else f", of {planned:,} planned ones,"
    return {
        "layers": config["num_hidden_layers"],
        "hidden": config["hidden_size"],
        "heads": config["num_attention_heads"],
        "vocab": config["vocab_size"],
        "positions": config["max_position_embeddings"],
        "commands": "\n".join(
            "bertjax " + line.format(work="WORK", config=CONFIG)
            for line in COMMANDS.strip().splitlines()
        ),
        "train_tokens": splits["train"].text_tokens,
        "steps": f"{last['step']:,} steps{stopped}",
        "version": bertjax.__version__,
        "pairs": held_out.sequences,
        "length": length,
        "majority": max(held_out.labels.values()) / held_out.sequences,
        **{name: last[f"eval/{name}"] for name in ("mlm_loss", "mlm_accuracy", "nsp_accuracy")},
        "entropy": last["eval/unigram_entropy"],
    }


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python benchmarks/shipped_model.py WORK")
    sys.exit(main(sys.argv[1]))
