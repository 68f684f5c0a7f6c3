import json
import time
import tracemalloc

import numpy as np
import pandas
import pytest

from bertjax.tasks import make_task
from bertjax.tasks.classification import ChoiceOptions, ClassifyOptions, RegressOptions
from bertjax.tasks.dataset import KeptExamples
from bertjax.tasks.registry import options_class
from bertjax.tasks.sources.advice import similar_classes
from bertjax.tasks.sources.columns import Columns
from bertjax.tasks.sources.own_files import count_choices, learn_labels, with_indices
from bertjax.tasks.sources.tables import Table
from tests.cases import WEEKLY
from tests.tables import read_tables


@pytest.fixture
def write(tmp_path):
    """Writes a file; objects become JSON lines."""

    def write_file(name, content):
        path = tmp_path / name
        if isinstance(content, list):
            content = "\n".join(json.dumps(row) for row in content)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return write_file


def read(path, kind="classify", split="train", **options):
    data = read_tables(kind, **{split: path}, **options)
    return list((with_indices(data) if kind == "choice" else data).examples(split))


def test_csv_may_quote_line_ends_and_mix_them(write):
    path = write(
        "a.csv", '\ufefftext,label\r\n"One, ""two""\nthree.",x\nFour.,y\r\n\r\n5, y\rSix,x'
    )
    examples = read(path)
    assert [(e.text, e.label) for e in examples] == [
        ('One, "two"\nthree.', "x"),
        ("Four.", "y"),
        ("5", "y"),
        ("Six", "x"),
    ]
    assert [e.where.rsplit(" ")[-1] for e in examples] == ["2", "3", "5", "6"]
    assert [e.id for e in examples] == ["0", "1", "2", "3"]


def test_tsv_takes_quotes_as_they_are_and_semicolons_part_as_commas_do(write):
    assert [(e.text, e.label) for e in read(write("a.tsv", 'text\tlabel\n"One\tx\nTw"o"\ty'))] == [
        ('"One', "x"),
        ('Tw"o"', "y"),
    ]
    assert [(e.text, e.label) for e in read(write("b.csv", 'text;label\n"a;b";x\nc,d;y\n'))] == [
        ("a;b", "x"),
        ("c,d", "y"),
    ]


def test_json_lines_keep_what_is_in_them(write):
    rows = [{"id": "q7", "text": "Ünïcode \n", "label": 1}, {"id": 8, "label": True, "text": "b"}]
    examples = read(write("a.jsonl", rows))
    assert [(e.id, e.text, e.label) for e in examples] == [
        ("q7", "Ünïcode \n", "1"),
        ("8", "b", "true"),
    ]


@pytest.mark.parametrize(
    "header, found",
    [
        ("review,stars", ("review", None, "stars", None)),
        ("label,text", ("text", None, "label", None)),
        ("Premise,Hypothesis,Gold_Label", ("Premise", "Hypothesis", "Gold_Label", None)),
        (",id,question,sentence,label", ("question", "sentence", "label", "id")),
        (",title,words here,kind", ("title", None, "kind", "")),
        ("foo,bar,baz", ("foo", None, "baz", None)),
        ("id,foo,class,other", ("foo", None, "class", "id")),
        ("sentence_1,sentence_2,score", ("sentence_1", "sentence_2", "score", None)),
        ("Text A,Text-B,Label", ("Text A", "Text-B", "Label", None)),
        ("question,answer,label", ("question", "answer", "label", None)),
    ],
)
def test_columns_are_guessed_by_name_then_by_place_and_said(write, header, found):
    row = ",".join("abcdefgh"[: header.count(",") + 1])
    source = read_tables("classify", train=write("t.csv", f"{header}\n{row}\n"))
    columns = source.columns
    assert (columns.text, columns.pair, columns.label, columns.id) == found
    assert source.note.startswith(f"t.csv: text from column '{found[0]}', ")
    assert f"label from column '{found[2]}'" in source.note and "--text_column" in source.note


def test_a_second_column_of_texts_is_asked_about_and_not_dropped(write):
    rows = [f"the first text {i},another long text {i},{i % 2}\n" for i in range(20)]
    path = write("t.csv", "review,reply,label\n" + "".join(rows))
    with pytest.raises(ValueError, match="'review'; for pairs of both, add --pair_column 'reply'"):
        read_tables("classify", train=path)
    assert read_tables("classify", train=path, columns=Columns(text="review")).columns.pair is None
    columns = Columns(text="review", pair="reply")
    assert read(path, "classify", columns=columns)[0].pair == "another long text 0"


def test_columns_that_are_given_are_not_guessed(write):
    path = write("t.csv", "sentence1,sentence2,label,score\na,b,c,2.5\n")
    given = Columns(text="sentence2", label="score")
    (example,) = read(path, "regress", columns=given)
    assert (example.text, example.pair, example.label) == ("b", None, 2.5)
    assert read_tables("regress", train=path, columns=given).note == ""
    # A message names the flags of the columns that are guessed, and no others.
    note = read_tables("regress", train=path, columns=Columns(text="sentence2")).note
    assert note.startswith("t.csv: label from column") and note.endswith("give --label_column.")
    with pytest.raises(ValueError, match="t.csv has no column 'lable'. Did you mean 'label'"):
        read_tables("classify", train=path, columns=Columns(label="lable"))


