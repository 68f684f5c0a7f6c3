"""Changes the code, one expression at a time, and counts the changes that no test notices.

    pytest --cov --cov-context=test --cov-report=
    python -m tests.programs.mutants [--coverage .coverage] [--count 300] [--processes 2]
        [--output FILE] [--only model]

A seeded sample of mutants is drawn from the modules of `GROUPS`: another comparison or operator,
`and` for `or`, a condition negated, a number one higher, True for False. Each is made in a copy of
the checkout, in which fast tests run until one fails: those first that have killed other mutants,
then those that have the name of the module. With --coverage, these are the tests that run the
changed statement, as the first command finds them (it needs pytest-cov), and then those of the same
files, which may share a fixture that runs it; without it, and for what runs only when a module is
imported, those of the group. The copy keeps the compiled programs of the checkout. A mutant that no
test kills is equivalent, or shows what the tests do not see.

Prints a line for each mutant that survives, and how many were killed in each group. With --output,
each mutant is a line of JSON there with the test that killed it, and those that stand there already
are left out.
"""

import argparse
import ast
import collections
import contextlib
import json
import multiprocessing
import os
import queue
import random
import shutil
import signal
import tempfile
import time
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NamedTuple

import pytest

from tests import jax_settings  # noqa: F401 - before jax is imported

ROOT = Path(__file__).parent.parent.parent


class Group(NamedTuple):
    """Modules, as a glob; the tests that may kill their mutants; their share of the sample."""

    modules: str
    tests: tuple[str, ...]
    share: float


GROUPS = {
    "model": Group("bertjax/model/*.py", ("tests/model", "tests/weights"), 0.6),
    "batches": Group("bertjax/data/batches/*.py", ("tests/data/batches", "tests/train"), 0.2),
    "step": Group(
        "bertjax/train/step.py",
        ("tests/train", "tests/test_pretrain.py", "tests/test_finetune.py"),
        0.1,
    ),
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
# What the tests import beside this project.
LIBRARIES = ["flax.linen", "optax", "orbax.checkpoint", "grain", "torch", "transformers", "pytest"]
# So long are tests started; a mutant that makes a loop endless is stopped after twice that time.
SECONDS = 300


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


class Tests(NamedTuple):
    """Files of tests; those of them that run first, in this order, and those that run next."""

    files: Sequence[str]
    first: Sequence[str]
    next: Collection[str]


class Killers:
    """A plugin of pytest: runs the tests first that have killed most, and sends what failed."""

    def __init__(self, tests: Tests, failed: Connection):
        self.places = {name: place - len(tests.first) for place, name in enumerate(tests.first)}
        self.next, self.failed = tests.next, failed
        self.start = time.monotonic()

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items.sort(key=lambda item: self.places.get(item.nodeid, item.nodeid not in self.next))

    def pytest_runtest_protocol(self, item: pytest.Item) -> None:
        if time.monotonic() - self.start > SECONDS:
            item.session.shouldstop = "the time of a mutant is over"

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        self.pytest_runtest_logreport(report)

    def pytest_runtest_logreport(self, report: pytest.CollectReport | pytest.TestReport) -> None:
        if report.failed:
            self.failed.send(report.nodeid)


def run_tests(folder: str, tests: Tests, failed: Connection) -> None:
    """Runs tests in a copy of the checkout until one fails, as a process of its own."""
    os.setpgrp()
    os.chdir(folder)
    os.environ["PYTHONPATH"] = folder
    with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), 1)
        os.dup2(nowhere.fileno(), 2)
    # Plugins of the libraries that are imported already keep their assertions as they are.
    warnings = ["-W", "ignore::pytest.PytestAssertRewriteWarning"]
    arguments = ["-x", "-q", "-n", "0", "-p", "no:cacheprovider", *warnings, *tests.files]
    os._exit(int(pytest.main(arguments, plugins=[Killers(tests, failed)])))


def tests_that_run(coverage: Path, mutant: Mutant) -> set[str]:
    """Returns the tests that run the statement of a mutant, from the data of coverage.py.

    A statement that runs when its module is imported has "" among them.
    """
    from coverage import CoverageData

    data = CoverageData(str(coverage))
    data.read()
    path = ROOT / mutant.path
    statements = [
        node.lineno
        for node in ast.walk(ast.parse(path.read_bytes()))
        if isinstance(node, ast.stmt) and node.lineno <= mutant.line <= (node.end_lineno or 0)
    ]
    first = max(statements, default=mutant.line)  # a decorator is above its function
    contexts = data.contexts_by_lineno(str(path))
    lines = range(first, mutant.line + 1)
    return {context.partition("|")[0] for line in lines for context in contexts.get(line, ())}


