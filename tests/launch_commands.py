"""The commands in the code blocks of docs/clusters.md."""

import dataclasses
import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "clusters.md"


@dataclasses.dataclass(frozen=True)
class Command:
    """A command as a reader runs it.

    Attributes:
        text: the command, with shell variables replaced.
        needs: the sentence of a comment "# Needs ..." that precedes it, in the same paragraph of
            the block; empty if there is none.
    """

    text: str
    needs: str = ""


def page_commands() -> list[Command]:
    """Returns all commands in their order."""
    commands: list[Command] = []
    variables: dict[str, str] = {}  # a reader runs all blocks in one shell
    for block in re.findall(r"```bash\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL):
        needs = ""
        for line in block.splitlines():
            if line.startswith("#") or not line.strip():
                needs = line.removeprefix("# ") if line.startswith("# Needs ") else ""
            elif match := re.fullmatch(r'(\w+)="(.*)"', line):
                variables[match[1]] = match[2]
            else:
                text = re.sub(r"\s+#\s.*", "", line)
                for name, value in variables.items():
                    text = text.replace(f"${name} ", f"{value} ").replace(f"${name}", value)
                commands.append(Command(re.sub(r" +", " ", text), needs))
    return commands


def executes(*starts: str):
    """Marks a test that executes the commands of docs/clusters.md that start with `starts`."""

    def mark(test):
        test.executes = starts
        return test

    return mark


def replaced(start: str, changes: dict[str, str]) -> str:
    """Returns the one command that starts with `start`, with every key of `changes` replaced."""
    (text,) = [command.text for command in page_commands() if command.text.startswith(start)]
    for old, new in changes.items():
        assert old in text, (old, text)
        text = text.replace(old, new)
    return text
