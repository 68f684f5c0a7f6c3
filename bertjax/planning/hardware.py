"""The hardware to plan for, found by its name: slices of TPUs and nodes of NVIDIA GPUs.

TPUs: the numbers are from Google's pages on each version, Norrie et al. 2021 for v2, and Jouppi et
al. 2023, table 4, for the links of v3 and v4. GPUs: numbers of processors, clocks, caches,
bandwidths and power are from NVIDIA's data sheets, limits per processor from the table of compute
capabilities in the CUDA programming guide; the memory is what the driver reports. Peak FLOP/s are
taken from `devices.flops`.
"""

import ast
import contextlib
import functools
import importlib.util
import math
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from bertjax.base.files import did_you_mean
from bertjax.devices.flops import PEAK_TFLOPS

GIB = 2**30


class Topology(NamedTuple):
    """A TPU slice, or one or several nodes of GPUs.

    Attributes:
        name: the name that the user gave, such as v3:4x4 or h200:8.
        kind: the `device_kind` that jax reports for these devices, a key of `PEAK_TFLOPS`.
        num_chips: the number of chips or GPUs; some TPU chips are two jax devices.
        memory_bytes: the memory of one device that programs can use.
        link_bytes_per_s: the bandwidth in one direction at which a device exchanges data with the
            others.
        tflops: the peak dense bfloat16 TFLOP/s of one device.
        memory_bytes_per_s: the bandwidth of the memory of one device.
        watts: the maximum power of a chip or GPU; None if its maker has not published it.
    """

    name: str
    kind: str
    devices: Sequence[Any]
    num_chips: int
    memory_bytes: int
    link_bytes_per_s: float
    tflops: float
    memory_bytes_per_s: float
    watts: float | None


MOST_PER_NODE = 16
# The share of a GPU's memory that JAX reserves for its arrays and programs, and the variable that
# changes it.
MEMORY_FRACTION = 0.75
FRACTION_VARIABLE = "XLA_PYTHON_CLIENT_MEM_FRACTION"


class Gpu(NamedTuple):
    """A GPU, of which jax reports a `device_kind` that begins with `kind`.

    `capability` is the compute capability, (major, minor), `processors` the number of streaming
    multiprocessors, `clock_ghz` the highest clock rate. `link_gb_per_s` is the bandwidth of NVLink
    or PCIe within a node, and `network_gb_per_s` the bandwidth of all network cards of a node, both
    in GB/s and in one direction. The cards are eight of 400 Gbit/s (H100, H200) or 200 Gbit/s
    (A100), as in NVIDIA's own nodes, or one of 100 Gbit/s. `watts` is the maximum power.
    """

    kind: str
    capability: tuple[int, int]
    processors: int
    clock_ghz: float
    l2_mib: int
    memory_gib: float
    memory_gb_per_s: int
    link_gb_per_s: float
    network_gb_per_s: float
    watts: int


def _table(text: str, row: Any) -> dict[str, Any]:
    """Returns {name: `row`} of a table with the fields of `row`, of which texts are quoted."""
    rows = {}
    for line in text.strip().splitlines()[1:]:
        name, *values = re.split(r" {2,}", line)
        rows[name] = row(*map(ast.literal_eval, values))
    return rows


GPUS: dict[str, Gpu] = _table(
    """
name     kind                       CC      SMs  GHz    L2  GiB    GB/s  link  network  watts
h200     "NVIDIA H200"              (9, 0)  132  1.98   50  139.7  4800  450   400      700
h100     "NVIDIA H100"              (9, 0)  132  1.98   50  79.1   3350  450   400      700
a100     "NVIDIA A100"              (8, 0)  108  1.41   40  79.1   2039  300   200      400
a100-40  "NVIDIA A100"              (8, 0)  108  1.41   40  39.4   1555  300   200      400
l40s     "NVIDIA L40S"              (8, 9)  142  2.52   96  44.5   864   32    12.5     350
l4       "NVIDIA L4"                (8, 9)  58   2.04   48  22.0   300   32    12.5     72
a10      "NVIDIA A10"               (8, 6)  72   1.695  6   22.0   600   32    12.5     150
rtx4090  "NVIDIA GeForce RTX 4090"  (8, 9)  128  2.52   72  23.6   1008  32    12.5     450
""",
    Gpu,
)
EXAMPLES = ("h200:8", "h100:8", "a100:8", "a100-40:8", "l40s:1", "l4:1", "a10:1", "rtx4090:1")


# Limits of a streaming multiprocessor by compute capability: float32 lanes, threads, and KiB of
# shared memory in all and per block.
_LIMITS = {
    (8, 0): (64, 2048, 164, 163),
    (8, 6): (128, 1536, 100, 99),
    (8, 9): (128, 1536, 100, 99),
    (9, 0): (128, 2048, 228, 227),
}


