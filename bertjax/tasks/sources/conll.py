"""Reads named entities from CoNLL-2003 (Tjong Kim Sang and De Meulder 2003) and similar files.

A line begins with a word and ends with the tag of the word; blank lines separate sentences, and
-DOCSTART- lines separate documents. Tags of other schemes than IOB2 are converted to IOB2.
"""

import bisect
import dataclasses
import itertools
import re
import sys
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from bertjax.base.files import brief
from bertjax.tasks.definition import TaskDefinition, TaskOptions
from bertjax.tasks.metrics import entity_f1, word_accuracy
from bertjax.tasks.sources.columns import Columns
from bertjax.tasks.sources.official import DatasetRow, OfficialFiles, decode, official_source
from bertjax.tasks.sources.rows import Row, shorten
from bertjax.tasks.sources.tables import (
    NAMED_COLUMNS,
    read_lines,
    row_name,
    suffix_of,
)
from bertjax.tasks.tagging import (
    NO_TAG,
    OUTSIDE,
    PARTS_OF_SPEECH,
    PLACEHOLDERS,
    UNLABELLED,
    TagTask,
    Word,
    marked_scheme,
    split_words,
    tag_scheme,
)
from bertjax.tasks.task import ChangeCounts, Example, KeptExamples

# Class names in the order of their ids in Hugging Face and TFDS.
CONLL_LABELS = (*("O", "B-PER", "I-PER", "B-ORG", "I-ORG"), *("B-LOC", "I-LOC", "B-MISC", "I-MISC"))
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


class ConllSource(OfficialFiles):
    """Reads the files of CoNLL-2003, which may have their official names or other usual names."""

    task, folders = "conll", ("conll2003",)
    names = {
        "train": ("train.txt", "eng.train", "train.conll"),
        "dev": ("valid.txt", "dev.txt", "testa.txt", "testa", "eng.testa", "dev.conll"),
        "test": ("test.txt", "testb.txt", "testb", "eng.testb", "test.conll"),
    }

    def parse(self, split: str) -> Iterator[Example]:
        return read_conll(self.path(split), self.counts, split)


