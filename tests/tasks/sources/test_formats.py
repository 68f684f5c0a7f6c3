"""Every format of a user's file gives the same examples, alone, compressed or in a folder."""

import bz2
import datetime
import gzip
import json
import lzma
from pathlib import Path

import pandas
import pyarrow
import pyarrow.parquet
import pytest
import zstandard

from bertjax.inference import evaluation
from bertjax.inference.evaluation import from_file
from bertjax.tasks import make_task
from bertjax.tasks.question_answering import QaOptions
from bertjax.tasks.sources.columns import Columns
from bertjax.tasks.sources.own_files import data_files
from bertjax.tasks.sources.squad import read_questions
from bertjax.tasks.sources.tables import Table
from bertjax.tasks.sources.typed_rows import as_file, rows_as_files
from bertjax.tasks.tagging import TagOptions, TagTask
from tests.tables import read_tables

ROWS = [
    {"text": "a good, long film", "label": "yes"},
    {"text": 'he said "no" 🙂', "label": "no"},
    {"text": "ein schöner Tag", "label": "yes"},
]
COMPRESS = {
    "gz": gzip.compress,
    "bz2": bz2.compress,
    "xz": lzma.compress,
    "zst": zstandard.ZstdCompressor().compress,
}


def content(suffix: str, rows) -> bytes:
    if suffix == "csv":
        quoted = [",".join('"' + v.replace('"', '""') + '"' for v in r.values()) for r in rows]
        return "\n".join([",".join(rows[0]), *quoted]).encode("utf-8-sig")
    if suffix == "tsv":
        return "\n".join(["\t".join(rows[0]), *("\t".join(r.values()) for r in rows)]).encode()
    if suffix == "json":
        return json.dumps(rows, indent=1, ensure_ascii=False).encode()
    return "\n".join(json.dumps(row) for row in rows).encode()


def found(path, kind="classify"):
    source = read_tables(kind, train=path)
    return [(example.text, example.label) for example in source.examples("train")]


EXPECTED = [(row["text"], row["label"]) for row in ROWS]


@pytest.mark.parametrize("suffix", ["csv", "tsv", "json", "jsonl"])
@pytest.mark.parametrize("compression", [None, *COMPRESS])
def test_a_compressed_file_has_the_same_rows(tmp_path, suffix, compression):
    path = tmp_path / ".".join(filter(None, ("a", suffix, compression)))
    data = content(suffix, ROWS)
    path.write_bytes(COMPRESS[compression](data) if compression else data)
    assert found(path) == EXPECTED


def test_a_damaged_compressed_file_is_named(tmp_path):
    path = tmp_path / "a.csv.gz"
    path.write_bytes(gzip.compress(content("csv", ROWS * 100))[:-20])
    with pytest.raises(ValueError, match=r"a.csv.gz is damaged or truncated"):
        found(path)


def test_the_elements_of_a_json_array_may_be_longer_than_a_block(tmp_path):
    rows = [{"text": f"{i} " * 30_000, "label": "ab"[i % 2]} for i in range(9)]
    (tmp_path / "a.json").write_text(json.dumps(rows))
    assert found(tmp_path / "a.json") == [(row["text"], row["label"]) for row in rows]


def test_parquet_has_the_names_of_classes_that_datasets_wrote(tmp_path):
    path = tmp_path / "a.parquet"
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(ROWS), path)
    assert found(path) == EXPECTED
    ids = [{**row, "label": ["no", "yes"].index(row["label"])} for row in ROWS]
    table = pyarrow.Table.from_pylist(ids)
    features = {"label": {"names": ["no", "yes"], "_type": "ClassLabel"}}
    metadata = {"huggingface": json.dumps({"info": {"features": features}})}
    pyarrow.parquet.write_table(table.replace_schema_metadata(metadata), path)
    assert found(path) == EXPECTED
    words = [{"tokens": ["EU", "rejects"], "ner_tags": [1, 0]}]
    features = {"ner_tags": {"feature": {"names": ["O", "B-ORG"], "_type": "ClassLabel"}}}
    metadata = {"huggingface": json.dumps({"info": {"features": features}})}
    table = pyarrow.Table.from_pylist(words).replace_schema_metadata(metadata)
    pyarrow.parquet.write_table(table, path)
    assert found(path, "tag") == [("", ("B-ORG", "O"))]


