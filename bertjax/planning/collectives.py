"""Lists the collectives of a compiled program: their kinds, counts and bytes.

The collectives are read from the HLO text of the program. Collectives in the body of a loop are
counted once per iteration of the loop, whereas XLA's cost analysis counts a loop body only once.
"""

import math
import re
from collections import Counter
from typing import NamedTuple

from bertjax.planning.hlo import parse, sizes

KINDS = (
    "all-reduce",
    "all-gather",
    "reduce-scatter",
    "all-to-all",
    "collective-permute",
    "ragged-all-to-all",
    "collective-broadcast",
)
# The context arrays of asynchronous operations.
_SCALAR = re.compile(r"\b[us]32\[\]")
_GROUPS = re.compile(r"replica_groups=(?:\{\{([\d,]*)\}|\[\d+,(\d+)\])")
# Newer versions of XLA describe the groups by mesh axes, as in mesh['data'=2,'fsdp'=4] {'fsdp'},
# or by parts of axes, as in 'x':(1)2.
_MESH_GROUPS = re.compile(r"replica_groups=mesh\[([^\]]*)\] ?\{([^}]*)\}")
_AXIS_SIZE = re.compile(r"'([^']*)'=(\d+)")
_AXIS_USED = re.compile(r"'([^']*)'(?::\(\d+\)(\d+))?")


class Collective(NamedTuple):
    """All collectives of a compiled step that have the same kind and the same group size.

    Attributes:
        kind: XLA's name of the collective, such as "all-reduce".
        group: the number of devices that take part in each collective.
        times: the number of collectives of this kind and group size per step.
        payload: the size of the operands (all-reduce, reduce-scatter) or of the results (other
            kinds), in bytes per device and step.
    """

    kind: str
    group: int
    times: int
    payload: int

    @property
    def sent(self) -> float:
        """The minimum number of bytes that each device sends per step, with ring algorithms."""
        share = (self.group - 1) / self.group if self.group > 1 else 0.0
        if self.kind == "all-reduce":
            return 2 * share * self.payload
        return float(self.payload) if self.kind == "collective-permute" else share * self.payload


def collectives(text: str, num_devices: int) -> list[Collective]:
    """Returns the collectives in the HLO `text` of a program compiled for `num_devices` devices.

    There is one `Collective` per kind and group size, sorted by kind and group size.

    Raises:
        ValueError: `text` is not the HLO text of a compiled program.
    """
    computations, entry = parse(text)
    counts: Counter = Counter()
    payloads: Counter = Counter()

    def walk(name: str, times: int) -> None:
        for instruction in computations.get(name, ()):
            kind = instruction.opcode.removesuffix("-start")
            if kind in KINDS:
                group = _group_size(instruction.rest, num_devices)
                payload = _payload(kind, instruction.opcode, instruction.result, group)
                counts[kind, group] += times
                payloads[kind, group] += times * payload
                continue
            for inner in instruction.called:
                walk(inner, times * instruction.trips)

    walk(entry, 1)
    return [
        Collective(kind, group, counts[kind, group], payloads[kind, group])
        for kind, group in sorted(counts)
    ]


def _payload(kind: str, opcode: str, result: str, group: int) -> int:
    if opcode.endswith("-start") and kind != "all-reduce":
        # The result type is (operands, results), and collective-permute adds two scalars. The
        # payload is the size of the operands or of the results, whichever are larger.
        arrays = sizes(_SCALAR.sub("", result))
        half = len(arrays) // 2
        return max(sum(arrays[:half]), sum(arrays[half:]))
    total = sum(sizes(result))
    return total * group if kind == "reduce-scatter" else total


def _group_size(rest: str, num_devices: int) -> int:
    if (mesh := _MESH_GROUPS.search(rest)) is not None:
        sizes = dict(_AXIS_SIZE.findall(mesh[1]))
        used = _AXIS_USED.findall(mesh[2])
        return math.prod(int(part or sizes[axis]) for axis, part in used)
    found = _GROUPS.search(rest)
    if found is None:
        return num_devices
    if found[2]:
        return int(found[2])
    return len(found[1].split(",")) if found[1] else num_devices
