"""Reads the tensors of `pytorch_model.bin` without torch, and without executing its pickle.

`torch_pickle` interprets the pickle. This module reads both file formats of `torch.save`: the zip
archive of torch >= 1.6, and the sequence of pickles and storages of earlier torch versions. All
sizes and positions in a file are checked when the file is opened, before any array is created.
"""

import mmap
import re
import struct
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from bertjax.files import brief
from bertjax.weights.torch_pickle import MAX_PICKLE_BYTES, STORED_AS, Machine, Tensor

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
