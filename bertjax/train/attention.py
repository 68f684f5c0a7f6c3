"""Which kernel computes attention: by device, length of rows and dropout."""

from collections.abc import Sequence
from typing import NamedTuple

from bertjax.model.config import BertConfig
from bertjax.model.fused_attention import LANES

# Compiled ahead of time for these; the bfloat16 kernel does not compile for the ones before.
SPLASH_DEVICES = ("TPU v5", "TPU v6", "TPU7")
# Shorter rows have few scores, and the compiler's own attention handles them well.
LONG_ROW = 512


class Choice(NamedTuple):
    """A kernel, and why."""

    kernel: str
    reason: str


def choose_attention(
    asked: str, model: BertConfig, row_lengths: Sequence[int], device_kind: str
) -> Choice:
    """The kernel for rows of these lengths on a device (jax's name of its kind).

    Dropout of attention is kept whatever is asked: a kernel that has none is not taken.

    Raises:
        ValueError: a kernel was asked for that the device or a row length does not allow.
    """
    if asked == "xla":
        return Choice("xla", "as asked")
    odd = [length for length in row_lengths if length % LANES]
    obstacles = []
    if not device_kind.startswith(SPLASH_DEVICES):
        obstacles.append(f"no fused kernel for {device_kind}")
    if odd:
        obstacles.append(f"rows of {odd} tokens are no multiples of {LANES}")
    if asked == "splash" and obstacles:
        raise ValueError(
            f"attention='splash': {'; '.join(obstacles)} (it needs {' or '.join(SPLASH_DEVICES)}). "
            "Leave attention='auto', or ask for 'xla'."
        )
    rate = model.attention_probs_dropout_prob
    if rate:
        obstacles.append(f"no fused kernel has attention_probs_dropout_prob={rate}")
    if asked == "auto" and max(row_lengths, default=0) < LONG_ROW:
        obstacles.append(f"no row has {LONG_ROW} tokens")
    if obstacles:
        return Choice("xla", obstacles[0])
    return Choice("splash", f"{device_kind}, rows of {list(row_lengths)} tokens, no dropout")
