"""Files of other programs: tied weights, prefixes of wrappers, shards, and what is no weights."""

import functools
import json

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file

import bertjax
from bertjax.config.model import FAMILY_FIELDS
from bertjax.model import BertConfig
from bertjax.weights import load_model
from bertjax.weights.families import (
    FAMILIES,
    architecture,
    config_to_hf,
    heads_of,
    unknown_fields,
)
from bertjax.weights.load import with_masked_lm
from tests.cases import WEEKLY, others_weekly

torch = pytest.importorskip("torch", reason="the extra `parity` is not installed")
transformers = pytest.importorskip("transformers", reason="the extra `parity` is not installed")
pytestmark = pytest.mark.parity

IDS = np.array([[5, 6, 7, 8, 9, 10, 11, 12]])
# Those of other families are RoBERTa's or BERT's under another prefix.
RENAMED = ("xlm-roberta", "camembert", "data2vec-text", "ernie")
# Not tested so: these tests write the state of transformers' modules, whose names the files of some
# families do not have; RemBERT ties nothing; BertGeneration's twins alone are refused.
OTHERWISE = ("nomic_bert", "gte", "jina_embeddings_v3", "eurobert", "esm", "esmc", "rembert")
OTHERWISE += ("bert-generation", "ultrabert")
OF_FAMILIES = [
    pytest.param(x, marks=WEEKLY if x in RENAMED else () if x == "bert" else pytest.mark.slow)
    for x in FAMILIES
    if x not in OTHERWISE
]


def config_of(family: str, **changes) -> BertConfig:
    sizes = {
        **{"vocab_size": 60, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2},
        **{"intermediate_size": 24, "max_position_embeddings": 24, "initializer_range": 0.2},
    }
    pad = {"pad_token_id": 1} if FAMILY_FIELDS[family].get("pad_token_id") else {}
    return BertConfig(**FAMILY_FIELDS[family] | sizes | pad | {"model_type": family} | changes)


def their_class(config: BertConfig, head: str):
    return getattr(transformers, architecture(config, head))


@pytest.fixture
def saved(tmp_path):
    """A function (family, head) -> a model of transformers, its directory, and our config."""

    def save(family, head="masked_lm", **changes):
        config = config_of(family, **changes)
        fields = {k: v for k, v in config_to_hf(config).items() if v is not None}
        cls = their_class(config, head)
        torch.manual_seed(0)
        model = cls(cls.config_class(**fields)).eval()
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if "embed_positions" not in name:  # RoFormer's table of sines
                    parameter += 0.2 * torch.randn_like(parameter)
        model.save_pretrained(tmp_path / "model")
        return model, tmp_path / "model", config

    return save


def write(folder, tensors) -> None:
    from safetensors.torch import save_file

    save_file(
        {name: value.clone() for name, value in tensors.items()}, folder / "model.safetensors"
    )


def theirs(folder, config, head="masked_lm") -> np.ndarray:
    model = their_class(config, head).from_pretrained(folder).eval()
    with torch.no_grad():
        return np.asarray(model(input_ids=torch.tensor(IDS))[0])


@functools.partial(jax.jit, static_argnums=0)
def applied(model, params, ids):
    """The outputs of a model, compiled once for all models of an architecture."""
    return model.apply({"params": params}, ids)


def ours(folder, head="masked_lm") -> np.ndarray:
    loaded = load_model(folder, head, tokenizer_required=False)
    assert not loaded.absent
    outputs = applied(loaded.model, loaded.params, IDS)
    names = ("logits", "prediction_logits", "last_hidden_state")
    return np.asarray(next(outputs[name] for name in names if name in outputs))


@pytest.mark.parametrize("family", OF_FAMILIES)
def test_files_that_hold_the_twins_of_tied_tensors_alone_are_whole(saved, family, capsys):
    model, folder, config = saved(family)
    twins = ("word_embeddings.weight", "tok_embeddings.weight", "lm_head.bias", "predictions.bias")
    own = ("generator_lm_head.bias",)  # ELECTRA's decoder has one bias
    names = [x for x in model.state_dict() if x in own or not x.endswith(twins)]
    tensors = {name: model.state_dict()[name] for name in names}
    write(folder, tensors)
    np.testing.assert_allclose(ours(folder), theirs(folder, config), rtol=1e-5, atol=1e-4)
    assert "tie_word_embeddings" not in capsys.readouterr().out


