"""Holds out examples of the train split if there is no dev split.

Either a fraction of the examples is held out, or the examples are divided into folds, each of which
is held out in one run of a cross-validation. The choices of a fraction are the same in every run.
scikit-learn's splits refuse a class of one example.

Rows of one group, such as a patient, are in one split only. By time, the newest rows are held out,
and each fold is evaluated with a model of older rows.
"""

import dataclasses
import itertools
import operator
import warnings
from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Sequence
from datetime import UTC, datetime
from fractions import Fraction
from typing import Any, TypeVar

import numpy as np

from bertjax.config.task_options import OwnFilesOptions
from bertjax.tasks.dataset import By, Dataset, Fold, GroupKey, connected, group_keys
from bertjax.tasks.sources.advice import shared_values
from bertjax.tasks.sources.columns import lacks_column
from bertjax.tasks.sources.leaks import without_leaks
from bertjax.tasks.sources.tables import FIRST_ROWS, read_number, shorten

DatasetT = TypeVar("DatasetT", bound=Dataset)


def _indices_by(keys: Sequence[Hashable]) -> list[list[int]]:
    """Returns the indices of the examples with each key, in the order in which keys occur."""
    indices: dict[Hashable, list[int]] = {}
    for index, key in enumerate(keys):
        indices.setdefault(key, []).append(index)
    return [*indices.values()]


def _by_value(values: Sequence[float]) -> np.ndarray:
    """Returns the indices of `values` in ascending order."""
    return np.argsort(np.asarray(values, np.float64), kind="stable")


def _share(fraction: float, size: int) -> int:
    """Returns the number of `size` examples to choose: at least one, but not all."""
    return min(max(round(fraction * size), 1), size - 1)


def stratified(labels: Sequence[Hashable], fraction: float) -> frozenset[int]:
    """Chooses `fraction` of the examples of each label at random; returns their indices.

    Of a label with two or more examples, at least one is chosen and at least one is not; an example
    that alone has its label is not chosen.
    """
    rng = np.random.default_rng(0)
    chosen: list[int] = []
    for indices in _indices_by(labels):
        shuffled = rng.permutation(indices)
        chosen += shuffled[: _share(fraction, len(indices))].tolist()
    return frozenset(chosen)


def spread(values: Sequence[float], fraction: float) -> frozenset[int]:
    """Chooses `fraction` of the examples, evenly over the sorted `values`; returns their indices.

    One example of each block of consecutive sorted examples is chosen at random.
    """
    rng = np.random.default_rng(0)
    order = _by_value(values)
    count = _share(fraction, len(order))
    if count < 1:
        return frozenset()
    return frozenset(int(rng.choice(block)) for block in np.array_split(order, count))


def grouped(groups: Sequence[Hashable], fraction: float) -> frozenset[int]:
    """Chooses whole groups with about `fraction` of the examples; returns the examples' indices.

    Questions about one passage, for example, are then either all trained on or all evaluated.
    """
    chosen = group_share(_numbered(groups), None, fraction)
    return frozenset(np.flatnonzero(chosen).tolist())


# The most folds of groups of which some together are the held-out fraction, unless it is smaller
# than one of them.
MOST_PARTS = 20
# Stratifying by so many folds takes about half a millisecond per group; among more groups, chance
# balances the classes.
MOST_STRATIFIED = 5_000


