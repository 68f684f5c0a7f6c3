"""The Hugging Face Hub: files of datasets and models, and uploads of models.

A dataset, `hf:OWNER/NAME[@REVISION][:CONFIG[:SPLIT]]`, is pinned to the commit that its revision
has when it is opened. Its files are downloaded one by one into the Hub's local cache, where an
interrupted download continues.
"""

import bisect
import contextlib
import fnmatch
import hashlib
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from bertjax.base.addresses import repeated
from bertjax.base.files import brief, cache_folder, did_you_mean, listed, naming_read_errors
from bertjax.base.progress import BYTES, progress
from bertjax.cloud.copies import glob_matcher, local_copy

HUB_PREFIX = "hf:"
MAIN = "main"
CONVERTED = "refs/convert/parquet"
DEFAULT_CONFIG = "default"
DEFAULT_SPLIT = "train"
# Formats of files in the order in which they are looked for.
PARQUET = re.compile(r"\.parquet$")
TEXT = re.compile(r"\.(jsonl?|ndjson|txt)(\.(gz|bz2|xz|zst))?$")
_NAME = re.compile(
    r"(?P<repository>[\w.-]+/[\w.-]+)(@(?P<revision>[^:]+))?(:(?P<config>[^:]*)(:(?P<split>[^:]+))?)?"
)
# The Hub writes the files that it converts to CONFIG/SPLIT/0000.parquet. Of a large split, it
# converts only the first gigabytes, to partial-SPLIT; many files are in SPLIT-part0 and so on.
_CONVERTED_FILE = re.compile(
    r"(?P<config>.+)/(?P<partial>partial-)?(?P<split>[^/]+?)(-part\d+)?/\d{4,}\.parquet"
)
# Other files of a split are named SPLIT-00000-of-00002 or SPLIT, or are in a folder SPLIT.
_PART = re.compile(r"(?P<split>\w+?)(?P<of>-\d+-of-\d+\S*)?\.[\w.]+")
_SPLITS = ("train", "validation", "test", "dev", "valid", "eval", "unsupervised")
# The characters of globs in a card times files that they are compared with: a few seconds.
MOST_WORK = 30_000_000
# Status codes that another attempt may change.
_TEMPORARY = (408, 429, 500, 502, 503, 504)


class HubFile(NamedTuple):
    """A file of a dataset: the repository, the commit, its path there and its size in bytes."""

    repository: str
    commit: str
    path: str
    size: int

    @property
    def name(self) -> str:
        """The name of the file in messages."""
        return f"{HUB_PREFIX}{self.repository}/{self.path}"


class HubDataset(NamedTuple):
    """A split of a dataset on the Hub; `name` and `pinned` contain the commit."""

    name: str  # hf:OWNER/NAME@COMMIT:CONFIG
    split: str
    files: list[HubFile]

    @property
    def pinned(self) -> str:
        """The name of the split, as `open_dataset` accepts."""
        return f"{self.name}:{self.split}"


def is_hub_dataset(name: Any) -> bool:
    """Whether `name` names a dataset on the Hub: it begins with hf:."""
    return isinstance(name, str) and name.startswith(HUB_PREFIX)


def open_dataset(name: str) -> HubDataset:
    """Looks up the files of a split of a dataset on the Hub, without downloading them.

    The files are the Parquet files of the repository, else the ones that the Hub converted (branch
    refs/convert/parquet), else JSON lines and texts. The `configs` of the dataset's card, else the
    file names, say which files belong to which configuration and split.

    Of `name`, hf:OWNER/NAME@REVISION:CONFIG:SPLIT, all but hf:OWNER/NAME may be left out. The
    default configuration is the only one, or "default"; the default split is "train".

    Raises the errors of `explained_hub`, or ValueError if the name is malformed or there is no such
    configuration or split.
    """
    match = _NAME.fullmatch(name.removeprefix(HUB_PREFIX))
    if match is None:
        raise ValueError(
            f"{name} is not the name of a dataset on the Hub: write hf:OWNER/NAME, "
            "hf:OWNER/NAME:CONFIG or hf:OWNER/NAME:CONFIG:SPLIT, with @REVISION after NAME to read "
            "a certain branch, tag or commit."
        )
    repository = match["repository"]
    info, splits = _splits(repository, match["revision"])
    config = _choose(match["config"], splits, f"{HUB_PREFIX}{repository}", "configuration")
    files = splits[config]
    split = _choose(match["split"] or DEFAULT_SPLIT, files, f"{HUB_PREFIX}{repository}", "split")
    if any(map(_is_partial, files[split])):
        print(
            f"note: of {HUB_PREFIX}{repository}:{config}:{split}, the Hub has converted only the "
            "first part to Parquet, which is all that is read. To read the whole split, download "
            "the dataset and give its files.",
            flush=True,
        )
    # The whole hash, because the Hub knows no abbreviations of commits.
    name = f"{HUB_PREFIX}{repository}@{info.sha}:{config}"
    return HubDataset(name, split, files[split])


