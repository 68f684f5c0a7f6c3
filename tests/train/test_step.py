"""One update is the same, however its rows are split over devices and microbatches."""

import dataclasses
import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax.config import MeshConfig, OptimizerConfig, Phase
from bertjax.data.batches.batch import layout, pad_to, stack
from bertjax.devices import sharding
from bertjax.model import BertForPreTraining
from bertjax.model.losses import pretraining_weights
from bertjax.model.recipe import FixedEncoder, Recipe
from bertjax.train.optimizer import make_optimizer, make_schedule
from bertjax.train.step import (
    DropoutKey,
    Steps,
    create_train_state,
    make_loss_fn,
    microbatches,
)
from tests.cases import WEEKLY

ROWS, LENGTH, PREDICTIONS = 32, 16, 3
ALL_TRAINED = Recipe()


def random_batch(vocab_size):
    """Rows of unequal length and unequal numbers of predictions."""
    rng = np.random.default_rng(0)
    rows = []
    for _ in range(ROWS):
        n, p = int(rng.integers(6, LENGTH + 1)), int(rng.integers(1, PREDICTIONS + 1))
        rows.append(
            {
                "input_ids": pad_to(rng.integers(5, vocab_size, n), LENGTH, 0),
                "token_type_ids": pad_to(np.arange(n) > n // 2, LENGTH, 0),
                **layout([n], LENGTH, 1),
                "masked_positions": pad_to(np.sort(rng.permutation(n)[:p]), PREDICTIONS, 0),
                "masked_labels": pad_to(rng.integers(5, vocab_size, p), PREDICTIONS, 0),
                "masked_weights": pad_to(np.ones(p), PREDICTIONS, 0).astype(np.float32),
                "labels": rng.integers(-1, 2, 1).astype(np.int32),
            }
        )
    return stack(rows)


class Setup:
    """A compiled step on some devices; `dropout` as given."""

    def __init__(
        self,
        config,
        devices,
        mesh=MeshConfig(),  # noqa: B008
        accumulation=1,
        dropout=0.0,
        recipe=ALL_TRAINED,
        dropout_prng="threefry2x32",
        dtype="float32",
    ):
        self.recipe = recipe
        config = dataclasses.replace(
            config, hidden_dropout_prob=dropout, attention_probs_dropout_prob=dropout
        )
        self.model = BertForPreTraining(config, jnp.dtype(dtype))
        self.loss_fn = make_loss_fn(self.model)
        self.mesh = sharding.make_mesh(mesh, jax.devices()[:devices])
        self.rows = sharding.batch_sharding(self.mesh)
        # A large eps: where a gradient is zero in theory (key biases), Adam would otherwise
        # magnify rounding errors to updates of full size.
        optimizer = OptimizerConfig(
            recipe="adamw", learning_rate=1e-2, warmup_steps=1, eps=1e-3, schedule="hf"
        )
        phase = Phase(num_steps=10, max_length=LENGTH, batch_size=ROWS)
        schedule = make_schedule(optimizer, [phase])
        self.tx = make_optimizer(optimizer, schedule)
        self.steps = Steps(
            self.loss_fn,
            pretraining_weights,
            self.tx,
            schedule,
            self.mesh,
            recipe,
            accumulation,
            dropout_prng=dropout_prng,
        )

    def create(self, params):
        return create_train_state(*self.recipe.split(jax.tree.map(jnp.asarray, params)), self.tx)

    def put(self, params, batch):
        where = sharding.state_sharding(self.mesh, jax.eval_shape(self.create, params))
        state = jax.device_put(self.create(params), where)
        step = self.steps.compiled(where, self.rows)
        rows = sharding.host_rows(self.rows, ROWS)
        return step, state, sharding.to_devices(batch, rows, self.rows, ROWS)

    def run(self, params, batch, steps=2):
        """The state after some steps; the first has a rate of 0, so more than one."""
        step, state, placed = self.put(params, batch)
        for _ in range(steps):
            state, metrics = step(state, placed, np.uint32(0), None)
        return jax.device_get((self.recipe.join(state.params, state.fixed), metrics))


@pytest.fixture(scope="module")
def tiny_config(one_layer_config):
    """One layer: more of them are split over devices and microbatches as one is."""
    return one_layer_config


@pytest.fixture(scope="module")
def tiny(tiny_config, random_params):
    model = BertForPreTraining(tiny_config)
    return model, random_params(model)


@pytest.fixture(scope="module")
def batch(tiny_config):
    return random_batch(tiny_config.vocab_size)


@pytest.fixture(scope="module")
def one_device(tiny, tiny_config, batch):
    """(dropout rate, dtype) -> parameters and metrics of one device and one batch."""

    @functools.cache
    def run(dropout, dtype="float32"):
        return Setup(tiny_config, 1, dropout=dropout, dtype=dtype).run(tiny[1], batch)

    return run


def assert_close(found, expected):
    (params, metrics), (other_params, other_metrics) = found, expected
    assert int(metrics["tokens"]) == int(other_metrics["tokens"])
    for a, b in zip(jax.tree.leaves(params), jax.tree.leaves(other_params), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5)
    for a, b in zip(
        jax.tree.leaves(metrics["sums"]), jax.tree.leaves(other_metrics["sums"]), strict=True
    ):
        np.testing.assert_allclose(a, b, rtol=1e-5)
    np.testing.assert_allclose(metrics["grad_norm"], other_metrics["grad_norm"], rtol=1e-5)


# What holds with dropout is what holds without it, and more.
@pytest.mark.slow
@pytest.mark.parametrize("dropout", [pytest.param(0.0, marks=pytest.mark.exhaustive), 0.3])
def test_eight_devices_equal_one(tiny, tiny_config, batch, one_device, dropout):
    found = Setup(tiny_config, 8, dropout=dropout).run(tiny[1], batch)
    assert_close(found, one_device(dropout))


@pytest.mark.slow
@pytest.mark.parametrize(
    "mesh",
    [pytest.param(MeshConfig(fsdp=4), marks=pytest.mark.exhaustive), MeshConfig(tensor=2, fsdp=2)],
)
def test_split_parameters_equal_whole_ones(tiny, tiny_config, batch, one_device, mesh):
    assert_close(Setup(tiny_config, 8, mesh, dropout=0.3).run(tiny[1], batch), one_device(0.3))


@pytest.mark.slow
@pytest.mark.parametrize("devices", [pytest.param(1, marks=WEEKLY), 8])
@pytest.mark.parametrize("dropout", [pytest.param(0.0, marks=WEEKLY), 0.3])
def test_four_microbatches_equal_one_batch(tiny, tiny_config, batch, one_device, devices, dropout):
    found = Setup(tiny_config, devices, accumulation=4, dropout=dropout).run(tiny[1], batch)
    assert_close(found, one_device(dropout))


@pytest.mark.slow
@pytest.mark.parametrize(
    "mesh",
    [pytest.param(MeshConfig(), marks=pytest.mark.exhaustive), MeshConfig(tensor=2, fsdp=2)],
)
@pytest.mark.exhaustive
def test_in_bfloat16_eight_devices_equal_one_up_to_rounding(
    tiny, tiny_config, batch, one_device, mesh
):
    """Its products have layouts of their own on CPUs."""
    setup = Setup(tiny_config, 8, mesh, dropout=0.3, dtype="bfloat16")
    params, metrics = setup.run(tiny[1], batch)
    other_params, other_metrics = one_device(0.3, "bfloat16")
    losses = (m["sums"]["mlm_loss"][0] for m in (metrics, other_metrics))
    np.testing.assert_allclose(*losses, rtol=1e-3)
    norms = [m["grad_norm"] for m in (metrics, other_metrics)]
    np.testing.assert_allclose(*norms, rtol=5e-3)
    for a, b in zip(jax.tree.leaves(params), jax.tree.leaves(other_params), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-3)  # of updates of 1e-2
        assert np.abs(a - b).mean() < 2e-4


def test_microbatches_are_as_many_as_asked_for_and_have_each_row_once():
    rows = np.arange(12).reshape(6, 2)
    found = microbatches({"ids": rows}, 3)["ids"]
    assert found.shape == (3, 2, 2)
    assert sorted(found.reshape(6, 2).tolist()) == rows.tolist()


@pytest.mark.slow
@pytest.mark.exhaustive
def test_cheaper_keys_repeat_for_the_same_mesh(tiny, tiny_config, batch):
    setup = Setup(tiny_config, 8, accumulation=2, dropout=0.3, dropout_prng="rbg")
    (_, metrics), (_, again) = (setup.run(tiny[1], batch) for _ in range(2))
    assert jax.tree.all(jax.tree.map(np.array_equal, metrics, again))


@pytest.mark.slow
def test_cheaper_keys_drop_as_much(tiny, tiny_config, batch):
    """Over seeds, losses with either kind of keys have the same mean and the same spread."""
    losses = {}
    for prng in ("rbg", "threefry2x32"):
        loss_fn = Setup(tiny_config, 1, dropout=0.3, dropout_prng=prng).loss_fn

        @jax.jit
        def loss_of(seed, prng=prng, loss_fn=loss_fn):
            dropout = DropoutKey(jax.random.key(seed, impl=prng), np.arange(ROWS))
            return loss_fn(tiny[1], batch, pretraining_weights(batch), dropout)[1]["mlm_loss"][0]

        losses[prng] = np.asarray([loss_of(np.uint32(seed)) for seed in range(24)])
    cheap, usual = losses["rbg"], losses["threefry2x32"]
    error = np.hypot(cheap.std(ddof=1), usual.std(ddof=1)) / len(usual) ** 0.5
    assert abs(cheap.mean() - usual.mean()) < 4 * error
    assert 1 / 3 < cheap.std() / usual.std() < 3


@pytest.mark.slow
def test_dropout_changes_with_the_step(tiny, tiny_config, batch):
    step, state, placed = Setup(tiny_config, 1, dropout=0.3).put(tiny[1], batch)
    losses = []
    for _ in range(2):
        # The first update has a rate of 0: both steps see the same parameters.
        state, metrics = step(state, placed, np.uint32(0), None)
        losses.append(float(metrics["sums"]["mlm_loss"][0]))
    assert abs(losses[0] - losses[1]) > 1e-3


@pytest.mark.parametrize("devices", [1, pytest.param(8, marks=pytest.mark.slow)])
def test_a_step_that_is_not_finite_changes_nothing_but_the_number_of_steps(
    tiny, tiny_config, batch, devices
):
    weights = np.where(batch["masked_weights"] > 0, np.nan, 0).astype(np.float32)
    damaged = {**batch, "masked_weights": weights}
    step, state, placed = Setup(tiny_config, devices).put(tiny[1], damaged)
    before = jax.device_get(state)
    after, metrics = jax.device_get(step(state, placed, np.uint32(0), None))
    assert metrics["skipped"] and np.isnan(metrics["loss"]) and after.step == 1
    assert jax.tree.all(jax.tree.map(np.array_equal, before.params, after.params))
    pairs = zip(*map(jax.tree.leaves, (before.opt_state, after.opt_state)), strict=True)
    (schedule,) = [b for a, b in pairs if not np.array_equal(a, b)]
    assert schedule == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    "mesh",
    [pytest.param(MeshConfig(), marks=pytest.mark.exhaustive), MeshConfig(tensor=2, fsdp=2)],
)
def test_frozen_parts_stay_bit_for_bit_and_have_no_moments(tiny, tiny_config, batch, mesh):
    setup = Setup(tiny_config, 8, mesh, dropout=0.3, recipe=FixedEncoder())
    after, _ = setup.run(tiny[1], batch)
    before = jax.tree.map(np.asarray, tiny[1])
    assert jax.tree.all(jax.tree.map(np.array_equal, after["bert"], before["bert"]))
    assert not np.array_equal(
        after["predictions"]["transform"]["kernel"], before["predictions"]["transform"]["kernel"]
    )
    moments = jax.tree.leaves(setup.create(tiny[1]).opt_state)
    trained = sum(x.size for x in jax.tree.leaves([before[k] for k in before if k != "bert"]))
    assert 2 * trained <= sum(x.size for x in moments) < 2 * trained + 10


