"""Compares training of sentence embeddings with sentence-transformers: scores and time.

    python benchmarks/embeddings.py --model DIR --train STS-B/train.tsv --dev STS-B/dev.tsv

Both sides start from the same weights, see the same scored pairs with the same batch size,
optimizer and number of epochs, regress cosines on scores, and are evaluated by Spearman's
correlation of the cosines of the dev pairs. They run in turns, each in a process of its own; before
the first turn, bertjax runs once, so that the others find its programs in the compilation cache.
`seconds` and `processor_seconds` are those of the training call: in bertjax with loading,
tokenization, checkpoint and written model; in sentence-transformers, whose model is loaded before,
with tokenization. On a busy machine, the processor time on one core (`--core 0`) is what can be
compared. Needs the extra `parity`, sentence-transformers, datasets and accelerate.
"""

import argparse
import csv
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from reporting import parser_of, report

RATE, WARMUP = 2e-5, 0.1
# Flags that both sides get.
SETTINGS = (
    *("model", "train", "dev", "every", "dev_every"),
    *("batch_size", "epochs", "max_length", "core"),
)


def read_pairs(file: Path, every: int = 1) -> list[dict[str, Any]]:
    """Reads the scored pairs of STS-B's official files, or every second, third or so of them."""
    with file.open(encoding="utf-8") as lines:
        rows = csv.DictReader(lines, delimiter="\t", quoting=csv.QUOTE_NONE)
        return [
            {"sentence1": x["sentence1"], "sentence2": x["sentence2"], "score": float(x["score"])}
            for x in rows
        ][::every]


def cosines_beside_scores(embed: Callable[[list[str]], Any], pairs: list[dict[str, Any]]) -> float:
    """Computes Spearman's correlation of the scores and the cosines of pairs of texts."""
    import numpy as np
    from scipy import stats

    vectors = [embed([pair[f"sentence{i}"] for pair in pairs]) for i in (1, 2)]
    first, second = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in vectors)
    scores = [pair["score"] for pair in pairs]
    result: Any = stats.spearmanr(scores, (first * second).sum(1))
    return float(result.statistic)


def elapsed(start: tuple[float, float]) -> dict[str, float]:
    """Returns the wall time and the processor time since `start`."""
    return {
        "seconds": round(time.perf_counter() - start[0], 1),
        "processor_seconds": round(time.process_time() - start[1], 1),
    }


def adamw(rate: float) -> Any:
    """Returns the config of the optimizer and the learning rates of transformers' trainer."""
    from bertjax.config import OptimizerConfig

    return OptimizerConfig(
        recipe="adamw",
        learning_rate=rate,
        schedule="hf",
        warmup_steps=0,
        warmup_proportion=WARMUP,
        weight_decay=0.0,
        eps=1e-8,
    )


def train_bertjax(args: argparse.Namespace, folder: str) -> dict[str, Any]:
    """Trains with bertjax; returns the score and the times."""
    import bertjax
    from bertjax.devices import activity
    from bertjax.record.journal import read_ledger, totals

    train, dev = read_pairs(args.train, args.every), read_pairs(args.dev, args.dev_every)
    before = cosines_beside_scores(bertjax.load_pretrained(args.model).embed, dev)
    start = time.perf_counter(), time.process_time()
    result = bertjax.finetune(
        task="embed",
        train=train,
        dev_fraction=0.0,
        init=args.model,
        workdir=folder,
        batch_size=args.batch_size,
        num_epochs=args.epochs,
        max_length=args.max_length,
        optimizer=adamw(RATE),
        seed=args.seed,
    )
    times = elapsed(start)
    seconds = totals(read_ledger(Path(folder)))
    return {
        "before": before,
        "spearman": cosines_beside_scores(result.model.embed, dev),
        **times,
        "compiling_seconds": seconds[activity.COMPILING],
        "training_seconds": seconds[activity.STEPPING],
    }


def train_sentence_transformers(args: argparse.Namespace, folder: str) -> dict[str, Any]:
    """Trains with sentence-transformers; returns the score and the times."""
    import datasets  # type: ignore[import-not-found]
    import sentence_transformers as library
    from sentence_transformers.sentence_transformer.losses import CosineSimilarityLoss

    train, dev = read_pairs(args.train, args.every), read_pairs(args.dev, args.dev_every)
    highest = max(pair["score"] for pair in train)
    rows = [{**pair, "score": pair["score"] / highest} for pair in train]
    model: Any = library.SentenceTransformer(args.model, device="cpu")
    model.max_seq_length = args.max_length
    settings = library.SentenceTransformerTrainingArguments(
        output_dir=folder,
        num_train_epochs=args.epochs,
        per_device_train_batch_size=args.batch_size,
        learning_rate=RATE,
        warmup_steps=round(WARMUP * args.epochs * len(rows) / args.batch_size),
        seed=args.seed,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
    )
    start = time.perf_counter(), time.process_time()
    trainer = library.SentenceTransformerTrainer(
        model=model,
        args=settings,
        train_dataset=datasets.Dataset.from_list(rows),
        loss=CosineSimilarityLoss(model),
    )
    trainer.train()
    times = elapsed(start)
    return {"spearman": cosines_beside_scores(model.encode, dev), **times}


SIDES = {"bertjax": train_bertjax, "sentence-transformers": train_sentence_transformers}


def in_process(
    file: str, args: argparse.Namespace, names: Sequence[str], **flags: Any
) -> dict[str, Any]:
    """Runs a benchmark in a process of its own; returns the last line of JSON that it prints.

    Its flags are `flags` and those of `args` with these names.
    """
    words = [sys.executable, file]
    for name, value in ({name: getattr(args, name) for name in names} | flags).items():
        words += [] if value is None else [f"--{name}", str(value)]
    done = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads([line for line in done.stdout.splitlines() if line.startswith("{")][-1])


def main() -> None:
    """Prints one line of JSON per side and seed, and appends it to --output."""
    parser = parser_of(__doc__)
    parser.add_argument("--model", required=True, help="a directory of sentence-transformers")
    parser.add_argument("--train", required=True, type=Path)
    parser.add_argument("--dev", required=True, type=Path)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--batch_size", type=int, default=16)
    parser.add_argument("--epochs", type=float, default=1.0)
    parser.add_argument("--max_length", type=int, default=128)
    parser.add_argument("--every", type=int, default=1, help="train on every Nth pair alone")
    parser.add_argument("--dev_every", type=int, default=1, help="evaluate every Nth pair alone")
    parser.add_argument("--core", type=int, help="the one core to compute on; all by default")
    parser.add_argument("--side", choices=SIDES, help="run this side alone, with one seed")
    args = parser.parse_args()
    if args.side:
        args.seed = args.seeds[0]
        if args.core is not None:
            os.sched_setaffinity(0, {args.core})
        with tempfile.TemporaryDirectory() as folder:
            print(json.dumps(SIDES[args.side](args, folder)))
        return
    in_process(__file__, args, SETTINGS, side="bertjax", seeds=args.seeds[0])
    for turn, seed in enumerate(args.seeds):
        for side in list(SIDES)[:: 1 if turn % 2 == 0 else -1]:
            found = in_process(__file__, args, SETTINGS, side=side, seeds=seed)
            found = {"side": side, "seed": seed, **found}
            report(found, args.output, ["torch", "transformers", "sentence-transformers"])


if __name__ == "__main__":
    main()
