"""Downloads model files from the Hugging Face hub, or finds the files in the hub's local cache."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from bertjax.cloud.hub import MAIN, explained_hub, shown_download

_NAME = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?")


def may_be_hub_name(name: str | Path) -> bool:
    """Whether `name` is a valid hub name (model or owner/model) and not an existing local path."""
    return not Path(name).exists() and _NAME.fullmatch(str(name)) is not None


def fetch(
    name: str,
    patterns: Sequence[str],
    *,
    kind: Literal["model", "dataset"] = "model",
    revision: str = MAIN,
    remedy: str = "",
) -> Path:
    """Downloads files of a model or dataset on the hub; returns the local folder with the files.

    Args:
        patterns: glob patterns of the names of the files to download; files downloaded before are
            read from the local cache of the hub.
        revision: the branch, tag or commit.
        remedy: text that ends the error message, such as another way to get the files.

    Raises:
        FileNotFoundError: the model or dataset is neither on the hub nor in the local cache; or it
            is not in the cache, and HF_HUB_OFFLINE forbids to ask the hub.
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
        if huggingface_hub.is_offline_mode():
            raise FileNotFoundError(
                f"{name!r} is not a local directory, and is not in the cache of downloaded "
                f"{kind}s; the hub was not asked, because HF_HUB_OFFLINE is set. Check the name, "
                f"or unset HF_HUB_OFFLINE to download it.{remedy}"
            ) from error
        raise FileNotFoundError(
            f"{name!r} is not a local directory, and the hub returned no {kind} of that name "
            f"({type(error.__cause__ or error).__name__}). Check the name and the network; "
            f"{kind}s downloaded before are read from the cache.{remedy}"
        ) from error
