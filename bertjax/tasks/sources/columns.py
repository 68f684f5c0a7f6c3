"""Finds the text and label columns of a user's file, by names that the user sets or by guesses."""

import dataclasses
import functools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from bertjax.base.files import brief, did_you_mean
from bertjax.tasks.sources.advice import holds_dates
from bertjax.tasks.sources.data_files import row_name
from bertjax.tasks.sources.tables import Table, read_number


def _pairs(names: str) -> tuple[tuple[str, str], ...]:
    words = names.split()
    return tuple(zip(words[::2], words[1::2], strict=True))


# Usual names of columns in lower case and without "_", "-" and spaces, in order of preference.
PAIRS = _pairs(
    "sentence1 sentence2  sent1 sent2  text1 text2  texta textb  sentencea sentenceb  "
    "question1 question2  title1 title2  premise hypothesis  question sentence  question answer  "
    "question passage  question context  query passage  text textpair  query document  s1 s2"
)
TEXTS = tuple(
    "text sentence sentence1 sent1 text1 texta premise review content body comment message tweet "
    "document description question question1 query context passage title headline abstract input "
    "utterance".split()
)
CLASSES = tuple(
    "label labels goldlabel class classes category categories target sentiment intent "
    "emotion topic isduplicate isparaphrase entailment stars rating score tag y".split()
)


class TableKind(NamedTuple):
    """What a kind of task reads from the user's tables; by default, a text or pair and its class.

    Usual names of columns are as by `plain`, in order of preference.

    Attributes:
        task: the value of --task.
        labels: usual names of the column of labels.
        texts: those of the column of the text.
        pairs: those of the two columns of a pair.
        label: what a label is: the name of a "class", or a list of them; a "number"; a "score",
            which may be true or false as well; the right "choice"; or the "tags" of words.
        ranks: whether there may be lists of candidates to rank, and a positive has the label 1.
        words: {field of `Columns`: what messages call it}.
    """

    task: str
    labels: tuple[str, ...] = CLASSES
    texts: tuple[str, ...] = TEXTS
    pairs: tuple[tuple[str, str], ...] = PAIRS
    label: Literal["class", "number", "score", "choice", "tags"] = "class"
    ranks: bool = False
    words: Mapping[str, str] = {}

    @property
    def compares(self) -> bool:
        """Whether a row says which texts belong together; its splits may have other columns."""
        return self.label == "score"

    @property
    def embeds(self) -> bool:
        """Whether each of the texts that are compared becomes a vector."""
        return self.compares and not self.ranks


