"""Kills commands within a deletion, a rename, an upload or the writing of a report.

    python -m tests.programs.moments --kills 100 --seed 0 [--output lines.jsonl]

Other than `kills.py`, which kills at random instants, each kill hits an event of one kind: the
deletion of a file of a checkpoint, a rename, the writing of report.html, or a request that writes
to a bucket or to the Hub. Of all such events of an undisturbed command, one is drawn, and the
process is killed (SIGKILL) at it or up to 5 ms later; a request is killed before the server has
handled it or before the answer. Then the command is run again and killed again, until it ends by
itself, and what it leaves is compared with what it leaves without a kill; damage that is found, in
a run in which nothing was damaged, counts as different. Prints a table; exits with status 1 if
anything differs. With `--output`, each finished case is a line of JSON, and a second call goes on
after the cases that the file has.
"""

import argparse
import contextlib
import dataclasses
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

from tests import hub_server
from tests.lines import json_lines
from tests.programs.commands import Command, commands, run_facts, write_inputs
from tests.programs.kills import HANGING_SECONDS, differences

# Counts the events of a command, which is the process that was started with `-m`, and kills it at
# one of them. Python imports a module of this name when it starts.
HOOK = """
import atexit, json, os, signal, sys, threading, time
counts = {"deletion": 0, "rename": 0, "report": 0}
wanted, number, delay = os.environ["KILL_AT"].split(":")

def kind_of(event, args):
    if event in ("os.remove", "os.rmdir"):
        path = os.fspath(args[0])
        if isinstance(path, bytes):
            path = os.fsdecode(path)
        if len(args) > 1 and args[1] >= 0:
            path = os.readlink(f"/proc/self/fd/{args[1]}") + "/" + path
        return "deletion" if "/checkpoints/" in path and "checkpoint-tmp" not in path else None
    if event == "os.rename":
        return "report" if str(args[1]).endswith("report.html") else "rename"
    if event == "open" and "report.html" in str(args[0]) and str(args[1]).startswith(("w", "x")):
        return "report"

def hook(event, args):
    if event not in ("os.remove", "os.rmdir", "os.rename", "open"):
        return
    kind = kind_of(event, args)
    if kind is None:
        return
    counts[kind] += 1
    if kind == wanted and counts[kind] == int(number):
        if float(delay):
            def later():
                time.sleep(float(delay))
                os.kill(os.getpid(), signal.SIGKILL)
            threading.Thread(target=later, daemon=True).start()
        else:
            os.kill(os.getpid(), signal.SIGKILL)

def finish():
    with open(os.environ["COUNTS"], "w") as file:
        json.dump(counts, file)

if sys.orig_argv[1:2] == ["-m"]:
    sys.addaudithook(hook)
    atexit.register(finish)
"""
MOST_DELAY = 0.005
WRITES = ("PUT", "POST", "DELETE")
REPOSITORY, BUCKET = "me/model", "kills"


class Server:
    """Counts the requests that write, and kills the client at one of them.

    Attributes:
        count: the number of such requests since the last `watch`.
    """

    def __init__(self) -> None:
        self.count = 0
        self._lock, self._process, self._number, self._answers = threading.Lock(), None, 0, False

    def watch(self, process: Any, number: int, *, after: bool) -> None:
        """Kills `process` at the request `number` (0: none), before or `after` it is handled."""
        with self._lock:
            self.count, self._process, self._number, self._answers = 0, process, number, after

    def handled(self, method: str, handle: Callable[[], Any]) -> Any:
        """Calls `handle`, which answers a request, and kills the client if it is its turn."""
        if method not in WRITES:
            return handle()
        with self._lock:
            self.count += 1
            is_due = self.count == self._number
        if is_due and not self._answers:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()
        result = handle()
        if is_due and self._answers:
            self._process.send_signal(signal.SIGKILL)
        return result


@contextlib.contextmanager
def hub_with(server: Server) -> Iterator[tuple[hub_server.Hub, dict[str, str]]]:
    """Yields a Hub whose requests `server` counts, and the environment of its clients."""
    original = hub_server.Handler.handle_any

    def handle_any(self: Any) -> Any:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            return server.handled(self.command, lambda: original(self))

    methods = dict.fromkeys(("do_GET", "do_HEAD", "do_POST", "do_PUT"), handle_any)
    with mock.patch.multiple(hub_server.Handler, **methods), hub_server.running() as hub:
        yield (
            hub,
            {"HF_ENDPOINT": hub.address, "HF_TOKEN": hub_server.TOKEN, "HF_HUB_DISABLE_XET": "1"},
        )


