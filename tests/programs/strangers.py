"""Runs commands on directories, workdirs, cards and tables of a stranger who means harm.

    python -m tests.programs.strangers [--kind links ...] [--case NAME] [--keep FOLDER]

Each case is a command of its own process on a pseudo-terminal. Beside the stranger's files lies a
folder `private`, which nothing may open, read or change: inotify tells each access of any process
to it, and its content must not appear in any file or on the terminal. Whatever the stranger would
have executed creates a file `executed`; programs and connections that a process starts are reported
by an audit hook. Control characters that rich does not draw with must not reach the terminal. A
case may take 10 seconds and 1 GB more than the command takes to import what it needs.

Prints a table by kind, and exits with status 1 if anything is wrong.
"""

import argparse
import contextlib
import ctypes
import dataclasses
import gzip
import io
import json
import os
import pickle
import pty
import re
import shutil
import struct
import subprocess
import sys
import tarfile
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")

from bertjax.base.run_file import write_run  # noqa: E402
from tests.conftest import TINY, write_model  # noqa: E402
from tests.hub_server import Hub, running  # noqa: E402

SECONDS, MEGABYTES, PATIENCE = 10.0, 1000.0, 120.0
SECRET = "hf_kJ8tSeCrEtOfTheUser"
# What rich draws with: colours, movements of the cursor, and whether it is shown.
DRAWN = re.compile(r"\x1b\[(\?25[lh]|[\d;]*[mAKJ])|\r")
CONTROLS = re.compile("[\0-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u206f]")
# A colour, a title, a link, an erased line, marks of direction; the colour is none of rich's.
ESCAPES = "\x1b[31;7mred\x1b]0;title\x07\x1b]8;;http://x\x1b\\y\x9b2J\x08\x7f\r\u202etxt.exe\u2066"
LONG = "x" * 3000
# Reports programs and connections that a process starts.
HOOK = """
import os, sys
def hook(event, arguments, file=os.environ["STRANGERS_AUDIT"]):
    if event in ("os.system", "os.exec", "os.posix_spawn", "subprocess.Popen", "socket.connect"):
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.write(descriptor, (event + " " + repr(arguments)[:200] + "\\n").encode())
        os.close(descriptor)
sys.addaudithook(hook)
"""
_OPENED, _CHANGED = 0x20 | 0x1, 0x2 | 0x4 | 0x40 | 0x80 | 0x100 | 0x200 | 0x400 | 0x800


@dataclasses.dataclass
class Outcome:
    """What a command did: its exit status, what the terminal showed, and what it cost."""

    status: int
    shown: str
    seconds: float
    megabytes: float
    reads: int = 0
    writes: int = 0
    problems: list[str] = dataclasses.field(default_factory=list)


class Stranger:
    """Makes what a case needs in its own folder, which has a neighbour `private`."""

    def __init__(self, folder: Path, base: Path, hub: Hub):
        self.folder, self.base, self.hub = folder, base, hub
        self.private, self.marker = folder.parent / "private", folder.parent / "executed"

    def model(self, *, config: Any = None, **files: str | bytes) -> Path:
        """A copy of a classifier, with changed fields of its config and other files."""
        shutil.copytree(self.base / "model", model := self.folder / "model")
        if config is not None:
            content = json.loads((model / "config.json").read_text()) | config
            (model / "config.json").write_text(json.dumps(content))
        for name, content in files.items():
            self.write(model / name, content)
        return model

    def run(self, lines: Sequence[dict[str, Any]] = (), **files: str | bytes) -> Path:
        """The workdir of a run that has logged metrics."""
        run = self.folder / "run"
        run.mkdir()
        write_run(run, {"model": {}, "task": "classify"}, "0")
        lines = lines or ({"step": 1, "train/loss": 1.0},)
        self.write(run / "metrics.jsonl", "".join(json.dumps(line) + "\n" for line in lines))
        for name, content in files.items():
            self.write(run / name, content)
        return run

    def write(self, path: Path, content: str | bytes) -> str:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return str(path)

    def link(self, path: Path, target: str = "token") -> None:
        """Replaces `path` by a link into the private folder."""
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
        path.symlink_to(os.path.relpath(self.private / target, path.parent))

    def card(self, configs: Any, files: Sequence[str] = ("data/train.jsonl",)) -> list[str]:
        """Puts a dataset on the Hub, and returns the command that prepares it."""
        content = dict.fromkeys(files, b'{"text": "a b c"}\n' * 20)
        self.hub.dataset("stranger/data", content, card={"configs": configs})
        return prepare("hf:stranger/data")

    def predict(self, name: str, content: str | bytes, *flags: str) -> list[str]:
        """The command that predicts a table with the user's own model."""
        file = self.write(self.folder / name, content)
        return ["predict", "--model", str(self.base / "model"), "--input", file, *flags]


