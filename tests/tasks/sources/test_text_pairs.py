"""Pairs, triplets and scored pairs are found in the user's files, whatever their columns."""

import dataclasses
import json

import pytest

from bertjax.tasks import make_task
from bertjax.tasks.embedding import ContrastiveTask, DistilledTask, EmbedOptions, SimilarityTask
from bertjax.tasks.late_interaction import LateInteractionOptions
from bertjax.tasks.sources.columns import Columns
from bertjax.tasks.sparse import SparseOptions
from tests.tables import read_tables

WORDS = "alpha beta gamma delta epsilon zeta eta theta iota kappa".split()
TEXTS = [f"the {a} of {b}" for a in WORDS for b in WORDS[:3]]


def write(path, header, rows):
    if path.suffix == ".csv":
        lines = [",".join(header), *(",".join(map(str, row)) for row in rows)]
    else:
        lines = [json.dumps(dict(zip(header, row, strict=True))) for row in rows]
    path.write_text("\n".join(lines) + "\n")
    return str(path)


@pytest.mark.parametrize(
    ("header", "columns"),
    [
        ("anchor,positive", ("anchor", "positive", None, ())),
        ("Query,id,positive,score", ("Query", "positive", "score", ())),
        ("sentence1,sentence2,label", ("sentence1", "sentence2", "label", ())),
        ("question,answer,topic", ("question", "answer", None, ())),
        ("erste,zweite", ("erste", "zweite", None, ())),
        ("anchor,positive,negative", ("anchor", "positive", None, ("negative",))),
        (
            "query,positive,score,hard_negative_10,hard_negative_2",
            ("query", "positive", None, ("hard_negative_2", "hard_negative_10")),
        ),
    ],
)
def test_columns_are_found_by_their_names_or_as_the_only_texts(header, columns, tmp_path, capsys):
    header = header.split(",")
    values = {"id": "7", "score": "0.5", "label": "3", "topic": "x"}
    rows = [[values.get(name, f"{t} {i}") for i, name in enumerate(header)] for t in TEXTS[:4]]
    source = read_tables("embed", train=write(tmp_path / "t.csv", header, rows))
    found = source.columns
    assert (found.text, found.pair, found.label, found.negatives) == columns
    assert all(repr(name) in source.note for name in found.named())
    assert source.has_scores("train") == (columns[2] is not None)
    example = next(source.examples("train"))
    assert len(example.choices) == len(columns[3]) and example.text.startswith("the alpha of alpha")


@pytest.mark.parametrize(
    ("header", "named", "message"),
    [
        (
            "a,b,c",
            Columns(),
            "which column is the first text .* and the second text .* There are: a",
        ),
        ("a,b,c", Columns(text="b"), "which column is the second text .* Give --pair_column"),
        ("text,other", Columns(text="x"), "has no column 'x'"),
        (
            "a,b,c",
            Columns(label="c", negatives=("b",)),
            "--label_column c and --negative_columns b",
        ),
    ],
)
def test_columns_that_cannot_be_found_are_asked_for(header, named, message, tmp_path):
    header = header.split(",")
    rows = [[f"{text} {name}" for name in header] for text in TEXTS[:4]]
    with pytest.raises(ValueError, match=message):
        read_tables("embed", train=write(tmp_path / "t.csv", header, rows), columns=named)


def test_what_is_no_table_of_pairs_is_refused(tmp_path):
    path = tmp_path / "t.txt"
    path.write_text("a\nb\n")
    with pytest.raises(ValueError, match="one text per line, but the examples are pairs"):
        read_tables("embed", train=str(path))
    with pytest.raises(ValueError, match="give --train"):
        make_task("embed", EmbedOptions(dev=str(path)))
    data = write(tmp_path / "t.csv", ["the cat sat there on the mat", "the dog sat"], [TEXTS[:2]])
    with pytest.raises(ValueError, match="is an example .* not the names of the columns"):
        read_tables("embed", train=data)


def test_scored_pairs_are_a_regression_of_cosines(tmp_path, tokenizer, capsys):
    rows = [(text, text[::-1], i / 2) for i, text in enumerate(TEXTS)]
    path = write(tmp_path / "t.csv", ["sentence1", "sentence2", "score"], rows)
    task = make_task("embed", EmbedOptions(train=path, dev_fraction=0.2))
    assert isinstance(task, SimilarityTask) and task.best_metric == "spearman"
    assert "scores: 0 to 14.5; the model learns cosines of 0 for 0 and of 1 for 14.5" in (
        capsys.readouterr().out
    )
    assert len(list(task.source.examples("dev"))) == 6
    (feature,) = task.features(next(task.source.examples("train")), tokenizer, 16)
    assert len(feature.lengths) == 2 and 0 <= feature.labels[0] <= 1
    with pytest.raises(ValueError, match="temperature=0.1 has no effect on --loss similarity"):
        make_task("embed", EmbedOptions(train=path, temperature=0.1))


