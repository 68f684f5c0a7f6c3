"""NVIDIA GPUs that programs can be compiled for without a GPU.

Numbers of processors, clocks, caches and bandwidths are from NVIDIA's data sheets, limits per
processor from the table of compute capabilities in the CUDA programming guide. The memory is what
the driver reports. Peak FLOP/s are taken from `devices.flops`.
"""

import contextlib
import functools
import importlib.util
import os
from pathlib import Path
from typing import NamedTuple

from bertjax.devices.flops import PEAK_TFLOPS
from bertjax.planning.topology import Topology

GIB = 2**30
MOST_PER_NODE = 16
# The share of a GPU's memory that JAX reserves for its arrays and programs, and the variable that
# changes it.
MEMORY_FRACTION = 0.75
FRACTION_VARIABLE = "XLA_PYTHON_CLIENT_MEM_FRACTION"


class Gpu(NamedTuple):
    """A GPU.

    Attributes:
        kind: the beginning of the `device_kind` that jax reports for this GPU.
        capability: major and minor number of the compute capability.
        processors: the number of streaming multiprocessors.
        clock_ghz: the highest clock rate in GHz.
        l2_mib: the size of the L2 cache in MiB.
        memory_gib: the memory in GiB.
        memory_gb_per_s: the bandwidth of the memory in GB/s.
        link_gb_per_s: the bandwidth of NVLink or PCIe to the GPUs of the same node, in one
            direction, in GB/s.
        network_gb_per_s: the bandwidth between nodes, of all network cards of a node together, in
            one direction, in GB/s: eight cards of 400 Gbit/s (H100, H200) or 200 Gbit/s (A100), as
            in NVIDIA's own nodes, or one card of 100 Gbit/s.
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


GPUS = {
    "h200": Gpu("NVIDIA H200", (9, 0), 132, 1.98, 50, 139.7, 4800, 450, 400),
    "h100": Gpu("NVIDIA H100", (9, 0), 132, 1.98, 50, 79.1, 3350, 450, 400),
    "a100": Gpu("NVIDIA A100", (8, 0), 108, 1.41, 40, 79.1, 2039, 300, 200),
    "a100-40": Gpu("NVIDIA A100", (8, 0), 108, 1.41, 40, 39.4, 1555, 300, 200),
    "l40s": Gpu("NVIDIA L40S", (8, 9), 142, 2.52, 96, 44.5, 864, 32, 12.5),
    "l4": Gpu("NVIDIA L4", (8, 9), 58, 2.04, 48, 22.0, 300, 32, 12.5),
    "a10": Gpu("NVIDIA A10", (8, 6), 72, 1.695, 6, 22.0, 600, 32, 12.5),
    "rtx4090": Gpu("NVIDIA GeForce RTX 4090", (8, 9), 128, 2.52, 72, 23.6, 1008, 32, 12.5),
}
EXAMPLES = ("h200:8", "h100:8", "a100:8", "a100-40:8", "l40s:1", "l4:1", "a10:1", "rtx4090:1")


class _Limits(NamedTuple):
    """Limits of a streaming multiprocessor: float32 lanes, threads, bytes of shared memory."""

    lanes: int
    threads: int
    shared_memory: int
    shared_memory_per_block: int


_LIMITS = {
    (8, 0): _Limits(64, 2048, 164 << 10, 163 << 10),
    (8, 6): _Limits(128, 1536, 100 << 10, 99 << 10),
    (8, 9): _Limits(128, 1536, 100 << 10, 99 << 10),
    (9, 0): _Limits(128, 2048, 228 << 10, 227 << 10),
}


def gpu_nodes(name: str, num_nodes: int = 1) -> Topology:
    """Returns the devices of `num_nodes` nodes, where `name` is GPU:NUMBER, such as h200:8.

    The memory is the share of a GPU's memory that JAX reserves: 75 %, or the value of the variable
    XLA_PYTHON_CLIENT_MEM_FRACTION. Among several nodes, data moves as fast as NVLink, or as all
    network cards of a node together, whichever is slower.

    Raises:
        ValueError: there are no such nodes.
        ImportError: the compiler for GPUs is not installed.
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

    found = topologies.get_topology_desc(
        "", "cuda", target_config=_target(gpu), topology=f"1x{num_nodes}x{number}"
    )
    link = gpu.link_gb_per_s if num_nodes == 1 else min(gpu.link_gb_per_s, gpu.network_gb_per_s)
    return Topology(
        name=name if num_nodes == 1 else f"{num_nodes} x {name}",
        kind=gpu.kind,
        devices=found.devices,
        num_chips=len(found.devices),
        memory_bytes=int(gpu.memory_gib * GIB * _memory_fraction()),
        link_bytes_per_s=link * 1e9,
        tflops=PEAK_TFLOPS[gpu.kind],
        memory_bytes_per_s=gpu.memory_gb_per_s * 1e9,
    )


def _memory_fraction() -> float:
    value = os.environ.get(FRACTION_VARIABLE)
    with contextlib.suppress(ValueError):
        if 0 < float(value or MEMORY_FRACTION) <= 1:
            return float(value or MEMORY_FRACTION)
    raise ValueError(f"{FRACTION_VARIABLE}={value!r}: it must be a number from 0 to 1.")


def _target(gpu: Gpu) -> str:
    """Returns XLA's description of a GPU, a text of the protocol buffer GpuTargetConfigProto."""
    limits = _LIMITS[gpu.capability]
    # Any versions of CUDA and cuDNN that XLA supports will do: CUDA 12.8 and cuDNN 9.7.
    return f"""
gpu_device_info {{
  cuda_compute_capability {{ major: {gpu.capability[0]} minor: {gpu.capability[1]} }}
  core_count: {gpu.processors}
  fpus_per_core: {limits.lanes}
  clock_rate_ghz: {gpu.clock_ghz}
  l2_cache_size: {gpu.l2_mib << 20}
  device_memory_size: {int(gpu.memory_gib * GIB)}
  memory_bandwidth: {gpu.memory_gb_per_s * 10**9}
  threads_per_core_limit: {limits.threads}
  threads_per_block_limit: 1024
  threads_per_warp: 32
  registers_per_core_limit: 65536
  registers_per_block_limit: 65536
  shared_memory_per_core: {limits.shared_memory}
  shared_memory_per_block: 49152
  shared_memory_per_block_optin: {limits.shared_memory_per_block}
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
    """Lets JAX compile for GPUs on a machine without one, with the assembler of NVIDIA's wheel.

    Raises:
        ImportError: jax's plugin for CUDA or the assembler is not installed.
    """
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
    for folder in (package.submodule_search_locations or ()) if package else ():
        if (path := Path(folder) / "cuda_nvcc").is_dir():
            return path
    return None
