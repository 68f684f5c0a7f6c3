"""Fits the position embeddings that a phase of longer rows is the first to train.

A run that goes on from rows of 64 to rows of 128 tokens has never trained the embeddings of the
positions from 64 on: they are noise, which tells the model nothing about the order of the tokens
there, and the loss rises at the switch. Copies of trained embeddings are better, but tokens then
also attend to those at the same place of the other copy. So before the first step of the longer
phase, the copies alone are trained on rows of the phase, with all other parameters fixed. Most of
the effect comes from a vector that all rows of a copy share, which tells the copies apart. The same
is done for the copies in the embedding of a model of --init that reads shorter rows than the run.
"""

import dataclasses
import itertools
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh

from bertjax.base.progress import progress
from bertjax.devices import activity, hosts, sharding
from bertjax.train.state import TrainState
from bertjax.train.step import LossFn, WeightsFn, with_constants

if TYPE_CHECKING:
    from bertjax.train.pretraining_run import PretrainingRun

PATH = ("position_embeddings", "embedding")
# Neighbouring rows of a trained embedding are similar: their cosine is .85 in MiniLM and .45 after
# 6,000 steps of a tiny model. That of noise has a standard deviation of 1 / sqrt(hidden size); the
# mean of WINDOW of them is far below LEAST_COSINE.
WINDOW, LEAST_COSINE = 8, 0.2
# The learning rates decay linearly from these multiples of the root mean square of the trained
# embeddings: that of the vectors that copies share, and that of single rows.
STEPS, SHARED_RATE, ROW_RATE = 400, 0.4, 0.08
# What progress displays call the fit.
FITTING = "fitting new positions"


def fit_before_phase(run: "PretrainingRun", index: int, state: TrainState) -> TrainState:
    """Returns `state` with fitted embeddings of the positions that phase `index` adds, if any.

    These are positions that neither an earlier phase nor, with --init, the model has trained. They
    are fitted to rows that the phase does not read, in at most STEPS microbatches and at most
    as many as the phase has steps. The result depends only on the config of `run`, its data and
    `state`, the state after the phase before.
    """
    phase, model = run.config.phases[index], run.config.model
    trained = max((phase.max_length for phase in run.config.phases[:index]), default=0)
    trained = trained or run.copied_from or 0
    if not trained or phase.max_length <= trained or run.config.untrained_positions == "keep":
        return state
    program = run.program.for_phase(phase)
    positions = untrained_positions(
        state,
        program.mesh,
        trained=trained,
        length=phase.max_length,
        offset=model.position_offset,
        copied_from=run.copied_from,
    )
    if positions is None:
        return state
    start, kept, end = positions
    hosts.say(
        f"phase {index}: the embeddings of positions {kept - start} to {end - start - 1}, which "
        "have not been trained, are fitted before its first step"
    )
    rows = phase.batch_size // phase.accumulation_steps
    batches = run.read_rows(index, phase, phase.num_rows, rows)
    num_steps = min(STEPS, phase.num_steps)
    with activity.doing(activity.STEPPING, FITTING):
        return fit_positions(
            state,
            positions,
            itertools.islice(batches, num_steps),
            *run.constants(),
            num_steps=num_steps,
            loss_fn=program.loss_fn,
            weights_fn=program.objective.weights,
            mesh=program.mesh,
        )


class Positions(NamedTuple):
    """Rows of a position embedding matrix, by their indices.

    Attributes:
        start: the row of position 0.
        kept: the row of the first position to fit.
        end: the row after that of the last position to fit.
    """

    start: int
    kept: int
    end: int


def untrained_positions(
    state: TrainState,
    mesh: Mesh,
    *,
    trained: int,
    length: int,
    offset: int = 0,
    copied_from: int | None = None,
) -> Positions | None:
    """Finds the position embeddings that are to be fitted before a phase of longer rows.

    Args:
        state: the state of the run, on the devices of `mesh`.
        mesh: the mesh of the devices.
        trained: the number of positions that are known to be trained, at least 1.
        length: the number of positions of the phase that begins.
        offset: the row of the position embedding matrix that position 0 has.
        copied_from: the first position whose embedding began as a copy of another one; None if
            there is no such position.

    Returns:
        The rows; None if there are none, because the model has rotary positions or was trained on
        rows of `length` tokens before the run.
    """
    table = next((x for path, x in jax.tree.leaves_with_path(state.params) if _matches(path)), None)
    if table is None:
        return None
    rows = np.asarray(hosts.fetch(table, mesh), np.float64)[offset : offset + length]
    # Copies are similar to their neighbours although nobody has trained them there.
    own = rows if copied_from is None else rows[: max(copied_from, trained)]
    kept = known_positions(own, trained)
    return Positions(offset, offset + kept, offset + length) if kept < length else None


def known_positions(rows: np.ndarray, trained: int) -> int:
    """Returns how many of the first rows of a position embedding have been trained.

    Rows from `trained` on count as trained if they and their neighbours are similar.

    Args:
        rows: float [positions, D], the rows of the positions, from position 0 on.
        trained: the number of rows that are known to be trained, at least 1.
    """
    directions = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-30)
    cosines = np.sum(directions[1:] * directions[:-1], axis=1)[trained - 1 :]
    if not len(cosines):
        return len(rows)
    window = min(WINDOW, len(cosines))
    means = np.convolve(cosines, np.full(window, 1 / window), mode="valid")
    # Six standard deviations of the mean of noise, which matters for narrow embeddings only.
    least = max(LEAST_COSINE, 6 / np.sqrt(rows.shape[1] * window))
    similar = np.flatnonzero(means >= least)
    return trained + (int(similar[-1]) + window if len(similar) else 0)


