"""Dense retrieval: exact search in blocks, and the evaluation of a model over a corpus (BEIR).

The metrics are those of BEIR, which trec_eval computes: a judgement above 0 is a positive, and nDCG
counts its grade; of passages with equal scores, the higher id, as a text, comes first; a judged
passage that is not in the corpus is never found; a query without a positive counts as 0; and the
passage with the id of the query is left out. A title stands before its text with a space between.
"""

import functools
import mmap
import operator
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from bertjax.base.files import brief, writing
from bertjax.base.progress import progress
from bertjax.base.scratch import scratch_folder
from bertjax.inference.embed import ROLES, Embedder, windows
from bertjax.model.embedding_losses import unit
from bertjax.tasks.embedding import RETRIEVAL_METRICS
from bertjax.tasks.metrics import mrr, ndcg, recall
from bertjax.tasks.sources.columns import plain
from bertjax.tasks.sources.own_files import data_files
from bertjax.tasks.sources.rows import SQL_MISSING, is_blank
from bertjax.tasks.sources.tables import Table, read_lines, read_number, row_name
from bertjax.tasks.task import MISSING
from bertjax.weights import LoadedModel

QUERIES, PASSAGES = 512, 16384  # in a block of scores
DEPTH = 100  # the passages of a ranking that the metrics need
# Names, as of `plain`, of the columns of ids, and of the columns of judgements.
QUERY_IDS = frozenset("id idx index guid uid uuid key qid queryid questionid topicid".split())
PASSAGE_IDS = frozenset(
    "id idx index guid uid uuid key docid pid did cid docno corpusid passageid documentid "
    "paragraphid articleid chunkid".split()
)
_IDS = QUERY_IDS | PASSAGE_IDS
_JUDGED = (
    frozenset("qid queryid questionid topicid query question topic".split()),
    frozenset(
        "docid pid did cid docno corpusid passageid documentid passage document doc corpus".split()
    ),
    frozenset("score relevance relevancy rel label grade rating judgment judgement".split()),
)
_MISSING = MISSING | {SQL_MISSING.lower()}
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


class Passage(NamedTuple):
    """A row of a table of passages or queries; `where` names it, and `id` is "-" without ids."""

    where: str
    id: str
    title: str
    text: str

    @property
    def whole(self) -> str:
        """The title and the text, with a space between them."""
        return f"{self.title} {self.text}".strip()


def read_passages(
    path: Path, ids: frozenset[str] | None = None, id_column: str | None = None
) -> Iterator[Passage]:
    """Yields the rows of a table with the columns text and, perhaps, title.

    In a folder, all tables are read.

    Args:
        ids: usual names, as of `plain`, of the column of ids; if there are none, no ids are read.
            Unless it is None, warnings name the columns that are not read, and rows without a text.
        id_column: the column of ids, if the table has it; else, and for None, it is _id, or the
            only one with a usual name.

    Raises:
        ValueError: a row has no text or no id, or the column of ids is not known.
    """
    for file in data_files(path, "embed"):
        table, missing = Table(file), []
        named = {plain(name): name for name in table.columns}
        named |= {name: name for name in table.columns}
        columns = [named.get(name, name) for name in ("title", "text")]
        column = _id_column(table, ids, id_column) if ids else ""
        for number, row in table.rows():
            where, parts = row_name(file, number), [row.get(name) or "" for name in columns]
            if not all(isinstance(part, str) for part in parts) or row.get(columns[1]) is None:
                raise ValueError(f"{where} has no text: give _id, title and text.")
            id = row.get(column) if ids else "-"
            if not _is_id(id):
                raise ValueError(f"{where} has no text or whole number as {column!r}: add its id.")
            yield (passage := Passage(where, str(id), *parts))
            if is_blank(passage.whole) or passage.text.strip().lower() in _MISSING:
                missing.append(str(number))
        if ids is not None:
            _warn(file, "rows whose text is empty, or NaN, None and the like", missing)
            known = (column, *columns, "metadata")
            names = [x for x in table.columns if x not in known and plain(x) not in _IDS]
            _warn(file, f"columns that are not read ({brief(', '.join(names))})", names)


