"""Reads named entities from CoNLL-2003 (Tjong Kim Sang and De Meulder 2003) and similar files.

A line begins with a word and ends with the tag of the word; blank lines separate sentences, and
-DOCSTART- lines separate documents. Tags of other schemes than IOB2 are converted to IOB2.
"""

import dataclasses
import itertools
import re
import sys
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from bertjax.base.files import brief
from bertjax.tasks.dataset import ChangeCounts, Dataset, Example, KeptExamples
from bertjax.tasks.metrics import Measure, entity_f1, word_accuracy
from bertjax.tasks.sources.columns import Columns
from bertjax.tasks.sources.data_files import NAMED_COLUMNS, read_lines, row_name, suffix_of
from bertjax.tasks.sources.official import DatasetRow, decode, find_files
from bertjax.tasks.tags import (
    NO_TAG,
    OUTSIDE,
    PARTS_OF_SPEECH,
    PLACEHOLDERS,
    UNLABELLED,
    marked_scheme,
    tag_scheme,
)

# Class names in the order of their ids in Hugging Face and TFDS.
CONLL_LABELS = ("O", "B-PER", "I-PER", "B-ORG", "I-ORG", "B-LOC", "I-LOC", "B-MISC", "I-MISC")
DOCUMENT_START = "-DOCSTART-"
NO_COLUMNS = Columns()
# Number of sentences that tell the columns of a file.
SAMPLE = 5_000
_NUMBER = re.compile(r"\d+([-.]\d+)?")
# Usual names of columns in a first row, in lower case.
_WORDS = frozenset("word words token tokens form text".split())
_TAGS = frozenset(
    "tag tags label labels ner ner_tag ner_tags ner-tag ne entity iob bio pos pos_tag upos "
    "chunk".split()
)
# The types of chunks in the shared tasks of CoNLL 2000 and 2003, English and German.
_CHUNKS = frozenset(["", *"NP VP PP ADVP ADJP SBAR PRT CONJP INTJ LST UCP NC VC PC".split()])


# {split: the official names of its file, and other usual ones}
FILES = {
    "train": ("train.txt", "eng.train", "train.conll"),
    "dev": ("valid.txt", "dev.txt", "testa.txt", "testa", "eng.testa", "dev.conll"),
    "test": ("test.txt", "testb.txt", "testb", "eng.testb", "test.conll"),
}


def read_conll2003(data_dir: Path | str) -> Dataset:
    """Reads the files of CoNLL-2003; raises FileNotFoundError if there are none."""
    _, files = find_files("conll", data_dir, ("conll2003",), FILES)
    return Dataset.read("conll", files, lambda split, counts: read_conll(files[split], counts))


def read_conll(
    path: Path | str, counts: ChangeCounts | None = None, columns: Columns = NO_COLUMNS
) -> Iterator[Example]:
    """Reads the sentences of a CoNLL file as examples; entity tags are converted as by `in_iob2`.

    If the file has no tags, the labels of the examples are None.

    Args:
        counts: counts the lines that are left out, such as comments.
        columns: the columns of words (`text`) and tags (`label`), see `find_layout`.

    Raises:
        ValueError: a row is not UTF-8, or does not have as many columns as the others, or the
            columns of words and tags cannot be told.
    """
    if counts is None:
        counts = ChangeCounts()
    return in_iob2(_as_written(Path(path), counts, columns), counts)


def in_iob2(examples: Iterable[Example], counts: ChangeCounts) -> Iterator[Example]:
    """Converts the tags of a file to IOB2, if they mark entities; all tags tell their scheme.

    Types without marks stay as they are. Sentences in other schemes than IOB are counted. The tag
    `NO_TAG` and, if the tags mark entities and one is O, each of `PLACEHOLDERS` becomes
    `UNLABELLED`. Any other tag that is not in the scheme is a problem of its example.
    """
    kept = KeptExamples(examples)
    tags: Counter[str] = Counter()
    for example in kept:
        if isinstance(example.label, tuple):
            tags.update(example.label)
    scheme = marked_scheme(tags)
    unlabelled = frozenset([NO_TAG])
    if scheme and OUTSIDE in tags:
        unlabelled = PLACEHOLDERS
    for example in kept:
        if not isinstance(example.label, tuple):
            yield example
            continue
        label = tuple(UNLABELLED if tag in unlabelled else tag for tag in example.label)
        if UNLABELLED in label:
            counts.add("sentences with words without a label", example.where)
        if scheme is None:
            yield dataclasses.replace(example, label=label)
        elif odd := {*label} - {*scheme.meanings, UNLABELLED}:
            problem = (
                f"{example.where}: the tag {brief(min(odd), 60)!r} marks no entity, unlike most, "
                f"such as {min(scheme.meanings)!r}: correct it, write O for a word of no entity "
                f"and {NO_TAG} for a word without a label, or name another column (--label_column)."
            )
            yield dataclasses.replace(example, label=None, problem=problem)
        else:
            if not scheme.is_iob:
                example_tag = max(scheme.meanings)
                counts.add(
                    f"sentences with tags in {scheme.name}, such as {example_tag}, read as IOB2",
                    example.where,
                )
            yield dataclasses.replace(example, label=scheme.to_iob2(label))


