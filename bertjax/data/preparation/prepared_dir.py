"""The output directory of `prepare`: its settings, the finished chunks, and the final metadata.

prepare.json            settings and inputs, written first; a run with other settings, or with files
                        of other content (SHA-256; not read if size, times and inode are the same),
                        is rejected
chunks/00012.json       summary of a finished chunk of text: counts, names of its shards
chunks/train-128-00003-of-00024.json   a joined shard and the chunks' shards that it replaces
metadata-1-of-4.json    marks as finished the part that `prepare --shard 1/4` makes
metadata.json           written last: if it exists, the directory is complete
prepare.lock            lock file that names the running process, see `bertjax.base.lock`

Each chunk of text has its own shards, because chunks are prepared in parallel and survive an
interruption. Once all chunks are finished, they are joined, in the order of the chunks, to few
large shards, each of one source of a mixture: thousands of shards would exceed the usual limit of
open files. An interrupted join continues where it stopped.
"""

import contextlib
import dataclasses
import itertools
import json
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bertjax.base.addresses import place, read_locally, written_locally
from bertjax.base.files import (
    is_remote,
    listed,
    naming_read_errors,
    naming_write_errors,
    read_json,
    read_json_or_empty,
    write_text,
)
from bertjax.base.lock import Lock
from bertjax.base.progress import BYTES, progress
from bertjax.data.checksums import Remembered, checksum, describe, is_intact, verify_shards
from bertjax.data.metadata import (
    METADATA_FILE,
    LengthSummary,
    Metadata,
    Shard,
    SourceSummary,
    SplitSummary,
    open_prepared,
    unigram_entropy,
)
from bertjax.data.preparation.chunks import CHUNK_FOLDER, EVAL, TRAIN, read_summary, shard_of
from bertjax.data.preparation.segments import OBJECTIVES
from bertjax.data.records import has_records, read_shard, write_shard
from bertjax.data.text.corpus import TooLittleText

SETTINGS_FILE = "prepare.json"
_TMP = r"((\.[0-9a-f]{32})?\.tmp)?"
_FILES = re.compile(
    r"((train|eval)-\d+-\d{5,}(-of-\d{5,})?\.array_record"
    rf"|metadata(-\d+-of-\d+)?\.json|prepare\.json){_TMP}"
)
_LOCK_FILES = r"prepare(-\d+-of-\d+)?\.lock(\.heartbeat.*)?"
_PART_FILE = "metadata-{}-of-{}.json"


def claim(
    directory: Path, plan: dict[str, Any], *, overwrite: bool, part: tuple[int, int] = (0, 1)
) -> Metadata | None:
    """Creates the output directory, or checks that it was begun with the same settings.

    Returns the metadata if the directory is already complete, else None.

    Args:
        plan: the settings, inputs, sources of a mixture and tokenizer that determine the output, as
            JSON values. An earlier run may have had other weights of the sources, but nothing else.
        overwrite: whether to delete the files of an earlier run first.
        part: (i, n) if this run prepares part i of n; the files of other parts are never deleted.

    Raises ValueError if `directory` is a file, or contains data of other settings or files that
    `prepare` did not write; or `overwrite` would delete files of other parts.
    """
    # The plan as it would be read back from JSON, where tuples are lists.
    plan = json.loads(json.dumps(plan))
    path = directory / SETTINGS_FILE

    def write_plan() -> None:  # other parts may write the same file at the same time
        write_text(path, json.dumps(plan, indent=1) + "\n", unique=True)

    if directory.exists() and not directory.is_dir():
        raise ValueError(f"--output {directory} is a file: name a directory.")
    old_plan = None
    if path.is_file():
        old_plan = read_json(path, "name a new directory, or delete this one")
    _refuse_other_files(directory, old_plan)
    if overwrite:
        _refuse_to_delete_other_parts(directory, part)
        clear(directory)
    if old_plan is not None and old_plan != plan:
        if _have_same_rows(old_plan, plan, part):
            with contextlib.suppress(OSError):  # a complete directory may be read-only
                write_plan()
        elif _is_begun(directory):
            raise ValueError(
                f"--output {directory} was begun with other settings: "
                f"{'; '.join(_differences(old_plan, plan))}. To start again, use --overwrite."
            )
        else:
            old_plan = None
    if metadata := _complete(directory):
        return _with_weights(directory, metadata, plan)
    with naming_write_errors(directory):
        (directory / CHUNK_FOLDER).mkdir(parents=True, exist_ok=True)
    if old_plan is None:
        write_plan()
    return None


