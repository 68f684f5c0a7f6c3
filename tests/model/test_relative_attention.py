"""DeBERTa: relative positions, the convolution, the mask decoder, the head of its discriminator."""

import copy
import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import bertjax
from bertjax.convert import output_differences
from bertjax.devices.kernels import choose_attention
from bertjax.model import HEADS
from bertjax.model.relative_attention import relative_rows, shifted
from bertjax.train.step import make_loss_fn
from bertjax.weights import load_model, names
from bertjax.weights.families import config_from_hf
from tests.cases import WEEKLY, others_weekly

ODD = {
    "own projections": {"share_att_key": False},
    "c2p alone": {"pos_att_type": ("c2p",), "share_att_key": False},
    "p2c alone": {"pos_att_type": ("p2c",), "norm_rel_ebd": "none"},
    "no position scores": {"pos_att_type": ()},
    "no buckets": {"position_buckets": -1, "max_relative_positions": 5},
    "many buckets": {"position_buckets": 64, "conv_kernel_size": 0},
    "groups": {"conv_groups": 4, "conv_kernel_size": 5, "conv_act": "gelu"},
    "absolute positions": {"position_biased_input": True, "type_vocab_size": 2},
    "no relative positions": {"relative_attention": False, "position_biased_input": True},
    "narrow embeddings": {"embedding_size": 16},
}
QUICK = ("groups",)
REPEATED = ("own projections", "no position scores", "many buckets", "no relative positions")
REPEATED += ("narrow embeddings",)


@pytest.mark.parity
@pytest.mark.parametrize(
    "change",
    [
        *QUICK,
        *(pytest.param(x, marks=pytest.mark.slow) for x in ODD if x not in (*QUICK, *REPEATED)),
        *(pytest.param(x, marks=WEEKLY) for x in REPEATED),
    ],
)
def test_odd_debertas_equal_transformers(change, tmp_path, tiny_family, tokenizer, written):
    pytest.importorskip("transformers", reason="the extra `parity` is not installed")
    config = tiny_family("deberta-v2", num_hidden_layers=3, **ODD[change])
    folder = written(tmp_path / "m", config, "masked_lm", tokenizer)
    found = output_differences(bertjax.load_pretrained(folder, "masked_lm"), folder)
    assert {"logits", "hidden_states"} <= found.keys() and max(found.values()) < 1e-5, found


@pytest.mark.slow
@pytest.mark.parity
def test_gradients_equal_pytorch(tmp_path, tiny_family, tokenizer, random_params):
    torch = pytest.importorskip("torch", reason="the extra `parity` is not installed")
    transformers = pytest.importorskip("transformers", reason="the extra `parity` is not installed")
    from flax.traverse_util import flatten_dict

    from bertjax.weights import save_hf

    config = tiny_family("deberta-v2", share_att_key=False)
    model = HEADS["masked_lm"](config)
    params = random_params(model)
    save_hf(tmp_path, params, config, tokenizer, head="masked_lm")
    theirs = transformers.DebertaV2ForMaskedLM.from_pretrained(tmp_path)
    rng = np.random.default_rng(0)
    ids, labels = rng.integers(5, config.vocab_size, (2, 3, 12)).astype(np.int32)
    mask = (np.arange(12) < np.array([12, 7, 9])[:, None]).astype(np.int32)
    batch = {
        "input_ids": ids * mask,
        "token_type_ids": 0 * ids,
        "position_ids": np.broadcast_to(np.arange(12), ids.shape),
        "sequence_ids": mask,
        "sequence_starts": np.zeros((3, 1), np.int32),
        "masked_positions": np.tile(np.arange(1, 6), (3, 1)),
        "masked_labels": labels[:, 1:6],
        "masked_weights": np.ones((3, 5), np.float32),
        "labels": np.full((3, 1), -1),
    }
    weights = model.objective("pretraining").weights(batch)
    loss = make_loss_fn(model)
    grads = jax.jit(jax.grad(lambda params: loss(params, batch, weights, None)[0]))(params)
    wanted = np.full(ids.shape, -100)
    wanted[:, 1:6] = labels[:, 1:6]
    long = {"input_ids": batch["input_ids"], "attention_mask": mask, "labels": wanted}
    theirs(**{name: torch.tensor(x).long() for name, x in long.items()}).loss.backward()
    expected = {name: p.grad.numpy() for name, p in theirs.named_parameters()}
    found = dict(names.to_hf(flatten_dict(jax.device_get(grads), sep="/"), config))
    assert found.keys() == expected.keys()
    norm = np.sqrt(sum((x**2).sum() for x in expected.values()))
    for name, x in expected.items():
        limit = 1e-4 * np.abs(x).max() + 1e-6 * norm
        assert np.abs(found[name] - x).max() <= limit, name