class Layout(NamedTuple):
    """The columns of a file with a word per line, from 0, as `find_layout` finds them.

    Attributes:
        width: the number of columns.
        words, tags: the columns of the words and of their tags; the latter may be None.
        header: the row that names the columns, or [].
        known: the tags in the rows that do not begin with "#".
    """

    width: int
    words: int
    tags: int | None
    header: list[str]
    known: Collection[str]

    def why_no_word(self, fields: list[str], *, is_first: bool) -> str:
        """Returns what a line is if it holds no word, and else "". Comments precede a sentence."""
        if fields == self.header:
            return "rows with the names of the columns"
        if self.words and re.fullmatch(r"\d+-\d+|\d+\.\d", fields[0]):
            return "rows of several words or none, such as 3-4 and 8.1"
        if not is_first or fields[0][0] != "#":
            return ""
        if self.width == 1:
            is_word = len(fields) == 1
        else:
            fits = len(fields) == self.width and not self.words
            is_word = fits and fields[self.tags or -1] in self.known
        return "" if is_word else "comment lines"


def find_layout(path: Path, columns: Columns = NO_COLUMNS) -> Layout:
    """Finds the columns of words and tags by the first `SAMPLE` sentences of a file.

    The words are in the first column that does not number the words, does not name the sentences,
    and does not hold tags of entities or, mostly, parts of speech. The tags are in the only column
    with entities other than chunks, such as B-NP, or else in the last column. `columns` may say
    both, by their numbers from 1 (-1: the last).

    Raises:
        ValueError: several columns may hold the tags, or `columns` has no such number.
    """
    rows = []
    for sentence, lines in enumerate(itertools.islice(_sentences(path), SAMPLE)):
        rows += [(sentence, fields) for _, fields in lines if fields[0][0] != "#"]
    if not rows:
        return Layout(1, 0, None, [], ())
    _, header = rows[0]
    names = {name.lower() for name in header}
    if not names & _WORDS or not names & _TAGS:
        header = []
    widths = Counter(len(fields) for _, fields in rows)
    ((width, _),) = widths.most_common(1)
    rows = [row for row in rows if len(row[1]) == width and row[1] != header]

    values = []
    schemes = {}
    no_words = set()
    for column in range(width):
        counts = Counter(fields[column] for _, fields in rows)
        values.append(counts)
        if scheme := marked_scheme(counts):
            schemes[column] = scheme
            no_words.add(column)
        if _are_parts_of_speech(counts):
            no_words.add(column)
    numbers = _numbering(rows, values)
    no_words |= numbers
    if columns.text:
        words = _column(path, columns.text, width)
    else:
        words = next((i for i in range(width) if i not in no_words), 0)

    behind = [*range(words + 1, width)]
    last = width - 1
    marked = [i for i in schemes if i != words]
    tags = []
    for column in marked:
        kinds = {kind for _, kind in schemes[column].meanings.values()}
        if kinds - _CHUNKS:
            tags.append(column)
    if columns.label:
        tags = [_column(path, columns.label, width)]
    elif not tags and last not in marked and (words or marked or last in numbers):
        tags = behind
    tags = tags or marked[-1:] or behind[-1:] or [words]
    if len(tags) > 1:
        listed = ", ".join(str(i + 1) for i in tags)
        raise ValueError(
            f"{row_name(path, 1)}: which column holds the tags of the words in column {words + 1}? "
            f"Columns {listed} may: give one of the numbers with --label_column, and --text_column "
            "if the words are in another one."
        )
    tag: int | None = tags[0]
    known = values[tag]
    has_tags = tag != words and known.keys() - PLACEHOLDERS
    if not has_tags:
        tag = None
    return Layout(width, words, tag, header, known)


