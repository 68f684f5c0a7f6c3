"""Creates the train step and the evaluation step of a loss function for the devices of a mesh."""

import itertools
from collections.abc import Callable, Collection
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from bertjax.train.loss_history import is_spike, recorded
from bertjax.train.schedule import Schedule
from bertjax.train.state import TrainState, split_params

Batch = dict[str, jax.Array]


class DropoutKey(NamedTuple):
    """The PRNG key and the row indices that determine the dropout masks of a batch.

    Attributes:
        key: the PRNG key of the train step.
        rows: the index of each of the B rows in the global batch, int [B], folded into `key`.
    """

    key: jax.Array
    rows: jax.Array


# (params, batch, total weights of the losses in the global batch, DropoutKey or None: no dropout)
# -> (loss, {metric: (sum, weight)})
LossFn = Callable[[Any, Batch, dict[str, jax.Array], DropoutKey | None], tuple[jax.Array, Any]]
WeightsFn = Callable[[Batch], dict[str, jax.Array]]
# (params, batch, total weights of the losses in the global batch, PRNG key of the step, indices of
# the rows in the global batch) -> (loss, {metric: (sum, weight)}, gradients)
RowGrads = Callable[..., Any]


def make_train_step(
    loss_fn: LossFn,
    weights_fn: WeightsFn,
    tx: optax.GradientTransformation,
    schedule: Schedule,
    *,
    mesh: Mesh,
    accumulation_steps: int = 1,
    frozen: Collection[str] = (),
    dropout_prng: str = "threefry2x32",
) -> Callable[[TrainState, Batch, Any], tuple[TrainState, dict[str, Any]]]:
    """Returns the uncompiled `train_step(state, batch, seed, *constants) -> (state, metrics)`.

    The loss is the mean over the global batch, and the dropout mask of a row depends only on the
    seed, the step and the index of the row in the global batch. Therefore, loss and masks do not
    depend on how the rows are split over devices and microbatches. The seed is an argument of
    `train_step`, so that runs with different seeds share one compiled program. `constants` is empty
    or, in distillation, one dictionary with the frozen parameters of the teacher, which the state
    does not contain.

    If the loss or the gradient norm is not finite or a spike (far above the mean of the last
    steps), the update is skipped: the parameters and the optimizer state, except for the step count
    of the learning-rate schedule, stay the same, and the metric "skipped" is true.

    Args:
        loss_fn: a function (params, batch, total weights of the losses in the global batch, dropout
            key) -> (loss, {metric: (weighted sum, sum of weights)}); the loss is a float32 scalar.
        weights_fn: a function batch -> {name of a loss: its total weight in the batch}.
        tx: the optimizer.
        schedule: a function step -> learning rate, for the metric "learning_rate".
        mesh: the mesh of the devices, whose axes "data" and "fsdp" share the rows of a batch.
        accumulation_steps: the number of microbatches, computed one after the other, that each
            device's rows of a batch are split into.
        frozen: top-level keys of parameters that have neither gradients nor optimizer state.
        dropout_prng: the implementation of the dropout keys; with "rbg", dropout is faster, but the
            masks do depend on how the rows are split.
    """
    compute = _make_compute(_make_row_grads(loss_fn, frozen), mesh, accumulation_steps)

    def train_step(state: TrainState, batch: Batch, seed: jax.Array, *constants: dict[str, Any]):
        key = jax.random.fold_in(jax.random.key(seed, impl=dropout_prng), state.step)
        rows = jnp.arange(batch["input_ids"].shape[0])
        params = with_constants(state.params, *constants)
        loss, sums, grads = compute(params, batch, weights_fn(batch), key, rows)
        trained, fixed = split_params(state.params, frozen)
        updates, opt_state = tx.update(grads, state.opt_state, trained)
        updated: Any = optax.apply_updates(trained, updates)
        grad_norm = optax.tree.norm(grads)
        is_finite = jnp.isfinite(loss) & jnp.isfinite(grad_norm)
        is_good = is_finite & ~is_spike(state.history, loss, grad_norm)
        metrics = {
            # A step that is not finite does not count in the means of the metrics.
            "sums": _where(is_finite, sums, jax.tree.map(jnp.zeros_like, sums)),
            "loss": loss,
            "learning_rate": schedule(state.step),
            "grad_norm": grad_norm,
            "tokens": jnp.sum(batch["sequence_ids"] > 0),
            "skipped": ~is_good,
        }
        return TrainState(
            step=state.step + 1,
            params=fixed | _where(is_good, updated, trained),
            opt_state=_where(is_good, opt_state, state.opt_state),
            history=recorded(state.history, loss, grad_norm, is_finite),
        ), metrics

    return train_step


def _where(condition: jax.Array, new: Any, old: Any) -> Any:
    """Returns the pytree `new` if `condition` is true, and the pytree `old` if not.

    The step count of the learning-rate schedule always comes from `new`, so that the schedule also
    counts skipped updates.
    """

    def choose(new: Any, old: Any) -> Any:
        if isinstance(new, optax.ScaleByScheduleState):
            return new
        return jnp.where(condition, new, old)

    is_schedule = lambda x: isinstance(x, optax.ScaleByScheduleState)  # noqa: E731
    return jax.tree.map(choose, new, old, is_leaf=is_schedule)


