"""An ONNX graph in the making: nodes, initializers, dimensions of unknown size, and the file.

A dimension is a number, or an expression of jax's symbolic dimensions, such as `2*l - 1`, which the
graph computes from the shapes of its inputs. A value is a `Tensor`, which a node computes, or a
numpy array, which becomes an initializer when a node reads it.
"""

import dataclasses
import itertools
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

# Protocol buffers end at 2 GB. Larger models have their arrays in a file of their own, under the
# name that optimum gives it.
MAX_BYTES = (1 << 31) - (1 << 24)
DATA_SUFFIX = "_data"
# Arrays of fewer bytes are compared by their values, so that equal ones are stored once.
SMALL = 1024
CONTRIB = "com.microsoft"  # operators that only ONNX Runtime has
# Longer rows of external data are aligned, so that they can be mapped into memory.
ALIGNMENT = 4096

Dimension = Any  # int, or a symbolic dimension of jax
Shape = tuple[Dimension, ...]


def is_number(size: Dimension) -> bool:
    """Whether a dimension is known."""
    return isinstance(size, int | np.integer)


@dataclasses.dataclass(frozen=True, eq=False)
class Tensor:
    """What a node computes, or an input of the graph."""

    name: str
    shape: Shape
    dtype: np.dtype


Value = Tensor | np.ndarray


@dataclasses.dataclass(frozen=True, eq=False)
class Node:
    """A node of the graph; `graphs` are attributes that are graphs themselves."""

    op: str
    inputs: tuple[Value, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Any]
    domain: str
    name: str


