"""Scores predictions by official metrics, or compares two models: `python -m bertjax.score`."""

import dataclasses
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertjax.base import command_line, signals
from bertjax.base.files import did_you_mean

if TYPE_CHECKING:
    from bertjax.tasks.metrics import Measure


@dataclasses.dataclass(frozen=True, kw_only=True)
class ScoreConfig:
    """Config of `bertjax.score`: predictions in official formats, or two files to compare.

    Raises:
        ValueError: the task is unknown or has no official format of predictions, a flag is missing,
            or has no effect with the others.
    """

    task: str = ""
    """Name of the task: squad, squad2, conll, cola, sst2, mrpc, stsb, qqp, mnli, qnli, rte, wnli or
    ax; with --compare, of any task, and by default the one of the run that wrote the files."""
    gold: str | None = None
    """Official file with the correct answers: JSON of SQuAD, TSV of GLUE or columns of CoNLL. With
    --compare, a file with the labels, also your own; None: the labels in the files."""
    predictions: str | None = None
    """File of predictions. For SQuAD, the file is JSON that maps question ids to answer texts. For
    GLUE, the file is TSV with the columns index and prediction, as in a submission. For CoNLL, the
    file has columns; the first holds the words of --gold and the last the predicted tags. None: it
    must be given, unless --compare is."""
    compare: tuple[str, ...] = ()
    """Two files of predictions for the same examples, JSON lines that predict or finetune wrote:
    prints the difference of each score with its 95 % interval, and whether it may be chance."""
    group_column: tuple[str, ...] = ()
    """With --compare: columns of the rows that were predicted, such as patient, whose rows are not
    independent: groups are drawn as wholes; empty: those of the run that wrote the first file."""
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

        if self.compare:
            self._check_comparison()
            return
        lacking = [name for name in ("task", "gold", "predictions") if not getattr(self, name)]
        if lacking:
            raise ValueError(
                f"{', '.join(f'--{name}' for name in lacking)} must be given to score a file of "
                "predictions; to compare two files, give --compare A.jsonl B.jsonl."
            )
        if self.group_column:
            raise ValueError("--group_column has no effect without --compare: leave it out.")
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

    def _check_comparison(self) -> None:
        from bertjax.tasks import check_task

        if len(self.compare) != 2:
            raise ValueError(
                f"--compare takes two files of predictions, but {len(self.compare)} were given."
            )
        if self.task:
            check_task(self.task)
        for name in ("predictions", "na_probs"):
            if getattr(self, name) is not None:
                raise ValueError(f"--{name} does not go with --compare: leave it out.")


def score(config: ScoreConfig) -> dict[str, float]:
    """Computes the official metrics of the task; returns {name: value} as fractions, not percent.

    Arguments and errors are those of `official_measure`.
    """
    return official_measure(config).once()


def official_measure(config: ScoreConfig) -> "Measure":
    """Returns the official metrics of the task as a function of how much each example counts.

    `config` has a task, a file with the correct answers and predictions, and nothing to compare.

    Raises FileNotFoundError, and ValueError if a file has the wrong format, or the predictions are
    not for the examples of `config.gold`, the file with the correct answers.
    """
    from bertjax.tasks import TASKS

    gold = Path(str(config.gold))
    predictions = Path(str(config.predictions))
    for path in (gold, predictions):
        if not path.is_file():
            raise FileNotFoundError(f"{path} does not exist or is not a file: check its name.")
    score_files = TASKS[config.task].score_files
    assert score_files is not None
    if config.na_probs is None:
        return score_files(gold, predictions)
    return score_files(gold, predictions, Path(config.na_probs), config.na_prob_thresh)


def comparison(config: ScoreConfig) -> dict[str, Any]:
    """Compares the two files of `config.compare`, as `bertjax.record.comparison.compare_files`."""
    from bertjax.record.comparison import compare_files

    first, second = map(Path, config.compare)
    gold = None if config.gold is None else Path(config.gold)
    return compare_files(first, second, gold, config.task.lower(), config.group_column)


def run(config: ScoreConfig) -> None:
    """Prints the official metrics of the predictions, or a comparison, as JSON, in per cent.

    To standard error, it prints the metrics with their 95 % intervals, or the sentence about a
    comparison.
    """
    from bertjax.record.labels import scores_text
    from bertjax.tasks.intervals import intervals
    from bertjax.tasks.metrics import in_percent, is_fraction

    if config.compare:
        result = comparison(config)
        for name, values in result["metrics"].items():
            factor = 100.0 if is_fraction(name) else 1.0
            for key in ("first", "second", "difference"):
                values[key] *= factor
            values["interval"] = [factor * bound for bound in values["interval"]]
        print(json.dumps(result, indent=2))
        print(result["sentence"], file=sys.stderr)
        return
    measure = official_measure(config)
    scores = measure.once()
    print(json.dumps(in_percent(scores), indent=2))
    if found := intervals(measure, range(measure.units)):
        print(scores_text({name: scores[name] for name in found}, found), file=sys.stderr)


parse, main = command_line.command_of(
    ScoreConfig,
    run,
    "score",
    "Prints the official metrics of a task, or a comparison of two models, as JSON, in per cent.",
)


if __name__ == "__main__":
    signals.leave(main())