OTHER_FEATURES = [
    [{"dtype": "string", "_type": "Value"}],  # as datasets before version 4 writes a list
    [],
    {"feature": [{"dtype": "string", "_type": "Value"}], "length": -1, "_type": "Sequence"},
    {"feature": {"a": {"dtype": "string", "_type": "Value"}}, "_type": "List"},
    {"feature": [{"dtype": "int64"}], "_type": {"dtype": "string"}},  # a column of dictionaries
]


@pytest.mark.parametrize("other", OTHER_FEATURES)
def test_the_names_of_classes_are_read_beside_columns_of_lists_and_dictionaries(tmp_path, other):
    rows = [{**ROWS[0], "label": 1, "other": [], "tags": [[0], [1]]}]
    classes = {"names": ["no", "yes"], "_type": "ClassLabel"}
    features = {"other": other, "label": classes, "tags": [[classes]]}
    metadata = {"huggingface": json.dumps({"info": {"features": features}})}
    table = pyarrow.Table.from_pylist(rows).replace_schema_metadata(metadata)
    pyarrow.parquet.write_table(table, tmp_path / "a.parquet")
    ((_, row),) = Table(tmp_path / "a.parquet").rows()
    assert (row["label"], row["tags"]) == ("yes", [["no"], ["yes"]])


@pytest.mark.real
def test_parquet_of_datasets_3_has_the_names_of_its_classes(shared):
    folder = shared / "strangers"
    expected = json.loads((folder / "expected.json").read_text())["26_datasets3.parquet"]
    path = folder / "26_datasets3.parquet"
    source = read_tables("classify", train=path, columns=Columns(text="text", label="label"))
    assert [example.label for example in source.examples("train")] == expected["labels"]


def test_a_folder_has_the_rows_of_its_files(tmp_path):
    (tmp_path / "b.csv").write_bytes(content("csv", ROWS[1:]))
    (tmp_path / "a.jsonl").write_bytes(content("jsonl", ROWS[:1]))
    (tmp_path / "README.md").write_text("no data")
    assert found(tmp_path) == EXPECTED
    source = read_tables("classify", train=tmp_path)
    assert [example.where for example in source.examples("train")] == [
        f"{tmp_path}/a.jsonl, row 1",
        f"{tmp_path}/b.csv, row 2",
        f"{tmp_path}/b.csv, row 3",
    ]
    (tmp_path / "c.csv").write_text("title,label\na,yes\n")
    with pytest.raises(ValueError, match="c.csv has no column 'text'"):
        found(tmp_path)
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(FileNotFoundError, match="has no data files"):
        found(empty)


def test_a_folder_of_conll_files(tmp_path):
    for name in "ab":
        (tmp_path / f"{name}.conll").write_text(f"{name}nna B-PER\nleft O\n")
    sentences = [x.words for x in read_tables("tag", train=tmp_path).examples("train")]
    assert sentences == [("anna", "left"), ("bnna", "left")]


QUESTIONS = [
    {
        "id": "1",
        "question": "Who left?",
        "context": "Anna left.",
        "answers": {"text": ["Anna"], "answer_start": [0]},
    },
    {
        "id": "2",
        "question": "Who came?",
        "context": "Anna left.",
        "answers": {"text": [], "answer_start": []},
    },
]


@pytest.mark.parametrize("suffix", ["json", "jsonl", "parquet", "jsonl.gz"])
def test_questions_with_their_passages_in_a_table(tmp_path, suffix):
    path = tmp_path / f"a.{suffix}"
    if suffix == "parquet":
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(QUESTIONS), path)
    else:
        data = content(suffix.partition(".")[0], QUESTIONS)
        path.write_bytes(gzip.compress(data) if "gz" in suffix else data)
    first, second = read_questions({"train": path}).examples("train")
    assert (first.id, first.text, first.pair) == ("1", "Who left?", "Anna left.")
    assert first.answers == (("Anna", 0),) and first.label is None
    assert second.label == "impossible"
    assert make_task("qa", QaOptions(train=str(path))).source is not None


