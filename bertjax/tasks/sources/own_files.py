"""The user's own files, as a dataset of examples, and the classes that their labels are.

They are tables with named columns, or have CoNLL's columns.
"""

import contextlib
import dataclasses
import itertools
import re
import string
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from bertjax.base.files import brief
from bertjax.tasks.dataset import (
    MULTI_HOT,
    PLACEHOLDERS,
    BadRows,
    ChangeCounts,
    Dataset,
    Example,
    Fold,
    Label,
    distinct,
)
from bertjax.tasks.definition import TableOptions, files_of
from bertjax.tasks.sources.advice import code_note, escape_note, holds_dates
from bertjax.tasks.sources.annotations import (
    ENTITIES,
    AnnotationTable,
    annotation_files,
    annotation_table,
    brat_file,
)
from bertjax.tasks.sources.columns import (
    Columns,
    TableKind,
    check_columns,
    find_columns,
    score_of,
)
from bertjax.tasks.sources.conll import in_iob2, read_conll
from bertjax.tasks.sources.data_files import (
    NAMED_COLUMNS,
    TEXT_SUFFIXES,
    TSV_SUFFIXES,
    files_in,
    row_name,
    suffix_of,
    unread_files,
)
from bertjax.tasks.sources.entities import tagged_example, utf16_hint
from bertjax.tasks.sources.label_columns import (
    LabelForm,
    distribution,
    form_in_words,
    form_of,
    is_missing,
    label_of_columns,
    listed_targets,
    one_hot_columns,
)
from bertjax.tasks.sources.tables import SQL_MISSING, Row, Table, read_number, shorten
from bertjax.tasks.sources.unused import UnusedColumns
from bertjax.tasks.tags import UNLABELLED, order_tags

# Usual suffixes of files with CoNLL's columns; only in a folder do files need one of them.
CONLL_SUFFIXES = (".conll", ".conll2003", ".conllu", ".bio", ".iob", ".iob2")
# Number of examples from which labels are compared with what is usual.
FEWEST_COUNTED = 50
# Number of labels from which labels such as 0.36 and 4.62 are refused: ratings have fewer values.
MOST_DECIMALS = 20
# A column with more different labels most likely holds numbers or texts instead.
MAX_LABELS = 1000


@dataclasses.dataclass(frozen=True, kw_only=True)
class OwnDataset(Dataset):
    """The examples of the user's own files.

    Attributes:
        kind: the kind of task that reads them.
        columns_of: {split: its columns, named by the user or guessed}.
        form: how the labels are written.
    """

    kind: TableKind
    columns_of: Mapping[str, Columns]
    form: LabelForm = LabelForm()

    @property
    def multi_label(self) -> bool:
        """Whether an example may have several labels."""
        return self.form.kind == "multi_label"

    @property
    def columns(self) -> Columns:
        """The columns of the first split."""
        return next(iter(self.columns_of.values()))

    @property
    def read_columns(self) -> frozenset[str]:
        names: set[str] = set()
        for columns in self.columns_of.values():
            # Several rows may have one id, such as that of a patient.
            names |= dataclasses.replace(columns, id=None).taken()
        return frozenset(names)

    def has_scores(self, split: str) -> bool:
        """Returns whether the pairs of a split have scores."""
        return self.columns_of.get(split, self.columns).label is not None

    def written_labels(self, split: str) -> Iterator[str]:
        """Yields the labels in the file of a split as they are written; "" where there is none."""
        for example in self.rows[split]:
            value = example.row.get(self.columns.label or "")
            yield "" if value is None else str(value).strip()


