"""The models that come with bertjax, in one folder each, found by names such as `bertjax:tiny`."""

from pathlib import Path
from typing import Any

from bertjax.base.files import brief, did_you_mean

PREFIX = "bertjax:"


def shipped_names() -> list[str]:
    """Returns the names of all models that come with bertjax, such as "bertjax:tiny"."""
    return [f"{PREFIX}{file.parent.name}" for file in sorted(_FOLDER.glob("*/config.json"))]


def shipped_model(source: Any) -> Path | None:
    """Returns the directory of the model `bertjax:NAME`; None if `source` does not begin so.

    Everything that reads a model or a tokenizer accepts these names. A folder of the user whose
    name begins with "bertjax:" can be named `./bertjax:...`.

    Raises:
        FileNotFoundError: no model of that name comes with bertjax; the message lists all names.
    """
    if not isinstance(source, str) or not source.startswith(PREFIX):
        return None
    known = shipped_names()
    if source not in known:
        raise FileNotFoundError(
            f"No model {brief(source, 60)!r} comes with bertjax. {did_you_mean(source, known)}"
            f"Known: {', '.join(known)}."
        )
    return _FOLDER / source.removeprefix(PREFIX)


_FOLDER = Path(__file__).parent
