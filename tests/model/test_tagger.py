"""Tags from hidden states of a frozen encoder: the arithmetic, and what must not leak."""

import dataclasses
import functools

import jax
import numpy as np
import pytest

from bertjax.data.batches.batch import layout, pad_to
from bertjax.model import FeatureTagger, TaggerConfig
from bertjax.model.tagger import Lstm
from tests.cases import others_weekly

LENGTHS = (5, 3, 6)
EVERY = (-1, 0, 1)


def rows(lengths, total, seed=0):
    """One row of sequences of these lengths, as `BertModel` takes it."""
    ids = np.concatenate([np.random.default_rng(seed + n).integers(5, 120, n) for n in lengths])
    places = layout(lengths, total, len(lengths))
    return [
        pad_to(ids, total, 0)[None],
        np.zeros((1, total), np.int32),
        *(places[key][None] for key in ("position_ids", "sequence_ids", "sequence_starts")),
    ]


@pytest.fixture
def tagger(random_params):
    """A model of three classes with large weights, and its parameters."""

    def make(config, **fields):
        if fields.get("kind") == "bilstm":
            fields["size"] = 7
        model = FeatureTagger(config, num_labels=3, tagger=TaggerConfig(**fields))
        return model, random_params(model, spread=0.2)

    return make


@functools.partial(jax.jit, static_argnums=0, static_argnames="output_hidden_states")
def compiled(model, params, *inputs, **options):
    return model.apply({"params": params}, *inputs, **options)


def applied(model, params, inputs, **options):
    return jax.tree.map(np.asarray, compiled(model, params, *inputs, **options))


def test_an_lstm_starts_as_in_pytorch():
    params = Lstm(100).init(
        jax.random.key(0), np.zeros((1, 2, 3), np.float32), np.ones((1, 2), int)
    )
    values = np.concatenate([np.ravel(x) for x in jax.tree.leaves(params)])
    assert 0.099 < np.abs(values).max() <= 0.1  # uniform, within size**-0.5


@pytest.mark.parametrize("join", ["concat", "sum"])
def test_a_linear_tagger_is_one_product_over_the_joined_layers(tagger, tiny_config, join):
    model, params = tagger(tiny_config, layers=EVERY, join=join)
    outputs = applied(model, params, rows((9,), 12), output_hidden_states=True)
    states = [outputs["hidden_states"][layer, 0] for layer in EVERY]  # [L, D] each
    joined = np.concatenate(states, axis=1) if join == "concat" else sum(states)
    expected = joined @ params["classifier"]["kernel"] + params["classifier"]["bias"]
    np.testing.assert_allclose(outputs["logits"][0], expected, atol=2e-5)


def lstm_in_numpy(params, x):
    """x [L, D] -> [L, H]: the equations, token by token."""
    h = c = np.zeros(params["recurrent"]["kernel"].shape[0])
    states = []
    for token in x:
        gates = token @ params["input"]["kernel"] + params["input"]["bias"]
        gates = gates + h @ params["recurrent"]["kernel"] + params["recurrent"]["bias"]
        i, f, g, o = np.split(gates, 4)
        i, f, o = (1 / (1 + np.exp(-gate)) for gate in (i, f, o))
        c = f * c + i * np.tanh(g)
        h = o * np.tanh(c)
        states.append(h)
    return np.stack(states)


def test_a_bilstm_follows_its_equations_both_ways_in_two_layers(tagger, tiny_config):
    model, params = tagger(tiny_config, layers=EVERY, kind="bilstm")
    outputs = applied(model, params, rows((9,), 9), output_hidden_states=True)
    x = np.concatenate([outputs["hidden_states"][layer, 0] for layer in EVERY], axis=1)
    for layer in ("l0", "l1"):
        forward = lstm_in_numpy(params["lstm"][layer], x)
        backward = lstm_in_numpy(params["lstm"][f"{layer}_reverse"], x[::-1])[::-1]
        x = np.concatenate([forward, backward], axis=1)
    expected = x @ params["classifier"]["kernel"] + params["classifier"]["bias"]
    np.testing.assert_allclose(outputs["logits"][0], expected, atol=2e-5)


@pytest.mark.parametrize("kind", others_weekly(("linear", "bilstm"), "bilstm"))
def test_neither_neighbours_in_the_row_nor_padding_change_a_tag(tagger, tiny_config, kind):
    model, params = tagger(tiny_config, layers=EVERY, kind=kind)
    full = applied(model, params, rows(LENGTHS, sum(LENGTHS)))["logits"][0]
    padded = applied(model, params, rows(LENGTHS, 20))["logits"][0]
    np.testing.assert_allclose(padded[: len(full)], full, atol=2e-5)
    start = 0
    for length in LENGTHS:
        alone = applied(model, params, rows((length,), 20))["logits"][0]
        np.testing.assert_allclose(full[start : start + length], alone[:length], atol=2e-5)
        start += length


@pytest.mark.slow
@pytest.mark.exhaustive
def test_the_bilstm_is_what_lets_a_token_of_layer_0_see_others(tagger, tiny_config):
    """Embeddings have no context, so a change of the last token reaches the others by it alone."""
    inputs = rows((6,), 6)
    changed = [x.copy() for x in inputs]
    changed[0][0, -1] += 1
    for kind in ("linear", "bilstm"):
        model, params = tagger(tiny_config, layers=(0,), kind=kind)
        found = applied(model, params, inputs)["logits"] - applied(model, params, changed)["logits"]
        assert (np.abs(found[0, :-1]).max() > 1e-4) == (kind == "bilstm")


@pytest.mark.slow
def test_the_encoder_has_no_dropout(tagger, tiny_config):
    config = dataclasses.replace(tiny_config, hidden_dropout_prob=0.5, classifier_dropout=0.0)
    model, params = tagger(config, layers=EVERY, kind="bilstm")
    inputs = rows((9,), 12)

    @jax.jit
    def total(params, rate_rng):
        rngs = {"dropout": jax.random.key(rate_rng)}
        outputs = model.apply({"params": params}, *inputs, dropout_rows=np.arange(1), rngs=rngs)
        return outputs["logits"].sum()

    assert total(params, 0) == total(params, 1)


@pytest.mark.parametrize(
    ("layers", "message"),
    [
        ((-4, 1), r"no layers \[-4\]; choose among -3..2"),
        ((3,), r"no layers \[3\]"),
        ((2, -1), "named twice"),
    ],
)
def test_layers_that_the_model_lacks_are_refused(layers, message):
    TaggerConfig(layers=(-3, 1, 2)).check_layers(2)
    with pytest.raises(ValueError, match=message):
        TaggerConfig(layers=layers).check_layers(2)


@pytest.mark.slow
@pytest.mark.exhaustive
def test_in_bfloat16_it_computes_the_same_up_to_rounding(tagger, tiny_config):
    model, params = tagger(tiny_config, layers=EVERY, kind="bilstm")
    inputs = rows((9,), 12)
    exact = applied(model, params, inputs)["logits"][0, :9]
    rounded = applied(model.clone(dtype=jax.numpy.bfloat16), params, inputs)["logits"]
    assert rounded.dtype == np.float32
    np.testing.assert_allclose(rounded[0, :9], exact, atol=0.1)
