"""Every message that the page on troubleshooting quotes is one that the source can print."""

import ast
import re
from functools import cache

import pytest

from tests.test_readme import ROOT

PAGE = (ROOT / "docs/troubleshooting.md").read_text(encoding="utf-8")
QUOTED = re.findall(r"^### `(.*)`$", PAGE, re.MULTILINE)
GAP = "\0"  # what stands for the values of an f-string


def texts_of(node: ast.AST) -> str:
    """The text of a string or f-string, with a gap for each value; empty for other nodes."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else ""
    if isinstance(node, ast.JoinedStr):
        parts = (texts_of(x) if isinstance(x, ast.Constant) else GAP for x in node.values)
        return "".join(parts)
    return ""


@cache
def strings() -> tuple[str, ...]:
    """All strings of the package but docstrings and other statements."""
    found = set()
    for file in (ROOT / "bertjax").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Expr):
                found.update(texts_of(child) for child in ast.iter_child_nodes(node))
    return tuple(found)


def is_printed(message: str) -> bool:
    """Whether one string of the source has the parts between `...`, in this order."""
    pieces = [piece.strip() for piece in message.split("...")]
    pattern = re.compile(".*".join(map(re.escape, pieces)), re.DOTALL)
    return any(pattern.search(text) for text in strings())


@pytest.mark.parametrize("message", QUOTED)
def test_a_quoted_message_is_in_the_source(message):
    assert len(message.replace("...", "").replace(" ", "")) >= 10, "quote more of the message"
    assert is_printed(message)


def test_messages_that_are_not_in_the_source_are_noticed():
    assert len(QUOTED) == len(set(QUOTED)) >= 40
    assert is_printed("hidden_size=... is not a multiple of num_attention_heads=")
    assert not is_printed("num_attention_heads=... is not a multiple of hidden_size=")
    assert not is_printed(PAGE[:100])


def test_every_entry_says_what_to_do():
    for entry in re.split(r"^#{2,3} ", PAGE, flags=re.MULTILINE)[1:]:
        heading, _, text = entry.partition("\n")
        assert len(text.split()) >= 10 or not heading.startswith("`"), heading
