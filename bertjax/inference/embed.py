"""Text embeddings: one vector per text, pooled from the hidden states of the encoder."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import bertjax
from bertjax.inference.buckets import (
    cached_program,
    length_bucket,
    piece_sizes,
    read_behind,
    token_budget,
)
from bertjax.inference.partial_output import PartialVectors, continued, file_identity
from bertjax.model import BertWithHead
from bertjax.weights import LoadedModel

# The lines of a file are sorted by length in windows of at most so many lines; a window ends when
# it has so many characters.
WINDOW = 8192
WINDOW_CHARACTERS = 1 << 22
# Number of characters after which a line is cut off; no model reads so many.
LINE_CHARACTERS = 1 << 16
# Texts are sorted by length, so they are padded to finer buckets than unsorted batches.
BUCKET_STEPS = 4


class Embedder:
    """Computes an embedding vector for each text.

    Args:
        loaded: the model, whose head is not used.
        pooling: "cls" for the hidden state of [CLS], or "mean" for the mean over all tokens.
        layers: indices of the hidden states to pool (0: embeddings, -1: last layer); the vectors of
            several layers are concatenated.
        batch_size: maximum number of texts that the device computes at once; None: chosen by their
            lengths.

    Attributes:
        size: the dimension of the embedding vectors.
        identity: dict of JSON values with everything besides the text that determines an embedding
            vector (model, pooling, layers, ...).

    Raises:
        ValueError: `layers` is empty, or contains a layer that the model does not have.
    """

    def __init__(
        self,
        loaded: LoadedModel,
        pooling: str = "mean",
        layers: Sequence[int] = (-1,),
        batch_size: int | None = None,
    ):
        count = loaded.config.num_hidden_layers + 1
        wrong = [layer for layer in layers if not -count <= layer < count]
        if wrong or not layers:
            raise ValueError(
                f"layers={list(layers)}: choose from the hidden states {-count} to {count - 1}."
            )
        self._loaded, self._batch_size = loaded, batch_size
        self._params = jax.device_put(loaded.params)
        self.size = loaded.config.hidden_size * len(layers)
        self._program = compiled_program(loaded.model, pooling, tuple(layers))
        self.identity = {
            "version": bertjax.__version__,
            "model": file_identity(loaded.source.where),
            "pooling": pooling,
            "layers": list(layers),
            "device": jax.local_devices()[0].device_kind,
        }

    def __call__(self, texts: Sequence[str]) -> np.ndarray:
        """Returns the embeddings of texts, float32 [len(texts), size]; truncates long texts."""
        rows = self._loaded.tokenizer.encode_prompts(texts, self._loaded.config.max_length)
        vectors = np.empty((len(texts), self.size), np.float32)

        def start() -> Iterator[tuple[np.ndarray, jax.Array]]:
            for members, size, length in self._batches([len(row) for row in rows]):
                yield members, self._run([rows[i] for i in members], size, length)

        for members, values in read_behind(start()):
            vectors[members] = np.asarray(values)[: len(members)]
        return vectors

    def _batches(self, lengths: Sequence[int]) -> Iterator[tuple[np.ndarray, int, int]]:
        """Yields (text indices, number of rows, tokens per row) of batches, longest texts first."""
        order = np.argsort(lengths, kind="stable")[::-1]
        limit, start = self._loaded.config.max_length, 0
        sorted_lengths = np.array(lengths)[order]
        while start < len(order):
            longest = int(sorted_lengths[start])
            length = length_bucket(longest, limit, smallest=8, steps=BUCKET_STEPS)
            # A text of less than half this length would waste most of its row.
            similar = int(np.count_nonzero(2 * sorted_lengths[start:] >= longest))
            size = piece_sizes(similar, length, token_budget(length, self._batch_size))[0]
            yield order[start : start + size], size, length
            start += size

    def _run(self, rows: Sequence[Sequence[int]], size: int, length: int) -> jax.Array:
        ids = np.full((size, length), self._loaded.tokenizer.pad_token_id, np.int32)
        mask = np.zeros((size, length), np.int32)
        for i, row in enumerate(rows):
            ids[i, : len(row)], mask[i, : len(row)] = row, 1
        return self._program(self._params, ids, mask)


@cached_program
def compiled_program(
    model: BertWithHead, pooling: str, layers: tuple[int, ...]
) -> Callable[..., jax.Array]:
    """Returns a jitted function (params, ids [B, L], mask [B, L]) -> vectors float32 [B, size]."""
    depth = model.config.num_hidden_layers
    encoder = model.clone(unroll=depth)
    only_last = layers in ((-1,), (depth,))

    def apply(params: Any, ids: jax.Array, mask: jax.Array) -> jax.Array:
        outputs: Any = encoder.apply(
            {"params": params},
            ids,
            attention_mask=mask,
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

    return jax.jit(apply)


def embed_file(embedder: Embedder, source: Path, output: Path) -> int:
    """Writes an embedding vector for each line of a text file; returns the number of lines.

    The vectors are in the order of the lines: an array [lines, size] if `output` is a `.npy` file,
    or one JSON list per line if `output` is a `.jsonl` file.

    Raises:
        ValueError: `output` does not end in .npy or .jsonl, or the text in `source` is not UTF-8.
        OSError: `source` does not exist, or the disk is full. After a full disk or a kill, `output`
            has its old content, and the next call continues where the failed call stopped.
    """
    if output.suffix not in (".npy", ".jsonl"):
        raise ValueError(f"--output {output}: the name must end in .npy or .jsonl.")
    if not source.exists() or source.is_dir():
        raise FileNotFoundError(f"No file at {source}: give a file with one text per line.")
    identity = {**embedder.identity, "source": file_identity(source)}
    is_npy, count, done = output.suffix == ".npy", 0, None
    with continued(
        output, identity, lambda path: PartialVectors(path, embedder.size, is_npy)
    ) as vectors:
        for texts in _windows(source):
            # Only whole windows are kept, because the texts of a window are batched together.
            if done is None and count + len(texts) > vectors.done:
                done = _start_at(vectors, count, output)
            if done is not None:
                vectors.write(embedder(texts))
            count += len(texts)
        if done is None:
            _start_at(vectors, count, output)
        vectors.finish(count)
    return count


def _start_at(vectors: PartialVectors, count: int, output: Path) -> int:
    vectors.keep(count)
    if count:
        print(f"continuing {output} after {count:,} lines", flush=True)
    return count


def _lines(source: Path) -> Iterator[str]:
    """Yields the first LINE_CHARACTERS characters of each line of the text file `source`."""
    try:
        with source.open(encoding="utf-8-sig", newline=None) as file:
            while line := file.readline(LINE_CHARACTERS):
                yield line.rstrip("\n")
                while line and not line.endswith("\n"):
                    line = file.readline(LINE_CHARACTERS)
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{source} is not UTF-8 ({error.reason}): convert the file to UTF-8."
        ) from error


def _windows(source: Path) -> Iterator[list[str]]:
    """Yields the lines of `source` in lists that end after WINDOW lines or WINDOW_CHARACTERS."""
    window: list[str] = []
    characters = 0
    for line in _lines(source):
        window.append(line)
        characters += len(line)
        if len(window) == WINDOW or characters >= WINDOW_CHARACTERS:
            yield window
            window, characters = [], 0
    if window:
        yield window
