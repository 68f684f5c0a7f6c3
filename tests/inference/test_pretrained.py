"""`load_pretrained`: equality with PyTorch, buckets, texts and arrays, and its methods."""

import dataclasses
import functools
import json
import os
import pickle
import shutil
import subprocess
import sys

import jax
import numpy as np
import pytest
from flax.traverse_util import flatten_dict

import bertjax
from bertjax import convert, embed, predict
from bertjax.base.checksums import CHECKSUMS
from bertjax.inference.attention import attention_data
from bertjax.inference.masks import fill_mask
from bertjax.inference.predictor import compiled_program, for_inference, read_all
from bertjax.model import HEADS, BertConfig, TaggerConfig, named_config
from bertjax.weights import hf, load_model
from bertjax.weights.families import FAMILIES, architecture, heads_of
from bertjax.weights.hf import write_safetensors
from bertjax.weights.load import with_tagger
from bertjax.weights.newer_families import NEWER_FAMILIES
from tests.cases import WEEKLY, others_weekly
from tests.lines import json_lines


def in_transformers(head):
    """Whether transformers has a class with this head, and not only with its encoder."""
    return head == "encoder" or HEADS[head].class_suffix != "Model"


BERT_HEADS = list(filter(in_transformers, heads_of(BertConfig())))

ODD = {
    "relu": {"hidden_act": "relu"},
    "gelu_new": {"hidden_act": "gelu_new"},
    "three token types": {"type_vocab_size": 3},
    "three layers": {"num_hidden_layers": 3},
    "untied": {"tie_word_embeddings": False},
    "eps": {"layer_norm_eps": 1e-5},
    "narrow": {"intermediate_size": 50},
}
# Of the families that compute something of their own, one head is compared whenever tests run, and
# test_convert verifies the masked LM of those whose heads differ. DistilBERT and ELECTRA compute a
# part of what BERT does, Data2Vec what RoBERTa does, and ERNIE, but for the types of its tasks,
# what BERT does.
OWN_ENCODERS = ("albert", "deberta-v2", "modernbert", "mpnet", "roberta")
OLDER = FAMILIES.keys() - NEWER_FAMILIES.keys()


def padded_batch(config: BertConfig, head: str, rows=4, length=29):
    rng = np.random.default_rng(1)
    lengths = np.array([29, 17, 8, 5])
    mask = np.arange(length) < lengths[:, None]
    ids = rng.integers(5, config.vocab_size, (rows, length))
    inputs = {
        # RoBERTa counts positions by the ids that are not padding.
        "input_ids": np.where(mask, ids, config.pad_token_id),
        "attention_mask": mask.astype(np.int64),
    }
    if config.type_vocab_size:
        inputs["token_type_ids"] = rng.integers(0, config.type_vocab_size, (rows, length))
    if head == "multiple_choice":
        return {key: value.reshape(2, 2, length) for key, value in inputs.items()}
    return inputs


def differences(folder, config, head) -> dict[str, float]:
    """Largest difference to transformers at real tokens, by name of the output."""
    torch = pytest.importorskip("torch", reason="the extra `parity` is not installed")
    transformers = pytest.importorskip("transformers", reason="the extra `parity` is not installed")
    theirs, info = getattr(transformers, architecture(config, head)).from_pretrained(
        folder, output_loading_info=True, attn_implementation="eager"
    )
    assert not any(info.values()), info
    inputs = padded_batch(config, head)
    with torch.no_grad():
        tensors = {key: torch.tensor(value) for key, value in inputs.items()}
        expected = theirs.eval()(**tensors, output_hidden_states=True, output_attentions=True)
    ours = bertjax.load_pretrained(folder, head)
    found = ours(**inputs, output_hidden_states=True, output_attentions=True)
    real = inputs["attention_mask"].reshape(-1, 29) > 0
    largest = {}
    for name, value in expected.items():
        if name == "cross_attentions":  # of decoders; None for each layer
            continue
        if name == "hidden_states":
            difference = (np.stack([x.numpy() for x in value]) - found[name])[:, real]
        elif name == "attentions":
            difference = np.stack([x.numpy() for x in value]) - found[name]
            difference = difference.transpose(1, 3, 0, 2, 4)[real]
        else:
            assert found[name].shape == value.shape, name
            difference = found[name] - value.numpy()
            difference = difference[real] if value.shape[:2] == real.shape else difference
        largest[name] = float(np.abs(difference).max())
    assert len(largest) >= 3
    shown = " ".join(f"{name} {value:.1e}" for name, value in largest.items())
    print(architecture(config, head), config.num_hidden_layers, "layers:", shown)  # by pytest -s
    return largest


# transformers has the logits of which sparse embeddings are made, those of masked_lm.
COMPARED = [head for head in BERT_HEADS if head != "sparse"]


@pytest.mark.parity
@pytest.mark.parametrize(
    "head", others_weekly(COMPARED, "pretraining", "question_answering", "multiple_choice")
)
def test_every_head_equals_transformers(head, tmp_path, tokenizer, written):
    config = named_config("bert-tiny", vocab_size=500)
    found = differences(written(tmp_path / "m", config, head, tokenizer), config, head)
    assert max(found.values()) < 1e-5, found


# XLM-RoBERTa and CamemBERT compute what RoBERTa does; test_convert has their names, and
# tests/weights/test_newer_families.py compares the newer families.
@pytest.mark.parity
@pytest.mark.parametrize(
    ("family", "head"),
    [
        pytest.param(
            *(name, head),
            marks=()
            if (head == "sequence_classification" and name in OWN_ENCODERS)
            or (name, head) == ("electra", "multiple_choice")
            else WEEKLY,
        )
        for name in sorted(OLDER - {"bert", "xlm-roberta", "camembert"})
        for head in HEADS
        if head not in (*FAMILIES[name].absent, *FAMILIES[name].encoders) and in_transformers(head)
    ],
)
def test_every_head_of_every_family_equals_transformers(
    family, head, tmp_path, tiny_family, tokenizer, written
):
    # Of four layers, two share parameters each.
    groups = {"num_hidden_layers": 4, "num_hidden_groups": 2} if family == "albert" else {}
    config = tiny_family(family, **groups)
    found = differences(written(tmp_path / "m", config, head, tokenizer), config, head)
    assert max(found.values()) < 1e-5, found


@pytest.mark.parity
@pytest.mark.parametrize(
    "change",
    others_weekly(ODD, "untied"),
)
def test_odd_configs_equal_transformers(change, tmp_path, tokenizer, written):
    config = named_config("bert-tiny", vocab_size=500, **ODD[change])
    folder = written(tmp_path / "m", config, "pretraining", tokenizer)
    found = differences(folder, config, "pretraining")
    assert max(found.values()) < 1e-5, found


