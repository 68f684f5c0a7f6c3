"""The train step and the evaluation step: loss, gradients and update, on any mesh.

`Program` compiles them. Losses that compare the examples of a global batch are a `GlobalLoss`.
Spikes of the loss are found as in OLMo (Groeneveld et al. 2024).
"""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.experimental.xla_metadata import set_xla_metadata
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from bertjax.devices import sharding
from bertjax.model import BertWithHead
from bertjax.model.bert import MODEL_INPUTS
from bertjax.model.embedding_losses import GLOBAL
from bertjax.model.losses import STEP, Objective
from bertjax.model.recipe import Params, Recipe
from bertjax.train.optimizer import Schedule

# A spike is defined by the mean and the standard deviation over this number of last steps, as in
# OLMo's SkipStepOptimizer. Until half as many steps are recorded, no step counts as a spike.
HISTORY = 128

# The key of the teacher's outputs in the outputs that an objective of distillation gets.
TEACHER = "teacher"


class LossHistory(NamedTuple):
    """The losses and gradient norms of the last steps in which both were finite.

    losses and grad_norms are float [HISTORY]: step i of the num_steps recorded ones (int32) stands
    at index i % HISTORY. sigma, a float, is the number of standard deviations above the mean that
    make a spike; 0: there are none. It is an array, so that another value needs no compilation.
    """

    losses: jax.Array
    grad_norms: jax.Array
    sigma: jax.Array
    num_steps: jax.Array


class TrainState(NamedTuple):
    """The state that a train step updates, as a pytree of arrays."""

    step: jax.Array
    """The number of train steps so far, including skipped updates; an int32 scalar."""
    params: Params
    """The trained parameters, a tree of float32 arrays."""
    fixed: Params
    """The other parameters, from which, with `params`, a `Recipe` makes those of the model."""
    opt_state: Any
    """The state of the optimizer, as Optax defines it."""
    history: LossHistory
    """The losses and gradient norms of the last steps in which both were finite, and the threshold
    above which a loss or gradient norm is a spike."""


def create_train_state(
    params: Params,
    fixed: Params,
    tx: optax.GradientTransformation,
    *,
    skip_spikes: float = 0.0,
) -> TrainState:
    """Creates the state before the first step; `skip_spikes` is `sigma` of `LossHistory`."""
    step = jnp.zeros((), jnp.int32)
    return TrainState(step, params, fixed, tx.init(params), empty_history(skip_spikes))


Batch = dict[str, jax.Array]


class DropoutKey(NamedTuple):
    """What determines the dropout masks of a batch: the PRNG key of the step, and the indices of
    the B rows in the global batch, int [B], which are folded into the key.
    """

    key: Any
    rows: Any


# (parameters of the model, batch, total weights of the losses in the global batch, DropoutKey or
# None: no dropout, parameters of the teacher or None) -> (loss, {metric: (sum, weight)})
LossFn = Callable[..., tuple[jax.Array, Any]]


