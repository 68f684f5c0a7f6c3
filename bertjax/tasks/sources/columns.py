"""Finds the text and label columns of a user's file, by names that the user sets or by guesses."""

import dataclasses
import functools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Literal, NamedTuple

from bertjax.base.files import brief, did_you_mean
from bertjax.tasks.sources.data_files import row_name
from bertjax.tasks.sources.tables import Table, read_number

OwnKind = Literal["classify", "regress", "tag", "choice", "embed", "rerank"]


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


class KindColumns(NamedTuple):
    """The fields of `Columns` that a kind of task reads, and usual names of these columns.

    The names are in order of preference. With `by_place`, columns without usual names are guessed
    by their positions.
    """

    fields: tuple[str, ...]
    labels: tuple[str, ...]
    texts: tuple[str, ...] = TEXTS
    pairs: tuple[tuple[str, str], ...] = PAIRS
    by_place: bool = True


_RETRIEVED = (
    *_pairs(
        "anchor positive  query positive  question positive  text positive  anchor pos  query pos  "
        "query answer  title body  title abstract  title text  anchor candidate"
    ),
    *PAIRS,
)
# Of columns that say whether the texts of a pair belong together.
_TOGETHER = (
    "relevance relevant isrelevant isduplicate duplicate isparaphrase paraphrase ismatch match "
    "issimilar similar goldlabel"
)
_OF_PAIRS = ("text", "pair", "label", "id", "negatives", "scores")
KINDS: dict[OwnKind, KindColumns] = {
    "classify": KindColumns(
        fields=("text", "pair", "label", "id"),
        labels=tuple(
            "label labels goldlabel class classes category categories target sentiment intent "
            "emotion topic isduplicate isparaphrase entailment stars rating score tag y".split()
        ),
    ),
    "regress": KindColumns(
        fields=("text", "pair", "label", "id"),
        labels=tuple("score label target rating stars similarity value y".split()),
    ),
    "tag": KindColumns(
        fields=("text", "label", "id"),
        labels=tuple(
            "tags labels nertags ner postags label tag entities spans annotations".split()
        ),
        texts=("words", "tokens", *TEXTS),
        pairs=(),
        by_place=False,
    ),
    "choice": KindColumns(
        fields=("text", "pair", "label", "id", "choices"),
        labels=tuple("label answer gold goldlabel correct target".split()),
        pairs=PAIRS[1:2],
    ),
    "embed": KindColumns(
        fields=_OF_PAIRS,
        labels=tuple(
            "score similarity similarityscore sim relatedness relatednessscore rating "
            f"{_TOGETHER} label y".split()
        ),
        pairs=_RETRIEVED,
    ),
    "rerank": KindColumns(
        fields=_OF_PAIRS,
        labels=tuple(f"label score grade rating {_TOGETHER} target y".split()),
        texts=("query", "question", "anchor", *TEXTS),
        pairs=(*_RETRIEVED, ("query", "text"), ("query", "candidate")),
    ),
}
# pandas names its index column "", and in Parquet "__index_level_0__".
IDS = ("id", "idx", "index", "guid", "uid", "exampleid", "", "indexlevel0")
CHOICE_LISTS = ("choices", "endings", "options", "answers", "candidates")
CANDIDATE_LISTS = tuple(
    "candidates passages documents docs texts contexts paragraphs hits responses replies".split()
)
_CHOICE = re.compile(r"(choice|ending|option|answer|alternative|candidate|)(\d+|[a-f])")
# The name of the list of a teacher's scores.
SCORES = "scores"
_FLAGS = {f"{name}s": f"--{name}_columns" for name in ("choice", "negative", "score")}
_FLAGS["ignored"] = "--ignore_columns"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Columns:
    """Names of the columns of a user's file; a column whose name is None or () is guessed.

    Attributes:
        text: the text, the first text of a pair or, in tagging, the words.
        pair: the second text of a pair or, in multiple choice, a text before every choice.
        label: the label or labels; for embeddings, the score of a pair; "" if there is none.
        id: the example's id.
        choices: one column per choice, or (JSON and Parquet only) one with lists of choices; for
            reranking, the same with candidates.
        negatives: for embeddings and reranking, the same with hard negatives.
        scores: the same with a teacher's scores, of the second text and of each hard negative.
        ignored: columns that the user says are not meant to be used.
    """

    text: str | None = None
    pair: str | None = None
    label: str | None = None
    id: str | None = None
    choices: tuple[str, ...] = ()
    negatives: tuple[str, ...] = ()
    scores: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()

    def named(self) -> tuple[str, ...]:
        """Returns the column names that are set, of all fields but `ignored`."""
        single = (self.text, self.pair, self.label, self.id)
        several = (*self.choices, *self.negatives, *self.scores)
        return tuple(name for name in (*single, *several) if name)