# Of kinds that compare texts.
RETRIEVED = (
    *_pairs(
        "anchor positive  query positive  question positive  text positive  anchor pos  query pos  "
        "query answer  title body  title abstract  title text  anchor candidate"
    ),
    *PAIRS,
)
COMPARED_WORDS = {
    "text": "first text (anchor)",
    "pair": "second text (positive)",
    "label": "score",
    "negatives": "hard negatives",
    "scores": "scores of a teacher",
}
# Of columns that say whether the texts of a pair belong together.
TOGETHER = tuple(
    "relevance relevant isrelevant isduplicate duplicate isparaphrase paraphrase ismatch match "
    "issimilar similar goldlabel".split()
)
# pandas names its index column "", and in Parquet "__index_level_0__".
IDS = ("id", "idx", "index", "guid", "uid", "exampleid", "", "indexlevel0")
CHOICE_LISTS = ("choices", "endings", "options", "answers", "candidates")
CANDIDATE_LISTS = tuple(
    "candidates passages documents docs texts contexts paragraphs hits responses replies".split()
)
# In names of columns: the last word is "id", as in note_id and noteId.
_OWN_ID = re.compile(r".*(?:[\s_-][Ii][Dd]|[a-z]I[Dd])|(?:doc|note|report|text)id")
_NEGATIVE = re.compile(r"(?:hard)?neg(?:ative)?s?(\d*)")
_CHOICE = re.compile(r"(choice|ending|option|answer|alternative|candidate|)(\d+|[a-f])")
# The name of the list of a teacher's scores.
SCORES = "scores"
_FLAGS = {f"{name}s": f"--{name}_columns" for name in ("label", "choice", "negative", "score")}
_FLAGS["ignored"] = "--ignore_columns"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Columns:
    """Names of the columns of a user's file; a column whose name is None or () is guessed.

    Attributes:
        text: the text, the first text of a pair or, in tagging, the words.
        pair: the second text of a pair or, in multiple choice, a text before every choice.
        label: the label or labels; for embeddings, the score of a pair; "" if there is none.
        labels: one column per class or target, instead of `label`.
        id: the example's id.
        choices: one column per choice, or (JSON and Parquet only) one with lists of choices; for
            reranking, the same with candidates.
        negatives: for embeddings and reranking, the same with hard negatives.
        scores: the same with a teacher's scores, of the second text and of each hard negative.
        ignored: columns that the user says are not meant to be used.
        dividing: columns of groups, the time and slices, which are guessed as texts or ids only if
            they have a usual name.
    """

    text: str | None = None
    pair: str | None = None
    label: str | None = None
    labels: tuple[str, ...] = ()
    id: str | None = None
    choices: tuple[str, ...] = ()
    negatives: tuple[str, ...] = ()
    scores: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()
    dividing: tuple[str, ...] = ()

    def named(self) -> tuple[str, ...]:
        """Returns the column names that are set, but for `ignored` and `dividing`."""
        single = (self.text, self.pair, self.label, self.id)
        several = (*self.labels, *self.choices, *self.negatives, *self.scores)
        return tuple(name for name in (*single, *several) if name)

    def taken(self) -> frozenset[str]:
        """Returns the columns that are set, to be ignored, or of groups, the time and slices."""
        return frozenset((*self.named(), *self.ignored, *self.dividing))


def flag_of(field: str) -> str:
    """Returns the command-line flag that sets a field of `Columns`."""
    return _FLAGS.get(field, f"--{field}_column")


def check_columns(table: Table, columns: Iterable[str]) -> None:
    """Raises ValueError, suggesting the nearest name, if a user's file lacks one of `columns`."""
    for name in columns:
        if name not in table.columns:
            raise lacks_column(table.path, name, table.columns)


def lacks_column(path: Path, name: str, columns: Sequence[str]) -> ValueError:
    """Returns the error that a file has `columns`, but not `name`, with the nearest of them."""
    return ValueError(
        f"{path} has no column {brief(name, 60)!r}. {did_you_mean(name, columns)}"
        f"There are: {brief(', '.join(columns)) or 'no named ones'}."
    )


def find_columns(
    table: Table,
    kind: TableKind,
    named: Columns,
    *,
    labelled: bool,
    pairs: bool = True,
    one_hot: tuple[str, ...] = (),
) -> tuple[Columns, str]:
    """Returns the column names of a user's file, and a message that lists the guessed columns.

    A column that the user does not name is guessed by usual names, such as "text" or "label".
    Except in tagging, the position decides if no column has a usual name: the last unused column is
    taken as the label if `labelled`, and the first unused column that holds texts, else the first
    unused one, as the text. For embeddings, the two texts may be the only two columns that hold
    texts; a column of scores must hold numbers, and is only guessed if there are no hard negatives.

    Args:
        table: the train file, or another file of the user if there is no train file.
        named: the column names that the user sets.
        labelled: whether the file must have labels; embeddings never need scores.
        pairs: whether the text may be a pair of texts.
        one_hot: the columns of labels that were guessed.

    Raises:
        ValueError: a column is missing or cannot be guessed, another column holds texts as well, so
            that the text column is doubtful, or the first row is not a header.
    """
    if named.label is not None and named.negatives:
        raise ValueError(
            f"--label_column {named.label} and --negative_columns {' '.join(named.negatives)}: a "
            "pair has either a score or hard negatives; leave one of them out."
        )
    search = _Search(table, kind, named, one_hot)
    if kind.embeds:
        search.find_two_texts()
    else:
        search.find_text_and_label(labelled=labelled)
    columns = search.columns
    doubtful = labelled or columns.pair is None
    if named.text is None and kind.label != "tags" and doubtful:
        _refuse_unused_text(search, labelled=labelled, pairs=pairs)
    return columns, _describe(table, named, columns, kind.words)