def test_a_folder_of_questions(tmp_path):
    for number, row in enumerate(QUESTIONS):
        (tmp_path / f"{number}.jsonl").write_text(json.dumps(row))
    examples = list(read_questions({"train": tmp_path}).examples("train"))
    assert [example.id for example in examples] == ["1", "2"]
    assert examples[1].where == f"{tmp_path}/1.jsonl, row 1, question 2"


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({**QUESTIONS[0], "answers": {"text": ["a"]}}, "row 1: 'answers' is .* equal lengths"),
        ({"question": "Who?", "answers": []}, "row 1: 'context' should be a text"),
    ],
)
def test_malformed_questions_in_a_table_are_named(tmp_path, row, message):
    (tmp_path / "a.jsonl").write_text(json.dumps(row))
    with pytest.raises(ValueError, match=message):
        list(read_questions({"train": tmp_path / "a.jsonl"}).examples("train"))


def test_csv_holds_questions_without_answers(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text('id,question,context\nq7,"Who, then?",Anna left.\n')
    (example,) = read_questions({"test": path}).examples("test")
    assert (example.id, example.text, example.pair) == ("q7", "Who, then?", "Anna left.")
    assert example.answers == () and example.label is None
    path.write_text("question,context,answers\n")
    with pytest.raises(ValueError, match="cannot hold lists of answers"):
        list(read_questions({"train": path}).examples("train"))


def test_csv_holds_one_answer_per_question(tmp_path):
    path = tmp_path / "a.csv"
    for column in ("answer", "answer_text"):
        path.write_text(
            f"question,context,{column},answer_start\n"
            "Who?,Anna left Anna.,Anna,10\nWhere?,To Bonn!,Bonn,\nWhy?,Anna left.,,\n"
        )
        second, only, none = read_questions({"train": path}).examples("train")
        assert second.answers == (("Anna", 10),) and only.answers == (("Bonn", 3),)
        assert none.label == "impossible"


@pytest.mark.parametrize("suffix", ["jsonl", "csv", "tsv"])
def test_is_impossible_is_read_by_its_meaning(tmp_path, suffix):
    answerable: list = ["False", "no", "0", "0.0", " false ", ""]
    impossible: list = ["True", "YES", "1", "1.0"]
    if suffix == "jsonl":
        answerable += [False, 0, None]
        impossible += [True, 1]
    row = {"question": "Who?", "context": "Anna left.", "answer": "Anna"}
    rows = [{**row, "is_impossible": value} for value in (*answerable, *impossible)]
    path = tmp_path / f"a.{suffix}"
    path.write_bytes(content(suffix, rows))
    examples = [*read_questions({"train": path}).examples("train")]
    for example in examples[: len(answerable)]:
        assert (example.label, example.answers) == (None, (("Anna", 0),))
    assert [x.label for x in examples[len(answerable) :]] == ["impossible"] * len(impossible)
    for value in ("maybe", "2", "none"):
        path.write_bytes(content(suffix, [{**row, "is_impossible": value}]))
        message = f"row [12], .* is_impossible is '{value}': write true if"
        with pytest.raises(ValueError, match=message):
            list(read_questions({"train": path}).examples("train"))


def test_a_blank_is_impossible_is_as_good_as_none(tmp_path):
    rows = [{**row, "is_impossible": None} for row in QUESTIONS]
    (tmp_path / "a.jsonl").write_bytes(content("jsonl", rows))
    (tmp_path / "a.csv").write_text(
        "question,context,answer,is_impossible\nWho?,Anna left.,Anna,\nWhen?,Anna left.,,\n"
    )
    for name in ("a.jsonl", "a.csv"):
        examples = read_questions({"train": tmp_path / name}).examples("train")
        assert [example.label for example in examples] == [None, "impossible"]


@pytest.mark.real
def test_the_text_false_in_is_impossible_keeps_the_answers(shared):
    folder = shared / "strangers"
    expected = json.loads((folder / "expected.json").read_text())["29_string_truth.jsonl"]
    path = folder / "29_string_truth.jsonl"
    examples = [*read_questions({"train": path}).examples("train")]
    assert len(examples) == 6
    for example in examples:
        assert [[*answer] for answer in example.answers] == expected["answers"]


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ("Anna,", 'row 2: the answer "Anna" occurs 2 times in the passage: give its position'),
        ("Bonn,", 'row 2: the answer "Bonn" occurs 0 times'),
        ("Anna,first", "row 2: 'answer_start' should be the position .* but is \"first\""),
        ("Anna,1.5", "row 2: 'answer_start' should be the position .* but is \"1.5\""),
    ],
)
def test_an_answer_without_a_place_is_named(tmp_path, answer, message):
    path = tmp_path / "a.csv"
    path.write_text(f"question,context,answer,answer_start\nWho?,Anna left Anna.,{answer}\n")
    with pytest.raises(ValueError, match=message):
        list(read_questions({"train": path}).examples("train"))


