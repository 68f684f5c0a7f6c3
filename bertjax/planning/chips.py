"""TPU versions and slices: number of devices, memory, bandwidth and peak FLOP/s.

The numbers are from Google's pages on each TPU version, Norrie et al. 2021 for v2, and Jouppi et
al. 2023, table 4, for the links of v3 and v4. Peak FLOP/s are taken from `devices.flops`.
"""

import math
import os
from typing import NamedTuple

from bertjax.devices.flops import PEAK_TFLOPS
from bertjax.planning.topology import Topology

GIB = 2**30


class Chip(NamedTuple):
    """A TPU version.

    Attributes:
        kind: the `device_kind` that jax reports for this TPU version.
        devices: the number of jax devices per chip.
        hbm_gib: the memory per chip in GiB.
        ici_gb_per_s: the total bandwidth of a chip's links to its neighbours, in one direction, in
            GB/s.
        megacore: whether libtpu is told to present the two cores of a chip as one jax device.
        examples: shapes of slices that exist, as the number of chips along each dimension.
    """

    kind: str
    devices: int
    hbm_gib: float
    ici_gb_per_s: float
    megacore: bool
    examples: tuple[str, ...]

    @property
    def tflops(self) -> float:
        """The peak dense bfloat16 TFLOP/s of one device."""
        return PEAK_TFLOPS[self.kind]


CHIPS = {
    "v2": Chip("TPU v2", 2, 16, 248, False, ("2x2", "4x4", "8x8", "16x16")),
    "v3": Chip("TPU v3", 2, 32, 280, False, ("2x2", "4x4", "8x8", "16x16", "32x32")),
    "v4": Chip("TPU v4", 1, 32, 300, True, ("2x2x1", "2x2x2", "2x2x4", "4x4x4", "4x4x8")),
    "v5e": Chip("TPU v5e", 1, 16, 200, False, ("2x2", "2x4", "4x4", "8x8", "16x16")),
    "v5p": Chip("TPU v5p", 1, 95, 600, True, ("2x2x1", "2x2x2", "2x2x4", "4x4x4", "4x4x8")),
    "v6e": Chip("TPU v6e", 1, 32, 400, False, ("2x2", "2x4", "4x4", "8x8", "16x16")),
    "tpu7x": Chip("TPU7x", 2, 192, 600, False, ("2x2x1", "2x2x2", "2x2x4", "4x4x4")),
}


def known_slices() -> list[str]:
    """Returns the names of common TPU slices, such as v3:4x4, which `tpu_slice` accepts."""
    return [f"{version}:{shape}" for version, chip in CHIPS.items() for shape in chip.examples]


def tpu_slice(name: str) -> Topology:
    """Returns the TPU slice VERSION:CHIPS, such as v3:4x4; CHIPS has two or three dimensions.

    The version must be one of `CHIPS`. The link bandwidth of a device is an equal share of the
    links of its chip.

    Raises:
        ValueError: no TPU slice has this `name`, or the installed version of libtpu describes the
            slice with a wrong number of devices.
        ImportError: the compiler for TPUs is not installed.
    """
    version, _, shape = name.partition(":")
    chip = CHIPS[version]
    _prepare_libtpu()
    from jax.experimental import topologies

    extra = {"chip_config_name": "megacore"} if chip.megacore else {}
    try:
        found = topologies.get_topology_desc(platform="tpu", topology_name=name, **extra)
    except Exception as error:  # jaxlib raises no more specific type
        if "divisible" not in str(error) and "INVALID_ARGUMENT" not in str(error):
            raise
        shapes = ", ".join(f"{version}:{shape}" for shape in chip.examples)
        raise ValueError(
            f"There is no TPU slice {name!r} ({str(error).splitlines()[0]}). "
            f"Use one such as {shapes}."
        ) from error
    num_chips = len(found.devices) // chip.devices
    expected = math.prod(map(int, shape.split("x")))
    if num_chips != expected:
        raise ValueError(
            f"libtpu describes {name!r} with {len(found.devices)} devices, but there are "
            f"{expected} chips with {chip.devices} devices each: install another version of libtpu."
        )
    return Topology(
        name=name,
        kind=chip.kind,
        devices=found.devices,
        num_chips=num_chips,
        memory_bytes=int(chip.hbm_gib * GIB) // chip.devices,
        link_bytes_per_s=chip.ici_gb_per_s * 1e9 / chip.devices,
        tflops=chip.tflops,
    )


def _prepare_libtpu() -> None:
    """Sets the environment variables that let libtpu compile on a machine without a TPU.

    Raises:
        ImportError: libtpu is not installed.
    """
    try:
        import libtpu  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise ImportError(
            "The compiler for TPUs (libtpu) is not installed: pip install 'bertjax[tpu]'."
        ) from error
    del libtpu
    for name, value in {
        "TPU_SKIP_MDS_QUERY": "1",  # do not ask a metadata server for the type of the TPU
        "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
        "TPU_ACCELERATOR_TYPE": "v5litepod-1",
        "TPU_WORKER_HOSTNAMES": "localhost",
        "TPU_STDERR_LOG_LEVEL": "3",
        "TPU_MIN_LOG_LEVEL": "3",
        "TF_CPP_MIN_LOG_LEVEL": "3",
    }.items():
        os.environ.setdefault(name, value)
