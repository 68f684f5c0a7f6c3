"""What a command may write: never over its inputs, and only over files that bertjax wrote.

`check_paths` compares all flags of a command that name paths, before the command reads or writes.
`replacing_folder` replaces the directory of a model. What bertjax wrote is known by
`checksums.json` in a model, by `run.json` and the names of `base.workdir_files` in the workdir of a
run, and by the content of a single file. Anything else is refused by name.
"""

import contextlib
import dataclasses
import glob
import os
import re
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from bertjax.base.checksums import CHECKSUMS, is_as_written
from bertjax.base.files import (
    is_remote,
    listed,
    naming_write_errors,
    read_json_or_empty,
    unused,
)
from bertjax.base.run_file import is_run
from bertjax.base.workdir_files import RUN_NAMES

# Fields of configs that name texts and tables to read. An output in such a folder would be read as
# one of its files.
TEXTS = (
    "input",
    "queries",
    "corpus",
    "qrels",
    "train",
    "dev",
    "test",
    "gold",
    "predictions",
    "na_probs",
    "exclude",
    "check",
    "calibrate",
)
# Fields that name models, runs, collections and other files to read, and what is written.
MODELS = (
    "model",
    "init",
    "generator_init",
    "teacher",
    "reranker",
    "tokenizer",
    "extend",
    "src",
    "runs",
    "models",
    "api_key_file",
    "data",
    "eval_data",
    "config",
    "data_dir",
    "tfds_data_dir",
    "retrieval_dir",
)
WRITTEN = ("output", "workdir", "dst", "html", "json", "profile", "submission", "data_cache")
POSITIONAL = {"src": "SRC", "dst": "DST", "runs": "RUN"}

# How a single file that bertjax wrote begins.
_OURS = re.compile(
    rb"""
    \{"(id|query)":\ | \[\n\{"id":\ | \[\n?\]\n? | \[-?\d[^\[{"]*\]\n  # lines of JSON
    | \{\}\n | \{"(\\.|[^"\\])+":\ -?\d[\d.e-]*[,}]  # weights of tokens
    | \S+\ Q0\ | [^\n]*\bpredicted_ | id\s  # a ranking, tables
    | \x93NUMPY.{,20}'descr':\ '<f4' | PAR1 | PK
    | [\[{].*"(topology|tokens_per_second)":  # plans, benchmarks
    | <!DOCTYPE\ html>.*bertjax | (\x89PNG|<\?xml).*[Mm]atplotlib | %PDF
    | \Z  # an empty file
    """,
    re.DOTALL | re.VERBOSE,
)
_START_BYTES = 1 << 20


def check_paths(*configs: Any) -> None:
    """Refuses outputs that would replace an input, or what bertjax did not write.

    `configs` are the configs of a command. Links, hard links, `..` and names that differ in case,
    where the file system does not tell them apart, are resolved. Raises ValueError.
    """
    for flag, output in _values(configs, WRITTEN):
        for other, value in _values(configs, TEXTS + MODELS):
            keep_apart(flag, output, other, value)
        check_replaceable(flag, output)