def read_tables(
    kind: TableKind,
    *,
    train: Path | str | None = None,
    dev: Path | str | None = None,
    test: Path | str | None = None,
    columns: Columns | None = None,
    conll: bool | None = None,
    label_separator: str | None = None,
    bad_rows: BadRows = "refuse",
    can_skip: bool = False,
    keep: bool = True,
    single_texts: bool = False,
    form: LabelForm | None = None,
) -> OwnDataset:
    """Reads the user's own tables in several formats or, for tagging, CoNLL's columns.

    The headers are read now, to find the columns of text, labels and so on, and the rows when they
    are needed.

    Args:
        train: the file of the train split, or a folder of files with the same columns; the same
            holds for `dev` and `test`.
        columns: the column names; a name that is not set is guessed from the file of train, or else
            of dev, or else of test; if the kind compares texts, from the file of each split, so
            that a model that is trained on pairs can be evaluated on scored pairs.
        conll: whether the files of a tagging task have CoNLL's columns, except CSV, JSON and
            Parquet files, which never have; None: as True. Other tasks ignore this argument.
        label_separator: the string between the labels of an example with several labels; None: a
            text is one label.
        bad_rows, can_skip: as for `Dataset`.
        keep: whether rows are kept, as for `Rows`.
        single_texts: for embeddings, whether the train split has one text per row, which is both
            texts of its example.
        form: how labels are written; None: the first file tells.

    Raises:
        FileNotFoundError: a file does not exist.
        ValueError: no file is given, a file lacks a column or has an unknown suffix, or a column
            cannot be guessed.
    """
    files: dict[str, Path] = {}
    for split, path in (("train", train), ("dev", dev), ("test", test)):
        if path is not None:
            files[split] = Path(path).expanduser()
    if not files:
        raise ValueError(f"--task={kind.task} reads your own files: give --train, --dev or --test.")
    named = columns or Columns()
    can_be_conll = kind.label == "tags" and conll is not False
    parts = {}
    tables = {}
    notes = []
    for split, path in files.items():
        parts[split] = data_files(path, tags=kind.label == "tags")
        tables[split] = []
        for part in parts[split]:
            table: Table | None = annotation_table(part, kind, named.label)
            if table is None and (not can_be_conll or suffix_of(part) in NAMED_COLUMNS):
                table = Table(part)
            if table is not None:
                tables[split].append(table)
    columns_of = _find_columns(kind, tables, named, notes, single_texts=single_texts)
    notes.append(next(filter(None, map(escape_note, itertools.chain(*tables.values()))), ""))
    for split, path in files.items():
        texts = [part.with_suffix(".txt") for part in parts[split] if brat_file(part)]
        notes.append(unread_files(path, [*parts[split], *texts]))
    first = next(iter(files))
    if form is None:
        form = form_of(kind, tables[first], columns_of[first], label_separator)
        notes.append(form_in_words(form))

    def parse(split: str, counts: ChangeCounts) -> Iterator[Example]:
        if not tables[split]:
            for part in parts[split]:
                yield from read_conll(part, counts, named)
            return
        examples = _Reader(
            kind=kind,
            split=split,
            path=files[split],
            tables=tables[split],
            columns=columns_of[split],
            named=named,
            separator=label_separator,
            form=form,
            bad_rows=bad_rows,
            single_texts=single_texts and split == "train",
            counts=counts,
        ).examples()
        if kind.label == "tags" and columns_of[split].label is not None:
            examples = in_iob2(examples, counts)  # all tags tell their scheme
        yield from examples

    described = dataclasses.asdict(columns_of[first])
    # A model's classes or targets name the columns of labels.
    del described["ignored"], described["dividing"], described["labels"]
    return OwnDataset.read(
        f"--task={kind.task}",
        files,
        parse,
        keep=keep,
        note="\n".join(filter(None, dict.fromkeys(notes))),
        description={"columns": described, "label_separator": label_separator},
        bad_rows=bad_rows,
        can_skip=can_skip,
        kind=kind,
        columns_of=columns_of,
        form=form,
    )


def own_tables(options: TableOptions, **settings: Any) -> OwnDataset:
    """Reads the tables of the user's `options`; `settings` are further arguments of `read_tables`.

    Raises:
        ValueError: the kind of task needs a train split, but there is none.
    """
    files = files_of(options)
    kind = options.table
    if kind.compares and "train" not in files:
        raise ValueError(f"--task={kind.task} trains on your own files: give --train.")
    return read_tables(
        kind,
        **files,
        columns=options.columns,
        bad_rows="skip" if options.skip_bad_rows else "refuse",
        can_skip=True,
        **settings,
    )