def test_a_test_file_needs_no_labels_and_a_dev_file_the_same_columns(write):
    train = write("train.csv", "text,label\na,x\nb,y\n")
    test = write("test.csv", "id,text\nq,c\n")
    source = read_tables("classify", train=train, test=test)
    assert source.splits == ("train", "test")
    (example,) = source.examples("test")
    assert (example.text, example.label) == ("c", None)
    for empty in ("text,label\nc,\n", "text\nc\n"):
        (example,) = read(write("test.csv", empty), split="test")
        assert example.label is None
    with pytest.raises(ValueError, match="test.csv has no column 'label'"):
        read_tables("classify", train=train, dev=write("test.csv", "id,text\nq,c\n"))
    with pytest.raises(ValueError, match="has no split 'dev'"):
        source.examples("dev")


def test_plain_text_is_an_example_a_line(write):
    path = write("a.txt", "one, two\n\nthree\tfour\r\n")
    assert [e.text for e in read(path, split="test")] == ["one, two", "three\tfour"]
    assert read_tables("classify", test=path).note == ""  # a text file has no columns to guess
    with pytest.raises(ValueError, match="which column is the label"):
        read(path)


@pytest.mark.parametrize(
    "name, content, message",
    [
        ("a.csv", "text,label\na,x\n,y\n", "row 3: the text in 'text' is empty"),
        ("a.csv", 'text,label\n"a\n",x\n" \n",y\n', "row 3: the text in 'text' is empty"),
        (
            "a.csv",
            "text,label\na,x\nb\n",
            r"row 3 has 1 fields, but the first row has 2 \(text, label",
        ),
        ("a.csv", "text,label\na,x\ntext,label \nb,y\n", "row 3 repeats the names of the columns"),
        ("a.tsv", "text\tlabel\na\tb\tx\n", "row 2 has 3 fields.*tabs separate fields"),
        ("a.csv", "text,label\na,x\nb, \n", "row 3 has no label in column 'label'"),
        ("a.csv", 'text,label\na,x\n"b,y\nc,x\n', "row 3 is not a row of CSV .*quote"),
        ("a.csv", 'text,label\na,x\n"b"c,y\n', "row 3 is not a row of CSV"),
        ("a.csv", b"text,label\na,x\ncaf\xe9,y\n", "row 3 is not UTF-8: byte 0xe9 at character 4"),
        ("a.csv", "\n\n", "row 1 is missing, but the first row must name the columns"),
        ("a.csv", "text,label,label\n", "row 1 reads 'text, label, label', .* different name"),
        ("a.csv", "Good film.,1\nBad film.,0\n", "row 1 is an example .*put a first row"),
        ("a.csv", "Good film.,pos\nBad film.,neg\nFine.,pos\n", "row 1 is an example"),
        ("a.csv", "What a long and good film,a\nx,b\n", "row 1 is an example"),
        (
            "a.csv",
            "only\na\n",
            "row 1: which column is the label.* There are: only.*--label_column",
        ),
        (
            "a.jsonl",
            '{"text": "a", "label": "x"}\n{"label": "y"}',
            "row 2 has no column 'text', only label",
        ),
        ("a.jsonl", '{"text": 3, "label": "x"}', "row 1: 'text' should be a text, but is 3"),
        ("a.jsonl", '{"text": "a", "label": NaN}', "row 1: the label NaN is not the name"),
        ("a.jsonl", '{"text": "a", "label": {}}', "row 1: the label {} is not the name of a class"),
        ("a.jsonl", '{"text": "a", "label": {"b": "c"}}', "row 1: the label .* name of a class"),
        ("a.jsonl", '{"text": "\\ud83d", "label": 1}', r"row 1 is not UTF-8: \\ud83d"),
        ("a.jsonl", '\n{"text": "a",\n', "row 2 is not JSON"),
        ("a.json", '["a"]', "row 1 holds a JSON str, not an object"),
        ("a.json", '[{"text": "a", "label": 1}, {"text": "b" "label"}]', "element 2 of the array"),
        ("a.json", '[{"text": "a", "label": 1}', "element 2 of the array"),
        ("a.xlsx", "", "is a spreadsheet: save it as CSV"),
        ("a.doc", "", "the suffix does not tell the format"),
    ],
)
def test_what_is_wrong_is_named_with_the_row(write, name, content, message):
    with pytest.raises(ValueError, match=rf"{name}.*{message}"):
        read(write(name, content))


