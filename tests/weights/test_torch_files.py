"""`.bin` files: tensors come back as they were, and nothing else in a file has any effect."""

import argparse
import collections
import enum
import functools
import io
import operator
import os
import pickle
import resource
import struct
import subprocess
import tracemalloc
import warnings
import zipfile
from pathlib import Path

import numpy as np
import pytest

from bertjax.weights.torch_files import MAX_PICKLE_BYTES, open_bin

STORAGES = {"f4": "FloatStorage", "f2": "HalfStorage", "f8": "DoubleStorage", "i1": "CharStorage"}
STORAGES |= {"i2": "ShortStorage", "i4": "IntStorage", "i8": "LongStorage", "u1": "ByteStorage"}
STORAGES |= {"b1": "BoolStorage"}
MAGIC, PROTOCOL = 0x1950A86A20F9469CFC6C, 1001
BOTH = pytest.mark.parametrize("legacy", [False, True], ids=["zip", "legacy"])


# A writer of both formats, from opcodes.


def text(value: str) -> bytes:
    return b"X" + struct.pack("<I", len(value.encode())) + value.encode()


def integer(value: int) -> bytes:
    encoded = pickle.encode_long(value)
    return b"\x8a" + bytes([len(encoded)]) + encoded


def tup(*items: bytes) -> bytes:
    return b"(" + b"".join(items) + b"t"


def name(module: str, attribute: str) -> bytes:
    return f"c{module}\n{attribute}\n".encode()


def call(function: bytes, *args: bytes) -> bytes:
    return function + tup(*args) + b"R"


def mapping(items: dict[str, bytes]) -> bytes:
    return b"}(" + b"".join(text(key) + value for key, value in items.items()) + b"u"


ORDERED_DICT = name("collections", "OrderedDict") + b")R"


def storage(key="0", kind="FloatStorage", numel=6, legacy=False, tag="storage") -> bytes:
    last = [b"N"] if legacy else []
    parts = [text(tag), name("torch", kind), text(key), text("cpu"), integer(numel), *last]
    return tup(*parts) + b"Q"


def tensor(shape=(2, 3), strides=(3, 1), offset=0, **where) -> bytes:
    args = (storage(**where), integer(offset), tup(*map(integer, shape)))
    rest = (tup(*map(integer, strides)), b"\x89", ORDERED_DICT)
    return call(name("torch._utils", "_rebuild_tensor_v2"), *args, *rest)


def program(body: bytes) -> bytes:
    return b"\x80\x02" + body + b"."


def write_zip(path: Path, body: bytes, storages: dict[str, bytes], entries=(), byteorder="little"):
    """`entries` are further ones, of a name and a content."""
    with warnings.catch_warnings(), zipfile.ZipFile(path, "w") as archive:
        warnings.simplefilter("ignore")  # Of names that are there twice.
        everything = [("archive/data.pkl", body), ("archive/byteorder", byteorder.encode())]
        everything += [(f"archive/data/{key}", value) for key, value in storages.items()]
        for entry, content in [*everything, *entries]:
            info = zipfile.ZipInfo(entry)
            padding = -(archive.fp.tell() + 30 + len(entry) + 4) % 64  # As torch aligns storages.
            info.extra = struct.pack("<2H", 0x4246, padding) + b"Z" * padding
            archive.writestr(info, content)
    return path


