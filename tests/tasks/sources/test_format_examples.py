"""The examples of formats in --help and in the documentation are read as they are shown."""

import dataclasses
import re
from pathlib import Path
from typing import NamedTuple

import pytest

from bertjax import finetune
from bertjax.tasks.classification import RegressOptions
from bertjax.tasks.registry import FORMATS, TASKS, format_help
from bertjax.tasks.sources.squad import read_questions
from tests.tables import read_tables

DOCUMENT = Path(__file__).parents[3] / "docs/data_formats.md"


class FormatExample(NamedTuple):
    title: str
    suffix: str
    lines: list[str]


def examples_in(text):
    pattern = r"^(\S.*) \((\.\w+)\):\n((?:    .*\n?|\n(?=    ))+)"
    for title, suffix, lines in re.findall(pattern, text, re.MULTILINE):
        yield FormatExample(title, suffix, [line[4:] for line in lines.rstrip("\n").split("\n")])


EXAMPLES = [(task, example) for task, text in FORMATS.items() for example in examples_in(text)]


@pytest.mark.parametrize(("task", "example"), EXAMPLES, ids=lambda x: getattr(x, "title", x))
def test_an_example_is_read_and_documented(task, example, tmp_path):
    path = tmp_path / f"a{example.suffix}"
    path.write_text("\n".join(example.lines) + "\n", encoding="utf-8")
    source = read_questions({"train": path}) if task == "qa" else read_tables(task, train=path)
    examples = list(source.examples("train"))
    assert examples and all(x.label is not None or x.answers or x.pair for x in examples)
    document = DOCUMENT.read_text(encoding="utf-8")
    assert "\n".join(["", *example.lines, ""]) in document
    assert example.title in document and example.title in format_help(task)


def test_every_task_on_own_files_has_examples():
    assert len(EXAMPLES) == sum(text.count("):\n") for text in FORMATS.values()) == 24
    own = {name for name, task in TASKS.items() if task.own_files}
    assert FORMATS.keys() <= own and all(map(format_help, own))


@dataclasses.dataclass(frozen=True, kw_only=True)
class HuberOptions(RegressOptions):
    pass


def test_a_task_that_extends_another_reads_its_files(monkeypatch):
    huber = dataclasses.replace(TASKS["regress"], name="huber", options=HuberOptions)
    monkeypatch.setitem(TASKS, "huber", huber)
    expected = format_help("regress").replace("--task=regress", "--task=huber")
    assert format_help("huber") == expected != format_help("regress")
    assert not format_help("mnli")


def test_the_help_of_a_task_shows_its_formats(capsys):
    with pytest.raises(SystemExit):
        finetune.parse(["--task=tag", "--help"])
    assert '{"words": ["Bonn"], "tags": ["B-LOC"]}' in capsys.readouterr().out
