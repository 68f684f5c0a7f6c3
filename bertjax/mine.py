"""Mines hard negatives for `embed` and `rerank`: `python -m bertjax.mine --model DIR ...`.

The options mean what they mean in sentence-transformers' `mine_hard_negatives`, and of several
positives of a query, the one with the lowest score counts there as here. Other than there, the text
of a query is never its negative, nor is another form of a positive of it, and a reranker's scores
also count without a margin.
"""

import dataclasses
import functools
import re
import unicodedata
from pathlib import Path
from typing import Any, Literal

import numpy as np

from bertjax.base import command_line, signals
from bertjax.base.checked import AtLeast0, Checked, Count


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
    from bertjax.base.progress import progress
    from bertjax.inference import output_files as files
    from bertjax.inference.command import start_command
    from bertjax.inference.embedder import write_vectors
    from bertjax.inference.passages import read_passages
    from bertjax.inference.pretrained import load_pretrained
    from bertjax.inference.retrieval import QUERIES, embedders, fresh, search
    from bertjax.tasks.embedding import EmbedOptions
    from bertjax.tasks.sources.columns import Columns
    from bertjax.tasks.sources.own_files import read_tables

    local = start_command(config, "queries", "corpus")
    output, ignored = Path(config.output), config.ignore_columns
    named = Columns(text=config.text_column, pair=config.pair_column, ignored=ignored)
    source = read_tables(EmbedOptions.table, train=local.queries, columns=named, keep=False)
    print(source.note)
    if (label := source.columns.label) is not None:
        raise ValueError(
            f"{config.queries} has pairs with scores, in column {label!r}: give queries with "
            f"positives alone, or --ignore_columns {label} if all pairs belong together."
        )
    texts: list[str] = []
    numbers: dict[int, int] = {}  # hash of a `folded` text -> the number of the first such text
    positives: dict[str, dict[int, str]] = {}  # query -> its positives as written, by number
    left_out: dict[int, set[int]] = {}  # hash of a `folded` query -> what is no negative of it

    def add(text: str) -> int:
        number = numbers.setdefault(hash(folded(text)), len(texts))
        texts.extend([text] * (number == len(texts)))
        return number

    for example in source.examples("train"):
        number = add(str(example.pair))
        positives.setdefault(example.text, {}).setdefault(number, str(example.pair))
        left_out.setdefault(hash(folded(example.text)), set()).add(number)
    for query in left_out.keys() & numbers.keys():
        left_out[query].add(numbers[query])
    known = frozenset(numbers)
    for passage in read_passages(Path(local.corpus), warns=True) if local.corpus else ():
        forms = passage_forms(passage.title, passage.text)
        if passage.whole and known.isdisjoint(forms):
            number = add(passage.whole)
            for query in left_out.keys() & forms:
                left_out[query].add(number)
    for note in source.change_notes():
        print(f"warning: {config.queries}: {note.removeprefix('train: ')}")
    queries = list(positives)
    most = max(map(len, positives.values()), default=0)
    limited = (config.margin, config.ratio, config.max_score) != (None, None, None)
    ranks = config.rank_min + config.num_negatives * (10 if limited else 1) + most
    depth = (config.rank_max or ranks) + most
    searched = depth + max(map(len, left_out.values()), default=0)
    model = load_pretrained(config.model, "encoder")
    reranker: Any = load_pretrained(config.reranker) if config.reranker else None
    embed = embedders(model.loaded, normalize=True, max_length=config.max_length)

    def pools(first: int) -> list[Any]:
        """Returns (query, {number of a positive: score}, the same of the candidates) of a block."""
        asked, found = queries[first : first + QUERIES], []
        x = embed["query"](asked)
        for query, vector, *best in zip(asked, x, *search(x, vectors, searched), strict=True):
            own = dict.fromkeys(positives[query], 0.0)
            hidden = left_out[hash(folded(query))] - own.keys()
            pairs = zip(*(values.tolist() for values in reversed(best)), strict=True)
            ranked = [pair for pair in pairs if pair[0] not in hidden][:depth]
            pool = [pair for pair in ranked if pair[0] not in own]
            scores = (fresh(vectors)[[*own]] @ vector).tolist()
            found.append((query, dict(zip(own, scores, strict=True)), dict(pool)))
        for query, own, pool in found if reranker else ():
            both = [*own, *pool]
            for row in reranker.rerank(query, [texts[i] for i in both]):
                number = both[row["index"]]
                if not np.isfinite(row["score"]):
                    raise ValueError(f"{config.reranker} scores {query!r} with {row['score']}.")
                (own if number in own else pool)[number] = row["score"]
        return found

    identity = {
        "config": dataclasses.asdict(config),
        "settings": [embedder.settings for embedder in embed.values()],
        "models": [model.identity, reranker and reranker.identity],
        "files": [files.file_identity(path) for path in (local.queries, local.corpus) if path],
    }
    opened = functools.partial(files.PartialVectors, size=embed["document"].size)
    kept = output.with_name(f".{output.name}.vectors")  # until all is written
    with files.continued(kept, identity, opened, lambda path, _: path.unlink()) as partial:
        write_vectors(embed["document"], texts, partial, output)
        vectors = np.load(partial.path, mmap_mode="r")
        with (
            files.continued(output, identity, files.PartialLines) as lines,
            progress("mining", len(queries), "queries") as state,
        ):
            place = {query: index // QUERIES for index, query in enumerate(queries)}
            written = [place[line["query"]] for line in lines.finished()]
            block = max(written, default=0)
            rows = sum(x < block for x in written)  # the last block may lack some
            lines.keep(rows)
            for first in range(block * QUERIES, len(queries), QUERIES):
                for n, (query, own, pool) in enumerate(pools(first), first):
                    negatives = _chosen(pool, min(own.values()), depth - most, config, n)
                    for positive, score in own.items() if negatives else ():
                        line: dict[str, Any] = {
                            "query": query,
                            "positive": positives[query][positive],
                        }
                        line["negatives"] = [texts[i] for i in negatives]
                        line["scores"] = [score, *(pool[i] for i in negatives)]
                        lines.write(line)
                        rows += 1
                    state.advance()
    missing = sum(map(len, positives.values())) - rows
    print(f"{rows:,} rows written to {output}; {missing:,} pairs have too few negatives")


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
    title, text = folded(title), folded(text)
    forms = [text, text.removeprefix(title).lstrip(_BETWEEN) or text]
    return [*map(hash, forms), *(hash(title + sign + text) for sign in ("", *_BETWEEN))]


def _chosen(
    pool: dict[int, float], lowest: float, last: int, config: MineConfig, number: int
) -> list[int]:
    """Chooses the negatives of a query, whose worst positive has the score `lowest`, or []."""
    limits = [np.inf if config.max_score is None else config.max_score]
    limits += [] if config.margin is None else [lowest - config.margin]
    limits += [] if config.ratio is None else [lowest - abs(lowest) * (1 - config.ratio)]
    below = [i for i, score in pool.items() if score <= min(limits)]
    ranked = sorted(below, key=lambda i: -pool[i])[config.rank_min : last]
    if len(ranked) < config.num_negatives:
        return []
    if config.sampling == "random":
        rng = np.random.default_rng((config.seed, number))
        drawn = rng.choice(len(ranked), config.num_negatives, replace=False)
        ranked = [ranked[i] for i in sorted(drawn)]
    return ranked[: config.num_negatives]


parse, main = command_line.command_of(
    MineConfig,
    run,
    "mine",
    "Mines hard negatives: passages that are like a query, but not its positives, for finetune "
    "--task=embed and --task=rerank.",
)


if __name__ == "__main__":
    signals.leave(main())
