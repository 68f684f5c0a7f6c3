"""The public names of bertjax, read by `ast`, for tests of their docstrings: nothing is imported.

A name is public if neither it nor a class, module or package around it starts with an underscore;
functions inside functions are not public.
"""

import ast
import dataclasses
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

REPO = Path(__file__).parent.parent
PACKAGE = REPO / "bertjax"
Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclasses.dataclass(frozen=True)
class Name:
    """A public name, and the class around it."""

    file: Path
    path: str
    node: ast.Module | ast.ClassDef | Function
    owner: ast.ClassDef | None

    @property
    def doc(self) -> str:
        return ast.get_docstring(self.node) or ""

    @property
    def full_doc(self) -> str:
        """The docstring, with those of overridden methods or of the class of a special method."""
        if isinstance(self.node, Function) and is_special(self):
            return "\n".join([self.doc, (self.owner and ast.get_docstring(self.owner)) or ""])
        return "\n".join([self.doc, *overridden(self)])

    def lacks(self, what: str, node: ast.AST | None = None) -> str:
        line = getattr(node or self.node, "lineno", 1)
        return f"{self.file.relative_to(REPO)}:{line} {self.path or 'module'}: {what}"


@cache
def tree(file: Path) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"))


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


@cache
def files() -> list[Path]:
    found = sorted(PACKAGE.rglob("*.py"))
    return [f for f in found if not any(is_private(p) for p in f.relative_to(PACKAGE).parts)]


@cache
def public_names() -> list[Name]:
    """Returns all public modules, classes, functions, methods and properties."""
    names = []
    for file in files():
        names.append(Name(file, "", tree(file), None))
        names += _inside(file, tree(file).body, "", None)
    return names


def _inside(
    file: Path, body: list[ast.stmt], prefix: str, owner: ast.ClassDef | None
) -> Iterator[Name]:
    for node in body:
        if isinstance(node, ast.If | ast.Try):
            yield from _inside(file, [*node.body, *node.orelse], prefix, owner)
        elif isinstance(node, ast.ClassDef | Function) and not is_private(node.name):
            if "overload" in decorators(node):
                continue
            yield Name(file, prefix + node.name, node, owner)
            if isinstance(node, ast.ClassDef):
                yield from _inside(file, node.body, f"{prefix}{node.name}.", node)


def decorators(node: ast.ClassDef | Function) -> set[str]:
    return {ast.unparse(d).partition("(")[0].rpartition(".")[2] for d in node.decorator_list}


def functions() -> list[tuple[Name, Function]]:
    return [(name, name.node) for name in public_names() if isinstance(name.node, Function)]


def classes() -> list[tuple[Name, ast.ClassDef]]:
    return [(name, name.node) for name in public_names() if isinstance(name.node, ast.ClassDef)]


@cache
def class_by_name() -> dict[str, ast.ClassDef]:
    return {n.name: n for file in files() for n in tree(file).body if isinstance(n, ast.ClassDef)}


def bases(node: ast.ClassDef) -> Iterator[ast.ClassDef]:
    """Yields the base classes of `node` that bertjax defines, nearest first."""
    for base in node.bases:
        known = class_by_name().get(ast.unparse(base).partition("[")[0].rpartition(".")[2])
        if known is not None:
            yield known
            yield from bases(known)


def base_names(node: ast.ClassDef) -> set[str]:
    return {ast.unparse(base) for n in [node, *bases(node)] for base in n.bases}


def overridden(name: Name) -> list[str]:
    """Returns the docstrings of the methods of base classes that the method `name` overrides."""
    methods = [n for base in (bases(name.owner) if name.owner else ()) for n in base.body]
    same = [n for n in methods if isinstance(n, Function) and n.name == name.path.split(".")[-1]]
    return [doc for node in same if (doc := ast.get_docstring(node))]


def is_special(name: Name) -> bool:
    """Whether `name` is a special method other than `__call__`, or `setup` of a linen module."""
    method = name.path.rpartition(".")[2]
    if method == "setup":
        return name.owner is not None and "nn.Module" in base_names(name.owner)
    return method.startswith("__") and method != "__call__"


