"""Tables as users have them, single changes of them, and what each changed table means.

The meaning is found without bertjax: pandas, pyarrow and json read the file again, and a few lines
per task say which examples its rows are. A change may leave no meaning at all (`Undefined`), as a
label "N/A" does, or several, as a second column of labels does; then the reader must say so.
"""

import csv
import dataclasses
import json
import math
import random
import re
import unicodedata
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

ROWS, DEV_ROWS = 24, 10
ABSENT = object()  # in JSON, the row lacks the key
TYPED = ("jsonl", "json", "parquet")
ALL = ("csv", "tsv", *TYPED)
Row = dict[str, Any]
Reading = Callable[[tuple], tuple]


class Undefined(Exception):
    """The table, or a row of it, has no meaning that can be told without asking its owner."""


# Tables.


@dataclasses.dataclass
class File:
    """A table: its columns in their order, the role of each, its rows, and how it is written."""

    roles: dict[str, str]
    rows: list[Row]
    format: str = "jsonl"
    types: dict[str, Any] = dataclasses.field(default_factory=dict)  # Parquet: column -> type
    header: bool = True

    def __post_init__(self) -> None:
        self.order = [*self.roles]  # of several choices or negatives, whatever the file's order
        keys = [str(row.get(column)) for column in self.columns("index") for row in self.rows]
        self.lettered = 2 * sum(key in "abcdABCD" for key in keys) > len(keys)

    def copy(self) -> "File":
        """Returns a copy that may be changed."""
        rows = [dict(row) for row in self.rows]
        return dataclasses.replace(self, roles=dict(self.roles), rows=rows, types=dict(self.types))

    def columns(self, role: str) -> list[str]:
        """Returns the columns of a role."""
        return [name for name, own in self.roles.items() if own == role]

    def number(self, index: int) -> int:
        """Returns the number of a row in messages, from 1, with the header."""
        if self.format == "conll":
            before = self.rows[:index]
            return 1 + sum(1 + max(len(row[c]) for c in self.roles) for row in before)
        return index + 1 + (self.format in ("csv", "tsv") and self.header)


class Layout(NamedTuple):
    """A kind of table: its task, how its cells are made, and in which formats it is written.

    `cells` are {column: (role, function of the number of the row)}.
    """

    task: str
    cells: dict[str, tuple[str, Callable[[int], Any]]]
    formats: tuple[str, ...] = ALL
    options: dict[str, Any] = {}


_WHO = "Anna|The old man|A small bird|My neighbour|Nobody here|Every child|The last train".split(
    "|"
)
_DID = "reads|has lost|likes|cannot find|brings back|paints|forgets".split("|")
_WHAT = "the blue book|a warm coat|two red apples|the way home|an open window".split("|")


