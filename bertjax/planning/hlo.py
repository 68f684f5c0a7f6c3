"""Parses the HLO text of compiled programs: their computations, instructions and array sizes."""

import math
import re
from typing import NamedTuple

_BYTES = {"pred": 1, "bf16": 2, "f16": 2, "c64": 8, "c128": 16}
_COMMENT = re.compile(r"/\*.*?\*/")
_COMPUTATION = re.compile(r"^(ENTRY )?%?([\w.\-]+) (?:\(.*)?\{\s*$")
_INSTRUCTION = re.compile(r"^\s+(?:ROOT )?%?([\w.\-]+) = (.*?) ([a-z][\w\-]*)\((.*)$")
_ARRAY = re.compile(r"\b([a-z]+\d*[a-z0-9]*)\[([\d,]*)\]")
_CALLED = re.compile(
    r"\b(?:calls|to_apply|body|condition|called_computations|branch_computations)="
    r"(?:\{([^}]*)\}|(%?[\w.\-]+))"
)
_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"\}')
_OPERAND = re.compile(r"%([\w.\-]+)")


class Instruction(NamedTuple):
    """An instruction of a computation.

    Attributes:
        name: its name, by which other instructions of the computation refer to it.
        result: its result type, such as "bf16[8,128]{1,0}" or a tuple of types.
        opcode: its operation, such as "fusion".
        rest: the line after the opening parenthesis of the operands.
    """

    name: str
    result: str
    opcode: str
    rest: str

    @property
    def called(self) -> list[str]:
        """The names of the computations that the instruction calls."""
        found = _CALLED.findall(self.rest)
        names = [name for several, one in found for name in (several or one).split(", ")]
        return [name.removeprefix("%") for name in names]

    @property
    def trips(self) -> int:
        """The number of iterations of a loop ("while") if the compiler knows it, else 1."""
        known = _TRIPS.search(self.rest) if self.opcode == "while" else None
        return int(known[1]) if known else 1

    @property
    def operands(self) -> list[str]:
        """The names of the operands."""
        depth = 1
        for end, character in enumerate(self.rest):
            depth += (character in "([{") - (character in ")]}")
            if depth == 0:
                return _OPERAND.findall(self.rest[:end])
        return []


def parse(text: str) -> tuple[dict[str, list[Instruction]], str]:
    """Returns {name of a computation: its instructions}, and the name of the entry computation.

    Raises:
        ValueError: `text` is not the HLO text of a compiled program.
    """
    computations: dict[str, list[Instruction]] = {}
    entry = current = None
    for line in _COMMENT.sub("", text).splitlines():
        if (start := _COMPUTATION.match(line)) is not None:
            current = start[2]
            computations[current] = []
            entry = current if start[1] else entry
        elif current is not None and (found := _INSTRUCTION.match(line)) is not None:
            computations[current].append(Instruction(*found.groups()))
    if entry is None:
        raise ValueError(
            "The text has no ENTRY computation: pass the text of a compiled program, `as_text()`."
        )
    return computations, entry


def sizes(result: str) -> list[int]:
    """Returns the size in bytes of each array in an HLO result type, which may be a tuple."""
    found = []
    for dtype, shape in _ARRAY.findall(result):
        width = _BYTES.get(dtype)
        if width is None:
            bits = re.search(r"\d+", dtype)
            width = max(1, int(bits[0]) // 8) if bits else 1
        found.append(math.prod(int(size) for size in shape.split(",") if size) * width)
    return found
