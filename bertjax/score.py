"""python -m bertjax.score: official metrics of a task for predictions of any origin."""

import dataclasses
import difflib
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from bertjax import command_line
from bertjax.tasks import TASKS
from bertjax.tasks.metrics import in_percent

SCORED = {name: task for name, task in TASKS.items() if task.score_files is not None}


@dataclasses.dataclass(frozen=True, kw_only=True)
class ScoreConfig:
    """The predictions to score, and the file with the correct answers."""

    task: str
    """A task with official files: squad, squad2, conll, or a task of GLUE such as mnli."""
    gold: str
    """The official file with the correct answers: SQuAD's JSON, GLUE's TSV, CoNLL's columns."""
    predictions: str
    """SQuAD: JSON of question id -> text. GLUE: TSV of index and prediction, as for submissions.
    CoNLL: columns with the words of --gold and the predicted tag in the last column."""
    na_probs: str | None = None
    """squad2: JSON of question id -> probability or odds that there is no answer; also reports the
    best threshold."""
    na_prob_thresh: float = 1.0
    """squad2 with --na_probs: a question with higher odds counts as predicted to have no answer."""

    def __post_init__(self):
        if self.task not in SCORED:
            nearest = difflib.get_close_matches(self.task, SCORED, n=1, cutoff=0.0)[0]
            raise ValueError(
                f"Unknown task {self.task!r}. Did you mean {nearest!r}? Known: {', '.join(SCORED)}."
            )
        if self.na_probs is not None and not SCORED[self.task].scores_null_odds:
            raise ValueError(
                f"--na_probs goes with --task=squad2 only, not with {self.task}: leave it out."
            )


def score(config: ScoreConfig) -> dict[str, float]:
    """Computes the metrics by name, as fractions.

    Raises:
        ValueError: a file has another format, or the predictions are for other examples.
        FileNotFoundError: a file does not exist.
    """
    gold, predictions = Path(config.gold), Path(config.predictions)
    for path in (gold, predictions):
        if not path.is_file():
            raise FileNotFoundError(f"{path} does not exist or is not a file: check its name.")
    score_files = SCORED[config.task].score_files
    assert score_files is not None
    if config.na_probs is None:
        return score_files(gold, predictions)
    return score_files(gold, predictions, Path(config.na_probs), config.na_prob_thresh)


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