def _is_partial(file: HubFile) -> bool:
    match = _CONVERTED_FILE.fullmatch(file.path)
    return match is not None and match["partial"] is not None


def _splits(
    repository: str, revision: str | None
) -> tuple[Any, dict[str, dict[str, list[HubFile]]]]:
    """Returns (information about the repository, {config: {split: files}})."""
    info = _info(repository, revision or MAIN)
    splits = _by_split(info, repository, PARQUET)
    if not splits and revision is None:
        with contextlib.suppress(FileNotFoundError):
            converted = _info(repository, CONVERTED)
            if splits := _by_split(converted, repository, PARQUET):
                return converted, splits
    splits = splits or _by_split(info, repository, TEXT)
    if splits:
        return info, splits
    names = [file.rfilename for file in info.siblings or ()]
    raise ValueError(
        f"{HUB_PREFIX}{repository} has neither Parquet files nor JSON lines or texts, only "
        f"{brief(names)}: download the dataset, convert it to one of these formats, and give its "
        "files."
    )


def _info(repository: str, revision: str) -> Any:
    import huggingface_hub  # a slow import

    what = f"{HUB_PREFIX}{repository}"

    def ask() -> Any:
        with explained_hub(what, "dataset", revision):
            return huggingface_hub.HfApi().dataset_info(
                repository, revision=revision, files_metadata=True
            )

    return repeated(ask, what)


def _by_split(
    info: Any, repository: str, suffix: re.Pattern[str]
) -> dict[str, dict[str, list[HubFile]]]:
    files = []
    for file in sorted(info.siblings or (), key=lambda file: file.rfilename):
        if suffix.search(file.rfilename):
            files.append(HubFile(repository, info.sha, file.rfilename, int(file.size or 0)))
    remedy = "download the files of the dataset, and give them"
    with naming_read_errors(f"The card of {HUB_PREFIX}{repository}", remedy):
        configs = None
        if info.card_data is not None:
            configs = info.card_data.get("configs")
        named = list(_by_card(configs or (), files))
    splits: dict[str, dict[str, list[HubFile]]] = {}
    for config, split, file in named or _by_name(files):
        splits.setdefault(config, {}).setdefault(split, []).append(file)
    return splits


def _by_card(configs: Any, files: list[HubFile]) -> Iterator[tuple[str, str, HubFile]]:
    """Yields (config, split, file) as the `configs` of a card say."""
    work = 0
    paths = [file.path for file in files]
    for config in configs:
        name = str(config.get("config_name", DEFAULT_CONFIG))
        for split, patterns in _patterns(config.get("data_files") or ()):
            chosen: set[HubFile] = set()
            for pattern in patterns:
                start = re.split(r"[*?[]", pattern)[0]
                matches = glob_matcher(pattern)
                first = bisect.bisect_left(paths, start)
                end = bisect.bisect_left(paths, f"{start}\U0010ffff")
                work += (end - first + 10) * (20 + len(pattern))
                if work > MOST_WORK:
                    raise ValueError("it has too many globs for its number of files")
                chosen.update(file for file in files[first:end] if matches(file.path))
            for file in sorted(chosen):
                yield name, split, file
        folder = str(config.get("data_dir") or "").strip("/")
        if folder and "data_files" not in config:
            inside = [file for file in files if file.path.startswith(f"{folder}/")]
            for _, split, file in _by_name(inside):
                yield name, split, file


