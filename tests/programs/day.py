"""A day of life of a run, in half an hour: a fault every minute, and the result of a quiet day.

    python -m tests.programs.day --minutes 30 --seed 1 --output FOLDER

A model is pretrained by two processes of one run, whose workdir and data are in a bucket (an
emulator of Cloud Storage on this machine), with an experiment tracker. A seeded list brings a fault
every minute: kills, stop signals, a host that hangs, a bucket that fails or is slow, a full or slow
disk, jumps of the clock, a damaged checkpoint, a lost lock. Whenever the processes end with a
status on which a scheduler restarts a job, or with a message that names a remedy, which is applied,
both are started again by the same command. When all faults are over, the run is left alone to
finish.

The same run without a fault comes first. Both must leave the same model, checkpoints (arrays, and
the position in the data), metrics and events except for times, and the tracker the same curves. The
times in the ledger must sum to the wall time within 1 % and what Python takes to end, and no log
may have a traceback.

FOLDER gets `timeline.jsonl` (what happened, second by second), `summary.json`, and the logs of all
processes. The exit status is 1 if anything is not as it must be. A full disk needs the right to
mount a small disk in memory; without it, this fault is left out.
"""

import argparse
import contextlib
import dataclasses
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tests.bucket_servers import client_environment, free_port, serving
from tests.lines import json_lines
from tests.programs.commands import TIMES, commands, config_text, run_facts, write_inputs
from tests.programs.kills import Killer, differences, of_common_steps

HOSTS = 2
DISK_MB = 64
# Seconds of a step while there are faults; afterwards, the run may be as fast as it can.
PACE = 0.5
# How long the processes of a run may outlive the first one that ends: 40 s of silence, and grace.
OUTLIVE_SECONDS = 120
# The seconds by which a fault moves within its minute.
JITTER = 15.0
# What the messages of processes that cannot go on advise.
REMEDIES = ("run the same command again", "Run the same command again", "ake room", "wait until it")
# Parts of lines that tell of faults.
TELLING = (
    "error: warning: again in: saving a checkpoint: stopped after: stopped by: is damaged: has the "
    "lock of: were never uploaded: ends, too: cannot be reached"
).split(": ")


# Replaced in every process: the clock, what a disk does, and how long a step takes. The file of the
# variable DAY_FAULTS says by how much, and changes while the process runs.
SITE = """
import importlib.abc
import importlib.util
import json
import os
import sys
import time

LEDGER = "bertjax.record.ledger"
known = [{}, float("-inf")]


def fault(name, read=open):
    if time.monotonic() > known[1] + 0.1:
        known[1] = time.monotonic()
        try:
            with read(os.environ["DAY_FAULTS"]) as file:
                known[0] = json.load(file)
        except (OSError, ValueError):  # it is being written
            pass
    return known[0].get(name, 0)


def slow(function):
    def slowly(*args, **kwargs):
        time.sleep(fault("disk"))
        return function(*args, **kwargs)

    return slowly


def shifted(function, unit):
    return lambda: function() + unit * int(fault("clock"))


time.time, time.time_ns = shifted(time.time, 1), shifted(time.time_ns, 10**9)
for name in ("fsync", "pwrite", "rename", "replace", "mkdir", "unlink"):
    setattr(os, name, slow(getattr(os, name)))


class Paced(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name != LEDGER:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        load = spec.loader.exec_module

        def load_paced(module):
            load(module)
            read = module.Ledger.read

            def paced(self, event):
                if isinstance(event, module.StepDone):
                    time.sleep(fault("pace"))
                read(self, event)

            module.Ledger.read = paced

        spec.loader.exec_module = load_paced
        return spec


sys.meta_path.insert(0, Paced())
"""
# A tracker whose server is a file. As the real one, it continues the run of the same name.
TRACKIO = """
import json
import os


class Run:
    def __init__(self, path):
        self._path, self._next_step = path, 0
        if os.path.exists(path):
            with open(path) as file:
                lines = [line for line in file if line.endswith("\\n")]
            self._next_step = max((json.loads(line)[0] for line in lines), default=-1) + 1

    def log(self, metrics, step):
        with open(self._path, "a") as file:
            file.write(json.dumps([step, metrics]) + "\\n")

    def finish(self):
        pass


def init(*, project, name, config, resume, embed):
    os.makedirs(os.environ["TRACKIO_DIR"], exist_ok=True)
    return Run(os.path.join(os.environ["TRACKIO_DIR"], name + ".jsonl"))
"""


