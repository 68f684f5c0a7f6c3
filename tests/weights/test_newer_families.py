"""All families equal transformers: random odd configs, rows with gaps, gradients, files."""

import dataclasses
import json
import math
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import bertjax
from bertjax.config.model import ROPE_FIELDS
from bertjax.inference.attention import contacts_of
from bertjax.model import HEADS, BertConfig
from bertjax.model.encoder import rotation_of
from bertjax.model.recipe import flattened
from bertjax.weights import load_model, names
from bertjax.weights.families import (
    FAMILIES,
    architecture,
    config_from_hf,
    config_to_hf,
    heads_of,
    unknown_fields,
    with_pad_token,
)
from bertjax.weights.hf import save_hf
from bertjax.weights.newer_families import NEWER_FAMILIES
from tests.cases import WEEKLY

ACTIVATIONS = ("gelu", "relu", "gelu_new", "silu")
OF_TRANSFORMERS = (
    "encoder",
    "pretraining",
    "masked_lm",
    "next_sentence",
    "sequence_classification",
    "token_classification",
    "question_answering",
    "multiple_choice",
)
CONFIGS = 12
ROWS = 4
COMPARED = ("hidden states", "outputs", "attention", "gradients")


def chosen(rng: np.random.Generator, *values: Any) -> Any:
    return values[rng.integers(len(values))]


def odd_config(base: BertConfig, rng: np.random.Generator) -> BertConfig:
    """A config of the family of `base` with other sizes, and other values of what it may choose."""
    family = FAMILIES[base.model_type]
    fields = set(family.fields.values())
    heads = chosen(rng, 1, 2, 3, 6)
    head_size = chosen(rng, 2 if heads > 3 else 8, 6, 10)
    changes: dict[str, Any] = {
        "vocab_size": int(rng.integers(101, 150)),
        "hidden_size": heads * head_size,
        "num_attention_heads": heads,
        "num_hidden_layers": int(rng.integers(1, 5)),
        "intermediate_size": int(rng.integers(5, 70)),
        "hidden_act": chosen(rng, *ACTIVATIONS),
        "layer_norm_eps": chosen(rng, 1e-12, 1e-5, 1e-3),
        "max_position_embeddings": 200,
        "initializer_range": 0.1,
        "pad_token_id": base.pad_token_id if family.positions_after_padding else 3,
        "tie_word_embeddings": chosen(rng, True, False),
        "type_vocab_size": int(rng.integers(1, 4)),
        "global_rope_theta": chosen(rng, 50.0, 1e4, 5e5),
        "rotary_value": chosen(rng, True, False),
        "head_dim": chosen(rng, head_size, 4, 14),
        "num_key_value_heads": chosen(rng, *(n for n in (1, 2, 3) if heads % n == 0)),
        "attention_bias": chosen(rng, True, False),
        "mlp_bias": chosen(rng, True, False),
        "classifier_pooling": chosen(rng, "cls", "mean", "late"),
        "embedding_size": int(rng.integers(4, 20)),
        "output_embedding_size": int(rng.integers(4, 20)),
        "token_dropout": chosen(rng, True, False),
        "mask_token_id": 4,
        "embedding_norm": chosen(rng, True, False),
        "stored_rope": chosen(rng, True, True, False),
    }
    changes = {name: value for name, value in changes.items() if name in fields}
    if base.relative_attention_num_buckets:  # MPNet counts positions from the token 1
        changes["pad_token_id"] = base.pad_token_id
    if base.prediction_head and changes["classifier_pooling"] == "late":
        changes["classifier_pooling"] = "mean"
    if "decoder_bias" in fields:
        changes["decoder_bias"] = changes["mlp_bias"]
    if "classifier_activation" in fields:
        changes["classifier_activation"] = changes["hidden_act"]
    if base.prediction_head and changes["classifier_pooling"] == "late":
        changes["classifier_pooling"] = "mean"
    if changes.get("embedding_size") == changes["hidden_size"]:
        changes["embedding_size"] += 1  # which would not be projected
    if "output_embedding_size" in fields:
        changes["tie_word_embeddings"] = False
    if base.prediction_head_size:
        period = int(rng.integers(1, 5))
        changes |= {
            "classifier_pooling": chosen(rng, "cls", "mean"),
            "prediction_head_size": int(rng.integers(5, 40)),
            "local_attention": chosen(rng, 2, 10, 38, 256),
            "local_rope_theta": chosen(rng, 50.0, 1e4),
            "global_attn_every_n_layers": period,
            "first_global_layer": int(rng.integers(period)),
        }
    if changes.get("stored_rope") is False:  # ESM-1b has a table of positions
        changes["global_rope_theta"] = None
    return with_pad_token(dataclasses.replace(base, **changes), changes["pad_token_id"])