def _is_id(value: Any) -> bool:
    return type(value) in (int, str) and str(value).strip().lower() not in {"", *_MISSING}


def _id_column(table: Table, usual: frozenset[str], named: str | None) -> str:
    for name in (named, "_id"):
        if name in table.columns:
            return str(name)
    known = [name for name in table.columns if plain(name) in usual]
    if len(known) != 1:
        number = "several columns" if known else "no column"
        raise ValueError(
            f"{table.path} has {number} of ids (columns: {brief(', '.join(table.columns))}): name "
            "the one to which the judgements refer _id, or give it as --id_column."
        )
    return known[0]


class Collection:
    """A retrieval in BEIR's files: corpus.jsonl, queries.jsonl and qrels/SPLIT.tsv in a folder.

    The judgements may have TREC's four columns, too. If there is no file for `split`, qrels must
    hold one. The texts of the corpus are read again whenever they are embedded. Warnings count the
    judged queries and passages that are in no file, the queries without a positive, and those
    whose ranking lacks the passage with the id of the query.

    Args:
        id_column: as in `read_passages`, of the corpus and of the queries.
        keep_same_id: whether the passage with the id of the query is ranked.

    Raises:
        ValueError: an id occurs twice, no judged query or passage is in the files, a passage is
            judged twice for a query, a score is not a number, or a positive has the id of its query
            without `keep_same_id`.
    """

    def __init__(
        self,
        folder: str | Path,
        split: str,
        *,
        id_column: str | None = None,
        keep_same_id: bool = False,
    ):
        folder = Path(folder).expanduser()
        self._corpus, asked = folder / "corpus.jsonl", folder / "queries.jsonl"
        files = sorted((folder / "qrels").glob("*.*"))
        files = [path for path in files if path.stem == split] or files
        if len(files) != 1:
            raise ValueError(f"{folder} needs one file of judgements, such as qrels/{split}.tsv.")
        if id_column not in (None, *Table(asked).columns, *Table(self._corpus).columns):
            raise ValueError(f"{folder}: no file has the column {id_column!r} of --id_column.")
        queries: dict[str, str] = {}
        for query in read_passages(asked, QUERY_IDS, id_column):
            if is_blank(query.text):
                raise ValueError(f"{query.where} has an empty text: fill it, or remove the row.")
            _add(queries, query, query.text.strip())
        ids: dict[str, str] = {}
        for passage in read_passages(self._corpus, PASSAGE_IDS, id_column):
            _add(ids, passage, "")
        self._keeps_same_id = keep_same_id
        self._gains = _read_judgements(files[0])
        judged = {id for gains in self._gains.values() for id in gains}
        for what, found, known, path, effect in (
            ("query-id", {*self._gains}, queries, asked, "queries are left out"),
            ("corpus-id", judged, ids, self._corpus, "passages count as never found"),
        ):
            if not found & known.keys():
                first = brief(min(found), 40)
                raise ValueError(
                    f"{files[0]}: no {what}, such as {first!r}, is in {path}: check the ids of "
                    "both files, and --id_column."
                )
            where = f"that are not in {path} (its _id, or --id_column)"
            lacking = sorted(found - known.keys())
            _warn(files[0], f"values of {what} {where}, whose {effect}", lacking)
        self._gains = {id: gains for id, gains in self._gains.items() if id in queries}
        self._queries = {id: queries[id] for id in self._gains}
        lacking = [id for id, gains in self._gains.items() if not any(gains.values())]
        _warn(files[0], "queries without a score above 0, which count as 0", lacking)
        if not keep_same_id:
            same = sorted(self._gains.keys() & ids.keys())
            if wanted := [id for id in same if self._gains[id].get(id)]:
                raise ValueError(
                    f"{files[0]}: the id {wanted[0]!r} is that of a query and of its positive, "
                    "but a passage with the id of the query is left out, as in BEIR, because it is "
                    "the query itself: give --keep_same_id if the ids are equal by chance."
                )
            _warn(asked, "passages with these ids are left out (see --keep_same_id)", same)
        self._ids = sorted(ids, reverse=True)
        self._rows = np.argsort(sorted(range(len(ids)), key=[*ids].__getitem__, reverse=True))

    def rank(self, embed: Mapping[str, Embed], *, cosine: bool = True) -> Ranking:
        """Ranks the passages for each query; `embed` are functions as of `embedders`."""
        queries, done, count = embed["query"]([*self._queries.values()]), 0, len(self._ids)
        with scratch_folder() as folder, progress("embedding", count, "texts") as state:
            path = folder / "vectors.npy"
            np.lib.format.open_memmap(path, "w+", np.float32, (count, queries.shape[1]))
            for texts in windows(passage.whole for passage in read_passages(self._corpus)):
                rows = self._rows[done : done + len(texts)]
                np.load(path, mmap_mode="r+")[rows] = embed["document"](texts)
                done += len(texts)
                state.advance(len(texts))
            found = search(queries, np.load(path, mmap_mode="r"), DEPTH + 1, cosine=cosine)
        ranking = {}
        for query, *row in zip(self._queries, *found, strict=True):
            ranked = [(self._ids[i], float(x)) for x, i in zip(*row, strict=True)]
            kept = [pair for pair in ranked if self._keeps_same_id or pair[0] != query]
            ranking[query] = dict(kept[:DEPTH])
        return ranking

    def score(self, ranking: Mapping[str, Iterable[str]]) -> dict[str, float]:
        """Returns the means over the queries of nDCG@10, MRR@10 and recall@100, as fractions."""
        values = []
        for query, judged in self._gains.items():
            gains, best = [judged.get(x, 0.0) for x in ranking[query]], [*judged.values()]
            hits, positives = np.sign(gains).tolist(), np.sign(best).tolist()
            values.append((ndcg(gains, best, 10), mrr(hits, 10), recall(hits, positives, DEPTH)))
        return dict(zip(RETRIEVAL_METRICS, np.mean(values, axis=0).tolist(), strict=True))


