"""Running text is split into words as in CoNLL, and entities are found again by their positions."""

import csv
import json
import random
import time

import numpy as np
import pytest

from bertjax.inference.texts import from_text
from bertjax.record.predictions import ClassReport
from bertjax.tasks.dataset import Example
from bertjax.tasks.metrics import entities
from bertjax.tasks.sources.conll import has_columns, read_conll
from bertjax.tasks.tagging import TagTask
from bertjax.tasks.tags import split_words
from bertjax.tokenization.wordpiece import WordPieceTokenizer
from tests.tables import read_tables

ENTITY_TAGS = ("O", "B-PER", "I-PER", "B-ORG", "I-ORG", "B-LOC", "I-LOC")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("The U.N. met at 5 p.m. in the U.S.", "The|U.N.|met|at|5|p.m.|in|the|U.S."),
        ("Mr. J. Smith of Acme Corp. left.", "Mr.|J.|Smith|of|Acme|Corp.|left|."),
        ("Germany's team didn't win.", "Germany|'s|team|did|n't|win|."),
        ("He’s 18-year-old, isn’t he?", "He|’s|18-year-old|,|is|n’t|he|?"),
        (
            "It cost $1,000.50 on 1996-08-22 (3/4)...",
            "It|cost|$|1,000.50|on|1996-08-22|(|3/4|)|...",
        ),
        ("AT&T and O'Brien, l'homme", "AT&T|and|O'Brien|,|l'homme"),
        ("see www.a.com/b. or a.b@c.org!", "see|www.a.com/b|.|or|a.b@c.org|!"),
        ("我爱北京 и Москва", "我|爱|北|京|и|Москва"),
        ("हिन्दी में 👩‍👩‍👧👍🏽 ❤️", "हिन्दी|में|👩‍👩‍👧|👍🏽|❤️"),
        ("1. Item", "1.|Item"),
        ("トヨタ自動車のCEOが2024年に", "ト|ヨ|タ|自|動|車|の|CEO|が|2024|年|に"),
        ("々ーヶ月、ＮＨＫは", "々|ー|ヶ|月|、|ＮＨＫ|は"),
        ("ไปกรุงเทพฯ 3 วัน", "ไ|ป|ก|รุ|ง|เ|ท|พ|ฯ|3|วั|น"),
        ("ភ្នំពេញ Visa", "ភ្|នំ|ពេ|ញ|Visa"),
        ("ວຽງຈັນ ປະເທດລາວ", "ວ|ຽ|ງ|ຈັ|ນ|ປ|ະ|ເ|ທ|ດ|ລ|າ|ວ"),
        ("မြန်မာ ၁၂ ရက်", "မြ|န်|မာ|၁၂|ရ|က်"),
        ("ꦗꦮ ᬩᬮᬶ", "ꦗ|ꦮ|ᬩ|ᬮᬶ"),
        ("བོད་ལྗོངས", "བོད|་|ལྗོངས"),
        ("联系a.b@c.org或www.a.com/b吧", "联|系|a.b@c.org|或|www.a.com/b|吧"),
        ("서울에서 ㅋㅋ m² x½", "서울에서|ㅋㅋ|m²|x½"),
        (" \n\t", ""),
    ],
)
def test_words_are_those_of_the_treebank_and_keep_their_places(text, words):
    found = split_words(text)
    assert [word.text for word in found] == [word for word in words.split("|") if word]
    assert all(text[word.start : word.end] == word.text for word in found)


@pytest.mark.parametrize(
    "word",
    [
        "\u1112\u1161\u11ab",
        "\u0995\u09c7\u09be",
        "\u0b95\u0bc6\u0bbe",
        "cafe\u0301",
        "\u1025\u102e",
    ],
    ids=ascii,
)
def test_words_end_behind_what_nfc_merges_with_their_last_character(tmp_path, word):
    for text in (word, f"a {word}.", f"{word}, {word}"):
        found = [w.text for w in split_words(text)]
        assert word in found and "".join(found) == text.replace(" ", "")
    path = tmp_path / "a.jsonl"
    for end in range(1, len(word) + 1):  # also of an entity that ends within it
        row = {"text": f"{word} x", "entities": [[0, end, "PER"]]}
        path.write_text(json.dumps(row) + "\n")
        (found,) = read_tables("tag", train=path).examples("train")
        assert (found.words, found.label) == ((word, "x"), ("B-PER", "O"))


def test_the_time_of_a_split_grows_with_the_text_and_not_faster():
    """A search for addresses of mail at each of these characters would take over a minute."""
    start = time.process_time()
    assert len(split_words("+" * 200_000)) == 200_000
    assert len(split_words("+-" * 100_000)) == 200_000
    assert time.process_time() - start < 20


