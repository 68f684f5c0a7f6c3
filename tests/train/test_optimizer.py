"""AdamW's two recipes against the formulas, and the learning rate's curve."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from bertjax.config import OptimizerConfig, Phase
from bertjax.train.optimizer import decay_mask, difference_before, make_optimizer, make_schedule


def params_of(rng):
    return {
        "dense": {"kernel": rng.normal(size=(3, 4)), "bias": rng.normal(size=4)},
        "layer_norm": {"scale": rng.normal(size=4), "bias": rng.normal(size=4)},
        "word_embeddings": {"embedding": rng.normal(size=(5, 4))},
    }


@pytest.mark.parametrize("recipe", ["google", "adamw"])
def test_updates_follow_the_published_formula(recipe):
    """Decoupled decay joins the update before the rate; google's moments are not corrected."""
    rng = np.random.default_rng(0)
    config = OptimizerConfig(recipe=recipe, weight_decay=0.1, eps=1e-6, max_grad_norm=0.0)
    rate = 0.01
    tx = make_optimizer(config, lambda step: jnp.asarray(rate))
    params = jax.tree.map(jnp.float32, params_of(rng))
    expected = jax.tree.map(np.float64, params)
    mu = jax.tree.map(np.zeros_like, expected)
    nu = jax.tree.map(np.zeros_like, expected)
    decayed = {"kernel": 0.1, "embedding": 0.1, "bias": 0.0, "scale": 0.0}
    state, update = tx.init(params), jax.jit(tx.update)
    for step in range(1, 5):
        grads = jax.tree.map(lambda x: rng.normal(size=x.shape), expected)
        updates, state = update(jax.tree.map(jnp.float32, grads), state, params)
        params = optax.apply_updates(params, updates)
        mu = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, mu, grads)
        nu = jax.tree.map(lambda n, g: 0.999 * n + 0.001 * g**2, nu, grads)
        c1, c2 = (1 - 0.9**step, 1 - 0.999**step) if recipe == "adamw" else (1.0, 1.0)
        expected = jax.tree.map_with_path(
            lambda path, p, m, n, c1=c1, c2=c2: (
                p - rate * (m / c1 / (np.sqrt(n / c2) + 1e-6) + decayed[path[-1].key] * p)
            ),
            expected,
            mu,
            nu,
        )
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), params, expected)


def test_all_but_biases_and_layer_norms_are_decayed(tiny):
    mask = decay_mask(tiny[1])
    assert mask["bert"]["embeddings"]["word_embeddings"]["embedding"]
    assert mask["bert"]["embeddings"]["position_embeddings"]["embedding"]
    assert mask["bert"]["pooler"]["kernel"] and mask["seq_relationship"]["kernel"]
    assert not mask["predictions"]["bias"]
    assert not mask["bert"]["encoder"]["layers"]["attention"]["query"]["bias"]
    assert not any(jax.tree.leaves(mask["bert"]["embeddings"]["layer_norm"]))


def test_gradients_are_clipped_by_their_global_norm():
    config = OptimizerConfig(recipe="google", weight_decay=0.0, max_grad_norm=1.0, b1=0.0, b2=0.0)
    tx = make_optimizer(config, lambda step: jnp.asarray(1.0))
    params = {"a": jnp.zeros(2), "b": jnp.zeros(2)}
    grads = {"a": jnp.array([3.0, 0.0]), "b": jnp.array([0.0, 4.0])}
    _, state = tx.update(grads, tx.init(params), params)
    # With b1 = 0 the first moment is the gradient as Adam got it: divided by the norm of 5.
    np.testing.assert_allclose(state[1].mu["a"], [0.6, 0.0], rtol=1e-6)
    np.testing.assert_allclose(state[1].mu["b"], [0.0, 0.8], rtol=1e-6)
    _, same = tx.update(grads, tx.init(params), params, norm=jnp.asarray(5.0))
    jax.tree.map(np.testing.assert_array_equal, same, state)
    small = jax.tree.map(lambda grad: grad / 8, grads)
    _, state = tx.update(small, tx.init(params), params)
    jax.tree.map(np.testing.assert_array_equal, state[1].mu, small)
    tx = make_optimizer(config, lambda step: jnp.asarray(1.0), apart=("b",))
    _, state = tx.update(
        grads | {"b": grads["b"] / 8}, tx.init(params), params, norm=jnp.asarray(9)
    )
    np.testing.assert_allclose(state[1].mu["a"], [1.0, 0.0], rtol=1e-6)
    np.testing.assert_array_equal(state[1].mu["b"], [0.0, 0.5])


def rates(schedule, steps):
    return [float(schedule(jnp.asarray(step))) for step in steps]


@pytest.mark.parametrize(
    ("counting", "expected"),
    [("google", [0.0, 0.5, 0.8, 0.5, 0.01, 0.0]), ("hf", [0.0, 0.5, 1.0, 0.625, 0.0125, 0.0])],
)
def test_both_ways_of_counting_the_decay(counting, expected):
    config = OptimizerConfig(learning_rate=1.0, warmup_steps=20, schedule=counting)
    schedule = make_schedule(config, [Phase(num_steps=100, max_length=8, batch_size=1)])
    np.testing.assert_allclose(rates(schedule, (0, 10, 20, 50, 99, 100)), expected, atol=1e-6)


