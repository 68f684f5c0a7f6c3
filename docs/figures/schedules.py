"""Learning rates of the pretraining recipes and of schedule options, by the trainer's schedules."""

from pathlib import Path

import numpy as np
from figure import COLOURS, main

from bertjax.config import OptimizerConfig, Phase, PretrainConfig, load_config_file
from bertjax.train.optimizer import make_schedule

CONFIGS = Path(__file__).parents[2] / "configs/pretrain"
RECIPES = ("bert_base", "roberta_base", "albert_base", "distilbert")
STEPS = 1000
OPTIONS = {
    "schedule google": (OptimizerConfig(warmup_steps=200), ()),
    "schedule hf": (OptimizerConfig(warmup_steps=200, schedule="hf"), ()),
    "schedule hf, decay_power 0.5": (
        OptimizerConfig(warmup_steps=200, schedule="hf", decay_power=0.5),
        (),
    ),
    "schedule hf, second phase restarts": (
        OptimizerConfig(warmup_steps=100, schedule="hf"),
        (Phase(num_steps=300, max_length=512, batch_size=1, learning_rate_curve="restart"),),
    ),
}


def shares(optimizer: OptimizerConfig, phases: tuple[Phase, ...], end: int) -> list[float]:
    """Returns the learning rate over its peak, at equal distances from step 0 to step `end`."""
    steps = np.linspace(0, end, 201).round().astype(np.int32)
    rates = np.asarray(make_schedule(optimizer, phases)(steps))
    return [round(float(rate) / optimizer.learning_rate, 4) for rate in rates]


def compute() -> dict:
    """Returns the beginning of each recipe, and the whole curve of each option."""
    recipes, options = {}, {}
    for name in RECIPES:
        config = load_config_file(CONFIGS / f"{name}.py", PretrainConfig)
        label = f"{name}: {config.optimizer.learning_rate:g}, {config.num_steps:,} steps"
        recipes[label] = shares(config.optimizer, config.phases, config.num_steps // 10)
    for name, (optimizer, later) in OPTIONS.items():
        first = STEPS - sum(phase.num_steps for phase in later)
        phases = (Phase(num_steps=first, max_length=128, batch_size=1), *later)
        options[name] = shares(optimizer, phases, STEPS)
    return {"recipes": recipes, "options": options}


def draw(figure, data) -> None:
    """Draws one panel for the recipes and one for the options."""
    left, right = figure.subplots(1, 2, sharey=True)
    for axis, curves, end in ((left, data["recipes"], 10), (right, data["options"], 100)):
        for colour, (label, values) in zip(COLOURS, curves.items(), strict=False):
            axis.plot(np.linspace(0, end, len(values)), values, color=colour, label=label)
        axis.set_xlabel("per cent of the steps")
        axis.set_xlim(0, end)
        axis.set_ylim(0, 1.6)
        axis.set_yticks([0, 0.5, 1])
        axis.legend(frameon=False, fontsize=8, loc="upper right")
    left.set_title("The recipes: peak rate and first 10 % of the steps")
    right.set_title("The options, with 20 % (restart: 10 %) warm-up")
    left.set_ylabel("learning rate / peak")


if __name__ == "__main__":
    main("schedules", compute, draw, height=3.2)
