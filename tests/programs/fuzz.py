"""Fuzzes every reader of files with mutated, damaged and hostile input.

    python -m tests.programs.fuzz --inputs 100000 --seed 0 [--reader NAME] [--keep FOLDER]

Each input is either accepted, or refused by an error that a command prints as one line: a
ValueError or OSError that names the file in lines of at most 400 characters. The table counts
everything else as well, and the exit status is 1 if there is any. Each reader runs in its own
process, which may use 1 GB of memory beyond the imported libraries and 20 seconds per input, may
write nowhere but in its own folder, and may start no program. Inputs depend on the seed only:
`--reader NAME --first I --inputs 1` repeats input I of a reader.
"""

import argparse
import collections
import dataclasses
import functools
import multiprocessing
import os
import random
import resource
import sys
import tempfile
import time
import traceback
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")  # before the readers import jax

from bertjax.base.files import MAX_MESSAGE  # noqa: E402
from tests.programs.mutations import flip  # noqa: E402
from tests.programs.readers import READERS, Reader  # noqa: E402

MEMORY_BYTES = 1 << 30
SECONDS = 20
REFUSALS = (ValueError, OSError, ImportError)
PROBLEMS = ("traceback", "nameless", "long", "unnoticed", "forbidden", "crash", "timeout")
# Events of Python's audit hooks that no reader may cause.
FORBIDDEN = {
    *("os.system", "os.exec", "os.fork", "os.forkpty", "os.posix_spawn", "os.spawn", "pty.spawn"),
    *("subprocess.Popen", "pickle.find_class", "socket.connect", "marshal.loads", "shutil.rmtree"),
    *("os.remove", "os.rename", "os.link", "os.symlink", "os.mkdir", "os.rmdir", "os.chmod"),
    *("os.truncate", "ctypes.dlopen", "urllib.Request"),
}
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


@dataclasses.dataclass
class Report:
    """What happened to the inputs of a reader."""

    reader: str
    inputs: int = 0
    accepted: int = 0
    refused: int = 0
    problems: collections.Counter = dataclasses.field(default_factory=collections.Counter)
    examples: dict[str, str] = dataclasses.field(default_factory=dict)
    slowest: float = 0.0
    peak_mb: float = 0.0

    def add(self, problem: str, where: str, example: str) -> None:
        """Counts a problem and keeps its first example at each place."""
        self.problems[problem] += 1
        self.examples.setdefault(f"{problem} {where}", example)

    def merge(self, other: "Report") -> None:
        """Adds the counts of another part of the same reader's inputs."""
        self.inputs += other.inputs
        self.accepted += other.accepted
        self.refused += other.refused
        self.problems += other.problems
        self.examples = {**other.examples, **self.examples}
        self.slowest = max(self.slowest, other.slowest)
        self.peak_mb = max(self.peak_mb, other.peak_mb)


def make_input(reader: Reader, seeds: list[bytes], seed: int, index: int) -> tuple[bytes, int]:
    """Returns input `index`, and the index of the whole file that one bit was flipped in, or -1."""
    rng = random.Random(f"{seed}/{reader.name}/{index}")
    if index < len(seeds):
        return reader.wrapped(seeds[index], rng), -1
    chosen = rng.randrange(len(seeds))
    if reader.checked and rng.random() < 0.3:
        return flip(rng, reader.wrapped(seeds[chosen], random.Random(chosen))), chosen
    return reader.mutated(rng, seeds[chosen], seeds), -1


