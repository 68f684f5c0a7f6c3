"""Tables as other programs write them: read as pandas or datasets reads them, or refused."""

import csv
import dataclasses
import datetime
import decimal
import io
import json
import re
from collections import Counter

import numpy as np
import pandas
import pyarrow
import pyarrow.parquet
import pytest

from bertjax.tasks.classification import ClassifyOptions
from bertjax.tasks.dataset import Fold
from bertjax.tasks.registry import make_task, options_class
from bertjax.tasks.sources.advice import similar_classes
from bertjax.tasks.sources.glue import GlueRegressionOptions
from bertjax.tasks.sources.squad import read_questions
from bertjax.tasks.sources.tables import read_number
from bertjax.tasks.sources.typed_rows import read_parquet, rows_as_files
from tests.tables import read_tables

TEXTS = (
    'One, "two"\nthree.',
    "Äpfel; süß — “quoted”",
    "tab\there",
    "5",
    "it's\\n a back\\slash",
    "NA is here",
    "  spaces  ",
    "'single' quotes, too",
)
LABELS = ("pos", "neg", "pos", "neg", "neg", "pos", "neg", "pos")
PAIRS = list(zip(TEXTS, LABELS, strict=True))
FRAME = pandas.DataFrame({"text": TEXTS, "label": LABELS})
SIMPLE = [("a;b", "x"), ("c,d", "y")]


def read(path, kind="classify", split="train", **options):
    source = read_tables(kind, **{split: path}, **options)
    return [(example.text, example.label) for example in source.examples(split)]


CSV_OPTIONS = {
    "index": {"index": True},
    "comma": {},
    "semicolon, as Excel in Europe": {"sep": ";"},
    "pipe": {"sep": "|"},
    "tab in a .csv": {"sep": "\t"},
    "all quoted": {"quoting": csv.QUOTE_ALL},
    "texts quoted, as R": {"quoting": csv.QUOTE_NONNUMERIC},
    "single quotes": {"quotechar": "'"},
    "single quotes around all": {"quotechar": "'", "quoting": csv.QUOTE_ALL},
    "single quotes and semicolons": {"quotechar": "'", "sep": ";"},
    "BOM and CRLF, as Excel": {"encoding": "utf-8-sig", "lineterminator": "\r\n"},
    "CR": {"lineterminator": "\r"},
}


@pytest.mark.parametrize("how", CSV_OPTIONS)
def test_csv_of_pandas_is_read_as_it_was(tmp_path, how):
    FRAME.to_csv(tmp_path / "a.csv", **{"index": False, **CSV_OPTIONS[how]})
    assert read(tmp_path / "a.csv") == PAIRS


@pytest.mark.parametrize("suffix", ["csv.gz", "csv.bz2", "csv.xz", "csv.zst"])
def test_compressed_csv_of_pandas_is_read_as_it_was(tmp_path, suffix):
    FRAME.to_csv(tmp_path / f"a.{suffix}", index=False)
    assert read(tmp_path / f"a.{suffix}") == PAIRS


@pytest.mark.parametrize("quoting", [csv.QUOTE_ALL, csv.QUOTE_NONNUMERIC])
def test_tsv_whose_column_names_are_quoted_is_read_with_quotes(tmp_path, quoting):
    FRAME.to_csv(tmp_path / "a.tsv", sep="\t", index=False, quoting=quoting)
    assert read(tmp_path / "a.tsv") == PAIRS


CONTENTS = {
    "Excel's line of the separator": 'sep=;\r\ntext;label\r\n"a;b";x\r\nc,d;y\r\n',
    "a separator in a name": '"text;of all";"label"\n"a;b";"x"\n"c,d";"y"\n',
    "R's names of rows": '"","text","label"\n"1","a;b","x"\n"2","c,d","y"\n',
    "SQLite's quotes": "'text','label'\n'a;b','x'\n'c,d','y'\n",
    "spaces after separators": "text; label\n'a;b'; x\nc,d; y\n",
    "apostrophes are no quotes": "text;label\na'b;x\n'c;y\n",
    "apostrophes around two rows": "text;label\n'a;x\nc';y\n",
    "quotes of a text in full": "text;label\n'a';x\n'c';y\n",
    "a quote doubled": "text;label\n'it''s';x\nc;y\n",
}
EXPECTED = {
    "apostrophes are no quotes": [("a'b", "x"), ("'c", "y")],
    "apostrophes around two rows": [("'a", "x"), ("c'", "y")],
    "quotes of a text in full": [("'a'", "x"), ("'c'", "y")],
    "a quote doubled": [("it's", "x"), ("c", "y")],
}


