"""Compares exported models with bertjax, and scores them, through the runtimes that read them."""

import functools
import importlib.util
import statistics
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from bertjax.data.batches.batch import Feature
from bertjax.inference.embedder import texts_of
from bertjax.inference.evaluation import from_file
from bertjax.inference.onnx_export import Exported
from bertjax.inference.onnx_quantization import Arrays
from bertjax.inference.onnx_session import SessionProgram, open_session
from bertjax.inference.predictor import Predictor, one_device, single_pieces
from bertjax.inference.pretrained import Pretrained
from bertjax.inference.texts import SAMPLE_TEXTS
from bertjax.tasks import Example, Task
from bertjax.tasks.intervals import Difference, Interval, compare, score_intervals
from bertjax.tasks.measures import ScoredRows, measure_of
from bertjax.tasks.metrics import higher_is_better, is_fraction
from bertjax.tasks.sources.columns import Columns
from bertjax.weights import LoadedModel


@functools.cache
def openvino_core() -> Any:
    """Returns the core of OpenVINO, one for the life of the process.

    With its last core, OpenVINO frees the stack that it gave the main thread for signals, so that
    the next signal would end the process by a segmentation fault.
    """
    # It would report its import to its makers, by a fork of this process.
    sys.modules.setdefault("openvino_telemetry", None)  # pyright: ignore[reportArgumentType]
    import openvino

    return openvino.Core()


class OpenVINOSession:
    """A file in OpenVINO, on the CPU, with the interface of a session of ONNX Runtime."""

    def __init__(self, file: Path):
        # Otherwise, it computes in bfloat16 on CPUs that have instructions for it.
        precise = {"INFERENCE_PRECISION_HINT": "f32"}
        self._model = openvino_core().compile_model(file, "CPU", precise)

    def run(self, names: Sequence[str], arrays: Arrays) -> list[np.ndarray]:
        """Returns the outputs `names`."""
        found = self._model(arrays)
        return [found[name] for name in names]


def runtimes() -> dict[str, Callable[[Path], Any]]:
    """Returns {runtime that is installed: function that opens a file in it}."""
    found: dict[str, Callable[[Path], Any]] = {"ONNX Runtime": open_session}
    if importlib.util.find_spec("openvino"):
        found["OpenVINO"] = OpenVINOSession
    return found


