"""Computes models by ONNX Runtime, on the CPU, in the place of jax.

Encoders and predictors compute by a program, a function (params, batch) -> outputs; here it is a
session of ONNX Runtime for a file of `bertjax.export`.
"""

import dataclasses
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from bertjax.base.files import brief
from bertjax.data.batches.batch import Batch
from bertjax.inference.onnx_export import ALL_INPUTS, FILES, Exported, write_onnx


def check_package() -> None:
    """Raises ImportError if the packages that write and run ONNX files are not installed."""
    try:
        import onnx  # noqa: F401
        import onnxruntime  # noqa: F401
    except ImportError as error:
        raise ImportError(
            f"{error.name} is not installed, which ONNX needs: pip install 'bertjax[onnx]'."
        ) from error


def open_session(file: Path) -> Any:
    """Returns a session of ONNX Runtime for a file, on the CPU."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    # Threads that wait for work would keep busy the cores that other threads of a server need.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])


class SessionProgram:
    """The program of a model, for rows of one example, by a session of ONNX Runtime.

    Attributes:
        seconds: how long the session ran.
    """

    def __init__(self, export: Exported, session: Any):
        self.seconds = 0.0
        self.session = session
        self._inputs = export.inputs
        self._has_choices = "c" in export.axes
        self._sequence_outputs = export.model.sequence_outputs
        # The hidden states, which the files of embedders have as well, are not asked for.
        self._outputs: dict[str, str] = {}
        for name, key in export.outputs.items():
            if key in export.model.outputs:
                self._outputs[name] = key

    def __call__(self, params: Any, batch: Batch) -> dict[str, np.ndarray]:
        """Returns the outputs of the model as `read_head` does; the session has the parameters."""
        inputs = self.inputs_of(batch)
        start = time.perf_counter()
        values = self.session.run([*self._outputs], inputs)
        self.seconds += time.perf_counter() - start
        outputs = {}
        for key, value in zip(self._outputs.values(), values, strict=True):
            if key in self._sequence_outputs and not self._has_choices:
                value = np.expand_dims(value, 1)  # the sequences of a row
            outputs[key] = value
        return outputs

    def inputs_of(self, batch: Batch) -> dict[str, np.ndarray]:
        """Returns the inputs of the session, {name: int64 array}."""
        arrays = {
            "input_ids": batch["input_ids"],
            "attention_mask": batch["sequence_ids"] > 0,
            "token_type_ids": batch["token_type_ids"],
        }
        inputs = {}
        for name in self._inputs:
            array = arrays[name].astype(np.int64)
            if self._has_choices:
                array = _by_choice(array, batch)
            inputs[name] = array
        return inputs

    def check_names(self, file: Path) -> None:
        """Raises ValueError if the file of the session has other inputs or lacks an output."""
        inputs = [node.name for node in self.session.get_inputs()]
        outputs = [node.name for node in self.session.get_outputs()]
        if {*inputs} != {*self._inputs} or not {*outputs}.issuperset(self._outputs):
            raise ValueError(
                f"{file} computes {', '.join(outputs)} of {', '.join(inputs)}, and not "
                f"{', '.join(self._outputs)} of {', '.join(self._inputs)}: write it with bertjax "
                "export."
            )


def _by_choice(array: np.ndarray, batch: Batch) -> np.ndarray:
    """Gives each sequence of a row a row of its own: [B, L] -> [B, choices, longest sequence]."""
    choices = batch["sequence_ids"]
    used = np.nonzero(choices)
    places = (used[0], choices[used] - 1, batch["position_ids"][used])
    moved = np.zeros(np.max(places, 1) + 1, array.dtype)
    moved[places] = array[used]
    return moved


def open_program(export: Exported, file: Path | None) -> SessionProgram:
    """Returns the program of a model, from the file to which it was exported; None: a new one.

    Raises FileNotFoundError, and ValueError if the file is damaged or that of another kind of
    model, or the model has an operation that ONNX lacks.
    """
    if file is not None:
        return _program_of_file(export, file)
    if export.model.types_mark_prompts:
        # The files of users are for prompts of one length; here, the token types tell the length.
        export = dataclasses.replace(export, inputs=ALL_INPUTS, prompt_length=0)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, FILES["float32"])
        write_onnx(export, file)
        return SessionProgram(export, open_session(file))


def _program_of_file(export: Exported, file: Path) -> SessionProgram:
    if not file.is_file():
        raise FileNotFoundError(
            f"{file} does not exist: write it with bertjax export, or leave --onnx_file out."
        )
    try:
        session = open_session(file)
    except Exception as error:
        reason = brief(str(error).partition("\n")[0], 200)
        raise ValueError(
            f"ONNX Runtime cannot read {file} ({reason}): write it again with bertjax export."
        ) from error
    program = SessionProgram(export, session)
    program.check_names(file)
    return program
