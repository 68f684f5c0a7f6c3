"""Schemes of tags: entities are the same, however a file or a tagger of others marks them."""

import json
import random

import numpy as np
import pytest

from bertjax.record.predictions import ClassReport
from bertjax.tasks.dataset import Example
from bertjax.tasks.metrics import entities, entity_f1, word_accuracy
from bertjax.tasks.registry import make_task
from bertjax.tasks.sources.conll import read_conll2003
from bertjax.tasks.tagging import TagOptions, TagTask
from bertjax.tasks.tags import order_tags, tag_scheme
from tests.tables import read_tables

WORDS = ("Anna", "Maria", "Lopez", "met", "Bo", "at", "Rio", "Bar", "Bo")
IOB2 = ("B-PER", "I-PER", "I-PER", "O", "B-PER", "O", "B-LOC", "I-LOC", "B-PER")
ENTITIES = [(0, 3, "PER"), (4, 5, "PER"), (6, 8, "LOC"), (8, 9, "PER")]
# The marks of the words of an entity of three words, of two, and of one.
MARKS = {
    "IOB": ("BII", "BI", "B"),
    "IOBES": ("BIE", "BE", "S"),
    "BILOU": ("BIL", "BL", "U"),
    "BMES": ("BME", "BE", "S"),
    "BMEWO": ("BME", "BE", "W"),
}
LAYOUTS = {"": "{0}-{1}", " (B_X)": "{0}_{1}", " (X-B)": "{1}-{0}", " (X_B)": "{1}_{0}"}
NOTATIONS = {name + shown: (name, layout) for name in MARKS for shown, layout in LAYOUTS.items()}


def tags_of(notation):
    name, layout = NOTATIONS[notation]
    long, two, one = MARKS[name]
    marks = iter(long + one + two + one)
    return tuple("O" if t == "O" else layout.format(next(marks), t[2:]) for t in IOB2)


@pytest.fixture(params=NOTATIONS)
def notation(request):
    return request.param


def test_every_notation_is_recognised_and_goes_to_iob2_and_back(notation):
    tags = tags_of(notation)
    scheme = tag_scheme(tags)
    assert scheme.name == notation
    assert scheme.is_iob == (notation == "IOB")
    assert scheme.to_iob2(tags) == IOB2
    assert scheme.from_iob2(IOB2) == tags
    assert entities(scheme.to_iob2(tags)) == ENTITIES


@pytest.mark.parametrize("suffix", ["conll", "jsonl"])
def test_files_in_every_notation_are_read_as_iob2_and_said(tmp_path, notation, suffix):
    path, tags = tmp_path / f"a.{suffix}", tags_of(notation)
    if suffix == "conll":
        path.write_text("".join(f"{w} {tag}\n" for w, tag in zip(WORDS, tags, strict=True)))
    else:
        path.write_text(json.dumps({"words": WORDS, "tags": tags}) + "\n")
    source = read_tables("tag", train=path)
    assert [example.label for example in source.examples("train")] == [IOB2]
    (said,) = source.change_notes() or [""]
    name = notation
    assert said == "" if notation == "IOB" else f"train: sentences with tags in {name}" in said


def test_official_files_are_read_the_same_way(tmp_path):
    tags = tags_of("BILOU")
    lines = [f"{w} X X {tag}\n" for w, tag in zip(WORDS, tags, strict=True)]
    (tmp_path / "train.txt").write_text("".join(lines))
    source = read_conll2003(tmp_path)
    assert [example.label for example in source.examples("train")] == [IOB2]
    assert "in BILOU, such as U-PER, read as IOB2" in source.change_notes()[0]


class Tokenizer:
    """One token per word, and [CLS] and [SEP]."""

    unk_token_id = 0

    class layout:  # noqa: N801
        @staticmethod
        def num_special_tokens(pair):
            return 2

    def encode_after_space(self, words):
        return [[1] for _ in words]

    def join(self, ids):
        return [2, *ids, 3], [0] * (len(ids) + 2)