@pytest.fixture(scope="module")
def compiled(tiny, tiny_config, batch):
    """(microbatches, recipe) -> a step of eight devices that is compiled, and its state."""

    @functools.cache
    def of(accumulation, recipe):
        setup = Setup(tiny_config, 8, accumulation=accumulation, recipe=recipe)
        step, state, placed = setup.put(tiny[1], batch)
        return step.lower(state, placed, np.uint32(0), None).compile(), state, placed

    return of


@pytest.mark.parametrize(
    ("accumulation", "recipe"),
    [
        pytest.param(1, ALL_TRAINED, marks=pytest.mark.slow),
        (4, ALL_TRAINED),
        pytest.param(1, FixedEncoder(), marks=pytest.mark.slow),
    ],
)
def test_eight_devices_reduce_gradients_once_and_gather_nothing(compiled, accumulation, recipe):
    step, state, _ = compiled(accumulation, recipe)
    text = step.as_text()
    collective = re.compile(
        r"= (.*) (all-reduce|all-gather|all-to-all|reduce-scatter|collective-permute)"
        r"(?:-start)?\("
    )
    found = [match.groups() for match in map(collective.search, text.splitlines()) if match]
    assert {kind for _, kind in found} == {"all-reduce"}
    # Apart from gradients only scalars cross devices: sums of weights, tokens, metrics.
    sizes = [[s for s in re.findall(r"[fs]32\[([\d,]*)\]", shape) if s] for shape, _ in found]
    of_gradients = [of_one for of_one in sizes if of_one]
    assert len(of_gradients) == 1
    elements = sum(int(np.prod([int(n) for n in size.split(",")])) for size in of_gradients[0])
    assert elements == sum(x.size for x in jax.tree.leaves(state.params))


def test_the_tokens_of_a_step_are_those_of_its_sequences(compiled, batch):
    step, state, placed = compiled(4, ALL_TRAINED)
    _, metrics = step(jax.tree.map(jnp.copy, state), placed, np.uint32(0), None)
    assert metrics["tokens"] == np.sum(batch["sequence_ids"] > 0)


def test_the_state_is_donated(compiled):
    step, state, _ = compiled(4, ALL_TRAINED)
    parameters = sum(x.nbytes for x in jax.tree.leaves(state))
    assert step.memory_analysis().alias_size_in_bytes >= parameters
    assert not re.findall(r"copy\(%state_opt_state\S*(mu|nu)\S*kernel", step.as_text())
