"""Exports of annotation tools as tables: Label Studio, Prodigy, doccano, brat and WebAnno TSV.

An export is recognised by its own fields. Its entities are in the column `entities`, as the tool
writes them, which the module `entities` reads.
"""

import itertools
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from bertjax.base.files import MALFORMED, brief
from bertjax.tasks.sources.columns import TableKind
from bertjax.tasks.sources.data_files import (
    JSON_SUFFIXES,
    check_exists,
    open_text,
    read_lines,
    row_name,
    suffix_of,
)
from bertjax.tasks.sources.entities import covers
from bertjax.tasks.sources.tables import Table
from bertjax.tasks.sources.typed_rows import Rows

ENTITIES = "entities"
_LABEL_STUDIO = "Label Studio"
_JSON_MIN = "Label Studio (JSON-MIN)"
_NAMED_ENTITIES = "NamedEntity.value"
_Values = Mapping[str, Any]
_OTHERS = "other annotations of the same text"
# As Label Studio marks a text whose labels are not to be learnt.
_SKIPPED = "was_cancelled"


class AnnotationTable(Table):
    """The export of an annotation tool, which is read whole.

    Attributes:
        tool: the name of the tool.
        numbered: (row number, {column: value} or why the row cannot be read).
        not_read: how many of what else is in the export, by its name.
    """

    is_parquet = is_text = is_tsv = False
    is_typed = True

    def __init__(self, path: Path, tool: str):
        self.path = path
        self.tool = tool
        self.numbered: list[tuple[int, Any]] = []
        self.not_read: Counter[str] = Counter()

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the columns of the first rows, or the usual ones if there are no rows."""
        names = dict.fromkeys(itertools.chain.from_iterable(self.first_rows))
        return tuple(names) or ("id", "text", ENTITIES)

    def rows_and_errors(self) -> Rows:
        return iter(self.numbered)

    def add(self, number: int, read: Callable[..., Any], *arguments: Any) -> None:
        """Adds the row that a function returns, or a ValueError if something is malformed."""
        try:
            row = read(*arguments)
        except MALFORMED as error:
            where = row_name(self.path, number)
            problem = f"{where} is not as {self.tool} writes it: {brief(error)}. Correct it."
            row = ValueError(problem)
        self.numbered.append((number, row))


def annotation_table(path: Path, kind: TableKind, label: str | None) -> AnnotationTable | None:
    """Opens a file if it is the export of an annotation tool, else returns None.

    Of Label Studio's, classes are read as well as entities. `label` is the group of labels that the
    user names.

    Raises:
        FileNotFoundError: the text that a file of brat annotates does not exist.
        ValueError: there are several groups of labels, and none is named.
    """
    named = None if label == ENTITIES else label  # as a model knows it that was trained on one
    if kind.label == "tags":
        annotations = brat_file(path)
        if annotations is not None:
            return _brat(annotations)
        if is_webanno(path):
            return _webanno(path, named)
    if kind.label in ("tags", "class") and suffix_of(path) in JSON_SUFFIXES:
        return _json_export(Table(path), kind, named)
    return None


def _group(path: Path, groups: Sequence[str], known: Sequence[str], named: str | None) -> str:
    """Returns which of the `known` groups of labels is named, or the only one of `groups`."""
    if named in known:
        return str(named)
    if named or len(groups) != 1:
        raise ValueError(
            f"{path} has the groups of labels {brief(', '.join(known)) or 'none'}: name one of "
            "them with --label_column."
        )
    return groups[0]


# JSON: Label Studio, Prodigy and doccano


def _tool_of(row: _Values) -> str:
    match row:
        case {"data": dict(), "annotations": list()} | {"data": dict(), "completions": list()}:
            return _LABEL_STUDIO  # completions before version 1.0
        case {"id": _, "annotator": _, "annotation_id": _, "lead_time": _}:
            return _JSON_MIN
        case {"text": str(), "spans": _, "answer": _} | {"text": str(), "_task_hash": _}:
            return "Prodigy"  # which counts characters, as spaCy does
        case {"id": _, "Comments": list()} | {"entities": [{"start_offset": _}, *_]}:
            return "doccano"
    return ""


def _groups(row: _Values) -> set[str]:
    """Returns the columns of a row that hold entities."""
    found = set()
    for name, value in row.items():
        match value:
            case [{"start": _, "end": _}, *_] | [{"start_offset": _}, *_] | [[int(), int(), _], *_]:
                found.add(name)
    return found - {"tokens"}  # of Prodigy, with their positions


def _json_export(table: Table, kind: TableKind, named: str | None) -> AnnotationTable | None:
    tools = {_tool_of(row) for row in table.first_rows}
    tool = max(tools, default="")
    is_one = tool == "doccano" or "" not in tools  # its texts without entities tell no tool
    is_read = kind.label == "tags" or tool in (_LABEL_STUDIO, _JSON_MIN)
    if not tool or not is_one or not is_read:
        return None
    export = AnnotationTable(table.path, tool)
    if tool == _JSON_MIN:
        export.numbered = _newest(table, export.not_read)
    else:
        for number, row in table.rows_and_errors():
            if isinstance(row, dict) and tool == _LABEL_STUDIO:
                export.add(number, _of_task, row, export.not_read, kind)
            else:
                export.numbered.append((number, row))
    if kind.label == "class":
        return export
    rows = [row for _, row in export.numbered if isinstance(row, dict)]
    groups = set().union(*map(_groups, rows)) or _empty_group(table, export)
    if not groups or (named in table.columns and named not in groups):
        return None  # the entities are in another column, that the user may name
    ordered = sorted(groups)
    group = _group(table.path, ordered, ordered, named)
    for row in rows:
        row.pop("tokens", None)  # of Prodigy, which are no words
        entities = row.pop(group, None) or []
        if row.get(_SKIPPED):
            entities = None
        row[ENTITIES] = entities
    return export


def _empty_group(table: Table, export: AnnotationTable) -> set[str]:
    """Returns the column of the entities of an export without any, in a set that may be empty.

    Raises ValueError if it has something else, such as choices.
    """
    found = {*export.not_read} - {_OTHERS}
    if export.tool == _JSON_MIN or found:
        raise ValueError(
            f"{table.path} is an export of {export.tool} without labels of spans, but with "
            f"{brief(', '.join(found) or 'other columns')}: --task=tag reads spans alone."
        )
    if export.tool == _LABEL_STUDIO:
        return {ENTITIES}
    return {"spans", "label", ENTITIES}.intersection(table.columns)


def _newest(table: Table, not_read: Counter[str]) -> list[tuple[int, Any]]:
    """Returns the rows of JSON-MIN without those of which another annotates the same text."""
    newest: dict[Any, tuple[int, Any]] = {}
    for number, row in table.rows_and_errors():
        key: Any = number
        if isinstance(row, dict):
            key = str(row["id"])
            row[_SKIPPED] = row["annotation_id"] is None
        if key in newest:
            not_read[_OTHERS] += 1
            row = max(newest[key][1], row, key=_age)
        newest[key] = number, row
    return [*newest.values()]


def _age(annotation: _Values) -> tuple[bool, str]:
    time = annotation.get("updated_at") or annotation.get("created_at")
    return bool(annotation.get("ground_truth")), str(time)


def _of_task(task: _Values, not_read: Counter[str], kind: TableKind) -> dict[str, Any]:
    """Returns the data of a task of Label Studio, with its labels or choices as columns.

    They are those of the ground truth or else of the newest annotation that was completed.
    """
    row = {**task["data"], "id": task["id"], _SKIPPED: True}
    done = []
    for annotation in task.get("annotations", task.get("completions")):
        if not annotation.get(_SKIPPED, annotation.get("skipped")):
            done.append(annotation)
    if not done:
        return row
    row[_SKIPPED] = False
    not_read[_OTHERS] += len(done) - 1
    for result in max(done, key=_age)["result"]:
        sort = result["type"]
        name = str(result.get("from_name") or sort)
        value = result.get("value")
        if sort == "labels":
            row.setdefault(name, []).append(value)
        elif sort == "choices" and kind.label == "class":
            choices = value["choices"]
            if len(choices) == 1:
                choices = choices[0]
            row[name] = choices
        else:
            not_read[sort] += 1
    return row


# brat

# The text after the last tab is what the entity covers.
_BRAT_ENTITY = re.compile(r"T\S*\t(\S+) (\d+) (\d+)(?:\t(.*))?")
_BRAT_OTHER = re.compile(r"(?:[REAMN#]\S*|\*)\t.*")


def brat_file(path: Path) -> Path | None:
    """Returns the annotations of brat that a file is, or that stand beside a text, or None."""
    beside = path.with_suffix(".ann")
    if path.suffix in (".ann", ".txt") and beside.is_file():
        return beside
    return None


def _brat(path: Path) -> AnnotationTable:
    """Reads a document as one row, whose id is the name of its file."""
    export = AnnotationTable(path, "brat")
    check_exists(path.with_suffix(".txt"))
    export.add(1, _document, path, export.not_read)
    return export


def _document(path: Path, not_read: Counter[str]) -> dict[str, Any]:
    with open_text(path.with_suffix(".txt"), newline="") as file:
        text = file.read()
    entities = []
    for number, line in read_lines(path):
        if match := _BRAT_ENTITY.fullmatch(line):
            label, start, end, said = match.groups()
            start = int(start)
            end = int(end)
            entities.append({"start": start, "end": end, "label": label, "text": said})
            if not covers(text[start:end], said):  # browsers count \r\n once (brat's issue 853)
                text = text.replace("\r\n", "\n")
        elif _BRAT_OTHER.fullmatch(line):
            not_read["relations, events, attributes and notes"] += 1
        elif line.strip():
            raise ValueError(
                f"line {number}, {brief(line, 60)!r}, is no entity of one part, such as T1, PER 0 "
                "4 and its text with tabs between"
            )
    return {"id": path.stem, "text": text, ENTITIES: entities}


# WebAnno TSV 3, of WebAnno and INCEpTION (its user guide, "WebAnno TSV 3.3 File format")

_FORMAT = "#FORMAT=WebAnno TSV"
_TOKEN = re.compile(r"\d[\d.-]*\t(\d+)-(\d+)\t[^\t]*\t(.*)")
# A value and its number, such as PER[1], which all words of an entity of several words have.
_VALUE = re.compile(r"((?:\\.|[^\\\[|])+)(?:\[(\d+)\])?")
_ESCAPED = re.compile(r"\\(->|.)")
_ESCAPES = {"t": "\t", "n": "\n", "r": "\r"}
# Layers with a value for each word.
_OF_WORDS = re.compile(r"(POS|Lemma|Stem|MorphologicalFeatures|Token|SurfaceForm)\b")


def is_webanno(path: Path) -> bool:
    """Returns whether a file is in WebAnno's format TSV."""
    if suffix_of(path) != ".tsv" or not path.is_file():
        return False
    _, first = next(read_lines(path), (1, ""))
    return first.startswith(_FORMAT)


