"""Columns that are not read are harmless, obeyed, or stop the command with the remedy."""

import json
from pathlib import Path

import pandas
import pytest

from bertjax.base.files import MAX_MESSAGE
from bertjax.tasks import make_task
from bertjax.tasks.classification import ClassifyOptions
from bertjax.tasks.embedding import EmbedOptions
from bertjax.tasks.question_answering import QaOptions
from bertjax.tasks.sources import unused
from bertjax.tasks.sources.columns import Columns
from bertjax.tasks.tagging import TagOptions
from tests.lines import json_lines
from tests.tables import read_tables

TEXTS = [f"the {word} is here today" for word in "cat dog cow hen owl fox bee ant elk yak".split()]
LABELS = {
    "classify": {"label": ["good", "bad"]},
    "regress": {"score": [0.5, 2.25]},
    "choice": {"choices": [["stay", "go"], ["eat", "run"]], "label": [0, 1]},
    "embed": {},
    "rerank": {"label": [1, 0]},
}
TEXT = {"classify": "text", "regress": "text", "choice": "question", "embed": "anchor"}


def table(path, kind, **columns):
    """Writes ten rows of a task with further columns, whose values are repeated."""
    names = {TEXT.get(kind, "query"): TEXTS}
    if kind in ("embed", "rerank"):
        names["positive" if kind == "embed" else "passage"] = [f"{x} again" for x in TEXTS]
    names |= LABELS[kind] | columns
    rows = [{name: x[i % len(x)] for name, x in names.items()} for i in range(len(TEXTS))]
    if kind == "rerank":
        rows = [row | {"query": TEXTS[i // 2]} for i, row in enumerate(rows)]
    if path.suffix == ".csv":
        pandas.DataFrame(rows).to_csv(path, index=False)
    elif path.suffix == ".parquet":
        pandas.DataFrame(rows).to_parquet(path)
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def read(path, kind, **columns):
    return list(read_tables(kind, train=path, columns=Columns(**columns)).examples("train"))


HARMLESS = [
    {"id": range(10), "source": ["web", "book"], "language": ["en", "de"]},
    {"user_name": ["Anna", "Bo"], "created_at": ["2026-01-31", "2026-02-01"], "likes": [3, 4]},
    {"annotatorId": [7, 8], "num_tokens": [4, 5], "Unnamed: 0": range(10), "split": ["train"]},
    {"url": [f"a.org/{i}" for i in range(10)], "status": ["accepted"], "meta": [{"a": 1}]},
]


@pytest.mark.parametrize("kind", LABELS)
@pytest.mark.parametrize("columns", HARMLESS, ids=lambda x: next(iter(x)))
def test_columns_that_describe_a_row_do_not_stop_a_task(kind, columns, tmp_path):
    assert len(read(table(tmp_path / "t.jsonl", kind, **columns), kind)) == len(TEXTS)


SELECTING = [
    {"split": ["train", "test"]},
    {"set": ["training", "validation"]},
    {"fold": [0, 1, 2]},
    {"is_test": [False, True]},
    {"status": ["submitted", "discarded"]},
    {"check": ["pending", "approved"]},
    {"valid": [1, 0]},
    {"sample_weight": [0.5, 1.0]},
    {"confidence": [0.9, 0.3, 1]},
]


@pytest.mark.parametrize("kind", LABELS)
@pytest.mark.parametrize("column", SELECTING, ids=lambda x: next(iter(x)))
def test_columns_that_may_say_which_rows_count_stop_a_task(kind, column, tmp_path):
    (name,) = column
    path = table(tmp_path / "t.jsonl", kind, **column)
    with pytest.raises(ValueError, match=rf"'{name}' \(.*--ignore_columns {name} if"):
        read(path, kind)
    assert len(read(path, kind, ignored=(name,))) == len(TEXTS)
    # A prediction is made for each row, whatever they are for.
    assert len(list(read_tables(kind, test=path).examples("test"))) == len(TEXTS)


def test_a_value_after_many_rows_stops_a_task(tmp_path):
    path = tmp_path / "t.jsonl"
    rows = [{"text": f"text number {i}", "label": "ab"[i % 2]} for i in range(500)]
    rows[400]["split"] = "test"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(ValueError, match=r"'split' .* may say which rows to use"):
        make_task("classify", ClassifyOptions(train=str(path)))


@pytest.mark.parametrize("suffix", ["csv", "jsonl", "parquet"])
@pytest.mark.parametrize("values", [[1, 0], [True, False], [0.0, 1.0], ["true", "false"]])
@pytest.mark.parametrize("pair", [False, True])
def test_labels_with_a_column_each_are_guessed_unless_one_is_named(suffix, values, pair, tmp_path):
    text = {"sentence1": TEXTS, "sentence2": TEXTS[::-1]} if pair else {"comment_text": TEXTS}
    columns = {"toxic": values, "threat": values[::-1], "insult": [*values, values[0]]}
    frame = pandas.DataFrame(
        {name: [x[i % len(x)] for i in range(10)] for name, x in (text | columns).items()}
    )
    path = tmp_path / f"t.{suffix}"
    if suffix == "csv":
        frame.to_csv(path)
    elif suffix == "parquet":
        frame.to_parquet(path)
    else:
        frame.to_json(path, orient="records", lines=True)
    labels = [set(example.label) for example in read(path, "classify")]
    assert labels[:3] == [
        {name for name, x in columns.items() if x[i % len(x)] in (1, "true")} for i in range(3)
    ]
    assert len(read(path, "classify", label="insult")) == 10
    assert len(read(path, "classify", ignored=("toxic", "threat"))) == 10


@pytest.mark.parametrize(
    ("kind", "columns", "named"),
    [
        ("classify", {"mood": ["low", "high"], "weather": ["wet", "dry"]}, "mood"),
        ("classify", {"sentiment": ["low", "high"], "topic": ["a", "b"]}, "topic"),
        ("classify", {"label": ["low", "high"], "gold_label": ["a", "b"]}, "gold_label"),
        ("regress", {"cohesion": [1.5, 2], "syntax": [2.5, 3]}, "syntax"),
        ("regress", {"score": [1.5, 2], "rating": [2.5, 3]}, "rating"),
        ("classify", {"is_spam": ["yes", "no"], "label": ["no", "yes"]}, "label"),
        ("classify", {"price": ["0", "1"], "place": ["1", "0"], "food": ["1", "0"]}, "food"),
        ("classify", {"joy": ["0", "1"], "fear": ["1", "0"], "unclear": ["True", "False"]}, "joy"),
    ],
)
def test_a_second_column_that_may_be_the_label_stops_a_task(kind, columns, named, tmp_path):
    values = {"text": TEXTS} | columns
    rows = [{name: x[i % len(x)] for name, x in values.items()} for i in range(10)]
    path = tmp_path / "t.csv"
    pandas.DataFrame(rows).to_csv(path, index=False)
    with pytest.raises(ValueError, match="label.*--label_column.*--ignore_columns"):
        read(path, kind)
    label = str(columns[named][0])
    assert str(read(path, kind, label=named)[0].label) == label


def test_prodigys_and_label_studios_rows_that_are_not_meant_are_left_out(tmp_path):
    answers = ["accept", "reject", "ignore", "accept", "accept"]
    path = table(tmp_path / "t.jsonl", "classify", answer=answers)
    source = read_tables("classify", train=path)
    assert [x.id for x in source.examples("train")] == ["0", "3", "4", "5", "8", "9"]
    assert source.rows["train"].counts.total() == 4 and "Prodigy" in source.change_notes()[0]
    examples = list(read_tables("classify", test=path).examples("test"))
    assert [x.label for x in examples[:3]] == ["good", None, None] and len(examples) == 10
    assert len(read(path, "classify", ignored=("answer",))) == 10
    path = table(tmp_path / "c.csv", "classify", was_cancelled=[False, True])
    assert [x.id for x in read(path, "classify")] == ["0", "2", "4", "6", "8"]
    path = table(tmp_path / "d.csv", "classify", answer=["accept", "reject", "perhaps"])
    with pytest.raises(ValueError, match="'answer' .* may say which rows to use"):
        read(path, "classify")


def test_entities_of_rejected_rows_are_not_learnt(tmp_path):
    spans = [{"start": 4, "end": 7, "label": "ANIMAL"}]
    rows = [{"text": text, "spans": spans, "answer": "accept"} for text in TEXTS]
    rows[0] |= {"spans": [{"start": 0, "end": 3, "label": "WRONG"}], "answer": "reject"}
    (tmp_path / "t.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    task = make_task("tag", TagOptions(train=str(tmp_path / "t.jsonl")))
    assert "B-WRONG" not in task.labels and "B-ANIMAL" in task.labels


def pairs(path, **columns):
    """Writes twelve pairs of texts, of which `columns` say whether they belong together."""
    texts = [*TEXTS, "rain", "snow"]
    rows = [
        {"sentence1": f"{text} at {i}", "sentence2": f"{text} near {i}"}
        | {name: values[i % len(values)] for name, values in columns.items()}
        for i, text in enumerate(texts)
    ]
    if path.suffix == ".csv":
        pandas.DataFrame(rows).to_csv(path, index=False)
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


@pytest.mark.parametrize("suffix", ["csv", "jsonl"])
@pytest.mark.parametrize("kind", ["embed", "rerank"])
@pytest.mark.parametrize(
    "name", ["is_duplicate", "relevant", "label", "gold_label", "score", "similarity", "isMatch"]
)
@pytest.mark.parametrize("values", [[1, 0], [True, False], ["true", "false"], [1.0, 0.0, 1.0]])
def test_whether_texts_belong_together_is_read_as_a_score(kind, name, values, suffix, tmp_path):
    path = pairs(tmp_path / f"t.{suffix}", **{name: values}, source=["a", "b"])
    columns = {"text": "sentence1", "pair": "sentence2"} if kind == "rerank" else {}
    if kind == "rerank" and name == "similarity":
        columns["label"] = name
    scores = [example.label for example in read(path, kind, **columns)]
    expected = [
        float(str(values[i % len(values)]).lower() in ("1", "1.0", "true")) for i in range(12)
    ]
    assert scores == expected


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"label": ["entailment", "neutral", "contradiction"]}, "'label' .* which texts belong"),
        ({"gold_label": ["entailment", "-"]}, "'gold_label' .* which texts belong"),
        ({"label": [0, 1, 2]}, "'label' .* which texts belong"),
        ({"label": [0, 1, 2, -1]}, "'label' .* which texts belong"),
        ({"label": [0, 1, -1]}, "'label' .* which texts belong"),
        ({"is_duplicate": ["yes", "no"]}, "'is_duplicate' .* which texts belong"),
        ({"quality": [1, 0]}, "'quality' .* which texts belong"),
        ({"answer_is_right": ["t", "f"]}, "'answer_is_right' .* which texts belong"),
        ({"score": [0.5, 1], "label": [1, 0]}, "'label' .* the label as well"),
        ({"label": [1]}, "all scores are 1, so .* --ignore_columns label"),
        ({"score": [0, 2.5, 5, -1]}, "some that are -1"),
    ],
)
def test_pairs_that_may_not_belong_together_are_refused(columns, message, tmp_path):
    path = pairs(tmp_path / "t.csv", **columns)
    with pytest.raises(ValueError, match=message):
        make_task("embed", EmbedOptions(train=path, dev_fraction=0.2))
    options = EmbedOptions(train=path, dev_fraction=0.2, ignore_columns=tuple(columns))
    task = make_task("embed", options)
    assert not task.scored