SCALED = [name for name, family in FAMILIES.items() if "rope_type" in family.fields]


def scaled_rope(config: BertConfig, kind: str, rng: np.random.Generator) -> BertConfig:
    """`config` with rotations that are slowed in another way."""
    slow, fast = chosen(rng, 0.5, 1.0), chosen(rng, 3.0, 4.0, 32.0)
    values = {
        "rope_factor": chosen(rng, 1.5, 4.0, 16.0),
        "rope_original_max_position_embeddings": chosen(rng, 30, 64, 100),
        **{"rope_beta_slow": slow, "rope_beta_fast": fast},
        **{"rope_low_freq_factor": slow, "rope_high_freq_factor": fast},
        "rope_attention_factor": chosen(rng, None, 0.7, 1.3),
    }
    changes = {name: values[name] for name in ROPE_FIELDS[kind]}
    return dataclasses.replace(config, rope_type=kind, **changes)


def batch(config: BertConfig, head: str, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Four rows of up to 120 tokens, with padding behind and gaps in the middle."""
    length = chosen(rng, 9, 40, 120)
    lengths = rng.integers(3, length + 1, ROWS)
    lengths[0] = length
    mask = np.arange(length) < lengths[:, None]
    gaps = rng.random(mask.shape) < 0.2
    gaps[:, 0] = False
    ids = rng.integers(5, config.vocab_size, mask.shape)
    if config.token_dropout:
        is_masked = mask & ~gaps & (rng.random(mask.shape) < 0.3)
        is_masked[:, 0] = False
        ids = np.where(is_masked, config.mask_token_id, ids)
    inputs = {
        "input_ids": np.where(mask, ids, config.pad_token_id),
        "attention_mask": (mask & ~gaps).astype(np.int64),
    }
    if config.type_vocab_size > 1:
        inputs["token_type_ids"] = rng.integers(0, config.type_vocab_size, mask.shape)
    if head == "multiple_choice":
        return {key: value.reshape(2, 2, length) for key, value in inputs.items()}
    return inputs


def their_model(config: BertConfig, head: str, seed: int):
    """A model of transformers with random numbers in all parameters."""
    torch = pytest.importorskip("torch", reason="the extra `parity` is not installed")
    transformers = pytest.importorskip("transformers", reason="the extra `parity` is not installed")
    fields = {key: value for key, value in config_to_hf(config).items() if key != "model_type"}
    described = transformers.AutoConfig.for_model(config.model_type, **fields)
    described.num_labels = 2 if head in ("question_answering", "pretraining") else 3
    torch.manual_seed(seed)
    model = getattr(transformers, architecture(config, head))._from_config(
        described, attn_implementation="eager"
    )
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            # Two layers without a LayerNorm would make small logits.
            spread = 0.4 if "head.linear" in name else 0.05
            if parameter.requires_grad:
                parameter.add_(torch.randn_like(parameter) * spread)
    return model.eval()


def weighted(outputs: Mapping[str, Any], real: np.ndarray, seed: int, as_array: Any) -> Any:
    """A number that depends on all outputs of the head, or on the last hidden states."""
    logits = sorted(name for name in outputs if "logits" in name) or ["last_hidden_state"]
    total = 0.0
    for name in logits:
        value = outputs[name]
        weights = np.random.default_rng(seed).normal(size=value.shape) / math.prod(value.shape)
        if value.shape[:2] == real.shape:
            weights *= real.reshape(*real.shape, *[1] * (value.ndim - 2))
        total = total + (value * as_array(weights.astype(np.float32))).sum()
    return total


def plain(name: str) -> str:
    """Transformers 5.24 writes ESM's LayerNorms by their old names, and one name with a star."""
    name = name.replace("encoder.layer.*.attention.self.rotary", "rotary")
    return name.replace("LayerNorm.gamma", "LayerNorm.weight").replace(
        "LayerNorm.beta", "LayerNorm.bias"
    )


def compare(
    family: str, base: BertConfig, head: str, seed: int, folder, tokenizer, rope: str = "default"
) -> dict[str, float]:
    """Compares outputs, gradients and files; returns the largest difference by what is compared."""
    torch = pytest.importorskip("torch", reason="the extra `parity` is not installed")

    rng = np.random.default_rng([seed, *family.encode()])
    config = scaled_rope(odd_config(base, rng), rope, rng)
    theirs = their_model(config, head, seed)
    theirs.save_pretrained(folder / "theirs")
    tokenizer.save(folder / "theirs")
    inputs = batch(config, head, rng)
    tensors = {key: torch.tensor(value) for key, value in inputs.items()}
    expected = theirs(**tensors, output_hidden_states=True, output_attentions=True)
    real = inputs["attention_mask"].reshape(-1, inputs["attention_mask"].shape[-1]) > 0

    ours = bertjax.load_pretrained(folder / "theirs", head)
    assert ours.config == dataclasses.replace(
        config, classifier_dropout=ours.config.classifier_dropout
    )
    ours.save(folder / "ours")
    before = load_file(folder / "theirs" / "model.safetensors")
    after = load_file(folder / "ours" / "model.safetensors")
    if head == "encoder":  # files of transformers have no prefix then
        prefix = f"{FAMILIES[family].prefix}."
        after = {name.removeprefix(prefix): value for name, value in after.items()}
    before = {plain(name): value for name, value in before.items()}
    assert rope_parameters(folder / "theirs") == rope_parameters(folder / "ours")
    assert before.keys() == after.keys()
    for name, value in before.items():
        assert value.tobytes() == after[name].tobytes(), name

    found = ours(**inputs, output_hidden_states=True, output_attentions=True)
    worst = dict.fromkeys(COMPARED, 0.0)
    for name, value in expected.items():
        if name == "cross_attentions":
            continue
        kind = {"hidden_states": "hidden states", "attentions": "attention"}.get(name, "outputs")
        if name == "hidden_states":
            difference = np.stack([x.detach().numpy() for x in value]) - found[name]
            difference = difference[:, real]
        elif name == "attentions":
            difference = np.stack([x.detach().numpy() for x in value]) - found[name]
            difference = difference.transpose(1, 3, 0, 2, 4)[real]
        else:
            assert found[name].shape == value.shape, name
            difference = found[name] - value.detach().numpy()
            difference = difference[real] if value.shape[:2] == real.shape else difference
        assert np.abs(difference).max() < 1e-5, (name, config)
        worst[kind] = max(worst[kind], float(np.abs(difference).max()))

    weighted(expected, real, seed, torch.tensor).backward()
    loaded = load_model(folder / "theirs", head)
    model = loaded.model

    def loss(params):
        outputs = model.apply({"params": params}, **_rows(inputs))
        shaped = {}
        for name, value in outputs.items():
            theirs_name = FAMILIES[family].outputs.get(name, name)
            if theirs_name in expected:
                shaped[theirs_name] = value.reshape(expected[theirs_name].shape)
        return weighted(shaped, real, seed, jnp.asarray)

    gradients = jax.device_get(jax.jit(jax.grad(loss))(loaded.params))
    found_gradients = {
        name: np.ascontiguousarray(value)
        for name, value in names.to_hf(flattened(gradients), config)
    }
    found_gradients |= FAMILIES[family].tables(config)  # which are not trained
    # Our gradients, in a model of transformers, which has other names than its files.
    save_file(found_gradients, folder / "theirs" / "model.safetensors")
    again = type(theirs).from_pretrained(folder / "theirs")
    for (name, parameter), ours in zip(theirs.named_parameters(), again.parameters(), strict=True):
        if parameter.grad is None:
            continue
        value = parameter.grad.numpy()
        difference = ours.detach().numpy() - value
        if difference.ndim == 2 and len(difference) == config.vocab_size:
            difference[config.pad_token_id] = 0  # PyTorch does not train it
        scale = max(float(np.abs(value).max()), 1e-3)
        assert np.abs(difference).max() < 1e-4 * scale, (name, config)
        worst["gradients"] = max(worst["gradients"], float(np.abs(difference).max()) / scale)
    return worst


def rope_parameters(folder) -> Any:
    return json.loads((folder / "config.json").read_text()).get("rope_parameters")


def _rows(inputs: Mapping[str, np.ndarray]) -> dict[str, jax.Array]:
    return {key: jnp.asarray(value.reshape(ROWS, -1)) for key, value in inputs.items()}


def compared_heads(family: str) -> list[str]:
    """The heads for which transformers has a class."""
    config = BertConfig(model_type=family)
    known = set(heads_of(config)) - set(FAMILIES[family].encoders)
    return [head for head in OF_TRANSFORMERS if head in known]


@pytest.mark.slow
@pytest.mark.parity
def test_contacts_of_residues_equal_transformers(tmp_path, tiny_family):
    theirs = their_model(tiny_family("esm"), "masked_lm", 0)
    import torch
    import transformers
    from transformers.models.esm.configuration_esm import get_default_vocab_list

    (tmp_path / "vocab.txt").write_text("\n".join(get_default_vocab_list()))
    theirs.save_pretrained(tmp_path)
    tokenizer = transformers.EsmTokenizer(tmp_path / "vocab.txt")
    tokenizer.save_pretrained(tmp_path)
    inputs = tokenizer("MKTAYIAKQRQISFVK", return_tensors="pt")
    with torch.no_grad():
        expected = theirs.predict_contacts(inputs["input_ids"], inputs["attention_mask"])
    found = contacts_of(bertjax.load_pretrained(tmp_path), "MKTAYIAKQRQISFVK")
    np.testing.assert_allclose(found, expected[0].numpy(), atol=1e-5)


@pytest.mark.parametrize(
    ("family", "name", "first"),
    [
        ("roformer", "roformer.encoder.embed_positions.weight", None),
        (
            "esm",
            "esm.encoder.layer.1.attention.self.rotary_embeddings.inv_freq",
            "esm.encoder.layer.0.attention.self.rotary_embeddings.inv_freq",
        ),
    ],
)
def test_a_tensor_that_is_computed_here_must_have_its_values(
    family, name, first, tmp_path, tiny_family, tokenizer, random_params
):
    config = tiny_family(family, vocab_size=tokenizer.vocab_size)
    params = random_params(HEADS["masked_lm"](config))
    save_hf(tmp_path, params, config, tokenizer, head="masked_lm")
    (tmp_path / "checksums.json").unlink()
    file = tmp_path / "model.safetensors"
    stored = load_file(file)
    if first is None:
        values = stored[name]
    else:  # an older file
        stored[first] = values = stored.pop("esm.rotary_embeddings.inv_freq")

    save_file(stored | {name: values.astype(ml_dtypes.bfloat16)}, file)
    assert not load_model(tmp_path, "masked_lm").absent
    save_file(stored | {name: values * np.float32(0.9)}, file)
    with pytest.raises(ValueError, match=name):
        load_model(tmp_path, "masked_lm")


@pytest.fixture
def nomic(tmp_path, tiny_family, tokenizer, random_params):
    """A model of nomic_bert in a folder, and its `config.json` with the fields of nomic's code."""
    config = tiny_family("nomic_bert", vocab_size=tokenizer.vocab_size)
    params = random_params(HEADS["encoder"](config))
    save_hf(tmp_path, params, config, tokenizer, head="encoder")
    (tmp_path / "checksums.json").unlink()
    own_fields = {
        **{"model_type": "nomic_bert", "architectures": ["NomicBertModel"]},
        **{"auto_map": {"AutoModel": "modeling.NomicBertModel"}, "n_embd": config.hidden_size},
        **{"n_layer": config.num_hidden_layers, "n_head": config.num_attention_heads},
        **{"n_inner": config.intermediate_size, "n_positions": 66, "vocab_size": config.vocab_size},
        **{"layer_norm_epsilon": 1e-12, "rotary_emb_base": 1000, "rotary_emb_fraction": 1.0},
        **{"activation_function": "swiglu", "qkv_proj_bias": False, "mlp_fc1_bias": False},
        **{"prenorm": False, "use_rms_norm": False, "rotary_scaling_factor": None},
        **{"type_vocab_size": 2, "resid_pdrop": 0.0, "attn_pdrop": 0.0, "embd_pdrop": 0.0},
        **{"use_flash_attn": True, "pad_vocab_size_multiple": 64, "initializer_range": 0.02},
    }
    return tmp_path, own_fields


def test_a_config_of_nomics_own_code_makes_the_same_model(nomic, capsys):
    folder, own_fields = nomic
    expected = load_model(folder, "encoder")
    (folder / "config.json").write_text(json.dumps(own_fields))
    found = load_model(folder, "encoder")
    changes = {"initializer_range": 0.02, "global_rope_theta": 1000.0}
    assert dataclasses.replace(expected.config, **changes) == found.config
    jax.tree.map(np.testing.assert_array_equal, expected.params, found.params)
    assert "warning" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *[("rotary_emb_interleaved", True), ("prenorm", True), ("rotary_scaling_factor", 2)],
        *[("qkv_proj_bias", True), ("activation_function", "gelu"), ("rotary_emb_fraction", 0.5)],
    ],
)
def test_what_nomics_own_code_can_do_beside_is_refused(nomic, field, value):
    folder, own_fields = nomic
    (folder / "config.json").write_text(json.dumps(own_fields | {field: value}))
    with pytest.raises(ValueError, match=field):
        load_model(folder, "encoder")