def gpu_nodes(name: str, num_nodes: int = 1) -> Topology:
    """Returns the devices of `num_nodes` nodes, where `name` is GPU:NUMBER, such as h200:8.

    GPU must be one of `GPUS`. The memory is the share of its memory that JAX reserves. Among
    several nodes, data moves as fast as NVLink, or as all network cards of a node together,
    whichever is slower.

    Raises ValueError if there are no such nodes, or ImportError without the compiler.
    """
    version, _, number = name.partition(":")
    if not number.isdecimal() or not 1 <= int(number) <= MOST_PER_NODE:
        raise ValueError(
            f"Unknown topology {name!r}: the form is {version}:NUMBER, with 1 to {MOST_PER_NODE} "
            f"GPUs per node, such as {version}:8; more GPUs are several nodes (--num_nodes)."
        )
    if num_nodes < 1:
        raise ValueError(f"num_nodes={num_nodes}: it must be at least 1.")
    gpu = GPUS[version]
    _prepare_compiler()
    from jax.experimental import topologies

    nodes = topologies.get_topology_desc(
        "", "cuda", target_config=_target(gpu), topology=f"1x{num_nodes}x{number}"
    )
    link = gpu.link_gb_per_s
    if num_nodes > 1:
        link = min(link, gpu.network_gb_per_s)
        name = f"{num_nodes} x {name}"
    return Topology(
        name=name,
        kind=gpu.kind,
        devices=nodes.devices,
        num_chips=len(nodes.devices),
        memory_bytes=int(gpu.memory_gib * GIB * _memory_fraction()),
        link_bytes_per_s=link * 1e9,
        tflops=PEAK_TFLOPS[gpu.kind],
        memory_bytes_per_s=gpu.memory_gb_per_s * 1e9,
        watts=gpu.watts,
    )


def _memory_fraction() -> float:
    value = os.environ.get(FRACTION_VARIABLE)
    with contextlib.suppress(ValueError):
        if 0 < (fraction := float(value or MEMORY_FRACTION)) <= 1:
            return fraction
    raise ValueError(f"{FRACTION_VARIABLE}={value!r}: it must be a number from 0 to 1.")


def _target(gpu: Gpu) -> str:
    # A text of XLA's protocol buffer GpuTargetConfigProto.
    lanes, threads, shared, shared_per_block = _LIMITS[gpu.capability]
    # Any versions of CUDA and cuDNN that XLA supports will do: CUDA 12.8 and cuDNN 9.7.
    return f"""
gpu_device_info {{
  cuda_compute_capability {{ major: {gpu.capability[0]} minor: {gpu.capability[1]} }}
  core_count: {gpu.processors}
  fpus_per_core: {lanes}
  clock_rate_ghz: {gpu.clock_ghz}
  l2_cache_size: {gpu.l2_mib << 20}
  device_memory_size: {int(gpu.memory_gib * GIB)}
  memory_bandwidth: {gpu.memory_gb_per_s * 10**9}
  threads_per_core_limit: {threads}
  threads_per_block_limit: 1024
  threads_per_warp: 32
  registers_per_core_limit: 65536
  registers_per_block_limit: 65536
  shared_memory_per_core: {shared << 10}
  shared_memory_per_block: 49152
  shared_memory_per_block_optin: {shared_per_block << 10}
  block_dim_limit_x: 2147483647
  block_dim_limit_y: 65535
  block_dim_limit_z: 65535
}}
platform_name: "CUDA"
dnn_version_info {{ major: 9 minor: 7 }}
runtime_version {{ major: 12 minor: 8 patch: 0 }}
device_description_str: "{gpu.kind}"
"""


@functools.cache
def _prepare_compiler() -> None:
    """Lets JAX compile for GPUs on a machine without one, with the assembler of NVIDIA's wheel."""
    assembler = _assembler()
    if assembler is None or importlib.util.find_spec("jax_cuda12_plugin") is None:
        raise ImportError(
            "The compiler for GPUs is not installed: pip install 'bertjax[gpu-plan]'."
        )
    flags = os.environ.get("XLA_FLAGS", "")
    if "xla_gpu_cuda_data_dir" not in flags:
        # Autotuning would measure the candidates on the GPU.
        added = f"--xla_gpu_cuda_data_dir={assembler} --xla_gpu_autotune_level=0"
        os.environ["XLA_FLAGS"] = f"{flags} {added}".strip()
        os.environ["PATH"] = f"{assembler / 'bin'}{os.pathsep}{os.environ.get('PATH', '')}"
    if os.environ.get("TF_CPP_MIN_LOG_LEVEL", "1") == "1":  # which jax sets
        os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"  # no warnings about programs that do not fit
    os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
    import jax

    jax.devices("cpu")  # jax registers its plugins together with its first backend


def _assembler() -> Path | None:
    """Returns the folder of NVIDIA's wheel with ptxas and libdevice, or None."""
    package = importlib.util.find_spec("nvidia")
    if package is None:
        return None
    for folder in package.submodule_search_locations or ():
        if (assembler := Path(folder) / "cuda_nvcc").is_dir():
            return assembler
    return None


