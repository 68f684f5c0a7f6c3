"""Temperatures keep the classes, thresholds maximise F1; both are measured on other examples."""

import dataclasses
import json
import math

import numpy as np
import pytest

from bertjax.inference.saved_task import saved_task
from bertjax.tasks import Example
from bertjax.tasks.calibration import (
    HeldOutProbabilities,
    best_thresholds,
    calibrate,
    expected_calibration_error,
    fit_temperature,
    negative_log_likelihood,
    scaled,
)
from bertjax.tasks.classification import ClassificationTask, MultiLabelTask


@pytest.fixture(scope="module")
def overconfident():
    """Logits [2000, 3] that are 2.5 times as large as those that the labels are drawn from."""
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(2000, 3)) * 1.5
    p = np.exp(scaled(logits, 1.0))
    labels = np.array([rng.choice(3, p=row) for row in p])
    return 2.5 * logits, labels


def test_the_fitted_temperature_is_that_of_a_plain_minimisation(overconfident):
    logits, labels = overconfident
    grid = np.arange(2, 3, 0.002)
    losses = [negative_log_likelihood(logits, labels, t) for t in grid]
    fitted = fit_temperature(logits, labels)
    assert abs(fitted - grid[int(np.argmin(losses))]) < 0.003
    assert 2.3 < fitted < 2.7  # what the logits were multiplied by


def test_log_probabilities_give_the_temperature_of_their_logits(overconfident):
    logits, labels = overconfident
    shifted = logits + np.arange(len(logits))[:, None]
    expected = fit_temperature(logits, labels)
    for given in (scaled(logits, 1.0), shifted):
        assert fit_temperature(given, labels) == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("temperature", [0.1, 0.7, 1.0, 3.0, 10.0])
def test_no_temperature_changes_a_predicted_class(temperature):
    rng = np.random.default_rng(1)
    plain = ClassificationTask(name="c", labels=tuple("abcd"))
    task = ClassificationTask(name="c", labels=tuple("abcd"), temperature=temperature)
    example = Example(id="0", where="")
    close = np.array([1.0, np.nextafter(np.float32(1), np.float32(2)), 0.0, 1.0], np.float32)
    far = np.array([900.0, -900.0, 899.0, 0.0], np.float32)
    for logits in (close, far, *(5 * rng.normal(size=(200, 4))).astype(np.float32)):
        prediction = task.predict(example, (), [{"logits": logits}])
        assert prediction["label"] == "abcd"[logits.argmax()]
        assert prediction["label"] == plain.predict(example, (), [{"logits": logits}])["label"]
        p = np.array([*prediction["probabilities"].values()])
        assert p.sum() == pytest.approx(1) and p.max() == p[logits.argmax()]
        expected = np.exp(scaled(logits[None].astype(np.float64), temperature))[0]
        np.testing.assert_allclose(p, expected, 1e-9, 1e-300)


def test_the_calibration_error_is_that_of_a_calculation_by_hand():
    # Bins of a width of 1/15: .55 and .6 (its upper edge) in one, .95 in the last.
    confidence = np.array([0.55, 0.6, 0.95, 0.95, 0.95, 0.95])
    probabilities = np.stack([confidence, 1 - confidence], 1)
    labels = np.array([0, 1, 0, 0, 1, 0])  # 1 of 2 is right, then 3 of 4
    expected = 2 / 6 * abs(0.575 - 0.5) + 4 / 6 * abs(0.95 - 0.75)
    assert expected_calibration_error(probabilities, labels) == pytest.approx(expected)
    assert expected_calibration_error(np.array([[1.0, 0.0]]), np.array([0])) == 0.0


def test_the_error_after_is_measured_with_the_temperature_of_the_other_half(overconfident):
    logits, labels = overconfident
    second = np.arange(len(labels)) % 3 == 0
    made = calibrate(logits, labels, second)
    assert made.ece_before > 0.1 and made.ece_after is not None and made.nll_after is not None
    assert made.ece_after < made.ece_before / 2 and made.nll_after < made.nll_before
    assert made.temperature == fit_temperature(logits, labels)
    assert made.half_temperatures == (
        fit_temperature(logits[~second], labels[~second]),
        fit_temperature(logits[second], labels[second]),
    )
    both = [
        np.exp(scaled(logits[half], made.half_temperatures[other])).max(-1)
        for half, other in ((~second, 1), (second, 0))
    ]
    everything = np.empty(len(labels))
    everything[~second], everything[second] = both
    right = logits.argmax(-1) == labels
    bins = np.ceil(everything * 15).astype(int)
    expected = sum(
        abs((everything - right)[bins == b].sum()) / len(labels) for b in np.unique(bins)
    )
    assert made.ece_after == pytest.approx(expected)


