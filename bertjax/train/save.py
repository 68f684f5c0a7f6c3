"""The training hook that runs evaluations and saves checkpoints, also after a stop signal."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

from bertjax.devices import activity
from bertjax.devices.stop import StopSignal
from bertjax.record.logger import MetricLogger
from bertjax.train.checkpoint import Checkpointer
from bertjax.train.skipped_updates import SkippedUpdates, check_finite
from bertjax.train.state import TrainState

Item = TypeVar("Item")


class EvaluationStopped(Exception):
    """Raised to end an evaluation early because a stop signal (such as SIGTERM) has come."""


def interruptible(items: Iterable[Item], stop: StopSignal | None) -> Iterator[Item]:
    """Yields `items`, such as the batches of an evaluation, until a stop signal comes.

    If `stop` is None, all items are yielded.

    Raises:
        EvaluationStopped: a stop signal has come.
    """
    for item in items:
        check_stop(stop)
        yield item


def check_stop(stop: StopSignal | None) -> None:
    """Ends an evaluation if a stop signal has come.

    All hosts must call this function equally often, because every call exchanges the hosts' stop
    flags. If `stop` is None, nothing is checked.

    Raises:
        EvaluationStopped: a stop signal has come.
    """
    activity.progressed()
    if stop is not None and stop():
        raise EvaluationStopped


class EvaluateAndSave:
    """A training hook that evaluates every `eval_every` and saves every `save_every` steps.

    At `last_step`, the last step of the phase (a part of the run with its own row length), the hook
    both evaluates and saves; if `eval_every` is 0, this is the only evaluation. A checkpoint is
    also saved after each evaluation that is the best so far. After a stop signal, the state of the
    current step is saved without an evaluation; if an evaluation was due at that step, the
    evaluation runs when training resumes.

    If an evaluation and a save are due at the same step, the evaluation comes first, so that the
    checkpoint stores its metrics. If the evaluation is not compiled yet, the state is saved before
    it as well, so that a signal can end the process during the compilation without loss.

    Args:
        checkpointer: writes the checkpoints.
        logger: logs the metrics; the training time that it measures excludes evaluations and saves.
        skipped: reports updates that were skipped because the loss or the gradient norm was NaN,
            infinite or a spike; raises NotFinite after too many in a row.
        evaluate: a function params -> {metric: value}.
        progress: a function step -> the JSON values that the checkpoint of the step stores, such as
            the position in the data.
        stop: a function that returns whether a stop signal has come.
        phase: the index of the phase; `checkpointer` ranks checkpoints of later phases as better.
        saved: called with each step whose checkpoint is being written.

    Attributes:
        is_compiled: whether the evaluation has been compiled.
        evaluation_due: whether an evaluation was due at the last step but was not completed,
            because a stop signal came.
    """

    def __init__(
        self,
        checkpointer: Checkpointer,
        logger: MetricLogger,
        skipped: SkippedUpdates,
        evaluate: Callable[[Any], dict[str, float]],
        progress: Callable[[int], dict[str, Any]],
        stop: StopSignal,
        *,
        phase: int,
        eval_every: int,
        save_every: int,
        last_step: int,
        saved: Callable[[int], None] = lambda step: None,
    ):
        self._saved = saved
        self._checkpointer, self._logger, self._skipped = checkpointer, logger, skipped
        self._evaluate, self._progress, self._stop = evaluate, progress, stop
        self._phase = phase
        self._eval_every, self._save_every, self._last = eval_every, save_every, last_step
        self.is_compiled = self.evaluation_due = False

    def __call__(self, step: int, state: TrainState, metrics: dict[str, Any]) -> None:
        """Evaluates and saves `state` if it is due after `step`; `metrics` is not used."""
        del metrics
        self._stop.nothing_to_lose = False
        last = step == self._last
        evaluate = last or bool(self._eval_every and step % self._eval_every == 0)
        save = last or step % self._save_every == 0
        if not evaluate and not save:
            return
        self._skipped.read_all()
        with self._logger.paused():
            if evaluate and save and not self.is_compiled:
                self._save_and_evaluate(step, state)
                return
            evaluation = self._evaluation(step, state) if evaluate else None
            if self.evaluation_due:
                return  # the loop stops after this step, and `save_and_stop` is called
            if save or (evaluation and self._is_best(evaluation)):
                self._save(step, state, evaluation)

    def _save_and_evaluate(self, step: int, state: TrainState) -> None:
        """Saves `state`, evaluates it, and saves it again with the metrics.

        A stop signal during the evaluation ends the process at once, because `state` is saved.
        """
        self.evaluation_due = True
        self._save(step, state, None)
        self._stop.saved_step = step
        self._stop.nothing_to_lose = self.is_saved(step)
        self.make_due_evaluation(step, state)

    def _evaluation(self, step: int, state: TrainState) -> dict[str, float] | None:
        """Evaluates `state`; logs and returns the metrics, or returns None after a stop signal.

        After a stop signal, `evaluation_due` is True; after an evaluation, `evaluation_due` is
        False.
        """
        self.evaluation_due = True
        if self._stop():
            return None
        try:
            with activity.doing(activity.EVALUATING):
                evaluation = self._evaluate(state.params)
        except EvaluationStopped:
            return None
        self.evaluation_due = False
        if evaluation:
            self._logger.report(step, evaluation)
        return evaluation

    def evaluate_start(self, state: TrainState) -> bool:
        """Evaluates the state before the first step; returns False if a stop signal came."""
        self._evaluation(0, state)
        return not self.evaluation_due

    def make_due_evaluation(self, step: int, state: TrainState) -> bool:
        """Evaluates the state of `step`, which is saved already but not evaluated yet.

        The evaluation is one that a stop signal prevented before the run was resumed, or one that
        is not compiled yet. Afterwards, the checkpoint of `step` is replaced by one that also
        stores the metrics.

        Returns:
            True if the evaluation is done; False if a stop signal came before its end.
        """
        evaluation = self._evaluation(step, state)
        if self.evaluation_due:
            return False
        self.is_compiled = True
        # A signal must not interrupt the replacement; the run stops after it.
        self._stop.nothing_to_lose = False
        with activity.doing(activity.SAVING, "saving a checkpoint"):
            self._checkpointer.replace(step, state, *self._kept(step, evaluation))
        return True

    def save_and_stop(self, step: int, state: TrainState) -> None:
        """Saves a checkpoint of `state` after a stop signal, unless `step` is saved already."""
        self._skipped.read_all()
        if not self.is_saved(step):
            with self._logger.paused():
                self._save(step, state, None)

    def is_saved(self, step: int) -> bool:
        """Returns whether the newest checkpoint is that of `step`; True at step 0 of a new run.

        The method waits for a save in progress.
        """
        with activity.doing(activity.SAVING, "saving a checkpoint"):
            return (self._checkpointer.latest_step or 0) == step

    def _is_best(self, evaluation: dict[str, float]) -> bool:
        return self._checkpointer.would_be_best({**evaluation, "phase": self._phase})

    def _kept(
        self, step: int, evaluation: dict[str, float] | None
    ) -> tuple[dict[str, Any], dict[str, float]]:
        progress = {
            **self._progress(step),
            "pending": self._logger.pending,
            "skipped_in_a_row": self._skipped.in_a_row,
            "evaluation_due": self.evaluation_due,
        }
        return progress, {**evaluation, "phase": self._phase} if evaluation else {}

    def _save(self, step: int, state: TrainState, evaluation: dict[str, float] | None) -> None:
        with activity.doing(activity.SAVING, "saving a checkpoint"):
            check_finite(state, f"The checkpoint of step {step}")
            self._logger.flush()
            self._checkpointer.save(step, state, *self._kept(step, evaluation))
        self._saved(step)
