"""Labels in several columns, lists and dictionaries, in files as other programs write them."""

import io
import json

import numpy as np
import pandas
import pytest

from bertjax.tasks import make_task
from bertjax.tasks.classification import ClassifyOptions, RegressOptions
from bertjax.tasks.sources.columns import Columns
from bertjax.tasks.sources.label_columns import is_sequence
from tests.tables import read_tables

TEXTS = [f"the comment of number {i} is short" for i in range(4)]
# pandas.get_dummies of the column "mood" of a CSV file, and its file.
MOODS = pandas.get_dummies(
    pandas.DataFrame({"text": TEXTS, "mood": ["calm", "glad", "sad", "calm"]}), columns=["mood"]
)
EKMAN = ["anger", "fear", "joy"]


def csv_of(frame, **settings):
    file = io.StringIO()
    frame.to_csv(file, **settings)
    return file.getvalue()


def lines_of(*rows):
    return "".join(json.dumps(row) + "\n" for row in rows)


def ones(names, *rows):
    """Returns columns of text and one-hot labels, with the words of `rows`."""
    return {"text": TEXTS[: len(rows)], **dict(zip(names, zip(*rows, strict=True), strict=True))}


# {case: (task, file, content, label columns, kind of labels, labels)}
CASES = {
    "pandas get_dummies writes True and False": (
        *("classify", "a.csv", csv_of(MOODS, index=False), ()),
        *("classes", ["mood_calm", "mood_glad", "mood_sad", "mood_calm"]),
    ),
    "pandas get_dummies with its index": (
        *("classify", "a.csv", csv_of(MOODS), ()),
        *("classes", ["mood_calm", "mood_glad", "mood_sad", "mood_calm"]),
    ),
    "pandas writes 1.0 beside missing values elsewhere": (
        *("classify", "a.csv", csv_of(MOODS.replace({True: 1.0, False: 0.0})), ()),
        *("classes", ["mood_calm", "mood_glad", "mood_sad", "mood_calm"]),
    ),
    "pandas JSON lines of truth values": (
        *("classify", "a.jsonl", MOODS.to_json(orient="records", lines=True), ()),
        *("classes", ["mood_calm", "mood_glad", "mood_sad", "mood_calm"]),
    ),
    "Jigsaw's toxic comments": (
        *("classify", "train.csv"),
        "id,comment_text,toxic,severe_toxic,obscene,threat,insult,identity_hate\n"
        '0000997932d777bf,"Explanation\nWhy the edits?",0,0,0,0,0,0\n'
        "0002bcb3da6cb337,You are a rotten one,1,1,1,0,1,0\n"
        "000103f0d9cfb60f,What a fine page,0,0,0,0,0,0\n",
        (),
        *("multi_label", [(), ("toxic", "severe_toxic", "obscene", "insult"), ()]),
    ),
    "GoEmotions with its columns about raters": (
        *("classify", "goemotions.csv"),
        "text,id,author,subreddit,link_id,parent_id,created_utc,rater_id,admiration,anger,joy\n"
        "That game hurt.,eew5j0j,Brdd9,nrl,t3_ajis4z,t1_eew18eq,1548381039.0,1,0,1,0\n"
        "You do right if you don't care,eemcysk,Greens,unpop,t3_ad,t3_ad,1548084169.0,37,1,0,1\n",
        (),
        *("multi_label", [("anger",), ("admiration", "joy")]),
    ),
    "SemEval 2018's TSV of emotions": (
        *("classify", "E-c-En-train.txt.tsv"),
        "ID\tTweet\tanger\tanticipation\tdisgust\n"
        "2017-En-21441\tWorry is a down payment on a problem\t0\t1\t0\n"
        "2017-En-31535\tWhatever you decide to do\t1\t1\t0\n",
        (),
        *("multi_label", [("anticipation",), ("anger", "anticipation")]),
    ),
    "a sheet of yes and no": (
        *("classify", "notes.csv"),
        "Note;Fever;Cough\nthe patient is hot today;Yes;no\nthe patient coughs a lot;yes;YES\n",
        (),
        *("multi_label", [("Fever",), ("Fever", "Cough")]),
    ),
    "a physician's notes by patient": (
        *("classify", "notes.csv"),
        "patient,date,note,fever,cough,rash\nP1,2026-01-02,hot and red today,1,0,1\n"
        "P1,2026-01-09,nothing to see here,0,0,0\n",
        (),
        *("multi_label", [("fever", "rash"), ()]),
    ),
    "a sheet of y and n": (
        *("classify", "notes.tsv", "text\tfever\tcough\nhot\ty\tn\ncough\tn\ty\n", ()),
        *("classes", ["fever", "cough"]),
    ),
    "R writes TRUE and FALSE": (
        *("classify", "r.csv"),
        '"","text","a","b"\n"1","one text",TRUE,TRUE\n"2","two",FALSE,FALSE\n',
        (),
        *("multi_label", [("a", "b"), ()]),
    ),
    "R writes T and F": (
        *("classify", "r.csv", "text,a,b\none text,T,F\ntwo texts,F,T\n", ()),
        *("classes", ["a", "b"]),
    ),
    "columns by their names, beside another 0/1 column": (
        *("classify", "a.csv", "text,a,b,verified\none,1,1,0\ntwo,0,0,1\n", ("a", "b")),
        *("multi_label", [("a", "b"), ()]),
    ),
    "a pair of texts with one-hot columns": (
        *("classify", "nli.csv"),
        "premise,hypothesis,entails,neutral\nA man eats.,He eats.,1,0\nA dog.,A cat.,0,1\n",
        (),
        *("classes", ["entails", "neutral"]),
    ),
    "one-hot stars": (
        *("classify", "a.csv", csv_of(pandas.DataFrame(ones("123", "100", "010", "001")))),
        *(("1", "2", "3"), "classes", ["1", "2", "3"]),
    ),
    "EmoBank's valence, arousal and dominance": (
        *("regress", "emobank.csv"),
        "id,split_,V,A,D,text\n110,train,3.0,3.0,3.2,Remember what she said\n"
        "111,train,2.8,3.1,2.8,If I wasn't working here\n",
        ("V", "A", "D"),
        *("targets", [{"V": 3.0, "A": 3.0, "D": 3.2}, {"V": 2.8, "A": 3.1, "D": 2.8}]),
    ),
    "WASSA's empathy and distress with gaps": (
        *("regress", "wassa.tsv"),
        "essay\tEmpathy\tDistress\tmessage_id\nI feel bad\t4.5\t\tR_1\nIt is sad\tnan\t2\tR_2\n",
        ("Empathy", "Distress"),
        *("targets", [{"Empathy": 4.5, "Distress": None}, {"Empathy": None, "Distress": 2.0}]),
    ),
    "a list of targets per row": (
        *("regress", "a.jsonl"),
        lines_of({"text": "a b", "score": [1, None]}, {"text": "c", "score": [2.5, -1]}),
        (),
        *("targets", [{"score_0": 1.0, "score_1": None}, {"score_0": 2.5, "score_1": -1.0}]),
    ),
    "targets as JSON, NaN and null": (
        *("regress", "a.jsonl"),
        '{"text": "a", "x": NaN, "y": 1}\n{"text": "b", "x": 2, "y": null}\n',
        ("x", "y"),
        *("targets", [{"x": None, "y": 1.0}, {"x": 2.0, "y": None}]),
    ),
    "ChaosNLI's distributions as dictionaries": (
        *("classify", "chaos.jsonl"),
        lines_of(
            {"premise": "A man.", "hypothesis": "He.", "label": {"e": 0.75, "n": 0.25}},
            {"premise": "A dog.", "hypothesis": "It.", "label": {"e": 0, "n": 0.5, "c": 0.5}},
        ),
        (),
        *("distribution", [{"e": 0.75, "n": 0.25}, {"e": 0.0, "n": 0.5, "c": 0.5}]),
    ),
    "columns of probabilities": (
        *("classify", "a.csv", "text,pos,neg\na,0.2,0.8\nb,0.5,0.5\nc,1,0\n", ("pos", "neg")),
        "distribution",
        [{"pos": 0.2, "neg": 0.8}, {"pos": 0.5, "neg": 0.5}, {"pos": 1.0, "neg": 0.0}],
    ),
    "rounded probabilities": (
        *("classify", "a.csv", "text,a,b,c\nx,0.333,0.333,0.333\n", ("a", "b", "c")),
        *("distribution", [dict.fromkeys("abc", 0.333)]),
    ),
    "distributions beside sure labels": (
        *("classify", "a.jsonl"),
        lines_of({"text": "a", "label": {"x": 0.5, "y": 0.5}}, {"text": "b", "label": "x"}),
        (),
        *("distribution", [{"x": 0.5, "y": 0.5}, {"x": 1.0}]),
    ),
}  # fmt: skip


