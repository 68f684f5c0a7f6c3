"""Tables of predictions keep the columns of the input beside the answers."""

import csv
import json
import sys

import pandas
import pyarrow.parquet
import pytest

from bertjax.base.printable import printable_output
from bertjax.inference.output_files import (
    _Printed,
    prediction_lines,
    table_row,
    write_converted,
)

LINES = [
    {
        "id": "0",
        "input": {"text": 'a "quoted",\nbroken text', "label": "yes", "n": 3},
        "label": "no",
        "probabilities": {"no": 0.75, "yes": 0.25},
    },
    {"id": "1", "input": {"text": "", "label": "no", "n": 4}, "error": "row 3: empty"},
]


@pytest.fixture
def lines(tmp_path):
    (tmp_path / "lines").write_text("".join(json.dumps(line) + "\n" for line in LINES))
    return tmp_path / "lines"


COLUMNS = ["text", "label", "n", "predicted_label", "probability_no", "probability_yes", "error"]


def test_csv_keeps_texts_and_has_empty_cells_where_there_is_no_answer(lines, tmp_path):
    write_converted(lines, tmp_path / "a.csv", ".csv")
    with (tmp_path / "a.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [*rows[0]] == COLUMNS
    assert rows[0]["text"] == LINES[0]["input"]["text"]
    assert (rows[0]["label"], rows[0]["predicted_label"]) == ("yes", "no")
    assert (rows[1]["predicted_label"], rows[1]["error"]) == ("", "row 3: empty")


@pytest.mark.parametrize(
    ("content", "start"),
    [
        ("\ufeffID;text;CRP\nP1;Größe;1,5\n", "\ufefftext;label;n;predicted_label"),
        ("sep=;\nID;text;CRP\nP1;a;1,5\nP2;a;12\n", "text;label;n;predicted_label"),
        ('ID,text,CRP\nP1,a,"1,5"\n', "text,label,n,predicted_label"),
        ("ID\ttext\nP1\ta\n", "text\tlabel\tn\tpredicted_label"),
    ],
)
def test_csv_has_the_separator_and_the_mark_of_the_input(content, start, tmp_path):
    (tmp_path / "in.csv").write_text(content, encoding="utf-8")
    output = tmp_path / "out.csv"
    with prediction_lines(str(output), str(tmp_path / "in.csv"), [], {}) as lines:
        lines.keep(0)
        for line in LINES:
            lines.write(line)
    assert output.read_text(encoding="utf-8").startswith(start)
    table = pandas.read_csv(output, sep=start.split("label")[0][-1])
    assert table["probability_no"][0] == 0.75
    assert table["text"][0] == LINES[0]["input"]["text"]


def test_tsv_has_one_line_per_row(lines, tmp_path):
    write_converted(lines, tmp_path / "a.tsv", ".tsv")
    rows = [line.split("\t") for line in (tmp_path / "a.tsv").read_text().splitlines()]
    assert rows[0] == COLUMNS and len(rows) == 3 and {len(row) for row in rows} == {7}
    assert rows[1][0] == 'a "quoted", broken text'


def test_parquet_has_numbers(lines, tmp_path):
    write_converted(lines, tmp_path / "a.parquet", ".parquet")
    rows = pyarrow.parquet.read_table(tmp_path / "a.parquet").to_pylist()
    assert [*rows[0]] == COLUMNS
    assert (rows[0]["n"], rows[0]["probability_no"], rows[1]["probability_no"]) == (3.0, 0.75, None)
    assert rows[0]["text"] == LINES[0]["input"]["text"]


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".parquet"])
def test_a_column_named_like_a_prediction_is_kept_and_said(suffix, tmp_path):
    row = {"text": "a", "predicted_label": "old", "other_": "", "other": ""}
    line = {"id": "0", "input": row, "label": "new"}
    assert table_row(line) == row | {"predicted_label_": "new"}
    (tmp_path / "lines").write_text(json.dumps(line) + "\n")
    (note,) = write_converted(tmp_path / "lines", tmp_path / f"a{suffix}", suffix)
    assert "has the columns predicted_label already" in note and "in predicted_label_." in note


def test_json_is_an_array(lines, tmp_path):
    write_converted(lines, tmp_path / "a.json", ".json")
    assert json.loads((tmp_path / "a.json").read_text()) == LINES
    (tmp_path / "lines").write_text("")
    write_converted(lines, tmp_path / "a.json", ".json")
    assert json.loads((tmp_path / "a.json").read_text()) == []


