"""Pretrains an encoder: `python -m bertjax.pretrain` (Devlin et al. 2018, 3.1).

The same command again resumes from the newest checkpoint, bit for bit.
"""

import dataclasses
import sys
from collections.abc import Sequence
from typing import Any, ClassVar

from bertjax import command_line
from bertjax.config import PretrainConfig, config_from, load_config_file

sys.modules[__name__].__class__ = command_line.CallableModule


def pretrain(config: PretrainConfig | None = None, **fields: Any) -> None:
    """`bertjax.pretrain(...)`: pretrains a model; see `bertjax.training.pretraining.pretrain`.

    Args:
        config: the run, for example `load_config_file("configs/pretrain/bert_base.py",
            PretrainConfig)`.
        fields: fields of `PretrainConfig`, in place of those of `config`.

    Raises:
        TypeError: there is no such field.
    """
    run(config_from(PretrainConfig, config, fields))


def run(config: PretrainConfig) -> None:
    """Pretrains; the arguments and errors are those of `bertjax.training.pretraining.pretrain`."""
    from bertjax.training import pretraining

    pretraining.pretrain(config)


def export(workdir: str) -> None:
    """Writes the model of the newest checkpoint; see `bertjax.training.pretraining.export`."""
    from bertjax.training import pretraining

    pretraining.export(workdir)


@dataclasses.dataclass(frozen=True, kw_only=True)
class PretrainFlags(command_line.ConfigFlags):
    """Flags besides the config of the run."""

    GROUPS: ClassVar[dict[str, str]] = {"output": "export"}

    export: bool = False
    """Write the model of the newest checkpoint of --workdir, and stop."""


def parse(argv: Sequence[str] | None = None) -> tuple[PretrainConfig, PretrainFlags]:
    """Reads the flags, whose defaults are those of --config."""
    flags, config = command_line.parse_both(
        PretrainFlags,
        load_config_file(command_line.value_of("config", argv), PretrainConfig),
        argv,
        command="pretrain",
        description="Pretrains an encoder; the same command again resumes.",
    )
    return config, flags


def main(argv: Sequence[str] | None = None) -> int:
    """Reads the flags and runs, or exports."""

    def start() -> None:
        config, flags = parse(argv)
        export(config.workdir) if flags.export else run(config)

    return command_line.run_reporting_errors(start)


if __name__ == "__main__":
    sys.exit(main())
