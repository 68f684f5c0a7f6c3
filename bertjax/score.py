"""python -m bertjax.score: a task's official metrics on anyone's predictions."""

import dataclasses
import difflib
import itertools
import json
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from bertjax import command_line
from bertjax.tasks.metrics import METRICS
from bertjax.tasks.sources.conll import read_conll
from bertjax.tasks.sources.glue import GLUE, read_glue_file
from bertjax.tasks.sources.squad import SquadSource
from bertjax.tasks.squad_metrics import squad1, squad2
from bertjax.tasks.submission import read_glue_predictions

SQUAD = ("squad", "squad2")
TASKS = (*GLUE, *SQUAD, "conll")
# Of a metric's name; the others are fractions or correlations.
NOT_IN_PERCENT = ("total", "_thresh")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ScoreConfig:
    """Which predictions are worth what."""

    task: str
    """squad, squad2, conll, or one of GLUE's: cola, sst2, mrpc, stsb, qqp, mnli, qnli, rte, wnli,
    ax."""
    gold: str
    """The official file with the answers: SQuAD's JSON, GLUE's TSV, CoNLL's columns."""
    predictions: str
    """SQuAD: JSON of question id -> text. GLUE: TSV of index and prediction, as for submissions.
    CoNLL: the words in columns as in --gold, the predicted tag in the last one."""
    na_probs: str | None = None
    """squad2: JSON of question id -> probability or odds that there is no answer; the best
    threshold is looked for."""
    na_prob_thresh: float = 1.0
    """squad2 with --na_probs: above it a question counts as predicted to have no answer."""

    def __post_init__(self):
        if self.task not in TASKS:
            nearest = difflib.get_close_matches(self.task, TASKS, n=1, cutoff=0.0)[0]
            raise ValueError(
                f"Unknown task {self.task!r}. Did you mean {nearest!r}? Known: {', '.join(TASKS)}."
            )
        if self.na_probs is not None and self.task != "squad2":
            raise ValueError(f"--na_probs goes with --task=squad2 alone, not with {self.task}.")


def score(config: ScoreConfig) -> dict[str, float]:
    """The metrics by name, as fractions.

    Raises:
        ValueError: a file has another form, or the predictions are not those of its examples.
    """
    gold, predictions = Path(config.gold), Path(config.predictions)
    for path in (gold, predictions):
        if not path.is_file():
            raise FileNotFoundError(f"{path} does not exist, or is no file.")
    if config.task in SQUAD:
        return _score_squad(config)
    if config.task == "conll":
        return METRICS["conll"](*_tags(gold, predictions))
    return METRICS[config.task](*_classes(config.task, gold, predictions))


def _score_squad(config: ScoreConfig) -> dict[str, float]:
    golds: dict[str, list[str]] = {}
    for example in SquadSource({"gold": config.gold}).examples("gold"):
        if example.id in golds:
            raise ValueError(f"{example.where}: an earlier question has the same id.")
        golds[example.id] = [text for text, _ in example.answers]
    predictions = _read_json(config.predictions, str, "texts")
    missing = [name for name in golds if name not in predictions]
    if golds and len(missing) == len(golds):
        raise ValueError(
            f"None of the {len(golds):,} questions of {config.gold} has a prediction in "
            f"{config.predictions}: are they of the same version and split?"
        )
    if config.task == "squad":
        if missing:
            count = f"{len(missing):,} of {len(golds):,}"
            print(f"{count} questions have no prediction and count as wrong", file=sys.stderr)
        return squad1(golds, predictions)
    null_odds = _read_json(config.na_probs, int | float, "numbers") if config.na_probs else None
    return squad2(golds, predictions, null_odds, config.na_prob_thresh)


