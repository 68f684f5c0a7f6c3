"""Loss functions that compare the examples of the whole global batch, in parts of any size.

With in-batch negatives, the loss of an example depends on the embeddings of all others. Embeddings
are small, so those of all microbatches and devices are collected; what is large, the activations of
the encoder, exists only for one microbatch at a time: the backward pass computes them again
(GradCache, Gao et al. 2021). The gradient is that of the batch in one piece, dropout included,
because the dropout masks of a row depend on its index.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from bertjax.model import BertWithHead
from bertjax.model.bert import MODEL_INPUTS
from bertjax.model.embedding_losses import GLOBAL
from bertjax.model.losses import Objective


class Split(NamedTuple):
    """How a global batch is computed.

    Attributes:
        examples: the maximum number of examples of a global batch.
        accumulation_steps: the number of microbatches of a device, computed one after the other.
        axis: the mesh axis whose devices hold different rows, if the loss function runs within a
            `shard_map` over this axis; None: it sees the rows of all devices.
        devices: the number of devices on the axis.
    """

    examples: int
    accumulation_steps: int = 1
    axis: str | None = None
    devices: int = 1


def make_global_loss_fn(model: BertWithHead, objective: Objective, split: Split):
    """Returns `loss_fn(params, batch, weights, dropout) -> (loss, sums)` as `make_loss_fn` does.

    On several devices, each of them computes the losses of a part of the examples, so that the sum
    over the devices is the loss of the global batch.

    Args:
        model: the model to train, whose outputs per sequence the objective takes.
        objective: the objective to minimise, which compares the examples of a batch.
        split: the microbatches and devices that a batch is split over.
    """

    def loss_fn(params, batch, weights, dropout):
        def encode(micro):
            inputs, rows = micro
            random = {}
            if model.is_random and dropout is not None:
                random = {"rngs": {"dropout": dropout.key}, "dropout_rows": rows}
            outputs: Any = model.apply({"params": params}, **inputs, **random)
            return {name: outputs[name] for name in model.sequence_outputs}

        inputs = {key: batch[key] for key in (*MODEL_INPUTS, *objective.inputs)}
        rows = None if dropout is None else dropout.rows
        outputs = _in_microbatches(encode, (inputs, rows), split.accumulation_steps)
        sums = objective.sums(*_by_example(outputs, batch, split))
        return objective.loss(sums, weights), sums

    return loss_fn


def _in_microbatches(encode, arrays: Any, steps: int) -> dict[str, jax.Array]:
    """Applies `encode` to arrays [b, ...] in `steps` microbatches; returns its outputs [b, ...].

    The backward pass applies `encode` to each microbatch again.
    """
    if steps == 1:
        return encode(arrays)

    def body(carry, micro):
        return carry, jax.checkpoint(encode, prevent_cse=False)(micro)

    # As in `step`, microbatches are cut so that each row stays on its device.
    micro = jax.tree.map(lambda x: x.reshape(-1, steps, *x.shape[1:]).swapaxes(0, 1), arrays)
    outputs = jax.lax.scan(body, None, micro)[1]
    return jax.tree.map(lambda x: x.swapaxes(0, 1).reshape(-1, *x.shape[2:]), outputs)


def _by_example(
    outputs: dict[str, jax.Array], batch: dict[str, jax.Array], split: Split
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns (outputs, batch) for the `sums` of an objective that compares examples.

    Args:
        outputs: arrays [b, K, ...] of the sequences in the rows of this device.
        batch: the batch, whose `label_weights` are [b, E]; E examples have K/E sequences each.
        split: the microbatches and devices.
    """
    examples = batch["label_weights"].shape[1]
    per_example = batch["example_ids"].shape[1] // examples
    ids = batch["example_ids"][:, ::per_example].reshape(-1)
    count = -(-split.examples // split.devices) * split.devices

    def collected(x: jax.Array) -> jax.Array:
        whole = jnp.zeros((count, *x.shape[1:]), x.dtype)
        # Unused places of a row have the index -1, which would mean the last example.
        whole = whole.at[jnp.where(ids < 0, count, ids)].set(x, mode="drop")
        return whole if split.axis is None else jax.lax.psum(whole, split.axis)

    everything = {
        key: collected(x.reshape(len(ids), per_example, *x.shape[2:])) for key, x in outputs.items()
    }
    labels = {
        key: collected(batch[key].reshape(len(ids), *batch[key].shape[2:]))
        for key in ("labels", "label_weights")
    }
    first = 0 if split.axis is None else jax.lax.axis_index(split.axis) * (count // split.devices)

    def own(x: jax.Array) -> jax.Array:
        return jax.lax.dynamic_slice_in_dim(x, first, count // split.devices)

    indices = first + jnp.arange(count // split.devices)
    return (
        {**{key: own(x) for key, x in everything.items()}, GLOBAL: everything},
        {**{key: own(x) for key, x in labels.items()}, "example_ids": indices, GLOBAL: labels},
    )
