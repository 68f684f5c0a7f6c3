"""Adapters of PEFT: merged with their base models as PEFT does, or refused by name."""

import functools
import importlib.util
import json
import shutil

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import bertjax
from bertjax.weights import load_model
from bertjax.weights.adapters import read_settings
from tests.cases import WEEKLY, others_weekly
from tests.weights.test_load import config_of

torch, transformers = (
    pytest.importorskip(x, reason="the extra `parity` is not installed")
    for x in ("torch", "transformers")
)
# Tests import it, and not each process that collects them: that takes seconds.
pytestmark = [
    pytest.mark.parity,
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.skipif(importlib.util.find_spec("peft") is None, reason="peft is not installed"),
]

IDS = np.array([[5, 6, 7, 8, 9, 10, 11, 12]])
CLASSES = {"SEQ_CLS": "SequenceClassification", "TOKEN_CLS": "TokenClassification"}
CLASSES |= {"QUESTION_ANS": "QuestionAnswering"}
VALUE = {"r": 4, "lora_alpha": 16, "target_modules": ["query", "value"]}


@pytest.fixture
def base(tmp_path):
    """A function (family, class of transformers) -> the directory of a base model."""

    def save(family="bert", kind="ForPreTraining", **fields):
        from bertjax.weights.families import FAMILIES, config_to_hf

        cls = getattr(transformers, FAMILIES[family].class_name + kind)
        values = {k: v for k, v in config_to_hf(config_of(family)).items() if v is not None}
        torch.manual_seed(0)
        model = noisy(cls(cls.config_class(**values | fields)))
        model.save_pretrained(tmp_path / "base")
        return tmp_path / "base"

    return save


def noisy(model):
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    return model.eval()


def adapted(base, folder, settings, kind=None, safe=True, **fields):
    """Writes an adapter of PEFT to `folder`; returns the outputs of PEFT."""
    import peft

    kind = kind or CLASSES.get(settings.get("task_type"), "")
    cls = getattr(transformers, f"AutoModel{kind and 'For'}{kind}")
    torch.manual_seed(1)
    model = peft.get_peft_model(cls.from_pretrained(base, **fields), peft.LoraConfig(**settings))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.requires_grad or "bias" in name and settings.get("bias") == "all":
                parameter += 0.3 * torch.randn_like(parameter)
    model.save_pretrained(folder, safe_serialization=safe)
    again = peft.PeftModel.from_pretrained(cls.from_pretrained(base, **fields), folder).eval()
    with torch.no_grad():
        return [np.asarray(x) for x in again(input_ids=torch.tensor(IDS)).values()]


@functools.partial(jax.jit, static_argnums=0)
def applied(model, params, ids):
    return model.apply({"params": params}, ids)


def ours(folder, head):
    loaded = load_model(folder, head, tokenizer_required=False)
    outputs = applied(loaded.model, loaded.params, IDS)
    names = ("logits", "start_logits", "last_hidden_state")
    return np.asarray(next(outputs[name] for name in names if name in outputs)), loaded


def equal(folder, expected, head=None):
    found, loaded = ours(folder, head)
    np.testing.assert_allclose(found, expected[0], rtol=1e-5, atol=1e-5)
    return loaded


# Settings of PEFT, each of which changes the outputs, or the names of the tensors.
SETTINGS = {
    "query and value": VALUE,
    "rank-stabilised": VALUE | {"use_rslora": True},
    "ranks and alphas of layers": {
        **{"r": 4, "lora_alpha": 16, "target_modules": ["query", "value", "dense"]},
        "rank_pattern": {"query": 2, r"layer\.1\.output\.dense": 3},
        "alpha_pattern": {"attention.self.value": 5, "^bert.encoder.layer.0.output.dense": 1},
    },
    "all biases": VALUE | {"bias": "all"},
    "biases of adapted layers": VALUE | {"bias": "lora_only"},
    "a pooler and a LayerNorm as wholes": VALUE | {"modules_to_save": ["pooler", "LayerNorm"]},
    "all linear layers": {"target_modules": "all-linear", "r": 2, "lora_alpha": 3},
    "one layer": VALUE | {"layers_to_transform": [1]},
    "a pattern of names": {"target_modules": r".*layer\.0.*query", "r": 3},
    "a setting for other layers": VALUE | {"fan_in_fan_out": True},
    "embeddings": {
        "target_modules": ["word_embeddings", "position_embeddings", "key"],
        **{"r": 3, "lora_alpha": 7},
    },
    "other initial values": VALUE | {"init_lora_weights": "gaussian", "lora_dropout": 0.1},
}


