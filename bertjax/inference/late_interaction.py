"""Late interaction: vectors of the tokens of texts, their files, and exact search by MaxSim.

Array shapes: T tokens, D dimensions of a vector, P passages, N queries.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bertjax.base.checked import check
from bertjax.base.files import writing
from bertjax.config.model import EMPTY_DOCUMENT, PoolFactor
from bertjax.inference.embedder import ROLES, Encoder, head_of
from bertjax.inference.output_files import PartialParts, remove, write_npz
from bertjax.inference.predictor import (
    compiled_program,
    for_inference,
    inference_params,
    read_head,
)
from bertjax.inference.retrieval import keep_best, new_array, refuse_infinite
from bertjax.model.late_interaction import BertForLateInteraction
from bertjax.tasks.late_interaction import (
    LateInteractionTask,
    TokenPooling,
    maxsim,
    pool_tokens,
)
from bertjax.weights import LoadedModel
from bertjax.weights.late_interaction import (
    TokenModules,
    add_markers,
    check_expansion,
    fields_of,
)
from bertjax.weights.sentence_transformers import SentenceModules


class TokenEmbedder(Encoder):
    """Computes the vectors of the tokens of texts, for a model with one vector per token.

    Args:
        loaded: a model whose files of sentence-transformers have `TokenModules`.
        role: "query" or "document"; None: "query" if that is the prompt, else "document".
        prompt: as of `Encoder`; None: that of the role.
        pool_factor: the number of tokens of a document per vector, after what the files say, as by
            `HierarchicalTokenPooling(pool_factor)` of sentence-transformers; None: 1.
        batch_size: as `max_length`, of `Encoder`.

    Attributes:
        size: the dimension of the vectors.

    Raises:
        ValueError: an argument does not fit the model, or its files cannot be followed.
    """

    suffixes = (".npz",)
    noun = "texts with vectors"

    def __init__(
        self,
        loaded: LoadedModel,
        role: str | None = None,
        *,
        batch_size: int | None = None,
        max_length: int | None = None,
        prompt: str | None = None,
        pool_factor: float | None = None,
    ):
        modules: SentenceModules = loaded.source.usage.modules.result()  # type: ignore[assignment]
        tokens: TokenModules = modules.tokens
        check("pool_factor", pool_factor, PoolFactor | None)
        add_markers(loaded.tokenizer, tokens.markers)
        check_expansion(tokens.expansion, loaded.config, loaded.tokenizer)
        if role is None:
            role = "query" if prompt == "query" else "document"
        super().__init__(
            loaded,
            modules,
            role=role,
            prompt=role if prompt is None else prompt,
            batch_size=batch_size,
            max_length=max_length,
        )
        self._role = role
        self._expansion = tokens.expansion if role == "query" else None
        if self._expansion is not None:
            self.max_length = min(self._expansion.longest(self.max_length), self._limit)
        self._poolings = [tokens.pooling] if tokens.pooling else []
        if pool_factor is not None:
            self._poolings.append(TokenPooling(pool_factor))
        fields = fields_of(modules, loaded.tokenizer)
        model = head_of(loaded, BertForLateInteraction, **fields)
        self.size = model.size
        params = {"bert": loaded.params["bert"], **modules.params}
        if "modules" in loaded.params:
            params["modules"] = loaded.params["modules"]  # as trained, if they were
        self._params = inference_params(params, loaded.model)
        self.model = model
        self.program = compiled_program(for_inference(model), read_head)
        self.settings |= {
            "mask": fields["mask"],
            "expansion": self._expansion,
            "poolings": self._poolings,
            "role": role,
            "max_length": self.max_length,
        }

    def of_ids(self, rows: Sequence[Sequence[int]]) -> list[np.ndarray]:
        """Returns the vectors of the tokens of each text, float32 [T, D]."""
        firsts = [0] * len(rows)
        if self._role == "query":
            firsts = [len(row) for row in rows]
        if self._expansion is not None:
            rows = [self._expansion.filled(row, self.tokenizer) for row in rows]
        vectors: list[Any] = [None] * len(rows)
        for piece, outputs in self._outputs(rows, firsts):
            token_vectors = np.asarray(outputs["token_vectors"])  # [B, L, D]
            is_scored = np.asarray(outputs["is_scored"])
            for text, (row, _, start) in piece.placements.items():
                end = start + len(rows[text])
                of_text = token_vectors[row, start:end]
                scored = of_text[is_scored[row, start:end]]
                vectors[text] = self._pooled(scored)
        return vectors

    def partial(self, path: Path) -> "PartialTokens":
        """Opens the folder of the vectors of a command that may be interrupted."""
        return PartialTokens(path)

    def finish(self, partial: Path, output: Path, texts: Iterable[str]) -> None:
        """Writes `output`, a `.npz`, from the complete partial one.

        It holds the arrays vectors, float32 [T, D], and offsets, int64 [n + 1]: those of text i are
        vectors[offsets[i] : offsets[i + 1]].
        """
        vectors = PartialTokens(partial)
        offsets = np.cumsum(np.concatenate([np.zeros(1, np.int64), *vectors.read("lengths")]))
        arrays = {
            "vectors": (np.float32, (offsets[-1], self.size), vectors.read("vectors")),
            "offsets": (np.int64, offsets.shape, [offsets]),
        }
        with writing(output) as temporary:
            write_npz(temporary, arrays)
        remove(partial)

    def _pooled(self, vectors: np.ndarray) -> np.ndarray:
        for pooling in self._poolings:
            if self._role in pooling.roles:
                vectors = pool_tokens(vectors, pooling)
        return vectors


class PartialTokens(PartialParts):
    """A partial folder of the vectors of the tokens of texts."""

    def write(self, vectors: Sequence[np.ndarray]) -> None:
        """Appends the vectors [T, D] of texts."""
        lengths = np.array([len(x) for x in vectors], np.int64)
        shape = (lengths.sum(), vectors[0].shape[1])
        arrays = {
            "vectors": (np.float32, shape, vectors),
            "lengths": (np.int64, lengths.shape, [lengths]),
        }
        write_npz(self.new_file(), arrays)
        self.finished(self.done + len(vectors))


class TokenFile:
    """Vectors of the tokens of texts in a folder, written text by text and mapped into memory.

    The texts that were written last may be written again, which replaces their vectors.
    """

    def __init__(self, folder: Path, count: int, size: int):
        self._vectors = folder / "vectors.f32"
        self._size = size
        places = folder / "places.npy"
        if not places.exists():
            new_array(places, np.int64, (count, 2))
        self._places = places

    def write(self, rows: np.ndarray, vectors: Sequence[np.ndarray]) -> None:
        """Writes the vectors [T, D] of the texts `rows`, behind those that are there."""
        places = np.load(self._places, mmap_mode="r+")
        places[rows] = 0
        written = int(places[:, 1].max())
        lengths = np.array([len(x) for x in vectors], np.int64)
        ends = written + np.cumsum(lengths)
        with self._vectors.open("ab") as file:
            file.truncate(written * 4 * self._size)  # what a killed command wrote of these rows
            for x in vectors:
                file.write(np.ascontiguousarray(x, "<f4").data)
        places[rows] = np.stack([ends - lengths, ends], axis=1)

    def places(self) -> np.ndarray:
        """Returns the first place and the end of the vectors of each text, int64 [P, 2]."""
        return np.load(self._places)

    def vectors(self) -> np.ndarray:
        """Maps the vectors into memory, float32 [all tokens, D]; anew in each call."""
        if not self._vectors.exists() or not self._vectors.stat().st_size:
            return np.zeros((0, self._size), np.float32)
        return np.memmap(self._vectors, "<f4", "r").reshape(-1, self._size)


# Tokens of passages, and of queries, whose dot products are in memory at once.
PASSAGE_TOKENS, QUERY_TOKENS = 16384, 1024
# Passages of a block are padded to a multiple of so many tokens, so that few programs compile.
STEP = 16


class TokenIndex:
    """An `Index` of one vector per token, searched by MaxSim in blocks, exactly.

    `embed` are the `TokenEmbedder`s of the roles; `mean` is as of `maxsim`.
    """

    def __init__(self, embed: Mapping[str, TokenEmbedder], folder: Path, count: int, *, mean: bool):
        self._embed = embed
        self._file = TokenFile(folder, count, embed["document"].size)
        self._mean = mean

    def add(self, rows: np.ndarray, texts: Sequence[str]) -> None:
        """Encodes passages, as `Index.add` does."""
        self._file.write(rows, self._embed["document"](texts))

    def search(self, queries: Sequence[str], k: int) -> tuple[np.ndarray, np.ndarray]:
        """Finds the best passages, as `Index.search` does."""
        return search(self._embed["query"](queries), self._file, k, mean=self._mean)

    def scores(self, queries: Sequence[str], places: Sequence[Sequence[int]]) -> list[np.ndarray]:
        """Scores some passages, as `Index.scores` does."""
        scores = []
        bounds = self._file.places()
        for query, rows in zip(self._embed["query"](queries), places, strict=True):
            vectors = self._file.vectors()
            passages = [vectors[slice(*bounds[row])] for row in rows]
            scores.append(maxsim([query], passages, mean=self._mean)[0])
        return scores


def search(
    queries: Sequence[np.ndarray], file: TokenFile, k: int, *, mean: bool = False
) -> tuple[np.ndarray, np.ndarray]:
    """Finds the `k` texts of a file with the highest MaxSim for each query, exactly.

    Memory grows neither with the file nor with the number of queries. `queries` are vectors [T, D]
    each; the results are as of `retrieval.search`.
    """
    places = file.places()
    k = min(k, len(places))
    count = len(queries)
    scores = np.empty((count, k), np.float32)
    indices = np.empty((count, k), np.int32)
    lengths_of_queries = [max(len(query), 1) for query in queries]
    longest = max(lengths_of_queries, default=1)
    length = -(-longest // STEP) * STEP
    size = max(1, min(QUERY_TOKENS // length, count))  # queries in a block
    for first in range(0, count, size):
        rows = slice(first, first + size)
        padded, _ = _padded(queries[rows], length, size)
        best_scores = jnp.full((size, k), -jnp.inf)
        best = best_scores, jnp.full((size, k), -1, jnp.int32)
        for start, block, lengths in _blocks(file, places):
            best = _merged(padded, block, lengths, best, start)
            best = jax.block_until_ready(best)  # else all blocks that wait would be in memory
        best_scores, best_indices = map(np.asarray, best)
        filled = min(size, count - first)  # the last block has rows without a query
        scores[rows] = best_scores[:filled]
        indices[rows] = best_indices[:filled]
    if mean:
        divisors = np.array(lengths_of_queries, np.float32)
        scores /= divisors[:, None]
    refuse_infinite(scores)
    return scores, indices


def _padded(texts: Sequence[np.ndarray], length: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns the vectors of texts, [count, length, D], and their numbers of tokens [count]."""
    padded = np.zeros((count, length, texts[0].shape[1]), np.float32)
    lengths = np.zeros(count, np.int32)
    for row, vectors in enumerate(texts):
        padded[row, : len(vectors)] = vectors
        lengths[row] = len(vectors)
    return padded, lengths


