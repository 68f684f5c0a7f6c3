"""An English corpus that needs no download: the docstrings of Python and installed packages.

Source files are parsed, never imported. Each Python module gives one document that consists of the
docstrings and of the strings and comments of several lines in the module, in source order, without
code, tables, markup and repeated sentences.
"""

import ast
import gc
import importlib.metadata
import importlib.util
import itertools
import os
import platform
import re
import sysconfig
import textwrap
from collections.abc import Iterator
from typing import Any

from bertjax.data.text.sentences import split_sentences

# Dependencies of bertjax, so the corpus is nearly the same everywhere. Missing ones are skipped.
PACKAGES = (
    "absl", "etils", "flax", "fsspec", "grain", "huggingface_hub", "jax", "joblib", "narwhals",
    "numpy", "optax", "orbax", "psutil", "pyarrow", "pygments", "requests", "rich", "scipy",
    "sklearn", "tensorflow_datasets", "treescope", "tyro",
)  # fmt: skip
_DISTRIBUTIONS = {"absl": "absl-py", "orbax": "orbax-checkpoint", "sklearn": "scikit-learn"}
_SKIPPED_FOLDERS = frozenset(
    "test tests testing idlelib lib2to3 site-packages dist-packages __pycache__ _vendor externals "
    "array_api_compat array_api_extra ensurepip".split()
)
# Directives with indented text; the content of all others is code, a table or a formula.
_TEXT_DIRECTIVES = frozenset(
    "note warning tip important caution attention seealso deprecated versionadded "
    "versionchanged hint danger topic admonition".split()
)
_UNDERLINE = re.compile(r"^([=\-~^*#\"'+`_])\1{2,}$")
_TABLE = re.compile(r"^[=+\-|][=+\-| ]{3,}$|^\|.*\|$")
_ENTRY = re.compile(
    r"^[*`]{0,3}[A-Za-z_][\w.*]*[*`]*(?:, ?[*`]*\w+[*`]*)*(?: \([^()]*\))?:\s+(\S.*)$"
)
_TYPED_ENTRY = re.compile(r"^[*`]{0,3}[A-Za-z_][\w.*]*[*`]*(?:, ?[*`]*[\w.]+[*`]*)* ?: ?\S.*$")
_FIELD = re.compile(r"^:\w+[^:]*:\s*(.*)$")  # :param x: text
_BULLET = re.compile(r"^(?:[*+\-•]|\d{1,2}[.)]|\(?[a-z]\)|#\.)\s+(?=\S)")
_MARKUP = (
    ("`", re.compile(r":[\w:+.-]+:`~?([^`<>]*?)(?:\s*<[^`>]*>)?`"), r"\1"),  # :class:`~a.B`
    ("`", re.compile(r"`([^`<>]+?)\s*<[^`>]*>`__?"), r"\1"),  # `text <link>`_
    ("`", re.compile(r"``?([^`]+)``?_?"), r"\1"),
    ("](", re.compile(r"\[([^\[\]]+)\]\([^()\s]*\)"), r"\1"),  # [text](link)
    ("]_", re.compile(r"\s?\[[\w.-]+\]_"), ""),  # citation
    ("**", re.compile(r"\*\*([^*\s][^*]*)\*\*"), r"\1"),
    ("*", re.compile(r"(?<!\w)\*([^*\s][^*]*)\*(?!\w)"), r"\1"),
    ("|", re.compile(r"\|(\w+)\|"), r"\1"),
)
_WORD = re.compile(r"^[\"'(]*[A-Za-z]+(?:[-'’/][A-Za-z]+)*[\"')]*[.,;:!?]*[\"')]*$")
_SHORTEST_SENTENCE_WORDS = 4
_SHARE_OF_PLAIN_WORDS = 0.75
_LONG_COMMENT_LINES = 3
_LONG_STRING_LINES = 3
_LEGAL = re.compile(r"copyright|licen[cs]e|warranty|redistribut", re.IGNORECASE)


