"""Files of the Hugging Face hub, from its cache or the network."""

import re
from collections.abc import Sequence
from pathlib import Path

_NAME = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?")


def may_be_hub_name(name: str | Path) -> bool:
    """Whether nothing of that name is here, and the hub might have it."""
    return not Path(name).exists() and _NAME.fullmatch(str(name)) is not None


def fetch(name: str, patterns: Sequence[str]) -> Path:
    """The folder in the local cache that holds the files of a hub model.

    Raises:
        FileNotFoundError: the hub gave none, and the cache has none.
    """
    import huggingface_hub  # starts slowly, and most models are local
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    try:
        return Path(huggingface_hub.snapshot_download(name, allow_patterns=list(patterns)))
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError, ValueError) as error:
        raise FileNotFoundError(
            f"{name!r} is no local directory, and the hub gave no model of that name "
            f"({type(error).__name__}). Check the name, the network and HF_HUB_OFFLINE; a model "
            "that was fetched before is found in the cache."
        ) from error
