"""Evaluation of a pretraining run on held-out rows of its data and of other prepared data."""

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import jax

from bertjax.config import Phase, PretrainConfig
from bertjax.data.batches.pretraining_batches import HeldOutRows
from bertjax.data.metadata import row_sources
from bertjax.devices import sharding
from bertjax.devices.stop import StopSignal
from bertjax.tokenization import Tokenizer
from bertjax.train.pretraining_program import PretrainingProgram, row_format
from bertjax.train.run_data import RunData
from bertjax.train.save import interruptible
from bertjax.train.source_evaluation import HeldOutSources, OtherData, only_losses


class HeldOutEvaluation:
    """Evaluates parameters on the held-out rows of prepared data, whose length a phase gives.

    The rows are read when a phase is evaluated for the first time.

    Args:
        config: the config of the run.
        program: the model and the compiled steps of the run.
        tokenizer: the tokenizer of the data.
        data: the data of the run.
        others: other data, of which only losses are reported.
    """

    def __init__(
        self,
        config: PretrainConfig,
        program: PretrainingProgram,
        tokenizer: Tokenizer,
        data: RunData,
        others: Sequence[OtherData],
    ):
        self._config, self._tokenizer, self._rows = config, tokenizer, program.rows
        self._data, self._others = data, others
        self._steps = {  # phases may differ in the rotary base of their model
            phase.global_rope_theta: program.for_phase(phase).eval_step() for phase in config.phases
        }
        self._held_out: dict[tuple[Phase, str], HeldOutSources] = {}

    def evaluate(
        self, params: Any, phase: Phase, *constants: dict[str, Any], stop: StopSignal | None = None
    ) -> dict[str, float]:
        """Returns {metric: value}, the mean losses and metrics over held-out rows.

        See `PretrainingRun.evaluate`; the names have no "eval/" here.

        Args:
            params: the parameters, on the devices.
            phase: the phase of the run, which determines the length of the rows.
            constants: constant arguments of the evaluation step: the teacher's parameters, if any.
            stop: the stop signal that interrupts the evaluation; None: nothing does.

        Raises:
            EvaluationStopped: a stop signal came during the evaluation.
        """
        step = self._steps[phase.global_rope_theta]
        metrics: dict[str, float] = {}
        for other in self._evaluated(phase):
            values = self._held_out_of(phase, other).evaluate(
                lambda params, batch: step(params, batch, *constants),
                params,
                lambda rows: interruptible(self.batches(rows, phase), stop),
            )
            if other is not None:
                values = {f"{key}_{other.label}": x for key, x in only_losses(values).items()}
            metrics |= values
        return metrics

    def compile(self, params: Any, phase: Phase, *constants: dict[str, Any]) -> None:
        """Compiles the evaluation step by evaluating one batch of held-out rows, if there are any.

        `params`, `phase` and `constants` are those of `evaluate`.
        """
        step = self._steps[phase.global_rope_theta]
        for other in self._evaluated(phase):
            rows = self._held_out_of(phase, other).rows[0]
            for batch in itertools.islice(self.batches(rows, phase), 1):
                jax.block_until_ready(step(params, batch, *constants))

    def batches(self, held_out: HeldOutRows, phase: Phase) -> Iterator[Any]:
        """Yields the batches of `held_out`, each of one microbatch of `phase`, on the devices."""
        count = phase.batch_size // phase.accumulation_steps
        host_rows = sharding.host_rows(self._rows, count)
        for batch in held_out.batches(count, host_rows):
            yield sharding.to_devices(batch, host_rows, self._rows, count)

    def _evaluated(self, phase: Phase) -> list[OtherData | None]:
        """Returns the data with rows for `phase`: None is that of the run, if it has any."""
        if not self._data.metadata.has_held_out(phase.max_length):
            return []
        return [None, *self._others]

    def _held_out_of(self, phase: Phase, other: OtherData | None) -> HeldOutSources:
        """Returns the held-out rows for `phase` of the data, or of the other data `other`."""
        key = phase, other.label if other else ""
        if key not in self._held_out:
            data = other.data if other else self._data
            data.require(phase.max_length)
            self._held_out[key] = HeldOutSources(
                row_sources(data.directory, "eval", phase.max_length),
                *row_format(self._config, phase, self._tokenizer, data.metadata.max_sequences),
                seed=self._config.seed,
                max_rows=self._config.eval_rows,
            )
        return self._held_out[key]
