"""Figures of attention show the model's values, and their files are valid."""

import sys
import xml.etree.ElementTree as ET

import numpy as np
import pytest

from bertjax import visualize
from bertjax.inference.attention import LEAST_LINE, MAX_INCHES, attention_figure, save_figure

TOKENS = ["[CLS]", "a", "$5", "␣é", "[SEP]"]


@pytest.fixture(scope="module")
def attention():
    logits = np.random.default_rng(0).normal(size=(2, 3, 5, 5)) * 2
    return (np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)).astype(np.float32)


def test_a_matrix_shows_the_values_of_the_head(attention):
    figure = attention_figure(TOKENS, attention, layer=2, head=3)
    (image,) = figure.axes[0].images
    assert np.array_equal(image.get_array(), attention[1, 2])
    assert image.norm.vmin == 0 and image.norm.vmax == 1
    labels = [label.get_text() for label in figure.axes[0].get_yticklabels()]
    assert labels == ["[CLS]", "a", r"\$5", "␣é", "[SEP]"]
    assert figure.axes[0].get_title() == "layer 2, head 3"


def test_lines_go_from_token_to_token_and_show_the_values(attention):
    figure = attention_figure(TOKENS, attention, layer=1, head=2, plot="lines")
    (lines,) = figure.axes[0].collections
    segments, opacities = np.array(lines.get_segments()), lines.get_colors()[:, 3]
    sources, targets = segments[:, 0, 1].astype(int), segments[:, 1, 1].astype(int)
    assert len(segments) == (attention[0, 1] >= LEAST_LINE).sum()
    assert np.allclose(opacities**2, attention[0, 1][sources, targets], atol=1e-6)


@pytest.mark.parametrize(
    ("chosen", "shape"), [({}, (2, 3)), ({"layer": 2}, (1, 3)), ({"head": 1}, (2, 1))]
)
def test_without_a_layer_or_head_all_of_them_are_drawn(attention, chosen, shape):
    figure = attention_figure(TOKENS, attention, **chosen)
    shown = np.stack([axes.images[0].get_array() for axes in figure.axes])
    layers = slice(None) if "layer" not in chosen else slice(1, 2)
    heads = slice(None) if "head" not in chosen else slice(0, 1)
    assert np.array_equal(shown, attention[layers, heads].reshape(-1, 5, 5))
    assert figure.axes[0].get_subplotspec().get_gridspec().get_geometry() == shape


@pytest.mark.parametrize("place", [{"layer": 0}, {"layer": 3}, {"head": 4}])
def test_a_layer_or_head_that_the_model_lacks_is_refused(attention, place):
    with pytest.raises(ValueError, match="it must be from 1 to"):
        attention_figure(TOKENS, attention, **place)


def test_long_texts_have_fewer_labels_and_a_size_for_paper():
    attention = np.full((1, 1, 300, 300), 1 / 300, np.float32)
    figure = attention_figure([f"t{n}" for n in range(300)], attention, layer=1, head=1)
    labels = [label.get_text() for label in figure.axes[0].get_xticklabels()]
    assert labels == [f"t{n}" for n in range(0, 300, 5)]
    assert max(figure.get_size_inches()) <= MAX_INCHES


def test_files_are_valid_and_fonts_without_a_character_are_reported(attention, tmp_path):
    figure = attention_figure(TOKENS, attention, layer=1, head=1)
    assert save_figure(figure, tmp_path / "a.svg") == ""
    texts = [text.text for text in ET.parse(tmp_path / "a.svg").iter() if text.tag.endswith("text")]
    assert texts.count("[CLS]") == 2 and "$5" in texts and "layer 1, head 1" in texts
    again = attention_figure(TOKENS, attention, layer=1, head=1)
    save_figure(again, tmp_path / "b.svg")
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()
    chinese = attention_figure(["[CLS]", "中", "b", "c", "d"], attention, layer=1, head=1)
    assert "the fonts of matplotlib lack these characters" in save_figure(
        chinese, tmp_path / "c.pdf"
    )
    assert (tmp_path / "c.pdf").read_bytes().startswith(b"%PDF-")


def test_the_command_writes_a_figure(one_layer, sentences, tmp_path, capsys):
    output = tmp_path / "attention.png"
    flags = ["--model", str(one_layer), "--output", str(output), "--plot", "lines", "--head", "2"]
    assert visualize.main([sentences[0], *flags]) == 0
    content = output.read_bytes()
    assert content.startswith(b"\x89PNG\r\n\x1a\n")
    width, height = (int.from_bytes(content[n : n + 4]) for n in (16, 20))
    assert 200 < width < 4000 and 200 < height < 4000
    assert str(output) in capsys.readouterr().out


def test_without_matplotlib_the_extra_is_named(attention, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ImportError, match=r"pip install 'bertjax\[viz\]'"):
        attention_figure(TOKENS, attention)
