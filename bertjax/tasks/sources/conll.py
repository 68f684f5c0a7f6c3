"""Reads named entities from CoNLL-2003 (Tjong Kim Sang and De Meulder 2003) and similar files.

A line begins with a word and ends with the tag of the word; blank lines separate sentences, and
-DOCSTART- lines separate documents. Tags in IOB1, IOBES or BILOU are converted to IOB2.
"""

import dataclasses
import itertools
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from bertjax.base.files import brief
from bertjax.tasks.definition import TaskDefinition, TaskOptions
from bertjax.tasks.metrics import entity_f1
from bertjax.tasks.sources.official import DatasetRow, DatasetSource, OfficialFiles, decode
from bertjax.tasks.sources.tables import read_lines, row_name
from bertjax.tasks.tagging import TagTask, scheme_of, to_iob2
from bertjax.tasks.task import Example, KeptExamples

# Class names in the order of their ids in Hugging Face and TFDS.
CONLL_LABELS = (
    *("O", "B-PER", "I-PER", "B-ORG", "I-ORG"),
    *("B-LOC", "I-LOC", "B-MISC", "I-MISC"),
)
FILES = {
    "train": ("train.txt", "eng.train", "train.conll"),
    "dev": ("valid.txt", "dev.txt", "testa.txt", "testa", "eng.testa", "dev.conll"),
    "test": ("test.txt", "testb.txt", "testb", "eng.testb", "test.conll"),
}
TFDS_BUILDER = "conll2003"
DOCUMENT_START = "-DOCSTART-"


class Sentence(NamedTuple):
    """A sentence of a file of a tagging task.

    Attributes:
        row: the row number of the first word.
        tags: the tags as written in the file, one per word; None if the file has no tags.
        text: the running text of the sentence, if the file holds it; otherwise "".
        offsets: (start, end) of each word in `text`, in characters.
        cut_word: the first word within which an entity begins or ends, or "".
    """

    row: int
    words: tuple[str, ...]
    tags: tuple[str, ...] | None
    text: str = ""
    offsets: tuple[tuple[int, int], ...] = ()
    cut_word: str = ""


class ConllSource(OfficialFiles):
    """Reads the files of CoNLL-2003, which may have their official names or other usual names."""

    def __init__(self, data_dir: Path | str):
        super().__init__("conll", data_dir, ("conll2003",), FILES)

    def examples(self, split: str) -> Iterator[Example]:
        """Reads the sentences of a split; raises ValueError for a malformed row."""
        return read_conll(self.path(split))


def read_conll(path: Path | str) -> Iterator[Example]:
    """Reads the sentences of a CoNLL file as examples; entity tags are converted to IOB2.

    If the file has no tags, the labels of the examples are None.

    Raises:
        ValueError: a row is not UTF-8, or does not have as many columns as the first row.
    """
    path = Path(path)
    sentences = enumerate(read_sentences(path))
    return in_iob2(tagged_example(str(number), path, sentence) for number, sentence in sentences)


def in_iob2(examples: Iterable[Example]) -> Iterator[Example]:
    """Converts the tags of a file to IOB2, if they mark entities; all tags tell their scheme."""
    kept = KeptExamples(examples)
    tags = (example.label for example in kept if isinstance(example.label, tuple))
    if scheme_of(tags) is None:
        return iter(kept)
    return (
        dataclasses.replace(example, label=to_iob2(example.label))
        if isinstance(example.label, tuple)
        else example
        for example in kept
    )


def tagged_example(id: str, path: Path, sentence: Sentence) -> Example:
    """Converts a sentence in the file `path` to an example with the id `id`."""
    return Example(
        id=id,
        where=row_name(path, sentence.row),
        text=sentence.text,
        words=sentence.words,
        offsets=sentence.offsets,
        label=sentence.tags,
    )


def read_sentences(path: Path) -> Iterator[Sentence]:
    """Reads the sentences of a CoNLL file as `read_conll` does, without converting the tags."""
    columns = 0
    rows: list[list[str]] = []
    first = 0
    for number, line in read_lines(path):
        # Not `split()`: a word may contain a non-breaking space.
        fields = [field for field in line.replace("\t", " ").split(" ") if field]
        if not line.strip() or fields[0] == DOCUMENT_START:
            if rows:
                yield _sentence(first, rows)
            rows = []
            continue
        columns = columns or len(fields)
        if len(fields) != columns:
            raise ValueError(
                f"{row_name(path, number)} has {len(fields)} columns, but earlier rows have "
                f"{columns}: write a word, other columns if any, and a tag in each line, and a "
                "blank line between sentences."
            )
        if not rows:
            first = number
        rows.append(fields)
    if rows:
        yield _sentence(first, rows)


def _sentence(row: int, rows: list[list[str]]) -> Sentence:
    words = tuple(fields[0] for fields in rows)
    return Sentence(row, words, tuple(f[-1] for f in rows) if len(rows[0]) > 1 else None)


def read_dataset_row(row: DatasetRow) -> Example | None:
    """Converts a row of the dataset conll2003 to an example, or to None if it has no words."""
    words = tuple(decode(word) for word in row.fields["tokens"])
    ids = row.fields["ner" if "ner" in row.fields else "ner_tags"]  # TFDS or the hub
    tags = tuple(CONLL_LABELS[tag] for tag in ids)
    return Example(id=str(row.number), where=row.where, words=words, label=tags) if words else None


def _make(options: TaskOptions) -> TagTask:
    if options.data_dir is not None:
        source = ConllSource(options.data_dir)
    else:
        source = DatasetSource(TFDS_BUILDER, read_dataset_row, options.tfds_data_dir)
    stride = options.doc_stride
    return TagTask(name="conll", source=source, labels=CONLL_LABELS, doc_stride=stride)


def score_files(gold: Path, predictions: Path) -> dict[str, float]:
    """Computes conlleval's metrics of the tags in the last columns of two files.

    Raises:
        ValueError: the two files differ in words or sentences, have no tags, or are the same file.
    """
    if gold.samefile(predictions):
        raise ValueError(
            f"--gold and --predictions are the same file, {gold}: give two different files."
        )
    golds, answers = [], []
    for expected, answer in itertools.zip_longest(read_conll(gold), read_conll(predictions)):
        if expected is None or answer is None:
            shorter = gold if expected is None else predictions
            raise ValueError(
                f"{shorter} ends after {len(golds):,} sentences, but the other file has more: "
                "predict one tag for each word of --gold."
            )
        if expected.words != answer.words:
            words = itertools.zip_longest(expected.words, answer.words, fillvalue="(no word)")
            a, b = next((a, b) for a, b in words if a != b)
            raise ValueError(
                f"The sentence at {answer.where} has {brief(b, 40)!r}, but that at "
                f"{expected.where} has "
                f"{brief(a, 40)!r}: the predictions must have the same words and sentences."
            )
        for example in (expected, answer):
            if example.label is None:
                raise ValueError(
                    f"{example.where} has words, but no tags: write the tag in the last column."
                )
        golds.append(expected.label)
        answers.append(answer.label)
    return entity_f1(golds, answers)


CONLL_TASK = TaskDefinition(name="conll", kinds=(TagTask,), make=_make, score_files=score_files)
