"""The commands and programs that README, docs/ and launch/ tell users to copy work."""

import importlib
import re
import shlex
from pathlib import Path

import pytest

import bertjax

ROOT = Path(__file__).parent.parent
COMMAND = re.compile(r"python -m bertjax\.(\w+) ?(.*)")


def commands():
    """(program, flags) of each command in README, docs/, launch/ and the configs."""
    files = [ROOT / "README.md", *(ROOT / "docs").glob("*.md"), *(ROOT / "launch").glob("*.*")]
    files += (ROOT / "configs").glob("*/[!_]*.py")
    seen = set()
    for file in files:
        text = file.read_text(encoding="utf-8").replace("\\\\\n", " ").replace("\\\n", " ")
        for line in text.splitlines():
            if match := COMMAND.match(line.strip()):
                flags = match[2].split("  #")[0]
                if (match[1], flags) in seen:
                    continue
                seen.add((match[1], flags))
                yield pytest.param(match[1], flags, id=f"{file.name}: {match[1]} {flags[:40]}")


@pytest.mark.parametrize(("program", "flags"), list(commands()))
def test_the_command_is_understood(program, flags, monkeypatch):
    monkeypatch.chdir(ROOT)
    module = importlib.import_module(f"bertjax.{program}")
    module.parse(shlex.split(flags))


def test_every_folder_is_explained_and_the_files_to_start_with_exist():
    text = (ROOT / "docs/read_the_code.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(?:bertjax/\*\.py|(\S+)/)` \|.*\|(.*)\|$", text, re.MULTILINE)
    starts = {folder: re.findall(r"`(\S+\.\w+)`", files) for folder, files in rows}
    package = ROOT / "bertjax"
    folders = {file.parent.relative_to(package).as_posix() for file in package.rglob("*.py")}
    folders -= {".", "data", "tasks/sources", "shipped/tiny"}
    assert folders <= starts.keys()
    for folder, files in starts.items():
        assert all((package / folder / file).is_file() for file in files), folder


@pytest.mark.slow
def test_the_training_loop_of_the_docs_learns_and_saves_a_model(
    encoder, tmp_path, monkeypatch, capsys
):
    text = (ROOT / "docs/python_api.md").read_text(encoding="utf-8")
    (program,) = re.findall(r"```python\n(import jax\n.*?)```", text, re.DOTALL)
    program = program.replace("bert-base-uncased", str(encoder)).replace("2e-5", "1e-2")
    monkeypatch.chdir(tmp_path)
    exec(program, {})
    printed = capsys.readouterr().out.splitlines()
    losses = [float(line.split()[1]) for line in printed if re.match(r"\d+ \d", line)]
    assert len(losses) == 20 and losses[-1] < 0.5 * losses[0]
    saved = bertjax.load_pretrained("film-reviews")
    assert f"{saved.predict(['a very good film'])}" == printed[-1]
