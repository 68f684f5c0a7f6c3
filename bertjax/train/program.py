"""Programs: a run's model, objective and optimizer, with the compiled steps for a mesh of devices.

`Program` is that of every run, and `PretrainingProgram` that of a pretraining config, with the
shapes, the masking and random rows of its batches.
"""

import copy
import dataclasses
import functools
import itertools
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from bertjax.config import Phase, PretrainConfig, TrainingConfig
from bertjax.config.model import BertConfig
from bertjax.data.batches.batch import Batch
from bertjax.data.batches.masking import Masking, random_bits, unspaced_tokens
from bertjax.data.batches.pretraining_batches import RowFormat, make_batch
from bertjax.data.records import Row
from bertjax.devices import sharding
from bertjax.devices.flops import train_flops_per_row
from bertjax.devices.kernels import choose_attention, choose_remat, choose_unroll
from bertjax.model import HEADS, BertWithHead
from bertjax.model.losses import Objective
from bertjax.model.recipe import Params, Recipe
from bertjax.tokenization import Tokenizer
from bertjax.train.distillation import Teacher, distilled_pretraining
from bertjax.train.optimizer import (
    average_params,
    averaged,
    decay_by_layer,
    make_optimizer,
    make_peak,
    make_schedule,
)
from bertjax.train.step import (
    GlobalLoss,
    LossFn,
    Steps,
    TrainState,
    create_train_state,
    device_axis,
    make_loss_fn,
)
from bertjax.weights import init_params

