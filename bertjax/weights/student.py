"""A student starts as some layers of its teacher (Sanh et al. 2019, 3), and who a teacher is."""

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict

from bertjax.model import BertWithHead
from bertjax.weights.fill import fresh, param_shapes
from bertjax.weights.load_model import LoadedModel

# What changes no shape, but what the same weights compute.
_SAME_FIELDS = ("hidden_act", "mlm_activation", "layer_norm_eps", "position_offset")


def student_params(
    teacher: LoadedModel, model: BertWithHead, layers: Sequence[int], seed: int
) -> tuple[dict[str, Any], list[str]]:
    """Parameters (numpy) of a student that starts from its teacher.

    Args:
        teacher: with the head of the student.
        model: the student.
        layers: of the teacher, counted from 0: one for each layer of the student, in its order.
        seed: of what the teacher lacks.

    Returns:
        The parameters, and what of them the teacher does not have, which is freshly initialised.

    Raises:
        ValueError: a layer does not exist, or the sizes differ; all that differ are named.
    """
    of_teacher: Any = flatten_dict(teacher.params, sep="/")
    depth = min(len(x) for path, x in of_teacher.items() if _is_of_layers(path))
    outside = [layer for layer in layers if not 0 <= layer < depth]
    if outside or len(layers) != model.config.num_hidden_layers:
        raise ValueError(
            f"layers={tuple(layers)}: the teacher has 0 to {depth - 1}, and the student takes one "
            f"for each of its {model.config.num_hidden_layers}."
        )
    problems = [
        f"{name}: {getattr(model.config, name)!r}, the teacher's {theirs!r}"
        for name in _SAME_FIELDS
        if getattr(model.config, name) != (theirs := getattr(teacher.config, name))
    ]
    taken: dict[str, np.ndarray] = {}
    shapes = param_shapes(model)
    for path, like in shapes.items():
        if path in of_teacher:
            value = np.asarray(of_teacher[path])
            taken[path] = value[list(layers)] if _is_of_layers(path) else value
            if taken[path].shape != like.shape:
                problems.append(f"{path}: {like.shape}, the teacher's {taken[path].shape}")
    if problems:
        raise ValueError(
            f"The student cannot start from layers of its teacher: {'; '.join(problems)}. Give it "
            "the teacher's sizes, or leave the layers out."
        )
    lacking = frozenset(shapes.keys() - taken.keys())
    params = unflatten_dict({**taken, **fresh(model, lacking, seed)}, sep="/")
    return params, [*teacher.absent, *sorted(lacking)]


def _is_of_layers(path: str) -> bool:
    """Whether axis 0 of a parameter is the layer."""
    return "/encoder/layers/" in path


def fingerprint(params: dict[str, Any]) -> str:
    """A hash of all weights and their names: the same for the same model, wherever it lies."""
    found = hashlib.sha256()
    flat: Any = flatten_dict(params, sep="/")
    for path in sorted(flat):
        value = np.ascontiguousarray(flat[path])
        found.update(f"{path} {value.dtype} {value.shape}\n".encode())
        found.update(value.data)
    return found.hexdigest()
