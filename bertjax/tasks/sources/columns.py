"""Finds the text and label columns of a user's file, by names that the user sets or by guesses."""

import dataclasses
import functools
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Literal, NamedTuple

from bertjax.base.files import brief, did_you_mean
from bertjax.tasks.sources.tables import Table, read_number, row_name

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
    needed = {"text": True, "label": has_label, "choices": kind == "choice"}
    needed["pair"] = kind == "rerank" and labelled
    lacking = [field for field, need in needed.items() if need and not getattr(columns, field)]
    words = _RERANK_WORDS if kind == "rerank" else {}
    if lacking:
        raise _which(table, lacking, [words.get(field, field) for field in lacking])
    if named.text is None and kind != "tag" and (labelled or columns.pair is None):
        _refuse_unused_text(table, kind, columns, labelled=labelled, pairs=pairs)
    if not table.is_typed and not named.named() and None in (by_name.text, by_name.label):
        _refuse_headerless(table, columns, KINDS[kind].labels)
    return columns, _describe(table, named, columns, words)


def _which(table: Table, fields: Sequence[str], words: Sequence[str]) -> ValueError:
    """Returns the error about columns that cannot be guessed, the fields `fields` of `Columns`."""
    flags = " and ".join(map(flag_of, fields))
    remedy = (
        f"There are: {brief(', '.join(table.columns), 60)}. Give {flags}; if the first row does "
        "not name the columns, insert a row that does."
    )
    if table.is_text:
        remedy = "The file has one text per line: save tables as CSV, with the suffix .csv."
    which = " and the ".join(words)
    return ValueError(f"{row_name(table.path, 1)}: which column is the {which}? {remedy}")


@functools.lru_cache(1024)
def plain(name: str) -> str:
    """Returns a column name in lower case and without "_", "-" and spaces."""
    return re.sub(r"[\s_-]", "", name.lower())


def is_usual_text(name: str) -> bool:
    """Returns whether `name` is a usual name of the column of a text."""
    return plain(name) in TEXTS


def _free(columns: Sequence[str], named: Columns) -> dict[str, str]:
    taken = (*named.named(), *named.ignored)
    return {plain(name): name for name in reversed(columns) if name not in taken}


def _left(table: Table, columns: Columns) -> list[str]:
    """Returns the columns with a name that are neither in `columns` nor ignored."""
    taken = ("", *columns.named(), *columns.ignored)
    return [name for name in table.columns if name not in taken]


def _first(free: Mapping[str, str], names: Sequence[str]) -> str | None:
    return next((free[name] for name in names if name in free), None)


def _pair(free: Mapping[str, str], kind: OwnKind) -> tuple[str, str] | None:
    pairs = KINDS[kind].pairs
    return next(((free[a], free[b]) for a, b in pairs if a in free and b in free), None)


def _by_usual_names(columns: Sequence[str], kind: OwnKind, named: Columns) -> Columns:
    free = _free(columns, named)
    text, pair = named.text, named.pair
    if text is None:
        both = _pair(free, kind) if pair is None else None
        text, pair = both or (_first(free, KINDS[kind].texts), pair)
    return Columns(
        text=text,
        pair=pair,
        label=_first(free, KINDS[kind].labels) if named.label is None else named.label or None,
        id=_first(free, IDS) if named.id is None else named.id,
        choices=named.choices or (_choices(free) if kind == "choice" else ()),
        ignored=named.ignored,
    )


def _choices(free: dict[str, str]) -> tuple[str, ...]:
    """Guesses the choice columns: one like "choices", or several like "choice0", "choice1"."""
    for name in CHOICE_LISTS:
        if name in free:
            return (free[name],)
    matches = [(match, name) for name in free if (match := _CHOICE.fullmatch(name))]
    groups: dict[str, list[tuple[str, str]]] = {}
    for match, name in matches:
        groups.setdefault(match[1], []).append((match[2], name))
    best = max(groups.values(), key=len, default=[])
    ordered = sorted(best, key=lambda entry: (len(entry[0]), entry[0]))
    return tuple(free[name] for _, name in ordered) if len(best) > 1 else ()


