"""The commands that README and launch/ tell users to copy are understood by the programs."""

import importlib
import re
import shlex
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
COMMAND = re.compile(r"python -m bertjax\.(\w+) ?(.*)")


def commands():
    """(program, flags) of every command in README, docs/, launch/ and the configs."""
    files = [ROOT / "README.md", *(ROOT / "docs").glob("*.md"), *(ROOT / "launch").glob("*.*")]
    files += (ROOT / "configs").glob("*/[!_]*.py")
    for file in files:
        text = file.read_text(encoding="utf-8").replace("\\\\\n", " ").replace("\\\n", " ")
        for line in text.splitlines():
            if match := COMMAND.match(line.strip()):
                flags = match[2].split("  #")[0]
                yield pytest.param(match[1], flags, id=f"{file.name}: {match[1]} {flags[:40]}")


@pytest.mark.parametrize(("program", "flags"), list(commands()))
def test_the_command_is_understood(program, flags, monkeypatch):
    monkeypatch.chdir(ROOT)
    module = importlib.import_module(f"bertjax.{program}")
    module.parse(shlex.split(flags))


def test_the_file_tree_of_the_readme_names_every_module():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    missing = [
        file.name
        for file in (ROOT / "bertjax").rglob("*.py")
        if file.name != "__init__.py" and file.name not in text
    ]
    assert not missing
