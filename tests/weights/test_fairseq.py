"""Checkpoints of fairseq equal the models of transformers, and its dictionary decides the ids.

The files are made here from models of transformers, as the published code of fairseq saves them,
and read without it.
"""

import argparse
import io
import json
import sys
import types
import typing
from pathlib import Path

import numpy as np
import pytest
import tokenizers
from tokenizers import AddedToken, models, pre_tokenizers

from bertjax import convert
from bertjax.tokenization import load_tokenizer
from bertjax.weights import load_model
from tests.weights.test_originals import (
    HEADS,
    LAYERS,
    SIZES,
    Hostile,
    expected,
    found,
    others,
    random_model,
    refusal,
    saved,
)

torch = pytest.importorskip("torch", reason="the extra `parity` is not installed")
transformers = pytest.importorskip("transformers", reason="the extra `parity` is not installed")
pytestmark = pytest.mark.parity

MERGES = [("t", "h"), ("th", "e"), ("Ġ", "the"), ("Ġ", "a"), ("r", "e")]
# In GPT-2, bytes have the first ids, what merges lead to has the next ones, and this the last.
GPT2 = [*sorted(pre_tokenizers.ByteLevel.alphabet()), *map("".join, MERGES), "<|endoftext|>"]
# The lines of dict.txt, which begin with the most frequent symbol.
SYMBOLS = [*np.random.default_rng(0).permutation(len(GPT2)), "madeupword0000", "madeupword0001"]
SPECIAL = ["<s>", "<pad>", "</s>", "<unk>"]
WORDS = len(SPECIAL) + len(SYMBOLS) + 1
FIELDS = {
    **{"vocab_size": WORDS, "max_position_embeddings": 34, "type_vocab_size": 1},
    **{"pad_token_id": 1, "layer_norm_eps": 1e-5},
}
# {part of a name in transformers: the part in fairseq}, replaced in this order.
COMMON = {
    "embeddings.word_embeddings.": "embed_tokens.",
    "embeddings.position_embeddings.": "embed_positions.",
    "encoder.layer.": "layers.",
    "attention.self.query.": "self_attn.q_proj.",
    "attention.self.key.": "self_attn.k_proj.",
    "attention.self.value.": "self_attn.v_proj.",
    "attention.output.dense.": "self_attn.out_proj.",
    "intermediate.dense.": "fc1.",
    "output.dense.": "fc2.",
    "embeddings.LayerNorm.": "layernorm_embedding.",
}
POST = {
    "attention.output.LayerNorm.": "self_attn_layer_norm.",
    "output.LayerNorm.": "final_layer_norm.",
}
NORMS = {
    "Roberta": POST,
    "XLMRoberta": POST,
    "RobertaPreLayerNorm": {
        "attention.LayerNorm.": "self_attn_layer_norm.",
        "intermediate.LayerNorm.": "final_layer_norm.",
        "_prelayernorm.LayerNorm.": "_prelayernorm.layer_norm.",
        "roberta_prelayernorm.": "roberta.",
    },
    "XLMRobertaXL": {
        "attention.self_attn_layer_norm.": "self_attn_layer_norm.",
        "encoder.LayerNorm.": "layer_norm.",
        **{f"layers.{n}.LayerNorm.": f"layers.{n}.final_layer_norm." for n in range(LAYERS)},
    },
}


def roberta(head="ForMaskedLM", family="Roberta", **fields):
    model = random_model(getattr(transformers, f"{family}{head}"), **FIELDS | fields)
    base = getattr(model, model.base_model_prefix)
    with torch.no_grad():  # which fairseq does not have
        base.embeddings.token_type_embeddings.weight.zero_()
    return model