def _numbering(rows: Sequence[tuple[int, list[str]]], values: Sequence[Counter[str]]) -> set[int]:
    """Returns the columns of `rows`, (sentence, fields), that number the words or sentences."""
    numbers = set()
    for column, counts in enumerate(values):
        if all(map(_NUMBER.fullmatch, counts)):
            numbers.add(column)
    sentences = len({sentence for sentence, _ in rows})
    if 1 < sentences < len(rows) * 2 / 3:  # a column that is the same in each of them names them
        for column in range(len(values)):
            if len({(sentence, fields[column]) for sentence, fields in rows}) == sentences:
                numbers.add(column)
    return numbers


def _are_parts_of_speech(values: Counter[str]) -> bool:
    return 2 * sum(values[tag] for tag in PARTS_OF_SPEECH) > values.total()


def _column(path: Path, name: str, width: int) -> int:
    """Returns the column, from 0, that a user names by its number."""
    number = 0
    if re.fullmatch("-1|[1-9][0-9]*", name):
        number = int(name)
    if not 0 < abs(number) <= width:
        raise ValueError(
            f"{path} has a word per line: --text_column and --label_column are numbers from 1 to "
            f"{width} there, not {name!r}."
        )
    return number % (width + 1) - 1


def _as_written(
    path: Path, counts: ChangeCounts, columns: Columns = NO_COLUMNS
) -> Iterator[Example]:
    """Reads the sentences of a CoNLL file as `read_conll` does, without converting the tags."""
    layout = find_layout(path, columns)
    width = layout.width
    word = layout.words
    tag = layout.tags
    if word or tag not in (None, width - 1):
        used = str(word + 1)
        if tag is not None:
            used += f" and {tag + 1}"
        counts.add(f"files of {width} columns, of which {used} are read", str(path))
    index = 0
    for lines in _sentences(path):
        rows: list[list[str]] = []
        where = ""
        for number, fields in lines:
            if reason := layout.why_no_word(fields, is_first=not rows):
                counts.add(f"{reason}, left out", row_name(path, number))
                continue
            if len(fields) != width:
                raise ValueError(
                    f"{row_name(path, number)} has {len(fields)} columns, but other rows have "
                    f"{width}: write a word, other columns if any, and a tag in each line, and a "
                    "blank line between sentences; a comment begins with # and precedes a sentence."
                )
            where = where or row_name(path, number)
            rows.append(fields)
        if rows:
            values = [*zip(*rows, strict=True)]
            tags = None
            if tag is not None:
                tags = values[tag]
            yield Example(id=str(index), where=where, words=values[word], label=tags)
            index += 1


def _sentences(path: Path) -> Iterator[list[tuple[int, list[str]]]]:
    """Yields the lines between blank ones, as (row number, fields)."""
    for has_words, lines in itertools.groupby(_fields(path), lambda line: bool(line[1])):
        if has_words:
            yield [*lines]