class Chip(NamedTuple):
    """A TPU version.

    Attributes:
        devices: the number of jax devices per chip.
        memory_gib: the memory per device that libtpu 0.0.42 leaves to a program.
        ici_gb_per_s: the total bandwidth of a chip's links to its neighbours, in one direction.
        megacore: whether libtpu is told to present the two cores of a chip as one jax device.
        watts: the highest power that Google measured, of those versions whose page states it.
        examples: shapes of slices that exist, as the number of chips along each dimension.
    """

    kind: str
    devices: int
    memory_gib: float
    hbm_gb_per_s: int
    ici_gb_per_s: float
    megacore: bool
    watts: int | None
    examples: str


CHIPS: dict[str, Chip] = _table(
    """
name   kind       devices  GiB    HBM   ICI  megacore  watts  examples
v2     "TPU v2"   2        7.48   700   248  False     None   "2x2 4x4 8x8 16x16"
v3     "TPU v3"   2        15.48  900   280  False     262    "2x2 4x4 8x8 16x16 32x32"
v4     "TPU v4"   1        30.75  1200  300  True      192    "2x2x1 2x2x2 2x2x4 4x4x4 4x4x8"
v5e    "TPU v5e"  1        15.75  819   200  False     None   "2x2 2x4 4x4 8x8 16x16"
v5p    "TPU v5p"  1        95.74  2765  600  True      None   "2x2x1 2x2x2 2x2x4 4x4x4 4x4x8"
v6e    "TPU v6e"  1        31.25  1638  400  False     None   "2x2 2x4 4x4 8x8 16x16"
tpu7x  "TPU7x"    2        94.75  7380  600  False     None   "2x2x1 2x2x2 2x2x4 4x4x4"
""",
    Chip,
)


def known_slices() -> list[str]:
    """Returns the names of common TPU slices, such as v3:4x4, which `tpu_slice` accepts."""
    return [
        f"{version}:{shape}" for version, chip in CHIPS.items() for shape in chip.examples.split()
    ]


def tpu_slice(name: str) -> Topology:
    """Returns the TPU slice VERSION:CHIPS, such as v3:4x4; CHIPS has two or three dimensions.

    The version must be one of `CHIPS`. The link bandwidth of a device is an equal share of the
    links of its chip. Raises ValueError if no TPU slice has this `name`, or libtpu describes it
    with a wrong number of devices, or ImportError without the compiler.
    """
    version, _, shape = name.partition(":")
    chip = CHIPS[version]
    _prepare_libtpu()
    from jax.experimental import topologies

    extra = {}
    if chip.megacore:
        extra = {"chip_config_name": "megacore"}
    try:
        topology = topologies.get_topology_desc(platform="tpu", topology_name=name, **extra)
    except Exception as error:  # jaxlib raises no more specific type
        if "divisible" not in str(error) and "INVALID_ARGUMENT" not in str(error):
            raise
        shapes = ", ".join(f"{version}:{shape}" for shape in chip.examples.split())
        raise ValueError(
            f"There is no TPU slice {name!r} ({str(error).splitlines()[0]}). "
            f"Use one such as {shapes}."
        ) from error
    num_chips = len(topology.devices) // chip.devices
    expected = math.prod(map(int, shape.split("x")))
    if num_chips != expected:
        raise ValueError(
            f"libtpu describes {name!r} with {len(topology.devices)} devices, but there are "
            f"{expected} chips with {chip.devices} devices each: install another version of libtpu."
        )
    return Topology(
        name=name,
        kind=chip.kind,
        devices=topology.devices,
        num_chips=num_chips,
        memory_bytes=int(chip.memory_gib * GIB),
        link_bytes_per_s=chip.ici_gb_per_s * 1e9 / chip.devices,
        tflops=PEAK_TFLOPS[chip.kind],
        memory_bytes_per_s=chip.hbm_gb_per_s * 1e9 / chip.devices,
        watts=chip.watts,
    )


def _prepare_libtpu() -> None:
    """Sets the environment variables that let libtpu compile on a machine without a TPU."""
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


def is_gpu(name: str) -> bool:
    """Returns whether `name`, such as h200:8, names GPUs."""
    return name.partition(":")[0] in GPUS


def get_topology(name: str, num_nodes: int = 1) -> Topology:
    """Returns the TPU slice `name`, such as v3:4x4, or `num_nodes` nodes of GPUs, such as h200:8.

    `num_nodes` has no effect on a TPU slice, whose name gives all of its chips. Raises ValueError
    if no hardware has this name, or ImportError without its compiler.
    """
    version, colon, shape = name.partition(":")
    if is_gpu(name):
        return gpu_nodes(name, num_nodes)
    if not colon or version not in CHIPS or not all(n.isdecimal() for n in shape.split("x")):
        hint = did_you_mean(name, [*known_slices(), *EXAMPLES])
        raise ValueError(
            f"Unknown topology {name!r}. {hint}TPU slices are "
            f"VERSION:CHIPS, such as v3:4x4 or v4:2x2x4, with the versions {', '.join(CHIPS)}; "
            f"nodes of GPUs are GPU:NUMBER, such as h200:8, with the GPUs {', '.join(GPUS)}."
        )
    return tpu_slice(name)