def _unescaped(text: str) -> str:
    return _ESCAPED.sub(lambda match: _ESCAPES.get(match[1], match[1]), text)


def _webanno(path: Path, named: str | None) -> AnnotationTable:
    """Reads the sentences of a document, and the entities in a column of one of its layers."""
    export = AnnotationTable(path, "WebAnno TSV")
    blocks = itertools.groupby(read_lines(path), lambda line: bool(line[1].strip()))
    filled_blocks = [[*lines] for is_filled, lines in blocks if is_filled]
    header, *sentences = filled_blocks
    _, version = header[0]
    if not version.startswith(f"{_FORMAT} 3"):
        found = brief(version[8:], 60)
        raise ValueError(f"{path} is not WebAnno TSV 3, but {found}: export it as this.")
    columns = []
    for _, line in header[1:]:
        layer, *features = line[6:].split("|")
        name = layer.rpartition(".")[2]
        if not line.startswith("#T_SP="):
            export.not_read[f"layer {name}"] += 1
            continue
        for feature in features or [""]:
            columns.append(f"{name}.{feature}".rstrip("."))
    groups = [name for name in columns if not _OF_WORDS.match(name)]
    if _NAMED_ENTITIES in columns:
        groups = [_NAMED_ENTITIES]
    group = _group(path, groups, columns, named)
    column = columns.index(group)
    unnamed = group
    if "." in group:
        unnamed = ""
    for lines in sentences:
        number, _ = lines[0]
        export.add(number, _sentence, path.stem, lines, column, unnamed)
    return export


