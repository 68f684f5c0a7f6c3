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
    asked: str, model: BertConfig, row_lengths: Sequence[int], device_kind: str, dtype: str
) -> Choice:
    """The kernel for rows of these lengths on a device (jax's name of its kind).

    Dropout of attention is kept whatever is asked: a kernel that has none is not taken. "auto"
    takes splash alone.

    Raises:
        ValueError: a kernel was asked for that the device, the type or a row length does not allow.
    """
    if asked == "xla":
        return Choice("xla", "as asked")
    name = "splash" if asked == "auto" else asked
    fused = FUSED[name]
    obstacles = []
    if not device_kind.startswith(fused.devices):
        obstacles.append(f"no {name} for {device_kind}, only for {', '.join(fused.devices)}")
    if dtype not in fused.types:
        obstacles.append(f"no {name} in {dtype}, only in {', '.join(fused.types)}")
    if odd := [length for length in row_lengths if length % fused.tokens]:
        obstacles.append(f"rows of {odd} tokens are no multiples of {fused.tokens}")
    if asked != "auto" and obstacles:
        raise ValueError(
            f"attention={asked!r}: {'; '.join(obstacles)}. Leave attention='auto', or take 'xla'."
        )
    rate = model.attention_probs_dropout_prob
    if rate:
        obstacles.append(f"no fused kernel has attention_probs_dropout_prob={rate}")
    if asked == "auto" and max(row_lengths, default=0) < LONG_ROW:
        obstacles.append(f"no row has {LONG_ROW} tokens")
    if obstacles:
        return Choice("xla", obstacles[0])
    return Choice(name, f"{device_kind}, rows of {list(row_lengths)} tokens, no dropout")


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