def group_folds(
    groups: np.ndarray, classes: Sequence[Hashable] | None, count: int, seed: int
) -> np.ndarray:
    """Divides examples into `count` folds of whole groups; returns the fold of each, int [N].

    The folds are those of scikit-learn's `StratifiedGroupKFold`, with as equal shares of each of
    `classes` as groups allow, or those of `GroupKFold` if `classes` is None, all of them are rare,
    a fold would be empty, or there are more than `MOST_STRATIFIED` groups (of more than
    `MOST_PARTS` folds, accordingly fewer). Of fewer than `count` `groups`, int [N] from 0, each is
    a fold.
    """
    from sklearn.model_selection import GroupKFold, StratifiedGroupKFold

    size = int(groups.max(initial=-1)) + 1
    if size < count:
        return groups
    most = MOST_STRATIFIED * MOST_PARTS / max(count, MOST_PARTS)
    if classes is not None and size <= most:
        numbers = _numbered(classes)
        if np.bincount(numbers).max() >= count:
            splitter = StratifiedGroupKFold(count, shuffle=True, random_state=seed)
            folds = _folds_of(splitter, groups, numbers)
            if len(np.unique(folds)) == count:
                return folds
    # Of groups of equal size, it deals those with larger numbers first.
    shuffled = np.random.default_rng(seed).permutation(size)
    return _folds_of(GroupKFold(count), shuffled[groups])


def _folds_of(splitter: Any, groups: np.ndarray, classes: np.ndarray | None = None) -> np.ndarray:
    folds = np.zeros(len(groups), np.int64)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # about rare classes
        parts = splitter.split(folds, classes, groups)
        for fold, (_, members) in enumerate(parts):
            folds[members] = fold
    return folds


def _numbered(keys: Sequence[Hashable]) -> np.ndarray:
    numbers: dict[Hashable, int] = {}
    return np.array([numbers.setdefault(key, len(numbers)) for key in keys], np.int64)


def group_share(
    groups: np.ndarray, classes: Sequence[Hashable] | None, fraction: float, seed: int = 0
) -> np.ndarray:
    """Chooses whole groups with about `fraction` of the examples; returns bool [N].

    The examples are divided into folds, and those neighbouring folds are chosen that have nearest
    to `fraction` of the examples of each class.
    """
    size = len(np.unique(groups))
    if size < 2:
        return np.zeros(len(groups), bool)
    smaller = max(min(fraction, 1 - fraction), 1 / size)
    most = min(max(MOST_PARTS, round(1 / smaller)), size)
    smallest = 1 / most
    within = np.clip(fraction, smallest, 1 - smallest)
    share = Fraction(float(within)).limit_denominator(most)
    parts = share.denominator
    taken = share.numerator
    folds = group_folds(groups, classes, parts, seed)
    numbers = np.zeros(len(groups), np.int64)
    if classes is not None:
        numbers = _numbered(classes)
    counts = np.zeros((parts, numbers.max() + 1))  # examples by fold and class
    np.add.at(counts, (folds, numbers), 1)
    wanted = fraction * counts.sum(axis=0)
    # Row i counts the examples of the folds from i, as many as are taken.
    chosen = np.zeros_like(counts)
    for offset in range(taken):
        chosen += np.roll(counts, -offset, axis=0)
    distances = np.abs(chosen - wanted).sum(axis=1)
    first = distances.argmin()
    return (folds - first) % parts < taken


def keeping_labels(
    chosen: np.ndarray, groups: np.ndarray, labels: Sequence[Collection[Hashable]]
) -> np.ndarray:
    """Returns `chosen`, bool [N], without a group of each label that would else not be trained on.

    `groups` are int [N], and `labels` those of each example.
    """
    trained = set().union(*itertools.compress(labels, ~chosen))
    needed = []
    for is_chosen, group, of_example in zip(chosen, groups, labels, strict=True):
        if is_chosen and not trained.issuperset(of_example):
            needed.append(group)
            trained.update(of_example)
    return chosen & ~np.isin(groups, needed)


def stratified_folds(labels: Sequence[Hashable], count: int, seed: int) -> np.ndarray:
    """Divides examples into `count` folds with the same numbers of each label, but for one example.

    The sizes of the folds differ by at most one. Returns the fold of each example, int [N].
    """
    rng = np.random.default_rng(seed)
    order: list[int] = []
    for indices in _indices_by(labels):
        order += rng.permutation(indices).tolist()
    folds = np.zeros(len(labels), np.int64)
    # The remainders of all labels are dealt in turn, so that no fold gets all of them.
    folds[order] = np.arange(len(order)) % count
    return folds