def own_nodes(function: Function) -> Iterator[ast.AST]:
    """Yields the nodes of a function's body except those of functions inside it."""
    waiting: list[ast.AST] = [*function.body]
    while waiting:
        node = waiting.pop()
        yield node
        if not isinstance(node, Function | ast.Lambda | ast.ClassDef):
            waiting += ast.iter_child_nodes(node)


def private_callees(name: Name) -> list[Function]:
    """Returns the private functions of the module or class that `name` calls, also indirectly."""
    module = {n.name: n for n in tree(name.file).body if isinstance(n, Function)}
    own = {n.name: n for n in (name.owner.body if name.owner else ()) if isinstance(n, Function)}
    assert isinstance(name.node, Function)
    callees, waiting = {}, [name.node]
    while waiting:
        for node in own_nodes(waiting.pop()):
            called = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
            scope = own if called.startswith(("self.", "cls.")) else module
            callee = scope.get(called.removeprefix("self.").removeprefix("cls."))
            if callee is not None and is_private(callee.name) and callee.name not in callees:
                callees[callee.name] = callee
                waiting.append(callee)
    return list(callees.values())


def caught(function: Function, file: Path) -> set[str]:
    """Returns the names of the exceptions in the `except` clauses of a function.

    A name of a tuple in `file`, as in `except DAMAGE`, stands for its elements.
    """
    handlers = [n.type for n in own_nodes(function) if isinstance(n, ast.ExceptHandler) and n.type]
    names = {name for handler in handlers for name in re.findall(r"\w+", ast.unparse(handler))}
    for statement in tree(file).body:
        if isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) in names:
            names |= set(re.findall(r"\w+", ast.unparse(statement.value)))
    return names


def raised(function: Function) -> set[str]:
    """Returns the names of the exceptions that a function raises by `raise X` or `raise X(...)`."""
    raises = [n.exc for n in own_nodes(function) if isinstance(n, ast.Raise) and n.exc]
    texts = {ast.unparse(n.func if isinstance(n, ast.Call) else n) for n in raises}
    names = {text.rpartition(".")[2] for text in texts}
    return {n for n in names if n[0].isupper()} - {"NotImplementedError", "AssertionError"}


def section(doc: str, title: str) -> str:
    """Returns the indented text under `title:` in a docstring; "" if there is no such section."""
    match = re.search(rf"^{title}:\n((?:[ \t]+.*\n?|\n)*)", doc, re.MULTILINE)
    return match[1] if match else ""


def entries(text: str) -> list[str]:
    """Returns the names that a section "Args:" or "Attributes:" describes."""
    lines = [line for line in text.splitlines() if line.strip()]
    indent = min((len(line) - len(line.lstrip()) for line in lines), default=0)
    heads = [line.strip() for line in lines if len(line) - len(line.lstrip()) == indent]
    return [head.partition(":")[0].strip(" *") for head in heads]


def parameters(function: Function) -> list[ast.arg]:
    a = function.args
    every = [*a.posonlyargs, *a.args, *a.kwonlyargs, *(x for x in (a.vararg, a.kwarg) if x)]
    return [x for x in every if x.arg not in ("self", "cls") and not is_private(x.arg)]


def fields(node: ast.ClassDef) -> Iterator[tuple[ast.AnnAssign, str, str]]:
    """Yields (statement, name, string literal below) of the public fields of a class."""
    if not (
        "dataclass" in decorators(node)
        or base_names(node) & {"NamedTuple", "TypedDict", "nn.Module"}
    ):
        return
    for statement, following in zip(node.body, [*node.body[1:], ast.Pass()], strict=True):
        if not isinstance(statement, ast.AnnAssign) or not isinstance(statement.target, ast.Name):
            continue
        if "ClassVar" not in ast.unparse(statement.annotation):
            below = following.value if isinstance(following, ast.Expr) else None
            text = str(below.value) if isinstance(below, ast.Constant) else ""
            if not is_private(statement.target.id):
                yield statement, statement.target.id, text
