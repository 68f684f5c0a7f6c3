"""An ONNX graph in the making: values, nodes, dimensions of unknown size, and the file.

A dimension is a number, or an expression of jax's symbolic dimensions, such as `2*l - 1`, which the
graph computes from the shapes of its inputs.
"""

import contextlib
import dataclasses
import itertools
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

# Protocol buffers end at 2 GB. The arrays of larger models are in a file of their own, under the
# name that optimum gives it.
MAX_BYTES = (1 << 31) - (1 << 24)
DATA_SUFFIX = "_data"
# Constants of fewer bytes are compared by their values, so that equal ones are stored once, and
# stay in the graph, because runtimes read shapes there.
SMALL = 1024
ALIGNMENT = 4096  # of arrays in a file of their own, which can be mapped into memory so

Dimension = Any  # int, or a symbolic dimension of jax
Shape = tuple[Dimension, ...]


class Kind(NamedTuple):
    """What a value is like."""

    shape: Shape
    dtype: Any


@dataclasses.dataclass(eq=False, repr=False)
class Value:
    """A constant, which has an `array`; an output of a `node`; or an input of the graph.

    Outputs of nodes get their name when the graph is written. `changed` are constants that were
    made of a constant, by what was done with it.
    """

    shape: Shape
    dtype: np.dtype
    array: np.ndarray | None = None
    node: "Node | None" = None
    name: str = ""
    changed: dict[Any, "Value"] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(eq=False, repr=False)
class Node:
    """A node, which is the one after `number` others; `scope` is the path of its module."""

    op: str
    inputs: tuple[Value, ...]
    attributes: Mapping[str, Any]
    scope: str
    number: int
    outputs: list[Value] = dataclasses.field(default_factory=list)


class Body(NamedTuple):
    """The body of a loop, an attribute of a node. It may also read other values."""

    inputs: Sequence[Value]
    outputs: Sequence[Value]


def is_number(size: Dimension) -> bool:
    """Whether a dimension is known."""
    return isinstance(size, int | np.integer)


