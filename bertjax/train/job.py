"""`Job`: what a run trains, and `Segment`: the parts that the training loop goes through."""

import abc
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from bertjax.config import Phase, TrainingConfig
from bertjax.tokenization import Tokenizer
from bertjax.train.bad_steps import Rollbacks
from bertjax.train.checkpoint import Checkpointer
from bertjax.train.distillation import Teacher
from bertjax.train.program import Program
from bertjax.train.step import TrainState


class EvaluationStopped(Exception):
    """Raised to end an evaluation early because a stop signal (such as SIGTERM) has come."""


def never_stopped() -> None:
    """The `check` of an evaluation that no stop signal ends."""


class Job(abc.ABC):
    """What a run trains: the members in which pretraining and fine-tuning differ.

    Attributes:
        settings: the config that pretraining and fine-tuning have in common.
        program: the model, the optimizer and the compiled steps.
        phases: the phases of the run; fine-tuning has one.
        name: the name of the run in the progress bar.
        identity: the config as stored in run.json, with a hash of the teacher's weights, if any.
        data_fingerprint: a hash of the training data.
        best_metric: the name of the evaluation metric that determines the best checkpoint.
        higher_is_better: whether its highest value is the best.
        keep_checkpoints: how many of the last checkpoints are kept in addition to the best one.
        eval_every: number of steps between evaluations; 0: only at the end of each phase.
        save_every: number of steps between checkpoints.
        evaluates_at_start: whether the state before the first step is evaluated.
        push_every: number of steps between uploads of the model; 0: it is not uploaded.
    """

    name: str
    identity: dict[str, Any]
    data_fingerprint: str
    best_metric: str
    higher_is_better: bool
    keep_checkpoints: int
    eval_every: int
    save_every: int
    evaluates_at_start: bool = False
    push_every: int = 0

    def __init__(
        self,
        config: TrainingConfig,
        program: Program,
        phases: tuple[Phase, ...],
        tokenizer: Tokenizer,
        teacher: Teacher | None = None,
    ):
        self.settings, self.program, self.phases = config, program, phases
        self.tokenizer, self.teacher = tokenizer, teacher
        self.num_steps = sum(phase.num_steps for phase in phases)

    @abc.abstractmethod
    def initial_params(self) -> Any:
        """Returns the initial parameters (numpy); None if they are to be initialised at random."""

    @abc.abstractmethod
    def batches(self, index: int, first_batch: int) -> Iterator[Any]:
        """Yields the global batches of phase `index` on the devices, from `first_batch` on.

        Batches and phases are counted from 0. If the batch size changes in the phase
        (`Phase.stages`), all yielded batches have the size of `first_batch`.
        """

    @abc.abstractmethod
    def rows_of_batch(self, index: int, batch: int) -> tuple[int, int]:
        """Returns (first row, last row), both inclusive, of the batch number `batch` of a phase."""

    @abc.abstractmethod
    def evaluate(
        self, params: Any, phase: Phase, check: Callable[[], None] = never_stopped
    ) -> dict[str, float]:
        """Evaluates `params`; returns {"eval/...": value}, or {} if there is no evaluation data.

        `phase` is the phase of the run, whose row length the evaluation has. `check` is called
        before each batch, equally often on all hosts, and ends the evaluation by
        `EvaluationStopped` if a stop signal has come.
        """

    @abc.abstractmethod
    def compile_evaluation(self, params: Any, phase: Phase) -> bool:
        """Compiles the evaluation of a phase, before its first step, if that is possible.

        Returns whether later evaluations of the phase need no compilation.
        """

    @abc.abstractmethod
    def progress(self, index: int, next_batch: int) -> dict[str, Any]:
        """Returns the JSON values that a checkpoint stores, such as the position in the data.

        `next_batch` is the first batch of phase `index` after the checkpoint.
        """

    @abc.abstractmethod
    def resume(self, progress: Mapping[str, Any]) -> None:
        """Restores what `progress` returned; the step alone determines the position in the data."""

    @abc.abstractmethod
    def stops_early(self) -> bool:
        """Returns whether training should end now, before the last step."""

    @abc.abstractmethod
    def refused_changes(self, changed: list[str], saved: dict[str, Any], step: int) -> list[str]:
        """Returns those of `changed` config fields that prevent the run from resuming, and why.

        `changed` describes the differences from `saved`, the config in run.json; `step` is the step
        of the newest checkpoint.
        """

    @abc.abstractmethod
    def flops_per_step(self, phase: Phase) -> float:
        """Returns the number of FLOP per update, to compute the MFU; 0 if the number is unknown."""

    @abc.abstractmethod
    def push(self, step: int, state: TrainState) -> None:
        """Uploads the model of `step`, every `push_every` steps."""

    @abc.abstractmethod
    def choose_state(self, checkpoints: Checkpointer, state: TrainState) -> TrainState:
        """Returns the state to export: the last `state`, or one of `checkpoints`."""

    @abc.abstractmethod
    def claimed(self) -> None:
        """Is called on the first host when the workdir is locked, before the first step."""

    def new_state(self) -> TrainState:
        """Creates the training state before the first step, placed on the devices."""
        return self.program.new_state(self.initial_params())


class Segment(NamedTuple):
    """A part of a phase with one batch size, in which no rollback leaves out batches.

    Attributes:
        phase_index: the index of the phase.
        phase: the phase.
        stage: the phase with the batch size and the microbatches of the segment.
        first: the step after which the segment begins.
        last: the last step of the segment.
        end: the last step of the phase.
        first_batch: the batch, within the data of the phase, after step `first`.
    """

    phase_index: int
    phase: Phase
    stage: Phase
    first: int
    last: int
    end: int
    first_batch: int

    def batch_after(self, step: int) -> int:
        """Returns the batch, within the data of the phase, that follows `step`."""
        return self.first_batch + step - self.first


def segments(phases: Sequence[Phase], rollbacks: Rollbacks, step: int) -> Iterator[Segment]:
    """Yields the segments of a run from `step` to its last step."""
    start = 0
    for index, phase in enumerate(phases):
        end = start + phase.num_steps
        while step < end:
            batch = step - start + rollbacks.left_out(index, step)
            stage, _, batches_left = phase.stage_of(batch)
            cuts = [to for to in rollbacks.targets(index) if step < to < end]
            last = min(end, step + batches_left, *cuts)
            yield Segment(index, phase, stage, step, last, end, batch)
            step = last
        start = end


def identity_of(config: TrainingConfig, teacher: Teacher | None) -> dict[str, Any]:
    """Returns `config` as stored in run.json, with a hash of the weights of the teacher, if any."""
    identity = dataclasses.asdict(config)
    return identity if teacher is None else identity | {"teacher_weights": teacher.fingerprint}