class Graph:
    """A graph to which nodes are added; equal nodes are added once.

    Attributes:
        scope: the path of the module whose nodes are being added, for their names.
        inputs: the inputs of the graph.
        axes: names of symbolic dimensions in the file, {symbol: name}.
    """

    def __init__(self, axes: Mapping[str, str] = {}, outer: "Graph | None" = None):
        self.scope = ""
        self.axes = axes
        self.inputs: list[Tensor] = []
        self.outer = outer
        self._nodes: list[Node] = []
        self._sizes: dict[str, Tensor] = {}  # of symbolic dimensions
        self._made: dict[Any, list[Tensor]] = {}
        self._by_output: dict[str, Node] = {}
        # Shared with the graphs inside of this one.
        self._names: dict[str, int] = outer._names if outer else {}  # {name: the last number}
        self._constants: Constants = outer._constants if outer else Constants(self.unique)

    def unique(self, name: str) -> str:
        """Returns `name`, with a number behind it if it is taken."""
        taken = self._names
        number = taken.get(name, 0)
        unused = name
        while unused in taken:
            number += 1
            unused = f"{name}_{number}"
        taken[name] = number
        taken[unused] = 0
        return unused

    def name_constant(self, array: np.ndarray, name: str) -> np.ndarray:
        """Returns `array`, whose initializer will have this name."""
        return self._constants.name(array, name)

    def name_of(self, array: np.ndarray) -> str | None:
        """Returns the name that `name_constant` gave an array, if it did."""
        return self._constants.named.get(id(array), (None, None))[1]

    def is_stored(self, array: np.ndarray) -> bool:
        """Whether an initializer holds this array."""
        return id(array) in self._constants.stored

    def add_input(self, name: str, shape: Shape, dtype: Any) -> Tensor:
        """Adds an input; a dimension of it that is a symbol alone is known from it."""
        tensor = Tensor(self.unique(name), shape, np.dtype(dtype))
        self.inputs.append(tensor)
        if self.outer is None:
            for axis, size in enumerate(shape):
                if not is_number(size) and str(size) not in self._sizes:
                    self._sizes[str(size)] = self.one(
                        "Shape", tensor, dtype=np.int64, shape=(1,), start=axis, end=axis + 1
                    )
        return tensor

    def one(
        self,
        op: str,
        *inputs: Value,
        dtype: Any,
        shape: Sequence[Dimension],
        domain: str = "",
        **attributes: Any,
    ) -> Tensor:
        """Adds a node with one output, of this dtype and shape; returns the output."""
        outputs = self.several(op, *inputs, outputs=[(dtype, shape)], domain=domain, **attributes)
        return outputs[0]

    def several(
        self,
        op: str,
        *inputs: Value,
        outputs: Iterable[tuple[Any, Sequence[Dimension]]],
        domain: str = "",
        **attributes: Any,
    ) -> list[Tensor]:
        """Adds a node with outputs of these dtypes and shapes; returns the outputs."""
        names = [self._constants.store(x) if isinstance(x, np.ndarray) else x.name for x in inputs]
        key = (op, domain, *names, *sorted((name, repr(x)) for name, x in attributes.items()))
        made = self._found(key)
        if made is not None:
            return made
        name = self.unique("/".join([self.scope, op]))
        made = []
        for number, (dtype, shape) in enumerate(outputs):
            made.append(Tensor(f"{name}_output_{number}", tuple(shape), np.dtype(dtype)))
        node = Node(op, inputs, tuple(x.name for x in made), attributes, domain, name)
        self._nodes.append(node)
        self._made[key] = made
        self._by_output.update(dict.fromkeys(node.outputs, node))
        return made

    def _found(self, key: Any) -> list[Tensor] | None:
        if key in self._made:
            return self._made[key]
        return self.outer._found(key) if self.outer else None

    def producer(self, value: Value, *ops: str) -> Node | None:
        """Returns the node that computes `value`, if it has one of these operators."""
        node = None if isinstance(value, np.ndarray) else self._by_output.get(value.name)
        return node if node is not None and node.op in ops else None

    def size(self, dimension: Dimension) -> Value:
        """Returns a dimension as an array int64 [1]."""
        if is_number(dimension):
            return np.array([dimension], np.int64)
        text = str(dimension)
        outermost = self
        while outermost.outer:
            outermost = outermost.outer
        sizes = outermost._sizes
        if text not in sizes:
            # jax writes expressions as Python does, apart from powers.
            names: dict[str, Any] = {name: _Size(outermost, x) for name, x in sizes.items()}
            names |= _FUNCTIONS
            computed = eval(text.replace("^", "**"), {"__builtins__": {}}, names)
            sizes[text] = computed.value
        return sizes[text]

    def sizes(self, shape: Sequence[Dimension]) -> Value:
        """Returns a shape as an array int64 [n]."""
        parts = []
        for are_numbers, group in itertools.groupby(shape, is_number):
            if are_numbers:
                parts.append(np.array([*group], np.int64))
            else:
                parts.extend(map(self.size, group))
        if len(parts) == 1:
            return parts[0]
        if not parts:
            return np.zeros(0, np.int64)
        return self.one("Concat", *parts, dtype=np.int64, shape=(len(shape),), axis=0)

    def write(self, outputs: Mapping[str, Tensor], opset: int, path: Path) -> None:
        """Writes the graph with these outputs to a file.

        Nodes that no output needs are left out. Arrays of more than `MAX_BYTES` in total are
        written to a file of their own, whose name ends in `DATA_SUFFIX`.
        """
        import onnx

        body, read = self._proto(outputs, "bertjax")
        stored = {name: self._constants.arrays[name] for name in read}
        domains = [onnx.helper.make_opsetid("", opset)]
        if any(node.domain == CONTRIB for node in body.node):
            domains.append(onnx.helper.make_opsetid(CONTRIB, 1))
        is_large = sum(array.nbytes for array in stored.values()) > MAX_BYTES
        outside = {}
        for name, array in stored.items():
            if is_large and array.nbytes >= SMALL:
                outside[name] = array
            else:
                body.initializer.append(onnx.numpy_helper.from_array(_contiguous(array), name))
        if outside:
            data = path.with_name(path.name + DATA_SUFFIX)
            body.initializer.extend(_write_external(outside, data))
        model = onnx.helper.make_model(
            body,
            opset_imports=domains,
            producer_name="bertjax",
            ir_version=onnx.helper.find_min_ir_version_for(domains, ignore_unknown=True),
        )
        path.write_bytes(model.SerializeToString())

    def _proto(self, outputs: Mapping[str, Tensor], name: str) -> tuple[Any, list[str]]:
        """Returns the graph, without initializers, and the names of those that it reads."""
        from onnx import helper

        needed = {x.name for x in outputs.values()}
        kept = []
        constants: dict[str, None] = {}
        for node in reversed(self._nodes):
            if needed.isdisjoint(node.outputs):
                continue
            attributes = {}
            for key, value in node.attributes.items():
                if isinstance(value, Body):
                    value, inner, outer = value.proto(f"{node.name}/{key}")
                    constants |= dict.fromkeys(inner)
                    needed |= outer
                attributes[key] = value
            names = []
            for value in node.inputs:
                if isinstance(value, np.ndarray):
                    names.append(self._constants.store(value))
                    constants[names[-1]] = None
                else:
                    names.append(value.name)
                    needed.add(value.name)
            kept.append(
                helper.make_node(
                    node.op, names, node.outputs, name=node.name, domain=node.domain, **attributes
                )
            )
        for key, value in outputs.items():
            kept.insert(0, helper.make_node("Identity", [value.name], [key], name=f"{name}/{key}"))
        proto = helper.make_graph(
            kept[::-1],
            name,
            [self._described(x.name, x) for x in self.inputs],
            [self._described(key, value) for key, value in outputs.items()],
        )
        return proto, [*reversed(constants)]

    def _described(self, name: str, tensor: Tensor) -> Any:
        from onnx import helper

        sizes = []
        for size in tensor.shape:
            sizes.append(size if is_number(size) else self.axes.get(str(size), str(size)))
        kind = helper.np_dtype_to_tensor_dtype(tensor.dtype)
        return helper.make_tensor_value_info(name, kind, sizes)

    def names_read(self) -> set[str]:
        """Returns the names of all tensors that nodes of this graph read."""
        names = set()
        for node in self._nodes:
            names |= {x.name for x in node.inputs if isinstance(x, Tensor)}
        return names