def test_copies_of_a_text_are_in_one_half_and_unlabelled_examples_in_none():
    task = ClassificationTask(name="c", labels=("no", "yes"))
    rng, pairs = np.random.default_rng(0), []
    for i in range(40):
        p = rng.uniform(0.05, 0.95)
        label = None if i % 10 == 9 else ("no", "yes")[int(rng.random() < p)]
        prediction = {"label": "", "probabilities": {"no": 1 - p, "yes": p}}
        pairs.append((Example(id=str(i), where="", text=f"text {i // 2}", label=label), prediction))
    held_out = HeldOutProbabilities(task)
    assert list(held_out.observe(pairs)) == pairs
    second = held_out._second
    made = held_out.calibration()
    assert made.examples == len(second) == 36 and 0 < sum(second) < 36
    labelled = [i // 2 for i in range(40) if i % 10 != 9]
    assert len({(text, half) for text, half in zip(labelled, second, strict=True)}) == 20
    assert f"{made.ece_after:.2%} after" in made.sentence()


def test_one_example_has_no_error_after():
    made = calibrate(np.array([[1.0, 0.0]]), np.array([0]), np.array([True]))
    assert made.ece_after is None and made.temperature == pytest.approx(0.1, abs=1e-3)
    assert "too few examples" in made.sentence() and "0.100 (the bound of" in made.sentence()


def restored(**description):
    text = {"task": "classify", "label_kind": "classes", "max_length": 32, **description}
    return saved_task("sequence_classification", ["a", "b"], 2, {}, text, 64)


def test_a_saved_task_keeps_its_temperature():
    task = ClassificationTask(name="classify", labels=("a", "b"), temperature=1.75)
    description = json.loads(json.dumps(task.description(32)))
    assert restored(**description).temperature == 1.75
    plain = ClassificationTask(name="classify", labels=("a", "b"))
    assert "temperature" not in plain.description(32)
    assert restored().temperature == 1.0
    for wrong in (0.0, -1.0, math.inf):
        with pytest.raises(ValueError, match=f"temperature={wrong}: it must be positive"):
            restored(temperature=wrong)
    with pytest.raises(ValueError, match="temperature='2': it must be a number"):
        restored(temperature="2")


def f1_of(labels, predicted):
    return 2 * (labels & predicted).sum() / max(labels.sum() + predicted.sum(), 1)


def test_no_threshold_has_a_higher_f1_than_the_chosen_ones():
    rng = np.random.default_rng(0)
    p = rng.uniform(size=(60, 3)).round(2)  # some are equal
    labels = rng.random((60, 3)) < p * [1.0, 0.3, 0.0]
    chosen = best_thresholds(p, labels)
    for i in range(2):
        best = max(f1_of(labels[:, i], p[:, i] >= x) for x in np.arange(0, 1.001, 0.0025))
        assert f1_of(labels[:, i], p[:, i] >= chosen[i]) == pytest.approx(best)
    assert chosen[2] == 0.5  # no example has the label
    assert best_thresholds(np.array([[0.2], [0.4]]), np.array([[True], [True]])) == [0.1]


def test_the_f1_after_is_measured_with_the_thresholds_of_the_other_half():
    task, rng = MultiLabelTask(name="c", labels=("a", "b")), np.random.default_rng(0)
    held_out = HeldOutProbabilities(task)
    for i in range(60):
        p = rng.uniform(size=2)
        label = tuple(name for name, x in zip("ab", p, strict=True) if rng.random() < x / 2)
        prediction = {"labels": [], "probabilities": dict(zip("ab", p.tolist(), strict=True))}
        list(held_out.observe([(Example(id="", where="", text=str(i), label=label), prediction)]))
    made = held_out.thresholds()
    p, second = np.array(held_out._rows), np.array(held_out._second)
    labels = np.array([[name in label for name in "ab"] for label in held_out._known])
    assert list(made.thresholds.values()) == best_thresholds(p, labels) and made.examples == 60
    assert 0 < second.sum() < 60
    after = np.where(
        second[:, None],
        p >= best_thresholds(p[~second], labels[~second]),
        p >= best_thresholds(p[second], labels[second]),
    )
    f1 = [np.mean([f1_of(labels[:, i], x[:, i]) for i in (0, 1)]) for x in (p >= 0.5, after)]
    assert [made.macro_f1_before, made.macro_f1_after] == pytest.approx(f1)
    assert "macro F1" in made.sentence()


def test_a_saved_task_keeps_and_uses_its_thresholds():
    tuned = MultiLabelTask(name="classify", labels=("a", "b"), thresholds={"a": 0.2, "b": 0.9})
    description = json.loads(json.dumps(tuned.description(32)))
    task = restored(**description)
    assert isinstance(task, MultiLabelTask) and task.thresholds == tuned.thresholds
    example, logits = Example(id="0", where=""), np.array([-1.0, 1.0], np.float32)
    assert task.predict(example, (), [{"logits": logits}])["labels"] == ["a"]
    plain = dataclasses.replace(tuned, thresholds={})
    assert plain.predict(example, (), [{"logits": logits}])["labels"] == ["b"]
    assert "thresholds" not in plain.description(32)
    for wrong in ({"a": 0.2}, {"a": 0.2, "b": 1.5}, {"a": 0.2, "c": 0.5}, {"a": 0.2, "b": "x"}):
        with pytest.raises(
            ValueError, match="thresholds=.*should be a probability of each of a, b"
        ):
            restored(**description | {"thresholds": wrong})
