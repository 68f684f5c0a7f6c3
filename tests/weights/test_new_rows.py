"""New words start from the mean of their old pieces, new positions from the old positions."""

import dataclasses

import numpy as np
import pytest

from bertjax.model import HEADS
from bertjax.tokenization import WordPieceTokenizer, extend
from bertjax.weights import load_model
from bertjax.weights.load import with_new_words, with_positions

WORDS = "word_embeddings"
POSITIONS = ("bert", "embeddings", "position_embeddings", "embedding")


@pytest.fixture(scope="module")
def more(tokenizer, sentences) -> WordPieceTokenizer:
    """The tokenizer with ten more words."""
    new = extend(tokenizer, [f"jj{text} bdfh" for text in sentences], 10).tokenizer
    assert isinstance(new, WordPieceTokenizer)
    return new


def at(params, *path):
    for name in path:
        params = params[name]
    return np.asarray(params)


@pytest.fixture(scope="module")
def loaded(tmp_path_factory, one_layer_config, tokenizer, written):
    """A function (head, changes of the config) -> a loaded model with random weights."""

    def load(head, **changes):
        config = dataclasses.replace(
            one_layer_config, **{"vocab_size": tokenizer.vocab_size} | changes
        )
        return load_model(
            written(tmp_path_factory.mktemp("rows") / "model", config, head, tokenizer), head
        )

    return load


def test_rows_of_new_words_are_the_mean_of_their_pieces_and_old_rows_stay(loaded, tokenizer, more):
    # The embedding has room for the new words, and another axis has its size by chance.
    model = loaded("pretraining", hidden_size=128, vocab_size=128)
    grown = with_new_words(model, more, seed=0)
    assert grown.config.vocab_size == 128 and grown.tokenizer is more
    assert grown.model == HEADS["pretraining"](grown.config)
    places = [("bert", "embeddings", WORDS, "embedding"), ("predictions", "bias")]
    for place in places:
        before, after = at(model.params, *place), at(grown.params, *place)
        np.testing.assert_array_equal(after[: tokenizer.vocab_size], before[: tokenizer.vocab_size])
        np.testing.assert_array_equal(after[more.vocab_size :], before[more.vocab_size :])
        for word in more.tokens[tokenizer.vocab_size :]:
            pieces = tokenizer.encode([word])[0]
            assert len(pieces) > 1
            np.testing.assert_array_equal(after[more.vocab[word]], before[pieces].mean(axis=0))
    # All else is as before.
    np.testing.assert_array_equal(at(model.params, *POSITIONS), at(grown.params, *POSITIONS))


def test_rows_of_a_new_script_start_from_the_unknown_token(loaded, tokenizer):
    more = extend(tokenizer, ["ძაღლი კატა"] * 5, 30).tokenizer
    model = loaded("encoder")
    grown = with_new_words(model, more, seed=0)
    place = ("bert", "embeddings", WORDS, "embedding")
    unknown = at(model.params, *place)[tokenizer.unk_token_id]
    new = at(grown.params, *place)[tokenizer.vocab_size : more.vocab_size]
    assert len(new) > 5
    np.testing.assert_array_equal(new, np.broadcast_to(unknown, new.shape))


def test_an_output_matrix_of_its_own_gets_columns_and_the_size_a_multiple_of_64(
    loaded, tokenizer, more
):
    model = loaded("masked_lm", tie_word_embeddings=False)
    grown = with_new_words(model, more, seed=0)
    assert tokenizer.vocab_size < more.vocab_size < grown.config.vocab_size == 128
    before = at(model.params, "predictions", "decoder", "kernel")
    after = at(grown.params, "predictions", "decoder", "kernel")
    assert after.shape == (before.shape[0], 128)
    np.testing.assert_array_equal(after[:, : tokenizer.vocab_size], before)
    word = more.tokens[tokenizer.vocab_size]
    pieces = tokenizer.encode([word])[0]
    np.testing.assert_allclose(after[:, more.vocab[word]], before[:, pieces].mean(axis=1))
    assert np.isfinite(after).all()


def test_another_tokenizer_is_no_extension(loaded, tokenizer, more):
    other = WordPieceTokenizer(
        {token: i for i, token in enumerate(reversed(more.tokens))}, do_lower_case=True
    )
    with pytest.raises(ValueError, match=r"with further entries \(id 0 was '\[PAD\]' and is "):
        with_new_words(loaded("encoder"), other, seed=0)


@pytest.mark.parametrize("offset", [0, 2])
def test_positions_are_tiled_or_interpolated_behind_the_offset(loaded, offset):
    model = loaded("encoder", max_position_embeddings=8 + offset)
    config = dataclasses.replace(model.config, position_offset=offset)
    model = model._replace(model=model.model.clone(config=config))
    before = at(model.params, *POSITIONS)
    old = before[offset:]
    tiled = with_positions(model, 20 + offset, "tile")
    assert tiled.config.max_position_embeddings == 20 + offset
    assert tiled.config.max_length == 20 and tiled.config.position_offset == offset
    after = at(tiled.params, *POSITIONS)
    np.testing.assert_array_equal(after[: 8 + offset], before)
    np.testing.assert_array_equal(after[8 + offset :], np.concatenate([old, old[:4]]))
    # Every other of 15 positions is one of the 8, and those between are means of two.
    after = at(with_positions(model, 15 + offset, "interpolate").params, *POSITIONS)
    np.testing.assert_array_equal(after[:offset], before[:offset])
    np.testing.assert_allclose(after[offset::2], old, rtol=1e-5, atol=1e-6)
    between = (old[1:] + old[:-1]) / 2
    np.testing.assert_allclose(after[offset + 1 :: 2], between, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("method", ["tile", "interpolate"])
@pytest.mark.parametrize("family", ["bert", "roberta"])
def test_positions_that_were_never_trained_start_from_those_that_were(
    tmp_path, tiny_family, tokenizer, written, method, family
):
    config = dataclasses.replace(tiny_family(family), trained_positions=16)
    loaded = load_model(written(tmp_path / "m", config, "masked_lm", tokenizer), "masked_lm")
    rows = config.max_position_embeddings
    found = with_positions(loaded, rows, method)
    before, after = (
        np.asarray(x.params["bert"]["embeddings"]["position_embeddings"]["embedding"])
        for x in (loaded, found)
    )
    offset = config.position_offset
    np.testing.assert_array_equal(after[:offset], before[:offset])
    trained, after = before[offset:][:16], after[offset:]
    assert before.shape[0] == rows == len(after) + offset
    if method == "tile":
        np.testing.assert_array_equal(after, trained[np.arange(len(after)) % 16])
    else:
        np.testing.assert_allclose(after[[0, -1]], trained[[0, -1]], rtol=1e-6)
    assert found.config.trained_positions is found.model.config.trained_positions is None