@pytest.mark.parity
@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.parametrize("head", BERT_HEADS)
@pytest.mark.parametrize(
    ("size", "atol"), [("bert-base-uncased", 1e-5), ("bert-large-uncased", 2e-5)]
)
def test_base_and_large_equal_transformers(size, atol, head, tmp_path, tokenizer, written):
    # Matrices of BERT's own scale, 0.02: at 0.05 PyTorch itself is 1e-5 from what float64 gives.
    config = named_config(size)
    folder = written(tmp_path / "m", config, head, tokenizer, spread=0.0)
    found = differences(folder, config, head)
    (folder / "model.safetensors").unlink()  # pytest would keep 13 GB of them
    assert max(found.values()) < atol, found


@pytest.mark.parametrize("head", others_weekly(BERT_HEADS, "pretraining", "masked_lm", "sparse"))
def test_saving_what_was_loaded_writes_the_same_file(
    head, tmp_path, tiny_config, tokenizer, written
):
    config = dataclasses.replace(tiny_config, tie_word_embeddings=head != "masked_lm")
    first = written(tmp_path / "a", config, head, tokenizer)
    bertjax.load_pretrained(first, head=None).save(tmp_path / "b")
    for name in ("model.safetensors", "config.json", "vocab.txt", "tokenizer_config.json"):
        assert (first / name).read_bytes() == (tmp_path / "b" / name).read_bytes(), name


@pytest.fixture(scope="module")
def bert(tmp_path_factory, one_layer_config, tokenizer, written):
    """A model that refuses what it is given, and that no test changes."""
    folder = tmp_path_factory.mktemp("bert") / "m"
    return bertjax.load_pretrained(written(folder, one_layer_config, "pretraining", tokenizer))


@pytest.fixture(scope="module")
def classifier(tmp_path_factory, one_layer_config, tokenizer, written):
    """The same with classes."""
    folder = tmp_path_factory.mktemp("classifier") / "m"
    written(folder, one_layer_config, "sequence_classification", tokenizer)
    return bertjax.load_pretrained(folder)


@pytest.fixture(scope="module")
def classifier_of(tmp_path_factory, one_layer_config, tokenizer, written):
    """Writes the directory of a classifier with a number of outputs to a folder."""

    @functools.cache
    def made(outputs):
        folder = tmp_path_factory.mktemp("outputs")
        encoder = written(folder / "encoder", one_layer_config, "encoder", tokenizer)
        head = "sequence_classification"
        bertjax.load_pretrained(encoder, head, num_labels=outputs).save(folder / "m")
        return folder / "m"

    return lambda outputs, folder: shutil.copytree(made(outputs), folder / "m")


@pytest.fixture
def pretraining(tmp_path, one_layer_config, tokenizer, written):
    return written(tmp_path / "pretraining", one_layer_config, "pretraining", tokenizer)


def test_texts_give_what_their_ids_give(bert, sentences):
    texts = [sentences[0], (sentences[1], sentences[2]), "x"]
    ids, mask, types = bert.encode(texts)
    from_texts = bert(texts)
    from_ids = bert(input_ids=ids, attention_mask=mask, token_type_ids=types)
    for key in ("last_hidden_state", "pooler_output"):
        np.testing.assert_array_equal(from_texts[key], from_ids[key])
    alone = bert([sentences[0]])["pooler_output"]
    np.testing.assert_allclose(from_texts["pooler_output"][:1], alone, atol=1e-5)


def test_long_texts_are_cut_to_what_the_model_reads(bert, sentences):
    long = " ".join(sentences)
    for text in (long, (long, "x"), ("x", long), (long, long)):
        ids, mask, types = bert.encode([text])
        assert ids.shape == (1, 64) and mask.all()
        assert (
            ids[0, 0] == bert.tokenizer.cls_token_id and ids[0, -1] == bert.tokenizer.sep_token_id
        )
        assert types.any() == isinstance(text, tuple)


def test_a_head_that_the_source_lacks_is_initialised_and_said_so(pretraining, capsys):
    bert = bertjax.load_pretrained(pretraining, head="sequence_classification", num_labels=5)
    assert "has no classifier" in capsys.readouterr().out
    assert bert.absent == ["classifier"]
    assert bert(["a b"])["logits"].shape == (1, 5)
    assert load_model(pretraining, "sequence_classification").unused == [
        "predictions",
        "seq_relationship",
    ]


def test_a_grown_vocabulary_keeps_the_old_rows(pretraining, sentences):
    old = bertjax.load_pretrained(pretraining, "pretraining")
    new = bertjax.load_pretrained(pretraining, "pretraining", vocab_size=150)
    text = [sentences[0]]
    np.testing.assert_allclose(
        new(text)["prediction_logits"][..., :120], old(text)["prediction_logits"], atol=1e-5
    )
    assert new(text)["prediction_logits"].shape[-1] == 150
    assert new(input_ids=[[149]])["last_hidden_state"].std() > 0


def test_labels_travel_with_the_model(classifier):
    assert classifier.head == "sequence_classification"
    assert classifier.labels == ["no", "maybe", "yes"]


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({}, "either texts or input_ids"),
        ({"texts": "one string"}, "put it in a list"),
        ({"texts": 3}, "texts is 3: give a list of texts"),
        ({"texts": b"one"}, "texts is b'one': give a list of texts"),
        ({"input_ids": [[120]]}, "vocab_size=120"),
        ({"input_ids": [[5] * 65]}, "at most 64"),
        (
            {"texts": ["a"], "attention_mask": [[1]]},
            "attention_mask or token_type_ids has no effect on texts",
        ),
        ({"texts": ["a"], "token_type_ids": [[1]]}, "token_type_ids has no effect on texts"),
        ({"input_ids": [[5]], "output_attentions": "no"}, "output_attentions='no': it must be tr"),
        ({"input_ids": [[5]], "batch_size": 0}, "batch_size=0: it must be at least 1"),
    ],
)
def test_input_that_cannot_be_read_is_refused(bert, kwargs, message):
    with pytest.raises(ValueError, match=message):
        bert(**kwargs)


