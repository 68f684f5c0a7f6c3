"""Evaluation of a pretraining run on held-out rows of its data and of other prepared data."""

import functools
import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

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
    by its weight, however many rows it contributes.

    Attributes:
        rows: the rows of each source.
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
        self._weights = [source.weight for source in sources]
        self._labels = source_labels([source.name for source in sources])
        counts = rows_of_sources(max_rows, self._weights)
        self.rows = [
            HeldOutRows(source.paths, masking, form, seed=seed, max_rows=max(count, 1))
            for source, count in zip(sources, counts, strict=True)
        ]

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
        sums = [evaluation_sums(eval_step, params, batches(rows)) for rows in self.rows]
        if len(sums) == 1:
            return means(sums[0]) | {"unigram_entropy": self.unigram_entropy}
        scaled = (
            {key: (value * share, weight * share) for key, (value, weight) in of_source.items()}
            for of_source, share in zip(sums, self._shares, strict=True)
        )
        result = means(add_sums(scaled)) | {"unigram_entropy": self.unigram_entropy}
        for label, of_source in zip(self._labels, sums, strict=True):
            losses = only_losses(means(of_source))
            result |= {f"{key}_{label}": mean for key, mean in losses.items()}
        return result

    @property
    def _shares(self) -> list[float]:
        """The factors by which sums over the rows of each source are multiplied."""
        return [weight / len(rows) for weight, rows in zip(self._weights, self.rows, strict=True)]

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


class OtherData(NamedTuple):
    """Prepared data that a run evaluates, but does not train on, and its label for metrics."""

    label: str
    data: RunData


