"""Chooses the attention kernel and the unroll factor of the scan over layers for a device."""

from collections.abc import Sequence
from typing import NamedTuple

from jax.sharding import Mesh

from bertjax.config.model import BertConfig
from bertjax.model.fused_attention import FUSED

# Shorter rows have few attention scores, which the attention that XLA compiles handles well.
LONG_ROW = 512


class Choice(NamedTuple):
    """The chosen kernel and the reason for the choice."""

    kernel: str
    reason: str


def choose_attention(
    requested: str, model: BertConfig, row_lengths: Sequence[int], device_kind: str, dtype: str
) -> Choice:
    """The attention kernel for rows of these lengths on a device of a kind (jax's `device_kind`).

    A kernel without attention dropout is never chosen for a model with it. "auto" chooses between
    splash and xla.

    Raises:
        ValueError: the device, the type or a row length does not allow the requested kernel.
    """
    if requested == "xla":
        return Choice("xla", "requested")
    name = "splash" if requested == "auto" else requested
    fused = FUSED[name]
    obstacles = []
    if not device_kind.startswith(fused.devices):
        obstacles.append(f"no {name} for {device_kind}, only for {', '.join(fused.devices)}")
    if dtype not in fused.types:
        obstacles.append(f"no {name} in {dtype}, only in {', '.join(fused.types)}")
    if odd := [length for length in row_lengths if length % fused.tokens]:
        obstacles.append(f"rows of {odd} tokens are no multiples of {fused.tokens}")
    if requested != "auto" and obstacles:
        raise ValueError(
            f"attention={requested!r}: {'; '.join(obstacles)}. Use attention='auto' or 'xla'."
        )
    rate = model.attention_probs_dropout_prob
    if rate:
        obstacles.append(f"no fused kernel has attention_probs_dropout_prob={rate}")
    if requested == "auto" and max(row_lengths, default=0) < LONG_ROW:
        obstacles.append(f"no row has {LONG_ROW} tokens")
    if obstacles:
        return Choice("xla", obstacles[0])
    return Choice(name, f"{device_kind}, rows of {list(row_lengths)} tokens, no dropout")


def choose_unroll(requested: int | None, remat: str, num_layers: int, mesh: Mesh) -> int:
    """The unroll factor of the scan over layers.

    Args:
        requested: by the config; None: all layers on CPUs, where a loop copies weights,
            activations and gradients, otherwise 1; with remat always 1.
        remat: the policy of the backward pass.

    Raises:
        ValueError: the factor would undo remat.
    """
    on_cpu = mesh.devices.flat[0].platform == "cpu"
    if requested is None:
        return num_layers if on_cpu and remat == "none" else 1
    if on_cpu and remat != "none" and requested > 1:
        raise ValueError(
            f"unroll={requested}, remat={remat!r}: on CPUs the compiler keeps the activations that "
            "unrolled layers should recompute. Give --unroll 1 or --remat none."
        )
    return requested