@pytest.mark.parametrize("family", OF_FAMILIES)
def test_an_output_matrix_that_differs_makes_an_untied_model(saved, family, tmp_path, capsys):
    model, folder, config = saved(family)
    tensors = model.state_dict()
    ends = ("decoder.weight", "vocab_projector.weight", "_lm_head.weight")
    names = (name for name, _ in model.named_parameters(remove_duplicate=False))
    decoder = next(name for name in names if name.endswith(ends))
    tied = theirs(folder, config)
    tensors[decoder] = torch.randn_like(tensors[decoder])
    write(folder, tensors)
    expected = theirs(folder, config)
    assert np.abs(expected - tied).max() > 1
    np.testing.assert_allclose(ours(folder), expected, rtol=1e-5, atol=1e-4)
    said = [line for line in capsys.readouterr().out.splitlines() if "tie_word_embeddings" in line]
    assert len(said) == 1 and str(folder) in said[0]
    # What is saved is what was loaded, and a head that is added later is that of the file.
    bertjax.load_pretrained(folder, "masked_lm").save(tmp_path / "again")
    np.testing.assert_allclose(theirs(tmp_path / "again", config), expected, rtol=1e-5, atol=1e-4)
    late = with_masked_lm(load_model(folder, "encoder", tokenizer_required=False))
    outputs = applied(late.model, late.params, IDS)
    np.testing.assert_allclose(outputs["logits"], expected, rtol=1e-5, atol=1e-4)


def test_a_bias_of_the_decoder_that_differs_is_the_one_that_is_used(saved):
    model, folder, config = saved("bert")
    tensors = model.state_dict()
    tensors["cls.predictions.decoder.bias"] = torch.randn(60)
    write(folder, tensors)
    np.testing.assert_allclose(ours(folder), theirs(folder, config), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize(
    "family", others_weekly(("bert", "roberta", "deberta-v2", "camembert"), "bert")
)
def test_a_bias_that_nothing_uses_is_kept_in_copies_bit_for_bit(saved, family, tmp_path):
    model, folder, config = saved(family, tie_word_embeddings=False)
    expected = theirs(folder, config)
    before = load_file(folder / "model.safetensors")
    (name,) = [x for x in before if x.endswith(("predictions.bias", "lm_head.bias"))]
    assert not np.array_equal(before[name], before[name.replace("bias", "decoder.bias")])
    bertjax.load_pretrained(folder, "masked_lm").save(tmp_path / "again")
    after = load_file(tmp_path / "again/model.safetensors")
    for key, value in before.items():
        np.testing.assert_array_equal(after[key], value, err_msg=key)
    np.testing.assert_allclose(theirs(tmp_path / "again", config), expected, rtol=1e-5, atol=1e-4)
    bertjax.load_pretrained(folder).save(tmp_path / "auto")  # without its head, which is written
    auto = load_file(tmp_path / "auto/model.safetensors")
    np.testing.assert_array_equal(auto[name], before[name])
    # In another vocabulary, it is the other bias of the model.
    bertjax.load_pretrained(folder, "masked_lm", vocab_size=70).save(tmp_path / "larger")
    larger = load_file(tmp_path / "larger/model.safetensors")
    assert larger[name].shape == (70,)


@pytest.mark.parametrize(
    ("family", "head", "prefix"),
    [
        *(("bert", "masked_lm", x) for x in ("module.", "_orig_mod.", "model.", "encoder.")),
        ("bert", "encoder", "model.encoder."),
        ("modernbert", "masked_lm", "model.module."),
        *(
            pytest.param(*case, marks=WEEKLY)
            for case in (
                ("bert", "pretraining", "module._orig_mod."),
                ("roberta", "sequence_classification", "module."),
                ("distilbert", "encoder", "encoder."),
                ("albert", "masked_lm", "model."),
                ("modernbert", "encoder", "_orig_mod."),
            )
        ),
    ],
)
def test_prefixes_of_wrappers_are_removed_and_said(saved, family, head, prefix, capsys):
    model, folder, config = saved(family, head)
    expected = theirs(folder, config, head)
    write(folder, {prefix + name: value for name, value in model.state_dict().items()})
    np.testing.assert_allclose(ours(folder, head), expected, rtol=1e-5, atol=1e-4)
    said = f"note: the prefix {prefix} of all tensors in {folder} is removed\n"
    assert capsys.readouterr().out == said
    # A name of the family as it is means that there is no wrapper.
    write(folder, {"module.x": torch.zeros(1)} | model.state_dict())
    np.testing.assert_allclose(ours(folder, head), expected, rtol=1e-5, atol=1e-4)
    assert "and that are ignored: module.x\n" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["crf.transitions", "1.linear.weight", "lm_head.decoder.weight"])