def _make_compute(row_grads: RowGrads, mesh: Mesh, accumulation_steps: int) -> RowGrads:
    """Extends `row_grads` from one microbatch to a global batch on all devices of the mesh.

    The losses, metric sums and gradients from `row_grads` are added up. If only the "data" axis of
    the mesh has more than one device, each device first adds up the gradients of its own
    microbatches, and then one all-reduce sums the gradients over devices; on other meshes, the
    compiler chooses the communication.
    """

    def accumulate(params, batch: Batch, weights, key, rows):
        def cut(x: jax.Array) -> jax.Array:
            # [b, ...] -> [A, b/A, ...]. Reshaping [b] to [b/A, A] and not to [A, b/A] keeps each
            # row on its device, even if the compiler shards the rows.
            return x.reshape(-1, accumulation_steps, *x.shape[1:]).swapaxes(0, 1)

        def body(carry, micro):
            return jax.tree.map(
                jnp.add, carry, row_grads(params, micro[0], weights, key, micro[1])
            ), None

        micro = jax.tree.map(cut, (batch, rows))
        first = jax.tree.map(lambda x: x[0], micro)
        shapes = jax.eval_shape(row_grads, params, first[0], weights, key, first[1])
        zeros = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes)
        return jax.lax.scan(body, zeros, micro)[0]

    compute = row_grads if accumulation_steps == 1 else accumulate
    if device_axis(mesh) is not None:
        # Each device computes its gradients alone until the all-reduce. If the mesh also shards the
        # parameters, the compiler chooses the communication, because it cannot partition a gather
        # inside a shard_map that is manual over only one mesh axis.
        compute = jax.shard_map(
            lambda *args, inner=compute: jax.lax.psum(inner(*args), "data"),
            mesh=mesh,
            in_specs=(P(), P("data"), P(), P(), P("data")),
            out_specs=P(),
            check_vma=False,
        )
    return compute


def device_axis(mesh: Mesh) -> str | None:
    """Returns the mesh axis over which each device computes its own rows, in a `shard_map`.

    The result is None on one device, and if the mesh shards the parameters as well.
    """
    return "data" if mesh.shape["data"] == mesh.size > 1 else None


def _make_row_grads(loss_fn: LossFn, frozen: Collection[str]) -> RowGrads:
    """Returns a function that computes loss and gradients of all parameters but those in `frozen`.

    `frozen` holds top-level keys of the parameters.
    """

    def row_grads(params, batch: Batch, weights, key, rows):
        """Computes the loss, metric sums and gradients of a batch of b rows.

        `rows`, int [b], holds the indices of these rows in the global batch, which determine the
        dropout masks.
        """
        trained, fixed = split_params(params, frozen)

        def loss_of(trained):
            return loss_fn(fixed | trained, batch, weights, DropoutKey(key, rows))

        (loss, sums), grads = jax.value_and_grad(loss_of, has_aux=True)(trained)
        return loss, sums, grads

    # `_make_compute` calls the function twice; because of jit, jax traces it only once. `inline`
    # keeps the compiled program the same as without jit.
    return jax.jit(row_grads, inline=True)


def make_eval_step(loss_fn: LossFn, weights_fn: WeightsFn) -> Callable[[Any, Batch], Any]:
    """Returns `eval_step(params, batch, *constants) -> {metric: (sum, weight)}` without dropout.

    `loss_fn` and `weights_fn` are those of `make_train_step`. The mean of a metric over batches is
    total sum / total weight.
    """

    def eval_step(params, batch: Batch, *constants: dict[str, Any]):
        return loss_fn(with_constants(params, *constants), batch, weights_fn(batch), None)[1]

    return eval_step


def with_constants(params: dict[str, Any], *constants: dict[str, Any]) -> dict[str, Any]:
    """Merges the parameters of the state and of the teacher, if any, into one dict.

    The loss function takes this dict as `params`. `constants` is empty, or holds one dictionary
    with the parameters of the teacher.
    """
    return dict(itertools.chain(*(part.items() for part in (params, *constants))))


def compile_train_step(train_step, state_shardings: Any, rows: Any, *constants: Any) -> Any:
    """Applies `jax.jit` to a train step, with the shardings of its state, batch and constants.

    `train_step` is the function that `make_train_step` returns; its argument `state`, whose
    shardings are `state_shardings`, is donated. `rows` is the sharding of the batch. `constants`
    are the shardings of the arguments `constants` of the train step (the teacher's parameters, if
    any).
    """
    return jax.jit(
        train_step,
        in_shardings=(state_shardings, rows, None, *constants),
        out_shardings=(state_shardings, None),
        donate_argnums=0,
    )


def with_seed(
    compiled_step: Any, seed: int, *constants: dict[str, Any]
) -> Callable[[TrainState, Batch], Any]:
    """Returns `compiled_step` with fixed seed and constants: (state, batch) -> (state, metrics)."""
    return lambda state, batch: compiled_step(state, batch, np.uint32(seed), *constants)
