"""The operators of ONNX for the primitives of jax, and the patterns that are simplified.

Each function of `OPERATORS` adds the nodes of one operation: (to, out, *inputs, **params) -> the
output, or a list of outputs. `to` is the translator, `out` the shape and dtype of the (first)
output, and `params` are those of the primitive.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from bertjax.inference.onnx_graph import Dimension, Kind, Node, Shape, Value, is_number
from bertjax.inference.onnx_translation import Translator, same, untranslated

Operator = Callable[..., Any]
OPERATORS: dict[str, Operator] = {}


def _operator(*names: str) -> Callable[[Operator], Operator]:
    def register(function: Operator) -> Operator:
        OPERATORS.update(dict.fromkeys(names, function))
        return function

    return register


def _elementwise(op: str) -> Operator:
    def add(to: Translator, out: Any, *inputs: Value, **params: Any) -> Value:
        return to.elementwise(op, *inputs, dtype=out.dtype)

    return add


_SAME = (
    *("abs Abs", "add Add", "cos Cos", "div Div", "erf Erf", "exp Exp", "max Max"),
    *("logistic Sigmoid", "min Min", "mul Mul", "neg Neg", "sin Sin", "sqrt Sqrt", "sub Sub"),
    *("eq Equal", "ge GreaterOrEqual", "gt Greater", "le LessOrEqual", "lt Less", "tanh Tanh"),
    *("and And", "not Not"),  # of truth values
)
for _names in _SAME:
    _primitive, _op = _names.split()
    OPERATORS[_primitive] = _elementwise(_op)


def _number(value: Any, like: Value) -> np.ndarray:
    return np.asarray(value, like.dtype)


@_operator("ne")
def _ne(to: Translator, out: Any, first: Value, second: Value) -> Value:
    equal = to.elementwise("Equal", first, second, dtype=bool)
    return to.elementwise("Not", equal)


@_operator("square")
def _square(to: Translator, out: Any, x: Value) -> Value:
    return to.elementwise("Mul", x, x)


@_operator("integer_pow")
def _integer_pow(to: Translator, out: Any, x: Value, *, y: int) -> Value:
    return to.elementwise("Pow", x, _number(y, x))


@_operator("log1p")
def _log1p(to: Translator, out: Any, x: Value, **params: Any) -> Value:
    more = to.elementwise("Add", x, _number(1, x))
    return to.elementwise("Log", more)


@_operator("expm1")
def _expm1(to: Translator, out: Any, x: Value, **params: Any) -> Value:
    power = to.elementwise("Exp", x)
    return to.elementwise("Sub", power, _number(1, x))


@_operator("erfc")
def _erfc(to: Translator, out: Any, x: Value) -> Value:
    erf = to.elementwise("Erf", x)
    return to.elementwise("Sub", _number(1, x), erf)


@_operator("select_n")
def _select(to: Translator, out: Any, which: Value, no: Value, yes: Value) -> Value:
    return to.elementwise("Where", which, yes, no, dtype=out.dtype)


@_operator("convert_element_type")
def _convert(to: Translator, out: Any, x: Value, **params: Any) -> Value:
    return to.cast(x, out.dtype)


@_operator("reshape", "squeeze")
def _reshape(to: Translator, out: Any, x: Value, **params: Any) -> Value:
    return to.reshape(x, out.shape)


@_operator("broadcast_in_dim")
def _broadcast(
    to: Translator, out: Any, x: Value, *, broadcast_dimensions: Sequence[int], **params: Any
) -> Value:
    shape: list[Dimension] = [1] * len(out.shape)
    for size, axis in zip(x.shape, broadcast_dimensions, strict=True):
        shape[axis] = size
    placed = to.reshape(x, shape)
    return to.expand(to.narrow(placed), out.shape)


@_operator("transpose")
def _transpose(to: Translator, out: Any, x: Value, *, permutation: Sequence[int]) -> Value:
    return to.transpose(x, permutation)


@_operator("concatenate")
def _concatenate(to: Translator, out: Any, *parts: Value, dimension: int) -> Value:
    return to.concatenate(parts, dimension, out.shape)


@_operator("stack")
def _stack(to: Translator, out: Any, *parts: Value, axis: int) -> Value:
    shape = [*out.shape]
    shape[axis] = 1
    rows = [to.reshape(part, shape) for part in parts]
    return to.concatenate(rows, axis, out.shape)


@_operator("slice")
def _slice(to: Translator, out: Any, x: Value, **params: Any) -> Value:
    return to.slice(x, params["start_indices"], params["limit_indices"], params["strides"])


@_operator("split")
def _split(to: Translator, out: Any, x: Value, *, sizes: Sequence[int], axis: int) -> list[Value]:
    parts = []
    start = 0
    for size in sizes:
        parts.append(to.part(x, axis, start, start + size))
        start += size
    return parts


@_operator("rev")
def _rev(to: Translator, out: Any, x: Value, *, dimensions: Sequence[int]) -> Value:
    last = np.full(len(dimensions), -1)
    before = np.full(len(dimensions), np.iinfo(np.int64).min)
    return to.node("Slice", x, last, before, np.array(dimensions), last, out)


@_operator("pad")
def _pad(to: Translator, out: Any, x: Value, fill: Value, *, padding_config: Any) -> Value:
    before = []
    behind = []
    for low, high, _ in padding_config:
        before.append(low)
        behind.append(high)
    pads = to.graph.sizes([*before, *behind])
    return to.node("Pad", x, pads, fill, out)


@_operator("iota")
def _iota(to: Translator, out: Any, *, dimension: int, **params: Any) -> Value:
    size = out.shape[dimension]
    end = to.reshape(to.graph.size(size), ())
    places = to.node("Range", np.array(0), end, np.array(1), Kind((size,), np.int64))
    shape: list[Dimension] = [1] * len(out.shape)
    shape[dimension] = size
    placed = to.reshape(to.cast(places, out.dtype), shape)
    return to.expand(placed, out.shape)


@_operator("dim_as_value")
def _dim_as_value(to: Translator, out: Any, *, dim: Dimension) -> Value:
    size = to.reshape(to.graph.size(dim), ())
    return to.cast(size, out.dtype)


def _reduction(op: str) -> Operator:
    def add(to: Translator, out: Any, x: Value, *, axes: Sequence[int], **params: Any) -> Value:
        numbers = to.cast(x, np.int32) if x.dtype == bool else x
        kind = Kind(out.shape, numbers.dtype)
        reduced = to.node(op, numbers, np.array(axes), kind, keepdims=0)
        return to.cast(reduced, out.dtype)

    return add


for _primitive, _op in (("max", "Max"), ("sum", "Sum"), ("or", "Max")):
    OPERATORS[f"reduce_{_primitive}"] = _reduction(f"Reduce{_op}")


@_operator("cumsum")
def _cumsum(to: Translator, out: Any, x: Value, *, axis: int, reverse: bool) -> Value:
    return to.node("CumSum", x, np.array(axis), out, reverse=int(reverse))


@_operator("dot_general")
def _dot(to: Translator, out: Any, lhs: Value, rhs: Value, **params: Any) -> Value:
    """MatMul of lhs [*batch, *rows, *K] and rhs [*batch, *K, *columns], in this order of axes."""
    (of_lhs, of_rhs), (lhs_batch, rhs_batch) = params["dimension_numbers"]
    rows = [axis for axis in range(len(lhs.shape)) if axis not in (*of_lhs, *lhs_batch)]
    columns = [axis for axis in range(len(rhs.shape)) if axis not in (*of_rhs, *rhs_batch)]
    lhs = to.transpose(lhs, [*lhs_batch, *rows, *of_lhs])
    rhs = to.transpose(rhs, [*rhs_batch, *of_rhs, *columns])
    batch = lhs.shape[: len(lhs_batch)]
    row_sizes = lhs.shape[len(batch) : len(batch) + len(rows)]
    if batch or not rows:  # else MatMul takes any number of axes before the last
        row_sizes = (math.prod(row_sizes),)
    depth = math.prod(lhs.shape[len(batch) + len(rows) :])
    width = math.prod(rhs.shape[len(batch) + len(of_rhs) :])
    left = to.reshape(lhs, (*batch, *row_sizes, depth))
    right = to.reshape(rhs, (*batch, depth, width))
    product = to.node("MatMul", left, right, Kind((*batch, *row_sizes, width), lhs.dtype))
    product = to.reshape(product, out.shape)
    return to.cast(product, out.dtype)


@_operator("gather")
def _gather(to: Translator, out: Any, x: Value, places: Value, **params: Any) -> Value:
    """Slice for one slice, Gather for vectors of a table, GatherND for those of each row."""
    numbers = params["dimension_numbers"]
    sizes = params["slice_sizes"]
    indexed = numbers.start_index_map
    batch = numbers.operand_batching_dims
    if not numbers.collapsed_slice_dims and not batch:
        return _slice_at(to, out, x, places, indexed, sizes)
    others = [axis for axis in range(len(x.shape)) if axis not in (*batch, *indexed)]
    is_first = batch == numbers.start_indices_batching_dims == tuple(range(len(batch)))
    if not is_first or not all(same(sizes[axis], x.shape[axis]) for axis in others):
        raise untranslated(f"gather of slices {sizes} with {numbers}")
    places = _plain(to, places)
    lead = places.shape[:-1]
    first = 0  # axis of the result at which the axes of the places begin
    if len(indexed) == 1 and not batch:
        first = indexed[0]
        at = to.narrow(to.reshape(places, lead))
        shape = (*x.shape[:first], *at.shape, *x.shape[first + 1 :])
        found = to.node("Gather", x, at, Kind(shape, x.dtype), axis=first)
    else:
        turned = to.transpose(x, [*batch, *indexed, *others])
        at = to.cast(places, np.int64)
        kind = Kind((*lead, *(x.shape[axis] for axis in others)), x.dtype)
        found = to.node("GatherND", turned, at, kind, batch_dims=len(batch))
    order = _order_of_gathered(len(out.shape), first, len(lead), numbers.offset_dims)
    return to.expand(to.transpose(found, order), out.shape)


def _slice_at(
    to: Translator, out: Any, x: Value, places: Value, axes: Sequence[int], sizes: Shape
) -> Value:
    """Returns the slice of these sizes that starts at one place."""
    starts = to.cast(places, np.int64)
    of_axes = to.graph.sizes([sizes[axis] for axis in axes])
    ends = to.elementwise("Add", starts, of_axes)
    return to.node("Slice", x, starts, ends, np.array(axes), out)


def _order_of_gathered(
    ndim: int, first: int, of_places: int, offset_dims: Sequence[int]
) -> list[int]:
    """Returns the order of axes that jax has of a result of Gather.

    The axes of the places are `of_places` axes from `first` in the result of ONNX, and those
    outside `offset_dims` in that of jax.
    """
    behind = first + of_places
    places = iter(range(first, behind))
    others = iter([*range(first), *range(behind, ndim)])
    order = []
    for axis in range(ndim):
        source = others if axis in offset_dims else places
        order.append(next(source))
    return order


def _plain(to: Translator, places: Value) -> Value:
    """Returns places before jax's handling of negative ones, which ONNX counts from the end."""
    node = to.producer(places, "Reshape", "Expand")
    if node is not None:
        plain = _plain(to, node.inputs[0])
        if node.op == "Expand":
            return to.expand(plain, places.shape)
        return to.reshape(plain, places.shape)
    node = to.producer(places, "Where")
    if node is not None and to.producer(node.inputs[0], "Less"):
        return node.inputs[2]
    return places


