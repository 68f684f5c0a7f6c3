"""Downloads files from the Hugging Face hub, or finds them in its local cache."""

import re
from collections.abc import Sequence
from pathlib import Path

_NAME = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?")


def may_be_hub_name(name: str | Path) -> bool:
    """Whether `name` is a valid name on the hub, and no local file has this name."""
    return not Path(name).exists() and _NAME.fullmatch(str(name)) is not None


def fetch(name: str, patterns: Sequence[str]) -> Path:
    """Downloads the files of a model on the hub and returns their folder in the local cache.

    Raises:
        FileNotFoundError: neither the hub nor the cache has the model.
    """
    import huggingface_hub  # a slow import, and most models are local
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    try:
        return Path(huggingface_hub.snapshot_download(name, allow_patterns=list(patterns)))
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError, ValueError) as error:
        raise FileNotFoundError(
            f"{name!r} is not a local directory, and the hub returned no model of that name "
            f"({type(error).__name__}). Check the name, the network and HF_HUB_OFFLINE; models "
            "downloaded before are read from the cache."
        ) from error