def fit_positions(
    state: TrainState,
    positions: Positions,
    batches: Iterable[Any],
    *constants: dict[str, Any],
    num_steps: int,
    loss_fn: LossFn,
    weights_fn: WeightsFn,
    mesh: Mesh,
) -> TrainState:
    """Trains the new position embeddings alone, and initialises their moments.

    The moments of the optimizer become those of trained positions: the second moments are copies of
    theirs, as gradients have about the same size at all positions; the first moments are 0.

    Args:
        state: the state of the run, on the devices of `mesh`.
        positions: the rows of the position embedding.
        batches: batches of the phase that begins, one for each step.
        constants: the parameters of the teacher, if any, as in `make_train_step`.
        num_steps: the number of batches.
        loss_fn: the loss function, as in `make_train_step`; it is called without dropout.
        weights_fn: the total weights of the losses, as in `make_train_step`.
        mesh: the mesh of the devices.

    Returns:
        The state with the new embeddings and moments; all else is unchanged.
    """
    start, kept, end = positions
    table = next(x for path, x in jax.tree.leaves_with_path(state.params) if _matches(path))
    (source, copy), adam = _copied(positions), optax.scale_by_adam(b1=0.9, b2=0.98)

    def begin(table: jax.Array) -> tuple[Any, Any, Any]:
        scale = jnp.sqrt(jnp.mean(jnp.square(table[start:kept])))
        base = {"rows": table[source], "rates": {"shared": SHARED_RATE, "rows": ROW_RATE}}
        base["rates"] = jax.tree.map(lambda rate: rate * scale, base["rates"])
        change = {"shared": jnp.zeros((copy.max() + 1, table.shape[1])), "rows": base["rows"] * 0}
        return base, change, adam.init(change)

    def rows_of(base: Any, change: Any) -> jax.Array:
        return base["rows"] + change["shared"][copy] + change["rows"]

    def loss_of(change: Any, base: Any, params: Any, batch: Any, constants: Any) -> jax.Array:
        rows = rows_of(base, change)
        params = _at_positions(params, lambda leaf: leaf.at[kept:end].set(rows))
        return loss_fn(with_constants(params, *constants), batch, weights_fn(batch), None)[0]

    def step(change: Any, moments: Any, base: Any, done: Any, *rest: Any) -> tuple[Any, Any]:
        update, moments = adam.update(jax.grad(loss_of)(change, base, *rest), moments)
        return jax.tree.map(
            lambda x, rate, u: x - rate * (1 - done) * u, change, base["rates"], update
        ), moments

    everywhere = sharding.replicated(mesh)
    base, change, moments = jax.jit(begin, out_shardings=everywhere)(table)
    compiled = jax.jit(sharding.within(mesh, step), out_shardings=everywhere)
    with progress(FITTING, num_steps, "microbatches") as bar:
        for i, batch in enumerate(bar.counted(batches)):
            done = np.float32(i / num_steps)
            parts = (state.params, batch, constants)
            with activity.compiling("the fit of new positions") if i == 0 else nullcontext():
                change, moments = compiled(change, moments, base, done, *parts)
            jax.block_until_ready(change)
            activity.progressed()
    rows = jax.jit(rows_of, out_shardings=everywhere)(base, change)
    return dataclasses.replace(
        state,
        params=_at_positions(state.params, lambda leaf: _placed(leaf, rows, kept, end)),
        opt_state=jax.tree.map_with_path(
            lambda path, leaf: _initial_moments(path, leaf, table.shape, positions),
            state.opt_state,
        ),
    )


def _at_positions(params: Any, function: Callable[[jax.Array], jax.Array]) -> Any:
    """Returns `params` with `function` applied to the position embedding."""
    return jax.tree.map_with_path(lambda path, x: function(x) if _matches(path) else x, params)


def _placed(leaf: jax.Array, rows: jax.Array, kept: int, end: int) -> jax.Array:
    """Returns `leaf` with `rows` as its rows `kept` to `end`, with the sharding of `leaf`."""
    place = jax.jit(lambda leaf, rows: leaf.at[kept:end].set(rows), out_shardings=leaf.sharding)
    return place(leaf, rows)


def _initial_moments(
    path: Any, leaf: jax.Array, shape: tuple[int, ...], positions: Positions
) -> jax.Array:
    """Returns an array of the optimizer's state with initial moments of the new positions."""
    if not _matches(path) or leaf.shape != shape:
        return leaf
    source = _copied(positions)[0]
    factor = 0 if any(getattr(key, "name", None) == "mu" for key in path) else 1
    copies = jax.jit(lambda leaf: leaf[source] * factor)(leaf)
    return _placed(leaf, copies, positions.kept, positions.end)


def _copied(positions: Positions) -> tuple[np.ndarray, np.ndarray]:
    """Returns the rows that new positions begin as copies of, and the numbers of the copies.

    Both are int [new positions]. Row `start` is left out, as it is that of [CLS] alone.
    """
    start, kept, end = positions
    first = start + 1 if kept - start > 1 else start
    copy, row = np.divmod(np.arange(end - kept), kept - first)
    return first + row, copy


def _matches(path: Any) -> bool:
    """Whether `path` is that of the position embedding, or of a moment of it."""
    return tuple(getattr(key, "key", None) for key in path[-len(PATH) :]) == PATH
