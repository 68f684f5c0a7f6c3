"""Official metrics of a task for predictions of any origin: `python -m bertjax.score`."""

import dataclasses
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from bertjax import command_line
from bertjax.files import did_you_mean


@dataclasses.dataclass(frozen=True, kw_only=True)
class ScoreConfig:
    """The predictions to score, and the file with the correct answers."""

    GROUPS: ClassVar[dict[str, str]] = {
        "data": "task gold predictions na_probs na_prob_thresh",
    }

    task: str
    """Task with official files: squad, squad2, conll, or a task of GLUE such as mnli."""
    gold: str
    """Official file with the correct answers: SQuAD's JSON, GLUE's TSV or CoNLL's columns."""
    predictions: str
    """Predictions. SQuAD: JSON of question id -> text. GLUE: TSV of index and prediction, as for
    submissions. CoNLL: columns with the words of --gold and the predicted tag in the last
    column."""
    na_probs: str | None = None
    """SQuAD 2.0: JSON of question id -> probability or odds that there is no answer; also reports
    the best threshold; None: predictions without a text count as having no answer."""
    na_prob_thresh: float = 1.0
    """SQuAD 2.0 with --na_probs: a question with higher odds counts as predicted to have no
    answer."""

    def __post_init__(self):
        from bertjax.tasks import TASKS

        scored = {name: task for name, task in TASKS.items() if task.score_files is not None}
        if self.task not in scored:
            hint = did_you_mean(self.task, scored)
            raise ValueError(f"Unknown task {self.task!r}. {hint}Known: {', '.join(scored)}.")
        if self.na_probs is not None and not scored[self.task].scores_null_odds:
            raise ValueError(
                f"--na_probs goes with --task=squad2 only, not with {self.task}: leave it out."
            )


def score(config: ScoreConfig) -> dict[str, float]:
    """Returns the official metrics, name -> value, as fractions (not percent).

    Raises:
        ValueError: a file has another format, or the predictions are for other examples.
        FileNotFoundError: a file does not exist.
    """
    from bertjax.tasks import TASKS

    gold, predictions = Path(config.gold), Path(config.predictions)
    for path in (gold, predictions):
        if not path.is_file():
            raise FileNotFoundError(f"{path} does not exist or is not a file: check its name.")
    score_files = TASKS[config.task].score_files
    assert score_files is not None
    if config.na_probs is None:
        return score_files(gold, predictions)
    return score_files(gold, predictions, Path(config.na_probs), config.na_prob_thresh)


def run(config: ScoreConfig) -> None:
    """Prints the metrics as JSON, in per cent."""
    from bertjax.tasks.metrics import in_percent

    print(json.dumps(in_percent(score(config)), indent=2))


def parse(argv: Sequence[str] | None = None) -> ScoreConfig:
    """Reads the flags."""
    return command_line.parse(
        ScoreConfig,
        argv,
        command="score",
        description="Prints the official metrics of a task as JSON, in per cent.",
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Reads the flags and runs."""
    return command_line.run_reporting_errors(lambda: run(parse(argv)))


if __name__ == "__main__":
    sys.exit(main())
