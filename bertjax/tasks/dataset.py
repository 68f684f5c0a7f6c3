"""`Example`, and `Dataset`: the examples of the splits of a task, which never change.

A dataset is read once, and then split and labelled; each of these returns a new one, which shares
the rows that were read:

    data = read_tables(kind, train="a.csv").split(BY_CLASS, fraction=0.1).labelled(classes)
"""

import dataclasses
import functools
import hashlib
import io
import itertools
import json
import pickle
import re
import tempfile
from collections import Counter, deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self

import numpy as np

from bertjax.base.files import brief, did_you_mean, write_text

# What R, pandas, spreadsheets and SQL write where a value is missing, in lower case.
MISSING = frozenset({"na", "n/a", "#n/a", "nan", "null", "none", "<na>", r"\n"})


# The mapping is {class: probability}, or {target: number, or None where it is missing}.
Label = str | float | int | tuple[str, ...] | Mapping[str, float | None] | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Example:
    """One example as read from a file; fields that the task does not use stay empty.

    Attributes:
        id: identifies the example in the official files and in predictions.
        where: the file and row of the example, for error messages.
        text: the text, the first text of a pair, the question, or the text before every choice.
        pair: the second text, or the passage that a question is about.
        words: the words of a sentence whose words are to be tagged.
        offsets: (start, end) of each of `words` in `text`; empty for a list of words.
        choices: in multiple choice, the continuations of `text` to choose from; for embeddings, the
            hard negatives.
        scores: a teacher's score of each text that is compared with `text`: of `pair`, then of
            `choices`; empty if there are none.
        label: a class name, a number, a tuple of names (several labels, or one tag per word), the
            index of the correct choice, from 0, the probability of each class, or several targets;
            None if the example is unlabelled.
        row: the row of a user's file with named columns, {column: value}; else empty.
        problem: why the example could not be read. If only the label could not be read, and the
            dataset reports bad rows, `label` is None; else, all other fields but `id`, `where` and
            `row` are empty.
        answers: (text, start in characters) for each accepted answer; the start is -1 if the text
            is not in the passage. Empty, with `label="impossible"`, if there is no answer.
        cut: the first words of the entities that begin or end within a word.
    """

    id: str
    where: str
    text: str = ""
    pair: str | None = None
    words: tuple[str, ...] = ()
    offsets: tuple[tuple[int, int], ...] = ()
    choices: tuple[str, ...] = ()
    scores: tuple[float, ...] = ()
    label: Label = None
    answers: tuple[tuple[str, int], ...] = ()
    cut: tuple[int, ...] = ()
    row: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    problem: str = ""


def text_digest(example: Example) -> bytes:
    """Returns a hash of the texts of an example, which is small where texts are long."""
    texts = (example.text, example.pair, example.words, example.choices)
    return hashlib.blake2b(repr(texts).encode(errors="replace"), digest_size=12).digest()


GroupKey = tuple[str, str]


def group_keys(example: Example, columns: Sequence[str]) -> list[GroupKey]:
    """Returns (column, value) of the groups of an example; missing values are left out.

    17.0, as pandas writes whole numbers beside missing ones, is the same group as 17.
    """
    keys = []
    for column in columns:
        value = example.row.get(column)
        text = "" if value is None else str(value).strip()
        if whole := _WHOLE.fullmatch(text):
            text = whole[1]
        if text and text.lower() not in MISSING:
            keys.append((column, text))
    return keys


def connected(keys: Sequence[Sequence[Hashable]]) -> np.ndarray:
    """Returns the group of each example, int [N], from 0, in the order in which groups occur.

    Examples that share a key are in one group, and so are those that others connect: the groups are
    the connected components. An example without keys is a group of its own.
    """
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    numbers: dict[Hashable, int] = {}
    examples = []
    nodes = []
    for example, of_example in enumerate(keys):
        for key in of_example:
            examples.append(example)
            nodes.append(len(keys) + numbers.setdefault(key, len(numbers)))
    size = len(keys) + len(numbers)
    graph = coo_array((np.ones(len(nodes)), (examples, nodes)), shape=(size, size))
    _, components = connected_components(graph, directed=False)
    return components[: len(keys)]


