"""Reads and writes `run.json` of a workdir: the config of a run and a hash of its training data.

The file `.run.json` in the same workdir is a spare copy of `run.json`. Both contain a checksum of
their content, by which a damaged config is told from the config of another run.
"""

import contextlib
import json
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bertjax.base.files import read_json, write_json
from bertjax.base.workdir_files import RUN_FILE, SPARE_FILE


def holds_run(workdir: Path) -> bool:
    """Returns whether `workdir` contains run.json or its spare copy, .run.json."""
    return any((workdir / name).is_file() for name in (RUN_FILE, SPARE_FILE))


def read_run(workdir: Path) -> dict[str, Any]:
    """Reads run.json of a workdir or, if run.json is damaged or missing, its copy .run.json.

    Raises:
        ValueError: both are damaged, or one is and the other is missing.
        FileNotFoundError: run.json is missing, and there is no intact copy.
    """
    try:
        return read_run_file(workdir / RUN_FILE)
    except (OSError, ValueError):
        with contextlib.suppress(OSError, ValueError):
            return read_run_file(workdir / SPARE_FILE)
        raise


def read_run_file(path: Path) -> dict[str, Any]:
    """Reads run.json or its copy.

    Raises OSError if it cannot be read, or ValueError if it is no JSON, lacks an entry, or its
    checksum differs.
    """
    content = read_json(path, "restore it from a copy, or choose another --workdir")
    checksum = content.pop("checksum", None)  # files of older versions have none
    if checksum is not None and checksum != _checksum(content):
        raise ValueError(
            f"{path} is damaged, because its content does not match its checksum: restore it from "
            "a copy, or choose another --workdir."
        )
    config, fingerprint = content.get("config"), content.get("data_fingerprint")
    if not isinstance(config, dict) or not isinstance(fingerprint, str):
        raise ValueError(
            f"{path} cannot be read, because it has no config or no data_fingerprint: restore it "
            "from a copy, or choose another --workdir."
        )
    return content


def write_run(workdir: Path, config: Mapping[str, Any], data_fingerprint: str) -> None:
    """Writes run.json and its spare copy .run.json, each atomically, with a checksum."""
    content = {"config": config, "data_fingerprint": data_fingerprint}
    for name in (RUN_FILE, SPARE_FILE):
        write_json(workdir / name, {**content, "checksum": _checksum(content)})


def _checksum(content: Mapping[str, Any]) -> int:
    as_read = json.loads(json.dumps(content))
    return zlib.crc32(json.dumps(as_read, sort_keys=True).encode())
