import dataclasses
import json

import pytest

from bertjax.inference.evaluation import from_file
from bertjax.tasks.dataset import ChangeCounts
from bertjax.tasks.registry import make_task
from bertjax.tasks.sources.columns import Columns
from bertjax.tasks.sources.conll import CONLL_LABELS, has_columns, read_conll, read_conll2003
from bertjax.tasks.tagging import TagOptions, TagTask
from bertjax.tasks.tags import order_tags, tag_scheme
from tests.cases import WEEKLY
from tests.tables import read_tables

IOB1 = """-DOCSTART- -X- O O

EU NNP I-NP I-ORG
rejects VB I-VP O
German JJ I-NP I-MISC
British JJ I-NP B-MISC
lamb\u00a0chops NN I-NP I-ORG

-DOCSTART- -X- O O

Peter NNP I-NP I-PER
Blackburn NNP I-NP I-PER"""


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("separator", [" ", "\t", "  "])
def test_words_come_first_tags_last_and_document_starts_never(tmp_path, end, separator):
    text = "\ufeff" + IOB1.replace(" ", separator).replace("\n", end)
    (tmp_path / "eng.testa").write_bytes(text.encode())
    source = read_conll2003(tmp_path)
    assert source.splits == ("dev",)
    first, second = source.examples("dev")
    assert first.words == ("EU", "rejects", "German", "British", "lamb\u00a0chops")
    assert first.label == ("B-ORG", "O", "B-MISC", "B-MISC", "B-ORG")
    assert second.label == ("B-PER", "I-PER")
    assert [first.id, second.id] == ["0", "1"]
    assert second.where.endswith("eng.testa, row 11")


SAME = {
    "IOB1": ("I-A", "I-A", "B-A", "O", "I-B", "I-A"),
    "IOB2": ("B-A", "I-A", "B-A", "O", "B-B", "B-A"),
    "IOBES": ("B-A", "E-A", "S-A", "O", "S-B", "S-A"),
    "BILOU": ("B-A", "L-A", "U-A", "O", "U-B", "U-A"),
}


@pytest.mark.parametrize("scheme", SAME)
def test_every_scheme_is_read_as_iob2(scheme):
    found = tag_scheme(SAME[scheme])
    assert found.name == {"IOB1": "IOB", "IOB2": "IOB"}.get(scheme, scheme)
    assert found.to_iob2(SAME[scheme]) == SAME["IOB2"]


def test_entities_survive_iobes_where_one_ends_and_the_next_goes_on():
    tags = ("B-A", "I-A", "E-A", "I-A", "B-A")
    assert tag_scheme(tags).to_iob2(tags) == ("B-A", "I-A", "I-A", "B-A", "B-A")
    tags = ("B", "I", "O", "I")
    assert tag_scheme(tags).to_iob2(tags) == ("B", "I", "O", "B")


def test_tags_that_mark_no_entities_stay_as_they_are(tmp_path):
    path = tmp_path / "pos.txt"
    path.write_text("I PRP\nam VBP\nB-52 NN\n\nHi E-mail\n")
    assert [e.label for e in read_conll(path)] == [("PRP", "VBP", "NN"), ("E-mail",)]
    assert tag_scheme(("PRP", "NN")) is None
    assert order_tags(["VBP", "NN"]) == ("NN", "VBP")


def test_labels_have_both_tags_of_each_type_outside_first():
    assert order_tags(["I-PER", "B-LOC", "O", "B-PER"]) == ("O", "B-LOC", "I-LOC", "B-PER", "I-PER")


def test_words_alone_have_no_tags(tmp_path):
    path = tmp_path / "words.txt"
    path.write_text("Peter\nBlackburn\n\n\nEU")
    assert [(e.words, e.label) for e in read_conll(path)] == [
        (("Peter", "Blackburn"), None),
        (("EU",), None),
    ]


def test_a_row_of_other_columns_is_named(tmp_path):
    path = tmp_path / "train.txt"
    path.write_text("EU NNP I-ORG\nrejects O\n")
    with pytest.raises(ValueError, match="train.txt, row 2 has 2 columns, but other rows have 3"):
        list(read_conll(path))


def test_an_absent_file_and_split_are_said(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"No file of conll .*eng.train"):
        read_conll2003(tmp_path)
    (tmp_path / "conll2003").mkdir()
    (tmp_path / "conll2003" / "train.txt").write_text("EU B-ORG\n")
    with pytest.raises(ValueError, match="conll has no split 'dev'. There are: train."):
        read_conll2003(tmp_path).examples("dev")


SENTENCES = [
    (("Anna", "left", "Bonn"), ("B-PER", "O", "B-LOC")),
    (("It", "rains"), ("O", "O")),
    (("New", "Ulm"), ("B-LOC", "I-LOC")),
]


