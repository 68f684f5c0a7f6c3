"""Dense retrieval: exact search in blocks, and the evaluation of a model over a corpus (BEIR).

The metrics are those of BEIR, which trec_eval computes: a judgement above 0 is a positive, and nDCG
counts its grade; of passages with equal scores, the higher id, as a text, comes first; a judged
passage that is not in the corpus is never found; a query without a positive counts as 0; and the
passage with the id of the query is left out. A title stands before its text with a space between.
"""

import functools
import mmap
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bertjax.base.files import brief
from bertjax.base.lock import scratch_folder
from bertjax.base.progress import progress
from bertjax.inference.embedder import ROLES, Embedder, windows
from bertjax.inference.passages import (
    PASSAGE_IDS,
    QUERY_IDS,
    Judgements,
    has_column,
    is_numbered,
    read_judgements,
    read_passages,
    warn,
)
from bertjax.model.embedding_losses import unit
from bertjax.tasks.embedding import RETRIEVAL_METRICS
from bertjax.tasks.metrics import mrr, ndcg, recall
from bertjax.tasks.sources.tables import is_blank
from bertjax.weights import LoadedModel

QUERIES, PASSAGES = 512, 16384  # in a block of scores
DEPTH = 100  # the passages of a ranking that the metrics need
# {query id: {passage id: score}}, the best passages first
Ranking = Mapping[str, Mapping[str, float]]
Embed = Callable[[Sequence[str]], np.ndarray]


def search(
    queries: np.ndarray, corpus: np.ndarray, k: int, *, cosine: bool = True
) -> tuple[np.ndarray, np.ndarray]:
    """Finds the `k` passages of a corpus with the highest scores for each query, exactly.

    Scores are cosines or dot products. They are computed on the device, in blocks of queries times
    passages, so that memory does not grow with the corpus, which may be mapped into memory from a
    file. Of equal scores, the passage with the lower index comes first.

    `queries` are vectors, float [N, D], and `corpus` float [P, D]. Returns the scores, float32
    [N, min(k, P)], in descending order, and the indices of the passages, int32 of the same shape.
    Raises ValueError if a score is not finite.
    """
    k = min(k, len(corpus))
    scores = np.empty((len(queries), k), np.float32)
    indices = np.empty((len(queries), k), np.int32)
    for first in range(0, len(queries), QUERIES):
        rows = slice(first, first + QUERIES)
        block = np.asarray(queries[rows], np.float32)
        scores[rows], indices[rows] = _best_of_corpus(block, corpus, k, cosine)
    finite = np.isfinite(scores).all(axis=1)
    if not finite.all():
        raise ValueError(
            f"The scores of query {finite.argmin()} (from 0) are not finite, because its vector or "
            "one of a passage is not: check the weights of the model."
        )
    return scores, indices


def _best_of_corpus(
    queries: np.ndarray, corpus: np.ndarray, k: int, cosine: bool
) -> tuple[jax.Array, jax.Array]:
    shape = (len(queries), k)
    scores = jnp.full(shape, -jnp.inf)
    best = scores, jnp.full(shape, -1, jnp.int32)
    for start in range(0, len(corpus), PASSAGES):
        block = fresh(corpus)[start : start + PASSAGES]
        best = _merged(queries, np.asarray(block, np.float32), best, start, cosine)
        # Otherwise, all blocks that wait for the device would be in memory.
        best = jax.block_until_ready(best)
    return best


@functools.partial(jax.jit, static_argnames="cosine", donate_argnums=2)
def _merged(queries: Any, passages: Any, best: Any, start: Any, cosine: bool) -> Any:
    """Returns the best scores and indices of those of earlier blocks and of a block of passages."""
    if cosine:
        queries, passages = unit(queries), unit(passages)
    scores = jnp.matmul(queries, passages.T, precision="highest")
    numbers = start + jnp.arange(len(passages), dtype=jnp.int32)
    indices = jnp.broadcast_to(numbers, scores.shape)
    best_scores, best_indices = best
    scores = jnp.concatenate([best_scores, scores], axis=1)
    indices = jnp.concatenate([best_indices, indices], axis=1)
    # Of equal scores, top_k takes the first, and the best so far are of earlier blocks.
    scores, places = jax.lax.top_k(scores, best_scores.shape[1])
    return scores, jnp.take_along_axis(indices, places, axis=1)