@pytest.mark.parametrize("named", [None, "label"])
def test_the_numbers_of_classes_of_nli_are_no_similarity(named, tmp_path):
    rows = [
        {"premise": text, "hypothesis": f"not {text}", "label": i % 3}
        for i, text in enumerate(TEXTS)
    ]
    pandas.DataFrame(rows).to_csv(tmp_path / "t.csv")
    with pytest.raises(ValueError, match="'label' .*numbers of classes, such as contradiction"):
        read(tmp_path / "t.csv", "embed", label=named)


@pytest.mark.parametrize(
    ("columns", "scored"),
    [
        ({"score": [0, 1, 2]}, True),
        ({"relatedness": [1, 2.5, 5], "entailment_judgment": ["neutral", "entailment"]}, True),
        ({"label": [0, 0.5, 1]}, True),
        ({"label": [-1, 1]}, True),
        ({"category": ["a", "b"], "page": [1, 2]}, False),
        ({"is_verified_by": [1, 0], "title_id": [4, 5]}, False),
    ],
)
def test_pairs_with_other_columns_are_read(columns, scored, tmp_path):
    labels = [example.label for example in read(pairs(tmp_path / "t.jsonl", **columns), "embed")]
    assert scored == (None not in labels)


def test_whole_numbers_are_similarities_if_the_user_says_so(tmp_path):
    path = pairs(tmp_path / "t.csv", label=[0, 1, 2])
    assert {x.label for x in read(path, "embed", label="label")} == {0.0, 1.0, 2.0}


