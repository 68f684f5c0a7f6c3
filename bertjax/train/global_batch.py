"""Losses that compare the examples of a global batch, such as in-batch negatives.

The embeddings of all devices and microbatches, which are small, are computed first, and then the
loss. The activations of the encoder exist for one microbatch at a time, since the backward pass
computes them again (GradCache, Gao et al. 2021).
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from bertjax.model import BertWithHead
from bertjax.model.bert import MODEL_INPUTS
from bertjax.model.embedding_losses import GLOBAL
from bertjax.model.losses import Objective
from bertjax.model.recipe import Params
from bertjax.train.step import Batch, DropoutKey, apply_model, microbatches


@dataclasses.dataclass(frozen=True, eq=False)
class GlobalLoss:
    """The loss function of an objective that compares examples, as `make_loss_fn` returns it.

    On several devices, each computes the losses of a part of the examples, so that the sum over the
    devices is the loss of the global batch.

    Attributes:
        model: the model to train.
        objective: the objective to minimise.
        examples: the maximum number of examples of a global batch.
        accumulation_steps: the number of microbatches of a device.
        axis: the mesh axis whose devices hold different rows, if the loss function runs within a
            `shard_map` over it; None: it sees the rows of all devices.
        devices: the number of devices on the axis.
    """

    model: BertWithHead
    objective: Objective
    examples: int
    accumulation_steps: int = 1
    axis: str | None = None
    devices: int = 1

    def __call__(
        self,
        params: Params,
        batch: Batch,
        weights: Any,
        dropout: DropoutKey | None,
        teacher_params: Any = None,
    ) -> tuple[jax.Array, Any]:
        del teacher_params  # none of these objectives learns from a teacher's outputs
        inputs = {key: batch[key] for key in (*MODEL_INPUTS, *self.objective.inputs)}
        outputs = self._outputs(params, inputs, dropout)
        sums = self.objective.sums(*self._by_example(outputs, batch))
        return self.objective.loss(sums, weights), sums

    def _outputs(self, params: Params, inputs: Batch, dropout: DropoutKey | None) -> Batch:
        """Encodes the rows in microbatches, and again in the backward pass."""
        if self.accumulation_steps == 1:
            return self._encoded(params, inputs, dropout)
        encoded = jax.checkpoint(self._encoded, prevent_cse=False)

        def encode(carry: None, micro: tuple[Batch, Any]) -> tuple[None, Batch]:
            inputs, rows = micro
            return carry, encoded(params, inputs, dropout and dropout._replace(rows=rows))

        rows = dropout and dropout.rows
        micro = microbatches((inputs, rows), self.accumulation_steps)
        outputs = jax.lax.scan(encode, None, micro)[1]
        return jax.tree.map(lambda x: x.swapaxes(0, 1).reshape(-1, *x.shape[2:]), outputs)

    def _encoded(self, params: Params, inputs: Batch, dropout: DropoutKey | None) -> Batch:
        outputs = apply_model(self.model, params, inputs, dropout)
        return {name: outputs[name] for name in self.model.sequence_outputs}

    def _by_example(self, outputs: Batch, batch: Batch) -> tuple[dict[str, Any], dict[str, Any]]:
        """Returns (outputs, batch) for the `sums` of an objective that compares examples.

        `outputs` are arrays [b, K, ...] of the sequences in the rows of this device;
        `label_weights` of `batch` are [b, E], for E examples of K/E sequences each.
        """
        per_example = batch["example_ids"].shape[1] // batch["label_weights"].shape[1]
        ids = batch["example_ids"][:, ::per_example].reshape(-1)
        all_outputs, all_labels = {}, {}
        for name, x in outputs.items():
            sequences = x.reshape(len(ids), per_example, *x.shape[2:])
            all_outputs[name] = self._collected(sequences, ids)
        for name in ("labels", "label_weights"):
            x = batch[name]
            all_labels[name] = self._collected(x.reshape(len(ids), *x.shape[2:]), ids)
        first = 0
        if self.axis is not None:
            first = jax.lax.axis_index(self.axis) * self._part
        own_outputs, own_labels = jax.tree.map(
            lambda x: jax.lax.dynamic_slice_in_dim(x, first, self._part), (all_outputs, all_labels)
        )
        own_labels["example_ids"] = first + jnp.arange(self._part)
        return {**own_outputs, GLOBAL: all_outputs}, {**own_labels, GLOBAL: all_labels}

    @property
    def _part(self) -> int:
        """The number of examples whose losses a device computes."""
        return -(-self.examples // self.devices)

    def _collected(self, x: jax.Array, ids: jax.Array) -> jax.Array:
        """Collects the examples of all devices, ordered by their ids."""
        count = self._part * self.devices
        whole = jnp.zeros((count, *x.shape[1:]), x.dtype)
        # Unused places of a row have the index -1, which would mean the last example.
        whole = whole.at[jnp.where(ids < 0, count, ids)].set(x, mode="drop")
        if self.axis is None:
            return whole
        return jax.lax.psum(whole, self.axis)
