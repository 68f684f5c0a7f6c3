"""Compares exported models with bertjax, and scores them, through ONNX Runtime."""

import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from bertjax.data.batches.batch import Feature
from bertjax.inference.evaluation import from_file
from bertjax.inference.onnx_export import Exported
from bertjax.inference.predictor import Predictor, one_device
from bertjax.inference.pretrained import Pretrained
from bertjax.inference.texts import SAMPLE_TEXTS
from bertjax.tasks import Task
from bertjax.tasks.intervals import Difference, Interval, compare, score_intervals
from bertjax.tasks.measures import ScoredRows, measure_of
from bertjax.tasks.metrics import LOWER_IS_BETTER, is_fraction
from bertjax.tasks.sources.columns import Columns
from bertjax.tasks.task import Outputs
from bertjax.tasks.training_data import Labels, RowShape, make_rows
from bertjax.weights import LoadedModel

Arrays = Mapping[str, np.ndarray]


def check_package() -> None:
    """Raises ImportError if the packages that write and run ONNX files are not installed."""
    try:
        import onnx  # noqa: F401
        import onnxruntime  # noqa: F401
    except ImportError as error:
        raise ImportError(
            f"{error.name} is not installed, which --to onnx needs: pip install 'bertjax[onnx]'."
        ) from error


def open_session(file: Path) -> Any:
    """Returns a session of ONNX Runtime for a file, on the CPU."""
    import onnxruntime

    return onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])


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


# Rows of a batch of ONNX Runtime in which examples are scored.
ROWS = 32


class SessionPredictor(Predictor):
    """Computes predictions through a session of ONNX Runtime, with one sequence per row.

    `seconds` counts how long the session ran.
    """

    def __init__(self, task: Task, export: Exported, session: Any, loaded: LoadedModel):
        super().__init__(task, export.model, loaded.tokenizer, task.max_length, one_device())
        self._export = export
        self._session = session
        self.seconds = 0.0

    def outputs(self, params: Any, features: Sequence[Feature]) -> Iterator[Outputs]:
        outputs: list[Any] = [{} for _ in features]
        unlabelled = [feature._replace(labels=None) for feature in features]
        order = sorted(range(len(features)), key=lambda index: len(features[index].input_ids))
        for start in range(0, len(order), ROWS):
            members = order[start : start + ROWS]
            longest = len(features[members[-1]].input_ids)
            rows = [[index] for index in members]
            shape = RowShape(longest, 1, ())
            batch, _ = make_rows(
                unlabelled, rows, shape, Labels("classes"), self._tokenizer.pad_token_id
            )
            arrays = {
                "input_ids": batch["input_ids"],
                "token_type_ids": batch["token_type_ids"],
                "attention_mask": batch["sequence_ids"] > 0,
            }
            began = time.perf_counter()
            found = run_session(
                self._session, self._export, {x: arrays[x] for x in self._export.inputs}
            )
            self.seconds += time.perf_counter() - began
            for name, values in found.items():
                key = self._export.outputs[name]
                for index, value in zip(members, values, strict=True):
                    if key not in self._sequence_outputs:
                        value = value[: len(features[index].input_ids)]
                    outputs[index][key] = self._task.kept(value)
        return iter(outputs)


class Variant(NamedTuple):
    """The predictions of a file for labelled examples.

    Attributes:
        rows: what the metrics need of them.
        scores: {metric: value}.
        speed: examples per second of ONNX Runtime.
    """

    rows: ScoredRows
    scores: dict[str, float]
    speed: float


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
        predictor = SessionPredictor(self._task, self._export, open_session(file), self._loaded)
        rows = ScoredRows(self._task)
        scores = self._task.score(rows.observe(predictor({}, self._examples)))
        if not scores:
            raise ValueError("--check: the examples have no labels, by which they could be scored.")
        return Variant(rows, scores, len(self._examples) / max(predictor.seconds, 1e-9))


def loss_in_percent(score: Scorer, reference: Variant, file: Path) -> float:
    """Returns how much less the main score of a file is than that of a reference."""
    metric, difference = loss_of(score(file), reference)
    if difference is None:
        return 0.0
    loss = difference.difference if metric in LOWER_IS_BETTER else -difference.difference
    return 100 * loss if is_fraction(metric) else loss


def loss_of(variant: Variant, reference: Variant) -> tuple[str, Difference | None]:
    """Returns the main metric of a task, and its difference from that of a reference.

    The difference is None if there are too few examples for a comparison.
    """
    task = variant.rows.task
    name = task.best_metric
    if name not in variant.scores:
        name = next(iter(variant.scores))
    units = [*variant.rows.units(), *reference.rows.units()]
    differences = compare(measure_of(task, units), variant.rows.groups())
    return name, differences.get(name)


def table_of(variants: Mapping[str, Variant], files: Mapping[str, Path]) -> str:
    """Returns a table in Markdown: score, difference from the first variant, size and speed."""
    reference = next(iter(variants.values()))
    metric, _ = loss_of(reference, reference)
    lines = [
        f"| | {metric} | difference from float32 | MB | examples per second |",
        "|---|---|---|---|---|",
    ]
    for name, variant in variants.items():
        interval = score_intervals(variant.rows).get(metric)
        cells = [name, _shown(metric, variant.scores[metric], interval), ""]
        _, difference = loss_of(variant, reference)
        if variant is not reference and difference is not None:
            cells[-1] = _shown(metric, difference.difference, difference.interval)
        file = files[name]
        size = sum(part.stat().st_size for part in file.parent.glob(f"{file.name}*"))
        cells += [f"{size / 1e6:,.0f}", f"{variant.speed:,.1f}"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _shown(metric: str, value: float, interval: Interval | None) -> str:
    scale = 100 if is_fraction(metric) else 1
    text = f"{scale * value:.2f}"
    if interval is not None:
        text += f" ({scale * interval.low:.2f} to {scale * interval.high:.2f})"
    return text
