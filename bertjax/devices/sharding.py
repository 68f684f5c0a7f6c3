"""Sharding: the mesh, the shardings of parameters, and the rows of a batch on each device.

Rows of a batch are sharded over the mesh axes data and fsdp, and weight matrices over the mesh axes
fsdp and tensor. The Flax modules of the model contain no sharding annotations; the XLA compiler
inserts the communication.
"""

import functools
import re
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from bertjax.config import MeshConfig

# The first pattern that matches a parameter's path applies; other parameters are replicated. Axis 0
# of "layers" is the layer. The path of an optimizer moment ends with its parameter's path, so both
# have the same sharding if they have the same shape.
PARTITION_RULES: tuple[tuple[str, P], ...] = (
    (r"word_embeddings/embedding$", P("tensor", "fsdp")),
    (r"(position|token_type)_embeddings/embedding$", P(None, "fsdp")),
    (r"attention/(pos_)?(query|key|value)/kernel$", P(None, "fsdp", "tensor", None)),
    (r"attention/(pos_)?(query|key|value)/bias$", P(None, "tensor", None)),
    (r"attention/output/kernel$", P(None, "tensor", None, "fsdp")),
    (r"layers/(intermediate|gate)/kernel$", P(None, "fsdp", "tensor")),
    (r"layers/(intermediate|gate)/bias$", P(None, "tensor")),
    (r"layers/output/kernel$", P(None, "tensor", "fsdp")),
    (r"(pooler|transform|predictions/inner|head/dense)/kernel$", P("fsdp", "tensor")),
    (r"predictions/outer/kernel$", P("tensor", "fsdp")),
    (r"decoder/kernel$", P("fsdp", "tensor")),
    (r"predictions/bias$", P("tensor")),
)


def gather_word_embeddings(mesh: Mesh, params: Any) -> Any:
    """Returns `params` with word embeddings that are whole along "fsdp", as a step reads them.

    Rows and the columns of the table are both sharded over "fsdp". If a step has two encoders, as
    in distillation and ELECTRA, the mesh has three axes, and a device one or two rows, XLA moves
    the gradient of logits from one sharding to the other in a wrong order of the rows (jaxlib
    0.10), unless the table is gathered before.
    """
    if min(mesh.shape["fsdp"], mesh.shape["tensor"]) == 1:
        return params

    def whole(path: Any, leaf: jax.Array) -> jax.Array:
        if not _name(path).endswith("word_embeddings/embedding"):
            return leaf
        return jax.lax.with_sharding_constraint(leaf, NamedSharding(mesh, P("tensor", None)))

    return jax.tree.map_with_path(whole, params)


def make_mesh(config: MeshConfig, devices: Sequence[Any] | None = None) -> Mesh:
    """Creates a mesh with axes ("data", "fsdp", "tensor") over `devices` (default: all devices).

    If `config.data` is -1, the data axis takes all devices that the other axes leave.

    Raises:
        ValueError: the product of the axis sizes is not the number of devices.
    """
    devices = list(jax.devices() if devices is None else devices)
    inner = config.fsdp * config.tensor
    data = config.data
    if data == -1:
        data = len(devices) // max(inner, 1)
    sizes = (data, config.fsdp, config.tensor)
    if min(sizes) < 1 or data * inner != len(devices):
        raise ValueError(
            f"A mesh of data={config.data} x fsdp={config.fsdp} x tensor={config.tensor} does not "
            f"cover {len(devices)} devices: make the product equal to the number of devices "
            "(data=-1 uses all devices that remain)."
        )
    return jax.make_mesh(
        sizes,
        ("data", "fsdp", "tensor"),
        axis_types=(AxisType.Auto,) * 3,
        devices=devices,
    )