@pytest.mark.parametrize(
    ("kind", "columns", "message"),
    [
        ("choice", {"article": TEXTS, "question": TEXTS, "options": [["a", "b"]]}, "'article'"),
        ("embed", {"question": TEXTS, "answer": TEXTS, "context": TEXTS}, "'context'"),
        ("embed", {"query": TEXTS, "title": TEXTS, "text": TEXTS}, "'query'"),
        ("classify", {"question": TEXTS, "sentence": TEXTS, "title": TEXTS}, "'title'"),
    ],
)
def test_a_further_text_is_refused(kind, columns, message, tmp_path):
    rows = [{name: x[i % len(x)] for name, x in columns.items()} for i in range(10)]
    if kind != "embed":
        rows = [row | {"label": i % 2} for i, row in enumerate(rows)]
    path = tmp_path / "t.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(ValueError, match=f"{message} .*hold texts.*--ignore_columns"):
        read(path, kind)


@pytest.mark.parametrize(
    "column",
    [
        {"foo": [f"{text} once" for text in TEXTS]},
        {"distractors": [[text, "no"] for text in TEXTS]},
        {"my_negatives": [f"not {text}" for text in TEXTS[:4]]},
        {"negatives:": [["a text"]]},
    ],
    ids=lambda x: next(iter(x)),
)
@pytest.mark.parametrize("kind", ["embed", "rerank"])
def test_texts_that_may_be_negatives_stop_a_task_of_pairs(kind, column, tmp_path):
    (name,) = column
    rows = {"query": TEXTS, "positive": [f"{text} again" for text in TEXTS]}
    if kind == "rerank":
        rows["negatives"] = [["something else"]]
    rows |= column
    path = tmp_path / "t.jsonl"
    path.write_text(
        "".join(json.dumps({k: v[i % len(v)] for k, v in rows.items()}) + "\n" for i in range(10))
    )
    with pytest.raises(ValueError, match=f"'{name}' .*--negative_columns.*--ignore_columns {name}"):
        read(path, kind)
    assert len(read(path, kind, ignored=(name,))) == len(TEXTS)