def test_an_absent_file_or_none_at_all_is_said(tmp_path):
    with pytest.raises(FileNotFoundError, match="There is no file .*a.csv"):
        read(tmp_path / "a.csv")
    with pytest.raises(FileNotFoundError, match="There is no file .*a.conll"):
        read(tmp_path / "a.conll", "tag")
    (tmp_path / "tickets.csv").write_text("text,label\n")
    with pytest.raises(FileNotFoundError, match=r"ticket.csv.* Did you mean 'tickets.csv'\?"):
        read(tmp_path / "ticket.csv")
    with pytest.raises(ValueError, match="give --train, --dev or --test"):
        read_tables("regress")


def test_several_labels_are_lists_or_have_a_separator(write):
    rows = [{"text": "a", "labels": ["x", "y"]}, {"text": "b", "labels": []}]
    source = read_tables("classify", train=write("a.jsonl", rows))
    assert source.multi_label
    assert [e.label for e in source.examples("train")] == [("x", "y"), ()]
    assert learn_labels(source) == ("x", "y")
    path = write("a.csv", "text,label\na,x | y\nb,\nc,z\n")
    source = read_tables("classify", train=path, label_separator="|")
    assert [e.label for e in source.examples("train")] == [("x", "y"), (), ("z",)]
    assert learn_labels(source) == ("x", "y", "z")
    rows = [{"text": "a", "label": "x|y"}, {"text": "b", "label": None}]
    source = read_tables("classify", train=write("c.jsonl", rows), label_separator="|")
    assert [e.label for e in source.examples("train")] == [("x", "y"), ()]
    rows = [{"text": "a", "labels": "x"}, {"text": "b", "labels": ["x", "y"]}]
    with pytest.raises(
        ValueError, match=r"row 2: the label \[.*is not the name of a class. For several"
    ):
        read(write("b.jsonl", rows))


@pytest.mark.parametrize("values", [(0, 1), (0.0, 1.0), (False, True)])
def test_multi_hot_labels_are_refused(write, values):
    no, yes = values
    rows = [{"text": "a", "labels": [yes, no]}, {"text": "b", "labels": [yes, yes]}]
    source = read_tables("classify", train=write("a.jsonl", rows))
    with pytest.raises(ValueError, match="2 values, and all are 0 or 1: they seem to be multi-hot"):
        learn_labels(source)
    rows = [{"text": "a", "labels": [yes]}, {"text": "b", "labels": [yes, no]}]  # names 0 and 1
    learn_labels(read_tables("classify", train=write("b.jsonl", rows)))


def test_labels_of_several_classes_in_a_cell_are_warned_of(write, capsys):
    cells = ["screen", "screen|price", "price|battery", "screen|battery", "battery"]
    text = "text,label\n" + "".join(f"t{i},{cell}\n" for i, cell in enumerate(cells * 4))
    make_task("classify", ClassifyOptions(train=write("a.csv", text)))
    assert "give --label_separator '|'" in capsys.readouterr().out
    text = text.replace("|", " and ").replace("screen and price", "Paris|TX")
    make_task("classify", ClassifyOptions(train=write("b.csv", text)))
    assert "--label_separator" not in capsys.readouterr().out


def test_the_number_of_choices_is_that_of_a_usable_row(write):
    rows = [{"text": "", "choices": ["a", "b", "c"]}, {"text": "x", "choices": ["a", "b", "c"]}]
    path = write("a.jsonl", rows)
    source = read_tables("choice", test=path, bad_rows="report")
    assert count_choices(source) == 3
    assert [bool(e.problem) for e in source.examples("test")] == [True, False]


def test_regression_reads_numbers(write):
    assert [e.label for e in read(write("a.csv", "text,score\na,3.5\nb,-1e2\n"), "regress")] == [
        3.5,
        -100.0,
    ]
    assert read(write("a.jsonl", [{"text": "a", "score": 3}]), "regress")[0].label == 3.0
    for bad in ("good", "nan", "1,5"):
        path = write("a.tsv", f"text\tscore\na\t1\nb\t{bad}\n")
        with pytest.raises(ValueError, match=f'row 3: the label "{bad}" is not a number'):
            read(path, "regress")
        # To predict, the text is enough.
        reported = read_tables("regress", test=path, bad_rows="report")
        _, example = reported.examples("test")
        assert (example.text, example.label) == ("b", None)
        assert f'row 3: the label "{bad}" is not a number' in example.problem


def test_rows_with_the_same_kind_of_problem_are_listed_together(write):
    lines = "".join(f'a,"{number},000"\n' for number in range(1, 60))
    with pytest.raises(ValueError) as error:
        read(write("a.csv", f"text,score\na,1\n{lines}"), "regress")
    assert "59 rows cannot be used" in str(error.value) and "other problem" not in str(error.value)
    assert "row 3 (similar: 4, 5, 6" in str(error.value) and '"1,000" is not a number' in str(
        error.value
    )


