"""Rows and pieces of few shapes, and parameters in the form for inference."""

import dataclasses
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax.data.batches.batch import Feature
from bertjax.inference.predictor import (
    every_shape,
    for_inference,
    in_pieces,
    inference_params,
    length_bucket,
    packed_pieces,
    piece_sizes,
    read_behind,
    row_lengths,
    stacked,
    token_budget,
)
from bertjax.model import HEADS
from tests.cases import others_weekly


def features_of(lengths, choices=1):
    ids = iter(range(1, 1 << 30))
    return [
        Feature(
            np.array([next(ids) for _ in range(n * choices)], np.int32),
            (n,) * choices,
            (n // 2,) * choices,
            None,
        )
        for n in lengths
    ]


@pytest.mark.parametrize("choices", [1, 3])
@pytest.mark.parametrize("devices", [1, 8])
@pytest.mark.parametrize(("count", "longest"), [(1, 9), (5, 30), (700, 40), (300, 200)])
def test_every_feature_is_in_one_place(count, longest, devices, choices):
    features = features_of(np.random.default_rng(0).integers(3, longest, count), choices)
    pieces = list(
        packed_pieces(
            features, limit=200 * choices, pad_token_id=0, num_choices=choices, devices=devices
        )
    )
    placed = [index for piece in pieces for index in piece.placements]
    assert sorted(placed) == list(range(count))
    for piece in pieces:
        ids, numbers = piece.batch["input_ids"], piece.batch["sequence_ids"]
        assert not len(ids) % devices
        tokens = 0
        for index, (row, slot, start) in piece.placements.items():
            feature = features[index]
            end = start + len(feature.input_ids)
            np.testing.assert_array_equal(ids[row, start:end], feature.input_ids)
            expected = np.repeat(slot + 1 + np.arange(choices), feature.lengths)
            np.testing.assert_array_equal(numbers[row, start:end], expected)
            np.testing.assert_array_equal(piece.batch["sequence_starts"][row, slot], start)
            tokens += len(feature.input_ids)
        assert (ids > 0).sum() == (numbers > 0).sum() == tokens


@pytest.mark.parametrize(("mean", "bound"), [(18, 1.06), (60, 1.12), (280, 1.12)])
def test_many_texts_have_little_padding_and_few_shapes(mean, bound):
    lengths = np.random.default_rng(0).lognormal(np.log(mean), 0.4, 2000).astype(int)
    features = features_of(np.clip(lengths, 3, 512))
    shapes = [
        p.batch["input_ids"].shape for p in packed_pieces(features, limit=512, pad_token_id=0)
    ]
    assert sum(rows * length for rows, length in shapes) <= bound * sum(len(f[0]) for f in features)
    assert len(set(shapes)) <= 16
    assert max(rows * length for rows, length in shapes) <= 2048


def test_texts_one_by_one_share_programs():
    shapes = {
        piece.batch["input_ids"].shape
        for n in range(2, 513)
        for piece in packed_pieces(features_of([n]), limit=512, pad_token_id=0)
    }
    assert shapes == {(1, length) for length in (8, 16, 32, 64, 128, 256, 512)}


@pytest.mark.parametrize("limit", [24, 64, 100, 512])
@pytest.mark.parametrize(("smallest", "steps"), [(8, 4), (32, 1), (64, 1)])
def test_a_bucket_holds_its_lengths_and_there_are_few(limit, smallest, steps):
    buckets = {n: length_bucket(n, limit, smallest=smallest, steps=steps) for n in range(limit + 1)}
    assert all(n <= bucket <= limit for n, bucket in buckets.items())
    assert all(bucket <= max(smallest, 2 * n) for n, bucket in buckets.items())
    assert list(buckets.values()) == sorted(buckets.values())
    assert len(set(buckets.values())) <= (5 if steps == 1 else 20)


@pytest.mark.parametrize("compiling", [0, 30, 500, 10**9])
def test_row_lengths_take_the_least_time(compiling):
    """No other choice of lengths has less padding and compilation, by trying all of them."""
    rng = np.random.default_rng(0)
    coarse, fine = [16, 32, 60], [16, 24, 32, 40, 48, 56, 60]
    for count in (1, 3, 20, 60):
        lengths = rng.integers(1, 61, count).tolist()
        chosen = row_lengths(lengths, 60, smallest=16, compiling=compiling)
        assert all(a <= b and b in fine for a, b in zip(lengths, chosen, strict=True))

        def cost(padded):
            return sum(padded) + compiling * len({*padded} - {*coarse})

        def padded(available, lengths=lengths):
            return [min(x for x in available if x >= n) for n in lengths]

        usable = [
            choice
            for number in range(1, 1 << len(fine))
            if max(choice := [x for i, x in enumerate(fine) if number >> i & 1]) >= max(lengths)
        ]
        assert cost(chosen.tolist()) == min(cost(padded(choice)) for choice in usable)
        if compiling == 10**9:
            assert {*chosen.tolist()} <= {*coarse}
    assert not row_lengths([], 60, smallest=16, compiling=compiling).size


@pytest.mark.parametrize("devices", [1, 8])
@pytest.mark.parametrize(("length", "tokens"), [(32, 4096), (512, 4096), (128, 65536), (512, 100)])
def test_pieces_hold_all_rows_in_few_sizes_within_the_budget(length, tokens, devices):
    sizes = set()
    for rows in range(1, 1500):
        pieces = piece_sizes(rows, length, tokens, devices)
        assert 0 <= sum(pieces) - rows < max(devices, pieces[-1] / 2 + devices)
        assert all(size % devices == 0 for size in pieces)
        assert all(size * length <= tokens * devices or size == devices for size in pieces)
        sizes |= set(pieces)
    assert len(sizes) <= 5


def shapes(lengths: list[int], limit: int) -> set:
    """The shapes of all arrays of a batch of features of these lengths."""
    ids = [np.ones(length, np.int32) for length in lengths]
    features = [Feature(x, (len(x),), (len(x),), None) for x in ids]
    pieces = packed_pieces(features, limit=limit, pad_token_id=0, layout="fixed")
    return {tuple(x.shape for x in jax.tree.leaves(piece.batch)) for piece in pieces}


@pytest.mark.parametrize("limit", others_weekly((5, 32, 40, 64, 77, 512, 1030), 5, 40, 512))
def test_rows_need_only_the_shapes_of_the_warm_up(limit):
    rng = np.random.default_rng(0)
    known = set()
    for lengths in every_shape(limit):
        known |= shapes(lengths, limit)
    for _ in range(200):
        longest = rng.integers(2, limit + 1)
        lengths = rng.integers(2, longest + 1, rng.integers(1, 90)).tolist()
        while sum(lengths) > token_budget(8, None) and len(lengths) > 1:
            lengths.pop()
        assert shapes(lengths, limit) <= known


def test_no_rows_have_no_pieces():
    assert piece_sizes(0, 32, 4096) == []


def test_rows_are_padded_with_zeros():
    ((used, padded),) = in_pieces(lambda _, batch: batch, None, {"input_ids": np.ones((3, 2))}, 8)
    assert used == 3
    np.testing.assert_array_equal(padded["input_ids"], [[1, 1], [1, 1], [1, 1], [0, 0]])


def test_an_item_is_read_when_the_next_one_has_started():
    events = []

    def start():
        for item in range(3):
            events.append(f"start {item}")
            yield item

    for item in read_behind(start()):
        events.append(f"read {item}")
    assert events == ["start 0", "start 1", "read 0", "start 2", "read 1", "read 2"]


def outputs(model, params, *, split: bool):
    def apply(params, ids):
        params = stacked(params) if split else params
        return for_inference(model).apply({"params": params}, ids)["last_hidden_state"]

    ids = jnp.arange(40).reshape(2, 20)
    return jax.jit(apply).lower(params, ids).compile(), ids


@pytest.mark.parametrize("shared", [False, True])  # as in BERT and in ALBERT
@pytest.mark.parametrize("dtype", ["float32", pytest.param("bfloat16", marks=pytest.mark.slow)])
def test_outputs_are_equal(tiny_config, random_params, shared, dtype):
    changes = {"num_hidden_layers": 4, "num_hidden_groups": 2} if shared else {}
    config = dataclasses.replace(tiny_config, **changes)
    model = HEADS["encoder"](config, jnp.dtype(dtype))
    params = random_params(model)
    split = inference_params(params, model)
    layers = jax.tree.leaves(split["bert"]["encoder"]["layers"])
    assert len(layers) == config.groups * len(jax.tree.leaves(params["bert"]["encoder"]["layers"]))
    jax.tree.map(np.testing.assert_array_equal, inference_params(split, model), split)
    whole, ids = outputs(model, params, split=False)
    found, _ = outputs(model, split, split=True)
    np.testing.assert_array_equal(found(split, ids), whole(params, ids))


@pytest.mark.parametrize(
    ("dtype", "kernel"),
    [("float32", r"f32\[(1,)?32,64\]"), ("bfloat16", r"bf16\[(32|64),(32|64)\]")],
)
def test_no_parameters_of_layers_are_copied(tiny_config, random_params, dtype, kernel):
    model = HEADS["encoder"](tiny_config, jnp.dtype(dtype))
    params = random_params(model)
    kernels = re.compile(rf"= {kernel}\S* (fusion|slice|copy)\(")
    whole, _ = outputs(model, params, split=False)
    found, _ = outputs(model, inference_params(params, model), split=True)
    assert kernels.search(whole.as_text()) and not kernels.search(found.as_text())


def test_where_layers_are_a_loop_their_parameters_stay_stacked(
    tiny_config, random_params, monkeypatch
):
    # As on accelerators.
    monkeypatch.setattr("bertjax.inference.predictor.choose_unroll", lambda *args: 1)
    model = HEADS["encoder"](tiny_config)
    params = random_params(model)
    shapes = jax.tree.map(jnp.shape, params)
    assert for_inference(model).unroll == 1
    assert jax.tree.map(jnp.shape, inference_params(params, model)) == shapes