@dataclasses.dataclass(frozen=True)
class Fault:
    """What happens to a run.

    Attributes:
        sends: what one of the hosts gets, if anything.
        seconds: how long the fault lasts.
        bucket: what the file of the bucket's server says: the share of failing requests and the
            seconds that each takes.
        faults: what the file of the variable DAY_FAULTS says.
        fills: whether the disk becomes full.
        damages: whether a bit of the newest checkpoint changes before the next start.
        removes: a file that is removed from the workdir.
    """

    sends: signal.Signals | None = None
    seconds: float = 0.0
    bucket: str = ""
    faults: tuple[tuple[str, float], ...] = ()
    fills: bool = False
    damages: bool = False
    removes: str = ""


FAULTS = {
    "kill": Fault(signal.SIGKILL),
    "stop (SIGTERM)": Fault(signal.SIGTERM),
    "hang-up (SIGHUP)": Fault(signal.SIGHUP),
    "host hangs for 10 s": Fault(signal.SIGSTOP, 10.0),
    "host hangs for 55 s": Fault(signal.SIGSTOP, 55.0),
    "bucket fails half of the time": Fault(seconds=20.0, bucket="0.5"),
    "bucket is away for 15 s": Fault(seconds=15.0, bucket="1"),
    "bucket is away for 90 s": Fault(seconds=90.0, bucket="1"),
    "slow bucket": Fault(seconds=20.0, bucket="0 0.3"),
    "full disk": Fault(seconds=40.0, fills=True),
    "slow disk": Fault(seconds=20.0, faults=(("disk", 0.1),)),
    "clock a day ahead": Fault(faults=(("clock", 86400.0),)),
    "clock a day back": Fault(faults=(("clock", -86400.0),)),
    "damaged checkpoint": Fault(signal.SIGTERM, damages=True),
    "lost lock": Fault(removes="run.lock"),
}


def planned(minutes: int, seed: int, names: Sequence[str]) -> list[tuple[float, str]]:
    """Returns (second, fault) of a fault in each minute; each fault comes equally often."""
    rng, bag = random.Random(seed), list[str]()
    plan = []
    for minute in range(minutes):
        if not bag:
            bag = list(names)
            rng.shuffle(bag)
        plan.append((60.0 * (minute + 0.5) + rng.uniform(-JITTER, JITTER), bag.pop()))
    return plan


