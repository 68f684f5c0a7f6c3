"""Dense retrieval: the files of a corpus, exact search in blocks, and the evaluation of a model.

The files are those of BEIR, and others: a table of passages or queries has the columns text and,
perhaps, title and an id, by which judgements name a row. Rows of a file with one text per line have
no ids: they are numbered from 0.

The metrics are those of BEIR, which trec_eval computes: a judgement above 0 is a positive, and nDCG
counts its grade; of passages with equal scores, the higher id, as a text, comes first; a judged
passage that is not in the corpus is never found; a query without a positive counts as 0; and the
passage with the id of the query is left out. A title stands before its text with a space between.
"""

import functools
import mmap
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from bertjax.base.files import brief, writing
from bertjax.base.lock import scratch_folder
from bertjax.inference.embedder import ROLES, Embedder, embedding_progress, windows
from bertjax.model.embedding_losses import unit
from bertjax.tasks.dataset import MISSING
from bertjax.tasks.intervals import Interval, intervals_of_means
from bertjax.tasks.metrics import mrr, ndcg, recall
from bertjax.tasks.sources.columns import plain
from bertjax.tasks.sources.data_files import read_lines, row_name
from bertjax.tasks.sources.own_files import data_files
from bertjax.tasks.sources.tables import SQL_MISSING, Table, is_blank, read_number
from bertjax.weights import LoadedModel

# Names of columns, as of `plain`.
_ROW_IDS = {"id", "idx", "index", "guid", "uid", "uuid", "key"}
_QUERY_IDS = {"qid", "queryid", "questionid", "topicid"}
_PASSAGE_IDS = {"docid", "pid", "did", "cid", "docno", "corpusid", "passageid", "documentid"}
QUERY_IDS = _ROW_IDS | _QUERY_IDS
PASSAGE_IDS = _ROW_IDS | _PASSAGE_IDS | {"paragraphid", "articleid", "chunkid"}
_JUDGED_QUERY = _QUERY_IDS | {"query", "question", "topic"}
_JUDGED_PASSAGE = _PASSAGE_IDS | {"passage", "document", "doc", "corpus"}
_SCORE = {"score", "relevance", "relevancy", "rel", "label", "grade", "rating", "judgment"}
_SCORE |= {"judgement"}
_TREC_SECOND = {"q0", "0", "iter", "iteration", "run"}
_MISSING = MISSING | {SQL_MISSING.lower()}

# {query id: {passage id: gain}}
Judgements = dict[str, dict[str, float]]


class Passage(NamedTuple):
    """A row of a table of passages or queries; `where` names it, `id` is "-" without ids."""

    where: str
    id: str
    title: str
    text: str

    @property
    def whole(self) -> str:
        """The title and the text, with a space between them."""
        return f"{self.title} {self.text}".strip()


def read_passages(
    path: Path,
    usual_ids: set[str] | None = None,
    *,
    id_column: str | None = None,
    warns: bool = False,
) -> Iterator[Passage]:
    """Yields the rows of a table, or of all tables in a folder.

    Args:
        usual_ids: usual names, as of `plain`, of the column of ids; None: no ids are read.
        id_column: the column of ids, if the table has it; else, and for None, it is _id, or the
            only one with a usual name.
        warns: whether warnings name the columns that are not read, and rows without a text.

    Raises:
        ValueError: a row has no text or no id, or the column of ids is not known.
    """
    count = 0
    for file in data_files(path):
        table = Table(file)
        title_column = _column(table, "title")
        text_column = _column(table, "text")
        ids = None
        if usual_ids is not None and not table.is_text:
            ids = _id_column(table, usual_ids, id_column)
        without_text = []
        for number, row in table.rows():
            where = row_name(file, number)
            title = row.get(title_column) or ""
            text = row.get(text_column)
            if not isinstance(title, str) or not isinstance(text, str):
                names = brief(", ".join(table.columns))
                raise ValueError(
                    f"{where} has no text as {text_column!r} (columns: {names}): add it, or name "
                    "the column of the texts text; a title is optional."
                )
            id = "-"
            if ids is not None:
                id = _id_of(row, ids, where)
            elif usual_ids is not None:
                id = str(count)
            count += 1
            passage = Passage(where, id, title, text)
            yield passage
            if is_blank(passage.whole) or text.strip().lower() in _MISSING:
                without_text.append(f"row {number}, id {id}")
        if warns:
            warn(file, "rows whose text is empty, or NaN, None and the like", without_text)
            read = {ids, title_column, text_column, "metadata"}
            others = [name for name in table.columns if not _is_known(name, read)]
            warn(file, f"columns that are not read ({brief(', '.join(others))})", others)


