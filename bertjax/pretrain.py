"""python -m bertjax.pretrain: masked LM and next sentence prediction (Devlin et al. 2018, 3.1).

Running the same command again resumes where the last checkpoint stands, bit for bit.
"""

import argparse
import sys
from collections.abc import Sequence

from bertjax import command_line
from bertjax.config import PretrainConfig, load_config_file
from bertjax.training.hooks import Interrupted
from bertjax.training.pretraining import export, pretrain


def run(config: PretrainConfig) -> None:
    """Pretrains; the arguments and errors are those of `bertjax.training.pretraining.pretrain`."""
    pretrain(config)


def parse(argv: Sequence[str] | None = None) -> tuple[PretrainConfig, bool]:
    """Reads `--config FILE`, whose values become the defaults, `--export`, and all other flags."""
    before = argparse.ArgumentParser(
        prog="python -m bertjax.pretrain", add_help=False, allow_abbrev=False
    )
    before.add_argument("--config")
    before.add_argument("--export", action="store_true")
    first, rest = before.parse_known_args(sys.argv[1:] if argv is None else argv)
    config = command_line.parse(
        PretrainConfig,
        rest,
        prog="python -m bertjax.pretrain",
        description="Pretrains a BERT; the same command again resumes. Two more flags: "
        "--config FILE sets the defaults of all others; --export writes the model of the newest "
        "checkpoint of --workdir and stops.",
        default=load_config_file(first.config, PretrainConfig),
    )
    return config, first.export


def main(argv: Sequence[str] | None = None) -> int:
    """Reads the flags and runs, or exports."""

    def start() -> None:
        config, only_export = parse(argv)
        export(config.workdir) if only_export else run(config)

    try:
        return command_line.run_reporting_errors(start)
    except Interrupted as interrupted:
        print(f"{interrupted}; run the same command again to go on", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