class Graph:
    """A graph to which nodes are added; equal nodes are added once.

    Attributes:
        axes: names of symbolic dimensions in the file, {symbol: name}.
        scope: the path of the module whose nodes are being added, for their names.
        inputs: the inputs of the graph.
    """

    def __init__(self, axes: Mapping[str, str]):
        self.axes = axes
        self.scope = ""
        self.inputs: list[Value] = []
        self._made: dict[Any, list[Value]] = {}
        self._small: dict[Any, Value] = {}
        self._read: set[Value] = set()
        self._sizes: dict[str, Value] = {}  # of symbolic dimensions

    def add_input(self, name: str, shape: Shape, dtype: Any) -> Value:
        """Adds an input, from which its symbolic dimensions are known."""
        value = Value(shape, np.dtype(dtype), name=name)
        self.inputs.append(value)
        for axis, size in enumerate(shape):
            if str(size) not in self._sizes:
                kind = Kind((1,), np.int64)
                self._sizes[str(size)] = self.node("Shape", value, kind, start=axis, end=axis + 1)
        return value

    def constant(self, array: Any, name: str = "") -> Value:
        """Returns an array as a value; `name` is that of its initializer."""
        array = np.asarray(array)
        value = Value(array.shape, array.dtype, array, name=name)
        if name or array.nbytes >= SMALL:
            return value
        return self._small.setdefault((array.dtype, array.shape, array.tobytes()), value)

    def is_read(self, value: Value) -> bool:
        """Whether a node has this input."""
        return value in self._read

    def node(self, op: str, *inputs_and_kind: Any, **attributes: Any) -> Value:
        """Adds a node with one output, which is like the last argument; returns the output.

        The other arguments are the inputs: values, or arrays.
        """
        *inputs, kind = inputs_and_kind
        return self.nodes(op, inputs, [kind], **attributes)[0]

    def nodes(
        self, op: str, inputs: Sequence[Any], kinds: Iterable[Any], **attributes: Any
    ) -> list[Value]:
        """Adds a node with an output like each of `kinds`; returns the outputs."""
        values = [x if isinstance(x, Value) else self.constant(x) for x in inputs]
        key = (op, *map(id, values), repr(attributes))
        if key not in self._made:
            node = Node(op, tuple(values), attributes, self.scope, len(self._made))
            self._read.update(values)
            for kind in kinds:
                node.outputs.append(Value(tuple(kind.shape), np.dtype(kind.dtype), node=node))
            self._made[key] = node.outputs
        return self._made[key]

    def size(self, dimension: Dimension) -> Value:
        """Returns a dimension as an array int64 [1]."""
        if is_number(dimension):
            return self.constant(np.array([dimension], np.int64))
        text = str(dimension)
        if text not in self._sizes:
            # jax writes expressions as Python does, apart from powers.
            names = {name: _Size(self, value) for name, value in self._sizes.items()}
            computed = eval(text.replace("^", "**"), {"__builtins__": {}}, names | _FUNCTIONS)
            self._sizes[text] = computed.value
        return self._sizes[text]

    def sizes(self, shape: Sequence[Dimension]) -> Value:
        """Returns a shape as an array int64 [n]."""
        parts = []
        for are_numbers, group in itertools.groupby(shape, is_number):
            if are_numbers:
                parts.append(np.array([*group], np.int64))
            else:
                parts.extend(map(self.size, group))
        if all(isinstance(part, np.ndarray) for part in parts):
            return self.constant(np.array(shape, np.int64))
        if len(parts) == 1:
            return parts[0]
        return self.node("Concat", *parts, Kind((len(shape),), np.int64), axis=0)

    def write(self, outputs: Mapping[str, Value], opset: int, path: Path) -> None:
        """Writes the nodes on which the outputs depend to a file.

        Large arrays are written to a file of their own, whose name ends in `DATA_SUFFIX`, if all
        together are larger than `MAX_BYTES`.
        """
        import onnx

        nodes = _nodes_of(outputs.values())
        _give_names(nodes)
        arrays = {}
        for value in itertools.chain.from_iterable(node.inputs for node in nodes):
            if value.array is not None:
                arrays[value.name] = value.array
        initializers = _stored(arrays, path.with_name(path.name + DATA_SUFFIX))
        imports = [onnx.helper.make_opsetid("", opset)]
        model = onnx.helper.make_model(
            self._proto("bertjax", nodes, self.inputs, outputs, initializers),
            opset_imports=imports,
            producer_name="bertjax",
            ir_version=onnx.helper.find_min_ir_version_for(imports),
        )
        path.write_bytes(model.SerializeToString())

    def _proto(
        self,
        name: str,
        nodes: Sequence[Node],
        inputs: Sequence[Value],
        outputs: Mapping[str, Value],
        initializers: Sequence[Any] = (),
    ) -> Any:
        from onnx import helper

        inner = set()
        written = []
        for node in nodes:
            attributes = dict(node.attributes)
            for key, body in attributes.items():
                if isinstance(body, Body):
                    inside = _depending_on(body.inputs, nodes)
                    inner.update(inside)
                    results = {f"{node.scope}/{i}": x for i, x in enumerate(body.outputs)}
                    attributes[key] = self._proto(node.scope, inside, body.inputs, results)
            names = [[x.name for x in values] for values in (node.inputs, node.outputs)]
            label = node.outputs[0].name.removesuffix("_0")
            written.append(helper.make_node(node.op, *names, name=label, **attributes))
        kept = [proto for node, proto in zip(nodes, written, strict=True) if node not in inner]
        for key, value in outputs.items():
            kept.append(helper.make_node("Identity", [value.name], [key], name=f"{name}/{key}"))
        infos = [self._info(x.name, x) for x in inputs]
        results = [self._info(key, x) for key, x in outputs.items()]
        return helper.make_graph(kept, name, infos, results, initializers)

    def _info(self, name: str, value: Value) -> Any:
        from onnx import helper

        sizes = []
        for size in value.shape:
            sizes.append(int(size) if is_number(size) else self.axes.get(str(size), str(size)))
        return helper.make_tensor_value_info(
            name, helper.np_dtype_to_tensor_dtype(value.dtype), sizes
        )