@pytest.mark.real
@pytest.mark.slow
def test_conll_written_as_running_text_has_its_entities_at_their_places(shared):
    draw = random.Random(0)
    count = other = 0
    for example in read_conll(shared / "conll2003" / "valid.txt"):
        text, places = "", []
        for word in example.words:
            text += draw.choice((" ", "  ", "\t", " 🙂 ", "\u00a0")) if text else ""
            places.append((len(text), len(text) + len(word)))
            text += word
        spans = [
            (places[first][0], places[end - 1][1], kind)
            for first, end, kind in entities(example.label)
        ]
        # As predicted: the tags of the words that the text is split into mark the same characters.
        words = split_words(text)
        edges = {word.start for word in words}, {word.end for word in words}
        count += len(spans)
        other += sum(start not in edges[0] or end not in edges[1] for start, end, _ in spans)
    assert count == 5942 and other <= 6


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_entities_given_by_characters_become_tags_and_come_back(tmp_path):
    text = "Angela Merkel visited the U.N. in New  York."
    spans = [[0, 13, "PER"], {"start": 26, "end": 30, "label": "ORG"}, [34, 43, "LOC"]]
    rows = [{"text": text, "entities": spans}, {"text": "Nobody came.", "entities": []}]
    source = read_tables("tag", train=write(tmp_path / "a.jsonl", rows))
    first, second = source.examples("train")
    assert first.label == (*("B-PER", "I-PER", "O", "O", "B-ORG", "O", "B-LOC", "I-LOC", "O"),)
    assert second.label == ("O", "O", "O")
    found = predicted_with(first, first.label)["entities"]
    assert [(e["start"], e["end"], e["type"]) for e in found] == [
        (0, 13, "PER"),
        (26, 30, "ORG"),
        (34, 43, "LOC"),
    ]
    assert all(text[e["start"] : e["end"]] == e["text"] for e in found)
    assert found[2]["text"] == "New  York" and found[2]["probability"] == pytest.approx(0.5)


def predicted_with(example, tags):
    """The prediction of a model that gives half of the probability to each word's tag in `tags`.

    Such a model takes a word that it does not know for a person.
    """
    task = TagTask.of_labels(ENTITY_TAGS, name="t")
    tokens = "[PAD] [UNK] [CLS] [SEP] [MASK] new york is nice . : )".split()
    tokenizer = WordPieceTokenizer({t: i for i, t in enumerate(tokens)}, do_lower_case=True)
    features = task.features(example, tokenizer, 32)
    outputs = []
    for feature in features:
        logits = np.zeros((len(feature.input_ids), len(ENTITY_TAGS)), np.float32)
        for token, word in enumerate(feature.origins):
            if word >= 0:
                tag = "B-PER" if tags is None and feature.input_ids[token] == 1 else "O"
                tag = tag if tags is None else tags[word]
                logits[token, ENTITY_TAGS.index(tag)] = np.log(len(ENTITY_TAGS) - 1)
        outputs.append({"logits": logits})
    return task.predict(example, features, outputs)


def test_unknown_symbols_of_a_running_text_are_no_entities_and_break_none():
    task = TagTask.of_labels(ENTITY_TAGS, name="t")
    text = "New 🙂 York ❤️ is \u2192 nice 👩‍👩‍👧 :) Zürich 🙂"
    read = from_text(task, text, None)
    names = [entity["text"] for entity in predicted_with(read, None)["entities"]]
    assert names == ["Zürich"]  # an unknown word with letters may be a name
    tags = ["B-LOC" if w == "New" else "I-LOC" if w == "York" else "O" for w in read.words]
    prediction = predicted_with(read, tags)
    assert [entity["text"] for entity in prediction["entities"]] == ["New 🙂 York"]
    assert prediction["words"] == list(read.words)
    assert prediction["labels"][:4] == ["B-LOC", "I-LOC", "I-LOC", "O"]
    assert prediction["probabilities"][0] == pytest.approx(0.5)
    assert prediction["probabilities"][3] is None  # an emoji that was not read
    # Words that were given as words are encoded as transformers encodes them.
    given = Example(id="1", where="row 1", words=("new", "🙂"))
    assert [e["text"] for e in predicted_with(given, None)["entities"]] == ["🙂"]
    assert predicted_with(from_text(task, "🙂🙂", None), None)["entities"] == []


def test_words_behind_the_first_window_have_tags_and_probabilities():
    sentence = Example(id="1", where="row 1", words=("york",) * 40)
    prediction = predicted_with(sentence, ["O"] * 35 + ["B-LOC"] * 5)
    assert prediction["probabilities"] == pytest.approx([0.5] * 40)
    assert prediction["labels"] == ["O"] * 35 + ["B-LOC"] * 5
    assert [entity["first_word"] for entity in prediction["entities"]] == [35, 36, 37, 38, 39]