@dataclasses.dataclass(frozen=True)
class Body:
    """The body of a loop, an attribute of a node: a graph that also reads tensors around it."""

    graph: Graph
    outputs: Sequence[Tensor]

    def proto(self, name: str) -> tuple[Any, list[str], set[str]]:
        """Returns the graph, the initializers that it reads, and the names of other tensors."""
        outputs = {f"{name}:{i}": x for i, x in enumerate(self.outputs)}
        proto, constants = self.graph._proto(outputs, name)
        read = self.graph.names_read() | {x.name for x in self.outputs}
        return proto, constants, read


class Constants:
    """The arrays of a graph and of those inside of it, {name: array}."""

    def __init__(self, unique: Any):
        self._unique = unique
        self._small: dict[Any, str] = {}
        self.arrays: dict[str, np.ndarray] = {}
        # By ids of arrays, which are kept so that no other array gets the id.
        self.named: dict[int, tuple[np.ndarray, str]] = {}
        self.stored: dict[int, tuple[np.ndarray, str]] = {}

    def name(self, array: np.ndarray, name: str) -> np.ndarray:
        """Returns `array`, whose initializer will have this name."""
        self.named[id(array)] = (array, name)
        return array

    def store(self, array: np.ndarray) -> str:
        """Returns the name of the initializer that holds an array."""
        if id(array) in self.stored:
            return self.stored[id(array)][1]
        values = None
        if array.nbytes < SMALL:
            values = (array.dtype.str, array.shape, array.tobytes())
        name = self._small.get(values)
        if name is None or values is None:
            _, wanted = self.named.get(id(array), (None, f"constant_{array.dtype}"))
            name = self._unique(wanted)
            self.arrays[name] = array
            if values is not None:
                self._small[values] = name
        self.stored[id(array)] = (array, name)
        return name


class _Size:
    """Arithmetic with dimensions in a graph."""

    def __init__(self, graph: Graph, value: Value):
        self.graph = graph
        self.value = value

    def _compute(self, op: str, other: Any, *, swapped: bool = False) -> "_Size":
        if isinstance(other, int):
            other = _Size(self.graph, np.array([other], np.int64))
        operands = [self.value, other.value]
        if swapped:
            operands.reverse()
        return _Size(self.graph, self.graph.one(op, *operands, dtype=np.int64, shape=(1,)))

    def __add__(self, other: Any) -> "_Size":
        return self._compute("Add", other)

    def __sub__(self, other: Any) -> "_Size":
        return self._compute("Sub", other)

    def __rsub__(self, other: Any) -> "_Size":
        return self._compute("Sub", other, swapped=True)

    def __mul__(self, other: Any) -> "_Size":
        return self._compute("Mul", other)

    def __pow__(self, other: int) -> "_Size":
        power = self
        for _ in range(other - 1):
            power = power * self
        return power

    def __neg__(self) -> "_Size":
        return self * -1

    __radd__ = __add__
    __rmul__ = __mul__


def _function(op: str) -> Any:
    """Returns a function of two sizes, which are not negative, that adds a node."""

    def call(first: Any, second: Any) -> _Size:
        if isinstance(first, int):
            return second._compute(op, first, swapped=True)
        return first._compute(op, second)

    return call


# The functions in expressions of jax's symbolic dimensions.
_FUNCTIONS = {
    "floordiv": _function("Div"),
    "mod": _function("Mod"),
    "max": _function("Max"),
    "min": _function("Min"),
}


def _contiguous(array: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(array).reshape(array.shape)  # which has 1 axis for 0 otherwise


def _write_external(arrays: Mapping[str, np.ndarray], path: Path) -> list[Any]:
    """Writes arrays to a file of external data; returns their initializers."""
    import onnx

    initializers = []
    with path.open("wb") as file:
        for name, array in arrays.items():
            file.write(bytes(-file.tell() % ALIGNMENT))
            tensor = onnx.TensorProto(name=name, dims=array.shape)
            tensor.data_type = onnx.helper.np_dtype_to_tensor_dtype(array.dtype)
            tensor.data_location = onnx.TensorProto.EXTERNAL
            place = {"location": path.name, "offset": file.tell(), "length": array.nbytes}
            for key, value in place.items():
                tensor.external_data.add(key=key, value=str(value))
            file.write(_contiguous(array).data)
            initializers.append(tensor)
    return initializers