def test_masked_lms_of_nomics_own_code_have_berts_prefix(
    tmp_path, tiny_family, tokenizer, random_params
):
    config = tiny_family("nomic_bert", vocab_size=tokenizer.vocab_size)
    params = random_params(HEADS["masked_lm"](config))
    save_hf(tmp_path, params, config, tokenizer, head="masked_lm")
    (tmp_path / "checksums.json").unlink()
    expected = load_model(tmp_path, "masked_lm")
    file = tmp_path / "model.safetensors"
    stored = load_file(file)
    save_file({name.replace("nomic_bert.", "bert."): x for name, x in stored.items()}, file)
    found = load_model(tmp_path, "masked_lm")
    assert not found.absent and not found.unused
    jax.tree.map(np.testing.assert_array_equal, expected.params, found.params)


@pytest.mark.parametrize(
    ("family", "own_fields", "changes"),
    [
        ("eurobert", {"clf_pooling": "mean"}, {"classifier_pooling": "mean"}),
        ("eurobert", {"clf_pooling": "mean", "classifier_pooling": "bos"}, {}),
        ("eurobert", {"mask_token": "<|mask|>", "pad_token": "<|end_of_text|>"}, {}),
        ("gte", {"layer_norm_type": "layer_norm", "logn_attention_scale": False}, {}),
        ("gte", {"pack_qkv": True, "unpad_inputs": "true", "auto_map": {"AutoModel": "x.y"}}, {}),
    ],
)
def test_fields_of_the_models_own_code_are_followed(family, own_fields, changes, tiny_family):
    config = tiny_family(family)
    if "classifier_pooling" in own_fields:
        config = dataclasses.replace(config, classifier_pooling="cls")
    values = config_to_hf(config)
    if changes:
        values.pop("classifier_pooling")
    values |= own_fields
    assert config_from_hf(values) == dataclasses.replace(config, **changes)
    assert not unknown_fields(values)