def spread_folds(values: Sequence[float], count: int, seed: int) -> np.ndarray:
    """Divides examples into `count` folds, each of them evenly over the sorted `values`.

    Each fold has one of every `count` consecutive examples. Returns each example's fold, int [N].
    """
    rng = np.random.default_rng(seed)
    order = _by_value(values)
    folds = np.zeros(len(order), np.int64)
    for start in range(0, len(order), count):
        block = order[start : start + count]
        folds[block] = rng.permutation(count)[: len(block)]
    return folds


def grouped_folds(groups: Sequence[Hashable], count: int, seed: int) -> np.ndarray:
    """Divides examples into `count` folds that consist of whole groups, such as passages.

    The shuffled groups are given, the largest first, to the fold with the fewest examples so far.
    Returns the fold of each example, int [N].
    """
    return group_folds(_numbered(groups), None, count, seed)


def _rarest(labels: Sequence[Sequence[Hashable]]) -> list[Hashable]:
    """Returns the rarest label of each example: most combinations of labels may occur only once."""
    counts = Counter(itertools.chain.from_iterable(labels))
    return [min(several, key=counts.__getitem__, default=None) for several in labels]


def rarest(labels: Sequence[Sequence[Hashable]], fraction: float) -> frozenset[int]:
    """Chooses as `stratified` does, by the rarest of the labels of each example."""
    return stratified(_rarest(labels), fraction)


def rarest_folds(labels: Sequence[Sequence[Hashable]], count: int, seed: int) -> np.ndarray:
    """Divides as `stratified_folds` does, by the rarest of the labels of each example."""
    return stratified_folds(_rarest(labels), count, seed)


_LABEL = operator.attrgetter("label")
BY_CLASS = By(_LABEL, stratified, stratified_folds, "the same share of every class", "class")
BY_RAREST = By(_LABEL, rarest, rarest_folds, "the same share of every label", "labels")
BY_TARGET = By(_LABEL, spread, spread_folds, "evenly over the range of the targets", "target")
BY_PASSAGE = By(operator.attrgetter("pair"), grouped, grouped_folds, "whole passages", "group")
# The keys of all examples are equal.
AT_RANDOM = By(lambda _: None, stratified, stratified_folds, "at random")


# Fraction of the user's train file that is held out if there is no dev file.
DEV_FRACTION = 0.1


def divide(data: DatasetT, options: OwnFilesOptions, fold: Fold | None, by: By) -> DatasetT:
    """Holds out a fold, or the fraction that `options` say, if `data` has no dev split.

    With columns of groups, rows whose group is in a later split (train, dev, test) are left out.
    Leaks between the splits are found, and left out if `options` say so. Notes and warnings for the
    user are printed.

    Raises:
        ValueError: there are fewer different texts or groups than folds, a fold is empty, a column
            of groups or of the time is missing, or a time cannot be read.
    """
    if data.note:
        print(data.note)
    if "train" not in data.splits:
        return data
    if options.slice_column:
        scored = [*data.splits]
        if "dev" in scored:  # else, the dev split is held out of train
            scored.remove("train")
        _check_columns(data, scored, options.slice_column, "has no scores of slices")
        data = dataclasses.replace(data, slice_columns=options.slice_column)
    if options.group_column:
        data = _apart(with_groups(data, options.group_column))
    fraction = options.dev_fraction
    if fraction is None:
        fraction = DEV_FRACTION
    if "dev" not in data.splits and (fraction or fold):
        if options.time_column is not None:
            data = split_by_time(data, options.time_column, fraction, fold)
        elif options.group_column:
            data = split_by_groups(data, by, fraction, fold)
        else:
            data = data.split(by, fraction, fold)
        print(data.note)
        if options.time_column and options.group_column:
            data = _apart(data)  # the time alone has divided the rows
    if not options.group_column:  # else, the columns of groups are known
        if warning := shared_values(data, by, options.ignore_columns):
            print(warning)
            data = dataclasses.replace(data, warning=warning)
    return without_leaks(data, options.drop_leaks, " --drop_leaks train leaves them out of train.")


