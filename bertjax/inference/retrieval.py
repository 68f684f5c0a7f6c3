"""Dense retrieval: exact search in blocks, and the evaluation of a model over a corpus (BEIR).

The metrics are those of sentence-transformers' `InformationRetrievalEvaluator`: a judgement above 0
is a positive, and grades count alike; a title stands before its text with a space between them; of
passages with equal scores, the lower id, as a text, comes first (trec_eval: the higher one).
"""

import functools
import mmap
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bertjax.base.files import writing
from bertjax.base.progress import progress
from bertjax.base.scratch import scratch_folder
from bertjax.inference.embed import ROLES, Embedder, windows
from bertjax.model.embedding_losses import unit
from bertjax.tasks.embedding import RETRIEVAL_METRICS
from bertjax.tasks.metrics import mrr, ndcg, recall
from bertjax.tasks.sources.own_files import data_files
from bertjax.tasks.sources.tables import Table, read_lines, read_number, row_name
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

    Args:
        queries: vectors, float [N, D].
        corpus: vectors, float [P, D].
        k: number of passages per query; of a smaller corpus, all are returned.

    Returns:
        The scores, float32 [N, min(k, P)], in descending order, and the indices of the passages,
        int32 of the same shape. Raises ValueError if a score is not finite.
    """
    k, found = min(k, len(corpus)), []
    for first in range(0, len(queries), QUERIES):
        block = np.asarray(queries[first : first + QUERIES], np.float32)
        best = jnp.full((len(block), k), -jnp.inf), jnp.full((len(block), k), -1, jnp.int32)
        for start in range(0, len(corpus), PASSAGES):
            passages = np.asarray(fresh(corpus)[start : start + PASSAGES], np.float32)
            # Otherwise, all blocks that wait for the device would be in memory.
            best = jax.block_until_ready(_merged(block, passages, best, start, cosine))
        found.append([np.asarray(values) for values in best])
    scores, indices = (np.concatenate(values) for values in zip(*found, strict=True))
    if not (finite := np.isfinite(scores).all(axis=1)).all():
        raise ValueError(
            f"The scores of query {finite.argmin()} (from 0) are not finite, because its vector or "
            "one of a passage is not: check the weights of the model."
        )
    return scores, indices


@functools.partial(jax.jit, static_argnames="cosine", donate_argnums=2)
def _merged(queries: Any, passages: Any, best: Any, start: Any, cosine: bool) -> Any:
    if cosine:
        queries, passages = unit(queries), unit(passages)
    scores = jnp.matmul(queries, passages.T, precision="highest")
    indices = jnp.broadcast_to(start + jnp.arange(len(passages), dtype=jnp.int32), scores.shape)
    # Of equal scores, top_k takes the first, and the best so far are of earlier blocks.
    values, at = jax.lax.top_k(jnp.concatenate([best[0], scores], axis=1), best[0].shape[1])
    return values, jnp.take_along_axis(jnp.concatenate([best[1], indices], axis=1), at, axis=1)


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


def read_texts(path: Path) -> Iterator[tuple[str, str]]:
    """Yields (id, title and text) of each row of a table with the columns _id, title and text.

    There need not be a title; without an id, it is the index of the row, from 0. In a folder, all
    tables are read.
    """
    rows = ((file, *row) for file in data_files(path, "embed") for row in Table(file).rows())
    for index, (file, number, row) in enumerate(rows):
        parts = [row.get("title") or "", row.get("text")]
        if not all(isinstance(part, str) for part in parts):
            raise ValueError(f"{row_name(file, number)} has no text: give _id, title and text.")
        yield str(row.get("_id", index)), " ".join(parts).strip()


class Collection:
    """A retrieval in BEIR's files: corpus.jsonl, queries.jsonl and qrels/SPLIT.tsv in a folder.

    The judgements may have TREC's four columns, too. If there is no file for `split`, qrels must
    hold one. The texts of the corpus are read again whenever they are embedded.

    Raises:
        ValueError: an id occurs twice, or is judged, but in no file; a query has no positive; or a
            score is not a number.
    """

    def __init__(self, folder: str | Path, split: str):
        folder = Path(folder).expanduser()
        self._corpus, asked = folder / "corpus.jsonl", folder / "queries.jsonl"
        files = sorted((folder / "qrels").glob("*.*"))
        files = [path for path in files if path.stem == split] or files
        if len(files) != 1:
            raise ValueError(f"{folder} needs one file of judgements, such as qrels/{split}.tsv.")
        queries, ids = list(read_texts(asked)), [id for id, _ in read_texts(self._corpus)]
        for path, names in ((asked, [id for id, _ in queries]), (self._corpus, ids)):
            if twice := [id for id, count in Counter(names).items() if count > 1]:
                raise ValueError(f"{path}: the id {twice[0]!r} occurs twice: make ids unique.")
        self._positives: dict[str, set[str]] = {}
        judged = set()
        for query, passage, score in _judgements(files[0]):
            self._positives.setdefault(query, set()).update([passage] if score > 0 else ())
            judged.add(passage)
        unknown = (self._positives.keys() - dict(queries).keys(), judged - {*ids})
        for path, lacking in zip((asked, self._corpus), unknown, strict=True):
            if lacking:
                raise ValueError(f"{files[0]}: the id {min(lacking)!r} is not in {path}: add it.")
        if without := [query for query, found in self._positives.items() if not found]:
            raise ValueError(f"{files[0]}: the query {without[0]!r} has no score above 0: add one.")
        self._queries = {id: text for id, text in queries if id in self._positives}
        if not self._queries:
            raise ValueError(f"{files[0]} has no judgements: check the file.")
        self._ids = sorted(ids)
        self._rows = np.argsort(sorted(range(len(ids)), key=ids.__getitem__))

    def rank(self, embed: Mapping[str, Embed], *, cosine: bool = True) -> Ranking:
        """Ranks the passages for each query; `embed` are functions as of `embedders`."""
        queries, done, count = embed["query"]([*self._queries.values()]), 0, len(self._ids)
        with scratch_folder() as folder, progress("embedding", count, "texts") as state:
            path = folder / "vectors.npy"
            np.lib.format.open_memmap(path, "w+", np.float32, (count, queries.shape[1]))
            for texts in windows(text for _, text in read_texts(self._corpus)):
                rows = self._rows[done : done + len(texts)]
                np.load(path, mmap_mode="r+")[rows] = embed["document"](texts)
                done += len(texts)
                state.advance(len(texts))
            found = search(queries, np.load(path, mmap_mode="r"), DEPTH, cosine=cosine)
        return {
            query: {self._ids[i]: float(x) for x, i in zip(*row, strict=True)}
            for query, *row in zip(self._queries, *found, strict=True)
        }

    def score(self, ranking: Mapping[str, Iterable[str]]) -> dict[str, float]:
        """Returns the means over the queries of nDCG@10, MRR@10 and recall@100, as fractions."""
        values = []
        for query, positives in self._positives.items():
            gains, best = [float(x in positives) for x in ranking[query]], [1.0] * len(positives)
            values.append((ndcg(gains, best, 10), mrr(gains, 10), recall(gains, best, DEPTH)))
        return dict(zip(RETRIEVAL_METRICS, np.mean(values, axis=0).tolist(), strict=True))


def _judgements(path: Path) -> Iterator[tuple[str, str, float]]:
    for number, line in read_lines(path):
        fields = line.split("\t") if "\t" in line else line.split()
        score = read_number(fields[-1]) if len(fields) in (3, 4) else None
        if score is not None:
            yield fields[0], fields[-2], score
        elif fields and (number > 1 or fields[-1].lower().strip("+-") in ("nan", "inf")):
            raise ValueError(f"{row_name(path, number)} is no judgement: give ids and a number.")


def write_ranking(ranking: Ranking, output: Path) -> None:
    """Writes a ranking as a run file of TREC: query, Q0, passage, rank, score, bertjax."""
    with writing(output) as temporary, temporary.open("x", encoding="utf-8") as file:
        for query, scores in ranking.items():
            for rank, (passage, score) in enumerate(scores.items(), 1):
                file.write(f"{query} Q0 {passage} {rank} {score:.9g} bertjax\n")
