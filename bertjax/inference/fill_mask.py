"""The words that a masked LM finds for the gaps of a text."""

from typing import Any

import jax
import numpy as np

from bertjax.data.batches.batch import layout
from bertjax.model.losses import mlm_key
from bertjax.weights import LoadedModel


def fill_mask(loaded: LoadedModel, text: str, top_k: int = 5) -> list[list[tuple[str, float]]]:
    """For each mask ([MASK], or as the family writes it) the `top_k` best tokens of `text`.

    Returns:
        The tokens of each mask with their probabilities, the best first.

    Raises:
        ValueError: no mask in the text, a text longer than the model reads, or a model without
            the MLM head.
    """
    if "predictions" in loaded.absent:
        raise ValueError("This model has no masked LM head, so it cannot fill a mask.")
    ids, types = loaded.tokenizer.encode_prompt(text)
    masks = np.flatnonzero(np.array(ids) == loaded.tokenizer.mask_token_id)
    if not len(masks):
        mask = loaded.tokenizer.layout.special_tokens.mask
        raise ValueError(f"No {mask} in {text!r}: write {mask} where a word is to be found.")
    if len(ids) > loaded.config.max_length:
        raise ValueError(
            f"The text has {len(ids)} tokens, the model reads at most "
            f"{loaded.config.max_length}: shorten it."
        )
    row = layout([len(ids)], len(ids), 1)
    outputs: Any = loaded.model.apply(
        {"params": loaded.params},
        np.array([ids]),
        np.array([types]),
        row["position_ids"][None],
        row["sequence_ids"][None],
        row["sequence_starts"][None],
        masked_positions=masks[None],
    )
    # A vocabulary padded for the device has scores for ids that are no token.
    logits = outputs[mlm_key(outputs)][0, :, : loaded.tokenizer.vocab_size]
    probabilities = np.asarray(jax.nn.softmax(logits))
    best = np.argsort(-probabilities, axis=-1)[:, :top_k]
    return [
        [(loaded.tokenizer.tokens[i], float(of_mask[i])) for i in of_best]
        for of_mask, of_best in zip(probabilities, best, strict=True)
    ]
