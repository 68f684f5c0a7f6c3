"""Counts the bytes that a compiled program for GPUs reads from and writes to device memory.

XLA gives no cost analysis of programs for GPUs that are not at hand, so the bytes are counted from
the HLO text: each kernel reads its operands and writes its results once. Of an operand that a
kernel only slices, and of a result that it only updates, the bytes of the slice count. Caches, and
kernels that read an operand several times, are not considered. The body of a loop counts once per
iteration.
"""

import re
from collections import Counter
from collections.abc import Mapping

from bertjax.planning.hlo import Instruction, parse, sizes

MATRIX_MULTIPLICATIONS = "matrix multiplications"
# Instructions that move no data.
_FREE = {"parameter", "constant", "get-tuple-element", "tuple", "bitcast", "after-all"}
_CONTROL = {"while", "call", "conditional"}
_OP_NAME = re.compile(r'op_name="([^"]*)"')
# Kinds of kernels by a part of the name of the operation, in this order; the names are scopes of
# the modules in `bertjax.model`.
_SCOPES = (
    ("pallas_call", "flash attention"),
    ("layer_norm", "LayerNorm"),
    ("attention._probs", "attention softmax and dropout"),
    ("attention/Dropout", "attention softmax and dropout"),
    ("dynamic_update_index_in_dim", "activations stored for the backward pass"),
    ("dynamic_index_in_dim", "activations stored for the backward pass"),
    ("/encoder/broadcast_in_dim", "activations stored for the backward pass"),
    ("Dropout", "dropout"),
    ("embeddings", "embeddings"),
    ("/encoder/", "biases, residual additions and casts"),
    ("jvp(", "heads and losses"),
)


def memory_traffic(text: str) -> dict[str, int]:
    """Returns {kind of kernel: bytes read and written} of the HLO `text` of a program for a GPU.

    The first kind is MATRIX_MULTIPLICATIONS, with what is fused into them; kernels without a
    known scope count as "optimizer and metrics". The kinds are sorted by their bytes.

    Raises:
        ValueError: `text` is not the HLO text of a compiled program.
    """
    computations, entry = parse(text)
    bytes_of: Counter[str] = Counter()

    def walk(name: str, times: int) -> None:
        written = {i.name: sum(sizes(i.result)) for i in computations[name]}
        for instruction in computations[name]:
            if instruction.opcode in _CONTROL or instruction.opcode.startswith("async"):
                for inner in instruction.called:
                    walk(inner, times * instruction.trips)
            elif instruction.opcode not in _FREE:
                moved = _moved(instruction, written, computations)
                bytes_of[_kind(instruction, computations)] += times * moved

    walk(entry, 1)
    matrices = bytes_of.pop(MATRIX_MULTIPLICATIONS, 0)
    return {MATRIX_MULTIPLICATIONS: matrices} | dict(bytes_of.most_common())


def _moved(
    instruction: Instruction,
    written: Mapping[str, int],
    computations: Mapping[str, list[Instruction]],
) -> int:
    """Returns the bytes that a kernel reads and writes; `written` has the sizes of its operands."""
    operands = instruction.operands
    if instruction.opcode != "fusion":
        return sum(written.get(name, 0) for name in {*operands}) + written[instruction.name]
    body = computations[instruction.called[0]]
    parameters = {
        int(inner.rest.partition(")")[0]): inner.name
        for inner in body
        if inner.opcode == "parameter"
    }
    # An operand that is passed twice is read once.
    read = {name: parameters[index] for index, name in enumerate(operands)}
    return sum(_read(name, body) for name in read.values()) + _written(body[-1].name, body)


def _read(name: str, body: list[Instruction]) -> int:
    """Returns how many bytes of its parameter `name` a fusion reads."""
    whole = next(sum(sizes(inner.result)) for inner in body if inner.name == name)
    total = 0
    for user in body:
        if name not in user.operands:
            continue
        if user.opcode in ("dynamic-slice", "gather") and user.operands[0] == name:
            total += sum(sizes(user.result))
        elif user.opcode == "bitcast":
            total += _read(user.name, body)
        elif user.opcode != "dynamic-update-slice" or user.operands[0] != name:
            return whole
    return min(total, whole)


def _written(name: str, body: list[Instruction]) -> int:
    """Returns how many bytes a fusion writes whose root is the instruction `name`."""
    found = next(inner for inner in body if inner.name == name)
    if found.opcode == "tuple":
        return sum(_written(part, body) for part in found.operands)
    if found.opcode == "bitcast":
        return _written(found.operands[0], body)
    if found.opcode == "dynamic-update-slice":
        name = found.operands[1]
        found = next(inner for inner in body if inner.name == name)
    return sum(sizes(found.result))


def _kind(instruction: Instruction, computations: Mapping[str, list[Instruction]]) -> str:
    opcodes = {i.opcode for name in instruction.called for i in computations.get(name, ())}
    is_library_call = "gemm" in instruction.name or "__cublas$" in instruction.rest
    if "dot" in opcodes | {instruction.opcode} or is_library_call:
        return MATRIX_MULTIPLICATIONS
    if "erf" in opcodes:
        return "GELU"
    name = _OP_NAME.search(instruction.rest)
    path = name[1] if name else ""
    return next((kind for scope, kind in _SCOPES if scope in path), "optimizer and metrics")
