"""Interprets the pickle of a PyTorch checkpoint without executing code from the pickle.

A pickle is a program that can call any Python function. Python's `pickle` and `torch.load` execute
pickles; filters that should restrict which functions a pickle calls have been bypassed before. The
interpreter in this module supports only the opcodes that torch writes. A name in the pickle, such
as `torch.FloatStorage`, is never imported: a "call" of one of the few supported names creates the
description of a tensor, and all other names and opcodes are refused. Sizes in the pickle are never
used to allocate memory, so the length of the pickle bounds the memory.
"""

import dataclasses
import math
import pickletools
from typing import Any

import numpy as np

# For comparison: the pickle of BERT-large has 60 kB and 16 thousand opcodes.
MAX_PICKLE_BYTES = 16 * 2**20
MAX_OPCODES = 1_000_000
MAX_STACK = 100_000
MAX_OPEN_MARKS = 100
MAX_INTEGER_BITS = 100
MAX_DIMENSIONS = 32

_ORDERED_DICT = "collections.OrderedDict"
_REBUILD_TENSOR = "torch._utils._rebuild_tensor_v2"
_REBUILD_PARAMETER = "torch._utils._rebuild_parameter"
_STORAGE_DTYPES = {
    "torch.FloatStorage": "float32",
    "torch.HalfStorage": "float16",
    "torch.BFloat16Storage": "bfloat16",
    "torch.DoubleStorage": "float64",
    "torch.CharStorage": "int8",
    "torch.ShortStorage": "int16",
    "torch.IntStorage": "int32",
    "torch.LongStorage": "int64",
    "torch.ByteStorage": "uint8",
    "torch.BoolStorage": "bool",
}
_ADMITTED = {_ORDERED_DICT, _REBUILD_TENSOR, _REBUILD_PARAMETER, *_STORAGE_DTYPES}
# Types to read instead of dtypes that numpy lacks or in which some byte values are invalid.
STORED_AS = {"bfloat16": "uint16", "bool": "uint8"}

_VALUES = set(
    "BININT BININT1 BININT2 LONG1 LONG4 BINFLOAT BINUNICODE SHORT_BINUNICODE BINUNICODE8 "
    "BINSTRING SHORT_BINSTRING BINBYTES SHORT_BINBYTES".split()
)
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False, "EMPTY_TUPLE": ()}
_OTHERS = set(
    "PROTO FRAME STOP MARK BINPUT LONG_BINPUT MEMOIZE BINGET LONG_BINGET GLOBAL STACK_GLOBAL INST "
    "REDUCE BUILD BINPERSID TUPLE TUPLE1 TUPLE2 TUPLE3 EMPTY_LIST APPEND APPENDS EMPTY_DICT "
    "SETITEM SETITEMS".split()
)
_KNOWN = _VALUES | _CONSTANTS.keys() | _OTHERS
_OPCODES = {info.code.encode("latin-1"): info for info in pickletools.opcodes}


@dataclasses.dataclass(frozen=True)
class Storage:
    """The description of a torch storage, a one-dimensional array elsewhere in the file.

    Attributes:
        key: the name of the storage in the file.
        dtype: the name of the dtype of the elements, such as "float32".
        numel: the number of elements.
    """

    key: str
    dtype: str
    numel: int

    @property
    def nbytes(self) -> int:
        """The size of the storage in bytes."""
        return self.numel * np.dtype(STORED_AS.get(self.dtype, self.dtype)).itemsize

    def placed(self, start: int, end: int) -> int:
        """Returns the byte offset `start`, at which the storage begins in the file.

        Raises:
            ValueError: the storage ends after the byte offset `end`.
        """
        if self.nbytes > end - start:
            raise ValueError(
                f"storage {self.key[:80]!r} has {end - start} bytes instead of {self.nbytes}"
            )
        return start


@dataclasses.dataclass(frozen=True)
class Tensor:
    """The description of a tensor as a view of a storage.

    Attributes:
        storage: the storage that holds the elements.
        offset: the index in the storage of the tensor's first element.
        shape: the shape of the tensor.
        strides: the distance, in elements, between neighbours on each axis.
        extent: the number of elements in the storage from the tensor's first to its last element.
    """

    storage: Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    extent: int


@dataclasses.dataclass(frozen=True)
class Label:
    """A supported name of a class or function in a pickle, such as `torch.FloatStorage`."""

    name: str