IDS = [[5, 6, 7], [5, 6, 0]]
REFUSED = {
    "beyond 32 bits": ({"input_ids": np.array([[5, 2**32 + 6]])}, "to 4294967302, but the model"),
    "beyond 64 bits": ({"input_ids": [[5, 2**70]]}, "has the type object: give integers"),
    "negative": ({"input_ids": [[5, -1]]}, "range from -1 to 5, but the model has vocab_size=120"),
    "floats": ({"input_ids": [[5.0, 6.5]]}, "type float64: give integers"),
    "texts": ({"input_ids": [["5"]]}, "input_ids has the type"),
    "booleans": ({"input_ids": [[True, False]]}, "type bool: give integers"),
    "ragged": ({"input_ids": [[5, 6], [5]]}, "rows of different lengths: pad them"),
    "one row": ({"input_ids": [5, 6]}, r"the shape \(2,\): give an array \[rows, tokens\]"),
    "a number": ({"input_ids": 5}, r"the shape \(\): give an array"),
    "choices": ({"input_ids": [IDS]}, r"the shape \(1, 2, 3\)"),
    "no tokens": ({"input_ids": np.zeros((2, 0), int)}, "at least one token"),
    "nothing": ({"input_ids": []}, r"the shape \(0,\)"),
    "mask flat": ({"attention_mask": [1, 1, 1, 1, 1, 0]}, r"shape \(6,\), but input_ids has"),
    "mask transposed": ({"attention_mask": [[1, 1], [1, 1], [1, 0]]}, r"\(3, 2\), but input_ids"),
    "mask of one row": ({"attention_mask": [[1, 1, 0]]}, r"\(1, 3\), but input_ids"),
    "type beyond": ({"token_type_ids": [[2, 0, 0], [0, 0, 0]]}, "to 2, but the model has type_voc"),
    "type negative": ({"token_type_ids": [[-1, 0, 0], [0, 0, 0]]}, "range from -1 to 0, but"),
    "types flat": ({"token_type_ids": [0] * 6}, r"shape \(6,\), but"),
    "types floats": ({"token_type_ids": [[0.0, 0, 1], [0, 0, 0]]}, "type float64"),
}  # fmt: skip


@pytest.fixture(scope="module")
def theirs(tmp_path_factory, one_layer_config, tokenizer, written):
    """The model `bert` in transformers."""
    transformers = pytest.importorskip("transformers", reason="the extra `parity` is not installed")
    folder = tmp_path_factory.mktemp("theirs") / "m"
    written(folder, one_layer_config, "pretraining", tokenizer)
    return transformers.AutoModel.from_pretrained(folder)


@pytest.mark.parametrize("case", REFUSED)
def test_arrays_with_other_values_are_refused(bert, case):
    arrays, message = REFUSED[case]
    with pytest.raises(ValueError, match=message):
        bert(**{"input_ids": IDS} | arrays)


@pytest.mark.parity
def test_transformers_refuses_these_arrays_too(theirs):
    torch = pytest.importorskip("torch", reason="the extra `parity` is not installed")
    for arrays, _ in REFUSED.values():
        arrays = {"input_ids": IDS} | arrays
        with pytest.raises((ValueError, RuntimeError, IndexError, TypeError)):
            theirs(**{name: torch.tensor(value) for name, value in arrays.items()})


def test_masks_are_booleans_or_zeros_and_ones(bert):
    expected = bert(input_ids=IDS, attention_mask=[[1, 1, 1], [1, 1, 0]])
    for mask in ([[True] * 3, [True, True, False]], [[1.0, 1, 1], [1, 1, 0]]):
        found = bert(input_ids=IDS, attention_mask=np.array(mask))
        np.testing.assert_array_equal(found["pooler_output"], expected["pooler_output"])
    # transformers takes all of these for tokens, also the -10000 of additive masks.
    for wrong in (float("nan"), -1, 2, 0.5, -10000):
        with pytest.raises(ValueError, match="attention_mask range.*0 for padding"):
            bert(input_ids=IDS, attention_mask=[[1, 1, 1], [1, 1, wrong]])


@pytest.mark.parametrize(("types", "refused"), [(0, False), (1, True)])
def test_token_types_follow_the_size_of_their_embedding(
    tmp_path, one_layer_config, tokenizer, written, types, refused
):
    config = dataclasses.replace(one_layer_config, type_vocab_size=types)
    bert = bertjax.load_pretrained(written(tmp_path / "m", config, "encoder", tokenizer))
    ids, mask, own = bert.encode([("ab", "cd")])
    assert not own.any()
    expected = bert([("ab", "cd")])["last_hidden_state"]
    given = {"input_ids": ids, "attention_mask": mask}
    np.testing.assert_array_equal(bert(**given)["last_hidden_state"], expected)
    if refused:
        with pytest.raises(ValueError, match="type_vocab_size=1"):
            bert(**given, token_type_ids=np.ones_like(ids))
    else:
        found = bert(**given, token_type_ids=np.ones_like(ids))["last_hidden_state"]
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda b: b.embed(["a"], pooling="maxx"), "pooling='maxx' is not known. Did you mean 'm"),
        (lambda b: b.embed(["a"], pooling="mean+CLS"), "pooling='CLS' is not known.*Known: cls, m"),
        (lambda b: b.embed(["a"], pooling=""), "pooling='' is not known"),
        (lambda b: b.embed(["a"], pooling=1), "pooling=1 is not known"),
        (lambda b: b.embed(["a"], normalize="no"), "normalize='no': it must be true or false"),
        (lambda b: b.embed(["a"], layers=-1), "layers=-1: it must be"),
        (lambda b: b.embed(["a"], layers=(0.5,)), "layers=0.5: it must be an integer"),
        (lambda b: b.embed(["a"], batch_size=0), "batch_size=0: it must be at least 1"),
        (lambda b: b.embed(["a"], truncate_dim="8"), "truncate_dim='8': it must be an integer"),
        (lambda b: b.fill_mask("[MASK]", top_k="3"), "top_k='3': it must be an integer"),
        (lambda b: b.fill_mask("[MASK]", top_k=0), "top_k=0: it must be at least 1"),
        (lambda b: b.predict(["a"], max_length=0), "max_length=0, but"),
        (lambda b: b.predict(["a"], max_length="9"), "max_length='9': it must be an integer"),
        (lambda b: b.predict(["a"], doc_stride=0), "doc_stride=0: it must be at least 1"),
        (lambda b: b.predict(["a"], batch_size=-1), "batch_size=-1: it must be at least 1"),
    ],
)
def test_arguments_that_nobody_knows_are_refused(classifier, call, message):
    with pytest.raises(ValueError, match=message):
        call(classifier)


@pytest.mark.parametrize(
    ("argument", "value", "message"),
    [
        ("num_labels", 0, "num_labels=0: it must be at least 1"),
        ("num_labels", "3", "num_labels='3': it must be an integer"),
        ("vocab_size", -5, "vocab_size=-5: it must be at least 1"),
        ("dtype", "bfloat", "dtype='bfloat' is not known. Did you mean 'bfloat16'"),
        ("dtype", np.int32, "dtype='int32' is not known"),
        ("dtype", None, "dtype='None' is not known"),
    ],
)
def test_arguments_of_load_pretrained_are_checked(pretraining, argument, value, message):
    with pytest.raises(ValueError, match=message):
        bertjax.load_pretrained(pretraining, **{argument: value})


