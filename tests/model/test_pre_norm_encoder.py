"""ModernBERT's encoder equals transformers': odd configs, long and packed rows, gradients."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import bertjax
from bertjax.model import HEADS, BertConfig, named_config
from bertjax.weights import load_model, save_hf
from bertjax.weights.families import architecture
from tests.cases import WEEKLY

# Seven layers are layer 0, two periods of local, global, and local ones that are left over.
ODD = named_config(
    "modernbert-base",
    vocab_size=120,
    hidden_size=24,
    num_hidden_layers=8,
    num_attention_heads=3,
    intermediate_size=20,
    hidden_act="gelu_new",
    max_position_embeddings=128,
    initializer_range=0.2,
    layer_norm_eps=1e-3,
    pad_token_id=0,
    tie_word_embeddings=False,
    global_rope_theta=300.0,
    local_rope_theta=50.0,
    local_attention=9,
    **dict.fromkeys(("attention_bias", "mlp_bias", "norm_bias", "classifier_bias"), True),
    decoder_bias=False,
    classifier_activation="relu",
    classifier_pooling="mean",
    initializer_cutoff_factor=3.0,
)
HEADS_OF_MODERNBERT = [
    "encoder",
    "masked_lm",
    "sequence_classification",
    "token_classification",
    "question_answering",
    "multiple_choice",
]
CLASSIFIER = "sequence_classification"
LENGTHS = np.array([50, 33, 8, 5])


def batch(config: BertConfig, length: int = 50) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(1)
    mask = np.arange(length) < np.minimum(LENGTHS, length)[:, None]
    ids = rng.integers(5, config.vocab_size, mask.shape)
    return {"input_ids": np.where(mask, ids, 0), "attention_mask": mask.astype(np.int64)}


def torch_model(folder, config: BertConfig, head: str):
    transformers = pytest.importorskip("transformers", reason="the extra `parity` is not installed")
    pytest.importorskip("torch", reason="the extra `parity` is not installed")
    cls = getattr(transformers, architecture(config, head))
    theirs, info = cls.from_pretrained(
        folder, output_loading_info=True, attn_implementation="eager"
    )
    assert not any(info.values()), info
    return theirs.eval()


@pytest.mark.parity
@pytest.mark.slow
@pytest.mark.parametrize(
    "head",
    [
        pytest.param(x, marks=() if x == "masked_lm" else pytest.mark.exhaustive)
        for x in HEADS_OF_MODERNBERT
    ],
)
def test_an_odd_config_equals_transformers(head, tmp_path, tokenizer, written):
    folder = written(tmp_path / "m", ODD, head, tokenizer)
    theirs = torch_model(folder, ODD, head)
    import torch

    inputs = batch(ODD)
    real = inputs["attention_mask"] > 0
    if head == "multiple_choice":
        inputs = {key: value.reshape(2, 2, -1) for key, value in inputs.items()}
    with torch.no_grad():
        tensors = {key: torch.tensor(value) for key, value in inputs.items()}
        expected = theirs(**tensors, output_hidden_states=True, output_attentions=True)
    ours = bertjax.load_pretrained(folder, head)
    # Without the probabilities, attention is computed in blocks.
    found = ours(**inputs, output_hidden_states=True) | {
        "attentions": ours(**inputs, output_attentions=True)["attentions"]
    }
    for name, value in expected.items():
        if name == "hidden_states":
            difference = (np.stack([x.numpy() for x in value]) - found[name])[:, real]
        elif name == "attentions":
            difference = np.stack([x.numpy() for x in value]) - found[name]
            difference = difference.transpose(1, 3, 0, 2, 4)[real]
        else:
            difference = found[name] - value.numpy()
            difference = difference[real] if difference.shape[:2] == real.shape else difference
        assert np.abs(difference).max() < 1e-5, name


def packed(inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The four sequences of `batch` in two rows: 50; 33, 8 and 5 tokens."""
    ids, sequences, positions = (np.zeros((2, 50), np.int32) for _ in range(3))
    starts = np.array([[0, 0, 0], [0, 33, 41]])
    for sequence, (row, number) in enumerate([(0, 1), (1, 1), (1, 2), (1, 3)]):
        length = LENGTHS[sequence]
        part = slice(starts[row, number - 1], starts[row, number - 1] + length)
        ids[row, part] = inputs["input_ids"][sequence, :length]
        sequences[row, part], positions[row, part] = number, np.arange(length)
    return {
        "input_ids": ids,
        "position_ids": positions,
        "sequence_ids": sequences,
        "sequence_starts": starts,
    }


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.parametrize("unroll", [1, 3])
def test_packed_sequences_give_what_they_give_alone(unroll, random_params):
    """With means of hidden states, and blocks of local attention across borders of sequences."""
    config = dataclasses.replace(ODD, num_hidden_layers=5)
    model = HEADS["sequence_classification"](config, num_labels=3)
    params = random_params(model)
    inputs = batch(config)
    alone = jax.jit(model.apply)({"params": params}, **inputs)
    model = model.clone(unroll=unroll)
    found = jax.jit(model.apply)({"params": params}, **packed(inputs))
    logits = np.concatenate([found["logits"][0, :1], found["logits"][1]])
    np.testing.assert_allclose(logits, alone["logits"], atol=1e-5)
    states = found["last_hidden_state"]
    for sequence, (row, start) in enumerate([(0, 0), (1, 0), (1, 33), (1, 41)]):
        length = LENGTHS[sequence]
        np.testing.assert_allclose(
            states[row, start : start + length],
            alone["last_hidden_state"][sequence, :length],
            atol=1e-5,
        )