@pytest.mark.parametrize("how", CONTENTS)
def test_dialects_of_csv_are_recognised(tmp_path, how):
    (tmp_path / "a.csv").write_bytes(CONTENTS[how].encode())
    assert read(tmp_path / "a.csv") == EXPECTED.get(how, SIMPLE)


def test_json_of_pandas_is_read_as_it_was(tmp_path):
    FRAME.to_json(tmp_path / "a.jsonl", orient="records", lines=True)
    FRAME.to_json(tmp_path / "a.json", orient="records")
    assert read(tmp_path / "a.jsonl") == read(tmp_path / "a.json") == PAIRS


@pytest.mark.parametrize("orient", ["columns", "split", "index", "table"])
def test_json_of_pandas_by_columns_is_refused_with_the_remedy(tmp_path, orient):
    FRAME.to_json(tmp_path / "a.json", orient=orient)
    with pytest.raises(ValueError, match=r"a\.json, row 1: .*to_json\(orient='records'\)"):
        read(tmp_path / "a.json")


PARQUET_COLUMNS = {
    "categories": (TEXTS, pyarrow.array(LABELS).dictionary_encode(), LABELS),
    "bytes": (pyarrow.array([text.encode() for text in TEXTS]), LABELS, LABELS),
    "large strings": (pyarrow.array(TEXTS, pyarrow.large_string()), LABELS, LABELS),
    "truth values": (TEXTS, [True, False] * 4, ["true", "false"] * 4),
    "whole floats": (TEXTS, [1.0, 0.0] * 4, ["1", "0"] * 4),
    "decimals": (TEXTS, [decimal.Decimal("1.50")] * 8, ["1.50"] * 8),
    "dates": (TEXTS, [datetime.date(2020, 1, 2)] * 8, ["2020-01-02"] * 8),
    "lists": (TEXTS, [["a", "b"], []] * 4, [("a", "b"), ()] * 4),
    "lists of bytes": (TEXTS, [[b"a"], [b"b"]] * 4, [("a",), ("b",)] * 4),
}


@pytest.mark.parametrize("kind", PARQUET_COLUMNS)
def test_types_of_parquet_are_read_by_their_meaning(tmp_path, kind):
    texts, labels, expected = PARQUET_COLUMNS[kind]
    table = pyarrow.table({"text": texts, "label": labels})
    pyarrow.parquet.write_table(table, tmp_path / "a.parquet")
    assert read(tmp_path / "a.parquet") == list(zip(TEXTS, expected, strict=True))


WRONG_COLUMNS = {
    "bytes of an image": ([b"\x89PNG\xff"], ["x"], "'text' should be a text, but is {\"bytes\""),
    "bytes as a label": (["a"], [b"\xff"], 'the label {"bytes": "ff"} is not the name of a class'),
    "an object": (["a"], [{"a": "1"}], "is not the name of a class"),
    "a map": (
        ["a"],
        pyarrow.array([[("k", 1)]], pyarrow.map_(pyarrow.string(), pyarrow.int8())),
        "",
    ),
    "infinity": (["a"], [float("inf")], "is not the name of a class"),
    "NaN": (["a"], [float("nan")], "has no label in column 'label'"),
    "a missing text": ([None], ["x"], "'text' should be a text, but is null"),
    "no width": (["\u200b\ufeff"], ["x"], "which shows nothing; fill it or remove the row"),
}