def _read_json(path: str, kind: Any, what: str) -> dict[str, Any]:
    try:
        with open(path, encoding="utf-8-sig") as file:
            values = json.load(file)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not JSON in UTF-8 ({error}).") from error
    if not isinstance(values, dict):
        raise ValueError(f"{path} holds no JSON object of question ids with their {what}.")
    for name, value in values.items():
        if not isinstance(value, kind):
            raise ValueError(
                f"{path}: question {name} has {str(value)[:50]!r}; the values must be {what}."
            )
    return values


def _classes(task: str, gold: Path, predictions: Path) -> tuple[Sequence[Any], Sequence[Any]]:
    """Labels and predictions of a GLUE task, in the order of the gold file."""
    spec = GLUE[task]
    # Of the splits that have labels; it decides whether a header is expected.
    split = next((name for name in spec.files if name.startswith("dev")), "test")
    left_out: Counter[str] = Counter()
    golds = {}
    for example in read_glue_file(spec, gold, split, left_out):
        if example.label is None:
            raise ValueError(f"{gold} has no column {spec.label[0]!r}: labels are needed to score.")
        if example.id in golds:
            raise ValueError(f"{example.where}: index {example.id} occurs twice.")
        golds[example.id] = example.label
    found = read_glue_predictions(predictions, spec)
    # Rows without a gold label may well have been predicted.
    _check_same(golds, found if not left_out.total() else golds.keys() & found, predictions)
    return list(golds.values()), [found[name] for name in golds]


def _check_same(golds: Mapping[str, Any], found: Iterable[str], path: Path) -> None:
    found = set(found)
    missing = [name for name in golds if name not in found]
    more = sorted(found - golds.keys())
    if missing or more:
        example = f"index {missing[0]} has none" if missing else f"index {more[0]} is not known"
        raise ValueError(
            f"{path} does not hold the predictions of the {len(golds):,} gold rows: "
            f"{len(missing):,} are missing and {len(more):,} belong to none; {example}. The index "
            "is that of the official file, or the number of the row, from 0, where it has none."
        )


def _tags(gold: Path, predictions: Path) -> tuple[list[Any], list[Any]]:
    """Tags of the same sentences in two files of columns."""
    if gold.samefile(predictions):
        raise ValueError(f"--gold and --predictions are the same file, {gold}.")
    golds, found = [], []
    for expected, answer in itertools.zip_longest(read_conll(gold), read_conll(predictions)):
        if expected is None or answer is None:
            shorter = gold if expected is None else predictions
            raise ValueError(
                f"{shorter} ends after {len(golds):,} sentences, the other file goes on: predict a "
                "tag for each word of --gold."
            )
        if expected.words != answer.words:
            words = itertools.zip_longest(expected.words, answer.words, fillvalue="(no word)")
            a, b = next((a, b) for a, b in words if a != b)
            raise ValueError(
                f"The sentence at {answer.where} has {b!r} where that at {expected.where} has "
                f"{a!r}: the predictions must have the same words and sentences."
            )
        for example in (expected, answer):
            if example.label is None:
                raise ValueError(f"{example.where}: there are words, but no column with tags.")
        golds.append(expected.label)
        found.append(answer.label)
    return golds, found


def in_percent(values: Mapping[str, float]) -> dict[str, float]:
    """Metrics as the official scripts and leaderboards print them; counts and thresholds stay."""
    return {
        name: value if name.endswith(NOT_IN_PERCENT) else 100.0 * value
        for name, value in values.items()
    }


def run(config: ScoreConfig) -> None:
    """Prints the metrics as JSON, in per cent."""
    print(json.dumps(in_percent(score(config)), indent=2))


def parse(argv: Sequence[str] | None = None) -> ScoreConfig:
    """Reads the flags."""
    return command_line.parse(
        ScoreConfig,
        argv,
        prog="python -m bertjax.score",
        description="Prints a task's official metrics of predictions as JSON, in per cent.",
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Reads the flags and runs."""
    return command_line.run_reporting_errors(lambda: run(parse(argv)))


if __name__ == "__main__":
    sys.exit(main())
