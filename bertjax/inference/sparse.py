"""Sparse embeddings of texts: their files, and exact search by sparse products.

Array shapes: V words of the vocabulary, N queries, P passages.
"""

import itertools
import json
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse

from bertjax.base.checked import Count, check
from bertjax.base.files import writing
from bertjax.inference.embedder import ROLES, Encoder, head_of
from bertjax.inference.output_files import PartialParts, remove, write_npz
from bertjax.inference.predictor import (
    compiled_program,
    for_inference,
    inference_params,
    read_head,
)
from bertjax.inference.retrieval import refuse_infinite
from bertjax.model.heads import BertForSparseEmbedding
from bertjax.tasks.sparse import Activity, most_active, normalized
from bertjax.weights import LoadedModel
from bertjax.weights.load import with_masked_lm
from bertjax.weights.sparse_modules import SPECIAL_TOKENS, SparseModules

Weights = Any  # a SciPy CSR array


class SparseEmbedder(Encoder):
    """Computes the weights of the words for each text, for a model whose files say how.

    Args:
        loaded: a model with `SparseModules` in its files, of any head.
        max_active_dims: the number of the highest weights that are kept; None: as the files say, or
            all.
        prompt: as of `Encoder`; "query" and "document" also say how the text is encoded.
        options: those of `Encoder`.

    Attributes:
        size: V.

    Raises:
        ValueError: an argument does not fit the model, or its files lack the masked LM head.
    """

    suffixes = (".npz", ".jsonl")

    def __init__(
        self,
        loaded: LoadedModel,
        *,
        batch_size: int | None = None,
        max_length: int | None = None,
        max_active_dims: int | None = None,
        prompt: str | None = None,
    ):
        check("max_active_dims", max_active_dims, Count | None)
        modules: Any = loaded.source.usage.modules.result()
        super().__init__(
            loaded,
            modules,
            role=prompt,
            prompt=prompt,
            batch_size=batch_size,
            max_length=max_length,
        )
        own: SparseModules = modules.sparse
        if "predictions" not in loaded.model.parts:
            loaded = with_masked_lm(loaded, "sparse")
        if "predictions" in loaded.absent:
            where = loaded.source.where
            raise ValueError(f"{where} has no masked LM head, which makes sparse embeddings.")
        self.role = prompt if prompt in ROLES else own.default_route
        self.size = loaded.config.vocab_size
        self.activity = Activity()
        self._count = max_active_dims or own.max_active_dims
        self._static: np.ndarray | None = None
        static = None
        if self.role == "query" and own.query_weights is not None:
            self._static = np.asarray(loaded.params.get("query_weights", own.query_weights))
            static = zlib.crc32(self._static.tobytes())
            self.tokenizer = loaded.tokenizer
            usual = own.query_tokens or self.max_length
            self.max_length = max_length or usual + SPECIAL_TOKENS
        model = head_of(
            loaded, BertForSparseEmbedding, pooling=own.pooling, activation=own.activation
        )
        parts = ("bert", "predictions", "head")
        params = {name: loaded.params[name] for name in parts if name in loaded.params}
        self._params = inference_params(params, loaded.model)
        self.model = model
        self.program = compiled_program(for_inference(model), read_head)
        self.settings |= {
            "pooling": [own.pooling, own.activation, self._count],
            "static": static,
            "role": self.role,
            "max_length": self.max_length,
        }

    def of_ids(self, rows: Sequence[Sequence[int]]) -> Weights:
        """Returns the weights of words, a float32 array [len(rows), V]."""
        if self._static is not None:
            weights = self._of_words(rows, self._static)
            self.after_batch(len(rows))
        else:
            weights = self._of_model(rows)
        weights = most_active(weights, self._count)
        self.activity.add(self.role, weights)
        return weights

    def _of_words(self, rows: Sequence[Sequence[int]], static: np.ndarray) -> Weights:
        words = []  # of each text: the ids with a weight, once each
        for row in rows:
            ids = np.unique(np.array(row[1:-1], np.int32))
            words.append(ids[static[ids] != 0])
        bounds = np.cumsum([0, *map(len, words)])
        ids = np.concatenate([np.zeros(0, np.int32), *words])
        weights = static[ids].astype(np.float32)
        shape = (len(rows), self.size)
        return sparse.csr_array((weights, ids, bounds), shape)

    def _of_model(self, rows: Sequence[Sequence[int]]) -> Weights:
        parts = [sparse.csr_array((0, self.size), dtype=np.float32)]
        order: list[int] = []
        for piece, outputs in self._outputs(rows):
            dense = np.asarray(outputs["sentence_embedding"])  # [B, K, V]
            placements = piece.placements
            batch_rows = [place.row for place in placements.values()]
            slots = [place.slot for place in placements.values()]
            parts.append(sparse.csr_array(dense[batch_rows, slots]))
            order.extend(placements)
        weights: Weights = sparse.vstack(parts, "csr")
        return weights[np.argsort(order)]

    def partial(self, path: Path) -> "PartialWeights":
        """Opens the folder of the weights of a command that may be interrupted."""
        return PartialWeights(path)

    def finish(self, partial: Path, output: Path, texts: Iterable[str]) -> None:
        """Writes `output` from the complete partial one: .npz, or lines {token: weight}."""
        weights = PartialWeights(partial)
        with writing(output) as temporary:
            if output.suffix == ".npz":
                _write_npz(weights, temporary, self.size)
            else:
                _write_lines(weights, temporary, self.tokenizer.tokens, self.size)
        remove(partial)