@pytest.mark.parity
@pytest.mark.slow
def test_gradients_equal_those_of_transformers(tmp_path, tokenizer, written):
    folder = written(tmp_path / "m", ODD, "masked_lm", tokenizer)
    theirs = torch_model(folder, ODD, "masked_lm")
    import torch

    inputs = batch(ODD)
    labels = np.where(inputs["attention_mask"] > 0, inputs["input_ids"][:, ::-1], -100)
    tensors = {key: torch.tensor(value) for key, value in inputs.items()}
    theirs(**tensors, labels=torch.tensor(labels.copy())).loss.backward()
    loaded = load_model(folder, "masked_lm")
    model = loaded.model.clone(remat="selective")

    def loss(params):
        logits = model.apply({"params": params}, **inputs)["logits"]
        log_probs = jax.nn.log_softmax(logits)
        picked = jnp.take_along_axis(log_probs, jnp.maximum(labels, 0)[..., None], axis=-1)[..., 0]
        return -(picked * (labels >= 0)).sum() / (labels >= 0).sum()

    gradients = jax.device_get(jax.jit(jax.grad(loss))(loaded.params))
    assert (gradients["bert"]["encoder"]["layers"]["attention_norm"]["scale"][0] == 0).all()
    # Our gradients under the names of PyTorch.
    save_hf(tmp_path / "gradients", gradients, ODD, None, head="masked_lm")
    from safetensors.numpy import load_file

    found = load_file(tmp_path / "gradients" / "model.safetensors")
    expected = {name: p.grad.numpy() for name, p in theirs.named_parameters()}
    assert found.keys() == expected.keys()
    # PyTorch does not train the row of the padding token.
    found["model.embeddings.tok_embeddings.weight"][0] = 0
    for name, value in expected.items():
        np.testing.assert_allclose(
            found[name], value, atol=1e-4 * np.abs(value).max(), err_msg=name
        )


@functools.cache
def gradients_of(unroll: int, remat: str):
    """Gradients of a loss, with dropout of attention and of feed-forward layers."""
    config = dataclasses.replace(ODD, attention_probs_dropout_prob=0.1, mlp_dropout=0.1)
    model = HEADS["masked_lm"](config, unroll=unroll, remat=remat)
    inputs = packed(batch(config))
    params = model.clone(unroll=1).init(jax.random.key(0), **inputs)["params"]

    def loss(params):
        outputs = model.apply(
            {"params": params},
            **inputs,
            deterministic=False,
            rngs={"dropout": jax.random.key(1)},
        )
        return (outputs["logits"] ** 2).mean()

    return jax.device_get(jax.jit(jax.value_and_grad(loss))(params))