def data_files(path: Path, *, tags: bool = False) -> list[Path]:
    """Returns [`path`] or, if it is a folder, its files that hold examples.

    In a folder, the suffix decides: .csv, .tsv, .jsonl, .parquet and similar or, if there are no
    such files, .txt and, if `tags`, .conll, .iob and similar. If `tags`, a folder that has files of
    brat or WebAnno TSV, also in folders within it, has these alone.

    Raises:
        FileNotFoundError: there is no file or folder at `path`, or the folder has no such file.
    """
    if tags and path.is_dir() and (exports := annotation_files(path)):
        return exports
    tables = (*NAMED_COLUMNS, *TSV_SUFFIXES)
    others = TEXT_SUFFIXES
    if tags:
        others = (*TEXT_SUFFIXES, *CONLL_SUFFIXES)
    files = files_in(path, (*tables, *others))
    # A text beside tables is a README rather than a table without a header.
    return [file for file in files if suffix_of(file) in tables] or files


def _find_columns(
    kind: TableKind,
    tables: Mapping[str, list[Table]],
    named: Columns,
    notes: list[str],
    *,
    single_texts: bool,
) -> dict[str, Columns]:
    """Returns the columns of each split, and adds messages about the guessed ones to `notes`."""
    columns_of: dict[str, Columns] = {}
    for split, of_split in tables.items():
        for table in of_split:
            if split in columns_of:
                columns = columns_of[split]
                optional = {columns.id}
                if split == "test":
                    optional |= {columns.label, *columns.labels}
                check_columns(table, [name for name in columns.named() if name not in optional])
                continue
            own = _named_in(kind, split, tables, named)
            labelled = split != "test"
            if isinstance(table, AnnotationTable) and ENTITIES in table.columns:
                own = dataclasses.replace(own, label=ENTITIES)
            if single_texts and split == "train":
                columns, note = _find_text(table, own)
            else:
                one_hot = ()
                if labelled:
                    one_hot = one_hot_columns(table, kind, own)
                columns, note = find_columns(table, kind, own, labelled=labelled, one_hot=one_hot)
            notes.append(note)
            if split == "train":
                for name in filter(None, (columns.text, columns.pair)):
                    notes.append(code_note(table, name))
            for same in [split] if kind.compares else tables:
                columns_of[same] = columns
    return {split: columns_of.get(split, named) for split in tables}


def _named_in(
    kind: TableKind, split: str, tables: Mapping[str, list[Table]], named: Columns
) -> Columns:
    """Returns the named columns that the file of `split` must have.

    If texts are compared, a train file may lack a score that another file has; a dev or test file
    may lack more, but has both texts or neither of them.
    """
    if not kind.compares or "train" not in tables:
        return named
    names = {split: set(tables[0].columns) for split, tables in tables.items()}
    own = names[split]
    if split == "train":
        elsewhere = named.label in set().union(*names.values()) - own
        if elsewhere:
            return dataclasses.replace(named, label=None)
        return named
    lacking: dict[str, Any] = {}
    if not {named.text, named.pair} - {None} <= own:
        lacking |= {"text": None, "pair": None}
    for field in ("label", "id"):
        if getattr(named, field) not in own:
            lacking[field] = None
    for field in ("negatives", "scores"):
        if not own.issuperset(getattr(named, field)):
            lacking[field] = ()
    return dataclasses.replace(named, choices=(), **lacking)


