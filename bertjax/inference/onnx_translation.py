"""Translates a traced function of jax, a jaxpr, to nodes of an ONNX graph.

What depends on constants alone is computed here, and loops over stacked parameters are written out.
Operators of ONNX broadcast their inputs. So a broadcast is an Expand that they look through, and it
is only left in the graph where another operator needs the whole array.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.extend import core

from bertjax.inference.onnx_graph import Body, Dimension, Graph, Kind, Node, Shape, Value, is_number

# What stands in a jaxpr for a LayerNorm or RMSNorm, see `normalized`.
normalization = core.Primitive("normalization")


@normalization.def_abstract_eval
def _normalization_shape(x: Any, *parameters: Any, epsilon: float, kind: str) -> Any:
    return x


def normalized(
    x: jax.Array, scale: jax.Array, bias: jax.Array | None, *, epsilon: float, kind: str
) -> jax.Array:
    """Stands for the LayerNorm or, by `kind`, RMSNorm of x [..., D] while a function is traced."""
    parameters = [scale] if bias is None else [scale, bias]
    return normalization.bind(x, *parameters, epsilon=epsilon, kind=kind)


# Operations that change no values.
_UNCHANGED = ("copy", "name", "optimization_barrier", "stop_gradient", "layout_constraint")


def untranslated(operation: str) -> ValueError:
    """Returns the refusal of a model with an operation that has no translation."""
    return ValueError(
        f"The model cannot be exported, as ONNX has no operator for {operation}: report it as an "
        "issue of bertjax, or serve it by bertjax serve."
    )


class Translator:
    """Adds the operations of jaxprs to a graph.

    Args:
        graph: the graph.
        opset: the version of ONNX's operators.
        operators: {primitive of jax: function that adds the nodes of an operation}, see
            `onnx_operators`.
        simplifications: {operator: function (translator, output) -> what replaces it, or None}.
    """

    def __init__(
        self,
        graph: Graph,
        opset: int,
        operators: Mapping[str, Callable[..., Any]],
        simplifications: Mapping[str, Callable[..., Value | None]],
    ):
        self.graph = graph
        self.opset = opset
        self._operators = operators
        self._simplifications = simplifications
        self._folded: dict[Any, Any] = {}

    def outputs(self, jaxpr: Any, constants: Sequence[Any], inputs: Sequence[Value]) -> list[Value]:
        """Adds the operations of a jaxpr; returns the values of its outputs."""
        values: dict[Any, Value] = {}
        values.update(zip(jaxpr.constvars, map(self.graph.constant, constants), strict=True))
        values.update(zip(jaxpr.invars, inputs, strict=True))

        def read(variable: Any) -> Value:
            if isinstance(variable, core.Literal):
                return self.graph.constant(variable.val)
            return values[variable]

        used = {x for x in jaxpr.outvars if not isinstance(x, core.Literal)}
        needed = []
        for equation in reversed(jaxpr.eqns):
            if not used.isdisjoint(equation.outvars):
                used.update(x for x in equation.invars if not isinstance(x, core.Literal))
                needed.append(equation)
        for equation in reversed(needed):
            results = self._translate(equation, [read(x) for x in equation.invars])
            values.update(zip(equation.outvars, results, strict=True))
        return [read(variable) for variable in jaxpr.outvars]

    def _translate(self, equation: Any, inputs: list[Value]) -> Sequence[Value]:
        name = equation.primitive.name
        params = equation.params
        outer = self.graph.scope
        self.graph.scope = _path(outer, str(equation.source_info.name_stack))
        try:
            inner = params.get("jaxpr", params.get("call_jaxpr"))
            if name == "scan":
                return self._scan(equation, inputs)
            if inner is not None:
                closed = getattr(inner, "jaxpr", inner)
                return self.outputs(closed, getattr(inner, "consts", ()), inputs)
            if name in _UNCHANGED:
                return inputs
            if _is_constant(equation, inputs):
                return self._computed(equation, inputs)
            if name not in self._operators:
                raise untranslated(f"{name} in {self.graph.scope}")
            found = self._operators[name](self, equation.outvars[0].aval, *inputs, **params)
            return found if isinstance(found, list) else [found]
        finally:
            self.graph.scope = outer

    def _computed(self, equation: Any, inputs: list[Value]) -> list[Value]:
        """Computes an operation on constants, once for layers that share their parameters."""
        key = (id(equation), *map(id, inputs))
        if key not in self._folded:
            found = equation.primitive.bind(*[x.array for x in inputs], **equation.params)
            if not equation.primitive.multiple_results:
                found = [found]
            name = inputs[0].name if inputs else ""
            self._folded[key] = inputs, [self.graph.constant(array, name) for array in found]
        return self._folded[key][1]

    def node(self, op: str, *inputs_and_kind: Any, **attributes: Any) -> Value:
        """Adds a node as `Graph.node`, or returns what a simplification has in its place."""
        value = self.graph.node(op, *inputs_and_kind, **attributes)
        simplify = self._simplifications.get(op)
        simpler = simplify(self, value) if simplify else None
        return value if simpler is None else simpler

    def elementwise(self, op: str, *inputs: Any, dtype: Any = None, **attributes: Any) -> Value:
        """Adds a node that broadcasts its inputs; `dtype` of the output, None: as the inputs."""
        values = [x if isinstance(x, Value) else self.graph.constant(x) for x in inputs]
        narrow = [self.narrow(x) for x in values]
        kind = Kind(_joint_shape(narrow), dtype or values[0].dtype)
        value = self.node(op, *narrow, kind, **attributes)
        return self.expand(value, _joint_shape(values))

    def expand(self, value: Value, shape: Shape) -> Value:
        """Returns a value broadcast to a shape."""
        if same_shape(value.shape, shape):
            return value
        return self.graph.node("Expand", value, self.graph.sizes(shape), Kind(shape, value.dtype))

    def narrow(self, value: Value) -> Value:
        """Returns what a value is a broadcast of, or the value itself."""
        node = self.producer(value, "Expand")
        return node.inputs[0] if node else value

    def producer(self, value: Value | None, *ops: str) -> Node | None:
        """Returns the node that computes a value, if it has one of these operators."""
        node = value.node if value else None
        return node if node is not None and node.op in ops else None

    def changed(
        self, value: Value, key: Any, change: Callable[[np.ndarray], Any], suffix: str = ""
    ) -> Value:
        """Returns a changed constant, of its name: the same one whenever `key` is the same."""
        if key not in value.changed:
            name = value.name + suffix if value.name else ""
            value.changed[key] = self.graph.constant(change(value.array), name)  # type: ignore[arg-type]
        return value.changed[key]

    def cast(self, value: Value, dtype: Any) -> Value:
        """Returns a value in another dtype."""
        from onnx import helper

        dtype = np.dtype(dtype)
        if value.dtype == dtype:
            return value
        if value.array is not None:
            return self.changed(value, dtype, lambda array: array.astype(dtype))
        return self.elementwise(
            "Cast", value, dtype=dtype, to=helper.np_dtype_to_tensor_dtype(dtype)
        )

    def reshape(self, value: Value, shape: Sequence[Dimension]) -> Value:
        """Returns a value in another shape of as many elements."""
        shape = tuple(shape)
        narrow = self.narrow(value)
        if narrow is not value and same_shape(_without_ones(value.shape), _without_ones(shape)):
            # Axes of size 1 are added to the broadcast, or removed.
            missing = [1] * (len(value.shape) - len(narrow.shape))
            sizes = []
            for size, wide in zip([*missing, *narrow.shape], value.shape, strict=True):
                if not same(wide, 1):
                    sizes.append(size)
            of_narrow = []
            for size in shape:
                of_narrow.append(1 if same(size, 1) else sizes.pop(0))
            narrow = self.reshape(narrow, of_narrow)
            return self.expand(narrow, shape)
        if value.array is not None:
            return self.changed(value, ("reshape", *shape), lambda array: array.reshape(shape))
        while node := self.producer(value, "Reshape"):
            value = node.inputs[0]
        if same_shape(value.shape, shape):
            return value
        # 0 copies a size of the input, and -1 is what is left.
        sizes: list[Any] = [*shape]
        for axis, (new, old) in enumerate(zip(shape, value.shape, strict=False)):
            if not is_number(new) and new == old:
                sizes[axis] = 0
        unknown = [axis for axis, size in enumerate(sizes) if not is_number(size)]
        if len(unknown) == 1:
            sizes[unknown[0]] = -1
        return self.graph.node("Reshape", value, self.graph.sizes(sizes), Kind(shape, value.dtype))

    def transpose(self, value: Value, permutation: Sequence[int]) -> Value:
        """Returns a value with its axes in another order."""
        order = [*permutation]
        if order == sorted(order):
            return value
        # A large matrix that is stored already, such as tied embeddings, is not stored again.
        if value.array is not None and not self.graph.is_read(value):
            key = ("transpose", *order)
            return self.changed(value, key, lambda array: array.transpose(order))
        node = self.producer(value, "Transpose")
        if node is not None:
            value = node.inputs[0]
            return self.transpose(value, [node.attributes["perm"][axis] for axis in order])
        kind = Kind(tuple(value.shape[axis] for axis in order), value.dtype)
        return self.graph.node("Transpose", value, kind, perm=order)

    def slice(
        self, value: Value, starts: Shape, limits: Shape, steps: Sequence[int] | None = None
    ) -> Value:
        """Returns a part of a value, from `starts` up to `limits` on each axis."""
        steps = steps or [1] * len(starts)
        axes = []
        shape = []
        for axis, (start, limit, step) in enumerate(zip(starts, limits, steps, strict=True)):
            size = -(-(limit - start) // step)
            shape.append(size)
            if not same(size, value.shape[axis]):
                axes.append(axis)
        if not axes:
            return value
        bounds = [[places[axis] for axis in axes] for places in (starts, limits)]
        of_steps = [steps[axis] for axis in axes]
        inputs = [*map(self.graph.sizes, bounds), np.array(axes), np.array(of_steps)]
        return self.node("Slice", value, *inputs, Kind(tuple(shape), value.dtype))

    def part(self, value: Value, axis: int, start: Dimension, limit: Dimension) -> Value:
        """Returns a part of a value along one axis."""
        starts: list[Dimension] = [0] * len(value.shape)
        limits = [*value.shape]
        starts[axis] = start
        limits[axis] = limit
        return self.slice(value, tuple(starts), tuple(limits))

    def concatenate(self, parts: Sequence[Value], axis: int, shape: Shape) -> Value:
        """Joins values along an axis to one of this shape."""
        if len(parts) == 1:
            return parts[0]
        return self.graph.node("Concat", *parts, Kind(shape, parts[0].dtype), axis=axis)

    def _scan(self, equation: Any, inputs: list[Value]) -> list[Value]:
        """Writes out a loop, or makes it a loop of ONNX if its length is not known."""
        params = equation.params
        first = params["num_consts"]
        constants = inputs[:first]
        carry = inputs[first : first + params["num_carry"]]
        stacked = inputs[first + len(carry) :]
        inner = params["jaxpr"]
        if not is_number(params["length"]):
            return self._loop(equation, constants, carry, stacked)
        outputs: list[list[Value]] = []
        path = self.graph.scope
        turns = range(params["length"])
        for turn in reversed(turns) if params["reverse"] else turns:
            self.graph.scope = f"{path}/{turn}"
            items = [self._item(x, turn) for x in stacked]
            found = self.outputs(inner.jaxpr, inner.consts, [*constants, *carry, *items])
            carry = found[: len(carry)]
            rows = [self.reshape(x, (1, *x.shape)) for x in found[len(carry) :]]
            outputs.append(rows)
        self.graph.scope = path
        if params["reverse"]:
            outputs.reverse()
        joined = []
        for variable, *rows in zip(equation.outvars[len(carry) :], *outputs, strict=True):
            joined.append(self.concatenate(rows, 0, variable.aval.shape))
        return [*carry, *joined]

    def _item(self, value: Value, index: int) -> Value:
        """Returns an item of a value along axis 0."""
        if value.array is not None:
            return self.changed(value, index, lambda array: array[index], f".{index}")
        return self.reshape(self.part(value, 0, index, index + 1), value.shape[1:])

    def _loop(
        self,
        equation: Any,
        constants: Sequence[Value],
        carry: Sequence[Value],
        stacked: Sequence[Value],
    ) -> list[Value]:
        """Makes a loop over tokens a Scan of ONNX."""
        inner = equation.params["jaxpr"]
        own = []
        for index, aval in enumerate(inner.in_avals[len(constants) :]):
            own.append(Value(aval.shape, aval.dtype, name=f"{self.graph.scope}/item_{index}"))
        found = self.outputs(inner.jaxpr, inner.consts, [*constants, *own])
        directions = [int(equation.params["reverse"])]
        return self.graph.nodes(
            "Scan",
            [*carry, *stacked],
            [variable.aval for variable in equation.outvars],
            body=Body(own, found),
            num_scan_inputs=len(stacked),
            scan_input_directions=directions * len(stacked),
            scan_output_directions=directions * (len(found) - len(carry)),
        )


def _path(outer: str, stack: str) -> str:
    """Joins the path of a module and what jax calls the place of an operation in it."""
    parts = [part for part in stack.split("/") if part and not part.endswith(".body")]
    if not outer:
        parts = parts[1:]  # the class of the model
    return "/".join([outer, *parts])


def _is_constant(equation: Any, inputs: Sequence[Value]) -> bool:
    """Whether an operation can be computed without the inputs of the graph."""
    if equation.primitive is normalization or any(value.array is None for value in inputs):
        return False
    sizes: list[Dimension] = [0 if "dim" not in equation.params else equation.params["dim"]]
    for variable in (*equation.invars, *equation.outvars):
        sizes.extend(variable.aval.shape)
    return all(map(is_number, sizes))


def same(first: Dimension, second: Dimension) -> bool:
    """Whether two dimensions are equal; jax cannot always compare symbols with numbers."""
    return str(first) == str(second)


def same_shape(first: Sequence[Dimension], second: Sequence[Dimension]) -> bool:
    """Whether two shapes are equal."""
    return list(map(str, first)) == list(map(str, second))


def _without_ones(shape: Sequence[Dimension]) -> list[Dimension]:
    return [size for size in shape if not same(size, 1)]


def _joint_shape(values: Sequence[Value]) -> Shape:
    """Returns the shape to which values are broadcast."""
    joint: list[Dimension] = [1] * max(len(value.shape) for value in values)
    for value in values:
        for axis, size in enumerate(reversed(value.shape), start=1):
            if not same(size, 1):
                joint[-axis] = size
    return tuple(joint)