class Fuzzer:
    """Feeds inputs to one reader in this process.

    Args:
        reader: the reader.
        folder: a folder that only this reader uses.
        keep: where inputs that cause a problem are kept; None: nowhere.
    """

    def __init__(self, reader: Reader, folder: Path, keep: Path | None = None):
        self.reader, self.keep = reader, keep
        self.path = reader.prepare(folder)
        self.seeds = reader.seeds()
        self.whole: dict[int, Any] = {}
        self.report = Report(reader.name)
        self._events: list[str] = []
        for index, seed in enumerate(self.seeds):  # also imports what the reader imports late
            self.path.write_bytes(reader.wrapped(seed, random.Random(index)))
            try:
                self.whole[index] = reader.read(self.path)
            except Exception:
                continue
        if reader.name != "tf1-index":
            assert self.whole, f"no seed of {reader.name} is valid"
        _watch_events()

    def run(self, seed: int, index: int) -> None:
        """Reads one input and adds the outcome to the report."""
        global _watching
        content, flipped = make_input(self.reader, self.seeds, seed, index)
        self.path.write_bytes(content)
        self._events.clear()
        started = time.perf_counter()
        _watching = self
        result, error = None, None
        try:
            result = self.reader.read(self.path)
        except BaseException as caught:
            error = caught
        finally:
            _watching = None
        report = self.report
        report.slowest = max(report.slowest, time.perf_counter() - started)
        report.inputs += 1
        before = report.problems.total()
        for event in self._events:
            report.add("forbidden", event, f"input {index}: {event}")
        if error is not None:
            self._judge(error, index)
        else:
            report.accepted += 1
            if flipped in self.whole and result != self.whole[flipped]:
                report.add("unnoticed", "", f"input {index}: a flipped bit changes what is read")
        if self.keep and report.problems.total() > before:
            (self.keep / f"{self.reader.name}-{index}").write_bytes(content)

    def _judge(self, error: BaseException, index: int) -> None:
        if isinstance(error, KeyboardInterrupt):
            raise error
        message = str(error)
        frames = traceback.extract_tb(error.__traceback__)
        ours = [frame for frame in frames if "/bertjax/" in frame.filename] or frames
        where = f"{Path(ours[-1].filename).name}:{ours[-1].lineno}"
        example = f"input {index}, {where}: {type(error).__name__}: {message[:500]}"
        if not isinstance(error, REFUSALS):
            self.report.add("traceback", where, example)
            return
        self.report.refused += 1
        names = (str(self.path), *((str(self.path.parent),) if self.reader.folder_named else ()))
        if not any(name in message for name in names):
            self.report.add("nameless", where, example)
        # A message about several bad rows has one line for each of their problems.
        if max(map(len, message.splitlines()), default=0) > MAX_MESSAGE:
            self.report.add("long", where, f"{example[:300]}... ({len(message)} characters)")

    def seen(self, event: str, args: tuple) -> None:
        """Keeps an event that no reader may cause."""
        if event in FORBIDDEN:
            self._events.append(f"{event} {args!r:.100}")
        elif event == "open" and isinstance(args[0], str | bytes) and _writes(args):
            path = os.path.abspath(os.fsdecode(args[0]))
            if not path.startswith(str(self.path.parent)) and path != os.devnull:
                self._events.append(f"writes {path}")


# The fuzzer that reads an input at the moment. A hook cannot be removed, and each slows all events
# of the process, so that all fuzzers share one.
_watching: Fuzzer | None = None


@functools.cache
def _watch_events() -> None:
    def audit(event: str, args: tuple) -> None:
        if _watching is not None:
            _watching.seen(event, args)

    sys.addaudithook(audit)


def _writes(args: tuple) -> bool:
    _, mode, flags = args
    if isinstance(mode, str):
        return any(letter in mode for letter in "wax+")
    return isinstance(flags, int) and bool(flags & _WRITING)