@_operator("scatter-add")
def _scatter_add(to: Translator, out: Any, x: Value, places: Value, by: Value, **params: Any):
    """Adds numbers to x [B, N] at places [B, L, 1] of each row, as sums over segments do."""
    numbers = params["dimension_numbers"]
    if numbers.operand_batching_dims != (0,) or numbers.update_window_dims or len(x.shape) != 2:
        raise untranslated(f"scatter-add with {numbers}")
    at = to.cast(to.reshape(places, places.shape[:-1]), np.int64)
    return to.node("ScatterElements", x, at, by, out, axis=1, reduction="add")


@_operator("normalization")
def _normalization(
    to: Translator, out: Any, x: Value, *parameters: Value, epsilon: float, kind: str
) -> Value:
    if kind == "layer_norm":
        return to.node("LayerNormalization", x, *parameters, out, axis=-1, epsilon=epsilon)
    # In this form, ONNX Runtime joins the operators to one.
    squares = to.elementwise("Pow", x, _number(2, x))
    of_mean = Kind((*out.shape[:-1], 1), x.dtype)
    mean = to.node("ReduceMean", squares, np.array([-1]), of_mean, keepdims=1)
    variance = to.elementwise("Add", mean, _number(epsilon, x))
    root = to.elementwise("Sqrt", variance)
    quotient = to.elementwise("Div", x, root)
    return to.elementwise("Mul", quotient, parameters[0])