@pytest.mark.parametrize(
    ("field", "value"), [("layer_norm_type", "rms_norm"), ("logn_attention_scale", True)]
)
def test_what_gtes_own_code_can_do_beside_is_refused(field, value, tiny_family):
    values = config_to_hf(tiny_family("gte")) | {field: value}
    with pytest.raises(ValueError, match=field):
        config_from_hf(values)


@pytest.mark.parametrize(
    ("field", "value"),
    [("num_key_value_heads", 2), ("head_dim", 16), ("tie_word_embeddings", True)],
)
def test_what_esmc_has_not_in_transformers_is_refused_or_not_saved(field, value, tiny_family):
    config = tiny_family("esmc")
    with pytest.raises(ValueError, match=f"{field}={value}"):
        config_from_hf(config_to_hf(config) | {field: value})
    with pytest.raises(ValueError, match=f"{field}={value}"):
        config_to_hf(dataclasses.replace(config, **{field: value}))
    usual = {"num_key_value_heads": 4, "head_dim": None, "tie_word_embeddings": False}
    assert config_from_hf(config_to_hf(config) | usual) == config


WINDOWS = [4, 4, 0, 4, 4, 0, 4]
OWN_FIELDS = {"attention_windows": WINDOWS, "rope_theta": [30.0, 30.0, 7e4] * 2 + [30.0]}