def _values(configs: Any, names: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yields (flag, value) of the fields `names`, also of configs in configs."""
    for config in configs:
        for name, value in vars(config).items():
            if dataclasses.is_dataclass(value):
                yield from _values([value], names)
            if name not in names:
                continue
            for path in value if isinstance(value, tuple) else (value,):
                if path and isinstance(path, str | os.PathLike):
                    yield POSITIONAL.get(name, f"--{name}"), os.fspath(path)


def keep_apart(flag: str, output: str | Path, other: str, value: str | Path) -> None:
    """Raises ValueError for an output that is, holds or lies among the texts of an input."""
    target = _real(output)
    sources = _named_by(os.fspath(value))
    around: set[Path] = set()
    for source in sources:
        around.update((source, *source.parents))
    is_among = other.removeprefix("--") in TEXTS and not {*target.parents}.isdisjoint(sources)
    if is_among or any(_same(path, target) for path in around):
        raise ValueError(
            f"{flag} {output} would replace the input {other} {value}, hold it or lie among the "
            f"input files: choose another {flag}."
        )


def _named_by(value: str) -> list[Path]:
    """Returns the files and folders that the value of a flag names, and the links in folders.

    The value may be a glob, several paths with weights, or the prefix of a TF1 checkpoint. Links,
    such as those in the cache of the Hub, are returned with the places to which they lead.
    """
    names = [value, *(part.rpartition("=")[0] or part for part in value.split(","))]
    paths: list[Any] = []
    for name in map(os.path.expanduser, names):
        if is_remote(name) or os.path.exists(name) or os.path.exists(f"{name}.index"):
            paths += [name, *filter(os.path.islink, Path(name).glob("*"))]
        paths += filter(os.path.isfile, glob.iglob(name, recursive=True))
    places = []
    for path in paths:
        places += [_real(path), _real(os.path.dirname(path)) / os.path.basename(path)]
    return places


def _real(path: str | Path) -> Path:
    return Path(path if is_remote(path) else os.path.realpath(path))


def _same(path: Path, other: Path) -> bool:
    with contextlib.suppress(OSError):  # one of them does not exist
        return path == other or os.path.samefile(path, other)
    return False


def check_replaceable(flag: str, output: str | Path) -> None:
    """Raises ValueError for an output that is a part of a run, or that bertjax did not write."""
    target = _real(output)
    if _is_part_of_run(target) or not _is_output(target):
        raise ValueError(
            f"{flag} {output} would replace a file of a model or of a run, or one that bertjax did "
            f"not write: choose another {flag}."
        )


def _is_output(path: Path) -> bool:
    """Returns whether `path` is free, or a file that looks like an output of bertjax."""
    if not path.is_file():
        return True
    with path.open("rb") as file:
        return _OURS.match(file.read(_START_BYTES)) is not None


def _is_part_of_run(path: Path) -> bool:
    parts = (path, *path.parents)
    return any(part.name in RUN_NAMES and is_run(part.parent) for part in parts)


def others_in(folder: Path) -> list[str]:
    """Returns what a model's folder has besides the files that bertjax wrote, as it wrote them.

    These files have the size and CRC-32 that a `checksums.json` says.
    """
    names = {path for path in folder.rglob("*") if path.is_symlink() or not path.is_dir()}
    for listing in folder.rglob(CHECKSUMS):
        for name, entry in read_json_or_empty(listing).items():
            if is_as_written(listing.parent / name, entry):
                names -= {listing, listing.parent / name}
    return sorted({path.relative_to(folder).parts[0] for path in names})


@contextlib.contextmanager
def replacing_folder(folder: str | Path, *, keeping: bool = False) -> Iterator[Path]:
    """Yields a new folder that replaces `folder` at the end of the `with` block.

    If the block raises an error, `folder` is unchanged, and the new folder is removed. A folder
    with files that bertjax did not write, or that were changed since, is not replaced. In the
    workdir of a run, and with `keeping`, it is kept beside the new one as `NAME.old-N` instead.

    Raises ValueError if `folder` is a file or has files that bertjax did not write, Locked, or
    OSError if the new content could not be written.
    """
    folder = Path(folder).resolve()
    scratch = folder.with_name(f"{folder.name}.bertjax.writing")
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{folder} is a file, so it is not replaced: name a new directory.")
    others = [] if keeping or _is_part_of_run(folder) else others_in(folder)
    if others:
        raise ValueError(
            f"{folder} is not replaced, because it has files that bertjax did not write or that "
            f"were changed since: {listed(others)}. Name a new directory."
        )
    from bertjax.base.lock import Lock  # filelock is a slow import

    lock = Lock(
        folder.with_name(f"{folder.name}.lock"),
        place=str(folder),
        what="process",
        remedy="wait until it ends, or name another directory",
    )
    with naming_write_errors(folder, "its old content is unchanged"):
        folder.parent.mkdir(parents=True, exist_ok=True)
        lock.take()
    try:
        with naming_write_errors(folder, "its old content is unchanged"):
            _tidy(folder, scratch)  # cleans up after a process that was killed
            (scratch / "new").mkdir(parents=True)
            yield scratch / "new"
            if folder.exists():
                folder.rename(scratch / "old")
            (scratch / "new").rename(folder)
    finally:
        _tidy(folder, scratch)
        lock.release()


def _tidy(folder: Path, scratch: Path) -> None:
    """Removes `scratch`, but restores `scratch`/old if replacing `folder` was interrupted.

    If `scratch`/old has files that bertjax did not write, it is kept beside `folder`.
    """
    if scratch.is_symlink():
        scratch.unlink()
    old = scratch / "old"
    if old.exists() and not folder.exists():
        old.rename(folder)
    elif old.exists() and (others := others_in(old)):
        kept = unused(folder.with_name(f"{folder.name}.old"))
        old.rename(kept)
        print(
            f"warning: {folder} had files that bertjax did not write or that were changed since "
            f"({listed(others)}): the earlier folder is kept as {kept}",
            flush=True,
        )
    shutil.rmtree(scratch, ignore_errors=True)