def _add(values: dict[str, str], passage: Passage, text: str) -> None:
    if passage.id in values:
        raise ValueError(f"{passage.where}: the id {passage.id!r} occurs twice: make ids unique.")
    values[passage.id] = text


def _warn(path: Path, what: str, names: Sequence[str]) -> None:
    if names:
        first = brief(names[0], 200)
        print(f"warning: {path}: {what}: {len(names):,}, such as {first!r}", file=sys.stderr)


def _read_judgements(path: Path) -> dict[str, dict[str, float]]:
    """Returns {query id: {passage id: gain}}; scores below 0 have the gain 0."""
    gains: dict[str, dict[str, float]] = {}
    for number, line in read_lines(path):
        fields = line.split("\t") if "\t" in line else line.split()
        query, passage, score = (fields[:1] + fields[-2:]) * (len(fields) in (3, 4)) or ("", "", "")
        value = read_number(score)
        if value is not None and _is_id(query) and _is_id(passage):
            gain = gains.setdefault(query, {}).setdefault(passage, max(value, 0.0))
            if gain != max(value, 0.0):
                raise ValueError(
                    f"{row_name(path, number)} judges {passage!r} again: keep one row."
                )
        elif fields and not (number == 1 and _is_header([plain(name) for name in fields])):
            raise ValueError(
                f"{row_name(path, number)} is no judgement ({brief(line, 60)}): give a header with "
                "query-id, corpus-id and score in this order, or TREC's four columns, and a number "
                "as each score."
            )
    if not gains:
        raise ValueError(f"{path} has no judgements: check the file.")
    return gains


def _is_header(names: list[str]) -> bool:
    ids = names[:1] + names[-2:]
    is_trec = len(names) == 4 and names[1] in ("q0", "0", "iter", "iteration", "run")
    return (len(names) == 3 or is_trec) and all(map(operator.contains, _JUDGED, ids))


def write_ranking(ranking: Ranking, output: Path) -> None:
    """Writes a ranking as a run file of TREC: query, Q0, passage, rank, score, bertjax."""
    with writing(output) as temporary, temporary.open("x", encoding="utf-8") as file:
        for query, scores in ranking.items():
            for rank, (passage, score) in enumerate(scores.items(), 1):
                file.write(f"{query} Q0 {passage} {rank} {score:.9g} bertjax\n")
