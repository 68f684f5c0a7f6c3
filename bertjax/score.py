"""Computes the official metrics of a task from a predictions file: `python -m bertjax.score`."""

import dataclasses
import json
from pathlib import Path

from bertjax.base import command_line, signals
from bertjax.base.files import did_you_mean


@dataclasses.dataclass(frozen=True, kw_only=True)
class ScoreConfig:
    """Config of `bertjax.score`: the task, the predictions and the correct answers.

    Raises:
        ValueError: the task is unknown or has no official format of predictions, or a flag has no
            effect with the task.
    """

    task: str
    """Name of the task: squad, squad2, conll, cola, sst2, mrpc, stsb, qqp, mnli, qnli, rte, wnli or
    ax."""
    gold: str
    """Official file with the correct answers: JSON of SQuAD, TSV of GLUE or columns of CoNLL."""
    predictions: str
    """File of predictions. For SQuAD, the file is JSON that maps question ids to answer texts. For
    GLUE, the file is TSV with the columns index and prediction, as in a submission. For CoNLL, the
    file has columns; the first holds the words of --gold and the last the predicted tags."""
    na_probs: str | None = None
    """For SQuAD 2.0: JSON file that maps each question id to the probability or log-odds that the
    question has no answer, such as SPLIT_null_odds.json of bertjax, which holds the difference of
    the logits of "no answer" and of the best answer; the metrics then include the best threshold
    for these values. None: only an empty predicted text means "no answer"."""
    na_prob_thresh: float = 1.0
    """For SQuAD 2.0: threshold for the values in --na_probs, which it requires; a question with a
    higher value is scored as if its prediction were "no answer". With probabilities and the
    default, the predictions are scored as they are, because no probability is above 1; with
    log-odds, inf does the same."""

    def __post_init__(self):
        from bertjax.tasks import TASKS

        scored = {name: task for name, task in TASKS.items() if task.score_files is not None}
        if self.task not in scored:
            if self.task in TASKS:
                raise ValueError(
                    f"{self.task} has no official format of predictions: bertjax.predict prints "
                    "the metrics of labelled examples (--input FILE, or --task for swag)."
                )
            hint = did_you_mean(self.task, scored)
            raise ValueError(f"Unknown task {self.task!r}. {hint}Known: {', '.join(scored)}.")
        if self.na_probs is not None and not scored[self.task].scores_null_odds:
            raise ValueError(
                f"--na_probs goes with --task=squad2 only, not with {self.task}: leave it out."
            )
        if self.na_probs is None and self.na_prob_thresh != ScoreConfig.na_prob_thresh:
            raise ValueError(
                f"--na_prob_thresh={self.na_prob_thresh} has no effect without --na_probs: give "
                "both, or leave it out."
            )


def score(config: ScoreConfig) -> dict[str, float]:
    """Computes the official metrics of the task; returns {name: value} as fractions, not percent.

    Raises FileNotFoundError, and ValueError if a file has the wrong format, or the predictions are
    not for the examples of `config.gold`, the file with the correct answers.
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
    """Prints the official metrics of the predictions as JSON, in per cent."""
    from bertjax.tasks.metrics import in_percent

    print(json.dumps(in_percent(score(config)), indent=2))


parse, main = command_line.command_of(
    ScoreConfig, run, "score", "Prints the official metrics of a task as JSON, in per cent."
)


if __name__ == "__main__":
    signals.leave(main())
