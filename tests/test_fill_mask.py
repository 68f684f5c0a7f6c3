"""`bertjax.fill_mask`: the words that it prints, its page and its flags."""

import pytest

from bertjax import fill_mask
from bertjax.fill_mask import FillMaskConfig
from bertjax.inference import masks
from bertjax.tokenization import train_bpe
from bertjax.weights import load_model
from tests.browser import needs_chromium, used


def test_the_most_probable_words_are_printed_for_each_mask(encoder, sentences, capsys):
    text = f"{sentences[0]} [MASK] [MASK]"
    fill_mask.run(FillMaskConfig(model=str(encoder), text=(text,), top_k=3))
    printed = capsys.readouterr().out
    first, second = masks.fill_mask(load_model(encoder, "masked_lm"), text, 3)
    assert "[MASK] 1" in printed and "[MASK] 2" in printed
    for word, probability in (*first, *second):
        assert word in printed and f"{probability:.4f}" in printed
    assert len(first) == len(second) == 3


def test_masks_are_filled_by_a_masked_lm_too_and_named_as_the_family_writes_them(
    encoder, sentences
):
    text = sentences[0] + " [MASK]"
    loaded = load_model(encoder, "masked_lm")
    assert masks.fill_mask(loaded, text) == masks.fill_mask(load_model(encoder), text)
    with pytest.raises(ValueError, match="No <mask> in .*: write <mask> where"):
        masks.fill_mask(loaded._replace(tokenizer=train_bpe(sentences, vocab_size=300)), text)


def test_a_text_without_a_mask_is_refused(encoder, capsys):
    assert fill_mask.main(["--model", str(encoder), "abc"]) == 1
    assert "No [MASK] in 'abc'" in capsys.readouterr().err


def test_several_texts_are_filled_in_turn(encoder, sentences, capsys):
    texts = [f"{sentence} [MASK]" for sentence in sentences[:2]]
    words = []
    for given in (texts[:1], texts[1:], texts):
        assert fill_mask.main([*given, "--model", str(encoder)]) == 0
        lines = capsys.readouterr().out.splitlines()
        words.append([line.split() for line in lines if line.startswith("│")])
    assert words[2] == words[0] + words[1] and len(words[2]) == 10
    assert [line for line in lines if line in texts] == texts
    with pytest.raises(ValueError, match="shows one text, but 2 were given"):
        FillMaskConfig(model="m", text=tuple(texts), html="a.html")
    with pytest.raises(ValueError, match="give a text with a mask, in quotes"):
        FillMaskConfig(model="m", text=())


def test_values_that_make_no_sense_are_refused():
    with pytest.raises(ValueError, match="--html a.txt"):
        FillMaskConfig(model="m", text=("a",), html="a.txt")
    with pytest.raises(ValueError, match="top_k=0"):
        FillMaskConfig(model="m", text=("a",), top_k=0)


PAGE = """
  const words = () =>
    [...document.querySelectorAll("#words b")].map((word) => word.firstChild.textContent);
  seen.titles = [...document.querySelectorAll("#words h3")].map((h) => h.textContent);
  seen.words = words();
  seen.bars = [...document.querySelectorAll("#words i")].map((bar) => parseFloat(bar.style.width));
  document.querySelectorAll(".chip:not(:disabled)")[0].click();
  seen.picked = document.querySelector("#words h3").textContent;
  document.getElementById("theme").click();
  seen.width = document.documentElement.scrollWidth - innerWidth;
"""


@needs_chromium
def test_fill_mask_writes_a_page(one_layer, sentences, tmp_path, capsys):
    loaded = load_model(one_layer, "masked_lm")
    text = f"{sentences[0]} [MASK] [MASK] </script>"
    output = tmp_path / "words.html"
    flags = [text, "--model", str(one_layer), "--top_k", "3"]
    assert fill_mask.main([*flags, "--html", str(output)]) == 0
    assert "[MASK] 2" in capsys.readouterr().out
    seen = used(output.read_text(encoding="utf-8"), PAGE, tmp_path)
    assert not seen["errors"] and not seen["requests"] and seen["width"] <= 0
    first, second = masks.fill_mask(loaded, text, 3)
    assert seen["words"] == [word for word, _ in (*first, *second)]
    place = loaded.tokenizer.encode_prompt(text)[0].index(loaded.tokenizer.mask_token_id)
    assert seen["titles"] == [f"[MASK] token {place + n}" for n in (1, 2)]
    most = max(first[0][1], second[0][1])
    wanted = [100 * p / most for _, p in (*first, *second)]
    assert seen["bars"] == pytest.approx(wanted, rel=1e-2)
    assert seen["picked"].endswith("token 2, masked")