@pytest.mark.parametrize(
    ("entity", "message"),
    [
        ([0, 99, "PER"], "is not within the text, which has 9 characters"),
        ([3, 3, "PER"], "is empty: `end` is the position after its last character"),
        ([0, 5], "is not an entity"),
        ({"start": 0, "label": "PER"}, "is not an entity"),
        ([0, 5, "two words"], "is not an entity"),
        ([4, 5, "PER"], "has no words"),
        ("B-PER", "tags need a list of words"),
    ],
)
def test_a_wrong_entity_is_named_with_its_row(tmp_path, entity, message):
    path = write(tmp_path / "a.jsonl", [{"text": "Anna came", "entities": [entity]}])
    with pytest.raises(ValueError, match=f"row 1.*{message}"):
        list(read_tables("tag", train=path).examples("train"))


def test_lists_in_cells_of_csv_are_read_as_in_json(tmp_path):
    rows = [
        ("Anna left.", [{"start": 0, "end": 4, "label": "PER"}]),
        ("[sic] To Bonn", [[9, 13, "LOC"]]),
        ("[1]", []),
        ("[]", []),
    ]
    with (tmp_path / "text.csv").open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(("text", "entities"))
        table.writerows((text, json.dumps(entities)) for text, entities in rows)
    with (tmp_path / "words.csv").open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(("words", "tags"))
        table.writerow((json.dumps(["Anna", "left"]), json.dumps(["B-PER", "O"])))
    examples = list(read_tables("tag", train=tmp_path / "text.csv").examples("train"))
    assert [example.text for example in examples] == [text for text, _ in rows]
    assert [example.label for example in examples] == [
        ("B-PER", "O", "O"),
        ("O", "O", "O", "O", "B-LOC"),
        ("O", "O", "O"),
        ("O", "O"),
    ]
    # In other formats, a text is a text.
    path = write(tmp_path / "a.jsonl", [{"text": '["Anna", "b"]', "entities": [[2, 6, "PER"]]}])
    (example,) = read_tables("tag", train=path).examples("train")
    assert example.text == '["Anna", "b"]' and example.label.count("B-PER") == 1
    (tmp_path / "a.txt").write_text('[]\n["a", "b"]\n')
    found = read_tables("tag", test=tmp_path / "a.txt", conll=False).examples("test")
    assert [example.text for example in found] == ["[]", '["a", "b"]']
    (example,) = read_tables("tag", train=tmp_path / "words.csv").examples("train")
    assert (example.words, example.label) == (("Anna", "left"), ("B-PER", "O"))
    (tmp_path / "text.csv").write_text("text,entities\nAnna left.,\n")
    with pytest.raises(ValueError, match="row 2 has no list of entities"):
        list(read_tables("tag", train=tmp_path / "text.csv").examples("train"))
    (example,) = read_tables("tag", test=tmp_path / "text.csv").examples("test")
    assert example.label is None


def test_an_entity_that_ends_within_a_word_is_taken_as_whole_words_and_shown(tmp_path):
    rows = [
        {"text": "Bob Miller's anti-IL2 didn't", "entities": [[0, 10, "PER"], [18, 21, "GENE"]]},
        {"text": "Bob Miller", "entities": [[1, 10, "PER "]]},
        {"text": "我爱北京", "entities": [[2, 4, "LOC"]]},
        {"text": "zoehaus in Berlin", "entities": [[0, 3, "A"], [11, 17, "LOC"]]},
    ]
    source = read_tables("tag", train=write(tmp_path / "a.jsonl", rows))
    for _ in range(2):  # counted anew at each reading
        first, second, third, fourth = source.examples("train")
        assert first.label == ("B-PER", "I-PER", "O", "B-GENE", "O", "O")
        assert (second.words, second.label) == (("Bob", "Miller"), ("B-PER", "I-PER"))
        assert third.label == ("O", "O", "B-LOC", "I-LOC")
        assert fourth.label == ("B-A", "O", "B-LOC")
        ((reason, count),) = source.rows["train"].counts.items()
        assert count == 3 and "within a word (such as 'anti-IL2' in" in reason and "row 1" in reason
    # The words are the same without the labels, so that these do not help a prediction.
    without = [{"text": row["text"]} for row in rows]
    found = read_tables("tag", test=write(tmp_path / "b.jsonl", without), conll=False)
    words = [example.words for example in found.examples("test")]
    assert words == [example.words for example in source.examples("train")]