def rows_of(separator, line, before=""):
    """Returns a file; `line` is called with the place of a word, the word and its tag."""
    parts = []
    for number, (words, tags) in enumerate(SENTENCES):
        rows = [
            separator.join(line(i, *pair))
            for i, pair in enumerate(zip(words, tags, strict=True), 1)
        ]
        parts.append("\n".join([*filter(None, [before.format(number)]), *rows]))
    return "\n\n".join(parts) + "\n"


def read(path, **columns):
    found = [*read_conll(path, columns=Columns(**columns))]
    assert not any(example.problem for example in found)
    return [(example.words, example.label) for example in found]


COLUMN_FILES = {
    "MultiCoNER": rows_of(" ", lambda i, w, t: (w, "_", "_", t), "# id 7c1f{}\tdomain=en"),
    "comments of two columns": rows_of(" ", lambda i, w, t: (w, t), "# {}"),
    "comments of one column": rows_of(" ", lambda i, w, t: (w, t), "#begin"),
    "a comment of other columns": rows_of("\t", lambda i, w, t: (w, t), "#\thttp://a.org\t[2009]"),
    "a sentence in a comment": rows_of(" ", lambda i, w, t: (w, t), "# text = It rains, O"),
    "a header": "word tag\n" + rows_of(" ", lambda i, w, t: (w, t)),
    "a header with tabs": "Token\tPOS\tNER\n" + rows_of("\t", lambda i, w, t: (w, "X", t)),
    "a header after a comment": "# a\ntokens ner_tags\n" + rows_of(" ", lambda i, w, t: (w, t)),
    "headers of joined files": rows_of(" ", lambda i, w, t: (w, t), "Word Label"),
    "Universal NER": rows_of("\t", lambda i, w, t: (str(i), w, t, "-", f"ann{i % 2}")),
    "numbers from 0": rows_of("\t", lambda i, w, t: (str(i - 1), w, t)),
    "numbers of rows": rows_of(" ", lambda i, w, t: (str(100 + i), w, "NN", t)),
    "GermEval without nested entities": rows_of("\t", lambda i, w, t: (str(i), w, t, "O")),
    "ids of sentences": rows_of(" ", lambda i, w, t: (f"doc{w in 'It rains'}", w, t)),
    "confidences": rows_of(" ", lambda i, w, t: (w, t, f"0.9{i}")),
    "tags first": rows_of(" ", lambda i, w, t: (t, w)),
    "chunks": rows_of(" ", lambda i, w, t: (w, "NN", "I-NP" if i > 1 else "B-NP", t)),
}


@pytest.mark.parametrize("name", COLUMN_FILES)
def test_words_and_tags_are_found_among_other_lines_and_columns(tmp_path, name):
    path = tmp_path / "train.conll"
    path.write_text(COLUMN_FILES[name])
    assert read(path) == SENTENCES


def test_what_is_left_out_is_said_with_its_first_row(tmp_path):
    path = tmp_path / "train.conll"
    path.write_text("word\ttag\n" + COLUMN_FILES["a comment of other columns"])
    counts = ChangeCounts()
    assert len([*read_conll(path, counts)]) == 3
    assert counts == {
        "rows with the names of the columns, left out": 1,
        "comment lines, left out": 3,
    }
    assert counts.first["comment lines, left out"].endswith("row 2")
    path.write_text(COLUMN_FILES["Universal NER"])
    counts = ChangeCounts()
    assert len([*read_conll(path, counts)]) == 3
    assert [*counts] == ["files of 5 columns, of which 2 and 3 are read"]


def test_a_number_sign_that_is_a_word_stays_a_word(tmp_path):
    path = tmp_path / "tweets.conll"
    path.write_text("# O\nBonn B-LOC\n\nIn O\n# O\nBonn B-LOC\n\n# B-LOC\n5 O\n\n#Bonn O\n")
    assert [words for words, _ in read(path)] == [
        ("#", "Bonn"),
        ("In", "#", "Bonn"),
        ("#", "5"),
        ("#Bonn",),
    ]
    path.write_text("#\nBonn\n\n#tag\n")
    assert read(path) == [(("#", "Bonn"), None), (("#tag",), None)]


