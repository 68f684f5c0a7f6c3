"""Chooses the attention kernel, the rematerialisation and the unroll factor for a device."""

from collections.abc import Sequence
from typing import NamedTuple

from jax.sharding import Mesh

from bertjax.config.model import BertConfig
from bertjax.model.fused_attention import FUSED

# The row length, in tokens, from which a fused kernel is faster than "xla".
LONG_ROW = 512


class Choice(NamedTuple):
    """The chosen attention kernel and the reason for the choice."""

    kernel: str
    reason: str


def choose_attention(
    requested: str, model: BertConfig, row_lengths: Sequence[int], device_kind: str, dtype: str
) -> Choice:
    """Chooses the attention kernel of a model for the given row lengths and jax's `device_kind`.

    `requested` is "xla", one of the fused kernels "splash" (TPUs) and "cudnn" (GPUs), or "auto".
    "auto" means "splash" if the longest row has at least `LONG_ROW` tokens and "splash" supports
    the device, the dtype and all row lengths, and "xla" otherwise. No fused kernel supports
    attention dropout, so "xla" is chosen for a model with attention dropout.

    Raises:
        ValueError: the requested kernel does not support the device, the dtype or a row length.
    """
    if requested == "xla":
        return Choice("xla", "requested")
    name = "splash" if requested == "auto" else requested
    fused = FUSED[name]
    obstacles = []
    if not device_kind.startswith(fused.devices):
        obstacles.append(f"{name} runs on {', '.join(fused.devices)}, not on {device_kind}")
    if dtype not in fused.types:
        obstacles.append(f"{name} supports {', '.join(fused.types)}, not {dtype}")
    if odd := [length for length in row_lengths if length % fused.tokens]:
        obstacles.append(f"row lengths {odd} are not multiples of {fused.tokens}")
    if requested != "auto" and obstacles:
        raise ValueError(
            f"attention={requested!r}: {'; '.join(obstacles)}. Use attention='auto' or 'xla'."
        )
    rate = model.attention_probs_dropout_prob
    if rate:
        obstacles.append(f"no fused kernel supports attention_probs_dropout_prob={rate}")
    if requested == "auto" and max(row_lengths, default=0) < LONG_ROW:
        obstacles.append(f"all rows have fewer than {LONG_ROW} tokens")
    if obstacles:
        return Choice("xla", obstacles[0])
    return Choice(name, f"{device_kind}, rows of {list(row_lengths)} tokens, no dropout")


def choose_remat(requested: str | None, mesh: Mesh) -> str:
    """Chooses the rematerialisation policy, a key of `REMAT_POLICIES`.

    Args:
        requested: the policy in the config, or None to choose "none" on CPUs and "selective" on
            GPUs and TPUs, whose memory and bandwidth limit the batch and the speed.
        mesh: the mesh, whose devices determine the platform.
    """
    if requested is not None:
        return requested
    return "none" if mesh.devices.flat[0].platform == "cpu" else "selective"


def choose_unroll(requested: int | None, remat: str, num_layers: int, mesh: Mesh) -> int:
    """Chooses the unroll factor of the scan over layers.

    Args:
        requested: the unroll factor in the config, or None to choose `num_layers` on CPUs without
            remat, where a loop would copy weights, activations and gradients, and 1 otherwise.
        remat: the chosen rematerialisation policy.
        num_layers: the number of layers of the encoder.
        mesh: the mesh, whose devices determine the platform.

    Raises:
        ValueError: `requested` is above 1 on CPUs with remat, which would undo the
            rematerialisation.
    """
    on_cpu = mesh.devices.flat[0].platform == "cpu"
    if requested is None:
        return num_layers if on_cpu and remat == "none" else 1
    if on_cpu and remat != "none" and requested > 1:
        raise ValueError(
            f"unroll={requested}, remat={remat!r}: on CPUs, the compiler stores the activations "
            "that unrolled layers should recompute. Give --unroll 1 or --remat none."
        )
    return requested
