"""Compares number formats of an exported model: score, size and speed on one core of a CPU.

    python benchmarks/quantization.py --model DIR --check dev.csv --max_loss 0.5 --output FILE

Contenders are bertjax, the files of `bertjax export` in float32, float16 and int8, with and without
matrices that stay in float32, PyTorch, and PyTorch's own ONNX export, in float32, and quantized by
ONNX Runtime with its defaults and with a scale per column. All predict the same examples, and get
the same tokens from bertjax: the sessions and PyTorch in batches of texts of similar length. Scores
have intervals, and paired differences from our float32 file. Speeds are of the model alone, for
`--timed` examples in turns, in seconds of processor time of one core, so that other programs
disturb them less. With `--calibrate`, as of `bertjax export`, static quantization is measured, too.
Needs the extras `parity` and `onnx`, onnxscript, and openvino, which also runs our files.
"""

import os
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnxruntime
import torch
import transformers
from onnxruntime import quantization
from reporting import parser_of, report, take_turns

from bertjax.data.batches.batch import Feature
from bertjax.inference.onnx_check import (
    OpenVINOSession,
    SessionPredictor,
    Variant,
    calibration_batches,
    difference_of,
    loss_in_percent,
    main_metric,
    read_examples,
    sample_arrays,
)
from bertjax.inference.onnx_export import Exported, exported, write_onnx
from bertjax.inference.onnx_quantization import quantize, quantize_within
from bertjax.inference.predictor import Predictor
from bertjax.inference.pretrained import Pretrained
from bertjax.tasks import Example, Task
from bertjax.tasks.intervals import score_intervals
from bertjax.tasks.measures import ScoredRows
from bertjax.tasks.metrics import is_fraction
from bertjax.weights import LoadedModel, load_model

CLASSES = {
    "sequence_classification": transformers.AutoModelForSequenceClassification,
    "token_classification": transformers.AutoModelForTokenClassification,
    "sentence_embedding": transformers.AutoModel,
}


class Contender(NamedTuple):
    """What computes predictions, its parameters, and the size of its file in MB."""

    predictor: Predictor
    params: Any = None
    megabytes: float | None = None


class InPyTorch(torch.nn.Module):
    """A model of transformers with the outputs of our export; embedders have mean pooling."""

    def __init__(self, model: torch.nn.Module):
        super().__init__()
        self.model = model

    def forward(self, input_ids: Any, attention_mask: Any, token_type_ids: Any) -> Any:
        """Returns the logits, or the hidden states and the embeddings."""
        found = self.model(input_ids, attention_mask, token_type_ids)
        if "logits" in found:
            return (found.logits,)
        hidden = found.last_hidden_state
        weights = attention_mask[:, :, None].to(hidden.dtype)
        mean = (hidden * weights).sum(1) / weights.sum(1)
        return hidden, torch.nn.functional.normalize(mean, dim=-1)


class PyTorchSession:
    """Runs PyTorch with the interface of a session of ONNX Runtime."""

    def __init__(self, model: torch.nn.Module):
        self._model = model

    def run(self, names: Sequence[str], arrays: dict[str, np.ndarray]) -> list[np.ndarray]:
        """Returns the last outputs of the model, as many as there are names."""
        tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
        with torch.inference_mode():
            outputs = self._model(**tensors)
        return [value.numpy() for value in outputs[-len(names) :]]


def open_session(file: Path) -> Any:
    """Returns a session of ONNX Runtime with one thread."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(str(file), options, ["CPUExecutionProvider"])


def export_by_pytorch(model: torch.nn.Module, export: Exported, file: Path) -> None:
    """Writes the file of PyTorch's own exporter, for any number of texts of any length."""
    example = {name: torch.ones(2, 16, dtype=torch.long) for name in export.inputs}
    axes = {0: torch.export.Dim.DYNAMIC, 1: torch.export.Dim.DYNAMIC}
    torch.onnx.export(
        model,
        (),
        file,
        kwargs=example,
        input_names=[*export.inputs],
        output_names=[*export.outputs],
        dynamic_shapes={name: axes for name in export.inputs},
        external_data=False,
        dynamo=True,
        verbose=False,
    )


