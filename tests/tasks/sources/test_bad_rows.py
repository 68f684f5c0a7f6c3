"""Rows that cannot be used are refused all at once, left out, or reported one by one."""

import dataclasses
import json

import pytest

from bertjax.tasks import dataset, make_task
from bertjax.tasks.classification import ClassifyOptions, RegressOptions
from bertjax.tasks.dataset import Fold
from bertjax.tasks.question_answering import QaOptions
from bertjax.tasks.sources.squad import read_questions
from bertjax.tasks.training_data import check_splits, rows_in_words, write_training_data
from bertjax.tokenization import WordPieceTokenizer
from tests.tables import read_tables

GOOD = [f"text {i},{'yes' if i % 2 else 'no'}" for i in range(40)]
BAD = [",yes", "text,", "a,b,c", "  ,no"]


@pytest.fixture
def file(tmp_path):
    rows = [*GOOD[:10], *BAD[:2], *GOOD[10:], *BAD[2:]]
    (tmp_path / "a.csv").write_text("text,label\n" + "\n".join(rows) + "\n")
    return tmp_path / "a.csv"


def test_all_bad_rows_are_in_one_error(file):
    source = read_tables("classify", train=file, can_skip=True)
    with pytest.raises(ValueError, match="4 rows cannot be used") as error:
        list(source.examples("train"))
    text = str(error.value)
    assert text.count(str(file)) == 1 and "--skip_bad_rows" in text
    assert "row 12, 45: the text in 'text' is empty" in text
    assert "row 13: has no label" in text and "row 44: has 3 fields" in text
    assert len(text) - len(str(file)) < 400


@pytest.mark.parametrize("fold", [None, Fold(0, 3, 0)])
def test_missing_labels_and_texts_are_in_one_error_and_left_out_before_the_split(
    fold, tmp_path, capsys
):
    path = tmp_path / "a.csv"
    rows = [*GOOD[:10], "a,NA", ",yes", "b,", "c,NA", "d,NA", *GOOD[10:], "e,?"]
    path.write_text("text,label\n" + "\n".join(rows) + "\n")
    options = ClassifyOptions(train=str(path))
    with pytest.raises(ValueError, match="6 rows cannot be used.*--skip_bad_rows") as error:
        make_task("classify", options, fold)
    text = str(error.value)
    assert (
        "row 12, 15, 16: the label 'NA' usually marks" in text and "row 47: the label '?'" in text
    )
    assert "row 13: the text in 'text' is empty" in text and "row 14: has no label" in text
    task = make_task("classify", dataclasses.replace(options, skip_bad_rows=True), fold)
    assert "of the 40 examples in a.csv are not trained on" in capsys.readouterr().out
    assert [split for split, _ in task.data.all_bad_rows()] == ["train"] * 6
    texts = [x.text for split in ("train", "dev") for x in task.data.examples(split)]
    assert sorted(texts) == sorted(f"text {i}" for i in range(40))
    # Predictions are matched with the rows of the file by these indices.
    usable = [*task.data.usable("train")]
    held_out = [usable[index].text for index in task.data.held_out_indices()]
    assert held_out == [x.text for x in task.data.examples("dev")]


@pytest.mark.parametrize("kind", ["classify", "regress"])
def test_if_all_rows_are_bad_the_error_says_why(kind, tmp_path):
    path = tmp_path / "a.csv"
    labels = {"classify": "ab", "regress": "12"}[kind]
    rows = [f"text {i},{labels[i % 2]},06.06.202{i % 5}" for i in range(30)]
    path.write_text("text,label,Datum\n" + "\n".join(rows) + "\n")
    made = {"classify": ClassifyOptions, "regress": RegressOptions}[kind]
    options = made(train=str(path), time_column="Datum", skip_bad_rows=True)
    message = 'No example is left.*30 rows(.|\n)*"06.06.2020", which is no date of ISO 8601'
    with pytest.raises(ValueError, match=message):
        make_task(kind, options)
    path.write_text("text,label\n" + "".join(f",{label}\n" for label in labels))
    with pytest.raises(ValueError, match="No example is left(.|\n)*the text in 'text' is empty"):
        make_task(kind, made(train=str(path), skip_bad_rows=True))


