"""The train step and the evaluation step as jit-compiled functions over all devices."""

import itertools
from collections.abc import Callable, Collection
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from bertjax.training.loss_history import is_spike, recorded
from bertjax.training.optimizer import Schedule
from bertjax.training.state import TrainState, split_params

Batch = dict[str, jax.Array]


class DropoutKey(NamedTuple):
    """The random key of dropout, and the indices of the rows in the global batch, int [B]."""

    key: jax.Array
    rows: jax.Array


# (params, batch, weights of the whole batch, DropoutKey or None) -> (loss, sums of metrics)
LossFn = Callable[[Any, Batch, dict[str, jax.Array], DropoutKey | None], tuple[jax.Array, Any]]
WeightsFn = Callable[[Batch], dict[str, jax.Array]]
# (params, batch, weights of the whole batch, key of the step, rows) -> (loss, sums, gradients)
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
    """Returns `train_step(state, batch, seed, *constants) -> (state, metrics)`, not yet compiled.

    The loss is the mean over the global batch, and the dropout of a row depends on (seed, step,
    row) only, so neither depends on how rows are split over devices and microbatches. (With
    `dropout_prng` "rbg", dropout is faster and depends on the split.) The seed is an argument, so
    that runs with different seeds share a compiled program. Parts of the parameters that are
    `frozen` have neither gradients nor moments. `constants` is empty or one dictionary of frozen
    parts that are not in the state: the parameters of a teacher.

    If the loss or the gradient is not finite, parameters and optimizer state stay as they are and
    the metric "skipped" is true. The same holds for spikes (see `skipped_updates.is_spike`).
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
            # The means of the metrics leave out what is not finite.
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
    """Returns `new` or `old`; the learning-rate schedule counts skipped updates as well."""

    def choose(new: Any, old: Any) -> Any:
        if isinstance(new, optax.ScaleByScheduleState):
            return new
        return jnp.where(condition, new, old)

    is_schedule = lambda x: isinstance(x, optax.ScaleByScheduleState)  # noqa: E731
    return jax.tree.map(choose, new, old, is_leaf=is_schedule)


def _make_compute(row_grads: RowGrads, mesh: Mesh, accumulation_steps: int) -> RowGrads:
    """Returns a function like `row_grads` that accumulates over the global batch's microbatches.

    If the mesh shards only over the data axis, each device first adds up the gradients of its
    microbatches, and one all-reduce follows.
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
    if mesh.shape["data"] == mesh.size > 1:
        # Each position of the data axis computes alone until the all-reduce. If parameters are also
        # sharded, the compiler places the communication instead, because it cannot partition a
        # gather inside a region that is manual over only one axis.
        compute = jax.shard_map(
            lambda *args, inner=compute: jax.lax.psum(inner(*args), "data"),
            mesh=mesh,
            in_specs=(P(), P("data"), P(), P(), P("data")),
            out_specs=P(),
            check_vma=False,
        )
    return compute


def _make_row_grads(loss_fn: LossFn, frozen: Collection[str]) -> RowGrads:
    """Returns `row_grads(params, batch, weights, key, rows) -> (loss, sums, gradients)`."""

    def row_grads(params, batch: Batch, weights, key, rows):
        """Computes loss, sums and gradients of rows whose global indices are `rows`, int [b]."""
        trained, fixed = split_params(params, frozen)

        def loss_of(trained):
            return loss_fn(fixed | trained, batch, weights, DropoutKey(key, rows))

        (loss, sums), grads = jax.value_and_grad(loss_of, has_aux=True)(trained)
        return loss, sums, grads

    # Inlined, so the program is the same; but accumulation needs it twice and jax traces it once.
    return jax.jit(row_grads, inline=True)


def make_eval_step(loss_fn: LossFn, weights_fn: WeightsFn) -> Callable[[Any, Batch], Any]:
    """Returns `eval_step(params, batch, *constants) -> sums of metrics`, without dropout."""

    def eval_step(params, batch: Batch, *constants: dict[str, Any]):
        return loss_fn(with_constants(params, *constants), batch, weights_fn(batch), None)[1]

    return eval_step


def with_constants(params: dict[str, Any], *constants: dict[str, Any]) -> dict[str, Any]:
    """Merges the parameters of the state with constant ones, for the loss function."""
    return dict(itertools.chain(*(part.items() for part in (params, *constants))))


def compile_train_step(train_step, state_shardings: Any, rows: Any, *constants: Any) -> Any:
    """Compiles a train step for the shardings of the state, the batch (`rows`) and the constants.

    The compiled function donates its state argument.
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
    """Binds seed and constants of a train step; returns (state, batch) -> (state, metrics)."""
    return lambda state, batch: compiled_step(state, batch, np.uint32(seed), *constants)
