"""Mines hard negatives for `embed` and `rerank`: `python -m bertjax.mine --model DIR ...`.

The options mean what they mean in sentence-transformers' `mine_hard_negatives`, and of several
positives of a query, the one with the lowest score counts there as here. Other than there, the text
of a query is never its negative, nor is another form of a positive of it, and a reranker's scores
also count without a margin.
"""

import dataclasses
import itertools
import re
import unicodedata
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from bertjax.base import command_line, signals
from bertjax.base.checked import AtLeast0, Checked, Count

if TYPE_CHECKING:
    from bertjax.inference.output_files import PartialFolder, PartialLines
    from bertjax.inference.pretrained import Pretrained
    from bertjax.inference.retrieval import Index, Passage


@dataclasses.dataclass(frozen=True, kw_only=True)
class MineConfig(Checked):
    """Config of `bertjax.mine`: the texts, the models, and which passages are hard negatives.

    Raises:
        ValueError: a value is out of its range.
    """

    model: str
    """Model whose embeddings find the candidates, as for bertjax.embed."""
    queries: str
    """Table with a column of queries and one of their positives, as finetune --task=embed reads;
    all rows of a query are its positives."""
    output: str
    """JSON lines to write: query, positive, negatives, and scores, of the positive and of each
    negative. A killed command continues when it is run again."""
    corpus: str | None = None
    """Passages: a table with a column text and perhaps title, such as BEIR's corpus.jsonl, a .txt
    file with one per line, or a folder of such files, also in a bucket (gs://, s3://) or on the Hub
    (hf:OWNER/NAME), as --queries; None: the positives alone, which are always among them."""
    text_column: str | None = None
    """Column of the queries; None: guessed, and the guess is printed."""
    pair_column: str | None = None
    """Column of the positives; None: guessed, and the guess is printed."""
    ignore_columns: tuple[str, ...] = ()
    """Columns of --queries that are not meant to be used, as of finetune; empty: none."""
    max_length: Count | None = None
    """Maximum number of tokens per text for --model; None: as its files say."""
    num_negatives: Count = 3
    """Number of negatives per positive; queries with fewer are left out."""
    rank_min: AtLeast0 = 0
    """Number of the best candidates to skip, which are often positives that nobody labelled."""
    rank_max: Count | None = None
    """Rank of the last candidate; None: enough for num_negatives, ten times as many if a margin,
    a ratio or max_score leaves some out."""
    margin: float | None = None
    """Least difference between the scores of the positive and of a negative; None: any."""
    ratio: float | None = None
    """Highest score of a negative as a share of the positive's, such as 0.95 (NV-Retriever, Moreira
    et al. 2024); below 0, the positive's score minus (1 - ratio) of its size; None: any."""
    max_score: float | None = None
    """Highest score of a negative; None: any."""
    sampling: Literal["top", "random"] = "top"
    """Whether the best of the candidates are taken, or some at random."""
    seed: AtLeast0 = 0
    """Seed of --sampling random."""
    reranker: str | None = None
    """Cross-encoder with one label whose scores replace those of --model once the candidates are
    found: they filter and order them, and are written; None: cosines are."""


def run(config: MineConfig) -> None:
    """Writes the hard negatives of each query with each of its positives to `config.output`.

    Raises:
        ValueError: a file cannot be read, the pairs have scores, or a score is not finite.
    """
    from bertjax.devices.compilation import start_command
    from bertjax.inference import output_files as files
    from bertjax.inference.indexes import index_of
    from bertjax.inference.pretrained import Pretrained, load_pretrained
    from bertjax.weights import load_model

    local = start_command(config, "queries", "corpus")
    texts = _read_texts(config, local)
    model = Pretrained(load_model(config.model, "encoder"))
    reranker: Any = None
    if config.reranker is not None:
        reranker = load_pretrained(config.reranker)
    kind = index_of(model.loaded, cosine=True, max_length=config.max_length)
    identity = {
        "config": dataclasses.asdict(config),
        "settings": [embedder.settings for embedder in kind.encoders.values()],
        "models": [model.identity, reranker and reranker.identity],
        "files": [files.file_identity(path) for path in (local.queries, local.corpus) if path],
    }
    output = Path(config.output)
    kept = output.with_name(f".{output.name}.index")  # until all is written
    with files.continued(kept, identity, files.PartialFolder, _remove) as folder:
        index = kind.open(folder.path, len(texts.texts))
        _fill(index, texts.texts, folder, output, kind.encoders["document"])
        miner = _Miner(config, texts, index, reranker)
        with files.continued(output, identity, files.PartialLines) as lines:
            rows = miner.write(lines)
    missing = sum(map(len, texts.positives.values())) - rows
    print(f"{rows:,} rows written to {output}; {missing:,} pairs have too few negatives")


