"""HTML pages that need no other file and no network: their templates, and what fills them."""

import json
import re
from importlib.resources import files
from pathlib import Path
from typing import Any


def fill(template: str | Path, data: Any) -> str:
    """Returns a page of HTML with its style and its data.

    Args:
        template: name of a template in this package, such as "attention.html", or the path of
            another one. It has the placeholders `/*STYLE*/` in a `<style>` element, for
            `style.css`, and `/*DATA*/` in a `<script type="application/json">` element, for
            `data`; `/*INCLUDE NAME*/` is the file NAME of this package, such as a script.
        data: what `json` can write, without NaN and infinities, which JSON does not have.
    """
    # A text may contain "</script>", which would end the element that holds the data.
    content = json.dumps(data, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
    text = template.read_text("utf-8") if isinstance(template, Path) else _read(template)
    page = re.sub(r"/\*INCLUDE (\S+)\*/", lambda match: _read(match[1]), text)
    return page.replace("/*STYLE*/", _read("style.css")).replace("/*DATA*/", content)


def _read(name: str) -> str:
    return (files("bertjax.pages") / name).read_text(encoding="utf-8")
