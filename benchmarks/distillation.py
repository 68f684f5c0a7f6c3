"""Compares students trained with and without a teacher for the same time.

    python benchmarks/distillation.py --teacher DIR --data DIR --minutes 30 --student_layers 2

Three students have the same architecture: one distilled and one trained with masked LM only, both
initialised from the same layers of the teacher, and one trained with masked LM only from random
weights. The time per step with and without a teacher is measured in alternating blocks, and each
student trains for as many steps as fit into the minutes, with its learning rate decaying to 0. All
are evaluated on the same held-out rows: masked LM, and the divergence from the teacher at
temperature 1.
"""

import argparse
import dataclasses
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np
from reporting import parser_of, report

from bertjax import pretrain
from bertjax.config import DistillationConfig, OptimizerConfig, Phase, PretrainConfig
from bertjax.devices.compilation import use_compilation_cache
from bertjax.train.distillation import student_of_teacher
from bertjax.train.pretraining import make_job
from bertjax.train.throughput import Subject
from bertjax.weights import LoadedModel, load_model, save_hf

# Number of alternating blocks, and steps per block.
BLOCKS, STEPS_PER_BLOCK = 5, 10
# Numeric fields of `DistillationConfig` that are flags here.
WEIGHT_FIELDS = ("temperature", "soft_targets", "mlm", "cosine")


def base_config(args: argparse.Namespace, teacher: LoadedModel) -> PretrainConfig:
    """Returns the config that the students share; the number of steps is not final."""
    return PretrainConfig(
        data=args.data,
        head="masked_lm",
        model=dataclasses.replace(teacher.config, num_hidden_layers=args.student_layers),
        phases=(
            Phase(
                num_steps=1000,
                max_length=args.max_length,
                batch_size=args.batch_size,
                accumulation_steps=args.accumulation_steps,
            ),
        ),
        optimizer=OptimizerConfig(
            recipe="adamw",
            schedule="hf",
            learning_rate=args.learning_rate,
            warmup_steps=0,
            warmup_proportion=0.05,
            b2=0.98,
            max_grad_norm=5.0,
        ),
        dtype=args.dtype,
        seed=args.seed,
        eval_every=0,
        eval_rows=args.eval_rows,
        save_every=10**9,
        unroll=args.student_layers,
    )


def spread(layers: int, count: int) -> tuple[int, ...]:
    """Returns `count` evenly spaced layers, first and last included: 6 of 12 are 0 2 4 7 9 11."""
    return tuple(int(layer) for layer in np.linspace(0, layers - 1, count).round())


def students(
    base: PretrainConfig, args: argparse.Namespace, folder: Path
) -> dict[str, PretrainConfig]:
    """Returns the three configs; writes the initial model of two of them to a folder."""
    depth = load_model(args.teacher, "encoder").config.num_hidden_layers
    chosen_weights = {name: getattr(args, name) for name in WEIGHT_FIELDS}
    lessons = DistillationConfig(
        teacher=args.teacher, soft_targets_on=args.soft_targets_on, **chosen_weights
    )
    chosen = dataclasses.replace(lessons, layers=spread(depth, args.student_layers))
    taught = dataclasses.replace(base, distillation=chosen, workdir=str(folder / "start"))
    run = make_job(taught)
    start = student_of_teacher(taught, run.program.model)
    save_hf(folder / "start", start.params, start.config, start.tokenizer, head="masked_lm")
    configs = {
        "distilled": dataclasses.replace(base, init=str(folder / "start"), distillation=lessons),
        "mlm_from_layers": dataclasses.replace(base, init=str(folder / "start")),
        "mlm_from_random": base,
    }
    return {
        name: dataclasses.replace(config, workdir=str(folder / name))
        for name, config in configs.items()
    }


def seconds_per_step(configs: dict[str, PretrainConfig]) -> dict[str, float]:
    """Returns medians over blocks, without the first block, which compiles.

    Both students without distillation run the same program, so it is timed once.
    """
    subjects = [Subject(configs[name], 0) for name in ("distilled", "mlm_from_random")]
    blocks = [
        [subject.block(STEPS_PER_BLOCK)["seconds"] for subject in subjects]
        for _ in range(BLOCKS + 1)
    ]
    medians = [statistics.median(times) for times in zip(*blocks[1:], strict=True)]
    return {name: medians[name != "distilled"] for name in configs}


def evaluated(base: PretrainConfig, args: argparse.Namespace, model: str, folder: Path) -> dict:
    """Evaluates a model: held-out masked LM, and its divergence from the teacher."""
    params = load_model(model, "masked_lm")
    lessons = DistillationConfig(teacher=args.teacher, temperature=1.0)
    run = make_job(
        dataclasses.replace(
            base, model=params.config, distillation=lessons, workdir=str(folder / "judge")
        )
    )
    on_devices = jax.device_put(params.params, run.program.state_sharding.params)
    scores = run.evaluate(on_devices, base.phases[0])
    names = {"mlm_loss": "mlm_loss", "kl_to_teacher": "soft_loss", "cosine_loss": "cosine_loss"}
    return {name: round(scores[f"eval/{key}"], 4) for name, key in names.items()}


def compare(args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Trains all three students and returns their steps, seconds and held-out losses."""
    base = base_config(args, load_model(args.teacher, "masked_lm"))
    results: dict[str, Any] = {"teacher": evaluated(base, args, args.teacher, folder)}
    configs = students(base, args, folder)
    seconds = seconds_per_step(configs)
    for name, config in configs.items():
        steps = max(2, round(60 * args.minutes / seconds[name]))
        phase = dataclasses.replace(config.phases[0], num_steps=steps)
        start = time.perf_counter()
        pretrain(dataclasses.replace(config, phases=(phase,)))
        results[name] = {
            "steps": steps,
            "milliseconds_a_step": round(1000 * seconds[name], 1),
            "seconds_with_compilation": round(time.perf_counter() - start, 1),
            **evaluated(base, args, str(folder / name), folder),
        }
    return results


def main() -> None:
    """Prints a line of JSON, and appends it to --output."""
    parser = parser_of(__doc__)
    parser.add_argument("--teacher", required=True, help="model directory with an MLM head")
    parser.add_argument("--data", required=True, help="output of bertjax.prepare")
    parser.add_argument("--minutes", type=float, default=30.0, help="training time of each student")
    parser.add_argument("--student_layers", type=int, default=6)
    parser.add_argument("--max_length", type=int, default=128)
    parser.add_argument("--batch_size", type=int, default=32)
    parser.add_argument("--accumulation_steps", type=int, default=1)
    parser.add_argument("--learning_rate", type=float, default=5e-4)
    parser.add_argument("--soft_targets_on", choices=["all", "masked"], default="all")
    for name in WEIGHT_FIELDS:
        parser.add_argument(f"--{name}", type=float, default=getattr(DistillationConfig, name))
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--eval_rows", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    use_compilation_cache()
    with tempfile.TemporaryDirectory() as folder:
        results = compare(args, Path(folder))
    settings = {k: v for k, v in vars(args).items() if k not in ("teacher", "data", "output")}
    report({"results": results, "settings": settings}, args.output)


if __name__ == "__main__":
    main()