def _by_place(table: Table, columns: Columns, *, labelled: bool) -> Columns:
    """Chooses the label and text columns that are None by position, as in `find_columns`.

    A column that is needed as the text is no label. Columns of dates are left out, unless there
    are no others.
    """
    if columns.label is None and labelled:
        free = _left(table, columns)
        dated = {name for name in free if len(free) > 1 and holds_dates(table.first_values(name))}
        free = [name for name in free if name not in dated] or free
        # If the text is not found either, a single remaining column is the text.
        if len(free) > (columns.text is None):
            columns = dataclasses.replace(columns, label=free[-1])
    if columns.text is None:
        free = _left(table, columns)
        texts = [name for name in free if _holds_texts(table, name)]
        words = [name for name in free if not _holds_numbers(table, name)]
        columns = dataclasses.replace(columns, text=next(iter(texts or words or free), None))
    return columns


def _refuse_headerless(table: Table, columns: Columns, labels: Sequence[str] = ()) -> None:
    """Raises ValueError if the first row looks like an example, or the second like the names."""
    label = columns.label
    looks_like_data = any(
        read_number(name) is not None or len(name.split()) > 5 for name in table.columns
    )
    if not looks_like_data and label is not None:
        looks_like_data = any(row[label].strip() == label for row in table.first_rows)
        # A title may stand above the names of the columns.
        for row in table.first_rows[:1]:
            names = {plain(value) for value in row.values()}
            looks_like_data |= not names.isdisjoint(TEXTS) and not names.isdisjoint(labels)
    if looks_like_data:
        raise ValueError(
            f"{row_name(table.path, 1)} is an example ({brief(', '.join(table.columns))}), not the "
            "names of the columns: put a first row with the column names, such as text,label."
        )


def _refuse_unused_text(
    table: Table, kind: OwnKind, columns: Columns, *, labelled: bool, pairs: bool = True
) -> None:
    """Raises ValueError if a column that is not used holds texts, perhaps the second of `pairs`.

    Beside a pair of texts, only columns with usual names of texts are refused, and ids of words.
    """
    free = (*_left(table, columns), columns.id)
    texts = [name for name in free if name and _holds_texts(table, name)]
    if columns.pair is not None and kind != "choice":
        texts = [name for name in texts if is_usual_text(name) or name == columns.id]
    if texts:
        first, other = columns.text, texts[0]
        remedy = (
            f"to use one, give --text_column {first!r}; for pairs of both, add --pair_column "
            f"{other!r}."
            if pairs
            else "name one with --text_column."
        )
        remedy += f" To leave one out, give --ignore_columns {other}." * labelled
        raise ValueError(
            f"{table.path}: the columns {brief(str(first), 60)!r} and {brief(other, 60)!r} both "
            f"hold texts: {remedy}"
        )


def _holds_texts(table: Table, column: str) -> bool:
    """Returns whether most values are texts, and not class names, which recur or have few words."""
    values = table.first_values(column)
    texts = [value for value in values if isinstance(value, str) and len(value.split()) > 2]
    words = sum(len(text.split()) for text in texts)
    many = 5 * len(set(texts)) > len(texts) or words >= 4 * len(texts)
    return 2 * len(texts) > len(values) and many


def _holds_numbers(table: Table, column: str) -> bool:
    known = [value for value in table.first_values(column) if value not in (None, "")]
    return bool(known) and all(read_number(str(value)) is not None for value in known)


def _holds_scores(table: Table, column: str) -> bool:
    known = [value for value in table.first_values(column) if value not in (None, "")]
    return bool(known) and all(score_of(value) is not None for value in known)


def score_of(value: Any) -> float | None:
    """Converts a number, or true or false as 1 or 0, to a float; None: it is neither."""
    text = str(value).strip().lower()
    return read_number({"true": "1", "false": "0"}.get(text, text))


def holds_dates(values: Sequence[Any]) -> bool:
    """Returns whether all are dates or times of ISO 8601, such as 2026-01-31 12:00:00."""

    def is_date(value: Any) -> bool:
        try:
            return not str(value).isdecimal() and bool(datetime.fromisoformat(str(value)))
        except ValueError:
            return False

    known = [value for value in values if value not in (None, "")]
    return bool(known) and all(map(is_date, known))


