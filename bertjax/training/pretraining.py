"""One pretraining: a config, from its data to the trained state."""

import dataclasses
import hashlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np

from bertjax.config import Phase, PretrainConfig, differences
from bertjax.data.batches.batch import Batch
from bertjax.data.batches.masking import Masking
from bertjax.data.batches.pretraining_batches import HeldOutRows, RowFormat, train_batches
from bertjax.data.records import open_prepared, shard_paths
from bertjax.data.storage import is_remote
from bertjax.devices import hosts, sharding
from bertjax.model import BertConfig
from bertjax.tokenization import load_tokenizer
from bertjax.training.checkpoint import Checkpointer
from bertjax.training.evaluate import evaluate
from bertjax.training.hooks import EvaluateAndSave, MetricLogger, StopSignal
from bertjax.training.loop import fit
from bertjax.training.objective import TEACHER
from bertjax.training.setup import Program, make_masking
from bertjax.training.state import TrainState, create_train_state
from bertjax.training.step import with_seed
from bertjax.training.teacher import (
    Teacher,
    head_of_student,
    load_teacher,
    run_identity,
    start_of_student,
)
from bertjax.training.workdir import Workdir
from bertjax.weights import load_model
from bertjax.weights.families import architecture, config_to_hf, with_pad_token

# What a run decides on, whatever it starts from. Other rates of dropout tell families apart.
DECIDED_BY_THE_RUN = ("hidden_dropout_prob", "attention_probs_dropout_prob", "classifier_dropout")


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
        for name in ("data", "workdir"):
            if is_remote(getattr(config, name)):
                raise ValueError(
                    f"--{name} {getattr(config, name)} is in a bucket: training reads and writes "
                    "files. Copy data to a disk of each host (gcloud storage rsync), and let the "
                    "workdir lie on a file system that all hosts share."
                )
        self.workdir = Workdir(Path(config.workdir))
        self.metadata = open_prepared(config.data)
        self.tokenizer = load_tokenizer(config.data)
        self.initial = None
        self._held_out: dict[Phase, HeldOutRows] = {}
        head = head_of_student(config, self.metadata.has_sentence_pairs)
        config = dataclasses.replace(config, head=head)
        if config.init is not None:
            config = dataclasses.replace(config, model=self._model_of_init(config))
        model = with_pad_token(config.model, self.tokenizer.pad_token_id)
        self.config = config = dataclasses.replace(config, model=model)
        self._check_model()
        self._check_data()
        mesh = sharding.make_mesh(config.mesh)
        self.teacher: Teacher | None = None
        if config.distillation.teacher is not None:
            self.teacher = load_teacher(config, self.tokenizer, mesh)
        self.program = Program(config, mesh, self.teacher and self.teacher.model)
        if config.distillation.layers and not self.workdir.has_checkpoints:
            self.initial = start_of_student(config, self.program.model)
        self._eval_step = self.program.eval_step()

    def _model_of_init(self, config: PretrainConfig) -> BertConfig:
        """The architecture of --init, with the dropout of the config.

        Once the run has a checkpoint it no longer needs the model that it started from.
        """
        if self.workdir.has_checkpoints:
            return BertConfig.from_dict(self.workdir.read()["config"]["model"])
        self.initial = load_model(str(config.init), config.head)
        dropout = {name: getattr(config.model, name) for name in DECIDED_BY_THE_RUN}
        model = dataclasses.replace(self.initial.config, **dropout)
        for change in differences(dataclasses.asdict(model), dataclasses.asdict(config.model)):
            hosts.say(f"--init {config.init} decides on the architecture: {change}")
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

    def new_state(self) -> TrainState:
        """The state before the first step, laid out over the devices."""
        program = self.program
        if self.initial is None:
            return jax.jit(program.fresh_state, out_shardings=program.state_sharding)()
        source = self.config.init or self.config.distillation.teacher
        for part in self.initial.absent:
            hosts.say(f"{source} has no {part}: it starts from its initialisation")
        create = jax.jit(
            lambda params: create_train_state(params, program.tx),
            out_shardings=program.state_sharding,
        )
        return create(jax.device_put(self.initial.params, program.state_sharding.params))

    def claim_workdir(self) -> None:
        """Takes the workdir for this config, or goes on with its run; see `train.workdir`.

        Raises:
            ValueError: it holds another run, or the hosts do not run the same thing.
        """
        fingerprint = hashlib.sha256(self.metadata.to_json().encode()).hexdigest()
        identity = run_identity(self.config, self.teacher)
        local = {"data", "workdir", "distributed", "reader_threads"}
        shared = {key: value for key, value in identity.items() if key not in local}
        if jax.process_count() > 1:
            hosts.check_equal(
                {
                    "the code or its versions": hosts.code_fingerprint(),
                    "the config": json.dumps(shared, sort_keys=True),
                    "the data": fingerprint,
                }
            )

        def claim() -> None:
            self.workdir.claim(identity, fingerprint)
            self.tokenizer.save(self.workdir.tokenizer)

        hosts.on_first(claim)
        hosts.on_all(self.workdir.check_shared)

    def batches(self, phase_index: int, first_row: int) -> Iterator[Any]:
        """Global batches of a phase from `first_row` on, on the devices."""
        phase = self.config.phases[phase_index]
        host_rows = sharding.host_rows(self.program.rows, phase.batch_size)
        batches = train_batches(
            shard_paths(self.config.data, "train", phase.max_length),
            *self._format(phase),
            seed=self.config.seed,
            phase=phase_index,
            batch_size=phase.batch_size,
            first_row=first_row,
            host_rows=host_rows,
            num_threads=self.config.reader_threads,
        )
        for batch in batches:
            yield self._to_devices(batch, host_rows, phase.batch_size)

    def _format(self, phase: Phase) -> tuple[Masking, RowFormat]:
        """How the records of a phase become rows."""
        most = self.metadata.max_sequences
        masking = make_masking(self.config, phase, self.tokenizer, most)
        return masking, RowFormat(phase.max_length, self.tokenizer.pad_token_id, most)

    def evaluate(self, phase: Phase, params: Any) -> dict[str, float]:
        """Means on the held-out rows of the phase's length; beside them the unigram entropy.

        Nothing, if the data has no held-out rows.
        """
        held_out = self.metadata.splits.get("eval")
        if held_out is None or not held_out.lengths[str(phase.max_length)].records:
            return {}
        micro = phase.batch_size // phase.accumulation_steps
        host_rows = sharding.host_rows(self.program.rows, micro)
        if phase not in self._held_out:
            self._held_out[phase] = HeldOutRows(
                shard_paths(self.config.data, "eval", phase.max_length),
                *self._format(phase),
                seed=self.config.seed,
                max_rows=self.config.eval_rows,
            )
        rows = self._held_out[phase]
        batches = rows.batches(micro, host_rows)
        on_devices = (self._to_devices(batch, host_rows, micro) for batch in batches)
        found = evaluate(
            lambda params, batch: self._eval_step(params, batch, *self._constants()),
            params,
            on_devices,
        )
        found["unigram_entropy"] = rows.unigram_entropy
        return {f"eval/{key}": value for key, value in found.items()}

    def _constants(self) -> tuple[dict[str, Any], ...]:
        """What the steps take besides the state: the parameters of the teacher, if there is one."""
        return () if self.teacher is None else ({TEACHER: self.teacher.params},)

    def _to_devices(self, batch: Batch, host_rows: np.ndarray, batch_size: int):
        return sharding.to_devices(batch, host_rows, self.program.rows, batch_size)

    def train_step(self, phase: Phase) -> Callable[[TrainState, Any], Any]:
        """The compiled update of a phase: (state, batch) -> (state, metrics)."""
        constants = self._constants()
        train_step = self.program.train_step(phase, *jax.tree.map(lambda x: x.sharding, constants))
        return with_seed(train_step, self.config.seed, *constants)

    def flops_per_row(self, phase: Phase) -> float:
        """The work of a row; in packed rows tokens attend within their sequences alone."""
        content = self.metadata.splits["train"].lengths[str(phase.max_length)]
        attended = content.attended if self.metadata.max_sequences > 1 else None
        return self.program.flops_per_row(phase, attended)

    def train_phase(
        self, index: int, state: TrainState, step: int, start: int, tools: "Tools"
    ) -> tuple[TrainState, int]:
        """Trains phase `index`, which begins at step `start`, from `step` to its end."""
        phase = self.config.phases[index]
        tools.logger.start_phase(self.flops_per_row(phase) * phase.batch_size, tools.peak_flops)
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
    stop: StopSignal | hosts.AgreedStop
    peak_flops: float
