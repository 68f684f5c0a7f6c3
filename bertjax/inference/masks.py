"""Mask filling: the most probable tokens for each [MASK] of a text, and what a page shows of it."""

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np

from bertjax.base.checked import Count, check
from bertjax.base.files import brief
from bertjax.data.batches.batch import pad_to
from bertjax.inference.predictor import (
    compiled_program,
    for_inference,
    in_pieces,
    length_bucket,
    token_budget,
)
from bertjax.model import BertWithHead
from bertjax.model.losses import mlm_key
from bertjax.weights import LoadedModel


def fill_mask(loaded: LoadedModel, text: str, top_k: int = 5) -> list[list[tuple[str, float]]]:
    """Predicts the `top_k` most probable tokens for each mask token in `text`.

    The mask token depends on the model's tokenizer: [MASK] for BERT, `<mask>` for RoBERTa. Returns
    a list of (token, probability), most probable first, for each mask token. Raises ValueError if
    `text` is not one text with a mask that fits, or the model has no masked LM head.
    """
    if not isinstance(text, str):
        raise ValueError(f"text is {brief(repr(text), 60)}: fill_mask takes one text at a time.")
    check("top_k", top_k, Count)
    if "predictions" in loaded.absent:
        raise ValueError(
            f"{loaded.source.where} has no trained masked LM head, so the model cannot fill a "
            "mask: use a model that was pretrained with masked words."
        )
    tokenizer = loaded.tokenizer
    ids, types = encoded(loaded, text, None)
    rows = np.array([ids], np.int32)
    masks = np.flatnonzero(rows == tokenizer.mask_token_id)
    if not len(masks):
        mask = tokenizer.layout.special_tokens.mask
        raise ValueError(f"No {mask} in {brief(text)!r}: write {mask} where a word is missing.")
    (distributions,) = word_probabilities(loaded, rows, types, masks[None])
    words_of_masks = []
    for distribution in distributions:
        words = []
        for i in most_probable(distribution, top_k):
            words.append((tokenizer.tokens[i], float(distribution[i])))
        words_of_masks.append(words)
    return words_of_masks


def most_probable(distribution: np.ndarray, top_k: int) -> list[int]:
    """Returns the ids of the `top_k` most probable tokens of a `distribution` [V], in order."""
    top_k = min(top_k, len(distribution))
    best = np.argpartition(-distribution, top_k - 1)[:top_k]
    return best[np.argsort(-distribution[best], kind="stable")].tolist()


def word_probabilities(
    loaded: LoadedModel, rows: np.ndarray, types: list[int], positions: np.ndarray
) -> Iterator[np.ndarray]:
    """Computes the distributions over the vocabulary at some positions of texts of equal length.

    `rows` are token ids, int [B, L], `types` the L token types of all rows, and `positions` int
    [B, P]. Yields float32 [P, V] for each row and the vocabulary of V tokens. Sizes are padded, so
    that texts share compiled programs. A decoder predicts a token from the tokens before it, so the
    output at the position before counts.
    """
    tokenizer = loaded.tokenizer
    count = rows.shape[1]
    width = positions.shape[1]
    length = length_bucket(count, loaded.config.max_length)
    smallest = 1
    if len(rows) == 1:
        smallest = 8
    padded_width = length_bucket(width, length, smallest=smallest)
    if loaded.config.is_decoder:
        positions = np.maximum(positions - 1, 0)
    ids = rows.astype(np.int32)
    places = positions.astype(np.int32)
    behind = ((0, 0), (0, length - count))
    behind_places = ((0, 0), (0, padded_width - width))
    token_types = pad_to(types, length, 0)
    batch = {
        "input_ids": np.pad(ids, behind, constant_values=tokenizer.pad_token_id),
        "token_type_ids": np.broadcast_to(token_types, (len(rows), length)),
        "attention_mask": np.pad(np.ones_like(rows), behind),
        "masked_positions": np.pad(places, behind_places),
    }
    program = compiled_program(for_inference(loaded.model), read_masked_lm)
    budget = token_budget(length, None)
    for used, logits in in_pieces(program, loaded.params, batch, budget):
        # If the vocabulary is padded for the device, some logits belong to ids without a token.
        logits = logits[:used, :width, : tokenizer.vocab_size]
        yield from np.asarray(jax.nn.softmax(logits))


def read_masked_lm(model: BertWithHead, outputs: dict[str, Any]) -> jax.Array:
    """Returns the logits of the masked LM head, float32 [B, P, V]."""
    return outputs[mlm_key(outputs)]


# Number of words that are shown at a masked token, unless the caller chooses it.
WORDS = 8
# The words at every token are computed if they need at most this number of floating-point
# operations, about two seconds on two cores of a CPU; else only the words at mask tokens.
MAX_OPERATIONS = 1e11


def model_name(model: str) -> str:
    """Returns a short name of a model for the title of a page."""
    if not Path(model).exists():
        return model
    folder = Path(model).resolve()
    if folder.name != "model":
        return folder.name
    # The model of a run is in its folder `model`, whose name says nothing.
    return f"{folder.parent.name}/model"


