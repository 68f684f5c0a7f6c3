"""File helpers: atomic writes of files, JSON with clear errors, spelling hints."""

import contextlib
import difflib
import errno
import json
import math
import os
import re
import struct
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

# Maximum size of JSON files: the largest tokenizer.json of the supported families has 17 MB.
MAX_JSON_BYTES = 1 << 25
MAX_MESSAGE = 400
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_REMOTE = re.compile(r"[a-z0-9]+://")
MALFORMED = (
    ValueError,
    TypeError,
    LookupError,
    AttributeError,
    ArithmeticError,
    RecursionError,
    AssertionError,
    struct.error,
)


def is_remote(path: Any) -> bool:
    """Returns whether `path` is an address such as gs://... or s3://..., not a local path.

    Raises ValueError, without the address, if it holds the name of a user or a password.
    """
    scheme = _REMOTE.match(os.fspath(path))
    if scheme and "@" in os.fspath(path)[scheme.end() :].partition("/")[0]:
        raise ValueError(
            f"An address {scheme[0]}... holds the name of a user or a password, which logs would "
            "keep: leave them out, and log in (gs://: gcloud auth application-default login; "
            "s3://: aws configure)."
        )
    return scheme is not None


def cache_folder() -> Path:
    """Returns the cache folder of this package, in XDG_CACHE_HOME or ~/.cache; it may not exist.

    Raises:
        OSError: XDG_CACHE_HOME is not set, and the user has no home folder.
    """
    if cache := os.environ.get("XDG_CACHE_HOME"):
        return Path(cache) / "bertjax"
    try:
        return Path.home() / ".cache" / "bertjax"
    except RuntimeError as error:
        raise OSError(
            "This user has neither a name nor a home folder: set the environment variable HOME, or "
            "XDG_CACHE_HOME, to a folder."
        ) from error


@contextlib.contextmanager
def naming_write_errors(place: str | Path, consequence: str = "") -> Iterator[None]:
    """Re-raises an OSError of the `with` block with a message that names `place` and a remedy.

    `consequence`, such as "its old content is unchanged", is appended to the reason. An OSError
    without an errno already names the file.
    """
    try:
        yield
    except OSError as error:
        if error.errno is None:
            raise
        raise OSError(_not_written(place, error, consequence)) from error


def _not_written(place: str | Path, error: OSError, consequence: str = "") -> str:
    reason = str(error)
    if consequence:
        reason += f"; {consequence}"
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        remedy = "Get the right to write there"
    elif error.errno in NO_ROOM:
        remedy = "Make room"
    else:
        remedy = "Remove the cause"
    return (
        f"Writing {place} failed ({reason}). {remedy}, or choose another place; then run the same "
        "command again."
    )


@contextlib.contextmanager
def writing(path: str | Path, *, unique: bool = False) -> Iterator[Path]:
    """Yields the path of a temporary file, which is renamed to `path` at the end of the block.

    If the `with` block raises an error or does not create the file, `path` is unchanged. `unique`
    gives the temporary file a random name, for a `path` that several processes or machines may
    write at the same time. Raises OSError if the disk is full or fails.
    """
    path = Path(path)
    temporary = path.with_name(f"{path.name}.tmp")
    if unique:
        temporary = path.with_name(f"{path.name}.{uuid.uuid4().hex}.tmp")
    try:
        temporary.unlink(missing_ok=True)  # a link there could lead anywhere
        yield temporary
        if temporary.exists():
            os.replace(temporary, path)
    except OSError as error:
        if error.errno is None or error.filename not in (None, str(temporary), str(path)):
            raise  # already explained, or about a file that the block reads
        raise OSError(_not_written(path, error)) from error
    finally:
        with contextlib.suppress(OSError):  # a folder without rights
            temporary.unlink(missing_ok=True)


def write_bytes(path: Path, content: bytes, *, unique: bool = False) -> None:
    """Writes a file, which may be in a bucket, atomically; arguments and errors as in `writing`."""
    if is_remote(path):  # writes to a bucket are atomic
        path.write_bytes(content)
        return
    with writing(path, unique=unique) as temporary, temporary.open("xb") as file:
        file.write(content)


