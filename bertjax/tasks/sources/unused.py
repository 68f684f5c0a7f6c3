"""Judges the columns that a task does not read: harmless, obeyed, or a reason to stop.

A column that could change the meaning of the rows, such as a second label, stops the command unless
the user says what it is; docs/data_formats.md lists the names and values.
"""

import re
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from bertjax.base.files import brief
from bertjax.tasks.sources.columns import IDS, KINDS, Columns, holds_dates, plain
from bertjax.tasks.sources.tables import read_number

# Words of names of columns that describe a row and do not change what it means, by their reason.
HARMLESS = {
    "names the row, or what it belongs to": (
        *("id", "ids", "idx", "index", "ind", "key", "guid", "uid", "uuid", "qid", "pid", "docid"),
        *("hash", "number", "no", "nr", "row", "line", "order", "rank", "unnamed", "level"),
    ),
    "says where the text comes from": (
        *("url", "urls", "link", "href", "source", "src", "origin", "dataset", "corpus", "genre"),
        *("domain", "file", "filename", "path", "publisher", "publication", "journal", "license"),
        *("subreddit", "forum", "channel", "platform", "product", "brand", "version", "page"),
    ),
    "says when": (
        *("date", "time", "timestamp", "datetime", "year", "month", "day", "hour", "created"),
        *("updated", "modified", "published", "posted", "timezone", "duration", "elapsed"),
    ),
    "says who wrote or annotated it": (
        *("author", "user", "username", "name", "by", "annotator", "annotators", "worker"),
        *("reviewer", "editor", "speaker", "coder", "rater", "gender", "age", "email", "session"),
    ),
    "says the language or the place": (
        *("lang", "language", "locale", "country", "city", "state", "region", "location", "place"),
        *("geo", "lat", "lon", "latitude", "longitude", "coord", "address"),
    ),
    "is measured on the text": (
        *("length", "len", "count", "counts", "num", "words", "chars", "characters", "tokens"),
        *("size", "parse", "lemma", "lemmas", "pos", "offset", "offsets", "start", "end"),
    ),
    "counts how readers reacted": (
        *("likes", "retweets", "shares", "votes", "upvotes", "downvotes", "replies", "views"),
        *("followers", "helpful", "useful", "funny", "cool"),
    ),
    "is a note beside the data": ("meta", "metadata", "info", "note", "notes", "remarks", "lead"),
}
_HARMLESS = frozenset(word for words in HARMLESS.values() for word in words)

# {name: (the program that writes it, values of rows that are not used, values of the others)}
OBEYED = {
    "answer": ("Prodigy", ("reject", "ignore"), ("accept",)),
    "wascancelled": ("Label Studio", ("true",), ("false",)),
}
# Names and values of columns that may say which rows to use.
SELECTING = frozenset(
    "split splits fold kfold partition istrain istest isdev isval isvalid isvalidation usage "
    "status valid invalid validated approved accepted rejected discarded discard deleted excluded "
    "exclude skip skipped ignore ignored cancelled wascancelled annotationapprover isconfirmed "
    "trainortest traintest holdout heldout isbad bad keep use".split()
)
SPLITS = frozenset(
    "train training trn dev devel development val valid validation test testing tst eval "
    "evaluation holdout heldout".split()
)
STATES = frozenset(
    "accept accepted reject rejected ignore ignored skip skipped discard discarded submitted "
    "pending draft approved deleted flagged valid invalid completed default validated".split()
)
WEIGHTS = frozenset(
    "weight weights sampleweight exampleweight instanceweight rowweight importance "
    "confidence".split()
)
_LABELS = frozenset(label for kind in KINDS.values() for label in kind.labels) - {"answer"}
_PAIR_LABEL = re.compile(
    "label|score|similar|related|relation|relevan|duplicat|paraphras|entail|contradict|match"
    "|judg|verdict|grade|correct|equivalent|(target|rating|y|gold|class)$"
)
_STRONG = ("label", "labels", "goldlabel")
BINARY = frozenset(("0", "1", "true", "false", "yes", "no", "y", "n", "t", "f"))
# A column with more different values is no label, split or state.
MOST_VALUES = 20


