"""Files of ModernBERT: fields of old and new transformers, and tensors that hold several others."""

import dataclasses
import json

import jax
import numpy as np
import pytest

import bertjax
from bertjax.model import named_config
from bertjax.weights import names
from bertjax.weights.families import config_from_hf, config_to_hf

# The fields of the released ModernBERT-base, of transformers 4.48, that say something of the model.
RELEASED = {
    "architectures": ["ModernBertForMaskedLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "classifier_activation": "gelu",
    "classifier_bias": False,
    "classifier_dropout": 0.0,
    "classifier_pooling": "mean",
    "decoder_bias": True,
    "embedding_dropout": 0.0,
    "global_attn_every_n_layers": 3,
    "global_rope_theta": 160000.0,
    "hidden_activation": "gelu",
    "hidden_size": 768,
    "initializer_cutoff_factor": 2.0,
    "initializer_range": 0.02,
    "intermediate_size": 1152,
    "layer_norm_eps": 1e-05,
    "local_attention": 128,
    "local_rope_theta": 10000.0,
    "max_position_embeddings": 8192,
    "mlp_bias": False,
    "mlp_dropout": 0.0,
    "model_type": "modernbert",
    "norm_bias": False,
    "norm_eps": 1e-05,
    "num_attention_heads": 12,
    "num_hidden_layers": 22,
    "pad_token_id": 50283,
    "position_embedding_type": "absolute",
    "vocab_size": 50368,
}
BASE = named_config("modernbert-base", classifier_pooling="mean")


def test_a_config_of_transformers_4_is_read():
    assert config_from_hf(RELEASED) == BASE
    ettin = RELEASED | {"position_embedding_type": "sans_pos", "local_rope_theta": 160000.0}
    assert config_from_hf(ettin).local_rope_theta == 160000.0
    same = config_from_hf(RELEASED | {"local_rope_theta": None})
    assert same.local_rope_theta == same.global_rope_theta
    assert (
        config_from_hf(RELEASED | {"initializer_cutoff_factor": None}).initializer_cutoff_factor
        == 3
    )


def test_a_config_of_transformers_5_is_read():
    old = ("global_attn_every_n_layers", "global_rope_theta", "local_rope_theta")
    fields = {key: value for key, value in RELEASED.items() if key not in old}
    fields["layer_types"] = [
        "sliding_attention" if layer % 3 else "full_attention" for layer in range(22)
    ]
    fields["rope_parameters"] = {
        "full_attention": {"rope_type": "default", "rope_theta": 160000.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
    }
    assert config_from_hf(fields) == BASE
    # They count, where both are there.
    written = config_to_hf(BASE) | {"layer_types": ["full_attention"] * 22}
    assert config_from_hf(json.loads(json.dumps(written))).global_attn_every_n_layers == 1
    written["rope_parameters"]["full_attention"]["rope_theta"] = 7.0
    assert config_from_hf(written).global_rope_theta == 7.0


@pytest.mark.parity
def test_transformers_reads_and_writes_the_same_config():
    transformers = pytest.importorskip("transformers", reason="the extra `parity` is not installed")
    fields = {key: value for key, value in config_to_hf(BASE).items() if key != "model_type"}
    theirs = transformers.AutoConfig.for_model("modernbert", **fields)
    assert theirs.layer_types == fields["layer_types"]
    assert config_from_hf(theirs.to_dict()) == BASE
    assert config_from_hf(transformers.ModernBertConfig().to_dict()) == named_config(
        "modernbert-base"
    )


LINEAR = {"rope_type": "linear", "factor": 2.0}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"layer_types": ["sliding_attention"] * 22}, "layer_types=.*full_attention in layers 0"),
        ({"layer_types": ["full_attention"]}, "each of the 22 layers"),
        (
            {"rope_scaling": {"rope_type": "yarn"}},
            "factor, original_max_position_embeddings is missing",
        ),
        ({"rope_scaling": {"type": "linear", "factor": 2.0}}, "factor is .* not supported"),
        ({"rope_parameters": {"full_attention": {"rope_type": "longrope"}}}, "rope_type=longrope"),
        ({"rope_parameters": {"sliding_attention": LINEAR}}, "in layers of full_attention alone"),
        ({"rope_scaling": LINEAR}, "in layers of full_attention alone"),
        ({"rope_parameters": [1]}, "must map full_attention"),
        ({"attention_dropout": "a"}, "attention_probs_dropout_prob='a'"),
    ],
)
def test_what_is_not_supported_is_refused(fields, message):
    with pytest.raises(ValueError, match=message):
        config_from_hf(RELEASED | fields)