def named(model, family="Roberta", side="encoder", fused=False, prefix="") -> dict:
    """The state dict of fairseq: the `side` was a decoder before, and its projections `fused`."""
    state = {}
    for theirs, value in model.state_dict().items():
        name = theirs
        for part, own in (COMMON | NORMS[family]).items():
            name = name.replace(part, own)
        name = name.replace("roberta.", f"{side}.sentence_encoder.", 1)
        name = name.replace("classifier.", "classification_heads.mnli.")
        if name.startswith("lm_head."):
            name = f"{side}.{name.replace('decoder.', '')}"
        if side == "decoder":
            name = name.replace("layernorm_embedding", "emb_layer_norm")
        if "token_type" not in name:
            state[prefix + name] = value.clone()
    for layer in range(LAYERS if fused else 0):
        attention = f"{prefix}{side}.sentence_encoder.layers.{layer}.self_attn."
        for end in ("weight", "bias"):
            parts = [state.pop(f"{attention}{part}_proj.{end}") for part in "qkv"]
            state[f"{attention}in_proj_{end}"] = torch.cat(parts)
    if side == "encoder":
        state[f"{prefix}encoder.sentence_encoder.version"] = torch.tensor([3.0])
    return state


def settings(**changes) -> argparse.Namespace:
    fields = {
        **{"arch": "roberta_base", "task": "masked_lm", "tokens_per_sample": 32},
        **{"encoder_layers": LAYERS, "encoder_embed_dim": SIZES["hidden_size"]},
        **{"encoder_ffn_embed_dim": 40, "encoder_attention_heads": HEADS, "max_positions": 32},
        **{"dropout": 0.1, "attention_dropout": 0.2, "activation_dropout": 0.0, "lr": [0.1]},
        **{"pooler_dropout": 0.3, "activation_fn": "gelu", "pooler_activation_fn": "tanh"},
        **{"quant_noise_pq": 0, "quant_noise_scalar": 0.0, "model_parallel_size": 1},
        **{"encoder_layerdrop": 0, "adam_betas": "(0.9, 0.98)", "untie_weights_roberta": False},
    }
    return argparse.Namespace(**fields | changes)


def newer(**changes) -> argparse.Namespace:
    fields = {"layernorm_embedding": True, "encoder_normalize_before": False}
    return settings(**fields | {"_name": "roberta_base", "no_scale_embedding": True} | changes)


class Meter:
    """A class of the trainer, which is not made."""

    total = 1


def content(state: dict, **beside) -> dict:
    """The content of `checkpoint_last.pt`."""
    history = [{"criterion_name": "MaskedLmLoss", "num_updates": 7, "lr_scheduler_state": {}}]
    extra = {"train_iterator": {"epoch": 2}, "train_meters": {"loss": Meter()}, "val_loss": None}
    return {
        **{"args": None, "cfg": None, "model": state, "optimizer_history": history},
        **{"extra_state": extra, "last_optimizer_state": others()["optimizer"]},
        **beside,
    }


def newest(model, family="Roberta", **changes) -> dict:
    cfg = {"_name": None, "common": {"seed": 1}, "model": newer(**changes)}
    return content(named(model, family), cfg=cfg)


@pytest.mark.parametrize("fused", [True, False], ids=["one matrix", "three"])
def test_an_early_roberta_equals_transformers(tmp_path, fused):
    model = roberta()
    # Its layers did not follow this setting.
    args = settings(encoder_normalize_before=True)
    path = saved(tmp_path, content(named(model, side="decoder", fused=fused), args=args))
    np.testing.assert_allclose(found(path), expected(model), rtol=1e-5, atol=1e-5)
    config = load_model(path, None, tokenizer_required=False).config
    rates = config.hidden_dropout_prob, config.attention_probs_dropout_prob
    assert (*rates, config.classifier_dropout) == (0.1, 0.2, 0.3)


@pytest.mark.parametrize("family", NORMS)
def test_the_layer_norms_tell_the_family(tmp_path, family):
    changes = {
        "layernorm_embedding": family != "XLMRobertaXL",
        "encoder_normalize_before": family in ("RobertaPreLayerNorm", "XLMRobertaXL"),
    }
    model = roberta(family=family)
    path = saved(tmp_path, newest(model, family, **changes))
    np.testing.assert_allclose(found(path), expected(model), rtol=1e-5, atol=1e-5)


