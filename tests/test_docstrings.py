"""Public names of bertjax are documented: parameters, shapes, units, errors and sources.

The files are read by `ast`: nothing is imported. A name is public if neither it nor a class, module
or package around it starts with an underscore; functions inside functions are not public. These
need no docstring of their own:

- special methods other than `__call__`: the class documents them, including the errors that
  `__init__` and `__post_init__` raise;
- `setup` of a linen module, which only creates layers;
- a method that overrides a method of a base class in bertjax; it is documented by the docstring of
  the base class and its own together;
- overloads, which add nothing but types.

"Raises:" must name the errors of `raise X(...)` in a function and in the private functions of its
module that it calls. Errors of other public functions are documented there.
"""

import ast
import dataclasses
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

REPO = Path(__file__).parent.parent
PACKAGE = REPO / "bertjax"
PAGES = REPO / "docs" / "api"
# The functions of the package itself are on the first page; __main__ is the command line.
NOT_ON_PAGES = {"bertjax", "bertjax.__main__"}

Function = ast.FunctionDef | ast.AsyncFunctionDef

ARRAY = re.compile(r"\b(jax\.Array|np\.ndarray|ArrayLike)\b")
SHAPE = re.compile(
    r"\[(?!CLS|SEP|MASK|UNK|PAD)(\w|[-+*/(),. ])+\]|\bscalars?\b|\bshapes?\b|\bbatch contract\b"
)
# Parts of names, and the words one of which describes their unit.
UNITS = {
    "seconds|timeout|interval|period": "second|minute|step|epoch",
    "bytes|memory": r"bytes?\b|[KMG]i?B\b",
    "flops": "FLOP",
    "bandwidth": r"bytes?\b|[GT]i?B\b",
    "throughput|per_second": "second",
}
SOURCE = re.compile(
    r"et al\.|\b(19|20)\d\d\b|transformers|Optax|Flax|Hugging Face|google-research|PyTorch|BERT's"
)
# Errors that a context manager around the `raise` turns into others.
TRANSLATED = {("Checkpointer.save", "RuntimeError")}
# Linen modules whose origin is not published, because it is bertjax.
OWN_DESIGN = {"BertWithHead", "TokenHead", "FeatureTagger"}
# Modules that follow a paper or the public code of others.
SOURCED = """
data/batches/masking data/preparation/objectives data/preparation/packing data/preparation/segments
devices/flops devices/roofline model/attention model/bert model/embeddings model/encoder
model/flash_attention model/flash_kernels model/fused_attention model/heads model/losses
model/pretraining_heads model/soft_targets model/tagger planning/chips tasks/classification
tasks/metrics tasks/multiple_choice tasks/question_answering tasks/sources/conll tasks/sources/glue
tasks/sources/squad tasks/sources/swag tasks/squad_metrics tasks/tag_schemes tasks/tagging
tokenization/bpe tokenization/unigram tokenization/wordpiece training/distillation training/lamb
training/loss_history training/optimizer weights/hf weights/sentence_modules weights/student
weights/tf1
""".split()


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


def check(offenders: list[str]) -> None:
    if offenders:
        pytest.fail(f"{len(offenders)} names:\n" + "\n".join(offenders), pytrace=False)


def test_every_public_name_has_a_docstring():
    names = [n for n in public_names() if not is_special(n) and len(n.full_doc.split()) < 3]
    check([name.lacks("no docstring") for name in names])


def test_raises_sections_name_the_errors_that_a_function_raises():
    offenders = []
    for name, node in functions():
        if is_special(name) and name.owner is None:
            continue  # __getattr__ and __dir__ of a module
        documented = section(name.doc, "Raises") + section(name.full_doc, "Raises")
        callees = private_callees(name)
        handled = set[str]().union(*(caught(function, name.file) for function in [node, *callees]))
        for function in [node, *callees]:
            errors = raised(function) if function is node else raised(function) - handled
            via = "" if function is node else f", which {function.name} raises"
            offenders += [
                name.lacks(f'"Raises:" lacks {error}{via}')
                for error in sorted(errors)
                if not re.search(rf"\b{error}\b", documented)
                and (name.path, error) not in TRANSLATED
            ]
    check(offenders)


def test_every_parameter_is_named_in_the_docstring():
    offenders = []
    for name, node in functions():
        unnamed = [a.arg for a in parameters(node) if not re.search(rf"\b{a.arg}\b", name.full_doc)]
        several = len(parameters(node)) > 1 or node.name in ("__call__", "__init__")
        if unnamed and several and (not is_special(name) or node.name == "__init__"):
            offenders.append(name.lacks(f"nothing about {', '.join(unnamed)}"))
    check(offenders)


def test_functions_of_arrays_tell_the_shapes():
    offenders = []
    for name, node in functions():
        annotations = [a.annotation for a in parameters(node)] + [node.returns]
        types = " ".join(ast.unparse(a) for a in annotations if a is not None)
        if ARRAY.search(types) and not is_special(name) and not SHAPE.search(name.full_doc):
            offenders.append(name.lacks(f"no shapes, such as [B, L], for {types}"))
    check(offenders)