@dataclasses.dataclass(frozen=True, eq=False)
class Steps:
    """The train step and the evaluation step of a model, not compiled.

    The loss is the mean over the global batch, and the dropout mask of a row depends only on the
    seed, the step and the index of the row: neither depends on how the rows are split over devices
    and microbatches.

    Attributes:
        loss_fn: as `make_loss_fn` returns it; the loss is a float32 scalar.
        weights_fn: a function batch -> {name of a loss: its total weight in the batch}.
        tx: the optimizer.
        schedule: a function step -> learning rate, for the metric "learning_rate".
        mesh: the mesh of the devices, whose axes "data" and "fsdp" share the rows of a batch.
        recipe: makes the parameters of the model from those of the state.
        accumulation_steps: the number of microbatches that each device's rows are split into.
        dropout_prng: the implementation of the dropout keys; with "rbg", dropout is faster, but the
            masks do depend on how the rows are split.
    """

    loss_fn: LossFn
    weights_fn: Callable[[Batch], dict[str, jax.Array]]
    tx: optax.GradientTransformationExtraArgs
    schedule: Schedule
    mesh: Mesh
    recipe: Recipe = Recipe()
    accumulation_steps: int = 1
    dropout_prng: str = "threefry2x32"

    def compiled(self, state: Any, rows: Any, teacher: Any = None) -> Any:
        """Returns `train_step` with `jax.jit`, which donates the state.

        The arguments are the shardings of the state, the batch and the teacher's parameters.
        """
        return jax.jit(
            sharding.within(self.mesh, self.train_step),
            in_shardings=(state, rows, None, teacher),
            out_shardings=(state, None),
            donate_argnums=0,
        )

    def eval_step(self, params: Params, batch: Batch, teacher: Params | None) -> Any:
        """Returns {metric: (sum, weight)} of the parameters of a model, without dropout."""
        return self.loss_fn(params, batch, self.weights_fn(batch), None, teacher)[1]

    def train_step(
        self, state: TrainState, batch: Batch, seed: jax.Array, teacher: Params | None
    ) -> tuple[TrainState, dict[str, Any]]:
        """Updates the state; returns (state, metrics).

        If the loss or the gradient norm is not finite or a spike, the update is skipped: parameters
        and optimizer state stay the same, except for the step count of the learning-rate schedule,
        and the metric "skipped" is true. Runs with different seeds share one compiled program.
        `teacher` are the parameters of the teacher; None: no distillation.
        """
        seed_key = jax.random.key(seed, impl=self.dropout_prng)
        key = jax.random.fold_in(seed_key, state.step)
        rows = jnp.arange(batch["input_ids"].shape[0])
        params = state.params, state.fixed, teacher
        weights = {**self.weights_fn(batch), STEP: state.step}
        loss, sums, grads = self._gradients(params, batch, weights, DropoutKey(key, rows))
        grad_norm = optax.tree.norm(grads)
        is_finite = jnp.isfinite(loss) & jnp.isfinite(grad_norm)
        is_good = is_finite & ~is_spike(state.history, loss, grad_norm)
        metrics = {
            # A step that is not finite does not count in the means of the metrics.
            "sums": _where(is_finite, sums, jax.tree.map(jnp.zeros_like, sums)),
            "loss": loss,
            "learning_rate": self.schedule(state.step),
            "grad_norm": grad_norm,
            "tokens": jnp.sum(batch["sequence_ids"] > 0),
            "skipped": ~is_good,
        }
        trained, opt_state = self._updated(state, grads, grad_norm, is_good)
        return TrainState(
            step=state.step + 1,
            params=trained,
            fixed=state.fixed,
            opt_state=opt_state,
            history=recorded(state.history, loss, grad_norm, is_finite),
        ), metrics

    def _gradients(self, params: Any, batch: Batch, weights: Any, dropout: DropoutKey) -> Any:
        """Returns loss, metric sums and gradients of a global batch on all devices of the mesh.

        `params` are (trained parameters, fixed parameters, parameters of the teacher or None).
        """
        if device_axis(self.mesh) is None:
            return self._accumulated(params, batch, weights, dropout)
        # Each device computes its gradients alone until the all-reduce. If the mesh also shards the
        # parameters, the compiler chooses the communication, because it cannot partition a gather
        # inside a shard_map that is manual over only one mesh axis.
        on_each_device = jax.shard_map(
            self._summed_over_devices,
            mesh=self.mesh,
            in_specs=(P(), P("data"), P(), DropoutKey(P(), P("data"))),
            out_specs=P(),
            check_vma=False,
        )
        return on_each_device(params, batch, weights, dropout)

    def _summed_over_devices(self, *arguments: Any) -> Any:
        return jax.lax.psum(self._accumulated(*arguments), "data")

    def _accumulated(self, params: Any, batch: Batch, weights: Any, dropout: DropoutKey) -> Any:
        """Adds up what `_row_gradients` returns over the microbatches."""
        # Because of jit, jax traces the function once for its two uses. `inline` keeps the compiled
        # program the same as without jit.
        row_gradients = jax.jit(self._row_gradients, inline=True)
        if self.accumulation_steps == 1:
            return row_gradients(params, batch, weights, dropout)

        def add(total: Any, micro: tuple[Batch, jax.Array]) -> tuple[Any, None]:
            batch, rows = micro
            of_rows = row_gradients(params, batch, weights, dropout._replace(rows=rows))
            return jax.tree.map(jnp.add, total, of_rows), None

        micro = microbatches((batch, dropout.rows), self.accumulation_steps)
        first, rows = jax.tree.map(lambda x: x[0], micro)
        shapes = jax.eval_shape(row_gradients, params, first, weights, dropout._replace(rows=rows))
        zeros = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes)
        return jax.lax.scan(add, zeros, micro)[0]

    def _row_gradients(self, params: Any, batch: Batch, weights: Any, dropout: DropoutKey) -> Any:
        """Returns loss, metric sums and gradients of the rows with the indices `dropout.rows`."""
        value_and_grad = jax.value_and_grad(self._loss, has_aux=True)
        (loss, sums), grads = value_and_grad(*params, batch, weights, dropout)
        return loss, sums, grads

    def _loss(self, trained: Params, fixed: Params, teacher: Params | None, *arguments: Any) -> Any:
        params = trained, fixed, teacher
        trained, fixed, teacher = sharding.gather_word_embeddings(self.mesh, params)
        return self.loss_fn(self.recipe.join(trained, fixed), *arguments, teacher)

    def _updated(self, state: TrainState, grads: Params, grad_norm: Any, is_good: Any) -> Any:
        """Returns the new parameters and optimizer state, or the old ones if not `is_good`."""
        arguments = grads, grad_norm, state.opt_state, state.params
        if self.mesh.size > 1 or self.mesh.devices.flat[0].platform != "cpu":
            return self._update(*arguments, is_good)
        # If XLA fused the update of the parameters with that of the optimizer state, it would read
        # copies of the old moments.
        params, is_good = _not_inlined(self._update_params, *arguments, is_good)
        return params, _not_inlined(self._update_opt_state, *arguments, is_good)

    def _update(self, grads: Params, norm: Any, opt_state: Any, params: Any, is_good: Any) -> Any:
        updates, new_opt_state = self.tx.update(grads, opt_state, params, norm=norm)
        new_params = optax.apply_updates(params, updates)
        return _where(is_good, new_params, params), _where(is_good, new_opt_state, opt_state)

    def _update_params(self, *arguments: Any) -> tuple[Params, jax.Array]:
        return self._update(*arguments)[0], arguments[-1]

    def _update_opt_state(self, *arguments: Any) -> Any:
        return self._update(*arguments)[1]


