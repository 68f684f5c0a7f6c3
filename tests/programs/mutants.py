"""Changes the code, one expression at a time, and counts the changes that no test notices.

    python -m tests.programs.mutants [--count 300] [--seed 0] [--output FILE] [--only model]

A seeded sample of mutants is drawn from the modules of `GROUPS`: another comparison or operator,
`and` for `or`, a condition negated, a number one higher, True for False. Each is made in a copy of
the checkout, in which the fast tests of its group run until one fails: those that have the name of
the module first. The copy keeps the compiled programs of the checkout. A mutant that no test kills
is equivalent, or shows what the tests do not see.

Prints a line for each mutant that survives, and how many were killed in each group. With --output,
each mutant is a line of JSON there, and those that stand there already are left out.
"""

import argparse
import ast
import collections
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent.parent


class Group(NamedTuple):
    """Modules, as a glob; the tests that may kill their mutants; their share of the sample."""

    modules: str
    tests: tuple[str, ...]
    share: float


GROUPS = {
    "model": Group("bertjax/model/*.py", ("tests/model", "tests/weights"), 0.6),
    "batches": Group("bertjax/data/batches/*.py", ("tests/data/batches", "tests/train"), 0.2),
    "step": Group("bertjax/train/step.py", ("tests/train",), 0.1),
    "metrics": Group("bertjax/tasks/metrics.py", ("tests/tasks",), 0.1),
}
COMPARISONS: dict[type[ast.cmpop], str] = {
    **{ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">"},
    **{ast.Eq: "!=", ast.NotEq: "==", ast.Is: "is not", ast.IsNot: "is"},
    **{ast.In: "not in", ast.NotIn: "in"},
}
OPERATORS: dict[type[ast.operator], str] = {
    **{ast.Add: "-", ast.Sub: "+", ast.Mult: "/", ast.Div: "*", ast.FloorDiv: "*"},
    **{ast.Mod: "*", ast.Pow: "*", ast.BitAnd: "|", ast.BitOr: "&"},
}
# A mutant may make a loop endless.
SECONDS = 900


class Mutant(NamedTuple):
    """A change of a module: the bytes from `start` to `stop` become `text`."""

    group: str
    path: str
    line: int
    start: int
    stop: int
    text: str

    @property
    def key(self) -> str:
        """What tells it from others."""
        return f"{self.path}:{self.start}:{self.text}"


def mutants_of(group: str, path: Path) -> Iterator[Mutant]:
    """Yields all mutants of a module."""
    source = path.read_bytes()
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))

    def place(node: ast.expr) -> tuple[int, int]:
        start = starts[node.lineno - 1] + node.col_offset
        return start, starts[(node.end_lineno or 0) - 1] + (node.end_col_offset or 0)

    def text_of(node: ast.expr) -> str:
        start, stop = place(node)
        return f"({source[start:stop].decode()})"

    tree = ast.parse(source)
    left_out = set(_without_effect(tree))
    for node in ast.walk(tree):
        if node in left_out:
            continue
        if isinstance(node, ast.If | ast.IfExp | ast.While):
            changed, text = node.test, f"not {text_of(node.test)}"
        elif isinstance(node, ast.Compare) and len(node.ops) == 1:
            operator = COMPARISONS[type(node.ops[0])]
            changed, text = node, f"{text_of(node.left)} {operator} {text_of(node.comparators[0])}"
        elif isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
            operator = OPERATORS[type(node.op)]
            changed, text = node, f"{text_of(node.left)} {operator} {text_of(node.right)}"
        elif isinstance(node, ast.BoolOp):
            operator = " or " if isinstance(node.op, ast.And) else " and "
            changed, text = node, operator.join(map(text_of, node.values))
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.Not):
            changed, text = node, text_of(node.operand)
        elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
            changed, text = node, str(not node.value)
        elif isinstance(node, ast.Constant) and isinstance(node.value, int | float):
            changed, text = node, f"{node.value!r} + 1"
        else:
            continue
        yield Mutant(group, str(path), changed.lineno, *place(changed), f"({text})")


def _without_effect(tree: ast.Module) -> Iterator[ast.AST]:
    """Yields the nodes of annotations and of messages."""
    for node in ast.walk(tree):
        parts: list[ast.AST | None] = []
        if isinstance(node, ast.FunctionDef):
            arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
            parts = [node.returns, *(argument.annotation for argument in arguments)]
        elif isinstance(node, ast.AnnAssign):
            parts = [node.annotation]
        elif isinstance(node, ast.JoinedStr | ast.Raise):
            parts = [node]
        for part in parts:
            if part is not None:
                yield from ast.walk(part)


def drawn(count: int, seed: int, only: str | None) -> list[Mutant]:
    """Draws a sample of mutants, in which each group has its share."""
    rng = random.Random(seed)
    sample = []
    for name, group in GROUPS.items():
        found = []
        for path in sorted(Path().glob(group.modules)):
            found.extend(mutants_of(name, path))
        chosen = rng.sample(found, min(len(found), round(count * group.share)))
        if only in (None, name):
            sample.extend(chosen)
    rng.shuffle(sample)
    return sample


def is_killed(mutant: Mutant) -> bool:
    """Runs the tests of a mutant in the working directory, a copy of the checkout."""
    path = Path(mutant.path)
    source = path.read_bytes()
    tests = GROUPS[mutant.group].tests
    own = [str(file) for file in Path(tests[0]).glob(f"*{path.stem}*.py")]
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-n", "0", *own, *tests]
    path.write_bytes(source[: mutant.start] + mutant.text.encode() + source[mutant.stop :])
    try:
        done = subprocess.run(command, capture_output=True, timeout=SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return True
    finally:
        path.write_bytes(source)
    return done.returncode != 0


def main() -> None:
    """Tries the mutants that the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", choices=[*GROUPS])
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    output = options.output.absolute() if options.output else None
    known = set()
    if output is not None and output.exists():
        known = {json.loads(line)["key"] for line in output.read_text().splitlines()}
    killed: collections.Counter[str] = collections.Counter()
    tried: collections.Counter[str] = collections.Counter()
    with tempfile.TemporaryDirectory() as folder:
        for name in ("bertjax", "tests", "docs", "configs", "launch", "benchmarks"):
            shutil.copytree(ROOT / name, Path(folder, name))
        for name in ("pyproject.toml", "README.md"):
            shutil.copy(ROOT / name, folder)
        Path(folder, ".pytest_cache").mkdir()
        Path(folder, ".pytest_cache", "jax").symlink_to(ROOT / ".pytest_cache" / "jax")
        os.chdir(folder)
        os.environ["PYTHONPATH"] = folder
        for mutant in drawn(options.count, options.seed, options.only):
            if mutant.key in known:
                continue
            start = time.monotonic()
            result = is_killed(mutant)
            tried[mutant.group] += 1
            killed[mutant.group] += result
            if not result:
                print(f"survives: {mutant.path}:{mutant.line}: {mutant.text}", flush=True)
            if output is not None:
                seconds = round(time.monotonic() - start)
                line = mutant._asdict() | {"key": mutant.key, "killed": result, "seconds": seconds}
                with output.open("a") as file:
                    file.write(json.dumps(line) + "\n")
    for name, count in tried.items():
        print(f"{name}: {killed[name]} of {count} mutants killed")


if __name__ == "__main__":
    main()
