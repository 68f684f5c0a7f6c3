"""Which column of a user's file holds the text, and which the label: as named, or guessed."""

import dataclasses
import difflib
import itertools
import re
from collections.abc import Iterable, Sequence
from typing import Literal

from bertjax.tasks.sources.table_files import Table, place, read_number

CustomKind = Literal["classify", "regress", "tag", "choice"]

# Lower case, in the order of preference.
PAIRS = (
    *(("sentence1", "sentence2"), ("sent1", "sent2"), ("text1", "text2"), ("text_a", "text_b")),
    *(("premise", "hypothesis"), ("question1", "question2"), ("question", "sentence")),
    *(
        ("question", "passage"),
        ("question", "context"),
        ("query", "passage"),
        ("text", "text_pair"),
    ),
    *(("query", "document"), ("s1", "s2")),
)
TEXTS = (
    *("text", "sentence", "sentence1", "sent1", "text1", "text_a", "premise", "review", "content"),
    *("body", "comment", "message", "tweet", "document", "description", "question", "question1"),
    *("query", "context", "passage", "title", "headline", "abstract", "input", "utterance"),
)
WORDS = ("words", "tokens")
CLASS_LABELS = (
    *("label", "labels", "gold_label", "class", "classes", "category", "categories", "target"),
    *("sentiment", "intent", "emotion", "topic", "stars", "rating", "score", "tag", "y"),
)
NUMBER_LABELS = ("score", "label", "target", "rating", "stars", "similarity", "value", "y")
TAG_LABELS = ("tags", "labels", "ner_tags", "ner", "pos_tags", "label", "tag")
CHOICE_LABELS = ("label", "answer", "gold", "gold_label", "correct", "target")
# "" is what pandas writes above its index.
IDS = ("id", "idx", "index", "guid", "uid", "example_id", "")
CHOICE_LISTS = ("choices", "endings", "options", "answers", "candidates")
_CHOICE = re.compile(r"(choice|ending|option|answer|alternative|candidate|)[ _-]?(\d+|[a-f])")
# Rows that are held against the first row, to see whether it is one of them.
ROWS_COMPARED = 100


@dataclasses.dataclass(frozen=True, kw_only=True)
class Columns:
    """Names of columns; what is None or empty is guessed.

    Attributes:
        text: of the text, the first of two, or the words of a sentence.
        pair: of the second text; of what begins every choice.
        label: of the label or labels.
        id: of the name of an example.
        choices: of each choice, or of the one column of JSON that lists them.
    """

    text: str | None = None
    pair: str | None = None
    label: str | None = None
    id: str | None = None
    choices: tuple[str, ...] = ()

    def named(self) -> tuple[str, ...]:
        """All that are named."""
        single = (self.text, self.pair, self.label, self.id)
        return tuple(name for name in (*single, *self.choices) if name is not None)


