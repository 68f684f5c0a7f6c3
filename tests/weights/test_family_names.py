"""The families of Hugging Face: sizes, configs and names as transformers has them."""

import dataclasses
import functools
import json

import jax
import numpy as np
import pytest

import bertjax
from bertjax.model import HEADS, MODEL_SIZES, BertConfig, named_config
from bertjax.weights import init_params
from bertjax.weights.families import (
    FAMILIES,
    architecture,
    config_from_hf,
    config_to_hf,
    heads_of,
    with_pad_token,
)
from bertjax.weights.fill import param_shapes
from tests.cases import WEEKLY

# Other sizes of a family differ in numbers only, and other families in names.
QUICK = (
    *("roberta-base", "ernie-3.0-base-zh", "mpnet-base", "albert-base-v2"),
    *("distilbert-base-uncased", "electra-small", "electra-base", "deberta-v2-xlarge"),
    *("deberta-v3-xsmall", "modernbert-base", "eurobert-210m", "nomic-embed-text-v1.5"),
    *("esm2-t6-8m", "esmc-300m", "rembert", "megatron-bert-uncased-345m"),
)
RELATIVES = [
    pytest.param(name, marks=() if name in QUICK else WEEKLY)
    for name in MODEL_SIZES
    if not name.startswith("bert")
]


def count(config: BertConfig, head: str) -> int:
    return sum(shape.size for shape in param_shapes(HEADS[head](config)).values())


def test_roberta_base_with_its_lm_head_has_the_published_number_of_parameters():
    assert count(named_config("roberta-base"), "masked_lm") == 124_697_433


@pytest.mark.slow
@pytest.mark.parity
@pytest.mark.parametrize("name", RELATIVES)
def test_released_models_have_as_many_parameters_as_in_transformers(name):
    torch = pytest.importorskip("torch", reason="the extra `parity` is not installed")
    transformers = pytest.importorskip("transformers", reason="the extra `parity` is not installed")
    config = named_config(name)
    fields = {key: value for key, value in config_to_hf(config).items() if key != "model_type"}
    described = transformers.AutoConfig.for_model(config.model_type, **fields)
    # The row of a LayerNorm that layer 0 does not have.
    unused = 0
    if config.pre_norm and not config.first_attention_norm:
        unused = config.hidden_size
    if config.stored_rope:  # no parameters there
        unused += config.head_size // 2
    for head in ("encoder", "masked_lm", "sequence_classification"):
        with torch.device("meta"):  # shapes alone
            theirs = getattr(transformers, architecture(config, head))(described)
        expected = sum(p.numel() for p in theirs.parameters())
        assert count(config, head) - unused == expected, head


@pytest.mark.parametrize("name", MODEL_SIZES)
def test_a_config_survives_what_hugging_face_writes(name):
    config = named_config(name)
    assert config_from_hf(json.loads(json.dumps(config_to_hf(config)))) == config


def test_what_a_family_has_no_place_for_is_refused_before_it_is_lost():
    bert = named_config("bert-tiny", embedding_size=16, num_hidden_groups=1)
    with pytest.raises(ValueError, match="embedding_size=16, num_hidden_groups=1.*model_type"):
        config_to_hf(bert)
    # Dropout and the start of the position table are not what a model computes.
    config_to_hf(named_config("bert-tiny", sinusoidal_pos_embds=True, qa_dropout=0.1))


def test_positions_of_roberta_follow_its_padding_token():
    config = with_pad_token(named_config("roberta-base"), 0)
    assert (config.pad_token_id, config.position_offset, config.max_length) == (0, 1, 513)
    assert config_from_hf(config_to_hf(config)) == config
    assert with_pad_token(named_config("bert-tiny"), 3).position_offset == 0


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"model_type": "gpt2"}, "'gpt2' is not supported"),
        ({"model_type": "roberta-base"}, "Did you mean 'roberta'"),
        ({"model_type": "albert", "inner_group_num": 2}, "inner_group_num=2"),
        ({"model_type": "distilbert", "dim": "768"}, "hidden_size='768'"),
        ({"model_type": "roberta", "position_embedding_type": "relative_key"}, "relative_key"),
    ],
)
def test_what_is_not_known_is_refused(values, message):
    with pytest.raises(ValueError, match=message):
        config_from_hf(values)