def test_numbers_and_texts_are_no_classes(write):
    rows = "".join(f"text {i},{1000 + i}\n" for i in range(60))
    with pytest.raises(ValueError, match="60 different labels in 60 examples.*--task=regress"):
        learn_labels(read_tables("classify", train=write("a.csv", "text,label\n" + rows)))
    decimals = "".join(f"text {i},{i % 30 / 4}\n" for i in range(600))
    with pytest.raises(ValueError, match="30 different labels in 600 examples.*--task=regress"):
        learn_labels(read_tables("classify", train=write("d.csv", "text,label\n" + decimals)))
    stars = "".join(f"text {i},{i % 10 / 2}\n" for i in range(600))
    assert len(learn_labels(read_tables("classify", train=write("e.csv", "text,label\n" + stars))))
    # Few examples per class, and labels of which an example has several, are no mistake.
    pairs = "".join(f"text {i},intent {i // 2}\n" for i in range(60))
    assert len(learn_labels(read_tables("classify", train=write("b.csv", "text,label\n" + pairs))))
    tags = [{"text": f"text {i}", "label": [f"tag {i}", "all"]} for i in range(60)]
    assert len(learn_labels(read_tables("classify", train=write("c.jsonl", tags)))) == 61


def test_a_column_of_texts_is_the_text_and_another_one_is_asked_about(write):
    texts = ["the soup is cold today", "a man plays the piano", "we came by train again"]
    rows = "".join(f"R{i},{texts[i % 3]} {i % 25},{i % 2}\n" for i in range(60))
    source = read_tables("classify", train=write("a.csv", "key,what,sentiment\n" + rows))
    assert source.columns == Columns(text="what", label="sentiment")
    for names in ("first sentence,second sentence", "q1,q2", "title,body"):
        rows = "".join(f"{texts[i % 3]} {i % 25},{texts[i % 2]} {i % 23},1\n" for i in range(60))
        with pytest.raises(ValueError, match="both hold texts: to use one, give --text_column"):
            read_tables("regress", train=write("a.csv", f"{names},score\n{rows}"))


def test_whole_numbers_are_the_same_classes_as_floats(write):
    rows = [{"text": "a", "label": 1}, {"text": "b", "label": 2.0}, {"text": "c", "label": 1.0}]
    source = read_tables("classify", train=write("a.jsonl", [*rows, {"text": "d", "label": 0.5}]))
    assert [example.label for example in source.examples("train")] == ["1", "2", "1", "0.5"]


def test_the_label_of_pairs_is_found_by_its_name(write):
    path = write("a.csv", "qid,question1,question2,is_duplicate,similarity\n1,a b,c,1,4.5\n")
    assert read_tables("classify", train=path).columns.label == "is_duplicate"
    assert read_tables("regress", train=path).columns.label == "similarity"


def test_choices_are_columns_or_a_list(write):
    # Columns such as ending0 count from 0, and so do labels that do not tell it.
    path = write("a.csv", "id,sent1,sent2,ending0,ending1,label\nq,He sat.,He,ate.,slept.,1\n")
    (example,) = read(path, "choice")
    assert (example.id, example.text, example.label) == ("q", "He sat.", 1)
    assert example.choices == ("He ate.", "He slept.") and example.pair is None
    rows = [{"question": "Why?", "choices": ["a b", "d", "c"], "answer": "d"}]
    path = write("a.jsonl", rows)
    (example,) = read(path, "choice")
    assert (example.text, example.choices, example.label) == ("Why?", ("a b", "d", "c"), 1)
    assert count_choices(read_tables("choice", dev=path)) == 3
    path = write("b.csv", "question,A,B,C,label\nWhy?,x,y,z,C\n")
    (example,) = read(path, "choice")
    assert (example.choices, example.label) == (("x", "y", "z"), 2)
    given = Columns(text="question", choices=("C", "A"), label="label")
    with pytest.raises(ValueError, match='row 2: the label "C" is none of the 2 choices.* 0 to 1'):
        read(path, "choice", columns=given)


def test_a_column_of_dates_is_not_guessed_as_the_label(tmp_path):
    path = tmp_path / "a.parquet"
    table = {"ticket": ["It is broken.", "Where is it?"], "kategorie": ["a", "b"]}
    when = pandas.to_datetime(["2026-01-01", "2026-01-02"])
    pandas.DataFrame({**table, "when": when}).to_parquet(path)
    assert read_tables("classify", train=path).columns.label == "kategorie"


CHOICES = "question,choice1,choice2,choice3,label\n"


def chosen(write, labels, choices="x,y,z", **options):
    rows = "".join(f"Why?,{choices},{label}\n" for label in labels)
    options["train"] = str(write("a.csv", CHOICES + rows))
    task = make_task(
        "choice", ChoiceOptions(**({} if "dev" in options else {"dev_fraction": 0.0}) | options)
    )
    return [example.label for example in task.source.examples("train")]


