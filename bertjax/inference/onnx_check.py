"""Compares exported models with bertjax, and scores them, through ONNX Runtime."""

import statistics
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from bertjax.inference.evaluation import from_file
from bertjax.inference.onnx_export import Exported
from bertjax.inference.onnx_session import SessionProgram, open_session
from bertjax.inference.predictor import Predictor, one_device
from bertjax.inference.pretrained import Pretrained
from bertjax.inference.texts import SAMPLE_TEXTS
from bertjax.tasks import Task
from bertjax.tasks.intervals import Difference, Interval, compare, score_intervals
from bertjax.tasks.measures import ScoredRows, measure_of
from bertjax.tasks.metrics import higher_is_better, is_fraction
from bertjax.tasks.sources.columns import Columns
from bertjax.weights import LoadedModel

Arrays = Mapping[str, np.ndarray]


def sample_arrays(loaded: LoadedModel, export: Exported) -> Arrays:
    """Returns {input name: array} of a few texts and pairs; of random ids without a tokenizer."""
    config = loaded.config
    if loaded.tokenizer is None:
        length = min(config.max_length, 40)
        generator = np.random.default_rng(0)
        ids = generator.integers(0, config.vocab_size, (len(SAMPLE_TEXTS), length))
        lengths = generator.integers(2, length + 1, (len(ids), 1))
        mask = np.arange(length) < lengths
        types = np.zeros_like(ids)
    else:
        ids, mask, types = Pretrained(loaded).encode(SAMPLE_TEXTS)
    arrays = {"input_ids": ids, "attention_mask": mask, "token_type_ids": types}
    shape = (2, -1, ids.shape[1]) if "c" in export.axes else ids.shape
    return {name: arrays[name].reshape(shape).astype(np.int32) for name in export.inputs}


def run_session(session: Any, export: Exported, arrays: Arrays) -> dict[str, np.ndarray]:
    """Returns {output name: array} that a session computes."""
    wide = {name: array.astype(np.int64) for name, array in arrays.items()}
    return dict(zip(export.outputs, session.run([*export.outputs], wide), strict=True))


def largest_differences(export: Exported, file: Path, arrays: Arrays) -> dict[str, float]:
    """Returns {output name: largest absolute difference of a file's outputs from bertjax's}.

    Outputs at padding are not compared.
    """
    found = run_session(open_session(file), export, arrays)
    expected = jax.device_get(jax.jit(export.apply)(export.params, arrays))
    is_token = arrays["attention_mask"] > 0
    differences = {}
    for name, values in expected.items():
        if values.shape != found[name].shape:
            raise ValueError(f"{file}: {name} has the shape {found[name].shape}.")
        difference = np.abs(values.astype(np.float64) - found[name].astype(np.float64))
        if values.shape[:2] == is_token.shape:
            difference = difference[is_token]
        differences[name] = float(difference.max())
    return differences


# Speeds are those of as many examples, and medians of as many rounds.
TIMED = 256
ROUNDS = 3


class SessionPredictor(Predictor):
    """Computes predictions by a session of ONNX Runtime; `program` counts its seconds."""

    def __init__(self, task: Task, export: Exported, session: Any, loaded: LoadedModel):
        super().__init__(task, export.model, loaded.tokenizer, task.max_length, one_device())
        self.program = SessionProgram(export, session)
        self.compute_by(self.program)


class Variant(NamedTuple):
    """The predictions of a file for labelled examples.

    Attributes:
        rows: what the metrics need of them.
        scores: {metric: value}.
    """

    rows: ScoredRows
    scores: dict[str, float]


class Scorer:
    """Scores files on the labelled examples of a file of the user.

    Raises ValueError if they do not fit the task of the model.
    """

    def __init__(self, export: Exported, loaded: LoadedModel, path: str):
        if export.axes != "b, l":
            raise ValueError("--check does not score multiple choice: leave it out.")
        self._export = export
        self._loaded = loaded
        model = Pretrained(loaded)
        self._task, examples, note = from_file(
            model.task_with(), path, Columns(), None, model.description
        )
        self._examples = [*examples]
        if note:
            print(note)

    def __call__(self, file: Path) -> Variant:
        """Returns the scores of a file; raises ValueError if the examples have no labels."""
        rows = ScoredRows(self._task)
        scores = self._task.score(rows.observe(self._predictor(file)({}, self._examples)))
        if not scores:
            raise ValueError("--check: the examples have no labels, by which they could be scored.")
        return Variant(rows, scores)

    def speeds(self, files: Mapping[str, Path]) -> dict[str, float]:
        """Returns {name of a file: examples per second of ONNX Runtime}.

        The files take turns, because the speed of a machine changes while other programs run.
        """
        examples = self._examples[:: max(1, len(self._examples) // TIMED)][:TIMED]
        predictors = {name: self._predictor(file) for name, file in files.items()}
        seconds: dict[str, list[float]] = {name: [] for name in files}
        for _ in range(1 + ROUNDS):
            for name, predictor in predictors.items():
                predictor.program.seconds = 0.0
                for _ in predictor({}, examples):
                    pass
                seconds[name].append(predictor.program.seconds)
        speeds = {}
        for name, (_, *measured) in seconds.items():  # without the first round, the warm-up
            speeds[name] = len(examples) / max(statistics.median(measured), 1e-9)
        return speeds

    def _predictor(self, file: Path) -> SessionPredictor:
        return SessionPredictor(self._task, self._export, open_session(file), self._loaded)


def loss_in_percent(score: Callable[[Path], Variant], reference: Variant, file: Path) -> float:
    """Returns how much less the main score of a file is than that of a reference."""
    variant = score(file)
    metric = main_metric(variant)
    loss = reference.scores[metric] - variant.scores[metric]
    if not higher_is_better(metric):
        loss = -loss
    return 100 * loss if is_fraction(metric) else loss


def main_metric(variant: Variant) -> str:
    """Returns the name of the main metric of a task, or of the first one of those there are."""
    name = variant.rows.task.best_metric
    if name in variant.scores:
        return name
    return next(iter(variant.scores))


def difference_of(variant: Variant, reference: Variant) -> Difference | None:
    """Returns the difference of the main metric from that of a reference.

    It is None if there are too few examples for a comparison.
    """
    units = [*variant.rows.units(), *reference.rows.units()]
    differences = compare(measure_of(variant.rows.task, units), variant.rows.groups())
    return differences.get(main_metric(variant))


def table_of(
    variants: Mapping[str, Variant], files: Mapping[str, Path], speeds: Mapping[str, float]
) -> str:
    """Returns a table in Markdown: score, difference from the first variant, size and speed."""
    reference = next(iter(variants.values()))
    metric = main_metric(reference)
    lines = [
        f"| | {metric} | difference from float32 | MB | examples per second |",
        "|---|---|---|---|---|",
    ]
    for name, variant in variants.items():
        interval = score_intervals(variant.rows).get(metric)
        cells = [name, _shown(metric, variant.scores[metric], interval), ""]
        if variant is not reference:
            difference = difference_of(variant, reference)
            if difference is not None:
                cells[-1] = _shown(metric, difference.difference, difference.interval)
        file = files[name]
        size = sum(part.stat().st_size for part in file.parent.glob(f"{file.name}*"))
        cells += [f"{size / 1e6:,.0f}", f"{speeds[name]:,.1f}"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _shown(metric: str, value: float, interval: Interval | None) -> str:
    scale = 100 if is_fraction(metric) else 1
    text = f"{scale * value:.2f}"
    if interval is not None:
        text += f" ({scale * interval.low:.2f} to {scale * interval.high:.2f})"
    return text