def _describe(table: Table, named: Columns, columns: Columns, words: Mapping[str, str]) -> str:
    """Returns the message about the guessed columns, in which `words` replace names of fields."""
    if table.is_text:  # its lines are the texts, and nothing is guessed
        return ""
    guessed, guesses = [], []
    for field, value in dataclasses.asdict(columns).items():
        if value not in (None, ()) and getattr(named, field) in (None, ()):
            guessed.append(field)
            several = value if isinstance(value, tuple) else ()  # such as the choices
            names = ", ".join(map(repr, several)) or f"column {value!r}"
            guesses.append(f"{words.get(field, field)} from {names}")
    if not guesses:
        return ""
    others = [name for name in table.columns if name not in columns.named()]
    unused = f"; not used: {', '.join(others)[:200]}" if others else ""
    flags = ", ".join(map(flag_of, guessed))
    return f"{table.path.name}: {', '.join(guesses)}{unused}. If this is wrong, give {flags}."


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
            "with two columns, such as CSV or JSON lines (bertjax.embed and --loss simcse take "
            "single texts)."
        )
    check_columns(table, named.named())
    free = _free(table.columns, named)
    columns = dataclasses.replace(named, id=named.id or _first(free, IDS))
    columns = _with_negatives(columns, free)
    columns = _with_texts(table, columns, free)
    if labelled and named.text is None:
        _refuse_unused_text(table, "embed", columns, labelled=labelled)
    if columns.label is None and not columns.negatives:
        left = {key: name for key, name in free.items() if name not in columns.named()}
        scores = {key: name for key, name in left.items() if _holds_scores(table, name)}
        columns = dataclasses.replace(columns, label=_first(scores, KINDS["embed"].labels))
    return columns, _describe(table, named, columns, _WORDS)


def _with_negatives(columns: Columns, free: Mapping[str, str]) -> Columns:
    """Adds the guessed columns of hard negatives and of a teacher's scores of their rows."""
    if columns.label is None and not columns.negatives:
        columns = dataclasses.replace(columns, negatives=_negatives(free))
    if columns.negatives and not columns.scores and SCORES in free:
        columns = dataclasses.replace(columns, scores=(free[SCORES],))
    return columns


def _with_lists(table: Table, named: Columns, columns: Columns) -> Columns:
    """Adds negatives and scores to the columns for reranking or, without pairs, candidates."""
    found = _with_negatives(named, _free(table.columns, named))
    if found.negatives:
        columns = dataclasses.replace(columns, label=None)
    elif columns.pair is None and not named.choices:
        name = _first(_free(table.columns, columns), CANDIDATE_LISTS)
        columns = dataclasses.replace(columns, choices=(name,) if name else ())
    return dataclasses.replace(columns, negatives=found.negatives, scores=found.scores)


def candidates(table: Table, named: Columns) -> str | None:
    """Returns the column of lists of candidates to rank; None if the user names the text alone."""
    if table.is_typed and named.text is None:
        for name in table.columns:
            lists = [isinstance(value, list) for value in table.first_values(name)]
            if plain(name) in CANDIDATE_LISTS and any(lists):
                return name
    return None


def _negatives(free: Mapping[str, str]) -> tuple[str, ...]:
    """Returns the columns that are named like hard negatives, in the order of their numbers."""
    matches = [
        (match[1], name) for key, name in free.items() if (match := _NEGATIVE.fullmatch(key))
    ]
    return tuple(name for _, name in sorted(matches, key=lambda x: (len(x[0]), x[0])))


def _with_texts(table: Table, columns: Columns, free: Mapping[str, str]) -> Columns:
    if columns.text is not None and columns.pair is not None:
        return columns
    if columns.text is None and columns.pair is None and (both := _pair(free, "embed")):
        return dataclasses.replace(columns, text=both[0], pair=both[1])
    left = _left(table, columns)
    texts = [name for name in left if _holds_texts(table, name)]
    if len(texts) < 2:  # short texts, such as the words of queries
        texts = [name for name in left if not _holds_numbers(table, name)]
    wanted = [field for field in ("text", "pair") if getattr(columns, field) is None]
    if len(texts) != len(wanted):
        raise _which(table, wanted, [_WORDS[field] for field in wanted])
    columns = dataclasses.replace(columns, **dict(zip(wanted, texts, strict=True)))
    if not table.is_typed and len(wanted) == 2:
        _refuse_headerless(table, columns)
    return columns
