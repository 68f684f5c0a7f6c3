"""Damages each file of data, models and workdirs; a command must notice it or undo it.

    python -m tests.programs.damage [--seed 0] [--share 0.2] [--folder workdir] [--output FILE]

Each file of prepared data, of an exported model and of the workdirs of an interrupted pretraining
and fine-tuning is truncated, emptied, removed, copied by half, and has one bit flipped, one file at
a time. Then the command that reads the folder is run again, and one of these must happen:

    recovered   the command ends well, with the same bytes as without damage
    set aside   as recovered, but a checkpoint that was not the newest is in `damaged` now
    detected    the command ends with one line that names the file or its folder
    log         the command ends well with the same model; the damaged file only holds metrics

Anything else is a failure: another result (`silent`), a traceback or a long message (`unclear`), or
damaged content that is gone from the disk (`deleted`). Prints a table; exits with status 1 if
there is a failure.
"""

import argparse
import collections
import contextlib
import hashlib
import io
import json
import os
import random
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from tests.programs.commands import config_text, run_facts, write_inputs

SHORT_CONFIG = config_text((24, 12), 7, 12, "save_every=6, keep_checkpoints=3")
MESSAGE_LIMIT = 500
LOGS = ("metrics.jsonl", "events.out.tfevents")


def _flipped(content: bytes, rng: random.Random) -> bytes:
    at = rng.randrange(len(content))
    return content[:at] + bytes([content[at] ^ (1 << rng.randrange(8))]) + content[at + 1 :]


