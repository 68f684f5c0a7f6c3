"""`Saver`: decides after each step what to evaluate and to save, for a `Job`.

If an evaluation and a save are due at the same step, the evaluation comes first, so that the
checkpoint stores its metrics. If the evaluation is not compiled yet, the state is saved before it
as well, so that a signal can end the process during the compilation without loss.
"""

from collections.abc import Mapping
from typing import Any

from bertjax.devices import activity
from bertjax.devices.stop import StopSignal
from bertjax.record.logger import MetricLogger
from bertjax.record.session import Session
from bertjax.train.bad_steps import BadSteps, check_finite
from bertjax.train.checkpoint import Checkpointer
from bertjax.train.job import EvaluationStopped, Job, Segment
from bertjax.train.step import TrainState


class Saver:
    """Evaluates and saves the states of a run, where they are due.

    Both are due at the last step of each phase, evaluations also every `job.eval_every` and saves
    every `job.save_every` steps. A checkpoint is also saved after each evaluation that is the best
    so far. After a stop signal, the state of the last step is saved without an evaluation; if one
    was due there, it is made when the run resumes.

    Args:
        job: what is trained.
        checkpoints: writes the checkpoints.
        record: logs the metrics; its training time excludes evaluations and saves.
        bad: the skipped updates, which are reported before a checkpoint is saved.
        stop: the stop signal.
        session: its clock counts the time of evaluations and saves.
        progress: the JSON values in the checkpoint that the run resumes from.

    Attributes:
        job: what is trained.
        evaluation_due: whether an evaluation was due at the last step but was not completed,
            because a stop signal came.
    """

    def __init__(
        self,
        job: Job,
        checkpoints: Checkpointer,
        record: MetricLogger,
        bad: BadSteps,
        stop: StopSignal,
        session: Session,
        progress: Mapping[str, Any],
    ):
        self.job, self._checkpoints, self._record = job, checkpoints, record
        self._bad, self._stop, self._session = bad, stop, session
        self.evaluation_due = bool(progress.get("evaluation_due"))
        self._compiled = -1  # the last phase whose evaluation is compiled

    def compile_evaluation(self, state: TrainState, segment: Segment) -> None:
        """Compiles the evaluation of a phase before its first step.

        The newest checkpoint is then usually of the last step, so that a stop signal can end
        the process at once, even during compilation, without loss.
        """
        self._checkpoints.wait()
        with self._session.clock.compiling("the evaluation"):
            if self.job.compile_evaluation(state.params, segment.phase):
                self._compiled = segment.phase_index

    def after(self, step: int, state: TrainState, segment: Segment) -> None:
        """Evaluates and saves `state` if that is due after `step`."""
        last, every = step == segment.end, self.job.eval_every
        evaluates = last or bool(every and step % every == 0)
        saves = last or step % self.job.save_every == 0
        if not evaluates and not saves:
            return
        self._bad.finish()
        with self._record.paused():
            if evaluates and saves and self._compiled != segment.phase_index:
                self.evaluation_due = True
                self._save(step, state, segment, None)
                self._checkpoints.wait()
                self.finish_due_evaluation(step, state, segment)
                return
            metrics = self.evaluate(step, state, segment) if evaluates else None
            if self.evaluation_due:
                return  # the run stops after this step, which `stopped` saves
            is_best = metrics and self._checkpoints.would_be_best(_of_phase(metrics, segment))
            if saves or is_best:
                self._save(step, state, segment, metrics)

    def evaluate(self, step: int, state: TrainState, segment: Segment) -> dict[str, float] | None:
        """Evaluates `state`; logs and returns the metrics, or returns None after a stop signal."""
        self.evaluation_due = True
        if self._stop():
            return None
        try:
            with self._session.clock.doing(activity.EVALUATING):
                metrics = self.job.evaluate(state.params, segment.phase, self._check)
        except EvaluationStopped:
            return None
        self.evaluation_due = False
        if metrics:
            self._record.report(step, metrics)
        return metrics

    def _check(self) -> None:
        """Ends an evaluation after a stop signal; all hosts must call it equally often."""
        self._session.clock.progressed()
        if self._stop():
            raise EvaluationStopped

    def finish_due_evaluation(self, step: int, state: TrainState, segment: Segment) -> None:
        """Evaluates the state of `step`, whose checkpoint was saved without an evaluation.

        Afterwards, the checkpoint is replaced by one that also stores the metrics.
        """
        metrics = self.evaluate(step, state, segment)
        if metrics is None:
            return
        self._compiled = segment.phase_index
        with self._session.clock.doing(activity.SAVING, "saving a checkpoint"):
            self._checkpoints.replace(step, state, *self._kept(step, segment, metrics))

    def stopped(self, step: int, state: TrainState, segment: Segment) -> None:
        """Saves a checkpoint of `state` after a stop signal, unless `step` is saved already."""
        self._bad.finish()
        self._checkpoints.wait()
        if self._checkpoints.saved_step != step:
            with self._record.paused():
                self._save(step, state, segment, None)

    def _kept(
        self, step: int, segment: Segment, metrics: dict[str, float] | None
    ) -> tuple[dict[str, Any], dict[str, float]]:
        progress = {
            **self.job.progress(segment.phase_index, segment.batch_after(step)),
            "pending": self._record.pending,
            "skipped_in_a_row": self._bad.in_a_row,
            "evaluation_due": self.evaluation_due,
        }
        return progress, _of_phase(metrics, segment) if metrics else {}

    def _save(
        self, step: int, state: TrainState, segment: Segment, metrics: dict[str, float] | None
    ) -> None:
        with self._session.clock.doing(activity.SAVING, "saving a checkpoint"):
            check_finite(state, f"The checkpoint of step {step}")
            self._record.flush()
            self._checkpoints.save(step, state, *self._kept(step, segment, metrics))
        self._session.saved(step)


def _of_phase(metrics: dict[str, float], segment: Segment) -> dict[str, float]:
    """Returns the metrics as checkpoints store them: later phases rank as better."""
    return {**metrics, "phase": segment.phase_index}
