"""Windows on a passage, their labels, and the choice of an answer among their logits."""

import json

import numpy as np
import pytest

from bertjax.data.batches.batch import decode_feature, encode_feature
from bertjax.tasks.dataset import Example
from bertjax.tasks.question_answering import SpanTask, _cut, best_spans
from bertjax.tasks.sources.squad import _read_by_id, read_questions, read_squad
from bertjax.tasks.task import widest_contexts, windows
from bertjax.tokenization import load_tokenizer, train_bpe
from bertjax.tokenization.wordpiece import WordPieceTokenizer
from tests.cases import WEEKLY


def example(text, pair, *answers, **more):
    return Example(
        id="q1", where="f.json, question q1", text=text, pair=pair, answers=answers, **more
    )


@pytest.fixture(scope="module")
def long_example(sentences):
    """A passage of many windows, and an answer deep inside."""
    passage = "  ".join(sentences[:12])
    answer = " ".join(sentences[5].split()[1:4])
    return example(sentences[20], passage, (answer, passage.index(answer)))


@pytest.fixture(scope="module")
def task():
    return SpanTask(name="squad", doc_stride=7, max_query_length=9)


def random_outputs(rng, features):
    shapes = [len(feature.input_ids) for feature in features]
    return [
        {"start_logits": rng.normal(size=n, scale=3), "end_logits": rng.normal(size=n, scale=3)}
        for n in shapes
    ]


def test_windows_overlap_by_the_stride_and_end_with_the_passage():
    assert windows(10, 10, 3) == [(0, 10)]
    assert windows(11, 10, 3) == [(0, 10), (3, 11)]
    assert windows(20, 10, 4) == [(0, 10), (4, 14), (8, 18), (12, 20)]
    assert windows(12, 5, 9) == [(0, 5), (5, 10), (10, 12)]


def test_a_feature_is_question_and_part_of_the_passage(task, tokenizer, long_example):
    features = task.features(long_example, tokenizer, 40)
    question = tokenizer.encode([long_example.text])[0][:9]
    (passage,) = tokenizer.encode([long_example.pair])
    cls, sep = tokenizer.cls_token_id, tokenizer.sep_token_id
    parts = windows(len(passage), 40 - len(question) - 3, 7)
    assert len(features) == len(parts) > 3
    for feature, (start, end) in zip(features, parts, strict=True):
        assert feature.input_ids.tolist() == [cls, *question, sep, *passage[start:end], sep]
        assert feature.lengths == (len(feature.input_ids),)
        assert feature.a_lengths == (len(question) + 2,)
        assert len(feature.input_ids) <= 40
        stored = decode_feature(encode_feature(feature))
        np.testing.assert_array_equal(stored.input_ids, feature.input_ids)
        np.testing.assert_array_equal(stored.labels, feature.labels)


def test_origins_are_the_characters_of_the_tokens(task, tokenizer, long_example):
    for feature in task.features(long_example, tokenizer, 40):
        a = feature.a_lengths[0]
        assert (feature.origins[:a] == -1).all() and (feature.origins[-1] == -1).all()
        for token, (begin, end) in zip(feature.input_ids[a:-1], feature.origins[a:-1], strict=True):
            text = long_example.pair[begin:end]
            assert tokenizer.tokens[token].removeprefix("##") == text.lower()


def test_a_pair_of_robertas_kind_has_two_separators_one_type_and_the_answers(task, sentences):
    tokenizer = train_bpe(sentences, vocab_size=300)
    passage = "  ".join(sentences[:12])
    words = sentences[5].split()
    answer = " ".join(words[1:4])
    asked = example(f"  {sentences[20]}", passage, (answer, passage.index(answer)))
    question = tokenizer.encode([sentences[20]])[0][:9]
    features = task.features(asked, tokenizer, 40)
    for feature in features:
        size = len(feature.input_ids)
        assert size <= 40 and feature.lengths == feature.a_lengths == (size,)
        begin = len(question) + 3
        ids = feature.input_ids.tolist()
        assert tokenizer.join(question, ids[begin:-1]) == (ids, [0] * size)
        assert (feature.origins[:begin] == -1).all() and (feature.origins[-1] == -1).all()
        for first, last in feature.origins[begin:-1]:
            assert passage[first:last].strip() == passage[first:last]
    predicted = task.predict(asked, features, gold_outputs(features))
    assert predicted["answer"] == answer
    assert predicted["nbest"][0]["answer_start"] == passage.index(answer)


