"""The public API is documented: what --help and the API reference would otherwise lack.

What a docstring should say stands in CONTRIBUTING.md.
"""

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

REPO = Path(__file__).parent.parent
PACKAGE = REPO / "bertjax"
FILES = sorted(PACKAGE.rglob("*.py"))

Definition = ast.ClassDef | ast.FunctionDef


@functools.cache
def classes() -> dict[str, list[ast.ClassDef]]:
    """Returns the classes by their names; two packages may have one of the same name."""
    found: dict[str, list[ast.ClassDef]] = {}
    for source in FILES:
        for node in ast.walk(ast.parse(source.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                found.setdefault(node.name, []).append(node)
    return found


def bases(node: ast.ClassDef) -> Iterator[ast.ClassDef]:
    """Yields the base classes of a class that bertjax defines."""
    for base in node.bases:
        name = ast.unparse(base).partition("[")[0].rpartition(".")[2]
        for known in classes().get(name, ()):
            if known is not node:
                yield known
                yield from bases(known)


def public(body: list[ast.stmt]) -> list[Definition]:
    """Returns the public functions and classes among the statements of a module or class."""
    defined = [node for node in body if isinstance(node, Definition)]
    return [node for node in defined if not node.name.startswith("_") and node.name != "setup"]


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(PACKAGE)))
def test_public_names_have_docstrings_that_describe_what_exists(file):
    tree = ast.parse(file.read_text(encoding="utf-8"))
    named = [(node.name, node) for node in public(tree.body)]
    for _, owner in list(named):
        if isinstance(owner, ast.ClassDef):
            known = {
                n.name for base in bases(owner) for n in base.body if isinstance(n, Definition)
            }
            # An override is documented by its base, and by what differs.
            named += [
                (f"{owner.name}.{n.name}", n) for n in public(owner.body) if n.name not in known
            ]
    offenders = [] if ast.get_docstring(tree) or not tree.body else ["the module"]
    for name, node in named:
        doc = ast.get_docstring(node) or ""
        overloaded = any("overload" in ast.unparse(d) for d in node.decorator_list)
        if len(doc.split()) < 3 and not overloaded:
            offenders.append(f"{name} has no docstring")
        if isinstance(node, ast.FunctionDef) and "\nArgs:\n" in doc:
            section = re.split(r"\n\S", doc.split("\nArgs:\n", 1)[1])[0]
            parameters = {a.arg for a in ast.walk(node.args) if isinstance(a, ast.arg)}
            described = set(re.findall(r"^    (\w+):", section, re.MULTILINE))
            offenders += [f"{name} describes {x!r}" for x in sorted(described - parameters)]
    assert not offenders


def test_every_field_of_a_config_has_a_help_text():
    for name, node in ((name, node) for name, nodes in classes().items() for node in nodes):
        if "Config" not in name or not any(
            "dataclass" in ast.unparse(d) for d in node.decorator_list
        ):
            continue
        doc = ast.get_docstring(node) or ""
        for field, below in zip(node.body, [*node.body[1:], None], strict=True):
            if isinstance(field, ast.AnnAssign) and "ClassVar" not in ast.unparse(field.annotation):
                described = isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant)
                target = ast.unparse(field.target)
                assert described or re.search(rf"\b{target}\b", doc), f"{name}.{target}"


def test_every_package_is_on_a_page_of_the_api_reference():
    pages = "".join(page.read_text("utf-8") for page in (REPO / "docs" / "api").glob("*.md"))
    shown = set(
        re.findall(r"^::: (bertjax\.\w+)\n    options:\n      show_submodules", pages, re.M)
    )
    packages = {f"bertjax.{folder.parent.name}" for folder in REPO.glob("bertjax/*/__init__.py")}
    assert packages - {"bertjax.shipped"} == shown
