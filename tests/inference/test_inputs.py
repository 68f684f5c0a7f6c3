"""Texts that are given in Python or on the command line become examples, or are refused."""

import dataclasses
import json

import pandas
import pytest

from bertjax.inference.evaluation import from_file
from bertjax.inference.saved_task import saved_task
from bertjax.inference.texts import from_text, from_texts, single_texts
from bertjax.tasks.classification import ChoiceTask, ClassificationTask
from bertjax.tasks.question_answering import SpanTask
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
        (CHOICE, [("a", "b")], r"give \(text, choice, choice\), a text and at least two choices"),
        (CLASSES, "a", "one string"),
        (CLASSES, [float("nan")], r"texts\[0\] is nan"),
        (CLASSES, {"text": ["a", "b"]}, "texts is a dict: give the list of its texts"),
        (CLASSES, pandas.DataFrame({"text": ["a"]}), "texts is a DataFrame.*bertjax.evaluate"),
    ],
)
def test_texts_that_do_not_fit_the_task_are_named(task, texts, message):
    with pytest.raises(ValueError, match=message):
        from_texts(task, texts)


def test_a_sentence_to_tag_is_a_text_or_a_list_of_words():
    task = TagTask.of_labels(("O", "B-PER"), name="tag")
    _, (text, words) = from_texts(task, ["Anna, of U.N.", ["New York", "waits"]])
    assert (text.words, text.offsets[-1]) == (("Anna", ",", "of", "U.N."), (9, 13))
    assert (words.words, words.offsets, words.where) == (("New York", "waits"), (), "texts[1]")
    for wrong in ([], ["a", " "], [["a", 1]], None):
        with pytest.raises(ValueError, match="give a text, or the list of its words"):
            from_texts(task, [wrong])


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        ("abc", "one string"),
        (["a", None], r"texts\[1\] is None"),
        ([("a", "b")], "is a pair of texts: give one text"),
        ({"text": ["a"]}, "texts is a dict"),
    ],
)
def test_what_is_embedded_must_be_texts(texts, message):
    assert single_texts(pandas.Series(["a", "b"], index=[7, 3])) == ["a", "b"]
    with pytest.raises(ValueError, match=message):
        single_texts(texts)


@pytest.mark.parametrize(
    ("pairs", "text", "header", "message"),
    [
        (False, ("a", "b"), "premise,hypothesis", "on single texts.*leave the second text out"),
        (True, "a", "text,id", "on pairs of texts.*give the second text"),
    ],
)
def test_a_model_of_single_texts_refuses_pairs_and_the_reverse(
    pairs, text, header, message, tmp_path, tokenizer
):
    task = dataclasses.replace(CLASSES, pairs=pairs)
    restored = saved_task(
        "sequence_classification", ("a", "b"), 2, {}, task.description(32), longest=32
    )
    assert restored == dataclasses.replace(task, max_length=32)
    of_older_version = {"columns": {"text": "x", "pair": "y" if pairs else None}}
    older = saved_task("sequence_classification", ("a", "b"), 2, {}, of_older_version, longest=32)
    for task in (restored, older):
        _, (example,) = from_texts(task, [text])
        with pytest.raises(ValueError, match=rf"texts\[0\].*{message}"):
            task.features(example, tokenizer, 32)
        (tmp_path / "a.csv").write_text(f"{header}\none,two\n")
        with pytest.raises(ValueError, match=rf"a\.csv.*{message}"):
            from_file(task, tmp_path / "a.csv", Columns())
    from_another_library = saved_task("sequence_classification", ("a", "b"), 2, {}, {}, longest=32)
    _, (example,) = from_texts(from_another_library, [text])
    assert from_another_library.features(example, tokenizer, 32)


@pytest.mark.parametrize(
    ("columns", "label"),
    [
        (Columns(), "a"),
        (Columns(text="text"), "a"),
        (Columns(id="row"), "a"),
        (Columns(text="text", label="sentiment"), "b"),
        (Columns(id="verdict", label="sentiment"), "b"),
    ],
)
def test_columns_that_the_user_does_not_set_are_those_of_the_training(tmp_path, columns, label):
    file = tmp_path / "a.csv"
    file.write_text("row,text,verdict,sentiment\nr1,abc,a,b\n")
    trained = {"text": "text", "pair": None, "label": "verdict", "id": None, "choices": []}
    _, examples, _ = from_file(CLASSES, file, columns, description={"columns": trained})
    (example,) = examples
    assert (example.text, example.label) == ("abc", label)
    assert example.id == {"row": "r1", "verdict": "a", None: "0"}[columns.id]