def test_labels_are_the_first_answer_where_a_window_holds_it_whole(task, tokenizer, long_example):
    ((answer, start),) = long_example.answers
    held = 0
    for feature in task.features(long_example, tokenizer, 40):
        first, last = feature.labels
        a = feature.a_lengths[0]
        inside = feature.origins[a][0] <= start and feature.origins[-2][1] >= start + len(answer)
        assert inside == (first > 0)
        if inside:
            held += 1
            begin, end = feature.origins[first][0], feature.origins[last][1]
            assert long_example.pair[begin:end] == answer
        else:
            assert (first, last) == (0, 0)
    assert held >= 2


def test_labels_of_answers_at_the_edges_and_of_none(tokenizer, sentences):
    task, passage = SpanTask(name="squad"), sentences[0]
    end = len(passage)

    def label(*answers, **more):
        (feature,) = task.features(example("a?", passage, *answers, **more), tokenizer, 64)
        return None if feature.labels is None else (feature.labels - feature.a_lengths[0]).tolist()

    count = len(tokenizer.encode([passage])[0])
    assert label((passage, 0)) == [0, count - 1]
    assert label((passage[0], 0), (passage, 0)) == [0, 0]
    assert label(("nowhere", -1), (passage[-1], end - 1)) == [count - 1, count - 1]
    # With a space before it, and ending inside a word.
    space = passage.index(" ")
    of_word = label((passage[space + 1 : space + 3], space + 1))
    assert label((passage[space : space + 3], space)) == of_word
    assert label() is None
    (feature,) = task.features(example("a?", passage, label="impossible"), tokenizer, 64)
    assert feature.labels.tolist() == [0, 0]


@pytest.mark.parametrize(
    ("text", "pair", "what"),
    [(" \n", "a b", "question"), ("\x00", "a", "question"), ("a", " ", "passage")],
)
def test_empty_texts_are_refused_with_their_place(task, tokenizer, text, pair, what):
    with pytest.raises(ValueError, match=f"f.json, question q1: the {what} is empty"):
        task.features(example(text, pair), tokenizer, 40)


def test_settings_without_room_are_refused(task, tokenizer):
    with pytest.raises(ValueError, match="max_length=5 has no room"):
        task.features(example("a b c", "a b"), tokenizer, 5)
    with pytest.raises(ValueError, match="doc_stride=0"):
        SpanTask(name="squad", doc_stride=0)


def _widest_restated(parts):
    """Token by token: in which window is it best surrounded?"""
    chosen = [np.zeros(end - start, bool) for start, end in parts]
    for token in range(parts[-1][1]):
        scores = [
            min(token - start, end - 1 - token) + 0.01 * (end - start)
            if start <= token < end
            else -1
            for start, end in parts
        ]
        window = scores.index(max(scores))
        chosen[window][token - parts[window][0]] = True
    return chosen


@pytest.mark.parametrize(
    ("length", "room", "stride"), [(30, 30, 5), (50, 20, 7), (61, 10, 10), (23, 9, 4)]
)
def test_each_token_starts_answers_in_its_widest_context(length, room, stride):
    parts = windows(length, room, stride)
    found = widest_contexts(parts)
    for mine, expected in zip(found, _widest_restated(parts), strict=True):
        np.testing.assert_array_equal(mine, expected)


def test_best_spans_are_those_of_all_pairs():
    rng = np.random.default_rng(0)
    for length in (1, 3, 9, 40):
        starts, ends = rng.normal(size=(2, length))
        starts[rng.random(length) < 0.3] = -np.inf
        starts[0] = 1.0
        every = {
            (i, j): starts[i] + ends[j]
            for i in range(length)
            for j in range(i, min(i + 6, length))
            if starts[i] > -np.inf
        }
        expected = sorted(every, key=every.__getitem__, reverse=True)[:10]
        first, last = best_spans(starts, ends, 6, 10)
        assert set(zip(first.tolist(), last.tolist(), strict=True)) == set(expected)