@pytest.mark.parity
@pytest.mark.parametrize(
    "own_fields",
    [
        OWN_FIELDS | {"auto_map": {"AutoModel": "modeling_ultrabert.UltraBertModel"}},
        {"attention_windows": [0] + [6] * 6, "sliding_window": 9},
        {"attention_windows": [0] * 7, "sliding_window": 9},
        {"attention_windows": [5] * 7},
        {"layer_types": ["full_attention", "sliding_attention"] * 3 + ["full_attention"]},
        {"layer_types": ["sliding_attention"] * 6 + ["full_attention"], "sliding_window": 9},
        {"rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 50.0}}}
        | {"layer_types": ["full_attention"] * 7, "rope_theta": [1.0]},
        {},
    ],
)
def test_configs_of_ultraberts_own_code_are_those_of_transformers(own_fields, tiny_family):
    transformers = pytest.importorskip("transformers", reason="the extra `parity` is not installed")
    values = config_to_hf(tiny_family("ultrabert", num_hidden_layers=7))
    said = ("layer_types", "sliding_window", "rope_parameters", "model_type")
    for name in (*said, "global_attn_every_n_layers", "first_global_layer"):
        values.pop(name)
    theirs = transformers.UltrabertConfig(**values | json.loads(json.dumps(own_fields)))
    config = config_from_hf(values | own_fields | {"model_type": "ultrabert"})
    assert not unknown_fields(values | own_fields | {"model_type": "ultrabert"})
    written = config_to_hf(config)
    assert written["layer_types"] == theirs.layer_types
    assert written["sliding_window"] == theirs.sliding_window
    for kind in {*theirs.layer_types}:
        assert written["rope_parameters"][kind] == theirs.rope_parameters[kind]
    again = json.loads(json.dumps(written))
    assert config_from_hf(again) == config
    # What other programs write has no fields of ours, and the same layers.
    again.pop("global_attn_every_n_layers")
    again.pop("first_global_layer")
    assert config_to_hf(config_from_hf(again))["layer_types"] == theirs.layer_types


@pytest.mark.parity
def test_without_layer_types_fields_of_ours_change_no_layer_of_ultrabert(tiny_family):
    transformers = pytest.importorskip("transformers", reason="the extra `parity` is not installed")
    values = config_to_hf(tiny_family("ultrabert", num_hidden_layers=7))
    del values["layer_types"]
    values |= {"global_attn_every_n_layers": 2, "first_global_layer": 0}
    theirs = transformers.UltrabertConfig(**values)
    assert config_to_hf(config_from_hf(values))["layer_types"] == theirs.layer_types


@pytest.mark.parametrize(
    "own_fields",
    [
        {"attention_windows": [4, 5, 0]},
        {"attention_windows": [4, 4]},
        {"attention_windows": 4},
        {"attention_windows": [-4, 0, -4]},
        {"attention_windows": [4, 0, 0], "layer_types": ["full_attention"] * 3},
        {"rope_theta": [7.0, 7.0]} | {"layer_types": ["full_attention"] * 3},
        {"rope_theta": [7.0, 8.0, 7.0]} | {"layer_types": ["full_attention"] * 3},
        {"rope_theta": 7.0},
        {"rope_parameters": {"rope_type": "default", "rope_theta": 7.0}},
        {"rope_parameters": {"sliding_attention": {"rope_type": "linear", "factor": 2.0}}},
        {"rope_scaling": {"rope_type": "linear", "factor": 2.0}},
        {"layer_types": ["full_attention", "full_attention", "sliding_attention"]},
        {"layer_types": ["full_attention"]},
        {"layer_types": ["chunked_attention"] * 3},
        {"sliding_window": 0},
        {"sliding_window": "4"},
        {"classifier_pooling": "late"},
        {"tie_word_embeddings": 1},
        {"prediction_head_size": 0},
        {"prediction_head_size": None},
    ],
    ids=str,
)
def test_what_is_not_followed_of_ultrabert_is_refused_by_name(own_fields, tiny_family):
    values = config_to_hf(tiny_family("ultrabert", num_hidden_layers=3))
    for name in ("layer_types", "rope_parameters"):
        values.pop(name)
    expected = [*own_fields][0]
    if own_fields == {"attention_windows": [-4, 0, -4]}:
        expected = "sliding_window=-4"
    with pytest.raises(ValueError, match=expected):
        config_from_hf(values | own_fields)


@pytest.mark.parametrize(
    "change",
    [
        {"local_attention": None, "first_global_layer": 0, "global_attn_every_n_layers": 1},
        {"local_attention": 7},
        {"mlm_activation": "relu"},
        {"prediction_head_size": None},
        {"classifier_activation": "gelu"},
        {"classifier_pooling": "late"},
        {"norm_type": "layer_norm"},
        {"decoder_bias": True},
    ],
)
def test_what_ultrabert_has_not_in_transformers_is_not_saved(change, tiny_family):
    with pytest.raises(ValueError, match=[*change][0]):
        config_to_hf(tiny_family("ultrabert", **change))


def test_tensors_with_the_names_of_the_layers_of_ultrabert_are_read(
    tmp_path, tiny_family, tokenizer, written
):
    folder = written(tmp_path / "m", tiny_family("ultrabert"), "masked_lm", tokenizer)
    (folder / "checksums.json").unlink(missing_ok=True)
    expected = load_model(folder, "masked_lm")
    file = folder / "model.safetensors"
    renamed = {}
    for name, tensor in load_file(file).items():
        name = name.replace("ultrabert.", "model.").replace("cls.", "head.decoder.")
        renamed[name] = tensor
    assert "head.decoder.weight" in renamed and "model.norm.weight" in renamed
    save_file(renamed, file)
    found = load_model(folder, "masked_lm")
    assert not found.absent and not found.unused
    jax.tree.map(np.testing.assert_array_equal, expected.params, found.params)


def marks_of(family, seed):
    is_in_ci = (family in NEWER_FAMILIES and seed < 1) or (family, seed) == ("ultrabert", 6)
    return pytest.mark.slow if is_in_ci else WEEKLY


@pytest.fixture(scope="module")
def cases():
    """(family, head, largest differences) of all comparisons, of which a table is printed."""
    cases = []
    yield cases
    print("\n| family | configs | heads |", " | ".join(COMPARED), "|")
    print("|---" * (3 + len(COMPARED)), end="|\n")
    for family in dict.fromkeys(family for family, _, _ in cases):
        heads = {head for name, head, _ in cases if name == family}
        worst = [worst for name, _, worst in cases if name == family]
        largest = [f"{max(one[name] for one in worst):.1e}" for name in COMPARED]
        print(f"| `{family}` | {len(worst)} | {len(heads)} |", " | ".join(largest), "|")


@pytest.mark.parity
@pytest.mark.parametrize(
    ("family", "seed"),
    [
        pytest.param(family, seed, marks=marks_of(family, seed))
        for seed in range(CONFIGS)
        for family in FAMILIES
    ],
)
def test_an_odd_config_equals_transformers(family, seed, tmp_path, tiny_family, tokenizer, cases):
    heads = compared_heads(family)
    head = heads[seed % len(heads)]
    worst = compare(family, tiny_family(family), head, seed, tmp_path, tokenizer)
    cases.append((family, head, worst))
    differences = ", ".join(f"{name} {value:.1e}" for name, value in worst.items())
    print(f"{family} {seed} {head}: {differences}")


ROPES = [kind for kind in ROPE_FIELDS if kind != "default"]
ROPE_MARKS = {("eurobert", "llama3"): (), ("modernbert", "yarn"): pytest.mark.slow}


@pytest.mark.parity
@pytest.mark.parametrize(
    ("family", "kind"),
    [
        pytest.param(family, kind, marks=ROPE_MARKS.get((family, kind), WEEKLY))
        for family in SCALED
        for kind in ROPES
    ],
)
def test_slowed_rotations_equal_transformers(family, kind, tmp_path, tiny_family, tokenizer):
    heads = compared_heads(family)
    for seed in range(2 if kind == "yarn" else 1):
        head = heads[(seed + ROPES.index(kind)) % len(heads)]
        folder = tmp_path / str(seed)
        worst = compare(family, tiny_family(family), head, seed, folder, tokenizer, kind)
        print(f"{family} {kind} {seed} {head}: {max(worst.values()):.1e}")


YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 20}