def _blocks(file: TokenFile, places: np.ndarray):
    """Yields (first text, vectors [M, S, D], numbers of tokens [M]) of texts, in their order.

    A number of tokens is -1 for a row without a text.
    """
    counts = places[:, 1] - places[:, 0]
    start = 0
    while start < len(places):
        # As many texts as fit if all are as long as the longest of them.
        following = counts[start : start + PASSAGE_TOKENS // STEP]
        longest = np.maximum.accumulate(following)
        padded = np.maximum(-(-longest // STEP) * STEP, STEP)
        sizes = padded * np.arange(1, len(padded) + 1)
        fitting = max(int(np.sum(sizes <= PASSAGE_TOKENS)), 1)
        length = int(padded[fitting - 1])
        end = start + fitting
        vectors = file.vectors()
        texts = [vectors[first:last] for first, last in places[start:end]]
        block, lengths = _padded(texts, length, max(PASSAGE_TOKENS // length, 1))
        lengths[fitting:] = -1
        yield start, block, lengths
        start = end


@jax.jit
def _merged(queries: Any, passages: Any, lengths: Any, best: Any, start: Any) -> Any:
    """Returns the best scores and indices of those of earlier blocks and of a block of passages."""
    count, longest, size = passages.shape
    flat = passages.reshape(-1, size)
    products = jnp.matmul(flat, queries.reshape(-1, size).T, precision="highest")
    products = products.reshape(count, longest, -1)
    is_token = jnp.arange(longest)[None] < lengths[:, None]
    products = jnp.where(is_token[:, :, None], products, jnp.finfo(jnp.float32).min)
    highest = products.max(1).reshape(count, len(queries), -1)
    scores = highest.sum(-1).T  # a token that pads a query is 0, as are its products
    scores = jnp.where(lengths[None] == 0, EMPTY_DOCUMENT, scores)
    scores = jnp.where(lengths[None] < 0, -jnp.inf, scores)
    return keep_best(best, scores, start)


def in_training(task: LateInteractionTask, loaded: LoadedModel, max_length: int) -> LoadedModel:
    """Returns the model that is trained with texts of at most `max_length` tokens.

    Raises ValueError if these are fewer than those of filled up queries or than the options say,
    or if the model pools its vectors, which training does not.
    """
    options = task.options
    lengths = [options.query_length or 0, options.document_length or 0]
    if task.expansion is not None:
        lengths.append(task.expansion.length)
    if max(lengths) > max_length:
        raise ValueError(
            f"max_length={max_length}, but queries or documents shall have {max(lengths)} tokens: "
            "give a shorter --query_length or --document_length, or a larger --max_length."
        )
    longest = max(task.length_of(role, max_length) for role in ROLES)
    if task.expansion is not None:
        longest = max(longest, task.expansion.length)
    if task.pooling is not None and task.pooling.factor > 1:
        raise ValueError(
            f"{loaded.source.where} pools its vectors (HierarchicalTokenPooling with "
            f"pool_factor={task.pooling.factor:g}), and bertjax does not train through that: "
            "remove the module from its modules.json, and pool with --pool_factor afterwards."
        )
    return loaded._replace(model=loaded.model.clone(tokens_per_text=longest))
