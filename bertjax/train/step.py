"""The train step and the evaluation step: loss function, gradients, update, on any mesh.

`Program` compiles them for a model, an objective and an optimizer.

An objective computes losses and metrics from the model's outputs. Objectives that compare the
examples of a global batch (in-batch negatives) are computed from the embeddings of all devices and
microbatches, which are small; the activations of the encoder exist for one microbatch at a time,
since the backward pass computes them again (GradCache, Gao et al. 2021). Spikes of the loss are
found as in OLMo (Groeneveld et al. 2024).
"""

import functools
import operator
from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.experimental.xla_metadata import set_xla_metadata
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from bertjax.config import Phase, TrainingConfig
from bertjax.config.model import BertConfig
from bertjax.devices import sharding
from bertjax.devices.kernels import choose_attention, choose_remat, choose_unroll
from bertjax.model import BertWithHead
from bertjax.model.bert import MODEL_INPUTS
from bertjax.model.embedding_losses import GLOBAL
from bertjax.model.losses import Objective
from bertjax.train.optimizer import Schedule, make_optimizer, make_peak, make_schedule
from bertjax.train.recipes import FROZEN, Recipe
from bertjax.weights import init_params

# A spike is defined by the mean and the standard deviation over this number of last steps, as in
# OLMo's SkipStepOptimizer. Until half as many steps are recorded, no step counts as a spike.
HISTORY = 128


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


@flax.struct.dataclass
class TrainState:
    """The state that a train step updates, as a pytree of arrays."""

    step: jax.Array
    """The number of train steps so far, including skipped updates; an int32 scalar."""
    params: Any
    """The parameters, a tree of float32 arrays."""
    opt_state: Any
    """The state of the optimizer, as Optax defines it."""
    history: LossHistory
    """The losses and gradient norms of the last steps in which both were finite, and the threshold
    above which a loss or gradient norm is a spike."""


