"""Text for terminals: what strangers wrote into files cannot command the terminal that shows it."""

import contextlib
import json
import os
import re
import sys
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import rich.console

# Commands of terminals, marks of direction, invisible tags, and what UTF-8 cannot encode.
_CONTROLS = re.compile(
    "[\0-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u206f\ud800-\udfff"
    "\U000e0000-\U000e007f]"
)


def printable(text: str) -> str:
    """Returns `text`, with JSON's escapes for all that could command a terminal."""
    return _CONTROLS.sub(lambda found: json.dumps(found[0])[1:-1].replace("\x7f", "\\u007f"), text)


class _Printable:
    def __init__(self, stream: Any):
        self.rich_proxied_file = stream  # rich writes to it

    def write(self, text: str) -> int:
        return self.rich_proxied_file.write(printable(text))

    def writelines(self, lines: Iterable[str]) -> None:
        self.write("".join(lines))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.rich_proxied_file, name)


def unfiltered(stream: Any) -> Any:
    """Returns the stream below the filters that `printable_output` and rich have put over it."""
    while (below := getattr(stream, "rich_proxied_file", None)) is not None:
        stream = below
    return stream


@contextlib.contextmanager
def printable_output(wanted: bool = True) -> Iterator[None]:
    """A context in which all that is printed is `printable`; `wanted=False`: as it is.

    The latter is for libraries that colour what they print or move the cursor.
    The filters remain after an error, for the traceback that Python prints.
    """
    before = sys.stdout, sys.stderr
    streams = map(unfiltered, before)
    sys.stdout, sys.stderr = map(_Printable, streams) if wanted else streams
    kept = wanted
    if wanted:
        # Python 3.13 colours tracebacks, by commands that the filter would show.
        os.environ.setdefault("PYTHON_COLORS", "0")
    try:
        yield
        kept = False
    finally:
        if not kept:
            sys.stdout, sys.stderr = before


def filter_above_live_display() -> None:
    """Puts filters over the streams that a live display of rich has redirected until it ends."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if hasattr(stream, "rich_proxied_file") and not isinstance(stream, _Printable):
            setattr(sys, name, _Printable(stream))


def console(*, stderr: bool = False, **options: Any) -> "rich.console.Console":
    """Returns a console of rich for texts without markup, all of which are made `printable`."""
    import rich.console

    class Console(rich.console.Console):
        def render_str(self, text: str, **options: Any) -> Any:
            return super().render_str(printable(text), **options)

        def render(self, *arguments: Any, **options: Any) -> Iterator[Any]:
            for part in super().render(*arguments, **options):
                yield part if part.control else part._replace(text=printable(part.text))

    file = unfiltered(sys.stderr if stderr else sys.stdout)
    return Console(**{"file": file, "stderr": stderr, "markup": False, "emoji": False} | options)
