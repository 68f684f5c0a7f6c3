"""text[start:end] is the entity or the answer: with emoji, combining marks and any line ends."""

import csv
import json
import random
import string

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

from bertjax.inference.texts import from_text
from bertjax.tasks.question_answering import SpanTask
from bertjax.tasks.sources.squad import read_questions
from bertjax.tasks.tagging import TagTask
from bertjax.tokenization import WordPieceTokenizer, train_bpe
from tests.tables import read_tables

TAGS = ("O", "B-PER", "I-PER", "B-LOC", "I-LOC")
# Composed and decomposed accents, vowel signs, Chinese characters, letters outside of the BMP.
NAMES = ("Zoë", "Zoe\u0308", "Jose\u0301", "n\u0303andu\u0301", "हिन्दी", "東京", "O’Brien", "𝒜nna")
PLAIN = (
    "went",
    "to",
    "see",
    "cafe\u0301",
    "the",
    "9,5",
    "U.N.",
    "🙂",
    "👩‍👩‍👧",
    "👍🏽",
    "❤️",
    ",",
    "I",
)
SPACES = (" ", "  ", "\n", "\r\n", "\r\n\r\n", "\r", "\t", "\u00a0", "\u2028", " 🙂 ", " ❤️\r\n")
FORMATS = ("jsonl", "json", "csv", "parquet")


def wordpiece(lower):
    """A vocabulary of all letters of the texts; emoji are unknown to it."""
    letters = {*string.ascii_letters, *string.digits, *",.’", *"".join(NAMES)}
    if lower:
        letters = {*"".join(letters).lower()}
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    entries = [*special, *sorted(letters), *(f"##{letter}" for letter in sorted(letters))]
    return WordPieceTokenizer({t: i for i, t in enumerate(entries)}, do_lower_case=lower)


TOKENIZERS = {
    "uncased": lambda: wordpiece(True),
    "cased": lambda: wordpiece(False),
    "bpe": lambda: train_bpe([" ".join([*NAMES, *PLAIN])] * 3, vocab_size=300),
}


@pytest.fixture(scope="module", params=list(TOKENIZERS))
def any_tokenizer(request):
    return TOKENIZERS[request.param]()


def document(draw, names):
    """A text of words and names with odd spaces between; returns it and the places of the names."""
    text, places = draw.choice(["", " ", "\r\n", "\ufeff "]), []
    for _ in range(draw.randint(1, 60)):
        if names and draw.random() < 0.3:
            words = draw.choices(NAMES, k=draw.randint(1, 3))
            name = words[0] + "".join(draw.choice(SPACES) + word for word in words[1:])
            places.append((len(text), len(text) + len(name), name))
            text += name
        else:
            text += draw.choice(PLAIN)
        text += draw.choice(SPACES)
    return f"the {text}", [(start + 4, end + 4, name) for start, end, name in places]


def write(path, rows):
    """Writes rows in the format of the suffix; in CSV, lists are JSON."""
    if path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
    elif path.suffix == ".json":
        path.write_text(json.dumps(rows))
    elif path.suffix == ".parquet":
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    else:
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, [*rows[0]])  # quotes cells with line ends
            writer.writeheader()
            for row in rows:
                cells = {k: json.dumps(v) if isinstance(v, list) else v for k, v in row.items()}
                writer.writerow(cells)


def knowing(feature, count):
    """The logits of a model that knows the labels of a window's words."""
    logits = np.zeros((len(feature.input_ids), count), np.float32)
    (tokens,) = np.nonzero(feature.labels >= 0)
    logits[tokens, feature.labels[tokens]] = 9.0
    return {"logits": logits}