def test_lists_of_numbers_and_sources_are_no_negatives(tmp_path):
    columns = {"embedding": [[0.5, 1.5]], "source": [f"a page of the {x}" for x in TEXTS]}
    assert len(read(pairs(tmp_path / "t.jsonl", **columns), "embed")) == 12


def test_a_negative_in_one_row_alone_stops_a_task(tmp_path):
    path = Path(pairs(tmp_path / "t.jsonl"))
    lines = path.read_text().splitlines()
    lines[7] = json.dumps(json.loads(lines[7]) | {"negative": "another text than this"})
    path.write_text("\n".join(lines))
    with pytest.raises(ValueError, match="row 1, .* has no column 'negative'"):
        read(path, "embed")


@pytest.mark.parametrize("name", ["same", "sim", "polarity", "is_answer", "isPositive"])
@pytest.mark.parametrize("values", [[1, -1], ["x", "y"], [0, 1, 2]])
def test_further_names_that_may_say_what_belongs_together_stop_a_task(name, values, tmp_path):
    path = pairs(
        tmp_path / "t.jsonl", negative=[f"{text} no more" for text in TEXTS], **{name: values}
    )
    with pytest.raises(ValueError, match=f"'{name}' .* which texts belong together"):
        read(path, "embed")


QUESTIONS = [
    {"question": "Who left?", "context": f"Anna left at {i}.", "answer": "Anna"} for i in range(8)
]