class _Search:
    """The search for the columns of a table, of which `columns` are named or found so far."""

    def __init__(
        self, table: Table, kind: TableKind, named: Columns, one_hot: tuple[str, ...] = ()
    ):
        check_columns(table, named.named())
        self.table = table
        self.kind = kind
        self.named = named
        labels = named.labels or one_hot
        self.columns = dataclasses.replace(named, label=named.label or None, labels=labels)
        if named.id is None:
            self._set(id=self._usual(IDS, self._dividing()))
        if kind.compares:
            self._find_negatives()

    def _set(self, **columns: Any) -> None:
        self.columns = dataclasses.replace(self.columns, **columns)

    def left(self) -> list[str]:
        """Returns the columns that are neither used, ignored nor `dividing`."""
        taken = self.columns.taken()
        return [name for name in self.table.columns if name not in taken]

    def _dividing(self) -> list[str]:
        """Returns the columns of groups, time and slices that are neither used nor ignored."""
        taken = {*self.columns.named(), *self.columns.ignored}
        return [name for name in self.columns.dividing if name not in taken]

    def _usual(self, names: Iterable[str], also: Iterable[str] = ()) -> str | None:
        """Returns the column, left or in `also`, that has the first possible name, or None."""
        left = {plain(name): name for name in reversed((*self.left(), *also))}
        return next((left[name] for name in names if name in left), None)

    def _usual_pair(self) -> bool:
        """Finds two texts by their usual names, if the user names neither."""
        if self.named.text is not None or self.named.pair is not None:
            return False
        for names in self.kind.pairs:
            text, pair = (self._usual([name], self._dividing()) for name in names)
            if text is not None and pair is not None:
                self._set(text=text, pair=pair)
                return True
        return False

    def _find_negatives(self) -> None:
        """Finds the columns of hard negatives, and of a teacher's scores of their rows."""
        if self.named.label is None and not self.named.negatives:
            numbered = []
            for name in self.left():
                if match := _NEGATIVE.fullmatch(plain(name)):
                    numbered.append((match[1], name))
            self._set(negatives=_by_number(numbered))
        if self.columns.negatives and not self.columns.scores:
            scores = self._usual([SCORES])
            if scores:
                self._set(scores=(scores,))

    def find_two_texts(self) -> None:
        """Finds the texts that embeddings compare, and the score of a pair."""
        table = self.table
        if table.is_text:
            raise ValueError(
                f"{table.path} has one text per line, but the examples are pairs of texts: give a "
                "file with two columns, such as CSV or JSON lines (embed and --loss simcse take "
                "single texts)."
            )
        wanted = [field for field in ("text", "pair") if getattr(self.columns, field) is None]
        if wanted and not self._usual_pair():
            left = [name for name in self.left() if name]
            texts = [name for name in left if holds_texts(table, name)]
            if len(texts) < 2:  # short texts, such as the words of queries
                texts = [name for name in left if not _holds_numbers(table, name)]
            if len(texts) != len(wanted):
                raise _which(table, wanted, self.kind.words)
            self._set(**dict(zip(wanted, texts, strict=True)))
            if not table.is_typed and len(wanted) == 2:
                _refuse_headerless(table, None, ())
        if self.named.label is None and not self.columns.negatives:
            for name in self.kind.labels:
                column = self._usual([name])
                if column is not None and _holds_scores(table, column):
                    self._set(label=column)
                    break

    def find_text_and_label(self, *, labelled: bool) -> None:
        """Finds the text, perhaps a second one, the label, and lists of choices or candidates."""
        kind = self.kind
        named = self.named
        if named.text is None and not self._usual_pair():
            also = [name for name in self._dividing() if not _holds_codes(self.table, name)]
            self._set(text=self._usual(kind.texts, also))
        has_several = self.columns.negatives or self.columns.labels
        if named.label is None and not has_several:
            self._set(label=self._usual(kind.labels))
        if kind.label == "choice" and not named.choices:
            self._set(choices=self._choices())
        columns = self.columns
        if kind.ranks and not (columns.pair or columns.negatives or named.choices):
            name = self._usual(CANDIDATE_LISTS)
            if name:
                self._set(choices=(name,))
        is_named = columns.text and (columns.label or columns.labels)
        has_label = labelled and not has_several
        if kind.label != "tags":
            self._find_by_place(labelled=has_label)
        columns = self.columns
        needed = {
            "text": True,
            "label": has_label,
            "choices": kind.label == "choice",
            "pair": kind.ranks and labelled,
        }
        lacking = []
        for field, is_needed in needed.items():
            if is_needed and not getattr(columns, field):
                lacking.append(field)
        if lacking:
            raise _which(self.table, lacking, kind.words)
        if not (self.table.is_typed or named.named() or is_named):
            _refuse_headerless(self.table, columns.label, kind.labels)
        if columns.id is None and not kind.compares:
            self._find_own_id()

    def _find_own_id(self) -> None:
        """Finds the only column left that is named as an id and has another one in each row."""
        found = []
        for name in filter(_OWN_ID.fullmatch, self.left()):
            values = self.table.first_values(name)
            if len({*map(str, values)} - {"", "None"}) == len(values):
                found.append(name)
        if len(found) == 1:
            self._set(id=found[0])

    def _choices(self) -> tuple[str, ...]:
        """Guesses the choice columns: one like "choices", or several: "choice0", "choice1"."""
        if listed := self._usual(CHOICE_LISTS):
            return (listed,)
        groups: dict[str, list[tuple[str, str]]] = {}
        for name in self.left():
            if match := _CHOICE.fullmatch(plain(name)):
                groups.setdefault(match[1], []).append((match[2], name))
        best = max(groups.values(), key=len, default=[])
        if len(best) < 2:
            return ()
        return _by_number(best)

    def _find_by_place(self, *, labelled: bool) -> None:
        """Chooses the label and text that have no usual name by position, as in `find_columns`.

        A column that is needed as the text is no label. Columns of dates are left out, unless there
        are no others.
        """
        table = self.table
        left = [name for name in self.left() if name]
        if self.columns.label is None and labelled:
            if len(left) > 1:
                left = [x for x in left if not holds_dates(table.first_values(x))] or left
            # If the text is not found either, a single remaining column is the text.
            if len(left) > (self.columns.text is None):
                self._set(label=left[-1])
        if self.columns.text is None:
            left = [name for name in self.left() if name]
            texts = [name for name in left if holds_texts(table, name)]
            if not texts:
                texts = [name for name in left if not _holds_numbers(table, name)]
            texts = texts or left
            if texts:
                self._set(text=texts[0])


