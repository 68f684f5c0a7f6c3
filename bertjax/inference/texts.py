"""Makes examples of texts that are given in Python or on the command line."""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from bertjax.base.files import brief
from bertjax.tasks import Example, Task
from bertjax.tasks.classification import ChoiceTask
from bertjax.tasks.question_answering import SpanTask
from bertjax.tasks.tagging import TagTask
from bertjax.tasks.tags import split_words

# Texts and text pairs on which converted and exported models are compared with the original.
SAMPLE_TEXTS = (
    "The harbour was quiet, and only two boats had come in before the storm.",
    ("Who wrote the letter?", "She did not say, but the ink was still wet on her fingers."),
    "Photosynthesis converts light, water and carbon dioxide into sugar.",
    ("In 1987 the bridge was closed.", "It reopened eleven years later with 4 lanes."),
    "No.",
    "Although nobody had asked for it, the committee published a report of 612 pages on the "
    "standardisation of screws, which to everybody's surprise became a success.",
)


def from_texts(task: Task, texts: Sequence[str | Sequence[str]]) -> tuple[Task, list[Example]]:
    """Creates one example from each text, pair, or tuple (text, choice, choice, ...) in `texts`.

    In tagging, an element may also be the list of the words of a sentence. For multiple choice, the
    returned task has the number of choices of the example with the most choices. Raises ValueError
    if `texts` is a single string, or an element has too few or too many texts for the task.
    """
    if isinstance(task, TagTask):
        elements = enumerate(_elements(texts))
        return task, [_to_tag(task, element, index) for index, element in elements]
    has_choices = isinstance(task, ChoiceTask)
    examples = []
    for index, (text, *others) in enumerate(text_tuples(texts, choices=has_choices)):
        id = str(index)
        where = f"texts[{index}]"
        if has_choices:
            example = Example(id=id, where=where, text=text, choices=tuple(others))
        else:
            example = from_text(task, text, *others, id=id, where=where)
        examples.append(example)
    if has_choices:
        most = max((len(example.choices) for example in examples), default=0)
        task = dataclasses.replace(task, num_choices=most)
    return task, examples


def from_text(
    task: Task, text: str, pair: str | None = None, *, id: str = "0", where: str = "--text"
) -> Example:
    """Creates an example from a text and, perhaps, a second text or passage.

    Raises ValueError if the task needs other texts.
    """
    if isinstance(task, ChoiceTask):
        raise ValueError(
            "The model selects one of several choices: give text and choices in a file (--input)."
        )
    if isinstance(task, SpanTask) and pair is None:
        raise ValueError(
            "The model answers questions about a passage: give the passage as the second text "
            "(--pair)."
        )
    if not isinstance(task, TagTask):
        return Example(id=id, where=where, text=text, pair=pair)
    if pair is not None:
        raise ValueError("The model tags the words of a single text: leave the second text out.")
    words = split_words(text)
    return Example(
        id=id,
        where=where,
        text=text,
        words=tuple(word.text for word in words),
        offsets=tuple((word.start, word.end) for word in words),
    )


def _to_tag(task: TagTask, element: Any, index: int) -> Example:
    id = str(index)
    where = f"texts[{index}]"
    if isinstance(element, str):
        return from_text(task, element, id=id, where=where)
    if not _are_texts(element) or not all(word.strip() for word in element):
        raise ValueError(
            f"{where} is {brief(repr(element), 60)}: give a text, or the list of its words."
        )
    return Example(id=id, where=where, words=tuple(element))


def text_tuples(texts: Sequence[str | Sequence[str]], *, choices: bool = False) -> list[list[str]]:
    """Converts each element of `texts` to [text] or [text, pair], or [text, choice, choice, ...].

    Raises ValueError if `texts` is no list of these.
    """
    needed = "a text or a pair of texts"
    if choices:
        needed = "(text, choice, choice), a text and at least two choices"
    tuples = []
    for index, element in enumerate(_elements(texts)):
        parts = element
        if isinstance(element, str):
            parts = [element]
        if not _are_texts(parts) or (len(parts) > 2) != choices:
            raise ValueError(f"texts[{index}] is {brief(repr(element), 60)}: give {needed}.")
        tuples.append(list(parts))
    return tuples


def _are_texts(parts: Any) -> bool:
    if not isinstance(parts, list | tuple) or not parts:
        return False
    return all(isinstance(part, str) for part in parts)


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
    """Returns texts, none of which may be a pair, as a list; errors are as in `text_tuples`."""
    singles = []
    for index, (text, *others) in enumerate(text_tuples(texts)):
        if others:
            raise ValueError(f"texts[{index}] is a pair of texts: give one text.")
        singles.append(text)
    return singles
