"""Quantization of ONNX files to int8, and what it costs at each matrix.

Matrices and embeddings are stored as int8, matrices with one scale per column. Activations are
quantized with one scale per array: dynamically, by their range while the model runs, or statically,
by the range that they have for texts of calibration. The sums are exact (Jacob et al. 2018).
Products of two activations, as in attention, and all other operators stay in float32.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from bertjax.inference.onnx_graph import DATA_SUFFIX

# The operators that are quantized, and which of their inputs are weights.
OPERATORS = {"MatMul": 1, "Gather": 0}
# Vectors of each matrix's inputs that are compared.
ROWS = 512

# The inputs of a file, {name: int64 array}.
Arrays = Mapping[str, np.ndarray]


def quantize(
    source: Path, target: Path, calibration: Sequence[Arrays] = (), kept: Sequence[str] = ()
) -> None:
    """Writes a copy of a float32 file with int8 matrices, but for the nodes that `kept` names.

    Weights have 7 bits, because sums of 8-bit products overflow on CPUs without VNNI. Activations
    are quantized statically if there are batches for `calibration`.
    """
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic, quantize_static

    model = onnx.load(source)
    # The marks of a file that needs no preparation: a warning would ask for it.
    onnx.helper.set_model_props(model, {"onnx.quant.pre_process": "onnxruntime.quant"})
    method: Callable[..., None] = quantize_dynamic
    if calibration:
        reader: Any = SimpleNamespace(get_next=partial(next, iter(calibration), None))
        method = partial(
            quantize_static,
            calibration_data_reader=reader,
            activation_type=QuantType.QUInt8,
            nodes_to_quantize=[node.name for node, _ in _weights(model)],
            extra_options={"OpTypesToExcludeOutputQuantization": ["MatMul"]},
        )
    method(
        model,
        target,
        op_types_to_quantize=[*OPERATORS],
        per_channel=True,
        reduce_range=True,
        weight_type=QuantType.QInt8,
        nodes_to_exclude=[*kept],
        use_external_data_format=source.with_name(source.name + DATA_SUFFIX).exists(),
    )


def quantize_within(
    source: Path,
    target: Path,
    calibration: Sequence[Arrays],
    arrays: Arrays,
    loss: Callable[[Path], float],
    limit: float,
) -> list[str]:
    """Quantizes a file so that its `loss` is at most `limit`; returns the nodes left in float32.

    They are 0, 1, 2, 4, ... nodes of the largest `sensitivities` for the inputs `arrays`;
    `calibration` is as of `quantize`.
    """
    order = [*sensitivities(source, arrays)]
    count = 0
    while True:
        kept = order[:count]
        quantize(source, target, calibration, kept)
        if count >= len(order) or loss(target) <= limit:
            return kept
        count = max(1, 2 * count)


def sensitivities(source: Path, arrays: Arrays) -> dict[str, float]:
    """Measures what quantization costs at each matrix: {node: error}, the largest first.

    The error is that of the outputs of the node for the inputs that it has with `arrays`, relative
    to their norm. Embeddings have that of their table.
    """
    import onnx
    import onnxruntime

    model = onnx.load(source)
    errors = {}
    matrices = {}  # {node: (name of its input, matrix)}
    for node, weight in _weights(model):
        if node.op_type == "Gather":
            errors[node.name] = _relative_error(_rounded(weight, None), weight)
        else:
            matrices[node.name] = (node.input[0], weight)
    names = sorted({name for name, _ in matrices.values()})
    del model.graph.output[:]
    for name in names:
        model.graph.output.append(onnx.ValueInfoProto(name=name))
    beside = source.with_name("inputs_of_matrices.onnx")
    try:
        onnx.save(model, beside)
        session = onnxruntime.InferenceSession(beside, providers=["CPUExecutionProvider"])
        found = dict(zip(names, session.run(names, arrays), strict=True))
    finally:
        beside.unlink(missing_ok=True)
    for node, (name, matrix) in matrices.items():
        x: Any = found[name]
        vectors = x.reshape(-1, x.shape[-1])
        vectors = vectors[:: max(1, len(vectors) // ROWS)]
        rounded = _rounded(vectors, None) @ _rounded(matrix, 0)
        errors[node] = _relative_error(rounded, vectors @ matrix)
    return dict(sorted(errors.items(), key=lambda item: -item[1]))


def _weights(model: Any) -> Iterator[tuple[Any, np.ndarray]]:
    """Yields (node, weight) of the nodes of a model that are quantized."""
    import onnx

    stored = {x.name: x for x in model.graph.initializer}
    for node in model.graph.node:
        if node.op_type in OPERATORS:
            tensor = stored.get(node.input[OPERATORS[node.op_type]])
            if tensor is not None and tensor.data_type == onnx.TensorProto.FLOAT:
                yield node, onnx.numpy_helper.to_array(tensor)


def _rounded(values: np.ndarray, axis: int | None) -> np.ndarray:
    """Rounds values to int8 with one scale or, with an `axis`, one scale for each place beside."""
    levels = 127 if axis is None else 63  # of activations and tables, and of the 7 bits of weights
    largest = np.abs(values).max(axis, keepdims=True)
    scale = np.maximum(largest, np.finfo(np.float32).tiny) / levels
    return np.round(values / scale) * scale


def _relative_error(found: Any, expected: np.ndarray) -> float:
    return float(np.linalg.norm(found - expected) / max(np.linalg.norm(expected), 1e-30))