class Run:
    """A pretraining run on two hosts, as a scheduler sees it.

    Args:
        folder: where logs are written, with a name for the run.
        place: what the processes have as their disk.
        address: the workdir in the bucket.
        server_faults: the file of the bucket's server.
        environment: environment variables of all processes.
        flags: the flags of the command.
    """

    def __init__(
        self,
        folder: Path,
        place: Path,
        address: str,
        server_faults: Path,
        environment: dict[str, str],
        flags: list[str],
    ):
        self.folder, self.place, self.address = folder, place, address
        self._server_faults, self._flags = server_faults, flags
        folder.mkdir(parents=True)
        self._own_faults = folder / "faults.json"
        self._state: dict[str, float] = {}
        self._environment = environment | {
            "DAY_FAULTS": str(self._own_faults),
            "XDG_CACHE_HOME": str(place),
            "TRACKIO_DIR": str(folder / "tracker"),
        }
        self.processes: list[subprocess.Popen] = []
        self._logs: list[Path] = []
        self._read: list[int] = []
        self.starts, self.step, self.pending_damage = 0, 0, False
        # (time of its end, name, host) of faults that last.
        self.active: list[tuple[float, str, int]] = []
        self._events: list[dict[str, Any]] = []
        self._began = time.monotonic()
        self.rng = random.Random(0)

    @property
    def second(self) -> float:
        return round(time.monotonic() - self._began, 1)

    def set(self, **faults: float) -> None:
        self._state |= faults
        temporary = self._own_faults.with_suffix(".tmp")
        temporary.write_text(json.dumps(self._state))
        temporary.replace(self._own_faults)

    def note(self, **event: Any) -> dict[str, Any]:
        """Appends an event to the timeline."""
        event = {"second": self.second, **event}
        self._events.append(event)
        return event

    def write_timeline(self) -> None:
        lines = (json.dumps(event) + "\n" for event in self._events)
        (self.folder / "timeline.jsonl").write_text("".join(lines))

    def start(self) -> None:
        """Starts both processes."""
        port = free_port()
        self.processes, self._logs, self._read = [], [], [0] * HOSTS
        self.starts += 1
        for rank in range(HOSTS):
            self._logs.append(self.folder / f"start-{self.starts:02}-host-{rank}.txt")
            with self._logs[-1].open("w") as log:
                self.processes.append(
                    subprocess.Popen(
                        [
                            *(sys.executable, "-m", "bertjax.pretrain", *self._flags),
                            *("--workdir", self.address),
                            f"--distributed.coordinator_address=localhost:{port}",
                            f"--distributed.num_processes={HOSTS}",
                            f"--distributed.process_id={rank}",
                        ],
                        env=self._environment,
                        stdout=log,
                        stderr=subprocess.STDOUT,
                        start_new_session=True,
                    )
                )

    def texts(self) -> list[str]:
        """Returns what each process has printed."""
        return [log.read_text(errors="replace") for log in self._logs]

    def news(self) -> list[str]:
        """Returns the telling lines that were printed since the last call."""
        found = []
        for rank, text in enumerate(self.texts()):
            lines = text[self._read[rank] :].splitlines()
            found += [line for line in lines if any(word in line for word in TELLING)]
            self._read[rank] = len(text)
        return [line.replace(f"{self.place}/", "").strip()[:160] for line in found]

    def are_alive(self) -> bool:
        return all(process.poll() is None for process in self.processes)

    def look(self) -> None:
        """Notes the step in the ledger's present line."""
        path = self.place / "bertjax/workdirs" / self.address.replace("://", "/") / ".goodput.json"
        with contextlib.suppress(OSError, ValueError, KeyError):
            self.step = json.loads(path.read_text())["last_step"]

    def begin(self, name: str) -> dict[str, Any]:
        """Begins a fault; returns its event."""
        fault, rank = FAULTS[name], self.rng.randrange(HOSTS)
        event = self.note(fault=name, step=self.step)
        if fault.sends is not None:
            event["host"] = rank
            self.processes[rank].send_signal(fault.sends)
        if fault.bucket:
            self._server_faults.write_text(fault.bucket)
        if fault.faults:
            self.set(**dict(fault.faults))
        if fault.fills:
            self._fill()
        if fault.removes:
            self._remove(fault.removes)
        self.pending_damage |= fault.damages
        if fault.seconds:
            self.active.append((time.monotonic() + fault.seconds, name, rank))
        return event

    def end_faults(self, *, all_of_them: bool = False) -> None:
        """Ends the faults whose time is over."""
        for over in list(self.active):
            end, name, rank = over
            if time.monotonic() < end and not all_of_them:
                continue
            self.active.remove(over)
            fault = FAULTS[name]
            if fault.sends == signal.SIGSTOP:
                self.processes[rank].send_signal(signal.SIGCONT)
            if fault.bucket:
                self._server_faults.write_text("0")
            if fault.fills:
                (self.place / "filler").unlink(missing_ok=True)
            if fault.faults:
                self.set(**dict.fromkeys(dict(fault.faults), 0.0))

    def _fill(self) -> None:
        with (self.place / "filler").open("wb", buffering=0) as file:
            for size in (1 << 16, 1 << 12, 1):
                with contextlib.suppress(OSError):
                    while True:
                        file.write(b"x" * size)

    def _in_bucket(self) -> Any:
        import fsspec

        # The bucket must answer the harness.
        before = self._server_faults.read_text()
        self._server_faults.write_text("0")
        system = fsspec.filesystem("gs")
        system.invalidate_cache()
        self._server_faults.write_text(before)
        return system

    def _remove(self, name: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._in_bucket().rm_file(f"{self.address}/{name}".partition("://")[2])

    def damage(self) -> str:
        """Changes a bit of a file of the newest checkpoint, unless it is the only one."""
        self.pending_damage = False
        system, root = self._in_bucket(), f"{self.address}/checkpoints".partition("://")[2]
        steps: dict[int, list[str]] = {}
        for path in system.find(root):
            step, _, name = path.removeprefix(f"{root}/").partition("/")
            if step.isdigit() and name.startswith(("state/", "progress/")):
                steps.setdefault(int(step), []).append(path)
        if len(steps) < 2:
            return "nothing was damaged, because there is no second checkpoint"
        path = self.rng.choice(sorted(steps[max(steps)]))
        content = bytearray(system.cat_file(path))
        content[self.rng.randrange(len(content))] ^= 1 << self.rng.randrange(8)
        system.pipe_file(path, bytes(content))
        return f"a bit of {path.removeprefix(root)[1:]} was changed"

    def kill_all(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.kill()
                process.wait()


def live(run: Run, plan: list[tuple[float, str]]) -> None:
    """Lives through the faults of a plan to the end of the run.

    Raises:
        AssertionError: the processes hang, or end in a way after which nobody would restart them.
    """
    plan, noted, most = list(plan), 0.0, len(plan)
    last: dict[str, Any] | None = None  # the last fault
    ending: dict[str, Any] | None = None  # the one that ended the processes
    run.set(pace=PACE if plan else 0.0)
    while True:
        run.start()
        started, before = run.second, run.step
        delay = run.rng.uniform(0.5, 20)  # if a fault is due already
        ended_at, resumed = None, False
        while any(process.poll() is None for process in run.processes):
            time.sleep(0.1)
            run.end_faults()
            if not resumed and (at := _resumed_at(run)) is not None:
                lost = max(0, before - at)
                run.note(resumed_at=at, start=run.starts, steps_lost=lost)
                resumed = True
                if ending is not None:
                    ending["steps_lost"] = lost
            if resumed:
                run.look()
            if run.second - noted >= 5:
                noted = run.second
                run.note(step=run.step)
                run.write_timeline()
            if not run.are_alive():
                ended_at = ended_at or run.second
                assert run.second - ended_at < OUTLIVE_SECONDS, f"a process hangs: {run.texts()}"
            elif plan and run.second >= max(plan[0][0], started + delay):
                _said(run, last)
                last = run.begin(plan.pop(0)[1])
            elif not plan and not run.active:
                run.set(pace=0.0)
        statuses = [process.returncode for process in run.processes]
        _said(run, last)
        run.look()
        if statuses == [0] * HOSTS:
            run.note(step=run.step, finished=True)
            return
        text = "\n".join(run.texts())
        if last is not None:
            last |= {"status": statuses, "restart": True, "ended": ended_at, "others": run.second}
            ending = last
        assert _may_restart(statuses, text), f"statuses {statuses}: {text[-3000:]}"
        assert run.starts < 2 * most + 3, f"restarts help no more: {text[-3000:]}"
        run.end_faults(all_of_them=max(statuses) == 1 and 75 not in statuses)  # the remedy
        if run.pending_damage:
            assert last is not None
            last["said"] = [run.damage(), *last.get("said", [])]


def _resumed_at(run: Run) -> int | None:
    text = run.texts()[0]
    if not (line := re.search(r"; all ([\d,]+) steps are done|; [\d,]+ steps(.*)", text)):
        return None
    number = line[1] or (re.search(r"resuming at step ([\d,]+)", line[0]) or [None, "0"])[1]
    return int(number.replace(",", ""))


def _said(run: Run, event: dict[str, Any] | None) -> None:
    if event is not None and (news := run.news()):
        event["said"] = [*event.get("said", []), *dict.fromkeys(news)][-4:]


def _may_restart(statuses: list[int], text: str) -> bool:
    """Whether a scheduler would restart processes, or a user who reads what they advise."""
    if 75 in statuses or -signal.SIGKILL in statuses:
        return True
    return any(remedy in text for remedy in REMEDIES)


@contextlib.contextmanager
def small_disk(parent: Path) -> Iterator[tuple[Path, bool]]:
    """Yields a folder on a small disk, and whether it is one, which takes the right to mount."""
    place = parent / "disk"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={DISK_MB}m", "none", str(place)]
    is_small = shutil.which("mount") is not None
    is_small = is_small and subprocess.run(command, capture_output=True).returncode == 0
    try:
        yield place, is_small
    finally:
        if is_small:
            subprocess.run(["umount", "-l", str(place)], check=True)


def pulled(address: str, folder: Path) -> Path:
    """Copies a workdir from the bucket."""
    import fsspec

    system = fsspec.filesystem("gs")
    system.invalidate_cache()
    root = address.partition("://")[2]
    for path in system.find(root):
        local = folder / path.removeprefix(f"{root}/")
        local.parent.mkdir(parents=True, exist_ok=True)
        local.write_bytes(system.cat_file(path))
    return folder


def curves(lines: list[tuple[int, dict[str, float]]]) -> dict[str, float]:
    """Returns {step and metric: value} of all that is not a time."""
    return {
        f"{step} {key}": value
        for step, values in lines
        for key, value in values.items()
        if not key.endswith(TIMES) and isinstance(value, int | float)
    }


def tracked(run: Run) -> dict[str, float]:
    (file,) = (run.folder / "tracker").iterdir()
    return curves([tuple(json.loads(line)) for line in file.read_text().splitlines()])


def harness(
    output: Path,
    folder: Path,
    minutes: int,
    seed: int,
    names: Sequence[str] | None = None,
    quiet: Path | None = None,
) -> dict[str, Any]:
    """Runs the quiet day, unless the folder of one is given, and the other; returns the summary."""
    write_inputs(folder)
    killer, local = Killer(folder, seed), commands(folder, folder)
    for name in ("train_tokenizer", "prepare"):
        killer.run(local[name])
    steps = round(minutes * 60 / PACE * 0.5)
    text = config_text((steps * 2 // 3, steps - steps * 2 // 3), 5, 150, "save_every=20")
    (folder / "config.py").write_text(text)
    site = folder / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text(SITE)
    (site / "trackio.py").write_text(TRACKIO)
    with serving("gs", folder / "server_faults") as server, small_disk(folder) as (disk, is_small):
        os.environ |= client_environment("gs", server)
        os.environ.setdefault("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")
        return _two_days(output, folder, minutes, seed, names, quiet, (disk, is_small))


def _two_days(output, folder, minutes, seed, names, quiet, place) -> dict[str, Any]:
    import fsspec

    from tests.bucket_servers import upload

    (disk, is_small) = place
    names = list(names or FAULTS)
    if not is_small:
        names = [name for name in names if not FAULTS[name].fills]
    for name in ("data", "quiet", "day"):
        fsspec.filesystem("gs").mkdir(name)
    data = upload(folder / "prepare", "gs://data/prepared")
    environment = os.environ | {
        "JAX_PLATFORMS": "cpu",
        "JAX_NUM_CPU_DEVICES": "1",
        "JAX_COMPILATION_CACHE_DIR": str(folder / "xla"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "PYTHONPATH": os.pathsep.join(
            [str(folder / "site"), os.environ.get("PYTHONPATH", os.getcwd())]
        ),
    }
    flags = ["--config", str(folder / "config.py"), "--data", data, "--track", "trackio"]
    runs, seconds, facts = {}, {"quiet": 0.0}, {}
    days = {"quiet": [], "day": planned(minutes, seed, names)}
    if quiet is not None:
        del days["quiet"]
        facts["quiet"] = run_facts(quiet / "workdir")
    for name, plan in days.items():
        run = runs[name] = Run(
            output / name,
            disk,
            f"gs://{name}/run",
            folder / "server_faults",
            environment,
            flags,
        )
        try:
            live(run, plan)
        finally:
            run.kill_all()
            seconds[name] = run.second
            run.write_timeline()
        facts[name] = run_facts(pulled(run.address, run.folder / "workdir"))
    shutil.copy(output / "day" / "timeline.jsonl", output / "timeline.jsonl")
    return _summary(output, runs, seconds, facts)


def _summary(output, runs, seconds, facts) -> dict[str, Any]:
    from bertjax.record.ledger import read_ledger, totals

    events = json_lines(output / "timeline.jsonl")
    faults = [event for event in events if "fault" in event]
    different = differences(*of_common_steps(facts["quiet"], facts["day"]))
    for name, run in runs.items():
        lines = [(line.pop("step"), line) for line in facts[name]["metrics"]]
        if tracked(run) != curves(lines):
            different.append(f"the tracker of the {name} run")
    ledger = read_ledger(output / "day" / "workdir")
    spent = totals(ledger)
    logs = sorted((output / "day").glob("start-*.txt"))
    return {
        "faults": len(faults),
        "starts": runs["day"].starts,
        "steps": runs["day"].step,
        "steps_lost": sum(event.get("steps_lost", 0) for event in events if "resumed_at" in event),
        "wall_seconds": seconds["day"],
        "quiet_seconds": seconds["quiet"],
        "ledger_seconds": round(sum(spent.values()), 1),
        "ledger": {name: round(value, 1) for name, value in spent.items()},
        "ledger_lines": len(ledger),
        "ledger_steps_lost": sum(line["lost_steps"] for line in ledger),
        "slowest_end": max(
            (event["others"] - event["second"] for event in faults if "others" in event), default=0
        ),
        "tracebacks": [log.name for log in logs if "Traceback (most" in log.read_text()],
        "different": different,
    }


def is_right(summary: dict[str, Any]) -> bool:
    """Whether the day has ended as it must."""
    gap = abs(summary["wall_seconds"] - summary["ledger_seconds"])
    is_whole = gap <= 0.01 * summary["wall_seconds"] + 2.0
    return is_whole and not summary["different"] and not summary["tracebacks"]


def main() -> int:
    """Reads the flags, runs the harness, writes and prints the summary."""
    parser = argparse.ArgumentParser(description="A fault every minute, and the same model.")
    parser.add_argument("--minutes", type=int, default=30)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--fault", action="append", choices=list(FAULTS), help="all if absent")
    parser.add_argument("--quiet", type=Path, help="OUTPUT/quiet of an earlier day of equal length")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    options.output.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as folder:
        output = options.output.absolute()
        choices = (options.minutes, options.seed, options.fault, options.quiet)
        summary = harness(output, Path(folder), *choices)
    (options.output / "summary.json").write_text(json.dumps(summary, indent=1) + "\n")
    print(json.dumps(summary, indent=1))
    return 0 if is_right(summary) else 1


if __name__ == "__main__":
    sys.exit(main())