@pytest.mark.parametrize("head", ["encoder", "sequence_classification"])
def test_a_head_of_another_program_is_named_and_ignored(saved, head, name, capsys):
    model, folder, config = saved("bert", head)
    expected = theirs(folder, config, head)
    write(folder, {name: torch.zeros(2, 2)} | model.state_dict())
    np.testing.assert_allclose(ours(folder, head), expected, rtol=1e-5, atol=1e-4)
    assert f"and that are ignored: {name}\n" in capsys.readouterr().out


# What checkpoints of trainers hold beside the module with the model.
BESIDE = {
    "a loss": {"criterion.weight": torch.ones(2)},
    "metrics": {"val_f1.tp": torch.zeros(2), "val_f1.fp": torch.zeros(2)},
    "averages of another kind": {"ema.decay": torch.ones(1), "ema.shadow.0": torch.ones(2)},
    "a module of its own": {"projector.0.weight": torch.ones(2, 2)},
}


@pytest.mark.parametrize("suffix", [".ckpt", ".pt", ".pth", ".bin"])
@pytest.mark.parametrize(
    ("prefix", "beside"),
    [
        ("model.", "a loss"),
        ("net._orig_mod.", "metrics"),
        ("a.b.c.", "averages of another kind"),
        ("model.", "a module of its own"),
    ],
)
def test_checkpoints_of_trainers_are_read_by_content(saved, prefix, beside, suffix, capsys):
    model, folder, config = saved("bert", "sequence_classification")
    expected = theirs(folder, config, "sequence_classification")
    (folder / "model.safetensors").unlink()
    state = {prefix + name: value for name, value in model.state_dict().items()}
    content = {"state_dict": BESIDE[beside] | state, "hyper_parameters": {"lr": 0.1}, "loops": {}}
    torch.save(content, folder / f"last{suffix}")
    found = ours(folder / f"last{suffix}", "sequence_classification")
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-4)
    said = capsys.readouterr().out
    assert f"note: the prefix {prefix} of all tensors but {next(iter(BESIDE[beside]))}" in said
    assert f"and that are ignored: {', '.join(sorted(BESIDE[beside]))}\n" in said


