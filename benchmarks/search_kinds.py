"""Compares the kinds of search models on one collection: quality, index, and time per query.

    python benchmarks/search_kinds.py --retrieval_dir BEIR --model dense=DIR --model static=DIR \\
        --reranker DIR --output kinds.jsonl

Each model indexes the corpus and searches it for all judged queries. The reranker reorders the
first passages that the first model finds. A line of --output has nDCG@10, MRR@10, recall@10 and
recall@100; the bytes of the files of the index; the seconds to encode the corpus, compilation
included; and the milliseconds per query, encoding included, of a second search.
"""

import time
from pathlib import Path
from typing import Any

from reporting import parser_of, report

BEST = 20


class TimedIndex:
    """An index that also measures: its size, and the times of encoding and searching."""

    def __init__(self, index: Any, folder: Path, measured: dict[str, Any]):
        self._index = index
        self._folder = folder
        self._measured = measured
        self._seconds = 0.0

    def add(self, rows: Any, texts: Any) -> None:
        start = time.perf_counter()
        self._index.add(rows, texts)
        self._seconds += time.perf_counter() - start

    def search(self, queries: Any, k: int) -> Any:
        files = [file for file in self._folder.rglob("*") if file.is_file()]
        self._measured["index_bytes"] = sum(file.stat().st_size for file in files)
        self._measured["corpus_seconds"] = round(self._seconds, 1)
        self._index.search(queries, k)  # compiles
        start = time.perf_counter()
        found = self._index.search(queries, k)
        seconds = time.perf_counter() - start
        self._measured["ms_per_query"] = round(1000 * seconds / len(queries), 2)
        return found


def measured(collection: Any, model: str) -> tuple[dict[str, Any], Any]:
    """Returns what a model scores and takes, and its ranking."""
    from bertjax import weights
    from bertjax.inference.indexes import index_of
    from bertjax.inference.pretrained import Pretrained

    values: dict[str, Any] = {}
    kind = index_of(Pretrained(weights.load_model(model, "auto")).loaded)

    def open_index(folder: Path, count: int) -> TimedIndex:
        return TimedIndex(kind.open(folder, count), folder, values)

    ranking = collection.rank(kind._replace(open=open_index))
    return {**collection.score(ranking), **values}, ranking


def reranked(collection: Any, ranking: Any, model: str, texts: dict[str, str]) -> dict[str, Any]:
    """Returns the scores and times of a reranker of the first passages of a ranking."""
    import bertjax

    reranker = bertjax.load_pretrained(model)
    ranks = {}
    seconds = 0.0
    for _ in range(2):  # the first one compiles
        start = time.perf_counter()
        for query, passages in ranking.items():
            ids = list(passages)
            first = reranker.rerank(collection.queries[query], [texts[id] for id in ids[:BEST]])
            ranks[query] = [ids[row["index"]] for row in first] + ids[BEST:]
        seconds = time.perf_counter() - start
    milliseconds = round(1000 * seconds / len(ranking), 2)
    return {**collection.score(ranks), "ms_per_query": milliseconds}


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--retrieval_dir", required=True, help="folder of BEIR's files")
    parser.add_argument("--model", action="append", required=True, help="NAME=DIR; may be repeated")
    parser.add_argument("--reranker", help="directory of a reranker")
    args = parser.parse_args()
    from bertjax.inference.retrieval import PASSAGE_IDS, beir_collection, read_passages

    collection = beir_collection(args.retrieval_dir, "test")
    rankings = []
    for named in args.model:
        name, _, model = named.partition("=")
        values, ranking = measured(collection, model)
        rankings.append(ranking)
        report({"kind": name, **values}, args.output)
    if args.reranker:
        corpus = read_passages(Path(args.retrieval_dir) / "corpus.jsonl", PASSAGE_IDS)
        texts = {passage.id: passage.whole for passage in corpus}
        values = reranked(collection, rankings[0], args.reranker, texts)
        report({"kind": "reranker", **values}, args.output)


if __name__ == "__main__":
    main()