def is_numbered(path: Path) -> bool:
    """Returns whether rows of a file, or of files in a folder, get their numbers as ids."""
    return any(Table(file).is_text for file in data_files(path))


def has_column(path: Path, name: str) -> bool:
    """Returns whether a table, or one in a folder, has a column."""
    return any(name in Table(file).columns for file in data_files(path))


def warn(path: Path, what: str, names: Sequence[str]) -> None:
    """Prints a warning about a file that counts `names`, unless there are none."""
    if names:
        message = f"{what}: {len(names):,}, such as {brief(names[0], 200)!r}"
        print(f"warning: {path}: {message}", file=sys.stderr)


def _column(table: Table, name: str) -> str:
    """Returns the column of a table with a name, or with this name in another spelling."""
    if name in table.columns:
        return name
    spelt = {plain(column): column for column in table.columns}
    return spelt.get(name, name)


def _id_column(table: Table, usual: set[str], id_column: str | None) -> str:
    for name in (id_column, "_id"):
        if name is not None and name in table.columns:
            return name
    known = [name for name in table.columns if plain(name) in usual]
    if len(known) == 1:
        return known[0]
    count = "no column"
    if known:
        count = "several columns"
    raise ValueError(
        f"{table.path} has {count} of ids (columns: {brief(', '.join(table.columns))}): name the "
        "one to which the judgements refer _id, or give it as --id_column."
    )


def _id_of(row: dict[str, Any], column: str, where: str) -> str:
    value = row.get(column)
    if type(value) not in (int, str) or _is_missing(str(value)):
        raise ValueError(f"{where} has no text or whole number as {column!r}: add its id.")
    return str(value)


def _is_missing(id: str) -> bool:
    return id.strip().lower() in {"", *_MISSING}


def _is_known(column: str, read: set[str | None]) -> bool:
    return column in read or plain(column) in QUERY_IDS | PASSAGE_IDS


def read_judgements(path: Path) -> Judgements:
    """Reads the judgements of BEIR or TREC; scores below 0 have the gain 0.

    Raises:
        ValueError: a row is no judgement, a passage is judged twice, or there is no judgement.
    """
    gains: Judgements = {}
    for number, line in read_lines(path):
        separator = None  # any white space
        if "\t" in line:
            separator = "\t"
        fields = line.split(separator)
        if not fields or (number == 1 and _is_header(fields)):
            continue
        judgement = _judgement(fields)
        if judgement is None:
            raise ValueError(
                f"{row_name(path, number)} is no judgement ({brief(line, 60)}): give a header with "
                "query-id, corpus-id and score in this order, or TREC's four columns, and a number "
                "as each score."
            )
        query, passage, gain = judgement
        if gains.setdefault(query, {}).setdefault(passage, gain) != gain:
            raise ValueError(f"{row_name(path, number)} judges {passage!r} again: keep one row.")
    if not gains:
        raise ValueError(f"{path} has no judgements: check the file.")
    return gains


def _judgement(fields: list[str]) -> tuple[str, str, float] | None:
    """Returns (query id, passage id, gain) of a row; None if it is no judgement."""
    if len(fields) not in (3, 4):
        return None
    query, *_, passage, text = fields
    score = read_number(text)
    if score is None or _is_missing(query) or _is_missing(passage):
        return None
    return query, passage, max(score, 0.0)


def _is_header(fields: list[str]) -> bool:
    names = [plain(name) for name in fields]
    if len(names) == 4 and names[1] in _TREC_SECOND:
        del names[1]
    if len(names) != 3:
        return False
    query, passage, score = names
    return query in _JUDGED_QUERY and passage in _JUDGED_PASSAGE and score in _SCORE