def test_a_safetensors_file_may_have_any_name(saved):
    model, folder, config = saved("bert")
    expected = theirs(folder, config)
    (folder / "model.safetensors").rename(folder / "model.pt")
    np.testing.assert_allclose(ours(folder / "model.pt"), expected, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("family", ["bert", "roberta", "modernbert"])
@pytest.mark.parametrize(
    ("first", "second"), [("net.", "ema."), ("", "teacher."), ("query.", "passage."), ("m.", "")]
)
def test_two_copies_of_a_model_are_refused_with_their_prefixes(saved, family, first, second):
    model, folder, _ = saved(family, "encoder")
    tensors = {
        prefix + name: value
        for prefix in (first, second)
        for name, value in model.state_dict().items()
    }
    write(folder, tensors)
    with pytest.raises(ValueError, match="prefixes") as error:
        ours(folder, "encoder")
    assert repr(first) in str(error.value) and repr(second) in str(error.value)


def test_a_head_without_the_prefix_of_its_encoder_is_refused(saved):
    model, folder, _ = saved("bert", "sequence_classification")
    tensors = {name.replace("bert.", "my.bert."): x for name, x in model.state_dict().items()}
    write(folder, tensors)
    with pytest.raises(ValueError, match=r"the prefixes '', 'my\.'"):
        ours(folder, "sequence_classification")


# Tensors in Microsoft's files of DeBERTa-v3 (base; mDeBERTa; xsmall).
OF_MICROSOFT = [
    ["position_embeddings.weight"],
    ["word_embeddings._weight"],
    ["position_embeddings.weight", "position_embeddings._weight", "word_embeddings._weight"],
]


@pytest.mark.parametrize(
    "head", others_weekly(("encoder", "masked_lm", "sequence_classification"), "masked_lm")
)
@pytest.mark.parametrize("extra", OF_MICROSOFT)
def test_what_transformers_leaves_out_of_deberta_is_left_out_with_a_line(
    saved, head, extra, capsys
):
    model, folder, config = saved("deberta-v2", head, position_biased_input=False)
    expected = theirs(folder, config, head)
    prefix = "" if head == "encoder" else "deberta."
    names = [f"{prefix}embeddings.{name}" for name in extra]
    write(folder, model.state_dict() | {name: torch.randn(24, 16) for name in names})
    np.testing.assert_allclose(theirs(folder, config, head), expected, rtol=1e-5, atol=1e-4)
    np.testing.assert_allclose(ours(folder, head), expected, rtol=1e-5, atol=1e-4)
    assert f"note: {folder} has " in (said := capsys.readouterr().out) and "left out as" in said


# Settings of DeBERTa that transformers does not use beside others: without relative positions,
# there are no embeddings to normalise, and the newer masked LM has no output matrix of its own.
UNUSED = {
    "a LayerNorm": {"relative_attention": False, "norm_rel_ebd": "layer_norm"},
    "a LayerNorm, scores and buckets": {
        **{"relative_attention": False, "norm_rel_ebd": "layer_norm", "position_buckets": 8},
        **{"pos_att_type": ["p2c", "c2p"], "share_att_key": True},
    },
    "a LayerNorm and no positions at all": {
        **{"relative_attention": False, "norm_rel_ebd": "layer_norm"},
        "position_biased_input": False,
    },
    "two names of a LayerNorm": {"relative_attention": False, "norm_rel_ebd": "none|layer_norm"},
    "an untied head": {"legacy": False, "tie_word_embeddings": False},
    "an untied head without relative positions": {
        **{"legacy": False, "tie_word_embeddings": False, "relative_attention": False},
        "norm_rel_ebd": "layer_norm",
    },
}


@pytest.mark.parametrize("name", UNUSED)
def test_settings_of_deberta_that_change_nothing_are_followed(saved, name, tmp_path):
    _, _, config = saved("deberta-v2")
    values = {k: v for k, v in config_to_hf(config).items() if v is not None} | UNUSED[name]
    torch.manual_seed(0)
    model = transformers.DebertaV2ForMaskedLM(transformers.DebertaV2Config(**values)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.2 * torch.randn_like(parameter)
    model.save_pretrained(tmp_path / "theirs")
    expected = theirs(tmp_path / "theirs", config)
    found = ours(tmp_path / "theirs")
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-4)
    bertjax.load_pretrained(tmp_path / "theirs", "masked_lm").save(tmp_path / "again")
    np.testing.assert_allclose(theirs(tmp_path / "again", config), expected, rtol=1e-5, atol=1e-4)


def test_positions_that_the_model_uses_are_not_left_out(saved):
    model, folder, config = saved("deberta-v2", position_biased_input=True)
    expected = theirs(folder, config)
    np.testing.assert_allclose(ours(folder), expected, rtol=1e-5, atol=1e-4)
    name = "deberta.embeddings.position_embeddings.weight"
    write(folder, {key: value for key, value in model.state_dict().items() if key != name})
    with pytest.raises(ValueError, match=rf"Missing: {name}"):
        ours(folder)


def test_all_that_transformers_leaves_out_by_name_is_known():
    patterns = set()
    for family in FAMILIES:
        config = config_of(family)
        for head in heads_of(config):
            cls = getattr(transformers, architecture(config, head), None)
            patterns |= set(getattr(cls, "_keys_to_ignore_on_load_unexpected", None) or ())
    # mask_predictions is a head, which other heads leave out.
    # The rates of rotations are buffers, and the positions of ESM-2, which has none, are left out.
    buffers = {"inv_freq", "original_inv_freq"}
    ignored = {"position_embeddings", "mask_predictions.*", "position_embeddings.weight"}
    assert patterns == ignored | buffers


@pytest.mark.parametrize("family", ["bert", "roberta", "albert", "modernbert"])
def test_additional_tensors_of_an_encoder_are_refused(saved, family):
    model, folder, _ = saved(family)
    name = f"{FAMILIES[family].prefix}.encoder.adapter.weight"
    write(folder, {name: torch.zeros(2, 2)} | model.state_dict())
    with pytest.raises(ValueError, match=rf"Unexpected: {name}"):
        ours(folder)


def test_tensors_of_another_program_are_named(saved):
    model, folder, _ = saved("bert")
    write(folder, {f"mine/{name}": value for name, value in model.state_dict().items()})
    with pytest.raises(ValueError, match=r"none of its \d+ tensors has a name of bert .*mine"):
        ours(folder)


@pytest.mark.parametrize(
    "keys", ["state_dict", "model", "module", "net", "model state_dict", "net module"]
)
def test_bin_files_may_hold_the_model_beside_other_things(saved, keys):
    model, folder, config = saved("bert")
    expected = theirs(folder, config)
    content = model.state_dict()
    for key in reversed(keys.split()):
        content = {key: content, "epoch": 3, "optimizer": {"state": [], "lr": 0.1}}
    (folder / "model.safetensors").unlink()
    torch.save(content, folder / "pytorch_model.bin")
    np.testing.assert_allclose(ours(folder), expected, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("family", ["bert", "roberta", "distilbert", "modernbert"])
def test_buffers_are_left_out(saved, family):
    model, folder, config = saved(family)
    expected = theirs(folder, config)
    prefix = FAMILIES[family].prefix
    buffers = {f"{prefix}.embeddings.position_ids": torch.arange(24)[None]}
    buffers[f"{prefix}.layers.0.attn.rotary_emb.inv_freq"] = torch.ones(4)
    buffers |= {f"{prefix}.embeddings.token_type_ids": torch.zeros(1, 24, dtype=torch.long)}
    write(folder, model.state_dict() | buffers)
    np.testing.assert_allclose(ours(folder), expected, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("kind", ["bin", "safetensors"])
def test_shards_of_both_formats_are_read(saved, kind):
    model, folder, config = saved("bert")
    expected = theirs(folder, config)
    names = [*model.state_dict()]
    halves = [names[::2], names[1::2]]
    stem = {"bin": "pytorch_model", "safetensors": "model"}[kind]
    places = {}
    from safetensors.torch import save_file

    (folder / "model.safetensors").unlink()
    for number, half in enumerate(halves, 1):
        file = f"{stem}-0000{number}-of-00002.{kind}"
        part = {name: model.state_dict()[name].clone() for name in half}
        (torch.save if kind == "bin" else save_file)(part, folder / file)
        places |= dict.fromkeys(half, file)
    index = folder / f"{stem}.{kind}.index.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": places}))
    np.testing.assert_allclose(ours(folder), expected, rtol=1e-5, atol=1e-4)
    # A whole file beside them goes first, as in transformers.
    changed = {name: value + 0.5 for name, value in model.state_dict().items()}
    write(folder, changed)
    np.testing.assert_allclose(ours(folder), theirs(folder, config), rtol=1e-5, atol=1e-4)
    assert np.abs(ours(folder) - expected).max() > 0.1
    (folder / "model.safetensors").unlink()
    (folder / f"{stem}-00002-of-00002.{kind}").unlink()
    with pytest.raises(FileNotFoundError, match=rf"lacks .*00002-of.* which {index.name} names"):
        ours(folder)


