"""Attributions equal captum's and a plain integral, are complete, and belong to the right words."""

import dataclasses
import json

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import bertjax
from bertjax.data.batches.batch import Feature
from bertjax.inference import attribution
from bertjax.inference.attribution import Attributor, targets
from bertjax.inference.predictor import for_inference
from bertjax.inference.texts import from_texts
from bertjax.model import BertConfig, TaggerConfig
from bertjax.model.bert import MODEL_INPUTS
from bertjax.tasks.classification import ClassificationTask
from bertjax.weights import load_model
from bertjax.weights.families import architecture
from bertjax.weights.load import with_tagger
from tests.cases import WEEKLY, others_weekly

# A family, what its head predicts, and the fields of config.json that say so.
ONE_NUMBER = {"id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}}
KINDS = {
    "classes": ("sequence_classification", {}),
    "labels": ("sequence_classification", {"problem_type": "multi_label_classification"}),
    "number": ("sequence_classification", {**ONE_NUMBER, "problem_type": "regression"}),
    "numbers": ("sequence_classification", {"problem_type": "regression"}),
    "score": ("sequence_classification", ONE_NUMBER),
    "tags": ("token_classification", {}),
}
KINDS_OF_TEXTS = [kind for kind in KINDS if kind != "tags"]
COMPARED = [
    ("bert", "classes"),
    ("roberta", "score"),
    ("deberta-v2", "number"),
    ("modernbert", "tags"),
    ("albert", "labels"),
    ("electra", "classes"),
    ("distilbert", "tags"),
]
PAIRS = ("classes", "score")


@pytest.fixture
def model_of(tmp_path, tiny_family, tokenizer, written):
    def make(family="bert", kind="classes", **changes):
        """Returns (folder, model, texts) of a family whose head predicts a kind of labels."""
        head, fields = KINDS[kind]
        changes = {"vocab_size": tokenizer.vocab_size, "initializer_range": 0.3} | changes
        folder = written(tmp_path / "model", tiny_family(family, **changes), head, tokenizer)
        config = json.loads((folder / "config.json").read_text())
        if kind in ("number", "score"):
            _keep_one_logit(folder)
        (folder / "config.json").write_text(json.dumps(config | fields))
        return folder, bertjax.load_pretrained(folder)

    return make


def _keep_one_logit(folder):
    from safetensors.numpy import load_file, save_file

    tensors = load_file(folder / "model.safetensors")
    for name in tensors:
        if len(tensors[name]) == 3 and "class" in name or "out_proj" in name:
            tensors[name] = np.ascontiguousarray(tensors[name][:1])
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


@pytest.fixture
def text_of(sentences):
    def make(kind):
        return (sentences[0], sentences[1]) if kind in PAIRS else sentences[2]

    return make


def parts_of(model, text, baseline="pad"):
    """Returns the features of a text, its first target, and what computes attributions."""
    task, examples = from_texts(model.task, [text])
    ((example, prediction),) = model.predictions(task, examples, shows_progress=False)
    features = task.features_to_predict(example, model.tokenizer, task.max_length)
    target = targets(task, prediction, features)[0]
    return features, target, model.attributor(baseline)


@pytest.mark.parity
@pytest.mark.parametrize(("family", "kind"), COMPARED)
def test_attributions_equal_those_of_captum(family, kind, model_of, text_of):
    captum = pytest.importorskip("captum.attr", reason="captum is not installed")
    torch = pytest.importorskip("torch", reason="the extra `parity` is not installed")
    transformers = pytest.importorskip("transformers", reason="the extra `parity` is not installed")
    folder, model = model_of(family, kind)
    head = KINDS[kind][0]
    theirs = getattr(transformers, architecture(model.config, head)).from_pretrained(
        folder, attn_implementation="eager"
    )
    theirs.eval()
    (feature,), target, ours = parts_of(model, text_of(kind), "mask")
    (weights,) = target.weights
    values, (_, output) = ours.integrated_gradients(feature, weights)

    ids = torch.tensor(feature.input_ids[None].astype(np.int64))
    special = torch.isin(ids, torch.tensor([model.tokenizer.cls_token_id, 3]))
    assert model.tokenizer.sep_token_id == 3
    baseline = torch.where(special, ids, model.tokenizer.mask_token_id)
    inputs = {"attention_mask": torch.ones_like(ids)}
    if "token_type_ids" in model.tokenizer.model_input_names and family in ("bert", "electra"):
        inputs["token_type_ids"] = (torch.arange(ids.shape[1]) >= feature.a_lengths[0])[None].long()

    def forward(input_ids):
        rows = {key: value.expand(len(input_ids), -1) for key, value in inputs.items()}
        logits = theirs(input_ids=input_ids, **rows).logits
        return (logits * torch.tensor(weights)).flatten(1).sum(1)

    layer = theirs.get_input_embeddings()
    reference = captum.LayerIntegratedGradients(forward, layer)
    expected = reference.attribute(ids, baselines=baseline, n_steps=32).sum(-1)[0].detach().numpy()
    difference = np.abs(values - expected).max() / np.abs(expected).max()
    print(family, kind, f"{difference:.1e} of the largest, {np.abs(expected).max():.3g}")
    assert difference < 1e-4
    with torch.no_grad():
        assert abs(float(forward(ids)[0]) - output) < 1e-4


def plain_integral(model, feature, weights, baseline_id, points=400):
    """The same integral by the midpoint rule: the path is a table with a word for each token."""
    specials = (model.tokenizer.cls_token_id, model.tokenizer.sep_token_id)
    ids = feature.input_ids
    table = model.params["bert"]["embeddings"]["word_embeddings"]["embedding"]
    start = table[np.where(np.isin(ids, specials), ids, baseline_id)]
    change = table[ids] - start
    length = len(ids)
    rows = {
        "input_ids": np.arange(length)[None],
        "token_type_ids": (np.arange(length) >= feature.a_lengths[0])[None].astype(np.int32),
        "position_ids": np.arange(length)[None],
        "sequence_ids": np.ones((1, length), np.int32),
        "sequence_starts": np.zeros((1, 1), np.int32),
    }
    assert rows.keys() == set(MODEL_INPUTS)

    def output(words):
        params = jax.tree.map(lambda x: x, model.params)
        whole = jnp.asarray(table).at[:length].set(words)
        params["bert"]["embeddings"]["word_embeddings"] = {"embedding": whole}
        logits = model.model.apply({"params": params}, **rows)["logits"]
        return (logits.reshape(weights.shape) * weights).sum()

    gradient = jax.jit(jax.grad(output))
    total = np.zeros_like(start, np.float64)
    for point in range(points):
        total += gradient(jnp.asarray(start + (point + 0.5) / points * change))
    return (total / points * change).sum(-1)


@pytest.mark.parametrize(
    ("family", "kind"),
    [
        pytest.param("roberta", "classes", marks=pytest.mark.slow),
        pytest.param("albert", "tags", marks=WEEKLY),
    ],
)
def test_attributions_equal_a_plain_integral(family, kind, model_of, text_of):
    _, model = model_of(family, kind, initializer_range=0.02)
    (feature,), target, ours = parts_of(model, text_of(kind))
    (weights,) = target.weights
    values, _ = ours.integrated_gradients(feature, weights)
    expected = plain_integral(model, feature, weights, model.tokenizer.pad_token_id)
    assert np.abs(values - expected).max() < 1e-3 * np.abs(expected).max()


class LinearModel(nn.Module):
    """The logits are a linear function of the word embeddings."""

    config: BertConfig
    unroll: int = 1
    attention_kernel: str = "xla"

    def setup(self):
        self.bert = LinearEncoder()

    def __call__(self, input_ids, **others):
        x = self.bert.embeddings(input_ids)  # [B, L, 4]
        return {"logits": x[..., :3].sum(1, keepdims=True)}


class LinearEncoder(nn.Module):
    def setup(self):
        self.embeddings = LinearEmbeddings()


class LinearEmbeddings(nn.Module):
    def setup(self):
        self.word_embeddings = nn.Embed(100, 4)

    def __call__(self, ids):
        return self.word_embeddings(ids)


@pytest.mark.parametrize("steps", [1, 3])
def test_attributions_of_a_linear_model_are_exact(steps, tiny_config, tokenizer):
    rng = np.random.default_rng(0)
    table = rng.normal(size=(100, 4)).astype(np.float32)
    params = {"bert": {"embeddings": {"word_embeddings": {"embedding": table}}}}
    model = LinearModel(tiny_config)
    ids = np.array([tokenizer.cls_token_id, 40, 41, 42, tokenizer.sep_token_id], np.int32)
    weights = np.array([1.0, -2.0, 0.5], np.float32)
    task = ClassificationTask(name="classify", labels=("no", "maybe", "yes"))
    ours = Attributor(task, model, params, tokenizer, "mask", steps)
    feature = Feature(ids, (5,), (5,), None)
    values, (of_baseline, of_text) = ours.integrated_gradients(feature, weights[None])
    expected = (table[ids] - table[tokenizer.mask_token_id])[:, :3] @ weights
    assert np.abs(values[1:-1] - expected[1:-1]).max() < 1e-5
    assert values[0] == values[-1] == 0  # special tokens are kept
    assert abs(values.sum() - (of_text - of_baseline)) < 1e-4


@pytest.mark.parametrize(
    "kind", others_weekly(KINDS, "classes", slow=("labels", "numbers", "score"))
)
def test_values_of_words_add_up_to_the_difference_of_the_outputs(kind, model_of, text_of):
    _, model = model_of(kind=kind, initializer_range=0.02)
    text = text_of(kind)
    for baseline in ("pad", "mask"):
        (shown,) = model.attribute([text], baseline=baseline)
        for one in shown:
            assert len(one.words) == len(one.values) and len(one.tokens) == len(one.token_values)
            total = np.nansum(one.values)
            assert abs(total - one.token_values.sum()) < 1e-5
            change = one.output - one.baseline_output
            assert abs(one.completeness_error) < 0.002 * abs(change)
            assert abs(total - change - one.completeness_error) < 1e-5


@pytest.mark.parametrize(
    "kind", others_weekly(KINDS_OF_TEXTS, "classes", slow=("labels", "numbers", "score"))
)
def test_the_output_is_that_of_the_model(kind, model_of, text_of):
    _, model = model_of(kind=kind)
    text = text_of(kind)
    ((one, *others),) = model.attribute([text])
    logits = model([text])["logits"][0]
    assert kind != "numbers" or [other.target for other in others] == ["maybe", "yes"]
    if kind in ("classes", "labels", "numbers"):
        assert abs(one.output - logits[model.labels.index(one.target)]) < 1e-4
        if kind == "classes":
            assert one.target == model.predict([text])[0]["label"]
        if kind == "labels":
            assert ("no label is predicted" in one.remark) != bool(
                model.predict([text])[0]["labels"]
            )
        ((other,),) = model.attribute([text], label="maybe")
        assert other.target == "maybe" and abs(other.output - logits[1]) < 1e-4
    else:
        assert one.target == "score" and abs(one.output - logits[0]) < 1e-4


def test_words_are_those_of_the_text(model_of):
    _, model = model_of(kind="score")
    first, second = " Hij  klm, abc!", "[MASK] déf"
    ((one,),) = model.attribute([(first, second)])
    assert one.words == [" Hij  ", "klm", ", ", "abc", "!", "[", "MASK", "] ", "déf"]
    assert one.pair_start == 5 and one.word is None
    by_token = dict(zip(one.tokens, one.token_values.tolist(), strict=True))
    assert by_token["[CLS]"] == by_token["[SEP]"] == 0
    assert one.tokens[:5] == ["[CLS]", "hi", "##j", "[UNK]", "[UNK]"]  # klm, and the comma
    assert abs(one.values[0] - one.token_values[1:3].sum()) < 1e-6
    assert abs(one.values[2] - one.token_values[4]) < 1e-6
    assert abs(one.values[8] - one.token_values[-4:-1].sum()) < 1e-6
    # A reranker reads [MASK] as a mask, and not as three words of text.
    assert by_token["[MASK]"] != 0 and np.isnan(one.values[5:8]).all()


def test_windows_of_a_long_text_are_attributed_together(model_of, sentences):
    folder, _ = model_of(initializer_range=0.02)
    description = {"task": "classify", "label_kind": "classes", "max_length": 24, "doc_stride": 10}
    (folder / "task.json").write_text(json.dumps(description))
    model = bertjax.load_pretrained(folder)
    text = " ".join(sentences[:4])
    (prediction,) = model.predict([text])
    ((one,),) = model.attribute([text])
    assert one.tokens.count("[CLS]") > 2 and one.target == prediction["label"]
    assert not np.isnan(one.values).any()
    assert abs(one.values.sum() - one.token_values.sum()) < 1e-5
    assert abs(one.completeness_error) < 0.002 * abs(one.output - one.baseline_output)
    # The prediction is made of the mean of the windows' logits.
    others = [model.attribute([text], label=label)[0][0].output for label in model.labels]
    shares = np.exp(others) / np.exp(others).sum()
    assert np.abs(shares - [*prediction["probabilities"].values()]).max() < 1e-5


def test_words_behind_the_cut_have_no_value(model_of, sentences):
    _, model = model_of()
    text = " ".join(sentences[:12])
    ((one,),) = model.attribute([text])
    is_read = ~np.isnan(one.values)
    assert 5 < is_read.sum() < len(is_read) and is_read[: is_read.sum()].all()


ENTITIES = {"id2label": {"0": "O", "1": "B-PER", "2": "I-PER"}}
ENTITIES["label2id"] = {name: int(i) for i, name in ENTITIES["id2label"].items()}


@pytest.mark.slow
def test_each_tagged_word_has_an_attribution_and_any_word_on_demand(model_of, sentences):
    folder, _ = model_of(kind="tags")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | ENTITIES))
    model = bertjax.load_pretrained(folder)
    text = sentences[0].replace(".", " 🎈.")  # which a tagger does not read
    (prediction,) = model.predict([text])
    (shown,) = model.attribute([text])
    pairs = zip(prediction["labels"], prediction["words"], strict=True)
    named = [(i, f"{tag}: {word}") for i, (tag, word) in enumerate(pairs) if tag != "O"]
    wanted = [(i, name) for i, name in named if "🎈" not in name]
    assert [(one.word, one.target) for one in shown] == wanted and wanted
    for one in shown:
        assert [word.strip() for word in one.words] == prediction["words"]
        assert np.flatnonzero(np.isnan(one.values)) == [prediction["words"].index("🎈")]
        ((alone,),) = model.attribute([text], word=one.word + 1)
        assert np.abs(alone.token_values - one.token_values).max() < 1e-6
    words = text.split()
    ((one,),) = model.attribute([words], word=2, label="O")
    assert one.target == f"O: {words[1]}" and one.word == 1