def written(tmp_path, name, content):
    path = tmp_path / name
    path.write_text(content)
    return path


@pytest.mark.parametrize("case", CASES)
def test_labels_are_read_as_they_are_meant(case, tmp_path):
    task, name, content, columns, kind, labels = CASES[case]
    path = written(tmp_path, name, content)
    data = read_tables(task, train=path, columns=Columns(labels=columns))
    assert data.form.kind == kind
    assert [example.label for example in data.examples("train")] == labels


def test_structs_of_parquet_have_each_class_in_each_row(tmp_path):
    labels = [{"e": 0.75, "n": 0.25}, {"c": 1.0}]
    pandas.DataFrame({"text": ["a b", "c d"], "label": labels}).to_parquet(tmp_path / "a.parquet")
    data = read_tables("classify", train=tmp_path / "a.parquet")
    assert [x.label for x in data.examples("train")] == labels
    arrays = pandas.DataFrame({"text": ["a", "b"], "score": [np.array([1, 2.5]), [3, None]]})
    arrays.to_parquet(tmp_path / "b.parquet")
    data = read_tables("regress", train=tmp_path / "b.parquet")
    assert [[*x.label.values()] for x in data.examples("train")] == [[1.0, 2.5], [3.0, None]]


@pytest.mark.parametrize("cell", ["", "?", "-1", "NA"])
def test_a_cell_without_a_label_is_refused_with_a_remedy_for_this_cell(cell, tmp_path):
    (tmp_path / "a.csv").write_text(f"text,a,b\nx,1,1\ny,{cell},1\nz,0,1\n")
    with pytest.raises(ValueError, match="row 3.*'a'.*write 1 in this cell.*--skip_bad_rows"):
        make_task(
            "classify", ClassifyOptions(train=str(tmp_path / "a.csv"), label_columns=("a", "b"))
        )


