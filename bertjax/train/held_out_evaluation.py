"""Held-out evaluation of a pretraining, on rows of its data and of data it does not train on."""

import functools
import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import jax

from bertjax.config import Phase, PretrainConfig
from bertjax.data.batches.masking import Masking
from bertjax.data.batches.pretraining_batches import HeldOutRows, RowFormat
from bertjax.data.metadata import Metadata, RowSource, row_sources, unigram_entropy
from bertjax.data.mixture import rows_of_sources
from bertjax.devices import sharding
from bertjax.record.metrics import add_sums, means
from bertjax.tokenization import Tokenizer
from bertjax.train.program import PretrainingProgram, row_format
from bertjax.train.run_data import RunData


class HeldOutSources:
    """The held-out rows of the sources of a mixture, or of data that are no mixture.

    Each source contributes its share of at most `max_rows` rows, and at least one; means count it
    by its weight, however many rows it contributes. `rows` are the rows of each source.
    """

    def __init__(
        self,
        sources: Sequence[RowSource],
        masking: Masking,
        form: RowFormat,
        *,
        seed: int,
        max_rows: int,
    ):
        self._labels = source_labels([source.name for source in sources])
        weights = [source.weight for source in sources]
        self.rows: list[HeldOutRows] = []
        self._shares: list[float] = []  # the factors of sums over the rows of each source
        for source, count in zip(sources, rows_of_sources(max_rows, weights), strict=True):
            rows = HeldOutRows(source.paths, masking, form, seed=seed, max_rows=max(count, 1))
            self.rows.append(rows)
            self._shares.append(source.weight / len(rows))

    def evaluate(
        self,
        eval_step: Callable[[Any, Any], Any],
        params: Any,
        batches: Callable[[HeldOutRows], Iterable[Any]],
    ) -> dict[str, float]:
        """Returns {metric: mean} over all sources, and {loss_LABEL: mean} of each of several.

        The result contains "unigram_entropy"; losses and the entropy are in nats.
        `eval_step(params, batch)` returns {metric: (weighted sum, sum of weights)}, and
        `batches(rows)` the batches of a source's rows on the devices.
        """
        if len(self.rows) == 1:
            sums = evaluation_sums(eval_step, params, batches(self.rows[0]))
            return means(sums) | {"unigram_entropy": self.unigram_entropy}
        scaled = []
        losses = {}
        for label, share, rows in zip(self._labels, self._shares, self.rows, strict=True):
            sums = evaluation_sums(eval_step, params, batches(rows))
            losses |= _losses_of(label, means(sums))
            scaled.append({key: (x * share, weight * share) for key, (x, weight) in sums.items()})
        return means(add_sums(scaled)) | {"unigram_entropy": self.unigram_entropy} | losses

    @functools.cached_property
    def unigram_entropy(self) -> float:
        """Entropy, in nats, of the token frequencies in the rows that are evaluated.

        A model that ignores the context cannot have a lower loss. [CLS] and [SEP] do not count.
        """
        counts: Any = self.rows[0].token_counts
        if len(self.rows) > 1:
            pairs = zip(self.rows, self._shares, strict=True)
            counts = sum(rows.token_counts * share for rows, share in pairs)
        return unigram_entropy(counts.tolist())