@pytest.mark.parametrize(
    ("column", "message"),
    [
        ({"split": ["train", "test"]}, "'split' .* which rows to use"),
        ({"is_test": [0, 1]}, "'is_test' .* which rows to use"),
        ({"weight": [1, 0.5]}, "'weight' .* how much a row counts"),
        ({"answers": [{"text": ["left"], "answer_start": [5]}]}, "has an answer in answers and in"),
        ({"answer_text": ["left"]}, "row 1.* has an answer in answer and in answer_text: keep one"),
    ],
)
def test_columns_beside_questions_that_could_change_them_stop_the_task(tmp_path, column, message):
    (name, values) = next(iter(column.items()))
    path = tmp_path / "t.jsonl"
    rows = [row | {name: values[i % len(values)]} for i, row in enumerate(QUESTIONS)]
    path.write_text("\n".join(map(json.dumps, rows)))
    with pytest.raises(ValueError, match=message):
        make_task("qa", QaOptions(train=str(path), dev_fraction=0))
    options = QaOptions(train=str(path), dev_fraction=0, ignore_columns=(name,))
    task = make_task("qa", options)
    assert {example.answers for example in task.data.examples("train")} == {(("Anna", 0),)}


def test_harmless_columns_beside_questions_change_nothing(tmp_path):
    path = tmp_path / "t.jsonl"
    rows = [
        row | {"title": f"Anna {i}", "label": i, "split": "train", "is_impossible": False}
        for i, row in enumerate(QUESTIONS)
    ]
    path.write_text("\n".join(map(json.dumps, rows)))
    task = make_task("qa", QaOptions(train=str(path), dev_fraction=0))
    assert {example.answers for example in task.data.examples("train")} == {(("Anna", 0),)}


@pytest.mark.parametrize(
    ("columns", "name"),
    [
        (
            {"tokens": [["a", "b"]], "ner_tags": [["O", "X"], ["X", "O"]], "ner": [["O", "O"]]},
            "ner",
        ),
        ({"text": ["a b"], "entities": [[[0, 1, "X"]]], "spans": [[[2, 3, "Y"]]]}, "spans"),
        (
            {"words": [["a", "b"]], "tags": [["O", "X"], ["X", "O"]], "labels": [["O", "O"]]},
            "labels",
        ),
    ],
)
def test_a_second_list_of_tags_stops_a_task(columns, name, tmp_path):
    path = tmp_path / "t.jsonl"
    rows = [{k: v[i % len(v)] for k, v in columns.items()} for i in range(4)]
    path.write_text("\n".join(map(json.dumps, rows)))
    with pytest.raises(ValueError, match=f"'{name}' .* the label as well"):
        read(path, "tag")
    assert len(read(path, "tag", ignored=(name,))) == 4


@pytest.mark.parametrize("kind", ["embed", "rerank"])
def test_negatives_that_are_their_positive_are_counted(kind, tmp_path):
    rows = [{"query": x, "positive": f"{x} again", "negative": f"{x} never"} for x in TEXTS]
    rows[4]["negative"] = rows[4]["positive"]
    path = tmp_path / "t.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    source = read_tables(kind, train=path)
    assert len(list(source.examples("train"))) == 10
    (note,) = source.change_notes()
    assert note.startswith("train: rows with a hard negative that is their positive as well: 1")
    assert note.endswith("t.jsonl, row 5)")


def test_a_split_in_the_first_row_alone_stops_a_task(tmp_path):
    path = Path(table(tmp_path / "t.jsonl", "classify"))
    first, *lines = path.read_text().splitlines()
    path.write_text("\n".join([json.dumps(json.loads(first) | {"split": "test"}), *lines]))
    with pytest.raises(ValueError, match="'split' .* which rows to use"):
        read(path, "classify")


def test_an_id_of_sentences_is_a_text_in_doubt(tmp_path):
    rows = [{"id": text, "text2": f"{text} no more", "score": i} for i, text in enumerate(TEXTS)]
    path = tmp_path / "t.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    with pytest.raises(ValueError, match="the columns 'text2' and 'id' both hold texts"):
        read(path, "regress")


@pytest.mark.parametrize("name", ["correct", "gold", "target"])
def test_a_second_key_of_choices_stops_a_task(name, tmp_path):
    rows = [
        {"question": text, "choices": ["stay", "go"], "answer": "AB"[i % 2], name: i % 2}
        for i, text in enumerate(TEXTS)
    ]
    path = tmp_path / "t.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    with pytest.raises(ValueError, match=rf"'(answer|{name})' .* the label as well"):
        read(path, "choice")