def split_params(params: Any, frozen: Collection[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Splits `params` by top-level keys; returns (trained parameters, `frozen` parameters)."""
    trained = {name: part for name, part in params.items() if name not in frozen}
    return trained, {name: part for name, part in params.items() if name in frozen}


def create_train_state(
    params: Any,
    tx: optax.GradientTransformation,
    frozen: Collection[str] = (),
    *,
    skip_spikes: float = 0.0,
) -> TrainState:
    """Creates the training state before the first step.

    `frozen` are the top-level keys of parameters that are not trained and have no optimizer state;
    `skip_spikes` is `sigma` of `LossHistory`.
    """
    opt_state = tx.init(split_params(params, frozen)[0])
    step = jnp.zeros((), jnp.int32)
    return TrainState(step, params, opt_state, empty_history(skip_spikes))


# The key of the teacher's parameters in `params`, and of the teacher's outputs in `outputs`.
TEACHER = "teacher"


Batch = dict[str, jax.Array]


class DropoutKey(NamedTuple):
    """What determines the dropout masks of a batch: the PRNG key of the step, and the indices of
    the B rows in the global batch, int [B], which are folded into the key.
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


class Program:
    """The model, the optimizer and the compiled steps of a run, for the devices of a mesh.

    Args:
        config: the config, which sets the optimizer, dtype, unroll, remat and attention kernel.
        model: the model to train; its dtype, unroll, remat and attention kernel are replaced.
        objective: the objective to minimise.
        phases: the phases, whose steps and row lengths determine the learning-rate schedule and
            the attention kernel.
        mesh: a mesh of the run's devices, or of a device topology for which programs are compiled
            ahead of time and not run.
        teacher: the teacher for distillation; None: no distillation.
        teacher_params: the teacher's parameters, numpy arrays; None: they are given to the steps.
        accumulation_steps: the number of microbatches per update; None: each phase's number.
        recipe: which parts of the parameters are trained, and how; None: all of them.

    Attributes:
        rows: the sharding of the arrays of a batch, whose axis 0 indexes the rows.
        attention: the chosen attention kernel and the reason for the choice.
        state_sharding: the shardings of the arrays of the `TrainState`.
        state_shapes: the shapes and dtypes of the arrays of the `TrainState`.

    Raises:
        ValueError: the attention kernel, unroll factor of the layer scan or warm-up of the config
            cannot be used with the model, phases and devices, or the size of a parameter axis is
            not a multiple of the size of the mesh axis over which it is sharded.
    """

    def __init__(
        self,
        config: TrainingConfig,
        model: BertWithHead,
        objective: Objective,
        phases: Sequence[Phase],
        mesh: Mesh,
        teacher: BertWithHead | None = None,
        teacher_params: Any = None,
        accumulation_steps: int | None = None,
        recipe: Recipe | None = None,
    ):
        self.config, self.mesh, self.objective = config, mesh, objective
        self.recipe = recipe or Recipe()
        self._teacher_params, self._accumulation_steps = teacher_params, accumulation_steps
        self.rows = sharding.batch_sharding(mesh)
        self.attention = choose_attention(
            config.attention,
            model.config,
            [phase.max_length for phase in phases],
            mesh.devices.flat[0].device_kind,
            config.dtype,
            config.dropout_prng,
        )
        self.remat = choose_remat(config.remat, mesh)
        self.model = model.clone(
            dtype=jnp.dtype(config.dtype),
            unroll=self._unroll(model.config),
            remat=self.remat,
            attention_kernel=self.attention.kernel,
        )
        self.teacher = teacher and teacher.clone(
            dtype=jnp.dtype(config.dtype), unroll=self._unroll(teacher.config)
        )
        self.schedule = make_schedule(config.optimizer, phases)
        peak = make_peak(config.optimizer, phases)
        more, apart = self.recipe.transforms, model.clipped_apart
        self.tx = make_optimizer(config.optimizer, self.schedule, peak, *more, apart=apart)
        # In-batch negatives: the loss spans all devices.
        self._examples = max(phase.batch_size for phase in phases)
        self.loss_fn = self.recipe.loss_fn(
            make_global_loss_fn(self.model, objective, Split(self._examples))
            if objective.compares_examples
            else make_loss_fn(self.model, objective, self.teacher)
        )
        shapes = jax.eval_shape(self._random_state)
        self.state_sharding = sharding.state_sharding(mesh, shapes)
        self.state_shapes = with_sharding(shapes, self.state_sharding)

    def _unroll(self, model: BertConfig) -> int:
        return choose_unroll(self.config.unroll, self.remat, model.num_hidden_layers, self.mesh)

    def _random_state(self) -> TrainState:
        params = self.model.stored(init_params(self.model, self.config.seed), is_new=True)
        return self._state_of(self.recipe.split(params))

    def _state_of(self, params: Any) -> TrainState:
        frozen, spikes = (*self.model.frozen, FROZEN), self.config.skip_spikes
        return create_train_state(params, self.tx, frozen, skip_spikes=spikes)

    def for_phase(self, phase: Phase) -> "Program":
        """Returns the program of a phase, which shares its state with the others; here, itself."""
        del phase
        return self

    def new_state(self, params: Any = None) -> TrainState:
        """Creates the initial `TrainState` on the devices of the mesh.

        `params` are numpy arrays; None: random parameters from the seed in the config.
        """
        if params is None:
            return jax.jit(self._random_state, out_shardings=self.state_sharding)()
        create = jax.jit(self._state_of, out_shardings=self.state_sharding)
        params = jax.device_get(self.recipe.split(self.model.stored(params)))
        return create(jax.device_put(params, self.state_sharding.params))

    def final_params(self, state: TrainState) -> Any:
        """Returns the parameters of the model, averaged and merged as the recipe says."""
        if FROZEN not in state.params and not self.recipe.average_decay:
            return state.params
        return self._final(state.params, state.opt_state)

    @functools.cached_property
    def _final(self) -> Callable[[Any, Any], Any]:
        def final(params: Any, opt_state: Any) -> Any:
            return self.recipe.join(self.recipe.averaged(params, opt_state))

        shapes = jax.eval_shape(final, self.state_shapes.params, self.state_shapes.opt_state)
        return jax.jit(final, out_shardings=sharding.state_sharding(self.mesh, shapes))

    def train_step(self, accumulation_steps: int, *constants: Any) -> Any:
        """Returns the jitted train step (state, batch, seed, *constants) -> (state, metrics).

        Args:
            accumulation_steps: the number of microbatches per update.
            constants: the shardings of the arguments `constants` of the train step: with a teacher,
                one dict {"teacher": the shardings of the teacher's parameters}, else nothing.
        """
        loss_fn = self.loss_fn
        if self.objective.compares_examples:
            axis, data = device_axis(self.mesh), self.mesh.shape["data"]
            split = Split(self._examples, accumulation_steps, axis, data if axis else 1)
            # The loss function itself splits a batch into microbatches.
            loss_fn = make_global_loss_fn(self.model, self.objective, split)
            loss_fn, accumulation_steps = self.recipe.loss_fn(loss_fn), 1
        train_step = make_train_step(
            loss_fn,
            self.objective.weights,
            self.tx,
            self.schedule,
            mesh=self.mesh,
            accumulation_steps=accumulation_steps,
            frozen=(*self.model.frozen, TEACHER, FROZEN),
            dropout_prng=self.config.dropout_prng,
        )
        within = sharding.within(self.mesh, train_step)
        return jit_train_step(within, self.state_sharding, self.rows, *constants)

    @functools.cached_property
    def constants(self) -> tuple[dict[str, Any], ...]:
        """The constant arguments of the steps, on the devices: the teacher's parameters, if any."""
        if self._teacher_params is None:
            return ()
        params = {TEACHER: self._teacher_params}
        return (jax.device_put(params, sharding.state_sharding(self.mesh, params)),)

    def seeded_step(self, phase: Phase) -> Callable[[TrainState, Any], Any]:
        """Returns the jitted train step of a phase: (state, batch) -> (state, metrics)."""
        where = jax.tree.map(lambda x: x.sharding, self.constants)
        microbatches = self._accumulation_steps or phase.accumulation_steps
        step = self.for_phase(phase).train_step(microbatches, *where)
        return with_seed(step, self.config.seed, *self.constants)

    def eval_step(self) -> Any:
        """Returns the jitted eval step (params, batch, *constants) -> {metric: (sum, weight)}."""
        eval_step = make_eval_step(self.loss_fn, self.objective.weights)
        return jax.jit(sharding.within(self.mesh, eval_step))


def with_sharding(shapes: Any, shardings: Any) -> Any:
    """Returns a tree of `jax.ShapeDtypeStruct`s from a tree of shapes and a tree of shardings."""
    return jax.tree.map(
        lambda s, where: jax.ShapeDtypeStruct(s.shape, s.dtype, sharding=where), shapes, shardings
    )


def make_train_step(
    loss_fn: LossFn,
    weights_fn: WeightsFn,
    tx: optax.GradientTransformationExtraArgs,
    schedule: Schedule,
    *,
    mesh: Mesh,
    accumulation_steps: int = 1,
    frozen: Collection[str] = (),
    dropout_prng: str = "threefry2x32",
) -> Callable[[TrainState, Batch, Any], tuple[TrainState, dict[str, Any]]]:
    """Returns the uncompiled `train_step(state, batch, seed, *constants) -> (state, metrics)`.

    The loss is the mean over the global batch, and the dropout mask of a row depends only on the
    seed, the step and the index of the row: neither depends on how the rows are split over devices
    and microbatches. Runs with different seeds share one compiled program. `constants` is empty or,
    in distillation, one dictionary with the frozen parameters of the teacher.

    If the loss or the gradient norm is not finite or a spike, the update is skipped: parameters and
    optimizer state stay the same, except for the step count of the learning-rate schedule, and the
    metric "skipped" is true.

    Args:
        loss_fn: as `make_loss_fn` returns it; the loss is a float32 scalar.
        weights_fn: a function batch -> {name of a loss: its total weight in the batch}.
        tx: the optimizer.
        schedule: a function step -> learning rate, for the metric "learning_rate".
        mesh: the mesh of the devices, whose axes "data" and "fsdp" share the rows of a batch.
        accumulation_steps: the number of microbatches that each device's rows are split into.
        frozen: top-level keys of parameters that have neither gradients nor optimizer state.
        dropout_prng: the implementation of the dropout keys; with "rbg", dropout is faster, but the
            masks do depend on how the rows are split.
    """

    def loss_on_mesh(params: Any, *args: Any) -> tuple[jax.Array, Any]:
        return loss_fn(sharding.gather_word_embeddings(mesh, params), *args)

    compute = _make_compute(_make_row_grads(loss_on_mesh, frozen), mesh, accumulation_steps)
    on_one_cpu = mesh.size == 1 and mesh.devices.flat[0].platform == "cpu"

    def update(grads: Any, norm: Any, opt_state: Any, params: Any, is_good: Any) -> tuple[Any, Any]:
        updates, new = tx.update(grads, opt_state, params, norm=norm)
        updated = optax.apply_updates(params, updates)
        return _where(is_good, updated, params), _where(is_good, new, opt_state)

    def train_step(state: TrainState, batch: Batch, seed: jax.Array, *constants: dict[str, Any]):
        key = jax.random.fold_in(jax.random.key(seed, impl=dropout_prng), state.step)
        rows = jnp.arange(batch["input_ids"].shape[0])
        params = _with_constants(state.params, constants)
        loss, sums, grads = compute(params, batch, weights_fn(batch), key, rows)
        trained, fixed = split_params(state.params, frozen)
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
        arguments = grads, grad_norm, state.opt_state, trained, is_good
        updated = _updated_apart(update, arguments) if on_one_cpu else update(*arguments)
        return TrainState(
            step=state.step + 1,
            params=fixed | updated[0],
            opt_state=updated[1],
            history=recorded(state.history, loss, grad_norm, is_finite),
        ), metrics

    return train_step


def _updated_apart(update: Callable[..., Any], arguments: tuple[Any, ...]) -> tuple[Any, Any]:
    """Computes `update` such that XLA fuses nothing of its first result with its second one.

    The fusion that updates the parameters would otherwise read copies of the old moments.
    """

    def called(f: Callable[..., Any], *args: Any) -> Any:
        return set_xla_metadata(jax.jit(f)(*args), inlineable="false")

    *others, last = arguments
    first, last = called(lambda *args: (update(*args)[0], args[-1]), *others, last)
    return first, called(lambda *args: update(*args)[1], *others, last)


def _where(condition: jax.Array, new: Any, old: Any) -> Any:
    """Selects `new` or `old`; the schedule's step count, which counts all updates, is new."""
    counts = optax.ScaleByScheduleState
    return jax.tree.map(
        lambda new, old: new if isinstance(new, counts) else jnp.where(condition, new, old),
        new,
        old,
        is_leaf=lambda x: isinstance(x, counts),
    )


def _make_compute(row_grads: RowGrads, mesh: Mesh, accumulation_steps: int) -> RowGrads:
    """Extends `row_grads` from one microbatch to a global batch on all devices of the mesh.

    If only the "data" axis has more than one device, each device adds up the gradients of its own
    microbatches, and one all-reduce sums over devices; on other meshes, the compiler chooses.
    """

    def accumulate(params, batch: Batch, weights, key, rows):
        def body(carry, micro):
            return jax.tree.map(
                jnp.add, carry, row_grads(params, micro[0], weights, key, micro[1])
            ), None

        micro = _microbatches((batch, rows), accumulation_steps)
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


def _microbatches(arrays: Any, steps: int) -> Any:
    """Cuts arrays [b, ...] into [A, b/A, ...], A microbatches."""
    # By way of [b/A, A] and not [A, b/A], each row stays on its device, even if rows are sharded.
    return jax.tree.map(lambda x: x.reshape(-1, steps, *x.shape[1:]).swapaxes(0, 1), arrays)


def device_axis(mesh: Mesh) -> str | None:
    """Returns the mesh axis over which each device computes its own rows, in a `shard_map`.

    None: there is one device, or the mesh shards the parameters as well.
    """
    return "data" if mesh.shape["data"] == mesh.size > 1 else None


def _make_row_grads(loss_fn: LossFn, frozen: Collection[str]) -> RowGrads:

    def row_grads(params, batch: Batch, weights, key, rows):
        """Returns loss, metric sums and gradients of b rows with the indices `rows`, int [b]."""
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

    The arguments are as in `make_train_step`.
    """

    def eval_step(params, batch: Batch, *constants: dict[str, Any]):
        return loss_fn(_with_constants(params, constants), batch, weights_fn(batch), None)[1]

    return eval_step


def _with_constants(params: dict[str, Any], constants: Sequence[Any]) -> dict[str, Any]:
    """Merges the parameters of the state and of the teacher, if any, for the loss function."""
    return functools.reduce(operator.or_, constants, params)


def jit_train_step(train_step, state_shardings: Any, rows: Any, *constants: Any) -> Any:
    """Applies `jax.jit` with the shardings of all arguments; the state is donated."""
    return jax.jit(
        train_step,
        in_shardings=(state_shardings, rows, None, *constants),
        out_shardings=(state_shardings, None),
        donate_argnums=0,
    )


def with_seed(
    jitted_step: Any, seed: int, *constants: dict[str, Any]
) -> Callable[[TrainState, Batch], Any]:
    """Returns `jitted_step` with fixed seed and constants: (state, batch) -> (state, metrics)."""
    return lambda state, batch: jitted_step(state, batch, np.uint32(seed), *constants)


def empty_history(skip_spikes: float) -> LossHistory:
    """Returns a history without recorded steps, whose `sigma` is `skip_spikes`."""
    # `losses` and `grad_norms` must be separate arrays, because the train step donates both.
    losses, grad_norms = (jnp.zeros(HISTORY, jnp.float32) for _ in range(2))
    sigma = jnp.asarray(skip_spikes, jnp.float32)
    return LossHistory(losses, grad_norms, sigma, jnp.zeros((), jnp.int32))


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


def make_loss_fn(
    model: BertWithHead, objective: Objective | None = None, teacher: BertWithHead | None = None
):
    """Returns the loss function `loss_fn(params, batch, weights, dropout) -> (loss, sums)`.

    `weights` maps each loss to its total weight in the global batch, such as the number of masked
    tokens, by which the sum of the loss is divided. `dropout` is a `DropoutKey`, or None (no
    dropout). `sums` maps each loss or metric to (sum of weighted values, sum of weights).

    Args:
        model: the model to train.
        objective: the objective to minimise; None: the pretraining objective of the model's head.
        teacher: reads the same batch without dropout. Its parameters are `params[TEACHER]`, and
            `objective.sums` receives its outputs as `outputs[TEACHER]`. None: no distillation.
    """
    objective = objective or model.objective("pretraining")
    keys = (*MODEL_INPUTS, *objective.inputs)

    def loss_fn(params, batch, weights, dropout):
        inputs = {key: batch[key] for key in keys}
        params, teacher_params = split_params(params, (TEACHER,))
        outputs = _outputs(model, params, inputs, dropout)
        if teacher is not None:
            taught = teacher.apply({"params": teacher_params[TEACHER]}, **inputs)
            outputs = {**outputs, TEACHER: jax.lax.stop_gradient(taught)}
        sums = objective.sums(outputs, batch)
        return objective.loss(sums, weights), sums

    return loss_fn


def _outputs(model: BertWithHead, params: Any, inputs: Any, dropout: DropoutKey | None) -> Any:
    random = {}
    if model.is_random and dropout is not None:
        random = {"rngs": {"dropout": dropout.key}, "dropout_rows": dropout.rows}
    return model.apply({"params": model.joined(params)}, **inputs, **random)


class Split(NamedTuple):
    """How a global batch is computed.

    Attributes:
        examples: the maximum number of examples of a global batch.
        accumulation_steps: the number of microbatches of a device.
        axis: the mesh axis whose devices hold different rows, if the loss function runs within a
            `shard_map` over it; None: it sees the rows of all devices.
        devices: the number of devices on the axis.
    """

    examples: int
    accumulation_steps: int = 1
    axis: str | None = None
    devices: int = 1


def make_global_loss_fn(model: BertWithHead, objective: Objective, split: Split):
    """Returns `loss_fn` as `make_loss_fn` does, for an objective that compares examples.

    On several devices, each computes the losses of a part of the examples, so that the sum over the
    devices is the loss of the global batch.
    """

    def loss_fn(params, batch, weights, dropout):
        def encode(micro):
            inputs, rows = micro
            key = None if dropout is None else DropoutKey(dropout.key, rows)
            outputs = _outputs(model, params, inputs, key)
            return {name: outputs[name] for name in model.sequence_outputs}

        inputs = {key: batch[key] for key in (*MODEL_INPUTS, *objective.inputs)}
        rows = None if dropout is None else dropout.rows
        outputs = _in_microbatches(encode, (inputs, rows), split.accumulation_steps)
        sums = objective.sums(*_by_example(outputs, batch, split))
        return objective.loss(sums, weights), sums

    return loss_fn


def _in_microbatches(encode, arrays: Any, steps: int) -> dict[str, jax.Array]:
    """Applies `encode` to arrays [b, ...] in microbatches, and again in the backward pass."""
    if steps == 1:
        return encode(arrays)

    def body(carry, micro):
        return carry, jax.checkpoint(encode, prevent_cse=False)(micro)

    outputs = jax.lax.scan(body, None, _microbatches(arrays, steps))[1]
    return jax.tree.map(lambda x: x.swapaxes(0, 1).reshape(-1, *x.shape[2:]), outputs)


def _by_example(
    outputs: dict[str, jax.Array], batch: dict[str, jax.Array], split: Split
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns (outputs, batch) for the `sums` of an objective that compares examples.

    `outputs` are arrays [b, K, ...] of the sequences in the rows of this device; `label_weights` of
    `batch` are [b, E], for E examples of K/E sequences each.
    """
    examples = batch["label_weights"].shape[1]
    per_example = batch["example_ids"].shape[1] // examples
    ids = batch["example_ids"][:, ::per_example].reshape(-1)
    part = -(-split.examples // split.devices)
    count = part * split.devices

    def collected(x: jax.Array, *shape: int) -> jax.Array:
        x = x.reshape(len(ids), *shape, *x.shape[2:])
        whole = jnp.zeros((count, *x.shape[1:]), x.dtype)
        # Unused places of a row have the index -1, which would mean the last example.
        whole = whole.at[jnp.where(ids < 0, count, ids)].set(x, mode="drop")
        return whole if split.axis is None else jax.lax.psum(whole, split.axis)

    everything = {key: collected(x, per_example) for key, x in outputs.items()}
    labels = {key: collected(batch[key]) for key in ("labels", "label_weights")}
    first = 0 if split.axis is None else jax.lax.axis_index(split.axis) * part

    def own(x: jax.Array) -> jax.Array:
        return jax.lax.dynamic_slice_in_dim(x, first, part)

    indices = first + jnp.arange(part)
    return (
        {**{key: own(x) for key, x in everything.items()}, GLOBAL: everything},
        {**{key: own(x) for key, x in labels.items()}, "example_ids": indices, GLOBAL: labels},
    )
