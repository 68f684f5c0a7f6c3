"""Queries and passages are found in the user's files, and what has no meaning is refused."""

import json

import pytest

from bertjax.tasks import make_task
from bertjax.tasks.reranking import RerankOptions
from bertjax.tasks.sources.columns import Columns
from tests.tables import read_tables

QUERIES = [f"who is {name}" for name in "anna bert carla dora emil fritz".split()]
PAIRS = [
    {"query": query, "passage": f"{query} {answer}", "label": label}
    for query in QUERIES
    for answer, label in (("yes", 1), ("no", 0), ("never", 0))
]
LISTS = [
    {"query": query, "positive": "yes it is", "negatives": ["no", "never"], "scores": [2, 0, -1]}
    for query in QUERIES
]


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def made(tmp_path, rows, **options):
    dev = options.pop("dev", None)
    dev = None if dev is None else write(tmp_path / "dev.jsonl", dev)
    options = {"dev_fraction": None if dev else 0.4, **options}
    return make_task(
        "rerank", RerankOptions(train=write(tmp_path / "train.jsonl", rows), dev=dev, **options)
    )


@pytest.mark.parametrize(
    ("row", "columns"),
    [
        (PAIRS[0], Columns(text="query", pair="passage", label="label")),
        (LISTS[0], Columns(
            text="query", pair="positive", negatives=("negatives",), scores=("scores",)
        )),
        (
            {"id": 3, "question": "a", "context": "b", "relevance": 2},
            Columns(text="question", pair="context", label="relevance", id="id"),
        ),
    ],
)  # fmt: skip
def test_columns_are_found_by_their_names(row, columns, tmp_path):
    source = read_tables("rerank", train=write(tmp_path / "t.jsonl", [row]))
    assert source.columns == columns
    example = next(source.examples("train"))
    assert example.label == (2.0 if "relevance" in row else 1.0)


def test_candidates_are_read_for_predictions_alone(tmp_path):
    path = write(tmp_path / "t.jsonl", [{"query": "a", "candidates": ["b", "c"]}])
    (example,) = read_tables("rerank", test=path).examples("test")
    assert (example.text, example.pair, example.choices) == ("a", None, ("b", "c"))
    with pytest.raises(ValueError, match="which column is the label and the passage"):
        read_tables("rerank", train=path)


def test_rows_of_a_query_are_held_out_together_and_splits_may_differ(tmp_path):
    task = made(tmp_path, PAIRS)
    queries = [{example.text for example in task.data.examples(x)} for x in ("train", "dev")]
    assert not queries[0] & queries[1] and len(queries[0] | queries[1]) == len(QUERIES)
    assert (task.options.loss, task.num_texts) == ("binary", 1)
    task = made(tmp_path, LISTS, dev=PAIRS)
    assert (task.options.loss, task.num_texts) == ("listwise", 3)
    assert next(task.data.examples("dev")).label == 1.0
    task = made(tmp_path, LISTS, loss="kl", temperature=3.0)
    assert (task.options.loss, task.options.temperature) == ("kl", 3.0)


UNKNOWN = {"query": "who", "passage": "nobody", "label": 0}


@pytest.mark.parametrize(
    ("rows", "options", "message"),
    [
        ([*PAIRS, UNKNOWN], {}, 'train.jsonl, row 19: the query "who" has no positive: give one'),
        (LISTS, {"dev": [*PAIRS, UNKNOWN]}, 'dev.jsonl, row 19: the query "who" has no positive'),
        ([LISTS[0] | {"positive": ""}, *LISTS], {}, "row 1: the text in 'positive' is empty"),
        ([LISTS[0] | {"scores": [1, 2]}, *LISTS], {}, "row 1 has 2 scores in 'scores', but 3"),
        ([LISTS[0] | {"scores": [1, float("nan"), 2]}, *LISTS], {}, "row 1: the score NaN"),
        (PAIRS, {"loss": "listwise"}, r"--loss listwise: .* lacks negatives \(--neg"),
        (
            [{x: row[x] for x in ("query", "positive", "negatives")} for row in LISTS],
            {"loss": "margin"},
            r"--loss margin: .* lacks a teacher's scores \(--score_columns\)",
        ),
        (
            LISTS,
            {"score_columns": ("scores",)},
            r"score_columns=\('scores',\) has no effect",
        ),
        (LISTS, {"temperature": 2.0}, "temperature=2.0 has no effect on"),
    ],
)
def test_what_has_no_meaning_is_refused_in_a_line(rows, options, message, tmp_path):
    with pytest.raises(ValueError, match=message) as error:
        made(tmp_path, rows, **options)
    assert "\n" not in str(error.value)


def test_queries_without_a_positive_are_left_out_with_other_bad_rows(tmp_path):
    task = made(tmp_path, [*PAIRS, UNKNOWN], dev=PAIRS, skip_bad_rows=True)
    assert len([*task.data.examples("train")]) == len(PAIRS)
    assert "has no positive" in task.data.all_bad_rows()[0][1]