def test_the_classifier_is_read_and_the_masked_lm_beside_it_left_out(tmp_path, capsys):
    model = roberta("ForSequenceClassification", num_labels=3)
    state = named(model) | {"encoder.lm_head.bias": torch.zeros(WORDS)}
    path = saved(tmp_path, content(state, args=newer()))
    np.testing.assert_allclose(found(path), expected(model), rtol=1e-5, atol=1e-5)
    assert (
        "read as sequence_classification, and its predictions left out" in capsys.readouterr().out
    )


@pytest.mark.parametrize("place", ["args", "criterion"])
def test_a_model_of_numbers_is_known_by_its_criterion(tmp_path, place):
    target = {"_name": "sentence_prediction", "regression_target": True}
    beside = {"args": newer(regression_target=True)}
    if place == "criterion":
        beside = {"cfg": {"model": newer(), "criterion": target}}
    model = roberta("ForSequenceClassification", num_labels=1)
    path = saved(tmp_path, content(named(model), **beside))
    loaded = load_model(path, None, tokenizer_required=False)
    assert loaded.source.config["problem_type"] == "regression"


def test_of_several_classifiers_none_is_read(tmp_path, capsys):
    model = roberta("ForSequenceClassification", num_labels=3)
    state = named(model) | named(roberta())
    for name in list(state):
        state[name.replace("mnli", "rte")] = state[name]
    path = saved(tmp_path, content(state, args=newer()))
    assert load_model(path, None, tokenizer_required=False).head == "masked_lm"
    assert "ignored: 8 (classification_heads.mnli" in capsys.readouterr().out


def test_an_untied_output_matrix_and_a_prefix_are_followed(tmp_path):
    model = roberta(tie_word_embeddings=False)
    state = named(model, prefix="model.")
    state["_float_tensor"] = torch.zeros(1)
    path = saved(tmp_path, content(state, args=newer(untie_weights_roberta=True)))
    np.testing.assert_allclose(found(path), expected(model), rtol=1e-5, atol=1e-5)


def test_the_only_token_type_is_followed(tmp_path):
    model = roberta()
    types = model.roberta.embeddings.token_type_embeddings.weight
    with torch.no_grad():
        types.normal_()
    state = named(model) | {"encoder.sentence_encoder.embed_segments.weight": types.detach()}
    path = saved(tmp_path, content(state, args=newer()))
    np.testing.assert_allclose(found(path), expected(model), rtol=1e-5, atol=1e-5)


def test_a_model_without_settings_is_read_beside_its_config(tmp_path):
    model = roberta()
    config = model.config.to_dict()
    path = saved(tmp_path, content(named(model, side="decoder")), config)
    np.testing.assert_allclose(found(path), expected(model), rtol=1e-5, atol=1e-5)
    (tmp_path / "config.json").unlink()
    with pytest.raises(FileNotFoundError, match="no config.json, which describes"):
        load_model(path, None, tokenizer_required=False)


def omegaconf_classes(monkeypatch) -> tuple[type, type]:
    """Classes that are pickled under the names of OmegaConf, as long as the test saves."""
    made = []
    monkeypatch.setitem(sys.modules, "omegaconf", types.ModuleType("omegaconf"))
    for module, name in (("omegaconf.dictconfig", "DictConfig"), ("omegaconf.nodes", "AnyNode")):
        made.append(type(name, (), {"__module__": module}))
        holder = types.ModuleType(module)
        setattr(holder, name, made[-1])
        monkeypatch.setitem(sys.modules, module, holder)
    return made[0], made[1]