class Comparison:
    """A model, its labelled examples, and the contenders for it.

    Attributes:
        contenders: {name: what computes predictions}.
    """

    def __init__(self, directory: str, check: str, folder: Path):
        self.loaded: LoadedModel = load_model(directory, "auto")
        self.export = exported(self.loaded)
        self._directory = directory
        self._folder = folder
        task, examples = read_examples(self.loaded, check)
        self.task: Task = task
        self.examples: Sequence[Example] = [*examples]
        self.contenders: dict[str, Contender] = {}
        self._files: dict[str, Path] = {}
        self._variants: dict[str, Variant] = {}

    def add_bertjax(self) -> None:
        """Adds our own predictions."""
        self.contenders["bertjax"] = Contender(*Pretrained(self.loaded).predictor(self.task))

    def add_file(self, name: str, file: Path) -> None:
        """Adds an ONNX file."""
        self._files[name] = file
        size = file.stat().st_size / 1e6
        self.contenders[name] = Contender(self._predictor(open_session(file)), None, round(size, 1))

    def add_pytorch(self) -> None:
        """Adds PyTorch, and the files of its own exporter."""
        read = CLASSES[self.loaded.head]
        model = InPyTorch(read.from_pretrained(self._directory)).eval()
        self.contenders["PyTorch"] = Contender(self._predictor(PyTorchSession(model)))
        plain = self._folder / "pytorch.onnx"
        export_by_pytorch(model, self.export, plain)
        self.add_file("PyTorch's export, float32", plain)
        for name, per_channel in (("defaults", False), ("per channel", True)):
            file = self._folder / f"pytorch_{per_channel}.onnx"
            quantization.quantize_dynamic(plain, file, per_channel=per_channel)
            self.add_file(f"PyTorch's export, int8, {name}", file)

    def add_exports(self) -> Path:
        """Adds our files; returns that in float32."""
        plain = self._folder / "float32.onnx"
        half = self._folder / "float16.onnx"
        small = self._folder / "int8.onnx"
        write_onnx(self.export, plain)
        self.add_file("float32", plain)
        write_onnx(self.export.in_float16(), half)
        self.add_file("float16", half)
        quantize(plain, small)
        self.add_file("int8", small)
        return plain

    def add_bounded(self, plain: Path, limit: float, reference: Variant) -> Sequence[str]:
        """Adds an int8 file that loses at most `limit`; returns its matrices in float32."""
        file = self._folder / f"int8_{limit}.onnx"
        arrays = sample_arrays(self.loaded, self.export)
        loss = partial(loss_in_percent, self._variant_of_file, reference)
        kept = quantize_within(plain, file, (), arrays, loss, limit)
        self.add_file(f"int8, max_loss {limit:g}", file)
        return kept

    def add_static(self, plain: Path, calibrate: str) -> None:
        """Adds our int8 file whose activations are quantized by a file of texts."""
        file = self._folder / "static.onnx"
        quantize(plain, file, calibration_batches(self.export, self.loaded, calibrate))
        self.add_file("int8, static", file)

    def add_openvino(self) -> None:
        """Adds OpenVINO for the files of ours that are there by now."""
        for name, file in self._files.items():
            session = OpenVINOSession(file)
            self.contenders[f"OpenVINO, {name}"] = Contender(self._predictor(session))

    def variant(self, name: str) -> Variant:
        """Returns the scores of a contender."""
        if name not in self._variants:
            contender = self.contenders[name]
            self._variants[name] = self._scored(contender.predictor, contender.params)
        return self._variants[name]

    def seconds(self, timed: int, rounds: int) -> dict[str, list[float]]:
        """Returns {contender: seconds of processor time for `timed` examples, by round}."""
        chosen = self.examples[:: max(1, len(self.examples) // timed)][:timed]
        features: list[Feature] = []
        for example in chosen:
            features += self.task.features_to_predict(
                example, self.loaded.tokenizer, self.task.max_length
            )
        runs: dict[str, Callable[[Any], Any]] = {}
        for name, contender in self.contenders.items():
            runs[name] = partial(_outputs, contender)
        _, seconds = take_turns(runs, features, rounds, time.process_time)
        return seconds

    def _predictor(self, session: Any) -> Predictor:
        return SessionPredictor(self.task, self.export, session, self.loaded)

    def _variant_of_file(self, file: Path) -> Variant:
        return self._scored(self._predictor(open_session(file)), None)

    def _scored(self, predictor: Predictor, params: Any) -> Variant:
        rows = ScoredRows(self.task)
        scores = self.task.score(rows.observe(predictor(params, self.examples)))
        return Variant(rows, scores)


def _outputs(contender: Contender, features: Sequence[Feature]) -> Any:
    return [*contender.predictor.outputs(contender.params, features)]


def scores_of(variant: Variant, reference: Variant) -> dict[str, Any]:
    """Returns the main score and its interval, and the difference from a reference, in per cent."""
    metric = main_metric(variant)
    difference = difference_of(variant, reference)
    scale = 100 if is_fraction(metric) else 1
    interval = score_intervals(variant.rows)[metric]
    assert difference is not None
    return {
        "metric": metric,
        "score": round(scale * variant.scores[metric], 2),
        "interval": [round(scale * end, 2) for end in interval],
        "difference": round(scale * difference.difference, 2),
        "difference_interval": [round(scale * end, 2) for end in difference.interval],
    }


def main() -> None:
    """Reports a line for each contender."""
    parser = parser_of(__doc__)
    parser.add_argument("--model", required=True, help="a model directory")
    parser.add_argument("--check", required=True, help="file of labelled examples")
    parser.add_argument("--name", help="name of the model in the results")
    parser.add_argument("--max_loss", type=float, nargs="*", default=[], help="bounds in points")
    parser.add_argument("--calibrate", help="file of texts for static quantization")
    parser.add_argument("--timed", type=int, default=256, help="examples that are timed")
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    torch.set_num_threads(1)
    kept = {}
    with tempfile.TemporaryDirectory() as folder:
        comparison = Comparison(args.model, args.check, Path(folder))
        plain = comparison.add_exports()
        reference = comparison.variant("float32")
        for limit in args.max_loss:
            name = f"int8, max_loss {limit:g}"
            kept[name] = comparison.add_bounded(plain, limit, reference)
        if args.calibrate:
            comparison.add_static(plain, args.calibrate)
        comparison.add_openvino()
        comparison.add_bertjax()
        comparison.add_pytorch()
        seconds = comparison.seconds(args.timed, args.rounds)
        for name, contender in comparison.contenders.items():
            figures = {
                "model": args.name or Path(args.model).name,
                "check": Path(args.check).name,
                "examples": len(comparison.examples),
                "contender": name,
                **scores_of(comparison.variant(name), reference),
                "megabytes": contender.megabytes,
                "examples_per_core_second": round(args.timed / statistics.median(seconds[name]), 1),
            }
            if name in kept:
                figures["in_float32"] = kept[name]
            report(figures, args.output, ("torch", "transformers", "onnxruntime", "openvino"))


if __name__ == "__main__":
    main()