def test_described_parameters_and_attributes_exist():
    offenders = []
    for name, node in functions():
        known = {a.arg for a in parameters(node)}
        unknown = [e for e in entries(section(name.doc, "Args")) if e not in known]
        offenders += [name.lacks(f'"Args:" describes {entry!r}') for entry in unknown]
    for name, node in classes():
        nodes = [n for c in [node, *bases(node)] for n in ast.walk(c)]
        known = {n.attr for n in nodes if isinstance(n, ast.Attribute)}
        known |= {n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
        known |= {n.name for n in nodes if isinstance(n, Function)}
        unknown = [e for e in entries(section(name.doc, "Attributes")) if e not in known]
        offenders += [name.lacks(f'"Attributes:" describes {entry!r}') for entry in unknown]
        inits = [n for n in node.body if isinstance(n, Function) and n.name == "__init__"]
        known = {a.arg for init in inits for a in parameters(init)}
        unknown = [e for e in entries(section(name.doc, "Args")) if e not in known]
        offenders += [name.lacks(f'"Args:" describes {entry!r}') for entry in unknown]
    check(offenders)


def test_every_field_is_described():
    # Configs: by a string below the field, which --help prints, too. Other records: in the class.
    offenders = []
    for name, node in classes():
        documented = "\n".join([name.doc, *(ast.get_docstring(base) or "" for base in bases(node))])
        is_config = name.file.parent.name == "config" and "Config" in node.name
        for statement, field, below in fields(node):
            if not below and (is_config or not re.search(rf"\b{field}\b", documented)):
                offenders.append(name.lacks(f"nothing about the field {field}", statement))
    check(offenders)


def test_times_sizes_and_rates_have_units():
    offenders = []
    for name in public_names():
        described = []
        if isinstance(name.node, Function):
            described = [(a.arg, name.full_doc) for a in parameters(name.node)]
            described.append((name.node.name, name.full_doc))
        elif isinstance(name.node, ast.ClassDef):
            described = [(field, below or name.doc) for _, field, below in fields(name.node)]
        for subject, text in described:
            for parts, words in UNITS.items():
                if re.search(rf"(^|_)({parts})$", subject) and not re.search(words, text):
                    offenders.append(name.lacks(f"no unit of {subject}"))
    check(offenders)


def test_what_others_published_names_its_source():
    what, offenders = "no source, such as Devlin et al. 2018, 3.1", []
    for name in public_names():
        node, doc = name.node, name.doc
        if isinstance(node, ast.Module):
            module = str(name.file.relative_to(PACKAGE).with_suffix(""))
            needed = module in SOURCED
        elif isinstance(node, ast.ClassDef):
            doc += "".join(ast.get_docstring(base) or "" for base in bases(node))
            needed = "nn.Module" in base_names(node) and node.name not in OWN_DESIGN
        else:
            result = ast.unparse(node.returns) if node.returns else ""
            needed = "GradientTransformation" in result
        if needed and not SOURCE.search(doc):
            offenders.append(name.lacks(what))
    missing = [module for module in SOURCED if not (PACKAGE / f"{module}.py").is_file()]
    check(offenders + [f"{module}.py does not exist: correct SOURCED" for module in missing])


def test_docstrings_are_plain_markdown():
    # Outside of backticks, Markdown takes <x> for HTML, *x* for emphasis and [x][y] for a link.
    offenders = []
    for name in public_names():
        texts = [name.doc]
        if isinstance(name.node, ast.ClassDef):
            texts += [below for _, _, below in fields(name.node)]
        for text in texts:
            prose = re.sub(r"`[^`]*`", "", text)
            found = re.findall(r"<[/!a-zA-Z][^>\n]*>|(?<!\w)\*\w[^\n]*\w\*|\][\[(]|^#.*", prose)
            offenders += [name.lacks(f"put {markup!r} into backticks") for markup in found]
        # A colon in the first line would make a type of the text before it.
        if ": " in section(name.doc, "Returns").partition("\n")[0] + " ":
            offenders.append(name.lacks('the first line of "Returns:" has a colon'))
    check(offenders)


def test_every_module_is_on_exactly_one_page_of_the_api_reference():
    shown = [
        line.removeprefix("::: ").strip()
        for page in sorted(PAGES.glob("*.md"))
        for line in page.read_text(encoding="utf-8").splitlines()
        if line.startswith("::: ")
    ]
    parts = [file.relative_to(REPO).with_suffix("").parts for file in files()]
    modules = {".".join(p).removesuffix(".__init__") for p in parts} - NOT_ON_PAGES
    check(
        [
            f"{module} is on {shown.count(module)} pages"
            for module in sorted(modules)
            if shown.count(module) != 1
        ]
    )