@pytest.mark.parametrize("nested", [True, False], ids=["DictConfig", "Namespace"])
def test_settings_of_omegaconf_are_read_and_its_classes_never_imported(
    tmp_path, monkeypatch, nested
):
    make_dict, make_node = omegaconf_classes(monkeypatch)

    def node(value, cls=make_node, key="_val"):
        made = cls()
        kinds = {"ref_type": typing.Any, "object_type": int, "key_type": str}
        made.__dict__ |= {"_metadata": kinds, "_parent": None, key: value}
        return made

    def config(values):
        return node({name: node(value) for name, value in values.items()}, make_dict, "_content")

    kept = newer()
    cfg = config({"model": kept, "common": 1})
    if nested:
        cfg.__dict__["_content"]["model"] = config(vars(kept))
    model = roberta()
    path = saved(tmp_path, content(named(model), cfg=cfg))
    monkeypatch.undo()
    np.testing.assert_allclose(found(path), expected(model), rtol=1e-5, atol=1e-5)
    assert not any(module.startswith("omegaconf") for module in sys.modules)


# The dictionary.


def with_dictionary(folder: Path, symbols=SYMBOLS) -> Path:
    folder.mkdir(exist_ok=True)
    lines = [f"{symbol} {1000 - n}\n" for n, symbol in enumerate(symbols)]
    (folder / "dict.txt").write_text("".join(lines))
    return folder


def with_merges(folder: Path) -> Path:
    lines = ["#version: 0.2", *map(" ".join, MERGES)]
    (folder / "vocab.bpe").write_text("\n".join(lines))
    return folder


def words_of(symbols) -> list[str]:
    tokens = [GPT2[int(x)] if str(x).isdigit() else x for x in symbols]
    return [*SPECIAL, *tokens, "<mask>"]


def transformers_files(folder: Path, words) -> None:
    vocab = {token: n for n, token in enumerate(words)}
    model = models.BPE(vocab=vocab, merges=MERGES)
    made = tokenizers.Tokenizer(model)
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.add_special_tokens([AddedToken(x, lstrip=x == "<mask>") for x in (*SPECIAL, "<mask>")])
    made.save(str(folder / "tokenizer.json"))
    config = {"tokenizer_class": "RobertaTokenizer", "model_max_length": 32}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


TEXT = "the heath rethreads a the, 42 été"


def test_ids_are_those_of_the_dictionary(tmp_path):
    folder = with_merges(with_dictionary(tmp_path))
    numbers = tokenizers.Tokenizer(models.BPE({x: n for n, x in enumerate(GPT2)}, MERGES))
    numbers.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    order = [str(symbol) for symbol in SYMBOLS]

    def encode(text):
        return [4 + order.index(str(number)) for number in numbers.encode(text).ids]

    ids, _ = load_tokenizer(folder).encode_pair(TEXT, "the a")
    assert ids == [0, *encode(TEXT), 2, 2, *encode("the a"), 2]


def test_other_numbers_of_encoder_json_are_followed(tmp_path):
    folder = with_merges(with_dictionary(tmp_path, range(len(GPT2))))
    turned = [*GPT2[9:], *GPT2[:9]]
    (folder / "encoder.json").write_text(json.dumps({x: n for n, x in enumerate(turned)}))
    assert load_tokenizer(folder).tokens == [*SPECIAL, *turned, "<mask>"]


def test_other_numbers_without_encoder_json_are_refused(tmp_path):
    """As byte-level BPEs that tokenizers trains begin with five special tokens."""
    folder = with_merges(with_dictionary(tmp_path, range(5, 5 + len(GPT2) - 1)))
    with pytest.raises(ValueError, match=f"has the id {len(GPT2)}, .* copy its encoder.json"):
        load_tokenizer(folder)


@pytest.mark.parametrize("files", ["fairseq", "transformers", "both"])
def test_convert_verifies_a_checkpoint_of_fairseq(tmp_path, files, capsys):
    model = roberta()
    folder = with_dictionary(tmp_path / "run")
    if files != "transformers":
        with_merges(folder)
    if files != "fairseq":
        transformers_files(folder, words_of(SYMBOLS))
    path = saved(folder, newest(model))
    convert.run(convert.ConvertConfig(src=str(path), dst=str(tmp_path / "out"), verify=True))
    assert "logits: largest difference" in capsys.readouterr().out
    copy = type(model).from_pretrained(tmp_path / "out").eval()
    np.testing.assert_allclose(expected(copy), expected(model), rtol=1e-6, atol=1e-6)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    assert theirs(TEXT)["input_ids"] == load_tokenizer(folder).encode_pair(TEXT, None)[0]