@pytest.mark.parametrize(
    ("labels", "choices", "expected"),
    [
        ("1232", "x,y,z", [0, 1, 2, 1]),
        ("120", "x,y,z", [1, 2, 0]),
        ("CABb", "x,y,z", [2, 0, 1, 1]),
        ("xyz", "x,y,z", [0, 1, 2]),
        ("A1C3", "x,y,z", [0, 0, 2, 2]),  # as in ARC
        (["1.0", "3.0"], "x,y,z", [0, 2]),
        (["30", "10"], "10,20,30", [2, 0]),
        ("123", "1,2,3", [0, 1, 2]),  # numbers from 1, or texts, are the same choices
    ],
)
def test_all_labels_tell_how_they_name_choices(labels, choices, expected, write):
    assert chosen(write, labels, choices) == expected


@pytest.mark.parametrize(
    ("labels", "choices", "message"),
    [
        (
            "11",
            "x,y,z",
            r"row 2: the label '1' may name one choice or another \(indices, .*numbers\)",
        ),
        (
            "121",
            "x,y,z",
            r"row 2: the label '1' may name one choice or another \(indices, .*numbers\)",
        ),
        ("A0", "x,y,z", r"several ways, 'A' \(.*row 2\), '0' \(.*row 3\): write"),
        ("03", "x,y,z", r"several ways, '0' \(.*row 2\), '3' \(.*row 3\): write"),
        ("0y", "x,y,z", r"several ways, '0' \(.*row 2\), 'y' \(.*row 3\): write"),
        ("201", "2,1,0", r"row 2: the label '2' .*one choice or another \(indices, texts\)"),
    ],
)
def test_labels_that_do_not_tell_the_choice_are_refused_with_their_rows(
    labels, choices, message, write
):
    for options in ({}, {"skip_bad_rows": True}):
        with pytest.raises(ValueError, match=message):
            chosen(write, labels, choices, **options)


def test_the_labels_of_all_files_tell_how_they_name_choices(write):
    dev = write("dev.csv", CHOICES + "Why?,x,y,z,3\n")
    assert chosen(write, "121", dev=str(dev)) == [0, 1, 0]
    dev = write("dev.csv", CHOICES + "Why?,x,y,z,0\n")
    assert chosen(write, "121", dev=str(dev)) == [1, 2, 1]
    with pytest.raises(ValueError, match=r"several ways, .*a.csv, row 3\), '0' \(.*dev.csv, row 2"):
        chosen(write, "13", dev=str(dev))


def test_predictions_have_no_labels_if_the_file_does_not_tell_which_choices_they_name(write):
    ambiguous = write("a.csv", CHOICES + "Why?,x,y,z,1\nWhy?,x,y,z,2\n")
    source = with_indices(read_tables("choice", test=ambiguous, bad_rows="report"))
    assert [x.label for x in source.examples("test")] == [None, None]
    assert "warning: " in source.note and "row 2: the label '1' may name" in source.note
    clear = write("a.csv", CHOICES + "Why?,x,y,z,1\nWhy?,x,y,z,3\nWhy?,x,y,z,\n")
    source = with_indices(read_tables("choice", test=clear, bad_rows="report", keep=False))
    assert [x.label for x in source.examples("test")] == [0, 2, None]
    assert "warning" not in source.note


@pytest.mark.parametrize(
    ("text", "warned"),
    [
        ("P{0:05}", True),
        ("{0}", True),
        ("word", False),
        ("aspirin 100 mg {0}", False),
        ("好{0}", False),
    ],
)
def test_texts_that_are_ids_are_warned_of_and_words_are_not(text, warned, write):
    rows = "".join(f"{text.format(n)},{'ab'[n % 2]}\n" for n in range(30))
    columns = Columns(text="Patienten-ID", label="label")
    path = write("a.csv", f"Patienten-ID,label\n{rows}")
    note = read_tables("classify", train=path, columns=columns).note
    assert ("most texts in 'Patienten-ID' are one word with digits" in note) == warned


def test_a_choice_file_without_examples_is_refused(write):
    source = read_tables("choice", train=write("a.csv", "question,A,B,label\n"))
    with pytest.raises(ValueError, match="a.csv: the .* split has no examples"):
        count_choices(source)


def test_tagged_words_are_columns_or_lists(write):
    columns = write("a.conll", "EU NN I-ORG\nsaid VB O\n\nPeter NN I-PER\n")
    rows = [
        {"tokens": ["EU", "said"], "ner_tags": ["I-ORG", "O"]},
        {"tokens": ["Peter"], "ner_tags": ["I-PER"]},
    ]
    lists = write("a.jsonl", rows)
    for path in (columns, lists):
        source = read_tables("tag", train=path)
        assert [(e.words, e.label) for e in source.examples("train")] == [
            (("EU", "said"), ("B-ORG", "O")),
            (("Peter",), ("B-PER",)),
        ]
        assert learn_labels(source) == ("O", "B-ORG", "I-ORG", "B-PER", "I-PER")
    assert "text from column 'tokens', label from column 'ner_tags'" in source.note
    path = write("b.jsonl", [{"words": ["a"], "tags": ["O", "O"]}])
    with pytest.raises(ValueError, match="row 1 has 1 words, but 2 tags"):
        read(path, "tag")
    (example,) = read(write("c.jsonl", [{"words": ["a", "b"]}]), "tag", split="test")
    assert (example.words, example.label) == (("a", "b"), None)