@pytest.mark.parametrize("suffix", FORMATS)
def test_entities_are_found_again_at_their_characters(any_tokenizer, tmp_path, suffix):
    draw, task = random.Random(suffix), TagTask.of_labels(TAGS, name="t")
    given = [document(draw, names=True) for _ in range(15)]
    rows = [
        {
            "text": text,
            "entities": [
                {"start": start, "end": end, "label": draw.choice(("PER", "LOC"))}
                for start, end, _ in places
            ],
        }
        for text, places in given
    ]
    write(tmp_path / f"a.{suffix}", rows)
    source = read_tables("tag", train=str(tmp_path / f"a.{suffix}"))
    count = 0
    for example, (text, places) in zip(source.examples("train"), given, strict=True):
        features = task.features(example, any_tokenizer, 24)
        outputs = [knowing(feature, len(TAGS)) for feature in features]
        found = task.predict(example, features, outputs)["entities"]
        assert [(e["start"], e["end"], e["text"]) for e in found] == places
        assert all(text[e["start"] : e["end"]] == e["text"] for e in found)
        # The labels are for the test alone: without them, the words and their places are the same.
        asked = from_text(task, text, None)
        assert (asked.words, asked.offsets) == (example.words, example.offsets)
        count += len(found)
    assert count > 50


def test_whatever_is_tagged_is_the_text_between_its_characters(any_tokenizer):
    """Even with random tags, on words and symbols that the model has not seen."""
    draw, rng = random.Random(0), np.random.default_rng(0)
    task, count = TagTask.of_labels(TAGS, name="t"), 0
    for _ in range(60):
        text, _ = document(draw, names=True)
        example = from_text(task, text, None)
        features = task.features(example, any_tokenizer, 24)
        outputs = [{"logits": rng.normal(size=(len(f.input_ids), 5))} for f in features]
        for entity in task.predict(example, features, outputs)["entities"]:
            first, last = example.words[entity["first_word"]], example.words[entity["last_word"]]
            assert text[entity["start"] : entity["end"]] == entity["text"]
            assert entity["text"].startswith(first) and entity["text"].endswith(last)
            count += 1
    assert count > 300


@pytest.mark.parametrize("suffix", FORMATS)
def test_answers_are_found_again_at_their_characters(any_tokenizer, tmp_path, suffix):
    draw = random.Random(suffix)
    task = SpanTask(name="qa", doc_stride=20, max_answer_length=60)
    given, rows = [], []
    while len(given) < 15:
        passage, places = document(draw, names=True)
        if places:
            start, end, name = draw.choice(places)
            given.append((passage, start, end, name))
            answer = (
                {"answer": name, "answer_start": start}
                if suffix == "csv"
                else {"answers": {"text": [name], "answer_start": [start]}}
            )
            rows.append({"id": str(len(rows)), "question": "who?", "context": passage, **answer})
    write(tmp_path / f"a.{suffix}", rows)
    source = read_questions({"train": str(tmp_path / f"a.{suffix}")})
    for example, (passage, start, end, name) in zip(source.examples("train"), given, strict=True):
        features = task.features(example, any_tokenizer, 100)
        outputs = []
        for feature in features:
            first, last = feature.labels
            starts, ends = np.zeros((2, len(feature.input_ids)), np.float32)
            starts[first], ends[last] = (9.0, 9.0) if first else (5.0, 5.0)
            outputs.append({"start_logits": starts, "end_logits": ends})
        found = task.predict(example, features, outputs)
        assert (found["answer"], found["answer_start"], found["answer_end"]) == (name, start, end)
        for entry in found["nbest"]:
            assert passage[entry["answer_start"] : entry["answer_end"]] == entry["text"]


def test_no_answer_is_nowhere(any_tokenizer):
    task = SpanTask(name="qa", with_impossible=True)
    example = from_text(task, "who?", "the 🙂 Zoë")
    features = task.features(example, any_tokenizer, 100)
    logits = np.zeros(len(features[0].input_ids), np.float32)
    logits[0] = 9.0
    found = task.predict(example, features, [{"start_logits": logits, "end_logits": logits}])
    assert (found["answer"], found["answer_start"], found["answer_end"]) == ("", -1, -1)
    assert "the 🙂 Zoë"[-1:-1] == found["answer"]