def test_a_tokenizer_in_another_order_than_the_dictionary_is_refused(tmp_path):
    folder = with_dictionary(tmp_path)
    path = saved(folder, newest(roberta()))
    words = words_of(SYMBOLS)
    transformers_files(folder, [*words[:9], words[10], words[9], *words[11:]])
    refusal(path, f"gives the id 9 to {words[9]!r}, but the tokenizer beside it to {words[10]!r}")
    transformers_files(folder, [*words[:-2], "<mask>"])
    refusal(path, f"gives the id {WORDS - 2} to 'madeupword0001', but .* '<mask>'")
    with_dictionary(folder, SYMBOLS[:-1])
    refusal(path, f"embeddings of {WORDS} tokens, but the tokenizer beside it has {WORDS - 1}")


@pytest.mark.parametrize("files", ["fairseq", "transformers"])
def test_symbols_behind_the_mask_pad_the_embedding(tmp_path, files):
    symbols = [*SYMBOLS[:-2], "<mask>", *SYMBOLS[-2:]]
    folder = with_dictionary(tmp_path, symbols)
    if files == "fairseq":
        with_merges(folder)
    else:
        transformers_files(folder, words_of(SYMBOLS[:-2]))
    path = saved(folder, newest(roberta()))
    loaded = load_model(path, None)
    assert loaded.tokenizer.mask_token_id == WORDS - 3
    assert loaded.config.vocab_size == WORDS
    with_dictionary(folder, [*symbols[:-1], "word"])
    transformers_files(folder, words_of(SYMBOLS[:-2]))
    refusal(path, f"gives the id {WORDS - 1} to 'word', but the tokenizer beside it to None")


def test_a_tokenizer_without_the_dictionary_is_warned_of(tmp_path, capsys):
    path = saved(tmp_path, newest(roberta()))
    transformers_files(tmp_path, words_of(SYMBOLS))
    load_model(path, None)
    assert "has no dict.txt, by which the ids" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("line", "match"),
    [("<unk>", "'<unk>' is not a symbol"), ("13 x", "'13 x' is not a symbol"), ("13 5", "id 4 to")],
)
def test_a_damaged_dictionary_is_named(tmp_path, line, match):
    folder = with_dictionary(tmp_path)
    transformers_files(folder, words_of(SYMBOLS))
    text = (folder / "dict.txt").read_text()
    (folder / "dict.txt").write_text(f"{line}\n{text}")
    refusal(saved(folder, newest(roberta())), match)


def test_merges_without_a_dictionary_are_no_tokenizer(tmp_path):
    path = saved(with_merges(tmp_path), newest(roberta()))
    with pytest.raises(FileNotFoundError, match=r"vocab\.bpe and fairseq's dict\.txt"):
        load_model(path, None)


SENTENCES = ["the harbour was quiet", "a boat left, and 12 came", "fog hid masks"]


@pytest.fixture(scope="module")
def pieces():
    sentencepiece = pytest.importorskip("sentencepiece")
    written = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(SENTENCES * 9), model_writer=written, model_type="unigram",
        vocab_size=40, hard_vocab_limit=False, minloglevel=2, num_threads=1,
    )  # fmt: skip
    processor = sentencepiece.SentencePieceProcessor(model_proto=written.getvalue())
    return processor, written.getvalue()


