"""Computes a model's predictions for a stream of examples in constant memory, with few programs.

Sequences are packed into rows (`packed_pieces`), rows are padded to a few lengths (`length_bucket`,
`row_lengths`), and a batch is split into pieces of a few numbers of rows (`piece_sizes`), so that
jax compiles few programs.

Programs read the parameters in the form of `inference_params`. A model stacks the parameters of its
layers in arrays [groups, ...]. A program whose layers are unrolled, as on CPUs, takes slices of
these arrays, and XLA copies every slice, in every call: for BERT-base 340 MB. In the form for
inference, the parameters of each layer are then arrays of their own, and kernels have the data type
in which the model multiplies; in bfloat16, their output axes come first, because instructions for
bfloat16 read neighbours along the contracted axis. `stacked` restores the form of the model inside
of the program, where the compiler removes the stacking, slicing and transposing.
"""

import dataclasses
import functools
import itertools
import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Literal, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from bertjax.config import MeshConfig
from bertjax.data.batches.batch import Batch, Feature
from bertjax.data.preparation.packing import pack
from bertjax.devices import sharding
from bertjax.devices.kernels import choose_unroll
from bertjax.model import BertWithHead
from bertjax.model.attention import BY_HEAD
from bertjax.model.bert import MODEL_INPUTS
from bertjax.tasks import Example, Prediction, Task
from bertjax.tasks.task import Outputs, TruncatedTexts
from bertjax.tasks.training_data import (
    SHORTEST_ROW,
    Labels,
    Placement,
    RowShape,
    make_rows,
    row_shape,
)
from bertjax.tokenization import Tokenizer

WINDOW = 2048
WINDOW_CHARACTERS = 1 << 21
# Smallest row length for very few tokens.
SMALLEST_ROW = 8
ROW_FACTOR = 4
# Maximum number of tokens per device in one call of the model. On CPUs, 1,000 tokens keep two cores
# busy, and the activations of more than 2,000 leave their caches.
TOKENS_ON_CPU = 2048
TOKENS_ON_ACCELERATOR = 65536
FINE_STEPS = 8
# How features are laid out: packed in rows of lengths that are chosen for them, packed in rows of
# fixed lengths, or one in each row, for programs that jax does not compile.
Layout = Literal["packed", "fixed", "single"]
Program = Callable[[Any, Batch], Any]
LAYERS = "layers"
KERNEL = "kernel"

Started = TypeVar("Started")
Build = TypeVar("Build", bound=Callable[..., Any])


class Groups:
    """Divides a stream of examples into groups that are read and predicted together.

    A group ends after `WINDOW` examples or `WINDOW_CHARACTERS` characters, which bounds the memory.
    An interrupted prediction continues with a group, because numbers differ in their last bits if a
    text is computed together with others.
    """

    def __init__(self, task: Task, max_length: int):
        self._most = math.inf
        if not task.reads_windows:
            # Only the beginnings of texts are encoded; most tokens have a few characters.
            self._most = 8 * max_length
        self._examples = self._characters = 0

    def ends_with(self, example: Example) -> bool:
        """Adds the next example of the stream; returns whether it is the last of its group."""
        texts = (example.text, example.pair or "", *example.choices, *example.words)
        size = sum(map(len, texts))
        most = self._most * (1 + len(example.choices))
        self._characters += min(size, most)
        self._examples += 1
        is_last = self._examples >= WINDOW or self._characters >= WINDOW_CHARACTERS
        if is_last:
            self._examples = self._characters = 0
        return is_last


def labels_of(task: Task, class_weights: tuple[float, ...] | None = None) -> Labels:
    """Returns the label kind, number of classes, number of choices and class weights of a task.

    `class_weights` are the weights of the classes in the loss; None: all are 1.
    """
    return Labels(
        task.label_kind,
        num_classes=max(1, len(task.labels)),
        num_choices=getattr(task, "num_choices", 1),
        class_weights=class_weights,
    )


