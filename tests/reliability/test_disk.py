"""Full and read-only disks, missing rights and locks: one line, nothing lost, and it goes on.

Each command first writes to a healthy disk. Then the disk breaks: the command must end with one
line that names the path, and everything that was there must be unchanged. After the repair, the
same command gives what it would have given without the interruption.
"""

import contextlib
import dataclasses
import errno
import hashlib
import io
import os
import subprocess
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path

import jax
import pytest
from jax.experimental.compilation_cache import compilation_cache

from bertjax import convert, embed, predict, prepare, train_tokenizer
from bertjax.base.files import naming_write_errors
from bertjax.tasks.dataset import Example
from bertjax.weights import load_model

# Enough for the results of all commands, little enough to be filled in no time.
DISK_MB = 8


@dataclasses.dataclass
class Disk:
    """A folder on a small disk, and what can happen to it."""

    folder: Path

    @contextlib.contextmanager
    def broken(self, how: str) -> Iterator[None]:
        """A context in which the disk is full, or read-only."""
        with self.full() if how == "full" else self.read_only():
            yield

    @contextlib.contextmanager
    def full(self) -> Iterator[None]:
        filler = self.folder.parent / "filler"
        with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
            for size in (1 << 16, 1 << 12, 1):
                with contextlib.suppress(OSError):
                    while True:
                        file.write(b"x" * size)
        try:
            yield
        finally:
            filler.unlink()

    @contextlib.contextmanager
    def read_only(self) -> Iterator[None]:
        _mount("-o", "remount,ro", str(self.folder.parent))
        try:
            yield
        finally:
            _mount("-o", "remount,rw", str(self.folder.parent))


def _mount(*arguments: str) -> None:
    subprocess.run(["mount", *arguments], check=True, capture_output=True)


@pytest.fixture(scope="module")
def disk_of_the_module() -> Iterator[Path]:
    """A small disk in memory."""
    folder = tempfile.mkdtemp(prefix="bertjax-disk-")
    try:
        _mount("-t", "tmpfs", "-o", f"size={DISK_MB}m", "none", folder)
    except (OSError, subprocess.CalledProcessError):
        os.rmdir(folder)
        pytest.skip("only some users may mount a disk in memory")
    yield Path(folder)
    subprocess.run(["umount", "-l", folder], check=True)
    os.rmdir(folder)


@pytest.fixture
def disk(disk_of_the_module) -> Iterator[Disk]:
    folder = disk_of_the_module / "place"
    folder.mkdir()
    yield Disk(folder)
    subprocess.run(["rm", "-r", str(folder)], check=True)