def pair_file(tmp_path, *columns, name="t.jsonl"):
    values = {"score": 1.5, "negatives": ["a text", "b"], "scores": [2, 1, 0.5]}
    rows = [[values.get(column, f"{text} {column}") for column in columns] for text in TEXTS]
    return write(tmp_path / name, columns, [[*row[:-1], row[-1]] for row in rows])


PAIR = ("query", "positive")
MINED = (*PAIR, "negatives", "scores")


@pytest.mark.parametrize(
    ("columns", "loss", "kind"),
    [
        (PAIR, None, ContrastiveTask),
        (MINED, None, ContrastiveTask),
        (PAIR, "symmetric", ContrastiveTask),
        (MINED, "margin", DistilledTask),
        (MINED, "kl", DistilledTask),
    ],
)
def test_a_loss_makes_the_task(tmp_path, tokenizer, columns, loss, kind):
    options = EmbedOptions(train=pair_file(tmp_path, *columns), dev_fraction=0.2, loss=loss)
    task = make_task("embed", options)
    assert type(task) is kind and task.options == options and task.best_metric == "mrr"
    (feature,) = task.features(next(task.source.examples("train")), tokenizer, 16)
    if kind is DistilledTask:
        assert task.num_texts == 4 and feature.labels.tolist() == [2, 1, 0.5]


@pytest.mark.parametrize(
    ("columns", "loss", "options", "message"),
    [
        (PAIR, "cosent", {}, "--loss cosent: .*t.jsonl has no scores: similarity and"),
        ((*PAIR, "score"), "kl", {}, "--loss kl: .*t.jsonl has scores of pairs .'score'."),
        (PAIR, "margin", {}, "--loss margin: .*has no scores of a teacher: .*score_col"),
        (PAIR, "binary", {}, "loss='binary' is not known. .*contrastive, symmetric, simcse"),
        (PAIR, "simcse", {}, "'query' and 'positive' both hold texts: name one with --text_column"),
        (("sentence1", "sentence2"), "simcse", {}, "takes one text per row: leave out sent"),
        (MINED, "margin", {"temperature": 0.1}, "temperature=0.1 has no effect on --loss margin"),
        (
            *(MINED, "kl", {"false_negative_margin": 0.1}),
            "false_negative_margin=0.1 has no effect on --loss kl",
        ),
    ],
)
def test_losses_that_do_not_fit_are_refused(tmp_path, columns, loss, options, message):
    path = pair_file(tmp_path, *columns)
    with pytest.raises(ValueError, match=message):
        make_task("embed", EmbedOptions(train=path, loss=loss, **options))


@pytest.mark.parametrize(
    ("task", "options"), [("sparse", SparseOptions), ("colbert", LateInteractionOptions)]
)
@pytest.mark.parametrize("loss", ["margin", "kl"])
def test_distillation_without_a_teachers_scores_is_refused(
    tmp_path, tokenizer, task, options, loss
):
    with pytest.raises(ValueError, match=f"--loss {loss}: .*no scores of a teacher: .*score_col"):
        make_task(task, options(train=pair_file(tmp_path, *PAIR), loss=loss))
    mined = make_task(task, options(train=pair_file(tmp_path, *MINED), loss=loss))
    (feature,) = mined.features(next(mined.source.examples("train")), tokenizer, 16)
    assert mined.label_kind == "distilled" and feature.labels.tolist() == [2, 1, 0.5]


def test_a_weight_of_queries_that_are_not_trained_is_refused():
    with pytest.raises(ValueError, match="query_regularizer_weight=0.1"):
        SparseOptions(queries="frozen", query_regularizer_weight=0.1)


@pytest.mark.parametrize("table", [False, True])
def test_single_texts_are_both_texts_of_a_pair(tmp_path, tokenizer, table):
    path = tmp_path / "t.txt"
    path.write_text("".join(f"{text}\n" for text in TEXTS))
    if table:
        path = write(tmp_path / "t.csv", ["id", "text"], enumerate(TEXTS))
    dev = pair_file(tmp_path, *PAIR, name="dev.jsonl")
    options = EmbedOptions(train=str(path), loss="simcse")
    task = make_task("embed", options)
    assert task.source.splits == ("train",) and task.options.loss == "simcse"
    examples = list(task.source.examples("train"))
    assert [(x.text, x.pair) for x in examples] == [(text, text) for text in TEXTS]
    assert len(set(task.features(examples[0], tokenizer, 16)[0].labels.tolist())) == 1
    task = make_task("embed", dataclasses.replace(options, dev=dev))
    first = next(task.source.examples("dev"))
    assert first.pair == f"{TEXTS[0]} positive" and task.best_metric == "mrr"


def test_no_anchor_is_both_trained_on_and_evaluated(tmp_path):
    rows = [(TEXTS[i % 10], f"{text} {i}") for i, text in enumerate(TEXTS)]
    path = write(tmp_path / "t.jsonl", ["anchor", "positive"], rows)
    task = make_task("embed", EmbedOptions(train=path, dev_fraction=0.2))
    anchors = {split: {x.text for x in task.source.examples(split)} for split in ("train", "dev")}
    assert anchors["dev"] and not anchors["dev"] & anchors["train"]
    assert isinstance(task, ContrastiveTask) and task.best_metric == "mrr"