def within(mesh: Mesh, function: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps `function` so that its code gets `mesh` from `jax.sharding.get_abstract_mesh`."""

    @functools.wraps(function)
    def traced(*args: Any) -> Any:
        with jax.sharding.use_abstract_mesh(mesh.abstract_mesh):
            return function(*args)

    return traced


def batch_sharding(mesh: Mesh) -> NamedSharding:
    """Returns the sharding of a batch: axis 0 (rows) is sharded over mesh axes data and fsdp."""
    return NamedSharding(mesh, P(("data", "fsdp")))


def replicated(mesh: Mesh) -> NamedSharding:
    """Returns the replicated sharding, in which every device holds the whole array."""
    return NamedSharding(mesh, P())


def state_sharding(mesh: Mesh, state: Any) -> Any:
    """Returns a tree with the NamedSharding of each array or shape in the tree `state`.

    The first pattern in PARTITION_RULES that is found in an array's path, such as
    "bert/pooler/kernel", determines the PartitionSpec. An array of the optimizer's state that has
    another shape than its parameter, such as a factored moment, is replicated.
    """
    problems: dict[tuple[int, str], str] = {}
    # A `TrainState` has trained parameters, and optimizer state for these alone.
    params = getattr(state, "params", {}) | getattr(state, "fixed", {})
    parameters = {_name(path): leaf for path, leaf in jax.tree.leaves_with_path(params)}

    def place(path, leaf) -> NamedSharding:
        name = _name(path)
        if _parameter_of(path, parameters, leaf).shape != leaf.shape:
            return replicated(mesh)
        spec = _spec(name)
        for axis, (size, mesh_axis) in enumerate(zip(leaf.shape, spec, strict=False)):
            if mesh_axis is not None and size % mesh.shape[mesh_axis]:
                example = f"axis {axis} of {name}"
                problem = f"{size:,} over {mesh_axis}={mesh.shape[mesh_axis]} ({example})"
                problems.setdefault((size, mesh_axis), problem)
        return NamedSharding(mesh, spec)

    shardings = jax.tree.map_with_path(place, state)
    if problems:
        raise ValueError(
            f"These sizes do not divide over the mesh: {'; '.join(problems.values())}. Choose "
            "another mesh, or multiples of its axes (vocab_size may be larger than the vocabulary "
            "of the tokenizer)."
        )
    return shardings


def _name(path: Any) -> str:
    return jax.tree_util.keystr(path, simple=True, separator="/")


def _parameter_of(path: Any, parameters: dict[str, Any], leaf: Any) -> Any:
    """Returns the parameter whose path is the end of `path`; `leaf` if there is none."""
    for start in range(len(path)):
        end = _name(path[start:])
        if end in parameters:
            return parameters[end]
    return leaf


def _spec(name: str) -> P:
    for pattern, spec in PARTITION_RULES:
        if re.search(pattern, name):
            return spec
    return P()


def check_batch_size(mesh: Mesh, batch_size: int, accumulation_steps: int) -> None:
    """Checks that a batch can be split equally over devices and gradient accumulation steps."""
    devices = mesh.shape["data"] * mesh.shape["fsdp"]
    unit = devices * accumulation_steps
    if batch_size % unit:
        nearest = max(1, round(batch_size / unit)) * unit
        raise ValueError(
            f"batch_size={batch_size} does not divide over {devices} devices (data x fsdp) x "
            f"{accumulation_steps} accumulation steps: use a multiple of {unit}, for example "
            f"{nearest}."
        )


def host_rows(sharding: NamedSharding, batch_size: int) -> np.ndarray:
    """Returns the sorted indices of the rows of a global batch that are on this host's devices."""
    slices = sharding.addressable_devices_indices_map((batch_size,)).values()
    rows = np.arange(batch_size)
    return np.unique(np.concatenate([rows[index] for index in slices]))


def to_devices(
    local: dict[str, np.ndarray], rows: np.ndarray, sharding: NamedSharding, batch_size: int
) -> dict[str, jax.Array]:
    """Returns {name: global sharded array [batch_size, ...]} with the rows of all hosts.

    `local` has the values [len(rows), ...] of the rows on this host, see `host_rows`.
    """
    where = np.full(batch_size, -1)
    where[rows] = np.arange(len(rows))

    def assemble(values: np.ndarray) -> jax.Array:
        def rows_of(index: Any) -> np.ndarray:
            return values[where[index[0]]]

        return jax.make_array_from_callback((batch_size, *values.shape[1:]), sharding, rows_of)

    return {key: assemble(values) for key, values in local.items()}
