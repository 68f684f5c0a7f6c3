"""The input of a preparation: one corpus, or the weighted corpora of a mixture."""

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from bertjax.data.mixture import parse_mixture
from bertjax.data.preparation.chunks import Chunk, cut_chunks
from bertjax.data.preparation.prepared_dir import TooLittleText
from bertjax.data.text.corpus import Corpus, ReadOptions
from bertjax.data.text.streams import input_exists


class MixedCorpus:
    """The inputs of a preparation, of which each weighted one is a source of a mixture.

    Attributes:
        identity: the `Corpus.identity` of all sources, one after the other.
        note: a message about the weights for the user; "": none.
        total_bytes: size of the inputs on disk, in bytes; None if unknown.

    Raises:
        ValueError: a weight is not positive, or a source has no weight while others have one.
        OSError: an input does not exist or cannot be read.
    """

    def __init__(self, inputs: Sequence[str], options: ReadOptions):
        mixture = parse_mixture(inputs, "--input", input_exists)
        self._weighted = None if mixture is None else mixture.sources
        self._inputs = [inputs] if mixture is None else [(name,) for name, _ in mixture.sources]
        self._options = options
        self._corpora = [Corpus(source, options) for source in self._inputs]
        self.identity = [entry for corpus in self._corpora for entry in corpus.identity]
        sizes = [corpus.total_bytes for corpus in self._corpora]
        self.total_bytes = None if None in sizes else sum(size or 0 for size in sizes)
        self.note = ""
        if mixture is not None and abs(mixture.total - 1) > 1e-9:
            total = sum(weight for _, weight in mixture.sources)
            shares = ", ".join(f"{name} {weight / total:.2%}" for name, weight in mixture.sources)
            self.note = (
                f"note: the weights of --input add up to {mixture.total:g}, not to 1; the shares "
                f"of the rows are {shares}"
            )

    @property
    def sources(self) -> list[dict[str, Any]] | None:
        """Name, weight and number of entries in `identity` of each source; None: no mixture."""
        if self._weighted is None:
            return None
        return [
            {"name": source.name, "weight": source.weight, "inputs": len(corpus.identity)}
            for source, corpus in zip(self._weighted, self._corpora, strict=True)
        ]

    @property
    def pinned_inputs(self) -> tuple[str, ...]:
        """The inputs with their weights and with the commits of datasets on the Hub."""
        if self._weighted is None:
            return tuple(self._corpora[0].pinned_inputs)
        return tuple(
            f"{corpus.pinned_inputs[0]}={source.weight}"
            for source, corpus in zip(self._weighted, self._corpora, strict=True)
        )

    @property
    def bytes_read(self) -> int:
        """Number of bytes read from disk so far, before decompression."""
        return sum(corpus.bytes_read for corpus in self._corpora)

    @property
    def counts(self) -> Counter:
        """How often text of all sources was skipped or cut, by reason (see `Corpus.counts`)."""
        counts: Counter = Counter()
        for corpus in self._corpora:
            counts.update(corpus.counts)
        return counts

    def check_sources(self) -> None:
        """Raises TooLittleText if a source contains no text, before the long work begins.

        Pipes are not checked, because they can be read only once.
        """
        for source, inputs in zip(self._weighted or (), self._inputs, strict=False):
            corpus = Corpus(inputs, self._options)
            if any(os.path.exists(e[0]) and not os.path.isfile(e[0]) for e in corpus.identity):
                continue
            if not any(document.text.strip() for document in corpus.documents()):
                raise TooLittleText(
                    f"The source {source.name!r} of the mixture contains no text: use files with "
                    "text, or leave the source out of --input."
                )

    def chunks(self, chunk_bytes: int) -> Iterator[Chunk]:
        """Yields the chunks of all sources; errors as `Corpus.documents`."""
        first = 0
        for source, corpus in enumerate(self._corpora):
            for chunk in cut_chunks(corpus.documents(), chunk_bytes, source=source, first=first):
                yield chunk
                first = chunk.number + 1
