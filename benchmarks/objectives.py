"""Compares pretraining objectives at equal time: masked LM, ELECTRA's and DeBERTa-v3's.

    python benchmarks/objectives.py --data D --glue GLUE --workdir W --minutes 40

Encoders of the size of configs/pretrain/bert_tiny.py train on the same rows for equally long: a
BERT by masked LM, an ELECTRA, whose generator has half of the width (as in electra_tiny.py), and a
DeBERTa whose generator has half of the layers, with disentangled embeddings. D is prepared with
`--objective full_sentences --max_length 64`. Short runs measure the seconds per step of each, from
which the number of steps and so the learning-rate schedule follow; evaluations and checkpoints come
on top, and nothing else may run until the runs of --minutes begin. Then each, and the BERT with
random weights, is fine-tuned on STS-B, SST-2 and CoLA with some seeds. Prints one line of JSON per
contender and task. Repeated, the command continues where it stopped: W holds the runs.
"""

import argparse
import itertools
import json
from pathlib import Path
from typing import Any

from pretrained_scores import write_random_weights
from reporting import parser_of, report

import bertjax
from bertjax.config import OptimizerConfig, Phase, PretrainConfig, RtdConfig, named_config
from bertjax.pretrain import run
from bertjax.tokenization import load_tokenizer
from bertjax.train.throughput import Subject

SIZES = {
    "hidden_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 512,
    "embedding_size": None,
    "initializer_range": 0.05,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}
CONTENDERS: dict[str, dict[str, Any]] = {
    "bert": {"model": "bert-tiny", "head": "masked_lm"},
    "electra": {
        "model": "electra-small",
        "head": "rtd",
        "rtd": RtdConfig(hidden_size=64, num_attention_heads=1),
    },
    "deberta": {
        "model": "deberta-v3-small",
        "head": "rtd",
        "rtd": RtdConfig(
            hidden_size=128, num_attention_heads=2, num_hidden_layers=1, sharing="gdes"
        ),
    },
}
RANDOM = "random weights"
TASKS = {"stsb": {"num_epochs": 4.0}, "sst2": {"max_steps": 1000}, "cola": {"num_epochs": 4.0}}
FINETUNING_RATE = 2e-4
MEASURED = 30  # steps


def config_of(name: str, args: argparse.Namespace, steps: int, workdir: Path) -> PretrainConfig:
    """Returns the config of a contender's run of so many steps."""
    contender = CONTENDERS[name]
    tokenizer = load_tokenizer(args.data)
    sizes = SIZES | {"vocab_size": -(-tokenizer.vocab_size // 64) * 64}
    sizes |= {"pad_token_id": tokenizer.pad_token_id}
    return PretrainConfig(
        data=args.data,
        workdir=str(workdir),
        model=named_config(contender["model"], **sizes),
        phases=(Phase(num_steps=steps, max_length=args.max_length, batch_size=args.batch_size),),
        optimizer=OptimizerConfig(
            recipe="adamw",
            schedule="hf",
            learning_rate=args.learning_rate,
            warmup_steps=steps // 10,
            b2=0.98,
        ),
        dtype=args.dtype,
        eval_every=max(1, steps // 8),
        eval_rows=500,
        save_every=max(1, steps // 8),
        log_every=100,
        **{key: contender[key] for key in ("head", "rtd") if key in contender},
    )


def seconds_per_step(config: PretrainConfig) -> float:
    """Measures the steps of a run, after the first two, with their batches."""
    subject = Subject(config, 0)
    subject.block(2)
    return subject.block(MEASURED)["seconds"]


def planned(name: str, args: argparse.Namespace) -> dict[str, Any]:
    """Returns {steps, seconds_per_step} of a contender, measured if no earlier call has."""
    plan = args.workdir / name / "plan.json"
    if not plan.is_file():
        plan.parent.mkdir(parents=True, exist_ok=True)
        seconds = seconds_per_step(config_of(name, args, 1000, plan.parent / "measured"))
        steps = round(60 * args.minutes / seconds)
        plan.write_text(json.dumps({"steps": steps, "seconds_per_step": round(seconds, 4)}))
    return json.loads(plan.read_text())


def pretrained(name: str, steps: int, args: argparse.Namespace) -> tuple[Path, dict[str, Any]]:
    """Trains a contender, or finishes its training; returns its model and what to report of it."""
    workdir = args.workdir / name / "run"
    if not (workdir / "model").is_dir():
        run(config_of(name, args, steps, workdir))
    lines = map(json.loads, (workdir / "metrics.jsonl").read_text().splitlines())
    last = [line for line in lines if "eval/mlm_loss" in line][-1]
    losses = {key: round(x, 4) for key, x in last.items() if key.startswith("eval/")}
    tokens = steps * args.batch_size * args.max_length
    return workdir / "model", {"tokens": tokens, "minutes": args.minutes, **losses}


def main() -> None:
    """Prints one line of JSON per contender and task."""
    parser = parser_of(__doc__)
    parser.add_argument("--data", required=True)
    parser.add_argument("--glue", required=True)
    parser.add_argument("--workdir", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=40.0)
    parser.add_argument("--max_length", type=int, default=64)
    parser.add_argument("--batch_size", type=int, default=32)
    parser.add_argument("--learning_rate", type=float, default=2e-3)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="bfloat16")
    parser.add_argument("--contenders", nargs="+", default=list(CONTENDERS), choices=CONTENDERS)
    args = parser.parse_args()
    plans = {name: planned(name, args) for name in args.contenders}
    models = {name: pretrained(name, plan["steps"], args) for name, plan in plans.items()}
    if "bert" in models:
        folder = args.workdir / RANDOM
        write_random_weights(str(models["bert"][0]), folder, seed=0)
        models[RANDOM] = folder, {}
    for (name, (model, facts)), task in itertools.product(models.items(), TASKS):
        result = bertjax.finetune(
            task=task,
            init=str(model),
            data_dir=args.glue,
            workdir=str(args.workdir / name / task),
            max_length=args.max_length,
            seeds=args.seeds,
            optimizer={"learning_rate": FINETUNING_RATE},
            **TASKS[task],
        )
        scores = {run: dict(values) for run, values in result.runs.items()}
        found = {"contender": name, "task": task, "scores": scores, **plans.get(name, {}), **facts}
        report(found, args.output)


if __name__ == "__main__":
    main()
