"""What a model is applied to: a text of the command line, or a file of the user's own."""

import dataclasses
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from bertjax.tasks.multiple_choice import ChoiceTask
from bertjax.tasks.question_answering import SpanTask
from bertjax.tasks.sources.columns import Columns, CustomKind
from bertjax.tasks.sources.custom import CustomSource
from bertjax.tasks.sources.squad import SquadSource
from bertjax.tasks.sources.table_files import JSON_SUFFIXES, Table
from bertjax.tasks.tagging import TagTask
from bertjax.tasks.task import Example, Task

_WORDS = re.compile(r"\w+|[^\w\s]")
KINDS: dict[str, CustomKind] = {
    "classes": "classify",
    "multi_label": "classify",
    "regression": "regress",
    "tokens": "tag",
    "choice": "choice",
}


def from_text(task: Task, text: str, pair: str | None) -> Example:
    """A text, or two, as an example; for a tagger its words and signs.

    Raises:
        ValueError: the task needs something else than a text.
    """
    if isinstance(task, ChoiceTask):
        raise ValueError("The model chooses among several texts: give them by --input FILE.")
    if isinstance(task, SpanTask) and pair is None:
        raise ValueError("The model answers questions: give the passage by --pair.")
    if isinstance(task, TagTask):
        return Example(id="0", where="--text", words=tuple(_WORDS.findall(text)))
    return Example(id="0", where="--text", text=text, pair=pair)


def from_file(
    task: Task,
    path: Path,
    columns: Columns,
    label_separator: str | None = None,
    description: Mapping[str, Any] | None = None,
) -> tuple[Task, Iterable[Example], str]:
    """The examples of a file, as the task reads them; labels may be there or not.

    Args:
        task: of the model.
        path: the file.
        columns: those that the user names.
        label_separator: what parts several labels, as the user says it.
        description: of `task.json`: what is not named is read as in the files of training.

    Returns:
        The task (which learns how many choices there are), the examples, and what was guessed of
        the columns, if anything.
    """
    if isinstance(task, SpanTask):
        return task, SquadSource({"test": path}).examples("test"), ""
    known, several = description or {}, task.label_kind == "multi_label"
    is_table = task.label_kind != "tokens" or path.suffix.lower() in JSON_SUFFIXES
    if is_table and columns == Columns():
        columns = _as_trained(known.get("columns") or {}, Table(path).columns)
    source = CustomSource(
        KINDS[task.label_kind],
        test=path,
        columns=columns,
        label_separator=(label_separator or known.get("label_separator")) if several else None,
    )
    if isinstance(task, ChoiceTask):
        task = dataclasses.replace(task, num_choices=source.num_choices)
    return task, source.examples("test"), source.note


def _as_trained(trained: Mapping[str, Any], there: Sequence[str]) -> Columns:
    """The columns of training, if the file has those of the texts; else all are to be guessed."""
    texts = [trained.get("text"), trained.get("pair"), *trained.get("choices", ())]
    if texts[0] is None or any(name is not None and name not in there for name in texts):
        return Columns()
    optional = {key: trained[key] for key in ("label", "id") if trained.get(key) in there}
    return Columns(text=texts[0], pair=texts[1], choices=tuple(texts[2:]), **optional)
