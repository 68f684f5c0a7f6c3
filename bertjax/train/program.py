"""`Program`: the model, optimizer and compiled steps of a config on a mesh, without any data."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from bertjax.config import Phase, TrainingConfig
from bertjax.config.model import BertConfig
from bertjax.devices import sharding
from bertjax.devices.kernels import choose_attention, choose_remat, choose_unroll
from bertjax.model import BertWithHead
from bertjax.model.losses import Objective
from bertjax.train.global_batch import Split, make_global_loss_fn
from bertjax.train.objective import TEACHER, make_loss_fn
from bertjax.train.optimizer import make_optimizer
from bertjax.train.schedule import make_peak, make_schedule
from bertjax.train.state import TrainState, create_train_state
from bertjax.train.step import (
    compile_train_step,
    device_axis,
    make_eval_step,
    make_train_step,
)
from bertjax.weights import init_params


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
    ):
        self.config, self.mesh, self.objective = config, mesh, objective
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
        self.tx = make_optimizer(config.optimizer, self.schedule, peak)
        # Of an objective that compares the examples of a global batch, as a loss of all devices.
        self._examples = max(phase.batch_size for phase in phases)
        self.loss_fn = (
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
        return self._state_of(init_params(self.model, self.config.seed))

    def _state_of(self, params: Any) -> TrainState:
        spikes = self.config.skip_spikes
        return create_train_state(params, self.tx, self.model.frozen, skip_spikes=spikes)

    def for_phase(self, phase: Phase) -> "Program":
        """Returns the program of a phase, which shares the state with that of the others.

        Here, it is the program itself; subclasses may change the model without its parameters.
        """
        del phase
        return self

    def new_state(self, params: Any = None) -> TrainState:
        """Creates the initial `TrainState`, before the first step, on the devices of the mesh.

        Args:
            params: the parameters to start from, as numpy arrays; None: random parameters from the
                seed in the config.
        """
        if params is None:
            return jax.jit(self._random_state, out_shardings=self.state_sharding)()
        create = jax.jit(self._state_of, out_shardings=self.state_sharding)
        return create(jax.device_put(params, self.state_sharding.params))

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
            loss_fn, accumulation_steps = make_global_loss_fn(self.model, self.objective, split), 1
        train_step = make_train_step(
            loss_fn,
            self.objective.weights,
            self.tx,
            self.schedule,
            mesh=self.mesh,
            accumulation_steps=accumulation_steps,
            frozen=(*self.model.frozen, TEACHER),
            dropout_prng=self.config.dropout_prng,
        )
        within = sharding.within(self.mesh, train_step)
        return compile_train_step(within, self.state_sharding, self.rows, *constants)

    def eval_step(self) -> Any:
        """Returns the jitted eval step (params, batch, *constants) -> {metric: (sum, weight)}.

        The mean of a metric over batches is total sum / total weight.
        """
        eval_step = make_eval_step(self.loss_fn, self.objective.weights)
        return jax.jit(sharding.within(self.mesh, eval_step))


def with_sharding(shapes: Any, shardings: Any) -> Any:
    """Returns a tree of `jax.ShapeDtypeStruct`s from a tree of shapes and a tree of shardings."""
    return jax.tree.map(
        lambda s, where: jax.ShapeDtypeStruct(s.shape, s.dtype, sharding=where), shapes, shardings
    )
