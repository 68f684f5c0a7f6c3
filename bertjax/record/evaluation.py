"""What a reviewer asks of a fine-tuning: its data, its scores beside simple baselines, and slices.

`evaluation.json` has these facts. The report and the model card show them, so that both have the
same numbers.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bertjax.base.files import counted
from bertjax.config import FinetuneConfig
from bertjax.record.ledger import environment
from bertjax.record.predictions import (
    BASELINES,
    INTERVALS,
    ClassReport,
    diagnostic_cells,
    score_label,
    shown_interval,
    shown_score,
)
from bertjax.tasks import Task
from bertjax.tasks.baselines import BAG_OF_WORDS
from bertjax.tasks.dataset import Dataset, Leak
from bertjax.tasks.intervals import intervals
from bertjax.tasks.measures import (
    ScoredRows,
    Unit,
    groups_of_models,
    has_diagnostics,
    measure_of,
)
from bertjax.tasks.metrics import DRAWS, higher_is_better, label_metrics
from bertjax.tasks.training_data import TrainingData, rows_in_words

# A slice of fewer rows has no score, because it would tell next to nothing.
FEWEST_ROWS = 10
# The slices of a column that are scored, the largest.
MOST_SLICES = 50
# The labels that the model card names.
MOST_LABELS = 20
# The labels of all examples, above which the scores of each label have no intervals.
MOST_DECISIONS = 50_000
# Pairs of leaked rows that are shown.
SHOWN_LEAKS = 10


def data_facts(task: Task, data: TrainingData, max_length: int) -> dict[str, Any]:
    """Returns what is known of the examples before the training, as JSON values."""
    source = task.data
    splits: dict[str, dict[str, Any]] = {}
    for split, lengths in {"train": data.lengths, **source.lengths}.items():
        splits[split] = {"groups": None, **lengths._asdict()}
    if data.groups is not None:
        splits["train"]["groups"] = len(np.unique(data.groups))
    leaks, dropped = _leaks(source)
    leaked = {(leak.split, leak.where) for leak in leaks}
    return {
        "file": source.files.get("train", Path()).name,
        "splits": splits,
        "max_length": max_length,
        "windows": task.reads_windows,
        "label_kind": task.label_kind,
        "note": source.note,
        "rows": rows_in_words(source, data),
        "warning": source.warning,
        "group_columns": source.group_columns,
        "classes": dict(zip(task.labels, data.class_counts.tolist(), strict=False)),
        "leaked_rows": Counter(split for split, _ in leaked),
        "leaks": [leak._asdict() for leak in leaks[:SHOWN_LEAKS]],
        "dropped_leaks": dropped,
    }


def _leaks(source: Dataset) -> tuple[list[Leak], dict[str, int]]:
    """Returns the leaks that are left, and {split: number of rows that were left out as leaks}."""
    left = []
    dropped: dict[str, set[str]] = defaultdict(set)
    for leak in source.leaks:
        for split, where in (("train", leak.train), (leak.split, leak.where)):
            if where in source.left_out.get(split, {}):
                dropped[split].add(where)
                break
        else:
            left.append(leak)
    return left, {split: len(rows) for split, rows in dropped.items()}


def slices_of(rows: ScoredRows, metric: str) -> dict[str, Any]:
    """Returns the scores of the rows with each value of each column of slices.

    Args:
        rows: what the scores are computed from.
        metric: the metric by which slices are sorted, the worst first, if rows have it.

    Returns {column: {"metric", "rows", "few"}}: "rows" has the value, the number of rows, the
    scores and their intervals of each slice, and "few" is {value: number of rows} of those without
    scores: they have fewer than `FEWEST_ROWS`, or are not among the `MOST_SLICES` largest.
    """
    units = rows.units()
    groups = np.array(rows.groups())
    found = {}
    for column, values in rows.slices().items():
        members: dict[str, list[int]] = defaultdict(list)
        for unit, value in enumerate(values):
            members[value].append(unit)
        slices = []
        few = {}
        for value in sorted(members, key=lambda value: -len(members[value])):
            own = members[value]
            count = len(own)
            if len(slices) < MOST_SLICES and count >= FEWEST_ROWS:
                own_units = [units[unit] for unit in own]
                scores = _slice(rows.task, own_units, groups[own])
                slices.append({"value": value, "rows": count, **scores})
            else:
                few[value] = count
        if slices and metric not in slices[0]["scores"]:  # as that of a search of a collection
            metric = next(iter(slices[0]["scores"]))
        sign = -1
        if higher_is_better(metric):
            sign = 1
        slices.sort(key=lambda row: sign * row["scores"][metric])
        found[column] = {"metric": metric, "rows": slices, "few": few}
    return found


def _slice(task: Task, units: Sequence[Unit], groups: np.ndarray) -> dict[str, Any]:
    measure = measure_of(task, units)
    _, numbers = np.unique(groups, return_inverse=True)
    return {
        "scores": measure.once(),
        INTERVALS: intervals(measure, numbers.tolist()),
    }


def slices_in_words(slices: Mapping[str, Any]) -> list[str]:
    """Returns a sentence on each column of `slices`, {split: `slices_of`}, that has no scores."""
    sentences = []
    for split, columns in slices.items():
        for column, found in columns.items():
            if not found["rows"]:
                sentences.append(
                    f"No value of {column} has {FEWEST_ROWS} labelled rows of {split}, so that "
                    "there are no scores of slices."
                )
    return sentences


def class_scores(
    reports: Mapping[str, ClassReport], scored: Mapping[str, Sequence[ScoredRows]]
) -> dict[str, Any]:
    """Returns the scores of each class, label or entity type by split, as JSON values.

    `scored` has the rows of a split that each model has predicted: one model, or that of each fold.
    """
    found = {}
    for split, report in reports.items():
        if report:
            of_labels = diagnostics(scored[split])
            found[split] = [
                {**row._asdict(), **of_labels.get(row.name, {})} for row in report.scores()
            ]
    return found


def diagnostics(models: Sequence[ScoredRows]) -> dict[str, dict[str, Any]]:
    """Computes {label: its sensitivity, specificity and auroc}, of tasks whose labels have them.

    `models` are the rows that each model has predicted. The intervals are under `INTERVALS`; there
    are none of more than `MOST_DECISIONS`, which would take long.
    """
    task = models[0].task
    groups = groups_of_models(models)
    units: list[Unit] = []
    numbers: list[int] = []  # of the model that predicted each unit
    for number, rows in enumerate(models):
        units += rows.units()
        numbers += [number] * (len(units) - len(numbers))
    golds = [unit.label for unit in units]
    answers = [unit.answer for unit in units]
    found = {}
    for name in task.labels if units and has_diagnostics(task) else ():
        probabilities = [unit.probabilities[name] for unit in units]
        measure = label_metrics(name, golds, answers, probabilities, numbers)
        # Without an example that has the label, or has it not, some are undefined.
        found[name] = {
            metric: value
            for metric, value in measure.once().items()
            if measure.ratios[metric].any() and np.isfinite(value)
        }
        if len(units) * len(task.labels) <= MOST_DECISIONS:
            found[name][INTERVALS] = intervals(measure, groups)
    return found


_METHODS = (
    "Methods: {config.init} was fine-tuned with seed {config.seed}; the scores are of {units} that "
    "were not trained on{folds}. The 95 % intervals come from a bootstrap of up to {draws:,} draws "
    "of {units}, corrected for bias and skewness (BCa, Efron 1987). Versions: {versions}."
)


def methods(config: FinetuneConfig, data: Mapping[str, Any]) -> str:
    """Returns a paragraph on how the scores were computed, which an author can copy."""
    units = "examples"
    if columns := " or ".join(data["group_columns"]):
        units = f"groups of examples by {columns}"
    folds = ""
    if config.folds:
        folds = f", in {config.folds} folds"
    versions = ", ".join(map(" ".join, environment()["versions"].items()))
    return _METHODS.format(config=config, units=units, draws=DRAWS, folds=folds, versions=versions)


def mean_scores(runs: Collection[Mapping[str, float]]) -> dict[str, float]:
    """Returns the means of the scores that all runs have."""
    names = sorted(set.intersection(*map(set, runs)))
    means = {}
    for name in names:
        means[name] = float(np.mean([run[name] for run in runs]))
    return means


def mean_baselines(evaluations: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Returns the means of the scores of the baselines on the dev splits of several folds."""
    folds: list[Any] = [_baselines(evaluation).get("dev") for evaluation in evaluations]
    splits = {}
    if all(folds):
        splits["dev"] = {}
        for name in folds[0]:
            of_baseline = [fold[name] for fold in folds]
            splits["dev"][name] = mean_scores(of_baseline)
    return {"skipped": "", **evaluations[0].get(BASELINES, {}), "splits": splits}


