"""Kills commands at random instants, runs them again until they end, and compares the results.

    python -m tests.programs.kills --kills 300 --seed 0 [--command pretrain ...] [--signal TERM]

Every command is run once without a kill. Then it is killed (SIGKILL, with all its processes), run
again, and so on, until it ends by itself; the kills stop when `--kills` of them are spent. Half of
them wait for a temporary file of a save, an export or an output to appear, and hit while it is
written. Of a run on two hosts, one is killed, and the other has a minute to end by itself. With
`--signal TERM`, commands are asked to stop instead: they must end within a minute, and print no
traceback. A stop saves a checkpoint of its own, which stays among the newest ones, so that only the
checkpoints of the same steps are compared, and the newest must be one of them.

What a command leaves must be the same bytes as without a kill: prepared data, models, checkpoints
(parameters, moments, and the position in the data), metrics and events except for times. Prints a
table of kills, of those during a write, of starts, of steps and seconds lost; exits with status 1
if anything differs.
"""

import argparse
import contextlib
import dataclasses
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.programs.commands import Command, commands, write_inputs

# Names of what is written and then renamed: checkpoints, files, folders, outputs.
TEMPORARY = ("*orbax-checkpoint-tmp*", "*.tmp", "*.writing*", "*.partial*")
# The time in which the others of a killed host must end, and in which a command must end at all.
HOST_SECONDS, HANGING_SECONDS = 60, 900
# Trainings have most of what can go wrong.
WEIGHTS = {"pretrain": 4, "finetune": 4, "pretrain_hosts": 2}


@dataclasses.dataclass
class Result:
    """What the kills of one command did; times are in seconds."""

    kills: int = 0
    during_a_write: int = 0
    starts: int = 0
    steps_lost: int = 0
    seconds: float = 0.0
    without_kills: float = 0.0
    slowest_host: float = 0.0
    different: list[str] = dataclasses.field(default_factory=list)


class Killer:
    """Runs commands and kills them by a signal."""

    def __init__(self, folder: Path, seed: int, how: signal.Signals = signal.SIGKILL):
        self._rng, self.log, self.how = random.Random(seed), folder / "log.txt", how
        self._environment = os.environ | {
            "JAX_PLATFORMS": "cpu",
            "JAX_COMPILATION_CACHE_DIR": str(folder / "xla"),
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
            "XDG_CACHE_HOME": str(folder / "cache"),
        }

    def run(self, command: Command) -> float:
        """Runs a command to its end without a kill; returns the seconds it took."""
        since = time.monotonic()
        with self.started(command) as processes:
            self.wait(command, processes)
        return time.monotonic() - since

    def run_with_kills(self, command: Command, kills: int, usual: float) -> Result:
        """Runs a command until it ends by itself, with at most `kills` kills on the way.

        Args:
            usual: the seconds that the command takes without a kill.
        """
        result, since = Result(), time.monotonic()
        while True:
            with self.started(command) as processes:
                result.starts += 1
                if result.kills == kills or not self._kill(processes, command, result, usual):
                    self.wait(command, processes, is_again=result.kills > 0)
                    result.seconds = time.monotonic() - since
                    return result

    @contextlib.contextmanager
    def started(self, command: Command, **environment: str) -> Iterator[list[subprocess.Popen]]:
        """Starts all processes of a command, each in a group of its own; kills those left over.

        They do not ignore signals that this process ignored, as one in the background does.
        """
        for number in (signal.SIGINT, signal.SIGHUP):
            if signal.getsignal(number) is signal.SIG_IGN:
                signal.signal(number, lambda *_: None)
        with socket.socket() as free:
            free.bind(("localhost", 0))
            address = f"localhost:{free.getsockname()[1]}"
        processes = []
        with self.log.open("w") as log:
            for rank in range(command.processes):
                join = [
                    f"--distributed.coordinator_address={address}",
                    f"--distributed.num_processes={command.processes}",
                    f"--distributed.process_id={rank}",
                    f"--distributed.timeout_seconds={HOST_SECONDS // 2}",
                ]
                processes.append(
                    subprocess.Popen(
                        [
                            *(sys.executable, "-m", *command.arguments),
                            *(join if command.processes > 1 else ()),
                        ],
                        env=self._environment
                        | {"JAX_NUM_CPU_DEVICES": str(command.devices)}
                        | environment,
                        stdout=log,
                        stderr=subprocess.STDOUT,
                        start_new_session=True,
                    )
                )
        try:
            yield processes
        finally:
            for process in processes:
                if process.poll() is None:
                    _kill_group(process)

    def wait(
        self, command: Command, processes: list[subprocess.Popen], *, is_again: bool = False
    ) -> None:
        """Waits until a command has ended by itself.

        Raises:
            AssertionError: it hangs, or ends with an error. A command that refuses to write its
                result a second time may do so after a kill that came too late.
        """
        deadline = time.monotonic() + HANGING_SECONDS
        for process in processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, deadline - time.monotonic()))
        statuses = [process.poll() for process in processes]
        text = self.log.read_text(errors="replace")[-3000:]
        is_finished = is_again and not command.is_repeatable and "is not empty" in text
        assert is_finished or not any(status != 0 for status in statuses), (
            f"{' '.join(command.arguments)}: statuses {statuses} (None: it hangs)\n{text}"
        )

    def _kill(
        self, processes: list[subprocess.Popen], command: Command, result: Result, usual: float
    ) -> bool:
        """Kills one process at a random instant; returns False if all have ended before."""
        wait_for_write = self._rng.random() < 0.5
        writing = False
        now = time.monotonic()
        # A command that resumes is mostly killed early, and reaches its end in several starts.
        share = self._rng.uniform(0.2, 1.0) ** (2 if command.resumes else 1)
        deadline = now + share * usual
        limit = deadline + usual * wait_for_write
        while all(process.poll() is None for process in processes) and time.monotonic() < limit:
            if time.monotonic() >= deadline and is_writing(command.output):
                writing = True
                time.sleep(self._rng.uniform(0, 0.05))
                break
            time.sleep(0.002)
        victim = self._rng.choice(processes)
        if any(process.poll() is not None for process in processes):
            return False
        since = time.monotonic()
        if self.how == signal.SIGKILL:
            _kill_group(victim)
        else:
            victim.send_signal(self.how)
        with contextlib.suppress(subprocess.TimeoutExpired):
            for process in processes:
                process.wait(HOST_SECONDS)
        text = self.log.read_text(errors="replace")
        statuses = [process.poll() for process in processes]
        assert None not in statuses, f"{statuses} after {HOST_SECONDS} s:\n{text[-3000:]}"
        at = text.find("Traceback")
        assert self.how == signal.SIGKILL or at < 0, text[max(0, at - 500) : at + 3000]
        result.slowest_host = max(result.slowest_host, time.monotonic() - since)
        result.kills += 1
        result.during_a_write += writing
        if command.steps is not None:
            last, saved = command.steps(command.output)
            result.steps_lost += max(0, last - saved)
        return True