QUERIES, PASSAGES = 512, 16384  # in a block of scores
DEPTH = 100  # the passages of a ranking that the metrics need
# The metrics of a ranking.
METRICS = ("ndcg_at_10", "mrr_at_10", "recall_at_10", "recall_at_100")
# {query id: {passage id: score}}, the best passages first
Ranking = Mapping[str, Mapping[str, float]]
Embed = Callable[[Sequence[str]], np.ndarray]


class Index(Protocol):
    """Passages as a model encodes them, in the files of a folder, and their scores for queries.

    `N` queries are searched among `P` passages, whose places are numbered from 0.
    """

    def add(self, rows: np.ndarray, texts: Sequence[str]) -> None:
        """Encodes passages, which get the places `rows`, int [len(texts)]."""

    def search(self, queries: Sequence[str], k: int) -> tuple[np.ndarray, np.ndarray]:
        """Finds the `k` passages with the highest scores for each query, exactly.

        Returns the scores, float32 [N, min(k, P)], in descending order, and the places of the
        passages, int32 of the same shape. Of equal scores, the lower place comes first. Raises
        ValueError if a score is not finite.
        """
        ...

    def scores(self, queries: Sequence[str], places: Sequence[Sequence[int]]) -> list[np.ndarray]:
        """Returns the scores of some passages for each query, float32 arrays like `places`."""
        ...


# A function (folder, number of passages) that opens an index; one that is there is continued.
OpenIndex = Callable[[Path, int], Index]


class IndexKind(NamedTuple):
    """How a model searches.

    Attributes:
        encoders: what encodes texts of the roles "query" and "document". Each has `settings`, which
            determine the result besides model and text, and calls `after_batch`.
        open: opens an index of passages.
        metrics: returns {metric: value} of the texts that were encoded, besides those of rankings.
    """

    encoders: Mapping[str, Any]
    open: OpenIndex
    metrics: Callable[[], dict[str, float]] = dict


def new_array(path: Path, dtype: type, shape: tuple[int, ...]) -> None:
    """Writes an array of zeros to a file, of which a kill leaves no part."""
    with writing(path) as temporary:
        np.lib.format.open_memmap(temporary, "w+", dtype, shape)


class DenseIndex(Index):
    """An `Index` of one vector per passage, in a file that is mapped into memory.

    `embed` are functions as of `embedders`; scores are cosines, or dot products of the vectors.
    """

    def __init__(self, embed: Mapping[str, Embed], folder: Path, count: int, *, cosine: bool):
        self._embed = embed
        self._path = folder / "vectors.npy"
        self._count = count
        self._cosine = cosine

    def add(self, rows: np.ndarray, texts: Sequence[str]) -> None:
        """Writes the vectors of passages."""
        vectors = self._embed["document"](texts)
        if not self._path.exists():
            new_array(self._path, np.float32, (self._count, vectors.shape[1]))
        np.load(self._path, mmap_mode="r+")[rows] = vectors

    def search(self, queries: Sequence[str], k: int) -> tuple[np.ndarray, np.ndarray]:
        """Searches by `search`."""
        vectors = np.load(self._path, mmap_mode="r")
        return search(self._embed["query"](queries), vectors, k, cosine=self._cosine)

    def scores(self, queries: Sequence[str], places: Sequence[Sequence[int]]) -> list[np.ndarray]:
        """Reads the vectors of the places alone."""
        scores = []
        embedded = self._embed["query"](queries)
        for query, rows in zip(embedded, places, strict=True):
            # Mapped anew, so that the pages that were read no longer count as memory in use.
            passages = np.load(self._path, mmap_mode="r")[list(rows)]
            if self._cosine:
                query = np.asarray(unit(query))
                passages = np.asarray(unit(passages))
            scores.append(passages @ query)
        return scores


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
    refuse_infinite(scores)
    return scores, indices


def refuse_infinite(scores: np.ndarray) -> None:
    """Raises ValueError if a score of a query, [N, k], is not finite."""
    finite = np.isfinite(scores).all(axis=1)
    if not finite.all():
        raise ValueError(
            f"The scores of query {finite.argmin()} (from 0) are not finite, because its vector or "
            "one of a passage is not: check the weights of the model."
        )


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
        queries = unit(queries)
        passages = unit(passages)
    return keep_best(best, jnp.matmul(queries, passages.T, precision="highest"), start)


