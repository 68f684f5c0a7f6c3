"""Advice about users' tables: what most likely is not meant as it is read, and what to do then.

Nothing here changes how examples are read. A function returns its warnings, or "".
"""

import difflib
import itertools
import re
import unicodedata
from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Sequence
from datetime import datetime
from typing import Any

import numpy as np

from bertjax.tasks.dataset import By, Dataset
from bertjax.tasks.sources.data_files import row_name
from bertjax.tasks.sources.tables import CSV_QUOTED, Table, read_number, read_tsv

# Number of rows of TSV that are searched for fields quoted as in CSV.
ROWS_SEARCHED = 10_000
# How programs for SQL escape tabs, line ends and backslashes, and mark a missing value.
_SQL_ESCAPE = re.compile(r"(?<=[\w.,;!?])\\[tnr]|\\\\|\A\\N\Z")
# One word with digits, such as the number of a patient.
_CODE = re.compile(r"(?=.*\d)[\w./-]{1,40}", re.ASCII)
SEPARATORS = "|;,"
# Numbers whose point may separate thousands: 24.827, but not 0.827 or 1250.827.
_THOUSANDS = re.compile(r"[+-]?[1-9]\d{0,2}\.\d{3}")
# The most warnings of classes with similar names.
MOST_SIMILAR = 5
# A class may be a misspelling of another one that is so many times as frequent, if so large a share
# of their letters agrees and the name has so many letters.
MISSPELT_FACTOR = 20
MISSPELT_SHARE = 0.85
MISSPELT_LETTERS = 5


def escape_note(table: Table) -> str:
    """Returns a warning about the first row of TSV that seems quoted or escaped, or "".

    Quotes and backslashes have no meaning in TSV, so that they become a part of the text. The first
    `ROWS_SEARCHED` rows are searched.
    """
    if not table.is_tsv:
        return ""
    for number, fields in itertools.islice(read_tsv(table.path), ROWS_SEARCHED):
        where = row_name(table.path, number)
        for field in fields:
            if '""' in field and CSV_QUOTED.fullmatch(field.strip()):
                return (
                    f"warning: {where} seems to be quoted as in CSV, but quotes have no meaning in "
                    "TSV and are read as text: save the table as CSV."
                )
            if escaped := _SQL_ESCAPE.search(field):
                return (
                    f"warning: {where} holds {escaped[0]}, as MySQL and PostgreSQL escape texts in "
                    "TSV, but it is read as it stands: if it is an escape, export CSV."
                )
    return ""


def code_note(table: Table, column: str) -> str:
    """Returns a warning if most texts in a column are one word with digits, as ids are, or ""."""
    values = map(str, table.first_values(column))
    codes = list(filter(_CODE.fullmatch, values))
    if 2 * len(codes) <= len(table.first_rows):
        return ""
    return (
        f"warning: {table.path}: most texts in {column!r} are one word with digits, such as "
        f"{codes[0]!r}: if they are ids, name the column of the texts with --text_column."
    )


def holds_dates(values: Iterable[Any]) -> bool:
    """Returns whether all are dates or times of ISO 8601, such as 2026-01-31 12:00:00.

    Missing values do not count, but one must be there.
    """
    known = [str(value) for value in values if value not in (None, "")]
    return bool(known) and all(map(_is_date, known))


def _is_date(text: str) -> bool:
    try:
        return not text.isdecimal() and bool(datetime.fromisoformat(text))
    except ValueError:
        return False


def separator_note(classes: Sequence[str]) -> str:
    """Returns a warning if most classes fall into parts, at a sign, that several of them have."""
    for separator in SEPARATORS:
        composed = [label for label in classes if separator in label]
        parts = Counter(part.strip() for label in classes for part in label.split(separator))
        if len(composed) >= 3 and 2 * len(parts) <= parts.total():
            return (
                f"warning: labels such as {composed[0]!r} seem to name several classes; to predict "
                f"each of them by itself, give --label_separator {separator!r}"
            )
    return ""


def thousands_note(targets: Iterable[str]) -> str:
    """Returns a warning if the points in targets, as they are written, may separate thousands.

    They may if all are followed by three digits, unless all targets look like decimals that are
    written with three digits.
    """
    pointed = []
    has_whole = False
    for target in targets:
        if "." not in target:
            has_whole |= target.isdecimal()
        elif _THOUSANDS.fullmatch(target):
            pointed.append(target)
        else:
            return ""
    rounded = sum(target.endswith("00") for target in pointed)
    if not pointed or not (has_whole or 2 * rounded > len(pointed)):
        return ""
    return (
        "warning: the targets that contain a point all have three digits after it, such as "
        f"{pointed[0]}, which is read as the decimal number {float(pointed[0]):g}: if the points "
        "separate thousands, remove them from the file."
    )


