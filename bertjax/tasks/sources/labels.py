"""The labels of the user's tables: the classes that they are, and labels that are none."""

import itertools
from collections import Counter
from collections.abc import Sequence
from typing import Any

from bertjax.base.files import brief
from bertjax.tasks.dataset import MULTI_HOT, PLACEHOLDERS, Dataset, Example, Fold
from bertjax.tasks.sources.advice import holds_dates
from bertjax.tasks.sources.own_files import OwnDataset
from bertjax.tasks.sources.tables import read_number, shorten
from bertjax.tasks.tags import UNLABELLED, order_tags

# Number of examples from which labels are compared with what is usual.
FEWEST_COUNTED = 50
# Number of labels from which labels such as 0.36 and 4.62 are refused: ratings have fewer values.
MOST_DECIMALS = 20
# A column with more different labels most likely holds numbers or texts instead.
MAX_LABELS = 1000


def learn_labels(data: Dataset, fold: Fold | None = None) -> tuple[str, ...]:
    """Returns the distinct labels of the train split in the order of their class ids.

    Numbers are sorted by value, tags by `order_tags`, and other labels alphabetically. Those of the
    held-out `fold` of a cross-validation are included, so that the models of all folds have the
    same classes.

    Raises:
        ValueError: there are fewer than two different labels, more than `MAX_LABELS`, or, in
            classification with one label per example, almost as many labels as examples or many
            numbers with decimals.
    """
    seen: set[str] = set()
    sizes: Counter[int] = Counter()  # of the lists of labels
    example = None
    where = f"{data.path('train')}: "
    splits = ("train", "dev") if fold else ("train",)
    for example in itertools.chain.from_iterable(map(data.examples, splits)):
        names = _labels(example)
        seen.update(map(str, names))
        sizes[len(names)] += 1
        if len(seen) > MAX_LABELS:
            raise ValueError(
                f"{example.where}: more than {MAX_LABELS:,} different labels so far, the latest "
                f"{shorten(example.label)}. If the labels are numbers, use --task=regress; if they are "
                "texts, name another column with --label_column."
            )
    if example is None:
        raise ValueError(f"{where}There are no examples, only a header or nothing: check the file.")
    if len(seen - {UNLABELLED}) < 2:
        only = f"only the label {brief(min(seen))!r}" if seen else "no labels"
        raise ValueError(
            f"{where}The training data has {only}: a classifier needs at least two different "
            "labels. If another column holds the labels, name it with --label_column."
        )
    if example.words:
        return order_tags(seen - {UNLABELLED})
    several = isinstance(example.label, tuple)
    count = sizes.total()
    if several and seen <= MULTI_HOT and len(sizes) == 1 and max(sizes) > 1:
        raise ValueError(
            f"{where}Every list of labels has {max(sizes)} values, and all are 0 or 1: they seem "
            'to be multi-hot. Write the names of the labels instead, such as ["good", "short"], '
            "and [] for none."
        )
    if len(seen) > MOST_DECIMALS and holds_dates([*seen]):
        raise ValueError(
            f"{where}the {len(seen):,} different labels are dates or times, such as {min(seen)!r}: "
            "name the column that holds the labels with --label_column."
        )
    numbers = {}
    for label in seen:
        number = read_number(label)
        if number is not None:
            numbers[label] = number
    all_numbers = len(numbers) == len(seen)
    with_decimals = any(number % 1 for number in numbers.values())
    measured = all_numbers and with_decimals and len(seen) > MOST_DECIMALS
    rare = count >= FEWEST_COUNTED and 10 * len(seen) > 9 * count
    if (rare or measured) and not several:
        raise ValueError(
            f"{where}{len(seen):,} different labels in {count:,} examples, such as "
            f"{brief(min(seen), 60)!r}. If the labels are numbers, use --task=regress; if another "
            "column holds the labels, name it with --label_column."
        )
    ordered = sorted(seen)
    return tuple(sorted(ordered, key=numbers.__getitem__) if all_numbers else ordered)


def without_placeholders(data: OwnDataset, kept: Sequence[str]) -> OwnDataset:
    """Refuses, or leaves out, the rows whose label marks a missing one, but for those `kept`."""
    splits = sorted({"train", "dev"} & {*data.splits})
    seen = set()
    for split in splits:
        for example in data.examples(split):
            seen.update(_labels(example))
    missing = {label for label in seen if label.lower() in PLACEHOLDERS}.difference(kept)
    if "+" in seen:
        missing.discard("-")
    numbers = [x for x in map(read_number, seen) if x is not None]
    # Without 0, or beside other negative numbers, -1 is a number as the others.
    if len(numbers) == len(seen) and ("0" not in seen or sorted(numbers)[1] < 0):
        missing.discard("-1")
    for split in splits if missing else ():
        problems = {}
        for example in data.examples(split):
            if found := missing.intersection(_labels(example)):
                problems[example.where] = (
                    f"{example.where}: the label {min(found)!r} usually marks a missing one: "
                    "correct it, or remove the row; if it is the name of a class, give "
                    f"--keep_labels {min(found)}."
                )
        data = data.without(split, problems)
    return data


def _labels(example: Example) -> Sequence[str]:
    label: Any = example.label
    return label if isinstance(label, tuple) else (label,)
