"""Tagged words in columns, as CoNLL-2003 has them (Tjong Kim Sang and De Meulder 2003).

A line holds a word first and its tag last; blank lines part sentences, and -DOCSTART- lines part
documents. Tags are read as IOB2 whichever way the file marks entities:

    IOB1    I-X; B-X only where an entity follows another of its type (the official files)
    IOB2    B-X begins every entity
    IOBES   IOB2 with S-X for an entity of one word, E-X for the last of several (BILOU: U-X, L-X)
"""

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Literal, NamedTuple

from bertjax.tasks.sources.official_files import existing, path_of_split, task_folder
from bertjax.tasks.sources.table_files import place, read_lines
from bertjax.tasks.task import Example

# In the order of Hugging Face's and TFDS's ids.
CONLL_LABELS = (
    *("O", "B-PER", "I-PER", "B-ORG", "I-ORG"),
    *("B-LOC", "I-LOC", "B-MISC", "I-MISC"),
)
CONLL_FILES = {
    "train": ("train.txt", "eng.train", "train.conll"),
    "dev": ("valid.txt", "dev.txt", "testa.txt", "testa", "eng.testa", "dev.conll"),
    "test": ("test.txt", "testb.txt", "testb", "eng.testb", "test.conll"),
}
DOCUMENT_START = "-DOCSTART-"

Scheme = Literal["IOB1", "IOB2", "IOBES"]
_ENTITY_TAG = re.compile(r"O|[BIESLU](-.+)?")


class Sentence(NamedTuple):
    """Words with their tags as a file gives them; `row` is that of the first word."""

    row: int
    words: tuple[str, ...]
    tags: tuple[str, ...] | None


class ConllSource:
    """Sentences of CoNLL-2003 from its files, under their official names or the usual ones.

    Attributes:
        folder: where the files lie.
        splits: those whose files are there.
    """

    def __init__(self, data_dir: Path | str):
        """Finds the files in `data_dir`, or its folder `conll2003`.

        Raises:
            FileNotFoundError: none is there.
        """
        self.folder = task_folder("conll", data_dir, ("conll2003",), CONLL_FILES)
        found = {split: existing(self.folder, names) for split, names in CONLL_FILES.items()}
        self._paths = {split: path for split, path in found.items() if path is not None}
        self.splits = tuple(self._paths)

    def path(self, split: str) -> Path:
        """The file of a split.

        Raises:
            ValueError: there is no such split.
        """
        return path_of_split("conll", split, self._paths)

    def examples(self, split: str) -> Iterator[Example]:
        """The sentences of a split; labels are tags in IOB2.

        Raises:
            ValueError: there is no such split, or a row is damaged; it is named.
        """
        return read_conll(self.path(split))


def read_conll(path: Path | str) -> Iterator[Example]:
    """The sentences of a file of columns; labels are tags in IOB2, None if there are only words.

    The file is read twice: how it marks entities is known at its end.

    Raises:
        ValueError: a row is not UTF-8, or has another number of columns than the first.
    """
    path = Path(path)
    scheme = scheme_of(sentence.tags or () for sentence in read_sentences(path))
    return (
        tagged_example(str(number), path, sentence, scheme)
        for number, sentence in enumerate(read_sentences(path))
    )


def tagged_example(id: str, path: Path, sentence: Sentence, scheme: Scheme | None) -> Example:
    """The example of a sentence, its tags in IOB2."""
    tags = sentence.tags
    return Example(
        id=id,
        where=place(path, sentence.row),
        words=sentence.words,
        label=tags if tags is None or scheme is None else to_iob2(tags),
    )


def read_sentences(path: Path) -> Iterator[Sentence]:
    """The sentences of a file of columns, tags as they are written.

    Raises:
        ValueError: a row is not UTF-8, or has another number of columns than the first.
    """
    columns = 0
    held: list[list[str]] = []
    first = 0
    for number, line in read_lines(path):
        # Not `split()`: a word may hold a non-breaking space.
        fields = [field for field in line.replace("\t", " ").split(" ") if field]
        if not line.strip() or fields[0] == DOCUMENT_START:
            if held:
                yield _sentence(first, held)
            held = []
            continue
        columns = columns or len(fields)
        if len(fields) != columns:
            raise ValueError(
                f"{place(path, number)} has {len(fields)} columns, those before it {columns}: "
                "each line is a word, other columns if any, and a tag; blank lines part sentences."
            )
        if not held:
            first = number
        held.append(fields)
    if held:
        yield _sentence(first, held)


def _sentence(row: int, held: list[list[str]]) -> Sentence:
    words = tuple(fields[0] for fields in held)
    return Sentence(row, words, tuple(f[-1] for f in held) if len(held[0]) > 1 else None)


def scheme_of(sentences: Iterable[tuple[str, ...]]) -> Scheme | None:
    """How tags mark entities; None if they mark none, as parts of speech.

    A file of IOB2 that begins an entity with I-X by mistake passes for IOB1, and is mended.
    """
    found: Scheme = "IOB2"
    for tags in sentences:
        previous = "O"
        for tag in tags:
            if not _ENTITY_TAG.fullmatch(tag):
                return None
            if tag[0] in "ESLU":
                found = "IOBES"
            elif tag[0] == "I" and previous[1:] != tag[1:] and found == "IOB2":
                found = "IOB1"
            previous = tag
    return found


def marks_entities(tags: Iterable[str]) -> bool:
    """Whether the tags of a task are those of entities, and not parts of speech, say."""
    return scheme_of([tuple(tags)]) is not None


def to_iob2(tags: Iterable[str]) -> tuple[str, ...]:
    """Tags of IOB1, IOB2, IOBES or BILOU in IOB2."""
    converted = []
    inside = None  # type of the entity that may go on
    for tag in tags:
        if tag == "O":
            converted.append(tag)
            inside = None
            continue
        mark, kind = tag[0], tag[1:]
        converted.append(("B" if mark in "BSU" or kind != inside else "I") + kind)
        inside = None if mark in "ESLU" else kind
    return tuple(converted)


def order_tags(tags: Iterable[str]) -> tuple[str, ...]:
    """Tags as the labels of a task: O, then B-X and I-X of each type; others in alphabetic order.

    Both tags of a type are there, though training may show the first alone.
    """
    tags = set(tags)
    if not marks_entities(tags):
        return tuple(sorted(tags))
    kinds = sorted({tag[1:] for tag in tags if tag != "O"})
    return ("O", *(mark + kind for kind in kinds for mark in "BI"))