def test_parquet_keeps_the_types_of_the_input(tmp_path):
    rows = [
        {"id": 2**63 - 1, "huge": 2**70, "mixed": 1, "yes": True, "either": 1, "never": None},
        {"id": None, "huge": 1, "mixed": 0.5, "yes": False, "either": "a", "never": None},
        {"id": -1, "huge": 1, "mixed": None, "yes": None, "either": None, "never": None},
    ]
    lines = [json.dumps({"id": str(i), "input": row, "score": 0.5}) for i, row in enumerate(rows)]
    (tmp_path / "lines").write_text("\n".join(lines) + "\n")
    write_converted(tmp_path / "lines", tmp_path / "a.parquet", ".parquet")
    found = pyarrow.parquet.read_table(tmp_path / "a.parquet")
    assert [str(field.type) for field in found.schema] == [
        *("int64", "string", "double", "bool", "string", "string", "double"),
    ]
    assert found["id"].to_pylist() == [2**63 - 1, None, -1]
    assert found["huge"].to_pylist() == [str(2**70), "1", "1"]
    assert found["mixed"].to_pylist() == [1.0, 0.5, None]


def test_answers_of_every_kind_have_a_cell():
    assert table_row({"id": "7", "labels": ["a", "b"]}) == {"id": "7", "predicted_labels": "a|b"}
    assert table_row({"id": "7", "labels": []}) == {"id": "7", "predicted_labels": ""}
    assert json.loads(table_row({"id": "7", "labels": ["a|b"]})["predicted_labels"]) == ["a|b"]
    assert table_row({"id": "7", "answer": "x", "nbest": [{}]}) == {
        "id": "7",
        "predicted_answer": "x",
    }
    assert table_row({"id": "7", "score": 1.5, "input": {"predicted_score": "x"}}) == {
        "predicted_score": "x",
        "predicted_score_": 1.5,
    }
    entities = [{"type": "PER", "start": 0}]
    assert (
        json.loads(table_row({"id": "7", "entities": entities})["predicted_entities"]) == entities
    )


def test_tsv_keeps_all_that_it_can_hold_and_says_what_it_cannot(tmp_path):
    cells = ["A  1", " B", "D\u00a0E", 'an "x"', "a\tb\r\nc\u2028d", '"open']
    rows = [{"id": "0", "input": {"text": cell}, "label": "y"} for cell in cells]
    (tmp_path / "lines").write_text("".join(json.dumps(row) + "\n" for row in rows))
    notes = write_converted(tmp_path / "lines", tmp_path / "a.tsv", ".tsv")
    found = pandas.read_csv(tmp_path / "a.tsv", sep="\t", quoting=3)["text"].to_list()
    assert found == [*cells[:4], "a b c d", '"open']
    assert [note.partition(":")[0].partition(",")[0] for note in notes] == [
        "1 cells have tabs or line ends",
        "1 cells begin with a quote",
    ]
    assert write_converted(tmp_path / "lines", tmp_path / "a.csv", ".csv") == []
    assert pandas.read_csv(tmp_path / "a.csv")["text"].to_list() == cells


FORMULAS = ["=1+1", "+1", "-1", "@sum", "\tx", "\r=1"]


@pytest.mark.parametrize("suffix", [".csv", ".tsv"])
@pytest.mark.parametrize("text", FORMULAS)
def test_formulas_are_quoted_if_that_is_asked_for(suffix, text, tmp_path):
    row = {"id": "0", "input": {"text": text, text: "b", "n": -1.5}, "label": text}
    (tmp_path / "lines").write_text(json.dumps(row) + "\n")
    found = []
    for safe in (False, True):
        write_converted(tmp_path / "lines", tmp_path / f"a{suffix}", suffix, spreadsheet_safe=safe)
        with (tmp_path / f"a{suffix}").open(newline="") as file:
            found += list(csv.reader(file, delimiter="," if suffix == ".csv" else "\t"))
    kept = text if suffix == ".csv" else text.replace("\t", " ").replace("\r", " ")
    assert found[1] == [kept, "b", "-1.5", kept]
    assert found[3] == [f"'{kept}", "b", "-1.5", f"'{kept}"]
    assert found[2] == ["text", f"'{kept}", "n", "predicted_label"]


@pytest.mark.parametrize("sign", ["\x1b[2J", "\x9b31m", "\u202e", "\x07", "\u2066", "\U000e0001"])
def test_printed_lines_hold_no_commands_for_a_terminal_and_are_whole_in_a_pipe(
    sign, capsys, monkeypatch
):
    line = {"id": "0", "label": f"größe 你好 {sign}"}
    with printable_output():
        _Printed().write(line)
    assert capsys.readouterr().out == json.dumps(line, ensure_ascii=False) + "\n"
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    with printable_output():
        _Printed().write(line)
    out = capsys.readouterr().out
    assert out[:-1].isprintable() and "größe 你好" in out
    assert json.loads(out) == line
    with printable_output():
        _Printed().write({"a": {'"' * 3000: ["x" * 3000, "x" * 500]}})
    cut = {"a": {'"' * 500 + "…": ["x" * 500 + "…", "x" * 500]}}
    assert json.loads(capsys.readouterr().out) == cut
