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

from bertjax.base.checksums import steps_in
from bertjax.base.files import listed, read_json, read_json_or_empty, write_json
from bertjax.base.workdir_files import CHECKPOINTS, RUN_FILE, SPARE_FILE


def holds_run(workdir: Path) -> bool:
    """Returns whether `workdir` contains run.json or its spare copy, .run.json."""
    return any((workdir / name).is_file() for name in (RUN_FILE, SPARE_FILE))


def is_run(workdir: Path) -> bool:
    """Returns whether bertjax wrote the run.json of `workdir`, which may be damaged.

    A damaged run.json is known by an intact or damaged spare copy, or by a checkpoint of bertjax.
    """
    if not holds_run(workdir):
        return False
    with contextlib.suppress(OSError, ValueError):
        return bool(read_run(workdir))
    checkpoints = (workdir / CHECKPOINTS).glob("[0-9]*/progress")
    return (workdir / SPARE_FILE).is_file() or any(checkpoints)


def read_run(workdir: Path) -> dict[str, Any]:
    """Reads run.json of a workdir or, if run.json is damaged or missing, its copy .run.json.

    Each is written as a whole or not at all; the copy is for damage that comes later, as by a disk.

    Raises:
        ValueError: run.json is damaged, and there is no intact copy.
        FileNotFoundError: run.json is missing, and there is no intact copy.
    """
    try:
        return read_run_file(workdir / RUN_FILE)
    except (OSError, ValueError):
        with contextlib.suppress(OSError, ValueError):
            return read_run_file(workdir / SPARE_FILE)
        raise


def train_file(config: Mapping[str, Any]) -> str | None:
    """Returns the file of the train split in the saved config of a fine-tuning, or None."""
    return config.get("options", config).get("train")  # older versions saved no options


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
            "a copy."
        )
    config = content.get("config")
    fingerprint = content.get("data_fingerprint")
    if not isinstance(config, dict) or not isinstance(fingerprint, str):
        raise ValueError(
            f"{path} cannot be read, because it has no config or no data_fingerprint: restore it "
            "from a copy."
        )
    return content


def checked_run_id(checkpoints: Path, run_id: str) -> str:
    """Returns `run_id`, the name of a run or, if that is "", the name that its checkpoints have.

    Checkpoints of older versions have no name.

    Raises:
        ValueError: a checkpoint in the folder `checkpoints` has the name of another run.
    """
    names = {}
    for step in steps_in(checkpoints):
        stored = read_json_or_empty(checkpoints / str(step) / "progress" / "metadata")
        names[step] = stored.get("run_id", "")
    run_id = run_id or max(names.values(), default="")
    if others := [step for step, name in names.items() if name not in ("", run_id)]:
        raise ValueError(
            f"The checkpoints of steps {listed(others)} in {checkpoints} are of another run than "
            "the run.json beside them: move them to another folder or, to go on with that run, "
            "copy its whole workdir."
        )
    return run_id


def write_run(
    workdir: Path, config: Mapping[str, Any], data_fingerprint: str, run_id: str = ""
) -> None:
    """Writes run.json and its spare copy .run.json, each atomically, with a checksum.

    `run_id` is the random name of the run, which its checkpoints have as well.
    """
    content = {"config": config, "data_fingerprint": data_fingerprint, "run_id": run_id}
    for name in (RUN_FILE, SPARE_FILE):
        write_json(workdir / name, {**content, "checksum": _checksum(content)})


def _checksum(content: Mapping[str, Any]) -> int:
    as_read = json.loads(json.dumps(content))
    return zlib.crc32(json.dumps(as_read, sort_keys=True).encode())