def test_rows_that_are_used_and_left_out_are_counted_by_reason(tmp_path):
    path = tmp_path / "a.csv"
    rows = [*GOOD, "a,NA", ",yes", ",no", "b,", "c,NA", "d,NA", "e,yes,soon", "f,no,06.06"]
    table = [row if row.count(",") == 2 else f"{row},{2000 + n}" for n, row in enumerate(rows)]
    path.write_text("text,label,time\n" + "\n".join(table) + "\n")
    options = ClassifyOptions(train=str(path), time_column="time", skip_bad_rows=True)
    task = make_task("classify", options)
    tokens = "[PAD] [UNK] [CLS] [SEP] [MASK] text a b".split()
    tokenizer = WordPieceTokenizer({token: i for i, token in enumerate(tokens)}, do_lower_case=True)
    train = write_training_data(task, tokenizer, 16, tmp_path / "train.array_record")
    said = rows_in_words(check_splits(task, tokenizer, 16).data, train)
    assert said == (
        "48 rows: 40 used, 8 left out (3: the label 'NA' usually marks a missing one; 2: the text "
        "in 'text' is empty; 2: time is …, which is no date of ISO 8601 such as 2026-01-31, year "
        "or number; 1: has no label in column 'label')"
    )


def test_problems_that_differ_in_numbers_are_described_once(tmp_path):
    rows = [{"text": "Anna came", "entities": [[i, 99 + i, "PER"]]} for i in range(40)]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(ValueError, match=r"40 rows cannot(.|\n)*row 1 \(similar: 2, 3") as error:
        list(read_tables("tag", train=tmp_path / "a.jsonl").examples("train"))
    first = '[0, 99, "PER"] is not within the text, which has 9 characters. Correct start and end.'
    assert first in str(error.value) and len(str(error.value).splitlines()) == 2


def test_problems_in_other_files_and_columns_are_described_apart(tmp_path):
    (tmp_path / "a.csv").write_text("sentence1,sentence2,label\n,a,x\nb,,y\nc,d,x\n")
    with pytest.raises(ValueError, match="2 rows cannot") as error:
        list(read_tables("classify", train=tmp_path / "a.csv").examples("train"))
    assert "row 2: the text in 'sentence1'" in str(error.value)
    assert "row 3: the text in 'sentence2'" in str(error.value)
    (tmp_path / "parts").mkdir()
    for part in (1, 2):
        (tmp_path / "parts" / f"{part}.csv").write_text("text,label\na,x\n,y\n")
    with pytest.raises(ValueError, match="2 rows cannot") as error:
        list(read_tables("classify", train=tmp_path / "parts").examples("train"))
    assert "1.csv, row 3" in str(error.value) and "2.csv, row 3" in str(error.value)


def test_a_row_of_which_only_the_label_is_bad_keeps_its_text_to_predict(tmp_path):
    rows = [
        {"text": "Anna came", "entities": [[0, 4, "PER"]]},
        {"text": "Anna came", "entities": [[0, 4, "PER"], [2, 9, "X"]]},
        {"text": " ", "entities": [[0, 4, "PER"]]},
    ]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    good, overlapping, empty = read_tables(
        "tag", test=tmp_path / "a.jsonl", bad_rows="report"
    ).examples("test")
    assert good.label and not good.problem
    assert "overlap" in overlapping.problem and overlapping.label is None
    assert overlapping.words == good.words and overlapping.row == rows[1]
    assert empty.problem and not empty.words
    (tmp_path / "a.csv").write_text("text,label\nabc,1.5\nabc,$2\n")
    source = read_tables("regress", test=tmp_path / "a.csv", bad_rows="report")
    good, bad = source.examples("test")
    assert good.label == 1.5 and bad.text == "abc" and "$2" in bad.problem


def test_one_bad_row_has_the_message_that_it_had(tmp_path):
    (tmp_path / "a.csv").write_text("text,label\na,b\n,c\n")
    with pytest.raises(ValueError, match="row 3: the text in 'text' is empty; fill it or remove"):
        list(read_tables("classify", train=tmp_path / "a.csv").examples("train"))


