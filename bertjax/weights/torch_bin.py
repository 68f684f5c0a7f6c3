"""Reads the tensors of `pytorch_model.bin` without torch, and without executing its pickle.

This module reads both file formats of `torch.save`: the zip archive of torch >= 1.6, and the
sequence of pickles and storages of earlier torch versions. All sizes and positions in a file are
checked when the file is opened, before any array is created.

A pickle is a program that can call any Python function. Python's `pickle` and `torch.load` execute
pickles; filters that should restrict which functions a pickle calls have been bypassed before. The
interpreter in this module supports only the opcodes that torch writes. A name in the pickle, such
as `torch.FloatStorage`, is never imported: a "call" of one of the few supported names creates the
description of a tensor, and all other names and opcodes are refused. Sizes in the pickle are never
used to allocate memory, so the length of the pickle bounds the memory.
"""

import dataclasses
import math
import mmap
import pickletools
import re
import struct
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from bertjax.base.files import brief

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


_REMEDY = (
    "Copy or download it again. If it is whole and you trust it, convert it to safetensors with "
    "transformers (`save_pretrained`) on an isolated machine."
)
MAX_LINE_BYTES = 1000
_LEGACY_MAGIC = 0x1950A86A20F9469CFC6C
_LEGACY_PROTOCOL = 1001

# Entries that torch writes into the archive's single folder; newer entries start with a dot.
_ENTRY = re.compile(r"data\.pkl|data/[0-9]+|version|byteorder|\.[a-z_]+(/[a-z_]+)?")


def open_bin(path: str | Path) -> Mapping[str, np.ndarray]:
    """Opens the state dict in a file of `torch.save`; each array is created on access.

    The arrays have the names and shapes of the tensors. An array is a read-only view of the
    memory-mapped file if its data are aligned and in native byte order, and a copy otherwise.
    Tensors of type bool are always copied; bfloat16 is converted to float32. The state dict is the
    pickled object itself, or the entry "state_dict" or "model_state_dict" of the pickled
    dictionary.

    Raises:
        OSError: the file cannot be opened.
        ValueError: the file is damaged, or holds objects other than tensors and plain containers.
    """
    with open(path, "rb") as file:
        if not file.seek(0, 2):
            raise ValueError(f"{path} is empty. {_REMEDY}")
        data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    try:
        return _open_zip(data) if data[:4] == b"PK\x03\x04" else _open_legacy(data)
    except (ValueError, OverflowError, NotImplementedError, OSError) as error:
        raise ValueError(f"{path} is refused: {_shown(error)}. {_REMEDY}") from error
    except (zipfile.BadZipFile, struct.error) as error:
        raise ValueError(f"{path} is truncated or damaged: {_shown(error)}. {_REMEDY}") from error


def _shown(error: Exception) -> str:
    return brief(error).rstrip(".")


class _Tensors(Mapping[str, np.ndarray]):
    """The arrays of the file `data` by name; `starts` holds each storage's byte offset in it."""

    def __init__(self, data: mmap.mmap, tensors: dict[str, Tensor], starts: dict, byteorder: str):
        self._data = data
        self._tensors = tensors
        self._starts = starts
        self._byteorder = byteorder

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)

    def __getitem__(self, name: str) -> np.ndarray:
        tensor = self._tensors[name]
        dtype = tensor.storage.dtype
        if not tensor.extent:
            return np.empty(tensor.shape, "float32" if dtype == "bfloat16" else dtype)
        native = np.dtype(STORED_AS.get(dtype, dtype))
        start = self._starts[tensor.storage.key] + tensor.offset * native.itemsize
        stored = native.newbyteorder("<" if self._byteorder == "little" else ">")
        flat = np.frombuffer(self._data, stored, tensor.extent, start)
        if start % native.itemsize or not stored.isnative:
            flat = flat.astype(native)
        strides = [stride * native.itemsize for stride in tensor.strides]
        # The view is in bounds, because its extent was checked when the file was opened.
        view = np.lib.stride_tricks.as_strided(flat, tensor.shape, strides, writeable=False)
        if dtype == "bfloat16":
            return np.asarray(view.astype(np.uint32) << 16).view(np.float32)
        return np.asarray(view != 0) if dtype == "bool" else view


class _Window:
    """A stream of the bytes from `start` to `end` (None: the end) of the file `data`.

    Reading more than `MAX_PICKLE_BYTES` at once raises a ValueError.
    """

    def __init__(self, data: mmap.mmap, start: int = 0, end: int | None = None):
        self._data = data
        self._at = start
        self._end = len(data) if end is None else end

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = 0) -> int:
        self._at = offset + (0, self._at, self._end)[whence]
        if self._at < 0:
            raise ValueError("it refers to a position before the start of the file")
        return self._at

    def read(self, size: int = -1) -> bytes:
        left = max(self._end - self._at, 0)
        size = left if size < 0 else min(size, left)
        if size > MAX_PICKLE_BYTES:
            raise ValueError(f"it has an item of {size} bytes, more than {MAX_PICKLE_BYTES}")
        self._at += size
        return self._data[self._at - size : self._at]

    def readline(self) -> bytes:
        found = self._data.find(b"\n", self._at, self._at + MAX_LINE_BYTES)
        return self.read(MAX_LINE_BYTES if found < 0 else found + 1 - self._at)


