"""What a compiled program moves: bytes of device memory, and collectives between devices.

Both are read from the HLO text of the program, because XLA's cost analysis counts the body of a
loop only once, and there is none of programs for GPUs that are not at hand. Here, the body of a
loop counts once per iteration.

Each kernel reads its operands and writes its results once. Of an operand that a kernel only slices,
and of a result that it only updates, the bytes of the slice count. Arrays that the compiler for a
TPU keeps in the memory on the chip do not count, nor do caches.
"""

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import regex

_BYTES = {"pred": 1, "bf16": 2, "f16": 2, "c64": 8, "c128": 16}
_COMMENT = re.compile(r"/\*.*?\*/")
_COMPUTATION = re.compile(r"^(ENTRY )?%?([\w.\-]+) (?:\(.*)?\{\s*$")
_INSTRUCTION = re.compile(r"^\s+(?:ROOT )?%?([\w.\-]+) = (.*?) ([a-z][\w\-]*)\((.*)$")
_ARRAY = re.compile(r"\b([a-z]+\d*[a-z0-9]*)\[([\d,]*)\](\{[^}]*\})?")
_CALLED = re.compile(
    r"\b(?:calls|to_apply|body|condition|called_computations|branch_computations)="
    r"(?:\{([^}]*)\}|(%?[\w.\-]+))"
)
_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"\}')
_OPERAND = re.compile(r"%([\w.\-]+)")
# What stands before the parenthesis that ends the operands.
_OPERANDS = regex.compile(r"([^()\[\]{}]|[(\[{](?1)*[)\]}])*+")


class Instruction(NamedTuple):
    """An instruction of a computation.

    `result` is its result type, such as "bf16[8,128]{1,0}" or a tuple of types, `opcode` its
    operation, such as "fusion", and `rest` the line after the opening parenthesis of the operands.
    """

    name: str
    result: str
    opcode: str
    rest: str

    @property
    def called(self) -> list[str]:
        """The names of the computations that the instruction calls."""
        names = []
        for several, one in _CALLED.findall(self.rest):
            for name in (several or one).split(", "):
                names.append(name.removeprefix("%"))
        return names

    @property
    def operands(self) -> list[str]:
        """The names of the operands."""
        return _OPERAND.findall(_OPERANDS.match(self.rest)[0])  # type: ignore[index]


Body = Mapping[str, Instruction]
"""The instructions of a computation by their names, in order."""
Computations = Mapping[str, Body]


def parse(text: str) -> tuple[Computations, str]:
    """Returns {name of a computation: its instructions}, and the name of the entry computation.

    Raises:
        ValueError: `text` is not the HLO text of a compiled program.
    """
    computations: dict[str, dict[str, Instruction]] = {}
    entry = current = None
    for line in _COMMENT.sub("", text).splitlines():
        if start := _COMPUTATION.match(line):
            current = start[2]
            computations[current] = {}
            if start[1]:
                entry = current
        elif current and (instruction := _INSTRUCTION.match(line)):
            computations[current][instruction[1]] = Instruction(*instruction.groups())
    if entry is None:
        raise ValueError(
            "The text has no ENTRY computation: pass the text of a compiled program, `as_text()`."
        )
    return computations, entry


def sizes(result: str, *, on_chip: bool = True) -> list[int]:
    """Returns the size in bytes of each array in an HLO result type, which may be a tuple.

    Without `on_chip`, arrays that a TPU keeps in other memory than the HBM have the size 0.
    """
    all_bytes = []
    for dtype, shape, layout in _ARRAY.findall(result):
        if "S(" in layout and not on_chip:
            all_bytes.append(0)
            continue
        elements = math.prod(int(size) for size in shape.split(",") if size)
        all_bytes.append(elements * _width(dtype))
    return all_bytes


