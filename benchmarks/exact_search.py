"""Compares exact search with faiss, NumPy and SciPy: equal neighbours, seconds and memory.

    python benchmarks/exact_search.py --dense 200000 --tokens 5000 --sparse 100000 \\
        --output exact_search.jsonl

Dense vectors are searched beside faiss's flat index of inner products, vectors of tokens beside a
plain MaxSim in NumPy, one passage after the other, and sparse ones beside a product of SciPy's
matrices in memory. All vectors are drawn at random; those of dense passages and of tokens have
length 1. The sides take turns. A line of --output has the share of the places of the first 10 that
are equal, the largest difference of the scores of these places, and the median seconds of each
side. `gigabytes` is the peak of the memory that the process had after a first search of bertjax,
before the other side began: drawing and writing the passages included. `--alone` leaves out the
other side, as a million passages of many vectors are too many for it. Needs faiss-cpu for --dense.
"""

import functools
import resource
import statistics
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from reporting import parser_of, report, take_turns

DIMENSIONS = 128
BEST = 10
QUERY_TOKENS = 32
PASSAGE_TOKENS = 20, 180
WORDS, QUERY_WORDS, PASSAGE_WORDS = 30522, 30, 128
DRAWN = 2_000  # passages with vectors of tokens that are drawn and written at a time
Search = Callable[[Any], tuple[np.ndarray, np.ndarray]]


def drawn(rng: np.random.Generator, count: int) -> np.ndarray:
    """Returns random vectors of length 1, float32 [count, DIMENSIONS]."""
    vectors = rng.standard_normal((count, DIMENSIONS), np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def compare(
    kind: str, ours: Search, theirs: Callable[[], Search] | None, queries: Any, rounds: int
) -> dict[str, Any]:
    """Returns how the results and times of two searches differ; each returns (scores, places).

    `theirs` prepares the other side; None: there is none.
    """
    ours(queries)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    sides = {"bertjax": ours} | ({"other": theirs()} if theirs else {})
    found, seconds = take_turns(sides, queries, rounds)
    values = {
        "kind": kind,
        "queries": len(queries),
        "gigabytes": round(peak / 2**20, 2),
        "seconds": {name: round(statistics.median(x), 3) for name, x in seconds.items()},
    }
    if theirs:
        scores, places = found["bertjax"]
        other_scores, other_places = found["other"]
        values["equal_places"] = float(np.mean(places == other_places))
        values["largest_difference"] = float(np.abs(scores - other_scores).max())
    return values


def ranked(scores: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the highest scores of each query, and their places."""
    order = np.argsort(-scores, axis=1, kind="stable")[:, :BEST]
    return np.take_along_axis(scores, order, axis=1), order


def dense(passages: int, queries: int, rounds: int, alone: bool) -> dict[str, Any]:
    """Compares the search of one vector per passage with faiss."""
    from bertjax.inference.retrieval import search

    rng = np.random.default_rng(0)
    vectors = drawn(rng, passages)

    def ours(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return search(x, vectors, BEST, cosine=False)

    def theirs() -> Search:
        import faiss  # type: ignore[import-not-found]

        index = faiss.IndexFlatIP(DIMENSIONS)
        index.add(vectors)
        return lambda x: index.search(x, BEST)

    other = None if alone else theirs
    return {"passages": passages, **compare("dense", ours, other, drawn(rng, queries), rounds)}


def tokens(passages: int, queries: int, rounds: int, alone: bool) -> dict[str, Any]:
    """Compares the search of one vector per token with NumPy."""
    from bertjax.inference.late_interaction import TokenFile, search

    rng = np.random.default_rng(0)
    counts = rng.integers(*PASSAGE_TOKENS, passages)
    with tempfile.TemporaryDirectory() as folder:
        file = TokenFile(Path(folder), passages, DIMENSIONS)
        for start in range(0, passages, DRAWN):
            rows = np.arange(start, min(start + DRAWN, passages))
            file.write(rows, [drawn(rng, int(counts[row])) for row in rows])

        def theirs() -> Search:
            vectors = np.array(file.vectors())
            texts = np.split(vectors, np.cumsum(counts)[:-1])
            return lambda x: ranked(
                np.array([[(query @ text.T).max(1).sum() for text in texts] for query in x])
            )

        wanted = [drawn(rng, QUERY_TOKENS) for _ in range(queries)]
        other = None if alone else theirs
        values = compare("tokens", lambda x: search(x, file, BEST), other, wanted, rounds)
    return {"passages": passages, "vectors": int(counts.sum()), **values}


def sparse(passages: int, queries: int, rounds: int, alone: bool) -> dict[str, Any]:
    """Compares the search of sparse embeddings with a product of SciPy's matrices."""
    from scipy.sparse import csr_array, hstack, load_npz

    from bertjax.inference.sparse import PASSAGES, SparseIndex

    rng = np.random.default_rng(0)
    # Words are as frequent as in Zipf's law, without the most frequent ones.
    shares = np.cumsum(1 / np.arange(10, WORDS + 10))
    order = rng.permutation(WORDS)

    def weights(texts: Sequence[Any], words: int) -> csr_array:
        count = len(texts)
        drawn_words = np.searchsorted(shares / shares[-1], rng.random(count * words))
        columns = order[np.minimum(drawn_words, WORDS - 1)]
        values = rng.random(count * words, np.float32)
        rows = csr_array((values, columns, np.arange(count + 1) * words), (count, WORDS))
        rows.sum_duplicates()
        return rows

    wanted = weights([""] * queries, QUERY_WORDS)
    encoders: Any = {
        "document": functools.partial(weights, words=PASSAGE_WORDS),
        "query": lambda texts: wanted,
    }
    with tempfile.TemporaryDirectory() as folder:
        index = SparseIndex(encoders, Path(folder), passages, cosine=False)
        for start in range(0, passages, PASSAGES):
            rows = np.arange(start, min(start + PASSAGES, passages))
            index.add(rows, [""] * len(rows))

        def theirs() -> Search:
            files = sorted(Path(folder).glob("*.npz"))
            whole: Any = hstack([load_npz(file) for file in files], "csr")
            return lambda texts: ranked((wanted @ whole).toarray())

        other = None if alone else theirs
        texts = [""] * queries
        values = compare("sparse", lambda x: index.search(x, BEST), other, texts, rounds)
    return {"passages": passages, **values}


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--dense", type=int, default=0, help="passages with one vector; 0: none")
    parser.add_argument("--tokens", type=int, default=0, help="passages with vectors of tokens")
    parser.add_argument("--sparse", type=int, default=0, help="passages with sparse embeddings")
    parser.add_argument("--queries", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--alone", action="store_true", help="search with bertjax alone")
    args = parser.parse_args()
    for kind, other in ((dense, "faiss-cpu"), (tokens, "numpy"), (sparse, "scipy")):
        passages = getattr(args, kind.__name__)
        if passages:
            values = kind(passages, args.queries, args.rounds, args.alone)
            report(values, args.output, [] if args.alone else [other])


if __name__ == "__main__":
    main()