def test_inputs_of_other_types_are_refused_in_a_sentence(bert):
    for texts in (None, 3):
        with pytest.raises(ValueError, match=f"texts is {texts}: give a list of texts"):
            bert.embed(texts)
    for text in (None, 3, ["a [MASK]"]):
        with pytest.raises(ValueError, match="fill_mask takes one text at a time"):
            bert.fill_mask(text)
    with pytest.raises(ValueError, match=r"No \[MASK\] in 'aaa") as error:
        bert.fill_mask("a" * 1000)
    assert len(str(error.value)) < 250


def test_an_unknown_head_names_the_nearest(pretraining):
    with pytest.raises(ValueError, match="Did you mean 'question_answering'"):
        bertjax.load_pretrained(pretraining, head="question_answring")


def test_an_unknown_hub_name_without_network_is_explained(monkeypatch):
    # In this order: the module reads the variable when it is imported, and would keep the value.
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(FileNotFoundError, match="'nobody/nothing' is not a local directory"):
        bertjax.load_pretrained("nobody/nothing")


def unpadded(bert, ids, mask=None, types=None):
    """What the model computes for exactly these rows, in one piece."""
    program = compiled_program(bert.model, read_all, hidden_states=True, attentions=True)
    ids, types = (x.astype(np.int32) for x in (ids, np.zeros_like(ids) if types is None else types))
    mask = np.ones_like(ids) if mask is None else mask
    batch = {"input_ids": ids, "token_type_ids": types, "attention_mask": mask}
    return {k: np.asarray(v) for k, v in program(bert.params, batch).items()}


def random_calls(vocab_size, count, longest):
    rng = np.random.default_rng(3)
    for _ in range(count):
        yield rng.integers(5, vocab_size, (rng.integers(1, 25), rng.integers(1, longest + 1)))


@pytest.mark.slow
def test_a_hundred_calls_of_different_shapes_compile_a_dozen_programs(
    tmp_path, one_layer_config, tokenizer, written
):
    # No other test has this architecture, so the programs are those of these calls.
    config = dataclasses.replace(one_layer_config, intermediate_size=40)
    bert = bertjax.load_pretrained(written(tmp_path / "m", config, "encoder", tokenizer))
    shapes = set()
    for ids in random_calls(config.vocab_size, 110, config.max_length):
        outputs = bert(input_ids=ids)
        assert outputs["last_hidden_state"].shape == (*ids.shape, config.hidden_size)
        assert outputs["pooler_output"].shape == (len(ids), config.hidden_size)
        shapes.add(ids.shape)
    assert len(shapes) > 100
    model, wanted = for_inference(bert.model), {"hidden_states": False, "attentions": False}
    assert 0 < compiled_program(model, read_all, **wanted)._cache_size() <= 12


@pytest.mark.parametrize(
    "head", others_weekly(["pretraining", "question_answering"], slow=("question_answering",))
)
def test_padding_to_buckets_changes_no_output_and_no_shape(
    head, tmp_path, one_layer_config, tokenizer, written
):
    bert = bertjax.load_pretrained(written(tmp_path / "m", one_layer_config, head, tokenizer), head)
    rng = np.random.default_rng(4)
    for rows, length in ((1, 5), (3, 33), (11, 64)):
        ids = rng.integers(5, 120, (rows, length))
        outputs = bert(input_ids=ids, output_hidden_states=True, output_attentions=True)
        for name, expected in unpadded(bert, ids).items():
            assert outputs[name].shape == expected.shape, name
            scale = max(1.0, np.abs(expected).max())
            np.testing.assert_allclose(outputs[name] / scale, expected / scale, atol=3e-6)


def test_roberta_counts_positions_without_padding_in_front_in_buckets_too(
    tmp_path, tiny_family, tokenizer, written
):
    config = tiny_family("roberta")
    bert = bertjax.load_pretrained(written(tmp_path / "m", config, "encoder", tokenizer))
    ids = np.random.default_rng(5).integers(5, 120, (2, 21))
    ids[1, :6] = config.pad_token_id
    mask = (ids != config.pad_token_id).astype(np.int32)
    outputs = bert(input_ids=ids, attention_mask=mask)["last_hidden_state"]
    alone = bert(input_ids=ids[1:, 6:])["last_hidden_state"]
    np.testing.assert_allclose(outputs[1, 6:], alone[0], atol=1e-5)
    expected = unpadded(bert, ids, mask)["last_hidden_state"]
    # Sums of other lengths are rounded differently, on some processors by more than 1e-6.
    np.testing.assert_allclose(outputs[mask > 0], expected[mask > 0], atol=3e-6)


def test_choices_keep_their_shape_in_buckets(tmp_path, one_layer_config, tokenizer, written):
    folder = written(tmp_path / "m", one_layer_config, "multiple_choice", tokenizer)
    bert = bertjax.load_pretrained(folder, None)
    ids = np.random.default_rng(6).integers(5, 120, (3, 2, 37))
    logits = bert(input_ids=ids)["logits"]
    expected = unpadded(bert, ids.reshape(6, 37))["logits"].reshape(3, 2)
    np.testing.assert_allclose(logits, expected, atol=1e-6)


def test_large_batches_are_computed_in_pieces_of_a_bounded_number_of_tokens(bert, monkeypatch):
    ids = np.random.default_rng(7).integers(5, 120, (150, 30))
    whole = bert(input_ids=ids)
    sizes = []

    def watched(*args, **kwargs):
        program = compiled_program(*args, **kwargs)

        def call(params, batch):
            sizes.append(batch["input_ids"].size)
            return program(params, batch)

        return call

    monkeypatch.setattr("bertjax.inference.predictor.compiled_program", watched)
    monkeypatch.setattr("bertjax.inference.predictor.token_budget", lambda *_, **__: 256)
    pieces = bert(input_ids=ids)
    assert len(sizes) >= 150 * 30 / 256 and max(sizes) <= 256
    for name, values in whole.items():
        np.testing.assert_allclose(pieces[name], values, atol=1e-6)


def test_no_texts_give_no_rows(bert):
    assert bert([])["pooler_output"].shape == (0, 32)
    assert bert(input_ids=np.zeros((0, 7)))["last_hidden_state"].shape == (0, 7, 32)