def test_many_bad_rows_are_counted(tmp_path):
    rows = ["text,label", "a,b", "b,c", *[",x"] * 500]
    (tmp_path / "a.csv").write_text("\n".join(rows) + "\n")
    with pytest.raises(ValueError, match=r"500 rows cannot(.|\n)*row 4, 5, 6, 7"):
        list(read_tables("classify", train=tmp_path / "a.csv").examples("train"))


def test_bad_rows_can_be_left_out_also_those_with_a_label_that_training_lacks(file, tmp_path):
    (tmp_path / "dev.csv").write_text("text,label\na,yes\nb,never\n")
    options = ClassifyOptions(train=str(file), dev=str(tmp_path / "dev.csv"), skip_bad_rows=True)
    task = make_task("classify", options)
    tokens = "[PAD] [UNK] [CLS] [SEP] [MASK] text a b".split()
    tokenizer = WordPieceTokenizer({token: i for i, token in enumerate(tokens)}, do_lower_case=True)
    data = write_training_data(task, tokenizer, 16, tmp_path / "train.array_record")
    task = check_splits(task, tokenizer, 16)
    assert len(data.sizes) == len(GOOD)
    assert [example.text for example in task.source.examples("dev")] == ["a"]
    bad = task.source.all_bad_rows()
    assert len(bad) == 5 and ("dev", 3) == (bad[-1][0], int(bad[-1][1].split("row ")[1][0]))
    (tmp_path / "good.csv").write_text("text,label\na,yes\nb,no\n")
    good = ClassifyOptions(train=str(tmp_path / "good.csv"), dev=options.dev)
    refused = make_task("classify", good)
    with pytest.raises(ValueError, match="label 'never' does not occur in training"):
        check_splits(refused, tokenizer, 16)


def test_reported_rows_keep_their_places(file):
    examples = list(read_tables("classify", test=file, bad_rows="report").examples("test"))
    assert [example.id for example in examples] == [str(i) for i in range(44)]
    # A test split needs no labels, so that only rows without a text or with other fields are bad.
    assert [i for i, example in enumerate(examples) if example.problem] == [10, 42, 43]
    assert examples[10].where == f"{file}, row 12"


@pytest.fixture
def questions(tmp_path):
    good = {"id": "good", "question": "Who?", "answers": [{"text": "Ann", "answer_start": 0}]}
    no_text = {"id": "no text", "question": 5, "answers": []}
    no_id = {"question": "Where?", "answers": []}
    paragraphs = [{"context": "Ann.", "qas": [good, no_text, no_id]}, {"qas": [good]}]
    content = {"data": [{"paragraphs": paragraphs}, {"paragraphs": None}]}
    (tmp_path / "a.json").write_text(json.dumps(content))
    return str(tmp_path / "a.json")


def test_questions_that_cannot_be_used_are_refused_all_at_once_or_left_out(questions):
    with pytest.raises(ValueError, match="4 rows cannot be used.*--skip_bad_rows") as error:
        make_task("qa", QaOptions(train=questions))
    assert "question no text" in str(error.value)
    task = make_task("qa", QaOptions(train=questions, skip_bad_rows=True))
    assert [example.id for example in task.source.examples("train")] == ["good"]
    assert len(task.source.all_bad_rows()) == 4


def test_questions_that_cannot_be_predicted_are_reported(questions):
    examples = list(read_questions({"test": questions}, "report").examples("test"))
    assert [(x.id, bool(x.problem)) for x in examples] == [
        *(("good", False), ("no text", True), ("2", True), ("3", True), ("4", True)),
    ]


def test_every_kind_of_problem_has_a_line_up_to_a_limit(tmp_path, monkeypatch):
    rows = [
        *(json.dumps({"text": f"Anna {i}", "entities": [[0, 99, "PER"]]}) for i in range(3)),
        json.dumps({"text": "Anna came", "entities": [[0, 4, "PER"], [2, 9, "X"]]}),
        json.dumps({"text": "Anna came", "entities": "Anna"}),
        json.dumps({"text": "Anna came", "entities": [[0, 4]]}),
        json.dumps({"text": " ", "entities": []}),
        json.dumps({"text": ["Anna"], "entities": 5}),
    ]
    (tmp_path / "a.jsonl").write_text("\n".join(rows) + "\n")
    with pytest.raises(ValueError, match="8 rows cannot") as error:
        list(read_tables("tag", train=tmp_path / "a.jsonl").examples("train"))
    _, *described = str(error.value).splitlines()
    assert sorted(line.split(":")[0].strip() for line in described) == [
        *("row 1, 2, 3", "row 4", "row 5", "row 6", "row 7", "row 8")
    ]
    monkeypatch.setattr(dataset, "PROBLEMS", 2)
    with pytest.raises(ValueError, match="8 rows cannot") as error:
        list(read_tables("tag", train=tmp_path / "a.jsonl").examples("train"))
    _, *described, rest = str(error.value).splitlines()
    # The most frequent problem is the first, and its remedy is not cut.
    assert described[0].startswith("  row 1, 2, 3: the entity")
    assert described[0].endswith("Correct start and end.")
    assert len(described) == 2 and rest.strip() == "and 4 rows with other problems"


