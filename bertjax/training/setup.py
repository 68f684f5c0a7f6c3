"""What a config computes on a mesh, independent of its data: model, optimizer, compiled steps."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from bertjax.config import Phase, TrainingConfig
from bertjax.config.model import BertConfig
from bertjax.devices import sharding
from bertjax.devices.kernels import choose_attention, choose_unroll
from bertjax.model import BertWithHead
from bertjax.model.losses import Objective
from bertjax.training.objective import TEACHER, make_loss_fn
from bertjax.training.optimizer import make_optimizer, make_schedule
from bertjax.training.state import TrainState, create_train_state
from bertjax.training.step import compile_train_step, make_eval_step, make_train_step
from bertjax.weights import init_params


class Program:
    """The model of a run, its optimizer and its compiled steps, for the devices of a mesh.

    Args:
        config: precision, kernels and optimizer of the run.
        model: with the head that is trained; precision and kernels are set here.
        objective: the loss.
        phases: they determine the learning-rate schedule and the lengths of rows.
        mesh: of local devices, or of a topology that is only compiled for.
        teacher: the model that is distilled, if any.

    Attributes:
        rows: sharding of a batch.
        attention: the chosen attention kernel, and why it was chosen.
        state_sharding, state_shapes: of the `TrainState`.

    Raises:
        ValueError: config, model and mesh do not fit together.
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
        )
        self.model = model.clone(
            dtype=jnp.dtype(config.dtype),
            unroll=self._unroll(model.config),
            remat=config.remat,
            attention_kernel=self.attention.kernel,
        )
        self.teacher = teacher and teacher.clone(
            dtype=jnp.dtype(config.dtype), unroll=self._unroll(teacher.config)
        )
        self.schedule = make_schedule(config.optimizer, phases)
        self.tx = make_optimizer(config.optimizer, self.schedule)
        self.loss_fn = make_loss_fn(self.model, objective, self.teacher)
        shapes = jax.eval_shape(self._random_state)
        self.state_sharding = sharding.state_sharding(mesh, shapes)
        self.state_shapes = with_sharding(shapes, self.state_sharding)

    def _unroll(self, model: BertConfig) -> int:
        config = self.config
        return choose_unroll(config.unroll, config.remat, model.num_hidden_layers, self.mesh)

    def _random_state(self) -> TrainState:
        return self._state_of(init_params(self.model, self.config.seed))

    def _state_of(self, params: Any) -> TrainState:
        return create_train_state(params, self.tx, self.model.frozen)

    def new_state(self, params: Any = None) -> TrainState:
        """The state before the first step, on the devices of the mesh.

        Args:
            params: numpy arrays to start from; None: random ones by the seed of the config.
        """
        if params is None:
            return jax.jit(self._random_state, out_shardings=self.state_sharding)()
        create = jax.jit(self._state_of, out_shardings=self.state_sharding)
        return create(jax.device_put(params, self.state_sharding.params))

    def train_step(self, accumulation_steps: int, *constants: Any) -> Any:
        """The jit-compiled update: (state, batch, seed, *constants) -> (state, metrics).

        Args:
            accumulation_steps: microbatches per update.
            constants: shardings of the further arguments: the parameters of a teacher.
        """
        train_step = make_train_step(
            self.loss_fn,
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
        """The jit-compiled evaluation of a batch: (params, batch, *constants) -> sums."""
        eval_step = make_eval_step(self.loss_fn, self.objective.weights)
        return jax.jit(sharding.within(self.mesh, eval_step))


def with_sharding(shapes: Any, shardings: Any) -> Any:
    """A tree of shapes and a tree of shardings -> shapes that carry their sharding."""
    return jax.tree.map(
        lambda s, where: jax.ShapeDtypeStruct(s.shape, s.dtype, sharding=where), shapes, shardings
    )
