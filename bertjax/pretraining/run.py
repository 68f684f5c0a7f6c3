"""One pretraining: a config, from its data to the trained state."""

import dataclasses
import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bertjax.config import Phase, PretrainConfig, differences
from bertjax.data.batch import Batch
from bertjax.data.masking import Masking
from bertjax.data.pipeline import eval_batches, train_batches
from bertjax.data.records import open_prepared, shard_paths
from bertjax.model import HEADS, BertConfig
from bertjax.pretraining.teacher import (
    Teacher,
    head_of_student,
    load_teacher,
    run_identity,
    start_of_student,
)
from bertjax.tokenization import Tokenizer, load_tokenizer
from bertjax.train import sharding
from bertjax.train.checkpoint import Checkpointer
from bertjax.train.distillation import distilled_pretraining
from bertjax.train.evaluate import evaluate
from bertjax.train.flops import train_flops_per_row
from bertjax.train.hooks import EvaluateAndSave, MetricLogger, StopSignal
from bertjax.train.loop import fit
from bertjax.train.objective import PRETRAINING, TEACHER, make_loss_fn
from bertjax.train.optimizer import make_optimizer, make_schedule
from bertjax.train.state import TrainState, create_train_state
from bertjax.train.step import compile_train_step, make_eval_step, make_train_step, with_seed
from bertjax.train.workdir import Workdir
from bertjax.weights import init_params, load_model
from bertjax.weights.families import architecture, config_to_hf, with_pad_token

DROPOUT_FIELDS = ("hidden_dropout_prob", "attention_probs_dropout_prob", "classifier_dropout")


def make_masking(config: PretrainConfig, phase: Phase, tokenizer: Tokenizer) -> Masking:
    """How the rows of a phase are masked."""
    share = int(np.ceil(phase.max_length * config.mlm_probability))
    if config.predict == "next_token":
        share = phase.max_length
    by_words = config.whole_word_masking or config.max_ngram > 1
    return Masking(
        probability=config.mlm_probability,
        max_predictions=share if phase.max_predictions is None else phase.max_predictions,
        vocab_size=tokenizer.vocab_size,
        mask_token_id=tokenizer.mask_token_id,
        never_masked=(tokenizer.cls_token_id, tokenizer.sep_token_id),
        word_starts=tokenizer.word_starts if by_words else None,
        max_ngram=config.max_ngram,
        never_drawn=tokenizer.special_ids if config.random_words == "ordinary" else (),
        predict=config.predict,
    )