def _nodes_of(values: Iterable[Value]) -> list[Node]:
    """Returns the nodes on which values depend, in the order in which they were added."""
    found: dict[int, Node] = {}
    waiting = [*values]
    while waiting:
        node = waiting.pop().node
        if node is None or node.number in found:
            continue
        found[node.number] = node
        waiting.extend(node.inputs)
        for body in node.attributes.values():
            if isinstance(body, Body):
                waiting.extend(body.outputs)
    return [found[number] for number in sorted(found)]


def _depending_on(values: Sequence[Value], nodes: Sequence[Node]) -> list[Node]:
    """Returns those of the nodes, which are in order, that depend on the values."""
    reached = {*values}
    found = []
    for node in nodes:
        if not reached.isdisjoint(node.inputs):
            found.append(node)
            reached.update(node.outputs)
    return found


def _give_names(nodes: Iterable[Node]) -> None:
    """Names constants and outputs of nodes, each differently."""
    taken: Counter[str] = Counter()
    named: set[Value] = set()

    def unique(name: str) -> str:
        number = taken[name]
        taken[name] += 1
        return unique(f"{name}_{number}") if number else name

    for node in nodes:
        for value in dict.fromkeys(node.inputs):
            if value.array is not None and value not in named:
                value.name = unique(value.name or f"constant_{value.dtype}")
                named.add(value)
        label = unique(f"{node.scope}/{node.op}")
        for index, value in enumerate(node.outputs):
            value.name = f"{label}_{index}"


def _stored(arrays: Mapping[str, np.ndarray], beside: Path) -> list[Any]:
    """Returns the initializers of arrays, of which large ones are perhaps written to a file."""
    import onnx

    is_large = sum(array.nbytes for array in arrays.values()) > MAX_BYTES
    initializers = []
    with contextlib.ExitStack() as stack:
        file = stack.enter_context(beside.open("wb")) if is_large else None
        for name, array in arrays.items():
            array = np.ascontiguousarray(array).reshape(array.shape)
            if file is None or array.nbytes < SMALL:
                initializers.append(onnx.numpy_helper.from_array(array, name))
                continue
            file.write(bytes(-file.tell() % ALIGNMENT))
            tensor = onnx.TensorProto(name=name, dims=array.shape)
            tensor.data_type = onnx.helper.np_dtype_to_tensor_dtype(array.dtype)
            tensor.data_location = onnx.TensorProto.EXTERNAL
            place = {"location": beside.name, "offset": file.tell(), "length": array.nbytes}
            for key, value in place.items():
                tensor.external_data.add(key=key, value=str(value))
            file.write(array.data)
            initializers.append(tensor)
    return initializers


class _Size:
    """Arithmetic with dimensions in a graph."""

    def __init__(self, graph: Graph, value: Value):
        self.graph = graph
        self.value = value

    def _compute(self, op: str, *operands: Any) -> "_Size":
        values = [x.value if isinstance(x, _Size) else self.graph.size(x) for x in operands]
        return _Size(self.graph, self.graph.node(op, *values, Kind((1,), np.int64)))

    def __add__(self, other: Any) -> "_Size":
        return self._compute("Add", self, other)

    def __sub__(self, other: Any) -> "_Size":
        return self._compute("Sub", self, other)

    def __rsub__(self, other: Any) -> "_Size":
        return self._compute("Sub", other, self)

    def __mul__(self, other: Any) -> "_Size":
        return self._compute("Mul", self, other)

    def __pow__(self, other: int) -> "_Size":
        return self._compute("Pow", self, other)

    def __neg__(self) -> "_Size":
        return self._compute("Neg", self)

    __radd__ = __add__
    __rmul__ = __mul__


def _function(op: str) -> Any:
    def call(*sizes: Any) -> _Size:
        of_graph = next(x for x in sizes if isinstance(x, _Size))
        return of_graph._compute(op, *sizes)

    return call


# The functions in expressions of symbolic dimensions.
_FUNCTIONS = {"max": _function("Max"), "mod": _function("Mod")}