@pytest.mark.parametrize("kind", WRONG_COLUMNS)
def test_values_of_parquet_without_a_meaning_are_refused_with_the_row(tmp_path, kind):
    texts, labels, message = WRONG_COLUMNS[kind]
    table = pyarrow.table({"text": texts, "label": labels})
    pyarrow.parquet.write_table(table, tmp_path / "a.parquet")
    with pytest.raises(ValueError) as error:
        read(tmp_path / "a.parquet")
    assert "a.parquet, row 1" in str(error.value) and message in str(error.value)


def test_bytes_in_columns_that_nobody_reads_harm_nothing(tmp_path):
    rows = {"text": ["a", "b"], "label": ["x", "y"], "image": [b"\xff\xd8", None]}
    pyarrow.parquet.write_table(pyarrow.table(rows), tmp_path / "a.parquet")
    assert read(tmp_path / "a.parquet") == [("a", "x"), ("b", "y")]


VALUE = {"dtype": "string", "_type": "Value"}
POLAR = {"names": ["neg", "pos"], "_type": "ClassLabel"}
# The types of a column as the versions of datasets write them, values, and the values read.
FEATURES = {
    "version 5": (POLAR, [1, 0], ["pos", "neg"]),
    "version 2": ({"num_classes": 2, "id": None, **POLAR}, [1, -1], ["pos", None]),
    "a list, version 5": ({"feature": POLAR, "_type": "List"}, [[1, 0]], [["pos", "neg"]]),
    "a large list": ({"feature": POLAR, "_type": "LargeList"}, [[1], []], [["pos"], []]),
    "a sequence, version 3": (
        {"feature": POLAR, "length": -1, "_type": "Sequence"},
        [[0], None],
        [["neg"], None],
    ),
    "a list, version 2": ([POLAR], [[1]], [["pos"]]),
    "objects": (
        {"feature": {"start": VALUE, "label": POLAR}, "_type": "List"},
        [[{"start": 3, "label": 1}]],
        [[{"start": 3, "label": "pos"}]],
    ),
    "objects, version 3": (
        {"feature": {"start": VALUE, "label": POLAR}, "_type": "Sequence"},
        [{"start": [3], "label": [1]}],
        [{"start": [3], "label": ["pos"]}],
    ),
    "an object": ({"a": POLAR, "feature": VALUE}, [{"a": 0, "feature": "f"}], None),
}
FEATURES["an object"] = (*FEATURES["an object"][:2], [{"a": "neg", "feature": "f"}])


@pytest.mark.parametrize("version", FEATURES)
def test_class_names_of_datasets_are_read_in_every_column(tmp_path, version):
    feature, values, expected = FEATURES[version]
    others = {"list": [{"dtype": "string", "_type": "Value"}], "odd": None, "none": []}
    features = {"text": VALUE, **others, "label": feature}
    metadata = {"huggingface": json.dumps({"info": {"features": features}})}
    table = pyarrow.table({"text": ["a"] * len(values), "label": values})
    pyarrow.parquet.write_table(table.replace_schema_metadata(metadata), tmp_path / "a.parquet")
    assert [row["label"] for _, row in read_parquet(tmp_path / "a.parquet")] == expected


@pytest.mark.parametrize("id", [2, 5, -2, 1 << 40])
def test_a_class_id_without_a_name_is_refused_with_the_row(tmp_path, id):
    metadata = {"huggingface": json.dumps({"info": {"features": {"label": POLAR}}})}
    table = pyarrow.table({"text": ["a", "b", "c"], "label": [0, id, 1]})
    pyarrow.parquet.write_table(table.replace_schema_metadata(metadata), tmp_path / "a.parquet")
    with pytest.raises(ValueError, match=rf"row 2: the class id {id} has no name, .* 2 classes"):
        read(tmp_path / "a.parquet")
    with pytest.raises(ValueError, match="row 2"):
        read(tmp_path / "a.parquet", split="dev")


def test_index_columns_of_pandas_are_no_labels(tmp_path):
    frame = pandas.DataFrame({"a": TEXTS, "b": LABELS}, index=[f"r{i}" for i in range(8)])
    frame.to_parquet(tmp_path / "a.parquet")
    assert read(tmp_path / "a.parquet") == PAIRS
    frame.to_csv(tmp_path / "a.csv")
    assert read(tmp_path / "a.csv") == PAIRS


