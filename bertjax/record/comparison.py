"""Compares two models by the files of predictions that `predict` or `finetune` wrote."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from bertjax.base.files import brief, json_lines, read_json_or_empty
from bertjax.base.workdir_files import EVALUATION, MODEL
from bertjax.record.labels import label
from bertjax.tasks import TASKS, Example, Task
from bertjax.tasks.classification import (
    ChoiceTask,
    ClassificationTask,
    DistributionTask,
    MultiLabelTask,
    RegressionTask,
    TargetsTask,
    metric_of,
)
from bertjax.tasks.dataset import Dataset
from bertjax.tasks.embedding import SimilarityTask
from bertjax.tasks.intervals import (
    FEW_GROUPS,
    Difference,
    compare,
    exchanges_of,
    few_groups_in_words,
    mcnemar,
)
from bertjax.tasks.measures import measure_of, scored_rows
from bertjax.tasks.metrics import Measure, higher_is_better, is_fraction
from bertjax.tasks.question_answering import SpanTask
from bertjax.tasks.reranking import RerankTask
from bertjax.tasks.sources.columns import Columns
from bertjax.tasks.tagging import TagTask
from bertjax.tasks.task import GOLD

# Below this p-value, a difference is called rarely chance.
SIGNIFICANT = 0.05
# Scores of which an example is either right or wrong.
RIGHT = ("accuracy", "exact_match", "exact", "subset_accuracy")
# The task that writes a key into its lines of predictions, the first one that there is.
KINDS: Mapping[str, type[Task]] = {
    "words": TagTask,
    "answer": SpanTask,
    "similarity": SimilarityTask,
    "negatives": RerankTask,
    "score": RegressionTask,
    "scores": TargetsTask,
    "labels": MultiLabelTask,
    "label": ClassificationTask,
}
Line = Mapping[str, Any]
Item = TypeVar("Item")


def compare_files(
    first: Path,
    second: Path,
    gold: Path | None = None,
    name: str = "",
    group_columns: tuple[str, ...] = (),
) -> dict[str, Any]:
    """Compares the predictions in two files for the same examples.

    Args:
        first: a file of JSON lines that `predict` or `finetune` wrote.
        second: another one; its examples may be in another order.
        gold: a file with the labels; None: they stand in the lines of `first`.
        name: the name of the task, whose metrics are computed; "": the task of the run that wrote
            `first`, or that of own files with such predictions.
        group_columns: columns of the rows that were predicted, such as patient, whose groups are
            drawn and exchanged as wholes; (): those of the run that wrote `first`, or none.

    Returns {"examples", "metrics", "sentence"}, JSON values. "metrics" has, by name, the scores as
    fractions, their difference (first minus second), its 95 % interval, and p-values.

    Raises:
        ValueError: the files have predictions of other kinds or for other examples, or there are no
            labels.
        FileNotFoundError: a file does not exist.
    """
    read = _lines(first)
    ids = [id for id, _ in read]
    lines = _by_id(first, read, ids)
    others = _by_id(second, _lines(second), ids)
    _check_ids(first, lines, second, others)
    workdir = first.resolve().parent.parent
    description = read_json_or_empty(workdir / MODEL / "task.json")
    name = name or description.get("task", "")
    task = _task_of(name, [*lines.values(), *others.values()])
    if gold is None:
        examples = _written_examples(task, lines, first)
    else:
        from bertjax.inference.evaluation import from_file  # imports jax

        _, of_gold, _ = from_file(task, gold, Columns(), None, description)
        labelled = [(example.id, example) for example in of_gold]
        examples = _by_id(gold, labelled, ids)
        _check_ids(first, lines, gold, examples)
    of_run = ()
    if not group_columns:
        of_run = _groups_of_run(workdir, examples)
    group_columns = group_columns or of_run
    lacking = {*group_columns}
    for example in examples.values():
        lacking.difference_update(example.row)
    if lacking:
        raise ValueError(
            f"--group_column {brief(', '.join(lacking), 60)}: no row that was predicted has it: "
            "give --gold, a file that has it."
        )
    source = Dataset(name=str(first), files={}, rows={}, group_columns=group_columns)
    task = dataclasses.replace(task, source=source)
    pairs = []
    other_pairs = []
    for id, example in examples.items():
        line = lines[id]
        other = others[id]
        if "error" not in line and "error" not in other:
            pairs.append((example, dict(line)))
            other_pairs.append((example, dict(other)))
    rows = scored_rows(task, pairs)
    units = rows.units()
    other_units = scored_rows(task, other_pairs).units()
    groups = rows.groups()
    count = len({*groups})
    if count < 2:
        raise ValueError(
            f"{gold or first}: its {len(groups):,} labelled examples are {count} groups, but a "
            "comparison needs at least two: give more examples or another --group_column."
        )
    measure = measure_of(task, [*units, *other_units])
    differences = _differences(task, measure, groups)
    best = task.best_metric
    if best not in differences:
        best = next(iter(differences))
    names = (str(first), str(second))
    smallest = 1 / (1 + exchanges_of(measure))
    told = sentence(names, best, differences[best], len(units), smallest)
    if group_columns and count < FEW_GROUPS:
        told = f"{told} {few_groups_in_words(count)}"
    if of_run:
        told += f" The rows of one {' or '.join(of_run)} count together, as in the run."
    metrics = {name: found._asdict() for name, found in differences.items()}
    # Words of a sentence, and rows of a group, are not independent.
    if not group_columns and not isinstance(task, TagTask):
        for name in metrics.keys() & measure.ratios.keys() & {*RIGHT}:
            is_right, _ = measure.ratios[name]
            metrics[name]["p_value_mcnemar"] = mcnemar(*np.split(is_right, 2))
    return {"examples": len(units), "metrics": metrics, "sentence": told}


def _groups_of_run(workdir: Path, examples: Mapping[str, Example]) -> tuple[str, ...]:
    """Returns the columns of groups of a run; () if the rows, as those of test, lack one."""
    data = read_json_or_empty(workdir / EVALUATION).get("data", {})
    columns = tuple(data.get("group_columns", ()))
    known: set[str] = set()
    for example in examples.values():
        known.update(example.row)
    if known.issuperset(columns):
        return columns
    return ()


def _differences(task: Task, measure: Measure, groups: Sequence[int]) -> dict[str, Difference]:
    """Returns the differences of the metrics of a task, without those of its parts."""
    names = task.metric_names()
    found = {}
    for metric, difference in compare(measure, groups).items():
        if metric in names or metric.startswith("NoAns_"):
            found[metric] = difference
    return found


def _lines(path: Path) -> list[tuple[str, Line]]:
    """Returns the ids and the lines of a file of predictions."""
    if not path.is_file():
        raise FileNotFoundError(f"{path} does not exist or is not a file: check its name.")
    lines = []
    for line in json_lines(path):
        if line is None or "id" not in line:
            raise ValueError(
                f"{path}: line {len(lines) + 1} is damaged or has no id: give a .jsonl file of "
                "predictions with ids, such as predictions/dev.jsonl in a workdir."
            )
        lines.append((str(line["id"]), line))
    return lines


def _by_id(
    path: Path, items: Sequence[tuple[str, Item]], expected: Sequence[str]
) -> dict[str, Item]:
    """Returns the items of a file by id or, if ids repeat, by their place in the file.

    `expected` are the ids of the first file.
    """
    by_id = dict(items)
    if len(by_id) == len(items):
        return by_id
    if [id for id, _ in items] != expected:
        raise ValueError(
            f"{path}: ids repeat, so that its examples are told apart by their order alone: give "
            "files with the same ids in the same order."
        )
    return {str(place): item for place, (_, item) in enumerate(items)}


def _check_ids(
    path: Path, ids: Mapping[str, Any], other: Path, other_ids: Mapping[str, Any]
) -> None:
    differing = sorted(ids.keys() ^ other_ids.keys())
    if differing or len(ids) < 2:
        raise ValueError(
            f"{path} has {len(ids):,} examples and {other} {len(other_ids):,}; {len(differing):,} "
            f"ids are in one alone ({brief(', '.join(differing), 60)}): give the same examples, "
            "and at least two."
        )


def _task_of(name: str, lines: Sequence[Line]) -> Task:
    """Returns a task that scores the predictions; `name` is that of a task with metrics, or ""."""
    predicted = [line for line in lines if "error" not in line]
    kinds = set()
    for line in predicted:
        kinds.add(next((KINDS[key] for key in KINDS if key in line), None))
    if len(kinds) != 1 or None in kinds:
        raise ValueError(
            "The files do not hold predictions of the same kind: give two files of models of the "
            "same task."
        )
    kind: Any = kinds.pop()
    definition = TASKS.get(name)
    fields: dict[str, Any] = {"name": name}
    if definition is not None and definition.metric is not None:
        fields["metric"] = definition.metric
    probabilities = predicted[0].get("probabilities")
    if kind is SpanTask:
        impossible = any(not line["answer"] or line.get(GOLD) == [] for line in predicted)
        return SpanTask(**fields, with_impossible=impossible)
    if kind is TagTask:
        tags: set[str] = set()
        for line in predicted:
            tags.update(line["labels"], filter(None, line.get(GOLD, ())))
        return TagTask.of_labels(tuple(sorted(tags)), **fields)
    if isinstance(probabilities, list):
        return ChoiceTask(**fields, num_choices=len(probabilities))
    if name == "rerank":
        kind = RerankTask
    labels = tuple(probabilities or predicted[0].get("scores", ()))
    if kind is ClassificationTask:
        if any(isinstance(line.get(GOLD), dict) for line in predicted):
            kind = DistributionTask
        fields.setdefault("metric", metric_of(labels))
    return kind(**fields, labels=labels)


def _written_examples(task: Task, lines: Mapping[str, Line], path: Path) -> dict[str, Example]:
    examples = {}
    for id, line in lines.items():
        if GOLD in line:
            example = Example(id=id, where=str(path), row=line.get("input") or {})
            examples[id] = task.with_gold(example, line)
    if not examples or isinstance(task, RerankTask):
        raise ValueError(
            f"{path} has no labels, or rankings, which need the passages of each query: give "
            "--gold, a file with labels that was predicted."
        )
    return examples


def sentence(
    names: tuple[str, str], metric: str, found: Difference, units: int, smallest: float
) -> str:
    """Says in plain English how two models differ in a metric.

    A p-value that is the `smallest` that the comparison can give is an upper bound.
    """
    factor = 1
    unit = ""
    if is_fraction(metric):
        factor = 100
        unit = " points"
    values = (found.first, found.second, found.difference, *found.interval)
    first, second, difference, low, high = (f"{factor * value:.2f}" for value in values)
    sign = "="
    if found.p_value <= smallest:
        sign = "≤"
    evidence = (
        f"{label(metric)} {first} against {second}, a difference of {difference}{unit} (95 % "
        f"interval {low} to {high}, p {sign} {found.p_value:.2g})"
    )
    if found.p_value >= SIGNIFICANT:
        return (
            f"{names[0]} and {names[1]} cannot be told apart by {units:,} examples: {evidence} may "
            "be chance."
        )
    is_better = (found.difference > 0) == higher_is_better(metric)
    better, worse = names
    if not is_better:
        worse, better = names
    return f"{better} is better than {worse}: {evidence}, which is rarely chance."