def _answers_restated(task, passage, features, outputs):
    """(text, start logit, end logit) of the n best by loops over every pair of every window."""
    lengths = [f.lengths[0] - f.a_lengths[0] - 1 for f in features]
    starts = np.cumsum([0, *(min(n, task.doc_stride) for n in lengths[:-1])])
    parts = [(int(s), int(s) + n) for s, n in zip(starts, lengths, strict=True)]
    found = []
    for feature, output, may_start in zip(features, outputs, _widest_restated(parts), strict=True):
        for i in range(len(feature.input_ids)):
            for j in range(i, min(i + task.max_answer_length, len(feature.input_ids))):
                if feature.origins[i][0] < 0 or feature.origins[j][0] < 0:
                    continue
                if may_start[i - feature.a_lengths[0]]:
                    text = passage[feature.origins[i][0] : feature.origins[j][1]]
                    found.append((text, output["start_logits"][i], output["end_logits"][j]))
    nbest = {}
    for text, start, end in sorted(found, key=lambda row: row[1] + row[2], reverse=True):
        nbest.setdefault(text, (start, end))
    return [(text, *pair) for text, pair in nbest.items()][: task.n_best]


def test_a_threshold_needs_questions_without_an_answer():
    with pytest.raises(ValueError, match="null_threshold=1.5"):
        SpanTask(name="squad", null_threshold=1.5)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("with_impossible", [False, True])
def test_predictions_equal_a_restatement(tokenizer, long_example, seed, with_impossible):
    task = SpanTask(
        name="squad", doc_stride=7, n_best=5, max_answer_length=4, with_impossible=with_impossible
    )
    features = task.features(long_example, tokenizer, 30)
    outputs = random_outputs(np.random.default_rng(seed), features)
    prediction = task.predict(long_example, features, outputs)
    expected = _answers_restated(task, long_example.pair, features, outputs)
    null = min(o["start_logits"][0] + o["end_logits"][0] for o in outputs)
    assert prediction["null_odds"] == pytest.approx(null - expected[0][1] - expected[0][2])
    texts = [entry["text"] for entry in prediction["nbest"]]
    assert [t for t in texts if t] == [t for t, _, _ in expected][: len([t for t in texts if t])]
    assert texts.count("") == int(with_impossible)
    assert len(texts) == 6 if with_impossible and texts[-1] == "" else 5
    logits = np.array([e["start_logit"] + e["end_logit"] for e in prediction["nbest"]])
    assert (np.diff(logits) <= 0).all() or texts[-1] == ""
    probabilities = np.array([entry["probability"] for entry in prediction["nbest"]])
    np.testing.assert_allclose(probabilities, np.exp(logits) / np.exp(logits).sum())
    for entry in prediction["nbest"]:
        start = entry["answer_start"]
        assert (start == -1) == (not entry["text"])
        assert long_example.pair.startswith(entry["text"], max(start, 0))
    says_none = with_impossible and prediction["null_odds"] > 0
    assert prediction["answer"] == ("" if says_none else expected[0][0])
    chosen = texts.index(prediction["answer"])
    assert prediction["probability"] == probabilities[chosen]


def gold_outputs(features):
    """Logits of a model that knows the labels; 5 for nothing where there is none."""
    outputs = []
    for feature in features:
        start, end = np.zeros((2, len(feature.input_ids)), np.float32)
        first, last = feature.labels
        start[first], end[last] = (9.0, 9.0) if first else (5.0, 5.0)
        outputs.append({"start_logits": start, "end_logits": end})
    return outputs


def test_the_threshold_decides_what_is_no_answer(tokenizer, long_example):
    def answer(threshold):
        task = SpanTask(name="squad2", doc_stride=7, with_impossible=True, null_threshold=threshold)
        features = task.features(long_example, tokenizer, 40)
        return task.predict(long_example, features, gold_outputs(features))["answer"]

    # [CLS] of the windows that hold the answer has logits of 0, the answer 9: odds of -18.
    assert answer(0.0) == answer(-17.9) == long_example.answers[0][0]
    assert answer(-18.1) == ""


def test_gold_logits_are_worth_1(tokenizer, long_example, sentences):
    none = example(sentences[3], sentences[4], label="impossible")
    unlabelled = example(sentences[3], sentences[4])
    for with_impossible, examples in [(False, [long_example]), (True, [long_example, none])]:
        task = SpanTask(name="squad", doc_stride=7, with_impossible=with_impossible)
        pairs = []
        for number, found in enumerate(examples):
            features = task.features(found, tokenizer, 40)
            renamed = Example(**{**vars(found), "id": str(number)})
            pairs.append((renamed, task.predict(found, features, gold_outputs(features))))
        values = task.score(pairs + [(unlabelled, pairs[0][1])])
        assert values["f1"] == 1.0
        assert values.get("exact", values.get("exact_match")) == 1.0
        if with_impossible:
            assert (values["total"], values["NoAns_total"], values["best_f1"]) == (2, 1, 1.0)
    assert task.score([(unlabelled, pairs[0][1])]) == {}