@pytest.mark.parametrize(
    "name",
    others_weekly(
        SETTINGS,
        "ranks and alphas of layers",
        "all biases",
        "a pooler and a LayerNorm as wholes",
        "embeddings",
    ),
)
def test_logits_are_those_of_peft(base, tmp_path, name, capsys):
    folder = base()
    settings = SETTINGS[name] | {"task_type": "SEQ_CLS"}
    expected = adapted(folder, tmp_path / "own", settings, num_labels=3)
    loaded = equal(tmp_path / "own", expected)
    assert loaded.head == "sequence_classification" and loaded.labels is None
    assert f"the adapter in {tmp_path / 'own'} is merged with" in capsys.readouterr().out
    plain, _ = ours(folder, "encoder")
    assert np.abs(ours(tmp_path / "own", "encoder")[0] - plain).max() > 0.05


@pytest.mark.parametrize(
    "task", others_weekly((*CLASSES, "FEATURE_EXTRACTION"), "SEQ_CLS", "FEATURE_EXTRACTION")
)
def test_each_task_has_its_head(base, tmp_path, task):
    settings = VALUE | {"task_type": task}
    expected = adapted(base(), tmp_path / "own", settings)
    equal(tmp_path / "own", expected, "encoder" if task == "FEATURE_EXTRACTION" else None)


@pytest.mark.parametrize("target", ["value", "word_embeddings"])
def test_an_adapted_masked_lm_without_a_task_keeps_its_output_matrix(base, tmp_path, target):
    settings = VALUE | {"target_modules": [target]}
    expected = adapted(base(kind="ForMaskedLM"), tmp_path / "own", settings, "MaskedLM")
    equal(tmp_path / "own", expected, "masked_lm")


OTHERS = {
    "roberta": ["query", "value"],
    "albert": ["query", "ffn", "ffn_output"],
    "distilbert": ["q_lin", "lin2"],
    "electra": ["query", "dense"],
    "deberta-v2": ["query_proj", "output.dense"],
    "modernbert": ["Wqkv", "Wi", "mlp.Wo"],
    "mpnet": ["q", "o"],
    "xlm-roberta": ["key"],
    "camembert": ["value"],
    "data2vec-text": ["query"],
    "ernie": ["query"],
    "esmc": ["k_proj", "gate_proj", "down_proj"],
    "ultrabert": ["q_proj", "up_proj", "down_proj"],
}


@pytest.mark.parametrize(
    ("family", "task"),
    [
        ("modernbert", "SEQ_CLS"),
        pytest.param("modernbert", "TOKEN_CLS", marks=WEEKLY),
        *(pytest.param(x, "SEQ_CLS", marks=pytest.mark.slow) for x in OTHERS if x != "modernbert"),
        *(pytest.param(x, "TOKEN_CLS", marks=WEEKLY) for x in OTHERS if x != "modernbert"),
    ],
)
def test_adapters_of_all_families_are_merged(base, tmp_path, family, task):
    # DistilBERT's classifier has a layer that PEFT does not save by itself.
    whole = {"modules_to_save": ["pre_classifier", "classifier", "pooler", "head"]}
    settings = {"r": 3, "target_modules": OTHERS[family], "task_type": task}
    expected = adapted(base(family, "ForMaskedLM"), tmp_path / "own", settings | whole)
    equal(tmp_path / "own", expected)


