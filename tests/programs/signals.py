"""Sends stop signals to commands at random instants, and looks at how they end and go on.

    python -m tests.programs.signals --signals 51 --command pretrain --output lines.jsonl

Every command is run once without a signal. Then it is started again and again, from nothing, and
gets SIGTERM, SIGINT and SIGHUP in turn, at an instant between its start and its end: a fifth of
them while it imports and starts, half of them at any time, and the others while something is saved,
exported, pushed or reported. A third of the starts compiles everything anew, and a third of the
fine-tunings push their model to a slow Hub on this machine. Of a run on two hosts, both get
the signal, or one of them if the run has started.

A command that has installed its handler must end within 10 seconds with status 75, or 130 after
Ctrl-C if it does not train, without a traceback or a crash. Every fifth one is run again to its
end, and its result compared with that of the command without a signal. Each signal gives a JSON
line in `--output`, and a line that is there is not made again. `--table FILE ...` prints the table
of such files; the exit status is 1 if a line is wrong.
"""

import argparse
import collections
import contextlib
import dataclasses
import json
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from tests import hub_server
from tests.programs.commands import Command, commands, config_text, write_inputs
from tests.programs.kills import (
    HOST_SECONDS,
    Killer,
    differences,
    is_writing,
    of_common_steps,
    remove,
)

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
# In which time a command must end, and how often its result is compared.
END_SECONDS, COMPARED_EVERY = 10.0, 5
STOPPED, STOPPED_BY_CTRL_C = 75, 130
# Lines of /proc/PID/status: the signals that a process catches, and those that it ignores.
HANDLED = CAUGHT, IGNORED = "SigCgt:", "SigIgn:"
REPOSITORY, PUSHES = "me/model", ("preupload", "batch", "store", "commit")
CRASHES = ("Fatal Python error", "Segmentation fault", "core dumped", "terminate called", "leaked")


@dataclasses.dataclass
class Undisturbed:
    """A command without a signal: its result, and its seconds when it compiles and when not."""

    facts: Any
    seconds: dict[bool, float]