class Copy:
    """A copy of the checkout, in which one mutant after another is tried.

    Processes of tests are forked from one that has imported the other libraries, which takes longer
    than most mutants live.
    """

    def __init__(self, folder: Path, coverage: Path | None):
        self.folder, self.coverage = folder, coverage
        for name in ("bertjax", "tests", "docs", "configs", "launch", "benchmarks"):
            shutil.copytree(ROOT / name, folder / name)
        for name in ("pyproject.toml", "README.md"):
            shutil.copy(ROOT / name, folder)
        (folder / ".pytest_cache").mkdir()
        (folder / ".pytest_cache" / "jax").symlink_to(ROOT / ".pytest_cache" / "jax")
        self.processes = multiprocessing.get_context("forkserver")

    def killer(self, mutant: Mutant, first: Sequence[str]) -> str | None:
        """Returns the name of the test that a mutant fails, or None if it passes all."""
        path = self.folder / mutant.path
        chosen = {""} if self.coverage is None else tests_that_run(self.coverage, mutant)
        if not chosen:
            return None
        chosen.discard("")
        files = sorted({name.partition("::")[0] for name in chosen}) or GROUPS[mutant.group].tests
        own = sorted((self.folder / GROUPS[mutant.group].tests[0]).glob(f"*{path.stem}*.py"))
        files = [*dict.fromkeys([*(str(file.relative_to(self.folder)) for file in own), *files])]
        received, failed = self.processes.Pipe(duplex=False)
        source = path.read_bytes()
        path.write_bytes(source[: mutant.start] + mutant.text.encode() + source[mutant.stop :])
        process = self.processes.Process(
            target=run_tests, args=(str(self.folder), Tests(files, first, chosen), failed)
        )
        try:
            process.start()
            failed.close()
            process.join(2 * SECONDS)
            if process.exitcode in (pytest.ExitCode.OK, pytest.ExitCode.INTERRUPTED):
                return None
            if process.exitcode is None:
                return "none: it was stopped after the time of a mutant"
            with contextlib.suppress(EOFError):
                return received.recv()
            return f"none: it ended with status {process.exitcode}"
        finally:
            if process.pid is not None and process.is_alive():
                os.killpg(process.pid, signal.SIGKILL)
                process.join()
            path.write_bytes(source)


def tried(
    chosen: Sequence[Mutant], processes: int, coverage: Path | None
) -> Iterator[tuple[Mutant, str | None, float]]:
    """Yields each mutant with the test that killed it and the seconds it took."""
    killers: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    copies: queue.SimpleQueue[Copy] = queue.SimpleQueue()

    def attempt(mutant: Mutant) -> tuple[Mutant, str | None, float]:
        copy = copies.get()
        start = time.monotonic()
        try:
            first = [name for name, _ in killers[mutant.group].most_common()]
            killer = copy.killer(mutant, first)
            if killer is not None:
                killers[mutant.group][killer] += 1
            return mutant, killer, time.monotonic() - start
        finally:
            copies.put(copy)

    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(processes) as pool:
        for place in range(processes):
            copies.put(Copy(Path(folder, str(place)), coverage))
        done = [pool.submit(attempt, mutant) for mutant in chosen]
        for future in as_completed(done):
            yield future.result()


def main() -> None:
    """Tries the mutants that the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", choices=[*GROUPS])
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--output", type=Path)
    parser.add_argument("--coverage", type=Path, help="which tests run which line")
    options = parser.parse_args()
    known = set()
    if options.output is not None and options.output.exists():
        known = {json.loads(line)["key"] for line in options.output.read_text().splitlines()}
    sample = drawn(options.count, options.seed, options.only)
    chosen = [mutant for mutant in sample if mutant.key not in known]
    killed: collections.Counter[str] = collections.Counter()
    counted: collections.Counter[str] = collections.Counter()
    multiprocessing.get_context("forkserver").set_forkserver_preload(LIBRARIES)
    for mutant, killer, seconds in tried(chosen, options.processes, options.coverage):
        counted[mutant.group] += 1
        killed[mutant.group] += killer is not None
        if killer is None:
            print(f"survives: {mutant.path}:{mutant.line}: {mutant.text}", flush=True)
        if options.output is not None:
            line = mutant._asdict() | {
                "key": mutant.key,
                "killer": killer,
                "seconds": round(seconds),
            }
            with options.output.open("a") as file:
                file.write(json.dumps(line) + "\n")
    for name, count in counted.items():
        print(f"{name}: {killed[name]} of {count} mutants killed")


if __name__ == "__main__":
    main()
