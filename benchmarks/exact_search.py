"""Compares exact search with faiss and NumPy: equal neighbours, and queries per second.

    python benchmarks/exact_search.py --dense 200000 --tokens 5000 --output exact_search.jsonl

Dense vectors are searched beside faiss's flat index of inner products, and vectors of tokens beside
a plain MaxSim in NumPy, one passage after the other. All vectors are drawn at random, and have
length 1. The sides take turns. A line of --output has the share of the places of the first 10 that
are equal, the largest difference of the scores of these places, and the median seconds of each
side. Needs faiss-cpu for --dense.
"""

import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from reporting import parser_of, report, take_turns

DIMENSIONS = 128
BEST = 10
QUERY_TOKENS = 32
PASSAGE_TOKENS = 20, 180
Search = Callable[[Any], tuple[np.ndarray, np.ndarray]]


def drawn(rng: np.random.Generator, count: int) -> np.ndarray:
    """Returns random vectors of length 1, float32 [count, DIMENSIONS]."""
    vectors = rng.standard_normal((count, DIMENSIONS), np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def compare(kind: str, ours: Search, theirs: Search, queries: Any, rounds: int) -> dict[str, Any]:
    """Returns how the results and times of two searches differ; each returns (scores, places)."""
    found, seconds = take_turns({"bertjax": ours, "other": theirs}, queries, rounds)
    scores, places = found["bertjax"]
    other_scores, other_places = found["other"]
    return {
        "kind": kind,
        "queries": len(queries),
        "equal_places": float(np.mean(places == other_places)),
        "largest_difference": float(np.abs(scores - other_scores).max()),
        "seconds": {name: round(statistics.median(x), 3) for name, x in seconds.items()},
    }


def dense(passages: int, queries: int, rounds: int) -> dict[str, Any]:
    """Compares the search of one vector per passage with faiss."""
    import faiss  # type: ignore[import-not-found]

    from bertjax.inference.retrieval import search

    rng = np.random.default_rng(0)
    vectors = drawn(rng, passages)
    index = faiss.IndexFlatIP(DIMENSIONS)
    index.add(vectors)

    def ours(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return search(x, vectors, BEST, cosine=False)

    values = compare("dense", ours, lambda x: index.search(x, BEST), drawn(rng, queries), rounds)
    return {"passages": passages, "faiss": faiss.__version__, **values}


def tokens(passages: int, queries: int, rounds: int) -> dict[str, Any]:
    """Compares the search of one vector per token with NumPy."""
    from bertjax.inference.late_interaction import TokenFile, search

    rng = np.random.default_rng(0)
    texts = [drawn(rng, int(count)) for count in rng.integers(*PASSAGE_TOKENS, passages)]

    def theirs(x: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        scores = np.array([[(query @ text.T).max(1).sum() for text in texts] for query in x])
        order = np.argsort(-scores, axis=1, kind="stable")[:, :BEST]
        return np.take_along_axis(scores, order, axis=1), order

    with tempfile.TemporaryDirectory() as folder:
        file = TokenFile(Path(folder), passages, DIMENSIONS)
        file.write(np.arange(passages), texts)
        wanted = [drawn(rng, QUERY_TOKENS) for _ in range(queries)]
        values = compare("tokens", lambda x: search(x, file, BEST), theirs, wanted, rounds)
    return {"passages": passages, "vectors": sum(map(len, texts)), **values}


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--dense", type=int, default=0, help="passages with one vector; 0: none")
    parser.add_argument("--tokens", type=int, default=0, help="passages with vectors of tokens")
    parser.add_argument("--queries", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    if args.dense:
        report(dense(args.dense, args.queries, args.rounds), args.output)
    if args.tokens:
        report(tokens(args.tokens, args.queries, args.rounds), args.output)


if __name__ == "__main__":
    main()
