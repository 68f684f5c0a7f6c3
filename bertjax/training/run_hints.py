"""Hints of the report: what the curves and predictions of a run say to who has not seen many.

A hint is one plain sentence or two with the numbers that it follows from. There are only hints that
a reader can rely on; a run without a hint need not be a good one.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from bertjax.training.run_metrics import RunMetrics

# The held-out loss has risen if it is above its lowest value by this factor and by this difference.
RISE_FACTOR, RISE = 1.2, 0.05
# The names of the loss of which a rise counts: (held-out metric, training metric).
LOSSES = (("eval/mlm_loss", "train/mlm_loss"), ("eval/loss", "train/loss"))


def hints_of(
    metrics: RunMetrics, splits: Iterable[Mapping[str, Any]], first_step: int = 0
) -> list[str]:
    """Returns the hints of a run as sentences.

    Args:
        metrics: the metrics of the run.
        splits: the summaries of its predictions (`prediction_summary`), with "split" the name of
            each.
        first_step: the step after which the last phase begins; evaluations of earlier phases have
            rows of another length, whose losses cannot be compared.
    """
    found = [_memorised(metrics, first_step), _unigrams(metrics)]
    return [hint for hint in (*found, *map(_majority, splits)) if hint]


def _memorised(metrics: RunMetrics, first_step: int) -> str:
    """Says that the held-out loss has risen while the training loss fell."""
    for held_out, train in LOSSES:
        losses = metrics.values_by_step(held_out)
        losses = {step: loss for step, loss in losses.items() if step > first_step}
        points = metrics.train[train].points() if train in metrics.train else []
        if len(losses) < 3 or not points:
            continue
        lowest = min(losses, key=lambda step: losses[step])
        last = max(losses)
        # A log line is the mean of the steps before it, so that the next one is that of the lowest.
        before = next((loss for step, loss in points if step >= lowest), points[-1][1])
        now = points[-1][1]
        has_risen = losses[last] > max(RISE_FACTOR * losses[lowest], losses[lowest] + RISE)
        if has_risen and now < before:
            return (
                f"The held-out loss was lowest at step {lowest:,} ({losses[lowest]:.3g}) and rose "
                f"to {losses[last]:.3g} at step {last:,}, while the training loss fell from "
                f"{before:.3g} to {now:.3g}: the model memorises its training examples "
                "(over-fitting). More examples, fewer steps, or a model that was pretrained on "
                "more text usually help."
            )
    return ""


def _unigrams(metrics: RunMetrics) -> str:
    """Says that a pretrained model is no better than the frequencies of the tokens."""
    losses = metrics.values_by_step("eval/mlm_loss")
    entropies = metrics.values_by_step("eval/unigram_entropy")
    last = max(losses, default=None)
    if last is None or last not in entropies or losses[last] < entropies[last]:
        return ""
    return (
        f"The held-out masked LM loss of step {last:,} ({losses[last]:.3f}) is not below the "
        f"unigram entropy ({entropies[last]:.3f}): so far, the model predicts masked tokens no "
        "better than by how frequent each token is, without a look at the context. It needs more "
        "steps, or another learning rate."
    )


def _majority(split: Mapping[str, Any]) -> str:
    """Says that the accuracy of a classifier is that of always naming the most frequent class."""
    confusion = split.get("confusion")
    if not confusion or split.get("label_kind", "classes") != "classes":
        return ""
    counts: Sequence[Sequence[int]] = confusion["counts"]
    golds = [sum(row) for row in counts]
    answers = [sum(column) for column in zip(*counts, strict=True)]
    total, right = sum(golds), sum(row[n] for n, row in enumerate(counts))
    if sum(map(bool, golds)) < 2 or right > max(golds):
        return ""
    most = confusion["labels"][golds.index(max(golds))]
    share = f"{100 * max(golds) / total:.2f} %"
    said = f"{100 * right / total:.2f} % of the {total:,} predictions of {split['split']} are right"
    # With weighted classes, a model may be good and have this accuracy.
    advice = "By accuracy, the model is no better than that; the scores of each class say more."
    if sum(map(bool, answers)) == 1:
        only = confusion["labels"][answers.index(max(answers))]
        said = f"All {total:,} predictions of {split['split']} are {only!r}, and {said}"
        advice = (
            "The model has not learned to tell the classes apart: more epochs, more examples or "
            "another learning rate may help."
        )
    return (
        f"{said}; always answering {most!r}, the most frequent class, would be right in {share}. "
        f"{advice}"
    )