def with_groups(data: DatasetT, columns: tuple[str, ...]) -> DatasetT:
    """Returns a dataset with columns of groups.

    A test split may lack them, which a warning says: it may have no labels, and be of others.

    Raises:
        ValueError: another split lacks one of `columns`; the message suggests the nearest name.
    """
    _check_columns(data, data.splits, columns, "is taken as of other groups than all others")
    return dataclasses.replace(data, group_columns=columns)


def _check_columns(
    data: Dataset, splits: Iterable[str], columns: Sequence[str], without: str
) -> None:
    """Raises ValueError if a split lacks a column; of test, warns what is so `without` it."""
    for split in splits:
        for name in columns:
            try:
                _check_column(data, split, name)
            except ValueError as error:
                if split != "test":
                    raise
                print(f"warning: {error} The test split {without}.")


def _check_column(data: Dataset, split: str, name: str) -> None:
    columns: dict[str, None] = {}
    for example in itertools.islice(data.usable(split), FIRST_ROWS):
        columns |= dict.fromkeys(example.row)
    if name not in columns:
        raise lacks_column(data.path(split), name, [*columns])


def _apart(data: DatasetT) -> DatasetT:
    """Leaves out the rows of a split whose group is in a later one, of train, dev and test."""
    taken: set[GroupKey] = set()
    for split in ("test", "dev", "train"):
        if split not in data.splits:
            continue
        own: set[GroupKey] = set()
        left_out: dict[str, str] = {}
        for example in data.examples(split):
            keys = group_keys(example, data.group_columns)
            if taken.isdisjoint(keys):
                own.update(keys)
            else:
                left_out[example.where] = ""
        if left_out:
            named = " or ".join(data.group_columns)
            print(
                f"{len(left_out):,} examples of the {split} split are left out: their {named} is "
                "in a later one of train, dev and test."
            )
        taken |= own
        data = data.leaving_out(split, left_out)
    return data


def split_by_groups(data: DatasetT, by: By, fraction: float, fold: Fold | None) -> DatasetT:
    """Returns a dataset whose dev split is a fraction, or a fold, of the groups of its train split.

    Groups are the connected components of the columns of groups and, where a task keeps examples
    together by `by`, of these. Shares are counted in examples, and classes are as balanced as
    groups allow. The `note` says what was held out.

    Raises:
        ValueError: there are fewer groups than folds.
    """
    indices = []
    keys = []
    labels = []
    for index, example in data.numbered_train():
        indices.append(index)
        label = by.key(example)
        labels.append(label)
        of_example: list[Hashable] = [*group_keys(example, data.group_columns)]
        if by.keys == "group":
            of_example.append(label)
        keys.append(of_example)
    groups = connected(keys)
    count = len(np.unique(groups))
    named = " and ".join(data.group_columns)
    classes = None  # of each example: of several labels, the rarest
    if by.keys == "class":
        classes = labels
        labels = [(label,) for label in labels]
    elif by.keys == "labels":
        classes = _rarest(labels)
    if fold is None:
        chosen = group_share(groups, classes, fraction)
        if classes is not None:
            chosen = keeping_labels(chosen, groups, labels)
    elif fold.count > count:
        raise ValueError(
            f"--folds {fold.count}: {data.path('train')} has {count:,} groups by {named}, each of "
            f"which is in one fold: give at most --folds {count}."
        )
    else:
        folds = group_folds(groups, classes, fold.count, fold.seed)
        chosen = folds == fold.index
    held_out = len(np.unique(groups[chosen]))
    words = f"{held_out:,} of the {count:,} groups by {named}"
    lacking = keys.count([])
    if lacking:
        words += f", where {lacking:,} examples without {named} are one each"
    members = np.array(indices, np.int64)[chosen]
    dev = frozenset(members.tolist())
    return data.hold_out(dev, len(groups), words, fraction, fold)