def test_answers_keep_the_accents_and_capitals_of_the_passage(tokenizer):
    # Two letters with a combining mark each; the tokenizer strips them.
    passage = "Abc Ha\u0301bi\u0301. Abc"
    task = SpanTask(name="squad")
    asked = example("ab?", passage, ("Ha\u0301bi\u0301", 4))
    features = task.features(asked, tokenizer, 64)
    assert task.predict(asked, features, gold_outputs(features))["answer"] == "Ha\u0301bi\u0301"


@pytest.mark.parametrize(
    ("before", "merged"),
    [
        ("", "\u1112\u1161\u11ab"),  # Hangul: three jamo
        ("", "\ud558\u11ab"),  # a syllable and a jamo
        *(("\u0995", vowel) for vowel in ("\u09c7\u09be", "\u09c7\u09d7")),  # Bengali
        *(("\u0b95", vowel) for vowel in ("\u0bc6\u0bbe", "\u0bc7\u0bbe", "\u0bc6\u0bd7")),  # Tamil
        ("\u0d15", "\u0d46\u0d3e"),  # Malayalam
        ("\u0c95", "\u0cc6\u0cc2\u0cd5"),  # Kannada
        ("", "\u1025\u102e"),  # Myanmar
        *(("", letter) for letter in ("e\u0301", "o\u0302\u0301", "\u304b\u3099", "\u05e9\u05c1")),
    ],
    ids=ascii,
)
def test_the_end_of_an_answer_goes_on_while_nfc_would_merge_the_next_character(before, merged):
    answer = f"x{before}{merged}"
    for following in ("y", " ", "\uac00", "\u1100", "\u0915", "1", ""):
        for end in range(len(merged)):
            passage = f"a {answer}{following}"
            assert _cut(passage, 2, 2 + len(answer) - end) == answer


def test_answers_hold_whole_syllables_although_tokens_end_within_them():
    vocabulary = {
        t: i for i, t in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "가", "?"])
    }
    tokenizer = WordPieceTokenizer(vocabulary, do_lower_case=False)
    passage = "\u1100\u1161\u11a8 가"
    asked = example("가?", passage, (passage[:3], 0))
    task = SpanTask(name="squad")
    features = task.features(asked, tokenizer, 64)
    answer = task.predict(asked, features, gold_outputs(features))
    assert (answer["answer"], answer["answer_end"]) == (passage[:3], 3)


def test_a_model_that_says_nan_is_answered_without_a_crash(task, tokenizer, long_example):
    features = task.features(long_example, tokenizer, 40)
    outputs = [{k: np.full_like(v, np.nan) for k, v in o.items()} for o in gold_outputs(features)]
    prediction = task.predict(long_example, features, outputs)
    assert prediction["answer"] and np.isfinite(prediction["null_odds"])


@pytest.mark.real
@pytest.mark.parametrize(
    ("version", "name"),
    [
        pytest.param("2.0", "bert-base-uncased", marks=pytest.mark.slow),
        pytest.param("1.1", "bert-base-uncased", marks=WEEKLY),
        pytest.param("1.1", "roberta-base", marks=pytest.mark.slow),
        pytest.param("2.0", "albert-base-v2", marks=WEEKLY),
    ],
)
def test_labels_of_real_passages_give_the_answers_back(shared, version, name):
    tokenizer = load_tokenizer(shared / "vocab" / name)
    source = read_squad(shared / "squad", version)
    task = SpanTask(name="squad", with_impossible=version == "2.0")
    pairs = []
    for number, found in enumerate(source.examples("dev")):
        if number % 20 == 0:
            features = task.features(found, tokenizer, 384)
            pairs.append((found, task.predict(found, features, gold_outputs(features))))
    values = task.score(pairs)
    # Some answers are longer than max_answer_length, or begin inside a piece.
    assert values["f1"] > 0.99


