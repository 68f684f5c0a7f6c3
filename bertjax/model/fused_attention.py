"""Attention as one kernel of the device, which never holds the scores [B, N, L, L] in its memory.

Dao et al. 2022; the kernels are jax's splash attention for TPUs and cuDNN's for GPUs. Neither knows
dropout with bits of a row's own.
"""

import functools
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax
import numpy as np
from jax.sharding import PartitionSpec as P

# Splash takes tokens of a row in tiles of so many lanes; larger blocks cost fewer steps.
LANES = 128
BLOCKS = (512, 256, 128)


def splash_attention(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    sequence_ids: jax.Array,
    *,
    causal: bool,
    interpret: bool = False,
) -> jax.Array:
    """Tokens attend to those of their own sequence.

    Args:
        query, key, value: [B, L, N, H], L a multiple of `LANES`.
        sequence_ids: int [B, L]; padding, 0, attends to padding.
        causal: to itself and those before it alone.
        interpret: computes the kernel on any device, slowly.

    Returns:
        [B, L, N, H], softmax(query key^T / sqrt(H)) value.
    """
    attend = functools.partial(_splash, causal=causal, interpret=interpret)
    return _on_each_device(attend)(query, key, value, sequence_ids)


def cudnn_attention(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    sequence_ids: jax.Array,
    *,
    causal: bool,
    implementation: Literal["cudnn", "xla"] = "cudnn",
) -> jax.Array:
    """As `splash_attention`, of arrays in 16 bits; "xla" computes it on any device."""

    def attend(query, key, value, ids):
        seen = ids[:, None, :, None] == ids[:, None, None, :]  # [B, 1, L, L]
        return jax.nn.dot_product_attention(
            query, key, value, mask=seen, is_causal=causal, implementation=implementation
        )

    return _on_each_device(attend)(query, key, value, sequence_ids)


class Kernel(NamedTuple):
    """A fused attention and what it needs.

    Attributes:
        attend: (query, key, value, sequence_ids, causal=...) -> context.
        tokens: a row is a multiple of so many long.
        devices: how jax's names of the kinds of its devices begin.
        types: of its arrays.
    """

    attend: Callable[..., jax.Array]
    tokens: int
    devices: tuple[str, ...]
    types: tuple[str, ...]


FUSED = {
    # Compiled ahead of time for these; in bfloat16 it does not compile for the TPUs before.
    "splash": Kernel(
        splash_attention, LANES, ("TPU v5", "TPU v6", "TPU7"), ("float32", "bfloat16")
    ),
    "cudnn": Kernel(cudnn_attention, 2, ("NVIDIA",), ("bfloat16",)),
}


def _splash(query, key, value, sequence_ids, *, causal: bool, interpret: bool) -> jax.Array:
    # Imported where there is such a kernel: it takes a second, and nothing else needs it.
    from jax.experimental.pallas.ops.tpu import splash_attention as splash

    length, heads, head_size = query.shape[1:]
    mask = splash.CausalMask if causal else splash.FullMask
    block = next(block for block in BLOCKS if length % block == 0)
    kernel: Any = splash.make_splash_mha_single_device(
        splash.MultiHeadMask([mask((length, length)) for _ in range(heads)]),
        block_sizes=splash.BlockSizes(
            block_q=block,
            block_kv=block,
            block_q_dkv=block,
            block_kv_dkv=block,
            use_fused_bwd_kernel=True,
        ),
        interpret=interpret,
    )
    query = query * head_size**-0.5

    def of_row(query, key, value, ids):
        by_head = (x.swapaxes(0, 1) for x in (query, key, value))  # [N, L, H]
        return kernel(*by_head, splash.SegmentIds(ids, ids)).swapaxes(0, 1)

    return jax.vmap(of_row)(query, key, value, sequence_ids)


def _on_each_device(attend: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
    """The compiler cannot split a kernel: where it splits arrays, each device gets its part.

    Rows are split over the axes data and fsdp of the mesh that this is traced under, heads over
    tensor.
    """
    mesh = jax.sharding.get_abstract_mesh()
    split = [name for name in mesh.axis_names if name not in mesh.manual_axes]
    if not np.prod([mesh.shape[name] for name in split]) > 1:
        return attend
    rows = tuple(name for name in ("data", "fsdp") if name in split)
    by_head = P(rows, None, "tensor" if "tensor" in split else None)
    return jax.shard_map(
        attend, in_specs=(by_head, by_head, by_head, P(rows)), out_specs=by_head, check_vma=False
    )