class KeptExamples:
    """The examples of an iterator, which can be read many times; the iterator is read once.

    They are kept pickled, about as large as the file that they come from: up to `MEMORY` bytes in
    memory, and more in a temporary file without a name, which the system removes with the process.
    """

    MEMORY = 64 << 20
    BLOCK = 256

    def __init__(self, examples: Iterable[Example]):
        self._unread = iter(examples)
        self._error: BaseException | None = None
        self._file = tempfile.SpooledTemporaryFile(self.MEMORY)
        self._blocks: list[int | list[Example]] = []  # the start in the file, or the examples

    def __iter__(self) -> Iterator[Example]:
        for index in itertools.count():
            block = self._kept(index) if index < len(self._blocks) else self._read()
            if not block:
                return
            yield from block

    def _read(self) -> list[Example]:
        if self._error is not None:
            raise self._error
        try:
            block = list(itertools.islice(self._unread, self.BLOCK))
        except BaseException as error:
            self._error = error
            raise
        if block:
            try:
                # Of the fields, not of the examples: nothing but built-in types is unpickled.
                data = pickle.dumps([vars(example) for example in block], pickle.HIGHEST_PROTOCOL)
                self._blocks.append(self._file.seek(0, io.SEEK_END))
                self._file.write(data)
            except RecursionError:  # a column with deeply nested JSON
                self._blocks.append(block)
        return block

    def _kept(self, index: int) -> list[Example]:
        block = self._blocks[index]
        if isinstance(block, list):
            return block
        self._file.seek(block)
        examples = []
        for fields in pickle.load(self._file):
            examples.append(object.__new__(Example))  # half the time of `Example(**fields)`
            examples[-1].__dict__.update(fields)
        return examples

    def __del__(self):
        self._file.close()


class ChangeCounts(Counter[str]):
    """Counts changed or omitted examples by reason; `first` has the first row of each reason."""

    def __init__(self) -> None:
        super().__init__()
        self.first: dict[str, str] = {}

    def add(self, reason: str, where: str) -> None:
        """Counts an example, at `where`, that was changed or left out for `reason`."""
        self.first.setdefault(reason, where)
        self[reason] += 1

    def clear(self) -> None:
        """Forgets all reasons."""
        super().clear()
        self.first.clear()


class Rows:
    """The rows of a split as examples, which are parsed when they are first read, and then kept.

    Args:
        parse: function (counts) that parses the rows; a row that cannot be used is an example with
            a `problem`. It raises ValueError if the rows after a malformed one cannot be read.
        keep: whether the examples are kept; else, they are parsed whenever they are read, so that
            predictions begin before a file has been read.

    Attributes:
        counts: how many of the examples that were read so far are changed or left out.
        problems: those of the rows that were read so far.
    """

    def __init__(self, parse: Callable[[ChangeCounts], Iterable[Example]], *, keep: bool = True):
        self.counts = ChangeCounts()
        self.problems: list[str] = []
        self._parse = parse
        self._keeps = keep
        self._kept: KeptExamples | None = None

    def __iter__(self) -> Iterator[Example]:
        if self._kept is not None:
            return iter(self._kept)
        self.counts.clear()
        self.problems.clear()
        if not self._keeps:
            return self._parsed()
        self._kept = KeptExamples(self._parsed())
        return iter(self._kept)

    def _parsed(self) -> Iterator[Example]:
        """Yields the examples; counts the user's texts that may stand for missing ones."""
        missing = ""
        for example in self._parse(self.counts):
            if example.problem:
                self.problems.append(example.problem)
            if example.row and (text := _missing_text(example)):
                missing = missing or (
                    f"rows with a text such as {text!r}, which other programs write where a value "
                    "is missing, read as it stands"
                )
                self.counts.add(missing, example.where)
            yield example

    def forget(self) -> None:
        """Frees the memory of the examples, which are parsed again if they are read again."""
        self._kept = None


def _missing_text(example: Example) -> str:
    texts = [example.text, example.pair]
    if example.pair:  # of several choices, "None" may be one
        texts += example.choices
    for text in texts:
        if text and text.strip().lower() in MISSING:
            return text
    return ""


# refuse: one error names the bad rows; skip: the other rows are used; report: a bad row becomes an
# example whose `problem` is the reason, without content unless only the label is bad.
BadRows = Literal["refuse", "skip", "report"]


@dataclasses.dataclass(frozen=True)
class Fold:
    """The fold that a run holds out: `index` (from 0) of the `count` folds drawn with `seed`."""

    index: int
    count: int
    seed: int