def similar_classes(labels: Sequence[str], counts: np.ndarray) -> list[str]:
    """Returns warnings of classes that may be one in several spellings; `counts` are int [classes].

    They differ only in how they are written, or a rare one may be a misspelling of a frequent one.
    """
    warnings = [*_alike(labels), *_misspelt(labels, counts)]
    lines = [f"warning: {warning}" for warning in warnings[:MOST_SIMILAR]]
    if len(warnings) > MOST_SIMILAR:
        lines.append(f"warning: and {len(warnings) - MOST_SIMILAR} more such groups of classes")
    return lines


def _alike(labels: Sequence[str]) -> list[str]:
    groups: dict[str, list[str]] = {}
    for label in labels:
        groups.setdefault(_spelt(label), []).append(label)
    warnings = []
    for key, group in groups.items():
        if key and len(group) > 1:
            warnings.append(
                f"the classes {', '.join(map(repr, group))} differ only in how they are written: "
                "if they are one class, write them alike."
            )
    return warnings


def _spelt(label: str) -> str:
    """Returns the number that a label is, or its letters and digits in one case and form."""
    number = read_number(label)
    if number is not None:
        return str(number)
    letters = unicodedata.normalize("NFKC", label).casefold()
    return re.sub(r"[\W_]+", "", letters)


def _misspelt(labels: Sequence[str], counts: np.ndarray) -> list[str]:
    words = {}
    for label, count in zip(labels, counts.tolist(), strict=True):
        if count and len(label) >= MISSPELT_LETTERS and not re.search(r"\d", label):
            words[label] = count
    warnings = []
    for label, count in words.items():
        frequent = [name for name in words if words[name] >= MISSPELT_FACTOR * count]
        for near in difflib.get_close_matches(label, frequent, 1, MISSPELT_SHARE):
            if _spelt(near) != _spelt(label):  # else `_alike` names them
                warnings.append(
                    f"the class {label!r} ({count:,}) is almost {near!r}: if it is misspelt, "
                    "correct it in the file."
                )
    return warnings


# Words of names of columns that say whom or what a row belongs to, in ten languages, without
# accents, what they end in as parts of a compound, and words that may follow them.
OWNERS = frozenset(
    # English
    "patient patients subject subjects participant person user author writer document doc docs "
    "case session speaker family household site hospital clinic centre center customer client "
    "student thread conversation dialogue dialog visit encounter admission donor animal specimen "
    "pat pid mrn subj usubj "
    # German, French
    "patientin proband probandin nutzer benutzer autor autorin verfasser dokument akte fall "
    "sitzung sprecher sprecherin familie klinik krankenhaus kunde schuler klient teilnehmer "
    "bewohner versuchsperson vp aktenzeichen "
    "patiente sujet utilisateur auteur autrice dossier cas seance locuteur famille hopital "
    # Spanish, Italian, Portuguese
    "paciente sujeto usuario autora documento caso sesion hablante familia sitio cliente "
    "paziente soggetto utente autore sessione parlante famiglia sito ospedale "
    "sujeito utilizador sessao falante processo "
    # Dutch, Polish, Turkish
    "gebruiker schrijver geval sessie spreker gezin ziekenhuis klant "
    "pacjent uzytkownik przypadek sesja mowca rodzina szpital "
    "hasta kullanici yazar belge vaka oturum konusmaci aile hastane "
    # Russian, Chinese
    "пациент субъект пользователь автор документ случаи сессия сеанс спикер семья больница "
    "患者 病人 用户 作者 文档 病例 会话 说话人 家庭 医院".split()
)
_NUMBERS = frozenset(
    "id ids uid no nr num number nummer numero numer key code hash index idx name kennung "
    "kurzel".split()
)
# In one word, as in Patientennummer and userid.
_OWNER = re.compile(f"({'|'.join(OWNERS)})(n|en|innen)?({'|'.join(_NUMBERS)})?")
# How much of the label a column without such a name must explain, and by how many standard
# deviations more than the same values in random orders.
DEPENDENT = 0.3
DEVIATIONS = 4
RANDOM_ORDERS = 20
# The smallest share of rows whose value another row has already.
REPEATED = 0.1
# The rows of a split whose columns are compared.
ROWS_COMPARED = 100_000


def names_owner(column: str) -> bool:
    """Returns whether the name of a column says that rows with one value belong together."""
    letters = unicodedata.normalize("NFKD", column)
    plain = "".join(letter for letter in letters if not unicodedata.combining(letter))
    words = re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[^\W\d_A-Za-z]+", plain)
    words = [word.lower() for word in words]
    while len(words) > 1 and words[-1] in _NUMBERS:
        words.pop()
    return bool(words) and _OWNER.fullmatch(words[-1]) is not None