def test_heads_that_a_family_lacks_are_named(tmp_path, tiny_family, tokenizer, written):
    folder = written(tmp_path / "m", tiny_family("distilbert"), "masked_lm", tokenizer)
    assert "next_sentence" not in heads_of(tiny_family("distilbert"))
    with pytest.raises(
        ValueError, match="distilbert cannot have the head 'next_sentence'.*masked_lm"
    ):
        bertjax.load_pretrained(folder, "next_sentence")


@pytest.mark.slow
def test_files_of_an_encoder_alone_go_without_the_prefix(tmp_path, tiny_family, tokenizer, written):
    from safetensors.numpy import load_file, save_file

    for family in FAMILIES:
        folder = written(tmp_path / family, tiny_family(family), "encoder", tokenizer)
        named = load_file(folder / "model.safetensors")
        prefix = f"{FAMILIES[family].prefix}."
        assert all(name.startswith(prefix) for name in named)
        before = bertjax.load_pretrained(folder).params
        bare = {name.removeprefix(prefix): value for name, value in named.items()}
        save_file(bare, folder / "model.safetensors")
        after = bertjax.load_pretrained(folder).params
        assert jax.tree.all(jax.tree.map(np.array_equal, before, after)), family


def test_shared_layers_are_layers_that_are_equal(tiny_family, random_params):
    """Four layers in two groups compute what four layers do of which two each are equal."""
    shared = tiny_family("albert", num_hidden_layers=4, num_hidden_groups=2)
    apart = dataclasses.replace(shared, num_hidden_groups=4)
    params = random_params(HEADS["encoder"](shared))
    layers = params["bert"]["encoder"]["layers"]
    twice = jax.tree.map(lambda x: np.repeat(x, 2, axis=0), layers)
    repeated = {"bert": params["bert"] | {"encoder": {"layers": twice}}}
    ids = np.arange(5, 21).reshape(1, 16)
    inputs = (ids, ids * 0, np.arange(16)[None], ids * 0 + 1, np.zeros((1, 1), int))

    def hidden(model, params):
        apply = functools.partial(model.apply, output_hidden_states=True)
        return jax.jit(apply)({"params": params}, *inputs)["hidden_states"]

    other = hidden(HEADS["encoder"](apart), repeated)
    for unroll in (1, 2):
        one = hidden(HEADS["encoder"](shared, unroll=unroll), params)
        np.testing.assert_allclose(one, other, atol=1e-6)


def test_left_to_right_attention_sees_nothing_of_what_follows(tiny_config, random_params):
    model = HEADS["encoder"](dataclasses.replace(tiny_config, is_decoder=True))
    params = random_params(model)
    ids = np.arange(5, 21).reshape(1, 16)
    # Two sequences of a row, 10 and 6 tokens long.
    sequence = np.repeat([1, 2], [10, 6])[None]
    positions = np.concatenate([np.arange(10), np.arange(6)])[None]

    @jax.jit
    def hidden(ids):
        inputs = (ids, ids * 0, positions, sequence, np.zeros((1, 1), int))
        return model.apply({"params": params}, *inputs)["last_hidden_state"][0]

    changed = ids.copy()
    changed[0, 5] = 50
    moved = np.abs(hidden(changed) - hidden(ids)).max(-1) > 0
    assert moved.tolist() == [5 <= i < 10 for i in range(16)]


def test_sinusoids_are_those_of_the_paper(tiny_config):
    config = dataclasses.replace(tiny_config, sinusoidal_pos_embds=True)
    params = init_params(HEADS["encoder"](config), 0)
    table = params["bert"]["embeddings"]["position_embeddings"]["embedding"]
    for position, column in ((0, 0), (0, 1), (7, 4), (7, 5), (63, 31)):
        angle = position / 10_000 ** (2 * (column // 2) / 32)
        expected = np.cos(angle) if column % 2 else np.sin(angle)
        assert abs(table[position, column] - expected) < 1e-5


def test_padding_may_stand_in_front_of_a_roberta(tmp_path, tiny_family, tokenizer, written):
    folder = written(tmp_path / "m", tiny_family("roberta"), "encoder", tokenizer)
    roberta = bertjax.load_pretrained(folder)
    ids, pad = np.arange(5, 15), np.full(6, roberta.config.pad_token_id)
    alone = roberta(input_ids=ids[None])["last_hidden_state"][0]
    for parts in ((ids, pad), (pad, ids)):
        row = np.concatenate(parts)[None]
        mask = (row != roberta.config.pad_token_id).astype(int)
        found = roberta(input_ids=row, attention_mask=mask)["last_hidden_state"][mask > 0]
        np.testing.assert_allclose(found, alone, atol=1e-5)