class Piece(NamedTuple):
    """The rows that one call of the model computes; the last ones may be padding.

    `placements` are {index of a feature: its row, slot and start in the batch}.
    """

    batch: Batch
    placements: dict[int, Placement]


class Predictor:
    """Computes a model's predictions for the examples of a task.

    The rows are sharded over the `mesh`, at most `batch_size` per device in one call of the model;
    None: enough rows to keep the devices busy. `truncated` counts the examples of `max_length`
    tokens, which may have been truncated, unless the task reads windows. `layout` is as of
    `packed_pieces`.
    """

    layout: Layout = "packed"

    def __init__(
        self,
        task: Task,
        model: BertWithHead,
        tokenizer: Tokenizer,
        max_length: int,
        mesh: Mesh,
        batch_size: int | None = None,
    ):
        self._task = task
        self._tokenizer = tokenizer
        self._max_length = max_length
        self._labels = labels_of(task)
        self._sequence_outputs = model.sequence_outputs
        self._rows = sharding.batch_sharding(mesh)
        self._devices = mesh.shape["data"] * mesh.shape["fsdp"]
        self._batch_size = batch_size
        self._program = compiled_program(model, read_head, mesh)
        self._run: Program = self._run_on_devices
        self.before_batch: Callable[[], None] = lambda: None
        # Called with the number of features of each batch that is finished.
        self.after_batch: Callable[[int], None] = lambda count: None
        self.truncated = TruncatedTexts(task, max_length)

    def __call__(
        self, params: Any, examples: Iterable[Example], *, report_problems: bool = False
    ) -> Iterator[tuple[Example, Prediction]]:
        """Yields (example, prediction) for every example, in the order of `examples`.

        If `report_problems` is False, an example that cannot be read or encoded raises ValueError.
        Otherwise, its prediction is {"error": reason}; if only its label is wrong, it is predicted,
        and the prediction has the entry {"problem": reason}. In both cases, the example is yielded
        without its label.
        """
        # With `map`, no variable here keeps a group while the next one is encoded.
        for predictions in map(
            functools.partial(self._predict_group, params), self._groups(examples, report_problems)
        ):
            yield from predictions

    def _predict_group(
        self, params: Any, group: list[tuple[Example, Sequence[Feature], str]]
    ) -> Iterator[tuple[Example, Prediction]]:
        all_features = itertools.chain.from_iterable(features for _, features, _ in group)
        all_outputs = self.outputs(params, [*all_features])
        for example, features, problem in group:
            outputs = list(itertools.islice(all_outputs, len(features)))
            if problem:
                example = dataclasses.replace(example, label=None, answers=())
            if not features:
                yield example, {"error": problem}
                continue
            prediction = self._task.predict(example, features, outputs)
            if problem:
                prediction |= {"problem": problem}
            yield example, prediction

    def _groups(
        self, examples: Iterable[Example], report_problems: bool
    ) -> Iterator[list[tuple[Example, Sequence[Feature], str]]]:
        """Encodes examples; yields groups of (example, features, what is wrong with it or "")."""
        groups = Groups(self._task, self._max_length)
        group = []
        for example in examples:
            features, problem = self._encode(example, report_problems)
            self.truncated.add(example, features)
            group.append((example, features, problem))
            if groups.ends_with(example):
                yield group
                group = []
        if group:
            yield group

    def _encode(self, example: Example, report_problems: bool) -> tuple[Sequence[Feature], str]:
        """Returns (features of an example, what is wrong with the example or "").

        If only the label is wrong, the features have no labels.
        """
        problem = example.problem
        if problem and not report_problems:
            raise ValueError(problem)
        if problem and not (example.text or example.words):
            return (), problem
        unlabelled = dataclasses.replace(example, label=None)
        for candidate in (example, unlabelled):
            try:
                features = self._task.features_to_predict(
                    candidate, self._tokenizer, self._max_length
                )
                return features, problem
            except ValueError as error:
                if not report_problems:
                    raise
                problem = str(error)
        return (), problem

    def outputs(self, params: Any, features: Sequence[Feature]) -> Iterator[Outputs]:
        """Yields {name of an output: array} for each of `features`, in order.

        `params` are the parameters, as `inference_params` prepares them. Features are encoded
        sequences or multiple-choice examples.
        """
        outputs: list[Any] = [{} for _ in features]
        pieces = packed_pieces(
            features,
            limit=self._max_length * self._labels.num_choices,
            pad_token_id=self._tokenizer.pad_token_id,
            num_choices=self._labels.num_choices,
            batch_size=self._batch_size,
            devices=self._devices,
            layout=self.layout,
        )

        def start() -> Iterator[tuple[Piece, dict[str, jax.Array]]]:
            for piece in pieces:
                self.before_batch()
                yield piece, self._run(params, piece.batch)

        for piece, values in read_behind(start()):
            for key, value in values.items():
                array = np.asarray(value)
                for index, place in piece.placements.items():
                    part = self._part(features[index], place, key in self._sequence_outputs)
                    outputs[index][key] = self._task.kept(array[place.row, part])
            self.after_batch(len(piece.placements))
        return iter(outputs)

    def _part(self, feature: Feature, place: Placement, of_sequences: bool) -> Any:
        """Returns where the outputs of a feature are in its row: its sequences, or its tokens."""
        if not of_sequences:
            return slice(place.start, place.start + len(feature.input_ids))
        if self._labels.num_choices > 1:
            return slice(place.slot, place.slot + len(feature.lengths))
        return place.slot

    def compute_by(self, program: Program) -> None:
        """Computes by a program for rows of one sequence, such as one of ONNX Runtime."""
        self._run = program
        self.layout = "single"

    def _run_on_devices(self, params: Any, batch: Batch) -> dict[str, jax.Array]:
        rows = len(batch["input_ids"])
        held = sharding.host_rows(self._rows, rows)
        local = {key: values[held] for key, values in batch.items()}
        on_devices = sharding.to_devices(local, np.arange(rows)[held], self._rows, rows)
        return self._program(params, on_devices)