def test_dropout_is_read_where_transformers_applies_it():
    config = config_from_hf(RELEASED | {"attention_dropout": 0.1, "classifier_dropout": 0.2})
    rates = (config.attention_probs_dropout_prob, config.attention_output_dropout)
    assert rates == (0.1, 0.1)
    assert (config.classifier_dropout, config.qa_dropout) == (0.2, 0.2)
    assert config_to_hf(config)["attention_dropout"] == 0.1


def test_a_run_may_leave_the_dropout_of_classifiers_open():
    """As that of `pretrain --init` and of `finetune --dropout` does."""
    config = dataclasses.replace(BASE, classifier_dropout=None, hidden_dropout_prob=0.1)
    assert config_to_hf(config)["classifier_dropout"] == 0.0
    assert config_from_hf(RELEASED | {"classifier_dropout": None}).qa_dropout == 0.0


def test_global_attention_everywhere_is_written_as_a_period_of_one():
    config = dataclasses.replace(BASE, global_attn_every_n_layers=1)
    assert set(config_to_hf(config)["layer_types"]) == {"full_attention"}
    with pytest.raises(ValueError, match="local_attention=None .*set global_attn_every_n_layers=1"):
        config_to_hf(dataclasses.replace(BASE, local_attention=None))


def test_parts_of_a_fused_tensor_come_back_joined(tiny_family):
    config = tiny_family("modernbert")
    stored = "layers.1.attn.Wqkv.weight"
    size = config.hidden_size
    whole = np.arange(3.0 * size * size, dtype=np.float32).reshape(3 * size, size)
    targets = names.located([stored], config)[stored]
    paths = [f"bert/encoder/layers/attention/{x}/kernel" for x in ("query", "key", "value")]
    assert [(target.path, target.layer) for target in targets] == [(path, 1) for path in paths]
    np.testing.assert_array_equal(targets[1].part_of(whole), whole[size : 2 * size])
    params = {
        target.path: np.stack([target.rule.transform.from_hf(target.part_of(whole), config)] * 2)
        for target in targets
    }
    joined = dict(names.to_hf(params, config))
    assert [*joined] == [f"model.layers.{layer}.attn.Wqkv.weight" for layer in (0, 1)]
    np.testing.assert_array_equal(joined["model.layers.1.attn.Wqkv.weight"], whole)


def test_damaged_fused_tensors_are_named(tmp_path, tiny_family, tokenizer, written):
    from safetensors.numpy import load_file, save_file

    folder = written(tmp_path / "m", tiny_family("modernbert"), "encoder", tokenizer)
    tensors = load_file(folder / "model.safetensors")
    save_file(tensors | {"model.layers.1.attn.Wqkv.weight": np.ones((95, 32), np.float32)},
              folder / "model.safetensors")  # fmt: skip
    with pytest.raises(ValueError, match=r"Wrong: 3 \(model.layers.1.attn.Wqkv.weight has"):
        bertjax.load_pretrained(folder)
    # Layer 0 has no LayerNorm before attention.
    extra = {"model.layers.0.attn_norm.weight": np.ones(32, np.float32)}
    save_file(tensors | extra, folder / "model.safetensors")
    with pytest.raises(ValueError, match=r"Unexpected: model.layers.0.attn_norm.weight"):
        bertjax.load_pretrained(folder)
    del tensors["model.layers.1.attn_norm.weight"]
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(ValueError, match=r"Missing: model.layers.1.attn_norm.weight"):
        bertjax.load_pretrained(folder)


def test_the_norm_that_layer_0_lacks_keeps_its_initial_value(
    tmp_path, tiny_family, tokenizer, written
):
    folder = written(tmp_path / "m", tiny_family("modernbert"), "encoder", tokenizer)
    layers = bertjax.load_pretrained(folder).params["bert"]["encoder"]["layers"]
    scale = jax.device_get(layers["attention_norm"]["scale"])
    assert (scale[0] == 1).all() and (scale[1] != 1).any()