def test_a_dev_file_may_be_of_another_kind_than_the_train_file(tmp_path):
    train = write(tmp_path / "t.csv", ["a", "b"], list(zip(TEXTS, TEXTS[1:], strict=False)))
    dev = [(text, text, 0.5) for text in TEXTS]
    dev = write(tmp_path / "d.csv", ["sentence1", "sentence2", "score"], dev)
    options = EmbedOptions(train=train, dev=dev, text_column="a", pair_column="b")
    task = make_task("embed", options)
    assert task.best_metric == "spearman" and "spearman" in task.metric_names()
    assert next(task.source.examples("dev")).label == 0.5


def test_a_score_may_be_named_that_the_train_file_lacks(tmp_path):
    train = write(tmp_path / "t.csv", ["a", "b"], list(zip(TEXTS, TEXTS[1:], strict=False)))
    scored = [(text, text, i) for i, text in enumerate(TEXTS)]
    dev = write(tmp_path / "d.csv", ["sentence1", "sentence2", "gs"], scored)
    task = make_task("embed", EmbedOptions(train=train, dev=dev, label_column="gs"))
    assert task.best_metric == "spearman"
    assert next(task.source.examples("dev")).label == 0
    with pytest.raises(ValueError, match="no column 'gs'"):
        make_task("embed", EmbedOptions(train=train, label_column="gs"))


def test_scores_cannot_be_evaluated_without_scores(tmp_path):
    scored = [(text, text, i) for i, text in enumerate(TEXTS)]
    train = write(tmp_path / "t.csv", ["sentence1", "sentence2", "score"], scored)
    dev = write(tmp_path / "d.csv", ["a", "b"], list(zip(TEXTS, TEXTS[1:], strict=False)))
    with pytest.raises(ValueError, match="d.csv has no scores, but .*t.csv has: .* --label_column"):
        make_task("embed", EmbedOptions(train=train, dev=dev))


def test_every_row_has_as_many_hard_negatives(tmp_path, tokenizer):
    rows = [
        (a, b, ["no", "never"][: 2 - (i == 2)])
        for i, (a, b) in enumerate(zip(TEXTS, TEXTS[1:], strict=False))
    ]
    path = write(tmp_path / "t.jsonl", ["anchor", "positive", "negatives"], rows)
    task = make_task("embed", EmbedOptions(train=path))
    examples = list(task.source.examples("train"))
    (feature,) = task.features(examples[0], tokenizer, 16)
    assert len(feature.lengths) == len(feature.labels) == 4
    with pytest.raises(ValueError, match="row 3 has 1 hard negatives, but the first row has 2"):
        task.features(examples[2], tokenizer, 16)


def test_bad_rows_are_named_or_left_out(tmp_path):
    rows = [(a, "" if i == 1 else "x", i) for i, a in enumerate(TEXTS)]
    path = write(tmp_path / "t.csv", ["sentence1", "sentence2", "score"], rows)
    with pytest.raises(ValueError, match="row 3: the text in 'sentence2' is empty"):
        list(read_tables("embed", train=path).examples("train"))
    source = read_tables("embed", train=path, bad_rows="skip")
    assert len(list(source.examples("train"))) == len(TEXTS) - 1
    ((split, problem),) = source.all_bad_rows()
    assert split == "train" and "row 3" in problem


def test_scores_of_a_teacher_belong_to_the_texts_of_their_row(tmp_path):
    """They are read from what `mine` writes, or from one column per text."""
    rows = [["q", f"{text} a", [f"{text} b", "c d"], [0.5, -1, 2.5]] for text in TEXTS]
    header = ["query", "positive", "negatives", "scores"]
    source = read_tables("embed", train=write(tmp_path / "t.jsonl", header, rows))
    assert {example.scores for example in source.examples("train")} == {(0.5, -1.0, 2.5)}
    assert "scores of a teacher from 'scores'" in source.note
    table = write(tmp_path / "t.csv", "query,positive,negative,s1,s2".split(","), [
        ["how many", text, f"not {text}", 3, "4.5"] for text in TEXTS
    ])  # fmt: skip
    source = read_tables("embed", train=table, columns=Columns(scores=("s1", "s2")))
    assert {example.scores for example in source.examples("train")} == {(3.0, 4.5)}
    for scores, message in (
        ([1, 2], "row 2 has 2 scores in 'scores', but 3 texts to compare"),
        ([1, float("nan"), 2], "row 2: the score NaN in 'scores' is not a finite number"),
        ([1, 2, float("inf")], "row 2: the score Infinity in 'scores' is not a finite number"),
        (None, "row 2 has 1 scores in 'scores', but 3 texts"),
    ):
        rows[1][3] = scores
        with pytest.raises(ValueError, match=message):
            list(
                read_tables("embed", train=write(tmp_path / "t.jsonl", header, rows)).examples(
                    "train"
                )
            )