class OrderedDict(dict):
    """A dict from `collections.OrderedDict()` in a pickle.

    Only of such a dict may a pickle set an attribute, `_metadata`.
    """


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2**63


def _rebuild_tensor(storage: Any, offset: Any, shape: Any, strides: Any, *rest: Any) -> Tensor:
    """Returns a `Tensor`, after checking that the tensor does not go beyond its storage."""
    # `rest` holds requires_grad, the backward hooks and, if there are any, flags like "negated".
    if type(storage) is not Storage or any(rest[2:]):
        raise ValueError("it has a tensor with arguments that plain tensors do not have")
    if type(shape) is not tuple or type(strides) is not tuple or len(shape) != len(strides):
        raise ValueError("it has a tensor whose shape and strides do not have the same length")
    if len(shape) > MAX_DIMENSIONS or not all(map(_is_count, (offset, *shape, *strides))):
        raise ValueError("it has a tensor with a negative, fractional or huge size or offset")
    steps = zip(shape, strides, strict=True)
    extent = 0 if 0 in shape else 1 + sum((size - 1) * stride for size, stride in steps)
    # Views that repeat elements are refused as well, because a copy of one could be huge.
    size = math.prod(n for n in shape if n)
    if offset + extent > storage.numel or size > (storage.numel if extent else 2**40):
        raise ValueError(
            f"its tensor of shape {shape}, strides {strides} and offset {offset} goes beyond its "
            f"storage {storage.key[:80]!r} of {storage.numel} elements"
        )
    return Tensor(storage, offset, shape, strides, extent)


def _reduce(function: Any, args: Any) -> Any:
    """Emulates the call of a supported function, named by a `Label`, and returns the result."""
    if type(function) is not Label or type(args) is not tuple:
        raise ValueError("its pickle calls an object that is not a function")
    if function.name == _ORDERED_DICT and not args:
        return OrderedDict()
    if function.name == _REBUILD_TENSOR and len(args) in (6, 7):
        return _rebuild_tensor(*args)
    if function.name == _REBUILD_PARAMETER and len(args) == 3 and type(args[0]) is Tensor:
        return args[0]
    raise ValueError(f"its pickle calls {function.name} with arguments that torch does not write")