def read_conll(
    path: Path | str,
    counts: ChangeCounts | None = None,
    split: str = "",
    columns: Columns = NO_COLUMNS,
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
    counts = ChangeCounts() if counts is None else counts
    return in_iob2(_as_written(Path(path), counts, split, columns), counts, split)


def in_iob2(examples: Iterable[Example], counts: ChangeCounts, split: str) -> Iterator[Example]:
    """Converts the tags of a file to IOB2, if they mark entities; all tags tell their scheme.

    Types without marks stay as they are. Sentences in other schemes than IOB are counted. The tag
    `NO_TAG` and, if the tags mark entities and one is O, each of `PLACEHOLDERS` becomes
    `UNLABELLED`. Any other tag that is not in the scheme is a problem of its example.
    """
    kept = KeptExamples(examples)
    tags = Counter(tag for e in kept if isinstance(e.label, tuple) for tag in e.label)
    scheme = marked_scheme(tags)
    unlabelled = PLACEHOLDERS if scheme and OUTSIDE in tags else {NO_TAG}

    def convert(example: Example) -> Example:
        if not isinstance(example.label, tuple):
            return example
        label = tuple(UNLABELLED if tag in unlabelled else tag for tag in example.label)
        if UNLABELLED in label:
            counts.add(f"{split}: sentences with words without a label", example.where)
        if scheme is None:
            return dataclasses.replace(example, label=label)
        if odd := {*label} - {*scheme.meanings, UNLABELLED}:
            problem = (
                f"{example.where}: the tag {min(odd)!r} marks no entity, unlike most, such as "
                f"{min(scheme.meanings)!r}: correct it, write O for a word of no entity and "
                f"{NO_TAG} for a word without a label, or name another column (--label_column)."
            )
            return dataclasses.replace(example, label=None, problem=problem)
        if not scheme.is_iob:
            reason = (
                f"{split}: sentences with tags in {scheme.name}, such as {max(tags)}, read as IOB2"
            )
            counts.add(reason, example.where)
        return dataclasses.replace(example, label=scheme.to_iob2(label))

    return map(convert, kept)


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
        fits = len(fields) == self.width and not self.words
        known = self.width == 1 or (fits and fields[self.tags or -1] in self.known)
        return "" if fits and known else "comment lines"


def find_layout(path: Path, columns: Columns = NO_COLUMNS) -> Layout:
    """Finds the columns of words and tags by the first `SAMPLE` sentences of a file.

    The words are in the first column that does not number the words, does not name the sentences,
    and does not hold tags of entities or, mostly, parts of speech. The tags are in the only column
    with entities other than chunks, such as B-NP, or else in the last column. `columns` may say
    both, by their numbers from 1 (-1: the last).

    Raises:
        ValueError: several columns may hold the tags, or `columns` has no such number.
    """
    rows = [
        (sentence, fields)
        for sentence, lines in enumerate(itertools.islice(_sentences(path), SAMPLE))
        for _, fields in lines
        if fields[0][0] != "#"
    ]
    if not rows:
        return Layout(1, 0, None, [], ())
    header = rows[0][1]
    names = {name.lower() for name in header}
    header = header if names & _WORDS and names & _TAGS else []
    width = Counter(len(fields) for _, fields in rows).most_common(1)[0][0]
    rows = [row for row in rows if len(row[1]) == width and row[1] != header]

    values = [Counter(fields[i] for _, fields in rows) for i in range(width)]
    schemes = {i: scheme for i, found in enumerate(values) if (scheme := marked_scheme(found))}
    numbers = {i for i, found in enumerate(values) if all(map(_NUMBER.fullmatch, found))}
    sentences = len({sentence for sentence, _ in rows})
    if 1 < sentences < len(rows) * 2 / 3:  # a column that is the same in each of them names them
        for i in range(width):
            if len({(sentence, fields[i]) for sentence, fields in rows}) == sentences:
                numbers.add(i)
    parts = {i for i, found in enumerate(values) if _are_parts_of_speech(found)}
    free = [i for i in range(width) if i not in {*numbers, *parts, *schemes}]
    words = _column(path, columns.text, width) if columns.text else (free or [0])[0]

    marked = [i for i in schemes if i != words]
    found = [i for i in marked if {kind for _, kind in schemes[i].meanings.values()} - _CHUNKS]
    others = [*range(words + 1, width)]
    if columns.label:
        found = [_column(path, columns.label, width)]
    elif not found and width - 1 not in marked and (words or marked or width - 1 in numbers):
        found = others
    found = found or marked[-1:] or others[-1:]
    if len(found) > 1:
        listed = ", ".join(str(i + 1) for i in found)
        raise ValueError(
            f"{row_name(path, 1)}: which column holds the tags of the words in column {words + 1}? "
            f"Columns {listed} may: give one of the numbers with --label_column, and --text_column "
            "if the words are in another one."
        )
    tags = found[0] if found else words
    has_tags = tags != words and values[tags].keys() - PLACEHOLDERS
    return Layout(width, words, tags if has_tags else None, header, values[tags])


def _are_parts_of_speech(values: Counter[str]) -> bool:
    return 2 * sum(values[tag] for tag in PARTS_OF_SPEECH) > values.total()


def _column(path: Path, name: str, width: int) -> int:
    """Returns the column, from 0, that a user names by its number."""
    number = int(name) if re.fullmatch("-1|[1-9][0-9]*", name) else 0
    if not 0 < abs(number) <= width:
        raise ValueError(
            f"{path} has a word per line: --text_column and --label_column are numbers from 1 to "
            f"{width} there, not {name!r}."
        )
    return number % (width + 1) - 1


def _as_written(
    path: Path, counts: ChangeCounts, split: str = "", columns: Columns = NO_COLUMNS
) -> Iterator[Example]:
    """Reads the sentences of a CoNLL file as `read_conll` does, without converting the tags."""
    width, word, tag, *_ = layout = find_layout(path, columns)
    if word or tag not in (None, width - 1):
        used = [str(i + 1) for i in (word, tag) if i is not None]
        reason = f"{split}: files of {width} columns, of which {' and '.join(used)} are read"
        counts.add(reason, str(path))
    count = itertools.count()
    for lines in _sentences(path):
        rows: dict[int, list[str]] = {}
        for number, fields in lines:
            if reason := layout.why_no_word(fields, is_first=not rows):
                counts.add(f"{split}: {reason}, left out", row_name(path, number))
                continue
            if len(fields) != width:
                raise ValueError(
                    f"{row_name(path, number)} has {len(fields)} columns, but other rows have "
                    f"{width}: write a word, other columns if any, and a tag in each line, and a "
                    "blank line between sentences; a comment begins with # and precedes a sentence."
                )
            rows[number] = fields
        if rows:
            values = [*zip(*rows.values(), strict=True)]
            tags = None if tag is None else values[tag]
            where = row_name(path, min(rows))
            yield Example(id=str(next(count)), where=where, words=values[word], label=tags)


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
        between = not line.strip() or fields[0] == DOCUMENT_START
        yield number, [] if between else fields


def read_dataset_row(row: DatasetRow) -> Example | None:
    """Converts a row of the dataset conll2003 to an example, or to None if it has no words."""
    words = tuple(decode(word) for word in row.fields["tokens"])
    ids = row.fields["ner" if "ner" in row.fields else "ner_tags"]  # TFDS or the hub
    tags = tuple(CONLL_LABELS[tag] for tag in ids)
    return Example(id=str(row.number), where=row.where, words=words, label=tags) if words else None


_LINES = 200
# A text has more words than a line in CoNLL's format has columns.
_MOST_COLUMNS = 10
_KINDS = ("label", "type", "tag", "entity", "entity_group", "category")


class Span(NamedTuple):
    """An entity in a text: text[start:end], of a kind such as "PER"."""

    start: int
    end: int
    kind: str


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
    counts = {len(fields) for fields in rows}
    if len(counts) != 1 or max(counts) > _MOST_COLUMNS:
        return False
    tags = Counter(fields[-1] for fields in rows)
    blank = [] in lines[lines.index(rows[0]) :]
    return counts == {1} or tags.keys() <= set(labels) or bool(marked_scheme(tags)) or blank


def text_example(id: str, row: Row, text_column: str, entity_column: str | None) -> Example:
    """Converts a row with a running text to its words and their IOB2 tags.

    The words depend on the text alone, so that labels do not help a prediction: an entity that
    starts or ends within a word has the tags of whole words, and is `cut`. Without a list of
    entities, the label is None.

    Raises:
        ValueError: the text has no words, an entity is malformed or lies outside of the text, or
            two entities overlap or have a word in common.
    """
    text = row.text(text_column)
    listed = None if entity_column is None else row.values.get(entity_column)
    spans = [] if listed is None else _spans(row, text, listed)
    words = split_words(text)
    if not words:
        raise ValueError(f"{row.where}: the text {shorten(text)} has no words; remove the row.")
    tags, cut = _tags(row, words, spans)
    return Example(
        id=id,
        where=row.where,
        text=text,
        words=tuple(word.text for word in words),
        offsets=tuple((word.start, word.end) for word in words),
        label=None if listed is None else tags,
        cut=cut,
    )


def _spans(row: Row, text: str, listed: Any) -> list[Span]:
    """Reads the list of entities of a row, sorted by position."""
    if not isinstance(listed, list):
        listed = [listed]
    spans = sorted(_span(row, text, entity) for entity in listed)
    for before, span in itertools.pairwise(spans):
        if span.start < before.end:
            raise ValueError(
                f"{row.where}: the entities {shorten(text[before.start : before.end])} and "
                f"{shorten(text[span.start : span.end])} overlap: keep one of them."
            )
    return spans


def _span(row: Row, text: str, entity: Any) -> Span:
    start: Any = None
    end: Any = None
    kind: Any = None
    if isinstance(entity, dict):
        start, end = entity.get("start"), entity.get("end")
        kind = next((entity[key] for key in _KINDS if key in entity), None)
    elif isinstance(entity, list) and len(entity) == 3:
        start, end, kind = entity
    kind = kind.strip() if isinstance(kind, str) else kind
    whole = all(isinstance(edge, int) and not isinstance(edge, bool) for edge in (start, end))
    named = isinstance(kind, str) and re.fullmatch(r"\S+", kind) and kind not in PLACEHOLDERS
    if not whole or not named:
        raise ValueError(
            f"{row.where}: {shorten(entity)} is not an entity: for a text, write "
            '{"start": 0, "end": 4, "label": "PER"} or [0, 4, "PER"], with whole numbers and a '
            "label without spaces; tags need a list of words."
        )
    if start == end:
        raise ValueError(
            f"{row.where}: the entity {shorten(entity)} is empty: `end` is the position after its "
            "last character. Correct or remove it."
        )
    if not 0 <= start < end <= len(text):
        raise ValueError(
            f"{row.where}: the entity {shorten(entity)} is not within the text, which has "
            f"{len(text)} characters. {_count_characters(text)}"
        )
    # Spaces at the edges of an entity are of no word.
    inside = text[start:end]
    said = entity.get("text") if isinstance(entity, dict) else None
    if isinstance(said, str) and said.strip() != inside.strip():
        raise ValueError(
            f"{row.where}: the entity {shorten(said)} has start {start} and end {end}, but there "
            f"the text is {shorten(inside)}. {_count_characters(text)}"
        )
    start += len(inside) - len(inside.lstrip())
    end -= len(inside) - len(inside.rstrip())
    if start >= end:
        raise ValueError(f"{row.where}: the entity {shorten(entity)} has no words: remove it.")
    return Span(start, end, kind)


def utf16_hint(row: Row) -> str:
    """Returns a question about the positions in a row whose texts have emoji, or ""."""
    if not any(isinstance(value, str) and _has_pairs(value) for value in row.values.values()):
        return ""
    return " (are emoji counted as two UTF-16 units, as in JavaScript? They are one character)"


def _has_pairs(text: str) -> bool:
    """Returns whether a text has characters that JavaScript and Java count as two."""
    return any(ord(character) > 0xFFFF for character in text)


def _count_characters(text: str) -> str:
    """Returns the remedy for wrong positions in `text`."""
    if _has_pairs(text):
        return "Count Unicode characters from 0; an emoji is one, not two UTF-16 units."
    if not text.isascii():
        return "Count Unicode characters from 0, not bytes."
    return "Correct start and end."


def _tags(
    row: Row, words: Sequence[Word], spans: list[Span]
) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """Returns the IOB2 tag of each word, and the first words of entities that cut a word.

    An entity has all words with any of its characters. Two entities in a word raise ValueError,
    because one of them would be lost or cut.
    """
    tags, cut = ["O"] * len(words), []
    starts, ends = [word.start for word in words], [word.end for word in words]
    free = 0  # the words before it are tagged or passed
    for start, end, kind in spans:
        first = bisect.bisect_right(ends, start)
        if first < free:
            raise ValueError(
                f"{row.where}: two entities have the word {shorten(words[first].text)} in common, "
                "but a word has one tag: separate them by a space, or keep one of them."
            )
        free = bisect.bisect_left(starts, end)
        for index in range(first, free):
            tags[index] = f"{'B' if index == first else 'I'}-{kind}"
        if first < free and (starts[first] < start or end < ends[free - 1]):
            cut.append(first)
    return tuple(tags), tuple(cut)


def _make(options: TaskOptions) -> TagTask:
    source = official_source(options, ConllSource, "conll2003", read_dataset_row)
    stride = options.doc_stride
    return TagTask(name="conll", source=source, labels=CONLL_LABELS, doc_stride=stride)


def score_files(gold: Path, predictions: Path) -> dict[str, float]:
    """Computes conlleval's metrics of the tags in the last columns of two files.

    Entities are those of each file's scheme. The accuracy is that of the tags as they stand or, if
    the two files are in different schemes, in IOB2.

    Raises:
        ValueError: the two files differ in words or sentences, have no tags, or are the same file.
    """
    if gold.samefile(predictions):
        raise ValueError(
            f"--gold and --predictions are the same file, {gold}: give two different files."
        )
    golds, answers = [], []
    for expected, answer in itertools.zip_longest(*map(_last_tags, (gold, predictions))):
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
    (scheme, golds_in_iob2), (other, answers_in_iob2) = map(_in_iob2, (golds, answers))
    for path, name in ((gold, scheme), (predictions, other)):
        if scheme != other or name not in ("IOB1", "IOB2"):
            print(f"{path}: the tags are in the scheme {name}", file=sys.stderr)
    scores = entity_f1(golds_in_iob2, answers_in_iob2)
    return scores | (word_accuracy(golds, answers) if scheme == other else {})


def _last_tags(path: Path) -> Iterator[Example]:
    return _as_written(path, ChangeCounts(), columns=Columns(label="-1"))


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
    starts = [
        (tag[0], tag[1:] == before[1:])
        for tags, tags_in_iob2 in zip(sentences, converted, strict=True)
        for before, tag, start in zip((OUTSIDE, *tags), tags, tags_in_iob2, strict=False)
        if start[0] == "B"
    ]
    is_iob1 = ("I", False) in starts and ("B", False) not in starts
    return "IOB1" if is_iob1 else "IOB2", converted


CONLL_TASK = TaskDefinition(name="conll", kinds=(TagTask,), make=_make, score_files=score_files)
