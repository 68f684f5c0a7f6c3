"""Judges the columns that a task does not read: harmless, obeyed, or a reason to stop.

A column that could change the meaning of the rows, such as a second label, stops the command unless
the user says what it is; docs/data_formats.md lists the names and values.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from bertjax.base.files import brief
from bertjax.tasks.sources.advice import holds_dates
from bertjax.tasks.sources.columns import IDS, Columns, TableKind, plain
from bertjax.tasks.sources.tables import read_number

# Words of names of columns that describe a row and do not change what it means, by their reason.
HARMLESS = {
    "names the row, or what it belongs to": "id ids idx index ind key guid uid uuid qid pid docid "
    "hash number no nr row line order rank unnamed level",
    "says where the text comes from": "url urls link href source src origin dataset corpus genre "
    "domain file filename path publisher publication journal license subreddit forum channel "
    "platform product brand version page",
    "says when": "date time timestamp datetime year month day hour created updated modified "
    "published posted timezone duration elapsed",
    "says who wrote or annotated it": "author user username name by annotator annotators worker "
    "reviewer editor speaker coder rater gender age email session",
    "says the language or the place": "lang language locale country city state region location "
    "place geo lat lon latitude longitude coord address",
    "is measured on the text": "length len count counts num words chars characters tokens size "
    "parse lemma lemmas pos offset offsets start end",
    "counts how readers reacted": "likes retweets shares votes upvotes downvotes replies views "
    "followers helpful useful funny cool",
    "is a note beside the data": "meta metadata info note notes remarks lead",
}
_HARMLESS = frozenset(" ".join(HARMLESS.values()).split())

# {name: (the program that writes it, values of rows that are not used, values of the others)}
OBEYED = {
    "answer": ("Prodigy", ("reject", "ignore"), ("accept",)),
    "wascancelled": ("Label Studio", ("true",), ("false",)),
}
# Names and values of columns that may say which rows to use.
SELECTING = frozenset(
    "split splits fold kfold partition istrain istest isdev isval isvalid isvalidation usage "
    "train test dev intrain intest indev trainset testset devset "
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
# Usual names of columns of labels, of any kind of task.
_LABELS = frozenset(
    "label labels goldlabel class classes category categories target sentiment intent emotion "
    "topic isduplicate isparaphrase entailment stars rating score tag y similarity value tags "
    "nertags ner entities spans annotations gold correct similarityscore sim relatedness "
    "relatednessscore relevance relevant isrelevant duplicate paraphrase ismatch match issimilar "
    "similar grade".split()
)
_STRONG = ("label", "labels", "goldlabel")
# In plain names of columns: may say whether the texts of a pair belong together.
_PAIR_LABEL = re.compile(
    "label|score|similar|related|relation|relevan|duplicat|paraphras|entail|contradict|match|judg"
    "|verdict|grade|correct|equivalent|rating$|class$|^is(answer|positive|negative|same)"
    "|^(target|y|gold|same|sim|polarity)$"
)
# In plain names of columns of numbers: how alike the texts of a pair are.
_SCORE = re.compile("score|sim|relat|relev|grade|rating")
BINARY = frozenset("0 1 true false yes no y n t f".split())
# A column with more different values is no label, split or state.
MOST_VALUES = 20
_LISTS = "lists"
_TEXTS = "lists of texts"

# Why a column that is not read could change the meaning, and the remedy.
_ROWS = "may say which rows to use: keep the rows that are meant in a file of their own"
_WEIGHTS = (
    "may say how much a row counts, which is not supported: leave out the rows that should not "
    "count"
)
_LABEL = (
    "may be the label as well: name the label with --label_column, or all of several targets with "
    "--label_columns"
)
_SEVERAL = (
    "may be one of several labels, with a column each: name all of them with --label_columns, or "
    "the only label with --label_column"
)
_PAIRS = (
    "may say which texts belong together: keep only the rows whose texts do or, if it holds "
    "scores, higher for texts that are more alike, give --label_column"
)
_NEGATIVES = (
    "may hold texts that do not belong to the first one: name hard negatives with "
    "--negative_columns"
)
_CLASSES = (
    "seems to hold the numbers of classes, such as contradiction, which are no similarity: keep "
    "only the rows whose texts belong together, without this column"
)


class _Values(Counter[str]):
    """How often a column has each of its first values, as texts in lower case; "" if it lacks."""

    @property
    def known(self) -> list[str]:
        return [value for value in self if value]

    @property
    def vary(self) -> bool:
        return len(self) > 1 or (self.sort == _LISTS and self.total() > 1)  # which are not compared

    def within(self, names: frozenset[str]) -> bool:
        return names.issuperset(self.known)

    @property
    def sort(self) -> str:
        """What the values are: lists, "binary", "number", "name" (of a class) or "free"."""
        known = self.known
        if _LISTS in known or _TEXTS in known:
            return _LISTS
        if self.within(BINARY):
            return "binary"
        if all(read_number(value) is not None for value in known):
            return "number"
        recur = len(self) <= MOST_VALUES and 2 * len(known) <= self.total()
        if recur and not holds_dates(known):
            return "name"
        return "free"


def written(value: Any) -> str:
    """Converts a value to a text in lower case, in which 1.0 is 1, and a missing value is ""."""
    if isinstance(value, list | dict):
        texts = isinstance(value, list) and value and all(isinstance(x, str) for x in value)
        return _TEXTS if texts else _LISTS
    text = "" if value is None else str(value).strip().lower()
    if read_number(text) is not None:
        return text.removesuffix(".0")
    return text


class UnusedColumns:
    """Watches the rows of a split for columns that are not read and could change the meaning.

    Args:
        path: the file or folder, for messages.
        kind: what the task reads from tables; None: only columns that select rows or weigh them
            stop the command.
        columns: the columns that are read, and those that the user lets be ignored.
        named: the columns that the user names.
    """

    def __init__(self, path: Path, kind: TableKind | None, columns: Columns, named: Columns):
        self._path = path
        self._kind = kind
        self._columns = columns
        self._label = columns.label or ""
        self._is_named = self._label == named.label
        self._read = columns.taken() - {self._label}
        self._rows = 0
        self._values: dict[str, _Values] = defaultdict(_Values)
        self._obeyed: set[str] = set()

    def add(self, row: Mapping[str, Any]) -> None:
        """Looks at the values of a row, {column: value}."""
        self._rows += 1
        for name, value in row.items():
            if name not in self._read and len(self._values[name]) <= MOST_VALUES:
                self._values[name][written(value)] += 1

    def says_to_leave_out(self, row: Mapping[str, Any]) -> str:
        """Returns why a row is not to be used, as the program that wrote it means it, or ""."""
        for name, value in row.items():
            program, refused, _ = OBEYED.get(plain(name), ("", (), ()))
            if refused and written(value) in refused and name not in (*self._read, self._label):
                self._obeyed.add(name)
                return (
                    f"rows whose {name!r} is {' or '.join(refused)}, with which {program} marks "
                    "what is not to be learnt, are left out"
                )
        return ""

    def check(self) -> None:
        """Raises ValueError if columns could change the meaning; the message says the remedy."""
        first, names, shown = "", [], []  # the first doubt, and the columns that it is about
        for values in self._values.values():
            if values.total() < self._rows:
                values[""] += 1  # of rows that lack it
        for name, values in self._values.items():
            doubt = self._doubt(name)
            first = first or doubt
            if doubt and doubt == first:
                names.append(name)
                shown.append(f"{brief(name, 30)!r} ({brief(', '.join([*values][:4]), 40)})")
        if names:
            raise ValueError(
                f"{self._path}: columns that could change the meaning of the rows: "
                f"{brief(', '.join(shown), 60)}: each {first}, or give --ignore_columns "
                f"{brief(' '.join(names), 30)} if nothing is meant by it."
            )

    def _doubt(self, name: str) -> str:
        """Returns why a column could change the meaning, or ""."""
        key = plain(name)
        values = self._values[name]
        if name == self._label:
            return self._of_label(key, values)
        if name in self._obeyed:
            _, refused, used = OBEYED[key]
            if values.within(frozenset(refused + used)):
                return ""
            return _ROWS
        selects = key in SELECTING or values.within(SPLITS) or values.within(STATES)
        if values.vary and selects and len(values) <= MOST_VALUES:
            return _ROWS
        if values.vary and key in WEIGHTS:
            return _WEIGHTS
        if self._is_named or self._kind is None:
            return ""
        if self._kind.compares:
            return self._of_pair(key, values, is_harmless(name))
        return self._of_second_label(self._kind, key, values, is_harmless(name))

    def _of_label(self, key: str, values: _Values) -> str:
        """Returns why the scores of pairs may be the numbers of classes, as 0, 1, 2 of NLI."""
        numbers = values.vary and values.sort in ("number", "binary")
        if not (self._kind and self._kind.embeds) or not numbers or "." in "".join(values):
            return ""
        two = values.within(BINARY) or set(values.known) == {"-1", "1"}
        if plain(self._columns.text or "") == "premise":
            return "" if two and self._is_named else _CLASSES
        if two or self._is_named or _SCORE.search(key):
            return ""
        return _PAIRS

    def _of_pair(self, key: str, values: _Values, harmless: bool) -> str:
        sort = values.sort
        is_number = sort in ("number", "binary")
        is_label = _PAIR_LABEL.search(key) and (sort != "free" or "label" in key)
        if self._label:
            if is_label and is_number and values.vary:
                return _LABEL
            return ""
        if is_number and not values.vary:
            return ""  # all pairs are alike
        if is_label or (is_number and not harmless):
            return _PAIRS
        long = [value for value in values.known if value == _TEXTS or len(value.split()) > 2]
        if 2 * len(long) > len(values.known) and not harmless:
            return _NEGATIVES
        return ""

    def _of_second_label(self, kind: TableKind, key: str, values: _Values, harmless: bool) -> str:
        """Returns why another column may be the label of a task with one label column, or ""."""
        label = self._values.get(self._label)
        chosen = plain(self._label)
        if label is None or not values.vary or values.sort == "free":
            return ""
        alike = values.sort == label.sort
        if alike and values.sort == "binary" and not harmless:
            return _SEVERAL
        usual = kind.labels
        if chosen not in usual:
            if (alike or key in _STRONG) and not harmless:
                return _LABEL
            return ""
        is_choice = kind.label == "choice"
        rivals: Collection[str] = usual if is_choice else _LABELS  # beside entities
        if chosen not in _STRONG and kind.label != "tags":
            alike |= key in (usual if is_choice else _STRONG)
        elif is_choice or kind.label == "class":
            rivals = _STRONG
        if key in rivals and (alike or values.sort == _LISTS):
            return _LABEL
        return ""


def is_harmless(name: str) -> bool:
    """Returns whether a column of this name describes a row and does not change what it means."""
    if plain(name) in _LABELS:
        return False
    words = re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name)
    return plain(name) in IDS or any(word.lower() in _HARMLESS for word in words)
