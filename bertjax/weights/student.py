"""Initialises a student with layers of its teacher, and computes hashes of model parameters.

The initialisation is that of DistilBERT (Sanh et al. 2019, 3).
"""

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict

from bertjax.model import BertWithHead
from bertjax.weights.fill import fresh, param_shapes
from bertjax.weights.load_model import LoadedModel

# Fields in which student and teacher must agree although they do not affect shapes of weights.
_SAME_FIELDS = ("hidden_act", "mlm_activation", "layer_norm_eps", "position_offset")


def student_params(
    teacher: LoadedModel, model: BertWithHead, layers: Sequence[int], seed: int
) -> tuple[dict[str, Any], list[str]]:
    """Initialises a student with parameters of its teacher (Sanh et al. 2019, section 3).

    Args:
        teacher: the teacher, loaded with the head of the student.
        model: the Flax module of the student.
        layers: for each layer of the student, the index (from 0) of the teacher's layer to copy.
        seed: the seed for the random initialisation of parameters that the teacher lacks.

    Returns:
        The student's parameters (numpy), and the names of everything initialised at random, which
        are parts of the model (such as "bert/pooler") that the teacher's files lack, and paths of
        parameters that only the student has.

    Raises:
        ValueError: `layers` does not name one layer of the teacher for each layer of the student,
            or student and teacher differ in the shapes of shared parameters, in activations,
            `layer_norm_eps` or `position_offset`. The message lists all differences.
    """
    teacher_params: Any = flatten_dict(teacher.params, sep="/")
    depth = min(len(x) for path, x in teacher_params.items() if _is_stacked(path))
    outside = [layer for layer in layers if not 0 <= layer < depth]
    if outside or len(layers) != model.config.num_hidden_layers:
        raise ValueError(
            f"layers={tuple(layers)}: the teacher has the layers 0 to {depth - 1}; give one for "
            f"each of the {model.config.num_hidden_layers} layers of the student."
        )
    problems = [
        f"{name}: {getattr(model.config, name)!r}, the teacher's {teacher_value!r}"
        for name in _SAME_FIELDS
        if getattr(model.config, name) != (teacher_value := getattr(teacher.config, name))
    ]
    taken: dict[str, np.ndarray] = {}
    shapes = param_shapes(model)
    for path, like in shapes.items():
        if path in teacher_params:
            value = np.asarray(teacher_params[path])
            taken[path] = value[list(layers)] if _is_stacked(path) else value
            if taken[path].shape != like.shape:
                problems.append(f"{path}: {like.shape}, the teacher's {taken[path].shape}")
    if problems:
        raise ValueError(
            f"The student cannot start from layers of its teacher: {'; '.join(problems)}. Give the "
            "student the teacher's values, or leave out --distillation.layers."
        )
    lacking = frozenset(shapes.keys() - taken.keys())
    params = unflatten_dict({**taken, **fresh(model, lacking, seed)}, sep="/")
    return params, [*teacher.absent, *sorted(lacking)]


def _is_stacked(path: str) -> bool:
    """Whether axis 0 of the parameter at `path` indexes the encoder layers."""
    return "/encoder/layers/" in path


def fingerprint(params: dict[str, Any]) -> str:
    """Returns the hexadecimal SHA-256 of all parameters and their paths, to identify a model."""
    digest = hashlib.sha256()
    flat: Any = flatten_dict(params, sep="/")
    for path in sorted(flat):
        value = np.ascontiguousarray(flat[path])
        digest.update(f"{path} {value.dtype} {value.shape}\n".encode())
        digest.update(value.data)
    return digest.hexdigest()
