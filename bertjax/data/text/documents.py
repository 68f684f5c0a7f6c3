"""The `Document` type, and the splitting of documents into sentences."""

from collections.abc import Iterable, Iterator
from typing import Literal, NamedTuple

from bertjax.data.text.sentences import normalise, split_sentences

# "lines": a line is a sentence. "paragraphs": a line is a paragraph. "prose": blank lines separate
# paragraphs, and lines may be wrapped at a fixed width.
Layout = Literal["lines", "paragraphs", "prose"]

# A longer document is split at its next paragraph: chunks are whole documents, and next-sentence
# prediction needs several of them in a chunk.
LONG_DOCUMENT_CHARACTERS = 1_000_000
WIDEST_WRAPPED_LINE = 120
# Average line length, as a share of the longest, above which text counts as wrapped.
WRAPPED_FILL = 0.6


class Document(NamedTuple):
    """A document: its text, not yet split into sentences, and its layout.

    The layout tells whether a line is a sentence ("lines"), a paragraph ("paragraphs"), or running
    text, possibly wrapped at a fixed width ("prose").
    """

    text: str
    layout: Layout


def bounded_documents(lines: Iterable[str], layout: Layout) -> Iterator[Document]:
    """Joins the lines of a document with newlines, and yields it as one or several documents.

    A document of over LONG_DOCUMENT_CHARACTERS characters may be split between lines; if `layout`
    is "prose", at blank lines as long as the document has at most twice as many characters.
    """
    held: list[str] = []
    size = 0
    for line in lines:
        held.append(line)
        size += len(line) + 1
        if size > LONG_DOCUMENT_CHARACTERS and (
            layout != "prose" or not line.strip() or size > 2 * LONG_DOCUMENT_CHARACTERS
        ):
            yield Document("\n".join(held), layout)
            held, size = [], 0
    if held:
        yield Document("\n".join(held), layout)


def sentences_of(document: Document) -> list[str]:
    """Returns the non-empty sentences of `document`; each run of white space becomes one space."""
    text, layout = document
    if layout == "lines":
        return [piece for line in text.split("\n") for piece in normalise(line)]
    paragraphs = text.split("\n") if layout == "paragraphs" else _paragraphs(text)
    return [sentence for paragraph in paragraphs for sentence in split_sentences(paragraph)]


def _paragraphs(text: str) -> list[str]:
    lines = text.split("\n")
    if not looks_wrapped(lines):
        return lines
    paragraphs: list[list[str]] = [[]]
    for line in lines:
        if line.strip():
            paragraphs[-1].append(line)
        elif paragraphs[-1]:
            paragraphs.append([])
    return ["\n".join(paragraph) for paragraph in paragraphs]


def looks_wrapped(lines: list[str]) -> bool:
    """Returns whether `lines` look wrapped at a fixed width, so that lines end within sentences."""
    widest = max(map(len, lines))
    if widest > WIDEST_WRAPPED_LINE:
        return False
    inner = [
        len(line)
        for line, following in zip(lines, lines[1:], strict=False)
        if following.strip() and line.strip()
    ]
    return bool(inner) and sum(inner) / len(inner) >= WRAPPED_FILL * widest