def _find_text(table: Table, named: Columns) -> tuple[Columns, str]:
    """Finds the one column of texts, as that of a classifier, and that of ids."""
    found, note = find_columns(table, TableKind("embed"), named, labelled=False, pairs=False)
    if others := {*found.named()} - {found.text, found.id, found.label}:
        raise ValueError(
            f"{table.path}: --loss simcse takes one text per row: leave out {', '.join(others)}."
        )
    return dataclasses.replace(found, label=None), note


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Reader:
    """Converts the rows of a split to examples, and counts what it changes or leaves out."""

    kind: TableKind
    split: str
    path: Path
    tables: Sequence[Table]
    columns: Columns
    named: Columns
    separator: str | None
    form: LabelForm
    bad_rows: BadRows
    single_texts: bool
    counts: ChangeCounts

    @property
    def reports(self) -> bool:
        return self.bad_rows == "report"

    @property
    def labelled(self) -> bool:
        """Whether every row must have a label, if there is a column of labels."""
        return self.split != "test"

    def examples(self) -> Iterator[Example]:
        """Converts each row to an example, a bad row to an example with a `problem`.

        Without a column of ids, the id is the index of the row.
        """
        kind = None if self.single_texts else self.kind
        unused = UnusedColumns(self.path, kind, self.columns, self.named)
        index = -1
        texts = 0
        entities: Counter[str] = Counter()
        for table in self.tables:
            for number, values in table.rows_and_errors():
                index += 1
                if isinstance(values, ValueError):
                    where = row_name(table.path, number)
                    yield Example(id=str(index), where=where, problem=str(values))
                    continue
                if table.is_text and not self.reports and not values["text"].strip():
                    continue
                row = Row(table.path, number, values)
                unused.add(values)
                if reason := unused.says_to_leave_out(values):
                    if self.labelled:
                        self.counts.add(reason, row.where)
                        continue
                    row = self._without_label(row)
                id = index if self.columns.id is None else values.get(self.columns.id, index)
                try:
                    example = self._example(str(id), row)
                except ValueError as error:
                    example = self._bad_example(str(id), row, str(error))
                if self.kind.label == "tags" and example.label is not None:
                    texts += 1
                    tags: Any = example.label
                    entities.update(tag[2:] for tag in tags if tag.startswith("B-"))
                yield example
        if self.labelled:
            unused.check()
        self._tell_export(texts, entities)

    def _tell_export(self, texts: int, entities: Counter[str]) -> None:
        """Counts what was read of an export of an annotation tool, and what is in it besides."""
        tool = ""
        for table in self.tables:
            if isinstance(table, AnnotationTable):
                tool = table.tool
                for name, count in (+table.not_read).items():
                    self.counts[f"{name} of {tool}, not read"] += count
        if tool and texts:
            labels = brief(", ".join(sorted(entities)), 80)
            reason = (
                f"texts of {tool}, with {entities.total():,} entities of {len(entities):,} labels"
            )
            self.counts[f"{reason} ({labels})"] = texts

    def _without_label(self, row: Row) -> Row:
        names = self.columns.labels or (self.columns.label or "",)
        return row._replace(values=row.values | dict.fromkeys(names))

    def _bad_example(self, id: str, row: Row, problem: str) -> Example:
        """If bad rows are reported and only the label is bad, the example has the texts."""
        example = Example(id=id, where=row.where)
        if self.reports and {self.columns.label, *self.columns.labels} & row.values.keys():
            with contextlib.suppress(ValueError):
                example = self._example(id, self._without_label(row))
        return dataclasses.replace(example, row=row.values, problem=problem)

    def _example(self, id: str, row: Row) -> Example:
        """Converts a row to an example; tags are kept as they are written.

        Raises:
            ValueError: the row is bad; the message names it.
        """
        columns = self.columns
        assert columns.text is not None
        if self.kind.label == "tags":
            example = tagged_example(
                id,
                row,
                columns.text,
                columns.label,
                labelled=self.labelled,
                overlaps=self.counts if self.bad_rows == "skip" else None,
            )
            if example.cut:
                self._count_cut(example, row)
            return dataclasses.replace(example, row=row.values)
        pair = None if columns.pair is None else row.text(columns.pair)
        if self.single_texts:
            pair = row.text(columns.text)
        choices: tuple[str, ...] = ()
        if self.kind.label == "choice":
            choices = row.texts(columns.choices)
            if pair is not None:
                choices = tuple(f"{pair} {choice}" for choice in choices)
                pair = None
        elif listed := columns.negatives or columns.choices:
            choices = _listed(row, listed)
            if pair in choices:
                self.counts.add(
                    "rows with a hard negative that is their positive as well", row.where
                )
        return Example(
            id=id,
            where=row.where,
            row=row.values,
            text=row.text(columns.text),
            pair=pair,
            choices=choices,
            scores=_scores(row, columns.scores, len(choices) + (pair is not None)),
            label=self._label(row),
        )

    def _count_cut(self, example: Example, row: Row) -> None:
        for reason in self.counts:
            if reason.startswith(_CUT):
                break
        else:
            reason = (
                f"{_CUT} (such as {example.words[example.cut[0]]!r} in {row.where}"
                f"{utf16_hint(row)}), are learnt as whole words, and count as wrong in the scores"
            )
        self.counts[reason] += 1

    def _label(self, row: Row) -> Label:
        names = self.columns.labels
        if names:
            if not self.labelled and all(is_missing(row.values.get(name)) for name in names):
                return None
            return label_of_columns(row, self.form)
        column = self.columns.label
        value = None
        if column is not None:
            value = row.values.get(column)
        if self.kind.ranks and self.columns.negatives:
            return 1.0  # the label of the pair, a positive
        empty = value is None or (isinstance(value, str) and value.strip() in ("", SQL_MISSING))
        if empty and self.separator and column in row.values:
            return ()  # a DataFrame marks an empty cell of CSV by a missing value
        several = self.form.kind == "multi_label"
        if empty and (value is None or not several):
            if not self.labelled or column is None:
                return None
            raise ValueError(
                f"{row.where} has no label in column {brief(column, 60)!r}: add one, or remove "
                "the row."
            )
        if self.kind.label == "choice":
            choice_keys(row, value, self.columns.choices)  # refuses what names no choice
            return row.name(value)
        if self.form.kind == "targets":
            return listed_targets(row, value, self.form.names)
        if self.kind.label != "class":
            score = None
            if self.kind.compares:
                score = score_of(value)
            if score is None:
                return _number(row, value)
            return score
        row.refuse_written_list(value)
        if self.form.kind == "distribution":
            if not isinstance(value, dict):
                return {row.name(value): 1.0}
            shares = {name: share for name, share in value.items() if share is not None}
            return distribution(row, shares)
        if not several:
            return row.name(value)
        if isinstance(value, str) and self.separator:
            value = [part for part in value.split(self.separator) if part.strip()]
        return distinct(row.names(value))