def test_parts_of_speech_and_chunks_beside_entities_change_nothing(tmp_path):
    row = {"tokens": ["a", "b"], "pos_tags": ["DT", "NN"], "chunk_tags": ["B-NP", "I-NP"]}
    rows = [row | {"ner_tags": ["O", f"B-{'XY'[i % 2]}"]} for i in range(4)]
    path = tmp_path / "t.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    assert read(path, "tag")[0].label == ("O", "B-X")


@pytest.mark.parametrize("name", ["the data", "Spalte", "x1"])
@pytest.mark.parametrize("suffix", ["csv", "jsonl"])
def test_numbers_of_an_unknown_name_may_say_what_belongs_together(name, suffix, tmp_path):
    path = pairs(tmp_path / f"t.{suffix}", **{name: [0.2, 0.8, 1.0]})
    with pytest.raises(ValueError, match=f"'{name}' .* which texts belong together"):
        read(path, "embed")
    assert [x.label for x in read(path, "embed", label=name)][:2] == [0.2, 0.8]


@pytest.mark.parametrize("kind", ["N/A", "-", "_", "nan"])
def test_an_entity_of_no_type_is_refused(kind, tmp_path):
    rows = [{"text": f"Anna left at {i}.", "entities": [[0, 4, "PER"]]} for i in range(4)]
    rows[2]["entities"] = [[0, 4, kind]]
    path = tmp_path / "t.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    with pytest.raises(ValueError, match="row 3: .* is not an entity"):
        read(path, "tag")


def test_the_documentation_lists_all_names_with_their_reasons():
    page = (Path(__file__).parents[3] / "docs/data_formats.md").read_text(encoding="utf-8")
    for reason, words in unused.HARMLESS.items():
        listed = ", ".join(f"`{word}`" for word in words.split())
        assert f"| {listed} | it {reason} |" in page
    for names in (unused.SELECTING, unused.SPLITS, unused.STATES, unused.WEIGHTS):
        assert ", ".join(f"`{name}`" for name in sorted(names)) in page


@pytest.mark.parametrize(
    "name",
    ["user_name", "createdAt", "qid1", "pairID", "sourceURL", "num tokens", "__index_level_0__"],
)
def test_a_word_makes_a_name_harmless(name):
    assert unused.is_harmless(name)


@pytest.mark.parametrize("name", ["label", "score", "is_toxic", "quality", "idea", "rating"])
def test_labels_and_other_names_are_not_harmless(name):
    assert not unused.is_harmless(name)


@pytest.mark.parametrize("other", [{"label": [0, 1]}, {"labels": [["a"], ["b"]]}])
def test_a_label_beside_one_that_is_named_by_the_training_file_is_in_doubt(other, tmp_path):
    train = table(tmp_path / "t.jsonl", "classify", mood=["low", "high"])
    rows = json_lines(train)
    rows = [{"text": row["text"], "mood": row["mood"]} for row in rows]
    Path(train).write_text("\n".join(map(json.dumps, rows)))
    name, values = next(iter(other.items()))
    dev = [row | {name: values[i % 2]} for i, row in enumerate(rows)]
    (tmp_path / "d.jsonl").write_text("\n".join(map(json.dumps, dev)))
    source = read_tables("classify", train=train, dev=tmp_path / "d.jsonl")
    with pytest.raises(ValueError, match=f"'{name}' .* the label as well"):
        list(source.examples("dev"))


@pytest.mark.parametrize("name", ["premise", "hypothesis", "label"])
def test_a_key_that_the_first_row_lacks_is_a_column(name, tmp_path):
    rows = [
        {"premise": text, "hypothesis": f"not {text}", "label": "ab"[i % 2]}
        for i, text in enumerate(TEXTS)
    ]
    del rows[0][name]
    path = tmp_path / "t.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    with pytest.raises(ValueError, match=f"row 1 has no .*'{name}'"):
        read(path, "classify")


def test_many_columns_in_doubt_are_named_in_a_line_of_bounded_length(tmp_path):
    columns = {f"column {i} of this table": [1.5, 2.5] for i in range(20)}
    path = table(tmp_path / "train.jsonl", "embed", **columns)
    with pytest.raises(ValueError, match="could change the meaning") as raised:
        read(path, "embed")
    assert len(str(raised.value).replace(path, "train.jsonl")) < MAX_MESSAGE - 30