def times_of(values: Sequence[Any]) -> np.ndarray:
    """Converts the values of a column to times that can be compared, float64 [N]; NaN: none.

    They are numbers, or else dates and times of ISO 8601, years and months, without a zone in UTC.
    """
    texts = []
    read = read_number
    for value in values:
        text = ""
        if value is not None:
            text = str(value).strip()
        texts.append(text)
        if text and read_number(text) is None:
            read = _instant
    return np.array([read(text) for text in texts], np.float64)  # None becomes NaN


def _instant(text: str) -> float | None:
    rest = "0000-01-01"[len(text) :]  # of a year or a month
    try:
        time = datetime.fromisoformat(text + rest)
    except ValueError:
        return None
    if time.tzinfo is None:
        time = time.replace(tzinfo=UTC)
    return time.timestamp()


def time_cuts(times: np.ndarray, fraction: float, fold: Fold | None) -> tuple[int, int]:
    """Returns the (first, last + 1) of the held-out examples among those sorted by `times`.

    Without a fold, they are the newest `fraction`. Folds are those of scikit-learn's
    `TimeSeriesSplit`. Examples of equal time are on one side of a cut, the nearest one.

    Args:
        times: ascending times, float [N].
    """
    size = len(times)
    if fold is None:
        return _cut(times, size - _share(fraction, size)), size
    held_out = size // (fold.count + 1)
    first = size - held_out * (fold.count - fold.index)
    return _cut(times, first), _cut(times, first + held_out)


def _cut(times: np.ndarray, place: int) -> int:
    if place >= len(times):
        return len(times)
    left = int(np.searchsorted(times, times[place]))
    right = int(np.searchsorted(times, times[place], side="right"))
    if place - left <= right - place:
        return left
    return right


def split_by_time(data: DatasetT, column: str, fraction: float, fold: Fold | None) -> DatasetT:
    """Returns a dataset whose dev split are the newest rows of its train split by `column`.

    With a fold, the dev split is a range of time, and the train split has older rows alone.

    Raises:
        ValueError: the column is missing, a time cannot be read, or there are fewer different times
            than folds.
    """
    _check_column(data, "train", column)
    indices = []
    places = []
    values = []
    for index, example in data.numbered_train():
        indices.append(index)
        places.append(example.where)
        values.append(example.row.get(column))
    times = times_of(values)
    problems = {}
    for number in np.flatnonzero(np.isnan(times)):
        where = places[number]
        value = shorten(values[number])
        problems[where] = (
            f"{where}: {column} is {value}, which is no date of ISO 8601 such as 2026-01-31, year "
            "or number: correct it, or remove the row."
        )
    data = data.without("train", problems)
    usable = len(times) - len(problems)
    order = np.argsort(times, kind="stable")[:usable]  # NaN is last
    ascending = times[order]
    first, end = time_cuts(ascending, fraction, fold)
    different = len(np.unique(ascending))
    if fold is not None and not 0 < first < end:
        raise ValueError(
            f"--folds {fold.count}: {data.path('train')} has {different:,} different values of "
            f"{column}, too few for so many folds of newer rows: give fewer folds."
        )
    dev = order[first:end]
    words = f"the newest by {column}, of {different:,} different values"
    if len(dev):
        oldest = values[dev[0]]
        newest = values[dev[-1]]
        words = f"{column} from {oldest} to {newest}"
        if not data.group_columns:  # else, more are left out
            words += f"; {first:,} older ones are trained on"
    later = {places[number]: "" for number in order[end:]}
    held_out = frozenset(indices[number] for number in dev)
    data = data.leaving_out("train", later)
    return data.hold_out(held_out, usable, words, fraction, fold)
