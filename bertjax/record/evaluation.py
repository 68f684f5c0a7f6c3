"""What a reviewer asks of a fine-tuning: its data, its scores beside simple baselines, and slices.

`evaluation.json` has these facts. The report and the model card show them, so that both have the
same numbers.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from bertjax.record.labels import label
from bertjax.record.predictions import (
    BASELINES,
    INTERVALS,
    place_of,
    score_label,
    shown_interval,
    shown_score,
)
from bertjax.tasks import Task
from bertjax.tasks.intervals import intervals
from bertjax.tasks.measures import ScoredRows, Unit, measure_of
from bertjax.tasks.metrics import higher_is_better
from bertjax.tasks.training_data import TrainingData

# A slice of fewer rows has no score, because it would tell next to nothing.
FEWEST_ROWS = 10
# The slices of a column that are scored, the largest; others are counted.
MOST_SLICES = 50
SHOWN_LEAKS = 10
DATA_COLUMNS = (
    *("split", "examples", "groups", "tokens: median", "95 % have at most", "most"),
    "texts of the maximum length or more",
)


def data_facts(task: Task, data: TrainingData, max_length: int) -> dict[str, Any]:
    """Returns what is known of the examples before the training, as JSON values."""
    source = task.data
    splits: dict[str, dict[str, Any]] = {}
    for split, lengths in {"train": data.lengths, **source.lengths}.items():
        splits[split] = {} if lengths is None else dict(lengths._asdict())
    splits["train"]["examples"] = data.examples
    if data.groups is not None:
        splits["train"]["groups"] = len(np.unique(data.groups))
    classes = dict(zip(task.labels, data.class_counts.tolist(), strict=False))
    units = "words" if task.label_kind == "tokens" else "examples"
    if len(data.sizes) != data.examples:
        units = "windows"
    return {
        "splits": splits,
        "max_length": max_length,
        "windows": task.reads_windows,
        "note": source.note.removeprefix("warning: "),
        "group_columns": source.group_columns,
        "classes": {"train": classes} if classes else {},
        "units": units,
        "leaks": _leak_facts(task),
    }


def _leak_facts(task: Task) -> dict[str, Any]:
    """Returns {"rows": {split: leaked rows}, "pairs": the first leaked rows with their places}."""
    rows = Counter(split for split, _ in {(x.split, x.where) for x in task.data.leaks})
    pairs = []
    for leak in task.data.leaks[:SHOWN_LEAKS]:
        places = {"where": place_of(leak.where), "train": place_of(leak.train)}
        pairs.append({**leak._asdict(), **places})
    return {"rows": dict(rows), "pairs": pairs}


def slices_of(runs: Sequence[ScoredRows], metric: str) -> dict[str, Any]:
    """Returns the scores of the rows with each value of each column of slices.

    Args:
        runs: the rows of one run, or those of several folds, which are taken together.
        metric: the metric by which slices are sorted, the worst first, if there is such a one.

    Returns {column: {"metric", "rows", "few", "others"}}: "rows" has the value, number of rows,
    scores and intervals of each slice, "few" has [value, number of rows] of those with fewer than
    `FEWEST_ROWS`, and "others" counts the values that are left out because there are so many.
    """
    units: list[Unit] = []
    groups: list[int] = []
    values: dict[str, list[str]] = defaultdict(list)
    for rows in runs:
        if not rows.slices():
            continue
        first = max(groups, default=-1) + 1
        groups += [first + group for group in rows.groups()]
        units += rows.units()
        for column, of_units in rows.slices().items():
            values[column] += of_units
    if not values or len(groups) != len(units):
        return {}
    task = runs[0].task
    found = {}
    for column, of_units in values.items():
        found[column] = _slices_by(of_units, task, units, np.array(groups), metric)
    return found


def _slices_by(
    values: Sequence[str], task: Task, units: Sequence[Unit], groups: np.ndarray, metric: str
) -> dict[str, Any]:
    members: dict[str, list[int]] = defaultdict(list)
    for index, value in enumerate(values):
        members[value].append(index)
    few, rows = [], []
    by_size = sorted(members.items(), key=lambda item: -len(item[1]))
    for value, indices in by_size[:MOST_SLICES]:
        if len(indices) < FEWEST_ROWS:
            few.append([value, len(indices)])
            continue
        measure = measure_of(task, [units[index] for index in indices])
        scores = measure.scores(np.ones((1, len(indices))))
        _, own_groups = np.unique(groups[indices], return_inverse=True)
        row = {
            "value": value,
            "rows": len(indices),
            "groups": int(own_groups.max()) + 1,
            "scores": {name: float(np.nan_to_num(score[0])) for name, score in scores.items()},
            INTERVALS: intervals(measure, own_groups.tolist()),
        }
        rows.append(row)
    # A metric such as the answers to questions without one may not be in all slices.
    shared = set.intersection(*(set(row["scores"]) for row in rows)) if rows else {metric}
    if metric not in shared:
        metric = min(shared)
    sign = 1 if higher_is_better(metric) else -1
    rows.sort(key=lambda row: sign * row["scores"][metric])
    others = max(len(members) - MOST_SLICES, 0)
    return {"metric": metric, "rows": rows, "few": few, "others": others}


def slices_in_words(split: str, slices: Mapping[str, Any]) -> Iterator[str]:
    """Yields a sentence for each column of slices: the worst and the best of them."""
    for column, found in slices.items():
        metric, rows = found["metric"], found["rows"]
        if not rows:
            yield f"no value of {column} has {FEWEST_ROWS} rows, so that none has scores of its own"
            continue
        ends = []
        for row in (rows[0], rows[-1]):
            score = shown_score(metric, row["scores"][metric])
            ends.append(f"{score} ({row['value']}, {row['rows']:,} rows)")
        yield f"{score_label(f'{split}/{metric}')} by {column}: from {ends[0]} to {ends[1]}"


def baselines_in_words(
    baselines: Mapping[str, Any], scores: Mapping[str, float], metric: str
) -> str:
    """Returns a line with the scores of the baselines and of the model; "" if there are none.

    It is about the first split with baselines, and about `metric`, if they have it.
    """
    if not baselines["splits"]:
        return str(baselines["skipped"])
    split, of_split = next(iter(baselines["splits"].items()))
    known = next(iter(of_split.values()))
    if metric not in known:
        metric = next(iter(known))
    key = f"{split}/{metric}"
    parts = []
    for name, values in of_split.items():
        parts.append(f"{label(name)} {shown_score(key, values[metric])}")
    if key in scores:
        parts[-1] += f"; this model {shown_score(key, scores[key])}"
    return f"baseline by {score_label(key)}: {', '.join(parts)}"


def card_of(evaluation: Mapping[str, Any]) -> str:
    """Returns the sections of a model card on data and scores, in Markdown; "" without scores."""
    parts = [*_card_of_data(evaluation.get("data", {})), *_card_of_scores(evaluation)]
    for split, slices in evaluation.get("slices", {}).items():
        for column, found in slices.items():
            parts += _card_of_slices(split, column, found)
    return "".join(f"\n{part}\n" for part in parts)


def _card_of_data(data: Mapping[str, Any]) -> Iterator[str]:
    if not data:
        return
    rows = []
    for split, facts in data["splits"].items():
        names = ("examples", "groups", "median", "most", "longest", "truncated")
        known = [f"{facts[name]:,}" if name in facts else "–" for name in names]
        rows.append([split, *known])
    yield "## Data"
    yield _markdown(DATA_COLUMNS, rows)
    yield f"The model reads at most {data['max_length']:,} tokens of a text at once."
    if len(data["splits"]) > 1:
        yield _leaks_in_words(data["leaks"]["rows"])
    if data["group_columns"]:
        columns = ", ".join(data["group_columns"])
        yield f"The rows of one value of {columns} are in one split only."


def _leaks_in_words(rows: Mapping[str, int]) -> str:
    if not rows:
        return "No row of another split was found in train, equal or nearly so."
    counts = [f"{count:,} of {split}" for split, count in rows.items()]
    return f"Rows of other splits that are in train, equal or nearly so: {', '.join(counts)}."


def _card_of_scores(evaluation: Mapping[str, Any]) -> Iterator[str]:
    scores = evaluation.get("scores")
    if not scores:
        return
    found = evaluation[INTERVALS]
    baselines = evaluation.get(BASELINES) or {"splits": {}, "skipped": ""}
    names = list(dict.fromkeys(x for of_split in baselines["splits"].values() for x in of_split))
    rows = []
    for key, value in scores.items():
        split, _, metric = key.partition("/")
        row = [score_label(key), shown_score(key, value), shown_interval(key, found)]
        for name in names:
            of_split = baselines["splits"].get(split, {}).get(name, {})
            row.append(shown_score(key, of_split[metric]) if metric in of_split else "")
        rows.append(row)
    yield "## Scores"
    yield _markdown(("score", "this model", "95 % interval", *map(label, names)), rows)
    if baselines["skipped"]:
        yield baselines["skipped"]


def _card_of_slices(split: str, column: str, found: Mapping[str, Any]) -> Iterator[str]:
    metric = found["metric"]
    rows = []
    for row in found["rows"]:
        score = shown_score(metric, row["scores"][metric])
        rows.append(
            (row["value"], f"{row['rows']:,}", score, shown_interval(metric, row[INTERVALS]))
        )
    yield f"### {score_label(f'{split}/{metric}')} by {_cell(column)}"
    if rows:
        yield _markdown(("value", "rows", "score", "95 % interval"), rows)
    if found["few"]:
        named = ", ".join(f"{_cell(value)} ({count})" for value, count in found["few"])
        yield f"Too few rows for a score: {named}."


def _markdown(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(map(_cell, line))} |" for line in lines)


def _cell(text: str) -> str:
    """Returns a text on one line, in which nothing ends a cell of a table or begins HTML."""
    plain = " ".join(str(text).split())
    for sign in "\\|<`*[]":
        plain = plain.replace(sign, f"\\{sign}")
    return plain