def sample_arrays(loaded: LoadedModel, export: Exported) -> Arrays:
    """Returns {input name: array} of a few texts and pairs; of random ids without a tokenizer."""
    config = loaded.config
    if loaded.tokenizer is None:
        length = min(config.max_length, 40)
        generator = np.random.default_rng(0)
        ids = generator.integers(0, config.vocab_size, (len(SAMPLE_TEXTS), length))
        mask = np.tri(len(ids), length, length // 2)  # a token more in each row
        types = np.zeros_like(ids)
    else:
        ids, mask, types = Pretrained(loaded).encode(SAMPLE_TEXTS)
    arrays = {"input_ids": ids, "attention_mask": mask, "token_type_ids": types}
    shape = (2, -1, ids.shape[1]) if "c" in export.axes else ids.shape
    return {name: arrays[name].reshape(shape).astype(np.int64) for name in export.inputs}


def run_session(session: Any, export: Exported, arrays: Arrays) -> dict[str, np.ndarray]:
    """Returns {output name: array} that a session computes."""
    return dict(zip(export.outputs, session.run([*export.outputs], arrays), strict=True))


def largest_differences(export: Exported, file: Path, arrays: Arrays) -> dict[str, float]:
    """Returns {output name: largest difference of a file's outputs from bertjax's}.

    It is relative to the largest output where this is more than 1, as sums over tokens can be.
    Outputs at padding, and vectors that late interaction does not score, are not compared.
    """
    found = run_session(open_session(file), export, arrays)
    expected = jax.device_get(jax.jit(export.apply)(export.params, arrays))
    is_token = arrays["attention_mask"] > 0
    differences = {}
    for name, values in expected.items():
        if values.shape != found[name].shape:
            raise ValueError(f"{file}: {name} has the shape {found[name].shape}.")
        difference = np.abs(values.astype(np.float64) - found[name].astype(np.float64))
        is_compared = is_token
        if name == "token_vectors":
            is_compared = is_token & expected["is_scored"]
        if values.shape[:2] == is_token.shape:
            difference = difference[is_compared]
        scale = max(1.0, np.abs(values).max())
        differences[name] = float(difference.max(initial=0.0) / scale)
    return differences


# The first examples of a file that calibrate static quantization.
CALIBRATING = 512
# Speeds are those of as many examples, and medians of as many rounds.
TIMED = 256
ROUNDS = 3


class SessionPredictor(Predictor):
    """Computes predictions by a session of a runtime; `program` counts its seconds."""

    def __init__(self, task: Task, export: Exported, session: Any, loaded: LoadedModel):
        super().__init__(task, export.model, loaded.tokenizer, task.max_length, one_device())
        self.program = SessionProgram(export, session)
        self.compute_by(self.program)


def read_examples(loaded: LoadedModel, path: str) -> tuple[Task, Iterable[Example]]:
    """Returns (task of a model, examples of a file of the user); prints what is read of the file.

    Raises ValueError if they do not fit.
    """
    model = Pretrained(loaded)
    task, examples, note = from_file(model.task_with(), path, Columns(), None, model.description)
    if note:
        print(note)
    return task, examples


def calibration_batches(export: Exported, loaded: LoadedModel, path: str) -> Sequence[Arrays]:
    """Returns the inputs of the first `CALIBRATING` texts or examples of a file.

    A file with the suffix .txt has one text per line. Raises ValueError if it has no texts.
    """
    features = []
    if path.endswith(".txt"):
        for text in islice(texts_of(Path(path), None), CALIBRATING):
            ids, _ = loaded.tokenizer.encode_prompt(text, max_length=loaded.max_length)
            lengths = (len(ids),)
            features.append(Feature(np.array(ids), lengths, lengths, None))
    else:
        task, examples = read_examples(loaded, path)
        for example in islice(examples, CALIBRATING):
            features += task.features_to_predict(example, loaded.tokenizer, task.max_length)
    if not features:
        raise ValueError(f"--calibrate {path} has no texts: give some of those that are served.")
    program = SessionProgram(export, None)
    pieces = single_pieces(features, loaded.tokenizer.pad_token_id)
    return [program.inputs_of(piece.batch) for piece in pieces]


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
        self.runtimes = runtimes()
        self._export = export
        self._loaded = loaded
        self._task, examples = read_examples(loaded, path)
        self._examples = [*examples]

    def __call__(self, file: Path, runtime: str = "ONNX Runtime") -> Variant:
        """Returns the scores of a file; raises ValueError if the examples have no labels."""
        rows = ScoredRows(self._task)
        predictor = self._predictor(file, runtime)
        scores = self._task.score(rows.observe(predictor({}, self._examples)))
        if not scores:
            raise ValueError("--check: the examples have no labels, by which they could be scored.")
        return Variant(rows, scores)

    def speeds(self, files: Mapping[str, Path]) -> dict[tuple[str, str], float]:
        """Returns {(name of a file, runtime): examples per second}.

        They take turns, because the speed of a machine changes while other programs run.
        """
        examples = self._examples[:: max(1, len(self._examples) // TIMED)][:TIMED]
        predictors = {}
        for runtime in self.runtimes:
            for name, file in files.items():
                predictors[name, runtime] = self._predictor(file, runtime)
        speeds = {}
        seconds: dict[tuple[str, str], list[float]] = {key: [] for key in predictors}
        for _ in range(1 + ROUNDS):
            for key, predictor in predictors.items():
                predictor.program.seconds = 0.0
                for _ in predictor({}, examples):
                    pass
                seconds[key].append(predictor.program.seconds)
        for key, (_, *measured) in seconds.items():  # without the first round, the warm-up
            speeds[key] = len(examples) / statistics.median(measured)
        return speeds

    def _predictor(self, file: Path, runtime: str) -> SessionPredictor:
        session = self.runtimes[runtime](file)
        return SessionPredictor(self._task, self._export, session, self._loaded)


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


def table_of(score: Scorer, variants: Mapping[str, Variant], files: Mapping[str, Path]) -> str:
    """Returns a table in Markdown: score, difference from the first variant, size and speed.

    Other runtimes than ONNX Runtime have columns of their own.
    """
    reference = next(iter(variants.values()))
    metric = main_metric(reference)
    speeds = score.speeds(files)
    own, *others = score.runtimes
    head = f"| | {metric} | difference from float32 | MB | examples per second |"
    for runtime in others:
        head += f" {runtime}: {metric} | examples per second |"
    lines = [head, "|---" * head.count(" |") + "|"]
    for name, variant in variants.items():
        file = files[name]
        interval = score_intervals(variant.rows).get(metric)
        cells = [name, _shown(metric, variant.scores[metric], interval), ""]
        if variant is not reference:
            difference = difference_of(variant, reference)
            if difference is not None:
                cells[-1] = _shown(metric, difference.difference, difference.interval)
        size = sum(part.stat().st_size for part in file.parent.glob(f"{file.name}*"))
        cells += [f"{size / 1e6:,.0f}", f"{speeds[name, own]:,.1f}"]
        for runtime in others:
            scores = score(file, runtime).scores
            cells += [_shown(metric, scores[metric], None), f"{speeds[name, runtime]:,.1f}"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _shown(metric: str, value: float, interval: Interval | None) -> str:
    scale = 100 if is_fraction(metric) else 1
    text = f"{scale * value:.2f}"
    if interval is not None:
        text += f" ({scale * interval.low:.2f} to {scale * interval.high:.2f})"
    return text
