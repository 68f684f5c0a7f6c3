"""The tasks of SQuAD 1.1, of SQuAD 2.0 and of a user's questions, and their official scores."""

import functools
import sys
from pathlib import Path
from typing import Any

from bertjax.files import brief, read_json
from bertjax.tasks.definition import TaskDefinition, TaskOptions
from bertjax.tasks.question_answering import SpanTask
from bertjax.tasks.sources.datasets import DatasetSource
from bertjax.tasks.sources.held_out import BY_PASSAGE
from bertjax.tasks.sources.squad import MAX_BYTES, SquadSource, Version, read_dataset_row
from bertjax.tasks.squad_metrics import squad1, squad2


def _make(name: str, version: Version, options: TaskOptions) -> SpanTask:
    if options.data_dir is not None:
        source = SquadSource.in_directory(options.data_dir, version)
    else:
        source = DatasetSource(f"squad/v{version}", read_dataset_row, options.tfds_data_dir)
    impossible = version == "2.0"
    return SpanTask(
        name=name, source=source, with_impossible=impossible, **options.all_span_options
    )


def _make_qa(options: TaskOptions) -> SpanTask:
    if not options.files:
        raise ValueError("--task=qa reads your own files: give --train, --dev or --test.")
    bad_rows = "skip" if options.skip_bad_rows else "refuse"
    source = SquadSource(options.files, bad_rows, can_skip=True)
    if source.note:
        print(source.note)
    held_out = source.hold_out(
        options.dev_fraction, BY_PASSAGE, lambda example: example.pair, options.fold
    )
    if note := held_out or source.repeated_in_dev():
        print(note)
    counts = {split: _count_impossible(source, split) for split in source.splits}
    impossible = any(without for without, _ in counts.values())
    if impossible:
        listed = ", ".join(f"{n:,} of {count:,} in {split}" for split, (n, count) in counts.items())
        print(
            f"Questions without an answer: {listed}. The model can give no answer, and the scores "
            "are those of SQuAD 2.0."
        )
    return SpanTask(
        name="qa", source=source, with_impossible=impossible, **options.all_span_options
    )


def _count_impossible(source: SquadSource, split: str) -> tuple[int, int]:
    """Returns the number of questions of a split without an answer, and of all its questions."""
    labels = [example.label for example in source.examples(split)]
    return sum(label is not None for label in labels), len(labels)


def _score_files(
    version: Version,
    gold: Path,
    predictions: Path,
    na_probs: Path | None = None,
    na_prob_thresh: float = 1.0,
) -> dict[str, float]:
    golds: dict[str, list[str]] = {}
    for example in SquadSource({"gold": gold}).examples("gold"):
        if example.id in golds:
            raise ValueError(
                f"{example.where}: an earlier question has the same id. Restore the official file."
            )
        golds[example.id] = [text for text, _ in example.answers]
    answers = _read_by_id(predictions, str, "texts")
    missing = len(golds.keys() - answers.keys())
    if golds and missing == len(golds):
        raise ValueError(
            f"None of the {missing:,} questions of {gold} has a prediction in {predictions}: give "
            "predictions for the same version and split."
        )
    if version == "2.0":
        null_odds = _read_by_id(na_probs, int | float, "numbers") if na_probs else None
        return squad2(golds, answers, null_odds, na_prob_thresh)
    if missing:
        count = f"{missing:,} of {len(golds):,}"
        print(f"{count} questions have no prediction and count as wrong", file=sys.stderr)
    return squad1(golds, answers)


def _read_by_id(path: Path, kind: Any, what: str) -> dict[str, Any]:
    remedy = f"write a JSON object that maps question ids to {what}"
    values = read_json(path, remedy, MAX_BYTES)
    for name, value in values.items():
        if not isinstance(value, kind):
            raise ValueError(
                f"{path}: the value of question {brief(name, 60)} is {brief(repr(value), 50)}, but "
                f"all values must be {what}."
            )
    return values


SQUAD_TASKS = (
    TaskDefinition(
        name="squad",
        kinds=(SpanTask,),
        make=functools.partial(_make, "squad", "1.1"),
        score_files=functools.partial(_score_files, "1.1"),
    ),
    TaskDefinition(
        name="squad2",
        kinds=(SpanTask,),
        make=functools.partial(_make, "squad2", "2.0"),
        score_files=functools.partial(_score_files, "2.0"),
        scores_null_odds=True,
    ),
    TaskDefinition(name="qa", kinds=(SpanTask,), make=_make_qa, own_files=True, skip_bad_rows=True),
)