def predicted(task, tags):
    example = Example(id="1", where="row 1", words=WORDS)
    features = task.features(example, Tokenizer(), 32)
    logits = np.zeros((len(WORDS) + 2, len(task.labels)), np.float32)
    for index, tag in enumerate(tags):
        logits[1 + index, task.labels.index(tag)] = 5.0
    return task.predict(example, features, [{"logits": logits}])


def test_foreign_taggers_find_the_entities_of_their_notation(notation, capsys):
    tags = tags_of(notation)
    labels = tuple(sorted(set(tags)))
    task = TagTask.of_labels(labels, name="t")
    said = capsys.readouterr().err
    assert (f"in the scheme {notation}" in said) == (notation != "IOB")
    prediction = predicted(task, tags)
    assert prediction["labels"] == [*tags]
    found = [(e["first_word"], e["last_word"] + 1, e["type"]) for e in prediction["entities"]]
    assert found == ENTITIES
    # Their scores on a file, whose tags are in IOB2 or in the notation of the tagger.
    for gold in (IOB2, tags):
        example = Example(id="1", where="row 1", words=WORDS, label=gold)
        scores = task.score([(example, prediction)])
        assert scores == {"precision": 1.0, "recall": 1.0, "f1": 1.0, "accuracy": 1.0}
        report = ClassReport(task)
        list(report.observe([(example, prediction)]))
        assert {row.name: (row.f1, row.support) for row in report.scores()} == {
            "LOC": (1.0, 1),
            "PER": (1.0, 3),
        }
    half = predicted(task, (*tags[:4], *["O"] * 5))
    example = Example(id="1", where="row 1", words=WORDS, label=IOB2)
    assert task.score([(example, half)])["recall"] == 0.25


def test_labels_of_a_file_become_those_of_the_tagger(notation):
    labels = tuple(sorted({*tags_of(notation)}))
    task = TagTask.of_labels(labels, name="t")
    example = Example(id="1", where="row 1", words=WORDS, label=IOB2)
    (feature,) = task.features(example, Tokenizer(), 32)
    assert [labels[i] for i in feature.labels[1:-1]] == [*tags_of(notation)]
    for tag in ("B-ORG", "NN", "PER"):
        example = Example(id="1", where="row 1", words=("a",), label=(tag,))
        with pytest.raises(ValueError, match=f"row 1: label '{tag}' does not occur in training"):
            task.features(example, Tokenizer(), 32)


TYPES = ("PER", "PER", "PER", "O", "PER", "O", "LOC", "LOC", "PER")


def test_types_without_marks_are_entities_as_in_pipelines_of_transformers(tmp_path, capsys):
    task = TagTask.of_labels(("O", "PER", "LOC"), name="t")
    assert "in the scheme IO" in capsys.readouterr().err
    prediction = predicted(task, TYPES)
    found = [(e["first_word"], e["last_word"] + 1, e["type"]) for e in prediction["entities"]]
    assert found == ENTITIES
    for gold in (TYPES, IOB2):
        example = Example(id="1", where="row 1", words=WORDS, label=gold)
        assert task.score([(example, prediction)])["f1"] == 1.0
        (feature,) = task.features(example, Tokenizer(), 32)
        assert tuple(task.labels[i] for i in feature.labels[1:-1]) == TYPES
    # In a file, they stay as they are.
    lines = "".join(f"{w} {tag}\n" for w, tag in zip(WORDS, TYPES, strict=True))
    (tmp_path / "a.conll").write_text(lines)
    options = TagOptions(train=str(tmp_path / "a.conll"), dev=str(tmp_path / "a.conll"))
    task = make_task("tag", options)
    assert (task.labels, task.best_metric, task.metric) == (("LOC", "O", "PER"), "f1", entity_f1)
    assert [example.label for example in task.source.examples("train")] == [TYPES]
    assert "in the scheme IO" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("labels", "meanings"),
    [
        (("O", "PER", "B-LOC", "I-LOC"), [("I", "PER"), ("B", "LOC"), ("I", "LOC")]),
        (("O", "given name", "D.O.B"), [("I", "given name"), ("I", "D.O.B")]),
        (("O", "LOC:city", "人名"), [("I", "LOC:city"), ("I", "人名")]),
        (("O", "E-mail", "U-turn", "Q-x"), [("I", "E-mail"), ("I", "U-turn"), ("I", "Q-x")]),
        (("O", "X", "[CLS]", "[SEP]", "B-A", "I-A"), [("O", "")] * 3 + [("B", "A"), ("I", "A")]),
        (("O", "[PAD]", "S-A", "E-A"), [("O", ""), ("S", "A"), ("E", "A")]),
        (("O", "B-a-b", "I-a-b", "L-a-b"), [("B", "a-b"), ("I", "a-b"), ("E", "a-b")]),
        (("O", "B-PER.NAM", "M-PER.NAM"), [("B", "PER.NAM"), ("I", "PER.NAM")]),
        (("B", "M", "E", "S"), [("B", ""), ("I", ""), ("E", ""), ("S", "")]),
        (("O", "B", "I", "E", "S"), [("O", ""), ("B", ""), ("I", ""), ("E", ""), ("S", "")]),
        (("B", "I"), [("B", ""), ("I", "")]),
    ],
    ids=str,
)
def test_the_whole_set_of_labels_tells_what_each_means(labels, meanings):
    found = tag_scheme(labels).meanings
    assert [found.get(label, ("O", "")) for label in labels][-len(meanings) :] == meanings