def _sentence(
    document: str, lines: Sequence[tuple[int, str]], column: int, unnamed: str
) -> dict[str, Any]:
    """Returns the text of a sentence and its entities, in UTF-16 units, as doccano's.

    `unnamed` is the label of entities without a value, as of a layer without features.
    """
    texts = []
    tokens = []
    for number, line in lines:
        if line.startswith("#Text="):
            texts.append(_unescaped(line[6:]))
        elif match := _TOKEN.fullmatch(line):
            tokens.append(match.groups())
        elif line[0] != "#":
            raise ValueError(f"line {number}, {brief(line, 60)!r}, is no token")
    if not tokens:
        raise ValueError("it has no tokens")
    entities: dict[Any, dict[str, Any]] = {}
    origin = int(tokens[0][0])
    for start, end, values in tokens:
        cells = values.split("\t")
        if column >= len(cells):
            raise ValueError(f"token {start}-{end} lacks the column of the layer")
        for value, number in _VALUE.findall(cells[column]):
            if value == "_":
                continue
            label = unnamed
            if value != "*":
                label = _unescaped(value)
            key = number or (start, label)
            entity = entities.setdefault(key, {"label": label})
            entity.setdefault("start_offset", int(start) - origin)
            entity["end_offset"] = int(end) - origin
    number, _ = lines[0]
    return {
        "id": f"{document}-{number}",
        "document": document,
        "text": "\n".join(texts),
        ENTITIES: [*entities.values()],
    }


# Folders


def annotation_files(folder: Path) -> list[Path]:
    """Returns the files of brat, or else of WebAnno TSV, in a folder and those within it."""
    files = sorted(folder.rglob("[!.]*"))
    of_brat = [file for file in files if file.suffix == ".ann"]
    return of_brat or [file for file in files if is_webanno(file)]