def _which(table: Table, fields: Sequence[str], words: Mapping[str, str]) -> ValueError:
    """Returns the error about fields of `Columns` that cannot be guessed; `words` rename them."""
    flags = " and ".join(map(flag_of, fields))
    remedy = f"There are: {brief(', '.join(table.columns), 60)}. Give {flags}."
    if table.is_text:
        remedy = "The file has one text per line: save tables as CSV, with the suffix .csv."
    which = " and the ".join(words.get(field, field) for field in fields)
    return ValueError(f"{row_name(table.path, 1)}: which column is the {which}? {remedy}")


@functools.lru_cache(1024)
def plain(name: str) -> str:
    """Returns a column name in lower case and without "_", "-" and spaces."""
    return re.sub(r"[\s_-]", "", name.lower())


def is_usual_text(name: str) -> bool:
    """Returns whether `name` is a usual name of the column of a text."""
    return plain(name) in TEXTS


def _by_number(columns: Sequence[tuple[str, str]]) -> tuple[str, ...]:
    """Returns the names in the order of their numbers or letters; `columns` are (number, name)."""
    ordered = sorted(columns, key=lambda column: (len(column[0]), column[0]))
    return tuple(name for _, name in ordered)


def _refuse_headerless(table: Table, label: str | None, labels: Sequence[str]) -> None:
    """Raises ValueError if the first row looks like an example, or the second like the names."""
    if _looks_like_data(table, label, labels):
        raise ValueError(
            f"{row_name(table.path, 1)} is an example ({brief(', '.join(table.columns))}), not the "
            "names of the columns: put a first row with the column names, such as text,label."
        )


