"""Words at masked tokens, for pages: those of the model, whatever the batch and the family."""

import dataclasses

import numpy as np
import pytest

from bertjax import load_pretrained, visualize
from bertjax.inference.attention import attention_data
from bertjax.inference.masks import (
    expected_words,
    fill_mask,
    most_probable,
    text_view,
    word_probabilities,
)
from bertjax.tokenization import train_bpe, train_unigram
from bertjax.weights import load_model
from tests.browser import needs_chromium, used


@pytest.fixture(scope="module")
def loaded(one_layer):
    return load_model(one_layer, "masked_lm")


def test_words_of_all_tokens_equal_those_of_each_masked_alone(loaded, sentences):
    text = f"{sentences[0]} [MASK] {sentences[1]}"
    ids, types = loaded.tokenizer.encode_prompt(text)
    assert len(ids) > 20  # several pieces of rows
    words = expected_words(loaded, ids, types, 4)
    mask, place = loaded.tokenizer.mask_token_id, ids.index(loaded.tokenizer.mask_token_id)
    assert [int(n) for n in words] == list(range(1, len(ids) - 1))
    for position in (1, 5, len(ids) - 2):
        masked = [*ids[:position], mask, *ids[position + 1 :]]
        rows, places = np.array([masked], np.int32), np.array([[position]])
        ((p,),) = word_probabilities(loaded, rows, types, places)
        alone = [(loaded.tokenizer.tokens[i], float(p[i])) for i in most_probable(p, len(p))]
        token = loaded.tokenizer.tokens[ids[position]]
        rank = [name for name, _ in alone].index(token) + 1
        found = words[str(position)]
        assert [name for name, _ in found["top"]] == [name for name, _ in alone[:4]]
        assert found["actual"][0] == pytest.approx(dict(alone)[token], rel=1e-3)
        assert found["actual"][1] == rank
    (filled,) = fill_mask(loaded, text, 4)
    assert [[name, pytest.approx(p, rel=1e-3)] for name, p in filled] == words[str(place)]["top"]
    assert "actual" not in words[str(place)]


def test_large_models_predict_only_at_masks_and_untrained_heads_nowhere(
    loaded, sentences, monkeypatch
):
    monkeypatch.setattr("bertjax.inference.masks.MAX_OPERATIONS", 0)
    ids, types = loaded.tokenizer.encode_prompt(f"[MASK] {sentences[0]} [MASK]")
    view = text_view(loaded, ids, types)
    assert view["masks"] == [1, len(ids) - 2] == [int(n) for n in view["words"]]
    headless = text_view(loaded._replace(absent=["predictions"]), ids, types)
    assert not headless["words"] and not headless["has_words"] and view["has_words"]


def test_a_decoder_predicts_each_token_from_those_before_it(
    tmp_path, one_layer_config, tokenizer, sentences, written
):
    config = dataclasses.replace(one_layer_config, vocab_size=tokenizer.vocab_size, is_decoder=True)
    folder = written(tmp_path / "model", config, "masked_lm", tokenizer)
    model = load_pretrained(str(folder), "masked_lm")
    ids, types = tokenizer.encode_prompt(sentences[0])
    logits = model(input_ids=[ids])["logits"][0]
    words = expected_words(model.masked_lm, ids, types, 1)
    for position in (1, len(ids) - 2):
        best = tokenizer.tokens[int(logits[position - 1].argmax())]
        assert words[str(position)]["top"][0][0] == best
    attention = model(input_ids=[ids], output_attentions=True)["attentions"]
    assert np.triu(attention, 1).max() == 0


FAMILIES = {
    "roberta": ("masked_lm", "bpe", {}),
    "albert": ("pretraining", "unigram", {}),
    "distilbert": ("sequence_classification", "wordpiece", {}),
    "bert": ("masked_lm", "wordpiece", {"is_decoder": True}),
}


@needs_chromium
@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_is_shown(family, tiny_family, tokenizer, sentences, written, tmp_path):
    head, kind, changes = FAMILIES[family]
    made = {
        "bpe": lambda: train_bpe(sentences, vocab_size=300),
        "unigram": lambda: train_unigram(sentences, vocab_size=90),
        "wordpiece": lambda: tokenizer,
    }[kind]()
    config = tiny_family(family, vocab_size=made.vocab_size, **changes)
    folder = written(tmp_path / "model", config, head, made)
    texts = (f"{sentences[0]} {made.layout.special_tokens.mask} é", sentences[1])
    output = tmp_path / "attention.html"
    assert visualize.main([*texts, "--model", str(folder), "--output", str(output)]) == 0
    script = """
      const texts = (path) => [...document.querySelectorAll(path)].map((e) => e.textContent);
      seen.tokens = texts("#from .token");
      seen.note = text("note");
      seen.help = text("words-help");
      seen.label = text("predicted");
      seen.bars = texts("#probabilities b");
      seen.values = probability(1, 3, 2, 1);
    """
    seen = used(output.read_text(encoding="utf-8"), script, tmp_path)
    assert not seen["errors"] and not seen["requests"]
    model = load_pretrained(str(folder))
    data = attention_data(model, *texts)
    assert seen["tokens"] == data["tokens"] and set(data["segments"]) == {0, 1}
    assert not {"Ġ", "▁", "Ã"} & set("".join(seen["tokens"]))
    ids, _, types = model.encode([texts])
    outputs = model(input_ids=ids, token_type_ids=types, output_attentions=True)
    assert seen["values"] == pytest.approx(outputs["attentions"][1, 0, 3, 2, 1], abs=1e-5)
    assert ("share their parameters" in seen["note"]) == (family == "albert")
    assert ("from left to right" in seen["note"]) == (family == "bert")
    assert ("no trained head" in seen["help"]) == (family == "distilbert")
    if head == "sequence_classification":
        logits = outputs["logits"][0].astype(float)
        probabilities = np.exp(logits) / np.exp(logits).sum()
        prediction = data["prediction"]
        assert [*prediction["probabilities"].values()] == pytest.approx(probabilities, rel=1e-4)
        (predicted,) = model.predict([sentences[:2]])
        plain = attention_data(model, *sentences[:2])["prediction"]["probabilities"]
        assert plain == pytest.approx(predicted["probabilities"], rel=1e-3)
        ranked = sorted(prediction["probabilities"], key=prediction["probabilities"].__getitem__)
        assert seen["label"] == f"Label: {prediction['label']}" and seen["bars"] == ranked[::-1]


@pytest.mark.slow
def test_tags_and_answers_are_those_of_predict(
    tiny_config, tokenizer, sentences, written, tmp_path
):
    config = dataclasses.replace(tiny_config, vocab_size=tokenizer.vocab_size)
    for head, texts in (
        ("token_classification", sentences[:1]),
        ("question_answering", sentences[:2]),
    ):
        model = load_pretrained(str(written(tmp_path / head, config, head, tokenizer)))
        (prediction,) = model.predict([texts[0] if len(texts) == 1 else texts])
        shown = attention_data(model, *texts)["prediction"]
        assert shown and shown == {key: prediction[key] for key in shown}
        assert attention_data(model, f"{texts[0]} [MASK]", *texts[1:])["prediction"] is None