def _kill_group(process: subprocess.Popen) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def is_writing(output: Path) -> bool:
    places = [output.parent, output, output / "checkpoints"]
    # Other commands may have left theirs beside the output.
    return any(
        place != output.parent or output.name in path.name
        for place in places
        if place.is_dir()
        for pattern in TEMPORARY
        for path in place.glob(pattern)
    )


def harness(
    folder: Path,
    kills: int,
    seed: int,
    names: list[str] | None = None,
    how: signal.Signals = signal.SIGKILL,
) -> dict[str, Result]:
    """Kills each command its share of `kills` times; returns the results by command."""
    write_inputs(folder)
    killer, results = Killer(folder, seed, how), {}
    (folder / "killed").mkdir()
    whole, killed = commands(folder, folder), commands(folder, folder / "killed")
    wanted = names or list(whole)
    last = max(list(whole).index(name) for name in wanted)
    for name, command in list(whole.items())[: last + 1]:
        needed_later = name != "pretrain_hosts"
        if name not in wanted and not needed_later:
            continue
        usual = killer.run(command)
        if name in wanted:
            weight = WEIGHTS.get(name, 1) / sum(WEIGHTS.get(n, 1) for n in wanted)
            share = max(1, round(kills * weight))
            results[name] = _killed_often(killer, command, killed[name], share, usual)
            print(_row(name, results[name]), flush=True)
    return results


def _killed_often(
    killer: Killer, command: Command, killed: Command, kills: int, usual: float
) -> Result:
    """Runs a command from the beginning until its kills are spent; compares after each end."""
    expected, total = command.facts(command.output), Result()
    while total.kills < kills and not total.different:
        remove(killed.output)
        result = killer.run_with_kills(killed, kills - total.kills, usual)
        facts = killed.facts(killed.output)
        for field in ("kills", "during_a_write", "starts", "steps_lost", "seconds"):
            setattr(total, field, getattr(total, field) + getattr(result, field))
        total.without_kills += usual
        total.slowest_host = max(total.slowest_host, result.slowest_host)
        compared = (expected, facts)
        if killer.how != signal.SIGKILL:
            compared = of_common_steps(expected, facts)
        total.different = differences(*compared)
    return total


def of_common_steps(expected: Any, facts: Any) -> tuple[Any, Any]:
    """Leaves only the checkpoints of steps that both results have, and the newest of each."""
    if not isinstance(expected, dict) or "checkpoints" not in expected:
        return expected, facts
    ours, theirs = expected["checkpoints"], facts["checkpoints"]
    kept = {*ours} & {*theirs} | {max(steps, key=int) for steps in (ours, theirs)}
    ours, theirs = ({k: v for k, v in of.items() if k in kept} for of in (ours, theirs))
    return expected | {"checkpoints": ours}, facts | {"checkpoints": theirs}


def differences(expected: object, facts: object) -> list[str]:
    """Names what differs: parts of a run, or numbers of files."""
    if isinstance(expected, dict) and isinstance(facts, dict):
        keys = sorted({*expected, *facts})
        return [key for key in keys if expected.get(key) != facts.get(key)]
    return [] if expected == facts else ["files"]


def remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _row(name: str, result: Result) -> str:
    values = [f"{v:.1f}" if isinstance(v, float) else str(v) for v in vars(result).values()]
    return f"{name:16}" + "".join(f"{value:>15}" for value in values)


def main() -> int:
    """Reads the flags, runs the harness, prints the table."""
    parser = argparse.ArgumentParser(description="Kills commands and compares what they leave.")
    parser.add_argument("--kills", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--command", action="append", help="one command of several; all if absent")
    parser.add_argument("--signal", choices=("KILL", "TERM", "INT", "HUP"), default="KILL")
    parser.add_argument("--output", type=Path, help="a JSON file for the results")
    options = parser.parse_args()
    fields = [field.name.replace("_", " ") for field in dataclasses.fields(Result)]
    print(f"{'command':16}" + "".join(f"{title:>15}" for title in fields))
    with tempfile.TemporaryDirectory() as folder:
        how = signal.Signals[f"SIG{options.signal}"]
        results = harness(Path(folder), options.kills, options.seed, options.command, how)
    if options.output:
        lines = {name: dataclasses.asdict(result) for name, result in results.items()}
        options.output.write_text(json.dumps(lines, indent=1) + "\n")
    return 1 if any(result.different for result in results.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
