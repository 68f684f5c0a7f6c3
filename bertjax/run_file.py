"""`run.json` of a workdir: the config of a run and a hash of its data. `.run.json` is a copy."""

import contextlib
from pathlib import Path
from typing import Any

from bertjax.files import read_json

RUN_FILE, SPARE_FILE = "run.json", ".run.json"


def holds_run(workdir: Path) -> bool:
    """Whether a folder has run.json or its spare copy, so that it is the workdir of a run."""
    return any((workdir / name).is_file() for name in (RUN_FILE, SPARE_FILE))


def read_run(workdir: Path) -> dict[str, Any]:
    """Reads run.json or, if it is damaged or missing, its spare copy.

    Raises:
        ValueError: run.json is damaged, and its copy is damaged or missing.
        FileNotFoundError: run.json is missing, and its copy is damaged or missing.
    """
    try:
        return read_run_file(workdir / RUN_FILE)
    except (OSError, ValueError):
        with contextlib.suppress(OSError, ValueError):
            return read_run_file(workdir / SPARE_FILE)
        raise


def read_run_file(path: Path) -> dict[str, Any]:
    """Reads run.json or its copy.

    Raises:
        OSError: the file cannot be read.
        ValueError: the file is not JSON, or it lacks the config or the hash of the data.
    """
    content = read_json(path, "restore it from a copy, or choose another --workdir")
    config, fingerprint = content.get("config"), content.get("data_fingerprint")
    if not isinstance(config, dict) or not isinstance(fingerprint, str):
        raise ValueError(
            f"{path} cannot be read, because it has no config and data_fingerprint: restore it "
            "from a copy, or choose another --workdir."
        )
    return content
