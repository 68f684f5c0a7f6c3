"""Compares exported models with bertjax, through ONNX Runtime."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from bertjax.inference.onnx_export import Exported
from bertjax.inference.pretrained import Pretrained
from bertjax.inference.texts import SAMPLE_TEXTS
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