def test_labels_are_sorted_numbers_as_numbers(write):
    def labels_of(*labels):
        rows = "".join(f"a,{label}\n" for label in labels)
        return learn_labels(read_tables("classify", train=write("a.csv", f"text,label\n{rows}")))

    assert labels_of("b", "a", "10", "b") == ("10", "a", "b")
    assert labels_of("10", "9", "-1", "9") == ("-1", "9", "10")
    with pytest.raises(ValueError, match="The training data has only the label 'a'"):
        labels_of("a", "a")
    with pytest.raises(ValueError, match="the train split has no examples"):
        labels_of()
    with pytest.raises(ValueError, match=r"row 1002: more than 1,000 .*\"1000\".*--task=regress"):
        labels_of(*range(1100))


def test_a_text_of_100_000_words_is_read(write):
    text = "words " * 100_000
    for path in (
        write("a.csv", f"text,label\n{text},x\n"),
        write("a.tsv", f"text\tlabel\n{text}\tx\n"),
        write("a.jsonl", [{"text": text, "label": "x"}]),
    ):
        (example,) = read(path)
        assert example.text == text


@pytest.mark.parametrize(
    ("name", "separator"), [("a.csv", ","), pytest.param("a.tsv", "\t", marks=WEEKLY)]
)
def test_memory_does_not_grow_with_the_file(write, name, separator, monkeypatch):
    monkeypatch.setattr(KeptExamples, "MEMORY", 1 << 16)  # the rest is in a temporary file

    def peak(rows):
        lines = [f"text{separator}label"] + [f"{'word ' * 40}{separator}x"] * rows
        source = read_tables("classify", train=write(name, "\n".join(lines)))
        del lines
        tracemalloc.start()
        assert sum(1 for _ in source.examples("train")) == rows
        size = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return size

    assert peak(8000) < peak(1000) + 100_000


@pytest.mark.parametrize(
    ("mark", "encoding", "named"),
    [
        ("", "utf-16", "UTF-16"),  # Python writes the mark itself
        ("\ufeff", "utf-16-be", "UTF-16"),
        ("", "utf-16-le", "UTF-16LE"),
        ("", "utf-16-be", "UTF-16BE"),
    ],
)
def test_utf_16_is_named_with_its_remedy(tmp_path, mark, encoding, named):
    (tmp_path / "a.csv").write_bytes(f"{mark}text,label\na,x\n".encode(encoding))
    message = f"is {named}, but must be UTF-8: convert it with iconv -f {named} -t UTF-8"
    with pytest.raises(ValueError, match=message):
        read_tables("classify", train=tmp_path / "a.csv")


def test_tsv_that_is_quoted_as_csv_is_warned_about(tmp_path):
    texts = ['she said "no"', '"quoted"', 'a ""b""']
    frame = pandas.DataFrame({"text": texts, "label": ["a", "b", "a"]})
    frame.to_csv(tmp_path / "a.tsv", sep="\t", index=False)
    note = read_tables("classify", train=tmp_path / "a.tsv").note
    assert f"{tmp_path / 'a.tsv'}, row 2 seems to be quoted as in CSV" in note
    plain = "text\tlabel\n" + "".join(f"{text}\tx\n" for text in texts)
    (tmp_path / "a.tsv").write_text(plain)
    assert "quoted" not in read_tables("classify", train=tmp_path / "a.tsv").note


def test_labels_of_dev_that_are_equal_numbers_are_the_classes_of_train(write):
    train = write("a.csv", "text,label\na,1.0\nb,0.0\nc,1.0\n")
    dev = write("b.csv", "text,label\na,1\nb,0\n")
    task = make_task("classify", ClassifyOptions(train=train, dev=dev))
    assert task.labels == ("0.0", "1.0")
    assert [example.label for example in task.source.examples("dev")] == ["1.0", "0.0"]


def test_classes_that_are_equal_as_numbers_stay_apart(write):
    labels = ["1.1", "1.10", "2", "02", "2.0"]
    rows = "".join(f"text {label},{label}\n" for label in labels)
    train, dev = (write(f"{name}.csv", "text,label\n" + rows) for name in "ab")
    task = make_task("classify", ClassifyOptions(train=train, dev=dev))
    assert set(task.labels) == set(labels)
    for split in ("train", "dev"):
        assert [example.label for example in task.source.examples(split)] == labels


@pytest.mark.parametrize("sign", ["\t", "|", ";"])
def test_other_separators_of_csv_are_found(write, sign):
    content = f"text{sign}label\na good, long film{sign}yes\nbad{sign}no\n"
    source = read_tables("classify", train=write("a.csv", content))
    examples = [(example.text, example.label) for example in source.examples("train")]
    assert examples == [("a good, long film", "yes"), ("bad", "no")]