def test_a_phase_continues_the_curve_or_restarts_it():
    config = OptimizerConfig(learning_rate=1.0, warmup_steps=10)

    def phases(**second):
        return [
            Phase(num_steps=90, max_length=8, batch_size=1),
            Phase(num_steps=10, max_length=8, batch_size=1, **second),
        ]

    continued = make_schedule(config, phases())
    whole = make_schedule(config, [Phase(num_steps=100, max_length=8, batch_size=1)])
    assert rates(continued, range(101)) == rates(whole, range(101))
    restarted = make_schedule(
        config, phases(learning_rate_curve="restart", learning_rate=0.5, warmup_steps=5)
    )
    np.testing.assert_allclose(
        rates(restarted, (89, 90, 92, 95, 99)), [1 / 90, 0, 0.2, 0.25, 0.05], atol=1e-6
    )


def test_the_warm_up_of_a_phase_replaces_the_proportion():
    config = OptimizerConfig(learning_rate=1.0, warmup_steps=0, warmup_proportion=0.1)
    phase = Phase(num_steps=50, max_length=8, batch_size=1)
    own = dataclasses.replace(phase, learning_rate_curve="restart", warmup_steps=20)
    schedule = make_schedule(config, [phase, own])
    np.testing.assert_allclose(rates(schedule, (1, 5, 51, 60)), [0.2, 0.9, 0.05, 0.5], atol=1e-6)


def test_a_warm_up_as_long_as_the_run_is_refused():
    with pytest.raises(ValueError, match="warmup_steps=100 must be less than the 100 steps"):
        make_schedule(
            OptimizerConfig(warmup_steps=100), [Phase(num_steps=100, max_length=8, batch_size=1)]
        )


def test_a_phase_that_continues_has_no_curve_of_its_own():
    with pytest.raises(ValueError, match="learning_rate_curve='continue'"):
        Phase(num_steps=1, max_length=8, batch_size=1, learning_rate=0.1)


def test_the_decay_follows_a_power_and_the_warm_up_does_not():
    config = OptimizerConfig(learning_rate=1.0, warmup_steps=20, decay_power=0.5)
    schedule = make_schedule(config, [Phase(num_steps=100, max_length=8, batch_size=1)])
    expected = [0.25, 0.8**0.5, 0.5**0.5, 0.1, 0.0]
    np.testing.assert_allclose(rates(schedule, (5, 20, 50, 99, 100)), expected, atol=1e-6)
    with pytest.raises(ValueError, match="decay_power=0: it must be positive"):
        OptimizerConfig(decay_power=0)


@pytest.mark.parametrize(
    ("decay", "expected"),
    [
        ({"decay": "one_minus_sqrt"}, [0.5, 1.0, 1.0, 1.0, 0.5, 1 - 0.9**0.5, 0.0]),
        ({"decay_power": 2.0}, [0.5, 1.0, 1.0, 1.0, 0.75**2, 0.1**2, 0.0]),
    ],
)
def test_a_trapezoid_rises_stays_and_falls_by_its_shape(decay, expected):
    config = OptimizerConfig(
        learning_rate=1.0, warmup_steps=10, schedule="trapezoidal", decay_steps=40, **decay
    )
    phases = [
        Phase(num_steps=70, max_length=8, batch_size=1),
        Phase(num_steps=30, max_length=16, batch_size=1),
    ]
    found = rates(make_schedule(config, phases), (5, 10, 30, 60, 70, 96, 100))
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_a_restarted_trapezoid_has_its_own_decay_and_the_first_may_have_none():
    config = OptimizerConfig(learning_rate=1.0, warmup_steps=2, schedule="trapezoidal")
    own = {"learning_rate_curve": "restart", "learning_rate": 0.5, "warmup_steps": 0}
    phases = [
        Phase(num_steps=10, max_length=8, batch_size=1),
        Phase(num_steps=4, max_length=8, batch_size=1, decay_steps=5, **own),
        Phase(num_steps=6, max_length=8, batch_size=1),
    ]
    found = rates(make_schedule(config, phases), (1, 2, 9, 10, 15, 19, 20))
    np.testing.assert_allclose(found, [0.5, 1.0, 1.0, 0.5, 0.5, 0.1, 0.0], atol=1e-6)


def test_the_stable_part_of_a_trapezoid_can_become_longer_but_its_decay_cannot():
    config = OptimizerConfig(warmup_steps=2, schedule="trapezoidal", decay_steps=4)
    before = (Phase(num_steps=20, max_length=8, batch_size=1),)
    after = (Phase(num_steps=50, max_length=8, batch_size=1),)
    assert difference_before(config, before, after, 16) is None
    assert "the finished step 17 would change" in str(difference_before(config, before, after, 18))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"decay_steps": 5}, "decay_steps=5 has no effect with schedule='google'"),
        ({"decay": "one_minus_sqrt", "decay_power": 2.0}, "decay_power=2.0 has no effect"),
        (
            {"schedule": "trapezoidal", "warmup_steps": 60, "decay_steps": 50},
            "warmup_steps=60 and decay_steps=50 do not fit in the 100 steps",
        ),
    ],
)
def test_settings_of_a_schedule_that_contradict_each_other_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        make_schedule(
            OptimizerConfig(**settings), [Phase(num_steps=100, max_length=8, batch_size=1)]
        )


def test_every_parameter_is_decayed_where_asked():
    config = OptimizerConfig(recipe="adamw", decay_all=True, weight_decay=0.1, max_grad_norm=0.0)
    tx = make_optimizer(config, lambda step: jnp.asarray(1.0))
    params = jax.tree.map(jnp.float32, params_of(np.random.default_rng(0)))
    updates, _ = tx.update(jax.tree.map(jnp.zeros_like, params), tx.init(params), params)
    jax.tree.map(lambda u, p: np.testing.assert_allclose(u, -0.1 * p, rtol=1e-6), updates, params)