# The ids of special tokens in random rows; their values do not affect the time of a step.
CLS = 1
SEP = 2
MASK = 3


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
        recipe: which parameters are trained, and how; None: the recipe of the model.
        layer_decay: the factor of the learning rate from a layer to the one below it.
        average_decay: the decay rate of an average of the trained parameters; 0: none.
        accumulation_steps: the number of microbatches per update; None: each phase's number.

    Attributes:
        rows: the sharding of the arrays of a batch, whose axis 0 indexes the rows.
        attention: the chosen attention kernel and the reason for the choice.
        state_sharding: the shardings of the arrays of the `TrainState`.
        state_shapes: the shapes and dtypes of the arrays of the `TrainState`.
        teacher_sharding: the shardings of the parameters of the teacher; None: there is none.
    """

    def __init__(
        self,
        config: TrainingConfig,
        model: BertWithHead,
        objective: Objective,
        phases: Sequence[Phase],
        mesh: Mesh,
        teacher: Teacher | None = None,
        *,
        recipe: Recipe | None = None,
        layer_decay: float = 1.0,
        average_decay: float = 0.0,
        accumulation_steps: int | None = None,
    ):
        self.config = config
        self.mesh = mesh
        self.objective = objective
        self.recipe = recipe or model.recipe
        self._average_decay = average_decay
        self._accumulation_steps = accumulation_steps
        self._max_examples = max(phase.batch_size for phase in phases)
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
        dtype = jnp.dtype(config.dtype)
        self.model = model.clone(
            dtype=dtype,
            unroll=self._unroll(model.config),
            remat=self.remat,
            attention_kernel=self.attention.kernel,
        )
        self.teacher = self._teacher_params = self.teacher_sharding = None
        if teacher is not None:
            unroll = self._unroll(teacher.model.config)
            self.teacher = teacher.model.clone(dtype=dtype, unroll=unroll)
            self._teacher_params = teacher.params
            self.teacher_sharding = sharding.state_sharding(mesh, teacher.params)
        self.schedule = make_schedule(config.optimizer, phases)
        last = []
        if layer_decay != 1.0:
            last.append(decay_by_layer(layer_decay, model.config.num_hidden_layers))
        if average_decay:
            last.append(average_params(average_decay))
        peak = make_peak(config.optimizer, phases)
        self.tx = make_optimizer(
            config.optimizer, self.schedule, peak, *last, apart=model.clipped_apart
        )
        shapes = jax.eval_shape(self._random_state)
        self.state_sharding = sharding.state_sharding(mesh, shapes)
        self.state_shapes = with_sharding(shapes, self.state_sharding)

    def _unroll(self, model: BertConfig) -> int:
        return choose_unroll(self.config.unroll, self.remat, model.num_hidden_layers, self.mesh)

    def _random_state(self) -> TrainState:
        params = init_params(self.model, self.config.seed)
        return self._state_of(*self.recipe.split(params, is_new=True))

    def _state_of(self, params: Params, fixed: Params) -> TrainState:
        return create_train_state(params, fixed, self.tx, skip_spikes=self.config.skip_spikes)

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
        shardings = self.state_sharding.params, self.state_sharding.fixed
        parts = jax.device_put(jax.device_get(self.recipe.split(params)), shardings)
        return jax.jit(self._state_of, out_shardings=self.state_sharding)(*parts)

    def averaged(self, state: TrainState) -> Params:
        """Returns the trained parameters, or their average if the run has one."""
        if not self._average_decay:
            return state.params
        return averaged(state.params, state.opt_state[-1], self._average_decay)

    def final_params(self, state: TrainState) -> Params:
        """Returns the parameters of the model, averaged and joined as the run says."""
        if self.recipe == Recipe() and not self._average_decay:
            return state.params
        return self._final_params(state)

    @functools.cached_property
    def _final_params(self) -> Callable[[TrainState], Params]:
        shapes = jax.eval_shape(self._joined, self.state_shapes)
        return jax.jit(self._joined, out_shardings=sharding.state_sharding(self.mesh, shapes))

    def _joined(self, state: TrainState) -> Params:
        return self.recipe.join(self.averaged(state), state.fixed)

    def train_step(self, accumulation_steps: int) -> Any:
        """Returns the jitted train step (state, batch, seed, teacher's params) -> (state, metrics).

        An update has `accumulation_steps` microbatches.
        """
        steps = self._steps(accumulation_steps)
        return steps.compiled(self.state_sharding, self.rows, self.teacher_sharding)

    def _steps(self, accumulation_steps: int) -> Steps:
        loss_fn: LossFn = make_loss_fn(self.model, self.objective, self.teacher)
        if self.objective.compares_examples:
            # The loss function itself splits a batch into microbatches.
            loss_fn = self._global_loss(accumulation_steps)
            accumulation_steps = 1
        return Steps(
            loss_fn,
            self.objective.weights,
            self.tx,
            self.schedule,
            self.mesh,
            self.recipe,
            accumulation_steps,
            self.config.dropout_prng,
        )

    def _global_loss(self, accumulation_steps: int) -> GlobalLoss:
        loss = GlobalLoss(self.model, self.objective, self._max_examples, accumulation_steps)
        axis = device_axis(self.mesh)
        if axis is None:
            return loss
        return dataclasses.replace(loss, axis=axis, devices=self.mesh.shape[axis])

    @functools.cached_property
    def teacher_params(self) -> Params | None:
        """The parameters of the teacher on the devices; None: there is none."""
        return jax.device_put(self._teacher_params, self.teacher_sharding)

    def microbatches(self, phase: Phase) -> int:
        """The number of microbatches of an update in a phase."""
        return self._accumulation_steps or phase.accumulation_steps

    def seeded_step(self, phase: Phase) -> Callable[[TrainState, Any], Any]:
        """Returns the jitted train step of a phase: (state, batch) -> (state, metrics)."""
        step = self.for_phase(phase).train_step(self.microbatches(phase))
        seed = np.uint32(self.config.seed)
        teacher = self.teacher_params
        return lambda state, batch: step(state, batch, seed, teacher)

    def eval_step(self, phase: Phase) -> Callable[[Params, Any], Any]:
        """Returns the jitted eval step (model's params, batch) -> {metric: (sum, weight)}."""
        steps = self.for_phase(phase)._steps(1)
        step = jax.jit(sharding.within(self.mesh, steps.eval_step))
        return lambda params, batch: step(params, batch, self.teacher_params)


def with_sharding(shapes: Any, shardings: Any) -> Any:
    """Returns a tree of `jax.ShapeDtypeStruct`s from a tree of shapes and a tree of shardings."""
    return jax.tree.map(
        lambda s, where: jax.ShapeDtypeStruct(s.shape, s.dtype, sharding=where), shapes, shardings
    )


class PretrainingProgram(Program):
    """The model, optimizer and compiled steps of a pretraining config whose `head` is not None."""

    def __init__(self, config: PretrainConfig, mesh: Mesh, teacher: Teacher | None = None):
        for stage in itertools.chain(*(phase.stages for phase in config.phases)):
            sharding.check_batch_size(mesh, stage.batch_size, stage.accumulation_steps)
        model = HEADS[str(config.head)].for_pretraining(config)
        objective = model.objective("pretraining")
        if teacher is not None and config.distillation is not None:
            objective = distilled_pretraining(config.distillation)
        super().__init__(config, model, objective, config.phases, mesh, teacher)
        self.config: PretrainConfig = config

    def for_phase(self, phase: Phase) -> "PretrainingProgram":
        """Returns the program of a phase, whose model has the rotary base of the phase."""
        if phase.global_rope_theta is None:
            return self
        program = copy.copy(self)
        model = dataclasses.replace(self.model.config, global_rope_theta=phase.global_rope_theta)
        program.model = self.model.clone(config=model)
        return program

    def flops_per_row(self, phase: Phase, attended: float | None = None) -> float:
        """Returns the FLOP per row of an update, including the teacher's forward pass, if any.

        The rows belong to `phase`. `attended` is the mean number of tokens that a token attends
        to; None: all tokens of a row.
        """
        predictions = max_predictions(self.config, phase)
        if not self.objective.inputs:  # without masked positions, all tokens have logits
            predictions = phase.max_length
        length = phase.max_length
        total = 0.0
        for encoder, predicts_words in self.model.trained_encoders:
            count = predictions if predicts_words else 0
            total += train_flops_per_row(encoder, length, count, attended)
        if self.teacher is not None:
            forward = train_flops_per_row(self.teacher.config, length, predictions, attended) / 3
            total += forward
        return total


def max_predictions(config: PretrainConfig, phase: Phase, max_sequences: int = 1) -> int:
    """Returns P, the maximum number of predicted tokens per row of up to `max_sequences` sequences.

    P is `phase.max_predictions`, or follows from `config.mlm_probability`. A model that predicts
    the next token predicts at all positions.
    """
    if config.predict == "next_token":
        return phase.max_length
    wanted = phase.max_predictions or phase.max_length * config.mlm_probability
    # The number of predictions is rounded for each sequence of a row, which adds at most 1/2 each.
    return int(np.ceil(wanted) if max_sequences == 1 else wanted + max_sequences / 2)


def _masking(config: PretrainConfig, phase: Phase, max_sequences: int, **settings: Any) -> Masking:
    if config.head == "rtd":
        settings |= {"mask_share": config.generator.masked, "random_share": 0.0}
    settings["max_predictions"] = max_predictions(config, phase, max_sequences)
    return Masking(probability=config.mlm_probability, predict=config.predict, **settings)


def make_masking(
    config: PretrainConfig, phase: Phase, tokenizer: Tokenizer, max_sequences: int = 1
) -> Masking:
    """Returns the masking settings of a phase whose rows hold at most `max_sequences` sequences.

    The settings come from `config`, for the vocabulary of `tokenizer`.
    """
    starts = segment = None
    if config.whole_word_masking or config.max_ngram > 1:
        starts = tokenizer.word_starts
        unspaced = unspaced_tokens(tokenizer)
        if find_spec("icu4py"):
            segment = unspaced.segment
        else:
            starts |= unspaced.starts
    return _masking(
        config,
        phase,
        max_sequences,
        vocab_size=tokenizer.vocab_size,
        mask_token_id=tokenizer.mask_token_id,
        never_masked=(tokenizer.cls_token_id, tokenizer.sep_token_id),
        word_starts=starts,
        segment=segment,
        max_ngram=config.max_ngram,
        never_drawn=tokenizer.special_ids if config.random_words == "ordinary" else (),
    )


def row_format(
    config: PretrainConfig, phase: Phase, tokenizer: Tokenizer, max_sequences: int
) -> tuple[Masking, RowFormat]:
    """Returns the masking settings and the row format (length, padding) of a phase of `config`.

    Rows hold at most `max_sequences` sequences, and `tokenizer` made them.
    """
    masking = make_masking(config, phase, tokenizer, max_sequences)
    return masking, RowFormat(phase.max_length, tokenizer.pad_token_id, max_sequences)


def random_rows(config: PretrainConfig, phase: Phase, count: int) -> Batch:
    """Creates a batch of `count` masked rows, each one sequence of random token ids, no padding.

    The batch has the arrays and the shapes that `config` gives the batches of `phase`.
    """
    rng = np.random.default_rng(0)
    length = phase.max_length
    vocab_size = config.model.vocab_size
    tokens = {"vocab_size": vocab_size, "mask_token_id": MASK, "never_masked": (CLS, SEP)}
    masking = _masking(config, phase, 1, **tokens)
    rows = []
    for _ in range(count):
        ids = rng.integers(min(MASK + 1, vocab_size - 1), vocab_size, length)
        ids[0], ids[length // 2], ids[-1] = CLS, SEP, SEP
        rows.append(Row(ids, (length,), (length // 2 + 1,), (int(rng.integers(2)),)))
    bits = random_bits((0,), range(count), length)
    return make_batch(rows, masking, RowFormat(length, 0), bits)


def batch_shapes(config: PretrainConfig, phase: Phase, rows: Any) -> dict[str, Any]:
    """Returns the arrays of a phase's global batch as `jax.ShapeDtypeStruct`s.

    `rows` is the sharding of each array. They are the shapes of batches with one sequence per row,
    for the model and the masking in `config`.
    """
    return {
        key: jax.ShapeDtypeStruct((phase.batch_size, *value.shape[1:]), value.dtype, sharding=rows)
        for key, value in random_rows(config, phase, 1).items()
    }


def with_head(config: PretrainConfig, has_pairs: bool) -> PretrainConfig:
    """Returns the config with `head` "pretraining" (MLM and sentence pairs) or "masked_lm".

    Args:
        config: the config of the run. Without a teacher, the head is `config.head`; if it is None,
            the head is "pretraining" if `has_pairs` is True, else "masked_lm". With a teacher, the
            head is "pretraining" if `config.distillation.nsp`, the weight of the sentence-pair
            loss, is above 0, else "masked_lm".
        has_pairs: whether the data has sentence pairs.
    """
    distillation = config.distillation
    if distillation is None:
        head = config.head or ("pretraining" if has_pairs else "masked_lm")
        if head == "pretraining" and not has_pairs and config.init is None:
            raise ValueError(
                "--head pretraining needs rows with sentence pairs, and these have none, so that "
                "its next-sentence head would stay random: leave --head out, or prepare the text "
                "with --objective nsp or sop."
            )
        return dataclasses.replace(config, head=head)
    trained = "masked_lm"
    if distillation.nsp:
        trained = "pretraining"
    if config.head not in (None, trained):
        raise ValueError(
            f"head={config.head!r} with distillation.nsp={distillation.nsp:g}: distillation trains "
            f"the head {trained!r}. Leave --head out."
        )
    return dataclasses.replace(config, head=trained)