CONLL_U = """# text = Vámonos al mar
1-2\tVámonos\t_\t_\t_\t_\t_\t_\t_\t_
1\tVamos\tir\tVERB\t_\tMood=Imp\t0\troot\t_\t_
2\tnos\tnosotros\tPRON\t_\t_\t1\tobj\t_\tSpaceAfter=No
2.1\tvamos\tir\tVERB\t_\t_\t_\t_\t_\t_
3\tal\ta\tADP\t_\t_\t4\tcase\t_\t_
"""
UNCLEAR = {
    "two columns of entities": (
        rows_of("\t", lambda i, w, t: (str(i), w, t, t.replace("LOC", "LOCpart"))),
        "words in column 2. Columns 3, 4 may",
        "4",
    ),
    "CoNLL-U": (CONLL_U, "words in column 2. Columns 3, 4, 5, 6", "4"),
    "parts of speech with confidences": (
        "Anna NNP 0.98\nleft VBD 0.97\n",
        "words in column 1. Columns 2, 3 may",
        "2",
    ),
    "chunks before parts of speech": (
        "Anna B-NP NNP\nleft B-VP VBD\n",
        "words in column 1. Columns 2, 3 may",
        "3",
    ),
    "CoNLL 2012": (
        "bc/a 0 0 In IN * -\nbc/a 0 1 Asia NNP (GPE) (1)\n\n"
        "bc/a 0 0 He PRP * -\nbc/a 0 1 ran VBD * -\n",
        "words in column 4. Columns 5, 6, 7 may",
        "5",
    ),
}


@pytest.mark.parametrize("name", UNCLEAR)
def test_several_columns_of_tags_are_refused_until_one_is_named(tmp_path, name):
    text, message, column = UNCLEAR[name]
    path = tmp_path / "train.conll"
    path.write_text(text)
    with pytest.raises(ValueError, match=f"row 1: which column .* {message}.*--label_column"):
        read(path)
    source = read_tables("tag", train=path, columns=Columns(label=column))
    assert all(isinstance(example.label, tuple) for example in source.examples("train"))


def test_columns_are_named_by_their_numbers(tmp_path):
    path = tmp_path / "train.conllu"
    path.write_text(CONLL_U)
    expected = [(("Vamos", "nos", "al"), ("VERB", "PRON", "ADP"))]
    assert read(path, label="4") == expected
    assert read(path, text="3", label="4") == [(("ir", "nosotros", "a"), expected[0][1])]
    assert read(path, label="-1")[0][1] == ("_", "SpaceAfter=No", "_")
    for name in ("11", "0", "upos"):
        with pytest.raises(ValueError, match=f"numbers from 1 to 10 there, not '{name}'"):
            read(path, label=name)
    task = TagTask.of_labels(("ADP", "PRON", "VERB"), name="tag")
    _, examples, _ = from_file(task, path, Columns(label="4"))
    assert [(e.words, e.label) for e in examples] == expected


def test_files_without_tags_have_words_alone(tmp_path):
    path = tmp_path / "test.conll"
    for text in ("# id 5\tdomain=en\nAnna _ _ _\nleft _ _ _\n", "1\tAnna\n2\tleft\n"):
        path.write_text(text)
        assert read(path) == [(("Anna", "left"), None)]
    path.write_text("# 1\nAnna _\nleft _\n\n# 2\nIt _\n")
    assert has_columns(path.rename(tmp_path / "test.txt"), ())


@pytest.mark.parametrize("tag", ["-100", "_", "-X-", "UNK", "-1", "nan"])
@pytest.mark.parametrize("suffix", [".conll", ".jsonl"])
def test_a_word_without_a_label_is_neither_trained_on_nor_scored(tmp_path, capsys, tag, suffix):
    path = tmp_path / f"train{suffix}"
    tagged = [(words, tuple(tags)) for words, tags in SENTENCES]
    tagged[0] = (tagged[0][0], ("B-PER", tag, "B-LOC"))
    if suffix == ".conll":
        rows = [zip(words, tags, strict=True) for words, tags in tagged]
        path.write_text("\n\n".join("\n".join(map(" ".join, row)) for row in rows))
    else:
        lines = [{"words": words, "tags": tags} for words, tags in tagged]
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    task = make_task("tag", TagOptions(train=str(path), dev_fraction=0.0))
    assert task.labels == ("O", "B-LOC", "I-LOC", "B-PER", "I-PER") and task.best_metric == "f1"
    examples = [*task.data.examples("train")]
    assert examples[0].label == ("B-PER", "", "B-LOC")
    assert any("words without a label: 1 (the first" in note for note in task.data.change_notes())
    assert task._word_labels(examples[0]).tolist() == [3, -1, 1, -1]
    right = {"labels": ["B-PER", "I-LOC", "B-LOC"]}
    scores = task.score([(examples[0], right)])
    assert scores == {"precision": 1.0, "recall": 1.0, "f1": 1.0, "accuracy": 1.0}
    wrong = {"labels": ["B-PER", "O", "O"]}
    assert task.score([(examples[0], wrong)])["accuracy"] == 0.5
    unlabelled = dataclasses.replace(examples[0], label=("", "", ""))
    assert task.score([(unlabelled, right)]) == {}
    assert "warning" not in capsys.readouterr().out


def test_a_word_without_a_label_leaves_the_schemes_of_its_neighbours(tmp_path):
    path = tmp_path / "train.conll"
    path.write_text("Anna B-PER\nMaria -100\nLopez L-PER\n\nBo U-PER\nleft O\n")
    assert [e.label for e in read_conll(path)] == [("B-PER", "", "I-PER"), ("B-PER", "O")]


