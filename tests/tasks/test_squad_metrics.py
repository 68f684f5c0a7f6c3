"""SQuAD's metrics against the rules of the official scripts, restated another way."""

import json

import numpy as np
import pytest

from bertjax.tasks.metrics import normalize_answer, squad1, squad2

# Words and signs that meet the corners of the normalisation.
PIECES = (
    "a an the A An THE Theatre a.m. the-a thé 'the' _the_ the_ an\u00a0apple \u3000 \u2003the\u2009"
    " \u2014 ! \" # $%&' ()*+,-./ :;<=>?@ [\\]^_` {|}~ “a” ‘an’"
    " İstanbul ẞ ß Éa é e\u0301 naïve 東京 東 ａ ﬁ 10 10,000 $5 x y z \u200b \n \t"
).split(" ")


def _split_restated(text):
    """The words of an answer, character by character, without regular expressions."""
    words, word, letters = [], "", []
    for character in text.lower():
        if character.isascii() and character.isprintable() and not character.isalnum():
            if character != " ":
                continue
        letters.append(character)
    # An article is bounded by what is neither a letter, a digit nor "_" (which is gone by now).
    runs = []
    for character in letters:
        is_word = character.isalnum() or character == "_"
        if runs and runs[-1][0] == is_word:
            runs[-1][1] += character
        else:
            runs.append([is_word, character])
    kept = "".join(" " if run in ("a", "an", "the") else run for _, run in runs)
    for character in kept + " ":
        if not character.isspace():
            word += character
        elif word:
            words.append(word)
            word = ""
    return words


def _f1_restated(gold, answer):
    """2 |A ∩ B| / (|A| + |B|) over multisets, by crossing words out."""
    left, common = list(gold), 0
    for word in answer:
        if word in left:
            left.remove(word)
            common += 1
    return 2 * common / (len(gold) + len(answer)) if common else 0.0


def _random_texts(rng, count):
    texts = []
    for _ in range(count):
        pieces = rng.choice(PIECES, rng.integers(0, 6))
        texts.append(str(rng.choice(["", " ", " "])).join(pieces))
    return texts


def test_normalization_of_an_answer_by_hand():
    assert normalize_answer("The  Theatre, a.m.; an apple!") == "theatre am apple"
    assert normalize_answer("A") == normalize_answer("the, an.") == normalize_answer(" ") == ""
    assert normalize_answer("“the” cat") == "“ ” cat"
    assert normalize_answer("the-a") == "thea"


def test_normalization_equals_a_restatement_on_random_unicode():
    rng = np.random.default_rng(0)
    for text in _random_texts(rng, 5000):
        assert normalize_answer(text).split() == _split_restated(text)


def test_squad1_equals_a_restatement_on_random_answers():
    rng = np.random.default_rng(1)
    for _ in range(300):
        texts = _random_texts(rng, int(rng.integers(1, 5)))
        answer = str(rng.choice([*texts, *_random_texts(rng, 3)]))
        words = [_split_restated(text) for text in texts]
        exact = max(float(_split_restated(answer) == gold) for gold in words)
        f1 = max(_f1_restated(gold, _split_restated(answer)) for gold in words)
        assert squad1({"q": texts}, {"q": answer}) == pytest.approx(
            {"exact_match": exact, "f1": f1}
        )


def test_squad1_counts_a_missing_prediction_as_wrong():
    golds = {"1": ["x y"], "2": ["z"]}
    assert squad1(golds, {"1": "y", "3": "of no question"}) == pytest.approx(
        {"exact_match": 0.0, "f1": 1 / 3}
    )


def test_squad1_of_an_answer_of_articles_alone_is_exact_but_has_no_f1():
    assert squad1({"q": ["the"]}, {"q": "a"}) == {"exact_match": 1.0, "f1": 0.0}


def test_squad1_refuses_questions_without_answer():
    with pytest.raises(ValueError, match="'q' has no answer"):
        squad1({"q": []}, {"q": ""})
    with pytest.raises(ValueError, match="nothing to score"):
        squad1({}, {})


def _squad2_of_threshold(golds, predictions, null_odds, threshold):
    """(exact, f1) of each question where odds above the threshold mean no answer."""
    scores = {}
    for name, texts in golds.items():
        answer = "" if null_odds[name] > threshold else predictions[name]
        golds_words = [w for w in map(_split_restated, texts) if w] or [[]]
        words = _split_restated(answer)
        if null_odds[name] > threshold:
            scores[name] = (float(not texts),) * 2
        elif not words or golds_words == [[]]:
            scores[name] = (float(words in golds_words),) * 2
        else:
            scores[name] = (
                float(words in golds_words),
                max(_f1_restated(gold, words) for gold in golds_words),
            )
    return scores


