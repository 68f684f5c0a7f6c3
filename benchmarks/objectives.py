"""Compares pretraining objectives at equal time: masked LM, ELECTRA's and DeBERTa-v3's.

    python benchmarks/objectives.py --data D --glue GLUE --workdir W --minutes 40

Encoders of one size train on the same rows for equally long: those of bert_tiny.py and
electra_tiny.py in configs/pretrain, and a DeBERTa with half of the layers in its generator and
sharing "gdes". D is prepared with `--objective full_sentences --max_length 64`. Short runs measure
the seconds per step of each, from which the number of steps and so the learning-rate schedule
follow; evaluations and checkpoints come on top, and nothing else may run until the runs of
--minutes begin. Then each, and the BERT with random weights, is fine-tuned on STS-B, SST-2 and CoLA
with some seeds. Prints one line of JSON per contender and task. Repeated, the command continues
where it stopped: W holds the runs.
"""

import argparse
import dataclasses
import itertools
import json
from pathlib import Path
from typing import Any

from reporting import parser_of, report

import bertjax
from bertjax.config import Phase, PretrainConfig, RtdConfig, load_config_file, named_config
from bertjax.pretrain import run
from bertjax.tokenization import load_tokenizer
from bertjax.train.throughput import Subject
from bertjax.weights import init_params, load_model, save_hf

HEAD = "masked_lm"
CONFIGS = Path(__file__).parent.parent / "configs" / "pretrain"
CONTENDERS = {"bert": "bert_tiny.py", "electra": "electra_tiny.py", "deberta": "electra_tiny.py"}
SIZES = (
    *("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size"),
    *("initializer_range", "hidden_dropout_prob", "attention_probs_dropout_prob"),
)
RANDOM = "random weights"
TASKS = {"stsb": {"num_epochs": 4.0}, "sst2": {"max_steps": 1000}, "cola": {"num_epochs": 4.0}}
FINETUNING_RATE = 2e-4
MEASURED = 30  # steps


def write_random_weights(model: str, folder: Path, seed: int) -> None:
    """Writes a model with the same architecture and tokenizer, and random weights."""
    loaded = load_model(model, HEAD)
    params = init_params(loaded.model, seed)
    save_hf(folder, params, loaded.config, loaded.tokenizer, head=HEAD)


def config_of(name: str, args: argparse.Namespace, steps: int, workdir: Path) -> PretrainConfig:
    """Returns the config of a contender's run of so many steps."""
    config = load_config_file(str(CONFIGS / CONTENDERS[name]), PretrainConfig)
    model, rtd = config.model, config.rtd
    if name == "deberta":
        sizes = {field: getattr(model, field) for field in SIZES}
        model = named_config("deberta-v3-small", **sizes)
        rtd = RtdConfig(
            hidden_size=model.hidden_size,
            num_hidden_layers=model.num_hidden_layers // 2,
            sharing="gdes",
        )
    tokenizer = load_tokenizer(args.data)
    rows = -(-tokenizer.vocab_size // 64) * 64
    return dataclasses.replace(
        config,
        data=args.data,
        workdir=str(workdir),
        model=dataclasses.replace(model, vocab_size=rows, pad_token_id=tokenizer.pad_token_id),
        rtd=rtd,
        phases=(Phase(num_steps=steps, max_length=args.max_length, batch_size=args.batch_size),),
        optimizer=dataclasses.replace(config.optimizer, warmup_steps=steps // 10),
        dtype=args.dtype,
        eval_every=max(1, steps // 8),
        eval_rows=500,
        save_every=max(1, steps // 8),
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