@pytest.mark.parametrize("file", ["model.safetensors", "pytorch_model.bin"])
def test_pointers_of_git_lfs_are_named(saved, file):
    _, folder, _ = saved("bert")
    (folder / "model.safetensors").unlink()
    pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 440473133\n"
    (folder / file).write_text(pointer)
    for place in (folder, folder / file):
        with pytest.raises(ValueError, match=rf"{file} is a pointer of Git LFS .*git lfs pull"):
            ours(place)


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2", "int8"])
def test_quantised_weights_are_refused_by_name(saved, dtype):
    model, folder, _ = saved("bert")
    tensors = model.state_dict()
    name = "bert.encoder.layer.0.output.dense.weight"
    write(folder, tensors | {name: tensors[name].to(getattr(torch, dtype))})
    with pytest.raises(ValueError, match=rf"{name} is of type .*quantised models"):
        ours(folder)


@pytest.mark.parametrize("layers", others_weekly((1, 2, 4), 1))
def test_modernbert_may_have_few_layers(saved, layers, tmp_path):
    _, folder, config = saved("modernbert", num_hidden_layers=layers)
    expected = theirs(folder, config)
    np.testing.assert_allclose(ours(folder), expected, rtol=1e-5, atol=1e-4)
    bertjax.load_pretrained(folder, "masked_lm").save(tmp_path / "again")
    np.testing.assert_allclose(theirs(tmp_path / "again", config), expected, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize(
    "family",
    [
        pytest.param(x, marks=() if x in ("bert", "deberta-v2", "modernbert") else WEEKLY)
        for x in FAMILIES
    ],
)
def test_unknown_fields_of_a_config_are_named(saved, family, capsys):
    _, folder, _ = saved(family)
    load_model(folder, "masked_lm", tokenizer_required=False)
    assert "warning" not in capsys.readouterr().out
    config = json.loads((folder / "config.json").read_text())
    harmless = {"use_cache": False, "transformers_version": "9", "_name_or_path": "x"}
    new = {"a_setting_of_tomorrow": 1, "tomorrows_list": [1], "tomorrows_null": None}
    (folder / "config.json").write_text(json.dumps(config | harmless | new))
    load_model(folder, "masked_lm", tokenizer_required=False)
    said = "has in its config a_setting_of_tomorrow, tomorrows_list, which is ignored"
    assert said in capsys.readouterr().out


@pytest.mark.parametrize("family", FAMILIES)
def test_the_configs_of_transformers_have_no_unknown_fields(family):
    config = transformers.AutoConfig.for_model(family)
    assert unknown_fields(config.to_dict()) == []


@pytest.mark.parametrize("method", ["bitsandbytes", "gptq", "fp8", "awq"])
def test_quantisation_in_a_config_is_refused(saved, method):
    _, folder, _ = saved("bert")
    config = json.loads((folder / "config.json").read_text())
    setting = {"quantization_config": {"quant_method": method}}
    (folder / "config.json").write_text(json.dumps(config | setting))
    with pytest.raises(ValueError, match="quantization_config=.* is not supported"):
        load_model(folder, tokenizer_required=False)


@pytest.mark.parametrize(
    "family", ["roberta", *(pytest.param(x, marks=WEEKLY) for x in ("xlm-roberta", "camembert"))]
)
def test_positions_pass_over_the_padding_token_wherever_it_stands(saved, family):
    _, folder, config = saved(family)
    ids = np.array([[1, 1, 5, 6, 1, 7, 8, 1], [5, 1, 6, 7, 8, 9, 10, 11]])
    model = their_class(config, "masked_lm").from_pretrained(folder).eval()
    with torch.no_grad():
        expected = np.asarray(model(input_ids=torch.tensor(ids))[0])
    loaded = load_model(folder, "masked_lm", tokenizer_required=False)
    found = applied(loaded.model, loaded.params, ids)["logits"]
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize(
    ("name", "family"),
    [
        *(("BERTFORTOKENCLASSIFICATION", "bert"), (None, "bert"), (None, "roberta")),
        *(("MyModel", family) for family in ("bert", "albert", "roberta", "distilbert")),
    ],
)
@pytest.mark.parametrize("head", ["token_classification", "sequence_classification"])
def test_the_weights_tell_the_head_if_its_name_does_not(saved, family, head, name, capsys):
    _, folder, _ = saved(family, head)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"architectures": name and [name]}))
    assert load_model(folder, None, tokenizer_required=False).head == head
    said = f"names the architecture {name}: read as {head}" in capsys.readouterr().out
    # Elsewhere, other heads have layers of the same names.
    assert not said or name
    assert said or not name or family in ("roberta", "distilbert")


