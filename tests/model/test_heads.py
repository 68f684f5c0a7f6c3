"""The facts that heads state about themselves hold for the models."""

import dataclasses
from functools import partial

import jax
import jax.numpy as jnp
import pytest

from bertjax.model import HEADS, FeatureTagger, TaggerConfig
from bertjax.weights.fill import param_shapes

ROWS, LENGTH, SEQUENCES = 2, 12, 3
BILSTM = partial(FeatureTagger, tagger=TaggerConfig(layers=(-1,), kind="bilstm"))
CLASSES = {**HEADS, "linear tagger": FeatureTagger, "BiLSTM tagger": BILSTM}


def output_shapes(model, **options):
    """Shapes of all outputs, without compiling anything."""
    ids = jnp.zeros((ROWS, LENGTH), jnp.int32)
    starts = jnp.zeros((ROWS, SEQUENCES), jnp.int32)

    def outputs(key):
        return model.init_with_output(key, ids, ids, ids, ids, starts, **options)[0]

    return {key: x.shape for key, x in jax.eval_shape(outputs, jax.random.key(0)).items()}


@pytest.mark.parametrize("activation", [None, "tanh"])
@pytest.mark.parametrize("head", CLASSES.values(), ids=CLASSES)
def test_a_head_has_the_parameters_that_it_states(head, activation, tiny_config):
    model = head(dataclasses.replace(tiny_config, classifier_activation=activation))
    paths = param_shapes(model)
    parts = {path.split("/")[0] for path in paths} - {"bert"}
    assert parts == model.present_parts <= set(model.parts)
    assert model.class_part is None or model.class_part in model.parts
    assert any(path.startswith("bert/pooler") for path in paths) == model.needs_pooler
    assert model.trained_encoders == ((model.config, "predictions" in parts),)


@pytest.mark.parametrize("tied", [True, False])
def test_logits_of_words_are_float32_in_bfloat16_too(tied, tiny_config):
    config = dataclasses.replace(tiny_config, tie_word_embeddings=tied)
    model = HEADS["masked_lm"](config, jnp.bfloat16)
    ids = jnp.arange(ROWS * LENGTH).reshape(ROWS, LENGTH)
    logits = jax.jit(model.init_with_output)(jax.random.key(0), ids)[0]["logits"]
    assert logits.dtype == jnp.float32 and (logits != logits.astype(jnp.bfloat16)).any()


@pytest.mark.parametrize("head", CLASSES.values(), ids=CLASSES)
def test_a_head_has_the_outputs_that_it_states(head, tiny_config):
    model = head(tiny_config, num_labels=5)
    shapes = output_shapes(model, output_hidden_states=True)
    assert "hidden_states" in shapes and "hidden_states" not in model.outputs
    del shapes["hidden_states"]
    encoder = {"last_hidden_state", *(["pooler_output"] if model.needs_pooler else [])}
    assert shapes.keys() - encoder == set(model.outputs)
    for key in model.outputs:
        count = SEQUENCES if key in model.sequence_outputs else LENGTH
        assert shapes[key][:2] == (ROWS, count)


@pytest.mark.parametrize("name", ["pretraining", "masked_lm"])
def test_words_are_predicted_at_the_masked_positions_alone(name, tiny_config):
    positions = jnp.zeros((ROWS, 4), jnp.int32)
    shapes = output_shapes(HEADS[name](tiny_config), masked_positions=positions)
    assert shapes[HEADS[name].outputs[0]] == (ROWS, 4, tiny_config.vocab_size)