class _Values:
    """The different values of a column, as texts, up to `MOST_VALUES` of them."""

    def __init__(self) -> None:
        self.seen: dict[str, None] = {}
        self.rows = self.count = 0  # with this column; with a value
        self.are_lists = False
        self.are_numbers = True
        self.is_open = True  # whether more values can change what it is

    def add(self, value: Any) -> None:
        if isinstance(value, list | dict):
            self.are_lists, self.is_open = True, False
            return
        text = written(value)
        self.seen.setdefault(text)
        if not text:
            return
        self.count += 1
        self.are_numbers = self.are_numbers and read_number(text) is not None
        if len(self.seen) > MOST_VALUES:
            self.is_open = self.are_numbers

    @property
    def known(self) -> list[str]:
        return [value for value in self.seen if value]

    @property
    def are_few(self) -> bool:
        return not self.are_lists and len(self.seen) <= MOST_VALUES

    def within(self, names: Collection[str]) -> bool:
        return bool(self.known) and all(value.lower() in names for value in self.known)

    @property
    def sort(self) -> str:
        """What the values are: "list", "binary", "number", "name" (of a class) or "free"."""
        if self.are_lists:
            return "list"
        if self.within(BINARY) and len(self.known) > 1:
            return "binary"
        if self.known and self.are_numbers:
            return "number"
        recur = self.are_few and 2 * len(self.known) <= self.count
        return "name" if recur and not holds_dates(self.known) else "free"

    def __str__(self) -> str:
        if self.are_lists:
            return "lists"
        shown = ", ".join(value or "empty" for value in [*self.seen][:4])
        return brief(shown, 60) + ", ..." * (len(self.seen) > 4)


def written(value: Any) -> str:
    """Converts a value to a text, in which 1.0 is 1, True is true and a missing value is ""."""
    if value is None:
        return ""
    text = str(value).strip()
    if isinstance(value, bool) or text in ("True", "False", "TRUE", "FALSE"):
        return text.lower()
    return text.removesuffix(".0") if read_number(text) is not None else text


class Doubt(NamedTuple):
    """Why a column that is not read could change the meaning, and what the user can do."""

    reason: str
    remedy: str


_ROWS = Doubt(
    "may say which rows to use",
    "keep the rows that are meant in a file of their own",
)
_WEIGHTS = Doubt(
    "may say how much a row counts, which is not supported",
    "leave out the rows that should not count",
)
_LABEL = Doubt("may be the label as well", "name the label with --label_column")
_SEVERAL = Doubt(
    "may be a label of several, one in each column",
    'write lists of the names of the labels in a column "labels" of JSON lines, or name the only '
    "label with --label_column",
)
_PAIRS = Doubt(
    "may say which pairs belong together",
    "keep only the rows whose texts belong together or, if it holds scores, the higher the more "
    "similar, give --label_column",
)