def shared_values(data: Dataset, by: By, ignored: Collection[str]) -> str:
    """Returns a warning if values of a column that is not used are in train and elsewhere, or "".

    Values of such a column repeat, and its name says that its rows belong together, or the label
    depends on it, so that rows of one value tell the label of the others.
    """
    skipped = data.read_columns.union(ignored)
    columns: dict[str, dict[str, list[int]]] = {}  # {column: {split: hashes of long values}}
    labels: list[Hashable] = []  # of train
    for split in data.splits:
        for example in itertools.islice(data.examples(split), ROWS_COMPARED):
            if split == "train":
                labels.append(by.key(example))
            for name in example.row.keys() - skipped:
                value = example.row[name]
                if not isinstance(value, list | dict):
                    hashes = columns.setdefault(name, {}).setdefault(split, [])
                    hashes.append(hash(str(value)))
    found = []
    for name, hashes in columns.items():
        trained = np.array(hashes.pop("train", ()), np.int64)
        if len(trained) < len(labels):
            continue  # rows of JSON may lack a column
        values, ids = np.unique(trained, return_inverse=True)
        size = len(values)
        both = np.intersect1d(values, [*itertools.chain(*hashes.values())])
        if len(both) and 1 < size < (1 - REPEATED) * len(ids):
            is_owner = names_owner(name)
            if is_owner or _is_told(labels, ids, size, by):
                found.append((is_owner, size, len(both), name, " or ".join(hashes)))
    if not found:
        return ""
    found.sort(reverse=True)
    shown = []
    for _, size, count, name, others in found:
        shown.append(f"{count:,} of {size:,} values of {name} are in train and {others}")
    first = found[0][3]
    return (
        f"warning: {', '.join(shown)}; give --group_column {first} to keep the rows of a value in "
        "one split, or --ignore_columns if they tell nothing about each other."
    )


def _is_told(labels: Any, values: np.ndarray, size: int, by: By) -> bool:
    """Returns whether labels depend on `values`, int [N], of which there are `size`."""
    measure: Any = cramers_v
    if by.keys == "target":
        measure = variance_explained
        labels = np.array(labels, np.float64)
    # A column with no more values than there are classes is another name of the classes.
    elif by.keys not in ("class", "labels") or size <= len({*labels}):
        return False
    dependence = measure(values, labels)
    if dependence <= DEPENDENT:
        return False
    rng = np.random.default_rng(0)
    by_chance = [measure(rng.permutation(values), labels) for _ in range(RANDOM_ORDERS)]
    return bool(dependence > np.mean(by_chance) + DEVIATIONS * np.std(by_chance))


def variance_explained(groups: np.ndarray, values: np.ndarray) -> float:
    """Returns the share of the variance of `values`, float [N], between `groups`, int [N].

    It is eta squared, corrected for bias (epsilon squared, Kelley 1935), and may be below 0.
    """
    size = len(values)
    counts = np.bincount(groups)
    means = np.bincount(groups, values) / np.maximum(counts, 1)
    deviations = values - means[groups]
    freedom = max(size - np.count_nonzero(counts), 1)
    within = np.square(deviations).sum() / freedom
    total = values.var(ddof=1)
    if not total:
        return 0.0
    return float(1 - within / total)


def cramers_v(groups: np.ndarray, classes: Sequence[Hashable]) -> float:
    """Returns Cramér's V of `groups`, int [N], and fewer `classes`, corrected for bias.

    Its square is the mean of the shares of the variance of each class that groups explain, weighted
    by how rare the class is. Without the correction, V would be .45 for independent variables with
    five rows per group.
    """
    size = len(groups)
    numbers: dict[Hashable, int] = {}
    of_rows = np.array([numbers.setdefault(name, len(numbers)) for name in classes])
    # A cell is a group and a class that occur together.
    cells, counts = np.unique(groups * len(numbers) + of_rows, return_counts=True)
    group_of_cell, class_of_cell = np.divmod(cells, len(numbers))
    group_sizes = np.bincount(groups)
    class_sizes = np.bincount(of_rows)
    weights = 1 - class_sizes / size
    # Sums of squared deviations of what is 1 for a class and else 0.
    total = class_sizes * weights
    if not total.any():
        return 0.0  # one class
    squares = counts**2 / group_sizes[group_of_cell]
    within = class_sizes - np.bincount(class_of_cell, squares)
    freedom = max(size - np.count_nonzero(group_sizes), 1)
    variance = total / (size - 1)
    explained = 1 - (within / freedom) / variance
    mean = np.average(explained, weights=weights)
    return float(np.sqrt(max(mean, 0.0)))