class Stopper:
    """Starts commands, stops them by a signal, and describes how they ended."""

    def __init__(self, folder: Path, hub: hub_server.Hub, seed: int):
        self._folder, self._hub, self._seed = folder, hub, seed
        self._killer = Killer(folder, seed)
        (folder / "stopped").mkdir(exist_ok=True)
        self._commands, self._stopped = (commands(folder, folder / x) for x in ("", "stopped"))
        self._undisturbed: dict[str, Undisturbed] = {}

    def undisturbed(self, name: str) -> Undisturbed:
        """Runs a command, and those whose results it needs, without a signal; once."""
        if name not in self._undisturbed:
            if not (self._folder / "text.txt").is_file():
                write_inputs(self._folder)
                few_steps = config_text((60, 20), 7, 25, "save_every=10")
                (self._folder / "config.py").write_text(few_steps)
                few_steps = config_text((24, 8), 3, 10, "save_every=5")
                (self._folder / "hosts_config.py").write_text(few_steps)
            for needed in self._commands:
                if needed == name:
                    break
                if needed != "pretrain_hosts" and not self._commands[needed].output.exists():
                    self._killer.run(self._commands[needed])
            command, seconds = self._commands[name], {}
            for is_cold in (True, False):
                remove(command.output)
                with self._environment(is_cold, pushes=False) as environment:
                    since = time.monotonic()
                    with self._killer.started(command, **environment) as processes:
                        self._killer.wait(command, processes)
                    seconds[is_cold] = time.monotonic() - since
            self._undisturbed[name] = Undisturbed(command.facts(command.output), seconds)
        return self._undisturbed[name]

    @contextlib.contextmanager
    def _environment(self, is_cold: bool, *, pushes: bool) -> Iterator[dict[str, str]]:
        environment = {"PYTHONFAULTHANDLER": "1"}  # says where a crash was
        if pushes:
            environment |= {
                "HF_ENDPOINT": self._hub.address,
                "HF_HOME": str(self._folder / "hf"),
                "HF_TOKEN": hub_server.TOKEN,
                "HF_HUB_DISABLE_XET": "1",
            }
        with tempfile.TemporaryDirectory() as cache:
            yield environment | ({"JAX_COMPILATION_CACHE_DIR": cache} if is_cold else {})

    def line(self, name: str, index: int) -> dict[str, Any]:
        """Sends the signal `index` to a command; returns what its JSON line says."""
        usual = self.undisturbed(name)
        command = self._stopped[name]
        rng = random.Random(f"{self._seed} {name} {index}")
        number, is_cold = SIGNALS[index % len(SIGNALS)], rng.random() < 0.3
        pushes = name == "finetune" and rng.random() < 1 / 3
        if pushes:
            flags = (*command.arguments, "--push_to_hub", REPOSITORY)
            command = dataclasses.replace(command, arguments=flags)
        line = None
        while line is None:  # the command has ended before the signal
            remove(command.output)
            self._hub.repositories.clear()
            self._hub.stored.clear()
            self._hub.requests.clear()
            with self._environment(is_cold, pushes=pushes) as environment:
                seconds = usual.seconds[is_cold]
                line = self._stop(command, number, rng, seconds, environment, is_cold=is_cold)
        line = {"command": name, "index": index, "cold": is_cold, "pushes": pushes, **line}
        line["compared"] = index % COMPARED_EVERY == COMPARED_EVERY - 1 or 0 in line["statuses"]
        line["equal"] = None
        if line["compared"]:
            with self._environment(False, pushes=pushes) as environment:
                with self._killer.started(command, **environment) as processes:
                    self._killer.wait(command, processes, is_again=True)
            facts = of_common_steps(usual.facts, command.facts(command.output))
            line["different"] = differences(*facts)
            if pushes:
                _, pushed = self._hub.repositories[f"models/{REPOSITORY}"].at("main")
                model = {p.name: p.read_bytes() for p in (command.output / "model").iterdir()}
                line["different"] += ["pushed"] * (pushed != model)
            line["equal"] = not line["different"]
        return line | {"wrong": faults(line)}

    def _stop(
        self,
        command: Command,
        number: signal.Signals,
        rng: random.Random,
        usual: float,
        environment: Mapping[str, str],
        *,
        is_cold: bool,
    ) -> dict[str, Any] | None:
        """Starts a command and sends it a signal; None if it has ended before."""
        draw, deadline = rng.random(), rng.uniform(0, 0.6 * usual if is_cold else usual)
        awaits: Callable[[], object] | None = None
        if draw < 0.2:
            deadline = rng.uniform(0, 1.5)
        elif draw > 0.7 and not is_cold:
            moments = [lambda: is_writing(command.output)]
            if command.steps is not None:
                moments += [lambda: _is_exported(command), lambda: _is_reported(command)]
            if environment.get("HF_ENDPOINT"):
                moments = [self._is_pushing]
            awaits, deadline = rng.choice(moments), rng.uniform(0, 0.8) * usual
        later = rng.uniform(0, 0.2)
        watch = Activities(command)
        with self._killer.started(command, **environment) as processes:
            since, caught = time.monotonic(), None
            victims, one = processes, rng.choice(processes)
            is_one = len(processes) > 1 and rng.random() < 0.5
            while all(process.poll() is None for process in processes):
                now = time.monotonic() - since
                if caught is None and _catches(victims[0]):
                    caught = now
                watch.look()
                if now >= deadline:
                    if awaits is None:
                        break
                    if awaits() or now > usual + 5:
                        awaits, deadline = None, now + later
                time.sleep(0.001)
            if any(process.poll() is not None for process in processes):
                return None
            if is_one and (command.output / "processes.jsonl").is_file():
                victims = [one]
            installed = [_catches(process) for process in victims]
            phase = self._phase(command, victims[0], watch)
            instant, sent = time.monotonic() - since, time.monotonic()
            for process in victims:
                process.send_signal(number)
            for process in processes:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(max(0.0, sent + HOST_SECONDS - time.monotonic()))
            seconds = time.monotonic() - sent
            statuses = [process.poll() for process in processes]
        text = self._killer.log.read_text(errors="replace")
        line = {
            "signal": number.name,
            "instant": round(instant, 3),
            "phase": phase,
            "installed": all(installed),
            "installed_after_ms": caught and round(1000 * caught),
            "victims": [processes.index(process) for process in victims],
            "statuses": statuses,
            "seconds": round(seconds, 2),
            "traceback": "Traceback" in text,
            "crash": next((words for words in CRASHES if words in text), None),
        }
        is_usual = all(x in (0, STOPPED, STOPPED_BY_CTRL_C) for x in statuses)
        if line["traceback"] or line["crash"] or not is_usual or seconds > END_SECONDS:
            line["log"] = text[-6000:]
        return line | {"last": text.strip().rpartition("\n")[2][-200:]}

    def _is_pushing(self) -> bool:
        return any(self._hub.requests[kind] for kind in PUSHES)

    def _phase(self, command: Command, process: subprocess.Popen, watch: "Activities") -> str:
        if not _catches(process):
            return "start"
        if _catches(process, IGNORED):
            return "exit"
        if self._is_pushing():
            return "push"
        if command.steps is None:
            return "write" if is_writing(command.output) else "work"
        if not (command.output / "processes.jsonl").is_file():
            return "import and set up"
        if _is_reported(command):
            return "report and end"
        if _is_exported(command):
            return "export"
        return "save" if is_writing(command.output) else watch.activity


