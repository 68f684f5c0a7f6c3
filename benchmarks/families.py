"""Pretrains a tiny model of each family on the documentation of Python.

    python benchmarks/families.py --workdir W [--steps 200] [--families roberta albert distilbert]

Trains a tokenizer of the family, prepares examples for its objective, and pretrains for 200 steps.
Prints one line of JSON per family: the held-out loss at the first and the last evaluation, the
unigram entropy, and for sentence pairs the accuracy and the share of the majority class. DistilBERT
is trained without a teacher here; see `distillation.py`.
"""

import argparse
from pathlib import Path

from reporting import parser_of, report

from bertjax import prepare, pretrain, train_tokenizer
from bertjax.base.workdir_files import METRICS
from bertjax.config import (
    OptimizerConfig,
    Phase,
    PrepareConfig,
    PretrainConfig,
    TrainTokenizerConfig,
)
from bertjax.data.metadata import open_prepared
from bertjax.model import named_config
from bertjax.record.metrics import read_lines

# Family: released size, kind of tokenizer, objective of the data, further settings of the run.
RECIPES = {
    "bert": ("bert-tiny", "wordpiece", "nsp", {}),
    "roberta": ("roberta-base", "bpe", "full_sentences", {}),
    "albert": ("albert-base-v2", "unigram", "sop", {"max_ngram": 3}),
    "distilbert": ("distilbert-base-uncased", "wordpiece", "mlm", {}),
}
VOCAB_SIZE, LENGTH = 4096, 64


def tiny(size: str):
    """Returns a released architecture, reduced to two layers of 128."""
    embedding = named_config(size).embedding_size and 64
    return named_config(
        size,
        vocab_size=VOCAB_SIZE,
        hidden_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=512,
        embedding_size=embedding,
        initializer_range=0.05,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )


def measure(family: str, workdir: Path, args: argparse.Namespace) -> dict:
    """Pretrains one family; returns its results."""
    size, kind, objective, settings = RECIPES[family]
    tokenizer, data, run = workdir / kind, workdir / f"{family}_data", workdir / f"{family}_run"
    if not (tokenizer / "tokenizer_config.json").is_file():
        train_tokenizer(
            TrainTokenizerConfig(
                input=("pydocs",), kind=kind, vocab_size=VOCAB_SIZE, output=str(tokenizer)
            )
        )
    prepare(
        PrepareConfig(
            input=("pydocs",),
            tokenizer=str(tokenizer),
            output=str(data),
            max_length=(LENGTH,),
            objective=objective,
            eval_fraction=0.03,
        )
    )
    optimizer = OptimizerConfig(
        recipe="adamw",
        learning_rate=args.learning_rate,
        warmup_steps=args.steps // 10,
        schedule="hf",
        b2=0.98,
    )
    pretrain(
        PretrainConfig(
            data=str(data),
            workdir=str(run),
            model=tiny(size),
            phases=(Phase(num_steps=args.steps, max_length=LENGTH, batch_size=args.batch_size),),
            optimizer=optimizer,
            unroll=2,
            log_every=20,
            eval_every=20,
            eval_rows=2_000,
            save_every=args.steps,
            **settings,
        )
    )
    lines = read_lines(run / METRICS).lines
    evaluations = [line for line in lines if "eval/mlm_loss" in line]
    first, last = evaluations[0], evaluations[-1]
    results = {
        "family": family,
        "steps": last["step"],
        "first_loss": first["eval/mlm_loss"],
        "last_loss": last["eval/mlm_loss"],
        "unigram_entropy": last["eval/unigram_entropy"],
    }
    if "eval/nsp_accuracy" in last:
        labels = open_prepared(data).splits["eval"].lengths[str(LENGTH)].labels
        counts = [count for label, count in labels.items() if int(label) >= 0]
        results["pair_accuracy"] = last["eval/nsp_accuracy"]
        results["commoner_answer"] = max(counts) / sum(counts)
    return results


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--workdir", type=Path, required=True)
    parser.add_argument("--families", nargs="+", default=list(RECIPES), choices=RECIPES)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch_size", type=int, default=64)
    parser.add_argument("--learning_rate", type=float, default=2e-3)
    args = parser.parse_args()
    args.workdir.mkdir(parents=True, exist_ok=True)
    for family in args.families:
        report(measure(family, args.workdir, args), args.output)


if __name__ == "__main__":
    main()
