"""Finds the hardware to plan for by its name."""

from bertjax.files import did_you_mean
from bertjax.planning.chips import CHIPS, known_slices, tpu_slice
from bertjax.planning.gpus import EXAMPLES, GPUS, gpu_nodes
from bertjax.planning.topology import Topology


def is_gpu(name: str) -> bool:
    """Returns whether `name`, such as h200:8, names GPUs."""
    return name.partition(":")[0] in GPUS


def known_topologies() -> list[str]:
    """Returns the names of common TPU slices and GPU nodes, which `get_topology` accepts."""
    return [*known_slices(), *EXAMPLES]


def get_topology(name: str, num_nodes: int = 1) -> Topology:
    """Returns the TPU slice `name`, such as v3:4x4, or `num_nodes` nodes of GPUs, such as h200:8.

    `num_nodes` has no effect on a TPU slice, whose name gives all of its chips.

    Raises:
        ValueError: no hardware has this name.
        ImportError: the compiler for the hardware is not installed.
    """
    version, colon, shape = name.partition(":")
    if is_gpu(name):
        return gpu_nodes(name, num_nodes)
    if not colon or version not in CHIPS or not all(n.isdecimal() for n in shape.split("x")):
        raise ValueError(
            f"Unknown topology {name!r}. {did_you_mean(name, known_topologies())}TPU slices are "
            f"VERSION:CHIPS, such as v3:4x4 or v4:2x2x4, with the versions {', '.join(CHIPS)}; "
            f"nodes of GPUs are GPU:NUMBER, such as h200:8, with the GPUs {', '.join(GPUS)}."
        )
    return tpu_slice(name)