@pytest.mark.parametrize(
    ("content", "columns"),
    [
        ('id;"text, cleaned";label\n1;"a; b";x\n2;c;x\n', ["id", "text, cleaned", "label"]),
        ('\ufeffid;"text, or so";label\r\n1;"a, b";x\r\n', ["id", "text, or so", "label"]),
        ('id\t"text, a; b"\tlabel\n1\ta, b\tx\n2\tc, d\tx\n', ["id", "text, a; b", "label"]),
        ('id|"a ""text""; b, c"|label\n1|a|x\n', ["id", 'a "text"; b, c', "label"]),
        ('id,"text; cleaned|long",label\n1,a;b,x\n', ["id", "text; cleaned|long", "label"]),
        ('"text; of\ntwo, lines";label\n"a, b; c";x\n', ["text; of\ntwo, lines", "label"]),
        ('"text, cleaned"\n"a, b"\n"c; d, e"\n', ["text, cleaned"]),
        ('"text; cleaned"\n"a; b"\n', ["text; cleaned"]),
        # As pandas writes it, without quotes: the rows tell the separator.
        ("id;text, cleaned;label\n1;a, b, c;x\n2;d;x\n", ["id", "text, cleaned", "label"]),
        ("\n\nid;text;label\n1;a, b;x\n", ["id", "text", "label"]),
    ],
)
def test_a_sign_in_the_name_of_a_column_separates_nothing(write, content, columns):
    table = Table(write("a.csv", content))
    assert list(table.columns) == columns
    assert all(row.get("label", "x") == "x" for _, row in table.rows())


@pytest.mark.real
def test_csv_with_semicolons_and_a_comma_in_a_name_has_its_rows(shared):
    folder = shared / "strangers"
    expected = json.loads((folder / "expected.json").read_text())["25_semicolon.csv"]["rows"]
    assert [[e.text, e.label] for e in read(folder / "25_semicolon.csv")] == expected


def test_the_separator_may_be_named_in_a_line_of_its_own(write):
    path = write("a.csv", "\ufeffsep=;\r\ntext;label\r\na good, long film;yes\r\nbad;no;1\r\n")
    source = read_tables("classify", train=path, bad_rows="report")
    first, second = source.examples("train")
    assert (first.text, first.label, first.problem) == ("a good, long film", "yes", "")
    assert "row 4 has 3 fields" in second.problem


def test_a_name_of_two_columns_is_said(write):
    path = write("a.csv", "text,label,amount,amount\na,yes,1,2\nb,no,3,4\n")
    with pytest.raises(ValueError, match="'amount' occurs twice"):
        read_tables("classify", train=path)


def test_last_columns_without_a_name_are_those_of_a_spreadsheet(write):
    path = write("a.csv", "text;label;;\na film;yes;;\nb film;no;;3\n")
    assert [(e.text, e.label) for e in read(path)] == [("a film", "yes"), ("b film", "no")]
    for header in ("Sales of 2024;;;", "text;;label;more"):
        with pytest.raises(ValueError, match="in which column 2 has no name"):
            read_tables("classify", train=write("b.csv", f"{header}\na;b;c;d\n"))


@pytest.mark.parametrize(
    ("targets", "asked"),
    [
        (["593", "24.827", "1.250"], "24.827"),
        (["250.000", "24.500", "310.000"], "250.000"),
        (["1.125", "24.827", "3.250"], ""),
        (["593", "0.827", "1.250"], ""),
        (["593", "24.5"], ""),
        (["593", "1200"], ""),
    ],
)
def test_points_that_may_separate_thousands_are_asked_about(write, targets, asked, capsys):
    rows = "".join(f"a{i},{target}\n" for i, target in enumerate(targets))
    path = str(write("a.csv", f"text,score\n{rows}"))
    make_task("regress", RegressOptions(train=path, dev_fraction=0.0))
    printed = capsys.readouterr().out
    assert (f"such as {asked}, which is read as the decimal number" in printed) == bool(asked)


def test_tsv_without_tabs_is_refused(write):
    with pytest.raises(ValueError, match=r"row 1 has no tab, but ','.*name it .csv"):
        read_tables("classify", train=write("a.tsv", "text,label\na,yes\nb,no\n"))


def test_a_spreadsheet_with_another_suffix_is_named(tmp_path):
    (tmp_path / "a.csv").write_bytes(b"PK\x03\x04" + bytes(range(200)))
    with pytest.raises(ValueError, match=r"a.csv is a ZIP file, such as a spreadsheet"):
        read_tables("classify", train=tmp_path / "a.csv")


def test_a_second_text_that_repeats_is_asked_about(write):
    rows = "\n".join(f"question {i} about it,What is a refund {i % 4} ?,no" for i in range(60))
    with pytest.raises(ValueError, match="'q_left' and 'q_right' both hold texts"):
        read_tables("classify", train=write("a.csv", f"q_left,q_right,is_dup\n{rows}\n"))
    # Names of classes with several words are no texts.
    rows = "\n".join(f"the film {i} is good,very good film,yes" for i in range(60))
    read_tables("classify", train=write("b.csv", f"text,opinion,label\n{rows}\n"))