def _cached(build: Build) -> Build:
    cached: Any = functools.lru_cache(maxsize=64)(build)  # its type would hide the arguments
    return cached


@_cached
def compiled_program(
    model: BertWithHead,
    read: Callable[[BertWithHead, dict[str, Any]], Any],
    mesh: Mesh | None = None,
    *,
    hidden_states: bool = False,
    attentions: bool = False,
) -> Callable[..., Any]:
    """Returns the jitted function (params, batch) -> `read` of the outputs of the model.

    A batch has arrays of B rows, under the names of the arguments of the model. Equal models share
    compiled programs, because the programs do not depend on the parameters.

    `read` is a function (model, outputs), where outputs have the attention of all layers under
    "intermediates", if that is asked for. The result is replicated over the devices of `mesh`.
    """

    def apply(params: Any, batch: Any) -> Any:
        outputs, sown = model.apply(
            {"params": stacked(params)},
            **batch,
            output_hidden_states=hidden_states,
            mutable=["intermediates"] if attentions else [],
        )
        return read(model, {**outputs, **sown})

    return jax.jit(apply, out_shardings=sharding.replicated(mesh) if mesh else None)


def read_head(model: BertWithHead, outputs: dict[str, Any]) -> dict[str, Any]:
    """Returns the outputs of the head alone."""
    return {key: outputs[key] for key in model.outputs}