def encoded(loaded: LoadedModel, text: str, pair: str | None) -> tuple[list[int], list[int]]:
    """Returns the token ids and the token types of a text, or of a text pair.

    Raises:
        ValueError: the text is empty, or longer than the model can read.
    """
    if not text.strip():
        raise ValueError("The text is empty: give a text to look at.")
    ids, types = loaded.tokenizer.encode_prompt(text, pair)
    if len(ids) > loaded.config.max_length:
        raise ValueError(
            f"{brief(text)!r} has {len(ids)} tokens, but the model reads at most "
            f"{loaded.config.max_length}: shorten it."
        )
    return ids, types


def text_view(
    masked_lm: LoadedModel,
    ids: list[int],
    types: list[int],
    *,
    is_pair: bool = False,
    top_k: int = WORDS,
) -> dict[str, Any]:
    """Computes the JSON values that pages show of the token ids of a text or text pair.

    They are "tokens", as people read them; "segments", the text that each token belongs to, 0 or 1;
    "special", whether each token is a special one, but no mask; "masks", the positions of mask
    tokens, from 0; "mask_token"; "words", the result of `expected_words`; "is_decoder", whether
    words are predicted from the tokens before them only; and "has_words", whether the model has a
    trained masked LM head.
    """
    tokenizer = masked_lm.tokenizer
    return {
        "tokens": readable_tokens(masked_lm, ids),
        "segments": _segments(ids, types, tokenizer.sep_token_id, is_pair),
        "special": [_is_special(masked_lm, i) for i in ids],
        "mask_token": tokenizer.layout.special_tokens.mask,
        "masks": [n for n, i in enumerate(ids) if i == tokenizer.mask_token_id],
        "words": expected_words(masked_lm, ids, types, top_k),
        "is_decoder": masked_lm.config.is_decoder,
        "has_words": "predictions" not in masked_lm.absent,
    }


def readable_tokens(loaded: LoadedModel, ids: list[int]) -> list[str]:
    """Returns the tokens of ids, as people read them."""
    tokenizer = loaded.tokenizer
    return [tokenizer.readable(tokenizer.tokens[i]) for i in ids]


def _is_special(loaded: LoadedModel, token_id: int) -> bool:
    tokenizer = loaded.tokenizer
    return token_id in {tokenizer.cls_token_id, tokenizer.sep_token_id, tokenizer.pad_token_id}


def _segments(ids: list[int], types: list[int], separator: int, is_pair: bool) -> list[int]:
    # Families without token types, such as RoBERTa, separate the texts by separators alone.
    if any(types) or not is_pair:
        return [int(t) for t in types]
    length = ids.index(separator) + 1
    return [0] * length + [1] * (len(ids) - length)


def expected_words(
    masked_lm: LoadedModel, ids: list[int], types: list[int], top_k: int
) -> dict[str, Any]:
    """Computes the most probable tokens at the mask tokens and, if this is fast, at all others.

    Every other token is masked alone; special tokens are not masked. A decoder predicts each token
    from the tokens before it, without a mask.

    Returns {position, from 0, as a string: `{"top": [[token, probability], ...]}`}, most probable
    first; {} without a trained masked LM head. At a token that is no mask, "actual" is the
    probability and the rank, from 1, of this token.
    """
    tokenizer = masked_lm.tokenizer
    is_decoder = masked_lm.config.is_decoder
    if "predictions" in masked_lm.absent:
        return {}
    masks = [n for n, i in enumerate(ids) if i == tokenizer.mask_token_id]
    positions = [n for n, i in enumerate(ids) if not _is_special(masked_lm, i)]
    if not is_decoder and _operations(masked_lm, len(ids)) * len(positions) > MAX_OPERATIONS:
        positions = masks
    if not positions:
        return {}
    if is_decoder:
        rows = np.array([ids], np.int32)
        places = np.array([positions])
    else:
        rows = np.tile(np.array(ids, np.int32), (len(positions), 1))
        places = np.array(positions)[:, None]
        np.put_along_axis(rows, places, tokenizer.mask_token_id, axis=1)
    words: dict[str, Any] = {}
    by_row = word_probabilities(masked_lm, rows, types, places)
    distributions = itertools.chain.from_iterable(by_row)
    for position, distribution in zip(positions, distributions, strict=True):
        words[str(position)] = entry = {"top": []}
        for i in most_probable(distribution, top_k):
            word = tokenizer.readable(tokenizer.tokens[i])
            entry["top"].append([word, _rounded(distribution[i])])
        if position not in masks:
            probability = distribution[ids[position]]
            rank = 1 + int((distribution > probability).sum())
            entry["actual"] = [_rounded(probability), rank]
    return words


def _operations(loaded: LoadedModel, length: int) -> float:
    """Estimates the floating-point operations for a text of `length` tokens with one masked."""
    config = loaded.config
    hidden = config.hidden_size
    matrices = 4 * hidden**2 + 2 * hidden * config.intermediate_size
    # A softmax takes about as long as 30 operations of a matrix product per value.
    attention = length * (4 * hidden + 30 * config.num_attention_heads)
    head = 2 * hidden * config.vocab_size
    layer = length * (2 * matrices + attention)
    return config.num_hidden_layers * layer + head


def _rounded(probability: Any) -> float:
    return float(f"{probability:.4g}")