def prepare(source: str, *flags: str) -> list[str]:
    """The command that prepares a corpus."""
    how = ["--tokenizer", "bertjax:tiny", "--output", "out/data", "--max_length", "32"]
    return ["prepare", "--input", source, *how, "--num_processes", "1", *flags]


Case = Callable[[Stranger], list[str]]
CASES: dict[str, dict[str, Case]] = defaultdict(dict)


def case(kind: str, name: str) -> Callable[[Case], Case]:
    """Adds a case, a function (stranger) -> arguments of `bertjax`."""

    def add(make: Case) -> Case:
        assert name not in CASES[kind]
        CASES[kind][name] = make
        return make

    return add


def _model_with_link(name: str, target: str, command: str) -> Case:
    def make(s: Stranger) -> list[str]:
        s.link((model := s.model()) / name, target)
        return [command, *(["--model", str(model), "--text", "a"] if command == "predict" else []),
                *([str(model), "out/model"] if command == "convert" else [])]  # fmt: skip

    return make


for _name, _target in {
    **{"config.json": "token", "vocab.txt": "token", "model.safetensors": "token"},
    **{"config_sentence_transformers.json": "token", "1_Pooling": "", "README.md": "new"},
    **{"tokenizer_config.json": "pipe", "task.json": "token"},
}.items():
    case("links in models", f"convert {_name}")(_model_with_link(_name, _target, "convert"))
case("links in models", "predict vocab")(_model_with_link("vocab.txt", "token", "predict"))


@case("links in models", "pipe")
def _(s: Stranger) -> list[str]:
    (model := s.model()).joinpath("vocab.txt").unlink()
    os.mkfifo(model / "vocab.txt")
    return ["convert", str(s.folder / "model"), "out/model"]


def _run_with_link(name: str, target: str, command: str) -> Case:
    def make(s: Stranger) -> list[str]:
        s.link((run := s.run()) / name, target)
        table = s.write(s.folder / "a.csv", "text,label\na,x\nb,y\n")
        return {
            "report": ["report", str(run)],
            "predict": ["predict", "--model", str(run), "--text", "a"],
            "finetune": ["finetune", "--task=classify", f"--train={table}", f"--workdir={run}",
                         f"--init={s.base / 'model'}"],
            "pretrain": ["pretrain", "--config=quickstart", "--data=x", f"--workdir={run}"],
        }[command]  # fmt: skip

    return make


for _command, _name, _target in (
    ("report", "metrics.jsonl", "token"),
    ("report", "processes.jsonl", "pipe"),
    ("report", "predictions", ""),
    ("report", "model/config.json", "token"),
    ("predict", "run.json", "token"),
    ("predict", "model", ""),
    ("predict", "checkpoints", ""),
    ("finetune", "run.lock", "new"),
    ("finetune", "report.html.tmp", "token"),
    ("finetune", "scores.json", "token"),
    ("finetune", "checkpoints", ""),
    ("pretrain", ".goodput.json", "token"),
    ("pretrain", "events.out.tfevents.1", "token"),
    ("pretrain", "tokenizer", ""),
):
    case("links in workdirs", f"{_command} {_name}")(_run_with_link(_name, _target, _command))


@case("escapes", "labels")
def _(s: Stranger) -> list[str]:
    names = {0: ESCAPES, 1: "=cmd|x", 2: LONG}
    labels = {"id2label": names, "label2id": {name: n for n, name in names.items()}}
    table = s.write(s.folder / "a.csv", "text,label\na,=cmd|x\nb,=cmd|x\n")
    return ["predict", "--model", str(s.model(config=labels)), "--input", table]


@case("escapes", "an unknown label in a table")
def _(s: Stranger) -> list[str]:
    return s.predict("a.csv", f"text,label\na,maybe\nb,{ESCAPES}\nc,{LONG}\n".replace("\r", ""))