# {case: (task, file, content, label columns, what the error names)}
REFUSED = {
    "an empty one-hot cell": (
        *("classify", "a.csv", "text,a,b\nx,1,1\ny,,1\n", ("a", "b")),
        'row 3: "" in the column \'a\' is neither 0 nor 1',
    ),
    "an empty one-hot cell of guessed columns": (
        *("classify", "a.csv", "text,a,b\nx,1,1\ny,1,\n", ()),
        'row 3: "" in the column \'b\' is neither 0 nor 1',
    ),
    "NaN in a one-hot column": (
        *("classify", "a.jsonl", '{"text": "x", "a": 1, "b": NaN}', ("a", "b")),
        "row 1: NaN in the column 'b'",
    ),
    "a key that is missing": (
        *("classify", "a.jsonl", '{"text": "x", "a": 1, "b": 1}\n{"text": "y", "a": 1}'),
        *(("a", "b"), "row 2: null in the column 'b'"),
    ),
    "Jigsaw's -1 of rows that were not labelled": (
        *("classify", "a.csv", "text,a,b\nx,0,1\ny,-1,-1\n", ("a", "b")),
        "row 3: \"-1\" in the column 'a'",
    ),
    "a number of votes": (
        *("classify", "a.csv", "text,yes_votes,no_votes\nx,3,1\n", ("yes_votes", "no_votes")),
        "row 2: \"3\" in the column 'yes_votes' .* divide counts by their sum",
    ),
    "a part of a class in a one-hot column": (
        *("classify", "a.csv", "text,a,b\nx,1,1\ny,0.5,1\n", ("a", "b")),
        "row 3: \"0.5\" in the column 'a'",
    ),
    "a word in a one-hot column": (
        *("classify", "a.csv", "text,a,b\nx,1,0\ny,maybe,1\n", ("a", "b")),
        "row 3: \"maybe\" in the column 'a'",
    ),
    "probabilities above 1 in total": (
        *("classify", "a.csv", "text,a,b\nx,0.5,0.5\ny,0.5,0.6\n", ("a", "b")),
        "row 3: the probabilities .* have the sum 1.1",
    ),
    "a probability below 0": (
        *("classify", "a.csv", "text,a,b\nx,0.5,0.5\ny,-0.5,1.5\n", ("a", "b")),
        "row 3: the probabilities .*-0.5",
    ),
    "a missing probability": (
        *("classify", "a.csv", "text,a,b\nx,0.5,0.5\ny,,1\n", ("a", "b")),
        "row 3: \"\" in 'a' is not a number",
    ),
    "counts of annotators": (
        *("classify", "a.jsonl", lines_of({"text": "x", "label": {"a": 3, "b": 1}}), ()),
        "row 1: the probabilities .* the sum 4",
    ),
    "a missing distribution": (
        *("classify", "a.jsonl"),
        lines_of({"text": "x", "label": {"a": 1, "b": 0}}, {"text": "y", "label": None}),
        *((), "row 2 has no label in column 'label'"),
    ),
    "a target that is no number": (
        *("regress", "a.csv", "text,x,y\na,1,2\nb,high,2\n", ("x", "y")),
        "row 3: \"high\" in 'x' is not a number",
    ),
    "a row without any target": (
        *("regress", "a.csv", "text,x,y\na,1,2\nb,,NA\n", ("x", "y")),
        r"row 3: all targets \(x, y\) are missing",
    ),
    "lists of targets of other lengths": (
        *("regress", "a.jsonl"),
        lines_of({"text": "x", "score": [1, 2]}, {"text": "y", "score": [1, 2, 3]}),
        *((), r"row 2: the label \[1, 2, 3\] is not a list of 2 numbers"),
    ),
    "a number beside lists of targets": (
        *("regress", "a.jsonl"),
        lines_of({"text": "x", "score": [1, 2]}, {"text": "y", "score": 1}),
        *((), "row 2: the label 1 is not a list of 2 numbers"),
    ),
    "a column that is not there": (
        *("regress", "a.csv", "text,x,y\na,1,2\n", ("x", "z")),
        "no column 'z'. There are: text, x, y",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_wrong_is_refused_by_its_place(case, tmp_path):
    task, name, content, columns, message = REFUSED[case]
    path = written(tmp_path, name, content)
    with pytest.raises(ValueError, match=message):
        list(read_tables(task, train=path, columns=Columns(labels=columns)).examples("train"))


def test_rows_with_missing_cells_are_left_out_with_skip_bad_rows(tmp_path):
    path = written(tmp_path, "a.csv", "text,a,b\nx,1,1\ny,-1,-1\nz,,1\nw,0,1\n")
    data = read_tables("classify", train=path, bad_rows="skip", columns=Columns(labels=("a", "b")))
    assert [example.label for example in data.examples("train")] == [("a", "b"), ("b",)]
    assert [problem.split(":")[0][-5:] for _, problem in data.all_bad_rows()] == ["row 3", "row 4"]


def test_a_dev_row_of_two_classes_is_refused_if_training_rows_have_one(tmp_path):
    train = written(tmp_path, "a.csv", "text,a,b\nx,1,0\ny,0,1\n")
    dev = written(tmp_path, "b.csv", "text,a,b\nx,1,1\n")
    data = read_tables("classify", train=train, dev=dev)
    with pytest.raises(ValueError, match=r"b.csv, row 2: 2 labels are 1 \(a, b\)"):
        list(data.examples("dev"))


def test_one_odd_cell_in_ten_leaves_a_column_one_hot_and_is_refused_by_its_place(tmp_path):
    rows = [f"the note number {i},{i % 2},{i % 3 % 2}" for i in range(20)]
    rows[4] = "the note number 4,?,1"
    path = written(tmp_path, "a.csv", "\n".join(["note,fever,cough", *rows]) + "\n")
    with pytest.raises(ValueError, match="row 6.*column 'fever'"):
        list(read_tables("classify", train=path).examples("train"))
    data = read_tables("classify", train=path, bad_rows="skip")
    assert len(list(data.examples("train"))) == 19
    for odd in ("2", "0.5"):  # numbers may be another kind of label
        rows[4] = f"the note number 4,{odd},1"
        path = written(tmp_path, "a.csv", "\n".join(["note,fever,cough", *rows]) + "\n")
        assert read_tables("classify", train=path).columns.labels == ()


def test_a_test_file_may_lack_the_columns_of_labels(tmp_path):
    train = written(tmp_path, "a.csv", "text,a,b\nx,1,1\ny,0,1\n")
    test = written(tmp_path, "b.csv", "text\nx\n")
    data = read_tables("classify", train=train, test=test)
    assert [example.label for example in data.examples("test")] == [None]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"label_columns": ("a",)}, "--label_columns a: .*at least two"),
        ({"label_columns": ("a", "a")}, "--label_columns a a: .*at least two different"),
        ({"label_columns": ("a", "b"), "label_column": "c"}, "no --label_column"),
        ({"label_columns": ("a", "b"), "label_separator": "|"}, "--label_separator"),
        ({"label_columns": ("a", "b"), "keep_labels": ("-",)}, "--keep_labels"),
    ],
)
def test_options_that_exclude_each_other_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        ClassifyOptions(train="a.csv", **options)


