"""FLOP of training and peak FLOP/s of the devices, to compute MFU.

MFU, the model FLOP utilisation, is the achieved FLOP/s over the peak FLOP/s, where recomputation
does not count as achieved (Chowdhery et al. 2022, appendix B).
"""

import re
import time

import jax
import jax.numpy as jnp

from bertjax.config.model import BertConfig

# Peak dense bfloat16 TFLOP/s per jax device, from the data sheets. (A device of TPU v2, v3 or 7x
# is one of the two cores of a chip.)
PEAK_TFLOPS = {
    "TPU v2": 22.5,
    "TPU v3": 61.5,
    "TPU v4": 275.0,
    "TPU v5 lite": 197.0,
    "TPU v5e": 197.0,
    "TPU v5": 459.0,
    "TPU v5p": 459.0,
    "TPU v6 lite": 918.0,
    "TPU v6e": 918.0,
    "TPU7x": 1153.5,
    "NVIDIA A10": 125.0,
    "NVIDIA A100": 312.0,
    "NVIDIA L4": 121.0,
    "NVIDIA L40": 181.0,
    "NVIDIA L40S": 362.0,
    "NVIDIA H100": 989.0,
    "NVIDIA H100 PCIe": 756.0,
    "NVIDIA H100 NVL": 835.0,
    "NVIDIA H200": 989.0,
    "NVIDIA H200 NVL": 835.0,
    "NVIDIA GH200": 989.0,
    "NVIDIA GeForce RTX 3090": 71.0,
    "NVIDIA GeForce RTX 4090": 165.2,
}


def train_flops_per_row(
    config: BertConfig, row_length: int, predictions: int, attended: float | None = None
) -> float:
    """Returns the number of FLOP of the forward and the backward pass for one row of a batch.

    Only matrix multiplications are counted: query, key, value and output projections, feed-forward
    layers, attention to `attended` tokens per token, in layers with local attention to those in the
    window, the projection of factorised embeddings, and the MLM head at the predicted positions. A
    multiply-add counts as two FLOP.

    Args:
        config: the architecture of the model.
        row_length: the number of tokens per row.
        predictions: the number of predicted tokens per row.
        attended: the mean number of tokens that a token attends to, which for packed rows is
            E[length^2] / E[length] over the sequences in the rows; None: `row_length`.
    """
    d, f, layers = config.hidden_size, config.intermediate_size, config.num_hidden_layers
    products = 6 * layers * (4 * d * d + (3 if config.gated_linear_unit else 2) * d * f)
    attended = row_length if attended is None else attended
    window = attended if config.local_attention is None else config.local_attention + 1
    everywhere = sum(map(config.is_global, range(layers)))
    attention = 12 * d * (everywhere * attended + (layers - everywhere) * min(attended, window))
    e = config.embedding_size or d
    widened = 6 * e * d if config.embedding_size else 0
    head = 6 * (d * e + e * config.vocab_size)
    return float(row_length * (products + attention + widened) + predictions * head)


def peak_flops(peak_tflops: float | None) -> float:
    """Returns the peak FLOP/s of all devices of the run together.

    The peak of one device is `peak_tflops` TFLOP/s; if `peak_tflops` is None, the peak is looked up
    in PEAK_TFLOPS, or measured for a device that PEAK_TFLOPS does not list.
    """
    if peak_tflops is None:
        kind = jax.devices()[0].device_kind
        peak_tflops = listed_tflops(kind) or _measured_tflops()
    return peak_tflops * 1e12 * jax.device_count()


def listed_tflops(kind: str) -> float | None:
    """Returns the TFLOP/s in PEAK_TFLOPS of a `device_kind`; None if it is not listed.

    The kind may have further words, such as the memory in "NVIDIA H100 80GB HBM3". The longest
    name in PEAK_TFLOPS with which it begins counts, because cards of one name differ: H100 PCIe.
    """
    known = [key for key in PEAK_TFLOPS if re.match(rf"{re.escape(key)}(?!\w)", kind)]
    return PEAK_TFLOPS[max(known, key=len)] if known else None


def _measured_tflops(repeats: int = 5) -> float:
    """Measures the TFLOP/s of one device in the fastest of `repeats` matrix products.

    The products are of the type that devices of this kind train in: float32 on CPUs, else bfloat16.
    """
    size, dtype = (1024, jnp.float32) if jax.default_backend() == "cpu" else (8192, jnp.bfloat16)
    product = jax.jit(lambda x: x @ x)
    x = jax.device_put(jnp.ones((size, size), dtype), jax.local_devices()[0])
    product(x).block_until_ready()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        product(x).block_until_ready()
        times.append(time.perf_counter() - start)
    # Simulated devices share one processor, so each has a fraction of its FLOP/s.
    shared = jax.local_device_count() if jax.default_backend() == "cpu" else 1
    return 2 * size**3 / min(times) / 1e12 / shared