# Patterns of several operators for which ONNX has one: (to, output of the last node) -> what
# replaces it, or None if it is no such pattern.


def _as_gelu(to: Translator, product: Value) -> Value | None:
    """x / 2 * (1 + erf(x / sqrt(2))) is Gelu(x)."""
    first, second = product.node.inputs  # type: ignore[union-attr]
    halved = to.producer(first, "Mul")
    added = to.producer(second, "Add")
    x = _other(halved, "Mul", 0.5)
    erf = to.producer(_other(added, "Add", 1.0), "Erf")
    if x is None or erf is None or to.opset < 20:
        return None
    scaled = to.producer(erf.inputs[0], "Mul")
    if _other(scaled, "Mul", 0.5**0.5) is not x:
        return None
    return to.graph.node("Gelu", x, x)


def _other(node: Node | None, op: str, number: float) -> Value | None:
    """Returns the input of a node besides one that is a number; None: it is another node."""
    if node is None or node.op != op:
        return None
    for value, other in (node.inputs, node.inputs[::-1]):
        if value.array is not None and value.array.size == 1:
            if math.isclose(value.array.item(), number, rel_tol=1e-3):
                return other
    return None


def _as_softmax(to: Translator, quotient: Value) -> Value | None:
    """exp(x - c) / sum of exp(x - c) is Softmax(x), for c that is the same along the axis."""
    powers, total = quotient.node.inputs  # type: ignore[union-attr]
    while reshaped := to.producer(total, "Reshape"):
        total = reshaped.inputs[0]
    summed = to.producer(total, "ReduceSum")
    exponential = to.producer(powers, "Exp")
    shifted = to.producer(exponential.inputs[0], "Sub") if exponential else None
    if summed is None or shifted is None or summed.inputs[0] is not powers:
        return None
    x, shift = shifted.inputs
    axes = summed.inputs[1].array
    if axes is None or axes.size != 1 or not same(shift.shape[axes.item()], 1):
        return None
    x = _with_bias(to, x)
    return to.graph.node("Softmax", x, x, axis=axes.item())


