"""LAMB against a restatement in numpy that knows each layer as a tensor of its own."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from bertjax.config import OptimizerConfig
from bertjax.train.optimizer import is_stacked, make_optimizer

LAYERS, RATE, DECAY, CLIP = 3, 0.01, 0.1, 1.0


def stacked_params(rng):
    """Layers of norms far apart, one of them zero."""
    kernel = rng.normal(size=(LAYERS, 4, 5)) * np.array([0.0, 1.0, 20.0])[:, None, None]
    return {
        "bert": {
            "embeddings": {"word_embeddings": {"embedding": rng.normal(size=(LAYERS, 4))}},
            "encoder": {
                "layers": {
                    "dense": {"kernel": kernel, "bias": rng.normal(size=(LAYERS, 5))},
                    "layer_norm": {"scale": rng.normal(size=(LAYERS, 5))},
                }
            },
        },
        "predictions": {"bias": rng.normal(size=7)},
    }


def separate(tree):
    """(name, layer) -> one tensor; layer None where there is no stack."""
    found = {}
    for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]:
        name = "/".join(key.key for key in path)
        parts = enumerate(leaf) if "/layers/" in name else [(None, leaf)]
        found |= {(name, layer): np.asarray(part, np.float64) for layer, part in parts}
    return found


def lamb_step(param, m, v, step, *, corrected, decayed, adapted):
    c1, c2 = (1 - 0.9**step, 1 - 0.999**step) if corrected else (1.0, 1.0)
    update = (m / c1) / (np.sqrt(v / c2) + 1e-6) + (DECAY * param if decayed else 0)
    norms = np.linalg.norm(param), np.linalg.norm(update)
    ratio = norms[0] / norms[1] if adapted and min(norms) > 0 else 1.0
    return param - RATE * ratio * update


@pytest.mark.parametrize("decay_all", [False, True])
@pytest.mark.parametrize("recipe", ["lamb", "albert_lamb"])
def test_stacked_layers_are_updated_as_separate_ones(recipe, decay_all):
    rng = np.random.default_rng(0)
    config = OptimizerConfig(
        recipe=recipe, weight_decay=DECAY, max_grad_norm=CLIP, decay_all=decay_all
    )
    tx = make_optimizer(config, lambda step: jnp.asarray(RATE))
    params = jax.tree.map(jnp.float32, stacked_params(rng))
    state, update = tx.init(params), jax.jit(tx.update)
    expected = separate(params)
    m = {key: np.zeros_like(x) for key, x in expected.items()}
    v = {key: np.zeros_like(x) for key, x in expected.items()}
    for step in range(1, 5):
        grads = jax.tree.map(lambda x: rng.normal(size=x.shape), params)
        updates, state = update(jax.tree.map(jnp.float32, grads), state, params)
        params = optax.apply_updates(params, updates)
        alone = separate(grads)
        norm = np.sqrt(sum((g**2).sum() for g in alone.values()))
        for key, grad in alone.items():
            grad = grad / max(norm / CLIP, 1.0)
            m[key] = 0.9 * m[key] + 0.1 * grad
            v[key] = 0.999 * v[key] + 0.001 * grad**2
            matrix = key[0].endswith(("kernel", "embedding"))
            expected[key] = lamb_step(
                expected[key],
                m[key],
                v[key],
                step,
                corrected=recipe == "lamb",
                decayed=matrix or decay_all,
                adapted=matrix or decay_all,
            )
    for key, found in separate(params).items():
        np.testing.assert_allclose(found, expected[key], rtol=2e-5, atol=1e-6, err_msg=str(key))


def test_the_layers_of_a_model_are_where_lamb_looks_for_them(tiny):
    leaves = jax.tree_util.tree_flatten_with_path(tiny[1])[0]
    stacked = [path for path, _ in leaves if is_stacked(path)]
    # All of the encoder's, and of nothing else.
    assert len(stacked) == len(jax.tree.leaves(tiny[1]["bert"]["encoder"])) == 16
    assert all(leaf.shape[0] == 2 for path, leaf in leaves if is_stacked(path))