def limit_memory(extra: int = MEMORY_BYTES) -> None:
    """Limits this process to its present address space and `extra` bytes."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + extra
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def _work(pipe: Connection, name: str, seed: int, first: int, last: int, keep: str | None) -> None:
    with tempfile.TemporaryDirectory(prefix="bertjax-fuzz-") as folder:
        fuzzer = Fuzzer(READERS[name], Path(folder).resolve(), Path(keep) if keep else None)
        base = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        limit_memory()
        for index in range(first, last):
            pipe.send(index)
            fuzzer.run(seed, index)
            if (index + 1) % 200 == 0 or index + 1 == last:
                peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
                fuzzer.report.peak_mb = (peak - base) / 1024
                pipe.send(fuzzer.report)
                fuzzer.report = Report(name)


def fuzz(name: str, inputs: int, seed: int, first: int = 0, keep: str | None = None) -> Report:
    """Feeds inputs to a reader in another process, which is started again if it dies.

    Args:
        name: the name of the reader.
        inputs: number of inputs.
        seed: the seed of the mutations.
        first: the index of the first input.
        keep: a folder for inputs that cause a problem.
    """
    report, last = Report(name), first + inputs
    context = multiprocessing.get_context("spawn")
    while first < last:
        pipe, end = context.Pipe(duplex=False)
        process = context.Process(target=_work, args=(end, name, seed, first, last, keep))
        process.start()
        end.close()
        at, reason = None, "crash"
        try:
            while True:
                # The first input waits for the imports.
                if not pipe.poll(SECONDS if at is not None else 300):
                    reason = "timeout"
                    process.kill()
                    break
                received = pipe.recv()
                if isinstance(received, Report):
                    report.merge(received)
                    first = at = (at or 0) + 1
                else:
                    at = received
        except EOFError:
            pass
        process.join()
        if first < last:
            if at is None:
                raise RuntimeError(f"The fuzzer of {name} does not start.")
            report.add(reason, "", f"input {at}: the process ended by {process.exitcode}")
            report.inputs += at + 1 - first
            first = at + 1
    return report


def table(reports: list[Report]) -> str:
    """Returns one line per reader."""
    columns = ("reader", "inputs", "accepted", "refused", *PROBLEMS, "slowest s", "peak MB")
    rows: list[tuple[Any, ...]] = [
        (
            *(report.reader, report.inputs, report.accepted, report.refused),
            *(report.problems[problem] for problem in PROBLEMS),
            *(f"{report.slowest:.2f}", f"{report.peak_mb:.0f}"),
        )
        for report in reports
    ]
    total = ("all", *(sum(row[i] for row in rows) for i in range(1, 4 + len(PROBLEMS))))
    slowest, peak = (max((float(row[i]) for row in rows), default=0) for i in (-2, -1))
    rows.append((*total, f"{slowest:.2f}", f"{peak:.0f}"))
    widths = [max(len(str(row[i])) for row in (columns, *rows)) for i in range(len(columns))]
    return "\n".join(
        "  ".join(
            str(cell).ljust(width) if i == 0 else str(cell).rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in (columns, *rows)
    )


def shares(inputs: int, names: list[str]) -> dict[str, int]:
    """Divides the inputs among the readers by their weights."""
    total = sum(READERS[name].weight for name in names)
    return {name: max(1, round(inputs * READERS[name].weight / total)) for name in names}


def main(argv: list[str] | None = None) -> int:
    """Runs the fuzzer and prints the table; returns 1 if anything is wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.programs.fuzz", description=__doc__)
    parser.add_argument("--inputs", type=int, default=10_000, help="number of inputs in all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="index of the first input")
    parser.add_argument("--reader", action="append", choices=sorted(READERS), help="default: all")
    parser.add_argument("--keep", help="folder for the inputs that cause a problem")
    flags = parser.parse_args(argv)
    if flags.keep:
        Path(flags.keep).mkdir(parents=True, exist_ok=True)
    reports = []
    for name, inputs in shares(flags.inputs, flags.reader or list(READERS)).items():
        report = fuzz(name, inputs, flags.seed, flags.first, flags.keep)
        reports.append(report)
        for place, example in report.examples.items():
            print(f"{name}: {place}\n    {example}", flush=True)
    print(table(reports))
    return int(any(report.problems.total() for report in reports))


if __name__ == "__main__":
    sys.exit(main())