def flag_of(field: str) -> str:
    """Returns the command-line flag that sets a field of `Columns`."""
    return _FLAGS.get(field, f"--{field}_column")


def check_columns(table: Table, columns: Iterable[str]) -> None:
    """Raises ValueError, suggesting the nearest name, if a user's file lacks one of `columns`."""
    for name in columns:
        if name not in table.columns:
            raise ValueError(
                f"{table.path} has no column {brief(name, 60)!r}. "
                f"{did_you_mean(name, table.columns)}"
                f"There are: {brief(', '.join(table.columns))}."
            )


def find_columns(
    table: Table, kind: OwnKind, named: Columns, *, labelled: bool, pairs: bool = True
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

    Raises:
        ValueError: a column is missing or cannot be guessed, another column holds texts as well, so
            that the text column is doubtful, or the first row is not a header.
    """
    if named.label is not None and named.negatives:
        raise ValueError(
            f"--label_column {named.label} and --negative_columns {' '.join(named.negatives)}: a "
            "pair has either a score or hard negatives; leave one of them out."
        )
    if kind == "embed":
        return _find_pair_columns(table, named, labelled=labelled)
    check_columns(table, named.named())
    by_name = columns = _by_usual_names(table.columns, kind, named)
    if kind == "rerank":
        columns = _with_lists(table, named, columns)
    has_label = labelled and not columns.negatives
    if KINDS[kind].by_place:
        columns = _by_place(table, columns, labelled=has_label)
    words = _RERANK_WORDS if kind == "rerank" else {}
    lacking = []
    if not columns.text:
        lacking.append("text")
    if not columns.label and has_label:
        lacking.append("label")
    if not columns.choices and kind == "choice":
        lacking.append("choices")
    if not columns.pair and kind == "rerank" and labelled:
        lacking.append("pair")
    if lacking:
        raise _which(table, lacking, words)
    if named.text is None and kind != "tag" and (labelled or columns.pair is None):
        _refuse_unused_text(table, kind, columns, labelled=labelled, pairs=pairs)
    if not table.is_typed and not named.named() and None in (by_name.text, by_name.label):
        _refuse_headerless(table, columns, KINDS[kind].labels)
    return columns, _describe(table, named, columns, words)


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


def _free(columns: Sequence[str], used: Columns) -> dict[str, str]:
    """Returns {plain name: name} of the columns that are neither used nor ignored."""
    taken = (*used.named(), *used.ignored)
    return {plain(name): name for name in reversed(columns) if name not in taken}


def _left(table: Table, used: Columns) -> list[str]:
    """Returns the columns with a name that are neither used nor ignored."""
    taken = ("", *used.named(), *used.ignored)
    return [name for name in table.columns if name not in taken]


def _first(free: Mapping[str, str], names: Sequence[str]) -> str | None:
    for name in names:
        if name in free:
            return free[name]
    return None


def _pair(free: Mapping[str, str], kind: OwnKind) -> tuple[str, str] | None:
    for first, second in KINDS[kind].pairs:
        if first in free and second in free:
            return free[first], free[second]
    return None


def _by_usual_names(columns: Sequence[str], kind: OwnKind, named: Columns) -> Columns:
    free = _free(columns, named)
    found: dict[str, Any] = {"negatives": (), "scores": ()}
    if named.text is None:
        pair = _pair(free, kind) if named.pair is None else None
        if pair is None:
            found["text"] = _first(free, KINDS[kind].texts)
        else:
            found["text"], found["pair"] = pair
    if named.label is None:
        found["label"] = _first(free, KINDS[kind].labels)
    elif not named.label:
        found["label"] = None
    if named.id is None:
        found["id"] = _first(free, IDS)
    if not named.choices and kind == "choice":
        found["choices"] = _choices(free)
    return dataclasses.replace(named, **found)


def _choices(free: Mapping[str, str]) -> tuple[str, ...]:
    """Guesses the choice columns: one like "choices", or several like "choice0", "choice1"."""
    if listed := _first(free, CHOICE_LISTS):
        return (listed,)
    groups: dict[str, list[tuple[str, str]]] = {}
    for key, name in free.items():
        if match := _CHOICE.fullmatch(key):
            groups.setdefault(match[1], []).append((match[2], name))
    best = max(groups.values(), key=len, default=[])
    return _by_number(best) if len(best) > 1 else ()


def _by_number(columns: Sequence[tuple[str, str]]) -> tuple[str, ...]:
    """Returns the names in the order of their numbers or letters; `columns` are (number, name)."""
    ordered = sorted(columns, key=lambda column: (len(column[0]), column[0]))
    return tuple(name for _, name in ordered)


def _by_place(table: Table, columns: Columns, *, labelled: bool) -> Columns:
    """Chooses the label and text columns that are None by position, as in `find_columns`.

    A column that is needed as the text is no label. Columns of dates are left out, unless there
    are no others.
    """
    if columns.label is None and labelled:
        free = _left(table, columns)
        if len(free) > 1:
            free = [x for x in free if not holds_dates(table.first_values(x))] or free
        # If the text is not found either, a single remaining column is the text.
        if len(free) > (columns.text is None):
            columns = dataclasses.replace(columns, label=free[-1])
    if columns.text is None:
        free = _left(table, columns)
        texts = [name for name in free if _holds_texts(table, name)]
        texts = texts or [name for name in free if not _holds_numbers(table, name)] or free
        if texts:
            columns = dataclasses.replace(columns, text=texts[0])
    return columns


def _refuse_headerless(table: Table, columns: Columns, labels: Sequence[str] = ()) -> None:
    """Raises ValueError if the first row looks like an example, or the second like the names."""
    if _looks_like_data(table, columns.label, labels):
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


def _refuse_unused_text(
    table: Table, kind: OwnKind, columns: Columns, *, labelled: bool, pairs: bool = True
) -> None:
    """Raises ValueError if a column that is not used holds texts, perhaps the second of `pairs`.

    Beside a pair of texts, only columns with usual names of texts are refused, and ids of words.
    """
    for name in (*_left(table, columns), columns.id):
        if not name or not _holds_texts(table, name):
            continue
        if columns.pair and kind != "choice" and not is_usual_text(name) and name != columns.id:
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


def _holds_texts(table: Table, column: str) -> bool:
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


def _holds_numbers(table: Table, column: str) -> bool:
    return _all_known(table.first_values(column), lambda x: read_number(str(x)) is not None)


def score_of(value: Any) -> float | None:
    """Converts a number, or true or false as 1 or 0, to a float; None: it is neither."""
    text = str(value).strip().lower()
    return read_number({"true": "1", "false": "0"}.get(text, text))


def holds_dates(values: Sequence[Any]) -> bool:
    """Returns whether all are dates or times of ISO 8601, such as 2026-01-31 12:00:00."""
    return _all_known(values, _is_date)


def _is_date(value: Any) -> bool:
    try:
        return not str(value).isdecimal() and bool(datetime.fromisoformat(str(value)))
    except ValueError:
        return False


def _describe(table: Table, named: Columns, columns: Columns, words: Mapping[str, str]) -> str:
    """Returns the message about the guessed columns, in which `words` replace names of fields."""
    if table.is_text:  # its lines are the texts, and nothing is guessed
        return ""
    flags, guesses = [], []
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
    used = columns.named()
    unused = ", ".join(name for name in table.columns if name not in used)[:200]
    if unused:
        unused = f"; not used: {unused}"
    return (
        f"{table.path.name}: {', '.join(guesses)}{unused}. If this is wrong, give "
        f"{', '.join(flags)}."
    )


_NEGATIVE = re.compile(r"(?:hard)?neg(?:ative)?s?(\d*)")
_WORDS = {
    "text": "first text (anchor)",
    "pair": "second text (positive)",
    "label": "score",
    "negatives": "hard negatives",
    "scores": "scores of a teacher",
}
_RERANK_WORDS = {**_WORDS, "text": "query", "pair": "passage", "label": "label"}


def _find_pair_columns(table: Table, named: Columns, *, labelled: bool) -> tuple[Columns, str]:
    if table.is_text:
        raise ValueError(
            f"{table.path} has one text per line, but the examples are pairs of texts: give a file "
            "with two columns, such as CSV or JSON lines (embed and --loss simcse take single "
            "texts)."
        )
    check_columns(table, named.named())
    free = _free(table.columns, named)
    columns = dataclasses.replace(named, id=named.id or _first(free, IDS))
    columns = _with_negatives(columns, free)
    columns = _with_texts(table, columns, free)
    if labelled and named.text is None:
        _refuse_unused_text(table, "embed", columns, labelled=labelled)
    if columns.label is None and not columns.negatives:
        scores = {}
        for key, name in _free(table.columns, columns).items():
            if _all_known(table.first_values(name), lambda x: score_of(x) is not None):
                scores[key] = name
        columns = dataclasses.replace(columns, label=_first(scores, KINDS["embed"].labels))
    return columns, _describe(table, named, columns, _WORDS)


def _with_negatives(columns: Columns, free: Mapping[str, str]) -> Columns:
    """Adds the guessed columns of hard negatives and of a teacher's scores of their rows."""
    if columns.label is None and not columns.negatives:
        numbered = []
        for key, name in free.items():
            if match := _NEGATIVE.fullmatch(key):
                numbered.append((match[1], name))
        columns = dataclasses.replace(columns, negatives=_by_number(numbered))
    if columns.negatives and not columns.scores and SCORES in free:
        columns = dataclasses.replace(columns, scores=(free[SCORES],))
    return columns


def _with_lists(table: Table, named: Columns, columns: Columns) -> Columns:
    """Adds negatives and scores to the columns for reranking or, without pairs, candidates."""
    found = _with_negatives(named, _free(table.columns, named))
    columns = dataclasses.replace(columns, negatives=found.negatives, scores=found.scores)
    if found.negatives:
        return dataclasses.replace(columns, label=None)
    if columns.pair is None and not named.choices:
        name = _first(_free(table.columns, columns), CANDIDATE_LISTS)
        columns = dataclasses.replace(columns, choices=(name,) if name else ())
    return columns


def candidates(table: Table, named: Columns) -> str | None:
    """Returns the column of lists of candidates to rank; None if the user names the text alone."""
    if table.is_typed and named.text is None:
        for name in table.columns:
            if plain(name) in CANDIDATE_LISTS:
                if any(isinstance(value, list) for value in table.first_values(name)):
                    return name
    return None


def _with_texts(table: Table, columns: Columns, free: Mapping[str, str]) -> Columns:
    wanted = [field for field in ("text", "pair") if getattr(columns, field) is None]
    if not wanted:
        return columns
    if len(wanted) == 2 and (pair := _pair(free, "embed")):
        return dataclasses.replace(columns, text=pair[0], pair=pair[1])
    left = _left(table, columns)
    texts = [name for name in left if _holds_texts(table, name)]
    if len(texts) < 2:  # short texts, such as the words of queries
        texts = [name for name in left if not _holds_numbers(table, name)]
    if len(texts) != len(wanted):
        raise _which(table, wanted, _WORDS)
    columns = dataclasses.replace(columns, **dict(zip(wanted, texts, strict=True)))
    if not table.is_typed and len(wanted) == 2:
        _refuse_headerless(table, columns)
    return columns
