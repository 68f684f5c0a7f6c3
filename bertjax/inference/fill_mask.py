"""Mask filling: predicts the most probable tokens for each [MASK] of a text."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from bertjax.data.batches.batch import layout, pad_to
from bertjax.files import brief
from bertjax.inference.buckets import cached_program, length_bucket
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
    limit = loaded.config.max_length
    masks = np.flatnonzero(np.array(ids) == loaded.tokenizer.mask_token_id)
    length = length_bucket(len(ids), limit)
    row = {
        "input_ids": pad_to(ids, length, loaded.tokenizer.pad_token_id),
        "token_type_ids": pad_to(types, length, 0),
        **layout([len(ids)], length, 1),
    }
    positions = pad_to(masks, length_bucket(len(masks), length, smallest=8), 0)
    inputs = [row[key][None] for key in MODEL_INPUTS]
    logits = compiled_program(for_inference(loaded.model))(loaded.params, inputs, positions[None])
    # If the vocabulary is padded for the device, some logits belong to ids without a token.
    logits = logits[: len(masks), : loaded.tokenizer.vocab_size]
    probabilities = np.asarray(jax.nn.softmax(logits))
    best = np.argsort(-probabilities, axis=-1)[:, :top_k]
    return [
        [(loaded.tokenizer.tokens[i], float(distribution[i])) for i in indices]
        for distribution, indices in zip(probabilities, best, strict=True)
    ]


@cached_program
def compiled_program(model: BertWithHead) -> Callable[..., jax.Array]:
    """Returns a jitted function (params, inputs, positions [1, P]) -> logits [P, V].

    `inputs` is a list of the arrays of a single row that `MODEL_INPUTS` names: input_ids [1, L]
    etc. The logits are those of the masked LM head, over a vocabulary of V tokens, at the P
    positions of the row.
    """

    def apply(params: Any, inputs: list[jax.Array], positions: jax.Array) -> jax.Array:
        outputs: Any = model.apply({"params": stacked(params)}, *inputs, masked_positions=positions)
        return outputs[mlm_key(outputs)][0]

    return jax.jit(apply)