@contextlib.contextmanager
def bucket_with(server: Server) -> Iterator[tuple[Any, dict[str, str]]]:
    """Yields the client of a bucket in S3 whose requests `server` counts, and the environment."""
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import WSGIRequestHandler, make_server

    app = DomainDispatcherApplication(create_backend_app)

    def counted(environ: Any, start_response: Any) -> Any:
        return server.handled(environ["REQUEST_METHOD"], lambda: app(environ, start_response))

    class Silent(WSGIRequestHandler):
        def log(self, *_: Any, **__: Any) -> None:
            pass

    web = make_server("127.0.0.1", 0, counted, threaded=True, request_handler=Silent)
    threading.Thread(target=web.serve_forever, daemon=True).start()
    environment = {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{web.server_port}",
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_DEFAULT_REGION": "us-east-1",
    }
    import fsspec

    with mock.patch.dict(os.environ, environment):
        client = fsspec.filesystem("s3", use_listings_cache=False, skip_instance_cache=True)
        client.mkdir(BUCKET)
        try:
            yield client, environment
        finally:
            web.shutdown()


@dataclasses.dataclass
class Case:
    """A command whose events of one kind are hit.

    Attributes:
        share: its share of the kills.
        arguments: the module and its flags.
        facts: returns what must be equal of its result.
        remove: removes its result.
        again: prepares the place for the next start after a kill.
        server: counts its uploads, if these are its events.
    """

    name: str
    kind: str
    share: int
    arguments: tuple[str, ...]
    facts: Callable[[], Any]
    remove: Callable[[], None]
    again: Callable[[], None] = lambda: None
    server: Server | None = None


def cases(
    found: dict[str, Command], hub: hub_server.Hub, client: Any, server: Server
) -> list[Case]:
    """Returns all cases, of the commands in `found`."""

    def local(name: str, kind: str, share: int) -> Case:
        command = found[name]
        return Case(
            name,
            kind,
            share,
            command.arguments,
            lambda: command.facts(command.output),
            lambda: shutil.rmtree(command.output, ignore_errors=True),
        )

    def pushed(name: str, share: int) -> Case:
        case = local(name, "upload", share)

        def facts() -> Any:
            files = hub.repositories[f"models/{REPOSITORY}"].at("main")[1]
            of_hub = {path: hub_server.sha256(content) for path, content in (files or {}).items()}
            return {"hub": of_hub, "local": case.facts()}

        def remove() -> None:
            case.remove()
            hub.repositories.clear()
            hub.stored.clear()

        arguments = (*case.arguments, "--push_to_hub", REPOSITORY)
        return dataclasses.replace(
            case, arguments=arguments, facts=facts, remove=remove, server=server
        )

    address = f"s3://{BUCKET}/run"
    in_bucket = tuple(
        address if argument == str(found["pretrain_hosts"].output) else argument
        for argument in found["pretrain_hosts"].arguments
    )

    def facts_in_bucket() -> Any:
        with tempfile.TemporaryDirectory() as copy:
            client.get(f"{BUCKET}/run", f"{copy}/run", recursive=True)
            facts = run_facts(Path(copy) / "run")
        # Orbax deletes in place there, so that the oldest may remain for a while.
        newest = sorted(facts["checkpoints"], key=int)[-3:]
        return facts | {"checkpoints": {step: facts["checkpoints"][step] for step in newest}}

    def remove_from_bucket() -> None:
        with contextlib.suppress(FileNotFoundError):
            client.rm(f"{BUCKET}/run", recursive=True)

    def release() -> None:  # a process that is killed holds the lock for a minute
        with contextlib.suppress(FileNotFoundError):
            client.rm_file(f"{BUCKET}/run/run.lock")

    return [
        local("pretrain", "deletion", 24),
        local("pretrain", "rename", 12),
        local("pretrain", "report", 8),
        local("prepare", "rename", 6),
        local("finetune", "deletion", 10),
        local("finetune", "rename", 10),
        local("finetune", "report", 8),
        pushed("finetune", 12),
        Case(
            *("pretrain in a bucket", "upload", 10, in_bucket, facts_in_bucket),
            *(remove_from_bucket, release, server),
        ),
    ]