def test_truth_values_are_one_class_however_they_are_written(write):
    train = write("a.csv", "text,label\na,TRUE\nb,FALSE\n")
    dev = write("b.jsonl", [{"text": "a", "label": True}, {"text": "b", "label": False}])
    task = make_task("classify", ClassifyOptions(train=train, dev=dev))
    assert [example.label for example in task.source.examples("dev")] == ["TRUE", "FALSE"]


def test_texts_beside_tables_in_a_folder_are_no_data(tmp_path):
    (tmp_path / "a.csv").write_text("review,sentiment\na,yes\nb,no\n")
    (tmp_path / "README.txt").write_text("These are reviews.\n")
    source = read_tables("classify", train=tmp_path)
    assert len(list(source.examples("train"))) == 2 and "README.txt" in source.note


def test_a_label_that_is_listed_twice_is_one_label(write):
    path = write("a.csv", "text,tags\na,x;y;x\nb,y;y\n")
    source = read_tables("classify", train=path, label_separator=";")
    assert [example.label for example in source.examples("train")] == [("x", "y"), ("y",)]


def test_a_column_of_numbers_is_no_text(write):
    rows = "".join(f"{i},kurz {i % 3},lang {i % 2},{i % 5}\n" for i in range(20))
    source = read_tables("regress", train=write("a.csv", f"Nr,Satz,Rest,Ähnlichkeit\n{rows}"))
    assert (source.columns.text, source.columns.label) == ("Satz", "Ähnlichkeit")


def test_a_hundred_thousand_columns_are_read_in_seconds(tmp_path):
    names = [f"c{n}" for n in range(100_000)]
    (tmp_path / "a.csv").write_text(f"text,{','.join(names)}\na{',' * 100_000}\n")
    started = time.process_time()
    assert Table(tmp_path / "a.csv").columns[-1] == names[-1]
    assert time.process_time() - started < 5


@pytest.mark.parametrize(
    "other", ["Good", "GOOD", "go-od", "good\u200b", "\uff47ood", "goo d", "g_ood"]
)
@pytest.mark.parametrize("kind", ["classify", "tag"])
def test_labels_that_differ_in_spelling_alone_are_named(write, kind, other):
    cells = {"text": "A film of two hours", "label": "good"}
    if kind == "tag":
        cells = {"words": ["A", "film"], "tags": ["good", "bad"]}
    rows = [dict(cells) for _ in range(6)]
    name = [*cells][1]
    rows[1][name] = "bad" if kind == "classify" else ["bad", "bad"]
    rows[5][name] = other if kind == "classify" else [other, "bad"]
    path = write("a.jsonl", rows)
    task = make_task(kind, options_class(kind)(train=str(path), dev_fraction=0))
    assert set(task.labels) == {"good", "bad", other}
    (warning,) = similar_classes(task.labels, np.ones(3, int))
    names = ", ".join(map(repr, sorted(["good", other])))
    assert f"the classes {names} differ only in how they are written" in warning


@pytest.mark.parametrize("missing", ["nan", "None", "N/A", "<NA>", "NULL", "#n/a", " NaN "])
@pytest.mark.parametrize(
    ("kind", "columns", "column"),
    [
        ("classify", ("text", "label"), "text"),
        ("regress", ("text1", "text2", "score"), "text2"),
        ("embed", ("anchor", "positive", "negative"), "negative"),
        ("qa", ("question", "context", "answer"), "question"),
    ],
)
def test_texts_that_may_be_missing_values_are_counted(write, kind, columns, column, missing):
    values = {"label": "ab", "score": (0.5, 1.5), "answer": ("day",) * 2}
    values["negative"] = ("No film at all", "A book on a night")
    made = {name: values.get(name, ("A film on a day", "Two films, one day")) for name in columns}
    rows = [{name: pair[i % 2] for name, pair in made.items()} for i in range(4)]
    rows[2][column] = missing
    task = make_task(kind, options_class(kind)(train=str(write("a.jsonl", rows)), dev_fraction=0))
    assert len(list(task.data.examples("train"))) == 4
    (note,) = task.data.change_notes()
    assert f"a text such as {missing!r}" in note
    assert note.endswith("a.jsonl, row 3)") or kind == "qa" and "row 3" in note


def test_none_may_be_one_of_several_choices(write):
    rows = [{"text": "How many?", "choices": ["None", "N/A"], "label": i % 2} for i in range(4)]
    task = make_task("choice", ChoiceOptions(train=str(write("a.jsonl", rows)), dev_fraction=0))
    assert len(list(task.data.examples("train"))) == 4
    assert task.data.change_notes() == []


def test_ids_in_the_place_of_second_texts_are_warned_of(tmp_path):
    rows = "".join(f"who wrote the book {i}?,DOC-{i:04}\n" for i in range(20))
    path = tmp_path / "train.csv"
    path.write_text("question,doc_id\n" + rows)
    note = read_tables("embed", train=str(path)).note
    assert "most texts in 'doc_id' are one word with digits, such as 'DOC-0000'" in note
