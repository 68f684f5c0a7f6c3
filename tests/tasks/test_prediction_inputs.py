"""Texts that are given in Python or on the command line become examples, or are refused."""

import pytest

from bertjax.tasks.classification import ClassificationTask
from bertjax.tasks.multiple_choice import ChoiceTask
from bertjax.tasks.prediction_inputs import from_file, from_text, from_texts
from bertjax.tasks.sources.columns import Columns
from bertjax.tasks.tagging import TagTask

CLASSES = ClassificationTask(name="c", labels=("a", "b"))
TAGS = TagTask(name="t", labels=("O", "B-X"))
CHOICE = ChoiceTask(name="m", num_choices=2)


def test_a_tagging_model_reads_a_text_with_its_places_and_no_pair():
    example = from_text(TAGS, "Anna's cat", None)
    assert example.words == ("Anna", "'s", "cat")
    assert example.offsets == ((0, 4), (4, 6), (7, 10))
    with pytest.raises(ValueError, match="leave the second text out"):
        from_text(TAGS, "Anna", "came")


@pytest.mark.parametrize(
    ("task", "texts", "message"),
    [
        (CLASSES, [()], r"texts\[0\] is \(\): give a text or a pair"),
        (CLASSES, ["a", ("b", None)], r"texts\[1\] is \('b', None\)"),
        (CLASSES, [("a", "b", "c")], r"texts\[0\] is \('a', 'b', 'c'\): give a text or a"),
        (CHOICE, [("a", "b")], "give a text and at least two choices"),
        (CLASSES, "a", "one string"),
    ],
)
def test_texts_that_do_not_fit_the_task_are_named(task, texts, message):
    with pytest.raises(ValueError, match=message):
        from_texts(task, texts)


def test_a_folder_of_files_to_predict(tmp_path):
    (tmp_path / "a.csv").write_text("text\none\n")
    (tmp_path / "b.jsonl").write_text('{"text": "two"}\n')
    _, examples, _ = from_file(CLASSES, tmp_path, Columns())
    assert [(x.id, x.text) for x in examples] == [("0", "one"), ("1", "two")]