def _refuse_other_files(directory: Path, old_plan: Any) -> None:
    """Raises ValueError if there are files that `prepare` did not write."""
    if not directory.is_dir():
        return
    names = sorted(path.name for path in directory.iterdir())
    if old_plan is None:  # prepare writes it first
        before = re.compile(rf"{SETTINGS_FILE}{_TMP}|{_LOCK_FILES}|{CHUNK_FOLDER}")
        names = [name for name in names if not before.fullmatch(name)]
    elif {"settings", "inputs"} <= old_plan.keys():
        return
    if names:
        raise ValueError(
            f"--output {directory} contains files that prepare did not write: {names[:5]}. "
            "Name a new directory."
        )


def _refuse_to_delete_other_parts(directory: Path, part: tuple[int, int]) -> None:
    index, parts = part
    files = _files_of_other_parts(directory, part)
    if parts > 1 and files:
        raise ValueError(
            f"--overwrite with --shard {index}/{parts} would delete files of other parts in "
            f"{directory}: {files[:3]}. Leave out --overwrite to continue; to start again, name a "
            "new --output for all parts."
        )


def _is_begun(directory: Path) -> bool:
    has_chunks = any((directory / CHUNK_FOLDER).glob("*.json"))
    return has_chunks or (directory / METADATA_FILE).exists()


def contents_of(files: Sequence[str], directory: Path) -> dict[str, Any]:
    """Returns the entries of a plan that tell the contents of local `files`.

    "contents" has the SHA-256 of each file, and "stamps" also its size, times and inode. As long
    as these are as in the prepare.json of `directory`, the hash is taken from there.
    """
    path = directory / SETTINGS_FILE
    stamps = {}
    contents = {}
    known = read_json_or_empty(path).get("stamps", {})
    total = sum(map(os.path.getsize, files))
    with progress("hashing the input", total, BYTES) as state, naming_read_errors(path):
        for file in files:
            status = os.stat(file)
            times = [status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino]
            stamp = known.get(file, [])
            if stamp[1:] != times:
                stamp = [f"SHA-256 {checksum(file, state.advance)}", *times]
            stamps[file] = stamp
            contents[file] = stamp[0]
    return {"contents": contents, "stamps": stamps}


def _with_weights(directory: Path, metadata: Metadata, plan: dict[str, Any]) -> Metadata:
    sources = []
    for source, planned in zip(metadata.sources or (), plan.get("sources", ()), strict=True):
        sources.append(dataclasses.replace(source, weight=planned["weight"]))
    if sources == (metadata.sources or []):
        return metadata
    metadata = dataclasses.replace(metadata, sources=sources)
    write_text(directory / METADATA_FILE, metadata.to_json(), unique=True)
    print("The weights of the sources have changed; the rows remain the same.", flush=True)
    return metadata


def _complete(directory: Path) -> Metadata | None:
    """Returns the metadata if the directory is complete and undamaged, else None.

    In a damaged directory, metadata.json is deleted, so that the directory counts as incomplete.
    """
    if not (directory / METADATA_FILE).is_file():
        return None
    try:
        metadata = open_prepared(directory)
        verify_shards(directory, metadata)
        return metadata
    except (OSError, ValueError) as error:
        print(f"{error} The missing or damaged files are now prepared again.", flush=True)
        (directory / METADATA_FILE).unlink()
        return None