@pytest.mark.parity
@pytest.mark.parametrize(
    "written",
    [
        {"rope_scaling": {"type": "linear", "factor": 2}, "rope_theta": 50.0},
        {"rope_scaling": YARN | {"beta_fast": 8}},
        {"rope_parameters": YARN | {"truncate": True, "partial_rotary_factor": 1.0}},
        {"rope_parameters": YARN | {"factor": 0.5, "attention_factor": None, "beta_slow": 4.0}},
    ],
)
def test_other_ways_to_write_slowed_rotations_are_followed(written, tiny_family):
    torch = pytest.importorskip("torch", reason="the extra `parity` is not installed")
    transformers = pytest.importorskip("transformers", reason="the extra `parity` is not installed")
    values = config_to_hf(tiny_family("eurobert"))
    del values["rope_parameters"], values["rope_theta"]
    values |= json.loads(json.dumps(written))
    config = config_from_hf(values)
    assert config_from_hf(config_to_hf(config)) == config and not unknown_fields(values)

    del values["model_type"]
    described = transformers.AutoConfig.for_model("eurobert", **values)
    rotary = transformers.EuroBertModel(described).rotary_emb
    positions = np.arange(64)[None]
    expected = rotary(torch.zeros(1), torch.tensor(positions))
    found = rotation_of(config, jnp.asarray(positions), config.global_rope_theta)
    assert found is not None
    for ours, theirs in zip(found, expected, strict=True):
        half = theirs.numpy()[:, :, None, : config.head_size // 2]
        np.testing.assert_allclose(ours, half, atol=2e-6)


@pytest.mark.parametrize(
    ("rope", "message"),
    [
        ({"rope_type": "longrope", "short_factor": [1.0]}, "rope_type=longrope"),
        ({"rope_type": "default", "partial_rotary_factor": 0.5}, "partial_rotary_factor is"),
        ({"rope_type": "linear"}, "factor is missing"),
        ({"rope_type": "yarn", "factor": 2.0}, "original_max_position_embeddings is missing"),
        (YARN | {"rope_type": "llama3"}, "high_freq_factor, low_freq_factor is missing"),
        (YARN | {"mscale": 0.7, "truncate": False}, "mscale, truncate is .* not supported"),
        ([1], "rope_parameters=.1.: it must map"),
    ],
)
def test_rotations_that_are_not_supported_are_refused_by_name(rope, message, tiny_family):
    values = config_to_hf(tiny_family("eurobert")) | {"rope_parameters": rope}
    with pytest.raises(ValueError, match=message):
        config_from_hf(values)
