"""The trainer: one run, from its newest checkpoint or its start to the end of its last phase.

`Run` is what pretraining and fine-tuning share: workdir, checkpoints, metrics, resuming, stopping
and writing the model. Its subclasses say what differs: data, objective, evaluation, results.
"""

import abc
import dataclasses
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import jax

from bertjax.config import Phase, TrainingConfig, defaults_of
from bertjax.devices import hosts, sharding
from bertjax.devices.flops import peak_flops
from bertjax.tokenization import Tokenizer
from bertjax.training.checkpoint import Checkpointer
from bertjax.training.hooks import EvaluateAndSave, Interrupted, MetricLogger
from bertjax.training.loop import fit
from bertjax.training.objective import TEACHER
from bertjax.training.setup import Program
from bertjax.training.state import TrainState
from bertjax.training.step import with_seed
from bertjax.training.teacher import Teacher
from bertjax.training.workdir import Workdir
from bertjax.training.writers import MetricWriter

# Fields that may differ between the hosts of a run.
PER_HOST = ("data", "workdir", "distributed", "reader_threads")


class Run(abc.ABC):
    """One training run.

    Attributes:
        name: shown by the progress bar.
        best_metric: the metric of the evaluation that chooses the best checkpoint.
        higher_is_better: whether its highest value is the best.
        keep_checkpoints: how many of the last checkpoints are kept, besides the best.
    """

    name: str
    best_metric: str
    higher_is_better: ClassVar[bool]
    keep_checkpoints: int

    def __init__(
        self,
        config: TrainingConfig,
        program: Program,
        phases: tuple[Phase, ...],
        tokenizer: Tokenizer,
        teacher: Teacher | None = None,
    ):
        self.program, self.phases, self.tokenizer, self.teacher = (
            *(program, phases, tokenizer, teacher),
        )
        self._training = config
        self.workdir = Workdir(Path(config.workdir))
        self.num_steps = sum(phase.num_steps for phase in phases)
        self._constants: tuple[dict[str, Any], ...] | None = None

    @property
    @abc.abstractmethod
    def identity(self) -> dict[str, Any]:
        """The config as run.json keeps it; a teacher is identified by a hash of its weights."""

    @property
    @abc.abstractmethod
    def data_fingerprint(self) -> str:
        """A hash of the training data."""

    @abc.abstractmethod
    def initial_params(self) -> Any:
        """Numpy parameters to start from; None: random ones by the seed."""

    @abc.abstractmethod
    def batches(self, phase_index: int, first_step: int) -> Iterator[Any]:
        """Global batches of a phase on the devices, from step `first_step` of the phase on."""

    @abc.abstractmethod
    def evaluate(self, params: Any, phase: Phase) -> dict[str, float]:
        """Metrics under names that begin with "eval/"; empty without data to evaluate on."""

    @abc.abstractmethod
    def eval_and_save_every(self) -> tuple[int, int]:
        """Steps between evaluations (0: only at the end of a phase) and between checkpoints."""

    @abc.abstractmethod
    def progress(self, phase_index: int, phase_step: int) -> dict[str, Any]:
        """The position in the data, as JSON; each checkpoint stores it."""

    def resume(self, progress: Mapping[str, Any]) -> None:
        """Takes back what `progress` stored besides the position in the data."""
        del progress

    def is_finished(self) -> bool:
        """Whether training ends before its last step, as with early stopping."""
        return False

    def accumulation_steps(self, phase: Phase) -> int:
        """Microbatches per update."""
        return phase.accumulation_steps

    def flops_per_step(self, phase: Phase) -> float:
        """FLOP per update, for MFU; 0: not known."""
        return 0.0

    def constants(self) -> tuple[dict[str, Any], ...]:
        """Arguments of the steps besides state and batch: the parameters of the teacher, if any."""
        if self._constants is None:
            self._constants = ()
            if self.teacher is not None:
                params = {TEACHER: self.teacher.params}
                where = sharding.state_sharding(self.program.mesh, params)
                self._constants = (jax.device_put(params, where),)
        return self._constants

    def new_state(self) -> TrainState:
        """The state before the first step, on the devices."""
        return self.program.new_state(self.initial_params())

    def train_step(self, phase: Phase) -> Callable[[TrainState, Any], Any]:
        """The compiled update of a phase: (state, batch) -> (state, metrics)."""
        constants = self.constants()
        where = jax.tree.map(lambda x: x.sharding, constants)
        compiled = self.program.train_step(self.accumulation_steps(phase), *where)
        return with_seed(compiled, self._training.seed, *constants)

    def refused_changes(self, changed: list[str], saved: dict[str, Any], step: int) -> list[str]:
        """Which differences from the config that a run was started with prevent resuming it.

        Args:
            changed: names and values of the fields that differ.
            saved: the config that the run was started with.
            step: of the newest checkpoint.
        """
        del saved, step
        return changed

    def claim_workdir(self) -> None:
        """Takes the workdir for this run, or finds that its run can be resumed; see `workdir`.

        Raises:
            ValueError: it holds another run, or the hosts do not run the same thing.
        """
        identity, fingerprint = self.identity, self.data_fingerprint
        if jax.process_count() > 1:
            shared = {key: value for key, value in identity.items() if key not in PER_HOST}
            hosts.check_equal(
                {
                    "the code or its versions": hosts.code_fingerprint(),
                    "the config": json.dumps(shared, sort_keys=True),
                    "the data": fingerprint,
                }
            )

        def claim() -> None:
            defaults = defaults_of(self._training)
            self.workdir.claim(identity, fingerprint, defaults=defaults, allow=self.refused_changes)
            self.tokenizer.save(self.workdir.tokenizer)

        hosts.on_first(claim)
        hosts.on_all(self.workdir.check_shared)

    def train(self) -> TrainState:
        """Trains from the newest checkpoint, or from the start, and returns the final state.

        Raises:
            Interrupted: a stop signal arrived; the state is saved.
            ValueError: the workdir belongs to another run.
        """
        self.claim_workdir()
        checkpointer = Checkpointer(
            self.workdir.checkpoints,
            keep=self.keep_checkpoints,
            metric=self.best_metric,
            higher_is_better=self.higher_is_better,
        )
        try:
            state, step = self._fit_phases(checkpointer)
            if step < self.num_steps and not self.is_finished():
                raise Interrupted(f"stopped after step {step} of {self.num_steps}")
            return self.choose_state(checkpointer, state)
        finally:
            checkpointer.close()
            self.workdir.release()

    def choose_state(self, checkpointer: Checkpointer, state: TrainState) -> TrainState:
        """The state that becomes the model: the last one, unless a subclass chooses the best."""
        del checkpointer
        return state

    def _fit_phases(self, checkpointer: Checkpointer) -> tuple[TrainState, int]:
        config = self._training
        progress: Mapping[str, Any] = {}
        if checkpointer.latest_step is None:
            # The step is not read from the state, which is still being computed.
            state, step = self.new_state(), 0
        else:
            state, progress = checkpointer.restore(self.program.state_shapes)
            step = int(state.step)
        self.resume(progress)
        hosts.say(self._summary(step))
        logger = MetricLogger(
            MetricWriter(self.workdir.path, step) if hosts.is_first() else None,
            every=config.log_every,
            num_steps=self.num_steps,
            step=step,
            pending=progress.get("pending"),
            name=self.name,
            loss_weights=self.program.objective.loss_weights,
        )
        try:
            with hosts.stop_signal() as stop:
                start = 0
                for index, phase in enumerate(self.phases):
                    stopped = stop.received or self.is_finished()
                    if step < start + phase.num_steps and not stopped:
                        state, step = self._fit_phase(
                            index, state, step, start, checkpointer, logger, stop
                        )
                    start += phase.num_steps
        finally:
            logger.close()
        return state, step

    def _fit_phase(
        self,
        index: int,
        state: TrainState,
        step: int,
        start: int,
        checkpointer: Checkpointer,
        logger: MetricLogger,
        stop: hosts.StopSignal | hosts.AgreedStop,
    ) -> tuple[TrainState, int]:
        """Trains phase `index`, which begins at step `start`, from `step` to its end."""
        phase = self.phases[index]
        flops = self.flops_per_step(phase)
        logger.start_phase(flops, peak_flops(self._training.peak_tflops) if flops else 1.0)
        end = start + phase.num_steps
        eval_every, save_every = self.eval_and_save_every()
        save = EvaluateAndSave(
            checkpointer,
            logger,
            lambda params: self.evaluate(params, phase),
            lambda step: self.progress(index, step - start),
            phase=index,
            eval_every=eval_every,
            save_every=save_every,
            last_step=end,
        )
        state, step = fit(
            state,
            self.train_step(phase),
            self.batches(index, step - start),
            step=step,
            num_steps=end,
            hooks=(logger, save),
            should_stop=lambda step: stop(step) or self.is_finished(),
        )
        if step < end:
            save.save(step, state)
        return state, step

    def _summary(self, step: int) -> str:
        parameters = sum(x.size for x in jax.tree.leaves(self.program.state_shapes.params))
        shape = " x ".join(f"{axis}={size}" for axis, size in self.program.mesh.shape.items())
        attention, requested = self.program.attention, self._training.attention
        ignored = requested not in ("auto", attention.kernel)
        warning = f"; warning: {requested} was requested" if ignored else ""
        return (
            f"{parameters:,} parameters, {self._training.dtype}, {jax.device_count()} "
            f"{jax.devices()[0].device_kind} devices ({shape}) of {jax.process_count()} processes, "
            f"attention kernel {attention.kernel} ({attention.reason}{warning}), "
            f"{self.num_steps} steps; {f'resuming at step {step}' if step else 'starting'}"
        )


def identity_of(config: TrainingConfig, teacher: Teacher | None) -> dict[str, Any]:
    """The config as run.json keeps it, with a hash of the teacher's weights if there is one."""
    identity = dataclasses.asdict(config)
    return identity if teacher is None else identity | {"teacher_weights": teacher.fingerprint}