def test_a_part_of_a_head_is_not_kept(saved, tmp_path):
    model, folder, config = saved("roberta", "encoder")
    embedding = model.state_dict()["embeddings.word_embeddings.weight"]
    write(folder, model.state_dict() | {"lm_head.decoder.weight": embedding + 0.1})
    expected = theirs(folder, config, "encoder")
    bertjax.load_pretrained(folder).save(tmp_path / "again")
    found = theirs(tmp_path / "again", config, "encoder")
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("family", "head"),
    [
        ("bert", "sequence_classification"),
        pytest.param("distilbert", "question_answering", marks=WEEKLY),
        *(
            pytest.param(family, head, marks=WEEKLY)
            for family in ("roberta", "albert")
            for head in ("sequence_classification", "question_answering")
        ),
    ],
)
def test_of_two_heads_the_named_one_is_read(saved, family, head, tmp_path, capsys):
    model, folder, config = saved(family, head)
    expected = bertjax.load_pretrained(folder)(input_ids=IDS)
    other = their_class(config, "masked_lm")(model.config).state_dict()
    write(folder, other | model.state_dict())
    loaded = bertjax.load_pretrained(folder)
    assert loaded.head == head
    assert "is read as" in capsys.readouterr().out
    for name, value in loaded(input_ids=IDS).items():
        np.testing.assert_array_equal(value, expected[name])