def write_text(path: Path, text: str, *, unique: bool = False) -> None:
    """Writes a file in UTF-8 atomically; arguments and errors are as in `writing`."""
    write_bytes(path, text.encode(), unique=unique)


def write_json(path: Path, content: Any) -> None:
    """Writes `content` to the JSON file `path` atomically; errors as in `write_bytes`."""
    write_text(path, json.dumps(content, indent=2) + "\n")


def in_json(value: Any) -> Any:
    """Returns `value` with None for NaN and infinities, which JSON does not have."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {key: in_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [in_json(item) for item in value]
    return value


@contextlib.contextmanager
def naming_read_errors(
    file: str | Path, remedy: str = "copy or download it again"
) -> Iterator[None]:
    """Converts errors that the content of `file` causes to a ValueError that names `file`.

    A missing entry, a value of a wrong type and a number out of range all become a ValueError,
    which ends with `remedy`. A short ValueError that already names `file` is raised unchanged.
    """
    try:
        yield
    except MALFORMED as error:
        message = str(error)
        if isinstance(error, ValueError) and str(file) in message and len(message) <= MAX_MESSAGE:
            raise
        message = brief(message.replace(str(file), "it"), MAX_MESSAGE)
        if type(error) is ValueError and message.endswith("."):  # ours, with its own remedy
            room = MAX_MESSAGE - len(str(file)) - 2
            raise ValueError(f"{file}: {brief(message, room)}") from error
        kind = "" if type(error) is ValueError else f"{type(error).__name__}: "
        raise ValueError(f"{file} cannot be read ({kind}{brief(message)}): {remedy}.") from error


def read_json(
    path: Path,
    remedy: str = "copy or download it again",
    max_bytes: int = MAX_JSON_BYTES,
    kind: type = dict,
) -> Any:
    """Reads a UTF-8 JSON file, with or without a byte order mark, and returns its content.

    Parsing needs up to 24 times the size of the file in memory. Raises OSError, or ValueError if
    the file is not JSON, is too large, or its content is not of the type `kind`, dict or list.
    """
    try:
        content = json.loads(read_bytes(path, max_bytes).decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        if str(path) in str(error):
            raise
        raise ValueError(
            f"{path} cannot be read, because it is not JSON in UTF-8 ({brief(error)}): {remedy}."
        ) from error
    if not isinstance(content, kind):
        expected = "an object" if kind is dict else "an array"
        raise ValueError(
            f"{path} cannot be read, because it holds a {type(content).__name__}, not {expected}: "
            f"{remedy}."
        )
    return content


def read_json_or_empty(path: Path, kind: type = dict) -> Any:
    """Returns the content of a JSON file; `kind()` if it is missing, damaged or of another type."""
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return kind()
    if isinstance(content, kind):
        return content
    return kind()


def json_lines(path: Path) -> Iterator[dict[str, Any] | None]:
    """Yields the lines of a file of JSON objects, and None where it is damaged.

    A missing file counts as an empty one. A truncated last line, which a kill leaves or which is
    being written now, is left out, and is no damage. NUL bytes around a line, which a crash of the
    machine leaves, are damage, but the line follows.
    """
    if not path.is_file():
        return
    with path.open("rb") as file:
        for text in file:
            line = None
            if text.endswith(b"\n"):
                line = _json_object(text)
            elif text.startswith(b"{") and b"\0" not in text:
                return
            if line is None:
                yield None
                line = _json_object(text.strip(b"\0\n"))
            if line is not None:
                yield line


def append_json(path: Path, content: Mapping[str, Any]) -> None:
    """Appends a line to a file of JSON objects."""
    with naming_write_errors(path), path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(content) + "\n")


def _json_object(text: bytes) -> dict[str, Any] | None:
    try:
        content = json.loads(text.decode())
    except (ValueError, RecursionError):
        return None
    if isinstance(content, dict):
        return content
    return None


def read_bytes(path: Path, max_bytes: int) -> bytes:
    """Reads a file; raises ValueError if it has more than `max_bytes` bytes, or OSError."""
    content = bytearray()
    with path.open("rb") as file:  # a single read would allocate max_bytes
        while len(content) <= max_bytes and (block := file.read(1 << 22)):
            content += block
    if len(content) > max_bytes:
        raise ValueError(
            f"{path} has more than {max_bytes:,} bytes, the most that bertjax reads: check that it "
            "is the right file."
        )
    return bytes(content)


def refuse_links_outside(directory: str | Path) -> None:
    """Raises ValueError if a link in a local directory of others leads out of it, or for a pipe.

    A stranger's files could otherwise make their user read, write or publish a private file, such
    as a token. `directory` itself may be a link. In the cache of the Hugging Face Hub, links to the
    blobs of the repository are allowed, and BERTJAX_FOLLOW_LINKS=1 allows all links.
    """
    if is_remote(directory) or os.environ.get("BERTJAX_FOLLOW_LINKS") == "1":
        return
    directory = Path(directory)
    root = directory.resolve()
    for parent in (*directory.absolute().parents, *root.parents):
        if parent.name == "snapshots" and "--" in parent.parent.name:
            root = parent.parent.resolve()
    for parent, folders, files in os.walk(directory):
        for name in (*folders, *files):
            _check_entry(Path(parent, name), root)


def _check_entry(entry: Path, root: Path) -> None:
    target = Path(os.path.realpath(entry))  # `resolve` raises for a loop of links
    if entry.is_symlink() and not target.is_relative_to(root):
        raise ValueError(
            f"{entry} is a link to {target}, which is outside of {root}: links that leave a "
            "directory of others are not followed, since they could expose or change private "
            "files. If you made the link, set BERTJAX_FOLLOW_LINKS=1."
        )
    if entry.is_fifo():
        raise ValueError(f"{entry} is a pipe, which no model or run has: remove it.")


def unused(path: Path) -> Path:
    """Returns the path `PATH-N` with the first number N from 1 that does not exist."""
    number = 1
    while path.with_name(f"{path.name}-{number}").exists():
        number += 1
    return path.with_name(f"{path.name}-{number}")


def set_aside(path: Path) -> Path:
    """Copies a damaged file to `NAME.damaged-N` with the first unused N; returns the new path."""
    copy = unused(path.with_name(f"{path.name}.damaged"))
    write_bytes(copy, path.read_bytes())
    return copy


def is_file_name(name: str) -> bool:
    """Whether `name` is the name of a file without a folder, and short enough for file systems."""
    return (
        Path(name).name == name
        and name not in ("", "..")
        and len(name.encode("utf-8", "replace")) <= 255
    )


def brief(content: Any, limit: int = 120) -> str:
    """Returns `content` as one line of at most `limit` characters, for an error message."""
    try:
        text = content if isinstance(content, str) else str(content)
    except (RecursionError, ValueError):  # nested too deeply, or a number of too many digits
        text = f"a {type(content).__name__}"
    text = " ".join(text[: 20 * limit].split())
    if len(text) > limit:
        text = f"{text[: limit - 3]}..."
    return "".join(character if character.isprintable() else "?" for character in text)


def counted(count: int, noun: str, ending: str = "s") -> str:
    """Returns "1 row" or "1,200 rows"; `ending` is that of the plural."""
    if count == 1:
        ending = ""
    return f"{count:,} {noun}{ending}"


def listed(names: Sequence[Any], limit: int = 70) -> str:
    """Joins `names` with commas, for an error message of about `limit` characters.

    Of many or long names, it is their number and the first of them; of none, "nothing".
    """
    if not names:
        return "nothing"
    first = ", ".join(brief(name, limit) for name in names[:9])
    if len(names) <= 9 and len(first) <= limit:
        return first
    return f"{len(names)} ({brief(first, limit - 10)})"


def did_you_mean(name: Any, known: Iterable[str]) -> str:
    """Returns `Did you mean 'x'? ` with the most similar name in `known`; "" if none is similar."""
    matches = difflib.get_close_matches(str(name), list(known), n=1, cutoff=0.4)
    if matches:
        return f"Did you mean {matches[0]!r}? "
    return ""