NO_ENTITIES = [
    *[("B", "E", "I", "S"), ("B", "S"), ("E", "I"), ("L", "U"), ("I",), ("B", "E", "I", "L", "S")],
    *[("NN", "VB"), ("NOUN", "VERB", "O"), ("O", "NN", "DT", "VB"), ("PRP", "VBP", "B-52")],
    *[("N", "O", "V", "A", "R"), ("O", "S", "E", "U", "L", "N"), ("O", "1", "2"), ("yes", "no")],
    *[("E_x", "S_x"), ("ADJ-S", "ADJ-E"), ("LABEL_0", "LABEL_1"), (".", ",", "O", "NN")],
]


@pytest.mark.parametrize("labels", NO_ENTITIES, ids=str)
def test_parts_of_speech_are_no_scheme(labels, capsys):
    assert tag_scheme(labels) is None
    task = TagTask.of_labels(labels, name="t")
    assert (task.best_metric, task.metric) == ("accuracy", word_accuracy)
    assert capsys.readouterr().err == ""
    assert order_tags(labels) == tuple(sorted(labels))
    assert "entities" not in predicted(task, [labels[0]] * len(WORDS))


@pytest.mark.parametrize("marks", ["BI", "BIES", "BES", "IES", "I"])
@pytest.mark.parametrize("suffix", [False, True])
def test_entities_and_f1_are_those_of_seqeval_for_inconsistent_tags(marks, suffix):
    seqeval = pytest.importorskip("seqeval.metrics")
    draw = random.Random(marks)
    layout = "{1}-{0}" if suffix else "{0}-{1}"
    labels = ["O", *(layout.format(mark, kind) for mark in marks for kind in ("PER", "LOC"))]
    scheme = tag_scheme(labels)
    both = [[[draw.choice(labels) for _ in range(9)] for _ in range(200)] for _ in "ab"]
    scores = entity_f1(*([scheme.to_iob2(tags) for tags in sentences] for sentences in both))
    assert scores["f1"] == pytest.approx(seqeval.f1_score(*both, suffix=suffix))
    assert scores["precision"] == pytest.approx(seqeval.precision_score(*both, suffix=suffix))
    assert word_accuracy(*both)["accuracy"] == pytest.approx(seqeval.accuracy_score(*both))


def test_inconsistent_tags_give_the_entities_that_seqeval_finds():
    """The values are those of seqeval 1.2.2."""
    tags = ["E-A", "I-A", "S-A", "I-B", "E-B", "E-B", "B-A", "S-A", "I-A", "O", "I-B", "B-B", "E-A"]
    scheme = tag_scheme(tags)
    a = [(0, 1), (1, 2), (2, 3), (6, 7), (7, 8), (8, 9), (12, 13)]
    b = [(3, 5), (5, 6), (10, 11), (11, 12)]
    expected = sorted([(*span, "A") for span in a] + [(*span, "B") for span in b])
    assert entities(scheme.to_iob2(tags)) == expected
