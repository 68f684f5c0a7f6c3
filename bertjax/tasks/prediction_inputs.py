"""Creates the examples that predictions are made for, from texts or from a user's file."""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from bertjax.base.files import brief
from bertjax.tasks.classification import ChoiceTask, MultiLabelTask, TextTask
from bertjax.tasks.question_answering import IMPOSSIBLE, SpanTask
from bertjax.tasks.sources.columns import Columns
from bertjax.tasks.sources.own_files import CONLL_SUFFIXES, BadRows, TableSource, data_files
from bertjax.tasks.sources.own_tasks import kind_of
from bertjax.tasks.sources.rows import has_columns
from bertjax.tasks.sources.squad import SquadSource
from bertjax.tasks.sources.tables import Table, suffix_of
from bertjax.tasks.tagging import TagTask, split_words
from bertjax.tasks.task import Example, Task


def from_text(task: Task, text: str, pair: str | None) -> Example:
    """Creates an example from a text and, perhaps, a second text or passage.

    Raises:
        ValueError: the task is multiple choice, or is question answering and `pair` is None, or is
            tagging and `pair` is not None.
    """
    if isinstance(task, ChoiceTask):
        raise ValueError(
            "The model selects one of several choices: give text and choices in a file (--input)."
        )
    if isinstance(task, TagTask) and pair is not None:
        raise ValueError("The model tags the words of a single text: leave the second text out.")
    if isinstance(task, SpanTask) and pair is None:
        raise ValueError(
            "The model answers questions about a passage: give the passage as the second text "
            "(--pair)."
        )
    if isinstance(task, TagTask):
        words = split_words(text)
        return Example(
            id="0",
            where="--text",
            text=text,
            words=tuple(word.text for word in words),
            offsets=tuple((word.start, word.end) for word in words),
        )
    return Example(id="0", where="--text", text=text, pair=pair)


def text_tuples(texts: Sequence[str | Sequence[str]], *, choices: bool = False) -> list[list[str]]:
    """Converts each element of `texts` to [text] or [text, pair], or [text, choice, choice, ...].

    Raises:
        ValueError: `texts` is a single string, a table or a dictionary, or no sequence, or an
            element has too few or too many texts.
    """
    tuples: list[list[str]] = []
    for index, element in enumerate(_elements(texts)):
        parts = [element] if isinstance(element, str) else element
        if (
            not isinstance(parts, list | tuple)
            or not (2 < len(parts) if choices else 0 < len(parts) < 3)
            or not all(isinstance(part, str) for part in parts)
        ):
            needed = "a text or a pair of texts"
            if choices:
                needed = "(text, choice, choice), a text and at least two choices"
            raise ValueError(f"texts[{index}] is {brief(repr(element), 60)}: give {needed}.")
        tuples.append(list(parts))
    return tuples


def _elements(texts: Any) -> Iterable[Any]:
    if isinstance(texts, str):
        raise ValueError("texts is one string: put it in a list.")
    if isinstance(texts, bytes) or not isinstance(texts, Iterable):
        raise ValueError(f"texts is {brief(repr(texts), 60)}: give a list of texts.")
    if isinstance(texts, Mapping) or hasattr(texts, "columns"):  # iterates over the columns' names
        raise ValueError(
            f"texts is a {type(texts).__name__}: give the list of its texts, such as "
            'list(table["text"]). bertjax.evaluate takes whole tables.'
        )
    return texts


def single_texts(texts: Sequence[str]) -> list[str]:
    """Returns texts, none of which may be a pair, as a list.

    Raises:
        ValueError: `texts` is a single string, a table or a dictionary, or an element is no text.
    """
    tuples = text_tuples(texts)
    for index, parts in enumerate(tuples):
        if len(parts) > 1:
            raise ValueError(f"texts[{index}] is a pair of texts: give one text.")
    return [text for (text,) in tuples]


def from_texts(task: Task, texts: Sequence[str | Sequence[str]]) -> tuple[Task, list[Example]]:
    """Creates one example from each text, pair, or tuple (text, choice, choice, ...) in `texts`.

    In tagging, an element may also be the list of the words of a sentence. For multiple choice, the
    returned task has the number of choices of the example with the most choices.

    Raises:
        ValueError: `texts` is a single string, or an element has too few or too many texts for the
            task.
    """
    if isinstance(task, TagTask):
        return task, [_to_tag(task, element, i) for i, element in enumerate(_elements(texts))]
    tuples = text_tuples(texts, choices=isinstance(task, ChoiceTask))
    if isinstance(task, ChoiceTask):
        task = dataclasses.replace(task, num_choices=max(map(len, tuples), default=1) - 1)
    examples = []
    for index, (text, *others) in enumerate(tuples):
        if isinstance(task, ChoiceTask):
            example = Example(id="", where="", text=text, choices=tuple(others))
        else:
            example = from_text(task, text, *(others or [None]))
        examples.append(dataclasses.replace(example, id=str(index), where=f"texts[{index}]"))
    return task, examples