@contextlib.contextmanager
def locked(directory: Path, shard: str | None) -> Iterator[None]:
    """Locks the output directory, or the part `shard` ("i/n"), against other `prepare` processes.

    A directory in a bucket is not locked, because writes to a bucket are atomic, nor is a complete
    directory without write permission. Raises Locked, or OSError if it cannot be written.
    """
    if is_remote(directory) or (directory.exists() and not directory.is_dir()):
        yield
        return
    with naming_write_errors(directory):
        complete = (directory / METADATA_FILE).is_file()
        is_new = not directory.exists()
        directory.mkdir(parents=True, exist_ok=True)
    name = "prepare.lock"
    locked_place = f"--output {directory}"
    if shard is not None:
        name = f"prepare-{shard.replace('/', '-of-')}.lock"
        locked_place += f" (--shard {shard})"
    lock = Lock(
        directory / name,
        place=locked_place,
        what="prepare command",
        remedy="wait until it ends, stop it, or choose another --output",
    )
    try:
        with naming_write_errors(directory):
            lock.take()
    except OSError:
        if not complete:
            raise
    try:
        yield
    finally:
        lock.release()
        if is_new:
            with contextlib.suppress(OSError):  # it is not empty
                directory.rmdir()


def _files_of_other_parts(directory: Path, part: tuple[int, int]) -> list[str]:
    index, parts = part
    names = [path.name for path in directory.glob("*") if _FILES.fullmatch(path.name)]
    names += [path.name for path in (directory / CHUNK_FOLDER).glob("*.json")]

    def is_other(name: str) -> bool:
        if name.startswith("metadata"):
            return not name.startswith(_PART_FILE.format(index, parts))
        if "-of-" in name:
            return True
        chunk = re.search(r"(?:^|-)(\d{5,})\.", name)
        return chunk is not None and int(chunk[1]) % parts != index

    return sorted(filter(is_other, names))


def _have_same_rows(old: Any, plan: dict[str, Any], part: tuple[int, int]) -> bool:
    """Whether the rows remain if `plan` replaces `old`, a read prepare.json.

    Rows do not depend on the weights of sources, and finished chunks contain no invalid bytes, so
    they are the same whatever is done about errors.
    """
    try:
        settings = {"encoding": "utf-8", "normalize": "none", **old["settings"]}  # newer fields
        if settings["errors"] == "strict":
            settings["errors"] = plan["settings"]["errors"]
        # Older versions stored no hashes, and the stamps of a file differ on another machine.
        changed = {"contents": plan["contents"], **old, "settings": settings}
        changed["stamps"] = plan["stamps"]
        if part == (0, 1) and "sources" in old:
            weights = {source["name"]: source["weight"] for source in plan["sources"]}
            changed["sources"] = [{**s, "weight": weights[s["name"]]} for s in old["sources"]]
    except (KeyError, TypeError):
        return False
    return changed == plan


def _differences(old_plan: dict[str, Any], plan: dict[str, Any]) -> list[str]:
    differences = []
    for name in sorted(old_plan.keys() | plan.keys()):
        old = old_plan.get(name)
        new = plan.get(name)
        if old == new or name == "stamps":
            continue
        if name in ("settings", "contents") and isinstance(old, dict) and isinstance(new, dict):
            differences += _differences(old, new)
        elif name == "sources":
            differences.append(f"weighted sources were {_weights(old)}, now {_weights(new)}")
        elif name == "inputs" and isinstance(old, list) and isinstance(new, list):
            gone = _entries_without(old, new)
            added = _entries_without(new, old)
            differences.append(f"inputs were {gone}, now {added} (name, size, hash)")
        else:
            differences.append(f"{name} was {old!r}, now {new!r}")
    return differences


def _weights(sources: Any) -> str:
    return ", ".join(f"{s['name']}={s['weight']}" for s in sources or ()) or "none"


def _entries_without(inputs: list, others: list) -> str:
    return listed([str(entry)[1:-1] for entry in inputs if entry not in others], 150)


def clear(directory: Path) -> None:
    """Deletes the shards, summaries of chunks and metadata that `prepare` wrote to `directory`.

    prepare.json remains, and a directory without it is unchanged.
    """
    if not (directory / SETTINGS_FILE).is_file():
        return
    # metadata.json marks a complete directory, so it is deleted first.
    written = [path for path in directory.iterdir() if _FILES.fullmatch(path.name)]
    for path in sorted(written, key=lambda path: (path.name != METADATA_FILE, path.name)):
        if path.name != SETTINGS_FILE:
            path.unlink()
    folder = directory / CHUNK_FOLDER
    if folder.is_dir():
        for path in folder.iterdir():
            if re.fullmatch(rf"((train|eval)-.*-of-)?\d{{5,}}\.json{_TMP}", path.name):
                path.unlink()
        if not is_remote(folder) and not any(folder.iterdir()):  # a bucket has no empty folders
            folder.rmdir()