@pytest.mark.parametrize("family", ["xlm-roberta", "camembert"])
def test_pieces_of_sentencepiece_have_the_ids_of_the_dictionary(tmp_path, pieces, family):
    processor, model_file = pieces
    symbols = [processor.id_to_piece(n) for n in range(3, processor.get_piece_size())]
    lines = [f"{symbol} -3\n".replace(" -3", " 3") for symbol in symbols]
    if family == "camembert":
        lines = [f"{x} 9 #fairseq:overwrite\n" for x in ("<unk>", "<s>", "</s>")] + lines
    (tmp_path / "dict.txt").write_text("".join(lines))
    (tmp_path / "sentencepiece.bpe.model").write_bytes(model_file)
    model = roberta(vocab_size=4 + len(lines) + 1)
    path = saved(tmp_path, newest(model))
    loaded = load_model(path, None)
    assert loaded.config.model_type == family
    np.testing.assert_allclose(found(path), expected(model), rtol=1e-5, atol=1e-5)
    text = "the boat was quiet"
    own = {line.split(" ")[0]: 4 + n for n, line in enumerate(lines)}
    ids = [own[piece] for piece in processor.encode(text, out_type=str)]
    start, end = (own["<s>"], own["</s>"]) if family == "camembert" else (0, 2)
    assert loaded.tokenizer.encode_pair(text, None)[0] == [start, *ids, end]


def test_the_dictionary_tells_the_tokenizer_of_an_xlm_roberta_xl(tmp_path, pieces):
    processor, model_file = pieces
    symbols = [processor.id_to_piece(n) for n in range(3, processor.get_piece_size())]
    folder = with_dictionary(tmp_path, [*symbols, "<mask>", "madeupword0000"])
    (folder / "sentencepiece.bpe.model").write_bytes(model_file)
    changes = {"layernorm_embedding": False, "encoder_normalize_before": True}
    model = roberta(family="XLMRobertaXL", vocab_size=4 + len(symbols) + 2)
    path = saved(folder, newest(model, "XLMRobertaXL", **changes), model.config.to_dict())
    tokenizer = load_model(path, None).tokenizer
    assert tokenizer is not None
    assert tokenizer.tokenizer_class == "XLMRobertaTokenizer"
    assert tokenizer.mask_token_id == 4 + len(symbols)


def test_a_dictionary_in_another_order_than_the_pieces_is_refused(tmp_path, pieces):
    processor, model_file = pieces
    symbols = [processor.id_to_piece(n) for n in range(3, processor.get_piece_size())]
    folder = with_dictionary(tmp_path, symbols[::-1])
    (folder / "sentencepiece.bpe.model").write_bytes(model_file)
    refusal(saved(folder, newest(roberta())), "gives the id 4 to")


# What is refused.

LAYER = "encoder.sentence_encoder.layers.1."


def without_a_tensor(made):
    del made["model"][f"{LAYER}fc1.weight"]


def without_a_layer_norm(made):
    for end in ("weight", "bias"):
        del made["model"][f"encoder.sentence_encoder.layernorm_embedding.{end}"]


def with_a_layer_norm_more(made):
    for end in ("weight", "bias"):
        made["model"][f"encoder.sentence_encoder.layer_norm.{end}"] = torch.ones(24)


def with_fewer_positions(made):
    name = "encoder.sentence_encoder.embed_positions.weight"
    made["model"][name] = made["model"][name][:20]


def with_a_fused_matrix_of_a_wrong_size(made):
    for part in "qkv":
        del made["model"][f"{LAYER}self_attn.{part}_proj.weight"]
    made["model"][f"{LAYER}self_attn.in_proj_weight"] = torch.zeros(71, 24)


def with_two_names(made):
    state = made["model"]
    state["decoder.sentence_encoder.layers.1.fc1.weight"] = state[f"{LAYER}fc1.weight"]


def with_an_unknown_tensor(made):
    made["model"]["encoder.sentence_encoder.quant_noise.weight"] = torch.zeros(24, 24)


def with_a_word_embedding_of_one_axis(made):
    made["model"]["encoder.sentence_encoder.embed_tokens.weight"] = torch.zeros(24)


def with_a_bias_of_attention(made):
    made["model"][f"{LAYER}self_attn.bias_k"] = torch.zeros(1, 1, 24)


def with_an_average(made):
    made["ema"] = {**made["model"]}


def with_shards(made):
    made["model"] = {"encoder.sentence_encoder.layers.0.flat_param_0": torch.zeros(99)}