def test_to_score_predictions_the_text_of_an_answer_is_enough(tmp_path):
    path = tmp_path / "a.csv"
    rows = ["Who?,Anna left Anna.,Anna,", "Where?,To Bonn!,Rome,", "When?,At 5.,At 5,first"]
    path.write_text("\n".join(["question,context,answer,answer_start", *rows]))
    examples = [*read_questions({"test": path}, "report").examples("test")]
    assert [example.problem for example in examples] == ["", "", ""]
    assert [[text for text, _ in example.answers] for example in examples] == [
        ["Anna"],
        ["Rome"],
        ["At 5"],
    ]


@pytest.mark.parametrize(
    "rows",
    [
        ROWS,
        iter(ROWS),
        pandas.DataFrame(ROWS),
        {"text": [row["text"] for row in ROWS], "label": [row["label"] for row in ROWS]},
    ],
    ids=["list", "iterator", "frame", "columns"],
)
def test_rows_in_memory_have_the_same_examples(tmp_path, rows):
    assert found(as_file(rows, tmp_path / "rows.jsonl")) == EXPECTED


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ({"text": ["a"], "label": []}, "different lengths"),
        (["a", "b"], "'a' is no row"),
        ([], "There are no rows"),
        ({}, "There are no rows"),
        (pandas.DataFrame([["a", "x", "y"]], columns=["text", "label", "label"]), "named 'label'"),
    ],
)
def test_other_rows_in_memory_are_refused(tmp_path, rows, message):
    with pytest.raises(ValueError, match=message):
        as_file(rows, tmp_path / "rows.jsonl")


class Features(dict):
    def to_dict(self):
        return dict(self)


class Dataset(list):
    """A dataset with the interface of that of `datasets`: rows and the types of their columns."""

    def __init__(self, rows, **features):
        super().__init__(rows)
        self.features = Features(features)


CLASSES = {"_type": "ClassLabel", "names": ["bad", "good"]}
TAGS = {"_type": "ClassLabel", "names": ["O", "B-PER", "I-PER"]}


def test_ids_of_a_dataset_in_memory_become_the_names_of_their_classes(tmp_path):
    rows = Dataset([{"text": "a", "label": 0}, {"text": "b", "label": 1}], label=CLASSES)
    path = as_file(rows, tmp_path / "a.jsonl")
    assert [e.label for e in read_tables("classify", train=path).examples("train")] == [
        "bad",
        "good",
    ]
    lists = {"_type": "List", "feature": TAGS}
    rows = Dataset([{"tokens": ["Anna", "left", "it"], "ner_tags": [1, 0, -1]}], ner_tags=lists)
    path = as_file(rows, tmp_path / "b.jsonl")
    (example,) = read_tables("tag", train=path).examples("train")
    assert example.label == ("B-PER", "O", "")
    rows = Dataset([{"text": "a", "label": -1}], label=CLASSES)
    with pytest.raises(ValueError, match="row 1 has no label"):
        list(read_tables("classify", train=as_file(rows, tmp_path / "c.jsonl")).examples("train"))
    rows = Dataset([{"text": "a", "label": 0}, {"text": "b", "label": 5}], label=CLASSES)
    with (
        pytest.raises(ValueError, match="^train: row 2: the class id 5 has no name"),
        rows_as_files(train=rows),
    ):
        pass


