"""The input of a preparation: one corpus, or the weighted corpora of a mixture."""

import os
from collections.abc import Iterator, Sequence
from typing import Any

from bertjax.data.mixture import parse_mixture
from bertjax.data.preparation.chunks import Chunk, cut_chunks
from bertjax.data.preparation.prepared_dir import TooLittleText
from bertjax.data.text.corpus import Corpus, ReadOptions
from bertjax.data.text.streams import input_exists


class MixedCorpus(Corpus):
    """The inputs of a preparation, of which each weighted one is a source of a mixture.

    `pinned_inputs` have their weights. `note` is a message about the weights for the user, or "".

    Raises:
        ValueError: a weight is not positive, or a source has no weight while others have one.
        OSError: an input does not exist or cannot be read.
    """

    def __init__(self, inputs: Sequence[str], options: ReadOptions):
        mixture = parse_mixture(inputs, "--input", input_exists)
        self._weighted, self.note = mixture and mixture.sources, ""
        super().__init__([name for name, _ in mixture.sources] if mixture else inputs, options)
        if mixture is None:
            return
        named = zip(self.pinned_inputs, mixture.sources, strict=True)
        self.pinned_inputs = [f"{pinned}={source.weight}" for pinned, source in named]
        if abs(mixture.total - 1) > 1e-9:
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
            {"name": source.name, "weight": source.weight, "inputs": len(opened.identity)}
            for source, opened in zip(self._weighted, self._opened, strict=True)
        ]

    def check_sources(self) -> None:
        """Raises TooLittleText if a source contains no text, before the long work begins.

        Pipes are not checked, because they can be read only once.
        """
        for source in self._weighted or ():
            corpus = Corpus([source.name], self.options)
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
        for source in range(len(self._weighted or "1")):
            documents = self.documents(source if self._weighted else None)
            for chunk in cut_chunks(documents, chunk_bytes, source=source, first=first):
                yield chunk
                first = chunk.number + 1
