"""Texts that are longer than an input: their windows, and predictions from all of them together."""

import random

import numpy as np
import pytest

from bertjax.data.batches.batch import encode_feature
from bertjax.inference.saved_task import saved_task
from bertjax.tasks.classification import (
    ClassificationTask,
    MultiLabelTask,
    RegressionTask,
    sigmoid,
    softmax,
)
from bertjax.tasks.dataset import Example
from bertjax.tasks.tagging import TagTask
from bertjax.tasks.task import TruncatedTexts, windows
from bertjax.tokenization import train_bpe

LABELS = ("O", "B-X", "I-X")


@pytest.fixture(scope="module", params=["wordpiece", "bpe"])
def either(request, tokenizer, sentences):
    """A tokenizer with token types and pairs as BERT's, and one as RoBERTa's."""
    return tokenizer if request.param == "wordpiece" else train_bpe(sentences, vocab_size=300)


def tagged(draw, words):
    labels = tuple(draw.choice(LABELS) for _ in words)
    return Example(id="1", where="row 1", words=tuple(words), label=labels)


def random_words(draw, sentences, count):
    """Words of one piece and of several, some of which no window holds as a whole."""
    words = " ".join(sentences).split()
    return [
        draw.choice(words) if draw.random() < 0.9 else "".join(draw.choices("abcdefghij.", k=60))
        for _ in range(count)
    ]


def test_texts_that_fit_and_first_windows_are_the_truncated_features(either, sentences):
    draw = random.Random(0)
    for _ in range(60):
        first, second = (" ".join(draw.sample(sentences, draw.randint(1, 5))) for _ in range(2))
        for pair in (None, second):
            example = Example(id="1", where="row 1", text=first, pair=pair, label="b")
            length, stride = draw.randint(7, 90), draw.randint(1, 40)
            cut = ClassificationTask(name="c", labels=("a", "b"))
            whole = ClassificationTask(name="c", labels=("a", "b"), doc_stride=stride)
            (expected,) = cut.features(example, either, length)
            found = whole.features(example, either, length)
            assert encode_feature(found[0]) == encode_feature(expected)
            fits = len(either.encode_pair(first, pair)[0]) <= length
            assert (len(found) == 1) == fits


def test_sentences_that_fit_have_the_features_of_words_alone(either, sentences):
    task, draw = TagTask.of_labels(LABELS, name="t"), random.Random(0)
    for sentence in sentences[:50]:
        example = tagged(draw, sentence.split())
        pieces = either.encode_after_space(example.words)
        (feature,) = task.features(example, either, 512)
        ids = [either.cls_token_id, *(i for ids in pieces for i in ids), either.sep_token_id]
        starts = np.cumsum([1, *map(len, pieces)])[:-1]
        assert feature.input_ids.tolist() == ids
        assert feature.lengths == feature.a_lengths == (len(ids),)
        labels = np.full(len(ids), -1)
        labels[starts] = [LABELS.index(label) for label in example.label]
        np.testing.assert_array_equal(feature.labels, labels)
        assert feature.labels.dtype == feature.input_ids.dtype == np.int32
        assert feature.origins[starts].tolist() == [*range(len(pieces))]
        assert (feature.origins >= 0).sum() == len(pieces)


@pytest.mark.parametrize("doc_stride", [None, 1, 5, 17, 99])
def test_windows_hold_every_word_once_where_it_has_the_most_context(either, sentences, doc_stride):
    draw = random.Random(doc_stride)
    task = TagTask.of_labels(LABELS, name="t", doc_stride=doc_stride)
    for length in (5, 12, 31):
        example = tagged(draw, random_words(draw, sentences, 150))
        pieces = either.encode_after_space(example.words)
        starts = np.cumsum([0, *map(len, pieces)])
        stream = [i for ids in pieces for i in ids]
        features = task.features(example, either, length)
        assert all(len(feature.input_ids) <= length for feature in features)
        at = 0
        places: dict[int, list[tuple[int, int]]] = {}  # of each word: its window and the position
        for window, feature in enumerate(features):
            ids = feature.input_ids[1:-1].tolist()
            # The window begins with a word, and is the next place of its pieces in the text.
            at = next(s for s in starts[:-1] if s >= at and stream[s : s + len(ids)] == ids)
            for word in np.flatnonzero((starts[:-1] >= at) & (starts[:-1] < at + len(ids))):
                places.setdefault(int(word), []).append((window, int(starts[word]) - at))
            at += 1
        found = [(w, k) for k, f in enumerate(features) for w in f.origins.tolist() if w >= 0]
        assert sorted(w for w, _ in found) == [*range(len(pieces))]
        for word, window in found:
            sizes = [len(feature.input_ids) - 2 for feature in features]
            context = {
                k: min(position, sizes[k] - 1 - position) + 0.01 * sizes[k]
                for k, position in places[word]
            }
            assert context[window] == max(context.values())
        for feature in features:
            marked = feature.origins >= 0
            assert (feature.labels[~marked] == -1).all()
            expected = [LABELS.index(example.label[w]) for w in feature.origins[marked]]
            assert feature.labels[marked].tolist() == expected


