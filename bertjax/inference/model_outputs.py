"""Applies a model to arrays of any shape: in padded pieces, whose programs are compiled once."""

from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np

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

# Batch axis and token axes of each output whose first axis is not the batch axis.
AXES = {"hidden_states": (1, 2), "attentions": (1, 3, 4)}
# Divisor of `token_budget`, because the outputs of all layers and logits over the vocabulary take
# much memory.
BUDGET_SHARE = 4


def model_outputs(
    model: BertWithHead,
    params: Any,
    inputs: tuple[np.ndarray, ...],
    *,
    hidden_states: bool,
    attentions: bool,
    batch_size: int | None,
) -> dict[str, np.ndarray]:
    """Pads inputs, applies a model without dropout to some rows at a time, and cuts the padding.

    Args:
        model: the Flax linen module.
        params: its parameters on the device, from `inference_params`.
        inputs: token ids, token types and attention mask, int [B, L] each.
        hidden_states: whether to also return "hidden_states" [layers + 1, B, L, D].
        attentions: whether to also return "attentions" [layers, B, heads, L, L].
        batch_size: maximum number of rows that the device computes at once; None: chosen by L.

    Returns:
        The outputs of the model by name, with the B rows and L tokens of the inputs.
    """
    config = model.config
    rows, length = inputs[0].shape
    bucket = length_bucket(length, config.max_length)
    fills = (config.pad_token_id or 0, 0, 0)
    padded = [
        np.pad(values, ((0, 0), (0, bucket - length)), constant_values=fill)
        for values, fill in zip(inputs, fills, strict=True)
    ]
    program = compiled_program(for_inference(model), hidden_states, attentions)

    def start() -> Iterator[tuple[int, dict[str, jax.Array]]]:
        first, tokens = 0, token_budget(bucket, batch_size, share=BUDGET_SHARE)
        for size in piece_sizes(max(rows, 1), bucket, tokens):
            piece = (pad_rows(values[first : first + size], size) for values in padded)
            yield min(size, rows - first), program(params, *piece)
            first += size

    pieces: dict[str, list[np.ndarray]] = {}
    for size, outputs in read_behind(start()):
        for key, values in outputs.items():
            cut = _cut(model, key, np.asarray(values), size, length)
            pieces.setdefault(key, []).append(cut)
    return {
        key: values[0] if len(values) == 1 else np.concatenate(values, AXES.get(key, (0,))[0])
        for key, values in pieces.items()
    }


def _cut(model: BertWithHead, key: str, values: np.ndarray, rows: int, length: int) -> np.ndarray:
    """Removes padding from `values`, the output named `key` for some rows of a padded batch.

    The result has the first `rows` rows and, if `values` has axes that index the tokens of a row,
    only the first `length` tokens on these axes.
    """
    if key in ("pooler_output", *model.sequence_outputs):
        return values[:rows]
    row_axis, *token_axes = AXES.get(key, (0, 1))
    cut = [slice(None)] * values.ndim
    cut[row_axis] = slice(rows)
    for axis in token_axes:
        cut[axis] = slice(length)
    return values[tuple(cut)]


@cached_program
def compiled_program(
    model: BertWithHead, hidden_states: bool, attentions: bool
) -> Callable[..., dict[str, jax.Array]]:
    """Returns the jitted function (params, ids, types, mask) -> {name of an output: array}.

    ids, types and mask are int [B, L]: the token ids, the token types, and 1 for tokens or 0 for
    padding. The outputs are those of `model`; `hidden_states` and `attentions` tell whether these
    are returned as well.
    """

    def apply(params: Any, ids: jax.Array, types: jax.Array, mask: jax.Array) -> Any:
        outputs, state = model.apply(
            {"params": stacked(params)},
            ids,
            types,
            attention_mask=mask,
            output_hidden_states=hidden_states,
            mutable=["intermediates"] if attentions else [],
        )
        if attentions:
            layers = state["intermediates"]["bert"]["encoder"]["layers"]
            probs: Any = layers["attention"]["attention_probs"][0]  # [groups, layers, B, N, L, L]
            outputs["attentions"] = probs.reshape(-1, *probs.shape[-4:])
        return outputs

    return jax.jit(apply)