def package_roots() -> list[tuple[str, str]]:
    """Returns ("NAME VERSION", folder) pairs of the standard library and installed `PACKAGES`."""
    stdlib = sysconfig.get_paths()["stdlib"]
    roots = [(f"python {platform.python_version()}", stdlib)]
    for package in PACKAGES:
        # find_spec of a top-level name locates it without importing it.
        spec = importlib.util.find_spec(package)
        if spec is not None and spec.submodule_search_locations:
            folder = spec.submodule_search_locations[0]
            roots.append((f"{package} {_version(package)}", folder))
    return roots


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(_DISTRIBUTIONS.get(package, package))
    except importlib.metadata.PackageNotFoundError:  # installed by hand
        return "of unknown version"


def read_pydocs(roots: list[tuple[str, str]]) -> Iterator[str]:
    """Yields one text per Python module below `roots`, with one paragraph per line.

    A sentence that occurs several times in the modules is yielded only the first time.
    """
    seen: set[int] = set()
    for _, root in roots:
        for path in _source_files(root):
            with open(path, encoding="utf-8", errors="replace") as file:
                source = file.read()
            paragraphs = list(module_paragraphs(source, seen))
            if paragraphs:
                yield "\n".join(paragraphs)


def _source_files(root: str) -> Iterator[str]:
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(
            name for name in folders if name not in _SKIPPED_FOLDERS and not name.startswith(".")
        )
        for name in sorted(names):
            is_test = name.startswith("test_") or name.endswith("_test.py")
            if name.endswith(".py") and not is_test and name != "conftest.py":
                yield os.path.join(folder, name)


def module_paragraphs(source: str, seen: set[int]) -> Iterator[str]:
    """Yields the English paragraphs of the strings and comments of a module, in source order.

    Sentences whose hashes, of lower case, are in `seen` are left out; others are added to `seen`.
    """
    blocks = sorted([*_long_strings(source), *_long_comments(source)])
    for _, text in blocks:
        for paragraph in clean(text):
            sentences = []
            for sentence in split_sentences(paragraph):
                key = hash(sentence.lower())
                if key not in seen and is_english(sentence):
                    seen.add(key)
                    sentences.append(sentence)
            if sentences:
                yield " ".join(sentences)


def _long_strings(source: str) -> Iterator[tuple[int, str]]:
    """Yields (line number, text) of string statements, and of long strings in other statements."""
    # A syntax tree has a million objects and no cycles; garbage collection takes 20 % of the time.
    collecting = gc.isenabled()
    gc.disable()
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):
        return  # templates, and sources for other versions of Python
    finally:
        if collecting:
            gc.enable()
    for statement in tree.body:
        # numpy documents its compiled functions in calls, scipy in templates.
        if isinstance(statement, ast.Assign | ast.Expr):
            nodes: Iterator[Any] = ast.walk(statement)
            for node in nodes:
                if _is_string(node):
                    is_docstring = isinstance(statement, ast.Expr) and node is statement.value
                    if is_docstring or node.value.count("\n") >= _LONG_STRING_LINES:
                        yield node.lineno, node.value
        else:
            yield from _strings_of_bodies(statement)


def _is_string(node: Any) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def _strings_of_bodies(statement: ast.stmt) -> Iterator[tuple[int, str]]:
    for child in getattr(statement, "body", ()):
        if isinstance(child, ast.Expr):
            node: Any = child.value
            if _is_string(node):
                yield node.lineno, node.value
        else:
            yield from _strings_of_bodies(child)
    for field in ("orelse", "handlers"):
        for child in getattr(statement, field, ()):
            yield from _strings_of_bodies(child)


