"""Texts to vectors: pooled hidden states, in the order of the input, in flat memory."""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import jax
import jax.numpy as jnp
import numpy as np

from bertjax.files import writing
from bertjax.weights import LoadedModel

# Texts that are sorted by length together; the next window starts when they are written.
WINDOW = 8192
WINDOW_CHARACTERS = 1 << 22
# Of a line, these are read: more than any model's longest input takes.
LINE_CHARACTERS = 1 << 16
# Tokens a batch: enough to keep two cores or an accelerator busy.
TOKENS = {"cpu": 2048}
TOKENS_ELSEWHERE = 65536


class Embedder:
    """Computes vectors of texts.

    Args:
        loaded: the model; its head is not used.
        pooling: cls, the vector of [CLS]; or mean, of all tokens.
        layers: which hidden states, 0 = embeddings, -1 = the last; several are joined.
    """

    def __init__(self, loaded: LoadedModel, pooling: str = "mean", layers: Sequence[int] = (-1,)):
        count = loaded.config.num_hidden_layers + 1
        wrong = [layer for layer in layers if not -count <= layer < count]
        if wrong or not layers:
            raise ValueError(f"layers={list(layers)}: the model has {-count}..{count - 1}.")
        self._loaded = loaded
        self._params = jax.device_put(loaded.params)
        self.size = loaded.config.hidden_size * len(layers)
        self._tokens = TOKENS.get(jax.default_backend(), TOKENS_ELSEWHERE)
        self._apply = jax.jit(_make_apply(loaded, pooling, tuple(layers)))

    def __call__(self, texts: Sequence[str]) -> np.ndarray:
        """Texts -> float32 [len(texts), size], in their order; long ones are cut."""
        limit = self._loaded.config.max_length
        rows = self._loaded.tokenizer.encode_prompts(texts, limit)
        order = np.argsort([len(ids) for ids in rows], kind="stable")
        vectors = np.empty((len(texts), self.size), np.float32)
        started = []
        for length, members in _batches([len(rows[i]) for i in order], limit, self._tokens):
            chosen = order[members]
            started.append((chosen, self._run([rows[i] for i in chosen], length)))
            # The device works on one batch while the host prepares the next.
            if len(started) > 2:
                _collect(vectors, *started.pop(0))
        for chosen, found in started:
            _collect(vectors, chosen, found)
        return vectors

    def _run(self, rows: Sequence[Sequence[int]], length: int) -> jax.Array:
        size = max(1, self._tokens // length)
        ids = np.full((size, length), self._loaded.tokenizer.pad_token_id, np.int32)
        mask = np.zeros((size, length), np.int32)
        for i, row in enumerate(rows):
            ids[i, : len(row)], mask[i, : len(row)] = row, 1
        return self._apply(self._params, ids, mask)


def _collect(vectors: np.ndarray, chosen: np.ndarray, found: jax.Array) -> None:
    vectors[chosen] = np.asarray(found)[: len(chosen)]


def _make_apply(loaded: LoadedModel, pooling: str, layers: tuple[int, ...]) -> Callable[..., Any]:
    encoder = loaded.model.clone(unroll=loaded.config.num_hidden_layers)
    only_last = layers in ((-1,), (loaded.config.num_hidden_layers,))

    def apply(params: Any, ids: jax.Array, mask: jax.Array) -> jax.Array:
        rows, length = ids.shape
        outputs: Any = encoder.apply(
            {"params": params},
            ids,
            jnp.zeros_like(ids),
            jnp.broadcast_to(jnp.arange(length), (rows, length)),
            mask,
            jnp.zeros((rows, 1), jnp.int32),
            output_hidden_states=not only_last,
        )
        states = (
            [outputs["last_hidden_state"]]
            if only_last
            else [outputs["hidden_states"][layer] for layer in layers]
        )
        x = jnp.concatenate(states, axis=-1).astype(jnp.float32)  # [B, L, D]
        if pooling == "cls":
            return x[:, 0]
        weights = mask[:, :, None].astype(jnp.float32)
        return (x * weights).sum(1) / jnp.maximum(weights.sum(1), 1.0)

    return apply


def _bucket(length: int, limit: int) -> int:
    """Rows are padded to one of some twenty lengths, so that few shapes compile."""
    step = 8 if length <= 64 else 16 if length <= 128 else 64
    return min(-(-length // step) * step, max(limit, length))


def _batches(lengths: Sequence[int], limit: int, tokens: int) -> Iterator[tuple[int, slice]]:
    """Slices of texts sorted by length, with the length that each is padded to."""
    start = 0
    while start < len(lengths):
        length = _bucket(lengths[start], limit)
        end = start
        while end < len(lengths) and lengths[end] <= length and (end - start) < tokens // length:
            end += 1
        end = max(end, start + 1)
        yield length, slice(start, end)
        start = end


def embed_file(embedder: Embedder, source: Path, output: Path) -> int:
    """Writes a vector for each line of a text file, in order; returns how many.

    `.npy`: an array [lines, size]; `.jsonl`: a list a line.

    Raises:
        ValueError: another ending, or a text that is not UTF-8.
        OSError: no file to read, or no space to write; what `output` held stays.
    """
    writers = {".npy": _write_npy, ".jsonl": _write_jsonl}
    if output.suffix not in writers:
        raise ValueError(f"--output {output}: name it .npy or .jsonl.")
    if not source.exists() or source.is_dir():
        raise FileNotFoundError(f"No file at {source}: give one with a text a line.")
    with writing(output) as temporary, temporary.open("wb") as file:
        return writers[output.suffix](file, embedder.size, _windows(embedder, source))


def _write_npy(file: BinaryIO, size: int, windows: Iterable[np.ndarray]) -> int:
    # numpy leaves room in the header, so that the number of lines may be filled in afterwards.
    # Mapping the file instead would kill the process where the disk is full.
    def write_header(count: int) -> None:
        shape = {"descr": "<f4", "fortran_order": False, "shape": (count, size)}
        np.lib.format.write_array_header_1_0(file, shape)

    count = 0
    write_header(count)
    for vectors in windows:
        file.write(vectors.astype("<f4").data)
        count += len(vectors)
    file.seek(0)
    write_header(count)
    return count


def _write_jsonl(file: BinaryIO, size: int, windows: Iterable[np.ndarray]) -> int:
    count = 0
    for vectors in windows:
        file.writelines(json.dumps(vector.tolist()).encode() + b"\n" for vector in vectors)
        count += len(vectors)
    return count


def _lines(source: Path) -> Iterator[str]:
    """Lines, the first LINE_CHARACTERS of each."""
    try:
        with source.open(encoding="utf-8-sig", newline=None) as file:
            while line := file.readline(LINE_CHARACTERS):
                yield line.rstrip("\n")
                while line and not line.endswith("\n"):
                    line = file.readline(LINE_CHARACTERS)
    except UnicodeDecodeError as error:
        raise ValueError(f"{source} is not UTF-8 ({error.reason}): convert it first.") from error


def _windows(embedder: Embedder, source: Path) -> Iterator[np.ndarray]:
    """Vectors of some lines at a time, of fewer where they are long."""
    window: list[str] = []
    characters = 0
    for line in _lines(source):
        window.append(line)
        characters += len(line)
        if len(window) == WINDOW or characters >= WINDOW_CHARACTERS:
            yield embedder(window)
            window, characters = [], 0
    if window:
        yield embedder(window)
