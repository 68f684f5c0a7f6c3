"""Fine-tunes a model on a task: `python -m bertjax.finetune` (Devlin et al. 2018, 4).

Running the same command again resumes the run from its newest checkpoint, bit for bit.
"""

import dataclasses
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal, overload

from bertjax.base import command_line, signals
from bertjax.config import FinetuneConfig, TrainingConfig, load_config_file
from bertjax.config.config_file import config_summaries
from bertjax.config.finetune_config import GLUE_TASK
from bertjax.devices.activity import Clock

if TYPE_CHECKING:
    from bertjax.train.experiments import FinetuneResult
    from bertjax.train.facts import FinetuningFacts
    from bertjax.train.glue import GlueResult

FEW_SHOT = "few_shot"  # the defaults with --shots

sys.modules[__name__].__class__ = command_line.CallableModule


@overload
def finetune(  # pyright: ignore[reportOverlappingOverload]
    config: None = None, *, task: Literal["glue"], **fields: Any
) -> "GlueResult": ...
@overload
def finetune(config: FinetuneConfig | None = None, **fields: Any) -> "FinetuneResult": ...
def finetune(config: FinetuneConfig | None = None, **fields: Any) -> "FinetuneResult | GlueResult":
    """Fine-tunes a model on a task and returns its scores, its history and the model.

        result = bertjax.finetune(task="classify", train="a.csv", dev=frame)
        result.scores["dev/accuracy"], result.model.predict(["a text"])

        glue = bertjax.finetune(task="glue", init="my-bert", data_dir="glue")
        glue.paper_average, glue.tasks["mnli"].scores

    Args:
        config: the config of the run; None: the defaults in `configs/finetune/TASK.py` or, with the
            field `shots`, in `configs/finetune/few_shot.py`.
        fields: values of fields of `FinetuneConfig` and of options of the task, such as
            temperature of "embed", which replace those in `config`. The fields train, dev and test
            may be pandas DataFrames, dictionaries of columns or lists of dictionaries instead of
            files.

    Returns:
        A `FinetuneResult`; with the task "glue", a `GlueResult` with one `FinetuneResult` per task.

    Raises:
        ValueError: the config cannot be used with the data, the model or the devices, the workdir
            belongs to another run, or the task is unknown.
        TypeError: a name in `fields` is neither a field of `FinetuneConfig` nor an option of the
            task.
    """
    from bertjax.tasks import finetune_config
    from bertjax.tasks.sources.typed_rows import rows_as_files

    def config_of(task: str | None) -> FinetuneConfig:
        base = config or _defaults_of_task(task, few=bool(fields.get("shots")))
        return _with_effect(finetune_config(base, **given), base)

    with rows_as_files(**{split: fields.get(split) for split in ("train", "dev", "test")}) as files:
        given = {**fields, **files}
        whole = config_of(fields.get("task"))
        return _finetune(whole, config_of if config is None else None)


def _finetune(
    config: FinetuneConfig,
    config_of: Callable[[str], FinetuneConfig] | None = None,
    clock: Clock | None = None,
) -> "FinetuneResult | GlueResult":
    """Fine-tunes on one task or on all of GLUE (`config_of` each), also in a cross-validation."""
    from bertjax.train import experiments, glue

    if config.task.lower() == GLUE_TASK:
        return glue.finetune_glue(config, config_of, clock)
    return experiments.finetune(config, clock)


def dry_run(
    config: FinetuneConfig,
    config_of: Callable[[str], FinetuneConfig] | None = None,
    topology: str | None = None,
) -> None:
    """Prints what the runs of a config would do; raises ValueError if one would be refused.

    With a `topology`, the train step of the first run is compiled for its devices.
    """
    from bertjax.train import experiments, glue

    on_first = None
    if topology is not None:
        on_first = _compiles_for(topology)
    configs = [config]
    if config.task.lower() == GLUE_TASK:
        configs = glue.configs_of_tasks(config, config_of).values()
    for each in configs:
        experiments.dry_run(each, on_first)


def _compiles_for(topology: str) -> "Callable[[FinetuneConfig, FinetuningFacts], None]":
    """Returns what compiles the train step of a run for a topology, and prints its plan."""
    from bertjax.planning.compile import describe, plan_finetuning_step
    from bertjax.planning.hardware import get_topology

    devices = get_topology(topology)
    return lambda config, facts: print(describe(plan_finetuning_step(config, facts, devices)))


def run(config: FinetuneConfig) -> dict[str, dict[str, float]]:
    """Fine-tunes a model in one or several runs; returns {name of a run: {split/metric: score}}.

    A single run has the name "", and a run per task of GLUE the name of the task.
    """
    return _finetune(config).runs