DAMAGES: dict[str, Callable[[bytes, random.Random], bytes | None]] = {
    "truncated": lambda content, rng: content[: rng.randrange(1, max(2, len(content)))],
    "bit flipped": _flipped,
    "emptied": lambda content, rng: b"",
    "missing": lambda content, rng: None,
    "half copied": lambda content, rng: content[: len(content) // 2] + bytes(len(content) // 2),
}


class Folder(NamedTuple):
    """A folder whose files are damaged.

    Attributes:
        path: the undamaged folder.
        check: a function folder -> a result that must be equal with the undamaged folder; it may
            end with `SystemExit` or an error that a command would print.
    """

    path: Path
    check: Callable[[Path], Any]


def run(command: str, *flags: object) -> None:
    """Runs a command in this process.

    Raises:
        ValueError: the command failed; the message is what it printed to stderr.
    """
    import importlib

    printed = io.StringIO()
    main = importlib.import_module(f"bertjax.{command}").main
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(printed):
        try:
            status = main([str(flag) for flag in flags])
        except SystemExit as end:
            status = end.code
    if status:
        raise ValueError(printed.getvalue() or f"status {status} without a message")


def folders(place: Path) -> dict[str, Folder]:
    """Makes all folders that are damaged, in `place`."""
    write_inputs(place)
    (place / "config.py").write_text(SHORT_CONFIG)
    data, tokenizer = place / "data", place / "tokenizer"
    run(
        "train_tokenizer", "--input", place / "text.txt", "--vocab_size", 120, "--output", tokenizer
    )
    sizes = ("--max_length", 32, "--eval_fraction", 0.1, "--num_processes", 1, "--chunk_mb", 0.1)
    run(
        "prepare", "--input", place / "text.txt", "--tokenizer", tokenizer, "--output", data, *sizes
    )

    def pretrain(workdir: Path, source: Path = data, *flags: object) -> Any:
        paths = ("--config", place / "config.py", "--data", source, "--workdir", workdir)
        run("pretrain", *paths, *flags)
        _forget_card(workdir / "model")
        return run_facts(workdir)

    def on_data(source: Path) -> Any:
        with tempfile.TemporaryDirectory() as workdir:
            return pretrain(Path(workdir), source)["model"]

    pretrain(place / "run")
    model = shutil.copytree(place / "run" / "model", place / "pretrained")

    def finetune(workdir: Path) -> Any:
        files = ("--train", place / "train.jsonl", "--dev", place / "dev.jsonl", "--init", model)
        sizes = ("--max_length", 32, "--batch_size", 8, "--num_epochs", 3)
        run("finetune", "--task", "classify", *files, *sizes, "--unroll", 1, "--workdir", workdir)
        if workdir == place / "tuned":
            shutil.copytree(workdir / "model", place / "whole_model")
        _forget_card(workdir / "model")
        return run_facts(workdir)

    finetune(place / "tuned")
    for name in ("run", "tuned"):
        _interrupt(place / name)
    return {
        "data": Folder(data, on_data),
        "model": Folder(place / "whole_model", _load),
        "pretraining": Folder(place / "run", pretrain),
        "fine-tuning": Folder(place / "tuned", finetune),
    }


def _forget_card(model: Path) -> None:
    """Removes the model card, which names the folder of the data, and its checksum."""
    (model / "README.md").unlink()
    (model / "checksums.json").unlink()


def _interrupt(workdir: Path) -> None:
    """Removes what a run writes at its end, as if it had been killed after a save.

    Of several checkpoints, the newest is removed, too; a run that keeps only one had saved it.
    """
    for name in ("model", "predictions"):
        shutil.rmtree(workdir / name, ignore_errors=True)
    (workdir / "scores.json").unlink(missing_ok=True)
    steps = sorted(int(path.name) for path in (workdir / "checkpoints").iterdir())
    if len(steps) > 1:
        shutil.rmtree(workdir / "checkpoints" / str(steps[-1]))


def _load(directory: Path) -> Any:
    """Returns the content of a model directory: hashes of arrays, labels, and some tokens."""
    from flax.traverse_util import flatten_dict

    from bertjax.weights.load import load_model

    loaded = load_model(directory, None)
    flat: Any = flatten_dict(loaded.params, sep="/")
    arrays = {name: hashlib.sha256(x.tobytes()).hexdigest() for name, x in sorted(flat.items())}
    sentences = (directory.parent.parent / "text.txt", directory.parent / "text.txt")
    lines = next(p for p in sentences if p.is_file()).read_text().splitlines()[:300]
    ids = [loaded.tokenizer.encode(line) for line in lines]
    return arrays, loaded.labels, loaded.config, ids


def outcome(folder: Folder, copy: Path, name: str, expected: Any) -> str:
    """Reads a folder with a damaged file; returns what happened, as the module says."""
    try:
        result = folder.check(copy)
    except (ValueError, OSError) as error:
        text = str(error).strip()
        is_named = Path(name).name in text or copy.name in text or str(copy) in text
        is_brief = "Traceback" not in text and len(text) <= MESSAGE_LIMIT
        return "detected" if is_named and is_brief else f"unclear: {text[-600:]}"
    if result == expected:
        return "recovered"
    if name.startswith("checkpoints/"):
        step = name.split("/")[1]
        others = {k: v for k, v in expected["checkpoints"].items() if k != step}
        if (copy / "damaged" / step).is_dir() and result == expected | {"checkpoints": others}:
            return "set aside"
    if Path(name).name.startswith(LOGS) and result["model"] == expected["model"]:
        return "log"
    return "silent"


def _contents(folder: Path) -> set[str]:
    return {
        hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("*")
        if path.is_file()
    }


def harness(
    place: Path, share: float, seed: int, names: list[str] | None = None
) -> tuple[dict[str, collections.Counter], list[str]]:
    """Tries a share of all cases; returns {folder: number of each outcome}, and the failures."""
    os.environ["XDG_CACHE_HOME"] = str(place / "cache")  # where verified checksums are remembered
    counts, failures = {}, []
    for kind, folder in folders(place).items():
        if names and kind not in names:
            continue
        rng = random.Random(f"{seed} {kind}")
        with _copied(folder.path) as copy:
            expected = folder.check(copy)
        counts[kind] = collections.Counter()
        files = sorted(path for path in folder.path.rglob("*") if path.is_file())
        for path in files:
            for damage, change in DAMAGES.items():
                content = path.read_bytes()
                if not content or rng.random() >= share:
                    continue
                name = path.relative_to(folder.path).as_posix()
                damaged = change(content, rng)
                with _copied(folder.path) as copy:
                    if damaged is None:
                        (copy / name).unlink()
                    else:
                        (copy / name).write_bytes(damaged)
                    result = outcome(folder, copy, name, expected)
                    mark = hashlib.sha256(damaged or b"").hexdigest()
                    is_checkpoint = name.startswith("checkpoints/")
                    if damaged and is_checkpoint and mark not in _contents(copy):
                        result = "deleted"
                counts[kind][result.partition(":")[0]] += 1
                if result not in ("recovered", "set aside", "detected", "log"):
                    failures.append(f"{kind}/{name} {damage}: {result}")
                    print(failures[-1], flush=True)
        print(f"{kind}: {len(files)} files, {dict(counts[kind])}", flush=True)
    return counts, failures


@contextlib.contextmanager
def _copied(folder: Path):
    """Yields a copy of a folder with the same times of the files."""
    with tempfile.TemporaryDirectory(dir=folder.parent) as place:
        yield shutil.copytree(folder, Path(place) / folder.name)


def main() -> int:
    """Reads the flags, tries the cases, prints the table."""
    parser = argparse.ArgumentParser(description="Damages files and runs the commands again.")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--share", type=float, default=1.0, help="share of the cases to try")
    parser.add_argument("--folder", action="append", help="data, model, pretraining, fine-tuning")
    parser.add_argument("--output", type=Path, help="a JSON file for the numbers")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        counts, failures = harness(Path(place), options.share, options.seed, options.folder)
    if options.output:
        options.output.write_text(json.dumps({"cases": counts, "failures": failures}, indent=1))
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
