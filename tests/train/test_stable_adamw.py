"""StableAdamW against a restatement in numpy that knows each layer as a tensor of its own."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from bertjax.config import OptimizerConfig, Phase
from bertjax.train.optimizer import make_optimizer, make_peak, make_schedule
from tests.train.test_lamb import separate, stacked_params

B1, B2, EPS = 0.9, 0.98, 1e-6


def stable_adamw_step(param, grad, m, v, step, rate, decay):
    """Algorithm 2 of Wortsman et al. 2023, with betas that correct the bias of the moments."""
    hat1, hat2 = (b * (1 - b ** (step - 1)) / (1 - b**step) for b in (B1, B2))
    m = hat1 * m + (1 - hat1) * grad
    v = hat2 * v + (1 - hat2) * grad**2
    rms = np.sqrt(np.mean(grad**2 / np.maximum(v, EPS**2)))
    rate = rate / max(1.0, rms)
    return param - rate * decay * param - rate * m / (np.sqrt(v) + EPS), m, v, rms


@pytest.mark.parametrize("fully_decoupled", [False, True])
def test_stacked_layers_are_updated_as_separate_ones_by_the_published_formula(fully_decoupled):
    rng = np.random.default_rng(0)
    config = OptimizerConfig(
        recipe="stable_adamw",
        weight_decay=0.1,
        fully_decoupled_decay=fully_decoupled,
        b2=B2,
        max_grad_norm=0.0,
        learning_rate=0.04,
        warmup_steps=0,
        schedule="hf",
    )
    second = {"learning_rate_curve": "restart", "learning_rate": 0.02, "warmup_steps": 0}
    phase = {"max_length": 8, "batch_size": 1}
    phases = [Phase(num_steps=3, **phase), Phase(num_steps=3, **phase, **second)]
    schedule = make_schedule(config, phases)
    tx = make_optimizer(config, schedule, make_peak(config, phases))
    params = jax.tree.map(jnp.float32, stacked_params(rng))
    state, update = tx.init(params), jax.jit(tx.update)
    expected = separate(params)
    moments = {key: (np.zeros_like(x), np.zeros_like(x)) for key, x in expected.items()}
    largest: dict[tuple[str, int | None], float] = {}
    for step in range(1, 6):
        # Gradients grow fast in one layer alone, whose updates are clipped then.
        growth = np.array([1.0, 10.0**step, 1.0])
        grads = jax.tree.map(lambda x: rng.normal(size=x.shape), params)
        dense = grads["bert"]["encoder"]["layers"]["dense"]
        dense["kernel"] = dense["kernel"] * growth[:, None, None]
        updates, state = update(jax.tree.map(jnp.float32, grads), state, params)
        params = optax.apply_updates(params, updates)
        rate, peak = float(schedule(jnp.asarray(step - 1))), 0.04 if step <= 3 else 0.02
        for key, grad in separate(grads).items():
            decayed = key[0].endswith(("kernel", "embedding"))
            decay = 0.1 * decayed / (peak if fully_decoupled else 1.0)
            *new, rms = stable_adamw_step(expected[key], grad, *moments[key], step, rate, decay)
            expected[key], *moments[key] = new
            largest[key] = max(rms, largest.get(key, 0.0))
    for key, found in separate(params).items():
        np.testing.assert_allclose(found, expected[key], rtol=2e-5, atol=1e-6, err_msg=str(key))
    kernel = "bert/encoder/layers/dense/kernel"
    assert largest[kernel, 1] > 1.5 > largest[kernel, 0] > 0


def test_fully_decoupled_decay_is_refused_for_lamb():
    with pytest.raises(ValueError, match="trust ratio of LAMB"):
        OptimizerConfig(recipe="lamb", fully_decoupled_decay=True)