def test_null_in_a_list_of_tags_is_a_word_without_a_label(tmp_path):
    path = tmp_path / "train.jsonl"
    rows = [{"words": ["Anna", "left"], "tags": ["B-PER", None]}, {"words": ["It"], "tags": ["O"]}]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    examples = [*read_tables("tag", train=path).examples("train")]
    assert [example.label for example in examples] == [("B-PER", ""), ("O",)]


@pytest.mark.parametrize("tag", ["0", "BPER", "tag", "domain=en"])
def test_a_tag_that_marks_no_entity_among_entities_is_refused_with_its_row(tmp_path, tag):
    path = tmp_path / "train.conll"
    path.write_text(f"Anna B-PER\nleft O\n\nBo B-PER\nran {tag}\n\nIt O\n")
    source = read_tables("tag", train=path)
    with pytest.raises(ValueError, match=f"row 4: the tag '{tag}' marks no entity.*-100"):
        list(source.examples("train"))
    skipping = read_tables("tag", train=path, bad_rows="skip")
    assert [e.words for e in skipping.examples("train")] == [("Anna", "left"), ("It",)]


def test_a_placeholder_where_nothing_is_outside_is_refused(tmp_path):
    path = tmp_path / "train.conll"
    path.write_text("Anna B-PER\nleft -\n\nBo B-PER\nran -\n")
    with pytest.raises(ValueError, match="the tag '-' marks no entity.*write O"):
        list(read_tables("tag", train=path).examples("train"))


def test_entity_scores_never_vanish_without_a_warning(tmp_path, capsys):
    path = tmp_path / "train.conll"
    warning = "warning: no entities are scored, because tags such as"
    path.write_text("Anna B-PER\nRoe I-PER\nleft VBD\nat IN\nnoon NN\n\nIt O\n")
    task = make_task("tag", TagOptions(train=str(path), dev_fraction=0.0))
    assert task.best_metric == "accuracy"
    assert f"{warning} 'B-PER'" in capsys.readouterr().out
    path.write_text("Anna NNP\nleft VBD\n\nIt _\n")
    make_task("tag", TagOptions(train=str(path), dev_fraction=0.0))
    assert f"{warning} '_'" in capsys.readouterr().out
    path.write_text("Anna NNP\nleft VBD\n")
    make_task("tag", TagOptions(train=str(path), dev_fraction=0.0))
    assert "warning" not in capsys.readouterr().out


@pytest.mark.real
@pytest.mark.parametrize(
    ("split", "count"),
    [
        pytest.param("train", 14041, marks=pytest.mark.slow),
        ("dev", 3250),
        pytest.param("test", 3453, marks=WEEKLY),
    ],
)
def test_conll_2003_has_its_sentences_and_tags(shared, split, count):
    examples = list(read_conll2003(shared).examples(split))
    assert len(examples) == count
    tags = {tag for example in examples for tag in example.label or ()}
    assert tags == set(CONLL_LABELS)
    assert all(len(e.words) == len(e.label) for e in examples if isinstance(e.label, tuple))


@pytest.mark.slow
@pytest.mark.real
def test_conll_2003_written_in_iob1_reads_the_same(shared, tmp_path):
    expected = [e.label for e in read_conll2003(shared).examples("dev")]
    with (tmp_path / "eng.testa").open("w") as file:
        for example in read_conll2003(shared).examples("dev"):
            assert isinstance(example.label, tuple)
            previous = "O"
            for word, tag in zip(example.words, example.label, strict=True):
                begins = tag[0] == "B" and previous[1:] != tag[1:]
                file.write(f"{word} {'I' + tag[1:] if begins else tag}\n")
                previous = tag
            file.write("\n")
    assert [e.label for e in read_conll2003(tmp_path).examples("dev")] == expected


@pytest.mark.parametrize("tag_first", [False, True])
@pytest.mark.parametrize(
    "parts", [["NNP", "VBD", "NNP"], ["PROPN", "VERB", "PROPN"], ["NNP", "VBD", "."]]
)
def test_parts_of_speech_before_the_words_are_no_words(tmp_path, parts, tag_first):
    rows = zip(parts, ("Anna", "saw", "Bonn"), ("B-PER", "O", "B-LOC"), strict=True)
    order = (2, 0, 1) if tag_first else (0, 1, 2)
    lines = "\n".join(" ".join(row[i] for i in order) for row in rows)
    path = tmp_path / "a.conll"
    path.write_text(f"{lines}\n\n{lines}\n")
    examples = list(read_conll(path))
    assert [example.words for example in examples] == [("Anna", "saw", "Bonn")] * 2
    assert [example.label for example in examples] == [("B-PER", "O", "B-LOC")] * 2
