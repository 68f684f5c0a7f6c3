"""Documents that hold a text of a test file are left out, and counted."""

import json
import random

import pytest

from bertjax import prepare
from bertjax.data.preparation.exclusion import Excluded, runs_of
from bertjax.data.records import decode_row, read_shard
from bertjax.tokenization import train_wordpiece

WORDS = [a + b for a in "bdfgklmnprst" for b in ("a", "en", "ing", "o", "ub", "ed", "ist")]


def test_a_run_of_13_words_or_a_whole_shorter_text_is_found_whatever_case_and_punctuation():
    numbers = [f"word{n}" for n in range(40)]
    excluded = Excluded(runs_of([" ".join(numbers[:20]), " ".join(numbers[30:39]), "too short"]))
    assert excluded.is_in("Some. " + ", ".join(numbers[4:17]).upper() + "!")
    assert not excluded.is_in(" ".join(numbers[4:16]) + " and " + " ".join(numbers[16:20]))
    assert excluded.is_in("a " + " ".join(numbers[30:39]))
    assert not excluded.is_in("a " + " ".join(numbers[30:38]))
    assert not excluded.is_in("this is too short")


def test_each_character_of_scripts_without_spaces_is_a_word():
    text = "患者昨日开始发热并且咳嗽三天了"
    excluded = Excluded(runs_of([text]))
    assert excluded.is_in(f"记录:{text[1:14]}。")
    assert not excluded.is_in(f"记录:{text[1:10]}。")


def test_numbers_and_latin_words_beside_scripts_without_spaces_are_words_of_their_own():
    text = "患者于2021年3月因COVID肺炎住院治疗了三周"
    excluded = Excluded(runs_of([text]))
    assert excluded.is_in(f"据记录,该{text}后出院")
    assert not excluded.is_in(text[:9])


@pytest.mark.parametrize("processes", [1, 2])
def test_a_decontaminated_corpus_holds_no_test_row(processes, tmp_path, capsys):
    rng = random.Random(0)
    sentences = [" ".join(rng.choices(WORDS, k=20)) for _ in range(400)]
    tests = [" ".join(rng.choices(WORDS, k=20)) for _ in range(12)]
    rows = [{"id": n, "texts": {"question": text}} for n, text in enumerate(tests[:6])]
    rows[0]["label"] = "positive"
    rows += [{"id": n, "words": text.split()} for n, text in enumerate(tests[6:], 6)]
    (tmp_path / "test.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    documents = [sentences[n : n + 4] for n in range(0, 400, 4)]
    for number, text in enumerate(tests):
        documents[7 * number].insert(2, text.title())
    (tmp_path / "a.txt").write_text("\n\n".join("\n".join(x) for x in documents) + "\n")
    tokenizer = train_wordpiece(sentences, vocab_size=200)
    tokenizer.save(tmp_path / "tokenizer")
    settings = {
        "input": str(tmp_path / "a.txt"),
        "tokenizer": str(tmp_path / "tokenizer"),
        "text_format": "lines",
        "objective": "mlm",
        "eval_fraction": 0.0,
        "num_processes": processes,
    }
    output = tmp_path / "data"
    exclude = (str(tmp_path / "test.jsonl"),)
    metadata = prepare(**settings, output=str(output), exclude=exclude)
    assert metadata.counts["excluded_documents"] == 12
    assert metadata.splits["train"].documents == 88
    said = capsys.readouterr().out
    assert "excluded are 12.0% of the documents" in said
    assert "such as labels, are not searched" in said
    texts = []
    for path in output.glob("train-*.array_record"):
        texts += [tokenizer.decode(decode_row(row).input_ids.tolist()) for row in read_shard(path)]
    joined = " ".join(texts)
    assert not any(text in joined for text in tests)
    with pytest.raises(ValueError, match="was begun with other settings: excluded was"):
        prepare(**settings, output=str(output))
