"""python -m bertjax.finetune: a model learns a task (Devlin et al. 2018, 4).

Running the same command again resumes where the last checkpoint stands, bit for bit.
"""

import argparse
import sys
from collections.abc import Sequence

from bertjax import command_line
from bertjax.config import FinetuneConfig, load_config_file
from bertjax.tasks import check_task
from bertjax.training.hooks import Interrupted
from bertjax.training.variants import finetune


def run(config: FinetuneConfig) -> dict[str, dict[str, float]]:
    """Fine-tunes and returns the scores of each run; see `bertjax.training.variants.finetune`."""
    return finetune(config).runs


def parse(argv: Sequence[str] | None = None) -> FinetuneConfig:
    """Reads --task or --config FILE, whose values become the defaults, and all other flags."""
    before = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    before.add_argument("--task")
    before.add_argument("--config")
    first, rest = before.parse_known_args(sys.argv[1:] if argv is None else argv)
    if first.task == "ax":
        raise ValueError("ax has no train split: fine-tune on mnli, then predict with --task ax.")
    if first.task is not None:
        rest = ["--task", first.task, *rest]
        check_task(first.task)
    file = first.config or (first.task and f"configs/finetune/{first.task}.py")
    return command_line.parse(
        FinetuneConfig,
        rest,
        prog="python -m bertjax.finetune",
        description="Fine-tunes a model on a task; the same command again resumes. The defaults "
        "are those of configs/finetune/TASK.py, or of --config FILE.",
        default=load_config_file(file, FinetuneConfig),
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Reads the flags and runs."""
    try:
        return command_line.run_reporting_errors(lambda: run(parse(argv)))
    except Interrupted as interrupted:
        print(f"{interrupted}; run the same command again to go on", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