def _defaults_of_task(
    task: str | None, file: str | None = None, *, few: bool = False
) -> FinetuneConfig:
    if task is not None:
        from bertjax.tasks import check_task

        task = check_task(task, GLUE_TASK)
        if task == "ax":
            raise ValueError(
                "ax has no train split: fine-tune on mnli, then run bertjax.predict --task ax."
            )
        file = file or f"configs/finetune/{FEW_SHOT if few else task}.py"
    return load_config_file(file, FinetuneConfig)


@dataclasses.dataclass(frozen=True, kw_only=True)
class FinetuneFlags(command_line.ConfigFlags):
    """Flags of `bertjax.finetune` in addition to the fields of `FinetuneConfig`."""

    dry_run: bool = False
    """Print what the runs would do, and stop."""
    topology: str | None = None
    """With --dry_run, devices such as h200:1 to compile the step for; None: none."""

    def __post_init__(self):
        super().__post_init__()
        if not self.dry_run:
            self.refuse_set(("topology",), "without --dry_run", "nothing is planned")


def parse(argv: Sequence[str] | None = None, task: str | None = None) -> FinetuneConfig:
    """Parses command-line flags as `parse_flags`, and returns the config of the run."""
    return parse_flags(argv, task)[0]


def parse_flags(
    argv: Sequence[str] | None = None, task: str | None = None
) -> tuple[FinetuneConfig, FinetuneFlags]:
    """Parses command-line flags; defaults come from --config or from the config file of the task.

    `task` is the task of the defaults; None: --task.

    Raises:
        ValueError: the task is unknown or has no train split.
        SystemExit: as in `command_line.parse`.
    """
    chosen = command_line.value_of("task", argv)
    file, shots = (command_line.value_of(flag, argv) for flag in ("config", "shots"))
    defaults = _defaults_of_task(task or chosen, file, few=shots is not None)
    boxes = [command_line.Box("", FinetuneFlags)]
    if argv is command_line.DECLARED_ONLY:
        from bertjax.tasks.registry import all_options

        boxes += all_options()
    elif chosen or defaults.task:  # help about no task imports none, which takes a second
        from bertjax.tasks.registry import with_task_options

        defaults = with_task_options(dataclasses.replace(defaults, task=chosen or defaults.task))
        boxes.append(command_line.Box(defaults.task, defaults.options))
    hidden = {"options", "lora", "teacher", "tagger"} - {*defaults.options.recipes}
    boxes += command_line.run_boxes("finetune", defaults, TrainingConfig, hidden)

    def hint(flag: str) -> str:
        from bertjax.tasks.registry import belongs_to

        return belongs_to(flag, defaults.task)

    flags, *parsed = command_line.parse_boxes(
        boxes, argv, command="finetune", description=_description(defaults.task), hint=hint
    )
    *options, config = parsed
    if options:
        try:
            config = dataclasses.replace(config, options=options[0])
        except ValueError as error:  # options that the rest of the config excludes
            command_line.refuse(str(error))
    return _with_effect(config, defaults), flags


def _with_effect(config: FinetuneConfig, defaults: FinetuneConfig) -> FinetuneConfig:
    """Returns `config`, unless its number of epochs is hidden by the steps in `defaults`."""
    steps = defaults.max_steps
    if steps is not None and config.max_steps == steps and config.num_epochs != defaults.num_epochs:
        raise ValueError(
            f"num_epochs={config.num_epochs:g} has no effect with max_steps={steps} of the config "
            "file (with --shots, few_shot.py): set max_steps instead, or to None."
        )
    return config


def _description(task: str) -> str:
    """Returns what `--help` says before the flags: the formats of a task, or all tasks."""
    about = (
        "Fine-tunes a model on a task; repeating the command resumes the run. The defaults come "
        "from configs/finetune/TASK.py, or from --config FILE."
    )
    if task:
        from bertjax.tasks.registry import format_help

        return f"{about}\n\n{format_help(task)}".strip()
    lines = [f"{about}\n\nTasks; --task=TASK --help adds their flags:"]
    for name, text in config_summaries(FinetuneConfig):
        if name != FEW_SHOT:
            lines.append(f"  {name:10}{text}")
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    """Parses the command-line flags and runs the fine-tuning; returns the exit status."""

    def command() -> None:
        config, flags = parse_flags(argv)
        if flags.dry_run:
            return dry_run(config, lambda task: parse(argv, task), flags.topology)
        # Each task of GLUE has defaults of its own.
        _finetune(config, lambda task: parse(argv, task), Clock.of_process())

    return signals.run_reporting_errors(
        command,
        "Fine-tuning needs less memory with --accumulation_steps 4 (the results are the same), "
        "--remat full, --dtype bfloat16, or a smaller --max_length, --batch_size or model.",
        trains=True,
    )


if __name__ == "__main__":
    signals.leave(main())
