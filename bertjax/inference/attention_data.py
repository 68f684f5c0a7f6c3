"""What `bertjax.visualize` shows of a model and a text, in the form in which a page holds it."""

import base64
import gzip
from typing import Any

import numpy as np

from bertjax.files import brief
from bertjax.inference.fill_mask import fill_masked_ids
from bertjax.inference.pretrained import Pretrained

# Number of words that are shown at a masked token.
CANDIDATES = 8
# Up to this number of tokens, the candidates at every token are computed, which takes one forward
# pass per token.
MASKED_UP_TO = 64
# Up to this number of tokens, probabilities are stored in 16 bits, above it in 8.
FINE_UP_TO = 64
# A page must not exceed 5 MB, of which this number of bytes is for the attention.
MAX_ATTENTION_BYTES = 4_500_000


def attention_data(model: Pretrained, text: str, pair: str | None = None) -> dict[str, Any]:
    """Computes attention, candidates of masked tokens, and changes of the hidden states.

    Args:
        model: a model with a tokenizer.
        text: the text; it may contain [MASK].
        pair: a second text; None: a single text.

    Returns:
        A dict of JSON values, namely "tokens", their "segments" (0 or 1) and whether they are
        "special"; "layers", "heads" and "attention", see `packed`; "candidates" {position: [[token,
        probability], ...]}; and "change", lists [layers, tokens] of 1 - cosine between the hidden
        states before and after a layer.

    Raises:
        ValueError: the text is empty, or longer than the model can read.
    """
    if not text.strip():
        raise ValueError("The text is empty: give a text to look at.")
    tokenizer = model.loaded.tokenizer
    ids, types = tokenizer.encode_prompt(text, pair)
    if len(ids) > model.config.max_length:
        raise ValueError(
            f"{brief(text)!r} has {len(ids)} tokens, but the model reads at most "
            f"{model.config.max_length}: shorten it."
        )
    row = np.asarray(ids, np.int32)[None]
    outputs = model(
        input_ids=row,
        token_type_ids=np.asarray(types, np.int32)[None],
        output_attentions=True,
        output_hidden_states=True,
    )
    attention = outputs["attentions"][:, 0]  # [layers, heads, L, L]
    special = {tokenizer.cls_token_id, tokenizer.sep_token_id, tokenizer.pad_token_id}
    return {
        "tokens": [tokenizer.tokens[i] for i in ids],
        "segments": _segments(ids, types, tokenizer.sep_token_id, pair is not None),
        "special": [i in special for i in ids],
        "layers": attention.shape[0],
        "heads": attention.shape[1],
        "attention": packed(attention),
        "candidates": _candidates(model, ids, types),
        "change": _changes(outputs["hidden_states"][:, 0]),
    }


def _segments(ids: list[int], types: list[int], separator: int, is_pair: bool) -> list[int]:
    """Returns 0 for the tokens of the first text and 1 for those of the second.

    Families without token types, such as RoBERTa, separate the texts by separators alone.
    """
    if any(types) or not is_pair:
        return [int(t) for t in types]
    first = ids.index(separator)
    return [int(position > first) for position in range(len(ids))]


def packed(attention: np.ndarray) -> dict[str, Any]:
    """Compresses attention probabilities [layers, heads, L, L].

    Returns:
        A dict of "levels" n, "threshold" t, and "gzip", compressed integers in base64. A
        probability p is stored as round(p * n), in 16 bits (little endian) if n > 255, else in 8
        bits; probabilities below t, which is 0 unless the page would exceed its maximum size, as 0.
    """
    fine = attention.shape[-1] <= FINE_UP_TO
    levels = 65535 if fine else 255
    threshold = 0.0
    while True:
        kept = np.where(attention < threshold, 0.0, attention)
        values = np.round(kept * levels).astype("<u2" if fine else np.uint8)
        text = base64.b64encode(gzip.compress(values.tobytes(), 6, mtime=0)).decode()
        if len(text) <= MAX_ATTENTION_BYTES:
            return {"levels": levels, "threshold": threshold, "gzip": text}
        threshold = max(2 * threshold, 2 / levels)


def _changes(hidden_states: np.ndarray) -> list[list[float]]:
    """Returns 1 - cosine of hidden states [layers + 1, L, D] before and after each layer."""
    before, after = hidden_states[:-1].astype(np.float64), hidden_states[1:].astype(np.float64)
    norms = np.linalg.norm(before, axis=-1) * np.linalg.norm(after, axis=-1)
    cosines = (before * after).sum(-1) / np.maximum(norms, 1e-12)
    return np.round(1 - cosines, 4).tolist()


def _candidates(model: Pretrained, ids: list[int], types: list[int]) -> dict[str, Any]:
    """Returns {position: [[token, probability], ...]} of the tokens whose candidates are computed.

    These are the mask tokens and, in a short text, all tokens but special ones, each masked alone.
    """
    masked_lm = model.masked_lm
    if "predictions" in masked_lm.absent:
        return {}
    tokenizer = model.loaded.tokenizer
    special = {tokenizer.cls_token_id, tokenizer.sep_token_id, tokenizer.pad_token_id}
    masks = [n for n, i in enumerate(ids) if i == tokenizer.mask_token_id]
    positions = [n for n, i in enumerate(ids) if i not in special]
    positions = positions if len(ids) <= MASKED_UP_TO else masks
    found: dict[str, Any] = {}
    for position in positions:
        masked = list(ids)
        masked[position] = tokenizer.mask_token_id
        number = masked[:position].count(tokenizer.mask_token_id)
        words = fill_masked_ids(masked_lm, masked, types, CANDIDATES)[number]
        found[str(position)] = [[token, round(p, 5)] for token, p in words]
    return found