def test_a_directory_without_a_tokenizer_takes_arrays_only(pretraining, tmp_path, sentences):
    with_tokenizer = bertjax.load_pretrained(pretraining, None)
    for name in ("vocab.txt", "tokenizer.json", "tokenizer_config.json"):
        (pretraining / name).unlink(missing_ok=True)
    bert = bertjax.load_pretrained(pretraining, None)
    assert bert.tokenizer is None
    ids, mask, types = with_tokenizer.encode(sentences[:3])
    outputs = bert(input_ids=ids, attention_mask=mask, token_type_ids=types)
    for name, values in with_tokenizer(sentences[:3]).items():
        np.testing.assert_array_equal(outputs[name], values)
    for use in (bert, bert.embed, bert.predict):
        with pytest.raises(ValueError, match="no tokenizer.*pass input_ids"):
            use(sentences[:3])
    bert.save(tmp_path / "again")
    names = {file.name for file in (tmp_path / "again").iterdir()}
    assert names == {"config.json", "model.safetensors", "README.md", "checksums.json"}
    bert.tokenizer = with_tokenizer.tokenizer
    np.testing.assert_array_equal(bert(sentences[:3])["pooler_output"], outputs["pooler_output"])
    with pytest.raises(FileNotFoundError, match="No tokenizer at"):
        load_model(pretraining)  # everybody else needs one


def test_half_a_tokenizer_is_an_error(pretraining):
    (pretraining / "vocab.txt").unlink()
    (pretraining / "tokenizer.json").write_text("{")
    with pytest.raises(ValueError, match="tokenizer.json"):
        bertjax.load_pretrained(pretraining)


def test_embed_and_fill_mask_of_a_model_are_those_of_the_commands(pretraining, sentences):
    bert = bertjax.load_pretrained(pretraining)  # without its masked LM head
    text = sentences[0] + " [MASK]"
    (expected,) = fill_mask(load_model(pretraining, "masked_lm"), text)
    (words,) = bert.fill_mask(text)
    assert [word for word, _ in words] == [word for word, _ in expected]
    np.testing.assert_allclose([p for _, p in words], [p for _, p in expected], atol=1e-6)
    outputs = bert(sentences[:4])["last_hidden_state"]
    np.testing.assert_allclose(bert.embed(sentences[:4], pooling="cls"), outputs[:, 0], atol=1e-5)
    bert.params = {**bert.params, "bert": jax.tree.map(np.zeros_like, bert.params["bert"])}
    assert not np.allclose(bert.embed(sentences[:4], pooling="cls"), outputs[:, 0])


def test_predictions_follow_the_head(tmp_path, one_layer_config, tokenizer, written, sentences):
    def predict(head, texts, **kwargs):
        shutil.rmtree(tmp_path / head, ignore_errors=True)
        folder = written(tmp_path / head, one_layer_config, head, tokenizer)
        return bertjax.load_pretrained(folder, None).predict(texts, **kwargs)

    texts = [*sentences[:20], (sentences[0], sentences[1])]
    predictions = predict("sequence_classification", texts)
    small = predict("sequence_classification", texts, batch_size=1)
    assert len(predictions) == len(texts) and predictions[0]["label"] in ("no", "maybe", "yes")
    for a, b in zip(predictions, small, strict=True):
        assert a["label"] == b["label"]
    (tags,) = predict("token_classification", ["abc de fg"])
    assert len(tags["labels"]) == 3
    (choice,) = predict("multiple_choice", [("abc", "de", "fg", "hi")])
    assert choice["label"] in range(3) and len(choice["probabilities"]) == 3
    (answer,) = predict("question_answering", [("abc de", sentences[0])])
    assert answer["answer"] in sentences[0]
    with pytest.raises(ValueError, match="no task uses"):
        predict("encoder", texts)
    with pytest.raises(ValueError, match=r"texts\[1\]"):
        predict("sequence_classification", ["a", ""])
    with pytest.raises(ValueError, match=r"texts\[0\] is .*give a text or a pair"):
        predict("sequence_classification", [("a", "b", "c")])


def test_a_fine_tuned_model_keeps_its_head_and_a_pretrained_one_is_an_encoder(
    written, tmp_path, one_layer_config, tokenizer, pretraining
):
    folder = written(tmp_path / "m", one_layer_config, "sequence_classification", tokenizer)
    bert = bertjax.load_pretrained(folder)
    assert bert.head == "sequence_classification" and "logits" in bert(["a text"])
    assert bertjax.load_pretrained(folder, "encoder").head == "encoder"
    assert bertjax.load_pretrained(pretraining).head == "encoder"
    assert repr(bert).startswith("<BertForSequenceClassification")
    assert f"from {folder}>" in repr(bert)


@pytest.mark.parametrize("text", [None, 3, (), ("a", "b", "c"), ("a", None)])
def test_what_is_no_text_is_named(bert, text):
    with pytest.raises(ValueError, match=r"texts\[1\] is .*give a text or a pair"):
        bert(["a", text])


def test_results_do_not_depend_on_the_batch_size(bert, sentences):
    texts = sentences[:20]
    np.testing.assert_allclose(
        bert(texts, batch_size=1)["pooler_output"], bert(texts)["pooler_output"], atol=1e-5
    )
    np.testing.assert_allclose(bert.embed(texts, batch_size=1), bert.embed(texts), atol=1e-5)


@pytest.mark.parametrize("path", [None, 3, [], "", b"x"])
def test_what_is_no_path_of_a_model_is_named(path):
    with pytest.raises(ValueError, match="give a directory, a checkpoint, or the name"):
        bertjax.load_pretrained(path)


MODULES = {
    "modules.json": [
        {"type": f"sentence_transformers.{kind}"} for kind in ("Transformer", "Pooling")
    ],
    "1_Pooling/config.json": {"pooling_mode_cls_token": True},
    "sentence_bert_config.json": {"max_seq_length": 4},
}
TAGGER = {"layers": [0, 1], "kind": "linear"}
USES = {
    "labels": ("sequence_classification", {"task.json": {"label_kind": "multi_label"}}),
    "temperature": (
        "sequence_classification",
        {"task.json": {"label_kind": "classes", "temperature": 9.0, "max_length": 5}},
    ),
    "threshold": (
        "question_answering",
        {"task.json": {"label_kind": "span", "with_impossible": True, "null_threshold": -99.0}},
    ),
    "tagger": ("encoder", {"task.json": {"label_kind": "tokens", "tagger": TAGGER}}),
    "pooling": ("encoder", MODULES),
}