def write_legacy(path: Path, body: bytes, storages: dict[str, bytes], counts=None):
    """`counts` are the numbers of elements before the storages; float32 unless said otherwise."""
    path.write_bytes(
        b"".join(pickle.dumps(part, 2) for part in (MAGIC, PROTOCOL, {"little_endian": True}))
        + body
        + pickle.dumps(list(storages), 2)
        + b"".join(
            struct.pack("<q", (counts or {}).get(key, len(value) // 4)) + value
            for key, value in storages.items()
        )
    )
    return path


SIX = np.arange(6, dtype="<f4")


def write(path: Path, body: bytes, *, legacy: bool, storages=None) -> Path:
    storages = {"0": SIX.tobytes()} if storages is None else storages
    return (write_legacy if legacy else write_zip)(path, program(body), storages)


def refusal(path: Path) -> str:
    """The message of a refusal, which names the file and a way out."""
    with pytest.raises(ValueError) as error:
        open_bin(path)
    message = str(error.value)
    assert str(path) in message and "safetensors" in message
    return message


# What is in a file comes back.


@BOTH
def test_values_shapes_and_dtypes_come_back(tmp_path, legacy):
    rng = np.random.default_rng(0)
    arrays = {kind: rng.integers(0, 2, (3, 5)).astype(kind) for kind in STORAGES}
    arrays |= {"scalar": np.array(7, "i8"), "empty": np.zeros((0, 4), "f4")}
    items, storages, counts = {}, {}, {}
    for key, (label, array) in enumerate(arrays.items()):
        strides = [stride // array.itemsize for stride in array.strides]
        where = {"key": str(key), "kind": STORAGES[array.dtype.str[1:]], "numel": array.size}
        items[label] = tensor(array.shape, strides, **where, legacy=legacy)
        storages[str(key)], counts[str(key)] = array.tobytes(), array.size
    path = tmp_path / "model.bin"
    if legacy:
        write_legacy(path, program(mapping(items)), storages, counts)
    else:
        write_zip(path, program(mapping(items)), storages)
    tensors = open_bin(path)
    assert list(tensors) == list(arrays) and len(tensors) == len(arrays)
    for label, array in arrays.items():
        assert tensors[label].dtype == array.dtype and tensors[label].shape == array.shape
        np.testing.assert_array_equal(tensors[label], array)


@BOTH
def test_transposed_sliced_and_tied_tensors_share_a_storage(tmp_path, legacy):
    items = {
        "whole": tensor(legacy=legacy),
        "tied": tensor(legacy=legacy),
        "transposed": tensor((3, 2), (1, 3), legacy=legacy),
        "every second": tensor((2,), (2,), 1, legacy=legacy),
    }
    tensors = open_bin(write(tmp_path / "model.bin", mapping(items), legacy=legacy))
    whole = SIX.reshape(2, 3)
    np.testing.assert_array_equal(tensors["whole"], whole)
    np.testing.assert_array_equal(tensors["tied"], whole)
    np.testing.assert_array_equal(tensors["transposed"], whole.T)
    np.testing.assert_array_equal(tensors["every second"], [1, 3])


@BOTH
def test_bfloat16_becomes_float32(tmp_path, legacy):
    half = SIX.view("<u4") >> 16
    where = {"kind": "BFloat16Storage", "legacy": legacy}
    items = {"x": tensor(**where), "one": tensor((), (), 1, **where)}
    raw = {"0": half.astype("<u2").tobytes()}
    body = program(mapping(items))
    path = tmp_path / "model.bin"
    write_legacy(path, body, raw, {"0": 6}) if legacy else write_zip(path, body, raw)
    tensors = open_bin(path)
    assert tensors["x"].dtype == tensors["one"].dtype == np.float32
    np.testing.assert_array_equal(tensors["x"], SIX.reshape(2, 3))
    assert tensors["one"].shape == () and tensors["one"] == 1


def test_big_endian_archives_are_understood(tmp_path):
    raw = {"0": SIX.astype(">f4").tobytes()}
    body = program(mapping({"x": tensor()}))
    tensors = open_bin(write_zip(tmp_path / "model.bin", body, raw, byteorder="big"))
    assert tensors["x"].dtype.isnative
    np.testing.assert_array_equal(tensors["x"], SIX.reshape(2, 3))


@pytest.mark.parametrize("outer", ["state_dict", "model_state_dict"])
def test_a_checkpoint_may_hold_its_state_dict_beside_other_things(tmp_path, outer):
    inner = mapping({"x": tensor()})
    body = mapping({"epoch": integer(3), outer: inner, "losses": b"](" + integer(1) + b"Ne"})
    tensors = open_bin(write(tmp_path / "model.bin", body, legacy=False))
    assert list(tensors) == ["x"]


def test_metadata_of_modules_and_parameters_are_seen_through(tmp_path):
    parameter = call(name("torch._utils", "_rebuild_parameter"), tensor(), b"\x88", ORDERED_DICT)
    state = ORDERED_DICT + text("x") + parameter + b"s"
    state += mapping({"_metadata": ORDERED_DICT}) + b"b"
    tensors = open_bin(write(tmp_path / "model.bin", state, legacy=False))
    np.testing.assert_array_equal(tensors["x"], SIX.reshape(2, 3))


def test_aligned_tensors_are_read_only_views_of_the_file(tmp_path):
    tensors = open_bin(write(tmp_path / "model.bin", mapping({"x": tensor()}), legacy=False))
    found = tensors["x"]
    assert not found.flags.writeable and not found.flags.owndata and found.flags.aligned
    with pytest.raises(ValueError, match="read-only"):
        found[0] = 1


def test_opening_a_file_does_not_read_its_storages(tmp_path):
    path = tmp_path / "model.bin"
    numel = 2**28  # A hole of 1 GiB, of which nothing is ever on the disk or in memory.
    keys = pickle.dumps(["0"], 2)
    body = program(mapping({"x": tensor((numel,), (1,), numel=numel, legacy=True)}))
    head = b"".join(pickle.dumps(part, 2) for part in (MAGIC, PROTOCOL, {}))
    head += body + keys + struct.pack("<q", numel)
    path.write_bytes(head + b"\0" * (-len(head) % 4))
    os.truncate(path, len(head) + 4 * numel)
    tracemalloc.start()
    tensors = open_bin(path)
    assert tensors.keys() == {"x"}
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2**20


# What calls anything is refused, and nothing runs.


class Reduced:
    """Pickles as a call, as an attacker would write it."""

    def __init__(self, function, *args):
        self.call = (function, args)

    def __reduce__(self):
        return self.call


class Plain:
    """Any class of a user."""


def touch(marker: Path) -> str:
    return f"open({str(marker)!r}, 'w').close()"


def pickled(value, protocol=2) -> bytes:
    """The body of a pickle: without its protocol and its end."""
    dumped = pickle.dumps(value, protocol)
    return dumped[2 if protocol >= 2 else 0 : -1]


# Each takes a file that must never come to be; these would make it if a pickle were just loaded.
LIVE = {
    "os.system": lambda m: pickled(Reduced(os.system, f"touch {m}")),
    "os.system by protocol 0": lambda m: pickled(Reduced(os.system, f"touch {m}"), 0),
    "os.system by protocol 4": lambda m: pickled(Reduced(os.system, f"touch {m}"), 4),
    "builtins.eval": lambda m: pickled(Reduced(eval, touch(m))),
    "builtins.exec": lambda m: pickled(Reduced(exec, touch(m))),
    "__builtin__.eval of Python 2": lambda m: call(name("__builtin__", "eval"), text(touch(m))),
    "builtins.__import__": lambda m: (
        call(name("builtins", "__import__"), text("os")) + b"0" + pickled(Reduced(os.mkdir, str(m)))
    ),
    "builtins.getattr": lambda m: call(
        call(name("builtins", "getattr"), name("pathlib", "Path"), text("touch")),
        pickled(Path(m)),
    ),
    "builtins.map": lambda m: call(
        name("builtins", "list"),
        call(name("builtins", "map"), name("builtins", "eval"), b"]" + text(touch(m)) + b"a"),
    ),
    "subprocess.Popen": lambda m: pickled(Reduced(subprocess.check_call, ["touch", str(m)])),
    "operator.methodcaller": lambda m: call(
        pickled(operator.methodcaller("touch")), pickled(Path(m))
    ),
    "functools.partial": lambda m: call(pickled(functools.partial(eval, touch(m)))),
    "runpy._run_code": lambda m: call(name("runpy", "_run_code"), text(touch(m)), b"}"),
    "pickle.loads of bytes": lambda m: call(
        name("pickle", "loads"), pickled(pickle.dumps(Reduced(os.system, f"touch {m}")), 4)
    ),
    "INST": lambda m: b"(" + text(f"touch {m}") + b"ios\nsystem\n",
    "OBJ": lambda m: b"(" + name("builtins", "eval") + text(touch(m)) + b"o",
    "NEWOBJ": lambda m: (
        name("pathlib", "Path") + b")\x81" + name("os", "mkdir") + tup(text(str(m))) + b"R"
    ),
    "STACK_GLOBAL": lambda m: call(text("os") + text("system") + b"\x93", text(f"touch {m}")),
    "STACK_GLOBAL with dots": lambda m: (
        b"\x80\x04"
        + call(text("pathlib") + text("Path.touch.__call__") + b"\x93", pickled(Path(m)))
    ),
    "GLOBAL with dots": lambda m: b"\x80\x04" + call(name("shutil", "os.mkdir"), text(str(m))),
    "in a key of the state dict": lambda m: b"}" + pickled(Reduced(eval, touch(m))) + b"Ns",
    "in the versions of modules": lambda m: (
        ORDERED_DICT + mapping({"_metadata": pickled(Reduced(eval, touch(m)))}) + b"b"
    ),
    "beside the state dict": lambda m: mapping(
        {"optimizer": pickled(Reduced(eval, touch(m))), "state_dict": b"}"}
    ),
    "on the stack under a state dict": lambda m: pickled(Reduced(eval, touch(m))) + b"}",
}


# These need a library or a registration to do harm, or are no call but break the rules for one.
OTHERS = {
    "copyreg.add_extension": call(name("copyreg", "add_extension"), text("a"), text("b")),
    "operator.attrgetter": pickled(operator.attrgetter("system")),
    "collections.defaultdict": call(name("collections", "defaultdict"), name("builtins", "eval")),
    "a set": pickled({1, 2}, 4),
    "a bytearray": pickled(bytearray(b"x"), 5),
    "EXT1": b"\x82\x01",
    "EXT2": b"\x83\x01\x00",
    "EXT4": b"\x84\x01\x00\x00\x00",
    "NEWOBJ of an admitted name": name("collections", "OrderedDict") + b")\x81",
    "NEWOBJ_EX of an admitted name": name("collections", "OrderedDict") + b")}\x92",
    "OBJ of an admitted name": b"(" + name("collections", "OrderedDict") + b"o",
    "INST of an admitted name": b"(icollections\nOrderedDict\n",
    "NEXT_BUFFER": b"\x97",
    "BUILD of any attribute": ORDERED_DICT + mapping({"__class__": b"N"}) + b"b",
    "BUILD on a name": name("collections", "OrderedDict") + mapping({"_metadata": b"N"}) + b"b",
    "BUILD on a plain dict": b"}" + mapping({"_metadata": b"N"}) + b"b",
    "BUILD with slots": ORDERED_DICT + tup(b"N", mapping({"__init__": b"N"})) + b"b",
    "items set on a name": name("torch", "FloatStorage") + text("x") + b"Ns",
    "items set on a tensor": tensor() + text("x") + b"Ns",
    "a call of a tensor": tensor() + b")R",
    "a call of a string": text("os.system") + b")R",
    "a call of a storage type": name("torch", "FloatStorage") + b")R",
    "an ordered dict of items": call(name("collections", "OrderedDict"), b"]"),
    "a parameter of no tensor": call(name("torch._utils", "_rebuild_parameter"), b"N", b"N", b"N"),
    "a tensor of no storage": call(name("torch._utils", "_rebuild_tensor_v2"), b"NNN", b"NNN"),
    "a persistent id as text": b"P0\n",
    "a persistent id that is a string": text("storage") + b"Q",
    "a persistent id of a module": storage(tag="module"),
    "a persistent id of a file": storage(kind="OrderedDict"),
    "a short persistent id": tup(text("storage")) + b"Q",
    "a long persistent id": tup(*[text("storage")] * 9) + b"Q",
    "a storage of negative length": storage(numel=-1),
    "a name that is no string": b"NN\x93",
    "a tensor as a key": b"}" + tensor() + b"Ns",
    "a tuple as a key": b"})Ns",
}

# Objects of other libraries and of users, and plain data, which have no content when they are read.
INERT = {
    "torch.load": call(name("torch", "load"), text("x")),
    "torch.hub.load": call(name("torch.hub", "load"), text("x"), text("y")),
    "torch.jit.load": call(name("torch.jit", "load"), text("x")),
    "torch.package": call(name("torch.package", "PackageImporter"), text("x")),
    "torch.storage._load_from_bytes": call(name("torch.storage", "_load_from_bytes"), text("x")),
    "torch.nn.Linear": call(name("torch.nn", "Linear"), integer(1), integer(1)),
    "a dotted name under torch": call(name("torch._utils", "torch.load"), text("x")),
    "a storage of torch.cuda": name("torch.cuda", "FloatStorage"),
    "another case": name("torch", "floatstorage"),
    "numpy.load": call(name("numpy", "load"), text("x")),
    "numpy's _reconstruct": pickled(np.zeros(1)),
    "numpy's scalar": pickled(np.float32(1)),
    "copyreg._reconstructor": pickled(Plain(), 1),
    "a class of a user": pickled(Plain()),
    "a complex number": pickled(1j),
    "settings": pickled(argparse.Namespace(lr=0.1, path=Path("runs"))),
    "a set of protocol 2": pickled({1, 2}),
    "a dict subclass with a default": pickled(collections.defaultdict(list, a=[1])),
    "an object as a key": b"}" + pickled(Plain()) + b"Ns",
    "a class as a key": b"}" + name("lightning.callbacks", "ModelCheckpoint") + b"Ns",
    "a list subclass": call(name("omegaconf", "ListConfig")) + integer(1) + b"a",
}

# These are wrong as a whole.
WHOLES = {
    "no value": b"",
    "more values taken than there are": b"\x85",
    "a group that never began": b"t",
    "a value taken from before its group": b"](N0a",
    "a recalled value that was not kept": b"h\x07",
    "an unknown opcode": b"\xff",
    "a number instead of a state dict": integer(1),
    "a list instead of a state dict": b"]",
    "a state dict of numbers": mapping({"x": integer(1)}),
    "a state dict in itself": b"}q\x00" + text("state_dict") + b"h\x00s",
    "a key that is a number": b"}" + integer(1) + tensor() + b"s",
}

# Pickles of little length that ask for much memory or time.
BOMBS = {
    "tuples that double forty times": b")" + b"q\x00h\x00\x86" * 40,
    "tuples that double, as a key": b"})" + b"q\x00h\x00\x86" * 40 + b"Ns",
    "lists in lists": b"]" * 200_000 + b"a" * 199_999,
    "tuples in tuples": b")" + b"\x85" * 200_000,
    "marks": b"(" * 1000,
    "more opcodes than any model has": b"N" + b"q\x00" * 1_000_001,
    "a memo with a huge index": b"}r\xff\xff\xff\x7f" + b"]r\xfe\xff\xff\x7f",
    "an integer of a million bits": b"\x8b" + struct.pack("<i", 2**17) + b"\x7f" * 2**17,
    "an integer of negative length": b"\x8b" + struct.pack("<i", -1),
    "an integer of many digits": b"L" + b"9" * 100_000 + b"L\n",
    "a string longer than the file": b"X\xff\xff\xff\x7f",
    "a string of 2**63 bytes": b"\x8d" + struct.pack("<Q", 2**63),
    "bytes of 2**62 bytes": b"\x8e" + struct.pack("<Q", 2**62),
    "a frame of 2**62 bytes": b"\x95" + struct.pack("<Q", 2**62) + b"N",
    "a name without an end": b"cos" + b"s" * 100_000,
}


@pytest.mark.parametrize("make", LIVE.values(), ids=LIVE)
def test_the_live_pickles_would_run(tmp_path, make):
    marker = tmp_path / "ran"
    try:
        pickle.loads(program(make(marker)))
    except Exception:
        pass
    assert marker.exists()


@BOTH
@pytest.mark.parametrize("make", LIVE.values(), ids=LIVE)
def test_live_pickles_are_refused_and_nothing_runs(tmp_path, make, legacy):
    marker = tmp_path / "ran"
    refusal(write(tmp_path / "model.bin", make(marker), legacy=legacy))
    assert not marker.exists()


@pytest.mark.parametrize("make", LIVE.values(), ids=LIVE)
def test_bare_pickles_are_refused_and_nothing_runs(tmp_path, make):
    marker = tmp_path / "ran"
    (tmp_path / "model.bin").write_bytes(program(make(marker)))
    refusal(tmp_path / "model.bin")
    assert not marker.exists()


def beside(body: bytes) -> bytes:
    """A checkpoint that is fine but for what `body` leaves, which no one would look at."""
    return mapping({"beside": body, "state_dict": b"}"})


def test_plain_values_beside_a_state_dict_are_let_through(tmp_path):
    for body in (b"N", b"\x88", b"]", b")", integer(1), text("x"), tensor(), ORDERED_DICT):
        assert not open_bin(write(tmp_path / "model.bin", beside(body), legacy=False))


@BOTH
@pytest.mark.parametrize("body", OTHERS.values(), ids=OTHERS)
def test_other_pickles_are_refused_where_no_one_would_look(tmp_path, body, legacy):
    refusal(write(tmp_path / "model.bin", beside(body), legacy=legacy))


@BOTH
@pytest.mark.parametrize("body", INERT.values(), ids=INERT)
def test_objects_beside_a_state_dict_are_not_made(tmp_path, body, legacy, monkeypatch):
    for function in ("__init__", "__setstate__", "__reduce__"):
        monkeypatch.setattr(Plain, function, lambda *_: 1 / 0, raising=False)
    content = mapping({"beside": body, "state_dict": mapping({"x": tensor(legacy=legacy)})})
    tensors = open_bin(write(tmp_path / "model.ckpt", content, legacy=legacy))
    np.testing.assert_array_equal(tensors["x"], SIX.reshape(2, 3))


@pytest.mark.parametrize("body", INERT.values(), ids=INERT)
def test_objects_in_place_of_tensors_are_refused(tmp_path, body):
    path = tmp_path / "model.ckpt"
    assert "'x'" in refusal(write(path, mapping({"x": body}), legacy=False))
    refusal(write(path, body, legacy=False))


def test_an_object_in_place_of_a_tensor_is_named(tmp_path):
    path = tmp_path / "model.ckpt"
    message = refusal(write(path, INERT["torch.nn.Linear"], legacy=False))
    assert "it holds a torch.nn.Linear" in message and "model.state_dict()" in message
    message = refusal(write(path, mapping({"model": INERT["torch.nn.Linear"]}), legacy=False))
    assert "maps 'model' to a torch.nn.Linear" in message


@pytest.mark.parametrize("copies", [0, 1, 2])
def test_a_second_set_of_weights_is_refused_by_name(tmp_path, copies):
    inner = {f"layer.{i}.weight": tensor() for i in range(3)}
    other = mapping({f"module.layer.{i}.weight": tensor() for i in range(copies)})
    body = mapping({"model": mapping(inner), "ema": other, "loss": mapping({"weight": tensor()})})
    path = write(tmp_path / "model.pt", body, legacy=False)
    if copies < 2:
        assert list(open_bin(path)) == list(inner)
    else:
        assert "2 tensors under 'ema' beside the 3" in refusal(path)


def test_empty_tensors_of_zero_3_are_refused_by_name(tmp_path):
    empty = tensor((0,), (1,), numel=0)
    body = mapping({"module": mapping({"x": empty, "y": empty}), "ds_version": text("0.17")})
    path = write(tmp_path / "mp_rank_00_model_states.pt", body, legacy=False, storages={"0": b""})
    assert "zero_to_fp32.py" in refusal(path)


@BOTH
@pytest.mark.parametrize("body", WHOLES.values(), ids=WHOLES)
def test_pickles_that_hold_no_state_dict_are_refused(tmp_path, body, legacy):
    refusal(write(tmp_path / "model.bin", body, legacy=legacy))


@BOTH
@pytest.mark.parametrize(
    "body",
    [
        pytest.param(x, id=name, marks=pytest.mark.slow if len(x) > 1_000_000 else ())
        for name, x in BOMBS.items()
    ],
)
def test_bombs_are_refused_in_little_memory(tmp_path, body, legacy):
    path = write(tmp_path / "model.bin", body, legacy=legacy)
    before = peak_memory()
    refusal(path)
    assert peak_memory() - before < 200 * 2**20


def peak_memory() -> int:
    """Bytes; not by tracemalloc, under which a million steps take long."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def test_a_refusal_names_what_it_refuses(tmp_path):
    path = tmp_path / "model.bin"
    assert "'posix.system'" in refusal(
        write(path, pickled(Reduced(os.system, "true")), legacy=False)
    )
    assert "opcode INST" in refusal(write(path, b"(ios\nsystem\n", legacy=True))
    assert "opcode NEWOBJ" in refusal(
        write(path, OTHERS["NEWOBJ of an admitted name"], legacy=True)
    )
    assert "'x'" in refusal(write(path, WHOLES["a state dict of numbers"], legacy=False))


# Tensors that do not fit their storages.

MISFITS = {
    "more numbers than the storage": {"shape": (7,), "strides": (1,)},
    "a stride beyond the storage": {"shape": (2, 3), "strides": (4, 1)},
    "an offset beyond the storage": {"shape": (), "strides": (), "offset": 6},
    "an offset of an empty tensor": {"shape": (0,), "strides": (1,), "offset": 7},
    "an offset that moves the end out": {"offset": 1},
    "a negative offset": {"offset": -1},
    "a negative stride": {"shape": (6,), "strides": (-1,), "offset": 5},
    "a negative size": {"shape": (-1, -6), "strides": (1, 1)},
    "sizes that overflow 64 bits": {"shape": (2**32, 2**32), "strides": (0, 0)},
    "sizes that wrap to 6": {"shape": (2**64 + 6,), "strides": (1,)},
    "a stride that wraps": {"shape": (2, 3), "strides": (2**62, 2**62)},
    "huge sizes around a zero": {"shape": (0, 2**62, 2**62), "strides": (1, 1, 1)},
    "one number repeated a billion times": {"shape": (10**9,), "strides": (0,)},
    "fewer strides than sizes": {"shape": (2, 3), "strides": (1,)},
    "more dimensions than numpy has": {"shape": (1,) * 65, "strides": (1,) * 65},
    "a claim of more numbers than there are": {"numel": 7},
    "a claim of 2**62 numbers": {"numel": 2**62},
    "a claim of 2**80 numbers": {"numel": 2**80},
    "a wider type than was stored": {"kind": "DoubleStorage"},
    "a storage that is missing": {"key": "1"},
    "a storage elsewhere": {"key": "../../etc/passwd"},
}


@BOTH
@pytest.mark.parametrize("wrong", MISFITS.values(), ids=MISFITS)
def test_tensors_that_do_not_fit_their_storage_are_refused(tmp_path, wrong, legacy):
    body = mapping({"good": tensor(legacy=legacy), "bad": tensor(**wrong, legacy=legacy)})
    refusal(write(tmp_path / "model.bin", body, legacy=legacy))


def test_sizes_must_be_integers(tmp_path):
    for size in (b"\x88", b"G" + struct.pack(">d", 2.0), text("2"), b"N"):
        args = (storage(), integer(0), tup(size), tup(integer(1)), b"\x89", ORDERED_DICT)
        body = mapping({"x": call(name("torch._utils", "_rebuild_tensor_v2"), *args)})
        refusal(write(tmp_path / "model.bin", body, legacy=False))


def test_negated_views_are_refused_rather_than_read_with_the_wrong_sign(tmp_path):
    args = (storage(), integer(0), tup(integer(6)), tup(integer(1)), b"\x89", ORDERED_DICT)
    neg = mapping({"neg": b"\x88"})
    body = mapping({"x": call(name("torch._utils", "_rebuild_tensor_v2"), *args, neg)})
    refusal(write(tmp_path / "model.bin", body, legacy=False))


# Damaged and hostile containers.

GOOD = program(mapping({"x": tensor()}))


@BOTH
def test_a_truncated_file_is_refused(tmp_path, legacy):
    path = write(tmp_path / "model.bin", mapping({"x": tensor(legacy=legacy)}), legacy=legacy)
    whole = path.read_bytes()
    open_bin(path)
    for length in range(0, len(whole), 3):
        path.write_bytes(whole[:length])
        refusal(path)


@BOTH
def test_any_changed_byte_gives_tensors_or_a_refusal(tmp_path, legacy):
    path = write(tmp_path / "model.bin", mapping({"x": tensor(legacy=legacy)}), legacy=legacy)
    whole = path.read_bytes()
    rng = np.random.default_rng(0)
    for position in range(len(whole)):
        damaged = bytearray(whole)
        damaged[position] ^= int(rng.integers(1, 256))
        path.write_bytes(damaged)
        try:
            for tensor_ in open_bin(path).values():
                tensor_.sum()
        except ValueError as error:
            assert "safetensors" in str(error)


def archive(tmp_path, *entries, body=GOOD, **options) -> Path:
    return write_zip(tmp_path / "model.bin", body, {"0": SIX.tobytes()}, entries, **options)


ENTRIES = {
    "an absolute name": "/etc/archive/data/1",
    "a parent folder": "archive/../data/1",
    "a parent as root": "../data.pkl",
    "another root": "other/data/1",
    "another pickle": "other/data.pkl",
    "the same pickle again": "archive/data.pkl",
    "the same storage again": "archive/data/0",
    "a folder": "archive/data/",
    "code of TorchScript": "archive/code/__torch__.py",
    "constants of TorchScript": "archive/constants.pkl",
    "an archive in the archive": "archive/inner.zip",
    "a checkpoint in the archive": "archive/data/1/data.pkl",
    "a backslash": "archive\\data\\1",
    "a parent under a dot": "archive/.data/..",
}


@pytest.mark.parametrize("entry", ENTRIES.values(), ids=ENTRIES)
def test_entries_that_torch_does_not_write_are_refused(tmp_path, entry):
    refusal(archive(tmp_path, (entry, SIX.tobytes())))


def test_an_archive_as_the_pickle_is_refused(tmp_path):
    inner = archive(tmp_path).read_bytes()
    refusal(archive(tmp_path, body=inner))


def test_notes_of_torch_are_let_through_unread(tmp_path):
    notes = (".data/serialization_id", ".format_version", ".storage_alignment", "version")
    assert len(open_bin(archive(tmp_path, *((f"archive/{note}", b"x") for note in notes)))) == 1


def test_another_byte_order_is_refused(tmp_path):
    refusal(archive(tmp_path, byteorder="mixed"))


@pytest.mark.parametrize("method", [zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
@pytest.mark.parametrize("bomb", ["data.pkl", "data/0"])
def test_compressed_entries_are_refused_unopened(tmp_path, method, bomb):
    contents = {"data.pkl": GOOD, "data/0": SIX.tobytes(), bomb: b"\0" * 2**24}
    with zipfile.ZipFile(tmp_path / "model.bin", "w") as archive:
        for entry, content in contents.items():
            compression = method if entry == bomb else zipfile.ZIP_STORED
            archive.writestr(f"archive/{entry}", content, compression)
    tracemalloc.start()
    assert "compressed" in refusal(tmp_path / "model.bin")
    assert tracemalloc.get_traced_memory()[1] < 2**21
    tracemalloc.stop()


def test_a_pickle_of_many_megabytes_is_refused(tmp_path):
    assert "data.pkl has" in refusal(archive(tmp_path, body=b"N" * (MAX_PICKLE_BYTES + 1)))


def test_bytes_after_the_pickle_are_refused(tmp_path):
    refusal(archive(tmp_path, body=GOOD + program(b"N")))


FIELDS = {
    "method in front of the content": (b"PK\3\4", 8, b"\x08\x00"),
    "encryption": (b"PK\3\4", 6, b"\x01\x00"),
    "name in front of the content": (b"PK\3\4", 30, b"X"),
    "length of the name": (b"PK\3\4", 26, b"\xff\xff"),
    "length of the extra field": (b"PK\3\4", 28, b"\xff\xff"),
    "size in the directory": (b"PK\1\2", 20, b"\xff\xff\xff\x7f" * 2),
    "position in the directory": (b"PK\1\2", 42, b"\x01\x00\x00\x00"),
    "checksum in the directory": (b"PK\1\2", 16, b"\x00\x00\x00\x00"),
    "number of entries": (b"PK\5\6", 12, b"\xff\xff\xff\x7f"),
}


@pytest.mark.parametrize("field", FIELDS.values(), ids=FIELDS)
def test_a_directory_that_disagrees_with_the_content_is_refused(tmp_path, field):
    path = archive(tmp_path)
    content = bytearray(path.read_bytes())
    signature, offset, value = field
    at = content.find(signature) + offset
    content[at : at + len(value)] = value
    path.write_bytes(content)
    refusal(path)


def test_entries_that_overlap_are_refused(tmp_path):
    path = archive(tmp_path, ("archive/data/1", b"x"))
    content = bytearray(path.read_bytes())
    at = content.rfind(b"archive/data/0") - 46  # Its place in the directory; it then has two sizes.
    content[at + 20 : at + 28] = struct.pack("<2I", 30, 30)
    path.write_bytes(content)
    assert "not where" in refusal(path)


@pytest.mark.parametrize(
    "parts",
    [
        (MAGIC + 1, PROTOCOL, {}),
        (MAGIC, 1000, {}),
        (MAGIC, True, {}),
        ("magic", PROTOCOL, {}),
    ],
    ids=["another magic", "another protocol", "a truth as protocol", "a word as magic"],
)
def test_legacy_files_with_another_start_are_refused(tmp_path, parts):
    path = write(tmp_path / "model.bin", mapping({"x": tensor(legacy=True)}), legacy=True)
    good = b"".join(pickle.dumps(part, 2) for part in (MAGIC, PROTOCOL, {"little_endian": True}))
    rest = path.read_bytes()[len(good) :]
    path.write_bytes(b"".join(pickle.dumps(part, 2) for part in parts) + rest)
    refusal(path)


@pytest.mark.parametrize(
    "keys", [["0", "0"], [], ["1"], ["0", "1"], "0", [0], {"0": 1}, [["0"]]], ids=repr
)
def test_legacy_storage_keys_must_be_those_of_the_tensors(tmp_path, keys):
    head = b"".join(pickle.dumps(part, 2) for part in (MAGIC, PROTOCOL, {}))
    body = program(mapping({"x": tensor(legacy=True)}))
    stored = (struct.pack("<q", 6) + SIX.tobytes()) * 2
    (tmp_path / "model.bin").write_bytes(head + body + pickle.dumps(keys, 2) + stored)
    refusal(tmp_path / "model.bin")


@pytest.mark.parametrize("count", [5, 7, -1, 2**62])
def test_legacy_storages_of_another_length_are_refused(tmp_path, count):
    body = program(mapping({"x": tensor(legacy=True)}))
    refusal(write_legacy(tmp_path / "model.bin", body, {"0": SIX.tobytes()}, {"0": count}))


def test_a_legacy_storage_of_two_types_is_refused(tmp_path):
    items = {"x": tensor(legacy=True), "y": tensor(legacy=True, kind="IntStorage")}
    refusal(write(tmp_path / "model.bin", mapping(items), legacy=True))


@pytest.mark.parametrize(
    "content",
    [b"", b"\0" * 100, b"version https://git-lfs.github.com/spec/v1\n", b"PK\3\4", b"\x80"],
    ids=["empty", "zeros", "a pointer of git-lfs", "the start of an archive", "one byte"],
)
def test_other_files_are_refused(tmp_path, content):
    (tmp_path / "model.bin").write_bytes(content)
    refusal(tmp_path / "model.bin")


def test_a_file_that_is_not_there_is_said_to_be_missing(tmp_path):
    with pytest.raises(FileNotFoundError):
        open_bin(tmp_path / "model.bin")


# What torch itself writes.


@pytest.mark.parity
@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
@BOTH
def test_what_torch_saves_comes_back(tmp_path, legacy, protocol):
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    weight = torch.randn(30, 7)
    layer = torch.nn.Linear(7, 30)
    kinds = "float32 float16 bfloat16 float64 int8 int16 int32 int64 uint8 bool".split()
    state = layer.state_dict()  # An OrderedDict with `_metadata`.
    state |= {kind: (weight * 9).clamp(min=0).to(getattr(torch, kind)) for kind in kinds}
    state |= {"tied": state["weight"], "transposed": weight.T, "sliced": weight[3:9:2, 1:4]}
    state |= {"parameter": torch.nn.Parameter(weight), "scalar": torch.tensor(3.5)}
    state |= {"empty": torch.zeros(0, 4), "half": weight.bfloat16().T[2:, ::3]}
    path = tmp_path / "pytorch_model.bin"
    torch.save(state, path, pickle_protocol=protocol, _use_new_zipfile_serialization=not legacy)
    tensors = open_bin(path)
    assert list(tensors) == list(state)
    for label, value in state.items():
        value = value.detach()
        value = (value.float() if value.dtype == torch.bfloat16 else value).numpy()
        assert tensors[label].dtype == value.dtype, label
        np.testing.assert_array_equal(tensors[label], value, err_msg=label)


@pytest.mark.parity
@BOTH
def test_a_checkpoint_with_its_optimizer_comes_back(tmp_path, legacy):
    torch = pytest.importorskip("torch")
    layer = torch.nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(layer.parameters())
    layer(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    checkpoint = {"epoch": 1, "optimizer": optimizer.state_dict(), "loss": 0.5, "args": None}
    checkpoint["model_state_dict"] = layer.state_dict()
    path = tmp_path / "checkpoint.pt"
    torch.save(checkpoint, path, _use_new_zipfile_serialization=not legacy)
    tensors = open_bin(path)
    assert list(tensors) == ["weight", "bias"]
    np.testing.assert_array_equal(tensors["weight"], layer.weight.detach().numpy())


class Settings(enum.Enum):
    """A class of a user's settings."""

    FAST = "fast"


@pytest.mark.parity
@BOTH
@pytest.mark.parametrize("trainer", ["Lightning", "Composer", "DeepSpeed", "Accelerate"])
def test_checkpoints_of_trainers_come_back(tmp_path, trainer, legacy):
    torch = pytest.importorskip("torch")
    layer = torch.nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(layer.parameters())
    layer(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    state, others = layer.state_dict(), optimizer.state_dict()
    settings = argparse.Namespace(lr=1e-3, out=Path("runs"), mode=Settings.FAST, of=Plain())
    content = {
        "Lightning": {
            "epoch": 3,
            "pytorch-lightning_version": "2.5",
            "state_dict": state,
            "loops": {"fit_loop": {"state_dict": {}, "epoch_progress": {"current": {"ready": 4}}}},
            "callbacks": {Plain: {"best": torch.tensor(0.3), "worst": np.float64(0.2)}},
            "optimizer_states": [others],
            "hparams_name": "kwargs",
            "hyper_parameters": {"settings": settings, "device": torch.device("cpu")},
        },
        "Composer": {
            "state": {"model": state, "optimizers": {"AdamW": others}, "timestamp": {"Iter": 3}},
            "rng": [{"torch": torch.get_rng_state(), "numpy": np.random.get_state()}],
        },
        "DeepSpeed": {
            "module": state,
            "param_shapes": [collections.OrderedDict(weight=torch.Size([2, 3]))],
            "dtype": torch.float16,
            "ds_config": {"zero_optimization": {"stage": 1}},
            "optimizer": None,
        },
        "Accelerate": state,
    }[trainer]
    path = tmp_path / "checkpoint.pt"
    torch.save(content, path, _use_new_zipfile_serialization=not legacy)
    tensors = open_bin(path)
    assert list(tensors) == ["weight", "bias"]
    np.testing.assert_array_equal(tensors["weight"], layer.weight.detach().numpy())


@pytest.mark.parity
def test_modules_and_torchscript_are_refused(tmp_path):
    torch = pytest.importorskip("torch")
    torch.save(torch.nn.Linear(2, 2), tmp_path / "module.pt")
    assert "torch.nn.modules.linear.Linear" in refusal(tmp_path / "module.pt")
    buffer = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.save(torch.jit.trace(torch.nn.Linear(2, 2), torch.ones(1, 2)), buffer)
    (tmp_path / "script.pt").write_bytes(buffer.getvalue())
    assert "not an entry that torch.save writes" in refusal(tmp_path / "script.pt")
