"""Rows of a mixture: exact shares, epochs of each source, any number of hosts, resumed reading."""

import hashlib
import itertools
from collections import Counter
from fractions import Fraction

import numpy as np
import pytest

from bertjax.data.batches.masking import Masking
from bertjax.data.batches.pretraining_batches import HeldOutRows, RowFormat, train_batches
from bertjax.data.metadata import RowSource
from bertjax.data.mixture import (
    FINEST,
    integer_weights,
    parse_mixture,
    rows_of_sources,
    source_of_row,
)
from bertjax.data.records import Row, write_shard
from tests.rows import encode_row

MASKING = Masking(
    probability=0.15, max_predictions=5, vocab_size=200, mask_token_id=4, never_masked=(2, 3)
)
FORM = RowFormat(24, 0)
WEIGHTS = [[7, 3], [1, 1], [1, 99], [5, 3, 1, 1], [333_333, 333_334, 123], [1] * 9, [1]]


@pytest.mark.parametrize("weights", WEIGHTS)
def test_every_prefix_and_every_window_has_the_shares_of_the_weights(weights):
    drawn = np.array([source_of_row(row, weights)[0] for row in range(12_000)])
    shares, bound = np.array(weights) / sum(weights), 1 + np.log(len(weights))
    counts = np.array([np.concatenate([[0], np.cumsum(drawn == i)]) for i in range(len(weights))])
    rows = np.arange(len(drawn) + 1)
    assert (np.abs(counts - shares[:, None] * rows) <= bound).all()
    windows = counts[:, 10_000:] - counts[:, :-10_000]
    assert (np.abs(windows / 10_000 - shares[:, None]) <= 0.005).all()
    assert counts[:, 777].tolist() == rows_of_sources(777, weights)


@pytest.mark.parametrize("weights", WEIGHTS)
def test_the_rows_of_a_source_are_numbered_without_gaps(weights):
    for first in (0, 10**12):
        before = rows_of_sources(first, weights)
        expected = [itertools.count(count) for count in before]
        for row in range(first, first + 500):
            source, index = source_of_row(row, weights)
            assert index == next(expected[source])


def row_of(first: int) -> Row:
    return Row(np.array([2, first, *range(10, 18), 3, 3]), (12,), (11,), (1,))


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    """Rows are told apart by their first words: 20 to 59, and 100 to 106."""
    folder = tmp_path_factory.mktemp("sources")
    found = []
    for name, weight, words in (("wiki", 7, range(20, 60)), ("books", 3, range(100, 107))):
        paths = [str(folder / f"{name}{i}") for i in range(2)]
        for path, part in zip(paths, (words[:5], words[5:]), strict=True):
            write_shard(path, [encode_row(row_of(word)) for word in part])
        found.append(RowSource(name, weight, paths))
    return found


def batches(sources, count, *, first=0, host_rows=range(8), seed=0):
    stream = train_batches(
        sources,
        MASKING,
        FORM,
        seed=seed,
        phase=0,
        batch_size=8,
        first_row=first * 8,
        host_rows=np.array(host_rows),
        num_threads=2,
    )
    return [next(stream) for _ in range(count)]


def words(batches) -> list[int]:
    """The first word of every row, before masking."""
    found = []
    for batch in batches:
        ids = batch["input_ids"].copy()
        for row in range(len(ids)):
            used = batch["masked_weights"][row] > 0
            ids[row, batch["masked_positions"][row, used]] = batch["masked_labels"][row, used]
        found += ids[:, 1].tolist()
    return found


def same(a, b) -> bool:
    return all(np.array_equal(a[key], b[key]) for key in a)


def test_each_source_has_complete_shuffled_epochs_of_its_own(sources):
    found = words(batches(sources, 50))
    for index, (low, size) in enumerate(((20, 40), (100, 7))):
        of_source = [word for word in found if low <= word < low + size]
        assert len(of_source) == rows_of_sources(400, [7, 3])[index]
        epochs = [of_source[i : i + size] for i in range(0, len(of_source), size)]
        assert all(sorted(e) == list(range(low, low + size)) for e in epochs[:-1])
        assert len(set(epochs[-1])) == len(epochs[-1]) and epochs[0] != epochs[1]


