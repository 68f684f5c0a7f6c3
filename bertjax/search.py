"""Searches a corpus for the passages that are nearest to queries: `python -m bertjax.search`."""

import dataclasses
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from bertjax.base import command_line, signals
from bertjax.base.checked import Count, part_of
from bertjax.base.files import writing
from bertjax.config.model import VectorConfig

if TYPE_CHECKING:
    from bertjax.inference.retrieval import Collection, Ranking

TREC_SUFFIXES = (".trec", ".run", ".txt")
SUFFIXES = (".jsonl", *TREC_SUFFIXES)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SearchConfig(VectorConfig):
    """Config of `bertjax.search`: the model, a collection, and the file of its ranking.

    Raises:
        ValueError: there is not exactly one collection, a flag of the other kind of collection is
            set, nothing would be printed or written, or the suffix of `output` is unknown.
    """

    model: str
    """Model: a directory, the workdir of a run, a TF1 checkpoint, a hub name, or bertjax:tiny, a
    small model that comes with bertjax."""
    retrieval_dir: str | None = None
    """Folder of a collection in BEIR's files, corpus.jsonl, queries.jsonl and qrels/test.tsv, also
    in a bucket; None: --corpus and --queries are searched."""
    split: str | None = None
    """Judgements in --retrieval_dir, qrels/SPLIT.tsv; None: test, or the only file there."""
    corpus: str | None = None
    """Passages: a table with the columns text, id and perhaps title, a .txt file with one per line,
    or a folder of these, also in a bucket or on the Hub (hf:NAME); None: of --retrieval_dir."""
    queries: str | None = None
    """Queries, in files as those of --corpus; rows of .txt files have no ids but their numbers,
    from 0; None: of --retrieval_dir."""
    qrels: str | None = None
    """Judgements of --queries: a header, then query-id, corpus-id and score, or TREC's four
    columns; None: there are none, so that no metrics are computed, or those of --retrieval_dir."""
    id_column: str | None = None
    """Column of the ids of passages, of queries, or of both; None: _id, or the only one with a
    usual name, such as id or docid."""
    keep_same_id: bool = False
    """Whether the passage that has the id of the query is ranked; off, as in BEIR, where such a
    passage is the query itself."""
    top_k: Count = 100
    """Number of passages per query in --output, the best first."""
    output: str | None = None
    """Ranking to write: a run file of TREC (.trec, .run, .txt), or JSON lines (.jsonl) of each
    query, its id and its ranking; None: the metrics are only printed."""

    def __post_init__(self):
        super().__post_init__()
        if self.retrieval_dir is None:
            self._check_files()
        elif any((self.corpus, self.queries, self.qrels)):
            raise ValueError(
                f"--retrieval_dir {self.retrieval_dir} has a corpus, queries and qrels of its own: "
                "give either it, or --corpus and --queries."
            )
        if self.output is not None and Path(self.output).suffix.lower() not in SUFFIXES:
            raise ValueError(f"--output {self.output}: the name must end in {', '.join(SUFFIXES)}.")

    def _check_files(self) -> None:
        if self.corpus is None or self.queries is None:
            raise ValueError("Give --retrieval_dir, or --corpus and --queries.")
        if self.split is not None:
            raise ValueError(
                f"--split {self.split} is of --retrieval_dir: give a file of judgements as --qrels."
            )
        if self.output is None and self.qrels is None:
            raise ValueError(
                "Without judgements, there are no metrics to print: give --output for the ranking."
            )


def run(config: SearchConfig) -> None:
    """Ranks the passages for each query; writes the ranking, prints the metrics.

    The metrics, nDCG@10, MRR@10, recall@10 and recall@100, are printed as JSON if there are
    judgements, and to standard error in per cent, with their 95 % intervals over the queries.

    Raises FileNotFoundError, and ValueError if files or ids do not fit, or the model has another
    similarity than cosines and dot products.
    """
    from bertjax import weights
    from bertjax.devices.compilation import start_command
    from bertjax.inference.indexes import index_of
    from bertjax.inference.pretrained import Pretrained
    from bertjax.inference.retrieval import DEPTH
    from bertjax.record.labels import scores_text

    config = start_command(config, "retrieval_dir", "corpus", "queries", "qrels")
    collection = _collection(config)
    model = Pretrained(weights.load_model(config.model, "encoder"))
    kind = index_of(model.loaded, **vars(part_of(config, VectorConfig)))
    ranking = collection.rank(kind, depth=max(config.top_k, DEPTH))
    if config.output is not None:
        write_ranking(ranking, collection.queries, Path(config.output), config.top_k)
    if collection.is_judged:
        scores = collection.score(ranking) | kind.metrics()
        print(json.dumps(scores))
        print(scores_text(scores, collection.intervals(ranking)), file=sys.stderr)


def _collection(config: SearchConfig) -> "Collection":
    from bertjax.inference.retrieval import Collection, beir_collection

    options = {"id_column": config.id_column, "keep_same_id": config.keep_same_id}
    if config.retrieval_dir is not None:
        split = config.split or "test"
        only = config.split is None
        return beir_collection(config.retrieval_dir, split, or_only=only, **options)
    judgements = None if config.qrels is None else Path(config.qrels)
    return Collection(Path(str(config.corpus)), Path(str(config.queries)), judgements, **options)


def write_ranking(ranking: "Ranking", queries: dict[str, str], output: Path, top_k: int) -> None:
    """Writes the first `top_k` passages of each query; `queries` are their texts.

    The suffix of `output` is the format: .jsonl for lines `{"id": ..., "query": ..., "ranking":
    [{"id": ..., "score": ...}, ...]}`, else a run file of TREC: query, Q0, passage, rank, score,
    bertjax.
    """
    with writing(output) as temporary, temporary.open("x", encoding="utf-8") as file:
        for query, scores in ranking.items():
            best = [*scores.items()][:top_k]
            if output.suffix.lower() == ".jsonl":
                passages = [{"id": passage, "score": score} for passage, score in best]
                line = {"id": query, "query": queries[query], "ranking": passages}
                file.write(json.dumps(line, ensure_ascii=False) + "\n")
                continue
            for rank, (passage, score) in enumerate(best, start=1):
                file.write(f"{query} Q0 {passage} {rank} {score:.9g} bertjax\n")


parse, main = command_line.command_of(
    SearchConfig,
    run,
    "search",
    "Ranks the passages of a corpus for each query by their embeddings, exactly.",
    "Use a smaller --max_length or a smaller model.",
)


if __name__ == "__main__":
    signals.leave(main())