_CUT = "rows whose entities begin or end within a word"


def _listed(row: Row, columns: tuple[str, ...]) -> tuple[str, ...]:
    """Returns the texts in `columns` or, if it is one column, in its list, or its only text."""
    if len(columns) == 1 and not isinstance(row.values.get(columns[0]), list):
        row.refuse_written_list(row.values.get(columns[0]))
        return (row.text(columns[0]),)
    return row.texts(columns)


def _number(row: Row, value: Any) -> float:
    """Converts a label, given as a text or as a JSON number, to a float."""
    number = None
    if not isinstance(value, bool | list | dict):
        number = read_number(str(value))
    if number is None:
        raise row.error(
            f"the label {shorten(value)} is not a number like 1250.5, with a decimal "
            "point, but without separators of thousands, currency or unit. To train on names of "
            "classes, use --task=classify."
        )
    return number


def _scores(row: Row, columns: tuple[str, ...], count: int) -> tuple[float, ...]:
    """Returns the `count` finite numbers in `columns`, or in the list in a single column."""
    if not columns:
        return ()
    names = brief(", ".join(columns), 60)
    values: Any = [row.values.get(column) for column in columns]
    if len(columns) == 1 and isinstance(values[0], list):
        (values,) = values
    if len(values) != count:
        raise ValueError(
            f"{row.where} has {len(values)} scores in {names!r}, but {count} texts to compare: "
            "give a score of each, of the positive first."
        )
    scores = []
    for value in values:
        score = None
        if not isinstance(value, bool):
            score = read_number(str(value))
        if score is None:
            raise row.error(
                f"the score {shorten(value)} in {names!r} is not a finite number: "
                "correct it, or remove the row."
            )
        scores.append(score)
    return tuple(scores)