def _patterns(data_files: Any) -> Iterator[tuple[str, list[str]]]:
    """Yields (split, globs of paths) of each entry of `data_files`, a field of a card."""
    if not data_files:
        return
    if isinstance(data_files, str) or all(isinstance(entry, str) for entry in data_files):
        data_files = [{"split": DEFAULT_SPLIT, "path": data_files}]
    for entry in data_files:
        path = entry["path"]
        yield str(entry["split"]), [path] if isinstance(path, str) else list(path)


def _by_name(files: list[HubFile]) -> Iterator[tuple[str, str, HubFile]]:
    """Yields (config, split, file) by names; files that name no split are of the split "train"."""
    converted = [_CONVERTED_FILE.fullmatch(file.path) for file in files]
    for file, match in zip(files, converted, strict=True):
        if None in converted:
            yield *_config_and_split(file.path), file
        else:
            yield match["config"], match["split"], file  # type: ignore[index]


def _config_and_split(path: str) -> tuple[str, str]:
    *folders, name = path.split("/")
    match = _PART.fullmatch(name)
    if match and (match["of"] or match["split"] in _SPLITS):
        split = match["split"]
    elif folders and folders[-1] in _SPLITS:
        split = folders.pop()
    else:
        split = DEFAULT_SPLIT
    config = "/".join(folders)
    if config in ("", "data"):
        config = DEFAULT_CONFIG
    return config, split


def _choose(asked: str | None, known: dict[str, Any], where: str, what: str) -> str:
    if asked:
        if asked in known:
            return asked
        raise ValueError(
            f"{where} has no {what} {asked!r}. {did_you_mean(asked, known)}Known: "
            f"{listed([*known], 300)}. The name is hf:OWNER/NAME:CONFIG:SPLIT."
        )
    if DEFAULT_CONFIG in known:
        return DEFAULT_CONFIG
    if len(known) == 1:
        return next(iter(known))
    raise ValueError(
        f"{where} has {len(known)} configurations: name one, such as {where}:{brief([*known][0])}. "
        f"Known: {listed([*known], 300)}."
    )


def download(file: HubFile) -> Path:
    """Downloads a file into the local cache of the Hub, unless it is there; returns its path.

    Raises the errors of `explained_hub`, OSError only after several attempts.
    """
    import huggingface_hub

    def fetch() -> Path:
        explained = explained_hub(file.name, "dataset", file.commit)
        with explained, shown_download(file.name) as bar:
            return Path(
                huggingface_hub.hf_hub_download(
                    file.repository,
                    file.path,
                    repo_type="dataset",
                    revision=file.commit,
                    tqdm_class=bar,
                )
            )

    return repeated(fetch, file.name)


@contextlib.contextmanager
def shown_download(name: str) -> Iterator[Any]:
    """Shows the progress of a download of `name` in the `with` block.

    Yields a replacement for tqdm, which huggingface_hub takes as `tqdm_class` and reports to.
    """
    from huggingface_hub.utils import tqdm

    with progress(f"downloading {name}", unit=BYTES) as state:

        class Bar(tqdm):
            """A bar that draws nothing, but passes the numbers of bytes on."""

            def __init__(self, *args: Any, **kwargs: Any):
                self._counts_bytes = kwargs.get("unit") == "B"
                self._bytes = float(kwargs.get("initial") or 0)
                super().__init__(*args, **{**kwargs, "disable": True})

            def update(self, n: float | None = 1) -> None:
                self._bytes += n or 0
                # The bytes from the network and those written to the disk are counted by two bars.
                if self._counts_bytes and self._bytes > state.done:
                    state.update(self._bytes)
                    state.total = self.total or None

        yield Bar


def local_split(name: str) -> Path:
    """Downloads a split of the dataset `name`; returns its file, or a folder of several files.

    Raises the errors of `open_dataset` and `download`.
    """
    dataset = open_dataset(name)
    paths = [download(file) for file in dataset.files]
    if len(paths) == 1:
        return paths[0]
    mark = hashlib.sha256(dataset.pinned.encode()).hexdigest()[:16]
    folder = cache_folder() / "hub" / mark
    folder.mkdir(parents=True, exist_ok=True)
    for number, path in enumerate(paths):
        link = folder / f"{number:05d}-{path.name}"
        # A link of an earlier run leads nowhere if the cache of the Hub was deleted or moved. It is
        # replaced at once, because other processes may read it.
        if not link.is_file() or link.readlink() != path:
            new = folder / f".{os.getpid()}-{link.name}"
            new.unlink(missing_ok=True)
            new.symlink_to(path)
            new.replace(link)
    return folder


