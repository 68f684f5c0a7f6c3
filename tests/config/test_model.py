"""BertConfig and the named sizes."""

import json

import jax
import jax.numpy as jnp
import pytest

from bertjax.base.files import read_json
from bertjax.model import BertConfig, BertForPreTraining, BertModel, named_config

# Encoder with pooler, as published (Devlin et al. 2018; Turc et al. 2019).
PUBLISHED = {
    "bert-tiny": 4_385_920,
    "bert-small": 28_763_648,
    "bert-medium": 41_373_184,
    "bert-base-uncased": 109_482_240,
    "bert-base-cased": 108_310_272,
    "bert-base-chinese": 102_267_648,
    "bert-base-multilingual-cased": 177_853_440,
    "bert-large-uncased": 335_141_888,
    "bert-large-cased": 333_579_264,
}


def shapes_of(model):
    ids, starts = jnp.zeros((1, 8), int), jnp.zeros((1, 1), int)
    return jax.eval_shape(model.init, jax.random.key(0), ids, ids, ids, ids, starts)["params"]


def count(tree) -> int:
    return sum(x.size for x in jax.tree.leaves(tree))


@pytest.mark.parametrize("name", PUBLISHED)
def test_named_sizes_have_the_published_number_of_parameters(name):
    assert count(shapes_of(BertModel(named_config(name)))) == PUBLISHED[name]


def test_base_with_its_masked_lm_head_has_the_published_number_of_parameters():
    shapes = shapes_of(BertForPreTraining(named_config("bert-base-uncased")))
    masked_lm = count(shapes) - count(shapes["bert"]["pooler"]) - count(shapes["seq_relationship"])
    assert masked_lm == 109_514_298


def test_config_survives_json(tmp_path):
    config = named_config("bert-mini", hidden_act="gelu_new", type_vocab_size=3)
    (tmp_path / "config.json").write_text(json.dumps(config.to_dict()))
    assert BertConfig.from_dict(read_json(tmp_path / "config.json")) == config


def test_keys_that_do_not_concern_the_architecture_are_left():
    assert BertConfig.from_dict({"hidden_size": 24, "use_cache": True, "id2label": {}}) == (
        BertConfig(hidden_size=24)
    )


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"hidden_size": 100}, "num_attention_heads=12"),
        ({"hidden_act": "gelu_nwe"}, "'gelu_new'"),
        ({"hidden_dropout_prob": 1.0}, "hidden_dropout_prob=1.0"),
        ({"vocab_size": 0}, "vocab_size=0"),
        ({"position_embedding_type": "relative_key"}, "relative_key"),
        ({"num_hidden_groups": 5}, "num_hidden_layers=12 is not a multiple of num_hidden_groups=5"),
        ({"position_offset": 512}, "position_offset=512 must be below"),
        ({"mlm_activation": "gulu"}, "mlm_activation='gulu'"),
        ({"embedding_size": 0}, "embedding_size=0"),
        ({"hidden_size": "768"}, "hidden_size='768': it must be an integer"),
        ({"layer_norm_eps": None}, "layer_norm_eps=None: it must be a number"),
        ({"tie_word_embeddings": 1}, "tie_word_embeddings=1: it must be true or false"),
        ({"classifier_dropout": "0"}, "classifier_dropout='0': it must be a number or null"),
        ({"vocab_size": 10**13}, "vocab_size=10000000000000"),
    ],
)
def test_what_cannot_be_computed_is_refused_by_name(change, named):
    with pytest.raises(ValueError, match=named):
        BertConfig.from_dict(change)


def test_an_unknown_size_names_the_nearest():
    with pytest.raises(ValueError, match="Did you mean 'bert-base-cased'"):
        named_config("bert-base-case")