def test_rows_are_shifted_to_their_places():
    x = np.random.default_rng(0).normal(size=(2, 5, 9))
    expected = [[[x[b, i, j - i + 4] for j in range(5)] for i in range(5)] for b in range(2)]
    np.testing.assert_array_equal(shifted(jnp.asarray(x)), np.asarray(expected, np.float32))


@pytest.mark.parity
@pytest.mark.parametrize(
    ("buckets", "longest", "length"), [(256, 512, 700), (8, 64, 64), (32, 512, 512)]
)
def test_buckets_are_those_of_transformers(buckets, longest, length, tiny_family):
    torch = pytest.importorskip("torch", reason="the extra `parity` is not installed")
    module = pytest.importorskip("transformers.models.deberta_v2.modeling_deberta_v2")
    config = dataclasses.replace(
        tiny_family("deberta-v2"), position_buckets=buckets, max_relative_positions=longest
    )
    differences = torch.arange(1 - length, length)
    theirs = module.make_log_bucket_position(differences, buckets, longest).long()
    expected = torch.clamp(theirs + buckets, 0, 2 * buckets - 1).numpy()
    np.testing.assert_array_equal(relative_rows(length, config), expected)


def in_one_row(config, model, params):
    """Outputs of two sequences in a packed row, and of each alone."""
    rng = np.random.default_rng(0)
    ids, places = rng.integers(5, config.vocab_size, (2, 9)), np.arange(9)
    packed = {
        "input_ids": np.pad(ids.reshape(1, 18), ((0, 0), (0, 2))),
        "position_ids": np.pad(np.concatenate([places, places])[None], ((0, 0), (0, 2))),
        "sequence_ids": np.pad(np.repeat([1, 2], 9)[None], ((0, 0), (0, 2))),
        "sequence_starts": np.array([[0, 9]]),
    }
    apply = jax.jit(model.apply)
    return apply({"params": params}, **packed), apply({"params": params}, ids)


@pytest.mark.slow
@pytest.mark.parametrize("head", others_weekly(("masked_lm", "rtd"), "masked_lm"))
def test_sequences_of_a_packed_row_are_as_alone(head, tiny_family, random_params):
    config = tiny_family("deberta-v2", enhanced_mask_decoder=True)
    model = HEADS[head](config)
    found, expected = in_one_row(config, model, random_params(model))
    for name in ("last_hidden_state", "logits"):
        x = found[name][:, :18].reshape(expected[name].shape)
        np.testing.assert_allclose(x, expected[name], atol=1e-5)


@pytest.mark.slow
@pytest.mark.parity
def test_the_mask_decoder_equals_a_restatement(tmp_path, tiny_family, tokenizer, written, capsys):
    """transformers' last layer, applied to queries with absolute positions, as in the paper."""
    torch = pytest.importorskip("torch", reason="the extra `parity` is not installed")
    transformers = pytest.importorskip("transformers", reason="the extra `parity` is not installed")
    config = tiny_family("deberta-v2", enhanced_mask_decoder=True)
    folder = written(tmp_path / "m", config, "masked_lm", tokenizer)
    assert "transformers has no enhanced mask decoder" in capsys.readouterr().out
    loaded = load_model(folder, "masked_lm")
    assert loaded.config == config
    ids = np.random.default_rng(0).integers(5, config.vocab_size, (2, 11))
    theirs = transformers.DebertaV2ForMaskedLM.from_pretrained(folder).eval()
    encoder = theirs.deberta.encoder
    table = loaded.params["bert"]["embeddings"]["position_embeddings"]["embedding"]
    with torch.no_grad():
        mask = torch.ones(ids.shape)
        states = theirs.deberta(torch.tensor(ids), mask, output_hidden_states=True).hidden_states
        queries = states[-2] + torch.tensor(np.array(table[:11]))
        for _ in range(2):
            queries, _ = encoder.layer[-1](
                states[-2],
                encoder.get_attention_mask(mask),
                query_states=queries,
                relative_pos=encoder.get_rel_pos(states[-2]),
                rel_embeddings=encoder.get_rel_embedding(),
            )
        expected = theirs.cls(queries).numpy()
    model = bertjax.load_pretrained(folder, "masked_lm")
    np.testing.assert_allclose(model(input_ids=ids)["logits"], expected, atol=1e-5)
    assert output_differences(model, folder)["hidden_states"] < 1e-5