def write_part(directory: Path, part: tuple[int, int], chunks: int, counts: dict[str, int]) -> None:
    """Writes the file that marks part i of n as finished, where `part` is (i, n).

    `chunks` and `counts` are the `chunks` and `reader_counts` of `finish`.
    """
    content = {"part": part, "chunks": chunks, "counts": counts}
    write_text(directory / _PART_FILE.format(*part), json.dumps(content) + "\n")


def join_parts(directory: Path) -> Metadata | None:
    """Writes and returns the metadata if all chunks of all parts are finished; else returns None.

    Raises ValueError if no part in `directory` is finished.
    """
    path = directory / SETTINGS_FILE
    parts = sorted(directory.glob(_PART_FILE.format("*", "*")))
    if not path.is_file() or not parts:
        raise ValueError(
            f"{directory} contains no finished part: first run prepare with --shard 0/4, 1/4, ..."
        )
    content = json.loads(parts[0].read_text(encoding="utf-8"))
    if None in _summaries(directory, content["chunks"]):
        return None
    plan = read_json(path, "use --overwrite")
    return finish(directory, plan, content["chunks"], content["counts"], several=True)


def _summaries(directory: Path, chunks: int) -> list[dict[str, Any] | None]:
    joined = joined_files(directory)
    return [read_summary(str(directory), number, joined=joined) for number in range(chunks)]


def finish(
    directory: Path,
    plan: dict[str, Any],
    chunks: int,
    reader_counts: dict[str, int],
    *,
    several: bool = False,
) -> Metadata:
    """Joins the shards of all chunks, which are finished; writes and returns the metadata.

    `plan` is the content of prepare.json, `chunks` the number of chunks of the whole input, and
    `reader_counts` {reason: how often text was skipped or cut}. If `several`, other processes may
    call this function at the same time.

    Raises:
        TooLittleText: the input contains no text, or too little text for the objective.
        ValueError: a chunk is not finished, or one of its shards is missing or incomplete.
    """
    settings = plan["settings"]
    counts = Counter(reader_counts)
    summaries = []
    for number, summary in enumerate(_summaries(directory, chunks)):
        if summary is None:
            raise ValueError(f"Chunk {number} of {directory} is missing: run prepare again.")
        summaries.append(summary)
        counts.update(summary["counts"])
    splits = add_up(summaries, settings)
    check_enough(splits, settings, plan["inputs"], counts)
    sources = sources_of(plan, summaries)
    for split, summary in splits.items():
        for length, content in summary.lengths.items():
            name = f"{split}-{length}"
            parts = [content]
            if sources is not None:
                parts = [s.splits[split].lengths[length] for s in sources if split in s.splits]
            of_chunks = [part.shards for part in parts]
            joined = join_shards(directory, name, of_chunks, several=several)
            for part, shards in zip(parts, joined, strict=True):
                part.shards[:] = shards
            content.shards[:] = itertools.chain.from_iterable(joined)
    metadata = Metadata(
        settings=settings,
        inputs=plan["inputs"],
        tokenizer_fingerprint=plan["tokenizer_fingerprint"],
        vocab_size=plan["vocab_size"],
        objective=settings["objective"],
        max_lengths=sorted(settings["max_length"]),
        chunks=chunks,
        counts=dict(sorted((+counts).items())),
        splits=splits,
        sources=sources,
    )
    write_text(directory / METADATA_FILE, metadata.to_json(), unique=True)
    for left_by_a_kill in directory.glob(f"*.{'[0-9a-f]' * 32}.tmp"):
        left_by_a_kill.unlink(missing_ok=True)
    return Metadata.from_json(metadata.to_json())


