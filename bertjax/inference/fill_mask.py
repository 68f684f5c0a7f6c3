"""Mask filling: predicts the most probable tokens for each [MASK] of a text."""

from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np

from bertjax.base.files import brief
from bertjax.data.batches.batch import layout, pad_to
from bertjax.inference.buckets import (
    cached_program,
    length_bucket,
    pad_rows,
    piece_sizes,
    read_behind,
    token_budget,
)
from bertjax.inference.inference_params import for_inference, stacked
from bertjax.model import BertWithHead
from bertjax.model.bert import MODEL_INPUTS
from bertjax.model.losses import mlm_key
from bertjax.weights import LoadedModel


def fill_mask(loaded: LoadedModel, text: str, top_k: int = 5) -> list[list[tuple[str, float]]]:
    """Predicts the `top_k` most probable tokens for each mask token in `text`.

    The mask token depends on the model's tokenizer: [MASK] for BERT, `<mask>` for RoBERTa. `loaded`
    is a model with a masked LM head, whose parameters may be on the device.

    Returns:
        For each mask token, a list of (token, probability) with the most probable token first.

    Raises:
        ValueError: `text` is not one text, has no mask token or is longer than the model's maximum
            length, or the model has no masked LM head, or `top_k` is below 1.
    """
    if not isinstance(text, str):
        raise ValueError(f"text is {brief(repr(text), 60)}: fill_mask takes one text at a time.")
    if top_k < 1:
        raise ValueError(f"top_k={top_k}: it must be at least 1.")
    if "predictions" in loaded.absent:
        raise ValueError(
            f"{loaded.source.where} has no trained masked LM head, so the model cannot fill a "
            "mask: use a model that was pretrained with masked words."
        )
    ids, types = loaded.tokenizer.encode_prompt(text)
    masks = np.flatnonzero(np.array(ids) == loaded.tokenizer.mask_token_id)
    if not len(masks):
        mask = loaded.tokenizer.layout.special_tokens.mask
        raise ValueError(f"No {mask} in {brief(text)!r}: write {mask} where a word is missing.")
    limit = loaded.config.max_length
    if len(ids) > limit:
        raise ValueError(
            f"The text has {len(ids)} tokens, but the model reads at most {limit}: shorten it."
        )
    return fill_masked_ids(loaded, ids, types, top_k)


def fill_masked_ids(
    loaded: LoadedModel, ids: list[int], types: list[int], top_k: int
) -> list[list[tuple[str, float]]]:
    """Predicts tokens as `fill_mask` does, for a text of token ids and token types.

    `loaded`, `top_k` and the result are those of `fill_mask`.
    """
    masks = np.flatnonzero(np.array(ids) == loaded.tokenizer.mask_token_id)
    rows = np.array(ids, np.int32)[None]
    (probabilities,) = word_probabilities(loaded, rows, types, masks[None])
    tokens = loaded.tokenizer.tokens
    return [
        [(tokens[i], float(distribution[i])) for i in most_probable(distribution, top_k)]
        for distribution in probabilities
    ]


def most_probable(distribution: np.ndarray, top_k: int) -> list[int]:
    """Returns the ids of the most probable tokens, the most probable first.

    Args:
        distribution: the probabilities of all tokens, [V].
        top_k: number of ids; if it is larger than V, all V ids are returned.
    """
    top_k = min(top_k, len(distribution))
    best = np.argpartition(-distribution, top_k - 1)[:top_k]
    return best[np.argsort(-distribution[best], kind="stable")].tolist()


def word_probabilities(
    loaded: LoadedModel, rows: np.ndarray, types: list[int], positions: np.ndarray
) -> Iterator[np.ndarray]:
    """Computes the distributions over the vocabulary at some positions of texts of equal length.

    Rows are padded to one of a few lengths and computed in pieces of one of a few numbers of rows,
    so that texts of different lengths share compiled programs. A model that is a decoder predicts
    a token from the tokens before it, so its distribution at a position is that of the output at
    the position before.

    Args:
        loaded: a model with a masked LM head.
        rows: token ids, int [B, L].
        types: the token types of all rows, L of them.
        positions: int [B, P], the positions whose tokens are predicted.

    Yields:
        For each row, its probabilities, float32 [P, V], where V is the size of the vocabulary.
    """
    limit, tokenizer = loaded.config.max_length, loaded.tokenizer
    count = rows.shape[1]
    length = length_bucket(count, limit)
    width = length_bucket(positions.shape[1], length, smallest=8 if len(rows) == 1 else 1)
    ids = np.pad(rows, ((0, 0), (0, length - count)), constant_values=tokenizer.pad_token_id)
    if loaded.config.is_decoder:
        positions = np.maximum(positions - 1, 0)
    places = np.pad(positions.astype(np.int32), ((0, 0), (0, width - positions.shape[1])))
    row = {"token_type_ids": pad_to(types, length, 0), **layout([count], length, 1)}
    program = compiled_program(for_inference(loaded.model))

    def start() -> Iterator[tuple[int, jax.Array]]:
        first = 0
        for size in piece_sizes(len(rows), length, token_budget(length, None)):
            piece = {key: np.repeat(row[key][None], size, 0) for key in MODEL_INPUTS if key in row}
            piece["input_ids"] = pad_rows(ids[first : first + size], size)
            inputs = [piece[key] for key in MODEL_INPUTS]
            masked = pad_rows(places[first : first + size], size)
            yield min(size, len(rows) - first), program(loaded.params, inputs, masked)
            first += size

    for used, logits in read_behind(start()):
        # If the vocabulary is padded for the device, some logits belong to ids without a token.
        logits = logits[:used, : positions.shape[1], : tokenizer.vocab_size]
        yield from np.asarray(jax.nn.softmax(logits))


@cached_program
def compiled_program(model: BertWithHead) -> Callable[..., jax.Array]:
    """Returns a jitted function (params, inputs, positions [B, P]) -> logits [B, P, V].

    `inputs` is a list of the arrays of B rows that `MODEL_INPUTS` names: input_ids [B, L] etc. The
    logits are those of the masked LM head, over a vocabulary of V tokens, at the P positions of
    each row.
    """

    def apply(params: Any, inputs: list[jax.Array], positions: jax.Array) -> jax.Array:
        outputs: Any = model.apply({"params": stacked(params)}, *inputs, masked_positions=positions)
        return outputs[mlm_key(outputs)]

    return jax.jit(apply)
