"""`Topology`: the devices that a train step is planned for."""

from collections.abc import Sequence
from typing import Any, NamedTuple


class Topology(NamedTuple):
    """A TPU slice, or one or several nodes of GPUs.

    Attributes:
        name: the name that the user gave, such as v3:4x4 or h200:8.
        kind: the `device_kind` that jax reports for these devices, a key of `PEAK_TFLOPS`.
        devices: jax devices that programs can be compiled for.
        num_chips: the number of chips or GPUs; some TPU chips are two jax devices.
        memory_bytes: the memory of one device that programs can use, in bytes.
        link_bytes_per_s: the bandwidth in one direction, in bytes/s, at which a device exchanges
            data with the others.
        tflops: the peak dense bfloat16 TFLOP/s of one device.
        memory_bytes_per_s: the bandwidth of the memory of one device, in bytes/s; None for TPUs,
            whose programs keep arrays in on-chip memory, so that their traffic is not counted.
    """

    name: str
    kind: str
    devices: Sequence[Any]
    num_chips: int
    memory_bytes: int
    link_bytes_per_s: float
    tflops: float
    memory_bytes_per_s: float | None = None