def _width(dtype: str) -> int:
    """Returns the bytes of an element."""
    bits = re.search(r"\d+", dtype)
    if dtype in _BYTES or bits is None:
        return _BYTES.get(dtype, 1)
    return max(1, int(bits[0]) // 8)


def _stored(instruction: Instruction) -> int:
    return sum(sizes(instruction.result, on_chip=False))


MATRIX_MULTIPLICATIONS = "matrix multiplications"
# Instructions that move no data.
_FREE = {"parameter", "constant", "get-tuple-element", "tuple", "bitcast", "after-all"}
_CONTROL = {"while", "call", "conditional"}
_OP_NAME = re.compile(r'op_name="([^"]*)"')
# Kinds of kernels by a part of the name of the operation, in this order; the names are scopes of
# the modules in `bertjax.model`.
_SCOPES = (
    ("pallas_call", "flash attention"),
    ("_norm/", "LayerNorm"),
    ("attention/softmax", "attention softmax and dropout"),
    ("attention/Dropout", "attention softmax and dropout"),
    ("dynamic_update_index_in_dim", "activations stored for the backward pass"),
    ("dynamic_index_in_dim", "activations stored for the backward pass"),
    ("/encoder/broadcast_in_dim", "activations stored for the backward pass"),
    ("Dropout", "dropout"),
    ("attention/rotate", "rotary positions"),
    ("embeddings", "embeddings"),
    ("/encoder/", "biases, residual additions and casts"),
    ("jvp(", "heads and losses"),
)


def memory_traffic(text: str) -> dict[str, int]:
    """Returns {kind of kernel: bytes read and written} of the HLO `text` of a program.

    The first kind is MATRIX_MULTIPLICATIONS, with what is fused into them; kernels without a known
    scope count as "optimizer and metrics". Kinds are sorted by bytes. Errors are as in `parse`.
    """
    computations, entry = parse(text)
    bytes_of: Counter[str] = Counter()
    for instruction, times, body in _executed(computations, entry):
        if not _is_free(instruction):
            kind = _kind(instruction, computations)
            bytes_of[kind] += times * _moved(instruction, body, computations)
    matrices = bytes_of.pop(MATRIX_MULTIPLICATIONS, 0)
    return {MATRIX_MULTIPLICATIONS: matrices} | dict(bytes_of.most_common())


def _is_free(instruction: Instruction) -> bool:
    """Returns whether nothing is moved, or counted already where the kernel started."""
    if instruction.opcode in _FREE or instruction.opcode.endswith("-done"):
        return True
    return 'custom_call_target="AllocateBuffer"' in instruction.rest


def _executed(
    computations: Computations, name: str, times: int = 1
) -> Iterator[tuple[Instruction, int, Body]]:
    """Yields (instruction, how often a step executes it, its computation), without control flow."""
    body = computations.get(name, {})
    for instruction in body.values():
        if instruction.opcode in _CONTROL or instruction.opcode.startswith("async"):
            trips = _trips(instruction, computations)
            for inner in instruction.called:
                yield from _executed(computations, inner, times * trips)
        else:
            yield instruction, times, body


def _trips(loop: Instruction, computations: Computations) -> int:
    """Returns the number of iterations of a loop if it is known, else 1.

    Programs for TPUs do not state it: it is the constant below which the counter stays.
    """
    if (known := _TRIPS.search(loop.rest)) is not None:
        return int(known[1])
    if loop.opcode != "while":
        return 1
    for name in loop.called:
        body = list(computations[name].values())
        last = body[-1]
        limits = [_first_operand(inner) for inner in body if inner.opcode == "constant"]
        if last.opcode == "compare" and "direction=LT" in last.rest and len(limits) == 1:
            return int(limits[0])
    return 1


def _first_operand(instruction: Instruction) -> str:
    return instruction.rest.partition(")")[0]


def _moved(instruction: Instruction, body: Body, computations: Computations) -> int:
    operands = instruction.operands
    if instruction.opcode in ("copy-start", "slice-start"):
        copied = min(sizes(instruction.result)[:2])
        in_memory = sizes(instruction.result, on_chip=False)[:2]
        return copied * sum(map(bool, in_memory))
    if instruction.opcode != "fusion":
        known = body.keys() & {*operands}
        return _stored(instruction) + sum(_stored(body[name]) for name in known)
    fused = computations[instruction.called[0]]
    moved = _written(_root(fused), fused, computations)
    # An operand that is passed twice is read once.
    parameters = dict(zip(operands, _parameters(fused), strict=True))
    for name in parameters.values():
        moved += _read(name, fused, computations)
    return moved


def _parameters(body: Body) -> list[str]:
    parameters = [part for part in body.values() if part.opcode == "parameter"]
    parameters.sort(key=lambda parameter: int(_first_operand(parameter)))
    return [parameter.name for parameter in parameters]


def _root(body: Body) -> str:
    return list(body)[-1]


def _read(name: str, body: Body, computations: Computations) -> int:
    """Returns how many bytes of its parameter `name` a fusion reads."""
    whole = _stored(body[name])
    total = 0
    for user in body.values():
        if name not in user.operands:
            continue
        is_first = user.operands[0] == name
        if is_first and user.opcode in ("dynamic-slice", "gather"):
            total += sum(sizes(user.result))
        elif user.opcode == "bitcast":
            total += _read(user.name, body, computations)
        elif user.opcode == "fusion":
            inner = computations[user.called[0]]
            parameter = _parameters(inner)[user.operands.index(name)]
            total += _read(parameter, inner, computations)
        elif not is_first or user.opcode != "dynamic-update-slice":
            return whole
    return min(total, whole)


def _written(name: str, body: Body, computations: Computations) -> int:
    """Returns how many bytes a fusion writes whose root is the instruction `name`."""
    root = body[name]
    if not _stored(root):
        return 0
    if root.opcode == "tuple":
        return sum(_written(part, body, computations) for part in root.operands)
    if root.opcode == "bitcast":
        return _written(root.operands[0], body, computations)
    if root.opcode == "fusion":
        inner = computations[root.called[0]]
        return _written(_root(inner), inner, computations)
    if root.opcode == "dynamic-update-slice":
        root = body[root.operands[1]]
    return sum(sizes(root.result))


def _kind(instruction: Instruction, computations: Computations) -> str:
    opcodes = {instruction.opcode}
    for name in instruction.called:
        opcodes.update(inner.opcode for inner in computations.get(name, {}).values())
    is_library_call = "gemm" in instruction.name or "__cublas$" in instruction.rest
    if is_library_call or "dot" in opcodes or "convolution" in opcodes:
        return MATRIX_MULTIPLICATIONS
    if "erf" in opcodes:
        return "GELU"
    if name := _OP_NAME.search(instruction.rest):
        for scope, kind in _SCOPES:
            if scope in name[1]:
                return kind
    return "optimizer and metrics"


KINDS = (
    "all-reduce",
    "all-gather",
    "reduce-scatter",
    "all-to-all",
    "collective-permute",
    "ragged-all-to-all",
    "collective-broadcast",
)
_SCALAR = re.compile(r"\b[us]32\[\]")
_GROUPS = re.compile(r"replica_groups=(?:\{\{([\d,]*)\}|\[\d+,(\d+)\])")
# Newer versions of XLA describe the groups by mesh axes, as in mesh['data'=2,'fsdp'=4] {'fsdp'},
# or by parts of axes, as in 'x':(1)2.
_MESH_GROUPS = re.compile(r"replica_groups=mesh\[([^\]]*)\] ?\{([^}]*)\}")
_AXIS_SIZE = re.compile(r"'([^']*)'=(\d+)")
_AXIS_USED = re.compile(r"'([^']*)'(?::\(\d+\)(\d+))?")


class Collective(NamedTuple):
    """All collectives of a compiled step that have the same kind and the same group size.

    `kind` is XLA's name, such as "all-reduce", `group` the number of devices in each collective,
    and `times` the number of collectives per step. `payload` is the size of the operands
    (all-reduce, reduce-scatter) or of the results (other kinds), in bytes per device and step.
    """

    kind: str
    group: int
    times: int
    payload: int

    @property
    def sent(self) -> float:
        """The minimum number of bytes that each device sends per step, with ring algorithms."""
        if self.kind == "collective-permute":
            return float(self.payload)
        share = (self.group - 1) / self.group
        if self.kind == "all-reduce":
            share *= 2
        return share * self.payload


def collectives(text: str, num_devices: int) -> list[Collective]:
    """Returns the collectives in the HLO `text` of a program compiled for `num_devices` devices.

    They are sorted by kind and group size. Errors are as in `parse`.
    """
    computations, entry = parse(text)
    counts: Counter = Counter()
    payloads: Counter = Counter()
    for instruction, times, _ in _executed(computations, entry):
        kind = instruction.opcode.removesuffix("-start")
        if kind in KINDS:
            group = _group_size(instruction.rest, num_devices)
            payload = _payload(kind, instruction.opcode, instruction.result, group)
            counts[kind, group] += times
            payloads[kind, group] += times * payload
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
        operands = arrays[:half]
        results = arrays[half:]
        return max(sum(operands), sum(results))
    if kind == "reduce-scatter":
        return group * sum(sizes(result))
    return sum(sizes(result))


def _group_size(rest: str, num_devices: int) -> int:
    if (mesh := _MESH_GROUPS.search(rest)) is not None:
        axis_sizes = dict(_AXIS_SIZE.findall(mesh[1]))
        used = _AXIS_USED.findall(mesh[2])
        return math.prod(int(part or axis_sizes[axis]) for axis, part in used)
    groups = _GROUPS.search(rest)
    if groups is not None and groups[2]:
        return int(groups[2])
    if groups is not None and groups[1]:
        return len(groups[1].split(","))
    return num_devices