def _not_inlined(function: Callable[..., Any], *arguments: Any) -> Any:
    return set_xla_metadata(jax.jit(function)(*arguments), inlineable="false")


def _where(condition: jax.Array, new: Any, old: Any) -> Any:
    """Selects `new` or `old`; the schedule's step count, which counts all updates, is new."""
    counts = optax.ScaleByScheduleState
    return jax.tree.map(
        lambda new, old: new if isinstance(new, counts) else jnp.where(condition, new, old),
        new,
        old,
        is_leaf=lambda x: isinstance(x, counts),
    )


def microbatches(arrays: Any, steps: int) -> Any:
    """Cuts arrays [b, ...] into [A, b/A, ...], A microbatches."""
    # By way of [b/A, A] and not [A, b/A], each row stays on its device, even if rows are sharded.
    return jax.tree.map(lambda x: x.reshape(-1, steps, *x.shape[1:]).swapaxes(0, 1), arrays)


def device_axis(mesh: Mesh) -> str | None:
    """Returns the mesh axis over which each device computes its own rows, in a `shard_map`.

    None: there is one device, or the mesh shards the parameters as well.
    """
    if mesh.shape["data"] == mesh.size > 1:
        return "data"
    return None


def make_loss_fn(
    model: BertWithHead, objective: Objective | None = None, teacher: BertWithHead | None = None
) -> LossFn:
    """Returns the loss function `loss_fn(params, batch, weights, dropout, teacher's params)`.

    `params` are the parameters of the model. `weights` maps each loss to its total weight in the
    global batch, such as the number of masked tokens, by which the sum of the loss is divided.
    `dropout` is a `DropoutKey`, or None (no dropout). The function returns (loss, sums), of which
    `sums` maps each loss or metric to (sum of weighted values, sum of weights).

    Args:
        model: the model to train.
        objective: the objective to minimise; None: the pretraining objective of the model's head.
        teacher: reads the same batch without dropout, and `objective.sums` receives its outputs as
            `outputs[TEACHER]`. None: no distillation.
    """
    objective = objective or model.objective("pretraining")

    def loss_fn(params, batch, weights, dropout, teacher_params: Any = None):
        inputs = {key: batch[key] for key in (*MODEL_INPUTS, *objective.inputs)}
        outputs = apply_model(model, params, inputs, dropout)
        if teacher is not None:
            taught = teacher.apply({"params": teacher_params}, **inputs)
            outputs = {**outputs, TEACHER: jax.lax.stop_gradient(taught)}
        sums = objective.sums(outputs, batch)
        return objective.loss(sums, weights), sums

    return loss_fn


