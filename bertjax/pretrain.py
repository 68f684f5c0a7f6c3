"""Pretrains an encoder: `python -m bertjax.pretrain` (Devlin et al. 2018, 3.1).

Running the same command again resumes the run from the newest checkpoint, with the same results bit
for bit as without an interruption.
"""

import dataclasses
import sys
from collections.abc import Sequence
from typing import Any

from bertjax.base import command_line, signals
from bertjax.config import PretrainConfig, config_from
from bertjax.config.pretrain_flags import parse_run
from bertjax.devices.activity import Clock

sys.modules[__name__].__class__ = command_line.CallableModule


def pretrain(config: PretrainConfig | None = None, **fields: Any) -> None:
    """Pretrains a model and writes it to the Hugging Face directory `workdir`/model.

    The module `bertjax.pretrain` is callable: `bertjax.pretrain(...)` calls this function.

    Args:
        config: the config of the run, for example
            `load_config_file("configs/pretrain/bert_base.py", PretrainConfig)`; None: the default
            config, which has no data and no phases (parts of a run, each with one row length).
        fields: values of `PretrainConfig` fields, which replace the values in `config`.

    Raises:
        TypeError: a name in `fields` is not a field of `PretrainConfig`.
    """
    run(config_from(PretrainConfig, config, fields))


def run(config: PretrainConfig, clock: Clock | None = None) -> None:
    """Pretrains a model and writes it to `workdir`/model; errors as in `train.pretraining`."""
    from bertjax.train import pretraining

    pretraining.pretrain(config, clock)


def dry_run(config: PretrainConfig) -> None:
    """Prints what the run of a config would do; raises ValueError if it would be refused."""
    from bertjax.train import pretraining

    pretraining.dry_run(config)


def export(workdir: str, push_to_hub: str | None = None, *, hub_private: bool = False) -> None:
    """Writes the model of the newest checkpoint to the Hugging Face directory `workdir`/model.

    It is also uploaded to the branch step-N of `push_to_hub`, a repository OWNER/NAME, if any.
    """
    from bertjax.train import pretraining

    pretraining.export(workdir, push_to_hub, hub_private=hub_private)


@dataclasses.dataclass(frozen=True, kw_only=True)
class PretrainFlags(command_line.ConfigFlags):
    """Flags of `bertjax.pretrain` in addition to the fields of `PretrainConfig`."""

    export: bool = False
    """Write the model of the newest checkpoint in --workdir to WORKDIR/model, without training;
    with --push_to_hub, it is uploaded to the branch step-N."""
    dry_run: bool = False
    """Print what the run would do and what would be refused, without a step and without a file."""

    def __post_init__(self):
        super().__post_init__()
        if self.export:
            self.refuse_set(("dry_run",), "with --export", "it trains nothing")


def parse(argv: Sequence[str] | None = None) -> tuple[PretrainConfig, PretrainFlags]:
    """Parses the command line; returns (config, flags). Flags override the config file --config."""
    return parse_run(
        "pretrain",
        PretrainFlags,
        argv,
        "Pretrains an encoder; repeating the command resumes the run. With --config FILE, --help "
        "all also shows the flags of its phases.",
    )


def main(argv: Sequence[str] | None = None, clock: Clock | None = None) -> int:
    """Parses the flags, and pretrains or exports a model; returns the exit status.

    `clock` counts the time of the run; None: since the process started.
    """

    def start() -> None:
        config, flags = parse(argv)
        if flags.dry_run:
            return dry_run(config)
        if not flags.export:
            return run(config, clock or Clock.of_process())
        export(config.workdir, config.push_to_hub, hub_private=config.hub_private)

    return signals.run_reporting_errors(start, signals.MEMORY_REMEDY, trains=True)


if __name__ == "__main__":
    signals.leave(main())