@case("escapes", "columns of a table")
def _(s: Stranger) -> list[str]:
    return s.predict("a.tsv", f"{ESCAPES}\t{LONG}\na\tb\n".replace("\r", ""))


@case("escapes", "vocabulary")
def _(s: Stranger) -> list[str]:
    shutil.copytree(s.base / "encoder", model := s.folder / "model")
    for name in ("tokenizer.json", "vocab.txt"):
        (model / name).unlink(missing_ok=True)
    odd = [f"{ESCAPES.lower()}{n}".replace("\r", "") for n in range(200)]
    size = json.loads((model / "config.json").read_text())["vocab_size"]
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *odd][:size]
    s.write(model / "vocab.txt", "\n".join(words) + "\n")
    return ["fill_mask", "--model", str(model), "a [MASK] b"]


@case("escapes", "type of a model")
def _(s: Stranger) -> list[str]:
    return ["convert", str(s.model(config={"model_type": ESCAPES + LONG})), "out/model"]


@case("escapes", "activation of a model")
def _(s: Stranger) -> list[str]:
    return ["convert", str(s.model(config={"hidden_act": ESCAPES + LONG})), "out/model"]


@case("escapes", "unknown fields and task")
def _(s: Stranger) -> list[str]:
    task = json.dumps({"task": ESCAPES, "kind": ESCAPES, "columns": {"text": ESCAPES}})
    model = s.model(config={ESCAPES: ESCAPES}, **{"task.json": task})
    return ["predict", "--model", str(model), "--text", "a"]


@case("escapes", "settings of a tokenizer")
def _(s: Stranger) -> list[str]:
    config = json.dumps({ESCAPES: 1, "tokenizer_class": ESCAPES, "model_max_length": 5})
    model = s.model(**{"tokenizer_config.json": config})
    return ["predict", "--model", str(model), "--text", "a"]


@case("escapes", "names of files")
def _(s: Stranger) -> list[str]:
    model = s.model(**{f"{ESCAPES[:40]}{n}".replace("/", "|"): "x" for n in range(3)})
    return ["convert", str(model), "out/model"]


@case("escapes", "name of a run")
def _(s: Stranger) -> list[str]:
    s.run().rename(s.folder / ESCAPES.replace("/", "|"))
    return ["report", str(s.folder)]


@case("escapes", "files of a run")
def _(s: Stranger) -> list[str]:
    process = {"start": 1.0, "host": ESCAPES, "command": ESCAPES, "num_steps": 5, "name": ESCAPES}
    end = {"end": 2.0, "state": ESCAPES, "reason": ESCAPES + LONG}
    ledger = {"start": 1, "end": 2, "seconds": {ESCAPES: 1.0}, "lost_seconds": 0, "lost_steps": 0}
    lines = [{"step": n, f"train/{ESCAPES}": 1.0, f"eval/{LONG}": 2.0} for n in range(1, 4)]
    processes = "".join(json.dumps(line) + "\n" for line in (process, end))
    files = {"processes.jsonl": processes, "goodput.jsonl": json.dumps(ledger) + "\n"}
    return ["report", str(s.run(lines, **files, **{"run.json": f'{{"config": "{LONG}"}}'}))]


@case("escapes", "names in an archive")
def _(s: Stranger) -> list[str]:
    with tarfile.open(s.folder / "a.tar", "w") as archive:
        for name in (f"{ESCAPES}.jsonl", f"{LONG}.txt"):
            member = tarfile.TarInfo(name)
            member.size = 4
            archive.addfile(member, io.BytesIO(b"\xff\xfe{\n"))
    return prepare(str(s.folder / "a.tar"))


class _Executed:
    def __init__(self, call: Any, argument: str):
        self.reduced = call, (argument,)

    def __reduce__(self) -> Any:
        return self.reduced


def _pickle(call: Any, text: str) -> Case:
    def make(s: Stranger) -> list[str]:
        model = s.model()
        (model / "model.safetensors").unlink()
        content = pickle.dumps(_Executed(call, text.format(s.marker)))
        s.write(model / "pytorch_model.bin", content)
        return ["convert", str(model), "out/model"]

    return make


case("code", "pickle of os.system")(_pickle(os.system, "touch {}"))
case("code", "pickle of eval")(_pickle(eval, "open({!r}, 'w')".replace("{!r}", "'{}'")))
case("code", "pickle of exec")(_pickle(exec, "open('{}', 'w')"))


