"""Translates a traced function of jax, a jaxpr, to nodes of an ONNX graph.

What depends on constants alone is computed here, and loops over stacked parameters are written out.
An array that is a broadcast of a smaller one stays small, because operators of ONNX broadcast their
inputs: `Translator.whole` makes it as large as in the jaxpr.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.extend import core

from bertjax.inference.onnx_graph import Body, Dimension, Graph, Shape, Tensor, Value, is_number

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


class Translator:
    """Adds the operations of jaxprs to a graph.

    Args:
        graph: the graph.
        opset: the version of ONNX's operators.
        operators: {primitive of jax: function (translator, equation, *inputs) -> output or list of
            outputs}, which adds the nodes of an operation.
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
        self._computed: dict[Any, list[Any]] = {}

    def outputs(self, jaxpr: Any, constants: Sequence[Any], inputs: Sequence[Value]) -> list[Value]:
        """Adds the operations of a jaxpr; returns the values of its outputs.

        Its outputs may be smaller than in the jaxpr, if they are broadcasts, see `whole`.
        """
        values: dict[Any, Value] = {}
        values.update(zip(jaxpr.constvars, map(np.asarray, constants), strict=True))
        values.update(zip(jaxpr.invars, inputs, strict=True))

        def read(variable: Any) -> Value:
            if isinstance(variable, core.Literal):
                return np.asarray(variable.val)
            return values[variable]

        used = _used(jaxpr)
        for equation in jaxpr.eqns:
            if not any(variable in used for variable in equation.outvars):
                continue
            results = self._translate(equation, [read(x) for x in equation.invars])
            values.update(zip(equation.outvars, results, strict=True))
        return [read(variable) for variable in jaxpr.outvars]

    def _translate(self, equation: Any, inputs: list[Value]) -> list[Value]:
        name = equation.primitive.name
        outer = self.graph.scope
        self.graph.scope = _path(outer, str(equation.source_info.name_stack))
        try:
            inner = equation.params.get("jaxpr", equation.params.get("call_jaxpr"))
            if name == "scan":
                return self._scan(equation, inputs)
            if inner is not None:
                closed = getattr(inner, "jaxpr", inner)
                return self.outputs(closed, getattr(inner, "consts", ()), inputs)
            if name in _UNCHANGED:
                return inputs
            if all(isinstance(x, np.ndarray) for x in inputs) and _is_static(equation):
                return self._folded(equation, inputs)
            if name not in self._operators:
                raise NotImplementedError(
                    f"ONNX has no operator for {name} in {self.graph.scope}: this model cannot be "
                    "exported."
                )
            found = self._operators[name](self, equation, *inputs)
            return found if isinstance(found, list) else [found]
        finally:
            self.graph.scope = outer

    def _folded(self, equation: Any, inputs: list[Any]) -> list[Value]:
        """Computes an operation on constants, once for layers that share their parameters."""
        key = (id(equation), *map(id, inputs))
        if key not in self._computed:
            found = self._evaluate(equation, inputs)
            names = [self.graph.name_of(x) for x in inputs]
            if names and names[0]:
                found = [self.graph.name_constant(x, names[0]) for x in found]
            self._computed[key] = [inputs, found]  # `inputs` keep their ids
        return self._computed[key][1]

    def _evaluate(self, equation: Any, inputs: list[Any]) -> list[np.ndarray]:
        params = equation.params
        match equation.primitive.name:
            case "transpose":
                return [inputs[0].transpose(params["permutation"])]
            case "reshape" if params["dimensions"] is None:
                return [inputs[0].reshape(params["new_sizes"])]
        wide = []
        for value, variable in zip(inputs, equation.invars, strict=True):
            wide.append(np.broadcast_to(value, variable.aval.shape))
        found = equation.primitive.bind(*wide, **params)
        if not equation.primitive.multiple_results:
            found = [found]
        return [np.asarray(x) for x in found]

    def whole(self, value: Value, aval: Any) -> Value:
        """Returns a value with all of the shape that it has in the jaxpr."""
        if value.shape == aval.shape:
            return value
        if isinstance(value, np.ndarray) and _are_numbers(aval.shape):
            return np.broadcast_to(value, aval.shape)
        shape = self.graph.sizes(aval.shape)
        return self.add("Expand", value, shape, dtype=value.dtype, shape=aval.shape)

    def add(self, op: str, *inputs: Value, dtype: Any, shape: Shape, **attributes: Any) -> Value:
        """Adds a node, or the one that a simplification has in its place; returns its output."""
        tensor = self.graph.one(op, *inputs, dtype=dtype, shape=shape, **attributes)
        simplify = self._simplifications.get(op)
        simpler = simplify(self, tensor) if simplify else None
        return tensor if simpler is None else simpler

    def elementwise(self, op: str, *inputs: Value, dtype: Any = None, **attributes: Any) -> Value:
        """Adds a node that broadcasts its inputs; `dtype` of the output, None: as the inputs."""
        shape = joint_shape([x.shape for x in inputs])
        dtype = inputs[0].dtype if dtype is None else dtype
        return self.add(op, *inputs, dtype=dtype, shape=shape, **attributes)

    def cast(self, value: Value, dtype: Any) -> Value:
        """Returns a value in another dtype."""
        dtype = np.dtype(dtype)
        if value.dtype == dtype:
            return value
        if isinstance(value, np.ndarray):
            return value.astype(dtype)
        to = _onnx_type(dtype)
        return self.graph.one("Cast", value, dtype=dtype, shape=value.shape, to=to)

    def reshape(self, value: Value, shape: Shape) -> Value:
        """Returns a value in another shape of as many elements."""
        if isinstance(value, np.ndarray):
            return self._changed(value, ("reshape", *shape), lambda x: x.reshape(shape))
        while node := self.graph.producer(value, "Reshape"):
            value = node.inputs[0]
            assert isinstance(value, Tensor)
        if value.shape == tuple(shape):
            return value
        # 0 copies a size of the input, and -1 is what is left.
        sizes: list[Any] = [*shape]
        for axis, size in enumerate(shape):
            if not is_number(size) and axis < len(value.shape) and value.shape[axis] == size:
                sizes[axis] = 0
        unknown = [axis for axis, size in enumerate(sizes) if not is_number(size)]
        if len(unknown) == 1:
            sizes[unknown[0]] = -1
        return self.graph.one(
            "Reshape", value, self.graph.sizes(sizes), dtype=value.dtype, shape=shape
        )

    def transpose(self, value: Value, permutation: Sequence[int]) -> Value:
        """Returns a value with its axes in another order."""
        if list(permutation) == list(range(len(permutation))):
            return value
        if isinstance(value, np.ndarray) and not self._is_tied(value):
            key = ("transpose", *permutation)
            return self._changed(value, key, lambda x: x.transpose(permutation))
        node = self.graph.producer(value, "Transpose")
        if node is not None:
            value = node.inputs[0]
            permutation = [node.attributes["perm"][axis] for axis in permutation]
        if list(permutation) == list(range(len(permutation))):
            return value
        shape = tuple(value.shape[axis] for axis in permutation)
        return self.graph.one(
            "Transpose", value, dtype=value.dtype, shape=shape, perm=[*permutation]
        )

    def _changed(
        self,
        array: np.ndarray,
        key: tuple[Any, ...],
        change: Callable[[np.ndarray], np.ndarray],
        suffix: str = "",
    ) -> np.ndarray:
        """Returns a changed constant, of its name: the same one whenever `key` is the same."""
        key = (id(array), *key)
        if key not in self._computed:
            changed = np.asarray(change(array))
            name = self.graph.name_of(array)
            if name:
                self.graph.name_constant(changed, name + suffix)
            self._computed[key] = [array, changed]  # which keeps the array, and its id
        return self._computed[key][1]

    def _is_tied(self, array: np.ndarray) -> bool:
        """Whether an array is stored already, and too large to be stored again."""
        return array.nbytes > 1 << 20 and self.graph.is_stored(array)

    def slice(
        self, value: Value, starts: Shape, limits: Shape, steps: Sequence[int] | None = None
    ) -> Value:
        """Returns a part of a value, from `starts` up to `limits` on each axis."""
        steps = steps or [1] * len(starts)
        axes = []
        shape = []
        for axis, (start, limit, step) in enumerate(zip(starts, limits, steps, strict=True)):
            whole = same(start, 0) and same(limit, value.shape[axis]) and step == 1
            shape.append(value.shape[axis] if whole else -(-(limit - start) // step))
            if not whole:
                axes.append(axis)
        if not axes:
            return value
        graph = self.graph
        return self.add(
            "Slice",
            value,
            graph.sizes([starts[axis] for axis in axes]),
            graph.sizes([limits[axis] for axis in axes]),
            np.array(axes, np.int64),
            np.array([steps[axis] for axis in axes], np.int64),
            dtype=value.dtype,
            shape=tuple(shape),
        )

    def _scan(self, equation: Any, inputs: list[Value]) -> list[Value]:
        """Writes out a loop, or makes it a loop of ONNX if its length is not known."""
        params = equation.params
        length = params["length"]
        if not is_number(length):
            return self._loop(equation, inputs)
        constants = inputs[: params["num_consts"]]
        carry = inputs[params["num_consts"] :][: params["num_carry"]]
        stacked = inputs[params["num_consts"] + params["num_carry"] :]
        turns = range(length)
        if params["reverse"]:
            turns = reversed(turns)
        outputs: dict[int, list[Value]] = {}
        path = self.graph.scope
        for turn in turns:
            self.graph.scope = f"{path}/{turn}" if length > 1 else path
            of_turn = [self._item(x, turn) for x in stacked]
            found = self.outputs(
                params["jaxpr"].jaxpr, params["jaxpr"].consts, [*constants, *carry, *of_turn]
            )
            carry = found[: len(carry)]
            outputs[turn] = found[len(carry) :]
        self.graph.scope = path
        joined = []
        for index, variable in enumerate(equation.outvars[len(carry) :]):
            aval = params["jaxpr"].out_avals[len(carry) + index]
            parts = [self._row(outputs[turn][index], aval) for turn in range(length)]
            joined.append(self.concatenate(parts, 0, variable.aval.shape))
        return [*carry, *joined]

    def _loop(self, equation: Any, inputs: list[Value]) -> list[Value]:
        """Makes a loop over tokens a Scan of ONNX."""
        params = equation.params
        inner = params["jaxpr"].jaxpr
        constants = inputs[: params["num_consts"]]
        graph = Graph(outer=self.graph)
        graph.scope = self.graph.scope
        own = []
        for variable in inner.invars[len(constants) :]:
            own.append(graph.add_input("item", variable.aval.shape, variable.aval.dtype))
        translator = Translator(graph, self.opset, self._operators, self._simplifications)
        found = translator.outputs(inner, params["jaxpr"].consts, [*constants, *own])
        outputs = []
        for value, variable in zip(found, inner.outvars, strict=True):
            whole = translator.whole(value, variable.aval)
            named = graph.one(
                "Identity", whole, dtype=variable.aval.dtype, shape=variable.aval.shape
            )
            outputs.append(named)
        items = []
        for value, variable in zip(inputs, equation.invars, strict=True):
            items.append(self.whole(value, variable.aval))
        count = params["num_carry"]
        direction = int(params["reverse"])
        return [
            *self.graph.several(
                "Scan",
                *items[len(constants) :],
                outputs=[(x.aval.dtype, x.aval.shape) for x in equation.outvars],
                body=Body(graph, outputs),
                num_scan_inputs=len(own) - count,
                scan_input_directions=[direction] * (len(own) - count),
                scan_output_directions=[direction] * (len(outputs) - count),
            )
        ]

    def _item(self, value: Value, index: int) -> Value:
        """Returns an item of a value along axis 0."""
        if isinstance(value, np.ndarray):
            row = index if value.shape[0] > 1 else 0
            return self._changed(value, ("item", row), lambda x: x[row], f".{row}")
        starts = (index, *(0 for _ in value.shape[1:]))
        row = self.slice(value, starts, (index + 1, *value.shape[1:]))
        return self.reshape(row, value.shape[1:])

    def _row(self, value: Value, aval: Any) -> Value:
        return self.reshape(self.whole(value, aval), (1, *aval.shape))

    def concatenate(self, parts: Sequence[Value], axis: int, shape: Shape) -> Value:
        """Joins values along an axis to one of this shape."""
        if len(parts) == 1:
            return parts[0]
        if all(isinstance(x, np.ndarray) for x in parts):
            return np.concatenate([np.asarray(x) for x in parts], axis)
        return self.graph.one("Concat", *parts, dtype=parts[0].dtype, shape=shape, axis=axis)


# Operations that change no values.
_UNCHANGED = (
    "copy",
    "name",
    "optimization_barrier",
    "stop_gradient",
    "layout_constraint",
)


def _used(jaxpr: Any) -> set[Any]:
    """Returns the variables of a jaxpr on which its outputs depend."""
    used = {x for x in jaxpr.outvars if not isinstance(x, core.Literal)}
    for equation in reversed(jaxpr.eqns):
        if not used.isdisjoint(equation.outvars):
            used.update(x for x in equation.invars if not isinstance(x, core.Literal))
    return used


def _path(outer: str, stack: str) -> str:
    """Joins the path of a module and what jax calls the place of an operation in it."""
    parts = [part for part in stack.split("/") if part and not part.endswith(".body")]
    if not outer:
        parts = parts[1:]  # the class of the model
    return "/".join([outer, *parts])


def _are_numbers(shape: Shape) -> bool:
    return all(map(is_number, shape))


def _is_static(equation: Any) -> bool:
    return all(_are_numbers(x.aval.shape) for x in (*equation.invars, *equation.outvars)) and (
        equation.primitive.name not in ("dim_as_value", "normalization")
    )


def same(first: Dimension, second: Dimension) -> bool:
    """Whether two dimensions are equal; jax cannot always compare symbols with numbers."""
    return type(first) is type(second) and first == second or str(first) == str(second)


def joint_shape(shapes: Sequence[Shape]) -> Shape:
    """Returns the shape to which shapes are broadcast."""
    rank = max(map(len, shapes))
    joint = []
    for axis in range(-rank, 0):
        sizes = [shape[axis] for shape in shapes if -axis <= len(shape)]
        joint.append(next((size for size in sizes if not same(size, 1)), 1))
    return tuple(joint)


def _onnx_type(dtype: Any) -> int:
    from onnx import helper

    return helper.np_dtype_to_tensor_dtype(np.dtype(dtype))


def scalar(value: Any, like: Value) -> np.ndarray:
    """Returns a number as a constant with the dtype of another value."""
    return np.asarray(value, like.dtype)