class Hitter:
    """Runs the commands of cases, and kills them at events."""

    def __init__(self, folder: Path, seed: int, environment: dict[str, str]):
        self._rng, self._log, self._counts = random.Random(seed), folder / "log", folder / "counts"
        hook = folder / "hook"
        hook.mkdir()
        (hook / "sitecustomize.py").write_text(HOOK)
        self._environment = os.environ | environment | {
            "PYTHONPATH": f"{hook}{os.pathsep}{os.environ.get('PYTHONPATH', os.getcwd())}",
            "COUNTS": str(self._counts),
            "JAX_PLATFORMS": "cpu",
            "JAX_NUM_CPU_DEVICES": "2",
            "JAX_COMPILATION_CACHE_DIR": str(folder / "xla"),
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
            "XDG_CACHE_HOME": str(folder / "cache"),
            "HF_HOME": str(folder / "hf"),
        }  # fmt: skip

    def run(self, case: Case, number: int) -> bool:
        """Runs a command, killed at its event of this `number` (0: none).

        Returns whether it was killed; if not, it has ended by itself.

        Raises:
            AssertionError: it failed or hangs.
        """
        late = self._rng.random() < 0.5
        delay = self._rng.uniform(0, MOST_DELAY) if late else 0
        at = f"{case.kind}:{number}:{delay}"
        with self._log.open("w") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", *case.arguments],
                env=self._environment | {"KILL_AT": at},
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        if case.server is not None:
            case.server.watch(process, number, after=late)
        try:
            status = process.wait(HANGING_SECONDS)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        text = self._log.read_text(errors="replace")
        assert status in (0, -signal.SIGKILL), f"{case}: status {status}\n{text[-3000:]}"
        assert "Traceback" not in text, text[-3000:]
        if "damaged" in text:
            raise AssertionError(f"damage was found that nobody made:\n{text[-3000:]}")
        return status != 0

    def count(self, case: Case) -> int:
        """Runs a command to its end; returns the number of its events."""
        assert not self.run(case, 0)
        if case.server is not None:
            return case.server.count
        return json.loads(self._counts.read_text())[case.kind]

    def hit(self, case: Case, kills: int, count: int) -> tuple[int, int]:
        """Runs a command from nothing to its end, with up to `kills` kills; returns their number.

        The second number is that of the starts.
        """
        case.remove()
        for done in range(kills):
            # A command that resumes has fewer events, and is mostly killed early.
            number = 1 + int(count * self._rng.random() ** (1 if done == 0 else 2))
            if not self.run(case, number):
                return done, done + 1
            case.again()
        assert not self.run(case, 0)
        return kills, kills + 1


def harness(
    folder: Path,
    kills: int,
    seed: int,
    output: Path | None = None,
    names: Sequence[str] | None = None,
) -> list[dict[str, Any]]:
    """Kills each command its share of `kills` times; returns a dictionary for each case.

    `names` are the commands; None: all.
    """
    lines = []
    if output is not None and output.is_file():
        lines = json_lines(output)
    done = {(line["command"], line["kind"]) for line in lines}
    write_inputs(folder)
    server = Server()
    with hub_with(server) as (hub, for_hub), bucket_with(server) as (client, for_bucket):
        hitter = Hitter(folder, seed, for_hub | for_bucket)
        found = commands(folder, folder)
        earlier = ("train_tokenizer", "prepare", "pretrain")
        for name in earlier[:1] if names == ["prepare"] else earlier:
            hitter.run(Case(name, "", 0, found[name].arguments, lambda: None, lambda: None), 0)
        # Results that later commands read are not made anew.
        (folder / "killed").mkdir()
        found = commands(folder, folder / "killed")
        everything = [
            case
            for case in cases(found, hub, client, server)
            if names is None or case.name in names
        ]
        total = sum(case.share for case in everything)
        for case in everything:
            if (case.name, case.kind) in done:
                continue
            case.remove()
            count = hitter.count(case)
            assert count, f"{case.name} has no {case.kind}"
            expected = case.facts()
            line = Counter(kills=0, starts=0)
            wanted, different = max(1, round(kills * case.share / total)), []
            while line["kills"] < wanted and not different:
                some, starts = hitter.hit(case, min(3, wanted - line["kills"]), count)
                line.update(kills=some, starts=starts)
                different = differences(expected, case.facts())
            lines.append(
                {"command": case.name, "kind": case.kind, "events": count, **line}
                | {"different": different}
            )
            print(_row(lines[-1].values()), flush=True)
            if output is not None:
                with output.open("a") as file:
                    file.write(json.dumps(lines[-1]) + "\n")
    return lines


def _row(values: Any) -> str:
    return "".join(f"{str(value):<22}" for value in values)


def main() -> int:
    """Reads the flags, runs the harness, prints the table."""
    parser = argparse.ArgumentParser(description="Kills commands within what they write.")
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--command", action="append", help="one command of several; all if absent")
    parser.add_argument("--output", type=Path, help="a file for a JSON line of each case")
    options = parser.parse_args()
    print(_row(("command", "kind", "events", "kills", "starts", "different")))
    with tempfile.TemporaryDirectory() as folder:
        lines = harness(Path(folder), options.kills, options.seed, options.output, options.command)
    return 1 if any(line["different"] for line in lines) else 0


if __name__ == "__main__":
    sys.exit(main())