@case("code", "auto_map")
def _(s: Stranger) -> list[str]:
    program = f"open({str(s.marker)!r}, 'w')\n"
    classes = {"AutoModel": "modeling_x.X", "AutoConfig": "configuration_x.X"}
    config = {"auto_map": classes, "trust_remote_code": True, "custom_pipelines": {"x": "x.X"}}
    names = ("modeling_x.py", "configuration_x.py", "__init__.py", "setup.py")
    model = s.model(config=config, **dict.fromkeys(names, program))
    return ["convert", str(model), "out/model"]


@case("code", "modules of sentence-transformers")
def _(s: Stranger) -> list[str]:
    modules = [
        {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
        {"idx": 1, "name": "1", "path": "1_X", "type": "evil.Module"},
        {"idx": 2, "name": "2", "path": "../../private", "type": "os.system"},
    ]
    program = f"open({str(s.marker)!r}, 'w')\n"
    files = {"modules.json": json.dumps(modules), "evil.py": program, "1_X/evil.py": program}
    table = s.write(s.folder / "a.txt", "a\n")
    model = s.model(**files)
    return ["embed", "--model", str(model), "--input", table, "--output", "out/a.npy"]


@case("code", "activation by its path")
def _(s: Stranger) -> list[str]:
    field = {"sbert_ce_default_activation_function": "os.system", "hidden_act": "os.system"}
    return ["convert", str(s.model(config=field)), "out/model"]


for _name, _config in {
    "width": {"hidden_size": 10**9, "intermediate_size": 10**9},
    "layers": {"num_hidden_layers": 10**9},
    "vocabulary": {"vocab_size": 10**12},
    "labels": {"id2label": {str(n): str(n) for n in range(200_000)}, "num_labels": 200_000},
    "digits": {"max_position_embeddings": int("9" * 4000)},
}.items():
    case("sizes", f"config: {_name}")(
        lambda s, config=_config: ["convert", str(s.model(config=config)), "out/model"]
    )
for _name, _file, _content in (
    ("header of 8 EB", "model.safetensors", struct.pack("<Q", 1 << 63) + b"{}"),
    ("header of tensors", "model.safetensors", b""),
    ("depth of JSON", "config.json", "[" * 1_000_000),
    ("JSON of 64 MB", "config.json", "{" + " " * (1 << 26)),
    ("depth of task.json", "task.json", '{"a":' * 500_000),
    ("vocabulary of 64 MB", "vocab.txt", "a\n" * (1 << 25)),
):
    if not _content:
        _header = {"t": {"dtype": "F32", "shape": [1 << 40], "data_offsets": [0, 1 << 42]}}
        _text = json.dumps(_header).encode()
        _content = struct.pack("<Q", len(_text)) + _text
    case("sizes", _name)(
        lambda s, f=_file, c=_content: ["convert", str(s.model(**{f: c})), "out/model"]
    )


@case("sizes", "shards elsewhere")
def _(s: Stranger) -> list[str]:
    model = s.model()
    (model / "model.safetensors").unlink()
    names = {f"t{n}": f"../../private/token{n % 2 or ''}" for n in range(50_000)}
    s.write(model / "model.safetensors.index.json", json.dumps({"weight_map": names}))
    return ["convert", str(model), "out/model"]


@case("sizes", "metrics of a run")
def _(s: Stranger) -> list[str]:
    lines = [{"step": n, **{f"train/{n}-{k}": 1e308 for k in range(20)}} for n in range(1, 3000)]
    return ["report", str(s.run(lines))]


def _regex(pattern: dict[str, Any], text: str) -> Case:
    def make(s: Stranger) -> list[str]:
        model = s.model()
        file = model / "tokenizer.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | pattern))
        table = s.write(s.folder / "a.txt", f"{text}\n" * 3)
        return ["predict", "--model", str(model), "--input", table]

    return make


for _name, _expression in {
    "nested": "(a+)+$",
    "alternatives": "(a|a)*$",
    "backward reference": "(a*)*\\1$",
    "lookahead": "(?=(a+)+)(a+)+b",
}.items():
    _regexp = {"Regex": _expression}
    _split = {"type": "Split", "pattern": _regexp, "behavior": "Isolated", "invert": False}
    _replace = {"type": "Replace", "pattern": _regexp, "content": ""}
    case("regular expressions", f"split, {_name}")(
        _regex({"pre_tokenizer": _split}, "a" * 5000 + "!")
    )
    case("regular expressions", f"replace, {_name}")(
        _regex({"normalizer": _replace}, "a" * 5000 + "!")
    )

_MANY = tuple(f"data/part-{n:05d}.jsonl" for n in range(20_000))
for _name, _configs, _files in (
    ("glob of stars", [{"data_files": "*a" * 2000 + "b"}], ("data/train.jsonl", *_MANY[:2000])),
    ("many globs", [{"data_files": [f"**/*{n}*a*b" for n in range(20_000)]}], _MANY),
    ("many folders", [{"data_files": "**/" * 3000 + "*"}], ("a/" * 100 + "train.jsonl",)),
    ("glob to elsewhere", [{"data_files": "../../../private/*"}], ("../../../private/token",)),
    ("names that lead elsewhere", None, ("data/../../../../private/evil.jsonl",)),
    ("names with escapes", [{"config_name": ESCAPES, "data_files": "data/*"}] * 2, _MANY[:1]),
    ("splits with escapes", [{"data_files": [{"split": ESCAPES, "path": "*/*"}]}], _MANY[:1]),
    ("many configurations", [{"config_name": f"{LONG}{n}"} for n in range(2000)], _MANY[:1]),
    ("no sense", [{"data_files": [{"path": 5}]}], _MANY[:1]),
):
    case("cards of datasets", _name)(lambda s, c=_configs, f=_files: s.card(c, f))


@case("tables", "formulas")
def _(s: Stranger) -> list[str]:
    table = "text\n=cmd|' /C calc'!A0\n@sum(1)\n+1+1\n-1+1\n"
    return s.predict("a.csv", table, "--output", "out/a.csv", "--spreadsheet_safe")


@case("tables", "cell of 20 MB")
def _(s: Stranger) -> list[str]:
    return s.predict("a.csv", f"text\n{'a' * 20_000_000}\n")


@case("tables", "100,000 columns")
def _(s: Stranger) -> list[str]:
    return s.predict("a.csv", f"text,{','.join(f'c{n}' for n in range(100_000))}\na\n")


@case("tables", "depth of JSON lines")
def _(s: Stranger) -> list[str]:
    return s.predict("a.jsonl", '{"text": ' + "[" * 100_000 + "\n")


@case("tables", "bytes that are no text")
def _(s: Stranger) -> list[str]:
    return s.predict("a.csv", b"text\n\xff\xfe\x00\x9b31m\x1b[2J\n")


@case("tables", "bomb")
def _(s: Stranger) -> list[str]:
    bomb = io.BytesIO()
    with gzip.open(bomb, "wb", compresslevel=9) as file:
        for _ in range(256):
            file.write(b"\0" * (1 << 20))
    return prepare(s.write(s.folder / "a.txt.gz", gzip.compress(bomb.getvalue())))


@case("tables", "links in an archive")
def _(s: Stranger) -> list[str]:
    with tarfile.open(s.folder / "a.tar", "w") as archive:
        for name, kind, target in (
            ("a.txt", tarfile.SYMTYPE, str(s.private / "token")),
            ("b.txt", tarfile.LNKTYPE, "../private/token"),
            ("../private/c.txt", tarfile.REGTYPE, ""),
            (f"{s.private}/d.txt", tarfile.REGTYPE, ""),
            ("e.txt", tarfile.FIFOTYPE, ""),
        ):
            member = tarfile.TarInfo(name)
            member.type, member.linkname = kind, target
            member.size = 6 if kind == tarfile.REGTYPE else 0
            archive.addfile(member, io.BytesIO(b"a b c\n" if member.size else b""))
    return prepare(str(s.folder / "a.tar"))


class _Watch:
    """Counts accesses of any process to a folder and its files (Linux only)."""

    def __init__(self, folder: Path):
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._descriptor = self._libc.inotify_init1(os.O_NONBLOCK)
        for path in (folder, *folder.iterdir()):
            self._libc.inotify_add_watch(self._descriptor, os.fsencode(path), _OPENED | _CHANGED)

    def counts(self) -> tuple[int, int]:
        """Returns the numbers of (opens and reads, changes) since the last call."""
        reads = writes = 0
        try:
            while events := os.read(self._descriptor, 1 << 16):
                while events:
                    _, mask, _, length = struct.unpack_from("iIII", events)
                    events = events[16 + length :]
                    reads += bool(mask & _OPENED)
                    writes += bool(mask & _CHANGED)
        except BlockingIOError:
            return reads, writes
        return reads, writes

    def close(self) -> None:
        os.close(self._descriptor)


def run(arguments: Sequence[str], folder: Path, env: dict[str, str]) -> Outcome:
    """Runs `bertjax ARGUMENTS` in `folder` on a pseudo-terminal, which it ends after PATIENCE."""
    ours, theirs = pty.openpty()
    started = time.monotonic()
    process = subprocess.Popen(
        [sys.executable, "-m", "bertjax", *arguments],
        stdin=subprocess.DEVNULL, stdout=theirs, stderr=theirs, cwd=folder, env=env,
    )  # fmt: skip
    os.close(theirs)
    os.set_blocking(ours, False)
    shown, status, peak = b"", None, 0
    usage: Any = None
    while status is None:
        peak = max(peak, _peak_kilobytes(process.pid))
        found, code, usage = os.wait4(process.pid, os.WNOHANG)
        status = os.waitstatus_to_exitcode(code) if found else None
        if status is None and time.monotonic() - started > PATIENCE:
            process.kill()
        try:
            while part := os.read(ours, 1 << 16):
                shown += part
        except OSError:  # nothing now, or the other side is closed
            time.sleep(0.02)
    process.returncode = status
    os.close(ours)
    # Another process may have taken the time.
    seconds = min(time.monotonic() - started, usage.ru_utime + usage.ru_stime)
    return Outcome(status, shown.decode(errors="surrogateescape"), seconds, peak / 1024)


def _peak_kilobytes(process: int) -> int:
    # Not of `wait4`: a process that starts another passes its own peak on.
    with contextlib.suppress(OSError, TypeError):
        found = re.search(r"VmHWM:\s*(\d+) kB", Path(f"/proc/{process}/status").read_text())
        return int(found[1])  # pyright: ignore[reportOptionalSubscript]
    return 0


class Harness:
    """Runs cases; `folder` holds the user's own model and the folder of each case."""

    def __init__(self, folder: Path, hub: Hub):
        self.folder, self.hub = folder, hub
        self._imports: dict[str, Outcome] = {}
        sentences = ["a b c d e f g h", "the quick brown fox jumps over the lazy dog"] * 10
        from bertjax.tokenization import train_wordpiece

        tokenizer = train_wordpiece(sentences, vocab_size=60, model_max_length=64)
        config = dataclasses.replace(TINY, num_hidden_layers=1, vocab_size=tokenizer.vocab_size)
        base = self.base = folder / "base"
        write_model(base / "model", config, "sequence_classification", tokenizer)
        write_model(base / "encoder", config, "pretraining", tokenizer)
        (folder / "hook").mkdir()
        (folder / "hook" / "sitecustomize.py").write_text(HOOK)

    def _env(self, folder: Path) -> dict[str, str]:
        path = os.pathsep.join([str(self.folder / "hook"), *sys.path])
        hub = {"HF_ENDPOINT": self.hub.address, "HF_HOME": str(folder / "hf")}
        places = {"XDG_CACHE_HOME": str(self.folder / "cache"), "HF_HUB_DISABLE_XET": "1"}
        audit = {"STRANGERS_AUDIT": str(folder / "audit"), "TERM": "xterm-256color"}
        return os.environ | {"PYTHONPATH": path, "COLUMNS": "100"} | hub | places | audit

    def imports(self, command: str) -> Outcome:
        """What the command takes to import what it needs, until it misses a file."""
        if command not in self._imports:
            folder = self.folder / f"imports-{command}"
            folder.mkdir()
            missing = str(folder / "missing")
            arguments = {
                "predict": ["--model", missing, "--text", "a"],
                "embed": ["--model", missing, "--input", missing, "--output", "a.npy"],
                "fill_mask": ["--model", missing, "a [MASK]"],
                "convert": [missing, "out/model"],
                "report": [missing],
                "prepare": prepare(missing)[1:],
                "pretrain": ["--config=quickstart", "--data", missing, "--workdir=x"],
                "finetune": ["--task=classify", "--train", missing, "--workdir=x"],
            }[command]
            self._imports[command] = run([command, *arguments], folder, self._env(folder))
        return self._imports[command]

    def __call__(self, kind: str, name: str) -> Outcome:
        """Runs a case, and returns its outcome with all that was wrong."""
        parent = Path(tempfile.mkdtemp(prefix="case-", dir=self.folder))
        (folder := parent / "stranger").mkdir()
        (work := parent / "work").mkdir()
        (private := parent / "private").mkdir()
        (private / "token").write_text(SECRET)
        os.mkfifo(private / "pipe")
        arguments = CASES[kind][name](Stranger(folder, self.base, self.hub))
        imports = self.imports(arguments[0])
        watch = _Watch(private)
        outcome = run(arguments, work, self._env(parent))
        outcome.reads, outcome.writes = watch.counts()
        watch.close()
        outcome.seconds -= imports.seconds
        outcome.megabytes -= imports.megabytes
        outcome.problems += self._problems(outcome, parent)
        shutil.rmtree(parent)
        return outcome

    def _problems(self, outcome: Outcome, parent: Path) -> list[str]:
        shown = outcome.shown
        found = [f"{outcome.reads} reads outside"] * bool(outcome.reads)
        found += [f"{outcome.writes} writes outside"] * bool(outcome.writes)
        found += ["code was executed"] * (parent / "executed").exists()
        audit = parent / "audit"
        started = audit.read_text().splitlines() if audit.exists() else []
        port = self.hub.address.rpartition(":")[2]
        found += [line for line in started if "socket" not in line or port not in line]
        files = [path for path in parent.rglob("*") if path.is_file() and not path.is_symlink()]
        files = [path for path in files if path.parent.name != "private"]
        if SECRET in shown or any(SECRET.encode() in path.read_bytes() for path in files):
            found.append("the secret was copied")
        rest = DRAWN.sub("", shown.replace("\x1b[31;7m", "\0"))
        raw = Counter(CONTROLS.findall(rest))
        found += [f"raw control characters: {ascii(dict(raw))}"] * bool(raw)
        found += ["a name of 3,000 characters"] * bool(re.search("x{1000}", shown))
        found += [f"{outcome.seconds:.1f} s"] * (outcome.seconds > SECONDS)
        found += [f"{outcome.megabytes:.0f} MB"] * (outcome.megabytes > MEGABYTES)
        if outcome.status not in (0, 1, 2) or "Traceback" in shown:
            found.append(f"status {outcome.status}: {shown[-300:]}")
        return found


def table(outcomes: dict[tuple[str, str], Outcome]) -> str:
    """Returns a table of all outcomes by kind."""
    titles = ("kind", "cases", "refused", "read", "seconds", "MB", "reads", "writes", "wrong")
    rows = [titles]
    for kind in (*dict.fromkeys(kind for kind, _ in outcomes), "all"):
        of_kind = [one for (other, _), one in outcomes.items() if kind in (other, "all")]
        refused = sum(one.status != 0 for one in of_kind)
        most = (max(getattr(one, x) for one in of_kind) for x in ("seconds", "megabytes"))
        sums = (sum(getattr(one, x) for one in of_kind) for x in ("reads", "writes"))
        wrong = sum(bool(one.problems) for one in of_kind)
        costs = (f"{max(0.0, value):.1f}" for value in most)
        cells = (kind, len(of_kind), refused, len(of_kind) - refused, *costs, *sums, wrong)
        rows.append(tuple(map(str, cells)))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if n else cell.ljust(width)
            for n, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    )


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kind", nargs="*", default=list(CASES))
    parser.add_argument("--case", nargs="*")
    parser.add_argument("--verbose", action="store_true")
    flags = parser.parse_args(argv)
    outcomes = {}
    with tempfile.TemporaryDirectory() as folder, running() as hub:
        harness = Harness(Path(folder), hub)
        for kind in flags.kind:
            for name in CASES[kind]:
                if flags.case and name not in flags.case:
                    continue
                one = outcomes[kind, name] = harness(kind, name)
                last = one.shown.strip().splitlines()[-1:] or [""]
                print(f"{kind}, {name}: status {one.status}, {one.seconds:.1f} s, "
                      f"{one.megabytes:.0f} MB {ascii(one.problems) if one.problems else ''}",
                      flush=True)  # fmt: skip
                if flags.verbose:
                    print("   ", ascii(last[0])[:400], flush=True)
    print(table(outcomes))
    return int(any(one.problems for one in outcomes.values()))


if __name__ == "__main__":
    sys.exit(main())