@pytest.mark.slow
@pytest.mark.exhaustive  # those of transformers are compared with selective rematerialisation
@pytest.mark.parametrize(("unroll", "remat"), [(8, "none"), (1, "selective")])
def test_unrolling_and_rematerialisation_change_nothing_but_rounding(unroll, remat):
    (loss, found), (expected_loss, expected) = gradients_of(unroll, remat), gradients_of(1, "none")
    np.testing.assert_allclose(loss, expected_loss, rtol=1e-6)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5 * max(1.0, np.abs(b).max()))


@pytest.mark.slow
def test_initial_weights_have_the_deviations_of_the_recipe():
    sizes = {"hidden_size": 64, "num_attention_heads": 4, "intermediate_size": 96}
    config = named_config(
        "modernbert-base", vocab_size=500, num_hidden_layers=2, pad_token_id=0, **sizes
    )
    model = HEADS["sequence_classification"](config, num_labels=40)
    params = jax.jit(model.init)(jax.random.key(0), np.ones((1, 8), int))["params"]
    layers = params["bert"]["encoder"]["layers"]
    cut = 0.88  # of the standard deviation, what is left behind a cut at two of them
    expected = {
        0.02: [
            params["bert"]["embeddings"]["word_embeddings"]["embedding"],
            *(layers["attention"][name]["kernel"] for name in ("query", "key", "value")),
            layers["intermediate"]["kernel"],
            layers["gate"]["kernel"],
        ],
        0.02 / 2: [
            layers["attention"]["output"]["kernel"],
            layers["output"]["kernel"],
            params["head"]["dense"]["kernel"],
        ],
        64**-0.5: [params["classifier"]["kernel"]],
    }
    for stddev, kernels in expected.items():
        for kernel in kernels:
            assert abs(kernel.std() / (cut * stddev) - 1) < 0.06
            assert abs(kernel).max() <= 2 * stddev + 1e-6
    for first, second in zip(layers["gate"]["kernel"], layers["gate"]["kernel"][1:], strict=False):
        assert (first != second).any()  # each layer is drawn by itself


@pytest.mark.parametrize(
    "head",
    [
        "question_answering",
        pytest.param("multiple_choice", marks=WEEKLY),
    ],
)
def test_a_task_with_another_number_of_outputs_gets_a_new_classifier(
    head, tmp_path, tokenizer, written
):
    """All heads name their last layer "classifier", so a classifier of three classes is there."""
    folder = written(tmp_path / "m", ODD, "sequence_classification", tokenizer)
    loaded = load_model(folder, head, new_labels=True)
    assert loaded.absent == ["classifier"]
    source = load_model(folder, "sequence_classification")
    for name in ("dense", "norm"):
        for ours, theirs in zip(
            jax.tree.leaves(loaded.params["head"][name]),
            jax.tree.leaves(source.params["head"][name]),
            strict=True,
        ):
            np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"pre_norm": False}, "local_attention=9 has no effect without pre_norm"),
        ({"global_rope_theta": None}, "local_rope_theta=50.0 has no effect without global_rope"),
        ({"num_key_value_heads": 2}, "num_attention_heads=3 is not a multiple of num_key_value"),
        ({"relative_attention": True}, "relative_attention=True"),
        ({"classifier_pooling": "late"}, "classifier_pooling=late"),
        ({"token_dropout": True}, "needs mask_token_id"),
        ({"tie_word_embeddings": True, "output_embedding_size": 5}, "output_embedding_size=5"),
        ({"global_rope_theta": -1.0}, "global_rope_theta=-1.0: it must be positive"),
        ({"is_decoder": True}, "is_decoder=True"),
        ({"num_attention_heads": 8}, "heads of odd size"),
        ({"classifier_pooling": "max"}, "classifier_pooling='max'"),
        ({"classifier_activation": None}, "needs a classifier_activation"),
        ({"local_attention": 0}, "local_attention=0"),
    ],
)
def test_what_excludes_each_other_is_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(ODD, **changes)
