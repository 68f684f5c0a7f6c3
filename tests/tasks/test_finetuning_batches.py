"""Features in packed batches: nothing is lost, every epoch sees all, few shapes."""

from typing import get_args

import numpy as np
import pytest

from bertjax.data.batches.batch import Feature, LabelKind, decode_feature, encode_feature
from bertjax.data.records import write_shard
from bertjax.tasks import training_data
from bertjax.tasks.training_data import (
    FeatureBatches,
    Labels,
    plan_rows,
    row_shape,
)
from tests.rows import make_batch


def feature(length, label, *, first=7, choices=1):
    ids = np.arange(first, first + length * choices, dtype=np.int32)
    return Feature(ids, (length,) * choices, (length // 2,) * choices, label)


def classes(lengths):
    return [feature(n, np.array([i % 3], np.int32)) for i, n in enumerate(lengths)]


@pytest.mark.parametrize(
    "labels",
    [None, np.array([3], np.int32), np.array([0.5, 1.0], np.float32), np.arange(9, dtype=np.int32)],
)
@pytest.mark.parametrize("first", [5, 70_000])
def test_a_record_gives_back_its_feature(labels, first):
    given = feature(9, labels, first=first)
    found = decode_feature(encode_feature(given))
    assert found.lengths == given.lengths and found.a_lengths == given.a_lengths
    np.testing.assert_array_equal(found.input_ids, given.input_ids)
    if labels is None:
        assert found.labels is None
    else:
        np.testing.assert_array_equal(found.labels, labels)


def test_a_batch_holds_each_feature_where_its_placement_says():
    features = classes([5, 30, 12, 40, 7, 22])
    batch, places = make_batch(features, row_shape(64, 1, (3, 6)), Labels("classes"), 0)
    assert batch["input_ids"].shape == (3, 64)
    for item, (given, (row, slot, start)) in enumerate(zip(features, places, strict=True)):
        span = slice(start, start + len(given.input_ids))
        np.testing.assert_array_equal(batch["input_ids"][row, span], given.input_ids)
        np.testing.assert_array_equal(
            batch["position_ids"][row, span], np.arange(span.stop - start)
        )
        assert (batch["sequence_ids"][row, span] == slot + 1).all()
        types = batch["token_type_ids"][row, span]
        np.testing.assert_array_equal(types, np.arange(len(types)) >= given.a_lengths[0])
        assert batch["sequence_starts"][row, slot] == start
        assert batch["example_ids"][row, slot] == item
        assert batch["labels"][row, slot] == given.labels[0]
    assert (batch["sequence_ids"] > 0).sum() == sum(len(f.input_ids) for f in features)
    assert batch["label_weights"].sum() == len(features)


def test_spans_are_counted_in_the_row_and_unlabelled_ones_weigh_nothing():
    features = [feature(20, np.array([3, 5], np.int32)), feature(30, None)]
    batch, places = make_batch(features, row_shape(64, 1, ()), Labels("span"), 0)
    row, slot, start = places[0]
    np.testing.assert_array_equal(batch["labels"][row, slot], [start + 3, start + 5])
    assert batch["label_weights"].sum() == 1 and batch["label_weights"][row, slot] == 1


def test_choices_of_an_example_stand_side_by_side():
    features = [feature(6, np.array([i % 4], np.int32), choices=4) for i in range(5)]
    labels = Labels("choice", num_choices=4)
    batch, places = make_batch(features, row_shape(64, 4, ()), labels, 0)
    assert batch["labels"].shape[1] * 4 == batch["sequence_starts"].shape[1]
    for given, (row, slot, _) in zip(features, places, strict=True):
        assert slot % 4 == 0 and batch["labels"][row, slot // 4] == given.labels[0]
        assert len(set(batch["example_ids"][row, slot : slot + 4])) == 1


def test_class_weights_weigh_the_labels():
    labels = Labels("classes", num_classes=3, class_weights=(1.0, 2.0, 4.0))
    batch, _ = make_batch(classes([8] * 6), row_shape(64, 1, ()), labels, 0)
    assert batch["label_weights"].sum() == 2 * (1 + 2 + 4)
    tokens = [feature(4, np.array([-1, 0, 2, -1], np.int32))]
    batch, _ = make_batch(tokens, row_shape(64, 1, ()), labels._replace(kind="tokens"), 0)
    np.testing.assert_array_equal(batch["label_weights"][0, :4], [0, 1, 4, 0])


def test_every_epoch_sees_every_feature_once_and_resuming_changes_nothing(tmp_path):
    rng = np.random.default_rng(1)
    lengths = rng.integers(4, 40, 50)
    features = [
        feature(int(n), np.array([0], np.int32), first=1000 + 100 * i)
        for i, n in enumerate(lengths)
    ]
    path = tmp_path / "train.array_record"
    write_shard(path, (encode_feature(f) for f in features))
    shape = plan_rows(lengths, batch_size=8, num_choices=1, multiple_of=2, num_batches=1000)
    assert 1 < len(shape.row_counts) <= 4 and all(count % 2 == 0 for count in shape.row_counts)
    # Few batches are not worth another program, unless they were much larger.
    short = plan_rows(lengths, batch_size=8, num_choices=1, multiple_of=2, num_batches=10)
    assert short.row_counts == shape.row_counts[-2:]

    def batches(first=0):
        labels = Labels("classes")
        return FeatureBatches(str(path), lengths, 8, shape, labels, 0, seed=3, first=first)

    whole = batches()
    assert whole.batches_per_epoch == 7
    seen = []
    for index in range(14):
        rows, batch = whole[index]
        assert len(batch["input_ids"]) == rows
        assert batch["input_ids"].shape[0] in shape.row_counts
        firsts = np.take_along_axis(batch["input_ids"], batch["sequence_starts"], 1)
        seen.append(firsts[batch["example_ids"] >= 0])
    epochs = [np.concatenate(seen[:7]), np.concatenate(seen[7:])]
    for epoch in epochs:
        np.testing.assert_array_equal(np.sort(epoch), [1000 + 100 * i for i in range(50)])
    assert (epochs[0] != epochs[1]).any(), "each epoch has an order of its own"
    resumed = batches(first=9)
    for key, values in whole[9][1].items():
        np.testing.assert_array_equal(values, resumed[0][1][key])


OF_TWO_TEXTS = ("choice", "contrastive", "similarity", "distilled", "ranking")


def labelled(kind, index, length):
    labels = {
        "classes": np.array([index % 3], np.int32),
        "multi_label": np.array([index % 2, 1, 0], np.float32),
        "regression": np.array([index / 7], np.float32),
        "tokens": np.arange(length, dtype=np.int32) % 3 - 1,
        "span": np.array([1, index % length], np.int32),
        "choice": np.array([index % 2], np.int32),
        "contrastive": np.array([index % 5, 100 + index], np.int32),
        "similarity": np.array([index / 50], np.float32),
        "distilled": np.array([index / 9], np.float32),
        "ranking": np.array([index / 50, 0.5], np.float32),
        "distribution": np.array([index % 2, 1 - index % 2, 0], np.float32),
        "targets": np.array([index / 7, np.nan, index % 3], np.float32),
    }
    return feature(length, labels[kind], first=10 * index, choices=2 if kind in OF_TWO_TEXTS else 1)


@pytest.mark.parametrize("kind", get_args(LabelKind))
def test_hosts_read_only_their_rows_of_the_same_global_batch(tmp_path, monkeypatch, kind):
    rng = np.random.default_rng(2)
    features = [labelled(kind, i, int(n)) for i, n in enumerate(rng.integers(4, 40, 50))]
    sizes = np.array([len(f.input_ids) for f in features])
    path = tmp_path / "train.array_record"
    write_shard(path, map(encode_feature, features))
    labels = Labels(kind, num_classes=3, num_choices=2 if kind in OF_TWO_TEXTS else 1)
    labels = labels._replace(class_weights=(1.0, 2.0, 3.0))
    sizing = {"num_choices": labels.num_choices, "multiple_of": 4, "num_batches": 1000}
    shape = plan_rows(sizes, batch_size=16, **sizing)
    read: list[int] = []

    def decode(record):
        read[-1] += 1
        return decode_feature(record)

    monkeypatch.setattr(training_data, "decode_feature", decode)

    def batches(host_rows_of):
        source = FeatureBatches(
            str(path), sizes, 16, shape, labels, 0, seed=1, host_rows_of=host_rows_of
        )
        read.append(0)
        return [source[i] for i in range(8)]

    whole = batches(None)
    # Every second pair of rows, as on a pod, where the rows of a host need not be contiguous.
    hosts = [
        batches(lambda rows, h=h: np.flatnonzero(np.arange(rows) // 2 % 2 == h)) for h in (0, 1)
    ]
    for index, ((rows, batch), *local) in enumerate(zip(whole, *hosts, strict=True)):
        members = FeatureBatches(str(path), sizes, 16, shape, labels, 0, seed=1).members(index)
        at_once, _ = make_batch([features[i] for i in members], shape, labels, 0)
        for key, values in batch.items():
            np.testing.assert_array_equal(values, at_once[key])
            joined = np.zeros_like(values)
            for host, (rows_of_host, part) in enumerate(local):
                assert rows_of_host == rows == len(values)
                joined[np.arange(rows) // 2 % 2 == host] = part[key]
            np.testing.assert_array_equal(values, joined)
    held = [sum((part["example_ids"] >= 0).sum() for _, part in host) for host in hosts]
    assert [n * labels.num_choices for n in read[1:]] == held
    assert read[0] == read[1] + read[2] == 2 * len(features), "no record is read twice"