@pytest.mark.parametrize("hosts", [1, 2, 4])
def test_any_number_of_hosts_reads_the_same_global_batches(sources, hosts):
    whole = batches(sources, 12)
    for host in range(hosts):
        rows = np.arange(8)[host::hosts]
        for complete, part in zip(whole, batches(sources, 12, host_rows=rows), strict=True):
            assert same({key: value[rows] for key, value in complete.items()}, part)


def test_reading_from_the_middle_equals_reading_through(sources):
    for a, b in zip(batches(sources, 20)[13:], batches(sources, 7, first=13), strict=True):
        assert same(a, b)


def digest(batches) -> str:
    total = hashlib.sha256()
    for batch in batches:
        for key in sorted(batch):
            total.update(key.encode() + np.ascontiguousarray(batch[key]).tobytes())
    return total.hexdigest()


def test_data_that_are_no_mixture_give_the_batches_that_they_gave_before(tmp_path):
    """The hashes were computed before there were mixtures."""
    rows = []
    for i in range(50):
        n, first = 8 + i % 10, 10 + i
        rows.append(
            encode_row(Row(np.array([2, *range(first, first + n - 3), 3, 3]), (n,), (n - 1,), (1,)))
        )
    paths = [str(tmp_path / f"{i}.array_record") for i in range(2)]
    write_shard(paths[0], rows[:20])
    write_shard(paths[1], rows[20:])
    stream = train_batches(
        [RowSource("", 1, paths)],
        MASKING,
        FORM,
        seed=3,
        phase=1,
        batch_size=8,
        first_row=0,
        host_rows=np.arange(8),
        num_threads=2,
    )
    assert (
        digest([next(stream) for _ in range(15)])
        == "8d93017b97e31f199b7908d3cb9d620540b9e96e39121399a598cdf2a39fea92"
    )
    held_out = HeldOutRows(paths, MASKING, FORM, seed=0, max_rows=13)
    assert (
        digest(held_out.batches(8, np.arange(8)))
        == "f76c7d9f5062dd14b74b118336cdaf5ea505d818000516489a446e13ec2637f2"
    )


def parse(*inputs, existing=()):
    mixture = parse_mixture(inputs, lambda name: name in existing)
    return None if mixture is None else [tuple(source) for source in mixture.sources]


def test_weights_are_parsed_and_names_may_contain_any_character():
    expected = [("wiki", 7), ("books", 3)]
    assert parse("wiki=0.7,books=0.3") == parse("wiki=.7", "books=3e-1") == expected
    assert parse("wiki=14,books=6") == expected
    assert parse("a,b=1,c=d=2") == [("a,b", 1), ("c=d", 2)]
    assert parse("tfds:wiki/1.0:2=2,gs://b/x*=1") == [("tfds:wiki/1.0:2", 2), ("gs://b/x*", 1)]
    for plain in ("a=b.txt", "text/*", "year=2020/x.txt"):
        assert parse(plain) is None
    assert parse("x=1", existing=["x=1"]) is None


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        (["wiki=0.7,books"], "'books' has no weight, but 'wiki' has one"),
        (["wiki=0.7", "books"], "'books' has no weight"),
        (["wiki=0,books=1"], "the weight 0 of 'wiki' is not a positive number"),
        (["wiki=-1"], "the weight -1 of 'wiki'"),
        (["wiki=nan"], "the weight nan"),
        (["a=1,a=2"], "names the source 'a' twice"),
    ],
)
def test_bad_weights_are_refused(inputs, message):
    with pytest.raises(ValueError, match=message):
        parse(*inputs)


def test_fine_weights_are_rounded_and_stay_positive():
    weights = integer_weights([Fraction("0.123456789123"), Fraction("0.9"), Fraction("1e-15")])
    assert sum(weights) <= FINEST + 3 and min(weights) == 1
    assert Counter(integer_weights([Fraction(1, 3)] * 3)) == {1: 3}
