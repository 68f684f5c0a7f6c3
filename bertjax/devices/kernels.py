"""Chooses the attention kernel, the rematerialisation and the unroll factor for a device."""

from collections.abc import Sequence
from typing import NamedTuple

from jax.sharding import Mesh

from bertjax.config.model import BertConfig
from bertjax.model.fused_attention import FUSED

# The row length, in tokens, from which a fused kernel is faster than "xla".
LONG_ROW = 512
# The PRNG of dropout whose masks the kernel "flash" draws.
THREEFRY = "threefry2x32"


class Choice(NamedTuple):
    """The chosen attention kernel and the reason for the choice."""

    kernel: str
    reason: str


def choose_attention(
    requested: str,
    model: BertConfig,
    row_lengths: Sequence[int],
    device_kind: str,
    dtype: str,
    dropout_prng: str = THREEFRY,
) -> Choice:
    """Chooses the attention kernel of a model for the given row lengths and jax's `device_kind`.

    `requested` is "xla", a fused kernel, "flash" (GPUs and TPUs), "splash" (TPUs) or "cudnn"
    (GPUs), or "auto". "auto" means, for a model without attention dropout, "splash" if it is
    supported, and otherwise "flash" if it is supported; "xla" if neither is, or if the longest row
    has fewer than `LONG_ROW` tokens. Only "flash" has attention dropout, with Threefry keys, so
    "xla" replaces a requested kernel that cannot draw the dropout of the model. Layers with local
    attention use "xla" if the chosen kernel has no windows; the reason says so. So do models with
    relative positions in attention.
    """
    if requested == "xla":
        return Choice("xla", "requested")
    if model.relative_attention or model.relative_attention_num_buckets:
        if requested != "auto":
            raise ValueError(
                f"attention={requested!r} has no relative positions, which the model needs: use "
                "attention='auto'."
            )
        return Choice("xla", "fused kernels have no relative positions")
    rate = model.attention_probs_dropout_prob
    if requested == "auto":
        if max(row_lengths, default=0) < LONG_ROW:
            return Choice("xla", f"all rows have fewer than {LONG_ROW} tokens")
        candidates = ("flash",) if rate else ("splash", "flash")
    else:
        candidates = (requested,)
    reasons = []
    for name in candidates:
        obstacles = _obstacles(name, row_lengths, device_kind, dtype)
        if requested != "auto" and obstacles:
            raise ValueError(
                f"attention={requested!r}: {'; '.join(obstacles)}. Use attention='auto'."
            )
        if rate and not FUSED[name].dropout:
            obstacles.append(f"{name} does not support attention_probs_dropout_prob={rate}")
        elif rate and dropout_prng != THREEFRY:
            obstacles.append(f"{name} draws dropout masks with {THREEFRY}, not {dropout_prng}")
        if not obstacles:
            reason = f"{device_kind}, rows of {list(row_lengths)} tokens, "
            reason += f"dropout {rate}" if rate else "no dropout"
            if not all(map(model.is_global, range(model.num_hidden_layers))):
                reason += f", windows of {model.local_attention} tokens"
                if not FUSED[name].windows:
                    reason += " by xla"
            return Choice(name, reason)
        reasons.append(obstacles[0])
    return Choice("xla", "; ".join(reasons))


def _obstacles(name: str, row_lengths: Sequence[int], device_kind: str, dtype: str) -> list[str]:
    fused = FUSED[name]
    obstacles = []
    if not device_kind.startswith(fused.devices):
        obstacles.append(f"{name} runs on {', '.join(fused.devices)}, not on {device_kind}")
    if dtype not in fused.types:
        obstacles.append(f"{name} supports {', '.join(fused.types)}, not {dtype}")
    odd = [length for length in row_lengths if length % fused.tokens]
    if odd:
        obstacles.append(f"row lengths {odd} are not multiples of {fused.tokens}")
    return obstacles


def choose_remat(requested: str | None, mesh: Mesh) -> str:
    """Chooses the rematerialisation policy, a key of `REMAT_POLICIES`.

    If None is requested, it is "none" on CPUs and "selective" on GPUs and TPUs, whose memory and
    bandwidth limit the batch and the speed.
    """
    if requested is not None:
        return requested
    if mesh.devices.flat[0].platform == "cpu":
        return "none"
    return "selective"


def choose_unroll(requested: int | None, remat: str, num_layers: int, mesh: Mesh) -> int:
    """Chooses the unroll factor of the scan over layers.

    If None is requested, it is `num_layers` on CPUs without remat, where a loop would copy weights,
    activations and gradients, and 1 otherwise.
    """
    on_cpu = mesh.devices.flat[0].platform == "cpu"
    if requested is None:
        if on_cpu and remat == "none":
            return num_layers
        return 1
    if on_cpu and remat != "none" and requested > 1:
        raise ValueError(
            f"unroll={requested}, remat={remat!r}: on CPUs, the compiler stores the activations "
            "that unrolled layers should recompute. Give --unroll 1."
        )
    return requested