class HeldOutEvaluation:
    """Evaluates parameters on the held-out rows of prepared data, whose length a phase gives.

    The rows are read when a phase is evaluated for the first time. `others` are (label, data) that
    the run does not train on, of which only losses are reported.
    """

    def __init__(
        self,
        config: PretrainConfig,
        program: PretrainingProgram,
        tokenizer: Tokenizer,
        data: RunData,
        others: Sequence[tuple[str, RunData]],
    ):
        self._config = config
        self._tokenizer = tokenizer
        self._program = program
        self._data = [("", data), *others]
        self._steps = {  # phases may differ in the rotary base of their model
            phase.global_rope_theta: program.eval_step(phase) for phase in config.phases
        }
        self._held_out: dict[Phase, list[HeldOutSources]] = {}

    def evaluate(self, params: Any, phase: Phase, check: Callable[[], None]) -> dict[str, float]:
        """Returns the values of `PretrainingJob.evaluate`, without "eval/"."""

        def batches(rows: HeldOutRows) -> Iterator[Any]:
            for batch in self.batches(rows, phase):
                check()
                yield batch

        metrics: dict[str, float] = {}
        for (label, _), sources in zip(self._data, self._sources(phase), strict=False):
            values = sources.evaluate(self._step(phase), params, batches)
            if label:
                values = _losses_of(label, values)
            metrics |= values
        return metrics

    def compile(self, params: Any, phase: Phase) -> None:
        """Compiles the evaluation step by evaluating one batch of held-out rows, if any."""
        for sources in self._sources(phase):
            for batch in itertools.islice(self.batches(sources.rows[0], phase), 1):
                jax.block_until_ready(self._step(phase)(params, batch))

    def _step(self, phase: Phase) -> Callable[[Any, Any], Any]:
        return self._steps[phase.global_rope_theta]

    def batches(self, held_out: HeldOutRows, phase: Phase) -> Iterator[Any]:
        """Yields the batches of `held_out`, each of one microbatch of `phase`, on the devices."""
        count = phase.batch_size // phase.accumulation_steps
        host_rows = sharding.host_rows(self._program.rows, count)
        for batch in held_out.batches(count, host_rows):
            yield sharding.to_devices(batch, host_rows, self._program.rows, count)

    def _sources(self, phase: Phase) -> list[HeldOutSources]:
        """Returns the held-out rows of the data and of the other data; []: the data has none."""
        if not self._data[0][1].metadata.has_held_out(phase.max_length):
            return []
        if phase not in self._held_out:
            self._held_out[phase] = [self._open(data, phase) for _, data in self._data]
        return self._held_out[phase]

    def _open(self, data: RunData, phase: Phase) -> HeldOutSources:
        data.require(phase.max_length)
        masking, form = row_format(
            self._config, phase, self._tokenizer, data.metadata.max_sequences
        )
        return HeldOutSources(
            row_sources(data.directory, "eval", phase.max_length),
            masking,
            form,
            seed=self._config.seed,
            max_rows=self._config.eval_rows,
        )


# The number of batches that the host prepares while the device computes earlier ones.
BATCHES_AHEAD = 2


def evaluation_sums(
    eval_step: Callable[[Any, Any], Any], params: Any, batches: Iterable[Any]
) -> dict[str, tuple[float, float]]:
    """Evaluates `params` on `batches`; returns {metric: (weighted sum, sum of weights)}.

    The sums are copied to the host once, at the end, so that the device never waits for the host.
    """
    sums: list[Any] = []
    for batch in batches:
        sums.append(eval_step(params, batch))
        if len(sums) > BATCHES_AHEAD:
            # Without this wait, the inputs of all batches could be in memory at once.
            jax.block_until_ready(sums[-1 - BATCHES_AHEAD])
    return add_sums(jax.device_get(sums))


def other_data(config: PretrainConfig, metadata: Metadata) -> list[tuple[str, RunData]]:
    """Opens the prepared data of `config.eval_data`; returns (label for metrics, data) of each."""
    if not config.eval_data:
        return []
    _check_held_out(config, config.data, metadata)
    opened = []
    names = []
    for address in config.eval_data:
        data = RunData(address, config.data_cache)
        if data.metadata.tokenizer_fingerprint != metadata.tokenizer_fingerprint:
            raise ValueError(
                f"eval_data: {address} was prepared with another tokenizer "
                f"({data.metadata.vocab_size:,} entries) than {config.data} "
                f"({metadata.vocab_size:,} entries): prepare it with --tokenizer {config.data}."
            )
        _check_held_out(config, address, data.metadata)
        opened.append(data)
        names.append(address.rstrip("/").rpartition("/")[2])
    own = [source.name for source in metadata.sources or ()]
    labels = source_labels([*own, *names])[len(own) :]
    return list(zip(labels, opened, strict=True))


def _check_held_out(config: PretrainConfig, address: str, metadata: Metadata) -> None:
    for phase in config.phases:
        if not metadata.has_held_out(phase.max_length):
            raise ValueError(
                f"eval_data={list(config.eval_data)}: {address} has no held-out rows of "
                f"{phase.max_length} tokens: prepare it with --max_length {phase.max_length} "
                "and a positive --eval_fraction."
            )


def _losses_of(label: str, metrics: dict[str, float]) -> dict[str, float]:
    return {f"{key}_{label}": x for key, x in metrics.items() if key.endswith("loss")}


MAX_LABEL = 40


def source_labels(names: Sequence[str]) -> list[str]:
    """Returns a short label for metrics for each source: letters, digits, "-", "." and "_" only.

    Sources whose labels would be equal get their number, counted from 0, at the end.
    """
    plain = []
    for name in names:
        label = re.sub(r"[^\w.-]+", "_", name.rstrip("/*"))
        plain.append(label.strip("_.")[-MAX_LABEL:])
    labels = []
    for number, label in enumerate(plain):
        if not label or plain.count(label) > 1:
            label = f"{label}_{number}".lstrip("_")
        labels.append(label)
    return labels