def _to_tag(task: TagTask, element: Any, index: int) -> Example:
    where = f"texts[{index}]"
    if isinstance(element, str):
        return dataclasses.replace(from_text(task, element, None), id=str(index), where=where)
    words = tuple(element) if isinstance(element, list | tuple) else ()
    if not words or not all(isinstance(word, str) and word.strip() for word in words):
        raise ValueError(
            f"{where} is {brief(repr(element), 60)}: give a text, or the list of its words."
        )
    return Example(id=str(index), where=where, words=words)


def from_file(
    task: Task,
    path: Path,
    columns: Columns,
    label_separator: str | None = None,
    description: Mapping[str, Any] | None = None,
    bad_rows: BadRows = "refuse",
) -> tuple[Task, Iterable[Example], str]:
    """Reads the examples of a user's file, with or without labels.

    Args:
        columns: the column names that the user sets. A name that the user does not set is the name
            in the training, if the file has all text columns that are then read; otherwise, it is
            guessed. Question answering has fixed column names.
        label_separator: the string between several labels; None: the one used in training, if any.
        description: the content of task.json, with the column names and separator used in training.

    Returns:
        The task with the file as its source (for multiple choice, also with the number of choices
        in the file), the examples, and a message about the file, or "".

    Raises:
        ValueError: the file cannot be read for the task, or column names are set for question
            answering.
    """
    if isinstance(task, SpanTask):
        if columns != Columns():
            raise ValueError(
                f"Column names are set ({', '.join(columns.named())}), but question answering "
                "reads the columns question, context and answers, as in SQuAD: rename the columns "
                "of the file."
            )
        questions = SquadSource({"test": path}, bad_rows, keep=False)
        read = questions.examples("test")
        if not task.with_impossible:
            read = (_without_impossible(x, report=bad_rows == "report") for x in read)
        return dataclasses.replace(task, source=questions), read, questions.note
    description = description or {}
    first = data_files(path, kind_of(task))[0]
    conll = isinstance(task, TagTask) and (
        suffix_of(first) in CONLL_SUFFIXES or has_columns(first, task.labels)
    )
    if not conll:
        columns = _as_trained(columns, description.get("columns") or {}, Table(first).columns)
    label_separator = label_separator or description.get("label_separator")
    source = TableSource(
        kind_of(task),
        test=path,
        conll=conll,
        bad_rows=bad_rows,
        columns=columns,
        label_separator=label_separator if isinstance(task, MultiLabelTask) else None,
        keep=False,
    )
    source.use_classes(task.labels)
    if isinstance(task, TextTask):
        read = " and ".join(filter(None, (source.columns.text, source.columns.pair)))
        task.check_pairs(f"{path} ({read})", has_pair=source.columns.pair is not None)
    if isinstance(task, ChoiceTask):
        task = dataclasses.replace(task, num_choices=source.num_choices)
    return dataclasses.replace(task, source=source), source.examples("test"), source.note


def _without_impossible(question: Example, *, report: bool) -> Example:
    """Makes a question without an answer unlabelled, for a model that answers every question."""
    if question.label != IMPOSSIBLE:
        return question
    if not report:
        return dataclasses.replace(question, label=None)
    problem = (
        f"{question.where}: the question has no answer, but the model answers every question, "
        "because those that it was fine-tuned on have answers: the prediction is not scored."
    )
    return dataclasses.replace(question, label=None, problem=problem)


def _as_trained(columns: Columns, trained: Mapping[str, Any], names: Sequence[str]) -> Columns:
    """Fills the unset `columns` with the columns in `trained` that a file with `names` has.

    If it lacks a text column then, or two are the same, `columns` is returned unchanged.
    """
    filled = Columns(
        text=columns.text or trained.get("text"),
        pair=columns.pair or trained.get("pair"),
        choices=columns.choices or tuple(trained.get("choices", ())),
    )
    texts = filled.named()
    used = [*texts, *filter(None, (columns.label, columns.id))]
    if not set(texts) <= set(names) or len(set(used)) < len(used):
        return columns
    label, id = (
        trained.get(key) if trained.get(key) in set(names) - set(used) else None
        for key in ("label", "id")
    )
    return dataclasses.replace(filled, label=columns.label or label, id=columns.id or id)
