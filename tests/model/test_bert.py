"""Properties of the encoder and the pretraining heads."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax.traverse_util import flatten_dict

from bertjax.data.batches.batch import layout, pad_to
from bertjax.model import BertForPreTraining
from bertjax.model.embeddings import Embeddings, take_positions
from bertjax.model.encoder import REMAT_POLICIES
from bertjax.weights import init_params
from bertjax.weights.fill import param_shapes

LENGTH = 24


@functools.partial(jax.jit, static_argnums=0)
def applied(model, params, *inputs, **others):
    """The outputs of a model, compiled as a whole: that is faster than each operation alone."""
    return model.apply({"params": params}, *inputs, **others)


@functools.partial(jax.jit, static_argnums=1)
@jax.value_and_grad
def sum_and_gradient(params, model, *inputs):
    return jnp.sum(model.apply({"params": params}, *inputs)["last_hidden_state"] ** 3)


def random_sequences(lengths, vocab_size=120):
    rng = np.random.default_rng(0)
    return [rng.integers(5, vocab_size, n) for n in lengths]


def as_row(sequences, length=LENGTH, fill=0):
    """Model inputs [1, L] of sequences side by side; the second half of each is segment B."""
    places = layout([len(s) for s in sequences], length, len(sequences))
    types = np.concatenate([np.arange(len(s)) >= len(s) // 2 for s in sequences])
    row = (
        pad_to(np.concatenate(sequences), length, fill),
        pad_to(types, length, 0),
        places["position_ids"],
        places["sequence_ids"],
        places["sequence_starts"],
    )
    return tuple(x[None] for x in row)


def test_padding_leaves_real_tokens_alone(tiny):
    model, params = tiny
    (sequence,) = random_sequences([15])
    alone = applied(model, params, *as_row([sequence], 15))
    for fill in (0, 77):
        padded = applied(model, params, *as_row([sequence], LENGTH, fill))
        for key in ("last_hidden_state", "prediction_logits"):
            np.testing.assert_allclose(padded[key][:, :15], alone[key], atol=1e-5)
        np.testing.assert_allclose(padded["pooler_output"], alone["pooler_output"], atol=1e-5)


def test_packed_sequences_get_the_outputs_they_get_alone(tiny):
    model, params = tiny
    sequences = random_sequences([5, 9, 7])
    packed = applied(model, params, *as_row(sequences))
    start = 0
    for index, sequence in enumerate(sequences):
        alone = applied(model, params, *as_row([sequence]))
        end = start + len(sequence)
        np.testing.assert_allclose(
            packed["last_hidden_state"][:, start:end],
            alone["last_hidden_state"][:, : len(sequence)],
            atol=1e-5,
        )
        for key in ("pooler_output", "seq_relationship_logits"):
            np.testing.assert_allclose(packed[key][:, index], alone[key][:, 0], atol=1e-5)
        start = end


def test_arguments_under_the_names_of_transformers_mean_one_sequence_per_row(tiny):
    model, params = tiny
    (sequence,) = random_sequences([15])
    inputs = as_row([sequence])
    explicit = applied(model, params, *inputs)
    named = applied(
        model,
        params,
        input_ids=inputs[0],
        token_type_ids=inputs[1],
        attention_mask=(np.arange(LENGTH) < 15).astype(np.int32)[None],
    )
    for key in ("last_hidden_state", "prediction_logits"):
        np.testing.assert_allclose(named[key][:, :15], explicit[key][:, :15], atol=1e-5)
    for key in ("pooler_output", "seq_relationship_logits"):
        np.testing.assert_allclose(named[key], explicit[key][:, 0], atol=1e-5)


def test_masked_positions_select_from_the_logits_of_all_positions(tiny):
    model, params = tiny
    inputs = as_row(random_sequences([20]))
    positions = np.array([[3, 11, 0]])
    everywhere = applied(model, params, *inputs)["prediction_logits"]
    selected = applied(model, params, *inputs, masked_positions=positions)["prediction_logits"]
    np.testing.assert_allclose(selected, take_positions(everywhere, positions), atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
    "change",
    [{"unroll": 2}, *({"remat": policy} for policy in REMAT_POLICIES if policy != "none")],
    ids=str,
)
def test_unrolling_and_recomputing_change_neither_outputs_nor_gradients(tiny, change):
    model, params = tiny
    inputs = as_row(random_sequences([20]))
    expected, gradient = sum_and_gradient(params, model, *inputs)
    found, other_gradient = sum_and_gradient(params, model.clone(**change), *inputs)
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    scale = max(float(jnp.abs(g).max()) for g in jax.tree.leaves(gradient))
    for a, b in zip(jax.tree.leaves(gradient), jax.tree.leaves(other_gradient), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5 * scale)


def test_bfloat16_stays_near_float32_with_float32_parameters_and_logits(tiny):
    model, params = tiny
    inputs = as_row(random_sequences([20]))
    exact = applied(model, params, *inputs)
    half = model.clone(dtype=jnp.bfloat16)
    assert {x.dtype for x in param_shapes(half).values()} == {jnp.dtype("float32")}
    rough = applied(half, params, *inputs)
    assert rough["last_hidden_state"].dtype == jnp.bfloat16
    assert rough["prediction_logits"].dtype == jnp.float32
    difference = np.abs(np.float32(rough["last_hidden_state"]) - exact["last_hidden_state"])
    assert difference[:, :20].mean() < 0.02


def test_dropout_needs_a_key_and_depends_on_it_alone(tiny):
    model, params = tiny
    inputs = as_row(random_sequences([20]))

    @jax.jit
    def hidden(key):
        outputs = model.apply(
            {"params": params}, *inputs, dropout_rows=np.arange(1), rngs={"dropout": key}
        )
        return outputs["last_hidden_state"]

    first = hidden(jax.random.key(1))
    np.testing.assert_array_equal(first, hidden(jax.random.key(1)))
    assert np.abs(first - hidden(jax.random.key(2))).max() > 0.1


def test_kernels_start_from_a_normal_cut_at_two_sigma(tiny_config):
    config = tiny_config
    params = flatten_dict(init_params(BertForPreTraining(config), 3), sep="/")
    for path, value in params.items():
        if path.endswith(("kernel", "embedding")):
            assert np.abs(value).max() <= 2 * config.initializer_range
            if value.size > 1000:
                # The standard deviation of a unit normal cut at 2 is 0.8796.
                assert abs(value.std() / (0.8796 * config.initializer_range) - 1) < 0.06
        else:
            np.testing.assert_array_equal(value, 1.0 if path.endswith("scale") else 0.0)


def test_attention_probabilities_are_sown_and_stay_within_a_sequence(tiny):
    model, params = tiny
    inputs = as_row(random_sequences([5, 9]))
    apply = jax.jit(functools.partial(model.apply, mutable=["intermediates"]))
    _, state = apply({"params": params}, *inputs)
    (probs,) = state["intermediates"]["bert"]["encoder"]["layers"]["attention"]["attention_probs"]
    assert probs.shape == (2, 1, 4, LENGTH, LENGTH)
    ids = inputs[3][0]
    other = ids[:, None] != ids[None, :]
    assert float(jnp.where(other[None, None, None], probs, 0.0).max()) == 0.0
    np.testing.assert_allclose(probs.sum(-1), 1.0, atol=1e-5)


def test_parameter_names_and_shapes_are_pinned(tiny):
    shapes = {k: tuple(v.shape) for k, v in flatten_dict(tiny[1], sep="/").items()}
    layers = "bert/encoder/layers"
    heads_in = {
        f"{layers}/attention/{name}/{kind}": shape
        for name in ("query", "key", "value")
        for kind, shape in (("kernel", (2, 32, 4, 8)), ("bias", (2, 4, 8)))
    }
    norms = {
        f"{name}/{kind}": shape
        for name, shape in (
            ("bert/embeddings/layer_norm", (32,)),
            (f"{layers}/attention_layer_norm", (2, 32)),
            (f"{layers}/output_layer_norm", (2, 32)),
            ("predictions/layer_norm", (32,)),
        )
        for kind in ("scale", "bias")
    }
    assert shapes == heads_in | norms | {
        "bert/embeddings/word_embeddings/embedding": (120, 32),
        "bert/embeddings/position_embeddings/embedding": (64, 32),
        "bert/embeddings/token_type_embeddings/embedding": (2, 32),
        f"{layers}/attention/output/kernel": (2, 4, 8, 32),
        f"{layers}/attention/output/bias": (2, 32),
        f"{layers}/intermediate/kernel": (2, 32, 64),
        f"{layers}/intermediate/bias": (2, 64),
        f"{layers}/output/kernel": (2, 64, 32),
        f"{layers}/output/bias": (2, 32),
        "bert/pooler/kernel": (32, 32),
        "bert/pooler/bias": (32,),
        "predictions/transform/kernel": (32, 32),
        "predictions/transform/bias": (32,),
        "predictions/bias": (120,),
        "seq_relationship/kernel": (32, 2),
        "seq_relationship/bias": (2,),
    }


def test_gradients_of_embeddings_are_sums_in_float32_also_in_bfloat16(tiny_config):
    tokens = np.zeros((64, 16), int)  # the same token in every place, so that all its gradients add
    weights = np.linspace(-1, 1, tiny_config.hidden_size)[None, None] ** 3
    inputs = (tokens, tokens, tokens, tokens + 1, None)  # one sequence per row
    params = jax.jit(Embeddings(tiny_config).init)(jax.random.key(0), *inputs)

    def gradients(dtype):
        def value(params):
            x = Embeddings(tiny_config, dtype).apply(params, *inputs)
            return jnp.sum(x.astype(jnp.float32) * weights)

        return jax.tree.leaves(jax.jit(jax.grad(value))(params))

    for exact, rough in zip(gradients(jnp.float32), gradients(jnp.bfloat16), strict=True):
        assert np.linalg.norm(rough - exact) < 0.01 * np.linalg.norm(exact)