def _baselines(evaluation: Mapping[str, Any]) -> Mapping[str, Any]:
    return evaluation.get(BASELINES, {}).get("splits", {})


def _simple_scores(evaluation: Mapping[str, Any], key: str) -> str:
    """Returns "majority 52.30 %, bag of words 78.10 %" for the score "dev/accuracy"; or ""."""
    split, _, metric = key.partition("/")
    shown = []
    for name, scores in _baselines(evaluation).get(split, {}).items():
        if metric in scores:
            shown.append(f"{name} {shown_score(key, scores[metric])}")
    return ", ".join(shown)


def baselines_in_words(evaluation: Mapping[str, Any], key: str | None) -> str:
    """Returns a line with a score of the baselines and of the model, or why there is none.

    It is the score `key` or, if the baselines do not have it, another one.
    """
    if name := _compared(evaluation, key):
        own = shown_score(name, evaluation["scores"][name])
        simple = _simple_scores(evaluation, name)
        return f"baseline, {score_label(name)}: {simple}; this model {own}"
    return evaluation[BASELINES]["skipped"]


def _compared(evaluation: Mapping[str, Any], key: str | None) -> str:
    """Returns the score `key` or, if the baselines do not have it, another one; "": none."""
    for name in (key or "", *evaluation["scores"]):
        if name in evaluation["scores"] and _simple_scores(evaluation, name):
            return name
    return ""