class Activities:
    """Finds out what a run does from the line that it keeps in `.goodput.json`."""

    def __init__(self, command: Command):
        self._path, self.activity = command.output / ".goodput.json", "start-up"
        self._seconds: dict[str, float] = {}

    def look(self) -> None:
        """Reads the line again; `activity` is what has taken most of the time since the last."""
        with contextlib.suppress(OSError, ValueError, KeyError):
            seconds = json.loads(self._path.read_bytes())["seconds"]
            spent = {name: seconds[name] - self._seconds.get(name, 0.0) for name in seconds}
            if seconds != self._seconds:
                self.activity = max(spent, key=lambda name: spent[name])
                self._seconds = seconds


def _catches(process: subprocess.Popen, *fields: str) -> bool:
    """Returns whether a process has a handler of SIGTERM, or ignores it because it ends."""
    with contextlib.suppress(OSError):
        lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
        masks = [line.split()[1] for line in lines if line.startswith(fields or HANDLED)]
        return any(int(mask, 16) >> (signal.SIGTERM - 1) & 1 for mask in masks)
    return False


def _is_exported(command: Command) -> bool:
    return any(command.output.glob("*model*"))


def _is_reported(command: Command) -> bool:
    return (command.output / "goodput.jsonl").is_file()


def faults(line: Mapping[str, Any]) -> list[str]:
    """Returns what is wrong with a line."""
    expected = {STOPPED}
    trains = line["command"].startswith(("pretrain", "finetune"))
    if line["signal"] == "SIGINT" and not trains:
        expected = {STOPPED_BY_CTRL_C}
    if not line["installed"]:  # Python fails at Ctrl-C when it starts
        expected |= {-signal.Signals[line["signal"]]} | (
            {1} if line["signal"] == "SIGINT" else set()
        )
    if line["phase"] == "exit" or line["seconds"] < 2:  # the signal came after the last work
        expected |= {0}
    found = [f"status {x}" for x in line["statuses"] if x not in expected]
    if len(line["statuses"]) > 1 and not line["installed"]:
        found = []  # the other host misses the one that has ended
    if line["seconds"] > END_SECONDS and not (found == [] and not line["installed"]):
        found.append(f"{line['seconds']} s")
    found += [name for name in ("traceback", "crash") if line[name] and line["installed"]]
    return found + [f"different: {x}" for x in line.get("different", [])]