@pytest.mark.parametrize("place", ["beside", "relative", "file", "bin", "renamed", "half"])
def test_base_and_adapter_are_found(base, tmp_path, place, monkeypatch):
    folder, own = base(), tmp_path / "own"
    settings = VALUE | {"task_type": "SEQ_CLS"}
    expected = adapted(folder, own, settings, safe=place != "bin", num_labels=3)
    if place == "beside":
        shutil.copytree(own, folder, dirs_exist_ok=True)
        own = folder
        named(own, base_model_name_or_path="elsewhere/model")
    if place == "relative":
        named(own, base_model_name_or_path="../base")
        monkeypatch.chdir("/")
    if place == "renamed":
        folder = folder.rename(tmp_path / "renamed")
        named(own, base_model_name_or_path="../base")
        with pytest.raises(FileNotFoundError, match="base_model_name_or_path") as error:
            ours(own, None)
        assert "../base" in str(error.value) and "adapter" in str(error.value)
        named(own, base_model_name_or_path=str(folder))
    if place == "half":
        file = own / "adapter_model.safetensors"
        save_file({name: x.astype(np.float16) for name, x in load_file(file).items()}, file)
    atol = 1e-2 if place == "half" else 1e-5
    found, _ = ours(own / "adapter_model.safetensors" if place == "file" else own, None)
    np.testing.assert_allclose(found, expected[0], rtol=1e-5, atol=atol)


def test_a_file_of_weights_beside_an_adapter_is_read_alone_with_a_warning(base, tmp_path, capsys):
    folder = base("bert", "Model")
    plain, _ = ours(folder, "encoder")
    adapted(folder, folder, VALUE)
    found, _ = ours(folder / "model.safetensors", "encoder")
    np.testing.assert_array_equal(found, plain)
    assert f"warning: the adapter beside {folder}" in capsys.readouterr().out


def named(folder, **fields):
    file = folder / "adapter_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | fields))


def test_a_model_that_transformers_loads_with_its_adapter_is_loaded_with_it(base, tmp_path):
    folder = base("bert", "Model")
    adapted(folder, folder, VALUE)
    theirs = transformers.AutoModel.from_pretrained(folder).eval()
    with torch.no_grad():
        expected = np.asarray(theirs(input_ids=torch.tensor(IDS))[0])
    equal(folder, [expected], "encoder")


@pytest.mark.parametrize("labels", [2, 3])
def test_names_of_classes_stay_with_their_number(base, tmp_path, labels):
    names = {0: "no", 1: "yes"}
    folder = base("bert", "ForSequenceClassification", id2label=names, label2id={})
    settings = VALUE | {"task_type": "SEQ_CLS"}
    other = {"num_labels": labels} if labels == 3 else {}
    ignored = {"ignore_mismatched_sizes": True}
    expected = adapted(folder, tmp_path / "own", settings, **other, **ignored)
    loaded = equal(tmp_path / "own", expected)
    assert loaded.labels == (["no", "yes"] if labels == 2 else None)


def test_a_copy_is_the_merged_model(base, tmp_path, capsys):
    expected = adapted(base(), tmp_path / "own", VALUE | {"task_type": "SEQ_CLS"}, num_labels=3)
    bertjax.load_pretrained(tmp_path / "own").save(tmp_path / "copy")
    equal(tmp_path / "copy", expected)
    cls = transformers.AutoModelForSequenceClassification
    with torch.no_grad():
        logits = cls.from_pretrained(tmp_path / "copy").eval()(input_ids=torch.tensor(IDS)).logits
    np.testing.assert_allclose(logits, expected[0], rtol=1e-5, atol=1e-5)


# Adapters of PEFT that are no plain LoRA: the class of their settings, what it gets, and the words
# of the refusal.
QUERY = {"target_modules": ["query"]}
OTHER_KINDS = {
    "DoRA": ("LoraConfig", QUERY | {"use_dora": True}, "use_dora=True"),
    "biases of B": ("LoraConfig", QUERY | {"lora_bias": True}, "lora_bias=True"),
    "PiSSA": ("LoraConfig", QUERY | {"init_lora_weights": "pissa"}, "init_lora_weights=pissa"),
    "tokens": ("LoraConfig", QUERY | {"trainable_token_indices": [1]}, "trainable_token_ind"),
    "repeated layers": ("LoraConfig", QUERY | {"layer_replication": [(0, 1)]}, "layer_replication"),
    "IA3": ("IA3Config", QUERY | {"feedforward_modules": []}, "peft_type=IA3"),
    "LoHa": ("LoHaConfig", QUERY, "peft_type=LOHA"),
    "LoKr": ("LoKrConfig", QUERY, "peft_type=LOKR"),
    "AdaLoRA": ("AdaLoraConfig", QUERY | {"total_step": 10}, "peft_type=ADALORA"),
    "prompts": (
        "PromptTuningConfig",
        {"task_type": "SEQ_CLS", "num_virtual_tokens": 2},
        "peft_type=PROMPT_TUNING",
    ),
}


