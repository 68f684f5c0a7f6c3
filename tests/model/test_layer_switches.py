"""What layers may be besides BERT's: packed rows, meshes and kernels change nothing."""

import dataclasses
import functools

import jax
import numpy as np
import pytest

from bertjax.config import MeshConfig
from bertjax.devices import sharding
from bertjax.model import HEADS
from bertjax.model.embeddings import Embeddings
from bertjax.model.fused_attention import FUSED, flash_attention
from tests.cases import WEEKLY, others_weekly

YARN = {"rope_type": "yarn", "rope_factor": 4.0, "rope_original_max_position_embeddings": 32}
# Each has switches that no other has, with sizes that eight devices can split.
CHANGES = {
    "eurobert": {"num_key_value_heads": 2, "head_dim": 16, "num_hidden_layers": 3},
    "nomic_bert": {},
    "modernbert": {"local_attention": 24} | YARN,
    "esm": {"token_dropout": True},
    "esmc": {"num_hidden_layers": 3},
    "roformer": {"rotary_value": True, "embedding_size": 16},
    "rembert": {},
    "xlm-roberta-xl": {},
    "ultrabert": {"num_hidden_layers": 5, "num_key_value_heads": 2, "local_attention": 24} | YARN,
}
LENGTHS = (40, 70, 18)
LENGTH = 128


def sequences_alone(vocab_size: int) -> dict[str, np.ndarray]:
    """Three sequences in rows of their own; one token in five is the mask."""
    rng = np.random.default_rng(0)
    mask = np.arange(LENGTH) < np.array(LENGTHS)[:, None]
    ids = rng.integers(5, vocab_size, mask.shape)
    ids = np.where(rng.random(mask.shape) < 0.2, 4, ids)
    return {"input_ids": np.where(mask, ids, 1), "attention_mask": mask.astype(np.int32)}