def _looks_like_data(table: Table, label: str | None, labels: Sequence[str]) -> bool:
    for name in table.columns:
        if read_number(name) is not None or len(name.split()) > 5:
            return True
    if label is None:
        return False
    if any(row[label].strip() == label for row in table.first_rows):
        return True
    # A title may stand above the names of the columns.
    for row in table.first_rows[:1]:
        names = set(map(plain, row.values()))
        return not names.isdisjoint(TEXTS) and not names.isdisjoint(labels)
    return False


def _refuse_unused_text(search: _Search, *, labelled: bool, pairs: bool) -> None:
    """Raises ValueError if a column that is not used holds texts, perhaps the second of `pairs`.

    Beside a pair of texts, only columns with usual names of texts are refused, and ids of words.
    """
    table = search.table
    columns = search.columns
    only_usual = columns.pair and search.kind.label != "choice"
    for name in (*search.left(), columns.id):
        if not name or not holds_texts(table, name):
            continue
        if only_usual and not is_usual_text(name) and name != columns.id:
            continue
        remedy = "name one with --text_column."
        if pairs:
            remedy = (
                f"to use one, give --text_column {columns.text!r}; for pairs of both, add "
                f"--pair_column {name!r}."
            )
        if labelled:
            remedy += f" To leave one out, give --ignore_columns {name}."
        raise ValueError(
            f"{table.path}: the columns {brief(str(columns.text), 60)!r} and {brief(name, 60)!r} "
            f"both hold texts: {remedy}"
        )


def holds_texts(table: Table, column: str) -> bool:
    """Returns whether most values are texts, and not class names, which recur or have few words."""
    values = table.first_values(column)
    texts = [value for value in values if isinstance(value, str) and len(value.split()) > 2]
    if 2 * len(texts) <= len(values):
        return False
    words = sum(len(text.split()) for text in texts)
    return 5 * len(set(texts)) > len(texts) or words >= 4 * len(texts)


def _all_known(values: Sequence[Any], test: Callable[[Any], bool]) -> bool:
    """Returns whether some values are not missing, and all of these pass a test."""
    known = [value for value in values if value not in (None, "")]
    return bool(known) and all(map(test, known))


def _holds_codes(table: Table, column: str) -> bool:
    """Returns whether no value has several words, or letters that are not Latin ones."""
    return _all_known(table.first_values(column), lambda x: str(x).isascii() and " " not in str(x))


def _holds_numbers(table: Table, column: str) -> bool:
    return _all_known(table.first_values(column), lambda x: read_number(str(x)) is not None)


def _holds_scores(table: Table, column: str) -> bool:
    return _all_known(table.first_values(column), lambda x: score_of(x) is not None)


def score_of(value: Any) -> float | None:
    """Converts a number, or true or false as 1 or 0, to a float; None: it is neither."""
    text = str(value).strip().lower()
    return read_number({"true": "1", "false": "0"}.get(text, text))


def _describe(table: Table, named: Columns, columns: Columns, words: Mapping[str, str]) -> str:
    """Returns the message about the guessed columns, in which `words` replace names of fields."""
    if table.is_text:  # its lines are the texts, and nothing is guessed
        return ""
    flags = []
    guesses = []
    for field, value in dataclasses.asdict(columns).items():
        if value in (None, ()) or getattr(named, field) not in (None, ()):
            continue
        flags.append(flag_of(field))
        names = f"column {value!r}"
        if isinstance(value, tuple):  # such as the choices
            names = ", ".join(map(repr, value))
        guesses.append(f"{words.get(field, field)} from {names}")
    if not guesses:
        return ""
    used = columns.taken()
    unused = ", ".join(name for name in table.columns if name not in used)[:200]
    if unused:
        unused = f"; not used: {unused}"
    return (
        f"{table.path.name}: {', '.join(guesses)}{unused}. If this is wrong, give "
        f"{', '.join(flags)}."
    )


def candidates(table: Table, named: Columns) -> str | None:
    """Returns the column of lists of candidates to rank; None if the user names the text alone."""
    if table.is_typed and named.text is None:
        for name in table.columns:
            if plain(name) in CANDIDATE_LISTS:
                if any(isinstance(value, list) for value in table.first_values(name)):
                    return name
    return None