REFUSED = {
    "pandas' backslashes": (
        'text,label\n"a \\"b\\", c",x\n',
        r"row 2 is not a row of CSV .*escaped",
    ),
    "R's table": ('"text" "label"\n"1" "a b" "x"\n', r"row 1 is not a row of CSV .*comma"),
    "quotes of two kinds": ("text,label\n\"a\",x\n'b, c',y\n", "row 3 has 3 fields"),
    "a title": ("My data,by me\ntext,label\na,x\nb,y\n", "row 1 is an example"),
    "UTF-16": ("text,label\na,x\n".encode("utf-16"), "is UTF-16"),
    "UTF-32": ("text,label\na,x\n".encode("utf-32"), "is UTF-32"),
    "Windows": ("text,label\nä,x\n".encode("cp1252"), "row 2 is not UTF-8: byte 0xe4"),
    "NUL": ("text,label\na\0b,x\nc,y\n", "row 2 holds a NUL character"),
    "a list of pandas": ("text,label\na,\"['x', 'y']\"\n", "row 2: .* is a list that was written"),
    "a list of NumPy": ("text,label\na,['x' 'y']\n", "row 2: .* is a list that was written"),
    "a list of JSON": ('text,label\na,"[""x"", ""y""]"\n', "row 2: .* is a list that was written"),
    "a set": ("text,label\na,\"{'x', 'y'}\"\n", "row 2: .* is a list that was written"),
    "a tuple": ("text,label\na,\"('x', 'y')\"\n", "row 2: .* is a list that was written"),
    "an empty list": ("text,label\na,[]\n", "row 2: .* is a list that was written"),
    "numbers in a list": ('text,label\na,"[0, 1]"\n', "row 2: .* is a list that was written"),
    "SQL's missing label": ("text,label\na,x\nb,\\N\n", "row 3 has no label"),
    "SQL's missing text": ("text,label\n\\N,x\n", r"row 2: the text in 'text' is \\N, a missing"),
    "zero width": ("text,label\n\u200b\u200d,x\n", "row 2: the text in 'text' is .*shows nothing"),
    "a space": ("text,label\n\u3000,x\n", "row 2: the text in 'text' is empty"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_csv_that_cannot_be_read_is_refused_with_row_and_remedy(tmp_path, what):
    content, message = REFUSED[what]
    (tmp_path / "a.csv").write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ValueError, match=message):
        read(tmp_path / "a.csv")


OTHER_ENCODINGS = {
    # In cp1258, tones are marks after the letters.
    "cp1258": "Không thê\u0309 mơ\u0309 tâ\u0323p tin, ba\u0323n ha\u0303y thư\u0309",
    "cp1251": "Все счастливые семьи похожи друг на друга",
    "cp1252": "Für die Bücher müssen wir schließlich bezahlen",
}


@pytest.mark.parametrize("encoding", OTHER_ENCODINGS)
@pytest.mark.parametrize(
    ("name", "header", "row"),
    [
        ("a.csv", "text,label\n", '"{}",x\n'),
        ("a.tsv", "text\tlabel\n", "{}\tx\n"),
        ("a.jsonl", "", '{{"text": "{}", "label": "x"}}\n'),
    ],
)
def test_a_table_in_another_encoding_is_refused_with_its_encoding_and_a_word(
    tmp_path, encoding, name, header, row
):
    text = OTHER_ENCODINGS[encoding]
    (tmp_path / name).write_bytes((header + 20 * row.format(text)).encode(encoding))
    with pytest.raises(ValueError, match="not UTF-8.*iconv -f ENCODING") as error:
        read(tmp_path / name)
    guesses = dict(re.findall(r"(\w+) \('(.*?)'\)", str(error.value)))
    assert guesses[encoding].strip('",') in text
    assert len({*guesses.values()}) == len(guesses)


@pytest.mark.parametrize(("suffix", "sign"), [(".csv", ","), (".tsv", "\t")])
def test_bytes_of_the_header_that_are_not_utf8_are_of_the_header(tmp_path, suffix, sign):
    path = tmp_path / f"a{suffix}"
    path.write_bytes(f"câu{sign}nhãn\na{sign}x\n".encode("cp1252"))
    with pytest.raises(ValueError, match=f"a{suffix}, the header is not UTF-8: byte 0xe2"):
        read(path)


def test_lists_in_texts_are_refused_with_a_separator_as_well(tmp_path):
    (tmp_path / "a.csv").write_text("text,label\na,\"['x', 'y']\"\n")
    with pytest.raises(ValueError, match="row 2: .* is a list that was written"):
        read(tmp_path / "a.csv", label_separator=",")


def test_class_names_in_brackets_are_names(tmp_path):
    (tmp_path / "a.csv").write_text("text,label\na,(none)\nb,[toxic]\nc,{x}\nd,it's [1]\n")
    assert [label for _, label in read(tmp_path / "a.csv")] == [
        "(none)",
        "[toxic]",
        "{x}",
        "it's [1]",
    ]


@pytest.mark.parametrize("cell", ["['Anna', 'left']", "['Anna' 'left']", '["Anna" "left"]'])
def test_words_as_python_writes_lists_are_no_running_text(tmp_path, cell):
    with (tmp_path / "a.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("words", "tags"), (cell, '["B-PER", "O"]')])
    with pytest.raises(ValueError, match="row 2: .* is a list that was written"):
        read(tmp_path / "a.csv", "tag", "test")


@pytest.mark.parametrize(
    "word", ["", " ", "\t", "\u00a0", "\u200b", "\ufeff", "\u2060\u00ad", "\\N"]
)
def test_words_that_show_nothing_are_named_by_their_place(tmp_path, word):
    row = {"words": ["Anna", word, "left"], "tags": ["B-PER", "O", "O"]}
    (tmp_path / "a.jsonl").write_text(json.dumps(row) + "\n")
    with pytest.raises(
        ValueError, match=r"row 1: entry 2 of the list in 'words' is .*; remove it, and"
    ):
        read(tmp_path / "a.jsonl", "tag")


@pytest.mark.parametrize("word", ["\ufe0f", "\u0301", "|", "\u2581", "a\u200b", "🏽"])
def test_words_that_show_something_are_words(tmp_path, word):
    row = {"words": ["Anna", word, "left"], "tags": ["B-PER", "O", "O"]}
    (tmp_path / "a.jsonl").write_text(json.dumps(row) + "\n")
    (example,) = read_tables("tag", train=tmp_path / "a.jsonl").examples("train")
    assert example.words == ("Anna", word, "left")


@pytest.mark.parametrize("cell", [r"a\tb", r"a\nb", r"C:\\x", r"\N"])
def test_escapes_of_sql_in_tsv_are_said(tmp_path, cell):
    (tmp_path / "a.tsv").write_text(f"text\tlabel\tnote\na\tx\tc\nb\ty\t{cell}\n")
    note = read_tables("classify", train=tmp_path / "a.tsv").note
    assert "row 3 holds" in note and "as MySQL and PostgreSQL escape texts" in note


@pytest.mark.parametrize("cell", [r"C:\temp", r"\nabla", "a/b", "back\\slash"])
def test_other_backslashes_in_tsv_are_not(tmp_path, cell):
    (tmp_path / "a.tsv").write_text(f"text\tlabel\na\tx\n{cell}\ty\n")
    assert "escape" not in read_tables("classify", train=tmp_path / "a.tsv").note
    assert read(tmp_path / "a.tsv") == [("a", "x"), (cell, "y")]


@pytest.mark.parametrize(
    "written",
    ["1_000", "٣", "３", "1,5", "1e", "0x10", "nan", "inf", "1 000", "−5", "TRUE", "½", ""],
)
def test_what_pandas_does_not_take_for_a_number_is_none(tmp_path, written):
    assert read_number(written) is None
    (tmp_path / "a.csv").write_text(f'text,score\na,1\nb,"{written}"\n', encoding="utf-8")
    with pytest.raises(ValueError, match="row 3"):
        read(tmp_path / "a.csv", "regress")


@pytest.mark.parametrize("written", ["5", "-5.", "+.5", "1e-3", " 2.5 ", "1E5", "007"])
def test_what_pandas_takes_for_a_number_is_one(written):
    frame = pandas.read_csv(io.StringIO(f"score\n{written}\n"))
    assert read_number(written) == float(frame["score"][0])


LONE = {
    "a text": '{"text": "a\\ud83d", "label": "x"}',
    "a label": '{"text": "a", "label": "\\uDFFF"}',
    "an id": '{"text": "a", "label": "x", "id": "\\udbff"}',
    "another column": '{"text": "a", "label": "x", "more": {"a": ["\\ud800"]}}',
    "a name": '{"text": "a", "label": "x", "\\udc00": 1}',
}


@pytest.mark.parametrize("where", LONE)
@pytest.mark.parametrize("form", ["{}\n", "[{}]"])
def test_lone_surrogates_are_refused_with_the_row(tmp_path, where, form):
    (tmp_path / "a.json").write_text(form.format(LONE[where]))
    with pytest.raises(ValueError, match=r"row 1 is not UTF-8: \\u.* is half a character"):
        read(tmp_path / "a.json")
    row = json.loads(LONE[where])
    with (
        pytest.raises(ValueError, match="train, row 1 is not UTF-8"),
        rows_as_files(train=[row]) as f,
    ):
        read(f["train"])


def test_whole_surrogate_pairs_are_characters(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"text": "\\ud83d\\ude00", "label": "x"}\n')
    assert read(tmp_path / "a.jsonl") == [("😀", "x")]


def test_values_of_python_are_read_by_their_meaning():
    class Picture:
        pass

    values = {
        "set": ({"c", "a", "b"}, ("a", "b", "c")),
        "frozen": (frozenset({"b", "a"}), ("a", "b")),
        "tuple": (("b", "a"), ("b", "a")),
        "array": (np.array(["b", "a"]), ("b", "a")),
    }
    for value, expected in values.values():
        with rows_as_files(train=[{"text": "a", "label": value}]) as files:
            assert read(files["train"]) == [("a", expected)]
    single = {
        "time": (np.datetime64("2020-01-02T03:04:05", "ns"), "2020-01-02T03:04:05.000000000"),
        "stamp": (pandas.Timestamp("2020-01-02"), "2020-01-02 00:00:00"),
        "bytes": (b"caf\xc3\xa9", "café"),
        "number": (np.float32(2), "2"),
        "truth": (np.bool_(True), "true"),
    }
    for value, expected in single.values():
        with rows_as_files(train=[{"text": "a", "label": value}]) as files:
            assert read(files["train"]) == [("a", expected)]
    for value in (Picture(), object(), b"\xff", {"a": "b"}):
        with (
            pytest.raises(
                ValueError, match="train, row 1: the label .* is not the name of a class"
            ),
            rows_as_files(train=[{"text": "a", "label": value}]) as files,
        ):
            read(files["train"])
    for value in (
        None,
        float("nan"),
        pandas.NA,
        pandas.NaT,
        np.datetime64("NaT", "s"),
        decimal.Decimal("NaN"),
    ):
        with (
            pytest.raises(ValueError, match="train, row 1 has no label"),
            rows_as_files(train=[{"text": "a", "label": value}]) as files,
        ):
            read(files["train"])


def make(path, task="classify", **options):
    return make_task(task, options_class(task)(train=str(path), dev=str(path), **options))


PLACEHOLDERS = ("NA", "nan", "NULL", "#N/A", "None", "none", "N/A", "-", "?", "_", "-1", "-100")


@pytest.mark.parametrize("label", PLACEHOLDERS)
@pytest.mark.parametrize("classes", [("x", "y"), ("0", "1")])
def test_labels_that_mark_missing_values_are_no_classes(tmp_path, label, classes):
    rows = [*classes, label, *classes]
    path = tmp_path / "a.csv"
    path.write_text("text,label\n" + "".join(f"t{i},{x}\n" for i, x in enumerate(rows)))
    message = f"row 4: the label '{label}' usually marks a missing one.*--keep_labels {label}"
    with pytest.raises(ValueError, match=re.escape(message).replace(r"\.\*", ".*")):
        make(path)
    skipping = make(path, skip_bad_rows=True)
    assert skipping.labels == classes and len([*skipping.source.examples("train")]) == 4
    assert ("train", 1) in Counter(split for split, _ in skipping.source.all_bad_rows()).items()
    kept = make(path, keep_labels=(label,))
    assert label in kept.labels and len([*kept.source.examples("dev")]) == 5
    # A model without this class has no label for it.
    source = read_tables("classify", test=path)
    for names, expected in ((classes, None), (kept.labels, label)):
        assert [*source.labelled(names).examples("test")][2].label == expected


@pytest.mark.parametrize("labels", [("-1", "1"), ("+", "-"), ("-2", "-1", "0", "1")])
def test_labels_that_mean_something_beside_the_others_are_classes(tmp_path, labels):
    rows = "".join(f"text {i},{label}\n" for i, label in enumerate(labels))
    (tmp_path / "a.csv").write_text("text,label\n" + rows)
    assert set(make(tmp_path / "a.csv").labels) == {*labels}


def test_placeholders_among_several_labels_and_in_folds_are_no_classes(tmp_path):
    rows = [{"text": f"text {i}", "labels": ["a", "b"][: 1 + i % 2]} for i in range(12)]
    rows[5]["labels"] = ["-"]
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    given = ClassifyOptions(train=str(path), dev_fraction=0.2)
    for fold in (None, Fold(0, 3, 0)):
        with pytest.raises(ValueError, match="row 6: the label '-' usually marks a missing one"):
            make_task("classify", given, fold)
        task = make_task("classify", dataclasses.replace(given, skip_bad_rows=True), fold)
        assert task.labels == ("a", "b")


@pytest.mark.parametrize(
    "labels", [("TRUE", "true"), ("1", "1.0"), ("False", "FALSE"), ("0", "0.0")]
)
def test_classes_that_are_written_in_two_ways_are_said(tmp_path, labels):
    (tmp_path / "a.csv").write_text("text,label\n" + "".join(f"a,{x}\n" for x in labels))
    classes = make(tmp_path / "a.csv").labels
    assert set(classes) == {*labels}
    (warning,) = similar_classes(classes, np.ones(2, int))
    assert f"the classes {', '.join(map(repr, classes))} differ only in how" in warning


def test_dates_are_no_classes(tmp_path):
    dates = [f"2020-{month:02}-{day:02}" for month in (1, 2) for day in range(1, 29)]
    for ends in ("", " 12:00:00", "T12:00:00+00:00"):
        rows = "".join(f"text {i},{date}{ends}\n" for i, date in enumerate(dates * 9))
        (tmp_path / "a.csv").write_text("text,label\n" + rows)
        with pytest.raises(ValueError, match="the 56 different labels are dates or times"):
            make(tmp_path / "a.csv")


@pytest.mark.parametrize(
    "targets", [(1e-200, 2e-200), (1e200, -1e200), (0, 5e-324), (1e308, -1e308)]
)
def test_targets_whose_deviation_cannot_be_computed_are_refused(tmp_path, targets):
    (tmp_path / "a.csv").write_text("text,score\n" + "".join(f"a b c,{x}\n" for x in targets))
    with pytest.raises(ValueError, match="standard deviation of .*: give them in another unit"):
        make(tmp_path / "a.csv", "regress")


@pytest.mark.parametrize("targets", [(1e-100, 2e-100), (1e16, 1e16 + 2), (-1e100, 1e100), (0, 1)])
def test_other_targets_are_not(tmp_path, targets):
    (tmp_path / "a.csv").write_text("text,score\n" + "".join(f"a b c,{x!r}\n" for x in targets))
    task = make(tmp_path / "a.csv", "regress")
    assert (task.mean, task.std) == (np.mean(targets), np.std(targets))


def test_equal_targets_are_said_even_if_their_mean_is_rounded(tmp_path):
    (tmp_path / "a.csv").write_text("text,score\n" + "a b c,0.1\n" * 10)
    with pytest.raises(ValueError, match="all targets are 0.1"):
        make(tmp_path / "a.csv", "regress")


@pytest.mark.parametrize("score", ["5.01", "-0.5", "50", "-1"])
def test_scores_of_stsb_are_from_0_to_5(tmp_path, score):
    row = "index\tsentence1\tsentence2\tscore\n0\ta\tb\t{}\n"
    (tmp_path / "dev.tsv").write_text(row.format(score))
    task = make_task("stsb", GlueRegressionOptions(data_dir=str(tmp_path)))
    with pytest.raises(ValueError, match="row 2: the score .* of stsb is not within 0 to 5"):
        list(task.source.examples("dev"))
    (tmp_path / "dev.tsv").write_text(row.format("5.000"))
    task = make_task("stsb", GlueRegressionOptions(data_dir=str(tmp_path)))
    assert [e.label for e in task.source.examples("dev")] == [5.0]


QUESTION = {"question": "Who left?", "context": "Anna left.", "answer": "Anna", "answer_start": 0}


@pytest.mark.parametrize(
    "said", ["false", "False", "FALSE", "no", "0", "0.0", "f", "n", "N", "", None]
)
@pytest.mark.parametrize("suffix", ["csv", "jsonl", "parquet"])
def test_answerable_questions_stay_answerable(tmp_path, said, suffix):
    frame = pandas.DataFrame([QUESTION | {"is_impossible": said}])
    path = tmp_path / f"a.{suffix}"
    if suffix == "csv":
        frame.to_csv(path, index=False)
    elif suffix == "jsonl":
        frame.to_json(path, orient="records", lines=True)
    else:
        frame.to_parquet(path)
    (example,) = read_questions({"train": path}).examples("train")
    assert (example.label, example.answers) == (None, (("Anna", 0),))


@pytest.mark.parametrize("said", [True, "true", "TRUE", "yes", "1", 1, 1.0, "t", "Y"])
def test_questions_without_an_answer_are_impossible(tmp_path, said):
    row = QUESTION | {"answer": "", "answer_start": None, "is_impossible": said}
    pandas.DataFrame([row]).to_csv(tmp_path / "a.csv", index=False)
    (example,) = read_questions({"train": tmp_path / "a.csv"}).examples("train")
    assert example.label == "impossible"


@pytest.mark.parametrize("said", ["2", "NA", "maybe", "-1", "0.5"])
def test_other_words_than_true_and_false_are_refused(tmp_path, said):
    pandas.DataFrame([QUESTION | {"is_impossible": said}]).to_csv(tmp_path / "a.csv")
    with pytest.raises(ValueError, match=f"row 2, question 0: is_impossible is '{said}'"):
        list(read_questions({"train": tmp_path / "a.csv"}).examples("train"))


@pytest.mark.parametrize("said", [False, "false", "no", "0"])
def test_answerable_questions_need_an_answer_to_train(tmp_path, said):
    row = QUESTION | {"answer": "", "is_impossible": said}
    pandas.DataFrame([row]).to_csv(tmp_path / "a.csv", index=False)
    with pytest.raises(
        ValueError, match="row 2, question 0: is_impossible is .* there is no answer"
    ):
        list(read_questions({"train": tmp_path / "a.csv"}).examples("train"))


@pytest.mark.parametrize("empty", ["", None])
def test_of_two_columns_of_answers_the_one_that_is_filled_is_read(tmp_path, empty):
    row = QUESTION | {"answer": empty, "answer_text": "Anna"}
    (tmp_path / "a.jsonl").write_text(json.dumps(row))
    (example,) = read_questions({"train": tmp_path / "a.jsonl"}).examples("train")
    assert (example.label, example.answers) == (None, (("Anna", 0),))