class Run:
    """A pretraining run: what does not change while it trains, and its workdir.

    Raises:
        ValueError: config, data and devices do not fit together.
    """

    def __init__(self, config: PretrainConfig):
        if not config.data or not config.workdir or not config.phases:
            raise ValueError(
                f"data={config.data!r}, workdir={config.workdir!r}, {len(config.phases)} phases: "
                "give --config, --data and --workdir."
            )
        self.workdir = Workdir(Path(config.workdir))
        self.metadata = open_prepared(config.data)
        self.tokenizer = load_tokenizer(config.data)
        self.initial = None
        pairs = self.metadata.objective in ("nsp", "sop")
        config = dataclasses.replace(config, head=head_of_student(config, pairs))
        if config.init is not None:
            config = dataclasses.replace(config, model=self._model_of_init(config))
        model = with_pad_token(config.model, self.tokenizer.pad_token_id)
        self.config = config = dataclasses.replace(config, model=model)
        self._check_model()
        self._check_data()
        self.mesh = sharding.make_mesh(config.mesh)
        for phase in config.phases:
            sharding.check_batch_size(self.mesh, phase.batch_size, phase.accumulation_steps)
        self.rows = sharding.batch_sharding(self.mesh)
        self.model = HEADS[str(config.head)](
            config.model, jnp.dtype(config.dtype), unroll=config.unroll, remat=config.remat
        )
        self.schedule = make_schedule(config.optimizer, config.phases)
        self.tx = make_optimizer(config.optimizer, self.schedule)
        self.teacher: Teacher | None = None
        self.objective = PRETRAINING
        if config.distillation.teacher is not None:
            self.teacher = load_teacher(config, self.tokenizer, self.mesh)
            self.objective = distilled_pretraining(config.distillation)
        if config.distillation.layers and not self.workdir.has_checkpoints:
            self.initial = start_of_student(config, self.model)
        self.loss_fn = make_loss_fn(self.model, self.objective, self.teacher and self.teacher.model)
        self.eval_step = jax.jit(make_eval_step(self.loss_fn, self.objective.weights))
        shapes = jax.eval_shape(self._fresh_state)
        self.state_sharding = sharding.state_sharding(self.mesh, shapes)
        self.state_shapes = jax.tree.map(
            lambda s, where: jax.ShapeDtypeStruct(s.shape, s.dtype, sharding=where),
            shapes,
            self.state_sharding,
        )

    def _model_of_init(self, config: PretrainConfig) -> BertConfig:
        """The architecture of --init, with the dropout of the config.

        Once the run has a checkpoint it no longer needs the model that it started from.
        """
        if self.workdir.has_checkpoints:
            return BertConfig.from_dict(self.workdir.read()["config"]["model"])
        self.initial = load_model(str(config.init), config.head)
        dropout = {name: getattr(config.model, name) for name in DROPOUT_FIELDS}
        model = dataclasses.replace(self.initial.config, **dropout)
        for change in differences(dataclasses.asdict(model), dataclasses.asdict(config.model)):
            print(f"--init {config.init} decides on the architecture: {change}")
        return model

    def _check_model(self) -> None:
        """Refuses, before hours of training, what could not be written in the end."""
        config_to_hf(self.config.model)
        try:
            architecture(self.config.model, str(self.config.head))
        except ValueError as error:
            raise ValueError(
                f"{error} {self.config.data} was prepared for {self.metadata.objective}: prepare "
                "with --objective mlm, or give --head masked_lm, which leaves its pairs alone."
            ) from error

    def _check_data(self) -> None:
        tokenizer, model = self.tokenizer, self.config.model
        if tokenizer.fingerprint != self.metadata.tokenizer_fingerprint:
            raise ValueError(
                f"The tokenizer in {self.config.data} is not the one that the rows there were made "
                "with: put that one back, or prepare the data again."
            )
        if tokenizer.vocab_size > model.vocab_size:
            raise ValueError(
                f"The data was prepared with {tokenizer.vocab_size} tokens, but the model has "
                f"vocab_size={model.vocab_size}: ids beyond it have no embedding. Use "
                f"--model.vocab_size={tokenizer.vocab_size}."
            )
        if self.initial and self.initial.tokenizer.fingerprint != tokenizer.fingerprint:
            raise ValueError(
                f"The tokenizer of --init {self.config.init} is not the one that {self.config.data}"
                " was prepared with: prepare the data with --tokenizer naming the model."
            )
        for phase in self.config.phases:
            if phase.max_length not in self.metadata.max_lengths:
                raise ValueError(
                    f"{self.config.data} holds rows of {self.metadata.max_lengths} tokens, the "
                    f"config wants max_length={phase.max_length}: prepare with --max_length "
                    f"{phase.max_length}."
                )

    def _fresh_state(self) -> TrainState:
        return create_train_state(init_params(self.model, self.config.seed), self.tx)

    def new_state(self) -> TrainState:
        """The state before the first step, laid out over the devices."""
        if self.initial is None:
            return jax.jit(self._fresh_state, out_shardings=self.state_sharding)()
        source = self.config.init or self.config.distillation.teacher
        for part in self.initial.absent:
            print(f"{source} has no {part}: it starts from its initialisation")
        create = jax.jit(
            lambda params: create_train_state(params, self.tx), out_shardings=self.state_sharding
        )
        return create(jax.device_put(self.initial.params, self.state_sharding.params))

    def claim_workdir(self) -> None:
        """Takes the workdir for this config, or goes on with its run; see `train.workdir`."""
        fingerprint = hashlib.sha256(self.metadata.to_json().encode()).hexdigest()
        self.workdir.claim(run_identity(self.config, self.teacher), fingerprint)
        self.tokenizer.save(self.workdir.tokenizer)

    def batches(self, phase_index: int, first_row: int) -> Iterator[Any]:
        """Global batches of a phase from `first_row` on, on the devices."""
        phase = self.config.phases[phase_index]
        host_rows = sharding.host_rows(self.rows, phase.batch_size)
        batches = train_batches(
            shard_paths(self.config.data, "train", phase.max_length),
            make_masking(self.config, phase, self.tokenizer),
            row_length=phase.max_length,
            pad_token_id=self.tokenizer.pad_token_id,
            seed=self.config.seed,
            phase=phase_index,
            batch_size=phase.batch_size,
            first_row=first_row,
            host_rows=host_rows,
            num_threads=self.config.reader_threads,
        )
        for batch in batches:
            yield self._to_devices(batch, host_rows, phase.batch_size)

    def evaluate(self, phase: Phase, params: Any) -> dict[str, float]:
        """Means on the held-out rows of the phase's length; beside them the unigram entropy.

        Nothing, if the data has no held-out rows.
        """
        held_out = self.metadata.splits.get("eval")
        if held_out is None or not held_out.lengths[str(phase.max_length)].records:
            return {}
        micro = phase.batch_size // phase.accumulation_steps
        host_rows = sharding.host_rows(self.rows, micro)
        batches = eval_batches(
            shard_paths(self.config.data, "eval", phase.max_length),
            make_masking(self.config, phase, self.tokenizer),
            row_length=phase.max_length,
            pad_token_id=self.tokenizer.pad_token_id,
            seed=self.config.seed,
            batch_size=micro,
            max_rows=self.config.eval_rows,
            host_rows=host_rows,
        )
        on_devices = (self._to_devices(batch, host_rows, micro) for batch in batches)
        found = evaluate(
            lambda params, batch: self.eval_step(params, batch, *self._constants()),
            params,
            on_devices,
        )
        found["unigram_entropy"] = held_out.unigram_entropy_nats or float("nan")
        return {f"eval/{key}": value for key, value in found.items()}

    def _constants(self) -> tuple[dict[str, Any], ...]:
        """What the steps take besides the state: the parameters of the teacher, if there is one."""
        return () if self.teacher is None else ({TEACHER: self.teacher.params},)

    def _to_devices(self, batch: Batch, host_rows: np.ndarray, batch_size: int):
        return sharding.to_devices(batch, host_rows, self.rows, batch_size)

    def _flops_per_row(self, phase: Phase) -> float:
        """The work of a row; a teacher has the forward pass alone, a third of it."""
        scored = make_masking(self.config, phase, self.tokenizer).max_predictions
        if self.teacher is None:
            return train_flops_per_row(self.config.model, phase.max_length, scored)
        if not self.objective.inputs:  # words are scored at all tokens
            scored = phase.max_length
        student, teacher = (
            train_flops_per_row(config, phase.max_length, scored)
            for config in (self.config.model, self.teacher.model.config)
        )
        return student + teacher / 3

    def train_step(self, phase: Phase) -> Callable[[TrainState, Any], Any]:
        """The compiled update of a phase: (state, batch) -> (state, metrics)."""
        train_step = compile_train_step(
            make_train_step(
                self.loss_fn,
                self.objective.weights,
                self.tx,
                self.schedule,
                mesh=self.mesh,
                accumulation_steps=phase.accumulation_steps,
                frozen=(TEACHER,),
            ),
            self.state_sharding,
            self.rows,
            *jax.tree.map(lambda x: x.sharding, self._constants()),
        )
        return with_seed(train_step, self.config.seed, *self._constants())

    def train_phase(
        self, index: int, state: TrainState, step: int, start: int, tools: "Tools"
    ) -> tuple[TrainState, int]:
        """Trains phase `index`, which begins at step `start`, from `step` to its end."""
        phase = self.config.phases[index]
        row_flops = self._flops_per_row(phase)
        tools.logger.start_phase(row_flops * phase.batch_size, tools.peak_flops)
        end = start + phase.num_steps
        save = EvaluateAndSave(
            tools.checkpointer,
            tools.logger,
            lambda params: self.evaluate(phase, params),
            lambda step: {"phase": index, "row": (step - start) * phase.batch_size},
            phase=index,
            eval_every=self.config.eval_every,
            save_every=self.config.save_every,
            last_step=end,
        )
        state, step = fit(
            state,
            self.train_step(phase),
            self.batches(index, (step - start) * phase.batch_size),
            step=step,
            num_steps=end,
            hooks=(tools.logger, save),
            should_stop=tools.stop,
        )
        if step < end:
            save.save(step, state)
        return state, step


@dataclasses.dataclass
class Tools:
    """What the phases of a run share while it trains."""

    checkpointer: Checkpointer
    logger: MetricLogger
    stop: StopSignal
    peak_flops: float