def test_of_a_dataset_dict_each_argument_takes_its_own_split():
    parts = {
        name: Dataset([{"text": name, "label": 1}], label=CLASSES)
        for name in ("train", "validation", "test")
    }
    with rows_as_files(train=parts, dev=parts, test=parts) as files:
        texts = [json.loads(Path(files[name]).read_text())["text"] for name in files]
    assert texts == ["train", "validation", "test"]
    with (
        pytest.raises(ValueError, match="dev: The DatasetDict holds the splits train, but none"),
        rows_as_files(dev={"train": parts["train"]}),
    ):
        pass


@pytest.fixture(scope="module")
def datasets():
    found = pytest.importorskip("datasets")
    found.disable_progress_bars()
    return found


@pytest.fixture(scope="module")
def features(datasets):
    classes, value = datasets.ClassLabel, datasets.Value
    return datasets.Features(
        {
            "tokens": [value("string")],
            "ner_tags": [classes(names=["O", "B-PER", "I-PER"])],
            "text": value("string"),
            "label": classes(names=["bad", "good"]),
            "score": value("float32"),
            "seen": value("bool"),
            "day": value("date32"),
            "raw": value("binary"),
        }
    )


@pytest.fixture(scope="module")
def table(datasets, features):
    rows = [
        (["Anna", "left"], [1, 0], "a b", 1, 0.5, True, datetime.date(2026, 1, 2), b"x"),
        (["Bo", "Roe"], [1, -1], "c d", 0, 1.5, False, None, b"y"),
        (["It"], [0], "e f", -1, None, None, None, None),
    ]
    columns = dict(zip(features, map(list, zip(*rows, strict=True)), strict=True))
    return datasets.Dataset.from_dict(columns, features=features)


def rows_in(path):
    return [row for file in data_files(path, tags=True) for _, row in Table(file).rows()]


def test_datasets_in_memory_and_on_disk_equal_the_same_data_in_parquet(datasets, table, tmp_path):
    table.to_parquet(tmp_path / "a.parquet")
    expected = rows_in(tmp_path / "a.parquet")
    assert [row["label"] for row in expected] == ["good", "bad", None]
    assert expected[1]["ner_tags"] == ["B-PER", None]
    forms = {
        "plain": table,
        "streamed": table.to_iterable_dataset(),
        "transformed": table.with_transform(lambda rows: rows),
        "numpy": table.with_format("numpy"),
        "sorted": table.select([2, 1, 0]).select([2, 1, 0]),
    }
    for name, form in forms.items():
        assert rows_in(Path(as_file(form, tmp_path / f"{name}.jsonl"))) == expected, name
    table.save_to_disk(tmp_path / "saved", num_shards=2)
    assert rows_in(tmp_path / "saved") == expected
    shard = tmp_path / "saved" / "data-00001-of-00002.arrow"
    assert rows_in(shard) == expected[2:]
    source = read_tables("tag", train=tmp_path / "saved")
    assert [e.label for e in source.examples("train")] == [("B-PER", "O"), ("B-PER", ""), ("O",)]
    assert "not read" not in source.note
    # Files that an earlier dataset in the folder left are not rows of this one.
    table.select([0]).save_to_disk(tmp_path / "saved")
    assert rows_in(tmp_path / "saved") == expected[:1]
    assert "00001-of-00002.arrow" in read_tables("tag", train=tmp_path / "saved").note
    info = tmp_path / "saved" / "dataset_info.json"
    info.write_text(info.read_text().replace('"good"', '"fine"'))
    assert rows_in(tmp_path / "saved")[0]["label"] == "fine"


