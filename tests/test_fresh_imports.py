"""What a module uses of a package is there after the imports that the module itself writes.

A test process has imported nearly everything, and so hides an import that a module forgot.
"""

import ast
import functools
import importlib
import importlib.util
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parent.parent
FILES = sorted((ROOT / "bertjax").rglob("*.py"))
# Optional packages that the environment of the tests lacks.
EXTRAS = {
    "apache_beam",
    "libtpu",
    "mlflow",
    "onnx",
    "onnxruntime",
    "openvino",
    "tensorflow",
    "torch",
    "trackio",
    "transformers",
    "wandb",
}


class Use(NamedTuple):
    """An attribute of what was imported, such as `jax.tree.map`, or only an import, without one."""

    imports: tuple[str, ...]
    name: str
    place: str

    @property
    def package(self) -> str:
        return self.imports[0].split()[1].split(".")[0]


class Uses(ast.NodeVisitor):
    """Collects the uses in a file, each with the imports that are visible where it stands."""

    def __init__(self, file: Path):
        self.file, self.scopes, self.found = file.relative_to(ROOT), [{}], []
        self.visit(ast.parse(file.read_text(encoding="utf-8")))

    def add(self, name: str, node: ast.AST):
        root, imports = name.split(".")[0], []
        for scope in reversed(self.scopes):
            imports = [*scope.get(root, ()), *imports]
            if root in scope and not scope[root]:
                return  # an argument or variable
        if imports and not any(i.split()[1].split(".")[0] == "bertjax" for i in imports):
            self.found.append(Use(tuple(imports), name, f"{self.file}:{node.lineno}"))

    def visit_If(self, node: ast.If):
        if "TYPE_CHECKING" not in ast.unparse(node.test):
            self.generic_visit(node)

    def visit_Import(self, node: ast.Import | ast.ImportFrom):
        start = f"from {node.module} import" if isinstance(node, ast.ImportFrom) else "import"
        for alias in node.names:
            name = alias.asname or (alias.name if "from" in start else alias.name.split(".")[0])
            self.scopes[-1].setdefault(name, []).append(f"{start} {ast.unparse(alias)}")
            self.add(name, node)

    visit_ImportFrom = visit_Import

    def visit_FunctionDef(self, node):
        arguments = {child.arg: [] for child in ast.walk(node) if isinstance(child, ast.arg)}
        stored = (child for child in ast.walk(node) if isinstance(child, ast.Name))
        stored = {child.id: [] for child in stored if isinstance(child.ctx, ast.Store)}
        self.scopes.append(arguments | stored)
        self.generic_visit(node)
        self.scopes.pop()

    visit_AsyncFunctionDef = visit_FunctionDef

    def visit_Attribute(self, node: ast.Attribute):
        read = node.value if isinstance(node.ctx, ast.Store) else node
        name = ast.unparse(read)
        if all(part.isidentifier() for part in name.split(".")):
            self.add(name, node)
        else:
            self.generic_visit(node)


@functools.cache
def uses() -> list[Use]:
    return [use for file in FILES for use in Uses(file).found]


def missing(use: Use, names: dict[str, object]) -> str:
    """The first part of the use that does not exist, as far as it is in modules, or ""."""
    value, done = names[use.name.split(".")[0]], use.name.split(".")[0]
    for part in use.name.split(".")[1:]:
        if not isinstance(value, ModuleType):
            return ""
        done = f"{done}.{part}"
        if not hasattr(value, part):
            return f"{use.place} uses {done}, which is absent after {'; '.join(use.imports)}"
        value = getattr(value, part)
    return ""


@pytest.mark.slow
def test_every_name_of_another_package_exists():
    # Also in functions that no other test may call with the installed versions.
    faults = []
    for use in uses():
        if use.package in EXTRAS and importlib.util.find_spec(use.package) is None:
            continue
        names: dict[str, object] = {}
        for statement in use.imports:
            exec(statement, names)
        faults.append(missing(use, names))
    assert not [fault for fault in faults if fault]