@pytest.mark.slow
def test_a_tagger_on_frozen_states_has_attributions(model_of, text_of):
    folder, model = model_of(kind="tags")
    tagger = with_tagger(load_model(folder, "encoder"), TaggerConfig(layers=(-1, 0)), 3)
    features, target, _ = parts_of(model, text_of("tags"))
    ours = Attributor(model.task, tagger.model, tagger.params, model.tokenizer)
    values, (of_baseline, of_text) = ours.integrated_gradients(features[0], target.weights[0])
    assert abs(values.sum() - (of_text - of_baseline)) < 0.01 * np.abs(values).sum()


def test_neither_padding_nor_pieces_change_the_values(model_of, text_of, monkeypatch):
    _, model = model_of()
    ((one,),) = model.attribute([text_of("classes")])
    monkeypatch.setattr(attribution, "length_bucket", lambda length, limit: limit)
    monkeypatch.setattr(attribution, "token_budget", lambda length, size, share: 5 * length)
    ((other,),) = model.attribute([text_of("classes")])
    assert np.abs(one.token_values - other.token_values).max() < 1e-5
    assert abs(one.output - other.output) < 1e-5


def test_texts_of_one_length_bucket_share_a_program(model_of, sentences):
    _, model = model_of()
    model.attribute([sentences[0]])
    program = attribution._program(for_inference(model.model).clone(unroll=1))
    before = program._cache_size()
    model.attribute(sentences[1:4], label="maybe", baseline="mask")
    assert program._cache_size() <= before + 1  # perhaps a longer one


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        ("classes", {"label": "mayb"}, "'mayb'.* maybe"),
        ("number", {"label": "yes"}, "'yes'"),
        ("score", {"label": "yes"}, "'yes'"),
        ("classes", {"word": 1}, "word=1"),
        ("classes", {"baseline": "zero"}, "zero"),
        ("classes", {"steps": 0}, "steps"),
        ("tags", {"word": 1000}, "word=1000"),
        ("tags", {"word": 0}, "word=0"),
        ("tags", {"label": "perhaps"}, "'perhaps'"),
    ],
)
def test_what_has_no_attribution_is_refused(kind, options, message, model_of, text_of):
    _, model = model_of(kind=kind)
    with pytest.raises(ValueError, match=message):
        model.attribute([text_of(kind)], **options)


def test_answers_to_questions_have_no_attributions(tmp_path, tiny_config, tokenizer, written):
    config = dataclasses.replace(tiny_config, vocab_size=tokenizer.vocab_size)
    folder = written(tmp_path / "qa", config, "question_answering", tokenizer)
    with pytest.raises(ValueError, match="span"):
        bertjax.load_pretrained(folder).attribute([("abc", "abc hij")])
