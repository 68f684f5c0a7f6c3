"""Checkpoints of the trainers Megatron-LM and FlexBERT equal the models of transformers.

The files are made here from models of transformers, as the published code of the trainers saves
them, and read without it.
"""

import argparse
import functools
import json
import os
import random
import shutil
from pathlib import Path

import jax
import numpy as np
import pytest

from bertjax import convert
from bertjax.shipped import shipped_model
from bertjax.weights import load_model
from tests.cases import others_weekly

torch = pytest.importorskip("torch", reason="the extra `parity` is not installed")
transformers = pytest.importorskip("transformers", reason="the extra `parity` is not installed")
pytestmark = pytest.mark.parity

IDS = np.array([[5, 6, 7, 8, 9, 10, 11, 12], [9, 4, 30, 2, 8, 7, 6, 5]])
HEADS, SIZE, LAYERS = 3, 8, 3
TINY = Path(str(shipped_model("bertjax:tiny")))
WORDS = json.loads((TINY / "config.json").read_text())["vocab_size"]
SIZES = {
    "hidden_size": HEADS * SIZE,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "intermediate_size": 40,
}
ORDERS = {0: "k n s", 1.0: "n s k", 2.0: "n k s", 3.0: "n k s"}


def random_model(cls, **fields):
    torch.manual_seed(0)
    model = cls(cls.config_class(**SIZES | fields)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.2 * torch.randn_like(parameter)
    return model


def expected(model) -> np.ndarray:
    with torch.no_grad():
        outputs = model(input_ids=torch.tensor(IDS))
    return np.asarray(outputs["prediction_logits" if "prediction_logits" in outputs else "logits"])


@functools.partial(jax.jit, static_argnums=0)
def applied(model, params):
    """The outputs of a model, compiled once for all models of an architecture."""
    return model.apply({"params": params}, IDS)


def found(path: Path, head: str | None = None) -> np.ndarray:
    loaded = load_model(path, head, tokenizer_required=False)
    assert not loaded.absent
    outputs = applied(loaded.model, loaded.params)
    return np.asarray(outputs.get("prediction_logits", outputs.get("logits")))


def with_tokenizer(folder: Path) -> None:
    for name in ("tokenizer.json", "tokenizer_config.json", "vocab.txt"):
        shutil.copy(TINY / name, folder)


def others() -> dict:
    """What trainers have beside a model: the state of an optimizer, and of generators."""
    layer = torch.nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(layer.parameters())
    layer(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    states = [random.getstate(), np.random.get_state(), torch.get_rng_state()]
    return {"optimizer": optimizer.state_dict(), "iteration": 7, "rng_state": [{"all": states}]}


# Megatron-LM.


class PositionEmbeddingType(str):
    """A class of the trainer, which is not made."""


def megatron_args(**changes) -> argparse.Namespace:
    fields = {
        **{"num_layers": LAYERS, "hidden_size": HEADS * SIZE, "num_attention_heads": HEADS},
        **{"ffn_hidden_size": 40, "max_position_embeddings": 32, "layernorm_epsilon": 1e-5},
        **{"tokenizer_type": "BertWordPieceLowerCase", "openai_gelu": False, "swiglu": False},
        **{"tensor_model_parallel_size": 1, "pipeline_model_parallel_size": 1, "lr": 1e-4},
        **{"position_embedding_type": PositionEmbeddingType("absolute"), "num_experts": None},
        **{"normalization": "LayerNorm", "params_dtype": torch.float16, "save": Path("runs")},
        **{"hidden_dropout": 0.1, "attention_dropout": 0.1, "bias_gelu_fusion": True},
    }
    return argparse.Namespace(**fields | changes)


def megatron(model, version=3.0, old_names=False, padding=0, args=None) -> dict:
    """The content of `model_optim_rng.pt`, in the order that `_version` of the checkpoint has."""
    state = {name: value.clone() for name, value in model.state_dict().items()}
    attention = "attention" if old_names or version < 2 else "self_attention"
    norm = "layernorm" if old_names else "norm"
    layers = {}
    for layer in range(LAYERS):
        before = f"bert.encoder.layer.{layer}."
        for theirs, own in {
            "attention.ln": f"input_{norm}",
            "ln": f"post_attention_{norm}",
            "attention.output.dense": f"{attention}.dense",
            "intermediate.dense": "mlp.dense_h_to_4h",
            "output.dense": "mlp.dense_4h_to_h",
        }.items():
            for end in ("weight", "bias"):
                layers[f"layers.{layer}.{own}.{end}"] = state[f"{before}{theirs}.{end}"]
        for end in ("weight", "bias"):
            parts = [state[f"{before}attention.self.{x}.{end}"] for x in ("query", "key", "value")]
            parts = torch.stack([part.reshape(HEADS, SIZE, -1) for part in parts])  # k n s
            axes = ["k n s".split().index(axis) for axis in ORDERS[version].split()]
            fused = parts.permute(*axes, 3).reshape(3 * HEADS * SIZE, -1)
            name = f"layers.{layer}.{attention}.query_key_value.{end}"
            layers[name] = fused if end == "weight" else fused[:, 0]
    layers[f"final_{norm}.weight"] = state["bert.encoder.ln.weight"]
    layers[f"final_{norm}.bias"] = state["bert.encoder.ln.bias"]

    def padded(value):
        return torch.cat([value, torch.randn(padding, *value.shape[1:])])

    def under(prefix):
        return {x.removeprefix(prefix): y for x, y in state.items() if x.startswith(prefix)}

    embeddings = "bert.embeddings."
    content = {
        "language_model": {
            "embedding": {
                "word_embeddings": {"weight": padded(state[f"{embeddings}word_embeddings.weight"])},
                "position_embeddings": under(f"{embeddings}position_embeddings."),
                "tokentype_embeddings": under(f"{embeddings}token_type_embeddings."),
            },
            "transformer" if old_names else "encoder": layers,
        }
    }
    if "bert.pooler.dense.weight" in state:
        content["language_model"]["pooler"] = under("bert.pooler.")
    if "cls.predictions.bias" in state:
        content["lm_head"] = {
            "dense.weight": state["cls.predictions.transform.dense.weight"],
            "dense.bias": state["cls.predictions.transform.dense.bias"],
            f"{norm}.weight": state["cls.predictions.transform.LayerNorm.weight"],
            f"{norm}.bias": state["cls.predictions.transform.LayerNorm.bias"],
            "bias": padded(state["cls.predictions.bias"]),
        }
    if "cls.seq_relationship.weight" in state:
        content["binary_head"] = under("cls.seq_relationship.")
    if "classifier.weight" in state:
        content["classification_head"] = under("classifier.")
    beside = others() | ({"checkpoint_version": version} if version else {})
    return {"args": args, **beside, "model": content} if args else {**beside, "model": content}


def megatron_model(words=60, **fields):
    fields = {"max_position_embeddings": 32, "layer_norm_eps": 1e-5, "vocab_size": words} | fields
    return random_model(transformers.MegatronBertForPreTraining, **fields)


def saved(folder: Path, content, config=None, name="model_optim_rng.pt") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    torch.save(content, folder / name)
    if config is not None:
        (folder / "config.json").write_text(json.dumps(config))
    return folder / name


MEGATRON_CONFIG = {
    **SIZES,
    **{"model_type": "megatron-bert", "vocab_size": 60, "max_position_embeddings": 32},
    "layer_norm_eps": 1e-5,
}


@pytest.mark.parametrize("version", ORDERS)
def test_every_order_of_megatrons_queries_keys_and_values_is_read(tmp_path, version):
    model = megatron_model()
    args = megatron_args(padded_vocab_size=60)
    path = saved(tmp_path / "mp_rank_00", megatron(model, version, args=args))
    np.testing.assert_allclose(found(path), expected(model), rtol=1e-5, atol=1e-5)


def test_an_old_megatron_without_arguments_is_read_beside_its_config(tmp_path):
    model = megatron_model()
    path = saved(tmp_path, megatron(model, 0, old_names=True, padding=68), MEGATRON_CONFIG)
    np.testing.assert_allclose(found(path), expected(model), rtol=1e-5, atol=1e-5)


def test_the_rows_that_pad_a_vocabulary_stay_unless_the_config_says_fewer(tmp_path):
    model = megatron_model()
    content = megatron(model, padding=4, args=megatron_args(padded_vocab_size=64))
    path = saved(tmp_path, content)
    np.testing.assert_allclose(found(path)[..., :60], expected(model), rtol=1e-5, atol=1e-5)
    assert found(path).shape[-1] == 64
    path = saved(tmp_path, content, {"model_type": "megatron-bert", "vocab_size": 60})
    np.testing.assert_allclose(found(path), expected(model), rtol=1e-5, atol=1e-5)


def test_a_classifier_and_openai_gelu_of_megatron_are_followed(tmp_path):
    cls = transformers.MegatronBertForSequenceClassification
    fields = {"vocab_size": 60, "max_position_embeddings": 32, "layer_norm_eps": 1e-5}
    model = random_model(cls, num_labels=3, hidden_act="gelu_new", **fields)
    args = megatron_args(padded_vocab_size=60, openai_gelu=True)
    path = saved(tmp_path, megatron(model, args=args))
    np.testing.assert_allclose(
        found(path, "sequence_classification"), expected(model), rtol=1e-5, atol=1e-5
    )


def test_a_megatron_without_pairs_has_token_types_of_zeros(tmp_path):
    model = megatron_model()
    with torch.no_grad():
        model.bert.embeddings.token_type_embeddings.weight.zero_()
    content = megatron(model, args=megatron_args(padded_vocab_size=60))
    del content["model"]["language_model"]["embedding"]["tokentype_embeddings"]
    del content["model"]["language_model"]["pooler"], content["model"]["binary_head"]
    np.testing.assert_allclose(
        found(saved(tmp_path, content), "masked_lm"), expected(model), rtol=1e-5, atol=1e-5
    )


# FlexBERT.

FLEXBERT = {
    **SIZES,
    **{"model_type": "bert", "vocab_size": 60, "attention_layer": "rope", "bert_layer": "prenorm"},
    **{
        "padding": "unpadded",
        "embedding_layer": "sans_pos",
        "embed_norm": True,
        "mlp_layer": "glu",
    },
    **{"final_norm": True, "skip_first_prenorm": True, "normalization": "layernorm"},
    **{"norm_kwargs": {"eps": 1e-5, "bias": False}, "attn_qkv_bias": False, "attn_out_bias": False},
    **{"mlp_in_bias": False, "mlp_out_bias": False, "hidden_act": "gelu", "head_pred_act": "gelu"},
    **{"head_pred_bias": False, "decoder_bias": True, "rotary_emb_dim": SIZE},
    **{"rotary_emb_base": 160000.0, "rotary_emb_interleaved": False, "rotary_emb_scale_base": None},
    **{"local_attn_rotary_emb_base": -1, "local_attn_rotary_emb_dim": None, "sliding_window": 4},
    **{"global_attn_every_n_layers": 2, "max_position_embeddings": 512, "pad_token_id": 0},
    **{"initial_attention_layer": None, "num_initial_layers": 1, "head_class_act": "silu"},
    **{"head_class_bias": True, "pooling_type": "cls", "attention_probs_dropout_prob": 0.0},
    **{"attn_out_dropout_prob": 0.1, "loss_function": "fa_cross_entropy", "compile_model": True},
}


def flexbert(model, config=FLEXBERT, prefix="model.") -> dict:
    """The content of a checkpoint of Composer, such as `ep0-ba100-rank0.pt`."""
    state = {}
    for name, value in model.state_dict().items():
        name = name.replace("model.layers.", "model.encoder.layers.")
        if name.startswith("model."):
            name = f"bert.{name.removeprefix('model.')}"
        state[prefix + name] = value
    info = {"file_extension": ".json", "content": config, "class": "src.FlexBertForMaskedLM"}
    integrations = {"huggingface": {"model": {"config": info}, "tokenizer": {}}}
    held = {"model": state, "integrations": integrations if config else {}, "optimizers": {}}
    return {"state": held | {"timestamp": {"Timestamp": {"iteration": 3}}}, "rng": [others()]}


def flexbert_model(head="ForMaskedLM", words=60, **fields):
    rope = {"full_attention": 160000.0, "sliding_attention": 160000.0}
    rope = {kind: {"rope_type": "default", "rope_theta": base} for kind, base in rope.items()}
    fields = {
        **{"vocab_size": words, "local_attention": 4, "global_attn_every_n_layers": 2},
        **{"pad_token_id": 0, "rope_parameters": rope},
        **{"layer_types": ["full_attention", "sliding_attention", "full_attention"]},
        **fields,
    }
    return random_model(getattr(transformers, f"ModernBert{head}"), **fields)


@pytest.mark.parametrize("prefix", ["model.", ""])
def test_a_flexbert_in_composer_is_read_without_a_config(tmp_path, prefix):
    model = flexbert_model()
    path = saved(tmp_path, flexbert(model, prefix=prefix), name="latest-rank0.pt")
    np.testing.assert_allclose(found(path), expected(model), rtol=1e-5, atol=1e-5)


def test_other_settings_of_a_flexbert_are_followed(tmp_path):
    biases = {"attention_bias": True, "mlp_bias": True, "norm_bias": True, "classifier_bias": True}
    rope = {"full_attention": 10000.0, "sliding_attention": 500.0}
    rope = {kind: {"rope_type": "default", "rope_theta": base} for kind, base in rope.items()}
    model = flexbert_model(
        **biases, hidden_activation="silu", classifier_activation="relu", decoder_bias=False,
        norm_eps=1e-3, rope_parameters=rope,
    )  # fmt: skip
    config = FLEXBERT | {
        **{"attn_qkv_bias": True, "attn_out_bias": True, "mlp_in_bias": True, "mlp_out_bias": True},
        **{"norm_kwargs": {"eps": 1e-3}, "head_pred_bias": True, "head_pred_act": "relu"},
        **{"hidden_act": "silu", "decoder_bias": False, "rotary_emb_base": 10000.0},
        **{"local_attn_rotary_emb_base": 500.0},
    }
    np.testing.assert_allclose(
        found(saved(tmp_path, flexbert(model, config))), expected(model), rtol=1e-5, atol=1e-5
    )


def test_a_flexbert_without_a_window_has_global_layers_alone(tmp_path):
    model = flexbert_model(layer_types=["full_attention"] * LAYERS)
    config = FLEXBERT | {"sliding_window": -1, "global_attn_every_n_layers": -1}
    np.testing.assert_allclose(
        found(saved(tmp_path, flexbert(model, config))), expected(model), rtol=1e-5, atol=1e-5
    )


def test_the_head_of_a_classifier_of_flexbert_is_that_of_its_classes(tmp_path):
    model = flexbert_model(
        "ForSequenceClassification", classifier_activation="silu", classifier_bias=True,
        num_labels=3,
    )  # fmt: skip
    path = saved(tmp_path, flexbert(model))
    np.testing.assert_allclose(
        found(path, "sequence_classification"), expected(model), rtol=1e-5, atol=1e-5
    )


@pytest.mark.parametrize("beside", ["transformers", "FlexBERT"])
def test_a_flexbert_is_read_beside_its_config(tmp_path, beside):
    model = flexbert_model()
    model.config.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    content = None if beside == "transformers" else FLEXBERT
    path = saved(tmp_path, flexbert(model, content), config if content is None else FLEXBERT)
    np.testing.assert_allclose(found(path), expected(model), rtol=1e-5, atol=1e-5)


def test_a_model_of_transformers_in_composer_is_read_without_a_config(tmp_path):
    fields = {"vocab_size": 60, "max_position_embeddings": 32, "hidden_act": "relu"}
    model = random_model(transformers.BertForMaskedLM, **fields)
    model.config.save_pretrained(tmp_path / "config")
    config = json.loads((tmp_path / "config" / "config.json").read_text())
    content = flexbert(model, config)
    content["state"]["model"] = {f"model.{x}": y for x, y in model.state_dict().items()}
    np.testing.assert_allclose(
        found(saved(tmp_path, content)), expected(model), rtol=1e-5, atol=1e-5
    )


# Both.


@pytest.mark.parametrize(
    "trainer", others_weekly(("Megatron-LM", "FlexBERT"), slow=("Megatron-LM",))
)
def test_convert_verifies_the_checkpoint_of_a_trainer(tmp_path, trainer, capsys):
    if trainer == "Megatron-LM":
        model = megatron_model(WORDS)
        content = megatron(model, args=megatron_args(padded_vocab_size=WORDS))
    else:
        model = flexbert_model(words=WORDS)
        content = flexbert(model, FLEXBERT | {"vocab_size": WORDS})
    path = saved(tmp_path / "run", content)
    with_tokenizer(tmp_path / "run")
    convert.run(convert.ConvertConfig(src=str(path), dst=str(tmp_path / "out"), verify=True))
    assert "prediction_logits" in capsys.readouterr().out or trainer == "FlexBERT"
    copy = type(model).from_pretrained(tmp_path / "out").eval()
    np.testing.assert_allclose(expected(copy), expected(model), rtol=1e-6, atol=1e-6)


class Hostile:
    """Its pickle runs a command when Python's own unpickler reads it."""

    def __reduce__(self):
        return os.system, ("touch ran",)


def of_megatron(**changes) -> dict:
    return megatron(megatron_model(), args=megatron_args(padded_vocab_size=60, **changes))


def encoder_of(content: dict) -> dict:
    return content["model"]["language_model"]["encoder"]


def without_a_tensor(content):
    del encoder_of(content)["layers.1.mlp.dense_h_to_4h.weight"]


def with_fewer_positions(content):
    table = content["model"]["language_model"]["embedding"]["position_embeddings"]
    table["weight"] = table["weight"][:20]


def with_a_fused_matrix_of_a_wrong_size(content):
    name = "layers.1.self_attention.query_key_value.weight"
    encoder_of(content)[name] = encoder_of(content)[name][:-1]


def with_another_version(content):
    content["checkpoint_version"] = 4.0


def with_a_pipeline(content):
    content["model0"] = content.pop("model")
    content["model1"] = content["model0"]


def with_an_average(content):
    content["ema"] = {**content["model"]}


def with_an_unknown_tensor(content):
    encoder_of(content)["layers.0.extra.weight"] = torch.zeros(3)


def with_itself(content):
    encoder_of(content)["layers.0.extra"] = content["model"]["language_model"]


def with_many_copies(content):
    tree = {"x": 1}
    for _ in range(4):
        tree = dict.fromkeys(map(str, range(1000)), tree)
    content["model"]["language_model"] |= tree


def with_code(content):
    content["beside"] = Hostile()


DAMAGED_MEGATRON = {
    without_a_tensor: r"Missing: bert\.encoder\.layer\.1\.intermediate\.dense\.weight\.",
    with_fewer_positions: r"position_embeddings\.weight has shape \(20, 24\)",
    with_a_fused_matrix_of_a_wrong_size: r"layer\.1\.attention.* has shape \(71, 24\)",
    with_another_version: r"checkpoint_version=4\.0",
    with_a_pipeline: "argparse.Namespace",
    with_an_average: "50 tensors under 'ema' beside the 50",
    with_an_unknown_tensor: r"Unexpected: bert\.encoder\.layer\.0\.extra\.weight",
    with_itself: r"maps 'language_model\.encoder\.layers\.0\.extra.*to a dict",
    with_many_copies: "maps 'language_model.*to a ",
    with_code: "system",
}


def refusal(path: Path, match: str) -> None:
    with pytest.raises(ValueError, match=match) as error:
        load_model(path, None, tokenizer_required=False)
    assert str(path.parent) in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize("damage", DAMAGED_MEGATRON, ids=lambda damage: damage.__name__)
def test_a_damaged_megatron_is_refused_by_name(tmp_path, damage, monkeypatch):
    monkeypatch.chdir(tmp_path)
    content = of_megatron()
    damage(content)
    refusal(saved(tmp_path, content), DAMAGED_MEGATRON[damage])
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    "args",
    [
        {"swiglu": True},
        {"apply_residual_connection_post_layernorm": True},
        {"normalization": "RMSNorm"},
        {"tensor_model_parallel_size": 2},
        {"pipeline_model_parallel_size": 4},
    ],
    ids=str,
)
def test_what_a_megatron_bert_does_not_compute_is_refused_by_its_argument(tmp_path, args):
    ((name, value),) = args.items()
    refusal(saved(tmp_path, of_megatron(**args)), f"{name}={value}")


def test_a_vocabulary_that_is_too_small_is_refused(tmp_path):
    path = saved(tmp_path, of_megatron(), {"model_type": "megatron-bert", "vocab_size": 70})
    refusal(path, r"word_embeddings\.weight has shape \(60, 24\), but the model has \(70, 24\)")
    path = saved(tmp_path / "more", of_megatron())
    with_tokenizer(path.parent)
    refusal(path, f"has {WORDS} tokens, but the model has vocab_size=60")


@pytest.mark.parametrize("trainer", ["Megatron-LM", "FlexBERT"])
def test_a_truncated_checkpoint_is_refused(tmp_path, trainer):
    content = of_megatron() if trainer == "Megatron-LM" else flexbert(flexbert_model())
    path = saved(tmp_path, content)
    path.write_bytes(path.read_bytes()[:-1000])
    refusal(path, "truncated or damaged")


@pytest.mark.parametrize("trainer", ["Megatron-LM", "FlexBERT"])
def test_a_config_that_contradicts_the_training_is_refused(tmp_path, trainer):
    if trainer == "Megatron-LM":
        content, config = of_megatron(), MEGATRON_CONFIG | {"num_attention_heads": 4}
    else:
        model = flexbert_model(num_attention_heads=4)
        content, config = flexbert(flexbert_model()), model.config.to_dict()
    refusal(saved(tmp_path, content, config), "num_attention_heads=3, but config.json .* 4:")


def test_a_checkpoint_without_settings_needs_a_config(tmp_path):
    path = saved(tmp_path, megatron(megatron_model()))
    with pytest.raises(FileNotFoundError, match="no config.json, which describes"):
        load_model(path, None, tokenizer_required=False)


@pytest.mark.parametrize(
    "settings",
    [
        {"attention_layer": "base"},
        {"bert_layer": "postnorm"},
        {"initial_attention_layer": "base"},
        {"normalization": "rmsnorm"},
        {"rotary_emb_interleaved": True},
        {"rotary_emb_scale_base": 512},
        {"rotary_emb_dim": 4},
        {"sliding_window": 4, "global_attn_every_n_layers": -1},
        {"hidden_act": "starlu"},
        {"hidden_size": "24"},
        {"num_attention_heads": 10**12},
    ],
    ids=str,
)
def test_what_a_modernbert_does_not_compute_is_refused_by_its_setting(tmp_path, settings):
    content = flexbert(flexbert_model(), FLEXBERT | settings)
    name, value = list(settings.items())[-1]
    refusal(saved(tmp_path, content), {"hidden_act": "starlu"}.get(name, f"{name}='?{value}"))


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"model.bert.encoder.layers.1.attn.Wo.weight": None}, r"Missing: model\.layers\.1\.attn"),
        ({"model.bert.encoder.layers.0.attn_norm.weight": (24,)}, "Unexpected: .*attn_norm"),
        ({"model.bert.encoder.layers.2.attn.Wqkv.weight": (48, 24)}, r"Wqkv.* shape \(16, 24\)"),
        ({"model.bert.encoder.layers.2.mlp.Wi.weight": (40, 24)}, r"Wi.* shape \(20, 24\)"),
        ({"ema.bert.embeddings.tok_embeddings.weight": (60, 24)}, r"'model\.', 'ema\.'"),
    ],
    ids=str,
)
def test_a_damaged_flexbert_is_refused_by_name(tmp_path, change, match):
    content = flexbert(flexbert_model())
    ((name, shape),) = change.items()
    state = content["state"]["model"]
    state.pop(name, None)
    if shape:
        state[name] = torch.zeros(shape)
    refusal(saved(tmp_path, content), match)