def test_of_a_saved_dataset_dict_each_flag_takes_its_own_split(datasets, table, tmp_path, capsys):
    splits = {"train": table, "validation": table.select([1]), "test": table.select([2])}
    datasets.DatasetDict(splits).save_to_disk(tmp_path / "d")
    folder = str(tmp_path / "d")
    options = TagOptions(
        train=folder, dev=folder, test=folder, text_column="tokens", label_column="ner_tags"
    )
    source = make_task("tag", options).data
    found = [[e.words for e in source.examples(split)] for split in ("train", "dev", "test")]
    assert found == [[("Anna", "left"), ("Bo", "Roe"), ("It",)], [("Bo", "Roe")], [("It",)]]
    printed = capsys.readouterr().out
    assert "train is read, one of the splits train, validation, test" in printed
    assert "both --train and --dev" not in printed
    task = TagTask(name="tag", labels=("O", "B-PER", "I-PER"))
    assert [e.words for e in from_file(task, folder, Columns())[1]] == [("It",)]
    datasets.DatasetDict({"a": table}).save_to_disk(tmp_path / "e")
    with pytest.raises(ValueError, match="e holds the splits a, but none named train"):
        make_task("tag", TagOptions(train=str(tmp_path / "e")))
    with pytest.raises(ValueError, match="splits or files of Arrow"):
        data_files(tmp_path / "d")


def test_the_training_split_of_a_saved_dataset_dict_is_compared(tmp_path, monkeypatch):
    folder, run = tmp_path / "d", tmp_path / "run"
    (folder / "train").mkdir(parents=True)
    run.mkdir()
    (folder / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    (run / "run.json").write_text("{}")
    (run / "scores.json").write_text("{}")
    monkeypatch.setattr(evaluation, "read_run", lambda _: {"config": {"train": str(folder)}})
    assert evaluation._training_of(run / "model") == (folder / "train", {})


def test_arrow_files_in_both_formats_are_read_and_damaged_ones_refused(tmp_path):
    table = pyarrow.table({"text": ["a", "b"], "label": ["x", "y"]})
    path = tmp_path / "a.arrow"
    expected = [{"text": "a", "label": "x"}, {"text": "b", "label": "y"}]
    for writer in (pyarrow.ipc.new_file, pyarrow.ipc.new_stream):
        with writer(str(path), table.schema) as file:
            file.write_table(table, max_chunksize=1)
        assert [row for _, row in Table(path).rows()] == expected
    content = path.read_bytes()
    for cut in (10, len(content) // 2):
        path.write_bytes(content[:cut])
        with pytest.raises(ValueError, match="a.arrow is not a complete"):
            list(Table(path).rows())
    path.write_bytes(content)
    with pytest.raises(ValueError, match="splits or files of Arrow, which are not read together"):
        data_files(tmp_path)


def test_errors_name_the_argument_instead_of_a_temporary_file(tmp_path):
    rows = [{"text": "abc", "label": "x"}, {"text": " ", "label": "y"}]
    with (
        pytest.raises(ValueError, match=r"^train, row 2: the text in 'text' is empty"),
        rows_as_files(train=rows, dev=None, test=str(tmp_path / "a.csv")) as files,
    ):
        assert files["test"] == str(tmp_path / "a.csv") and set(files) == {"train", "test"}
        list(read_tables("classify", train=files["train"]).examples("train"))
    assert not Path(files["train"]).exists()


def test_files_of_a_folder_that_are_not_read_are_named(tmp_path):
    (tmp_path / "parts" / "sub").mkdir(parents=True)
    for name in ("a.csv", "part-00004", "sub/b.csv", ".hidden"):
        (tmp_path / "parts" / name).write_text("text,label\na,yes\nb,no\n")
    source = read_tables("classify", train=tmp_path / "parts")
    assert "not read in" in source.note and "part-00004, sub/." in source.note
    assert "hidden" not in source.note and len(list(source.examples("train"))) == 2
    row = {"question": "Who?", "context": "Anna left.", "answers": {"text": [], "answer_start": []}}
    (tmp_path / "parts" / "q.jsonl").write_text(json.dumps(row))
    assert "a.csv" not in read_questions({"train": tmp_path / "parts" / "q.jsonl"}).note
    (tmp_path / "parts" / "a.csv").unlink()
    assert "part-00004, sub/" in read_questions({"train": tmp_path / "parts"}).note