def fresh(x: np.ndarray) -> np.ndarray:
    """Maps an array in a file anew: its pages that were read no longer count as memory in use."""
    if isinstance(x, np.memmap) and isinstance(x.base, mmap.mmap) and x.flags.c_contiguous:
        return np.memmap(str(x.filename), x.dtype, "r", x.offset, x.shape)
    return x


def embedders(loaded: LoadedModel, **options: Any) -> dict[str, Embedder]:
    """Returns the embedders of the roles "query" and "document"; `options` are of `Embedder`.

    Texts get the prompts and lengths of these names, as from `encode_query` and `encode_document`
    of sentence-transformers.
    """
    return {role: Embedder(loaded, prompt=role, **options) for role in ROLES}


class Collection:
    """A corpus, queries and, perhaps, judgements: what is searched, and scored.

    The texts of the corpus are read again whenever they are embedded. Warnings count the judged
    queries and passages that are in no file, the queries without a positive, and those whose
    ranking lacks the passage with the id of the query.

    Args:
        corpus: passages, as `read_passages` reads them, and `queries` likewise, without titles.
        judgements: as `read_judgements` reads them; judged queries alone are searched. None: there
            are none, and all queries are searched.
        id_column: as in `read_passages`, of the corpus and of the queries.
        keep_same_id: whether the passage with the id of the query is ranked. It always is if ids
            are numbers of rows.

    Attributes:
        queries: {id: text} of the queries that are searched.
        is_judged: whether there are judgements, so that a ranking can be scored.

    Raises:
        ValueError: an id occurs twice, no judged query or passage is in the files, a judgement is
            wrong, or a positive has the id of its query without `keep_same_id`.
    """

    def __init__(
        self,
        corpus: Path,
        queries: Path,
        judgements: Path | None = None,
        *,
        id_column: str | None = None,
        keep_same_id: bool = False,
    ):
        self._corpus = corpus
        if id_column and not has_column(queries, id_column) and not has_column(corpus, id_column):
            raise ValueError(
                f"{queries} and {corpus}: no file has the column {id_column!r} of --id_column."
            )
        self.queries = _queries_by_id(queries, id_column)
        ids: dict[str, str] = {}
        for passage in read_passages(corpus, PASSAGE_IDS, id_column=id_column, warns=True):
            _add(ids, passage.id, "", passage.where)
        self._gains: Judgements = {}
        self.is_judged = judgements is not None
        if judgements is not None:
            self._gains = self._known_judgements(judgements, queries, ids)
            self.queries = {id: self.queries[id] for id in self._gains}
        if not self.queries or not ids:
            raise ValueError(f"{queries} or {corpus} has no rows, so there is nothing to search.")
        self._keeps_same_id = keep_same_id or is_numbered(corpus) or is_numbered(queries)
        if not self._keeps_same_id:
            self._check_same_ids(ids, queries, judgements)
        self._ids = sorted(ids, reverse=True)
        place = {id: row for row, id in enumerate(self._ids)}
        self._rows = np.array([place[id] for id in ids])  # of each passage among sorted ids

    def _known_judgements(self, path: Path, queries: Path, ids: Mapping[str, str]) -> Judgements:
        """Reads the judgements of queries that are in a file; warns of what is not."""
        gains = read_judgements(path)
        judged = {id for gains_of_query in gains.values() for id in gains_of_query}
        _check_ids(path, "query-id", {*gains}, self.queries, queries, "queries are left out")
        effect = "passages count as never found"
        _check_ids(path, "corpus-id", judged, ids, self._corpus, effect)
        gains = {id: gains[id] for id in gains if id in self.queries}
        without = [id for id in gains if not any(gains[id].values())]
        warn(path, "queries without a score above 0, which count as 0", without)
        return gains

    def _check_same_ids(
        self, ids: Mapping[str, str], queries: Path, judgements: Path | None
    ) -> None:
        same = sorted(self.queries.keys() & ids.keys())
        for id in same:
            if self._gains.get(id, {}).get(id):
                raise ValueError(
                    f"{judgements}: the id {id!r} is that of a query and of its positive, but a "
                    "passage with the id of the query is left out, as in BEIR, because it is the "
                    "query itself: give --keep_same_id if the ids are equal by chance."
                )
        warn(queries, "passages with these ids are left out (see --keep_same_id)", same)

    def rank(
        self, embed: Mapping[str, Embed], *, cosine: bool = True, depth: int = DEPTH
    ) -> Ranking:
        """Ranks the best `depth` passages for each query.

        `embed` are functions as of `embedders`. The vectors are in a temporary file, so that memory
        does not grow with the corpus.
        """
        queries = embed["query"]([*self.queries.values()])
        with scratch_folder() as folder:
            size = queries.shape[1]
            vectors = self._embedded(folder / "vectors.npy", embed["document"], size)
            scores, indices = search(queries, vectors, depth + 1, cosine=cosine)
        ranking = {}
        for query, of_query, best in zip(self.queries, scores.tolist(), indices, strict=True):
            ids = [self._ids[i] for i in best]
            passages = dict(zip(ids, of_query, strict=True))
            if not self._keeps_same_id:
                passages.pop(query, None)
            ranking[query] = dict([*passages.items()][:depth])
        return ranking

    def _embedded(self, path: Path, embed: Embed, size: int) -> np.ndarray:
        """Writes the vectors of the corpus in descending order of ids; maps them into memory."""
        count = len(self._ids)
        np.lib.format.open_memmap(path, "w+", np.float32, (count, size))
        done = 0
        with progress("embedding", count, "texts") as state:
            for texts in windows(passage.whole for passage in read_passages(self._corpus)):
                rows = self._rows[done : done + len(texts)]
                np.load(path, mmap_mode="r+")[rows] = embed(texts)
                done += len(texts)
                state.advance(len(texts))
        return np.load(path, mmap_mode="r")

    def score(self, ranking: Mapping[str, Iterable[str]]) -> dict[str, float]:
        """Returns the means over the queries of nDCG@10, MRR@10 and recall@100, as fractions."""
        scores = []
        for query, judged in self._gains.items():
            ranked = [judged.get(id, 0.0) for id in ranking[query]]
            gains = [*judged.values()]
            is_hit = np.sign(ranked).tolist()
            is_positive = np.sign(gains).tolist()
            scores.append(
                (ndcg(ranked, gains, 10), mrr(is_hit, 10), recall(is_hit, is_positive, DEPTH))
            )
        means = np.mean(scores, axis=0).tolist()
        return dict(zip(RETRIEVAL_METRICS, means, strict=True))


