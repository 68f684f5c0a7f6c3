"""What a config computes on a mesh, whatever its data and workdir: model, optimizer, update."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from bertjax.config import Phase, PretrainConfig
from bertjax.data.batches.batch import Batch, stack
from bertjax.data.batches.masking import Masking
from bertjax.data.batches.pretraining_batches import RowFormat, make_row
from bertjax.data.records import Row
from bertjax.devices import sharding
from bertjax.devices.flops import train_flops_per_row
from bertjax.devices.kernels import choose_attention, choose_unroll
from bertjax.model import HEADS, BertConfig, BertWithHead
from bertjax.tokenization import Tokenizer
from bertjax.training.distillation import distilled_pretraining
from bertjax.training.objective import PRETRAINING, TEACHER, make_loss_fn
from bertjax.training.optimizer import make_optimizer, make_schedule
from bertjax.training.state import TrainState, create_train_state
from bertjax.training.step import compile_train_step, make_eval_step, make_train_step
from bertjax.weights import init_params

# Ids that random rows begin and end with, and are masked by; their meaning costs no time.
CLS, SEP, MASK = 1, 2, 3


def max_predictions(config: PretrainConfig, phase: Phase, max_sequences: int = 1) -> int:
    """How many tokens of a row are predicted at most."""
    if config.predict == "next_token":
        return phase.max_length
    if phase.max_predictions is not None:
        return phase.max_predictions
    wanted = phase.max_length * config.mlm_probability
    # Each sequence of several rounds its share, up by a half at most.
    return int(np.ceil(wanted) if max_sequences == 1 else wanted + max_sequences / 2)


def make_masking(
    config: PretrainConfig, phase: Phase, tokenizer: Tokenizer, max_sequences: int = 1
) -> Masking:
    """How the rows of a phase, of so many sequences at most, are masked."""
    by_words = config.whole_word_masking or config.max_ngram > 1
    return Masking(
        probability=config.mlm_probability,
        max_predictions=max_predictions(config, phase, max_sequences),
        vocab_size=tokenizer.vocab_size,
        mask_token_id=tokenizer.mask_token_id,
        never_masked=(tokenizer.cls_token_id, tokenizer.sep_token_id),
        word_starts=tokenizer.word_starts if by_words else None,
        max_ngram=config.max_ngram,
        never_drawn=tokenizer.special_ids if config.random_words == "ordinary" else (),
        predict=config.predict,
    )


def random_rows(config: PretrainConfig, phase: Phase, count: int) -> Batch:
    """Full rows of one sequence of random ids, masked as the config says."""
    rng, length, vocab_size = np.random.default_rng(0), phase.max_length, config.model.vocab_size
    masking = Masking(
        probability=config.mlm_probability,
        max_predictions=max_predictions(config, phase),
        vocab_size=vocab_size,
        mask_token_id=MASK,
        never_masked=(CLS, SEP),
        predict=config.predict,
    )
    made = []
    for _ in range(count):
        ids = rng.integers(min(MASK + 1, vocab_size - 1), vocab_size, length)
        ids[0], ids[length // 2], ids[-1] = CLS, SEP, SEP
        row = Row(ids, (length,), (length // 2 + 1,), (int(rng.integers(2)),))
        made.append(make_row(row, masking, RowFormat(length, 0), rng))
    return stack(made)


def batch_shapes(config: PretrainConfig, phase: Phase, rows: Any) -> dict[str, Any]:
    """Shapes and dtypes of a global batch of unpacked rows, laid out as `rows` says."""
    return {
        key: jax.ShapeDtypeStruct((phase.batch_size, *value.shape[1:]), value.dtype, sharding=rows)
        for key, value in random_rows(config, phase, 1).items()
    }


class Program:
    """The model of a config, its optimizer and its update, for the devices of a mesh.

    Args:
        config: its `head` is known.
        mesh: of devices that are here, or that one only has names of.
        teacher: whom the model learns from, where the config names one.

    Raises:
        ValueError: config and mesh do not fit together.
    """

    def __init__(self, config: PretrainConfig, mesh: Mesh, teacher: BertWithHead | None = None):
        self.config, self.mesh = config, mesh
        for phase in config.phases:
            sharding.check_batch_size(mesh, phase.batch_size, phase.accumulation_steps)
        self.rows = sharding.batch_sharding(mesh)
        self.attention = choose_attention(
            config.attention,
            config.model,
            [phase.max_length for phase in config.phases],
            mesh.devices.flat[0].device_kind,
            config.dtype,
        )
        self.model = HEADS[str(config.head)](
            config.model,
            jnp.dtype(config.dtype),
            unroll=self._unroll(config.model),
            remat=config.remat,
            attention_kernel=self.attention.kernel,
        )
        self.schedule = make_schedule(config.optimizer, config.phases)
        self.tx = make_optimizer(config.optimizer, self.schedule)
        self.objective, self.teacher = PRETRAINING, teacher
        if teacher is not None:
            self.objective = distilled_pretraining(config.distillation)
            self.teacher = teacher.clone(unroll=self._unroll(teacher.config))
        self.loss_fn = make_loss_fn(self.model, self.objective, self.teacher)
        shapes = jax.eval_shape(self.fresh_state)
        self.state_sharding = sharding.state_sharding(mesh, shapes)
        self.state_shapes = with_sharding(shapes, self.state_sharding)

    def _unroll(self, model: BertConfig) -> int:
        """How many layers of a model are written out at a time."""
        config = self.config
        return choose_unroll(config.unroll, config.remat, model.num_hidden_layers, self.mesh)

    def fresh_state(self) -> TrainState:
        """The state that the seed gives; to be compiled with a layout."""
        return create_train_state(init_params(self.model, self.config.seed), self.tx)

    def train_step(self, phase: Phase, *constants: Any) -> Any:
        """The jit-compiled update of a phase; `constants` are shardings of what it takes besides.

        It takes (state, batch, seed, *constants) and returns (state, metrics).
        """
        train_step = make_train_step(
            self.loss_fn,
            self.objective.weights,
            self.tx,
            self.schedule,
            mesh=self.mesh,
            accumulation_steps=phase.accumulation_steps,
            frozen=(TEACHER,),
            dropout_prng=self.config.dropout_prng,
        )
        within = sharding.within(self.mesh, train_step)
        return compile_train_step(within, self.state_sharding, self.rows, *constants)

    def eval_step(self) -> Any:
        """The jit-compiled evaluation of a batch: (params, batch, *constants) -> sums."""
        eval_step = make_eval_step(self.loss_fn, self.objective.weights)
        return jax.jit(sharding.within(self.mesh, eval_step))

    def flops_per_row(self, phase: Phase, attended: float | None = None) -> float:
        """The work of a row; a teacher has the forward pass alone, a third of it.

        `attended`: as of `train_flops_per_row`.
        """
        scored = max_predictions(self.config, phase)
        if self.teacher is None:
            return train_flops_per_row(self.config.model, phase.max_length, scored, attended)
        if not self.objective.inputs:  # words are scored at all tokens
            scored = phase.max_length
        student, teacher = (
            train_flops_per_row(model, phase.max_length, scored, attended)
            for model in (self.config.model, self.teacher.config)
        )
        return student + teacher / 3


def teacher_of_shape(model: BertConfig, config: PretrainConfig) -> BertWithHead:
    """A masked LM of an architecture as a teacher runs it, without its parameters."""
    return HEADS["masked_lm"](model, jnp.dtype(config.dtype))


def with_sharding(shapes: Any, shardings: Any) -> Any:
    """Shapes that know their layout."""
    return jax.tree.map(
        lambda s, where: jax.ShapeDtypeStruct(s.shape, s.dtype, sharding=where), shapes, shardings
    )