def test_no_column_is_used_twice(tmp_path):
    (tmp_path / "a.csv").write_text("first,second,other\nabc,de,a\n")
    trained = {"text": "first", "pair": "second", "label": "other", "choices": []}
    pairs = dataclasses.replace(CLASSES, pairs=True)
    with pytest.raises(ValueError, match="give the second text as well"):
        from_file(
            pairs, tmp_path / "a.csv", Columns(text="second"), description={"columns": trained}
        )
    trained = {"text": "first", "label": "other"}
    given = Columns(text="other")
    _, (example,), _ = from_file(
        CLASSES, tmp_path / "a.csv", given, description={"columns": trained}
    )
    assert (example.text, example.label) == ("a", None)


def test_question_answering_refuses_names_of_columns(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"id": "1", "question": "Who?", "context": "Anna."}\n')
    task = SpanTask(name="qa")
    with pytest.raises(ValueError, match="story.*question, context and answers"):
        from_file(task, tmp_path / "a.jsonl", Columns(pair="story"))


def test_questions_in_tables_keep_their_ids_and_columns_also_if_they_are_bad(tmp_path):
    task = SpanTask(name="qa")
    path = tmp_path / "a.jsonl"
    rows = [
        {"id": "7", "question": "Who?", "context": None},
        {"id": 1, "question": "Who?", "context": "Anna.", "note": "n"},
        {"question": "Who?", "context": "Anna."},
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    _, examples, _ = from_file(task, path, Columns(), bad_rows="report")
    examples = list(examples)
    assert [(x.id, bool(x.problem)) for x in examples] == [("7", True), ("1", False), ("2", False)]
    assert [x.row for x in examples] == rows
    (tmp_path / "a.csv").write_text("id,Question,context\n1,Who?,Anna.\n")
    with pytest.raises(ValueError, match="no column 'question', but id, Question, context"):
        list(from_file(task, tmp_path / "a.csv", Columns(), bad_rows="report")[1])


def test_a_folder_of_files_to_predict(tmp_path):
    (tmp_path / "a.csv").write_text("text\none\n")
    (tmp_path / "b.jsonl").write_text('{"text": "two"}\n')
    _, examples, _ = from_file(CLASSES, tmp_path, Columns())
    assert [(x.id, x.text) for x in examples] == [("0", "one"), ("1", "two")]


def test_labels_that_are_equal_numbers_are_one_class(tmp_path):
    """pandas writes 1.0 for 1 if a value is missing in the column."""
    floats = dataclasses.replace(CLASSES, labels=("0.0", "1.0"))
    (tmp_path / "a.csv").write_text("text,label\na,1\nb,0.0\nc,00\nd,2\n")
    task, examples, _ = from_file(floats, tmp_path / "a.csv", Columns())
    assert [example.label for example in examples] == ["1.0", "0.0", "00", "2"]
    probabilities = {"label": "1.0", "probabilities": {"0.0": 0.0, "1.0": 1.0}}
    first = next(iter(task.source.examples("test")))
    assert task.score([(first, probabilities)])["accuracy"] == 1.0


@pytest.mark.parametrize("answer", ["", '{"text": [], "answer_start": []}'])
def test_a_question_without_an_answer_is_predicted_and_not_scored(tmp_path, answer):
    task = SpanTask(name="qa")  # which answers every question
    if answer:
        row = f'{{"question": "Who?", "context": "Anna.", "answers": {answer}}}\n'
        (tmp_path / "a.jsonl").write_text(row)
    else:
        (tmp_path / "a.csv").write_text("question,context,answer\nWho?,Anna.,\n")
    path = next(iter(tmp_path.iterdir()))
    (found,) = from_file(task, path, Columns(), bad_rows="report")[1]
    assert found.label is None and found.text == "Who?" and "is not scored" in found.problem
    (found,) = from_file(task, path, Columns())[1]
    assert (found.label, found.problem) == (None, "")
    prediction = {"answer": "Anna", "null_odds": 0.0}
    assert task.score([(found, prediction)]) == {}
    impossible = dataclasses.replace(task, with_impossible=True)
    (found,) = from_file(impossible, path, Columns(), bad_rows="report")[1]
    assert found.label == "impossible" and not found.problem


def test_a_malformed_line_of_conll_is_named(tmp_path):
    (tmp_path / "a.conll").write_text("Anna B-X\ncame\n\nBob B-X\n")
    with pytest.raises(ValueError, match=r"a.conll, row 2"):
        list(from_file(TAGS, tmp_path / "a.conll", Columns())[1])