def local_data(name: str) -> str:
    """Returns the local path of data: a copy of what is in a bucket or on the Hub.

    Raises the errors of `local_split` and `local_copy`.
    """
    return str(local_split(name) if is_hub_dataset(name) else local_copy(name))


@contextlib.contextmanager
def explained_hub(what: str, kind: str, revision: str = MAIN) -> Iterator[None]:
    """Converts exceptions of huggingface_hub about `what`, a `kind`: "dataset" or "model".

    Raises:
        FileNotFoundError: there is no such repository, revision or file, or it is private.
        OSError: the Hub cannot be reached, or the request failed, and may be repeated.
        PermissionError: the repository is gated.
    """
    from huggingface_hub import errors

    try:
        yield
    except errors.GatedRepoError as error:
        raise PermissionError(
            f"{what} is gated: accept its conditions on its page on the Hub, then log in with `hf "
            "auth login` or set HF_TOKEN to a token that may read it."
        ) from error
    except errors.RepositoryNotFoundError as error:
        raise FileNotFoundError(
            f"The Hub has no {kind} {what}, or it is private: check the name; for a private "
            f"{kind}, log in with `hf auth login` or set HF_TOKEN."
        ) from error
    except errors.RevisionNotFoundError as error:
        raise FileNotFoundError(
            f"{what} has no revision {revision!r}: check the branch, tag or commit."
        ) from error
    except errors.OfflineModeIsEnabled as error:
        raise FileNotFoundError(
            f"{what} cannot be looked up, because HF_HUB_OFFLINE is set: unset it, or download the "
            "files on a machine with a network and give their folder."
        ) from error
    except (errors.HfHubHTTPError, errors.LocalEntryNotFoundError) as error:
        answer = error
        if isinstance(error, errors.LocalEntryNotFoundError):
            answer = error.__cause__
        if not isinstance(answer, errors.HfHubHTTPError):
            raise OSError(brief(answer or error, 200)) from error
        status = answer.response.status_code
        if status in _TEMPORARY:
            raise OSError(f"the Hub answered with status {status}") from error
        if status in (401, 403):
            raise PermissionError(
                f"{what} may not be accessed with this token (status {status}): log in with `hf "
                f"auth login`, or set HF_TOKEN to a token with rights to this {kind}."
            ) from error
        raise FileNotFoundError(f"{what} is not accessible: {brief(answer, 300)}") from error


# Files that a model in the repository may have and another one, pushed later, has not: they are
# removed. Other files in the repository remain.
FILES_OF_MODELS = (
    "*.safetensors",
    "*.safetensors.index.json",
    "pytorch_model*.bin",
    "task.json",
    "checksums.json",
    "tokenizer.json",
    "vocab.txt",
    "vocab.json",
    "merges.txt",
    "*.model",
)


def create_repository(repository: str, *, private: bool = False) -> None:
    """Creates a model repository, OWNER/NAME, unless it exists; checks the user's rights.

    A run calls this function before its first step, so that it does not fail at its end. Raises
    OSError, PermissionError for the token, or ValueError if the name is not OWNER/NAME.
    """
    import huggingface_hub  # a slow import
    from huggingface_hub import constants  # version 2 has it only as a module of its own

    _check_name(repository)
    if constants.HF_HUB_OFFLINE:
        raise OSError(
            f"Nothing can be pushed to {repository} while HF_HUB_OFFLINE is set: unset it, or "
            "leave out --push_to_hub."
        )
    if huggingface_hub.get_token() is None:
        raise PermissionError(
            f"There is no token of the Hub to push to {repository}: log in with `hf auth login`, "
            "or set HF_TOKEN to a token with the right to write."
        )

    def create() -> None:
        with explained_hub(repository, "model"):
            # None leaves the visibility to the default of the organisation.
            api = huggingface_hub.HfApi()
            api.create_repo(repository, private=private or None, exist_ok=True)
            # With exist_ok, create_repo accepts repositories of others, too.
            api.auth_check(repository, write=True)

    repeated(create, repository, "written")