@pytest.mark.parametrize(
    ("gold", "answer", "f1"),
    [
        ("北京大学", "北京", 2 / 3),
        ("トヨタ自動車", "トヨタ", 2 / 3),
        ("กรุงเทพ", "กรุง", 2 / 3),
        ("ភ្នំពេញ", "ភ្នំ", 2 / 3),
        ("A型", "型", 2 / 3),
        ("New York", "York", 2 / 3),
        ("서울 시", "서울", 2 / 3),
    ],
)
@pytest.mark.parametrize("impossible", [False, True])
def test_own_answers_are_compared_by_characters_where_scripts_have_no_spaces(
    gold, answer, f1, impossible
):
    example = Example(id="1", where="row 1", text="?", pair=gold, answers=((gold, 0),))
    pairs = [(example, {"answer": answer, "null_odds": 0.0})]
    own, official = (SpanTask(name=x, with_impossible=impossible) for x in ("qa", "squad2"))
    assert own.score(pairs)["f1"] == pytest.approx(f1)
    assert official.score(pairs)["f1"] == pytest.approx(f1 if " " in gold else 0)
    assert own.score([(example, {"answer": gold, "null_odds": 0.0})])["f1"] == 1.0


def asked(name, answer):
    """A question that is answered by the first word of its passage."""
    return Example(id=name, where="f", text="Who?", pair="Anna left", answers=((answer, 0),))


@pytest.mark.parametrize("with_impossible", [False, True])
def test_questions_with_one_id_are_scored_each(with_impossible):
    task = SpanTask(name="qa", with_impossible=with_impossible)
    pairs = [
        (asked("1", "Anna"), {"answer": "Anna", "null_odds": 0.0}),
        (asked("1", "Bo"), {"answer": "Anna", "null_odds": 0.0}),
        (asked("2", "Bo"), {"answer": "Anna", "null_odds": 0.0}),
        (asked("2", "Bo"), {"answer": "Bo", "null_odds": 0.0}),
    ]
    one_by_one = [task.score([pair])["f1"] for pair in pairs]
    assert one_by_one == [1.0, 0.0, 0.0, 1.0]
    assert task.score(pairs)["f1"] == np.mean(one_by_one)


def test_answers_that_a_file_by_id_cannot_hold_are_counted(tmp_path, capsys):
    task = SpanTask(name="qa")
    pairs = [
        (asked(name, "Anna"), {"answer": answer, "null_odds": 0.0})
        for name, answer in [("1", "a"), ("1", "b"), ("1", "c"), ("2", "d")]
    ]
    assert len([*task.write_predictions(tmp_path, "dev", iter(pairs))]) == 4
    assert json.loads((tmp_path / "dev_answers.json").read_text()) == {"1": "c", "2": "d"}
    assert len((tmp_path / "dev.jsonl").read_text().splitlines()) == 4
    assert "warning: 2 questions of dev have the id of an earlier one" in capsys.readouterr().out
    assert len([*task.write_predictions(tmp_path, "test", iter(pairs[2:]))]) == 2
    assert "warning" not in capsys.readouterr().out


QUESTION = {"question": "Who?", "context": "Anna left.", "answers": [{"text": "Anna"}]}


@pytest.mark.parametrize("split", ["train", "dev"])
def test_repeated_ids_are_said_in_tables_and_official_files(tmp_path, split):
    rows = [{"id": name, **QUESTION} for name in ("1", "1", "2", "1")]
    table, official = tmp_path / "a.jsonl", tmp_path / "a.json"
    table.write_text("".join(json.dumps(row) + "\n" for row in rows))
    nested = {"context": "Anna left.", "qas": rows}
    official.write_text(json.dumps({"data": [{"paragraphs": [nested]}]}))
    for path in (table, official):
        source = read_questions({split: path})
        assert [e.id for e in source.examples(split)] == ["1", "1", "2", "1"]
        assert source.rows[split].counts == {
            "questions with the id of an earlier one, each read by itself": 2
        }


def test_questions_without_ids_are_numbered_through_all_files_of_a_folder(tmp_path):
    for name in "ab":
        (tmp_path / f"{name}.jsonl").write_text((json.dumps(QUESTION) + "\n") * 2)
    source = read_questions({"dev": tmp_path})
    assert [e.id for e in source.examples("dev")] == [
        "0",
        "1",
        "2",
        "3",
    ] and not source.change_notes()


def test_predictions_that_repeat_an_id_are_refused(tmp_path):
    (tmp_path / "p.json").write_text('{"1": "a", "2": "b", "1": "c"}')
    with pytest.raises(ValueError, match="p.json repeats 1 ids"):
        _read_by_id(tmp_path / "p.json", str, "texts")