@pytest.mark.parametrize(
    ("use", "replaced"),
    [
        *((use, use == "tagger") for use in USES),
        *(pytest.param(use, use != "tagger", marks=WEEKLY) for use in USES),
    ],
)
def test_a_loaded_model_does_not_read_its_directory_again(
    tmp_path, one_layer_config, tokenizer, written, sentences, use, replaced
):
    head, files = USES[use]
    folder = written(tmp_path / "lost" / "m", one_layer_config, head, tokenizer)
    if use == "tagger":
        tagger = TaggerConfig(**TAGGER | {"layers": (0, 1)})
        tagged = with_tagger(load_model(folder, head), tagger, 2, seed=0)
        flat = {key: x for key, x in tagged.params.items() if key != "bert"}
        write_safetensors(folder / hf.TAGGER, flatten_dict(flat, sep="/"), one_layer_config)
    for name, content in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(json.dumps(content))

    def results(bert):
        texts = [(sentences[0], sentences[1])] if use == "threshold" else sentences[:3]
        predicted = None if use == "pooling" else bert.predict(texts)
        return predicted, bert.embed(sentences[:3]).tolist()

    expected = results(bertjax.load_pretrained(folder))
    bert = bertjax.load_pretrained(folder)
    for name in (hf.TAGGER, *files):
        if (folder / name).is_file():  # even a file that is overwritten in place is not read again
            (folder / name).write_bytes(bytes((folder / name).stat().st_size))
    shutil.rmtree(folder.parent)
    if replaced:  # by a model without these files
        written(folder, one_layer_config, "sequence_classification", tokenizer, seed=1)
    assert results(bert) == expected
    bert.save(tmp_path / "saved")
    assert results(bertjax.load_pretrained(tmp_path / "saved")) == expected
    saved = {name: json.loads((tmp_path / "saved" / name).read_text()) for name in files}
    assert saved == files


@pytest.mark.parametrize("kind", others_weekly(["safetensors", "bin"], "safetensors"))
def test_masks_are_filled_with_the_head_of_a_directory_that_is_gone(pretraining, sentences, kind):
    if kind == "bin":
        torch = pytest.importorskip("torch")
        tensors = dict(hf.open_hf(pretraining))
        (pretraining / "model.safetensors").unlink()
        (pretraining / CHECKSUMS).unlink(missing_ok=True)
        named = {name: torch.tensor(tensor) for name, tensor in tensors.items()}
        torch.save(named, pretraining / "pytorch_model.bin")
    text = f"{sentences[0]} [MASK]"
    expected = bertjax.load_pretrained(pretraining).fill_mask(text)
    bert = bertjax.load_pretrained(pretraining)
    for file in pretraining.iterdir():  # a file that is mapped into memory would be seen to change
        file.write_bytes(bytes(file.stat().st_size))
    shutil.rmtree(pretraining)
    assert bert.fill_mask(text) == expected
    assert attention_data(bert, sentences[0])["words"]


def test_evaluation_and_command_need_the_directory_only_to_load(
    tmp_path, one_layer_config, tokenizer, written, sentences, monkeypatch
):
    def write(name):
        return written(tmp_path / name, one_layer_config, "sequence_classification", tokenizer)

    rows = [{"text": x, "label": ("no", "yes")[i % 2]} for i, x in enumerate(sentences[:9])]
    data = tmp_path / "rows.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    bert = bertjax.load_pretrained(write("a"))
    expected = bertjax.evaluate(bert, data=data)
    predictions = bert.predict([row["text"] for row in rows])
    shutil.rmtree(tmp_path / "a")
    assert bertjax.evaluate(bert, data=data) == expected

    def loaded_and_lost(path, *args, **kwargs):
        loaded = load_model(path, *args, **kwargs)
        shutil.rmtree(path)
        return loaded

    monkeypatch.setattr("bertjax.weights.load_model", loaded_and_lost)
    output = str(tmp_path / "out.jsonl")
    assert predict.main(["--model", str(write("b")), "--input", str(data), "--output", output]) == 0
    lines = json_lines(tmp_path / "out.jsonl")
    assert [line["label"] for line in lines] == [x["label"] for x in predictions]
    output = str(tmp_path / "out.npy")
    assert embed.main(["--model", str(write("c")), "--input", str(data), "--output", output]) == 0
    np.testing.assert_allclose(np.load(output), bert.embed([x["text"] for x in rows]), atol=1e-5)


@pytest.mark.parametrize("name", ["task.json", "modules.json", "tagger.safetensors"])
def test_a_damaged_file_beside_the_weights_matters_only_if_it_is_used(
    tmp_path, one_layer_config, tokenizer, written, name
):
    folder = written(tmp_path / "m", one_layer_config, "sequence_classification", tokenizer)
    (folder / name).write_text("{")
    bert = bertjax.load_pretrained(folder)
    assert bert(["ab"])["logits"].shape == (1, 3)
    assert bert.embed(["ab"], pooling="mean").shape == (1, 32)
    with pytest.raises(ValueError, match=name.partition(".")[0]):
        bert.embed(["ab"]) if name == "modules.json" else bert.predict(["ab"])


@pytest.mark.real
def test_a_model_of_several_labels_keeps_its_task_without_its_directory(shared, tmp_path):
    folder = shutil.copytree(shared / "strangers" / "sb_task_json", tmp_path / "m")
    folder.chmod(0o755)  # the original may be read-only
    bert = bertjax.load_pretrained(folder)
    shutil.rmtree(folder)
    (found,) = bert.predict(["one text here"])
    expected = json.loads((shared / "strangers" / "expected.json").read_text())
    expected = expected["sb_task_json"]["right"]
    assert found["labels"] == expected["labels"]
    assert found["probabilities"] == pytest.approx(expected["probabilities"], abs=1e-5)


def test_a_model_with_two_classes_of_one_name_computes_logits_but_no_predictions(
    tmp_path, one_layer_config, tokenizer, written
):
    folder = written(tmp_path / "m", one_layer_config, "sequence_classification", tokenizer)
    expected = bertjax.load_pretrained(folder)(["ab"])["logits"]
    config = json.loads((folder / "config.json").read_text())
    config["id2label"] = {"0": "no", "1": "no", "2": "yes"}
    (folder / "config.json").write_text(json.dumps(config))
    bert = bertjax.load_pretrained(folder)
    np.testing.assert_array_equal(bert(["ab"])["logits"], expected)
    with pytest.raises(ValueError, match=f"{folder}: id2label in config.json has no more than"):
        bert.predict(["ab"])
    convert.main([str(folder), str(tmp_path / "converted")])
    again = bertjax.load_pretrained(tmp_path / "converted")
    np.testing.assert_array_equal(again(["ab"])["logits"], expected)
    assert again.labels == ["no", "no", "yes"]


@pytest.mark.real
def test_probabilities_of_classes_of_one_name_are_not_lost_in_silence(shared):
    folder = shared / "strangers" / "19_duplicate_labels"
    expected = json.loads((folder.parent / "expected.json").read_text())[folder.name]
    bert = bertjax.load_pretrained(folder)
    logits = bert([expected["text"]])["logits"]
    np.testing.assert_allclose(jax.nn.softmax(logits), expected["softmax"], atol=1e-5)
    with pytest.raises(ValueError, match="has neg more than once"):
        bert.predict([expected["text"]])


