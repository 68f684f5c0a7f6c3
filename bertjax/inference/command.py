"""What every command that applies a model begins with."""

import dataclasses
import os
from typing import TypeVar

from bertjax.base import outputs
from bertjax.cloud.hub import local_data
from bertjax.devices.compilation import start_jax

Config = TypeVar("Config")


def start_command(config: Config, *inputs: str) -> Config:
    """Checks the paths of a command, starts jax, and copies its inputs to this machine.

    `inputs` are the fields of `config` that name data, which may be in a bucket or on the Hub.
    Returns the config with the paths of the copies.

    Raises:
        ValueError: an output would replace an input, or a file that bertjax did not write.
        FileNotFoundError: an input is in no bucket and not on the Hub.
        OSError: a bucket or the Hub cannot be read.
    """
    outputs.check_paths(config)
    start_jax()
    copies = {}
    for name in inputs:
        address = getattr(config, name)
        if address is not None:
            copies[name] = os.path.expanduser(local_data(address))
    return dataclasses.replace(config, **copies)  # type: ignore[type-var]
