import math
import random
from collections import defaultdict
from typing import get_args

import numpy as np
import pytest

from bertjax.data.preparation.segments import (
    OBJECTIVES,
    ExampleOptions,
    ObjectiveName,
    Pair,
    full_sentences,
)


def documents_of(rng, count, sentences=(1, 40), tokens=(1, 50)):
    """Boundaries of random documents that follow one another in one array of ids."""
    documents, position = [], 0
    for _ in range(count):
        bounds = [position]
        for _ in range(rng.integers(*sentences)):
            bounds.append(bounds[-1] + int(rng.integers(*tokens)))
        documents.append(bounds)
        position = bounds[-1]
    return documents


def examples_of(
    documents, name: ObjectiveName = "nsp", *, max_length=128, short=0.1, seed=0, shift=False
):
    """Examples of an objective; a single segment as a pair without B and label."""
    objective = OBJECTIVES[name]
    special_tokens = 3 if objective.has_sentence_pairs else 2
    options = ExampleOptions(max_length - special_tokens, short, shift)
    examples = objective.make_examples(documents, options, np.random.default_rng(seed))
    if objective.has_sentence_pairs:
        return list(examples)
    return [Pair(start, end, end, end, -1) for ((start, end),) in examples]


def test_every_name_of_an_objective_has_its_definition():
    assert get_args(ObjectiveName) == tuple(OBJECTIVES)


@pytest.mark.parametrize("objective", ["nsp", "sop", "mlm"])
@pytest.mark.parametrize("max_length", [8, 33, 128])
def test_no_example_is_empty_or_longer_than_allowed(objective, max_length):
    documents = documents_of(np.random.default_rng(0), 300)
    examples = list(examples_of(documents, objective, max_length=max_length))
    assert len(examples) >= len(documents)
    for a_start, a_end, b_start, b_end, label in examples:
        assert a_end > a_start
        if not OBJECTIVES[objective].has_sentence_pairs:
            assert b_start == b_end and label == -1
            assert a_end - a_start + 2 <= max_length
        else:
            assert b_end > b_start and label in (0, 1)
            assert a_end - a_start + b_end - b_start + 3 <= max_length


def test_next_sentences_follow_and_random_ones_come_from_another_document():
    documents = documents_of(np.random.default_rng(1), 200, tokens=(1, 20))
    number_of = {}
    for number, bounds in enumerate(documents):
        number_of.update(dict.fromkeys(range(bounds[0], bounds[-1]), number))
    follows = defaultdict(int)
    for a_start, a_end, b_start, b_end, label in examples_of(documents):
        same = number_of[a_start] == number_of[b_start]
        assert same == (label == 0)
        assert number_of[a_start] == number_of[a_end - 1]
        assert number_of[b_start] == number_of[b_end - 1]
        if label == 0:
            assert b_start >= a_end  # with room for what truncation trimmed
            follows[b_start == a_end] += 1
    assert follows[True] > 100


@pytest.mark.parametrize("objective", ["nsp", "sop", "mlm"])
def test_every_token_is_used_once_where_nothing_needs_trimming(objective):
    documents = documents_of(np.random.default_rng(2), 50)
    used = []
    if not OBJECTIVES[objective].has_sentence_pairs:
        max_length = 30  # sentences of up to 49 tokens have to be cut, and still none is lost
    else:
        max_length = 10**6
    for a_start, a_end, b_start, b_end, label in examples_of(
        documents, objective, max_length=max_length, short=0
    ):
        used += range(a_start, a_end)
        if label == 0 or (objective == "sop" and b_end == a_start):
            used += range(b_start, b_end)
    assert sorted(used) == list(range(documents[-1][-1]))


def test_swapped_segments_are_in_reverse_order():
    documents = documents_of(np.random.default_rng(3), 300, sentences=(2, 30), tokens=(1, 8))
    swapped = kept = 0
    for a_start, _, b_start, _, label in examples_of(documents, "sop"):
        kept += label == 0
        swapped += label == 1
        if label == 0:
            assert a_start < b_start
    assert abs(swapped / (swapped + kept) - 0.5) < 0.1


def test_single_sentences_are_always_paired_at_random():
    documents = documents_of(np.random.default_rng(4), 500, sentences=(1, 2))
    assert {example.label for example in examples_of(documents)} == {1}
    assert {example.label for example in examples_of(documents, "sop")} == {1}


def test_a_lone_document_of_one_sentence_is_paired_with_itself():
    (example,) = examples_of([[5, 9]])
    assert example == (5, 9, 5, 9, 1)


def test_duplicates_cut_single_segments_at_other_places():
    documents = documents_of(np.random.default_rng(5), 20)
    first = {example[:2] for example in examples_of(documents, "mlm", max_length=64)}
    second = {example[:2] for example in examples_of(documents, "mlm", max_length=64, shift=True)}
    assert len(first & second) < len(first) / 2


def test_the_same_seed_gives_the_same_examples():
    documents = documents_of(np.random.default_rng(6), 30)
    assert examples_of(documents, seed=3) == examples_of(documents, seed=3)
    assert examples_of(documents, seed=3) != examples_of(documents, seed=4)