def contents(folder: Path) -> dict[str, str]:
    """The hash of each file, but of those that say how far a command has come."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.suffix not in (".partial", ".json.tmp")
    }


@dataclasses.dataclass
class Command:
    """A command that writes to a folder: its flags by the name of the result."""

    main: object
    flags: list[str]
    output: str

    def run(self, folder: Path, *more: str) -> int:
        return self.main([*self.flags, "--output", str(folder / self.output), *more])  # type: ignore[operator]


@dataclasses.dataclass
class Conversion(Command):
    def run(self, folder: Path, *more: str) -> int:
        return self.main([*self.flags, str(folder / self.output), *more])  # type: ignore[operator]


@pytest.fixture(scope="module")
def classifier(tmp_path_factory, one_layer_config, tokenizer, written):
    config = dataclasses.replace(one_layer_config, vocab_size=tokenizer.vocab_size)
    folder = tmp_path_factory.mktemp("classifier") / "model"
    return written(folder, config, "sequence_classification", tokenizer)


# JSON lines of vectors are written as those of predictions are.
@pytest.fixture(scope="module", params=["train_tokenizer", "prepare", "export", "predict", "embed"])
def command(request, corpus, classifier, sentences, tmp_path_factory) -> Command:
    texts = tmp_path_factory.mktemp("texts") / "texts.txt"
    texts.write_text("\n".join(sentences[:80]) + "\n")
    model = ["--model", str(classifier)]
    if request.param == "train_tokenizer":
        flags = [f"--input={corpus / 'text.txt'}", "--vocab_size=120"]
        return Command(train_tokenizer.main, flags, "tokenizer")
    if request.param == "prepare":
        flags = f"--input={corpus / 'text.txt'} --tokenizer={corpus / 'tokenizer'}"
        more = "--max_length 16 --num_processes 1 --chunk_mb 0.002 --eval_fraction 0.1"
        return Command(prepare.main, [*flags.split(), *more.split()], "data")
    if request.param == "export":
        return Conversion(convert.main, [str(classifier)], "model")
    if request.param == "predict":
        return Command(predict.main, [*model, "--input", str(texts)], "answers.jsonl")
    return Command(embed.main, [*model, "--input", str(texts)], "v.npy")


@pytest.fixture(scope="module")
def expected(command, tmp_path_factory) -> dict[str, str]:
    """The files of a command that nothing has interrupted."""
    folder = tmp_path_factory.mktemp("whole")
    assert command.run(folder) == 0
    return contents(folder)


def check_error(capsys, folder: Path) -> str:
    """The command printed one line of error, which names the path."""
    lines = [line for line in capsys.readouterr().err.splitlines() if line]
    errors = [line for line in lines if line.startswith("error: ")]
    assert len(errors) == 1 and lines[-1] == errors[0] and not any("Traceback" in x for x in lines)
    assert str(folder) in errors[0] and len(errors[0]) < 600
    return errors[0]


@pytest.mark.parametrize("how", ["full", "read-only"])
def test_a_broken_disk_is_one_line_and_the_same_command_goes_on(
    command, expected, disk, how, capsys
):
    (disk.folder / "other").write_text("of the user")
    with disk.broken(how):
        assert command.run(disk.folder) == 1
        line = check_error(capsys, disk.folder)
        assert ("No space left" if how == "full" else "Read-only file system") in line
        assert ("Make room" if how == "full" else "Get the right") in line or "free some" in line
    left = contents(disk.folder)
    assert left.pop("other") and not any(name.endswith((".tmp", ".writing")) for name in left)
    assert command.run(disk.folder) == 0
    whole = contents(disk.folder)
    assert {name: value for name, value in whole.items() if name != "other"} == expected
    # What is there now stays, when the disk breaks again.
    with disk.broken(how):
        if command.output == "data":  # complete data is only read
            assert command.run(disk.folder) == 0
        else:
            assert command.run(disk.folder) == 1
            check_error(capsys, disk.folder)
        assert contents(disk.folder) == whole


@pytest.mark.parametrize("how", ["full", "read-only"])
def test_prediction_files_of_a_split_are_whole_or_those_of_before(disk, how, classifier):
    from bertjax.inference.pretrained import Pretrained

    task = Pretrained(load_model(classifier, None)).task
    pairs = [(Example(id=str(i), where=""), {"label": "yes" * 500}) for i in range(40)]
    list(task.write_predictions(disk.folder, "dev", pairs[:3]))
    before = contents(disk.folder)
    with disk.broken(how):
        with pytest.raises(OSError, match=rf"Writing {disk.folder}/dev\.jsonl failed"):
            list(task.write_predictions(disk.folder, "dev", pairs))
    assert contents(disk.folder) == before
    list(task.write_predictions(disk.folder, "dev", pairs))
    assert len((disk.folder / "dev.jsonl").read_text().splitlines()) == 40


@pytest.mark.parametrize("how", ["full", "read-only"])
def test_a_compilation_cache_that_cannot_be_written_costs_only_time(disk, how):
    before = jax.config.jax_compilation_cache_dir
    jax.config.update("jax_compilation_cache_dir", str(disk.folder / "xla"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    compilation_cache.reset_cache()
    try:
        with disk.broken(how), warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            assert jax.jit(lambda x: x * 3 + 1)(1.0) == 4.0
        assert all("Traceback" not in str(warning.message) for warning in caught)
    finally:
        jax.config.update("jax_compilation_cache_dir", before)
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)
        compilation_cache.reset_cache()


def test_without_rights_the_path_and_the_remedy_are_named(command, tmp_path, monkeypatch, capsys):
    folder = tmp_path / "of others"
    folder.mkdir()
    (folder / "other").write_text("of the user")
    # The administrator has every right, so the rights are taken away here.
    for name, function in (("os.mkdir", os.mkdir), ("io.open", io.open)):
        monkeypatch.setattr(name, _refusing(function, folder))
    assert command.run(folder) == 1
    line = check_error(capsys, folder)
    assert "Permission denied" in line and "Get the right to write there" in line
    monkeypatch.undo()
    assert contents(folder) == {"other": hashlib.sha256(b"of the user").hexdigest()}
    assert command.run(folder) == 0


def _refusing(function, folder: Path):
    def refuse(path, mode="r", *args, **kwargs):
        reads = isinstance(mode, str) and not set(mode) & set("wax+")
        if isinstance(path, str | Path) and Path(path).is_relative_to(folder) and not reads:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return function(path, mode, *args, **kwargs)

    return refuse


def test_without_file_locks_every_command_works_and_leaves_no_lock(
    command, expected, tmp_path, monkeypatch
):
    def flock(file, how):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr("fcntl.flock", flock)
    assert command.run(tmp_path) == 0
    assert contents(tmp_path) == expected


def test_an_error_that_is_explained_is_not_explained_twice():
    with (
        pytest.raises(OSError) as raised,
        naming_write_errors("outer"),
        naming_write_errors("inner"),
    ):
        raise OSError(errno.EDQUOT, "Disk quota exceeded")
    assert str(raised.value).count("Writing") == 1 and "Writing inner" in str(raised.value)
    assert "Make room" in str(raised.value)