def in_one_row(alone: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    ids = [row[:length] for row, length in zip(alone["input_ids"], LENGTHS, strict=True)]
    return {
        "input_ids": np.concatenate(ids)[None],
        "position_ids": np.concatenate([np.arange(n) for n in LENGTHS])[None],
        "sequence_ids": np.repeat(np.arange(1, 4), LENGTHS)[None],
        "sequence_starts": np.cumsum([0, *LENGTHS[:-1]])[None],
    }


def model_of(family, tiny_family, head="masked_lm"):
    config = tiny_family(family, max_position_embeddings=LENGTH + 2, **CHANGES[family])
    return HEADS[head](dataclasses.replace(config, initializer_range=0.1), num_labels=3)


def test_tokens_of_esm_are_scaled_for_the_masked_ones_of_their_sequence(tiny_family):
    """As in `EsmEmbeddings` of transformers: masked tokens are zeros, of 12 % in training."""
    config = tiny_family("esm", token_dropout=True, mask_token_id=4)
    ids = np.array([[5, 6, 4, 7, 8, 4, 4, 9]])
    sequence_ids = np.array([[1, 1, 1, 1, 2, 2, 2, 0]])
    module = Embeddings(config)
    arguments = ids, np.zeros_like(ids), np.zeros_like(ids), sequence_ids, None
    variables = module.init(jax.random.key(0), *arguments)
    found = module.apply(variables, *arguments)
    table = variables["params"]["word_embeddings"]["embedding"]
    factors = 0.88 / (1 - np.array([1 / 4] * 4 + [2 / 3] * 3 + [0])) * (ids[0] != 4)
    np.testing.assert_allclose(found[0], table[ids[0]] * factors[:, None], rtol=1e-5)


@pytest.mark.parametrize("family", others_weekly(CHANGES, slow=("esm", "ultrabert")))
def test_packed_sequences_give_what_they_give_alone(family, tiny_family, random_params):
    model = model_of(family, tiny_family)
    params = {"params": random_params(model)}
    alone = sequences_alone(model.config.vocab_size)
    expected = jax.jit(model.apply)(params, **alone)["logits"]
    packed = jax.jit(model.apply)(params, **in_one_row(alone))["logits"][0]
    for i, (start, length) in enumerate(zip(np.cumsum([0, *LENGTHS]), LENGTHS, strict=False)):
        found = packed[start : start + length]
        np.testing.assert_allclose(found, expected[i, :length], atol=1e-5)


@pytest.mark.parametrize(
    ("family", "pooling"),
    [
        *(("eurobert", pooling) for pooling in ("mean", "late")),
        pytest.param("eurobert", "cls", marks=WEEKLY),
        pytest.param("ultrabert", "late", marks=pytest.mark.slow),
        *(pytest.param("ultrabert", pooling, marks=WEEKLY) for pooling in ("cls", "mean")),
    ],
)
def test_classifiers_of_packed_sequences_read_their_own(
    family, pooling, tiny_family, random_params
):
    model = model_of(family, tiny_family, "sequence_classification")
    model = model.clone(config=dataclasses.replace(model.config, classifier_pooling=pooling))
    params = {"params": random_params(model)}
    alone = sequences_alone(model.config.vocab_size)
    expected = jax.jit(model.apply)(params, **alone)["logits"]
    found = jax.jit(model.apply)(params, **in_one_row(alone))["logits"][0]
    np.testing.assert_allclose(found, expected, atol=1e-5)


@pytest.mark.parametrize(
    "head",
    others_weekly(("sequence_classification", "multiple_choice"), "sequence_classification"),
)
def test_classifiers_without_a_pooler_and_an_activation_have_no_dense_layer(
    head, tiny_family, random_params
):
    model = model_of("ultrabert", tiny_family, head)
    params = random_params(model)
    assert {*params} == {"bert", "classifier"} == {"bert", *model.present_parts}
    alone = sequences_alone(model.config.vocab_size)
    outputs = jax.jit(model.apply)({"params": params}, **alone)
    first = outputs["last_hidden_state"][:, 0]
    expected = first @ params["classifier"]["kernel"] + params["classifier"]["bias"][None]
    np.testing.assert_allclose(outputs["logits"].reshape(expected.shape), expected, atol=1e-5)


@pytest.mark.parametrize(
    ("family", "first"),
    [
        ("ultrabert", 2),
        *(pytest.param("ultrabert", first, marks=WEEKLY) for first in (0, 1)),
        *(pytest.param("modernbert", first, marks=WEEKLY) for first in (0, 1, 2)),
    ],
)
def test_a_token_reads_what_its_layers_can_reach(family, first, tiny_family, random_params):
    """Local layers reach four tokens further each, and a global one all tokens."""
    fields = {"num_hidden_layers": 3, "global_attn_every_n_layers": 3, "local_attention": 8}
    config = tiny_family(family, first_global_layer=first, **fields)
    model = HEADS["encoder"](config)
    params = {"params": random_params(model)}
    ids = np.arange(5, 45)[None]
    apply = jax.jit(functools.partial(model.apply, output_hidden_states=True))
    before = apply(params, ids)["hidden_states"]
    ids = ids.copy()
    ids[0, 20] = 60
    difference = np.abs(apply(params, ids)["hidden_states"] - before).max(-1)[:, 0]
    changed = np.flatnonzero
    for layer in range(1, 4):
        reached = changed(difference[layer] > 0)
        if layer > first:
            assert len(reached) == 40
        else:
            assert (reached[0], reached[-1]) == (20 - 4 * layer, 20 + 4 * layer)


@pytest.mark.parametrize(
    ("family", "change", "message"),
    [
        ("modernbert", {"first_global_layer": 3}, "first_global_layer=3 must be below .*=3"),
        ("eurobert", {"first_global_layer": 1}, "first_global_layer=1 must be below .*=1"),
        ("modernbert", {"prediction_head_size": 8}, "prediction_head_size=8 has no effect"),
        ("eurobert", {"prediction_head_size": 8}, "prediction_head_size=8 has no effect"),
    ],
)
def test_global_layers_and_layers_of_a_head_that_nothing_reads_are_refused(
    family, change, message, tiny_family
):
    with pytest.raises(ValueError, match=message):
        tiny_family(family, **change)


@pytest.mark.parametrize("change", [{"final_norm_bias": False}, {"residual_scale_layers": 36}])
def test_switches_of_layers_with_the_norm_before_them_are_refused_in_others(change, tiny_config):
    (name,) = change
    with pytest.raises(ValueError, match=f"{name}=.*pre_norm"):
        dataclasses.replace(tiny_config, **change)


@pytest.mark.parametrize(
    "change",
    [
        {"rope_type": "linear", "rope_beta_slow": 2.0},
        {"rope_factor": 2.0},
        YARN | {"rope_low_freq_factor": 2.0},
        {"global_rope_theta": None, "rope_type": "dynamic"},
    ],
)
def test_settings_of_slowed_rotations_without_effect_are_refused(change, tiny_family):
    with pytest.raises(ValueError, match=[*change][-1]):
        tiny_family("nomic_bert", **change)


@pytest.mark.parametrize(("reference", "expected"), [(None, 0.1 / 2), (36, 0.1)])
def test_layers_divide_their_results_or_their_initial_weights(reference, expected, tiny_family):
    fields = {"hidden_size": 64, "initializer_range": 0.1, "residual_scale_layers": reference}
    model = HEADS["encoder"](tiny_family("esmc", **fields))
    params = jax.jit(model.init)(jax.random.key(0), np.ones((1, 8), int))["params"]
    kernel = params["bert"]["encoder"]["layers"]["output"]["kernel"]
    assert abs(kernel.std() / (0.88 * expected) - 1) < 0.06


def loss_of(model, params, inputs):
    logits = model.apply({"params": params}, **inputs)["logits"]
    real = inputs["sequence_ids"] > 0
    return ((logits * real[..., None]) ** 2).mean()


def assert_close(found, expected):
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5 * max(1.0, np.abs(b).max()))


