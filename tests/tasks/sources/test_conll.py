import pytest

from bertjax.tasks.sources.conll import CONLL_LABELS, ConllSource, read_conll
from bertjax.tasks.tagging import order_tags, tag_scheme

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
    source = ConllSource(tmp_path)
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
    with pytest.raises(ValueError, match="train.txt, row 2 has 2 columns, but earlier rows have 3"):
        list(read_conll(path))


def test_an_absent_file_and_split_are_said(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"No file of conll .*eng.train"):
        ConllSource(tmp_path)
    (tmp_path / "conll2003").mkdir()
    (tmp_path / "conll2003" / "train.txt").write_text("EU B-ORG\n")
    with pytest.raises(ValueError, match="conll has no split 'dev'. There are: train."):
        ConllSource(tmp_path).examples("dev")


@pytest.mark.real
@pytest.mark.parametrize("split, count", [("train", 14041), ("dev", 3250), ("test", 3453)])
def test_conll_2003_has_its_sentences_and_tags(shared, split, count):
    examples = list(ConllSource(shared).examples(split))
    assert len(examples) == count
    tags = {tag for example in examples for tag in example.label or ()}
    assert tags == set(CONLL_LABELS)
    assert all(len(e.words) == len(e.label) for e in examples if isinstance(e.label, tuple))


@pytest.mark.real
def test_conll_2003_written_in_iob1_reads_the_same(shared, tmp_path):
    expected = [e.label for e in ConllSource(shared).examples("dev")]
    with (tmp_path / "eng.testa").open("w") as file:
        for example in ConllSource(shared).examples("dev"):
            assert isinstance(example.label, tuple)
            previous = "O"
            for word, tag in zip(example.words, example.label, strict=True):
                begins = tag[0] == "B" and previous[1:] != tag[1:]
                file.write(f"{word} {'I' + tag[1:] if begins else tag}\n")
                previous = tag
            file.write("\n")
    assert [e.label for e in ConllSource(tmp_path).examples("dev")] == expected