class By(NamedTuple):
    """How held-out examples are chosen, by a key of each example, such as its label.

    `key` is a function (example) -> its key, `fraction` one of (keys, fraction) -> the indices that
    are held out, and `folds` one of (keys, count, seed) -> the fold of each. `words` describe the
    choice to the user. `keys` says what a key is: the class of the example, its labels, its target,
    the group that must stay together, or something else.
    """

    key: Callable[[Example], Any]
    fraction: Callable[[Sequence[Any], float], frozenset[int]]
    folds: Callable[[Sequence[Any], int, int], np.ndarray]
    words: str
    keys: Literal["class", "labels", "target", "group", "other"] = "other"


class Leak(NamedTuple):
    """A row of the dev or test split that is in the train split, too.

    `where` and `train` are the places of the two rows; the `similarity` of equal ones is 1.0.
    """

    split: str
    where: str
    train: str
    similarity: float


class Lengths(NamedTuple):
    """The lengths of the examples of a split: the numbers of tokens of their longest sequences.

    95 % of the examples have at most `most` tokens; `truncated` examples have the maximum length or
    more, and longer ones are cut, unless texts are read in windows.
    """

    examples: int
    shortest: int
    median: int
    most: int
    longest: int
    truncated: int

    @classmethod
    def of(cls, sizes: Sequence[int] | np.ndarray, truncated: int) -> Self:
        """Summarises the lengths of at least one example."""
        shares = (0, 0.5, 0.95, 1)
        shortest, median, most, longest = np.quantile(sizes, shares, method="higher").tolist()
        return cls(len(sizes), shortest, median, most, longest, truncated)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Dataset:
    """The examples of the splits of a task; it never changes, and its methods return new ones.

    A split is parsed once and kept, because a fine-tuning reads the train split several times
    before its first step, and the dev split at each evaluation.

    Attributes:
        name: what messages call the dataset.
        files: {split: the path of its file or folder}; of a dataset without files, a path that has
            its name and that of the split.
        rows: {split: its rows}; the splits are "train", "dev", "test" or (MNLI) "dev_matched".
        note: a message about the files for the user; it may be empty.
        warning: a warning of columns whose values are in train and dev; it may be empty.
        description: what task.json of a saved model says about the files that it was trained on.
        bad_rows: "refuse": one ValueError names the rows that cannot be used; "skip": they are left
            out; "report": each is an example whose `problem` says why.
        can_skip: whether errors about bad rows recommend --skip_bad_rows.
        held_out: the examples of the train split that are the dev split: their indices among those
            without a problem.
        left_out: {split: {where: problem}} of further rows that are left out; one with an empty
            problem is not a bad row.
        group_columns: the columns whose values are in one split each; () if there are no groups.
        slice_columns: the columns by whose values scores are shown apart.
        leaks: pairs of rows of which one is in the train split, and one in another.
        lengths: {split: the lengths of its examples} of encoded splits other than train.
        label_of: function (example) -> its label; None: the label as it was read.
    """

    name: str
    files: Mapping[str, Path]
    rows: Mapping[str, Rows]
    note: str = ""
    warning: str = ""
    description: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    bad_rows: BadRows = "refuse"
    can_skip: bool = False
    held_out: frozenset[int] = frozenset()
    left_out: Mapping[str, Mapping[str, str]] = dataclasses.field(default_factory=dict)
    group_columns: tuple[str, ...] = ()
    slice_columns: tuple[str, ...] = ()
    leaks: tuple[Leak, ...] = ()
    lengths: Mapping[str, Lengths] = dataclasses.field(default_factory=dict)
    label_of: Callable[[Example], Any] | None = None

    @classmethod
    def read(
        cls,
        name: str,
        files: Mapping[str, Path],
        parse: Callable[[str, ChangeCounts], Iterable[Example]],
        *,
        keep: bool = True,
        **fields: Any,
    ) -> Self:
        """Returns a dataset whose splits are parsed by a function (split, counts); see `Rows`."""
        rows = {split: Rows(functools.partial(parse, split), keep=keep) for split in files}
        return cls(name=name, files=files, rows=rows, **fields)

    @property
    def splits(self) -> tuple[str, ...]:
        """The splits that there are."""
        return tuple(self.rows)

    @property
    def read_columns(self) -> frozenset[str]:
        """The columns of `Example.row` that examples are made of, or that are to be ignored."""
        return frozenset()

    def path(self, split: str) -> Path:
        """Returns the path of a split, as in `files`.

        Raises:
            ValueError: there is none; the message suggests the nearest name.
        """
        if split == "dev" and self.held_out:
            split = "train"
        if split in self.files:
            return self.files[split]
        hint = did_you_mean(split, self.files)
        known = ", ".join(self.files)
        raise ValueError(f"{self.name} has no split {split!r}. {hint}There are: {known}.")

    def examples(self, split: str) -> Iterator[Example]:
        """Reads the examples of a split, in the order of its file, without those left out.

        Raises:
            ValueError: the split has no file, or a row is malformed; the message names the row.
        """
        self.path(split)  # refuses a split without a file
        return self._examples(split)

    def _examples(self, split: str) -> Iterator[Example]:
        held_out = self.held_out if split == "train" else ()
        left_out = self.left_out.get(split, ())
        for index, example in enumerate(self.usable(split)):
            if index in held_out or example.where in left_out:
                continue
            if self.label_of is not None:
                label = self.label_of(example)
                if label != example.label:
                    example = dataclasses.replace(example, label=label)
            yield example

    def usable(self, split: str) -> Iterator[Example]:
        """Yields the examples without a problem as they were read, also held-out ones of train.

        If `bad_rows` is "report", those with a problem are yielded as well.

        Raises:
            ValueError: examples have a problem and `bad_rows` is "refuse". After the first problem,
                nothing is yielded; the error is raised at the end and names the rows.
        """
        problems = []
        for example in self.rows[split]:
            if self.bad_rows == "report":
                yield example
            elif example.problem:
                problems.append(example.problem)
            elif not problems or self.bad_rows == "skip":
                yield example
        self._refuse(split, problems)

    def numbered_train(self) -> Iterator[tuple[int, Example]]:
        """Yields (index among the `usable` ones, example) of train, without those left out."""
        left_out = self.left_out.get("train", {})
        for index, example in enumerate(self.usable("train")):
            if example.where not in left_out:
                yield index, example

    def _refuse(self, split: str, problems: Sequence[str]) -> None:
        if problems and self.bad_rows != "skip":
            raise error_of(problems, str(self.path(split)), can_skip=self.can_skip)

    def without(self, split: str, problems: Mapping[str, str]) -> Self:
        """Returns a dataset without the examples at {where: problem}, if `bad_rows` is "skip".

        Raises:
            ValueError: there are `problems`, and `bad_rows` is not "skip"; the error also names the
                rows that could not be read.
        """
        if problems:
            self._refuse(split, [*self.rows[split].problems, *problems.values()])
        return self.leaving_out(split, problems)

    def leaving_out(self, split: str, problems: Mapping[str, str]) -> Self:
        """Returns a dataset without the examples at {where: problem}, whatever `bad_rows` is.

        The problems are written to the file of bad rows, unless they are empty.
        """
        if not problems:
            return self
        of_split = {**self.left_out.get(split, {}), **problems}
        return dataclasses.replace(self, left_out={**self.left_out, split: of_split})

    def labelled(self, names: Iterable[str]) -> Self:
        """Returns a dataset whose labels are the classes `names`, as `class_finder` finds them."""
        class_of = class_finder(names)
        return dataclasses.replace(self, label_of=lambda example: class_of(example.label))

    def split(self, by: By, fraction: float = 0.0, fold: Fold | None = None) -> Self:
        """Returns a dataset whose dev split is a fraction, or a fold, of its train split.

        Examples with the same text (the same pair, choices or words) are either all held out or all
        trained on, because otherwise the evaluation would reward what was learnt by heart. The
        `note` says what was held out; if nothing can be, there is no dev split.

        Raises:
            ValueError: there are fewer different texts than folds, or a fold is empty.
        """
        keys: dict[bytes, Any] = {}  # of the first example with each text
        indices = []
        digests = []
        for index, example in self.numbered_train():
            indices.append(index)
            digests.append(text_digest(example))
            keys.setdefault(digests[-1], by.key(example))
        total = len(digests)
        path = self.path("train")
        if fold is not None:
            folds = by.folds([*keys.values()], fold.count, fold.seed)
            if len(np.unique(folds)) < fold.count:
                raise ValueError(
                    f"--folds {fold.count}: the {total:,} examples in {path} cannot be divided "
                    f"into so many folds ({by.words}): give fewer folds."
                )
            chosen = frozenset(np.flatnonzero(folds == fold.index).tolist())
        else:
            chosen = by.fraction([*keys.values()], fraction)
        texts = {digest for index, digest in enumerate(keys) if index in chosen}
        places = zip(indices, digests, strict=True)
        held_out = frozenset(index for index, digest in places if digest in texts)
        words = by.words
        if copies := total - len(keys):
            words += (
                f"; {copies:,} examples repeat the text of an earlier one: of each text, all "
                "examples are held out, or none"
            )
        return self.hold_out(held_out, total, words, fraction, fold)

    def hold_out(
        self,
        indices: frozenset[int],
        total: int,
        words: str,
        fraction: float = 0.0,
        fold: Fold | None = None,
    ) -> Self:
        """Returns a dataset whose dev split are the usable train examples at `indices`.

        The `note` says what was held out of the `total`, and how it was chosen in `words`; if it is
        nothing or all, there is no dev split.
        """
        path = self.path("train")
        what = f"of the {total:,} examples in {path.name or path.resolve().name}"
        if not 0 < len(indices) < total:
            note = (
                f"warning: there is no --dev file, and none {what} can be held out ({words}), so "
                "that the model is not evaluated: give --dev."
            )
            return dataclasses.replace(self, note=note)
        note = f"{len(indices):,} {what} are not trained on, but held out for evaluation"
        if fold is not None:
            note = f"Fold {fold.index + 1} of {fold.count}: {note} ({words})."
        else:
            note = (
                f"There is no --dev file: {note} (--dev_fraction {fraction:g}: {words}; "
                "--dev_fraction 0 trains on all, without evaluation)."
            )
        dev = Rows(lambda _: self._chosen(indices))  # kept apart: an evaluation reads no more
        deque(dev, maxlen=0)  # now, because the rows of the train split will be forgotten
        rows = {**self.rows, "dev": dev}
        return dataclasses.replace(self, rows=rows, held_out=indices, note=note)

    def _chosen(self, indices: frozenset[int]) -> Iterator[Example]:
        for index, example in enumerate(self.usable("train")):
            if index in indices:
                yield example

    def held_out_indices(self) -> list[int]:
        """Returns the index of each "dev" example among the usable examples of the train file."""
        left_out = self.left_out.get("dev", ())
        indices = []
        if self.held_out:
            for index, example in zip(sorted(self.held_out), self.usable("dev"), strict=True):
                if example.where not in left_out:
                    indices.append(index)
        return indices

    def all_bad_rows(self) -> list[tuple[str, str]]:
        """Returns (split, problem) of each row read so far that cannot be used, or is left out."""
        bad = []
        for split, rows in self.rows.items():
            problems = [*rows.problems, *self.left_out.get(split, {}).values()]
            bad += [(split, problem) for problem in problems if problem]
        return bad

    def no_examples(self, split: str) -> ValueError:
        """Returns the error that no example of a split is left, which names its bad rows."""
        path = self.path(split)
        problems = [problem for of, problem in self.all_bad_rows() if of == split]
        if problems:
            return ValueError(f"No example is left. {error_of(problems, str(path))}")
        return ValueError(
            f"{path}: the {split} split has no examples, only a header or nothing: check the file."
        )

    def write_bad_rows(self, path: Path) -> None:
        """Writes `all_bad_rows` to a file of JSON lines, if there are any."""
        lines = []
        for split, problem in self.all_bad_rows():
            line = {"split": split, "problem": problem}
            lines.append(json.dumps(line, ensure_ascii=False) + "\n")
        if lines:
            write_text(path, "".join(lines))

    def write_leaks(self, path: Path) -> None:
        """Writes `leaks` to a file of JSON lines, if there are any."""
        lines = [json.dumps(leak._asdict(), ensure_ascii=False) + "\n" for leak in self.leaks]
        if lines:
            write_text(path, "".join(lines))

    def change_notes(self) -> list[str]:
        """Returns a sentence per reason for which examples read so far are changed or left out."""
        notes = []
        for split, rows in self.rows.items():
            for reason, count in rows.counts.items():
                note = f"{split}: {reason}: {count:,}"
                if first := rows.counts.first.get(reason):
                    note += f" (the first: {first})"
                notes.append(note)
        return notes