@pytest.mark.slow
@pytest.mark.parametrize("family", others_weekly(CHANGES, "eurobert"))
def test_flash_attention_equals_that_of_xla(family, tiny_family, random_params, monkeypatch):
    interpreted = functools.partial(flash_attention, interpret=True)
    monkeypatch.setitem(FUSED, "flash", FUSED["flash"]._replace(attend=interpreted))
    model = model_of(family, tiny_family)
    params = random_params(model)
    inputs = in_one_row(sequences_alone(model.config.vocab_size))
    gradient = jax.jit(jax.value_and_grad(loss_of, argnums=1), static_argnums=0)
    expected = gradient(model, params, inputs)
    assert_close(gradient(model.clone(attention_kernel="flash"), params, inputs), expected)


@pytest.mark.slow
@pytest.mark.exhaustive  # those of transformers are compared with selective rematerialisation
@pytest.mark.parametrize("family", CHANGES)
def test_what_is_recomputed_changes_no_gradient(family, tiny_family, random_params):
    model = model_of(family, tiny_family)
    params = random_params(model)
    inputs = in_one_row(sequences_alone(model.config.vocab_size))
    gradient = jax.jit(jax.value_and_grad(loss_of, argnums=1), static_argnums=0)
    expected = gradient(model, params, inputs)
    for remat in ("selective", "full"):
        assert_close(gradient(model.clone(remat=remat, unroll=3), params, inputs), expected)


@pytest.mark.slow
@pytest.mark.parametrize("family", others_weekly(CHANGES, "eurobert"))
def test_eight_devices_equal_one(family, tiny_family, random_params):
    model = model_of(family, tiny_family)
    model = model.clone(config=dataclasses.replace(model.config, vocab_size=120))
    params = random_params(model)
    row = in_one_row(sequences_alone(120))
    inputs = {name: np.repeat(value, 4, axis=0) for name, value in row.items()}
    gradient = functools.partial(jax.value_and_grad(loss_of, argnums=1), model)
    expected = jax.jit(gradient)(params, inputs)
    mesh = sharding.make_mesh(MeshConfig(data=2, fsdp=2, tensor=2))
    placed = jax.device_put(params, sharding.state_sharding(mesh, params))
    rows = jax.device_put(inputs, sharding.batch_sharding(mesh))
    assert_close(jax.jit(sharding.within(mesh, gradient))(placed, rows), expected)