def apply_model(
    model: BertWithHead, params: Params, inputs: Any, dropout: DropoutKey | None
) -> Any:
    """Returns the outputs of a model, in training (`dropout` is not None) or evaluation."""
    if dropout is None or not model.is_random:
        return model.apply({"params": params}, **inputs)
    rngs = {"dropout": dropout.key}
    return model.apply({"params": params}, **inputs, rngs=rngs, dropout_rows=dropout.rows)


def empty_history(skip_spikes: float) -> LossHistory:
    """Returns a history without recorded steps, whose `sigma` is `skip_spikes`."""
    # `losses` and `grad_norms` must be separate arrays, because the train step donates both.
    return LossHistory(
        losses=jnp.zeros(HISTORY, jnp.float32),
        grad_norms=jnp.zeros(HISTORY, jnp.float32),
        sigma=jnp.asarray(skip_spikes, jnp.float32),
        num_steps=jnp.zeros((), jnp.int32),
    )


def is_spike(history: LossHistory, loss: Any, grad_norm: Any) -> jax.Array:
    """Returns whether the loss or the gradient norm of a step is a spike, a bool scalar.

    That is more than `history.sigma` standard deviations above the mean of `history`. With fewer
    than HISTORY // 2 recorded steps, or if sigma is 0, nothing is a spike (Groeneveld et al. 2024,
    and `SkipStepOptimizer` in OLMo-core).
    """
    known = jnp.arange(HISTORY) < history.num_steps
    size = jnp.minimum(history.num_steps, HISTORY).astype(jnp.float32)

    def is_over(values: jax.Array, value: Any) -> jax.Array:
        mean = jnp.sum(jnp.where(known, values, 0)) / jnp.maximum(size, 1)
        squares = jnp.sum(jnp.where(known, jnp.square(values - mean), 0))
        return value > mean + history.sigma * jnp.sqrt(squares / jnp.maximum(size - 1, 1))

    over = is_over(history.losses, loss) | is_over(history.grad_norms, grad_norm)
    return over & (history.num_steps >= HISTORY // 2) & (history.sigma > 0)


def recorded(history: LossHistory, loss: Any, grad_norm: Any, is_finite: Any) -> LossHistory:
    """Returns `history` with the loss and the gradient norm of a step, if they are finite.

    Spikes are recorded as well, so that a loss that stays at a higher level soon is no spike.
    """
    at = history.num_steps % HISTORY
    longer = LossHistory(
        history.losses.at[at].set(loss),
        history.grad_norms.at[at].set(grad_norm),
        history.sigma,
        history.num_steps + 1,
    )
    return jax.tree.map(lambda new, old: jnp.where(is_finite, new, old), longer, history)


@dataclasses.dataclass(frozen=True, eq=False)
class GlobalLoss:
    """The loss function of an objective that compares examples, such as in-batch negatives.

    The embeddings of all devices and microbatches, which are small, are computed first, and then
    the loss. The activations of the encoder exist for one microbatch at a time, since the backward
    pass computes them again (GradCache, Gao et al. 2021). On several devices, each computes the
    losses of a part of the examples, so that their sum is the loss of the global batch.

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
        all_outputs = {}
        all_labels = {}
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