def with_config(folder, **changes):
    (folder / CHECKSUMS).unlink(missing_ok=True)
    config = json.loads((folder / "config.json").read_text())
    config |= changes
    config = {name: value for name, value in config.items() if value is not None}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize(
    "names",
    [
        {"0": "no", "1": "maybe", "2": "yes"},
        {"2": "yes", "0": "no", "1": "maybe"},
        {"00": "no", "1": "maybe", " 2": "yes"},
        {"0": 0, "1": 1, "2": 2},
        {"0": "", "1": "maybe", "2": "yes"},
        {"0": "a", "1": "b"},  # with num_labels=3
        {"0": "a", "1": "b", "2": "c", "3": "d"},  # with num_labels=3
    ],
)
def test_names_of_classes_are_those_of_transformers(
    tmp_path, one_layer_config, tokenizer, written, names
):
    transformers = pytest.importorskip("transformers", reason="the extra `parity` is not installed")
    folder = written(tmp_path / "m", one_layer_config, "sequence_classification", tokenizer)
    with_config(folder, id2label=names, label2id=None, num_labels=None if len(names) == 3 else 3)
    theirs = transformers.AutoModelForSequenceClassification.from_pretrained(folder)
    expected = {str(theirs.config.id2label[i]) for i in range(theirs.config.num_labels)}
    bert = bertjax.load_pretrained(folder)
    (found,) = bert.predict(["ab"])
    assert set(found["probabilities"]) == expected
    bert.save(tmp_path / "saved")
    assert bertjax.load_pretrained(tmp_path / "saved").predict(["ab"]) == [found]
    again = transformers.AutoConfig.from_pretrained(tmp_path / "saved")
    assert again.id2label == theirs.config.id2label


@pytest.mark.parametrize(
    ("head", "names", "message"),
    [
        ("sequence", {"0": "no", "1": "maybe", "3": "yes"}, "has the ids 0, 1, 3, but.*are 0 to 2"),
        ("sequence", {"1": "no", "2": "maybe", "3": "yes"}, "has the ids 1, 2, 3, but"),
        ("sequence", {"-1": "no", "0": "maybe", "1": "yes"}, "has the ids -1, 0, 1, but"),
        ("sequence", {"0": "no", "1_0": "maybe", "2": "yes"}, "has the ids 0, 2, 10, but"),
        ("token", {"0": "no", "1": "maybe", "3": "yes"}, "has the ids 0, 1, 3, but.*are 0 to 2"),
    ],
)
def test_classes_with_other_ids_than_the_outputs_have_logits_but_no_predictions(
    tmp_path, one_layer_config, tokenizer, written, head, names, message
):
    folder = written(tmp_path / "m", one_layer_config, f"{head}_classification", tokenizer)
    expected = bertjax.load_pretrained(folder)(["ab"])["logits"]
    with_config(folder, id2label=names, label2id=None)
    bert = bertjax.load_pretrained(folder)
    np.testing.assert_array_equal(bert(["ab"])["logits"], expected)
    with pytest.raises(ValueError, match=f"{folder}: id2label in config.json {message}"):
        bert.predict(["ab"])
    bert.save(tmp_path / "saved")
    assert json.loads((tmp_path / "saved" / "config.json").read_text())["id2label"] == names


@pytest.mark.parametrize(
    "names", [["no", "maybe", "yes"], "no", {"a": "no"}, {"0.0": "no"}, {"": "no"}, 3]
)
def test_names_of_classes_that_transformers_refuses_are_refused(
    tmp_path, one_layer_config, tokenizer, written, names
):
    folder = written(tmp_path / "m", one_layer_config, "sequence_classification", tokenizer)
    with_config(folder, id2label=names)
    with pytest.raises(ValueError, match="id2label=.*is not a mapping of ids to labels"):
        bertjax.load_pretrained(folder)


def test_two_ids_that_are_one_number_do_not_fit_the_classifier(
    tmp_path, one_layer_config, tokenizer, written
):
    folder = written(tmp_path / "m", one_layer_config, "sequence_classification", tokenizer)
    with_config(folder, id2label={"0": "no", "00": "maybe", "1": "yes"})
    with pytest.raises(ValueError, match="classifier.weight has shape"):
        bertjax.load_pretrained(folder)


@pytest.mark.parametrize(
    ("outputs", "problem", "message"),
    [
        (1, "single_label_classification", "problem_type='single_label_classification', but.* 1 "),
        (3, "regression", None),
        (1, "regression", None),
        (1, "multi_label_classification", None),
        (1, None, None),
        (3, "multi_label_classification", None),
    ],
)
def test_a_problem_type_that_contradicts_the_number_of_outputs_is_refused(
    tmp_path, classifier_of, outputs, problem, message
):
    folder = classifier_of(outputs, tmp_path)
    with_config(folder, problem_type=problem)
    bert = bertjax.load_pretrained(folder)
    logits = bert(["ab"])["logits"][0]
    if message:
        with pytest.raises(ValueError, match=message):
            bert.predict(["ab"])
        return
    (found,) = bert.predict(["ab"])
    values = 1 / (1 + np.exp(-logits))
    if problem is None:  # as CrossEncoder
        assert found["score"] == pytest.approx(values[0], abs=1e-6)
    elif problem == "multi_label_classification":
        assert [*found["probabilities"].values()] == pytest.approx(values, abs=1e-6)
    elif outputs > 1:
        assert [*found["scores"].values()] == pytest.approx(logits, abs=1e-6)
    else:
        assert found["score"] == pytest.approx(logits[0], abs=1e-6)


@pytest.mark.parametrize(
    ("outputs", "path", "place"),
    [
        (1, "torch.nn.modules.activation.Sigmoid", "sentence_transformers"),
        (1, "torch.nn.modules.linear.Identity", "sentence_transformers"),
        (1, "torch.nn.modules.activation.Sigmoid", "sbert_ce_default_activation_function"),
        (1, "torch.nn.modules.activation.Sigmoid", "config_sentence_transformers.json"),
        (3, "torch.nn.modules.linear.Identity", "sentence_transformers"),
        (1, "torch.nn.modules.activation.Tanh", "sentence_transformers"),
        (1, "torch.nn.modules.activation.ELU", "sentence_transformers"),
        (1, "my_library.Sigmoid", "sentence_transformers"),
        (3, "torch.nn.modules.activation.Sigmoid", "sentence_transformers"),
    ],
)
def test_a_saved_activation_is_applied_or_refused_by_name(
    tmp_path, classifier_of, outputs, path, place
):
    folder = classifier_of(outputs, tmp_path)
    if place == "config_sentence_transformers.json":
        settings = {"model_type": "CrossEncoder", "activation_fn": path}
        (folder / place).write_text(json.dumps(settings))
        (folder / "modules.json").write_text(json.dumps(MODULES["modules.json"][:1]))
        with_config(folder)
    else:
        with_config(folder, **{place: path if "sbert" in place else {"activation_fn": path}})
    bert = bertjax.load_pretrained(folder)
    name = path.rpartition(".")[2]
    if name == "ELU" or "torch" not in path or (outputs, name) == (3, "Sigmoid"):
        with pytest.raises(ValueError, match=f"the activation .*{name} to the outputs"):
            bert.predict(["ab"])
        return
    (found,) = bert.predict([("ab", "cd")])
    bert.save(tmp_path / "saved")
    assert bertjax.load_pretrained(tmp_path / "saved").predict([("ab", "cd")]) == [found]
    if outputs == 1:
        library = pytest.importorskip("sentence_transformers")
        if place == "config_sentence_transformers.json":
            (folder / "modules.json").unlink()  # which it writes with other modules
        for place in (folder, tmp_path / "saved"):
            (place / "modules.json").unlink(missing_ok=True)
            model = library.CrossEncoder(str(place), device="cpu")
            assert found["score"] == pytest.approx(model.predict([("ab", "cd")])[0], abs=1e-5)


