"""Arrows of the architecture only point down, and nothing on the training path needs torch."""

import ast
import functools
import graphlib
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "bertjax"
ENTRY_POINTS = {
    *("prepare", "pretrain", "predict", "train_tokenizer", "convert", "score", "finetune", "plan"),
    *("benchmark", "visualize", "report", "quickstart", "completion", "mine"),
    *("embed", "fill_mask", "search", "export", "serve"),
}
# From the bottom to the top: a part imports only itself and the parts before it.
ORDER = (
    *("base", "pages", "shipped", "cloud", "tokenization", "data", "config", "model", "tasks"),
    *("devices", "weights", "inference", "record", "train", "planning"),
)


@functools.cache
def tree_of(file: Path) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"))


@functools.cache
def imports_of(file: Path) -> set[str]:
    """Modules and packages of ours that a file imports anywhere, without "bertjax."."""
    found = set()
    for node in ast.walk(tree_of(file)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("bertjax"):
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            modules = {name for name in names if is_module(name)}
            found |= modules or {str(node.module)}
        elif isinstance(node, ast.Import):
            found |= {a.name for a in node.names if a.name.startswith("bertjax.")}
    return {name.removeprefix("bertjax.") for name in found - {"bertjax"}}


def is_module(name: str) -> bool:
    path = PACKAGE.parent.joinpath(*name.split("."))
    return path.with_suffix(".py").is_file() or path.is_dir()


FILES = sorted(PACKAGE.rglob("*.py"))


@pytest.mark.parametrize("file", FILES, ids=lambda f: str(f.relative_to(PACKAGE)))
def test_imports_point_down(file):
    part = file.relative_to(PACKAGE).parts[0].removesuffix(".py")
    imported = {name.split(".")[0] for name in imports_of(file)} - {part}
    if part == "__init__":
        imported -= ENTRY_POINTS
    assert not imported & ENTRY_POINTS, "nobody imports an entry point"
    if part in ORDER:
        assert imported <= set(ORDER[: ORDER.index(part)])


def test_no_module_imports_itself_through_others():
    files = [file for file in FILES if file.name != "__init__.py"]  # which only hand names on
    names = {".".join(file.relative_to(PACKAGE).with_suffix("").parts): file for file in files}
    graph = {name: imports_of(file) - {name} for name, file in names.items()}
    graphlib.TopologicalSorter(graph).prepare()  # CycleError names the circle


@pytest.mark.parametrize("file", FILES, ids=lambda f: str(f.relative_to(PACKAGE)))
def test_only_weights_and_tokenization_know_families_by_name(file):
    if file.relative_to(PACKAGE).parts[0] in ("weights", "tokenization"):
        return
    tree = tree_of(file)
    read = [n for n in ast.walk(tree) if isinstance(n, ast.Attribute) and n.attr == "model_type"]
    assert not read, "families are fields of the config: ask one of these"
    names = {"bert", "roberta", "albert", "distilbert", "electra", "deberta-v2", "ernie", "mpnet"}
    names |= {"xlm-roberta", "camembert", "data2vec-text"}  # a tokenizer is of the kind modernbert
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare):
            parts = [node.left, *node.comparators]
            assert not any(isinstance(p, ast.Constant) and p.value in names for p in parts)


@pytest.mark.slow
def test_training_and_prediction_work_where_torch_and_tensorflow_cannot_be_imported():
    # Blocked, not looked for afterwards: tensorboardX loads torch by itself where it finds it.
    code = """
import importlib.abc, sys

class Blocked(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("torch", "tensorflow", "transformers"):
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Blocked())
import bertjax.train.pretraining, bertjax.train.experiments, bertjax.train.glue
import bertjax.inference.embedder, bertjax.inference.evaluation, bertjax.inference.retrieval
import bertjax.weights.tf1, bertjax.weights.torch_files
assert not {"mlflow", "trackio", "wandb"} & {*sys.modules}, "only --track needs them"
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_workers_of_prepare_do_not_load_jax():
    code = (
        "import sys, bertjax.prepare, bertjax.data.preparation.workers; print('jax' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_every_package_is_in_the_wheel():
    listed = tomllib.loads((PACKAGE.parent / "pyproject.toml").read_text())
    packages = listed["tool"]["setuptools"]["packages"]
    folders = {file.parent.relative_to(PACKAGE.parent) for file in PACKAGE.rglob("*.py")}
    assert {".".join(folder.parts) for folder in folders} <= set(packages)