def test_two_entities_of_one_word_are_refused_and_not_lost(tmp_path):
    spans = {"lost": [[7, 16, "PER"], [17, 21, "LOC"]], "cut": [[7, 10, "PER"], [11, 21, "LOC"]]}
    text = {"lost": "We saw Ana Souza/Bonn today.", "cut": "We saw Ana/Bonn Süd today."}
    rows = [{"text": text[name], "entities": spans[name]} for name in spans]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(ValueError, match=r"two entities have the word .Souza/Bonn. in common"):
        list(read_tables("tag", train=tmp_path / "a.jsonl").examples("train"))
    reported = read_tables("tag", test=tmp_path / "a.jsonl", bad_rows="report")
    for example in reported.examples("test"):
        assert "separate them by a space" in example.problem
        assert example.label is None and example.words


def test_the_text_of_an_entity_is_compared_with_its_offsets(tmp_path):
    entity = {"start": 5, "end": 8, "label": "PER", "text": "Anna"}
    right = {"start": 0, "end": 5, "label": "PER", "text": "Anna"}
    rows = [{"text": "Anna saw Bonn", "entities": [e]} for e in (entity, right)]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    message = 'the entity "Anna" has start 5 and end 8, but there the text is "saw"'
    with pytest.raises(ValueError, match=message):
        list(read_tables("tag", train=tmp_path / "a.jsonl").examples("train"))


def test_questions_with_the_same_problem_are_listed_together(tmp_path):
    row = {"context": "Anna left.", "question": "Who?", "answer": "Maria"}
    rows = [row | {"id": f"q{index}"} for index in range(9)]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(ValueError, match="9 rows cannot be used") as error:
        list(read_questions({"train": tmp_path / "a.jsonl"}).examples("train"))
    first, line = str(error.value).splitlines()
    assert line.startswith('  row 1, 2, 3, 4, 5, 6, 7, 8, 9: the answer "Maria" occurs 0 times')


def test_questions_without_answers_are_bad_rows_of_a_training_file(tmp_path):
    rows = [{"question": "Who?", "context": "Anna."}, {"question": " ", "context": "Anna."}]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, rows)))
    with pytest.raises(ValueError, match="2 rows cannot be used") as error:
        list(read_questions({"train": tmp_path / "a.jsonl"}).examples("train"))
    assert 'row 1: has no "answers"' in str(error.value)
    assert len(list(read_questions({"test": tmp_path / "a.jsonl"}, "skip").examples("test"))) == 1


def test_all_bad_questions_of_a_table_are_in_one_error(tmp_path):
    rows = [
        *("Who?,Anna left.,Anna,0", "Who?,Anna left.,Anna,-1x", ",Anna left.,Anna,0"),
        *("Who?, ,Anna,0", "Who?,Anna left.,Bob,0"),
    ]
    (tmp_path / "a.csv").write_text("\n".join(["question,context,answer,answer_start", *rows]))
    with pytest.raises(ValueError, match="4 rows cannot be used") as error:
        list(read_questions({"train": tmp_path / "a.csv"}).examples("train"))
    text = str(error.value)
    assert "the question is empty" in text and "the passage is empty" in text
    assert "the answer 'Bob' does not occur in the passage" in text and "'answer_start'" in text
    source = read_questions({"train": tmp_path / "a.csv"}, "skip")
    assert len(list(source.examples("train"))) == 1 and len(source.all_bad_rows()) == 4
