"""Reads the tensors of files of `torch.save`, such as `pytorch_model.bin`, without torch.

Both formats are read: the zip archive of torch >= 1.6, and the sequence of pickles and storages of
earlier versions. All sizes and positions in a file are checked when the file is opened, before any
array is created.

A pickle is a program that can call any Python function. Therefore Python's own unpickler executes
only the opcodes that torch writes, up to a number that bounds the memory. A name in the pickle,
such as `torch.FloatStorage`, is never imported: the few admitted names become a `_Global`, whose
calls describe tensors. Names of Python's library are refused, except for those of plain data; all
others, such as the classes of a trainer's settings, become an `_Other`, which has only the fields
of an `argparse.Namespace` or of OmegaConf and may only stand beside the tensors. All objects that a
pickle can reach are plain values or descriptions.
"""

import functools
import math
import mmap
import pickle
import pickletools
import re
import struct
import sys
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bertjax.base.files import brief
from bertjax.weights.names import LazyTensors

# For comparison: the pickle of BERT-large has 60 kB and 16 thousand opcodes.
MAX_PICKLE_BYTES = 16 * 2**20
MAX_OPCODES = 1_000_000
MAX_DIMENSIONS = 32
MAX_LINE_BYTES = 1000
MAX_NAME = 100

_ORDERED_DICT = "collections.OrderedDict"
_REBUILD_TENSOR = "torch._utils._rebuild_tensor_v2"
_REBUILD_PARAMETER = "torch._utils._rebuild_parameter"
_DTYPES = {
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
_ADMITTED = {_ORDERED_DICT, _REBUILD_TENSOR, _REBUILD_PARAMETER, *_DTYPES}
# Names of Python's library with which data are pickled that trainers save beside a model.
_DATA = re.compile(
    r"(argparse|collections|datetime|enum|pathlib(\._local)?|types|typing|uuid)\.\w+|"
    r"_codecs\.encode|functools\.partial|copy_?reg\._reconstructor|_operator\.getitem|"
    r"(builtins|__builtin__)\.(Ellipsis|bool|bytearray|bytes|complex|dict|float|frozenset|int|"
    r"list|long|object|set|slice|str|tuple|unicode)"
)
# Types to read instead of dtypes that numpy lacks or in which some byte values are invalid.
_STORED_AS = {"bfloat16": "uint16", "bool": "uint8"}

_OPCODES = """
    BININT BININT1 BININT2 LONG1 LONG4 BINUNICODE SHORT_BINUNICODE BINUNICODE8 BINSTRING
    SHORT_BINSTRING NEWTRUE NEWFALSE BINPUT LONG_BINPUT MEMOIZE BINGET LONG_BINGET
    BINFLOAT BINBYTES SHORT_BINBYTES NONE PROTO FRAME STOP MARK GLOBAL STACK_GLOBAL REDUCE BUILD
    BINPERSID NEWOBJ EMPTY_TUPLE TUPLE TUPLE1 TUPLE2 TUPLE3 EMPTY_LIST APPEND APPENDS EMPTY_DICT
    SETITEM SETITEMS
    """.split()

# Keys under which trainers store a state dict beside other things; Composer's are state and model.
_CONTAINERS = ("state_dict", "model_state_dict", "state", "model", "module", "net")
# Key of the encoder of Megatron-LM, whose state dicts consist of others.
MEGATRON = "language_model"
_REMEDY = (
    "Copy or download it again. If it is whole and you trust it, convert it to safetensors with "
    "transformers (`save_pretrained`) on an isolated machine."
)
_LEGACY_MAGIC = 0x1950A86A20F9469CFC6C
_LEGACY_PROTOCOL = 1001

# Entries that torch writes into the archive's single folder; newer entries start with a dot.
_ENTRY = re.compile(r"data\.pkl|data/[0-9]+|version|byteorder|\.[a-z_]+(/[a-z_]+)?")
# In the header of an entry: flags, method, and the lengths of the name and of the extra field.
_ZIP_HEADER = struct.Struct("<6x2H16x2H")


class _Storage(NamedTuple):
    """A one-dimensional array elsewhere in the file, with `numel` elements and the name `key`."""

    key: str
    dtype: str
    numel: int

    @property
    def nbytes(self) -> int:
        stored = np.dtype(_STORED_AS.get(self.dtype, self.dtype))
        return self.numel * stored.itemsize

    def placed(self, start: int, end: int) -> int:
        """Returns the byte offset `start` of the storage, which must end at or before `end`."""
        room = end - start
        if self.nbytes > room:
            raise ValueError(f"storage {self.key!r} has {room} bytes instead of {self.nbytes}")
        return start


class _Tensor(NamedTuple):
    """A view of a storage: `offset`, `strides` and `extent`, from first to last, count elements."""

    storage: _Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    extent: int


class _OrderedDict(dict):
    """A dict of `collections.OrderedDict()`: only of such a dict may a pickle set an attribute.

    The attribute `_metadata` holds versions of modules, which only torch uses.
    """

    __slots__ = ()

    def __setstate__(self, state: Any) -> None:
        if type(state) is not dict or set(state) - {"_metadata"}:
            raise ValueError("it sets attributes other than _metadata on an object")


class _Global(NamedTuple):
    """An admitted name of a class or function, whose calls have no effect."""

    name: str

    def __call__(self, *args: Any) -> Any:
        if self.name == _ORDERED_DICT and not args:
            return _OrderedDict()
        if self.name == _REBUILD_TENSOR and len(args) in (6, 7):
            return _rebuild_tensor(*args)
        if self.name == _REBUILD_PARAMETER and len(args) == 3 and type(args[0]) is _Tensor:
            return args[0]
        raise ValueError(f"its pickle calls {self.name} with arguments that torch does not write")


class _Other:
    """A class or function outside of tensors, or what its call gives.

    Only the name is known, and the fields of an `argparse.Namespace` or of OmegaConf.
    """

    def __init__(self, name: str):
        self.name = name
        self.fields: dict[Any, Any] = {}

    def ignore(self, *args: Any) -> "_Other":
        del args
        return self

    __call__ = append = extend = update = ignore

    def __setstate__(self, state: Any) -> None:
        is_read = self.name == "argparse.Namespace" or self.name.startswith("omegaconf.")
        if is_read and type(state) is dict:
            self.fields = state


def fields_of(value: Any) -> dict[Any, Any]:
    """Returns the entries of a dict or of OmegaConf's, or the fields of an `argparse.Namespace`."""
    if isinstance(value, _Other):
        value = value.fields
        if isinstance(value.get("_content"), dict):  # of OmegaConf, whose values are in nodes
            return {name: _value_of(node) for name, node in value["_content"].items()}
    if isinstance(value, dict):
        return value
    return {}


def _value_of(node: Any) -> Any:
    if isinstance(node, _Other):
        return node.fields.get("_val", node)
    return node


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2**63


def _rebuild_tensor(storage: Any, offset: Any, shape: Any, strides: Any, *rest: Any) -> _Tensor:
    # `rest` holds requires_grad, the backward hooks and, if there are any, flags like "negated".
    if type(storage) is not _Storage or any(rest[2:]):
        raise ValueError("it has a tensor with arguments that plain tensors do not have")
    if type(shape) is not tuple or type(strides) is not tuple or len(shape) != len(strides):
        raise ValueError("it has a tensor whose shape and strides do not have the same length")
    numbers = (offset, *shape, *strides)
    if len(shape) > MAX_DIMENSIONS or not all(map(_is_count, numbers)):
        raise ValueError("it has a tensor with a negative, fractional or huge size or offset")
    extent = 0
    most = 2**40
    if 0 not in shape:
        most = storage.numel
        extent = 1
        for size, stride in zip(shape, strides, strict=True):
            extent += (size - 1) * stride
    # Views that repeat elements are refused as well, because a copy of one could be huge.
    elements = math.prod(size for size in shape if size)
    if offset + extent > storage.numel or elements > most:
        raise ValueError(
            f"its tensor of shape {shape}, strides {strides} and offset {offset} goes beyond its "
            f"storage {storage.key!r} of {storage.numel} elements"
        )
    return _Tensor(storage, offset, shape, strides, extent)


class _File(mmap.mmap):
    """A mapped file, of which each pickle may read `MAX_PICKLE_BYTES`."""

    left = MAX_PICKLE_BYTES

    def read(self, n: int | None = None) -> bytes:
        size = len(self) - self.tell()
        if n is not None and n >= 0:
            size = min(n, size)
        self.left -= size
        if self.left < 0:
            raise ValueError(f"its pickle has more than {MAX_PICKLE_BYTES} bytes")
        return super().read(size)

    def readline(self) -> bytes:
        start = self.tell()
        end = self.find(b"\n", start, start + MAX_LINE_BYTES)
        if end < 0:
            return self.read(MAX_LINE_BYTES)
        return self.read(end + 1 - start)


class _Opcodes(dict[int, Callable[[Any], None]]):
    """{opcode: what executes it} of the opcodes that torch writes; it counts their use."""

    used = 0

    def __getitem__(self, code: int) -> Callable[[Any], None]:
        self.used += 1
        if self.used > MAX_OPCODES:
            raise ValueError(f"its pickle has more than {MAX_OPCODES} opcodes")
        if code not in self:
            names = {ord(opcode.code): opcode.name for opcode in pickletools.opcodes}
            name = names.get(code, code)
            raise ValueError(f"it contains the pickle opcode {name}, which torch.save never writes")
        return super().__getitem__(code)


# The unpickler in Python, because the one in C allocates a memo as large as the largest index.
_PythonUnpickler: Any = pickle._Unpickler  # type: ignore


class _Unpickler(_PythonUnpickler):
    """Executes the pickle at which `file` stands; `legacy`: of torch < 1.6."""

    def __init__(self, file: _File, *, legacy: bool):
        file.left = MAX_PICKLE_BYTES
        super().__init__(file, encoding="latin-1")
        self.storages: dict[str, _Storage] = {}
        self._legacy = legacy
        self.dispatch = _Opcodes()
        for name in _OPCODES:
            code = getattr(pickle, name)[0]
            self.dispatch[code] = _PythonUnpickler.dispatch[code]
        self.dispatch[pickle.SETITEM[0]] = _Unpickler.set_item
        self.dispatch[pickle.SETITEMS[0]] = _Unpickler.set_marked
        self.dispatch[pickle.NEWOBJ[0]] = _Unpickler.new_object

    def load(self) -> Any:
        try:
            return super().load()
        except (pickle.UnpicklingError, EOFError, AttributeError, TypeError, IndexError) as error:
            raise ValueError(f"its pickle is damaged, or not of torch.save: {error}") from error

    def set_item(self) -> None:
        self.set_items([self.stack.pop(-2), self.stack.pop()])

    def set_marked(self) -> None:
        self.set_items(self.pop_mark())

    def set_items(self, items: list[Any]) -> None:
        # A hundred bytes of pickle can describe nested tuples whose hash would take forever.
        keys = items[::2]
        values = items[1::2]
        if any(type(key) not in (str, int, bool, _Other) for key in keys):
            raise ValueError("it has a dict with keys other than strings and integers")
        self.stack[-1].update(zip(keys, values, strict=True))

    def new_object(self) -> None:
        self.stack.pop()  # the arguments
        made = self.stack.pop()
        if type(made) is not _Other:
            raise ValueError("it contains the pickle opcode NEWOBJ for what is no class")
        self.stack.append(_Other(made.name))

    def find_class(self, module_name: str, global_name: str) -> Any:
        name = f"{module_name}.{global_name}"
        if name in _ADMITTED:
            return _Global(name)
        library = {*sys.stdlib_module_names, "__builtin__"}  # the second one is of Python 2
        if module_name.partition(".")[0] in library and not _DATA.fullmatch(name):
            raise ValueError(f"it uses {name!r}, which is not part of a tensor")
        return _Other(name)

    def persistent_load(self, pid: Any) -> _Storage:
        # ("storage", type, key, location, number of elements) and, in legacy files, None.
        match pid:
            case ("storage", _Global(name), str(key), str(), int(numel), *view) if (
                type(pid) is tuple
                and name in _DTYPES
                and _is_count(numel)
                and view == [None] * self._legacy
            ):
                storage = _Storage(key, _DTYPES[name], numel)
                if self.storages.setdefault(key, storage) != storage and self._legacy:
                    raise ValueError(f"storage {key!r} is of two types or sizes")
                return storage
        raise ValueError("its pickle has a persistent id that does not describe a plain storage")


def open_bin(path: str | Path) -> LazyTensors:
    """Opens the state dict in a file of `torch.save`; each array is created on access.

    An array is a read-only view of the memory-mapped file if its data are aligned and in native
    byte order, and a copy otherwise; bfloat16 is converted to float32. The state dict is the
    pickled object itself, or an entry of it with a name of `_CONTAINERS`; what stands beside it is
    in `beside`. Raises ValueError if the file is damaged, or holds objects other than tensors and
    plain containers.
    """
    with open(path, "rb") as file:
        if not file.seek(0, 2):
            raise ValueError(f"{path} is empty. {_REMEDY}")
        data = _File(file.fileno(), 0, access=mmap.ACCESS_READ)
    try:
        is_zip = data[:4] == b"PK\x03\x04"
        opened = _open_legacy
        if is_zip:
            opened = _open_zip
        tensors, beside, starts, byteorder = opened(data)
    except (zipfile.BadZipFile, struct.error) as error:
        raise _refusal(path, "is truncated or damaged", error) from error
    except (ValueError, OverflowError, NotImplementedError, OSError) as error:
        raise _refusal(path, "is refused", error) from error
    readers = {}
    for name, tensor in tensors.items():
        start = starts[tensor.storage.key]
        readers[name] = functools.partial(_read, data, tensor, start, byteorder)
    return LazyTensors(readers, beside)


def _refusal(path: str | Path, what: str, error: Exception) -> ValueError:
    return ValueError(f"{path} {what}: {brief(error).rstrip('.')}. {_REMEDY}")


def _read(data: _File, tensor: _Tensor, start: int, byteorder: str) -> np.ndarray:
    dtype = tensor.storage.dtype
    if not tensor.extent:
        if dtype == "bfloat16":
            dtype = "float32"
        return np.empty(tensor.shape, dtype)
    native = np.dtype(_STORED_AS.get(dtype, dtype))
    itemsize = native.itemsize
    start += tensor.offset * itemsize
    order = ">"
    if byteorder == "little":
        order = "<"
    stored = native.newbyteorder(order)
    flat = np.frombuffer(data, stored, tensor.extent, start)
    if start % itemsize or not stored.isnative:
        flat = flat.astype(native)
    strides = [stride * itemsize for stride in tensor.strides]
    # The view is in bounds, because its extent was checked when the file was opened.
    view = np.lib.stride_tricks.as_strided(flat, tensor.shape, strides, writeable=False)
    if dtype == "bfloat16":
        bits = view.astype(np.uint32) << 16
        return np.asarray(bits).view(np.float32)
    if dtype == "bool":
        return np.asarray(view != 0)
    return view


# The tensors, what stands beside them, the byte offsets of the storages, and their byte order.
_Opened = tuple[dict[str, _Tensor], dict[Any, Any], dict[str, int], str]


def _open_zip(data: _File) -> _Opened:
    """In the single folder of the archive, `data.pkl` is the pickle, and `data/N` are storages."""
    spans, checksum = _zip_entries(data)
    start, end = spans["data.pkl"]
    size = end - start
    if size > MAX_PICKLE_BYTES:  # before the checksum reads it
        raise ValueError(f"data.pkl has {size} bytes, more than {MAX_PICKLE_BYTES}")
    if zlib.crc32(data[start:end]) != checksum:
        raise ValueError("the checksum of data.pkl is wrong")
    data.seek(start)
    unpickler = _Unpickler(data, legacy=False)
    tensors, beside = _state_dict(unpickler.load())
    unread = end - data.tell()
    if unread:
        raise ValueError(f"the pickle in data.pkl ends {unread} bytes before its entry")
    start, end = spans.get("byteorder", (0, 0))
    written = data[start : min(end, start + 16)]
    byteorder = written.decode("ascii") or "little"
    if byteorder not in ("little", "big"):
        raise ValueError(f"its byte order is {byteorder!r}, neither 'little' nor 'big'")
    starts = {}
    for name, tensor in tensors.items():
        storage = tensor.storage
        span = spans.get(f"data/{storage.key}")
        if span is None:
            raise ValueError(f"storage {storage.key!r} of tensor {name!r} is missing")
        starts[storage.key] = storage.placed(*span)
    return tensors, beside, starts, byteorder


def _zip_entries(data: _File) -> tuple[dict[str, tuple[int, int]], int]:
    """Returns {entry name without folder: (start, end) in bytes} and the CRC-32 of data.pkl.

    `zipfile` checks the header in front of an entry only when it opens the entry, and not all of
    it: entries could overlap, or have other names and methods there than in the directory.
    """
    with zipfile.ZipFile(data) as archive:  # type: ignore
        entries = sorted(archive.infolist(), key=lambda entry: entry.header_offset)
        end = archive.start_dir
    pickles = [entry for entry in entries if entry.filename.endswith("data.pkl")]
    if len(pickles) != 1:
        raise ValueError(f"the archive has {len(pickles)} files data.pkl instead of one")
    (pickled,) = pickles
    spans: dict[str, tuple[int, int]] = {}
    free_from = 0
    for entry in entries:
        shown = entry.orig_filename
        root, _, name = shown.partition("/")
        if f"{root}/data.pkl" != pickled.filename or not _ENTRY.fullmatch(name):
            raise ValueError(f"{shown!r} is not an entry that torch.save writes")
        if root in ("", ".", "..") or "\\" in root or name in spans:
            raise ValueError(f"{shown!r} is in the archive twice, or its folder has a bad name")
        start = _start_of(data, entry, free_from)
        free_from = start + entry.file_size
        if free_from > end:
            raise ValueError(f"entry {shown!r} of {entry.file_size} bytes goes beyond the file")
        spans[name] = start, free_from
    return spans, pickled.CRC


def _start_of(data: _File, entry: zipfile.ZipInfo, free_from: int) -> int:
    """Returns where the content of an entry starts, if its header agrees with the directory."""
    at = entry.header_offset
    shown = entry.orig_filename
    name_start = at + _ZIP_HEADER.size
    header = data[at:name_start]
    if at < free_from or len(header) < _ZIP_HEADER.size or header[:4] != b"PK\x03\x04":
        raise ValueError(f"entry {shown!r} is not where the archive's directory says")
    flags, method, name_length, extra_length = _ZIP_HEADER.unpack(header)
    if method or entry.compress_type or entry.compress_size != entry.file_size:
        raise ValueError(f"entry {shown!r} is compressed, which torch never does")
    encoding = "cp437"
    if flags & 0x800:
        encoding = "utf-8"
    name_end = name_start + name_length
    name = data[name_start:name_end].decode(encoding)
    if name != shown or (flags | entry.flag_bits) & 1:
        raise ValueError(f"entry {shown!r} is encrypted, or has different names in two places")
    return name_end + extra_length


def _open_legacy(data: _File) -> _Opened:
    """The file consists of five pickles and the storages.

    The pickles are a magic number, the protocol's version, the system, the state dict, and the
    storages' keys.
    """
    for expected in (_LEGACY_MAGIC, _LEGACY_PROTOCOL):
        number = _load_legacy(data)
        if type(number) is not int or number != expected:
            raise ValueError("it is neither of the two formats of torch.save")
    _load_legacy(data)  # This pickle holds the sizes of C types.
    unpickler = _Unpickler(data, legacy=True)
    tensors, beside = _state_dict(unpickler.load())
    storages = unpickler.storages
    keys = _load_legacy(data)
    if type(keys) is not list or any(type(key) is not str for key in keys):
        raise ValueError("its storage keys are not a list of strings")
    if sorted(keys) != sorted(storages):
        raise ValueError(f"it has {len(keys)} storage keys for {len(storages)} storages")
    starts = {}
    at = data.tell()
    for key in keys:
        storage = storages[key]
        start = at + 8  # behind the number of elements
        (numel,) = struct.unpack("<q", data[at:start])
        if numel != storage.numel:
            raise ValueError(f"storage {key!r} has {numel} elements instead of {storage.numel}")
        starts[key] = storage.placed(start, len(data))
        at = start + storage.nbytes
    return tensors, beside, starts, "little"


def _load_legacy(data: _File) -> Any:
    return _Unpickler(data, legacy=True).load()


def _state_dict(top: Any) -> tuple[dict[str, _Tensor], dict[Any, Any]]:
    """Returns the state dict {name: tensor} that an unpickled object is or contains, and what
    stands beside it."""
    beside: dict[Any, Any] = {}
    for key in _CONTAINERS * 2:  # a container may hold another one
        if isinstance(top, dict) and isinstance(top.get(key), dict):
            beside |= top
            top = top[key]
    if not isinstance(top, dict):
        raise ValueError(
            f"it holds a {_kind(top)} instead of a state dict: save model.state_dict()"
        )
    nested = top
    top = _joined(nested)
    for name, value in top.items():
        if type(name) is not str or type(value) is not _Tensor:
            raise ValueError(
                f"its state dict maps {str(name)!r} to a {_kind(value)}, but must map strings "
                "to tensors"
            )
    for key, value in beside.items():
        if not isinstance(value, dict) or value is nested:
            continue
        tensors = sum(type(item) is _Tensor for item in _joined(value).values())
        if 2 * tensors > len(top) > 0:
            raise ValueError(
                f"it has {tensors} tensors under {str(key)!r} beside the {len(top)} of "
                "the model: save these alone"
            )
    if top and all(0 in tensor.shape for tensor in top.values()):
        raise ValueError(
            "its tensors are empty: DeepSpeed's zero_to_fp32.py merges them from the other files"
        )
    return top, beside


def _joined(state: dict[Any, Any]) -> dict[Any, Any]:
    """Returns the state dict of a Megatron-LM, a dict of dicts, under names joined by dots."""
    if MEGATRON not in state:
        return state
    return dict(_entries(state, "", set()))


def _entries(tree: dict[Any, Any], prefix: str, seen: set[int]) -> Iterator[tuple[str, Any]]:
    # Bombs have one dict in many places, or a name of megabytes before many others.
    for key, value in tree.items():
        name = f"{prefix}{key}"
        if isinstance(value, dict) and id(value) not in seen and len(name) < MAX_NAME:
            seen.add(id(value))
            yield from _entries(value, name + ".", seen)
        else:
            yield name, value


def _kind(value: Any) -> str:
    if type(value) is _Other:
        return value.name
    return type(value).__name__