def sentence(number: int) -> str:
    """Returns a sentence; those of different numbers differ."""
    who, did, what = (
        part[number // step % len(part)] for part, step in ((_WHO, 1), (_DID, 7), (_WHAT, 49))
    )
    return f"{who} {did} {what} on day {number}."


def _of(*values: Any) -> Callable[[int], Any]:
    return lambda i: values[(i * 7 + i // 5) % len(values)]


def _text(start: int) -> Callable[[int], str]:
    return lambda i: sentence(start + i)


def _words(i: int) -> list[str]:
    return ["Anna", "saw", "Bonn", f"on{i}", "Monday"][: 3 + i % 3]


def _tags(i: int) -> list[str]:
    return ["B-PER", "O", "B-LOC", "O", "O"][: 3 + i % 3]


def _spans(i: int) -> list[dict[str, Any]]:
    del i
    return [{"start": 0, "end": 4, "label": "PER"}, {"start": 9, "end": 13, "label": "LOC"}]


def _passage(i: int) -> str:
    return f"Anna left Bonn in year {1900 + i}. She took the train to Cologne."


def _answers(i: int) -> dict[str, Any]:
    if i % 6 == 5:
        return {"text": [], "answer_start": []}
    return {"text": [str(1900 + i)], "answer_start": [23]}


def _ends(i: int) -> list[str]:
    return [f"Then it {verb} at {i}." for verb in ("rains", "snows", "stops", "begins")]


LAYOUTS: dict[str, list[Layout]] = {
    "classify": [
        Layout("classify", {"text": ("text", _text(0)),
            "label": ("label", _of("good", "bad", "so"))}),
        Layout("classify", {"sentence": ("text", _text(0)), "label": ("label", _of(0, 1, 2))}),
        Layout("classify", {"id": ("-", str), "review": ("text", _text(0)),
            "sentiment": ("label", _of(True, False))}),
        Layout("classify", {"premise": ("text", _text(0)), "hypothesis": ("pair", _text(300)),
            "label": ("label", _of("entailment", "neutral", "contradiction"))}),
        Layout("classify", {"text": ("text", _text(0)), "mood": ("label", _of("calm", "wild"))}),
        Layout("classify", {"text": ("text", _text(0)),
            "labels": ("labels", _of(["a"], ["a", "b"], [], ["b", "c"]))}, TYPED),
    ],
    "regress": [
        Layout("regress", {"text": ("text", _text(0)),
            "score": ("number", _of(1.5, 2.25, 4.0, 3.1))}),
        Layout("regress", {"sentence1": ("text", _text(0)), "sentence2": ("pair", _text(300)),
            "similarity": ("number", _of(0.5, 2.5, 4.75))}),
        Layout("regress", {"review": ("text", _text(0)), "stars": ("number", _of(1, 2, 3, 4, 5))}),
        Layout("regress", {"text": ("text", _text(0)), "price": ("number", _of(12, 40, 75, 33))}),
    ],
    "tag": [
        Layout("tag", {"words": ("words", _words), "tags": ("tags", _tags)}, ("csv", *TYPED)),
        Layout("tag", {"id": ("-", str), "tokens": ("words", _words), "ner_tags": ("tags", _tags)},
            TYPED),
        Layout("tag", {"text": ("text", lambda i: f"Anna saw Bonn on day {i}."),
            "entities": ("entities", _spans)}, TYPED),
        Layout("tag", {"word": ("word", _words), "tag": ("tag", _tags)}, ("conll",)),
        Layout("tag", {"word": ("word", _words),
            "pos": ("-", lambda i: ["NNP", "VBD", "NNP", "IN", "NNP"][: 3 + i % 3]), "tag": ("tag",
                _tags)}, ("conll",)),
    ],
    "qa": [
        Layout("qa", {"id": ("id", lambda i: f"q{i}"), "question": ("text",
            lambda i: f"When did Anna leave, in case {i}?"), "context": ("pair", _passage),
                "answers": ("answers", _answers)}, TYPED),
        Layout("qa", {"question": ("text", lambda i: f"When did Anna leave, in case {i}?"),
            "context": ("pair", _passage), "answer": ("answer",
                lambda i: "" if i % 6 == 5 else str(1900 + i)), "answer_start": ("start",
                    lambda i: "" if i % 6 == 5 else 23)}, ("csv", "tsv", "jsonl")),
    ],
    "choice": [
        Layout("choice", {"text": ("text", _text(0)),
            **{f"choice{k}": ("choice", lambda i, k=k: _ends(i)[k]) for k in range(4)},
                "label": ("index", _of(0, 1, 2, 3))}),
        Layout("choice", {"question": ("text", _text(0)), "choices": ("choices", _ends),
            "answer": ("index", _of(0, 1, 2, 3))}, TYPED),
        Layout("choice", {"text": ("text", _text(0)),
            **{f"option_{k}": ("choice", lambda i,
                k=k: _ends(i)["abcd".index(k)]) for k in "abcd"}, "label": ("index",
                    _of("a", "b", "c", "d"))}),
        Layout("choice", {"text": ("text", _text(0)), "choices": ("choices", _ends),
            "label": ("index", lambda i: _ends(i)[i % 4])}, TYPED),
    ],
    "embed": [
        Layout("embed", {"anchor": ("text", _text(0)), "positive": ("pair", _text(300))}),
        Layout("embed", {"anchor": ("text", _text(0)), "positive": ("pair", _text(300)),
            "negative": ("negative", _text(600))}),
        Layout("embed", {"query": ("text", _text(0)), "positive": ("pair", _text(300)),
            "negatives": ("negatives", lambda i: [sentence(600 + i), sentence(900 + i)])}, TYPED),
        Layout("embed", {"sentence1": ("text", _text(0)), "sentence2": ("pair", _text(300)),
            "score": ("number", _of(0.2, 0.8, 1.0, 0.0))}),
        Layout("embed", {"question": ("text", _text(0)), "answer": ("pair", _text(300))}),
        Layout("embed", {"anchor": ("text", _text(0)), "positive": ("pair", _text(300)),
            "negatives": ("negatives", lambda i: [sentence(600 + i)]), "scores": ("scores",
                lambda i: [9.5 - i / 4, i / 8])}, TYPED, {"loss": "margin"}),
    ],
    "rerank": [
        Layout("rerank", {"query": ("text", lambda i: sentence(i // 2)),
            "passage": ("pair", _text(300)), "label": ("number", lambda i: 1 - i % 2)}),
        Layout("rerank", {"query": ("text", _text(0)), "positive": ("pair", _text(300)),
            "negatives": ("negatives", lambda i: [sentence(600 + i), sentence(900 + i)])}, TYPED),
        Layout("rerank", {"query": ("text", _text(0)), "positive": ("pair", _text(300)),
            "negative1": ("negative", _text(600)), "negative2": ("negative", _text(900))}),
        Layout("rerank", {"query": ("text", _text(0)), "positive": ("pair", _text(300)),
            "negatives": ("negatives", lambda i: [sentence(600 + i)]), "scores": ("scores",
                lambda i: [9.5 - i / 4, i / 8])}, TYPED, {"loss": "margin"}),
    ],
}  # fmt: skip
_TITLES = ["Birds", "Old men", "Trains", ""]
# {task: {file: layout}} of tasks with several files.
SETS: dict[str, list[dict[str, Layout]]] = {
    "retrieval": [
        {
            "corpus": Layout("", {"_id": ("id", lambda i: f"d{i}"),
                "title": ("title", lambda i: _TITLES[i % 4]), "text": ("text", _text(0))},
                    ("jsonl",)),
            "queries": Layout("", {"_id": ("id", lambda i: f"q{i}"), "text": ("text", _text(300))},
                ("jsonl",)),
            "qrels": Layout("", {"query-id": ("query", lambda i: f"q{i % 5}"),
                "corpus-id": ("passage", lambda i: f"d{i * 2}"), "score": ("grade",
                    lambda i: 1 if i < 5 else i % 3)}, ("tsv",)),
        },
        {
            "corpus": Layout("", {"_id": ("id", lambda i: 100 + i), "text": ("text", _text(0))},
                ("jsonl",)),
            "queries": Layout("", {"_id": ("id", lambda i: i), "text": ("text", _text(300))},
                ("jsonl",)),
            "qrels": Layout("", {"query-id": ("query", lambda i: i % 5),
                "corpus-id": ("passage", lambda i: 100 + i * 2), "score": ("grade", lambda i: 1)},
                    ("tsv",)),
        },
    ],
    "mine": [
        {
            "queries": Layout("", {"query": ("text", _text(300)), "positive": ("pair", _text(0))}),
            "corpus": Layout("", {"_id": ("id", lambda i: f"d{i}"),
                "title": ("title", lambda i: _TITLES[i % 4]), "text": ("text", _text(100))}),
        },
        {
            "queries": Layout("", {"question": ("text", _text(300)), "answer": ("pair", _text(0))}),
            "corpus": Layout("", {"text": ("text", _text(0))}),
        },
    ],
}  # fmt: skip
TASKS = (*LAYOUTS, *SETS)
_SIZES = {"queries": DEV_ROWS, "qrels": 12}


def make_files(rng: random.Random, task: str) -> tuple[dict[str, File], dict[str, Any]]:
    """Returns the files of a user, unchanged, and the options of the task."""
    if task in SETS:
        layouts, options = rng.choice(SETS[task]), {}
        counts, starts = (
            {name: _SIZES.get(name, ROWS) for name in layouts},
            dict.fromkeys(layouts, 0),
        )
    else:
        layout = rng.choice(LAYOUTS[task])
        layouts, options = dict.fromkeys(("train", "dev"), layout), layout.options
        counts, starts = {"train": ROWS, "dev": DEV_ROWS}, {"train": 0, "dev": 120}
    files, chosen = {}, {}
    for name, layout in layouts.items():
        form = chosen.setdefault(id(layout), rng.choice(layout.formats))
        roles = {column: role for column, (role, _) in layout.cells.items()}
        numbers = range(starts[name], starts[name] + counts[name])
        rows = [{column: make(i) for column, (_, make) in layout.cells.items()} for i in numbers]
        files[name] = File(roles, rows, form)
    return files, options


# Writing, and reading again by other programs.


def _cell(value: Any) -> str:
    if value is None or value is ABSENT:
        return ""
    if isinstance(value, list | dict):
        return json.dumps(value, ensure_ascii=False)
    return "nan" if isinstance(value, float) and math.isnan(value) else str(value)


def _columns_in(file: File) -> list[str]:
    return [*file.roles]


def write(file: File, folder: Path, name: str) -> Path:
    """Writes a table; one that Parquet cannot hold is written as JSON lines."""
    columns, path = _columns_in(file), folder / f"{name}.{file.format}"
    if file.format == "parquet":
        import pyarrow
        from pyarrow import parquet

        plain = [
            [None if row.get(c) is ABSENT else row.get(c) for row in file.rows] for c in columns
        ]
        try:
            arrays = [
                pyarrow.array(values, file.types.get(column))
                for column, values in zip(columns, plain, strict=True)
            ]
            parquet.write_table(pyarrow.table(arrays, names=columns), path)
            return path
        except (pyarrow.ArrowException, TypeError, ValueError):
            file.format = "jsonl"
            return write(file, folder, name)
    if file.format == "conll":
        lines = []
        for row in file.rows:
            cells = [row[c] if isinstance(row.get(c), list) else [] for c in columns]
            longest = max(map(len, cells), default=0)
            for at in range(longest):
                lines.append(" ".join(str(c[at]) for c in cells if at < len(c)))
            lines.append("")
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
        return path
    with path.open("w", encoding="utf-8", newline="") as out:
        if file.format in ("csv", "tsv"):
            rows = [[_cell(row.get(column)) for column in columns] for row in file.rows]
            rows = [
                [*cells, *row.get("", ())] if isinstance(row.get(""), list) else cells
                for cells, row in zip(rows, file.rows, strict=True)
            ]
            rows = [columns, *rows] if file.header else rows
            if file.format == "csv":
                csv.writer(out).writerows(rows)
            else:
                out.writelines("\t".join(cells) + "\n" for cells in rows)
            return path
        objects = [
            json.dumps(
                row["\0"] if "\0" in row else {c: v for c, v in row.items() if v is not ABSENT},
                ensure_ascii=False,
            )
            for row in file.rows
        ]
        out.write(
            "\n".join(objects) + "\n" if file.format == "jsonl" else f"[{', '.join(objects)}]"
        )
    return path


def read_again(file: File, path: Path) -> list[Row]:
    """Returns the rows as pandas, pyarrow or json read them.

    Raises:
        Undefined: they refuse the file, or a row has not the columns of the table.
    """
    import pandas
    from pyarrow import parquet

    try:
        if path.suffix == ".parquet":
            return parquet.read_table(path).to_pylist()
        if path.suffix in (".csv", ".tsv"):
            options: dict[str, Any] = {} if path.suffix == ".csv" else {"sep": "\t", "quoting": 3}
            named = {} if file.header else {"header": None, "names": _columns_in(file)}
            frame = pandas.read_csv(
                path, dtype=str, keep_default_na=False, index_col=False, **named, **options
            )
            # pandas drops a byte order mark, and rows without any cell are rows of no example.
            marked = {name[1:]: name for name in file.roles if name.startswith("\ufeff")}
            rows = frame.rename(columns=marked).to_dict("records")
            return [row for row in rows if any(cell.strip() for cell in row.values())]
        if path.suffix == ".conll":
            blocks = path.read_text(encoding="utf-8").strip("\n").split("\n\n")
            rows = []
            for block in blocks:
                cells = [line.split(" ") for line in block.split("\n")]
                if any(len(line) != len(file.roles) for line in cells):
                    raise Undefined("columns of different numbers")
                rows.append({c: [line[k] for line in cells] for k, c in enumerate(file.roles)})
            return rows
        text = path.read_text(encoding="utf-8")
        rows = (
            json.loads(text)
            if path.suffix == ".json"
            else [json.loads(x) for x in text.splitlines()]
        )
    except (pandas.errors.ParserError, ValueError, IndexError) as error:
        raise Undefined(str(error)) from error
    if not all(isinstance(row, dict) for row in rows):
        raise Undefined("a row is no object")
    return rows


# What the rows mean.

# What R, pandas, SQL, spreadsheets and programs write in place of a value.
MISSING = {"", "nan", "none", "null", "na", "n/a", "#n/a", "<na>", "-", "\\n"}


def missing(value: Any) -> bool:
    """Returns whether a value stands for none."""
    if value is None or value is ABSENT or isinstance(value, float) and math.isnan(value):
        return True
    return isinstance(value, str) and value.strip().lower() in MISSING


def as_text(value: Any) -> str:
    """Returns a text; raises Undefined for what is none, or shows nothing."""
    value = value.decode() if isinstance(value, bytes) else value
    if not isinstance(value, str) or (missing(value) and value.strip() != "-"):
        raise Undefined(f"no text: {value!r}")
    if not any(unicodedata.category(c)[0] not in "CZ" for c in value):
        raise Undefined(f"an empty text: {value!r}")
    return value


def as_number(value: Any) -> float:
    """Returns a number; raises Undefined for what is none in pandas."""
    if isinstance(value, bool | list | dict | bytes):
        raise Undefined(f"no number: {value!r}")
    text = str(value).strip()
    if not re.fullmatch(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", text, re.ASCII):
        raise Undefined(f"no number: {value!r}")
    if not math.isfinite(float(text)):
        raise Undefined(f"no finite number: {value!r}")
    return float(text)


def as_class(value: Any) -> str:
    """Returns the name of a class, the same for 1 and 1.0, and for True and true."""
    value = value.decode() if isinstance(value, bytes) else value
    if missing(value) or isinstance(value, list | dict):
        raise Undefined(f"no class: {value!r}")
    text = str(value).strip()
    if text.lower() in ("true", "false"):
        return text.lower()
    return re.sub(r"\.0\Z", "", text) if re.fullmatch(r"-?\d+\.0", text) else text


def _as_list(value: Any) -> list[Any]:
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError as error:
            raise Undefined("no list") from error
    if not isinstance(value, list):
        raise Undefined("no list")
    return value


def _by_role(file: File, row: Row) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for column in file.order:
        role = file.roles[column]
        if role in ("choice", "negative"):
            values.setdefault(role, []).append(row.get(column))
        elif role != "-":
            values[role] = row.get(column, ABSENT)
    return values


def _index(value: Any, choices: Sequence[str], lettered: bool) -> int:
    """Returns the index that a key means; beside letters, numbers count from 1, as in ARC."""
    if missing(value):
        raise Undefined("no key")
    written = as_class(value)
    readings = {choices.index(written)} if choices.count(written) == 1 else set()
    if isinstance(value, int):  # which is no text
        readings = set()
    if written.isascii() and written.isdigit():
        number = int(written) - lettered
        readings |= {number} if 0 <= number < len(choices) else set()
    elif len(written) == 1 and written.lower() in "abcdefgh"[: len(choices)]:
        readings.add("abcdefgh".index(written.lower()))
    if len(readings) != 1:
        raise Undefined(f"the key {value!r} has {len(readings)} readings")
    return readings.pop()


def _tagged(values: dict[str, Any]) -> tuple:
    if "entities" in values:
        text, spans = as_text(values["text"]), []
        listed = values["entities"]
        for span in [listed] if isinstance(listed, dict) else _as_list(listed):
            if isinstance(span, dict):
                span = [span.get("start"), span.get("end"), span.get("label")]
            if not isinstance(span, list) or len(span) != 3 or missing(span[2]):
                raise Undefined("no entity")
            start, end, kind = span
            if type(start) is not int or type(end) is not int or not 0 <= start < end <= len(text):
                raise Undefined("an entity outside of the text")
            if not isinstance(kind, str):
                raise Undefined("an entity without a type")
            spans.append((start, end, kind.strip()))
        if any(b[0] < a[1] for a, b in zip(sorted(spans), sorted(spans)[1:], strict=False)):
            raise Undefined("entities overlap")
        words, tags = [], []
        for match in re.finditer(r"\w+|[^\w\s]", text):
            inside = [s for s in spans if s[0] <= match.start() and match.end() <= s[1]]
            cut = [s for s in spans if s[0] < match.end() and match.start() < s[1]]
            if cut != inside:
                raise Undefined("an entity ends within a word")
            words.append(match[0])
            tags.append(
                f"{'B' if inside[0][0] == match.start() else 'I'}-{inside[0][2]}" if inside else "O"
            )
        return tuple(words), tuple(tags)
    words = _as_list(values.get("words", values.get("word")))
    tags = _as_list(values.get("tags", values.get("tag")))
    if not words or len(words) != len(tags):
        raise Undefined("not one tag per word")
    for word in words:
        if not isinstance(word, str) or not word.strip():
            raise Undefined("an empty word")
    for tag in tags:
        if not isinstance(tag, str) or not re.fullmatch(r"O|[BI]-[A-Z]+", tag.strip()):
            raise Undefined(f"the tag {tag!r}")
    return tuple(words), tuple(tag.strip() for tag in tags)


def _asked(values: dict[str, Any], *, placed: bool) -> tuple:
    """Returns question, passage and answers; those that are not trained on need no places."""
    question, passage = as_text(values["text"]), as_text(values["pair"])
    if "answers" in values:
        found = values["answers"]
        if isinstance(found, list) and all(isinstance(answer, dict) for answer in found):
            keys = ("text", "answer_start")  # as in SQuAD's JSON
            found = {key: [answer.get(key) for answer in found] for key in keys}
        if not isinstance(found, dict) or not {"text", "answer_start"} <= found.keys():
            raise Undefined("no answers")
        texts, starts = found["text"], found["answer_start"]
        if not isinstance(texts, list) or not isinstance(starts, list) or len(texts) != len(starts):
            raise Undefined("no answers")
    else:
        text, start = values["answer"], values.get("start", ABSENT)
        none = [x is None or x is ABSENT or x == "" for x in (text, start)]
        none[1] |= str(start) == "nan"
        if all(none):
            texts, starts = [], []
        elif none[0] and str(start) not in ("0", "-1", "0.0", "-1.0"):
            raise Undefined("a place without an answer")
        elif none[0]:
            texts, starts = [], []
        elif not placed:
            texts, starts = [text], [0]
        elif none[1]:
            if not isinstance(text, str) or passage.count(text) != 1:
                raise Undefined("no place")
            texts, starts = [text], [passage.index(text)]
        else:
            texts, starts = [text], [as_number(start)]
    if not placed:
        for text in texts:
            if not isinstance(text, str) or not text.strip() or text not in passage:
                raise Undefined("no answer, or one that is not in the passage")
        return question, passage, frozenset(texts)
    for text, start in zip(texts, starts, strict=True):
        if not isinstance(text, str) or isinstance(start, bool | None) or start != int(start):
            raise Undefined("no answer")
        if not text or not passage[int(start) :].startswith(text) or start < 0:
            raise Undefined("the answer is elsewhere")
    return question, passage, frozenset((t, int(s)) for t, s in zip(texts, starts, strict=True))


def meaning_of_row(task: str, file: File, row: Row, name: str) -> tuple:
    """Returns the example of a row of the file `name`; raises Undefined."""
    values = _by_role(file, row)
    if task == "tag":
        return _tagged(values)
    if task == "qa":
        return _asked(values, placed=name == "train")
    text = as_text(values["text"])
    if task == "choice":
        listed = values["choice"] if "choice" in values else _as_list(values["choices"])
        choices = tuple(
            as_text(choice) if not isinstance(choice, str) or not choice.strip() else choice
            for choice in listed
        )
        return text, choices, _index(values["index"], [x.strip() for x in choices], file.lettered)
    pair = as_text(values["pair"]) if "pair" in values else None
    if task == "classify":
        if "labels" in values:
            names = _as_list(values["labels"])
            return text, pair, tuple(sorted({as_class(name) for name in names}))
        return text, pair, as_class(values["label"])
    if task == "regress":
        return text, pair, as_number(values["number"])
    negatives = values.get("negative", ())
    if len(negatives) == 1 and isinstance(negatives[0], list) and negatives[0]:
        negatives = negatives[0]
    if "negatives" in values:
        text_alone = isinstance(values["negatives"], str) and not values["negatives"].startswith(
            "["
        )
        negatives = [values["negatives"]] if text_alone else _as_list(values["negatives"])
        if not negatives:
            raise Undefined("no negatives")
    negatives = tuple(map(as_text, negatives))
    scores: tuple[float, ...] = ()
    if "scores" in values and name == "train":
        scores = tuple(map(as_number, _as_list(values["scores"])))
    if scores and len(scores) != 1 + len(negatives):
        raise Undefined("not one score per text")
    number = values.get("number")
    number = {"true": 1, "false": 0}.get(str(number).lower(), number)  # of pairs, these are scores
    number = as_number(number) if "number" in values else None
    # In evaluation, labels are gains, of any size.
    if task == "rerank" and name == "train" and number is not None and not number >= 0:
        raise Undefined("a label below 0")
    return text, pair, negatives if scores else tuple(sorted(negatives)), number, scores


def vector(text: str) -> np.ndarray:
    """Returns a vector of length 1 that depends on the text alone."""
    found = np.random.default_rng(zlib.crc32(text.encode("utf-8", "replace"))).standard_normal(16)
    return (found / np.linalg.norm(found)).astype(np.float32)


def _id(value: Any) -> str:
    if missing(value) or isinstance(value, bool | list | dict):
        raise Undefined(f"the id {value!r}")
    text = str(value)
    return re.sub(r"\.0\Z", "", text) if isinstance(value, float) else text


def _passages(file: File, rows: list[Row], *, ids: bool = True) -> dict[str, str]:
    found: dict[str, str] = {}
    for index, row in enumerate(rows):
        values = _by_role(file, row)
        title = values.get("title")
        title = "" if title in (None, ABSENT) else title
        text = values["text"]
        title, text = (x.decode() if isinstance(x, bytes) else x for x in (title, text))
        if text is ABSENT or not isinstance(text, str) or not isinstance(title, str):
            raise Undefined("no text")
        whole = f"{title} {text}".strip()
        as_text(whole)
        key = _id(values["id"]) if ids else str(index)
        if key in found:
            raise Undefined(f"the id {key} twice")
        found[key] = whole
    return found


def _retrieved(files: dict[str, File], rows: dict[str, list[Row]]) -> tuple:
    corpus, queries = (_passages(files[name], rows[name]) for name in ("corpus", "queries"))
    judged: dict[str, dict[str, float]] = {}
    for row in rows["qrels"]:
        values = _by_role(files["qrels"], row)
        query, passage = _id(values["query"]), _id(values["passage"])
        if query not in queries:
            raise Undefined("a judgement of an unknown query")
        if judged.get(query, {}).get(passage, as_number(values["grade"])) != as_number(
            values["grade"]
        ):
            raise Undefined("a pair that is judged twice")
        judged.setdefault(query, {})[passage] = as_number(values["grade"])
    ranking, scores = [], []
    for query in queries:
        if query not in judged:
            continue
        others = [key for key in corpus if key != query]
        best = sorted(others, key=lambda key: -float(vector(corpus[key]) @ vector(queries[query])))
        ranking.append((query, tuple(best)))
        # As trec_eval does: the gain is the grade, also of passages that are in no file.
        gains = [max(judged[query].get(key, 0.0), 0.0) for key in best[:10]]
        wanted = sorted((max(grade, 0.0) for grade in judged[query].values()), reverse=True)[:10]
        dcg, ideal = (
            sum(gain / math.log2(k + 2) for k, gain in enumerate(x)) for x in (gains, wanted)
        )
        scores.append(dcg / ideal if ideal else 0.0)
    return (*sorted(ranking), round(sum(scores) / len(scores), 6))


def plain_form(text: str) -> str:
    """Returns a text without differences of case, spaces and Unicode forms."""
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split())


def _mined(files: dict[str, File], rows: dict[str, list[Row]]) -> tuple:
    corpus = _passages(files["corpus"], rows["corpus"], ids=False)
    bare = {
        key: plain_form(str(_by_role(files["corpus"], row)["text"]))
        for key, row in zip(corpus, rows["corpus"], strict=True)
    }
    positives: dict[str, list[str]] = {}
    for row in rows["queries"]:
        values = _by_role(files["queries"], row)
        positives.setdefault(as_text(values["text"]), []).append(as_text(values["pair"]))
    # A passage that is a positive in another form, or without its title, is that positive.
    texts = {positive: {plain_form(positive)} for own in positives.values() for positive in own}
    known = {form for forms in texts.values() for form in forms}
    for key, text in corpus.items():
        forms = {plain_form(text), bare[key]}
        if not forms & known:
            texts.setdefault(text, forms)
    found = []
    for query, own in positives.items():
        left_out = {plain_form(query), *map(plain_form, own)}
        others = [text for text, forms in texts.items() if not forms & left_out]
        best = sorted(others, key=lambda text: -float(vector(text) @ vector(query)))[:3]
        for positive in dict.fromkeys(own):
            found.append((query, positive, tuple(best)))
    return tuple(found)


def meaning(task: str, files: dict[str, File], rows: dict[str, list[Row]], name: str) -> tuple:
    """Returns what the rows mean that were read again, of the file `name`; raises Undefined."""
    if task == "retrieval":
        return _retrieved(files, rows)
    if task == "mine":
        return _mined(files, rows)
    return tuple(meaning_of_row(task, files[name], row, name) for row in rows[name])


# Changes.


@dataclasses.dataclass
class Change:
    """A single change of a file.

    Attributes:
        kind: what is changed; the table of outcomes has a line for each.
        what: the change in words.
        names: what a refusal or a warning may name.
        row: the index of the row that is changed, or None.
        unclear: whether the rows' own meaning is not enough: the change says something else.
        others: functions of the meaning that return other readings that are right, too.
    """

    kind: str
    what: str
    names: set[str]
    row: int | None = None
    unclear: bool = False
    others: tuple[Reading, ...] = ()


_UNUSUAL = ("foo", "x1", "Spalte", "the data", "0", "文本", "column 2", "meta", "raw")
_OF_ROLES = {
    "text": (
        "text",
        "sentence",
        "Text",
        "content",
        "question",
        "query",
        "input",
        "title",
        "anchor",
    ),
    "pair": ("sentence2", "text_pair", "positive", "passage", "answer", "hypothesis", "document"),
    "label": ("label", "class", "category", "target", "sentiment", "Label", "gold_label", "topic"),
    "labels": ("label", "labels", "classes", "tags", "categories"),
    "number": ("score", "label", "rating", "similarity", "value", "target", "relevance", "grade"),
    "words": ("tokens", "words", "text", "sentence"),
    "tags": ("tags", "ner_tags", "labels", "ner", "pos_tags"),
    "entities": ("entities", "spans", "labels", "annotations"),
    "answers": ("answers", "answer", "labels"),
    "answer": ("answer", "answer_text", "answers", "label"),
    "start": ("answer_start", "start", "position"),
    "index": ("label", "answer", "gold", "correct", "answerKey", "key"),
    "choices": ("choices", "endings", "options", "answers", "candidates"),
    "choice": ("choice_9", "ending3", "option", "answer"),
    "negative": ("negative", "hard_negative", "neg", "negative_7", "distractor"),
    "negatives": ("negatives", "hard_negatives", "neg", "distractors"),
    "scores": ("scores", "teacher", "labels", "score"),
    "id": ("id", "_id", "docid", "doc_id", "pid", "qid", "query_id", "idx", "key"),
    "title": ("title", "Title", "headline", "name"),
    "query": ("query-id", "qid", "query"),
    "passage": ("corpus-id", "pid", "doc"),
    "grade": ("score", "label", "rel"),
}
_OTHER_ROLES = ("id", "label", "split", "pair", "negative", "score", "text2", "index", "date")


def _rename_column(file: File, old: str, new: str) -> None:
    file.roles = {new if c == old else c: role for c, role in file.roles.items()}
    file.order = [new if c == old else c for c in file.order]
    file.rows = [{new if c == old else c: v for c, v in row.items()} for row in file.rows]
    if old in file.types:
        file.types[new] = file.types.pop(old)


def renamed(rng: random.Random, task: str, file: File) -> Change | None:
    """Renames a column."""
    old = rng.choice([*file.roles])
    style = rng.randrange(6)
    new = (
        rng.choice(_OF_ROLES.get(file.roles[old], _UNUSUAL))
        if style < 2
        else rng.choice(_UNUSUAL)
        if style == 2
        else rng.choice(_OTHER_ROLES)
        if style == 3
        else rng.choice((old.upper(), old.title(), f" {old}", f"{old} ", old.replace("_", " ")))
        if style == 4
        else rng.choice((f"\ufeff{old}", f"{old}s", f"my_{old}", f"{old}_text", f"{old}:"))
    )
    if new in file.roles or file.format == "conll":
        return None
    if new in ("id", "index", "date", "meta", "name") and file.roles[old] in (
        *("title", "number", "negatives"),
    ):
        return None  # who names them so says that they are no scores, titles or negatives
    if new.strip().lower() == old.strip().lower() and file.roles[old] == "-":
        return None
    _rename_column(file, old, new)
    kind = (
        "renamed: as usual"
        if style < 2
        else "renamed: another role's"
        if style == 3
        else "renamed: unusual"
    )
    return Change(kind, f"{old!r} is now {new!r}", {old, new, new.strip()})


def reordered(rng: random.Random, task: str, file: File) -> Change | None:
    """Reorders the columns, in JSON also those of one row."""
    names = [*file.roles]
    if len(names) < 2 or (file.format == "conll" and len(names) > 9):
        return None
    row = None
    if file.format in ("jsonl", "json") and rng.random() < 0.4:
        row = rng.randrange(len(file.rows))
        items = [*file.rows[row].items()]
        rng.shuffle(items)
        file.rows[row] = dict(items)
        return Change(
            "reordered", f"the keys of row {row} are {[k for k, _ in items]}", {*names}, row
        )
    order = names[:]
    while order == names:
        rng.shuffle(order)
    file.roles = {name: file.roles[name] for name in order}
    file.rows = [{name: row[name] for name in order} for row in file.rows]
    return Change("reordered", f"the columns are {order}", {*names, "row 1", "line 1"})


_FILLERS: dict[str, Callable[[int], Any]] = {
    "0/1": lambda i: (i * 3 + i // 4) % 2,
    "true/false": lambda i: (i * 3 + i // 4) % 2 == 0,
    "0 to 2": lambda i: (i * 5 + i // 4) % 3,
    "whole numbers": lambda i: 17 * i % 101,
    "serial numbers": lambda i: i,
    "decimals": lambda i: round((i * 37 % 100) / 100 + 0.005, 3),
    "words": lambda i: ("web", "news", "mail", "chat")[i * 3 % 4],
    "texts": lambda i: f"Note {i}: somebody has looked at this more than once.",
    "dates": lambda i: f"2024-0{1 + i % 9}-1{i % 10}",
    "ids": lambda i: f"a{i * 7919:08x}",
    "one value": lambda i: "v1",
    "empty": lambda i: None,
    "lists": lambda i: [i, i + 1],
}
_HARMLESS = (
    *("source", "domain", "url", "author", "date", "created_at", "lang", "n_words", "length"),
    *("version", "user_id", "hash", "Unnamed: 0", "index", "__index_level_0__", "idx", "id"),
    *("foo", "x", "flag", "checked", "count", "genre", "dataset", "timestamp", "uuid", "country"),
)
_PAIR_LABELS = (
    *("is_duplicate", "duplicate", "label", "labels", "gold_label", "relevant", "relevance"),
    *("is_relevant", "score", "similarity", "match", "is_match", "is_paraphrase", "paraphrase"),
    *("target", "class", "entailment", "grade", "rating", "correct", "is_correct", "y", "sim"),
    *("judgment", "is_answer", "human_score", "is_positive", "Label", "same", "similar"),
)
_PAIR_VALUES: dict[str, Callable[[int], Any]] = {
    "0/1": _FILLERS["0/1"],
    "true/false": _FILLERS["true/false"],
    "0 to 2": _FILLERS["0 to 2"],
    "decimals": _FILLERS["decimals"],
    "entailment": lambda i: ("entailment", "neutral", "contradiction")[i * 5 % 3],
    "yes/no": lambda i: ("yes", "no")[i * 3 % 5 % 2],
    "-1/1": lambda i: (-1, 1)[i * 3 % 5 % 2],
}
_MARKS: dict[str, tuple[Any, Any]] = {
    "split": ("train", "test"),
    "Split": ("train", "validation"),
    "set": ("train", "dev"),
    "subset": ("train", "test"),
    "partition": ("train", "test"),
    "is_test": (0, 1),
    "is_train": (1, 0),
    "train": (True, False),
    "answer": ("accept", "reject"),
    "status": ("approved", "rejected"),
    "is_valid": (True, False),
    "in_test": (False, True),
}


def _each(reading: Callable[[int, tuple], tuple | None]) -> Reading:
    """Returns the reading of a meaning that `reading` is of each example; None drops it."""

    def read(whole: tuple) -> tuple:
        read = (reading(index, example) for index, example in enumerate(whole))
        return tuple(example for example in read if example is not None)

    return read


def _add_column(rng: random.Random, file: File, name: str, make: Callable[[int], Any]) -> None:
    at = rng.choice((0, len(file.roles), len(file.roles), rng.randrange(len(file.roles) + 1)))
    items = [*file.roles.items()]
    file.roles = dict([*items[:at], (name, "-"), *items[at:]])
    file.order.append(name)
    for index, row in enumerate(file.rows):
        value = make(index)
        value = _cell(value) if file.format in ("csv", "tsv") else value
        filled = {**row, name: value}
        file.rows[index] = {column: filled[column] for column in file.roles}


def added(rng: random.Random, task: str, file: File) -> Change | None:
    """Adds a column that says nothing, or one that says something about the rows."""
    roles = {*file.roles.values()}
    if file.format == "conll":
        return _added_to_conll(rng, file)
    chance = rng.random()
    paired = (
        task in ("embed", "rerank") and "number" not in roles or task == "mine" and "pair" in roles
    )
    if chance < 0.2 and (task not in SETS or "pair" in roles):
        name = rng.choice([name for name in _MARKS if name not in file.roles] or [""])
        if not name or (name == "answer" and (task in ("qa",) or "index" in roles)):
            return None
        use, skip = _MARKS[name]
        if rng.random() < 0.25:
            _add_column(rng, file, name, lambda i: use)
            return Change("added: the same mark for all rows", f"{name!r} with {use!r}", {name})
        kept = [i % 4 != 3 for i in range(len(file.rows))]
        _add_column(rng, file, name, lambda i: use if kept[i] else skip)
        others = () if task == "mine" else (_each(lambda i, x: x if kept[i] else None),)
        return Change(
            "added: rows not to train on",
            f"{name!r} with {use!r} and {skip!r}",
            {name},
            None,
            True,
            others,
        )
    if chance < 0.55 and paired:
        name = rng.choice([name for name in _PAIR_LABELS if name not in file.roles])
        values = rng.choice([*_PAIR_VALUES])
        make = _PAIR_VALUES[values]
        _add_column(rng, file, name, make)
        right = [make(i) in (1, True, "yes", "entailment") for i in range(len(file.rows))]
        readings: list[Reading] = []
        if task != "mine" and values in ("0/1", "true/false", "entailment", "yes/no", "-1/1"):
            readings.append(_each(lambda i, x: x if right[i] else None))
        is_score = values in ("0/1", "true/false", "decimals", "-1/1")
        if task != "mine" and is_score and not roles & {"negative", "negatives"}:
            readings.append(_each(lambda i, x: (*x[:3], float(make(i)), x[4])))
        return Change(
            "added: whether pairs belong together",
            f"{name!r} with {values}",
            {name},
            None,
            True,
            tuple(readings),
        )
    if chance < 0.7:
        if change := _added_to_task(rng, task, file):
            return change
    name = rng.choice([name for name in _HARMLESS if name not in file.roles])
    allowed = [v for v in _FILLERS if v != "lists" or file.format in TYPED]
    values = rng.choice(allowed)
    _add_column(rng, file, name, _FILLERS[values])
    unclear = False
    if values == "texts" and paired and name in ("foo", "x", "flag", "checked"):
        unclear = True  # as sentence-transformers reads it, a negative
    return Change(f"added: {values}", f"{name!r} with {values}", {name}, None, unclear)


def _added_to_task(rng: random.Random, task: str, file: File) -> Change | None:
    """Adds a column that has another meaning in the task: a second label, another choice..."""
    roles = {*file.roles.values()}
    kind = "added: a column of the task"
    second: dict[str, dict[str, Callable[[int], Any]]] = {
        "classify": {"target": _of("u", "v"), "gold_label": _of("good", "bad"),
            "category": _of("x", "y", "z"), "label": _of(0, 1), "labels": _of("p", "q"),
                "label_text": _of("p", "q"), "rating": _of(1, 2, 3)},
        "regress": {"label": _of(1, 2, 3), "target": _of(0.5, 1.5), "rating": _of(1, 2, 3),
            "score": _of(1, 2, 3.5)},
        "tag": {"ner_tags": _tags, "labels": _tags, "pos_tags": lambda i: ["NNP", "VBD", "NNP",
            "IN", "NNP"][: 3 + i % 3], "chunk_tags": _tags, "ner": _tags, "spans": _spans},
        "choice": {"answer": _of("b", "a", "d", "c"), "label": _of(2, 1, 3, 0), "gold": _of(3, 2,
            1, 0), "correct": _of(1, 0)},
    }  # fmt: skip
    if task in second:
        name = rng.choice([name for name in second[task] if name not in file.roles])
        make = second[task][name]
        if task == "tag" and file.format not in TYPED:
            return None
        if task == "classify" and "text" in roles and rng.random() < 0.3:
            name, make = (
                rng.choice(("text_pair", "text2", "title", "summary", "question")),
                _text(600),
            )
            if name in file.roles:
                return None
            _add_column(rng, file, name, make)
            pair = _each(lambda i, x: (x[0], make(i), x[2]))
            unclear = "pair" not in roles and len(file.rows) == ROWS  # of the train file
            return Change(
                "added: a second text", f"{name!r} with texts", {name}, None, unclear, (pair,)
            )
        named_label = {*file.roles} & {"label", "labels", "tags"}
        _add_column(rng, file, name, make)
        clear = name in ("label_text", "pos_tags", "chunk_tags") or bool(named_label)
        own = [
            row[c] for row in file.rows for c, r in file.roles.items() if r in ("label", "number")
        ]
        # A label of another type is told by the task; of choices, any key may be one.
        clear |= task == "classify" and bool(own) and type(own[0]) is not type(make(0))
        return Change("added: a second label", f"{name!r} with labels", {name}, None, not clear)
    if task == "embed" or task == "rerank":
        name = rng.choice(("negative", "hard_negative", "negative_1", "neg", "negatives"))
        if name in file.roles:
            return None
        make = _text(1200)
        _add_column(rng, file, name, make)
        more = _each(lambda i, x: (*x[:2], tuple(sorted((*x[2], make(i)))), None, x[4]))
        others = () if roles & {"number", "negatives"} else (more,)
        names = {name, "negative", *file.columns("number")}
        return Change("added: negatives", f"{name!r} with texts", names, None, True, others)
    if task == "qa":
        name = rng.choice(("is_impossible", "title", "answer", "answer_text", "answers", "label"))
        if name in file.roles or (name == "answers" and file.format not in TYPED):
            return None
        if name == "is_impossible":
            _add_column(rng, file, name, lambda i: i % 6 == 5 or i % 7 == 2)
            none = _each(lambda i, x: (*x[:2], frozenset()) if i % 7 == 2 else x)
            return Change(
                kind, f"{name!r}, also of questions with answers", {name}, None, True, (none,)
            )
        make = {"title": _of("Anna", "Bonn"), "answers": _answers}.get(name, _of("Anna", "Bonn"))
        _add_column(rng, file, name, make)
        unclear = (
            name in ("answer", "answer_text")
            and "answer" in roles
            or name == "answers"
            or name in ("answer", "answer_text")
        )
        return Change(kind, f"{name!r} with words", {name}, None, unclear)
    if task in ("retrieval", "mine"):
        name = rng.choice(
            ("title", "text", "id", "docid", "metadata", "contents", "passage", "url")
        )
        if name in file.roles:
            return None
        _add_column(
            rng,
            file,
            name,
            _text(1500)
            if name in ("text", "contents", "passage")
            else _FILLERS["serial numbers"]
            if name != "title"
            else _of("Birds", "Trains"),
        )
        if name == "title" and "text" in roles and "pair" not in roles and len(file.rows) == ROWS:
            file.roles["title"] = "title"  # of BEIR's corpus; its queries have none
        return Change(
            kind,
            f"{name!r}",
            {name},
            None,
            "pair" in roles and name in ("text", "contents", "passage"),
        )
    return None


def _added_to_conll(rng: random.Random, file: File) -> Change:
    kind, make = rng.choice((
        ("index", lambda i: [str(k + 1) for k in range(3 + i % 3)]),
        ("trailing confidences", lambda i: [f"0.{k + 1}7" for k in range(3 + i % 3)]),
        ("a second column of tags", lambda i: ["O", "O", "B-LOC", "O", "O"][: 3 + i % 3]),
        ("parts of speech", lambda i: ["NNP", "VBD", "NNP", "IN", "NNP"][: 3 + i % 3]),
        ("underscores", lambda i: ["_"] * (3 + i % 3)),
        ("O", lambda i: ["O"] * (3 + i % 3)),
    ))  # fmt: skip
    first = kind == "index" or rng.random() < 0.3
    items = [*file.roles.items()]
    file.roles = dict([(kind, "-"), *items] if first else [*items, (kind, "-")])
    file.order.append(kind)
    file.rows = [{**row, kind: make(i)} for i, row in enumerate(file.rows)]
    unclear = kind in ("a second column of tags",)
    return Change(
        "added: a column of words",
        f"{kind}, {'first' if first else 'last'}",
        {"column", "line 1", "row 1"},
        None,
        unclear,
    )


def _other_type(
    rng: random.Random, file: File, column: str
) -> tuple[str, Callable[[Any], Any], Any] | None:
    """Returns (words, function of a value, type of Arrow) of another type of a column."""
    import pyarrow

    values = [row[column] for row in file.rows if row[column] not in (None, "")]
    if not values:
        return None
    first, found = values[0], []
    if file.format == "parquet" and isinstance(first, str):
        found += [
            ("bytes", lambda v: None if v is None else str(v).encode(), pyarrow.binary()),
            ("large text", lambda v: v, pyarrow.large_string()),
            ("categories", lambda v: v, pyarrow.dictionary(pyarrow.int32(), pyarrow.string())),
        ]
    if isinstance(first, bool):
        found += [
            ("0/1", lambda v: int(v), None),
            ("texts", str, None),
            ("yes/no", lambda v: "yes" if v else "no", None),
            ("floats", float, None),
        ]
    elif isinstance(first, int):
        found += [
            ("floats", lambda v: float(v) if isinstance(v, int) else v, None),
            ("texts", str, None),
            ("texts of floats", lambda v: f"{v}.0" if isinstance(v, int) else v, None),
            ("booleans", lambda v: bool(v), None),
        ]
        if file.format == "parquet":
            found += [
                ("int8", lambda v: v, pyarrow.int8()),
                ("float32", lambda v: float(v), pyarrow.float32()),
            ]
    elif isinstance(first, float):
        found += [
            ("texts", str, None),
            ("decimal commas", lambda v: str(v).replace(".", ","), None),
            ("per cent", lambda v: f"{v}%", None),
            ("whole numbers", lambda v: int(v) if v == int(v) else v, None),
        ]
        if file.format == "parquet":
            found += [
                ("float32", lambda v: float(v), pyarrow.float32()),
                ("decimal", lambda v: __import__("decimal").Decimal(str(v)), None),
            ]
    elif isinstance(first, list) and file.format != "conll":
        found += [
            ("JSON texts", lambda v: json.dumps(v), None),
            ("texts as Python writes lists", lambda v: str(v), None),
            ("texts with commas", lambda v: ", ".join(map(str, v)), None),
        ]
        if all(isinstance(x, str) for v in values for x in v):
            found += [
                ("nested lists", lambda v: [v], None),
                ("joined by spaces", lambda v: " ".join(v), None),
            ]
    elif isinstance(first, dict):
        found += [
            ("JSON texts", lambda v: json.dumps(v), None),
            (
                "lists",
                lambda v: [dict(zip(v, x, strict=True)) for x in zip(*v.values(), strict=True)],
                None,
            ),
        ]
    elif isinstance(first, str) and file.format in TYPED:
        found += [("lists of one", lambda v: [v], None), ("objects", lambda v: {"text": v}, None)]
    return rng.choice(found) if found else None


def typed(rng: random.Random, task: str, file: File) -> Change | None:
    """Changes the type of a column."""
    columns = [name for name, role in file.roles.items() if role != "-"]
    column = rng.choice(columns)
    if (
        rng.random() < 0.08
        and (keys := file.columns("index"))
        and isinstance(file.rows[0][keys[0]], int)
    ):
        for row in file.rows:
            row[keys[0]] += 1
        return Change(
            "typed: keys that count from 1", keys[0], {*keys}, None, True, (lambda whole: whole,)
        )
    found = _other_type(rng, file, column)
    if found is None:
        return None
    words, convert, type_ = found
    for row in file.rows:
        row[column] = convert(row[column]) if row[column] not in (None, "") else row[column]
    file.types[column] = type_
    return Change(
        f"typed: {words}", f"{column!r} as {words}", {column, *(f"row {n}" for n in range(1, 4))}
    )


_NO_VALUE = (
    "",
    None,
    math.nan,
    "nan",
    "NaN",
    "None",
    "N/A",
    "NA",
    "null",
    "-",
    "\\N",
    "<NA>",
    "#N/A",
    "n/a",
)
_ODD: dict[str, tuple[Any, ...]] = {
    "text": (*_NO_VALUE, " ", "\u200b", "\u00a0", 5, 5.5, True, ["a list"], {"text": "x"},
        "  spaces around it  ", "a\nline", '"quoted"', "[1]"),
    "label": (*_NO_VALUE, -1, -100, "-1", "-100", " ", ["good"], {"a": 1}, "case", "spaces",
        "nbsp", "zero width", "composed", "bool", "float", "1e0", "a, b", "?"),
    "labels": (None, "", "a", [None], [""], ["a", "a"], [["a"]], {"a": 1}, ["N/A"], [" a"], ["A"],
        [-1], math.nan, "[]", "['a']", [1]),
    "number": (*_NO_VALUE, "1,5", "1.234,5", "1,234.5", "$3", "3%", "3 stars", "inf", math.inf,
        True, [1.5], {"a": 1}, "1_000", " 2 ", "+2", "2.", "1e1", "٣", "３", "half", -1, -100),
    "words": (None, [], "", "Anna saw Bonn", ["Anna", "", "Bonn"], ["Anna", None, "x"], ["Anna", 5,
        "x"], [["Anna"], ["x"]], {"a": 1}, "['Anna', 'saw', 'Bonn']", "more", "fewer"),
    "tags": (None, [], "", "O O O", "more", "fewer", "tag:-100", "tag:_", "tag:", "tag:-X-",
        "tag:UNK", "tag:b-per", "tag:B-per", "tag:B_PER", "tag:None", "tag:nan", "tag: B-PER ",
            "tag:PER", "tag:X", "tag:0", "tag:-", "tag:B-", "tag:E-PER", "tagged:-100",
                "tagged:None", "tagged:[]"),
    "entities": (None, "", [[0, 4]], [[0, 4, "PER", 1]], [[4, 0, "PER"]], [[0, 400, "PER"]],
        [[-4, 2, "PER"]], [["0", "4", "PER"]], [[0.0, 4.0, "PER"]], [[0, 4, None]], [[0, 4, ""]],
            [[0, 4, "N/A"]], [[0, 4, "PER"], [2, 8, "LOC"]], [[0, 2, "PER"]], [[0, 4, "per"]],
                [{"start": 0, "end": 4}], [{"start": 0, "end": 4, "label": "PER", "text": "Bonn"}],
                    [{"start": 0, "end": 4, "label": ["PER"]}],
                        [{"begin": 0, "end": 4, "label": "PER"}],
                            [{"start": 0, "end": 4, "label": "PER", "score": 0.5}], {"start": 0,
                                "end": 4, "label": "PER"}, [None], ["PER"], [[0, 4, "PER"],
                                    [0, 4, "PER"]], [[0, 4, " PER"]], [[0, 4, "-"]]),
    "answers": (None, "", [], {}, {"text": ["1900"]}, {"text": ["Cologne"], "answer_start": [3]},
        {"text": ["Paris"], "answer_start": [0]}, {"text": [""], "answer_start": [0]},
            {"text": [None], "answer_start": [None]}, {"text": ["Anna"], "answer_start": ["0"]},
                {"text": ["Anna"], "answer_start": [0.0]}, {"text": ["Anna"],
                    "answer_start": [-1]}, {"text": "Anna", "answer_start": 0},
                        {"text": ["Anna", "left"], "answer_start": [0]}, {"text": ["anna"],
                            "answer_start": [0]}, [{"text": "Anna", "answer_start": 0}],
                                {"answer_start": [0], "text": ["Anna"]}, "Anna",
                                    {"text": ["Anna "], "answer_start": [0]}, {"text": ["N/A"],
                                        "answer_start": [0]}, {"text": ["Anna", "Anna"],
                                            "answer_start": [0, 0]}),
    "answer": (None, "Paris", "Anna ", "anna", " ", 5, ["Anna"], "N/A", "nan", "None", "-", "She",
        "unanswerable"),
    "start": (None, "", "x", 3, -1, 0.5, "0", 9999, True, math.nan, "-", "1,5"),
    "index": (*_NO_VALUE, -1, 4, 9, "e", "E", "A", "B.", "(a)", "1)", " 1 ", 1.0, 1.5, True, [1],
        "first", "text", "number", "a text in another case", "4", "0", "d", "mixed"),
    "choice": (None, "", " ", 5, "same", ["a"], math.nan, "None", "5"),
    "choices": (None, [], "", ["only one"], "more", "fewer", "same", "a, b, c, d", ["a", "", "c",
        "d"], ["a", None, "c", "d"], [1, 2, 3, 4], ["3", "2", "1", "0"],
            {"text": ["a", "b", "c", "d"], "label": ["A", "B", "C", "D"]}),
    "negative": (None, "", " ", 5, ["a", "b"], "same", math.nan, "N/A", "nan"),
    "negatives": (None, [], "", "one text that is a text", "more", "fewer", [""], [None], [5],
        [["a"]], "same"),
    "scores": (None, [], "", 5, [1.0], [1.0, None], [1.0, math.nan], ["1.0", "0.5"], [True, False],
        "[1.0, 0.5]", [1.0, "1,5"], [1.0, 0.5, 0.2]),
    "id": (None, "", " ", "twice", 5, 5.0, True, ["a"], {"a": 1}, " x", "x ", math.nan, "nan",
        "an id with spaces", "007", ABSENT),
    "title": (None, "", 5, ["a"], "  ", "nan", ABSENT, math.nan),
    "query": (None, "", "unknown", " ", "twice", "nan"),
    "passage": (None, "", "unknown", " ", "twice", "nan", "self"),
    "grade": (None, "", "x", "-", 0, -1, 2, 0.5, "1,0", "nan", "inf", "1 ", "true"),
    "-": (None, "", "x", 5),
}  # fmt: skip


def _odd_value(
    rng: random.Random, task: str, file: File, index: int, column: str
) -> tuple[str, Any, bool]:
    """Returns (words, value, whether it needs a word) for a cell."""
    role = file.roles[column]
    odd = rng.choice(_ODD.get(role, _ODD["text"])) if role not in ("word", "tag") else None
    row = file.rows[index]
    old = row[column]
    others = [other[column] for other in file.rows]
    if role == "word" or role == "tag":
        at = rng.randrange(len(old))
        values = (
            ("", "#", "new word", "\u200b")
            if role == "word"
            else (
                "",
                "-100",
                "_",
                "-X-",
                "UNK",
                "b-per",
                "None",
                "X",
                "B_PER",
                "PER",
                "0.5",
                "B-",
                "-",
                "E-PER",
                "[]",
            )
        )
        new = rng.choice(values)
        return (
            f"{role} {new!r}",
            [*old[:at], *([new] if new else []), *old[at + 1 :]],
            new == "new word",
        )
    if role == "label" and isinstance(odd, str):
        name = str(others[(index + 1) % len(others)])
        forms = {
            "case": name.upper() if name.upper() != name else name.lower(),
            "spaces": f"  {name} ",
            "nbsp": f"{name}\u00a0",
            "zero width": f"{name}\u200b",
            "composed": f"{name}e\u0301",
            "bool": True,
            "float": f"{name}.0",
            "1e0": "1e0",
        }
        if odd in forms:
            if odd in ("float", "1e0") and not name.isdigit():
                return f"label {name!r} again", name, False
            return (
                f"label {odd}",
                forms[odd],
                odd in ("case", "zero width")
                and name not in ("True", "False")
                and not name.isdigit(),
            )
    if role == "label" and str(odd) in ("-1", "-100"):
        return f"label {odd!r}", odd, True
    if role in ("words", "tags", "choices", "negatives") and odd in ("more", "fewer"):
        extra = {"words": "x", "tags": "O"}.get(role, "One more of them.")
        return (
            f"{role}: {odd}",
            [*old, extra] if odd == "more" else old[:-1],
            role == "choices" or (role == "negatives" and len(file.rows) == ROWS),  # in training
        )
    if role == "tags" and isinstance(odd, str) and odd.startswith("tag"):
        what, _, new = odd.partition(":")
        at = rng.randrange(len(old))
        value: Any = {"-100": -100, "None": None, "[]": []}[new] if what == "tagged" else new
        return f"tag {value!r}", [*old[:at], value, *old[at + 1 :]], value != " B-PER "
    if odd == "same" and role in ("choice", "negative"):
        same = next(
            row[c] for c, r in file.roles.items() if (r == role and c != column) or r == "pair"
        )
        return f"{role} equal to another", same, role == "negative" and task == "rerank"
    if odd == "same":
        value = (
            [old[0], *old[:-1]] if role == "choices" else [row[file.columns("pair")[0]], *old[1:]]
        )
        return f"{role}: two are equal", value, task == "rerank" and not file.columns("scores")
    if role == "index" and odd in ("text", "number", "a text in another case", "mixed"):
        choices = (
            row[file.columns("choices")[0]]
            if file.columns("choices")
            else [row[c] for c in file.columns("choice")]
        )
        value = {
            "text": choices[2],
            "number": 2,
            "mixed": "b",
            "a text in another case": choices[1].upper(),
        }[odd]
        return f"key: {odd}", value, odd in ("a text in another case",)
    if role == "id" and odd == "twice" or role in ("query", "passage") and odd == "twice":
        return f"{role} of another row", others[(index + 1) % len(others)], False
    if role == "passage" and odd == "self":
        return "passage: the query's own id", row[file.columns("query")[0]], False
    if isinstance(odd, list | dict) and file.format in ("csv", "tsv"):
        odd = str(odd)
    if file.format == "tsv" and isinstance(odd, str):
        odd = odd.replace("\n", " ").replace('"', "")
    return f"{role} {'no key' if odd is ABSENT else odd!r}", odd, False


def odd_row(rng: random.Random, task: str, file: File) -> Change | None:
    """Makes one row odd."""
    index = rng.choice(
        (0, len(file.rows) - 1, rng.randrange(len(file.rows)), rng.randrange(len(file.rows)))
    )
    number = file.number(index)
    chance = rng.random()
    if chance < 0.12 and file.format != "conll":
        return _odd_structure(rng, task, file, index, number)
    column = rng.choice([c for c, r in file.roles.items() if r != "-"])
    if chance < 0.2 and file.format in ("jsonl", "json"):
        file.rows[index].pop(column)
        return Change(
            "odd row: a key is missing", f"row {number} has no {column!r}", {column}, index
        )
    role, old = file.roles[column], file.rows[index][column]
    words, value, unclear = _odd_value(rng, task, file, index, column)
    if value is ABSENT and file.format not in ("jsonl", "json"):
        return None
    file.rows[index][column] = value
    if file.format == "parquet" and file.types.get(column):
        file.types.pop(column)
    cells = {str(cell).strip() for cell in (value, old) if isinstance(cell, str | int)}
    cells |= {""} if value in (None, ABSENT) else set()
    if isinstance(value, list) and isinstance(old, list):
        cells |= {str(cell).strip() for cell in value if cell not in old}
    names = {column, *(repr(cell) if len(cell) < 3 else repr(cell)[1:-1] for cell in cells)}
    return Change(f"odd row: {role}", f"row {number}, {column!r}: {words}", names, index, unclear)


def _odd_structure(
    rng: random.Random, task: str, file: File, index: int, number: int
) -> Change | None:
    row = file.rows[index]
    if file.format in ("csv", "tsv"):
        kind = rng.choice(("extra field", "empty row", "header again", "row twice"))
        if kind == "extra field":
            row[""] = ["extra"]
        elif kind == "empty row":
            file.rows[index] = dict.fromkeys(file.roles, "")
        elif kind == "header again":
            if not file.header:
                return None
            file.rows[index] = {column: column for column in file.roles}
            return Change(f"odd row: {kind}", f"row {number}", {"row"}, index, True)
        else:
            file.rows.insert(index, dict(row))
        return Change(f"odd row: {kind}", f"row {number}", {"row"}, index)
    if file.format == "parquet":
        file.rows[index] = dict.fromkeys(file.roles)
        return Change("odd row: only nulls", f"row {number}", {"row"}, index)
    kind = rng.choice(
        ("extra key", "extra key", "list", "text", "null", "empty object", "key of the task")
    )
    if kind == "extra key":
        name = rng.choice(("foo", "note", "url"))
        row[name] = rng.choice((1, "x", None, ["a"]))
        return Change("odd row: extra key", f"row {number}", {"row", name}, index)
    if kind == "key of the task":
        keys: dict[str, tuple[str, Any]] = {
            "embed": ("negative", "One more text here."),
            "rerank": ("negatives", ["One more."]),
            "classify": ("labels", ["a"]),
            "regress": ("label", 3),
            "tag": ("entities", []),
            "qa": ("is_impossible", True),
            "choice": ("label", 1),
        }
        name, value = rng.choice(
            (("answer", "reject"), ("split", "test"), keys.get(task, ("score", 0)))
        )
        if name in file.roles or (name == "answer" and task == "qa"):
            return None
        row[name] = value
        impossible = _each(lambda i, x: (*x[:2], frozenset()) if i == index else x)
        return Change(
            "odd row: a key of the task",
            f"row {number} has {name!r}: {value!r}",
            {name},
            index,
            task not in SETS or "pair" in file.roles.values(),
            (impossible,) if name == "is_impossible" else (),
        )
    file.rows[index] = {"\0": {"list": ["a"], "text": "a", "null": None, "empty object": {}}[kind]}
    return Change(f"odd row: {kind}", f"row {number}", {"row"}, index)


CHANGES = (renamed, renamed, added, added, added, reordered, typed, odd_row, odd_row, odd_row)


def change_files(
    rng: random.Random, task: str
) -> tuple[dict[str, File], dict[str, Any], str, Change]:
    """Returns the files of a user after a single change, options, the changed file, the change."""
    for _ in range(200):
        files, options = make_files(rng, task)
        names = [*files] if task in SETS else ["train", "train", "train", "dev"]
        name = rng.choice(names)
        file = files[name] = files[name].copy()
        change = rng.choice(CHANGES)(rng, task, file)
        if change is not None:
            return files, options, name, change
    raise RuntimeError("no change was found")