def _remove(partial: Path, output: Path) -> None:
    from bertjax.inference.output_files import remove

    remove(partial)


def _fill(
    index: "Index", texts: list[str], folder: "PartialFolder", output: Path, encoder: Any
) -> None:
    """Adds those texts to an index in `folder` that an interrupted command has not added."""
    from bertjax.inference.embedder import embedding_progress, windows

    if folder.done:
        print(f"continuing {output} after {folder.done:,} texts", flush=True)
    count = 0
    with embedding_progress(encoder, len(texts) - folder.done):
        for window in windows(texts):
            rows = np.arange(count, count + len(window))
            count += len(window)
            if count > folder.done:
                index.add(rows, window)
                folder.finished(count)


class _Texts:
    """The queries with their positives, and all passages, of which equal ones are one.

    Attributes:
        texts: the positives and the passages; a text is known by its index in this list.
        positives: {query: {index of a positive: the positive as it is written in this row}}.
    """

    def __init__(self):
        self.texts: list[str] = []
        self.positives: dict[str, dict[int, str]] = {}
        self._indices: dict[int, int] = {}  # by the hash of the `folded` text
        self._left_out: dict[int, set[int]] = {}  # by the hash of the `folded` query

    def add_pair(self, query: str, positive: str) -> None:
        index = self._add(positive)
        own = self.positives.setdefault(query, {})
        own.setdefault(index, positive)
        self._left_out.setdefault(hash(folded(query)), set()).add(index)

    def add_passages(self, passages: Iterable["Passage"]) -> None:
        """Adds the passages that are no form of a positive; must be called after all pairs."""
        for query in self._left_out.keys() & self._indices.keys():
            self._left_out[query].add(self._indices[query])
        positives = frozenset(self._indices)
        for passage in passages:
            forms = passage_forms(passage.title, passage.text)
            if positives.isdisjoint(forms):
                index = self._add(passage.whole)
                for query in self._left_out.keys() & forms:
                    self._left_out[query].add(index)

    def _add(self, text: str) -> int:
        key = hash(folded(text))
        if key not in self._indices:
            self._indices[key] = len(self.texts)
            self.texts.append(text)
        return self._indices[key]

    def left_out(self, query: str) -> set[int]:
        """Returns the texts that are no negatives of a query: positives of it, and the query."""
        return self._left_out[hash(folded(query))]

    @property
    def most_left_out(self) -> int:
        return max(map(len, self._left_out.values()), default=0)


def _read_texts(config: MineConfig, local: MineConfig) -> _Texts:
    """Reads the pairs and the corpus; `local` has the paths of their copies on this machine."""
    from bertjax.inference.retrieval import read_passages
    from bertjax.tasks.embedding import EmbedOptions
    from bertjax.tasks.sources.columns import Columns
    from bertjax.tasks.sources.own_files import read_tables

    columns = Columns(
        text=config.text_column, pair=config.pair_column, ignored=config.ignore_columns
    )
    pairs = read_tables(EmbedOptions.table, train=local.queries, columns=columns, keep=False)
    print(pairs.note)
    label = pairs.columns.label
    if label is not None:
        raise ValueError(
            f"{config.queries} has pairs with scores, in column {label!r}: give queries with "
            f"positives alone, or --ignore_columns {label} if all pairs belong together."
        )
    texts = _Texts()
    for example in pairs.examples("train"):
        texts.add_pair(example.text, str(example.pair))
    passages: Iterable[Passage] = ()
    if local.corpus:
        passages = read_passages(Path(local.corpus), warns=True)
    texts.add_passages(passages)
    for note in pairs.change_notes():
        print(f"warning: {config.queries}: {note.removeprefix('train: ')}")
    return texts


class _Candidates(NamedTuple):
    """The scores of the positives of a query, and of the texts that may be its negatives."""

    query: str
    positives: dict[int, float]
    others: dict[int, float]