def choice_keys(row: Row, value: Any, columns: tuple[str, ...]) -> dict[str, int]:
    """Returns {way: index of the choice} of the ways in which a label may name a choice.

    The ways are "indices" from 0, "numbers" from 1, "letters" and "texts". Files with letters
    may also have numbers from 1.

    Raises:
        ValueError: the label names no choice.
    """
    written = row.name(value)
    texts = [text.strip() for text in row.texts(columns)]
    named: dict[str, int] = {}
    if re.fullmatch(r"\d{1,3}(\.0)?", written, re.ASCII):
        number = int(float(written))
        named = {"indices": number, "numbers": number - 1, "letters": number - 1}
    elif len(written) == 1:
        named["letters"] = string.ascii_lowercase.find(written.lower())
    keys = {way: index for way, index in named.items() if 0 <= index < len(texts)}
    if texts.count(written) == 1:
        keys["texts"] = texts.index(written)
    if not keys:
        raise row.error(
            f"the label {shorten(value)} is none of the {len(texts)} choices: write "
            f"the index, 0 to {len(texts) - 1}, the text or the letter of the correct choice."
        )
    return keys


def with_indices(data: OwnDataset) -> OwnDataset:
    """Returns a dataset of multiple choice whose labels are indices of choices.

    The labels of all files tell in which way they name the choices. If they do not, and there are
    only predictions to make, the examples have no labels, and `note` says so.

    Raises:
        ValueError: the labels name no choice, in several ways, or one way or another.
    """

    def keys(example: Example) -> dict[str, int]:
        if example.label is None:
            return {}
        return choice_keys(Row(Path(), 0, dict(example.row)), example.label, data.columns.choices)

    note = data.note
    way = ""
    try:
        way = _way_of_labels(data, keys)
    except ValueError as error:
        if data.bad_rows != "report":
            raise
        note = f"{note}\nwarning: {error} The labels are not read.".lstrip()
    return dataclasses.replace(data, note=note, label_of=lambda example: keys(example).get(way))


def _way_of_labels(data: OwnDataset, keys: Callable[[Example], dict[str, int]]) -> str:
    first: dict[frozenset[str], Example] = {}  # the first example with each set of ways
    for example in _labelled(data):
        first.setdefault(frozenset(keys(example)), example)
    ways = frozenset(["indices"])
    if first:
        ways = frozenset.intersection(*first)
    if not ways:
        shown = ", ".join(f"{x.label!r} ({x.where})" for x in first.values())
        raise ValueError(
            f"{data.name}: the labels name the choices in several ways, {shown}: write the same in "
            "all rows of all files, such as indices from 0."
        )
    if "indices" in ways and data.columns.choices[0].endswith("0"):
        ways -= {"numbers", "letters"}  # columns such as ending0 count from 0
    for example in _labelled(data):
        named = keys(example)
        if len({named[way] for way in ways}) > 1:
            raise ValueError(
                f"{example.where}: the label {example.label!r} may name one choice or another "
                f"({', '.join(sorted(ways))}), and no other label tells: write letters (A, B and "
                "so on) or texts."
            )
    return min(ways)


def _labelled(data: Dataset) -> Iterator[Example]:
    for split in data.splits:
        for example in data.examples(split):
            if example.label is not None:
                yield example


def count_choices(data: OwnDataset) -> int:
    """Returns the number of choices of the first usable example that has some, or 2.

    Raises ValueError if the first file has no examples.
    """
    split = data.splits[0]
    example = None
    for example in data.examples(split):
        if example.choices:
            return len(example.choices)
    if example is None:
        raise data.no_examples(split)
    return 2


