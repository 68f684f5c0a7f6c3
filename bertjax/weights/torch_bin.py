"""Reads the tensors of `pytorch_model.bin` without torch, and without running anything in it.

A `.bin` is a pickle beside raw storages, and a pickle is a program that may call anything. Python's
`pickle` and `torch.load` run it with a filter, and such filters have been passed before. Here a
small machine of our own interprets the opcodes that torch writes. It holds no callable at all: a
name such as `torch.FloatStorage` is a label, "calling" one of the few labels that are admitted
makes a description of a tensor, and every other name or opcode is refused. So nothing has to be
kept from running, and memory is bounded by the length of the pickle, as nothing is allocated on
the word of the file.

Formats: the zip archive of torch >= 1.6 and the sequence of pickles of earlier versions.
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

# BERT-large has a pickle of 60 kB and 16 thousand opcodes.
MAX_PICKLE_BYTES = 16 * 2**20
MAX_OPCODES = 1_000_000
MAX_STACK = 100_000
MAX_OPEN_MARKS = 100
MAX_DIMENSIONS = 32

_REMEDY = (
    "Fetch the file again if it may be damaged. If it is whole and you trust where it comes from, "
    "convert it to safetensors with transformers (`from_pretrained`, then `save_pretrained`) on a "
    "machine that you trust with it, and load that."
)
_LEGACY_MAGIC = 0x1950A86A20F9469CFC6C
_LEGACY_PROTOCOL = 1001

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
# Kinds of numbers that numpy lacks, or whose bytes may be no valid value of them.
_STORED_AS = {"bfloat16": "uint16", "bool": "uint8"}

_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False, "EMPTY_TUPLE": ()}
_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
_LITERALS = set(
    "BININT BININT1 BININT2 LONG1 LONG4 BINFLOAT BINUNICODE SHORT_BINUNICODE BINUNICODE8 "
    "BINSTRING SHORT_BINSTRING BINBYTES SHORT_BINBYTES".split()
)
# What torch puts beside `data.pkl` under the archive's one folder; its later additions were dotted.
_ENTRY = re.compile(r"data\.pkl|data/[0-9]+|version|byteorder|\.[a-z_]+(/[a-z_]+)?")


def open_bin(path: str | Path) -> Mapping[str, np.ndarray]:
    """The state dict in a file that `torch.save` wrote; a tensor is made when it is asked for.

    A tensor is a read-only view of the mapped file where its alignment allows and a copy elsewhere;
    bfloat16 becomes float32. The state dict is the whole of the file, or its entry "state_dict" or
    "model_state_dict".

    Raises:
        OSError: the file cannot be opened.
        ValueError: it is damaged, or has anything but tensors and plain containers.
    """
    with open(path, "rb") as file:
        if not file.seek(0, 2):
            raise ValueError(f"{path} is empty. {_REMEDY}")
        data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    try:
        zipped = data[:4] == b"PK\x03\x04"
        return _open_zip(data) if zipped else _open_legacy(data)
    except (ValueError, OverflowError, NotImplementedError, OSError) as error:
        raise ValueError(f"{path} is refused: {error}. {_REMEDY}") from error
    except (zipfile.BadZipFile, struct.error) as error:
        raise ValueError(f"{path} is truncated or damaged: {error}. {_REMEDY}") from error


class _Tensors(Mapping[str, np.ndarray]):
    """Tensors by name; `starts` are the positions of their storages in `data`."""

    def __init__(self, data: mmap.mmap, tensors: Any, starts: dict[str, int], byteorder: str):
        self._data = data
        self._tensors: dict[str, _Tensor] = tensors
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
        native = np.dtype(_STORED_AS.get(dtype, dtype))
        start = self._starts[tensor.storage.key] + tensor.offset * native.itemsize
        stored = native.newbyteorder("<" if self._byteorder == "little" else ">")
        flat = np.frombuffer(self._data, stored, tensor.extent, start)
        if start % native.itemsize or not stored.isnative:
            flat = flat.astype(native)
        strides = [stride * native.itemsize for stride in tensor.strides]
        # In bounds: `_rebuild_tensor` compared the extent with the storage, `_place` that with the
        # file.
        view = np.lib.stride_tricks.as_strided(flat, tensor.shape, strides, writeable=False)
        if dtype == "bfloat16":
            return np.asarray(view.astype(np.uint32) << 16).view(np.float32)
        return np.asarray(view != 0) if dtype == "bool" else view


# Containers.


class _Window:
    """The file as a stream for `pickletools` and `zipfile`, with reads of bounded size."""

    def __init__(self, data: mmap.mmap, start: int = 0, end: int | None = None):
        self._data = data
        self._at = start
        self._end = len(data) if end is None else end

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = 0) -> int:
        at = offset + (0, self._at, self._end)[whence]
        if at < 0:
            raise ValueError(f"a position of {at} bytes is before the start of the file")
        self._at = at
        return at

    def read(self, size: int = -1) -> bytes:
        left = max(self._end - self._at, 0)
        size = left if size < 0 else min(size, left)
        if size > MAX_PICKLE_BYTES:
            raise ValueError(
                f"{size} bytes of names at once, where no checkpoint has over {MAX_PICKLE_BYTES}"
            )
        self._at += size
        return self._data[self._at - size : self._at]

    def readline(self) -> bytes:
        limit = min(self._end, self._at + MAX_PICKLE_BYTES)
        found = self._data.find(b"\n", self._at, limit)
        return self.read((limit if found < 0 else found + 1) - self._at)


def _open_zip(data: mmap.mmap) -> _Tensors:
    """Reads an archive of `root/data.pkl`, `root/data/N` and a few notes such as `byteorder`."""
    spans = _zip_entries(data)
    start, end = spans["data.pkl"]
    if end - start > MAX_PICKLE_BYTES:
        raise ValueError(f"data.pkl has {end - start} bytes, more than {MAX_PICKLE_BYTES}")
    window = _Window(data, start, end)
    state_dict = _state_dict(_Machine(window, id_length=5).run())
    if window.tell() != end:
        raise ValueError(f"{end - window.tell()} bytes follow the end of the pickle in data.pkl")
    order = spans.get("byteorder", (0, 0))
    byteorder = data[order[0] : min(order[1], order[0] + 16)].decode("ascii") or "little"
    if byteorder not in ("little", "big"):
        raise ValueError(f"its byte order is {byteorder!r}, neither 'little' nor 'big'")
    starts = {}
    for name, tensor in state_dict.items():
        key = tensor.storage.key
        if f"data/{key}" not in spans:
            raise ValueError(f"storage {key[:80]!r} of tensor {name[:80]!r} is missing")
        start, end = spans[f"data/{key}"]
        starts[key] = _place(tensor.storage, start, end)
    return _Tensors(data, state_dict, starts, byteorder)


def _zip_entries(data: mmap.mmap) -> dict[str, tuple[int, int]]:
    """Where the content of each entry starts and ends, by its name without the root folder."""
    with zipfile.ZipFile(_Window(data)) as archive:
        entries = sorted(archive.infolist(), key=lambda entry: entry.header_offset)
        limit = archive.start_dir
    roots = [e.filename.split("/")[0] for e in entries if e.filename.endswith("/data.pkl")]
    if len(roots) != 1:
        raise ValueError(f"the archive has {len(roots)} files data.pkl instead of one")
    spans = {}
    free_from = 0
    for entry in entries:
        shown = entry.orig_filename[:80]
        root, _, name = entry.orig_filename.partition("/")
        if (
            root in ("", ".", "..")
            or "\\" in root
            or root != roots[0]
            or not _ENTRY.fullmatch(name)
        ):
            raise ValueError(f"{shown!r} is no entry that torch.save writes")
        if name in spans:
            raise ValueError(f"the archive has {shown!r} twice")
        spans[name] = _entry_span(data, entry, free_from, limit)
        free_from = spans[name][1]
    if zlib.crc32(data[slice(*spans["data.pkl"])][: MAX_PICKLE_BYTES + 1]) != next(
        e.CRC for e in entries if e.filename.endswith("/data.pkl")
    ):
        raise ValueError("the checksum of data.pkl is wrong: the file is damaged")
    return spans


def _entry_span(
    data: mmap.mmap, entry: zipfile.ZipInfo, free_from: int, limit: int
) -> tuple[int, int]:
    """Where the content of an entry lies, between `free_from` and `limit`."""
    shown = entry.orig_filename[:80]
    header = data[entry.header_offset : entry.header_offset + 30]
    if entry.header_offset < free_from or len(header) < 30 or header[:4] != b"PK\x03\x04":
        raise ValueError(f"entry {shown!r} is not where the archive's directory says")
    flags, method = struct.unpack_from("<2H", header, 6)
    if method or entry.compress_type or entry.compress_size != entry.file_size:
        raise ValueError(f"entry {shown!r} is compressed, which torch never does")
    if (flags | entry.flag_bits) & 1:
        raise ValueError(f"entry {shown!r} is encrypted")
    name_length, extra_length = struct.unpack_from("<2H", header, 26)
    name_start = entry.header_offset + 30
    name = data[name_start : name_start + name_length]
    if name.decode("utf-8" if flags & 0x800 else "cp437") != entry.orig_filename:
        raise ValueError(f"entry {shown!r} has another name in front of its content")
    start = name_start + name_length + extra_length
    end = start + entry.file_size
    if end > limit:
        raise ValueError(f"entry {shown!r} of {entry.file_size} bytes goes beyond the file")
    return start, end


def _open_legacy(data: mmap.mmap) -> _Tensors:
    """Reads magic, protocol, system, state dict and storage keys (pickles), then the storages."""
    window = _Window(data)
    if _Machine(window, id_length=6).run() != _LEGACY_MAGIC:
        raise ValueError("it is a pickle, but none that torch.save wrote")
    protocol = _Machine(window, id_length=6).run()
    if type(protocol) is not int or protocol != _LEGACY_PROTOCOL:
        raise ValueError(f"it does not follow protocol {_LEGACY_PROTOCOL} of torch.save")
    _Machine(window, id_length=6).run()  # Sizes of C types; storages are little-endian anyway.
    machine = _Machine(window, id_length=6)
    state_dict = _state_dict(machine.run())
    keys = _Machine(window, id_length=6).run()
    if type(keys) is not list or any(type(key) is not str for key in keys):
        raise ValueError("its storage keys are no list of strings")
    starts = {}
    for key in keys:
        if key in starts or key not in machine.storages:
            raise ValueError(f"its storage key {key[:80]!r} comes twice or is used by no tensor")
        storage = machine.storages[key]
        (numel,) = struct.unpack("<q", window.read(8))
        if numel != storage.numel:
            raise ValueError(f"storage {key[:80]!r} has {numel} numbers, not {storage.numel}")
        starts[key] = _place(storage, window.tell(), len(data))
        window.seek(storage.nbytes, 1)
    missing = set(machine.storages) - set(starts)
    if missing:
        raise ValueError(f"storage {min(missing)[:80]!r} is missing")
    return _Tensors(data, state_dict, starts, "little")


def _place(storage: "_Storage", start: int, end: int) -> int:
    """The start of a storage, if all of it lies before `end`."""
    if storage.nbytes > end - start:
        raise ValueError(
            f"storage {storage.key[:80]!r} claims {storage.nbytes} bytes, there are {end - start}"
        )
    return start


def _state_dict(top: Any) -> "dict[str, _Tensor]":
    """The state dict in what the pickle holds."""
    for key in ("state_dict", "model_state_dict"):
        if isinstance(top, dict) and isinstance(top.get(key), dict):
            top = top[key]
            break
    if not isinstance(top, dict):
        raise ValueError(f"it holds a {type(top).__name__.strip('_')} instead of a state dict")
    for name, value in top.items():
        if type(name) is not str or type(value) is not _Tensor:
            raise ValueError(
                f"entry {str(name)[:80]!r} of its state dict is a {type(value).__name__.strip('_')}"
                ", not a tensor with a name"
            )
    return top


# The pickle.


@dataclasses.dataclass(frozen=True)
class _Label:
    """An admitted name; stands where the class or function of that name would be."""

    name: str


@dataclasses.dataclass(frozen=True)
class _Storage:
    key: str
    dtype: str
    numel: int

    @property
    def nbytes(self) -> int:
        return self.numel * np.dtype(_STORED_AS.get(self.dtype, self.dtype)).itemsize


@dataclasses.dataclass(frozen=True)
class _Tensor:
    """A tensor within a storage, in numbers of elements; `extent` is from the first to the last."""

    storage: _Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    extent: int


class _OrderedDict(dict):
    """What `collections.OrderedDict()` makes; told apart as it alone may have attributes set."""


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2**63


def _rebuild_tensor(storage: Any, offset: Any, shape: Any, strides: Any, *rest: Any) -> _Tensor:
    """Checks every number against the storage, before there is any array."""
    # The rest: requires_grad, backward hooks and, if bits such as "negated" are set, those.
    if type(storage) is not _Storage or len(rest) not in (2, 3) or (len(rest) == 3 and rest[2]):
        raise ValueError("a tensor with other arguments than a plain tensor has")
    if type(shape) is not tuple or type(strides) is not tuple or len(shape) != len(strides):
        raise ValueError("a tensor whose shape and strides do not belong together")
    if len(shape) > MAX_DIMENSIONS or not all(map(_is_count, (offset, *shape, *strides))):
        raise ValueError(
            "a tensor with a size, stride or offset that is no count, or with too many"
        )
    extent = 1 + sum((n - 1) * stride for n, stride in zip(shape, strides, strict=True))
    if 0 in shape:
        extent = 0
        shape = tuple(min(n, 2**31) if math.prod(shape[:i]) else n for i, n in enumerate(shape))
    if offset + extent > storage.numel or math.prod(shape) > storage.numel:
        raise ValueError(
            f"a tensor of shape {shape}, strides {strides} and offset {offset} goes beyond its "
            f"storage {storage.key[:80]!r} of {storage.numel} numbers"
        )
    return _Tensor(storage, offset, shape, strides, extent)


class _Machine:
    """Runs one pickle over a stack of plain values and descriptions; it has nothing to call.

    No value is ever hashed, compared or printed unless it is a short scalar: pickles build in a
    hundred bytes tuples that take longer than a lifetime to walk.
    """

    def __init__(self, window: _Window, *, id_length: int):
        self.storages: dict[str, _Storage] = {}
        self._window = window
        self._id_length = id_length  # Persistent ids of the legacy format have one element more.
        self._stack: list[Any] = []
        self._marks: list[int] = []
        self._memo: dict[int, Any] = {}

    def run(self) -> Any:
        """The value that the pickle leaves."""
        window: Any = self._window
        for count, (opcode, arg, _) in enumerate(pickletools.genops(window), start=1):
            if opcode.name == "STOP":
                break
            too_large = len(self._stack) > MAX_STACK or len(self._marks) > MAX_OPEN_MARKS
            if count > MAX_OPCODES or too_large:
                raise ValueError("a pickle of too many or too deeply nested items")
            self._step(opcode.name, arg)
        if len(self._stack) != 1 or self._marks:
            raise ValueError("a pickle that does not leave one value")
        return self._stack[0]

    def _pop(self) -> Any:
        if len(self._stack) <= (self._marks[-1] if self._marks else 0):
            raise ValueError("a pickle that takes more values than it has")
        return self._stack.pop()

    def _pop_to_mark(self) -> list[Any]:
        if not self._marks:
            raise ValueError("a pickle that ends a group which it did not begin")
        start = self._marks.pop()
        group = self._stack[start:]
        del self._stack[start:]
        return group

    def _top(self, kind: type) -> Any:
        top = self._pop()
        if not isinstance(top, kind):
            raise ValueError(f"a pickle that takes a {type(top).__name__} for a {kind.__name__}")
        self._stack.append(top)
        return top

    def _step(self, opcode: str, arg: Any) -> None:
        if opcode in _LITERALS:
            if type(arg) is int and arg.bit_length() > 100:
                raise ValueError(f"an integer of {arg.bit_length()} bits")
            self._stack.append(arg)
        elif opcode in _CONSTANTS:
            self._stack.append(_CONSTANTS[opcode])
        elif opcode == "MARK":
            self._marks.append(len(self._stack))
        elif opcode in ("BINPUT", "LONG_BINPUT", "MEMOIZE"):
            self._memo[len(self._memo) if arg is None else arg] = self._top(object)
        elif opcode in ("BINGET", "LONG_BINGET"):
            if arg not in self._memo:
                raise ValueError(f"a pickle that recalls value {arg} before it was kept")
            self._stack.append(self._memo[arg])
        elif opcode in ("GLOBAL", "STACK_GLOBAL", "INST"):
            self._stack.append(self._label(opcode, arg))
        elif opcode == "REDUCE":
            args = self._pop()
            self._stack.append(self._reduce(self._pop(), args))
        elif opcode == "BUILD":
            state = self._pop()
            # torch keeps the versions of modules there, which we do not need.
            if type(state) is not dict or set(state) - {"_metadata"}:
                raise ValueError("attributes other than _metadata set on an object")
            self._top(_OrderedDict)
        elif opcode == "BINPERSID":
            self._stack.append(self._storage(self._pop()))
        elif opcode not in ("PROTO", "FRAME"):
            self._collect(opcode)

    def _collect(self, opcode: str) -> None:
        """Steps that make or fill a container."""
        if opcode in _TUPLES:
            items = [self._pop() for _ in range(_TUPLES[opcode])]
            self._stack.append(tuple(reversed(items)))
        elif opcode == "TUPLE":
            self._stack.append(tuple(self._pop_to_mark()))
        elif opcode == "EMPTY_LIST":
            self._stack.append([])
        elif opcode == "EMPTY_DICT":
            self._stack.append({})
        elif opcode in ("APPEND", "APPENDS"):
            items = [self._pop()] if opcode == "APPEND" else self._pop_to_mark()
            self._top(list).extend(items)
        elif opcode in ("SETITEM", "SETITEMS"):
            items = [self._pop(), self._pop()][::-1] if opcode == "SETITEM" else self._pop_to_mark()
            target = self._top(dict)
            if len(items) % 2 or any(type(k) not in (str, int, bool) for k in items[::2]):
                raise ValueError("a dict with keys other than strings and integers")
            target.update(zip(items[::2], items[1::2], strict=True))
        else:
            raise ValueError(f"the pickle opcode {opcode}")

    def _label(self, opcode: str, arg: str | None) -> _Label:
        if opcode == "STACK_GLOBAL":
            name, module = self._pop(), self._pop()
            if type(name) is not str or type(module) is not str:
                raise ValueError("a global whose name is no string")
        else:
            module, _, name = (arg or "").partition(" ")
        full = f"{module}.{name}"
        if full not in _ADMITTED or opcode == "INST":
            raise ValueError(f"it uses {full[:200]!r}, which is no part of a tensor")
        return _Label(full)

    def _reduce(self, function: Any, args: Any) -> Any:
        """What the function that a label names would make of its arguments."""
        if type(function) is not _Label or type(args) is not tuple:
            raise ValueError("a call of something that is no function")
        if function.name == _ORDERED_DICT and not args:
            return _OrderedDict()
        if function.name == _REBUILD_TENSOR and len(args) in (6, 7):
            return _rebuild_tensor(*args)
        if function.name == _REBUILD_PARAMETER and len(args) == 3 and type(args[0]) is _Tensor:
            return args[0]
        raise ValueError(f"a call of {function.name} with arguments that torch does not write")

    def _storage(self, persistent_id: Any) -> _Storage:
        """The storage behind `("storage", type, key, location, numel)`."""
        if type(persistent_id) is not tuple or len(persistent_id) != self._id_length:
            raise ValueError("a persistent id that is none of a storage")
        kind, label, key, location, numel, *view = persistent_id
        if (
            any(type(value) is not str for value in (kind, key, location))
            or kind != "storage"
            or type(label) is not _Label
            or label.name not in _STORAGE_DTYPES
            or not _is_count(numel)
            or view not in ([], [None])
        ):
            raise ValueError("a persistent id that is none of a storage")
        storage = _Storage(key, _STORAGE_DTYPES[label.name], numel)
        return self.storages.setdefault(key, storage) if self._id_length == 6 else storage