def _open_zip(data: mmap.mmap) -> _Tensors:
    """Opens the tensors of a zip archive written by torch >= 1.6.

    In the single folder of the archive, `data.pkl` is the pickle, and `data/N` are the storages.
    """
    spans, checksum = _zip_entries(data)
    start, end = spans["data.pkl"]
    if end - start > MAX_PICKLE_BYTES:
        raise ValueError(f"data.pkl has {end - start} bytes, more than {MAX_PICKLE_BYTES}")
    if zlib.crc32(data[start:end]) != checksum:
        raise ValueError("the checksum of data.pkl is wrong")
    window = _Window(data, start, end)
    tensors = _state_dict(Machine(window, legacy=False).run())
    if window.tell() != end:
        raise ValueError(f"{end - window.tell()} bytes follow the end of the pickle in data.pkl")
    order = spans.get("byteorder", (0, 0))
    byteorder = data[order[0] : min(order[1], order[0] + 16)].decode("ascii") or "little"
    if byteorder not in ("little", "big"):
        raise ValueError(f"its byte order is {byteorder!r}, neither 'little' nor 'big'")
    starts = {}
    for name, tensor in tensors.items():
        key = tensor.storage.key
        if f"data/{key}" not in spans:
            raise ValueError(f"storage {key[:80]!r} of tensor {name[:80]!r} is missing")
        starts[key] = tensor.storage.placed(*spans[f"data/{key}"])
    return _Tensors(data, tensors, starts, byteorder)


def _zip_entries(data: mmap.mmap) -> tuple[dict[str, tuple[int, int]], int]:
    """Returns {entry name without folder: (start, end) in bytes} and the CRC-32 of data.pkl."""
    with zipfile.ZipFile(_Window(data)) as archive:
        entries = sorted(archive.infolist(), key=lambda entry: entry.header_offset)
        end = archive.start_dir
    pickles = [entry for entry in entries if entry.filename.endswith("data.pkl")]
    if len(pickles) != 1:
        raise ValueError(f"the archive has {len(pickles)} files data.pkl instead of one")
    spans = {}
    free_from = 0
    for entry in entries:
        shown = entry.orig_filename[:80]
        root, _, name = entry.orig_filename.partition("/")
        if f"{root}/data.pkl" != pickles[0].filename or not _ENTRY.fullmatch(name):
            raise ValueError(f"{shown!r} is not an entry that torch.save writes")
        if root in ("", ".", "..") or "\\" in root or name in spans:
            raise ValueError(f"{shown!r} is in the archive twice, or its folder has a bad name")
        spans[name] = _entry_span(data, entry, free_from, end)
        free_from = spans[name][1]
    return spans, pickles[0].CRC


def _entry_span(data: mmap.mmap, entry: zipfile.ZipInfo, free_from: int, end: int):
    """Returns the byte offsets (start, end) of the content of a zip entry.

    Raises:
        ValueError: the entry is compressed, encrypted or damaged, or does not lie between the byte
            offsets `free_from`, the end of the previous entry, and `end`, the end of the last one.
    """
    shown = entry.orig_filename[:80]
    at = entry.header_offset
    header = data[at : at + 30]
    if at < free_from or len(header) < 30 or header[:4] != b"PK\x03\x04":
        raise ValueError(f"entry {shown!r} is not where the archive's directory says")
    flags, method = struct.unpack_from("<2H", header, 6)
    if method or entry.compress_type or entry.compress_size != entry.file_size:
        raise ValueError(f"entry {shown!r} is compressed, which torch never does")
    name_length, extra_length = struct.unpack_from("<2H", header, 26)
    name = data[at + 30 : at + 30 + name_length].decode("utf-8" if flags & 0x800 else "cp437")
    if name != entry.orig_filename or (flags | entry.flag_bits) & 1:
        raise ValueError(f"entry {shown!r} is encrypted, or has different names in two places")
    start = at + 30 + name_length + extra_length
    if start + entry.file_size > end:
        raise ValueError(f"entry {shown!r} of {entry.file_size} bytes goes beyond the file")
    return start, start + entry.file_size


def _open_legacy(data: mmap.mmap) -> _Tensors:
    """Opens the tensors of a file of torch < 1.6.

    The file consists of five pickles (magic number, protocol version, system, state dict, storage
    keys) and the storages.
    """
    window = _Window(data)
    for expected in (_LEGACY_MAGIC, _LEGACY_PROTOCOL):
        found = Machine(window, legacy=True).run()
        if type(found) is not int or found != expected:
            raise ValueError("it is neither of the two formats of torch.save")
    Machine(window, legacy=True).run()  # This pickle holds the sizes of C types.
    machine = Machine(window, legacy=True)
    tensors = _state_dict(machine.run())
    keys = Machine(window, legacy=True).run()
    if type(keys) is not list or any(type(key) is not str for key in keys):
        raise ValueError("its storage keys are not a list of strings")
    if len(keys) != len(set(keys)) or set(keys) != set(machine.storages):
        raise ValueError(f"it has {len(keys)} storage keys for {len(machine.storages)} storages")
    starts = {}
    for key in keys:
        storage = machine.storages[key]
        (numel,) = struct.unpack("<q", window.read(8))
        if numel != storage.numel:
            raise ValueError(
                f"storage {key[:80]!r} has {numel} elements instead of {storage.numel}"
            )
        starts[key] = storage.placed(window.tell(), len(data))
        window.seek(storage.nbytes, 1)
    return _Tensors(data, tensors, starts, "little")


def _state_dict(top: Any) -> dict[str, Tensor]:
    """Returns the state dict {name: tensor} that an unpickled object is or contains."""
    for key in ("state_dict", "model_state_dict"):
        if isinstance(top, dict) and isinstance(top.get(key), dict):
            top = top[key]
            break
    if not isinstance(top, dict):
        raise ValueError(f"it holds a {type(top).__name__} instead of a state dict")
    for name, value in top.items():
        if type(name) is not str or type(value) is not Tensor:
            raise ValueError(
                f"its state dict maps {str(name)[:80]!r} to a {type(value).__name__}, but must "
                "map strings to tensors"
            )
    return top