# What programs and people write where a label is missing, in lower case.
PLACEHOLDERS = MISSING | {"-", "--", "?", "_", "-1", "-100"}
# The values of multi-hot lists, as names of labels.
MULTI_HOT = frozenset({"0", "1", "0.0", "1.0", "false", "true"})
# A whole number as it is usually written, or as pandas writes it in a column of floats.
_WHOLE = re.compile(r"(0|-?[1-9]\d*)(?:\.0)?", re.ASCII)


def class_finder(names: Iterable[str]) -> Callable[[Any], Any]:
    """Returns a function (label) -> its class, one of `names`, if another program writes it so.

    pandas writes whole numbers as 1.0 if a value is missing in their column, so that the same label
    is written in two ways in two files; the same holds for true and TRUE. Other labels that are
    equal as numbers, such as 1.1 and 1.10 or 2 and 02, stay apart. A label that marks a missing one
    becomes None, and unknown labels stay as they are. Of a tuple of labels, each becomes its class.
    """
    known = frozenset(names)
    by_value: dict[str, list[str]] = {}
    for name in known:
        if value := whole_or_truth(name):
            by_value.setdefault(value, []).append(name)

    def find(label: Any) -> Any:
        if isinstance(label, tuple):
            return distinct(tuple(map(find, label)))
        if not isinstance(label, str) or label in known:
            return label
        if label.lower() in PLACEHOLDERS:
            return None
        same = by_value.get(whole_or_truth(label), ())
        return same[0] if len(same) == 1 else label

    return find


