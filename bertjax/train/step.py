"""One update, and one evaluation batch, as jit-compiled functions over all devices."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

from bertjax.train.optimizer import Schedule
from bertjax.train.state import TrainState

Batch = dict[str, jax.Array]
# (params, batch, weights of the whole batch, dropout key or None) -> (loss, sums of metrics)
LossFn = Callable[[Any, Batch, dict[str, jax.Array], jax.Array | None], tuple[jax.Array, Any]]
WeightsFn = Callable[[Batch], dict[str, jax.Array]]


def make_train_step(
    loss_fn: LossFn,
    weights_fn: WeightsFn,
    tx: optax.GradientTransformation,
    schedule: Schedule,
    *,
    seed: int,
    accumulation_steps: int = 1,
) -> Callable[[TrainState, Batch], tuple[TrainState, dict[str, Any]]]:
    """Returns `train_step(state, batch) -> (state, metrics)`, to be compiled by `compile_step`.

    The loss is the mean over the whole batch, however its rows are split. Dropout is drawn from
    (seed, step), so a resumed run draws what an uninterrupted one does.
    """
    grad_fn = jax.value_and_grad(loss_fn, has_aux=True)

    def accumulate(params, batch: Batch, weights, key):
        # Each device keeps its rows: cutting [B] as [B/A, A] and not as [A, B/A] puts rows of
        # every device in every microbatch.
        micro = jax.tree.map(
            lambda x: x.reshape(-1, accumulation_steps, *x.shape[1:]).swapaxes(0, 1), batch
        )

        def body(carry, xs):
            index, rows = xs
            (_, sums), grads = grad_fn(params, rows, weights, jax.random.fold_in(key, index))
            return jax.tree.map(jnp.add, carry, (sums, grads)), None

        first = jax.tree.map(lambda x: x[0], micro)
        shapes = jax.eval_shape(grad_fn, params, first, weights, key)
        zeros = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), (shapes[0][1], shapes[1]))
        return jax.lax.scan(body, zeros, (jnp.arange(accumulation_steps), micro))[0]

    def train_step(state: TrainState, batch: Batch):
        key = jax.random.fold_in(jax.random.key(seed), state.step)
        weights = weights_fn(batch)
        if accumulation_steps == 1:
            (_, sums), grads = grad_fn(state.params, batch, weights, key)
        else:
            sums, grads = accumulate(state.params, batch, weights, key)
        updates, opt_state = tx.update(grads, state.opt_state, state.params)
        metrics = {
            "sums": sums,
            "learning_rate": schedule(state.step),
            "grad_norm": optax.tree.norm(grads),
            "tokens": jnp.sum(batch["sequence_ids"] > 0),
        }
        params = optax.apply_updates(state.params, updates)
        return TrainState(step=state.step + 1, params=params, opt_state=opt_state), metrics

    return train_step


def make_eval_step(loss_fn: LossFn, weights_fn: WeightsFn) -> Callable[[Any, Batch], Any]:
    """Returns `eval_step(params, batch) -> sums of metrics`, without dropout."""

    def eval_step(params, batch: Batch):
        return loss_fn(params, batch, weights_fn(batch), None)[1]

    return eval_step


def compile_train_step(train_step, state_shardings: Any, rows: Any) -> Any:
    """Compiles for state and batch (`rows`) sharded so; the state given is donated."""
    return jax.jit(
        train_step,
        in_shardings=(state_shardings, rows),
        out_shardings=(state_shardings, None),
        donate_argnums=0,
    )
