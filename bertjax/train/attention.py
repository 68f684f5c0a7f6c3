"""Which kernel computes attention: by device, length of rows, type and dropout."""

from collections.abc import Sequence
from typing import NamedTuple

from bertjax.model.config import BertConfig
from bertjax.model.fused_attention import FUSED

# Shorter rows have few scores, and the compiler's own attention handles them well.
LONG_ROW = 512


class Choice(NamedTuple):
    """A kernel, and why."""

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
