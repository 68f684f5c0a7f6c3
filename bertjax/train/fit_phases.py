"""`FitPhases`: trains the phases of a run one by one, with evaluations and checkpoints.

A phase is a part of a run with its own number of steps, row length and batch size; a fine-tuning
run has a single phase.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from bertjax.devices import activity
from bertjax.devices.flops import peak_flops
from bertjax.devices.stop import StopSignal
from bertjax.record import journal
from bertjax.record.logger import MetricLogger
from bertjax.train.checkpoint import Checkpointer
from bertjax.train.loop import fit
from bertjax.train.save import EvaluateAndSave
from bertjax.train.skipped_updates import SkippedUpdates
from bertjax.train.state import TrainState

if TYPE_CHECKING:
    from bertjax.train.run import Run


class FitPhases:
    """Trains the phases of a run one by one, with evaluations and checkpoints.

    Args:
        run: the run, which provides the batches, the train step and the evaluation of each phase.
        checkpointer: writes the checkpoints.
        logger: logs the metrics.
        stop: a function that returns whether a stop signal has come.
        progress: the JSON values in the checkpoint that the run resumes from; empty for a new run.
    """

    def __init__(
        self,
        run: "Run",
        checkpointer: Checkpointer,
        logger: MetricLogger,
        stop: StopSignal,
        progress: Mapping[str, Any],
    ):
        self._run, self._checkpointer, self._logger, self._stop = run, checkpointer, logger, stop
        self._evaluation_due = bool(progress.get("evaluation_due"))
        self._skipped = SkippedUpdates(
            logger.report,
            self.rows_of_step,
            log_every=run.training.log_every,
            max_bad_steps=run.training.max_bad_steps,
            in_a_row=progress.get("skipped_in_a_row", 0),
        )

    def fit(self, state: TrainState, step: int) -> tuple[TrainState, int, bool]:
        """Trains all phases from `step` on, until the last step, early stopping or a stop signal.

        Returns:
            The last state, the number of its step, and whether the run is complete, i.e. no stop
            signal has prevented a step or an evaluation.
        """
        run, start = self._run, 0
        for index, phase in enumerate(run.phases):
            end = start + phase.num_steps
            save = self._saving(index, start)
            if self._evaluation_due and start < step <= end:
                self._evaluation_due = not save.make_due_evaluation(step, state)
            finished = self._evaluation_due or run.is_finished()
            if step < end and not finished and not self._stop.settle():
                state, step = self._fit_phase(index, state, step, start, save)
                self._evaluation_due = save.evaluation_due
            start = end
        finished = step == run.num_steps or run.is_finished()
        return state, step, finished and not self._evaluation_due

    def rows_of_step(self, step: int) -> tuple[int, int, int]:
        """Returns (phase, first row, last row), all as indices, of the batch that `step` trains on.

        Rows (in fine-tuning: encoded examples) are numbered from 0 in the order in which the phase
        reads them from the data.
        """
        run, index, start = self._run, 0, 0
        while step > start + run.phases[index].num_steps:
            start, index = start + run.phases[index].num_steps, index + 1
        return index, *run.rows_of_batch(index, self._batch(index, step - 1, start))

    def _batch(self, index: int, step: int, start: int) -> int:
        """Returns the index, within the data of phase `index`, of the batch after step `step`.

        Phase `index` begins after step `start`. The returned index also counts the batches that
        were left out when the run was returned to an earlier step (rollback).
        """
        return step - start + self._run.rollbacks.left_out(index, step)

    def _saving(self, index: int, start: int) -> EvaluateAndSave:
        """Returns the `EvaluateAndSave` hook of phase `index`, which begins after step `start`."""
        run = self._run
        phase = run.phases[index]
        eval_every, save_every = run.eval_and_save_every()
        return EvaluateAndSave(
            self._checkpointer,
            self._logger,
            self._skipped,
            lambda params: run.evaluate(params, phase),
            lambda step: run.progress(index, self._batch(index, step, start)),
            self._stop,
            phase=index,
            eval_every=eval_every,
            save_every=save_every,
            last_step=start + phase.num_steps,
            saved=journal.saved,
        )

    def _fit_phase(
        self, index: int, state: TrainState, step: int, start: int, save: EvaluateAndSave
    ) -> tuple[TrainState, int]:
        """Trains from `step` to the end of phase `index`, or until a signal or early stopping.

        Phase `index` begins after step `start`. The method returns the last state and its step.
        """
        run = self._run
        phase = run.phases[index]
        # If all steps so far are saved, a stop signal may end the process at once, even during
        # compilation.
        self._stop.saved_step = step
        self._stop.nothing_to_lose = save.is_saved(step)
        if step == start:
            with activity.doing(activity.STEPPING):
                state = run.begin_phase(index, state)
        with activity.compiling("the evaluation"):
            save.is_compiled |= run.compile_evaluation(state.params, phase)
        if step == 0 and run.evaluates_at_start and not save.evaluate_start(state):
            return state, step
        end = start + phase.num_steps
        while step < end and not self._should_stop():
            with activity.doing(activity.STEPPING):
                state, step = self._fit_stage(index, state, step, start, save)
            if step < end and not self._should_stop():
                self._stop.settle()  # `fit` does not ask after the last step of a stage
        if self._stop.agreed:
            save.save_and_stop(step, state)
        return state, step

    def _fit_stage(
        self, index: int, state: TrainState, step: int, start: int, save: EvaluateAndSave
    ) -> tuple[TrainState, int]:
        """Trains the rest of a stage of phase `index`, i.e. until its batch size changes.

        Arguments and result are those of `_fit_phase`.
        """
        run = self._run
        phase, batch = run.phases[index], self._batch(index, step, start)
        stage, _, batches_left = phase.stage_of(batch)
        flops = run.flops_per_step(stage)
        peak = peak_flops(run.training.peak_tflops) if flops else 1.0
        self._logger.start_phase(flops, peak)
        return fit(
            state,
            run.train_step(stage),
            run.batches(index, batch),
            step=step,
            num_steps=min(start + phase.num_steps, step + batches_left),
            hooks=(self._skipped, self._logger, _note_step, save, run.after_step),
            should_stop=lambda step: self._stop(step) or run.is_finished(),
        )

    def _should_stop(self) -> bool:
        """Returns whether a stop signal or early stopping has ended `fit`."""
        return self._stop.agreed or self._run.is_finished()


def _note_step(step: int, state: TrainState, metrics: dict[str, Any]) -> None:
    """The hook that writes each step to the ledger of the run's time."""
    del state, metrics
    journal.did_step(step)
