"""Fused attention kernels, which never store the attention scores [B, N, L, L] (Dao et al. 2022).

The kernels are `model.flash_attention` for GPUs and TPUs, jax's splash attention for TPUs
and cuDNN's flash attention for GPUs. Only the first supports the dropout of `model.dropout`, whose
mask depends on each row's index in the global batch.
"""

import functools
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import PartitionSpec as P

from bertjax.model.linear import LANES, OUTPUT

# The largest block that divides the row, up to two windows, is used: it needs fewer grid steps.
BLOCKS = (512, 256, 128)
# The beginnings of the names of GPUs with compute capability 8.0 or higher, which Triton needs.
AMPERE_OR_NEWER = (
    "NVIDIA A",
    "NVIDIA B",
    "NVIDIA G",
    "NVIDIA H",
    "NVIDIA L",
    "NVIDIA GeForce RTX 30",
    "NVIDIA GeForce RTX 40",
    "NVIDIA GeForce RTX 50",
    "NVIDIA RTX",
)


def is_in_blocks(length: int, window: int) -> bool:
    """Returns whether rows of `length` tokens are computed in blocks for a `window` in tokens."""
    # Each query has the keys of three blocks, so shorter rows take less without blocks.
    return length > 3 * block_size(window)


def block_size(window: int) -> int:
    """Returns the number of tokens of a block for a window of `window` tokens."""
    return max(window // 2, 1)


def _on_each_device(attend: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
    """Wraps an attention kernel in `shard_map`, because XLA cannot partition the kernel.

    Rows are sharded over the axes "data" and "fsdp" of the current mesh, and attention heads over
    the axis "tensor". Without a mesh of several devices, `attend` is called as it is.
    """

    @functools.wraps(attend)
    def on_each_device(query, key, value, *by_row, **options):
        mesh = jax.sharding.get_abstract_mesh()
        axes = [name for name in mesh.axis_names if name not in mesh.manual_axes]
        call = functools.partial(attend, **options)
        if np.prod([mesh.shape[name] for name in axes]) > 1:
            rows = tuple(name for name in ("data", "fsdp") if name in axes)
            by_head = P(rows, None, "tensor" if "tensor" in axes else None)
            specs = (by_head, by_head, by_head, *(P(rows) for _ in by_row))
            call = jax.shard_map(call, in_specs=specs, out_specs=by_head, check_vma=False)
        return call(query, key, value, *by_row)

    return on_each_device


@_on_each_device
def splash_attention(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    sequence_ids: jax.Array,
    *,
    causal: bool,
    window: int | None = None,
    interpret: bool = False,
) -> jax.Array:
    """Computes the attention of every token to the tokens of its sequence with jax's TPU kernel.

    query, key, value and the result, softmax(query key^T / sqrt(H)) value, are [B, L, N, H], where
    L is a multiple of `LANES`; `sequence_ids` is int [B, L], 0 for padding, which attends to
    padding. If `causal`, a token attends only to itself and to earlier tokens; with `window`, only
    to tokens at most `window // 2` tokens away, and the backward pass is two kernels: the fused one
    stores a gradient of the queries for each block of keys, in the window or not. `interpret`
    selects Pallas's interpret mode, which is slow and works on any device.
    """
    # This is imported only when it is used, because the import takes a second.
    from jax.experimental.pallas.ops.tpu import splash_attention as splash

    length, heads, head_size = query.shape[1:]
    whole = (length, length)
    mask: Any = splash.CausalMask(whole) if causal else splash.FullMask(whole)
    names = ["block_q", "block_kv", "block_q_dkv", "block_kv_dkv"]
    if window is not None:
        local = splash.LocalMask(whole, (window // 2, window // 2), 0)
        mask = mask & local if causal else local
        names += ["block_q_dq", "block_kv_dq"]
    widest = length if window is None else max(2 * window, LANES)
    size = next(size for size in BLOCKS if length % size == 0 and size <= widest)
    sizes: Any = dict.fromkeys(names, size)
    kernel: Any = splash.make_splash_mha_single_device(
        splash.MultiHeadMask([mask] * heads),
        block_sizes=splash.BlockSizes(**sizes, use_fused_bwd_kernel=window is None),
        residual_checkpoint_name=OUTPUT,
        interpret=interpret,
    )

    def attend_row(query, key, value, ids):
        by_head = (x.swapaxes(0, 1) for x in (query, key, value))  # [N, L, H]
        return kernel(*by_head, splash.SegmentIds(ids, ids)).swapaxes(0, 1)

    return jax.vmap(attend_row)(query * head_size**-0.5, key, value, sequence_ids)


@_on_each_device
def cudnn_attention(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    sequence_ids: jax.Array,
    *,
    causal: bool,
    implementation: Literal["cudnn", "xla"] = "cudnn",
) -> jax.Array:
    """Computes the same attention as `splash_attention` with cuDNN, which needs 16-bit arrays.

    With implementation="xla", it works on any device and with any float dtype.
    """
    mask = sequence_ids[:, None, :, None] == sequence_ids[:, None, None, :]  # [B, 1, L, L]
    context = jax.nn.dot_product_attention(
        query, key, value, mask=mask, is_causal=causal, implementation=implementation
    )
    return checkpoint_name(context, OUTPUT)


def flash_attention(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    sequence_ids: jax.Array,
    *,
    row_keys: jax.Array | None = None,
    **options: Any,
) -> jax.Array:
    """Computes the same attention as `splash_attention` with our kernels, and with dropout.

    `row_keys` uint32 [B, 2] are the dropout keys of the rows (`Dropout.row_keys`); the other
    `options` are arguments of `flash_attention_on_device`.
    """
    if row_keys is None:
        row_keys = jnp.zeros((len(query), 2), jnp.uint32)
    window = options.get("window")
    if window is not None and is_in_blocks(query.shape[1], window):
        options["size"] = block_size(window)
    options["heads"] = query.shape[2]
    return _flash(query, key, value, sequence_ids, row_keys, **options)


@_on_each_device
def _flash(query, key, value, ids, row_keys, **options: Any) -> jax.Array:
    # This is imported only when it is used, because the import of Pallas takes a while.
    from bertjax.model.flash_attention import flash_attention_on_device

    manual = jax.sharding.get_abstract_mesh().manual_axes
    first: Any = 0
    if "tensor" in manual:
        first = jax.lax.axis_index("tensor") * query.shape[2]
    heads = jnp.full((len(row_keys), 1), first, jnp.uint32)
    seeds = jnp.concatenate([row_keys, heads], axis=1)
    return flash_attention_on_device(query, key, value, ids, seeds, **options)


class Kernel(NamedTuple):
    """A fused attention kernel and its requirements.

    Attributes:
        attend: a function with the arguments and the result of `splash_attention`.
        tokens: the row length in tokens must be a multiple of this number.
        devices: prefixes of jax's `device_kind` for the devices that the kernel runs on.
        types: the dtypes that the kernel supports.
        dropout: whether `attend` has the arguments `row_keys` and `rate` of `flash_attention`.
        windows: whether `attend` has the argument `window` of `splash_attention`.
    """

    attend: Callable[..., jax.Array]
    tokens: int
    devices: tuple[str, ...]
    types: tuple[str, ...]
    dropout: bool = False
    windows: bool = False


FUSED = {
    # These TPUs were verified by compiling ahead of time. For earlier TPUs, the kernel does not
    # compile in bfloat16.
    "splash": Kernel(
        splash_attention,
        LANES,
        ("TPU v5", "TPU v6", "TPU7"),
        ("float32", "bfloat16"),
        windows=True,
    ),
    "cudnn": Kernel(cudnn_attention, 2, ("NVIDIA",), ("bfloat16",)),
    "flash": Kernel(
        flash_attention,
        LANES,
        (*AMPERE_OR_NEWER, "TPU v4", "TPU v5", "TPU v6", "TPU7"),
        ("float32", "bfloat16"),
        dropout=True,
        windows=True,
    ),
}