def _long_comments(source: str) -> Iterator[tuple[int, str]]:
    block: list[str] = []
    for number, line in enumerate(source.split("\n")):
        stripped = line.strip()
        if stripped.startswith("#") and not stripped.startswith("#!"):
            text = stripped.lstrip("#").removeprefix(":")
            block.append(text.removeprefix(" "))
            continue
        if len(block) >= _LONG_COMMENT_LINES:
            text = "\n".join(block)
            if not _LEGAL.search(text):
                yield number - len(block) + 1, text
        block = []


def clean(text: str) -> Iterator[str]:
    """Yields the paragraphs of a docstring as plain text, without code, tables and headings."""
    first, _, rest = text.expandtabs().partition("\n")
    rest = textwrap.dedent(rest)
    lines = [first.strip(), *rest.split("\n")]
    held: list[str] = []
    held_indent = 0
    hanging = False  # the paragraph began with a bullet or `name:`, so its other lines are indented
    literal_indent: int | None = None  # lines with a larger indent are code
    for number, (raw, following) in enumerate(itertools.pairwise([*lines, ""])):
        line = raw.strip()
        indent = len(raw) - len(raw.lstrip())
        if literal_indent is not None and line:
            if indent > literal_indent:
                continue
            literal_indent = None
        breaks, starts_hanging, kept = _read_line(line, following.strip())
        if held and kept is not None and not breaks:
            continues_hanging = hanging and indent > held_indent
            is_second = len(held) == 1 and number == 1
            breaks = not (continues_hanging or is_second or indent == held_indent)
        if breaks or kept is None:
            if held:
                yield _plain(held)
            held = []
            hanging = False
        if kept:
            if not held:
                held_indent = indent
                hanging = starts_hanging
            held.append(kept)
        if line.endswith("::") or _is_code_directive(line):
            literal_indent = indent
    if held:
        yield _plain(held)


def _read_line(line: str, following: str) -> tuple[bool, bool, str | None]:
    """Classifies a line of a docstring by its text and by `following`, the next line.

    Returns (whether it ends the paragraph above, whether indented lines may continue it, its text
    or None if it contains no prose).
    """
    no_prose = True, False, None
    if not line or line.startswith((">>>", "...", "%", "$ ", "@")):
        return no_prose
    if _UNDERLINE.match(line) or _TABLE.match(line):
        return no_prose
    if _UNDERLINE.match(following):
        return no_prose  # a heading
    if line.startswith(".. "):
        name, _, text = line[3:].partition("::")
        if name.startswith("version") or name.strip() not in _TEXT_DIRECTIVES:
            return no_prose
        return True, False, text.strip() or None
    if field := _FIELD.match(line):
        return True, True, field[1] or None
    if bullet := _BULLET.match(line):
        item = line[bullet.end() :]
        if entry := _ENTRY.match(item):
            item = entry[1]
        return True, True, item
    if entry := _ENTRY.match(line):
        # "name: a description" and "name (type): a description" are text, "x: int" is not.
        text = entry[1]
        if len(text.split()) < 3:
            text = None
        return True, True, text
    if _TYPED_ENTRY.match(line) and not line.endswith("."):
        return no_prose
    return False, False, line


def _is_code_directive(line: str) -> bool:
    if not line.startswith(".. "):
        return False
    name, _, _ = line[3:].partition("::")
    return name.strip() not in _TEXT_DIRECTIVES


def _plain(lines: list[str]) -> str:
    text = " ".join(lines)
    for signs, pattern, replacement in _MARKUP:
        if signs in text:
            text = pattern.sub(replacement, text)
    return text.replace("::", ":")


def is_english(sentence: str) -> bool:
    """Returns whether a text looks like an English sentence by its words, beginning and end."""
    words = sentence.split()
    if len(words) < _SHORTEST_SENTENCE_WORDS or not sentence.isascii():
        return False
    if sentence[-1] not in ".!?:)\"'":
        return False
    begin = sentence.lstrip("\"'(")[:1]
    if not begin.isalpha() or begin.islower():
        return False
    plain = sum(_WORD.match(word) is not None for word in words)
    return plain >= _SHARE_OF_PLAIN_WORDS * len(words)