def distinct(names: tuple[str, ...]) -> tuple[str, ...]:
    """Removes repetitions, but not from multi-hot lists, which are refused for their length."""
    if MULTI_HOT.issuperset(names):
        return names
    return tuple(dict.fromkeys(names))


def whole_or_truth(name: str) -> str:
    """Returns the whole number or truth value that `name` writes, in one form, or ""."""
    if name.lower() in ("true", "false"):
        return name.lower()
    number = _WHOLE.fullmatch(name)
    if number:
        return number[1]
    return ""


# The most problems in an error, and the most characters of a problem's rows and description.
PROBLEMS = 20
ROWS_LENGTH = 100
LINE_LENGTH = 200
# A quoted value, or a number that is not a part of a word; names of columns are in '...'.
_VALUE = re.compile(r"""('[^']*')|"[^"]*"|(?<![\w.])-?\d+(?:\.\d+)?(?!\w)""")
_QUOTED = re.compile(r'()"[^"]*"')


def error_of(problems: Sequence[str], where: str, *, can_skip: bool = False) -> ValueError:
    """Returns one ValueError about bad rows of a file or split, `where`.

    Rows with the same problem are listed together. Problems that differ only in quoted values and
    numbers count as similar; the values of the first row are shown. The message describes the
    `PROBLEMS` most frequent problems; if `can_skip`, it recommends --skip_bad_rows.
    """
    if len(problems) == 1:
        skip = ""
        if can_skip:
            skip = " Or give --skip_bad_rows to leave it out."
        return ValueError(f"{problems[0]}{skip}")
    groups: dict[str, list[tuple[str, str]]] = {}  # problem without its values -> (row, problem)s
    for problem in problems:
        text = problem.removeprefix(where).lstrip(", ")
        number = ""
        values = _QUOTED
        if row := re.match(r"row (\d+)(?:, question \S+)?:? ?", text):
            # Without a row number, the numbers in the text may tell the place.
            text = text[row.end() :]
            number = row[1]
            values = _VALUE
        kind = values.sub(lambda value: value[1] or '""', text)
        groups.setdefault(kind, []).append((number, text))
    skip = ""
    if can_skip:
        skip = ", or leave them out with --skip_bad_rows"
    message = f"{where}: {len(problems):,} rows cannot be used. Correct them{skip}:"
    by_frequency = sorted(groups.values(), key=len, reverse=True)
    for group in by_frequency[:PROBLEMS]:
        numbers = [number for number, _ in group if number]
        texts = [text for _, text in group]
        rows = _rows_of(numbers, similar=len({*texts}) > 1)
        message += f"\n  {rows}{brief(texts[0], LINE_LENGTH)}"
    if others := sum(map(len, by_frequency[PROBLEMS:])):
        message += f"\n  and {others:,} rows with other problems"
    return ValueError(message)


def _rows_of(numbers: Sequence[str], *, similar: bool) -> str:
    if not numbers:
        return ""
    if similar and len(numbers) > 1:
        return f"row {numbers[0]} (similar: {_listed(numbers[1:])}): "
    return f"row {_listed(numbers)}: "


def _listed(numbers: Sequence[str]) -> str:
    """Joins the first of `numbers`, in about `ROWS_LENGTH` characters, and counts the others."""
    text = ", ".join(numbers)
    shown = len(numbers)
    while len(text) > ROWS_LENGTH and shown > 1:
        shown -= 1
        text = f"{', '.join(numbers[:shown])} and {len(numbers) - shown:,} more"
    return brief(text, ROWS_LENGTH)