def table(lines: Iterable[Mapping[str, Any]]) -> str:
    """Returns a Markdown table of lines, by command."""
    by_command = collections.defaultdict(list)
    for line in lines:
        by_command[line["command"]].append(line)
    titles = (
        "command|signals|before the handler|status 75|130|0|other|tracebacks|crashes|"
        "slowest end (s)|run again|equal|handler after (ms)"
    )
    rows = [titles, "|".join("---" for _ in titles.split("|"))]
    for name, of in by_command.items():
        caught = [line for line in of if line["installed"]]
        statuses = [status for line in caught for status in line["statuses"]]
        counted = [statuses.count(status) for status in (STOPPED, STOPPED_BY_CTRL_C, 0)]
        times = sorted(x for line in of if (x := line["installed_after_ms"]) is not None)
        values = [
            *(name, len(of), len(of) - len(caught), *counted, len(statuses) - sum(counted)),
            *(sum(bool(line[key]) for line in caught) for key in ("traceback", "crash")),
            max((line["seconds"] for line in caught), default=0),
            *(sum(bool(line[key]) for line in of) for key in ("compared", "equal")),
            f"{times[len(times) // 2]} ({times[0]} to {times[-1]})" if times else "",
        ]
        rows.append("|".join(map(str, values)))
    phases = collections.Counter((line["command"], line["phase"]) for line in lines)
    said = [f"{command}, {phase}: {count}" for (command, phase), count in sorted(phases.items())]
    return "\n".join([*(f"| {row.replace('|', ' | ')} |" for row in rows), "", *said])


def read(path: Path) -> list[dict[str, Any]]:
    """Returns the lines of a file; those of a file that does not exist are none."""
    if not path.is_file():
        return []
    return [json.loads(line) for line in path.read_text().splitlines() if line.endswith("}")]


def harness(
    folder: Path, signals: int, seed: int, names: Iterable[str], output: Path
) -> list[dict[str, Any]]:
    """Sends `signals` signals to each command; returns the lines, which `output` keeps."""
    lines = read(output)
    done = {(line["command"], line["index"]) for line in lines}
    with hub_server.running() as hub, output.open("a") as file:
        hub.delay = 0.3
        stopper = Stopper(folder, hub, seed)
        for name in names:
            for index in range(signals):
                if (name, index) not in done:
                    lines.append(stopper.line(name, index))
                    print(json.dumps(lines[-1]), file=file, flush=True)
    return lines


def main() -> int:
    """Reads the flags, runs the harness, prints the table and what is wrong."""
    parser = argparse.ArgumentParser(description="Stops commands at random instants.")
    parser.add_argument("--signals", type=int, default=51, help="number of signals per command")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--command", action="append", help="one command of several; all if absent")
    parser.add_argument("--output", type=Path, help="the file of JSON lines")
    parser.add_argument("--folder", type=Path, help="where the commands write; removed if absent")
    parser.add_argument("--table", type=Path, nargs="+", help="only print the table of these files")
    options = parser.parse_args()
    if options.table:
        lines = [line for path in options.table for line in read(path)]
    else:
        with tempfile.TemporaryDirectory() as temporary:
            folder = options.folder or Path(temporary)
            folder.mkdir(parents=True, exist_ok=True)
            names = options.command or list(commands(folder, folder))
            lines = harness(folder, options.signals, options.seed, names, options.output)
    print(table(lines))
    wrong = [line for line in lines if line["wrong"]]
    for line in wrong:
        print(line["command"], line["index"], line["signal"], line["phase"], *line["wrong"])
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
