"""`Run`, the base class of training runs: trains from the newest checkpoint to the last step.

`Run` implements what pretraining and fine-tuning have in common: workdir, checkpoints, metrics,
resuming and stopping. The subclasses of `Run` define data, objective, evaluation and results. A run
consists of one or more phases, each with its own number of steps, row length and batch size.
"""

import abc
import dataclasses
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import jax

from bertjax.base.signals import Interrupted
from bertjax.config import Phase, TrainingConfig, defaults_of
from bertjax.devices import activity, host_watch, hosts, sharding
from bertjax.devices.stop import StopSignal
from bertjax.record import journal, report
from bertjax.record.logger import MetricLogger
from bertjax.record.metrics import MetricWriter
from bertjax.record.trackers import Listener, Tracking, open_trackers
from bertjax.tokenization import Tokenizer
from bertjax.train.bad_steps import Rollbacks, RolledBack
from bertjax.train.checkpoint import Checkpointer
from bertjax.train.fit_phases import FitPhases
from bertjax.train.objective import TEACHER
from bertjax.train.program import Program
from bertjax.train.run_facts import facts_of, first_line
from bertjax.train.skipped_updates import NotFinite
from bertjax.train.state import TrainState
from bertjax.train.step import with_seed
from bertjax.train.teacher import Teacher
from bertjax.train.workdir import Workdir

# Names of config fields whose values may differ between the hosts of a run.
PER_HOST = ("data", "data_cache", "eval_data", "workdir", "distributed", "reader_threads")