def packed_pieces(
    features: Sequence[Feature],
    *,
    limit: int,
    pad_token_id: int,
    num_choices: int = 1,
    batch_size: int | None = None,
    devices: int = 1,
    layout: Layout = "packed",
) -> Iterator[Piece]:
    """Packs features into rows, and yields the rows in pieces, short rows first.

    Features of up to half of `SHORTEST_ROW` tokens share rows of `SHORTEST_ROW` tokens; longer ones
    are in rows of the lengths that `row_lengths` chooses, where they may share them, too. Rows that
    do not fill a piece are packed again with the next longer ones, so that only the last pieces
    have rows of padding.

    A feature is an encoded sequence, or an example of multiple choice of `num_choices` sequences,
    of at most `limit` tokens. A piece has at most `batch_size` rows on each of `devices` devices.
    In the layout "fixed", only the powers of two and `limit` are lengths of rows, so that the
    programs of `every_shape` are all; "single" is that of `single_pieces`.
    """
    if layout == "single":
        yield from single_pieces(features, pad_token_id)
        return
    labels = Labels("classes")
    if num_choices > 1:
        labels = Labels("choice", num_choices=num_choices)
    unlabelled = [feature._replace(labels=None) for feature in features]
    sizes = np.array([len(feature.input_ids) for feature in features], int)
    total = min(SHORTEST_ROW, int(sizes.sum()))
    shared = length_bucket(total, SHORTEST_ROW, smallest=SMALLEST_ROW)
    alone = SHORTEST_ROW // 2  # features of up to this length share rows
    compiling = math.inf if layout == "fixed" else compiling_tokens()
    lengths = row_lengths(sizes.tolist(), limit, smallest=alone, compiling=compiling)
    lengths = np.where(lengths <= alone, shared, lengths)
    chosen = np.unique(lengths).tolist()
    waiting: list[int] = []
    for length in chosen:
        members = [*waiting, *np.flatnonzero(lengths == length).tolist()]
        shape = row_shape(length, num_choices, ())
        counts_of_sequences = [num_choices] * len(members)
        rows = []
        for row in pack(sizes[members].tolist(), length, shape.max_sequences, counts_of_sequences):
            rows.append([members[item] for item in row])
        rows.sort(key=lambda row: -int(sizes[row].sum()))
        budget = token_budget(length, batch_size)
        counts = piece_sizes(len(rows), length, budget, devices)
        if length != chosen[-1]:
            # Only pieces of the first size, all of whose rows are used.
            counts = counts[:1] * (len(rows) // counts[0])
        start = 0
        for count in counts:
            taken = rows[start : start + count]
            padding = [[] for _ in range(count - len(taken))]
            batch, placements = make_rows(unlabelled, taken + padding, shape, labels, pad_token_id)
            inputs = {key: batch[key] for key in MODEL_INPUTS}
            yield Piece(inputs, placements)
            start += len(taken)
        waiting = [*itertools.chain.from_iterable(rows[start:])]


def single_pieces(features: Sequence[Feature], pad_token_id: int) -> Iterator[Piece]:
    """Yields pieces of features of similar lengths, one in each row, the short ones first.

    Rows have the length of the longest feature of their piece. A piece has at most `TOKENS_ON_CPU`
    tokens, unless it is one row.
    """
    lengths = [len(feature.input_ids) for feature in features]
    members: list[int] = []
    for index in np.argsort(lengths, kind="stable").tolist():
        length = lengths[index]
        if members:
            similar = max(SMALLEST_ROW, 2 * lengths[members[0]])
            if length > similar or (len(members) + 1) * length > TOKENS_ON_CPU:
                yield _single_rows(features, members, pad_token_id)
                members = []
        members.append(index)
    if members:
        yield _single_rows(features, members, pad_token_id)


def _single_rows(features: Sequence[Feature], members: Sequence[int], pad_token_id: int) -> Piece:
    unlabelled = {index: features[index]._replace(labels=None) for index in members}
    longest = features[members[-1]]
    shape = RowShape(len(longest.input_ids), len(longest.lengths), ())
    rows = [[index] for index in members]
    batch, placements = make_rows(unlabelled, rows, shape, Labels("classes"), pad_token_id)
    return Piece({key: batch[key] for key in MODEL_INPUTS}, placements)


def every_shape(limit: int) -> Iterator[list[int]]:
    """Yields the lengths of features of batches that together need all shapes of packed rows.

    Once they are computed, no batch of features of up to `limit` tokens compiles a program, if
    lengths are fixed, there are no choices, and one device computes.
    """
    short = min(SHORTEST_ROW // 2, limit)
    length = SMALLEST_ROW
    while length < SHORTEST_ROW:
        size = min(length, short)
        yield [size] * (length // 2 // size + 1)  # one row, or two
        yield [2] * (length // 2)
        length *= 2
    for rows in _numbers_of_rows(SHORTEST_ROW):
        yield [short] * (rows * (SHORTEST_ROW // short))
    while short < limit:
        short = min(length, limit)
        for rows in _numbers_of_rows(short):
            yield [short] * rows
        length *= 2


def _numbers_of_rows(length: int) -> list[int]:
    """Returns the numbers of rows of `length` tokens in a piece, as in `piece_sizes`."""
    numbers = [1]
    while numbers[-1] * ROW_FACTOR * length <= token_budget(length, None):
        numbers.append(numbers[-1] * ROW_FACTOR)
    return numbers


def token_budget(length: int, batch_size: int | None, share: int = 1) -> int:
    """Returns the maximum number of tokens per device in one call of the model.

    `length` is the number of tokens per row, and `batch_size` the maximum number of rows; None:
    enough rows to keep the device busy. `share` divides the number of tokens on accelerators, for
    calls whose outputs take much memory.
    """
    tokens = TOKENS_ON_ACCELERATOR // share
    if jax.default_backend() == "cpu":
        tokens = TOKENS_ON_CPU
    if batch_size is not None:
        tokens = min(tokens, batch_size * length)
    return tokens


def length_bucket(length: int, limit: int, *, smallest: int = 32, steps: int = 1) -> int:
    """Returns the bucket of `length`: the number of tokens to which rows of this length are padded.

    The result is at most `limit`, the maximum length of the model, or `length` if that is larger.
    `smallest` is the smallest bucket, a power of two. There are `steps` buckets from one power of
    two to the next, at least 8 tokens apart. More buckets need less padding, but more programs.
    """
    if length > smallest:
        power = 1 << ((length - 1).bit_length() - 1)  # power < length <= 2 * power
        step = max(8, power // steps)
        smallest = -(-length // step) * step
    return min(smallest, max(limit, length))


def compiling_tokens() -> int:
    """Returns about how many tokens a device computes in the time in which a program is compiled.

    The estimate is for encoders of 20 to 110 million parameters: on two cores of a CPU, .3 to .5
    seconds and 1,000 to 8,000 tokens per second; on accelerators, some seconds and a million.
    """
    if jax.default_backend() == "cpu":
        return 2048
    return 1 << 20


def row_lengths(
    lengths: Sequence[int], limit: int, *, smallest: int, compiling: float
) -> np.ndarray:
    """Chooses padded row lengths, int [rows], so that padding and compilation take the least time.

    Powers of two, from `smallest`, are always available, as in `length_bucket`, because programs of
    these lengths serve all later calls. Between two of them, there are up to `FINE_STEPS` finer
    lengths, at least 8 tokens apart; a finer length is used only if it saves more than `compiling`
    tokens of padding. `limit` is the maximum length of the model.
    """
    if not len(lengths):
        return np.zeros(0, int)
    coarse = set()
    fine = set()
    for length in range(1, max(lengths) + 1):
        coarse.add(length_bucket(length, limit, smallest=smallest))
        fine.add(length_bucket(length, limit, smallest=smallest, steps=FINE_STEPS))
    candidates = np.array(sorted(coarse | fine))
    count = len(candidates)
    which = np.searchsorted(candidates, lengths)  # the smallest candidate of each row
    below = np.zeros(count + 1, int)  # the number of rows of the first j candidates
    below[1:] = np.bincount(which, minlength=count).cumsum()
    # best[j]: the least cost of the rows of the first j candidates; taken from candidate start[j].
    best = np.zeros(count + 1)
    start = np.zeros(count + 1, int)
    for j, length in enumerate(candidates.tolist(), start=1):
        penalty = compiling
        if length in coarse:
            penalty = 0
        rows = below[j] - below[:j]
        cost_of_rows = np.where(rows > 0, rows * length + penalty, 0)
        costs = best[:j] + cost_of_rows
        start[j] = costs.argmin()
        best[j] = costs.min()
    chosen = np.zeros(count, int)
    j = count
    while j:
        chosen[start[j] : j] = candidates[j - 1]
        j = int(start[j])
    return chosen[which]


def piece_sizes(rows: int, length: int, tokens: int, devices: int = 1) -> list[int]:
    """Splits a batch of `rows` rows of `length` tokens into pieces of 1, 4, 16, ... rows a device.

    A piece has at most `tokens` tokens per device, unless it has only one row per device. Only the
    last piece may need rows of padding; on a single device, fewer than half of its rows are
    padding. Returns the number of rows of each piece on all `devices`, with padding.
    """
    rows = -(-rows // devices)
    size = 1
    while size * ROW_FACTOR * length <= tokens:
        size *= ROW_FACTOR
    pieces = []
    while size:
        while 2 * rows > size:
            pieces.append(size * devices)
            rows -= size
        size //= ROW_FACTOR
    return pieces


def in_pieces(
    program: Callable[..., Started], params: Any, batch: Batch, tokens: int
) -> Iterator[tuple[int, Started]]:
    """Calls a program (`compiled_program`) on pieces of the rows of a batch of any size.

    Yields (number of rows, outputs of the program, which may have further rows, of padding). A
    piece has at most `tokens` tokens, unless it is one row; without rows, there is one of padding.
    """
    count, length = batch["input_ids"].shape

    def start() -> Iterator[tuple[int, Started]]:
        first = 0
        for size in piece_sizes(max(count, 1), length, tokens):
            used = min(size, count - first)
            padding = ((0, size - used), (0, 0))
            rows = slice(first, first + used)
            padded = {key: np.pad(x[rows], padding) for key, x in batch.items()}
            yield used, program(params, padded)
            first += size

    return read_behind(start())


# Batch axis and token axes of outputs; all others have a batch axis and a token axis.
AXES = {"hidden_states": (1, 2), "attentions": (1, 3, 4), "pooler_output": (0,)}
# Divisor of `token_budget`, because the outputs of all layers and logits over the vocabulary take
# much memory.
BUDGET_SHARE = 4


def model_outputs(
    model: BertWithHead,
    params: Any,
    batch: Batch,
    *,
    hidden_states: bool,
    attentions: bool,
    batch_size: int | None,
) -> dict[str, np.ndarray]:
    """Pads inputs, applies a model without dropout to some rows at a time, and cuts the padding.

    `params` are on the device, in the form of `inference_params`; the batch has input_ids,
    token_type_ids and attention_mask, int [B, L] each. The rest is described at
    `Pretrained.__call__`.
    """
    length = batch["input_ids"].shape[1]
    bucket = length_bucket(length, model.config.max_length)
    padding = ((0, 0), (0, bucket - length))
    padded = {key: np.pad(x, padding) for key, x in batch.items()}
    padded["input_ids"][:, length:] = model.config.pad_token_id or 0
    program = compiled_program(
        for_inference(model), read_all, hidden_states=hidden_states, attentions=attentions
    )
    axes = AXES | dict.fromkeys(model.sequence_outputs, (0,))
    tokens = token_budget(bucket, batch_size, share=BUDGET_SHARE)
    pieces: dict[str, list[np.ndarray]] = {}
    for used, outputs in in_pieces(program, params, padded, tokens):
        for key, values in outputs.items():
            row_axis, *token_axes = axes.get(key, (0, 1))
            cut = [slice(None)] * values.ndim
            cut[row_axis] = slice(used)
            for axis in token_axes:
                cut[axis] = slice(length)
            pieces.setdefault(key, []).append(np.asarray(values)[tuple(cut)])
    whole = {}
    for key, parts in pieces.items():
        row_axis, *_ = axes.get(key, (0, 1))
        whole[key] = parts[0]
        if len(parts) > 1:
            whole[key] = np.concatenate(parts, row_axis)
    return whole


def read_all(model: BertWithHead, outputs: dict[str, Any]) -> dict[str, Any]:
    """Returns all outputs of the model, and "attentions" [layers, B, heads, L, L] if there are."""
    if "intermediates" in outputs:
        layers = outputs.pop("intermediates")["bert"]["encoder"]["layers"]
        probs: Any = layers["attention"]["attention_probs"][0]  # [groups, layers, B, N, L, L]
        outputs["attentions"] = probs.reshape(-1, *probs.shape[-4:])
    return outputs


def read_behind(started: Iterable[Started]) -> Iterator[Started]:
    """Yields the items of `started` in order, each item after the next item has been taken.

    If taking an item starts a computation on the devices, the devices compute while the caller
    reads the outputs of the previous item.
    """
    waiting: deque[Started] = deque()
    for item in started:
        waiting.append(item)
        if len(waiting) > 1:
            yield waiting.popleft()
    yield from waiting


def inference_params(params: Any, model: BertWithHead) -> Any:
    """Returns the parameters of a model on the device, in the form for inference.

    If `for_inference` unrolls the layers, each array of the layers becomes a tuple with one array
    for each group of layers. Kernels get `model.dtype`. `params` may have either form.
    """
    # In a loop over the layers, the compiler could not remove the stacking.
    splits = for_inference(model).unroll > 1

    def convert(path: tuple[Any, ...], x: Any) -> Any:
        keys = _keys(path)
        if keys[-1] == KERNEL:
            x = jnp.asarray(x, model.dtype)
        if splits and LAYERS in keys and not isinstance(path[-1], jax.tree_util.SequenceKey):
            x = tuple(x)
            if keys[-1] == KERNEL and model.dtype == jnp.bfloat16:
                x = tuple(_turned(keys, kernel, outputs_first=True) for kernel in x)
        return jax.device_put(x)

    return jax.tree_util.tree_map_with_path(convert, params)


def _keys(path: tuple[Any, ...]) -> list[str]:
    return [part.key for part in path if isinstance(part, jax.tree_util.DictKey)]


def _turned(keys: list[str], kernel: jax.Array, *, outputs_first: bool) -> jax.Array:
    """Moves the output axes of a kernel [*K, *N] to the front, or back."""
    two_inputs = keys[-3:-1] == ["attention", "output"]  # the others have one
    split = 1
    if two_inputs == outputs_first:
        split = -1
    first = kernel.shape[:split]
    second = kernel.shape[split:]
    matrix = kernel.reshape(math.prod(first), -1)
    return matrix.mT.reshape(*second, *first)


def stacked(params: Any) -> Any:
    """Returns `params`, of either form, with stacked layers; for use inside of a program."""

    def stack(path: tuple[Any, ...], x: Any) -> Any:
        if not isinstance(x, tuple):
            return x
        keys = _keys(path)
        if keys[-1] == KERNEL and x[0].dtype == jnp.bfloat16:
            x = [_turned(keys, kernel, outputs_first=False) for kernel in x]
        return jnp.stack(x)

    return jax.tree_util.tree_map_with_path(stack, params, is_leaf=lambda x: isinstance(x, tuple))


def for_inference(model: BertWithHead) -> BertWithHead:
    """Returns the model whose programs read parameters in the form for inference.

    Its layers are unrolled on CPUs, and a loop elsewhere, where unrolled ones take long to compile.
    On CPUs, long rows are computed one attention head at a time.
    """
    layers = model.config.num_hidden_layers
    kernel = model.attention_kernel
    if jax.default_backend() == "cpu":
        kernel = BY_HEAD
    return model.clone(
        unroll=choose_unroll(None, "none", layers, one_device()),
        attention_kernel=kernel,
    )


def one_device() -> Mesh:
    """Returns the mesh of this process's first device."""
    return sharding.make_mesh(MeshConfig(data=1), jax.local_devices()[:1])
