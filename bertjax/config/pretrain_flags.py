"""The flags of the commands about a pretraining run: pretrain, plan and benchmark."""

import re
from collections.abc import Collection, Sequence
from typing import TypeVar

from bertjax.base import command_line
from bertjax.config.config_file import load_config_file
from bertjax.config.pretrain_config import PretrainConfig
from bertjax.config.training import TrainingConfig

Flags = TypeVar("Flags", bound=command_line.ConfigFlags)


def parse_run(
    command: str,
    own: type[Flags],
    argv: Sequence[str] | None,
    description: str,
    hidden: Collection[str] = (),
) -> tuple[PretrainConfig, Flags]:
    """Parses the flags of a command about a pretraining: its `own` and those of the run.

    Fields of the run in `hidden` are no flags. There are flags of the architecture if the model
    starts from random weights, and of the generator if there is one.
    """
    config = load_config_file(command_line.value_of("config", argv), PretrainConfig)
    init = command_line.value_of("init", argv) or config.init
    head = command_line.value_of("head", argv) or config.head
    has_generator = head == "rtd" or argv is command_line.DECLARED_ONLY
    without = {*hidden} if has_generator else {*hidden, "rtd"}

    def hint(flag: str) -> str:
        if flag.startswith("rtd."):
            return "It belongs to --head rtd."
        return ""

    for word in command_line.arguments(argv):
        if init is not None and re.match("--model.(?!max.position)", word):
            raise ValueError(
                f"{word} has no effect with --init {init}, which determines the architecture: "
                "leave it out, or start from random weights without --init."
            )
    boxes = [
        command_line.Box("", own),
        *command_line.run_boxes("pretrain", config, TrainingConfig, without),
    ]
    flags, run_config = command_line.parse_boxes(
        boxes, argv, command=command, description=description, hint=hint
    )
    return run_config, flags
