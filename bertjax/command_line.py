"""What every `python -m bertjax.X` shares: flags from a dataclass, and errors as one line."""

import json
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import tyro

Config = TypeVar("Config")


def parse(
    config_class: type[Config],
    argv: Sequence[str] | None,
    *,
    prog: str,
    description: str,
    default: Config | None = None,
) -> Config:
    """Reads the flags of `config_class` from `argv` (None: the process's own).

    Flags may be written `--like_this` or `--like-this`, with or without `=`; nested fields are
    `--optimizer.learning_rate`. `default` replaces the defaults of the class, as a config file
    does. Exits with status 2 on an unknown flag, naming the nearest one.
    """
    kwargs: dict[str, Any] = {} if default is None else {"default": default}
    return tyro.cli(
        config_class,
        prog=prog,
        description=description,
        args=argv,
        use_underscores=True,
        config=(tyro.conf.FlagCreatePairsOff,),
        **kwargs,
    )


def write_json(content: Any, where: str) -> None:
    """Writes what `--json FILE` asks for; "-" is the terminal."""
    text = json.dumps(content, indent=2) + "\n"
    if where == "-":
        print(text, end="")
    else:
        Path(where).write_text(text, encoding="utf-8")


def run_reporting_errors(run: Callable[[], Any]) -> int:
    """Calls `run`; returns an exit status, and shows bad input as one line, without a traceback.

    Set BERTJAX_TRACEBACK=1 to see where an error came from.
    """
    try:
        run()
    except (ValueError, OSError, ImportError) as error:
        if os.environ.get("BERTJAX_TRACEBACK"):
            traceback.print_exc()
        sys.stdout.flush()
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted; run the same command again to go on", file=sys.stderr)
        return 130
    return 0