def verdict(evaluation: Mapping[str, Any], key: str | None) -> str:
    """Says if the model is not better than the bag of words, or may not be.

    "" if it is better, or if there is no score of a bag of words.

    It may not be if the score of the bag of words is within the interval of the model's.
    """
    name = _compared(evaluation, key)
    split, _, metric = name.partition("/")
    simple = _baselines(evaluation).get(split, {}).get(BAG_OF_WORDS, {}).get(metric)
    if simple is None:
        return ""
    own = evaluation["scores"][name]
    low, high = evaluation[INTERVALS].get(name, (own, own))
    if own == simple or (own > simple) != higher_is_better(metric):
        return f"By {score_label(name)}, this model is not better than the bag of words."
    if low <= simple <= high:
        return (
            f"By {score_label(name)}, it cannot be told whether this model is better than the bag "
            "of words, whose score is within the 95 % interval of the model's."
        )
    return ""


_USE = """
## Intended use and limits

- The task stands under Training, and what the model was trained on, with its labels, under Data.
- Examples:{sizes} each score is of examples on which the scored model was not trained, but for
  those that are equal or nearly so, which Data counts as leaks.
- The run does not know the languages, the origin and the time of the texts, and has measured
  nothing on texts of other languages, origins or times.
- **To be filled in by the author:** who is meant to use the model, for what, and for what not;
  where, when and of whom the texts were collected, and who has allowed it; who gave the labels, by
  which rules, and how well they agree; what a wrong prediction does, and who notices it.
"""
_DATA = """
## Data

The lengths are in tokens, of which the model reads at most {max_length:,} at once.

| split | examples | groups | median | 95 % have at most | longest | full length, perhaps cut |
|---|---|---|---|---|---|---|
"""
_SPLIT = "| {split} | {examples:,} | {groups} | {median} | {most} | {longest} | {truncated:,} |\n"
_SCORES = """
## {title}

| score | {column} | 95 % interval | baselines |
|---|---|---|---|
"""
_CLASSES = """
### {split}: scores of the labels (at most the 20 most frequent)

| label | precision | recall | F1 | examples |
|---|---|---|---|---|
"""
_DIAGNOSTICS = """
### {split}: sensitivity, specificity and AUROC of the labels (95 % intervals)

| label | sensitivity | specificity | AUROC |
|---|---|---|---|
"""
_SLICES = """
### {score} by {column}

| value | rows | score | 95 % interval |
|---|---|---|---|
"""
_ROW = "| {} | {} | {} | {} |\n"
_CLASS = "| {name} | {precision:.2%} | {recall:.2%} | {f1:.2%} | {support:,} |\n"