@pytest.mark.parametrize(
    "head", others_weekly(["masked_lm", "pretraining", "next_sentence"], "masked_lm")
)
def test_a_head_of_pretraining_is_named_and_saved(
    tmp_path, one_layer_config, tokenizer, written, head, capsys
):
    folder = written(tmp_path / "m", one_layer_config, head, tokenizer)
    expected = bertjax.load_pretrained(folder, head)(["ab cd"])
    bert = bertjax.load_pretrained(folder)
    said = capsys.readouterr().out
    assert f"{folder} is loaded without its head {head}" in said and f'head="{head}"' in said
    assert bert.head == "encoder"
    shutil.rmtree(folder)
    bert.save(tmp_path / "saved")
    again = bertjax.load_pretrained(tmp_path / "saved", head)
    assert again.absent == []
    for name, values in again(["ab cd"]).items():
        np.testing.assert_array_equal(values, expected[name])
    transformers = pytest.importorskip("transformers", reason="the extra `parity` is not installed")
    _, info = getattr(transformers, architecture(one_layer_config, head)).from_pretrained(
        tmp_path / "saved", output_loading_info=True
    )
    assert not any(info.values()), info


@pytest.mark.slow
@pytest.mark.parametrize("size", others_weekly((150, 110), 110))
def test_a_left_out_head_follows_a_resized_vocabulary(
    tmp_path, one_layer_config, tokenizer, written, size
):
    folder = written(tmp_path / "m", one_layer_config, "masked_lm", tokenizer)
    expected = bertjax.load_pretrained(folder, "masked_lm", vocab_size=size)(["ab cd"])["logits"]
    bert = bertjax.load_pretrained(folder, vocab_size=size)
    bert.params["bert"]["embeddings"]["layer_norm"]["bias"] += 0  # the encoder is that of `params`
    bert.save(tmp_path / "saved")
    found = bertjax.load_pretrained(tmp_path / "saved", "masked_lm")(["ab cd"])["logits"]
    least = min(size, one_layer_config.vocab_size)
    np.testing.assert_array_equal(found[..., :least], expected[..., :least])
    assert found.shape == expected.shape and len(bert.fill_mask("[MASK]", 2)[0]) == 2


def test_a_head_that_the_caller_chose_is_saved_alone(
    tmp_path, one_layer_config, tokenizer, written, capsys
):
    folder = written(tmp_path / "m", one_layer_config, "masked_lm", tokenizer)
    for head in ("encoder", "sequence_classification"):
        bert = bertjax.load_pretrained(folder, head)
        assert "without its head" not in capsys.readouterr().out
        bert.save(tmp_path / head)
        assert not any("predictions" in name for name in hf.open_hf(tmp_path / head))


@pytest.mark.parametrize("length", [1, 2, 4])
def test_a_maximum_length_that_has_no_room_for_a_pair_is_named(
    tmp_path, one_layer_config, tokenizer, written, length
):
    folder = written(tmp_path / "m", one_layer_config, "sequence_classification", tokenizer)
    (folder / CHECKSUMS).unlink(missing_ok=True)
    config = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps(config | {"model_max_length": length}))
    with pytest.raises(ValueError, match=rf"max_length={length} \(of task.json, or model_max_len"):
        bertjax.load_pretrained(folder).predict(["ab"])


def test_a_model_that_is_pickled_predicts_the_same(classifier, sentences):
    texts = sentences[:3]
    before = classifier.predict(texts)  # puts arrays on the device
    copy = pickle.loads(pickle.dumps(classifier))
    assert copy.predict(texts) == before == classifier.predict(texts)
    assert copy.labels == classifier.labels and copy.where == classifier.where
    vectors = copy.embed(texts)
    np.testing.assert_array_equal(vectors, classifier.embed(texts))


def test_a_model_whose_other_files_are_damaged_is_pickled_with_the_error(
    tmp_path, one_layer_config, tokenizer, written
):
    written(tmp_path / "m", one_layer_config, "sequence_classification", tokenizer)
    (tmp_path / "m" / "task.json").write_text("{")
    copy = pickle.loads(pickle.dumps(bertjax.load_pretrained(tmp_path / "m")))
    with pytest.raises(ValueError, match="task.json"):
        copy.predict(["a"])


@pytest.mark.parametrize("use", ["predict", "embed", "__call__"])
def test_a_forked_child_is_refused_and_spawn_is_named(use, bert, classifier, monkeypatch):
    model = classifier if use == "predict" else bert
    monkeypatch.setattr("os.getpid", lambda: 1)
    with pytest.raises(RuntimeError, match="forked .*get_context.'spawn'"):
        getattr(model, use)(["a"])


CHILD = """
import multiprocessing, sys
import bertjax

def child(model, queue):
    try:
        queue.put(model.predict(["a"]))
    except RuntimeError as error:
        queue.put(str(error))

if __name__ == "__main__":
    model = bertjax.load_pretrained(sys.argv[1])
    expected = model.predict(["a"])
    for kind in ("fork", "spawn"):
        context = multiprocessing.get_context(kind)
        queue = context.Queue()
        process = context.Process(target=child, args=(model, queue))
        process.start()
        print(kind, queue.get(timeout=100) == expected)
        process.join()
"""


@pytest.mark.slow
def test_spawned_processes_predict_and_forked_ones_end(
    tmp_path, one_layer_config, tokenizer, written
):
    written(tmp_path / "m", one_layer_config, "sequence_classification", tokenizer)
    (tmp_path / "child.py").write_text(CHILD)
    paths = os.pathsep.join([os.getcwd(), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, tmp_path / "child.py", tmp_path / "m"],
        capture_output=True,
        text=True,
        timeout=300,
        env=os.environ | {"PYTHONPATH": paths},
    )
    assert done.stdout.splitlines() == ["fork False", "spawn True"], done.stderr