WITHOUT_SPACES = {
    "Chinese": ("我在北京大学上海分校", ("北京大学", "上海")),
    "Japanese": ("昨日トヨタの豊田氏がパリへ行った。", ("トヨタ", "豊田", "パリ")),
    "Thai": ("นายสมชายไปกรุงเทพมหานคร", ("สมชาย", "กรุงเทพมหานคร")),
    "Khmer": ("លោកសុខទៅភ្នំពេញ", ("សុខ", "ភ្នំពេញ")),
    "Lao": ("ທ້າວບຸນໄປວຽງຈັນ", ("ບຸນ", "ວຽງຈັນ")),
    "Burmese": ("ဦးအောင်သည်ရန်ကုန်သို့သွားသည်", ("အောင်", "ရန်ကုန်")),
}


@pytest.mark.parametrize("language", WITHOUT_SPACES)
def test_entities_in_scripts_without_spaces_are_found_at_their_characters(tmp_path, language):
    text, names = WITHOUT_SPACES[language]
    spans = [[text.index(name), text.index(name) + len(name), "PER"] for name in names]
    source = read_tables(
        "tag", train=write(tmp_path / "a.jsonl", [{"text": text, "entities": spans}])
    )
    (example,) = source.examples("train")
    assert not source.change_notes() and not example.cut
    prediction = predicted_with(example, example.label)
    found = [(e["start"], e["end"], e["text"]) for e in prediction["entities"]]
    assert found == [(*span[:2], name) for span, name in zip(spans, names, strict=True)]
    task = TagTask.of_labels(ENTITY_TAGS, name="t")
    assert task.score([(example, prediction)])["f1"] == 1.0


@pytest.mark.parametrize(
    ("text", "span"),
    [("서울에서 왔다", [0, 2]), ("die Berlinreise", [4, 10]), ("Helsingissä on", [0, 8])],
)
def test_entities_within_a_word_count_by_their_own_characters(tmp_path, text, span):
    first = {"text": "Berlin 서울", "entities": [[0, 6, "LOC"], [7, 9, "LOC"]]}
    rows = [first, {"text": text, "entities": [[*span, "LOC"]]}]
    source = read_tables("tag", train=write(tmp_path / "a.jsonl", rows))
    task = TagTask.of_labels(ENTITY_TAGS, name="t")
    pairs = [(e, predicted_with(e, e.label)) for e in source.examples("train")]
    ((reason, _),) = source.rows["train"].counts.items()
    assert "learnt as whole words, and count as wrong in the scores" in reason
    scores = task.score(pairs)
    assert scores == {
        "precision": pytest.approx(2 / 3),
        "recall": pytest.approx(2 / 3),
        "f1": pytest.approx(2 / 3),
        "accuracy": 1.0,
    }
    report = ClassReport(task)
    list(report.observe(pairs))
    (row,) = report.scores()
    assert (row.name, row.f1, row.support) == ("LOC", pytest.approx(2 / 3), 3)


def test_row_numbers_are_whole_and_the_others_are_counted(tmp_path):
    rows = [{"text": "Anna came", "entities": [[0, 99, "PER"]]} for _ in range(150)]
    with pytest.raises(ValueError, match=r"row 1, 2, 3, .*, \d+ and 1\d\d more: the entity"):
        list(read_tables("tag", train=write(tmp_path / "a.jsonl", rows)).examples("train"))


def test_entities_that_overlap_are_refused(tmp_path):
    rows = [{"text": "Anna came", "entities": [[0, 4, "PER"], [2, 6, "LOC"]]}]
    with pytest.raises(ValueError, match='"Anna" and "na c" overlap'):
        list(read_tables("tag", train=write(tmp_path / "a.jsonl", rows)).examples("train"))


@pytest.mark.parametrize(
    ("name", "content", "columns"),
    [
        ("a.txt", "Anna B-PER\ncame O\n\nBob B-PER\n", True),
        ("a.txt", "Anna\ncame\n\nBob\n", True),
        ("a.tsv", "Anna\tNNP\ncame\tVBD\n\nBob\tNNP\n", True),
        ("a.txt", "Anna came to Berlin.\nBob stayed.\n", False),
        ("a.txt", "Anna came\nBob stayed\n", False),
        ("a.csv", "text\nAnna came\n", False),
    ],
)
def test_columns_are_told_from_running_text(tmp_path, name, content, columns):
    (tmp_path / name).write_text(content)
    assert has_columns(tmp_path / name, ("O", "B-PER", "I-PER")) is columns


@pytest.mark.parametrize(("text", "asked"), [("🙂 Anna came", True), ("x Anna came", False)])
def test_entities_cut_after_an_emoji_ask_how_positions_are_counted(tmp_path, text, asked):
    # In UTF-16, Anna is at 3 to 7.
    row = {"text": text, "entities": [[3, 7, "PER"], [0, 1, "X"]]}
    (tmp_path / "a.jsonl").write_text(json.dumps(row))
    source = read_tables("tag", train=tmp_path / "a.jsonl")
    list(source.examples("train"))
    (note,) = source.change_notes()
    assert "within a word" in note and ("UTF-16" in note) == asked