def add_up(
    summaries: Sequence[dict[str, Any]], settings: dict[str, Any]
) -> dict[str, SplitSummary]:
    """Returns the statistics of the splits that have documents, with the shards of the chunks."""
    splits = {}
    for split in (TRAIN, EVAL):
        contents = [summary["splits"][split] for summary in summaries]
        if not _total(contents, "documents"):
            continue
        entropy = None
        if split == EVAL:
            unigrams: Counter = Counter()
            for summary in summaries:
                unigrams.update(summary["eval_unigrams"])
            entropy = unigram_entropy(unigrams.values())
        lengths = {}
        for length in sorted(settings["max_length"]):
            of_length = [content["lengths"][str(length)] for content in contents]
            lengths[str(length)] = _add_up_length(length, of_length)
        totals = ("documents", "sentences", "text_bytes", "text_tokens")
        splits[split] = SplitSummary(
            **{name: _total(contents, name) for name in totals},
            unigram_entropy_nats=entropy,
            lengths=lengths,
        )
    return splits


def _add_up_length(length: int, contents: list[dict[str, Any]]) -> LengthSummary:
    labels: Counter = Counter()
    length_counts = np.zeros(length + 1, int)
    shards = []
    for content in contents:
        labels.update(content["labels"])
        shard = shard_of(content)
        if shard is not None:
            shards.append(shard)
            length_counts += content["length_counts"]
    return LengthSummary(
        shards=shards,
        records=_total(contents, "records"),
        sequences=labels.total(),
        tokens=_total(contents, "tokens"),
        labels=dict(sorted(labels.items())),
        random_from_same_document=_total(contents, "random_from_same_document"),
        length_counts=length_counts.tolist(),
    )


def _total(contents: list[dict[str, Any]], name: str) -> int:
    return sum(content[name] for content in contents)


def check_enough(
    splits: dict[str, SplitSummary], settings: dict[str, Any], inputs: list, counts: Counter
) -> None:
    """Raises TooLittleText if there is no text, or one document where the objective needs two.

    The message says `inputs`, and `counts`: how often text was left out, by reason.
    """
    if not splits:
        left_out = ""
        if counts:
            left_out = f" Left out: {dict(counts)}."
        name, size, *_ = inputs[0]
        raise TooLittleText(
            f"The input contains no text: it consists of {len(inputs)} files or data sets, the "
            f"first of which is {name} (bytes or examples: {size}).{left_out} Use files with text."
        )
    documents = sum(summary.documents for summary in splits.values())
    objective = settings["objective"]
    if OBJECTIVES[objective].needs_second_document and documents == 1:
        raise TooLittleText(
            f"The input is a single document, but --objective {objective} needs a second one to "
            "draw random sentences from: separate documents by blank lines with --text_format "
            "lines, or use --objective mlm."
        )


def sources_of(
    plan: dict[str, Any], summaries: Sequence[dict[str, Any]]
) -> list[SourceSummary] | None:
    """Returns the statistics of each source of a mixture; None if the data are no mixture.

    Raises TooLittleText if a source has no training rows, or too little text for the objective.
    """
    if "sources" not in plan:
        return None
    settings = plan["settings"]
    inputs = list(plan["inputs"])
    sources = []
    for number, source in enumerate(plan["sources"]):
        of_source = [summary for summary in summaries if summary["source"] == number]
        counts: Counter = Counter()
        for summary in of_source:
            counts.update(summary["counts"])
        splits = add_up(of_source, settings)
        try:
            check_enough(splits, settings, inputs[: source["inputs"]], counts)
        except TooLittleText as error:
            raise TooLittleText(
                f"The source {source['name']!r} of the mixture cannot be used. {error}"
            ) from error
        for length, content in splits[TRAIN].lengths.items():
            if not content.records:
                raise TooLittleText(
                    f"The source {source['name']!r} of the mixture has no training rows of "
                    f"{length} tokens: leave it out of --input."
                )
        sources.append(SourceSummary(name=source["name"], weight=source["weight"], splits=splits))
        inputs = inputs[source["inputs"] :]
    return sources


# Shards have at least this size, except the last one, so that small data has few shards ...
SHARD_BYTES = 256 << 20
# ... and larger ones if there were more than this number for one split and maximum length.
MAX_SHARDS = 24