def card_of(evaluation: Mapping[str, Any]) -> str:
    """Returns the sections of a model card on data, scores and slices, in Markdown."""
    data = evaluation["data"]
    sizes = ""
    rows = ""
    for split, facts in data["splits"].items():
        groups = facts["groups"] or "–"
        rows += _SPLIT.format(**{**facts, "split": split, "groups": groups})
        sizes += f" {split} {facts['examples']:,} (groups: {groups});"
    text = _USE.format(sizes=sizes) + _DATA.format(**data) + rows
    text += in_paragraphs([*_about_data(data), *cautions(data)])
    return text + scores_card(evaluation)


def in_paragraphs(sentences: Iterable[str]) -> str:
    """Returns sentences, which may hold texts of a user, as paragraphs of Markdown."""
    return "".join(f"\n{_cell(sentence)}\n" for sentence in sentences if sentence)


def _about_data(data: Mapping[str, Any]) -> Iterator[str]:
    """Yields sentences on files, groups and labels."""
    if data["file"]:
        yield f"The model was trained on {data['file']}."
    yield data.get("rows", "")
    yield data["note"]
    if columns := data["group_columns"]:
        yield f"A group has the rows with one value of {' or '.join(columns)}; it is in one split."
    counts = Counter(data["classes"])
    shown = [f"{name} ({count:,})" for name, count in counts.most_common(MOST_LABELS)]
    if shown:
        said = f"{counted(len(counts), 'label')}, with how often each is in train"
        yield f"{said} (the {MOST_LABELS} most frequent): {', '.join(shown)}."


def cautions(data: Mapping[str, Any]) -> Iterator[str]:
    """Yields sentences on what may make the scores better than those of new texts."""
    for split, count in data["leaked_rows"].items():
        yield f"Leaks: {counted(count, 'row')} of {split}, equal or nearly so, in train as well."
    for split, count in data.get("dropped_leaks", {}).items():
        others = "dev or test"
        if split == "dev":
            others = "train"
        yield f"Left out of {split}, equal or nearly so in {others}: {counted(count, 'row')}."
    yield data["warning"]
    yield from data.get("warnings", ())


def scores_card(
    evaluation: Mapping[str, Any], title: str = "Scores", column: str = "this model"
) -> str:
    """Returns the sections on scores, classes and slices, which also several runs have.

    `title` is the heading of the scores, and `column` that of their values.
    """
    text = ""
    scores = evaluation["scores"]
    if scores:
        text += _SCORES.format(title=title, column=column)
    for key, value in scores.items():
        interval = shown_interval(key, evaluation[INTERVALS])
        simple = _simple_scores(evaluation, key)
        text += _ROW.format(score_label(key), shown_score(key, value), interval, simple)
    text += in_paragraphs([evaluation.get("verdict", ""), *evaluation.get("choices", ())])
    for split, rows in evaluation.get("by_class", {}).items():
        text += _CLASSES.format(split=split)
        most_frequent = sorted(rows, key=lambda row: -row["support"])[:MOST_LABELS]
        for row in most_frequent:
            fields = {**row, "name": _cell(row["name"])}
            text += _CLASS.format(**fields)
        if any("specificity" in row for row in rows):
            text += _DIAGNOSTICS.format(split=split)
            for row in rows:
                text += _ROW.format(_cell(row["name"]), *diagnostic_cells(row))
    for split, columns in evaluation["slices"].items():
        for name, found in columns.items():
            slices = found["rows"]
            if not slices:
                continue
            metric = found["metric"]
            score = score_label(f"{split}/{metric}")
            text += _SLICES.format(score=score, column=_cell(name))
            for row in slices:
                shown = shown_score(metric, row["scores"][metric])
                interval = shown_interval(metric, row[INTERVALS])
                text += _ROW.format(_cell(row["value"]), row["rows"], shown, interval)
    return text + in_paragraphs(slices_in_words(evaluation["slices"]))


def _cell(text: str) -> str:
    """Returns a text of a user as one cell of a table."""
    return " ".join(text.split()).replace("|", r"\|").replace("<", "&lt;")