@pytest.mark.parametrize("seed", range(20))
def test_squad2_equals_a_restatement_on_random_answers(seed):
    rng = np.random.default_rng(seed)
    names = [f"q{i}" for i in range(30)]
    golds = {n: _random_texts(rng, int(rng.integers(0, 4))) for n in names}
    predictions = {n: str(rng.choice([*golds[n], *_random_texts(rng, 2), "", "!"])) for n in names}
    odds = dict(zip(names, rng.permutation(30) / 3 - 5, strict=True))
    values = squad2(golds, predictions, odds, threshold=1.0)
    scores = _squad2_of_threshold(golds, predictions, odds, 1.0)
    for prefix, of in (("", names), ("HasAns_", [n for n in names if golds[n]])):
        assert values[prefix + "exact"] == pytest.approx(np.mean([scores[n][0] for n in of]))
        assert values[prefix + "f1"] == pytest.approx(np.mean([scores[n][1] for n in of]))
        assert values[prefix + "total"] == len(of)
    assert values["NoAns_total"] == 30 - values["HasAns_total"]
    without_odds = squad2(golds, predictions)
    high = squad2(golds, predictions, odds, threshold=1e9)
    assert without_odds == {k: v for k, v in high.items() if not k.startswith("best")}


def test_the_best_threshold_is_the_best_over_all_thresholds():
    rng = np.random.default_rng(0)
    for _ in range(50):
        names = [f"q{i}" for i in range(12)]
        golds = {n: [] if rng.random() < 0.5 else ["x y", "z"] for n in names}
        predictions = {n: str(rng.choice(["x", "z", "x y", "v"])) for n in names}
        odds = dict(zip(names, (rng.permutation(12) - 6.0).tolist(), strict=True))
        values = squad2(golds, predictions, odds)
        for key in ("exact", "f1"):
            by_threshold = {
                t: squad2(golds, predictions, odds, t)[key] for t in [-100.0, *odds.values()]
            }
            assert values[f"best_{key}"] == pytest.approx(max(by_threshold.values()))
            threshold = values[f"best_{key}_thresh"]
            if max(by_threshold.values()) > by_threshold[-100.0]:
                assert by_threshold[threshold] == pytest.approx(values[f"best_{key}"])


def test_squad2_names_what_is_missing():
    golds = {"1": ["x"], "2": []}
    with pytest.raises(ValueError, match="1 of 2 questions have no prediction, the first is '2'"):
        squad2(golds, {"1": "x"})
    with pytest.raises(ValueError, match="no odds of having no answer"):
        squad2(golds, {"1": "x", "2": ""}, {"2": 0.0})
    with pytest.raises(ValueError, match="nothing to score"):
        squad2({}, {})


def test_squad2_gives_the_groups_that_there_are():
    values = squad2({"1": ["x"]}, {"1": "x"})
    assert values == dict.fromkeys(("exact", "f1", "total", "HasAns_exact", "HasAns_f1"), 1.0) | {
        "HasAns_total": 1
    }


def _golds(file):
    with open(file, encoding="utf-8") as stream:
        data = json.load(stream)["data"]
    questions = [q for article in data for p in article["paragraphs"] for q in p["qas"]]
    return {q["id"]: [answer["text"] for answer in q["answers"]] for q in questions}


@pytest.mark.real
@pytest.mark.slow
def test_gold_answers_are_worth_100_on_the_dev_sets(shared):
    golds = _golds(shared / "squad" / "dev-v1.1.json")
    assert len(golds) == 10_570
    values = squad1(golds, {name: texts[0] for name, texts in golds.items()})
    assert values == {"exact_match": 1.0, "f1": pytest.approx(1.0, abs=1e-12)}
    golds = _golds(shared / "squad" / "dev-v2.0.json")
    answers = {name: texts[0] if texts else "" for name, texts in golds.items()}
    values = squad2(golds, answers, {n: 0.0 if golds[n] else 2.0 for n in golds})
    assert values["total"] == 11_873
    assert (values["HasAns_total"], values["NoAns_total"]) == (5928, 5945)
    for key in ("exact", "f1", "HasAns_f1", "NoAns_f1", "best_exact", "best_f1"):
        assert values[key] == pytest.approx(1.0, abs=1e-12)