class Run(abc.ABC):
    """A training run, which resumes from the newest checkpoint in its workdir.

    Args:
        config: the settings that pretraining and fine-tuning have in common.
        program: the model, the optimizer and the compiled steps.
        phases: the phases of the run; fine-tuning has one.
        tokenizer: the tokenizer.
        teacher: the teacher for distillation; None: no distillation.
        workdir: the workdir of the run; None: that of the config.

    Attributes:
        name: the name of the run in the progress bar.
        best_metric: the name of the evaluation metric that determines the best checkpoint.
        higher_is_better: whether the highest value of `best_metric` is the best.
        keep_checkpoints: how many of the last checkpoints are kept in addition to the best one.
        evaluates_at_start: whether the state before the first step is evaluated.
    """

    name: str
    best_metric: str
    higher_is_better: bool
    keep_checkpoints: int
    evaluates_at_start: bool = False

    def __init__(
        self,
        config: TrainingConfig,
        program: Program,
        phases: tuple[Phase, ...],
        tokenizer: Tokenizer,
        teacher: Teacher | None = None,
        workdir: Workdir | None = None,
    ):
        self.program, self.phases, self.tokenizer, self.teacher = (
            *(program, phases, tokenizer, teacher),
        )
        self.training = config
        self.workdir = workdir or Workdir(Path(config.workdir))
        self.rollbacks = Rollbacks(self.workdir.path)
        self.num_steps = sum(phase.num_steps for phase in phases)
        self.stop: StopSignal | None = None
        self._constants: tuple[dict[str, Any], ...] | None = None
        self._trackers: list[Tracking] = []

    @property
    @abc.abstractmethod
    def identity(self) -> dict[str, Any]:
        """The config as stored in run.json, with a hash of the weights of the teacher, if any."""

    @property
    @abc.abstractmethod
    def data_fingerprint(self) -> str:
        """A hash of the training data."""

    @abc.abstractmethod
    def initial_params(self) -> Any:
        """Returns the initial parameters (numpy); None if they are to be initialised at random."""

    @abc.abstractmethod
    def batches(self, phase_index: int, first_batch: int) -> Iterator[Any]:
        """Yields the global batches of a phase on the devices, from batch `first_batch` on.

        `phase_index` is the index of the phase. Batches and phases are counted from 0. If the batch
        size changes in the phase (`Phase.stages`), all yielded batches have that of `first_batch`.
        """

    @abc.abstractmethod
    def evaluate(self, params: Any, phase: Phase) -> dict[str, float]:
        """Evaluates `params`; returns {metric: value}, or {} if there is no evaluation data.

        `phase` is the phase of the run, whose row length the evaluation has. The names of the
        metrics begin with "eval/".

        Raises:
            EvaluationStopped: a stop signal (such as SIGTERM) came during the evaluation.
        """

    def compile_evaluation(self, params: Any, phase: Phase) -> bool:
        """Compiles the evaluation of a phase before the phase begins; here, does nothing.

        When a phase begins, the newest checkpoint is usually that of the last step, so a stop
        signal can end the process at once, even during compilation, without loss. `params` are the
        parameters on the devices.

        Returns:
            True if evaluations of the phase need no more compilation; False if nothing was
            compiled, as here.
        """
        del params, phase
        return False

    @abc.abstractmethod
    def eval_and_save_every(self) -> tuple[int, int]:
        """Returns (number of steps between evaluations, number of steps between checkpoints).

        If the number of steps between evaluations is 0, evaluations happen only at the end of each
        phase.
        """

    @abc.abstractmethod
    def progress(self, phase_index: int, next_batch: int) -> dict[str, Any]:
        """Returns the JSON values that a checkpoint stores, such as the position in the data.

        `phase_index` is the index of the phase, and `next_batch` the index, within the phase, of
        the first batch after the checkpoint.
        """

    def resume(self, progress: Mapping[str, Any]) -> None:
        """Restores the values that the method `progress` returned and a checkpoint stored.

        In this base class, there are none. The position in the data is never restored, because the
        step of the checkpoint determines it.
        """
        del progress

    def is_finished(self) -> bool:
        """Whether training should end now, before the last step; here False.

        Subclasses override this method, for example for early stopping.
        """
        return False

    def rows_of_batch(self, phase_index: int, batch: int) -> tuple[int, int]:
        """Returns (first row, last row), both inclusive, of the batch number `batch` of a phase.

        `phase_index` is the index of the phase, whose first row has the index 0.
        """
        stage, row, _ = self.phases[phase_index].stage_of(batch)
        return row, row + stage.batch_size - 1

    def accumulation_steps(self, phase: Phase) -> int:
        """Returns the number of microbatches per update."""
        return phase.accumulation_steps

    def flops_per_step(self, phase: Phase) -> float:
        """Returns the number of FLOP per update, to compute the MFU; 0 if the number is unknown."""
        return 0.0

    def constants(self) -> tuple[dict[str, Any], ...]:
        """Returns the constant arguments of the train step: the teacher's parameters, if any."""
        if self._constants is None:
            self._constants = ()
            if self.teacher is not None:
                params = {TEACHER: self.teacher.params}
                where = sharding.state_sharding(self.program.mesh, params)
                self._constants = (jax.device_put(params, where),)
        return self._constants

    def new_state(self) -> TrainState:
        """Creates the training state before the first step, placed on the devices."""
        return self.program.new_state(self.initial_params())

    def train_step(self, phase: Phase) -> Callable[[TrainState, Any], Any]:
        """Returns the jitted train step of a phase: (state, batch) -> (state, metrics)."""
        constants = self.constants()
        where = jax.tree.map(lambda x: x.sharding, constants)
        program = self.program.for_phase(phase)
        compiled = program.train_step(self.accumulation_steps(phase), *where)
        return with_seed(compiled, self.training.seed, *constants)

    def refused_changes(self, changed: list[str], saved: dict[str, Any], step: int) -> list[str]:
        """Returns those differences from the saved config that prevent the run from resuming.

        Here, all of `changed` are returned; subclasses may allow some, and may append reasons.

        Args:
            changed: a description of each config field that differs from the saved config.
            saved: the config of the run that is stored in run.json.
            step: the step of the newest checkpoint.
        """
        del saved, step
        return changed

    def claim_workdir(self) -> None:
        """Locks the workdir for this run, and writes the config and the tokenizer to the workdir.

        Raises:
            ValueError: the workdir holds another run or is not shared by all hosts, or the hosts
                differ in code, config or data.
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
            self.workdir.claim(
                identity,
                fingerprint,
                overwrite=self.training.overwrite,
                defaults=defaults_of(self.training),
                allow=self.refused_changes,
            )
            self.tokenizer.save(self.workdir.tokenizer)
            self.workdir.publish()

        hosts.on_first(claim)
        hosts.on_all(self.workdir.check_shared)

    def train(self) -> TrainState:
        """Trains from the newest checkpoint, or from the start, and returns the state to export.

        Raises:
            Interrupted: a stop signal arrived; a checkpoint of the last step was saved, unless a
                second signal came.
            NotFinite: in too many consecutive steps, the loss or gradient was not finite or a
                spike; or the state is not finite.
            RolledBack: the run was rolled back to an earlier step; continue with a new `Run`.
            ValueError: the workdir belongs to another run.
        """
        self.claim_workdir()
        checkpointer, is_complete = None, False
        try:
            checkpointer = Checkpointer(
                self.workdir.checkpoints,
                keep=self.keep_checkpoints,
                metric=self.best_metric,
                higher_is_better=self.higher_is_better,
            )
            with StopSignal() as self.stop:
                state, step, is_complete = self._fit_phases(checkpointer, self.stop)
                # A signal after the last step stops what follows, such as other folds.
                is_complete = not self.stop.settle() and is_complete
            self.stop = None
            if not is_complete:
                with activity.doing(activity.SAVING, "saving the last checkpoint"):
                    checkpointer.close()
                saved = "which is saved" if step else "so that there was nothing to save"
                message = f"stopped after step {step} of {self.num_steps}, {saved}"
                raise Interrupted(message, on_all_hosts=True)
            return self.choose_state(checkpointer, state)
        except NotFinite as error:
            if checkpointer is not None:
                checkpointer.close()
            self._roll_back(error)
            raise
        except BaseException as error:
            if host_watch.announce_error(error) and checkpointer is not None:
                checkpointer.abandon()  # `close` would wait for the other hosts
            raise
        finally:
            self.stop = None
            if checkpointer is not None:
                with activity.doing(activity.SAVING, "saving the last checkpoint"):
                    checkpointer.close()
            # Trackers may wait for a server, so that the last checkpoint is finished before.
            for tracker in self._trackers:
                tracker.close(complete=is_complete)
            self.workdir.release()

    def _roll_back(self, error: NotFinite) -> None:
        steps = self.training.rollback_steps
        if not steps or error.last_step is None:
            return
        hosts.say(f"warning: {error}")
        target = self.rollbacks.roll_back(
            self.workdir.checkpoints, self.phases, error.first_step, error.last_step, steps
        )
        if target is not None:
            raise RolledBack(f"rolled back to step {target}")

    def begin_phase(self, index: int, state: TrainState) -> TrainState:
        """Returns the state that phase `index` begins with, made from the last one before it.

        The method is called before the first step of a phase, and again if the run resumes there;
        the result depends only on its arguments. Here, it is `state` itself.
        """
        del index
        return state

    def after_step(self, step: int, state: TrainState, metrics: dict[str, Any]) -> None:
        """Is called after each step and its checkpoint; subclasses may use the state.

        `step` is the number of the step, `state` the state after it, and `metrics` its metrics.
        """
        del step, state, metrics

    def choose_state(self, checkpointer: Checkpointer, state: TrainState) -> TrainState:
        """Returns the state to export: here, the last `state`; subclasses may choose the best.

        `checkpointer` has the checkpoints of the run, from which a state can be restored.
        """
        del checkpointer
        return state

    def _fit_phases(
        self, checkpointer: Checkpointer, stop: StopSignal
    ) -> tuple[TrainState, int, bool]:
        """Trains all phases; returns (last state, its step, whether no stop signal ended it)."""
        progress: Mapping[str, Any] = {}
        stop.saved_step = checkpointer.latest_step or 0
        if checkpointer.latest_step is None:
            # The step is not read from the state, because that would wait for its computation.
            state, step = self.new_state(), 0
        else:
            with activity.doing(activity.RESTORING):
                state, progress = checkpointer.restore(self.program.state_shapes)
                checkpointer.delete_superseded()
                step = int(state.step)
        self.resume(progress)
        # Of a finished run, neither the report nor the ledger of its time changes.
        is_done = hosts.is_first() and self._is_done(step, progress)
        if not is_done:
            journal.begin(self.workdir.path, step)
        hosts.say(self._said_when_done(step) if is_done else first_line(self, step))
        writer, listeners = None, list[Listener]()
        if hosts.is_first():
            # Without a checkpoint, an evaluation before the first step is repeated.
            due = step == 0 or bool(progress.get("evaluation_due"))
            writer = MetricWriter(
                self.workdir.path,
                step,
                evaluation_due=due,
                publish=self.workdir.publish_if_possible,
            )
            self._trackers = open_trackers(self.training, self.workdir.path, self.rollbacks.count)
            listeners += self._trackers
            if not is_done:
                run = self.workdir
                listeners.append(report.begin(run.path, run.address, facts_of(self, step)))
        logger = MetricLogger(
            writer,
            trackers=listeners,
            every=self.training.log_every,
            num_steps=self.num_steps,
            step=step,
            pending=progress.get("pending"),
            name=self.name,
            loss_weights=self.program.objective.loss_weights,
            last_evaluation=self._last_evaluation() if writer is not None else None,
        )
        try:
            return FitPhases(self, checkpointer, logger, stop, progress).fit(state, step)
        finally:
            logger.close()

    def _is_done(self, step: int, progress: Mapping[str, Any]) -> bool:
        """Returns whether an earlier process has finished the run, with its model and scores."""
        if progress.get("evaluation_due") or (step < self.num_steps and not self.is_finished()):
            return False
        return journal.has_finished(self.workdir.path)

    def _said_when_done(self, step: int) -> str:
        return (
            f"The run in {self.workdir.address} is finished (step {step:,} of "
            f"{self.num_steps:,}): nothing is left to train. To train again, choose another "
            "--workdir or delete that folder."
        )

    def _last_evaluation(self) -> dict[str, Any]:
        """Returns the metrics of the last evaluation without "eval/"; {} if there is none."""
        logged = self.workdir.last_evaluation() or {}
        return {key[5:]: value for key, value in logged.items() if key.startswith("eval/")}


def identity_of(config: TrainingConfig, teacher: Teacher | None) -> dict[str, Any]:
    """Returns `config` as stored in run.json, with a hash of the weights of the teacher, if any."""
    identity = dataclasses.asdict(config)
    return identity if teacher is None else identity | {"teacher_weights": teacher.fingerprint}