def keep_best(best: tuple[Any, Any], scores: Any, start: Any) -> tuple[Any, Any]:
    """Merges the scores [N, M] of the passages from `start` into the best scores and indices.

    Of equal scores, those of earlier passages come first; both results are [N, k].
    """
    numbers = start + jnp.arange(scores.shape[1], dtype=jnp.int32)
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


def embedders(
    loaded: LoadedModel,
    kind: Callable[..., Any] = Embedder,
    *,
    max_length: int | Mapping[str, int] | None = None,
    **options: Any,
) -> dict[str, Any]:
    """Returns the encoders of the roles "query" and "document", of a kind and with its `options`.

    Texts get the prompts and lengths of these names, as from `encode_query` and `encode_document`
    of sentence-transformers. `max_length` may also be {role: maximum length}.
    """
    encoders = {}
    for role in ROLES:
        if isinstance(max_length, Mapping):
            length = max_length[role]
        else:
            length = max_length
        encoders[role] = kind(loaded, prompt=role, max_length=length, **options)
    return encoders


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

    def rank(self, kind: IndexKind, *, depth: int = DEPTH) -> Ranking:
        """Ranks the best `depth` passages for each query.

        The index is in a temporary folder, so that memory does not grow with the corpus.
        """
        with scratch_folder() as folder:
            index = kind.open(folder, len(self._ids))
            with embedding_progress(kind.encoders["document"], len(self._ids)):
                self._fill(index)
            scores, places = index.search([*self.queries.values()], depth + 1)
        ranking = {}
        for query, of_query, best in zip(self.queries, scores.tolist(), places, strict=True):
            ids = [self._ids[i] for i in best]
            passages = dict(zip(ids, of_query, strict=True))
            if not self._keeps_same_id:
                passages.pop(query, None)
            ranking[query] = dict([*passages.items()][:depth])
        return ranking

    def _fill(self, index: Index) -> None:
        """Adds the corpus to an index, in descending order of ids."""
        done = 0
        for texts in windows(passage.whole for passage in read_passages(self._corpus)):
            index.add(self._rows[done : done + len(texts)], texts)
            done += len(texts)

    def score(self, ranking: Mapping[str, Iterable[str]]) -> dict[str, float]:
        """Returns the means over the queries of the `METRICS`, as fractions."""
        means = np.mean(self.scores_of_queries(ranking), axis=0).tolist()
        return dict(zip(METRICS, means, strict=True))

    def intervals(self, ranking: Mapping[str, Iterable[str]]) -> dict[str, Interval]:
        """Returns the 95 % interval of each of the scores: what other queries would give."""
        return intervals_of_means(METRICS, self.scores_of_queries(ranking))

    def scores_of_queries(
        self, ranking: Mapping[str, Iterable[str]]
    ) -> list[tuple[float, float, float, float]]:
        """Returns the `METRICS` of each judged query, as fractions."""
        scores = []
        for query, judged in self._gains.items():
            ranked = [judged.get(id, 0.0) for id in ranking[query]]
            gains = [*judged.values()]
            is_hit = np.sign(ranked).tolist()
            is_positive = np.sign(gains).tolist()
            first = recall(is_hit, is_positive, 10)
            found = recall(is_hit, is_positive, DEPTH)
            scores.append((ndcg(ranked, gains, 10), mrr(is_hit, 10), first, found))
        return scores


def beir_collection(
    folder: str | Path, split: str, *, or_only: bool = False, **options: Any
) -> Collection:
    """Opens BEIR's files in a folder: corpus.jsonl, queries.jsonl and qrels/SPLIT.tsv.

    Args:
        folder: the folder.
        split: the name of a file of judgements, without its suffix.
        or_only: whether the only file of judgements, under any name, will do; it is printed.
        options: as of `Collection`.

    Raises:
        ValueError: there is no such file of judgements, or several; or as in `Collection`.
    """
    folder = Path(folder).expanduser()
    files = sorted((folder / "qrels").glob("*.*"))
    judgements = [path for path in files if path.stem == split]
    if or_only and not judgements and len(files) == 1:
        judgements = files
        print(f"judgements of {files[0]}, the only file there", file=sys.stderr)
    if len(judgements) != 1:
        names = [path.name for path in files]
        raise ValueError(
            f"{folder}/qrels needs one file {split}.tsv, but holds {names}: have one file of this "
            "name, or name another split."
        )
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