def _with_bias(to: Translator, scores: Value) -> Value:
    """Adds 0 or the lowest number to scores in place of a choice: a mask serves all layers so."""
    node = to.producer(scores, "Where")
    if node is None:
        return scores
    mask, plain, lowest = node.inputs
    if lowest.array is None or lowest.array.size > 1 or lowest.array.item() > -1e38:
        return scores
    bias = to.elementwise("Where", mask, _number(0, plain), lowest, dtype=plain.dtype)
    return to.elementwise("Add", plain, bias)


def _as_part(to: Translator, part: Value) -> Value | None:
    """A slice of joined values that is one of them is this value."""
    whole, *bounds = part.node.inputs  # type: ignore[union-attr]
    joined = to.producer(whole, "Concat")
    arrays = [value.array for value in bounds]
    if joined is None or not all(x is not None and x.size == 1 for x in arrays):
        return None
    start, limit, axis, _ = [int(x.item()) for x in arrays]  # type: ignore[union-attr]
    first = 0
    for value in joined.inputs if axis == joined.attributes["axis"] else ():
        size = value.shape[axis]
        if not is_number(size):
            return None
        if (first, first + size) == (start, limit):
            return value
        first += size
    return None


SIMPLIFICATIONS: dict[str, Callable[[Translator, Value], Value | None]] = {
    "Mul": _as_gelu,
    "Div": _as_softmax,
    "Slice": _as_part,
}