def plain_pairs(document, others, max_tokens, short_seq_prob, rng):
    """Next-sentence pairs said again in the plainest way, token by token: (A, B, label)."""
    target = max_tokens
    if rng.random() < short_seq_prob:
        target = rng.randint(2, max_tokens)
    remaining = list(document)
    while remaining:
        group = []
        while remaining and sum(map(len, group)) < target:
            group.append(remaining.pop(0))
        cut = rng.randrange(1, len(group)) if len(group) > 1 else 1
        a = [token for sentence in group[:cut] for token in sentence]
        if len(group) == 1 or rng.random() < 0.5:
            label = 1
            remaining = group[cut:] + remaining
            other = rng.choice(others)
            b = []
            for sentence in other[rng.randrange(len(other)) :]:
                b += sentence
                if len(b) >= target - len(a):
                    break
        else:
            label = 0
            b = [token for sentence in group[cut:] for token in sentence]
        while len(a) + len(b) > max_tokens:
            longer = a if len(a) > len(b) else b
            longer.pop(0 if rng.random() < 0.5 else -1)
        yield a, b, label


def share_and_variance(by_document):
    """A ratio of sums over documents, (numerator, denominator) each, and its sampling variance.

    Examples of a document depend on one another; documents do not.
    """
    numbers = np.array(by_document, float)
    top, bottom = numbers.sum(axis=0)
    share = top / bottom
    return share, ((numbers[:, 0] - share * numbers[:, 1]) ** 2).sum() / bottom**2


@pytest.mark.slow
def test_statistics_of_100_000_pairs_agree_with_a_plain_restatement():
    max_tokens = 61
    rng = np.random.default_rng(7)
    documents = documents_of(rng, 20_000, sentences=(1, 30), tokens=(1, 30))
    fast = defaultdict(list)
    number_of = np.searchsorted(
        [bounds[0] for bounds in documents], np.arange(documents[-1][-1]), "right"
    )
    examples = examples_of(documents, max_length=max_tokens + 3, seed=8)
    assert len(examples) > 100_000
    for a_start, a_end, b_start, b_end, label in examples:
        fast[int(number_of[a_start])].append((a_end - a_start, b_end - b_start, label))

    slow = defaultdict(list)
    random_source = random.Random(9)
    texts = [
        [[0] * (end - start) for start, end in zip(bounds, bounds[1:], strict=False)]
        for bounds in documents[:8000]
    ]
    for number, text in enumerate(texts):
        for a, b, label in plain_pairs(text, texts, max_tokens, 0.1, random_source):
            slow[number].append((len(a), len(b), label))

    def statistic(examples_by_document, measure):
        return share_and_variance(
            [
                (sum(measure(*example) for example in examples), len(examples))
                for examples in examples_by_document.values()
            ]
        )

    measures = {
        "label": lambda a, b, label: label,
        "length": lambda a, b, label: a + b,
        "length of A": lambda a, b, label: a,
        "full": lambda a, b, label: a + b == max_tokens,
        "length of B where random": lambda a, b, label: b * label,
    }
    for start in range(0, max_tokens + 1, 8):
        measures[f"length in {start}.."] = lambda a, b, label, start=start: (
            start <= a + b < start + 8
        )
    for name, measure in measures.items():
        one, variance = statistic(fast, measure)
        other, other_variance = statistic(slow, measure)
        sigma = math.sqrt(variance + other_variance)
        assert abs(one - other) <= 3 * sigma + 1e-12, (name, one, other, sigma)


def test_trimming_takes_front_and_back_alike():
    documents = [[i * 400, i * 400 + 200, i * 400 + 400] for i in range(4000)]
    front = total = 0
    for a_start, a_end, *_ in examples_of(documents, max_length=67, short=0):
        front += a_start % 200
        total += 200 - (a_end - a_start)
    assert abs(front - total / 2) < 3 * math.sqrt(total) / 2


@pytest.mark.parametrize("shift", [False, True])
@pytest.mark.parametrize("max_tokens", [1, 6, 31, 500])
def test_full_sentences_fill_rows_across_documents_and_lose_no_token(max_tokens, shift):
    documents = documents_of(np.random.default_rng(2), 60, sentences=(1, 9))
    rng = np.random.default_rng(0)
    rows = list(full_sentences(documents, ExampleOptions(max_tokens, shift=shift), rng))
    assert [t for row in rows for part in row for t in range(*part)] == [*range(documents[-1][-1])]
    document_of = {t: n for n, b in enumerate(documents) for t in range(b[0], b[-1])}
    ends = {end for bounds in documents for end in bounds}
    used = []
    for row in rows:
        # One separator for each document that ends within the row.
        used.append(sum(end - start for start, end in row) + len(row) - 1)
        assert 0 < used[-1] <= max_tokens
        assert len({document_of[start] for start, _ in row}) == len(row)
        for start, end in row:
            whole = start in ends and end in ends
            # A sentence is cut only where it is longer than a row.
            assert whole or shift or max_tokens < 49
    if max_tokens == 500:
        assert np.mean(used[:-1]) > 470  # 25 tokens of a sentence do not fit, in the mean
        assert any(len(row) > 2 for row in rows)
    if shift:
        assert set(used[1:-1]) <= {max_tokens, max_tokens - 1}


def test_a_row_of_full_sentences_ends_only_where_the_next_does_not_fit():
    documents = [[0, 4, 9], [9, 12], [12, 40, 41]]
    rng = np.random.default_rng(0)
    rows = list(full_sentences(documents, ExampleOptions(13), rng))
    # 9 + separator + 3 = 13; the sentence of 28 is cut into 13 + 13 + 2, and 2 + 1 are together.
    assert rows == [[(0, 9), (9, 12)], [(12, 25)], [(25, 38)], [(38, 41)]]
    (first, *_) = full_sentences(documents, ExampleOptions(12), rng)
    assert first == [(0, 9)]  # no room for the separator