class HeldOutEvaluation:
    """Evaluates parameters on the held-out rows of prepared data, whose length a phase gives.

    The rows are read when a phase is evaluated for the first time. Of `others`, only losses are
    reported.
    """

    def __init__(
        self,
        config: PretrainConfig,
        program: PretrainingProgram,
        tokenizer: Tokenizer,
        data: RunData,
        others: Sequence[OtherData],
    ):
        self._config, self._tokenizer, self._program = config, tokenizer, program
        self._data = [OtherData("", data), *others]
        self._steps = {  # phases may differ in the rotary base of their model
            phase.global_rope_theta: program.for_phase(phase).eval_step() for phase in config.phases
        }
        self._held_out: dict[Phase, list[HeldOutSources]] = {}

    def evaluate(self, params: Any, phase: Phase, check: Callable[[], None]) -> dict[str, float]:
        """Returns the means over held-out rows: see `PretrainingJob.evaluate`, without "eval/".

        `check` is as in `Job.evaluate`.
        """
        step = self._step(phase)
        metrics: dict[str, float] = {}
        for (label, _), sources in zip(self._data, self._sources(phase), strict=False):
            values = sources.evaluate(
                step,
                params,
                lambda rows: _checked(self.batches(rows, phase), check),
            )
            if label:
                values = {f"{key}_{label}": x for key, x in only_losses(values).items()}
            metrics |= values
        return metrics

    def compile(self, params: Any, phase: Phase) -> None:
        """Compiles the evaluation step by evaluating one batch of held-out rows, if there are any.

        `params` and `phase` are as in `evaluate`.
        """
        for sources in self._sources(phase):
            for batch in itertools.islice(self.batches(sources.rows[0], phase), 1):
                jax.block_until_ready(self._step(phase)(params, batch))

    def _step(self, phase: Phase) -> Callable[[Any, Any], Any]:
        step = self._steps[phase.global_rope_theta]
        return lambda params, batch: step(params, batch, *self._program.constants)

    def batches(self, held_out: HeldOutRows, phase: Phase) -> Iterator[Any]:
        """Yields the batches of `held_out`, each of one microbatch of `phase`, on the devices."""
        count = phase.batch_size // phase.accumulation_steps
        host_rows = sharding.host_rows(self._program.rows, count)
        for batch in held_out.batches(count, host_rows):
            yield sharding.to_devices(batch, host_rows, self._program.rows, count)

    def _sources(self, phase: Phase) -> list[HeldOutSources]:
        """Returns the held-out rows of the data and of the other data; []: the data has none."""
        if not self._data[0].data.metadata.has_held_out(phase.max_length):
            return []
        if phase not in self._held_out:
            self._held_out[phase] = [self._open(data, phase) for _, data in self._data]
        return self._held_out[phase]

    def _open(self, data: RunData, phase: Phase) -> HeldOutSources:
        data.require(phase.max_length)
        return HeldOutSources(
            row_sources(data.directory, "eval", phase.max_length),
            *row_format(self._config, phase, self._tokenizer, data.metadata.max_sequences),
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


MAX_LABEL = 40


def other_data(config: PretrainConfig, metadata: Metadata) -> list[OtherData]:
    """Opens the prepared data of `config.eval_data`, whose labels are the names of the folders.

    Raises:
        FileNotFoundError: a directory has no metadata.json, or lacks shards.
        ValueError: other data has another tokenizer than the run's (`metadata`), or either has no
            held-out rows of the length of a phase.
    """
    opened = [RunData(address, config.data_cache) for address in config.eval_data]
    names = [address.rstrip("/").rpartition("/")[2] for address in config.eval_data]
    own = [source.name for source in metadata.sources or ()]
    labels = source_labels([*own, *names])[len(own) :]
    for address, data in zip(config.eval_data, opened, strict=True):
        if data.metadata.tokenizer_fingerprint != metadata.tokenizer_fingerprint:
            raise ValueError(
                f"eval_data: {address} was prepared with another tokenizer "
                f"({data.metadata.vocab_size:,} entries) than {config.data} "
                f"({metadata.vocab_size:,} entries): prepare it with --tokenizer {config.data}."
            )
    addresses = (config.data, *config.eval_data) if opened else ()
    all_metadata = (metadata, *(data.metadata for data in opened))
    for address, held_out in zip(addresses, all_metadata, strict=False):
        for phase in config.phases:
            if not held_out.has_held_out(phase.max_length):
                raise ValueError(
                    f"eval_data={list(config.eval_data)}: {address} has no held-out rows of "
                    f"{phase.max_length} tokens: prepare it with --max_length {phase.max_length} "
                    "and a positive --eval_fraction, or leave out --eval_data."
                )
    return list(map(OtherData, labels, opened))


def only_losses(metrics: dict[str, float]) -> dict[str, float]:
    """Returns those metrics whose names end with "loss"."""
    return {key: value for key, value in metrics.items() if key.endswith("loss")}


def source_labels(names: Sequence[str]) -> list[str]:
    """Returns a short label for metrics for each source: letters, digits, "-", "." and "_" only.

    Sources whose labels would be equal get their number, counted from 0, at the end.
    """
    labels = [
        re.sub(r"[^\w.-]+", "_", name.rstrip("/*")).strip("_.")[-MAX_LABEL:] for name in names
    ]
    return [
        label if label and labels.count(label) == 1 else f"{label}_{number}".lstrip("_")
        for number, label in enumerate(labels)
    ]


def epochs_of_sources(metadata: Metadata, phases: Sequence[Phase]) -> list[str]:
    """Returns a line of text for each of `phases` that says how often it reads each source.

    The list is empty if the data, which `metadata` describes, are no mixture.
    """
    if metadata.sources is None:
        return []
    lines, weights = [], [source.weight for source in metadata.sources]
    for number, phase in enumerate(phases):
        parts = []
        drawn = rows_of_sources(phase.num_rows, weights)
        for source, rows in zip(metadata.sources, drawn, strict=True):
            epochs = rows / source.splits["train"].lengths[str(phase.max_length)].records
            parts.append(f"{source.name} {source.weight / sum(weights):.2%}, {epochs:,.2f} epochs")
        lines.append(
            f"phase {number}: {phase.num_steps:,} steps of {phase.batch_size} rows of "
            f"{phase.max_length} tokens read {'; '.join(parts)}"
        )
    return lines


def _checked(batches: Iterable[Any], check: Callable[[], None]) -> Iterator[Any]:
    for batch in batches:
        check()
        yield batch