def push_folder(folder: Path, repository: str, *, branch: str = MAIN) -> None:
    """Uploads the files of a model to a branch, as one commit that makes all visible at once.

    Hidden files are not uploaded, nor are files that the Hub has already, also of an interrupted
    upload. A branch that does not exist is created from the main branch. The repository OWNER/NAME
    must exist. Raises OSError after several attempts, or PermissionError.
    """
    import huggingface_hub
    from huggingface_hub import CommitOperationAdd, CommitOperationDelete

    def push() -> None:
        api = huggingface_hub.HfApi()
        with explained_hub(repository, "model", branch):
            if branch != MAIN:
                api.create_branch(repository, branch=branch, exist_ok=True)
            operations: dict[str, Any] = {}
            for name in api.list_repo_files(repository, revision=branch):
                if any(fnmatch.fnmatch(name, glob) for glob in FILES_OF_MODELS):
                    operations[name] = CommitOperationDelete(name)
            for path in sorted(folder.rglob("*")):
                name = path.relative_to(folder).as_posix()
                if path.is_file() and not name.startswith("."):
                    operations[name] = CommitOperationAdd(name, path)
            # Not `upload_folder`, which may make several commits.
            api.create_commit(
                repository,
                list(operations.values()),
                revision=branch,
                commit_message=f"Upload of {folder.name}",
            )

    try:
        repeated(push, f"{repository} (branch {branch})", "written")
    except OSError as error:
        raise OSError(
            f"{error} The model is in {folder}; bertjax convert {folder} NEW_FOLDER --push_to_hub "
            f"{repository} pushes it, too."
        ) from error
    print(f"pushed to {repository}, branch {branch}", flush=True)


def _check_name(repository: str) -> None:
    from huggingface_hub.utils import HFValidationError, validate_repo_id

    reason = "it must have one slash"
    if repository.count("/") == 1:
        reason = ""
    try:
        validate_repo_id(repository)
    except HFValidationError as error:
        reason = str(error)
    if reason:
        raise ValueError(
            f"push_to_hub={repository!r} is not the name of a repository ({reason}): write "
            "OWNER/NAME, where OWNER is your name or an organisation's on the Hub."
        )


_MODEL_NAME = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?")


def may_be_hub_name(name: str | Path) -> bool:
    """Whether `name` is a valid hub name (model or owner/model) and not an existing local path."""
    return not Path(name).exists() and _MODEL_NAME.fullmatch(str(name)) is not None


def fetch(
    name: str,
    patterns: Sequence[str],
    *,
    kind: Literal["model", "dataset"] = "model",
    revision: str = MAIN,
    remedy: str = "",
) -> Path:
    """Downloads files of a model or dataset on the hub; returns the local folder with the files.

    `patterns` are globs of their names; files downloaded before are read from the local cache of
    the hub. `remedy` ends the message of errors.

    Raises:
        FileNotFoundError: the model or dataset is neither on the hub nor in the local cache.
        PermissionError: the model or dataset is gated, or the token has no right to read it.
    """
    import huggingface_hub  # a slow import, and most models are local

    try:
        with explained_hub(name, kind, revision), shown_download(name) as bar:
            return Path(
                huggingface_hub.snapshot_download(
                    name,
                    repo_type=kind,
                    revision=revision,
                    allow_patterns=list(patterns),
                    tqdm_class=bar,
                )
            )
    except PermissionError:
        raise
    except (OSError, ValueError) as error:
        problem = (
            f"{name!r} is not a local directory, and the hub gave no {kind} of that name, or could "
            f"not be reached ({type(error.__cause__ or error).__name__}). Check name and network; "
            f"{kind}s downloaded before are read from the cache."
        )
        if huggingface_hub.is_offline_mode():
            problem = (
                f"{name!r} is not a local directory, and is not in the cache of downloaded "
                f"{kind}s; the hub was not asked, because HF_HUB_OFFLINE is set. Check the name, "
                "or unset HF_HUB_OFFLINE to download it."
            )
        raise FileNotFoundError(f"{problem}{remedy}") from error