def _fields(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Yields (row number, fields) of each line; lines between sentences have no fields."""
    for number, line in read_lines(path):
        # Not `split()`: a word may contain a non-breaking space.
        fields = [field for field in line.replace("\t", " ").split(" ") if field]
        if not line.strip() or fields[0] == DOCUMENT_START:
            fields = []
        yield number, fields


def read_dataset_row(row: DatasetRow) -> Example | None:
    """Converts a row of the dataset conll2003 to an example, or to None if it has no words."""
    words = tuple(decode(word) for word in row.fields["tokens"])
    ids = row.fields["ner" if "ner" in row.fields else "ner_tags"]  # TFDS or the hub
    tags = tuple(CONLL_LABELS[tag] for tag in ids)
    if words:
        return Example(id=str(row.number), where=row.where, words=words, label=tags)
    return None


# Number of lines that tell whether a file has columns.
_LINES = 200
# A text has more words than a line in CoNLL's format has columns.
_MOST_COLUMNS = 10


def has_columns(path: Path, labels: Collection[str]) -> bool:
    """Returns whether a file has CoNLL's columns, one word and not one text per line.

    CSV, JSON and Parquet files never have CoNLL's columns. Any other file has them if its first 200
    lines that are no comments all have the same number of fields with spaces between, at most 10,
    and one of these conditions holds: the number is 1; the last fields are all in `labels`, the
    tags of the task, or are entity tags, such as B-PER; or there are blank lines.
    """
    if suffix_of(path) in NAMED_COLUMNS or not path.is_file():
        return False
    lines = [fields for _, fields in itertools.islice(_fields(path), _LINES)]
    rows = [fields for fields in lines if fields and fields[0] != "#"]
    widths = {len(fields) for fields in rows}
    if len(widths) != 1 or max(widths) > _MOST_COLUMNS:
        return False
    tags = Counter(fields[-1] for fields in rows)
    if widths == {1} or tags.keys() <= set(labels) or marked_scheme(tags):
        return True
    return [] in lines[lines.index(rows[0]) :]


def score_files(gold: Path, predictions: Path) -> Measure:
    """Measures conlleval's metrics of the tags in the last columns of two files, by sentence.

    Entities are those of each file's scheme. The accuracy is that of the tags as they stand or, if
    the two files are in different schemes, in IOB2.

    Raises:
        ValueError: the two files differ in words or sentences, have no tags, or are the same file.
    """
    if gold.samefile(predictions):
        raise ValueError(
            f"--gold and --predictions are the same file, {gold}: give two different files."
        )
    golds = []
    answers = []
    for expected, answer in itertools.zip_longest(_last_tags(gold), _last_tags(predictions)):
        if expected is None or answer is None:
            shorter = predictions
            if expected is None:
                shorter = gold
            raise ValueError(
                f"{shorter} ends after {len(golds):,} sentences, but the other file has more: "
                "predict one tag for each word of --gold."
            )
        _check_words(expected, answer)
        golds.append(expected.label)
        answers.append(answer.label)
    scheme, golds_in_iob2 = _in_iob2(golds)
    other, answers_in_iob2 = _in_iob2(answers)
    for path, name in ((gold, scheme), (predictions, other)):
        if scheme != other or name not in ("IOB1", "IOB2"):
            print(f"{path}: the tags are in the scheme {name}", file=sys.stderr)
    measure = entity_f1.measure(golds_in_iob2, answers_in_iob2)
    if scheme == other:
        as_written = word_accuracy.measure(golds, answers)
        measure = measure._replace(ratios={**measure.ratios, **as_written.ratios})
    return measure


def _last_tags(path: Path) -> Iterator[Example]:
    """Yields the sentences of a file with the tags of its last column, which it must have."""
    for example in _as_written(path, ChangeCounts(), Columns(label="-1")):
        if example.label is None:
            raise ValueError(
                f"{example.where} has words, but no tags: write the tag in the last column."
            )
        yield example


def _check_words(expected: Example, answer: Example) -> None:
    """Raises ValueError, with the first other word, if two sentences differ in their words."""
    missing = "(no word)"
    for a, b in itertools.zip_longest(expected.words, answer.words, fillvalue=missing):
        if a != b:
            raise ValueError(
                f"The sentence at {answer.where} has {brief(b, 40)!r}, but that at "
                f"{expected.where} has {brief(a, 40)!r}: the predictions must have the same words "
                "and sentences."
            )


def _in_iob2(sentences: Sequence[Sequence[str]]) -> tuple[str, Sequence[Sequence[str]]]:
    """Returns the name of the scheme of a file and its tags in IOB2, unless they mark no entities.

    In IOB1, entities begin with I-X, and B-X only separates them from another entity of type X.
    """
    scheme = tag_scheme(itertools.chain.from_iterable(sentences))
    if scheme is None:
        return "IOB2", sentences
    converted = [scheme.to_iob2(tags) for tags in sentences]
    if not scheme.is_iob:
        return scheme.name, converted
    starts = set()  # (mark of the first tag of an entity, whether the type before is the same)
    for tags, tags_in_iob2 in zip(sentences, converted, strict=True):
        before = OUTSIDE
        for tag, tag_in_iob2 in zip(tags, tags_in_iob2, strict=True):
            if tag_in_iob2[0] == "B":
                starts.add((tag[0], tag[1:] == before[1:]))
            before = tag
    if ("I", False) in starts and ("B", False) not in starts:
        return "IOB1", converted
    return "IOB2", converted