def beir_collection(folder: str | Path, split: str, **options: Any) -> Collection:
    """Opens BEIR's files in a folder: corpus.jsonl, queries.jsonl and qrels/SPLIT.tsv.

    If there is no file for `split`, qrels must hold one. `options` are those of `Collection`.

    Raises:
        ValueError: the folder has no file of judgements, or several; or as in `Collection`.
    """
    folder = Path(folder).expanduser()
    judgements = sorted((folder / "qrels").glob("*.*"))
    judgements = [path for path in judgements if path.stem == split] or judgements
    if len(judgements) != 1:
        raise ValueError(f"{folder} needs one file of judgements, such as qrels/{split}.tsv.")
    return Collection(folder / "corpus.jsonl", folder / "queries.jsonl", *judgements, **options)


def _queries_by_id(path: Path, id_column: str | None) -> dict[str, str]:
    texts: dict[str, str] = {}
    for query in read_passages(path, QUERY_IDS, id_column=id_column, warns=True):
        if is_blank(query.text):
            raise ValueError(f"{query.where} has an empty text: fill it, or remove the row.")
        _add(texts, query.id, query.text.strip(), query.where)
    return texts


def _add(texts: dict[str, str], id: str, text: str, where: str) -> None:
    if id in texts:
        raise ValueError(f"{where}: the id {id!r} occurs twice: make ids unique.")
    texts[id] = text


def _check_ids(
    judgements: Path, what: str, judged: set[str], known: Mapping[str, str], path: Path, effect: str
) -> None:
    """Refuses judgements of which no id is known; warns of single ids that are not."""
    unknown = sorted(judged - known.keys())
    if len(unknown) == len(judged):
        raise ValueError(
            f"{judgements}: no {what}, such as {brief(unknown[0], 40)!r}, is in {path}: check the "
            "ids of both files, and --id_column."
        )
    where = f"that are not in {path} (its _id, or --id_column)"
    warn(judgements, f"values of {what} {where}, whose {effect}", unknown)