def learn_labels(data: Dataset, fold: Fold | None = None) -> tuple[str, ...]:
    """Returns the distinct labels of the train split in the order of their class ids.

    Numbers are sorted by value, tags by `order_tags`, and other labels alphabetically. Those of the
    held-out `fold` of a cross-validation are included, so that the models of all folds have the
    same classes.

    Raises:
        ValueError: there are fewer than two different labels, more than `MAX_LABELS`, or, in
            classification with one label per example, almost as many labels as examples or many
            numbers with decimals.
    """
    seen: set[str] = set()
    sizes: Counter[int] = Counter()  # of the lists of labels
    example = None
    where = f"{data.path('train')}: "
    splits = ("train", "dev") if fold else ("train",)
    for example in itertools.chain.from_iterable(map(data.examples, splits)):
        names = _labels(example)
        seen.update(map(str, names))
        sizes[len(names)] += 1
        if len(seen) > MAX_LABELS:
            raise ValueError(
                f"{example.where}: more than {MAX_LABELS:,} different labels so far, the latest "
                f"{shorten(example.label)}. If the labels are numbers, use --task=regress; if they "
                "are texts, name another column with --label_column."
            )
    if example is None:
        raise data.no_examples("train")
    if len(seen - {UNLABELLED}) < 2:
        only = "no labels"
        if seen:
            only = f"only the label {brief(min(seen))!r}"
        raise ValueError(
            f"{where}The training data has {only}: a classifier needs at least two different "
            "labels. If another column holds the labels, name it with --label_column."
        )
    if example.words:
        return order_tags(seen - {UNLABELLED})
    several = isinstance(example.label, tuple)
    count = sizes.total()
    if several and seen <= MULTI_HOT and len(sizes) == 1 and max(sizes) > 1:
        raise ValueError(
            f"{where}Every list of labels has {max(sizes)} values, and all are 0 or 1: they seem "
            'to be multi-hot. Write the names of the labels instead, such as ["good", "short"], '
            "and [] for none."
        )
    if len(seen) > MOST_DECIMALS and holds_dates([*seen]):
        raise ValueError(
            f"{where}the {len(seen):,} different labels are dates or times, such as {min(seen)!r}: "
            "name the column that holds the labels with --label_column."
        )
    numbers = {}
    for label in seen:
        number = read_number(label)
        if number is not None:
            numbers[label] = number
    all_numbers = len(numbers) == len(seen)
    with_decimals = any(number % 1 for number in numbers.values())
    measured = all_numbers and with_decimals and len(seen) > MOST_DECIMALS
    rare = count >= FEWEST_COUNTED and 10 * len(seen) > 9 * count
    if (rare or measured) and not several:
        raise ValueError(
            f"{where}{len(seen):,} different labels in {count:,} examples, such as "
            f"{brief(min(seen), 60)!r}. If the labels are numbers, use --task=regress; if another "
            "column holds the labels, name it with --label_column."
        )
    ordered = sorted(seen)
    if all_numbers:
        ordered.sort(key=numbers.__getitem__)
    return tuple(ordered)


def without_placeholders(data: OwnDataset, kept: Sequence[str]) -> OwnDataset:
    """Refuses, or leaves out, the rows whose label marks a missing one, but for those `kept`."""
    splits = sorted({"train", "dev"} & {*data.splits}, reverse=True)
    seen = set()
    for split in splits:
        for example in data.rows[split]:  # also of bad rows, which one error is to name
            if not example.problem:
                seen.update(_labels(example))
    missing = {label for label in seen if label.lower() in PLACEHOLDERS}.difference(kept)
    if "+" in seen:
        missing.discard("-")
    numbers = [x for x in map(read_number, seen) if x is not None]
    # Without 0, or beside other negative numbers, -1 is a number as the others.
    if len(numbers) == len(seen) and ("0" not in seen or sorted(numbers)[1] < 0):
        missing.discard("-1")
    if not missing:
        return data
    for split in splits:
        problems = {}
        for example in data.rows[split]:
            if found := missing.intersection(_labels(example)):
                problems[example.where] = (
                    f"{example.where}: the label {min(found)!r} usually marks a missing one: "
                    "correct it, or remove the row; if it is the name of a class, give "
                    f"--keep_labels {min(found)}."
                )
        data = data.without(split, problems)
    return data


def _labels(example: Example) -> Sequence[str]:
    label: Any = example.label
    if isinstance(label, dict):
        return tuple(label)
    if isinstance(label, tuple):
        return label
    return (label,)