def join_shards(
    directory: Path, name: str, sources: Sequence[Sequence[Shard]], *, several: bool = False
) -> list[list[Shard]]:
    """Joins the shards of all chunks of one split and length; returns the new ones of each source.

    `name`, such as "train-128", begins the file names of the joined shards. `sources` are, for each
    source, the shards of its chunks, in their order. If `several`, other processes may join the
    same shards at the same time, and write the same bytes.
    """
    least = _least(itertools.chain.from_iterable(sources))
    groups_of_sources = [list(_groups(shards, least)) for shards in sources]
    total = sum(map(len, groups_of_sources))
    numbers = itertools.count()
    joined_of_sources = []
    for groups in groups_of_sources:
        joined = []
        for group in groups:
            full_name = f"{name}-{next(numbers):05d}-of-{total:05d}"
            joined.append(_join(directory, full_name, group, several))
        joined_of_sources.append(joined)
    return joined_of_sources


def joined_files(directory: Path) -> frozenset[str]:
    """Returns the names of the chunks' shards that joined shards contain."""
    files: set[str] = set()
    for name in _names(directory):
        _, parts = _parts(directory, name)
        files.update(parts)
    return frozenset(files)


def remove_damaged(directory: Path, remembered: Remembered) -> None:
    """Deletes damaged joined shards that are not `remembered`, so that they are prepared again."""
    with progress("verifying the shards that are already prepared", unit=BYTES) as state:
        for name in _names(directory):
            shard, _ = _parts(directory, name)
            if shard is None or not is_intact(directory, shard, remembered, state.advance):
                _description(directory, name).unlink(missing_ok=True)
                (directory / f"{name}.array_record").unlink(missing_ok=True)


def _names(directory: Path) -> list[str]:
    return [path.stem for path in (directory / CHUNK_FOLDER).glob("*-of-*.json")]


def _description(directory: Path, name: str) -> Path:
    return directory / CHUNK_FOLDER / f"{name}.json"


def _size(shard: Shard) -> int:
    # Older versions stored no sizes; the number of records is as good a measure.
    return shard.size or shard.records


def _least(shards: Iterable[Shard]) -> int:
    return max(SHARD_BYTES, sum(map(_size, shards)) // MAX_SHARDS)


def _groups(shards: Sequence[Shard], least: int) -> Iterator[list[Shard]]:
    """Yields groups of consecutive shards, which begin within the same multiple of `least`."""
    before = 0
    end = 0  # of the multiple in which the group began
    group: list[Shard] = []
    for shard in shards:
        if before >= end:
            if group:
                yield group
            group = []
            end = (before // least + 1) * least
        group.append(shard)
        before += _size(shard)
    if group:
        yield group


def _join(directory: Path, name: str, shards: list[Shard], several: bool) -> Shard:
    joined, _ = _parts(directory, name)
    if joined is None:
        try:
            joined = _write(directory, name, shards, several)
        except (OSError, ValueError):
            # Another process may have deleted the shards that it joined.
            joined, _ = _parts(directory, name)
            if joined is None:
                raise
    for shard in shards:
        (directory / shard.file).unlink(missing_ok=True)
    return joined


def _write(directory: Path, name: str, shards: list[Shard], several: bool) -> Shard:
    files = [shard.file for shard in shards]
    target = place(directory) / f"{name}.array_record"
    with read_locally(directory, files) as folder, written_locally(target) as local:
        rows = itertools.chain.from_iterable(read_shard(folder / file) for file in files)
        joined = describe(local, write_shard(local, rows, unique=several))
    content = {"shard": dataclasses.asdict(joined), "chunk_shards": files}
    write_text(_description(directory, name), json.dumps(content), unique=several)
    return joined


def _parts(directory: Path, name: str) -> tuple[Shard | None, list[str]]:
    """Returns a joined shard and the names of the shards in it; (None, []) if it is incomplete."""
    content = read_json_or_empty(_description(directory, name))
    try:
        shard = Shard(**content["shard"])
        files = list(content["chunk_shards"])
    except (TypeError, KeyError):
        return None, []
    if not has_records(directory / shard.file, shard.records):
        return None, []
    return shard, files