class Machine:
    """The interpreter of one pickle, with a stack of plain values and descriptions of tensors.

    Only scalars are hashed, compared or printed, because a hundred bytes of pickle can describe
    nested tuples that would take forever to traverse.

    Args:
        window: the stream that contains the pickle, with `read`, `readline` and `tell`.
        legacy: whether torch < 1.6 wrote the file, so that the persistent id of a storage has one
            more element.
    """

    def __init__(self, window: Any, *, legacy: bool):
        self.storages: dict[str, Storage] = {}
        self._window = window
        self._legacy = legacy
        self._stack: list[Any] = []
        self._marks: list[int] = []
        self._memo: dict[int, Any] = {}

    def run(self) -> Any:
        """Interprets the pickle and returns the object that the pickle describes.

        Raises:
            ValueError: the pickle is damaged, contains what torch.save never writes, or is too
                large.
        """
        end = self._window.tell() + MAX_PICKLE_BYTES
        for _ in range(MAX_OPCODES):
            info = _OPCODES.get(self._window.read(1))
            if info is None:
                raise ValueError("its pickle is truncated, or is not a pickle")
            # This check precedes the reading of the argument: unsupported opcodes read nothing.
            if info.name not in _KNOWN:
                raise ValueError(
                    f"it contains the pickle opcode {info.name}, which torch.save never writes"
                )
            if info.name == "STOP":
                return self._pop()
            self._step(info.name, info.arg and info.arg.reader(self._window))
            if len(self._stack) > MAX_STACK or len(self._marks) > MAX_OPEN_MARKS:
                raise ValueError("its pickle has too many or too deeply nested items")
            if self._window.tell() > end:
                raise ValueError(f"its pickle has more than {MAX_PICKLE_BYTES} bytes")
        raise ValueError(f"its pickle has more than {MAX_OPCODES} opcodes")

    def _step(self, opcode: str, arg: Any) -> None:
        if opcode in _VALUES:
            if type(arg) is int and arg.bit_length() > MAX_INTEGER_BITS:
                raise ValueError(f"its pickle has an integer of {arg.bit_length()} bits")
            self._stack.append(arg)
        elif opcode in _CONSTANTS:
            self._stack.append(_CONSTANTS[opcode])
        elif opcode == "MARK":
            self._marks.append(len(self._stack))
        elif opcode in ("BINPUT", "LONG_BINPUT", "MEMOIZE"):
            self._memo[len(self._memo) if arg is None else arg] = self._top(object)
        elif opcode in ("BINGET", "LONG_BINGET"):
            if arg not in self._memo:
                raise ValueError(f"its pickle reads entry {arg} of the memo before setting it")
            self._stack.append(self._memo[arg])
        elif opcode in ("GLOBAL", "STACK_GLOBAL", "INST"):
            self._stack.append(self._label(opcode, arg))
        elif opcode == "REDUCE":
            args = self._pop()
            self._stack.append(_reduce(self._pop(), args))
        elif opcode == "BUILD":
            # The attribute `_metadata` holds versions of modules, which only torch uses.
            state = self._pop()
            if type(state) is not dict or set(state) - {"_metadata"}:
                raise ValueError("it sets attributes other than _metadata on an object")
            self._top(OrderedDict)
        elif opcode == "BINPERSID":
            self._stack.append(self._storage(self._pop()))
        elif opcode not in ("PROTO", "FRAME"):
            self._collect(opcode)

    def _collect(self, opcode: str) -> None:
        """Executes an opcode that creates or fills a list, dictionary or tuple."""
        match opcode:
            case "EMPTY_LIST":
                self._stack.append([])
            case "EMPTY_DICT":
                self._stack.append({})
            case "TUPLE":
                self._stack.append(tuple(self._pop_to_mark()))
            case "TUPLE1" | "TUPLE2" | "TUPLE3":
                self._stack.append(tuple(self._pop_several(int(opcode[-1]))))
            case "APPEND" | "APPENDS":
                items = self._pop_several(1) if opcode == "APPEND" else self._pop_to_mark()
                self._top(list).extend(items)
            case _:
                items = self._pop_several(2) if opcode == "SETITEM" else self._pop_to_mark()
                keys, values = items[::2], items[1::2]
                if len(items) % 2 or any(type(key) not in (str, int, bool) for key in keys):
                    raise ValueError("it has a dict with keys other than strings and integers")
                self._top(dict).update(zip(keys, values, strict=True))

    def _pop(self) -> Any:
        if len(self._stack) <= (self._marks[-1] if self._marks else 0):
            raise ValueError("its pickle pops more values from the stack than there are")
        return self._stack.pop()

    def _pop_several(self, number: int) -> list[Any]:
        return [self._pop() for _ in range(number)][::-1]

    def _pop_to_mark(self) -> list[Any]:
        if not self._marks:
            raise ValueError("its pickle pops values up to a mark that was not set")
        start = self._marks.pop()
        group = self._stack[start:]
        del self._stack[start:]
        return group

    def _top(self, kind: type) -> Any:
        top = self._pop()
        if not isinstance(top, kind):
            raise ValueError(f"it uses a {type(top).__name__} as a {kind.__name__}")
        self._stack.append(top)
        return top

    def _label(self, opcode: str, arg: str | None) -> Label:
        if opcode == "STACK_GLOBAL":
            module, name = self._pop_several(2)
            if type(module) is not str or type(name) is not str:
                raise ValueError("its pickle has a global whose name is not a string")
        else:
            module, _, name = (arg or "").partition(" ")
        full = f"{module}.{name}"
        if full not in _ADMITTED or opcode == "INST":
            raise ValueError(f"it uses {full[:200]!r}, which is not part of a tensor")
        return Label(full)

    def _storage(self, persistent_id: Any) -> Storage:
        """Returns the `Storage` that a persistent id describes.

        The persistent id is a tuple ("storage", type, key, location, numel); if torch < 1.6 wrote
        the file, None is its sixth element.
        """
        match persistent_id:
            case ("storage", Label(name), str(key), str(), int(numel), *view) if (
                type(persistent_id) is tuple
                and name in _STORAGE_DTYPES
                and _is_count(numel)
                and view == [None] * self._legacy
            ):
                storage = Storage(key, _STORAGE_DTYPES[name], numel)
                if self.storages.setdefault(key, storage) != storage and self._legacy:
                    raise ValueError(f"storage {key[:80]!r} is of two types or sizes")
                return storage
        raise ValueError("its pickle has a persistent id that does not describe a plain storage")