class PartialWeights(PartialParts):
    """A partial folder of the weights of texts."""

    def write(self, weights: Weights) -> None:
        """Appends the weights of texts, the rows of `weights`."""
        sparse.save_npz(self.new_file(), weights, compressed=False)
        self.finished(self.done + weights.shape[0])


def _write_npz(weights: PartialWeights, output: Path, size: int) -> None:
    """Writes a CSR array as `scipy.sparse.save_npz` does."""
    lengths = [np.zeros(1, int), *map(np.diff, weights.read("indptr"))]
    bounds = np.cumsum(np.concatenate(lengths))
    total = bounds[-1]
    index = np.int64 if total > np.iinfo(np.int32).max else np.int32
    arrays = {
        "indptr": (index, bounds.shape, [bounds]),
        "shape": (np.int64, (2,), [[len(bounds) - 1, size]]),
        "format": ("S3", (), ["csr"]),
        "_is_array": (bool, (), [True]),
        "indices": (index, (total,), weights.read("indices")),
        "data": (np.float32, (total,), weights.read("data")),
    }
    write_npz(output, arrays)


def _write_lines(weights: PartialWeights, output: Path, tokens: Sequence[str], size: int) -> None:
    """Writes {token: weight} of each text as a line, the highest weights first."""
    names = [token or f"[id {index}]" for index, token in enumerate(tokens)]
    names += [f"[id {index}]" for index in range(len(tokens), size)]
    with output.open("x", encoding="utf-8") as file:
        for part in map(sparse.load_npz, weights.files()):
            for start, end in zip(part.indptr[:-1], part.indptr[1:], strict=True):
                ids = part.indices[start:end]
                values = part.data[start:end]
                line = {}
                for place in np.argsort(-values, kind="stable"):
                    line[names[ids[place]]] = float(values[place])
                file.write(json.dumps(line, ensure_ascii=False) + "\n")


# Queries, and passages, whose scores are in memory at once.
QUERIES, PASSAGES = 512, 2048


