"""Dynamic quantization of ONNX files to int8, and what it costs at each matrix.

Matrices and embeddings are stored as int8, matrices with one scale per column, and activations are
quantized while the model runs, with one scale per array. The sums are exact (Jacob et al. 2018).
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bertjax.inference.onnx_graph import DATA_SUFFIX

OPERATORS = ("MatMul", "Gather")
# Vectors of each matrix's inputs that are compared.
ROWS = 512


def quantize(source: Path, target: Path, kept: Sequence[str] = ()) -> None:
    """Writes a copy of a float32 file with int8 matrices, but for the nodes that `kept` names.

    Weights have 7 bits, because sums of 8-bit products overflow on CPUs without VNNI.
    """
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic

    model = onnx.load(source)
    # The marks of a file that needs no preparation: a warning would ask for it.
    onnx.helper.set_model_props(model, {"onnx.quant.pre_process": "onnxruntime.quant"})
    quantize_dynamic(
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
    arrays: Mapping[str, np.ndarray],
    loss: Callable[[Path], float],
    limit: float,
) -> list[str]:
    """Quantizes a file so that its `loss` is at most `limit`; returns the nodes left in float32.

    They are 0, 1, 2, 4, ... nodes of the largest `sensitivities` for the inputs `arrays`.
    """
    order = [*sensitivities(source, arrays)]
    count = 0
    while True:
        kept = order[:count]
        quantize(source, target, kept)
        if count >= len(order) or loss(target) <= limit:
            return kept
        count = max(1, 2 * count)


def sensitivities(source: Path, arrays: Mapping[str, np.ndarray]) -> dict[str, float]:
    """Measures what quantization costs at each matrix: {node: error}, the largest first.

    The error is that of the outputs of the node for the inputs that it has with `arrays`, relative
    to their norm. Embeddings have that of their table.
    """
    import onnx
    import onnxruntime

    model = onnx.load(source)
    stored = {x.name: x for x in model.graph.initializer}
    matrices = {}
    inputs = {}
    for node in model.graph.node:
        if node.op_type == "MatMul" and node.input[1] in stored:
            matrices[node.name] = onnx.numpy_helper.to_array(
                stored[node.input[1]], str(source.parent)
            )
            inputs[node.name] = node.input[0]
    errors = {}
    for node in model.graph.node:
        if node.op_type == "Gather" and node.input[0] in stored:
            table = onnx.numpy_helper.to_array(stored[node.input[0]])
            if table.dtype == np.float32:
                errors[node.name] = _relative_error(_rounded(table, None), table)
    del model.graph.output[:]
    for name in dict.fromkeys(inputs.values()):
        model.graph.output.append(onnx.ValueInfoProto(name=name))
    beside = source.with_name("inputs_of_matrices.onnx")
    try:
        onnx.save(model, beside)
        session = onnxruntime.InferenceSession(beside, providers=["CPUExecutionProvider"])
        wide = {name: array.astype(np.int64) for name, array in arrays.items()}
        found = dict(zip(dict.fromkeys(inputs.values()), session.run(None, wide), strict=True))
    finally:
        beside.unlink(missing_ok=True)
    for name, matrix in matrices.items():
        x: Any = found[inputs[name]]
        vectors = x.reshape(-1, x.shape[-1])
        vectors = vectors[:: max(1, len(vectors) // ROWS)]
        rounded = _rounded(vectors, None) @ _rounded(matrix, 0)
        errors[name] = _relative_error(rounded, vectors @ matrix)
    return dict(sorted(errors.items(), key=lambda item: -item[1]))


def _rounded(values: np.ndarray, axis: int | None) -> np.ndarray:
    """Rounds values to int8 with one scale or, with an `axis`, one scale for each place beside."""
    levels = 127 if axis is None else 63  # of activations and tables, and of the 7 bits of weights
    largest = np.abs(values).max(axis, keepdims=True)
    scale = np.maximum(largest, np.finfo(np.float32).tiny) / levels
    return np.round(values / scale) * scale


def _relative_error(found: Any, expected: np.ndarray) -> float:
    return float(np.linalg.norm(found - expected) / max(np.linalg.norm(expected), 1e-30))