@pytest.mark.parametrize(("kind", "options", "words"), OTHER_KINDS.values(), ids=OTHER_KINDS)
def test_other_adapters_are_refused_by_name(tmp_path, kind, options, words):
    import peft

    getattr(peft, kind)(**options).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="merge_and_unload") as error:
        load_model(tmp_path, None, tokenizer_required=False)
    assert words in str(error.value) and str(tmp_path) in str(error.value)


def test_every_default_of_peft_is_known(tmp_path):
    import peft

    peft.LoraConfig(target_modules=["query"]).save_pretrained(tmp_path)
    assert read_settings(tmp_path)["r"] == 8
    named(tmp_path, use_of_tomorrow=True)
    with pytest.raises(ValueError, match="use_of_tomorrow=True"):
        read_settings(tmp_path)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"r": 8}, "r=8 and lora_alpha=16 for bert.encoder.layer.0.attention.self.query"),
        ({"lora_alpha": "much"}, "lora_alpha=much"),
        ({"base_model_name_or_path": "../own"}, "it is an adapter itself"),
        ({"base_model_name_or_path": None}, "needs its base model, None"),
    ],
)
def test_settings_that_do_not_fit_are_refused(base, tmp_path, change, words):
    adapted(base(), tmp_path / "own", VALUE | {"task_type": "SEQ_CLS"})
    named(tmp_path / "own", **change)
    with pytest.raises((ValueError, FileNotFoundError)) as error:
        ours(tmp_path / "own", None)
    assert words in str(error.value)


def test_tensors_of_another_model_are_refused(base, tmp_path):
    adapted(base(), tmp_path / "own", VALUE)
    file = tmp_path / "own" / "adapter_model.safetensors"
    whole = load_file(file)
    name = "base_model.model.encoder.layer.0.attention.self.query.lora_A.weight"
    for changed, words in (
        ({name.replace("layer.0", "layer.7"): whole[name]}, "layer.7"),
        ({name.replace("query", "queries"): whole[name]}, "queries"),
        ({name: whole[name][:, :3]}, r"shapes \(16, 4\) and \(4, 3\) for a layer of shape"),
        ({name.replace("lora_A.weight", "lora_magnitude_vector"): whole[name]}, "magnitude"),
    ):
        save_file(whole | changed, file)
        with pytest.raises(ValueError, match=words):
            ours(tmp_path / "own", "encoder")
    file.unlink()
    with pytest.raises(FileNotFoundError, match="has no adapter_model.safetensors"):
        ours(tmp_path / "own", "encoder")


def test_modules_of_sentence_transformers_beside_an_adapter_are_followed(base, tmp_path):
    own = tmp_path / "own"
    hidden = adapted(base("bert", "Model"), own, VALUE | {"task_type": "FEATURE_EXTRACTION"})[0]
    kinds = {"": "Transformer", "1_Pooling": "Pooling", "2_Normalize": "Normalize"}
    modules = [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for i, (path, kind) in enumerate(kinds.items())
    ]
    (own / "modules.json").write_text(json.dumps(modules))
    (own / "1_Pooling").mkdir()
    (own / "1_Pooling/config.json").write_text(json.dumps({"pooling_mode_mean_tokens": True}))
    loaded = load_model(own, None, tokenizer_required=False)
    assert loaded.head == "sentence_embedding"
    found = applied(loaded.model, loaded.params, IDS)["sentence_embedding"]
    mean = hidden[0].mean(axis=0)
    np.testing.assert_allclose(found[0], mean / np.linalg.norm(mean), rtol=1e-5, atol=1e-5)
