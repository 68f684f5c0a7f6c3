"""The operators of ONNX for the primitives of jax, and the patterns that are simplified.

Each function adds the nodes of one equation of a jaxpr: (to, equation, *inputs) -> output, or a
list of outputs. `to` is the translator, and the inputs may be smaller than in the jaxpr, see
`Translator.whole`.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from bertjax.inference.onnx_graph import Dimension, Shape, Tensor, Value, is_number
from bertjax.inference.onnx_translation import Translator, same, scalar

Operator = Callable[..., Any]
OPERATORS: dict[str, Operator] = {}


def _operator(*names: str) -> Callable[[Operator], Operator]:
    def register(function: Operator) -> Operator:
        OPERATORS.update(dict.fromkeys(names, function))
        return function

    return register


_ELEMENTWISE = {
    "abs": "Abs",
    "add": "Add",
    "add_any": "Add",
    "ceil": "Ceil",
    "cos": "Cos",
    "div": "Div",
    "erf": "Erf",
    "exp": "Exp",
    "floor": "Floor",
    "log": "Log",
    "logistic": "Sigmoid",
    "max": "Max",
    "min": "Min",
    "mul": "Mul",
    "neg": "Neg",
    "pow": "Pow",
    "rem": "Mod",
    "sign": "Sign",
    "sin": "Sin",
    "sqrt": "Sqrt",
    "sub": "Sub",
    "tanh": "Tanh",
}
_COMPARISONS = {
    "eq": "Equal",
    "ge": "GreaterOrEqual",
    "gt": "Greater",
    "le": "LessOrEqual",
    "lt": "Less",
}
_LOGIC = {"and": "And", "or": "Or", "xor": "Xor", "not": "Not"}


@_operator(*_ELEMENTWISE)
def _elementwise(to: Translator, equation: Any, *inputs: Value) -> Value:
    name = equation.primitive.name
    attributes = {}
    if name == "rem":
        attributes["fmod"] = 1  # the sign is that of the first number
    return to.elementwise(_ELEMENTWISE[name], *inputs, **attributes)


@_operator(*_COMPARISONS, "ne")
def _comparison(to: Translator, equation: Any, first: Value, second: Value) -> Value:
    name = equation.primitive.name
    if name == "ne":
        if first.dtype == bool:
            return to.elementwise("Xor", first, second)
        return to.elementwise("Not", to.elementwise("Equal", first, second, dtype=bool))
    return to.elementwise(_COMPARISONS[name], first, second, dtype=bool)


@_operator(*_LOGIC)
def _logic(to: Translator, equation: Any, *inputs: Value) -> Value:
    if inputs[0].dtype != bool:
        raise NotImplementedError(f"{equation} has numbers, and ONNX's has truth values.")
    return to.elementwise(_LOGIC[equation.primitive.name], *inputs)


@_operator("square")
def _square(to: Translator, equation: Any, x: Value) -> Value:
    return to.elementwise("Mul", x, x)


@_operator("integer_pow")
def _integer_pow(to: Translator, equation: Any, x: Value) -> Value:
    return to.elementwise("Pow", x, scalar(equation.params["y"], x))


@_operator("rsqrt")
def _rsqrt(to: Translator, equation: Any, x: Value) -> Value:
    return to.elementwise("Reciprocal", to.elementwise("Sqrt", x))


@_operator("log1p")
def _log1p(to: Translator, equation: Any, x: Value) -> Value:
    return to.elementwise("Log", to.elementwise("Add", x, scalar(1, x)))


@_operator("expm1")
def _expm1(to: Translator, equation: Any, x: Value) -> Value:
    return to.elementwise("Sub", to.elementwise("Exp", x), scalar(1, x))


@_operator("erfc")
def _erfc(to: Translator, equation: Any, x: Value) -> Value:
    return to.elementwise("Sub", scalar(1, x), to.elementwise("Erf", x))


@_operator("clamp")
def _clamp(to: Translator, equation: Any, low: Value, x: Value, high: Value) -> Value:
    return to.elementwise("Min", to.elementwise("Max", x, low), high)


@_operator("is_finite")
def _is_finite(to: Translator, equation: Any, x: Value) -> Value:
    largest = scalar(np.finfo(x.dtype).max, x)  # type: ignore[arg-type]
    return to.elementwise("LessOrEqual", to.elementwise("Abs", x), largest, dtype=bool)


@_operator("select_n")
def _select(to: Translator, equation: Any, which: Value, *cases: Value) -> Value:
    if which.dtype != bool:
        raise NotImplementedError("select_n by numbers has no translation.")
    no, yes = cases
    if no.dtype == bool:  # ONNX Runtime lacks Where of truth values
        chosen = to.elementwise("And", which, yes)
        other = to.elementwise("And", to.elementwise("Not", which), no)
        return to.elementwise("Or", chosen, other)
    return to.elementwise("Where", which, yes, no, dtype=no.dtype)


@_operator("convert_element_type")
def _convert(to: Translator, equation: Any, x: Value) -> Value:
    return to.cast(x, equation.params["new_dtype"])


@_operator("reshape")
def _reshape(to: Translator, equation: Any, x: Value) -> Value:
    if equation.params["dimensions"] is not None:
        raise NotImplementedError("reshape with another order of axes has no translation.")
    new = equation.params["new_sizes"]
    old = equation.invars[0].aval.shape
    if [n for n in new if not same(n, 1)] == [n for n in old if not same(n, 1)] and x.shape != old:
        # It adds or removes axes of size 1 of what may be broadcast.
        sizes = iter([have for have, n in zip(x.shape, old, strict=True) if not same(n, 1)])
        return to.reshape(x, tuple(1 if same(n, 1) else next(sizes) for n in new))
    return to.reshape(to.whole(x, equation.invars[0].aval), new)


@_operator("squeeze")
def _squeeze(to: Translator, equation: Any, x: Value) -> Value:
    axes = [axis % len(x.shape) for axis in equation.params["dimensions"]]
    return to.reshape(x, tuple(n for axis, n in enumerate(x.shape) if axis not in axes))


@_operator("expand_dims")
def _expand_dims(to: Translator, equation: Any, x: Value) -> Value:
    shape = [*x.shape]
    for axis in equation.params["dimensions"]:
        shape.insert(axis, 1)
    return to.reshape(x, tuple(shape))


@_operator("broadcast_in_dim")
def _broadcast(to: Translator, equation: Any, x: Value, *sizes: Value) -> Value:
    shape: list[Dimension] = [1] * len(equation.params["shape"])
    for size, axis in zip(x.shape, equation.params["broadcast_dimensions"], strict=True):
        shape[axis] = size
    return to.reshape(x, tuple(shape))


@_operator("transpose")
def _transpose(to: Translator, equation: Any, x: Value) -> Value:
    return to.transpose(x, equation.params["permutation"])


@_operator("concatenate")
def _concatenate(to: Translator, equation: Any, *parts: Value) -> Value:
    whole = [to.whole(x, of.aval) for x, of in zip(parts, equation.invars, strict=True)]
    shape = equation.outvars[0].aval.shape
    return to.concatenate(whole, equation.params["dimension"], shape)


@_operator("stack")
def _stack(to: Translator, equation: Any, *parts: Value) -> Value:
    axis = equation.params["axis"]
    shape = equation.outvars[0].aval.shape
    rows = []
    for part, variable in zip(parts, equation.invars, strict=True):
        whole = to.whole(part, variable.aval)
        rows.append(to.reshape(whole, (*shape[:axis], 1, *shape[axis + 1 :])))
    return to.concatenate(rows, axis, shape)


@_operator("unstack")
def _unstack(to: Translator, equation: Any, x: Value) -> list[Value]:
    axis = equation.params["axis"]
    x = to.whole(x, equation.invars[0].aval)
    parts = []
    for index, variable in enumerate(equation.outvars):
        starts: list[Dimension] = [0] * len(x.shape)
        limits = [*x.shape]
        starts[axis], limits[axis] = index, index + 1
        part = to.slice(x, tuple(starts), tuple(limits))
        parts.append(to.reshape(part, variable.aval.shape))
    return parts


@_operator("slice")
def _slice(to: Translator, equation: Any, x: Value) -> Value:
    params = equation.params
    x = to.whole(x, equation.invars[0].aval)
    return to.slice(x, params["start_indices"], params["limit_indices"], params["strides"])


@_operator("split")
def _split(to: Translator, equation: Any, x: Value) -> list[Value]:
    x = to.whole(x, equation.invars[0].aval)
    axis = equation.params["axis"]
    parts = []
    start = 0
    for size in equation.params["sizes"]:
        starts: list[Dimension] = [0] * len(x.shape)
        limits = [*x.shape]
        starts[axis], limits[axis] = start, start + size
        parts.append(to.slice(x, tuple(starts), tuple(limits)))
        start += size
    return parts


@_operator("rev")
def _rev(to: Translator, equation: Any, x: Value) -> Value:
    axes = equation.params["dimensions"]
    x = to.whole(x, equation.invars[0].aval)
    last = np.full(len(axes), -1, np.int64)
    before = np.full(len(axes), np.iinfo(np.int64).min, np.int64)
    where = np.array(axes, np.int64)
    return to.add("Slice", x, last, before, where, last, dtype=x.dtype, shape=x.shape)


@_operator("pad")
def _pad(to: Translator, equation: Any, x: Value, fill: Value) -> Value:
    x = to.whole(x, equation.invars[0].aval)
    config = equation.params["padding_config"]
    if any(inside for *_, inside in config):
        raise NotImplementedError("pad between elements has no translation.")
    pads = [before for before, *_ in config] + [after for _, after, _ in config]
    shape = equation.outvars[0].aval.shape
    return to.add("Pad", x, to.graph.sizes(pads), fill, dtype=x.dtype, shape=shape)


@_operator("iota")
def _iota(to: Translator, equation: Any) -> Value:
    params = equation.params
    axis = params["dimension"]
    size = params["shape"][axis]
    end = to.reshape(to.graph.size(size), ())
    zero, one = np.array(0), np.array(1)
    places = to.add("Range", zero, end, one, dtype=np.int64, shape=(size,))
    shape: list[Dimension] = [1] * len(params["shape"])
    shape[axis] = size
    return to.reshape(to.cast(places, params["dtype"]), tuple(shape))


@_operator("dim_as_value")
def _dim_as_value(to: Translator, equation: Any) -> Value:
    size = to.graph.size(equation.params["dim"])
    return to.cast(to.reshape(size, ()), equation.outvars[0].aval.dtype)


_REDUCTIONS = {
    "reduce_max": "ReduceMax",
    "reduce_min": "ReduceMin",
    "reduce_sum": "ReduceSum",
    "reduce_prod": "ReduceProd",
    "reduce_or": "ReduceMax",
    "reduce_and": "ReduceMin",
}


@_operator(*_REDUCTIONS)
def _reduce(to: Translator, equation: Any, x: Value) -> Value:
    x = to.whole(x, equation.invars[0].aval)
    numbers = to.cast(x, np.int32) if x.dtype == bool else x
    reduced = to.add(
        _REDUCTIONS[equation.primitive.name],
        numbers,
        np.array(equation.params["axes"], np.int64),
        dtype=numbers.dtype,
        shape=equation.outvars[0].aval.shape,
        keepdims=0,
    )
    return to.cast(reduced, x.dtype)


@_operator("argmax", "argmin")
def _argmax(to: Translator, equation: Any, x: Value) -> Value:
    x = to.whole(x, equation.invars[0].aval)
    if x.dtype == bool:
        x = to.cast(x, np.int32)
    (axis,) = equation.params["axes"]
    op = {"argmax": "ArgMax", "argmin": "ArgMin"}[equation.primitive.name]
    shape = equation.outvars[0].aval.shape
    place = to.add(op, x, dtype=np.int64, shape=shape, axis=axis, keepdims=0)
    return to.cast(place, equation.params["index_dtype"])


@_operator("cumsum")
def _cumsum(to: Translator, equation: Any, x: Value) -> Value:
    x = to.whole(x, equation.invars[0].aval)
    axis = np.array(equation.params["axis"])
    reverse = int(equation.params["reverse"])
    return to.add("CumSum", x, axis, dtype=x.dtype, shape=x.shape, reverse=reverse)


@_operator("dot_general")
def _dot(to: Translator, equation: Any, lhs: Value, rhs: Value) -> Value:
    """MatMul of lhs [*batch, *rows, *K] and rhs [*batch, *K, *columns], in this order of axes."""
    (of_lhs, of_rhs), (lhs_batch, rhs_batch) = equation.params["dimension_numbers"]
    lhs = to.whole(lhs, equation.invars[0].aval)
    rhs = to.whole(rhs, equation.invars[1].aval)
    rows = [axis for axis in range(len(lhs.shape)) if axis not in (*of_lhs, *lhs_batch)]
    columns = [axis for axis in range(len(rhs.shape)) if axis not in (*of_rhs, *rhs_batch)]
    lhs = to.transpose(lhs, [*lhs_batch, *rows, *of_lhs])
    rhs = to.transpose(rhs, [*rhs_batch, *of_rhs, *columns])
    batch = len(lhs_batch)
    row_sizes = lhs.shape[batch : batch + len(rows)]
    column_sizes = rhs.shape[batch + len(of_rhs) :]
    shared = rhs.shape[:batch]
    depth = math.prod(rhs.shape[batch : batch + len(of_rhs)])
    if batch or not rows:
        matrix_rows: Shape = (math.prod(row_sizes),)
    else:
        matrix_rows = row_sizes  # MatMul takes any number of axes before the last
    left = to.reshape(lhs, (*lhs.shape[:batch], *matrix_rows, depth))
    right = to.reshape(rhs, (*shared, depth, math.prod(column_sizes)))
    product = to.add(
        "MatMul",
        left,
        right,
        dtype=lhs.dtype,
        shape=(*lhs.shape[:batch], *matrix_rows, math.prod(column_sizes)),
    )
    result = to.reshape(product, (*lhs.shape[:batch], *row_sizes, *column_sizes))
    return to.cast(result, equation.outvars[0].aval.dtype)


@_operator("gather")
def _gather(to: Translator, equation: Any, x: Value, places: Value) -> Value:
    """Gather for vectors of a table, else GatherND behind a transpose to its order of axes."""
    numbers = equation.params["dimension_numbers"]
    sizes = equation.params["slice_sizes"]
    x = to.whole(x, equation.invars[0].aval)
    shape = equation.outvars[0].aval.shape
    indexed = [*numbers.start_index_map]
    batch = [*numbers.operand_batching_dims]
    others = [axis for axis in range(len(x.shape)) if axis not in (*indexed, *batch)]
    if not numbers.collapsed_slice_dims and not batch and len(places.shape) == 1:
        return _slice_at(to, equation, x, places)
    taken = {*numbers.collapsed_slice_dims} == {*indexed}
    if not taken or not all(same(sizes[axis], x.shape[axis]) for axis in others):
        raise NotImplementedError(f"gather of slices {sizes} has no translation.")
    if len(indexed) == 1 and not batch:
        (axis,) = indexed
        places = to.reshape(places, places.shape[:-1])
        lead = len(places.shape)
        whole = (*x.shape[:axis], *places.shape, *x.shape[axis + 1 :])
        found = to.add("Gather", x, _plain(to, places), dtype=x.dtype, shape=whole, axis=axis)
        first = axis
    else:
        where = equation.invars[1].aval
        places = to.cast(to.whole(_plain(to, places), where), np.int64)
        lead = len(places.shape) - 1
        of_batch = [*numbers.start_indices_batching_dims]
        if of_batch != [*range(len(batch))]:
            raise NotImplementedError("gather with another order of batches has no translation.")
        turned = to.transpose(x, [*batch, *indexed, *others])
        whole = (*places.shape[:-1], *(x.shape[axis] for axis in others))
        found = to.add(
            "GatherND", turned, places, dtype=x.dtype, shape=whole, batch_dims=len(batch)
        )
        first = 0
    # The axes of the places come in front, or where the axis was; `offset_dims` are the others.
    offsets = [axis for axis in range(len(whole)) if not first <= axis < first + lead]
    order = []
    of_places = iter(range(first, first + lead))
    of_offsets = iter(offsets)
    for axis in range(len(shape)):
        order.append(next(of_offsets if axis in numbers.offset_dims else of_places))
    return to.transpose(found, order)


@_operator("scatter-add")
def _scatter_add(to: Translator, equation: Any, x: Value, places: Value, by: Value) -> Value:
    """Adds numbers to x [B, N] at places [B, L, 1] of each row, as sums over segments do."""
    numbers = equation.params["dimension_numbers"]
    is_by_row = numbers.operand_batching_dims == (0,) == numbers.scatter_indices_batching_dims
    if not is_by_row or numbers.update_window_dims or len(equation.outvars[0].aval.shape) != 2:
        raise NotImplementedError(f"scatter-add with {numbers} has no translation.")
    x, places, by = map(to.whole, (x, places, by), (var.aval for var in equation.invars))
    at = to.cast(to.reshape(places, places.shape[:-1]), np.int64)
    return to.add(
        "ScatterElements", x, at, by, dtype=x.dtype, shape=x.shape, axis=1, reduction="add"
    )


def _slice_at(to: Translator, equation: Any, x: Value, places: Value) -> Value:
    """Returns the slice of x that begins at `places`, which is known to lie in x."""
    axes = equation.params["dimension_numbers"].start_index_map
    sizes = to.graph.sizes([equation.params["slice_sizes"][axis] for axis in axes])
    starts = to.cast(places, np.int64)
    ends = to.elementwise("Add", starts, sizes)
    shape = equation.outvars[0].aval.shape
    return to.add("Slice", x, starts, ends, np.array(axes), dtype=x.dtype, shape=shape)


def _plain(to: Translator, places: Value) -> Value:
    """Returns places without jax handling negative ones, which ONNX counts from the end, too."""
    node = to.graph.producer(places, "Reshape")
    if node is not None:
        inner = _plain(to, node.inputs[0])
        return places if inner is node.inputs[0] else to.reshape(inner, places.shape)
    node = to.graph.producer(places, "Where")
    if node is not None:
        is_negative, _, plain = node.inputs
        compared = to.graph.producer(is_negative, "Less")
        if compared is not None and compared.inputs[0] is plain:
            return plain
    return places


@_operator("normalization")
def _normalization(to: Translator, equation: Any, x: Value, *parameters: Value) -> Value:
    epsilon = equation.params["epsilon"]
    if equation.params["kind"] == "layer_norm":
        return to.add(
            "LayerNormalization",
            x,
            *parameters,
            dtype=x.dtype,
            shape=x.shape,
            axis=-1,
            epsilon=epsilon,
        )
    # In this form, ONNX Runtime joins them to one operator.
    (scale,) = parameters
    squares = to.elementwise("Pow", x, scalar(2, x))
    mean = to.add(
        "ReduceMean",
        squares,
        np.array([-1]),
        dtype=x.dtype,
        shape=(*x.shape[:-1], 1),
        keepdims=1,
    )
    root = to.elementwise("Sqrt", to.elementwise("Add", mean, scalar(epsilon, x)))
    return to.elementwise("Mul", to.elementwise("Div", x, root), scale)


# Patterns of several operators for which ONNX has one: (to, output of the last node) -> what
# replaces it, or None if it is no such pattern.


def _as_gelu(to: Translator, product: Tensor) -> Value | None:
    """x / 2 * (1 + erf(x / sqrt(2))) is Gelu(x)."""
    node = to.graph.producer(product, "Mul")
    for half, rest in (node.inputs, node.inputs[::-1]) if node else ():
        halved = to.graph.producer(half, "Mul")
        added = to.graph.producer(rest, "Add")
        if halved is None or added is None or to.opset < 20:
            continue
        x = _other(halved, 0.5)
        curve = _other(added, 1.0)
        erf = to.graph.producer(curve, "Erf") if curve is not None else None
        scaled = to.graph.producer(erf.inputs[0], "Mul") if erf else None
        if scaled is not None and x is not None and _other(scaled, 0.5**0.5) is x:
            return to.graph.one("Gelu", x, dtype=x.dtype, shape=x.shape)
    return None


def _other(node: Any, number: float) -> Value | None:
    """Returns the input of a node with two inputs besides one that is `number`; None: none is."""
    for value, other in (node.inputs, node.inputs[::-1]):
        if isinstance(value, np.ndarray) and value.size == 1:
            if math.isclose(float(value.item()), number, rel_tol=1e-3):
                return other
    return None


def _as_softmax(to: Translator, quotient: Tensor) -> Value | None:
    """exp(x - c) / sum of exp(x - c) is Softmax(x), for c that is the same along the axis."""
    node = to.graph.producer(quotient, "Div")
    assert node is not None
    exponential = to.graph.producer(node.inputs[0], "Exp")
    total = node.inputs[1]
    while reshaped := to.graph.producer(total, "Reshape"):
        total = reshaped.inputs[0]
    summed = to.graph.producer(total, "ReduceSum")
    if exponential is None or summed is None or summed.inputs[0] is not node.inputs[0]:
        return None
    shifted = to.graph.producer(exponential.inputs[0], "Sub")
    axes = summed.inputs[1]
    if shifted is None or not isinstance(axes, np.ndarray) or axes.size != 1:
        return None
    axis = int(axes.item())
    x, shift = shifted.inputs
    if not same(shift.shape[axis], 1):
        return None
    x = _with_bias(to, x)
    return to.graph.one("Softmax", x, dtype=x.dtype, shape=x.shape, axis=axis)


def _with_bias(to: Translator, x: Value) -> Value:
    """Adds 0 or the lowest number to scores in place of a choice: a mask serves all layers so."""
    node = to.graph.producer(x, "Where")
    if node is None:
        return x
    mask, scores, lowest = node.inputs
    is_lowest = isinstance(lowest, np.ndarray) and lowest.size == 1
    if not is_lowest or lowest.item() != np.finfo(lowest.dtype).min:  # type: ignore[union-attr]
        return x
    bias = to.elementwise("Where", mask, scalar(0, scores), lowest, dtype=scores.dtype)
    return to.elementwise("Add", scores, bias)


def _as_part(to: Translator, part: Tensor) -> Value | None:
    """A slice of joined values that is one of them is this value."""
    node = to.graph.producer(part, "Slice")
    assert node is not None
    joined = to.graph.producer(node.inputs[0], "Concat")
    bounds = node.inputs[1:]
    if joined is None or not all(isinstance(x, np.ndarray) and x.size == 1 for x in bounds):
        return None
    start, limit, axis, step = (int(x.item()) for x in bounds)  # type: ignore[union-attr]
    first = 0
    if axis != joined.attributes["axis"] or step != 1:
        return None
    for value in joined.inputs:
        size = value.shape[axis]
        if not is_number(size):
            return None
        if (first, first + size) == (start, limit):
            return value
        first += size
    return None


SIMPLIFICATIONS: dict[str, Callable[[Translator, Tensor], Value | None]] = {
    "Mul": _as_gelu,
    "Div": _as_softmax,
    "Slice": _as_part,
}
