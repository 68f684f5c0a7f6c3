"""How many layers of an encoder are written out, by device and what the backward pass keeps."""

from jax.sharding import Mesh


def choose_unroll(asked: int | None, remat: str, num_layers: int, mesh: Mesh) -> int:
    """How many layers to write out in each step of the loop over them.

    None asked: all of them on CPUs, where a loop copies its weights, activations and gradients;
    else 1. With remat 1 everywhere.

    Raises:
        ValueError: it would undo remat.
    """
    on_cpu = mesh.devices.flat[0].platform == "cpu"
    if asked is None:
        return num_layers if on_cpu and remat == "none" else 1
    if on_cpu and remat != "none" and asked > 1:
        raise ValueError(
            f"unroll={asked}, remat={remat!r}: on CPUs the compiler keeps what layers written out "
            "were to compute again. Give --unroll 1, or --remat none."
        )
    return asked