def with_token_types(made):
    made["model"]["encoder.sentence_encoder.embed_segments.weight"] = torch.ones(2, 24)


def with_positions_of_no_number(made):
    made["cfg"]["model"].max_positions = "32"


def with_code(made):
    made["extra_state"]["beside"] = Hostile()


def with_a_whole_module(made):
    made["model"] = torch.nn.Linear(3, 3)


DAMAGED = {
    without_a_tensor: r"Missing: roberta\.encoder\.layer\.1\.intermediate\.dense\.weight\.",
    without_a_layer_norm: r"Missing: roberta\.embeddings\.LayerNorm\.bias",
    with_a_layer_norm_more: r"Unexpected: roberta\.layer_norm\.bias",
    with_fewer_positions: r"position_embeddings\.weight has shape \(20, 24\)",
    with_a_fused_matrix_of_a_wrong_size: r"layer\.1\.attention.* has shape \(71, 24\)",
    with_two_names: r"has encoder.sentence_encoder.layers\.1.*|decoder.*under two names",
    with_an_unknown_tensor: r"Unexpected: roberta\.quant_noise\.weight",
    with_a_word_embedding_of_one_axis: "not enough values to unpack",
    with_a_bias_of_attention: r"Unexpected: roberta\.encoder\.layer\.1\.self_attn\.bias_k",
    with_an_average: "tensors under 'ema' beside the",
    with_token_types: r"token_type_embeddings\.weight has shape \(2, 24\)",
    with_shards: r"one of the shards of a model \(FSDP\)",
    with_positions_of_no_number: "is damaged|str",
    with_code: "system",
    with_a_whole_module: "maps 'args' to a NoneType",
}


@pytest.mark.parametrize("damage", DAMAGED, ids=lambda damage: damage.__name__)
def test_a_damaged_checkpoint_of_fairseq_is_refused_by_name(tmp_path, damage, monkeypatch):
    monkeypatch.chdir(tmp_path)
    made = newest(roberta())
    damage(made)
    refusal(saved(tmp_path, made), DAMAGED[damage])
    assert not (tmp_path / "ran").exists()


def test_a_truncated_checkpoint_of_fairseq_is_refused(tmp_path):
    path = saved(tmp_path, newest(roberta()))
    path.write_bytes(path.read_bytes()[:-1000])
    refusal(path, "truncated or damaged")


@pytest.mark.parametrize(
    "change",
    [
        {"activation_fn": "gelu_accurate"},
        {"pooler_activation_fn": "relu"},
        {"no_scale_embedding": False},
        {"encoder_learned_pos": False},
        {"no_token_positional_embeddings": True},
        {"quant_noise_pq": 0.1},
        {"quant_noise_scalar": 0.5},
        {"spectral_norm_classification_head": True},
        {"model_parallel_size": 2},
    ],
    ids=str,
)
def test_what_no_family_computes_is_refused_by_its_setting(tmp_path, change):
    ((name, value),) = change.items()
    refusal(saved(tmp_path, newest(roberta(), **change)), f"{name}={value}")


@pytest.mark.parametrize("kind", ["data2vec_text", "wav2vec2", "wav2vec_ctc"])
def test_another_model_of_fairseq_is_refused_by_its_name(tmp_path, kind):
    made = content({"encoder.layers.0.fc1.weight": torch.ones(3)}, cfg={"model": {"_name": kind}})
    refusal(saved(tmp_path, made), f"is a {kind} of fairseq: only RoBERTa and XLM-R")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("num_attention_heads", 4),
        ("model_type", "bert"),
        ("layer_norm_eps", 1e-12),
        ("hidden_act", "gelu_new"),
        ("pad_token_id", 0),  # by which positions are numbered
    ],
)
def test_a_config_that_contradicts_fairseq_is_refused(tmp_path, field, value):
    model = roberta()
    config = model.config.to_dict() | {field: value}
    refusal(saved(tmp_path, newest(model), config), f"{field}=.*config.json .* {value}:")