def test_classes_without_a_row_are_kept_and_named(tmp_path, capsys):
    path = written(tmp_path, "a.csv", "text,a,none,b\n" + "x y,1,0,1\nz w,0,0,1\n" * 4)
    task = make_task("classify", ClassifyOptions(train=str(path), dev_fraction=0.0))
    assert task.labels == ("a", "none", "b") and task.label_kind == "multi_label"
    assert "warning: no example that is trained on is none" in capsys.readouterr().out


def test_each_target_has_its_own_scale_and_missing_ones_are_counted(tmp_path, capsys):
    path = written(tmp_path, "a.csv", "text,x,y\na b,1,100\nb c,3,\nc d,,300\nd e,5,200\n")
    options = RegressOptions(train=str(path), dev_fraction=0.0, label_columns=("x", "y"))
    task = make_task("regress", options)
    examples = [*task.data.examples("train")]
    encoded = np.stack([task.encode_label(example) for example in examples])
    assert np.isnan(encoded).sum() == 2
    np.testing.assert_allclose(np.nanmean(encoded, 0), 0, atol=1e-6)
    np.testing.assert_allclose(np.nanstd(encoded, 0), 1, rtol=1e-6)
    output = capsys.readouterr().out
    assert "targets of x: 1 to 5" in output and output.count("1 examples have none") == 2
    with pytest.raises(ValueError, match="all targets of y are 7"):
        path.write_text("text,x,y\na b,1,7\nb c,3,\nc d,,7\n")
        make_task("regress", options)


@pytest.mark.parametrize(
    ("names", "expected"),
    [("1 2 3 4 5", True), ("3 1 2", True), ("-1 0 1", True), ("0 1", False), ("1 2 4", False)]
    + [("a b c", False), ("1 2 3 x", False), ("1.5 2.5 3.5", False), ("1 2 3 03", False)],
)
def test_classes_in_sequence_are_known(names, expected):
    assert is_sequence(names.split()) == expected