def test_a_long_document_is_tagged_as_its_words_are_in_their_windows(either, sentences):
    draw, rng = random.Random(1), np.random.default_rng(1)
    task = TagTask.of_labels(LABELS, name="t")
    example = tagged(draw, random_words(draw, sentences, 300))
    features = task.features(example, either, 32)
    outputs = [{"logits": rng.normal(size=(len(f.input_ids), 3))} for f in features]
    prediction = task.predict(example, features, outputs)
    assert len(features) > 20
    for word in range(300):
        ((feature, output),) = (
            pair for pair in zip(features, outputs, strict=True) if word in pair[0].origins
        )
        (token,) = np.flatnonzero(feature.origins == word)
        probabilities = softmax(output["logits"])[token]
        assert prediction["labels"][word] == LABELS[int(probabilities.argmax())]
        assert prediction["probabilities"][word] == probabilities.max()


def test_windows_of_a_text_or_pair_cover_the_longer_text_and_repeat_the_other(either, sentences):
    draw = random.Random(2)
    cls, sep = either.cls_token_id, either.sep_token_id
    for _ in range(40):
        first, second = (" ".join(draw.sample(sentences, draw.randint(1, 9))) for _ in range(2))
        a, b = either.encode([first, second])
        length, stride = draw.randint(8, 60), draw.randint(1, 30)
        task = RegressionTask(name="r", doc_stride=stride)
        example = Example(id="1", where="row 1", text=first, pair=second, label=1.5)
        features = task.features(example, either, length)
        room = length - either.layout.num_special_tokens(pair=True)
        if len(a) + len(b) <= room:
            assert len(features) == 1
            continue
        short, long = (b, a) if len(a) > len(b) else (a, b)
        short = short[: room // 2]
        parts = [long[s:e] for s, e in windows(len(long), room - len(short), stride)]
        separators = [sep] * either.layout.separators
        for feature, part in zip(features, parts, strict=True):
            texts = (part, short) if len(a) > len(b) else (short, part)
            assert feature.input_ids.tolist() == [cls, *texts[0], *separators, *texts[1], sep]
            assert feature.labels is not None and feature.labels.tolist() == [1.5]
        single = task.features(Example(id="1", where="", text=first, label=0.0), either, length)
        assert [f.input_ids[1:-1].tolist() for f in single] == [
            a[s:e] for s, e in windows(len(a), length - 2, stride)
        ]


def test_predictions_of_a_long_text_are_those_of_the_mean_logits(tokenizer, sentences):
    rng = np.random.default_rng(0)
    example = Example(id="1", where="row 1", text=" ".join(sentences[:20]))
    names = ("a", "b", "c")
    classes = ClassificationTask(name="c", labels=names, doc_stride=20)
    several = MultiLabelTask(name="m", labels=names, doc_stride=20)
    number = RegressionTask(name="r", mean=5.0, std=2.0, doc_stride=20)
    features = classes.features(example, tokenizer, 40)
    assert len(features) > 5
    logits = rng.normal(size=(len(features), 3)).astype(np.float32)
    outputs = [{"logits": row} for row in logits]
    mean = logits.astype(float).mean(0)
    found = classes.predict(example, features, outputs)
    np.testing.assert_allclose([*found["probabilities"].values()], softmax(mean), rtol=1e-12)
    assert found["label"] == names[int(mean.argmax())]
    found = several.predict(example, features, outputs)
    np.testing.assert_allclose([*found["probabilities"].values()], sigmoid(mean), rtol=1e-12)
    found = number.predict(example, features, outputs)
    assert found["score"] == pytest.approx(5.0 + 2.0 * mean[0], rel=1e-12)


def test_only_texts_that_are_not_read_in_windows_are_counted_as_truncated(tokenizer, sentences):
    text = Example(id="1", where="row 1", text=" ".join(sentences[:9]), words=("abc",) * 99)
    for task, count in (
        (ClassificationTask(name="c", labels=("a",)), 1),
        (ClassificationTask(name="c", labels=("a",), doc_stride=9), 0),
        (TagTask.of_labels(LABELS, name="t"), 0),
    ):
        truncated = TruncatedTexts(task, 20)
        truncated.add(text, task.features(text, tokenizer, 20))
        assert bool(truncated.message) == bool(count)
        assert not count or "(--doc_stride reads them in windows)" in truncated.message


def test_a_saved_model_knows_its_stride_and_older_ones_are_read_as_before():
    def saved(head, **description):
        return saved_task(head, ["O", "B-X"], 2, {}, {"max_length": 32, **description}, 64)

    for task in (
        TagTask.of_labels(LABELS, name="t", doc_stride=7),
        ClassificationTask(name="c", labels=("a", "b"), doc_stride=9),
        ClassificationTask(name="c", labels=("a", "b")),
    ):
        description = task.description(32)
        assert saved(task.head, **description).doc_stride == task.doc_stride
        del description["doc_stride"]
        assert saved(task.head, **description).doc_stride is None
    assert saved("question_answering", label_kind="span").doc_stride == 128
    assert saved("question_answering", label_kind="span", doc_stride=5).doc_stride == 5
    with pytest.raises(ValueError, match="doc_stride=0"):
        saved("token_classification", doc_stride=0)