class SparseIndex:
    """An `Index` of the weights of words, searched by sparse products in blocks, exactly.

    The files of the folder hold transposed blocks [V, PASSAGES], which are inverted indices: a
    product reads the entries of the words of the queries alone. `embed` are the `SparseEmbedder`s
    of the roles.
    """

    def __init__(
        self, embed: Mapping[str, SparseEmbedder], folder: Path, count: int, *, cosine: bool
    ):
        self._embed = embed
        self._folder = folder
        self._count = count
        self._cosine = cosine

    def add(self, rows: np.ndarray, texts: Sequence[str]) -> None:
        """Writes the weights of passages, in files that are named by the first of their places."""
        for start in range(0, len(texts), PASSAGES):
            block = slice(start, start + PASSAGES)
            places = np.asarray(rows[block])
            weights = self._weights("document", texts[block])
            name = self._folder / f"{places[0]:012}.npz"
            sparse.save_npz(name, weights.T.tocsr(), compressed=False)
            np.save(name.with_suffix(".npy"), places)

    def _weights(self, role: str, texts: Sequence[str]) -> Weights:
        weights = self._embed[role](texts)
        if self._cosine:
            return normalized(weights)
        return weights

    def _blocks(self) -> Iterator[tuple[Weights, np.ndarray]]:
        """Yields (transposed weights [V, n], places [n]) of the passages in each file."""
        for name in sorted(self._folder.glob("*.npz")):
            yield sparse.load_npz(name), np.load(name.with_suffix(".npy"))

    def search(self, queries: Sequence[str], k: int) -> tuple[np.ndarray, np.ndarray]:
        """Searches by `search_blocks`."""
        weights = self._weights("query", queries)
        k = min(k, self._count)
        scores = np.empty((len(queries), k), np.float32)
        places = np.empty((len(queries), k), np.int32)
        for first in range(0, len(queries), QUERIES):
            block = slice(first, first + QUERIES)
            scores[block], places[block] = search_blocks(weights[block], self._blocks(), k)
        refuse_infinite(scores)
        return scores, places

    def scores(self, queries: Sequence[str], places: Sequence[Sequence[int]]) -> list[np.ndarray]:
        """Reads all blocks, since a passage may be in any of them."""
        weights = self._weights("query", queries)
        lengths = [len(of_query) for of_query in places]
        numbers = np.repeat(np.arange(len(queries)), lengths)
        wanted = np.array([*itertools.chain.from_iterable(places)], int)
        values = np.zeros(len(wanted), np.float32)
        column = np.empty(self._count, int)  # of each passage, in a block; -1: in another block
        for block, block_places in self._blocks():
            column[:] = -1
            column[block_places] = np.arange(len(block_places))
            columns = column[wanted]
            present = np.flatnonzero(columns >= 0)
            products = (weights @ block).toarray()  # [N, n]
            values[present] = products[numbers[present], columns[present]]
        ends = np.cumsum(lengths)
        return np.split(values, ends[:-1])


def search_blocks(
    queries: Weights, blocks: Iterable[tuple[Weights, np.ndarray]], k: int
) -> tuple[np.ndarray, np.ndarray]:
    """Finds the `k` passages with the highest products for each query: ([N, k], [N, k]).

    `blocks` yields (transposed weights [V, n], places int [n]); there must be `k` passages. Of
    equal scores, the lower place comes first.
    """
    smallest = np.iinfo(np.int64).min  # the key of no passage
    count = queries.shape[0]
    best = np.full((count, k), smallest)  # keys
    lowest = np.full(count, -np.inf, np.float32)  # the lowest of the best scores
    for block, places in blocks:
        scores = (queries @ block).toarray()  # [N, n]
        highest = scores.max(axis=1)
        rows = np.flatnonzero(~(highest < lowest))  # not `>=`, which is false for NaN
        new = _keys(scores[rows], places)
        keys = np.concatenate([best[rows], new], axis=1)
        kept = np.partition(keys, -k, axis=1)[:, -k:]
        best[rows] = kept
        if kept.min(initial=0) > smallest:
            lowest[rows] = _scores_of(kept.min(axis=1))
    best = np.sort(best, axis=1)[:, ::-1]
    places = _LAST - (best & _LAST)
    return _scores_of(best), places.astype(np.int32)


_LAST = (1 << 32) - 1


def _keys(scores: np.ndarray, places: np.ndarray) -> np.ndarray:
    """Returns whole numbers, int64, in the order of scores and, if they are equal, of places.

    The bits of floats above 0 grow with them, and those of floats below 0 shrink.
    """
    bits = (scores + np.float32(0)).view(np.int32)  # which makes 0 of -0
    ordered = np.where(bits < 0, bits ^ 0x7FFFFFFF, bits).astype(np.int64)
    return (ordered << 32) | (_LAST - places.astype(np.int64))


def _scores_of(keys: np.ndarray) -> np.ndarray:
    ordered = (keys >> 32).astype(np.int32)
    return np.where(ordered < 0, ordered ^ 0x7FFFFFFF, ordered).astype(np.int32).view(np.float32)