class UnusedColumns:
    """Watches the rows of a split for columns that are not read and could change the meaning.

    Args:
        path: the file or folder, for messages.
        kind: the kind of task, such as "classify".
        columns: the columns that are read and those that the user lets be ignored.
        named: the columns that the user names.
        read: names of further columns that are read.
    """

    def __init__(
        self,
        path: Path,
        kind: str,
        columns: Columns,
        named: Columns,
        read: Collection[str] = (),
    ):
        self._path, self._kind = path, kind
        self._label = columns.label
        self._is_named = columns.label is not None and columns.label == named.label
        self._read = {*columns.named(), *columns.ignored, *read} - {columns.label}
        self._rows = 0
        self._columns: dict[str, _Values] = {}
        self._obeyed: dict[str, int] = {}  # names of columns in `OBEYED` -> rows left out

    def add(self, row: Mapping[str, Any]) -> None:
        """Looks at the values of a row, {column: value}."""
        self._rows += 1
        for name, value in row.items():
            if name in self._read:
                continue
            values = self._columns.get(name)
            if values is None:
                values = self._columns[name] = _Values()
                if plain(name) in OBEYED and name != self._label:
                    self._obeyed[name] = 0
            values.rows += 1
            if values.is_open:
                values.add(value)

    def says_to_leave_out(self, row: Mapping[str, Any]) -> str:
        """Returns why a row is not to be used, as the program that wrote it means it, or ""."""
        for name in self._obeyed:
            program, refused, _ = OBEYED[plain(name)]
            if written(row.get(name)) in refused:
                self._obeyed[name] += 1
                return (
                    f"rows whose {name!r} is {' or '.join(refused)}, with which {program} marks "
                    "what is not to be learnt, are left out"
                )
        return ""

    def check(self) -> None:
        """Raises ValueError if a column could change the meaning; the message says the remedy."""
        doubts: dict[Doubt, list[str]] = {}
        for name, values in self._others():
            if values.rows < self._rows:
                values.seen.setdefault("")
            if doubt := self._doubt(name, values):
                doubts.setdefault(doubt, []).append(name)
        for doubt, names in doubts.items():
            listed = ", ".join(f"{name!r} ({self._columns[name]})" for name in names[:10])
            several = len(names) > 1
            raise ValueError(
                f"{self._path}: the column{'s' * several} {listed} {'are' if several else 'is'} "
                f"not used, but {'each ' * several}{doubt.reason}: {doubt.remedy}, or give "
                f"--ignore_columns {' '.join(names)} to leave "
                f"{'them' if several else 'it'} aside."
            )

    def _others(self) -> Iterator[tuple[str, _Values]]:
        return ((name, x) for name, x in self._columns.items() if name != self._label)

    def _doubt(self, name: str, values: _Values) -> Doubt | None:
        key = plain(name)
        if self._obeyed.get(name):
            _, refused, used = OBEYED[key]
            return None if values.within(refused + used) else _ROWS
        varies = len(values.seen) > 1 and values.are_few
        if varies and (key in SELECTING or values.within(SPLITS) or values.within(STATES)):
            return _ROWS
        if len(values.seen) > 1 and key in WEIGHTS and values.sort in ("number", "binary"):
            return _WEIGHTS
        if self._is_named:
            return None
        if self._kind in ("embed", "rerank"):
            return self._doubt_of_pair(name, values)
        if self._kind in ("classify", "regress", "tag", "choice"):
            return self._doubt_of_label(name, values)
        return None

    def _doubt_of_pair(self, name: str, values: _Values) -> Doubt | None:
        is_label = _PAIR_LABEL.search(plain(name)) is not None
        if self._label is not None:
            is_number = values.sort in ("number", "binary") and len(values.seen) > 1
            return _LABEL if is_label and is_number else None
        if values.sort == "number" and len(values.seen) == 1 and "0" not in values.seen:
            return None  # all pairs are alike
        is_binary = values.sort == "binary" and not is_harmless(name)
        return _PAIRS if is_label or is_binary else None

    def _doubt_of_label(self, name: str, values: _Values) -> Doubt | None:
        """Whether another column may be the label of a task with one label column."""
        label = self._columns.get(self._label or "")
        if label is None or len(values.seen) < 2:
            return None
        key, chosen = plain(name), plain(self._label or "")
        alike = values.sort == label.sort or (self._kind == "tag" and values.are_lists)
        guessed = chosen not in KINDS[self._kind].labels  # type: ignore[index]
        if values.sort == label.sort == "binary" and not is_harmless(name):
            binary = [x for x, other in self._others() if other.sort == "binary"]
            if chosen not in _STRONG or sum(not is_harmless(x) for x in binary) > 1:
                return _SEVERAL
        if not alike or values.sort == "free" or (self._kind == "tag" and key == "postags"):
            return None
        if guessed:
            return None if is_harmless(name) else _LABEL
        is_strong = chosen in _STRONG and self._kind in ("classify", "choice")
        return _LABEL if key in (_STRONG if is_strong else _LABELS) else None


def is_harmless(name: str) -> bool:
    """Returns whether a column of this name describes a row and does not change what it means."""
    if plain(name) in _LABELS:
        return False
    words = re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name)
    return plain(name) in IDS or any(word.lower() in _HARMLESS for word in words)