def run_all(codes: dict[str, str]) -> dict[str, str]:
    """Runs each code in a process of its own; returns what the failed ones said, by their keys."""

    def run(code: str) -> str:
        command = [sys.executable, "-W", "error", "-c", code]
        done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=900)
        return done.stderr if done.returncode else ""

    with ThreadPoolExecutor(os.cpu_count()) as threads:
        said = dict(zip(codes, threads.map(run, codes.values()), strict=True))
    return {key: text for key, text in said.items() if text}


def is_submodule(use: Use) -> bool:
    """Whether the use is a module in a package, which may be absent until somebody imports it."""
    module, *parts = use.name.split(".")
    if not parts or use.imports[0].startswith("from") or f"import {use.name}" in use.imports:
        return False
    names: dict[str, object] = {}
    exec(use.imports[0], names)
    package = names[module]
    if not hasattr(package, "__path__"):
        return False
    name = f"{package.__name__}.{parts[0]}"  # type: ignore[attr-defined]
    return name in sys.modules or importlib.util.find_spec(name) is not None


@pytest.mark.slow
def test_modules_in_packages_are_imported_by_those_who_use_them():
    codes: dict[str, set[str]] = {}
    for use in uses():
        if use.package not in EXTRAS and is_submodule(use):
            module, part = use.name.split(".")[:2]
            codes.setdefault("\n".join(use.imports), set()).add(f"{module}.{part}")
    assert len(codes) > 5
    assert not run_all({code: "\n".join([code, *sorted(names)]) for code, names in codes.items()})


def test_an_import_that_is_forgotten_is_seen(tmp_path):
    # huggingface_hub's `constants` is there only after somebody has imported it.
    names: dict[str, object] = {"package": ModuleType("package")}
    use = Use(("import package",), "package.constants.HF_TOKEN", "bertjax/x.py:1")
    assert missing(use, names) == (
        "bertjax/x.py:1 uses package.constants, which is absent after import package"
    )
    assert run_all(
        {"alone": "import xml; xml.etree", "both": "import xml.etree; xml.etree"}
    ).keys() == {"alone"}


# Imported once, as they take nearly all of the time. That nobody imports for another what it needs
# of them is what the test of modules in packages sees.
LARGE = "jax.numpy flax.linen optax orbax.checkpoint grain pyarrow sklearn scipy.stats tensorboardX"
ALONE = """
import importlib, os, sys, traceback, warnings

for package in sys.argv[1].split():
    importlib.import_module(package)
warnings.filterwarnings("error", module="bertjax")  # old packages warn about newer ones
failed = 0
for module in sys.argv[2:]:
    with warnings.catch_warnings(action="ignore"):  # of jax about forks
        process = os.fork()
    if not process:
        try:
            importlib.import_module(module)
            status = 0
        except BaseException:
            print(module, "alone:", traceback.format_exc(), file=sys.stderr, flush=True)
            status = 1
        os._exit(status)
    failed |= os.waitpid(process, 0)[1]
sys.exit(bool(failed))
"""


def import_alone(modules: list[str], packages: str) -> str:
    """Imports each module in a process that has imported only packages; returns what failed."""
    command = [sys.executable, "-W", "ignore", "-c", ALONE, packages, *modules]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=900)
    assert done.returncode == bool(done.stderr), done.stderr
    return done.stderr


# That no module imports itself through others is a fast test.
@pytest.mark.slow
@pytest.mark.exhaustive
def test_every_module_can_be_imported_alone():
    paths = [file.relative_to(ROOT).with_suffix("").parts for file in FILES]
    modules = {".".join(path).removesuffix(".__init__") for path in paths}
    assert not import_alone(sorted(modules), LARGE)


def test_a_module_that_cannot_be_imported_alone_is_named():
    said = import_alone(["bertjax.config", "bertjax.absent", "bertjax.base"], "")
    assert said.count(" alone: ") == said.count("bertjax.absent alone: ") == 1