class _Miner:
    """Finds the negatives of the queries in `texts`, which are all in `index`.

    Without a `reranker`, the scores of the index are the scores.
    """

    def __init__(
        self,
        config: MineConfig,
        texts: _Texts,
        index: "Index",
        reranker: "Pretrained | None",
    ):
        self._config = config
        self._texts = texts
        self._index = index
        self._reranker = reranker
        most_positives = max(map(len, texts.positives.values()), default=0)
        needed = config.num_negatives
        if (config.margin, config.ratio, config.max_score) != (None, None, None):
            needed *= 10
        self._last_rank = config.rank_max or config.rank_min + needed + most_positives
        self._depth = self._last_rank + most_positives

    def write(self, lines: "PartialLines") -> int:
        """Writes the lines that are not written yet; returns the number of all lines."""
        from bertjax.base.progress import progress
        from bertjax.inference.retrieval import QUERIES

        queries = [*self._texts.positives]
        block_of = {query: index // QUERIES for index, query in enumerate(queries)}
        written = [block_of[line["query"]] for line in lines.finished()]
        last = max(written, default=0)  # which may lack some lines
        rows = len(written) - written.count(last)
        lines.keep(rows)
        with progress("mining", len(queries), "queries") as state:
            for first in range(last * QUERIES, len(queries), QUERIES):
                block = queries[first : first + QUERIES]
                for number, candidates in enumerate(self._candidates(block), first):
                    for line in self._lines(candidates, number):
                        lines.write(line)
                        rows += 1
                    state.advance()
        return rows

    def _candidates(self, queries: list[str]) -> list[_Candidates]:
        searched = self._depth + self._texts.most_left_out
        scores, indices = self._index.search(queries, searched)
        positives_of = [[*self._texts.positives[query]] for query in queries]
        of_positives = self._index.scores(queries, positives_of)
        candidates = []
        for row, query in enumerate(queries):
            positives = positives_of[row]
            ranked = dict(zip(indices[row].tolist(), scores[row].tolist(), strict=True))
            for index in self._texts.left_out(query).difference(positives):
                ranked.pop(index, None)
            others = dict(itertools.islice(ranked.items(), self._depth))
            for index in positives:
                others.pop(index, None)
            own = dict(zip(positives, of_positives[row].tolist(), strict=True))
            candidates.append(_Candidates(query, own, others))
        if self._reranker is not None:
            for of_query in candidates:
                self._rescore(self._reranker, of_query)
        return candidates

    def _rescore(self, reranker: "Pretrained", candidates: _Candidates) -> None:
        query, positives, others = candidates
        indices = [*positives, *others]
        for row in reranker.rerank(query, [self._texts.texts[index] for index in indices]):
            index = indices[row["index"]]
            score = row["score"]
            if not np.isfinite(score):
                raise ValueError(f"{self._config.reranker} scores {query!r} with {score}.")
            scores = positives if index in positives else others
            scores[index] = score

    def _lines(self, candidates: _Candidates, number: int) -> Iterator[dict[str, Any]]:
        """Yields the lines of the query of this number, one per positive, if it has negatives."""
        query, positives, others = candidates
        negatives = self._chosen(others, min(positives.values()), number)
        if not negatives:
            return
        texts = [self._texts.texts[index] for index in negatives]
        scores = [others[index] for index in negatives]
        for positive, score in positives.items():
            yield {
                "query": query,
                "positive": self._texts.positives[query][positive],
                "negatives": texts,
                "scores": [score, *scores],
            }

    def _chosen(self, scores: dict[int, float], lowest: float, number: int) -> list[int]:
        """Chooses the negatives of a query, whose worst positive has the score `lowest`, or []."""
        config = self._config
        highest = np.inf if config.max_score is None else config.max_score
        if config.margin is not None:
            highest = min(highest, lowest - config.margin)
        if config.ratio is not None:
            highest = min(highest, lowest - abs(lowest) * (1 - config.ratio))
        below = [index for index, score in scores.items() if score <= highest]
        below.sort(key=scores.__getitem__, reverse=True)
        ranked = below[config.rank_min : self._last_rank]
        if len(ranked) < config.num_negatives:
            return []
        if config.sampling == "random":
            rng = np.random.default_rng((config.seed, number))
            drawn = rng.choice(len(ranked), config.num_negatives, replace=False)
            return [ranked[place] for place in sorted(drawn)]
        return ranked[: config.num_negatives]


# Characters that show nothing, and signs with several forms besides those of NFKC.
_NOTHING = re.compile(r"[\s\u00ad\u200b-\u200f\u2060\ufeff]+")
_SIGNS = str.maketrans("‘’‚“”„‐‑‒–—", "'''\"\"\"-----")
_BETWEEN = ".:,;-|?!"


def folded(text: str) -> str:
    """Returns a text without spaces, in one case and one Unicode form, for comparisons."""
    text = unicodedata.normalize("NFKC", text).casefold().translate(_SIGNS)
    return _NOTHING.sub("", unicodedata.normalize("NFKC", text))


def passage_forms(title: str, text: str) -> list[int]:
    """Returns hashes of the `folded` text, and of title and text with and without a sign between.

    A title with which the text begins is left out in another form.
    """
    title = folded(title)
    text = folded(text)
    forms = [text, text.removeprefix(title).lstrip(_BETWEEN) or text]
    return [*map(hash, forms), *(hash(title + sign + text) for sign in ("", *_BETWEEN))]


parse, main = command_line.command_of(
    MineConfig,
    run,
    "mine",
    "Mines hard negatives: passages that are like a query, but not its positives, for finetune "
    "--task=embed and --task=rerank.",
)


if __name__ == "__main__":
    signals.leave(main())