@pytest.mark.slow
@pytest.mark.parity
def test_files_of_microsoft_are_read(tmp_path, tiny_family, tokenizer, written):
    """They hold the encoder, the generator's head, and the discriminator's."""
    torch = pytest.importorskip("torch", reason="the extra `parity` is not installed")
    from safetensors.numpy import load_file, save_file

    config = tiny_family("deberta-v2", conv_kernel_size=0)
    folder = written(tmp_path / "m", config, "masked_lm", tokenizer)
    other = written(tmp_path / "d", config, "rtd", tokenizer)
    tensors, added = (load_file(x / "model.safetensors") for x in (folder, other))
    heads = {name: x for name, x in added.items() if name.startswith("mask_predictions.")}
    assert len(heads) == 6
    for name in [name for name in tensors if name.startswith("cls.")]:
        end = name.removeprefix("cls.predictions.").removeprefix("transform.")
        tensors[f"lm_predictions.lm_head.{end}"] = tensors.pop(name)
    save_file(tensors | heads, folder / "model.safetensors")
    (folder / "checksums.json").unlink(missing_ok=True)
    stored = json.loads((folder / "config.json").read_text())
    for name in ("architectures", "legacy", "embedding_size"):
        stored.pop(name)
    stored["pos_att_type"] = "p2c|c2p"
    (folder / "config.json").write_text(json.dumps(stored))
    assert bertjax.load_pretrained(folder).head == "encoder"
    masked, detector = (load_model(folder, head) for head in ("masked_lm", "rtd"))
    assert masked.absent == detector.absent == [] and masked.config == config
    ids = np.random.default_rng(0).integers(5, config.vocab_size, (2, 11))
    found = jax.jit(detector.model.apply)({"params": detector.params}, ids)
    # LayerNorm of the sum with the first token's state, dense, activation, classifier.
    x = torch.tensor(np.array(found["last_hidden_state"]))
    w = {name.removeprefix("mask_predictions."): torch.tensor(v) for name, v in heads.items()}
    x = x[:, :1] + x
    x = torch.nn.functional.layer_norm(
        x, x.shape[-1:], w["LayerNorm.weight"], w["LayerNorm.bias"], config.layer_norm_eps
    )
    x = torch.nn.functional.gelu(x @ w["dense.weight"].T + w["dense.bias"])
    logits = (x @ w["classifier.weight"].T + w["classifier.bias"])[..., 0]
    np.testing.assert_allclose(found["logits"], logits, atol=1e-5)


@pytest.mark.slow
@pytest.mark.exhaustive
def test_the_decoder_is_rematerialised_as_other_layers_are(tiny_family):
    config = tiny_family("deberta-v2", enhanced_mask_decoder=True)
    model = HEADS["masked_lm"](config)
    ids = np.arange(5, 21).reshape(2, 8)
    params = jax.jit(model.init)(jax.random.key(0), ids)["params"]

    def gradients(remat):
        def loss(params):
            outputs = model.clone(remat=remat).apply(
                {"params": params}, ids, deterministic=False, rngs={"dropout": jax.random.key(1)}
            )
            return (outputs["logits"] ** 2).mean()

        assert str(jax.make_jaxpr(jax.grad(loss))(params)).count("remat") >= (remat != "none") * 3
        return jax.device_get(jax.jit(jax.grad(loss))(params))

    expected = jax.tree.leaves(gradients("none"))
    for a, b in zip(jax.tree.leaves(gradients("selective")), expected, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5 * max(1.0, np.abs(b).max()))


@pytest.mark.parametrize(
    "changes",
    [
        {"position_buckets": 1},
        {"position_buckets": 64, "max_relative_positions": 33},
    ],
)
def test_buckets_without_far_positions_are_refused(changes, tiny_family):
    with pytest.raises(ValueError, match="position_buckets=.*max_relative_positions="):
        tiny_family("deberta-v2", **changes)


def test_fused_kernels_and_unknown_values_are_refused(tiny_family):
    config = tiny_family("deberta-v2")
    choice = choose_attention("auto", config, [512], "NVIDIA H100", "bfloat16")
    assert choice.kernel == "xla" and "relative positions" in choice.reason
    with pytest.raises(ValueError, match="attention='flash' has no relative positions"):
        choose_attention("flash", config, [512], "NVIDIA H100", "bfloat16")
    for values, message in (
        ({"model_type": "deberta"}, "DeBERTa's first version, is not supported"),
        ({"model_type": "deberta-v2", "pos_att_type": "p2c|p2p"}, "p2p"),
        ({"model_type": "deberta-v2", "conv_kernel_size": 4}, "conv_kernel_size=4 is even"),
        ({"model_type": "deberta-v2", "attention_head_size": 3}, "attention_head_size=3"),
    ):
        with pytest.raises(ValueError, match=message):
            config_from_hf(copy.deepcopy(values))