def check_columns(table: Table, columns: Iterable[str]) -> None:
    """Refuses names that the file does not have.

    Raises:
        ValueError: one is missing; the nearest one is named.
    """
    for name in columns:
        if name not in table.columns:
            near = difflib.get_close_matches(name, table.columns, 1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise ValueError(
                f"{place(table.path, 1)} has no column {name!r}.{hint} "
                f"There are: {', '.join(table.columns)[:300]}."
            )


def find_columns(
    table: Table, kind: CustomKind, given: Columns, *, labelled: bool
) -> tuple[Columns, str]:
    """Columns as given, the others guessed, and a sentence that says what was guessed.

    Usual names decide, then the place: the label is the last column and the text the first.

    Args:
        table: a file of the run, the train file if there is one.
        kind: of the task.
        given: what the user named.
        labelled: whether there has to be a label.

    Raises:
        ValueError: a given column is missing, nothing fits, or the first row names no columns.
    """
    check_columns(table, given.named())
    found = _by_usual_names(table.columns, kind, given)
    by_name = found
    if kind != "tag":
        found = _by_place(table, found, labelled=labelled)
    lacking = [
        field
        for field, needed in (
            ("text", True),
            ("label", labelled),
            ("choices", kind == "choice"),
        )
        if needed and not getattr(found, field)
    ]
    if lacking:
        raise ValueError(
            f"{place(table.path, 1)}: which column is the {' and the '.join(lacking)}? There are: "
            f"{', '.join(table.columns)[:300]}. Name the columns with --text_column and so on; a "
            "file without a first row of names needs one."
        )
    if not table.is_json and given == Columns() and None in (by_name.text, by_name.label):
        _refuse_headerless(table, found)
    return found, _say(table, given, found)


def _by_usual_names(columns: Sequence[str], kind: CustomKind, given: Columns) -> Columns:
    taken = given.named()
    free = {name.lower(): name for name in reversed(columns) if name not in taken}

    def first(names: Sequence[str]) -> str | None:
        return next((free[name] for name in names if name in free), None)

    label_names = {
        "classify": CLASS_LABELS,
        "regress": NUMBER_LABELS,
        "tag": TAG_LABELS,
        "choice": CHOICE_LABELS,
    }[kind]
    text, pair = given.text, given.pair
    if text is None and kind == "tag":
        text = first(WORDS)
    elif text is None:
        pairs = PAIRS[1:2] if kind == "choice" else PAIRS
        both = next(((a, b) for a, b in pairs if a in free and b in free), None)
        if both and pair is None:
            text, pair = free[both[0]], free[both[1]]
        else:
            text = first(TEXTS)
    return Columns(
        text=text,
        pair=pair,
        label=given.label if given.label is not None else first(label_names),
        id=given.id if given.id is not None else first(IDS),
        choices=given.choices or (_choices(free) if kind == "choice" else ()),
    )


def _choices(free: dict[str, str]) -> tuple[str, ...]:
    """Columns that a number or a letter tells apart, or one that lists all."""
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


def _by_place(table: Table, found: Columns, *, labelled: bool) -> Columns:
    """The last column that is free becomes the label, the first one the text."""
    if found.label is None and labelled:
        free = [name for name in table.columns if name and name not in found.named()]
        # The only column that is left is a text, if that is missing too.
        if len(free) > (found.text is None):
            found = dataclasses.replace(found, label=free[-1])
    if found.text is None:
        free = [name for name in table.columns if name and name not in found.named()]
        found = dataclasses.replace(found, text=free[0] if free else None)
    return found


def _refuse_headerless(table: Table, found: Columns) -> None:
    """Refuses a file whose first row looks like the rows below it."""
    label = found.label
    looks_like_data = any(
        read_number(name) is not None or len(name.split()) > 5 for name in table.columns
    )
    if not looks_like_data and label is not None:
        rows = itertools.islice(table.rows(), ROWS_COMPARED)
        looks_like_data = any(row[label].strip() == label for _, row in rows)
    if looks_like_data:
        raise ValueError(
            f"{place(table.path, 1)} is an example ({', '.join(table.columns)[:200]}), not the "
            "names of the columns: put a first row before it, text,label for example."
        )


def _say(table: Table, given: Columns, found: Columns) -> str:
    parts = [
        f"{field} from column {getattr(found, field)!r}"
        for field in ("text", "pair", "label", "id")
        if getattr(found, field) is not None and getattr(given, field) is None
    ]
    if found.choices and not given.choices:
        parts.append(f"choices from {', '.join(map(repr, found.choices))}")
    if not parts:
        return ""
    others = [name for name in table.columns if name not in found.named()]
    unused = f"; not used: {', '.join(others)[:200]}" if others else ""
    return (
        f"{table.path.name}: {', '.join(parts)}{unused}. Say --text_column, --pair_column, "
        "--label_column, --id_column or --choice_columns if that is wrong."
    )
