"""Intervals and comparisons: measures equal the metrics, and intervals cover what they should."""

import dataclasses
import functools
import math
import time

import numpy as np
import pytest

from bertjax.tasks.classification import ClassificationTask, RegressionTask
from bertjax.tasks.dataset import Dataset
from bertjax.tasks.embedding import ContrastiveTask
from bertjax.tasks.intervals import (
    EXCHANGES,
    Interval,
    bca,
    compare,
    interval_of_mean,
    intervals,
    mcnemar,
    mean_of,
    of_both,
    score_intervals,
)
from bertjax.tasks.measures import ScoredRows, measure_of, row_of
from bertjax.tasks.metrics import (
    accuracy,
    accuracy_and_f1,
    matthews,
    pearson_spearman,
)
from bertjax.tasks.question_answering import IMPOSSIBLE
from tests.cases import others_weekly
from tests.scored_pairs import TASKS, example, pairs_of


def units_of(task, pairs):
    rows = ScoredRows(task)
    assert list(rows.observe(pairs)) == pairs
    return rows.units()


# Counts and thresholds are no scores of examples; those of the best threshold have no intervals.
NOT_MEASURED = ("total", "_thresh", "best_exact", "best_f1")


def check_scores(measured, task, pairs):
    """The metrics of the task are measured."""
    scores = task.score(pairs)
    expected = {name: x for name, x in scores.items() if not name.endswith(NOT_MEASURED)}
    assert {name: measured[name] for name in expected} == pytest.approx(expected)


@pytest.mark.parametrize("kind", TASKS)
def test_a_measure_gives_the_scores_of_the_task(kind):
    task, pairs = pairs_of(kind, 60)
    measure = measure_of(task, units_of(task, pairs))
    measured = measure.scores(np.ones((1, measure.units)))
    check_scores({name: values[0] for name, values in measured.items()}, task, pairs)
    assert measured.keys() <= task.score(pairs).keys()


@pytest.mark.parametrize("kind", [kind for kind in TASKS if kind != "ranking"])
def test_weights_are_numbers_of_repetitions(kind):
    task, pairs = pairs_of(kind, 40)
    rng = np.random.default_rng(1)
    weights = rng.multinomial(40, np.full(40, 1 / 40), size=5)
    measured = measure_of(task, units_of(task, pairs)).scores(weights.astype(float))
    for draw, times in enumerate(weights):
        repeated = [pair for pair, count in zip(pairs, times, strict=True) for _ in range(count)]
        check_scores({name: values[draw] for name, values in measured.items()}, task, repeated)


@pytest.mark.parametrize("kind", TASKS)
def test_a_measure_of_two_models_scores_each_of_them(kind):
    task, pairs = pairs_of(kind, 30)
    again = pairs[10:] + pairs[:10]  # another order is another model
    measure = measure_of(task, units_of(task, again) + units_of(task, pairs))
    weights = np.repeat([[0.0, 1.0]], measure.units // 2, axis=1)
    measured = measure.scores(weights)
    check_scores({name: values[0] for name, values in measured.items()}, task, pairs)


def test_any_other_metric_is_computed_anew():
    task, pairs = pairs_of("classes", 50)

    def zeros(golds, predictions):
        return {"zeros": sum(gold == "a" for gold in golds) / len(golds)}

    other = dataclasses.replace(task, metric=zeros)
    rows = ScoredRows(other)
    assert [pair for pair in rows.observe(pairs)] == pairs
    interval = score_intervals(rows)["zeros"]
    share = other.score(pairs)["zeros"]
    assert interval.low < share < interval.high
    assert interval.high - interval.low == pytest.approx(
        2 * 1.96 * math.sqrt(share * (1 - share) / 50), rel=0.25
    )


def test_retrieval_of_pairs_has_intervals():
    task = ContrastiveTask(name="embed", num_texts=2, scored=False)
    rng = np.random.default_rng(0)
    pairs = []
    for index in range(40):
        vectors = rng.standard_normal((2, 4)).astype(np.float32)
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        pair = example(index, text=f"anchor {index}", pair=f"positive {index}")
        pairs.append((pair, {"similarity": 0.0, "vectors": vectors}))
    rows = ScoredRows(task)
    example_of_three, prediction = pairs[0]
    example_of_three = dataclasses.replace(example_of_three, choices=("negative",))
    vectors = np.concatenate([prediction["vectors"], -prediction["vectors"][:1]])
    pairs[0] = example_of_three, prediction | {"vectors": vectors}
    scored = pairs[1][0], {"similarity": 0.5}
    scores = task.score(rows.observe([*pairs, scored]))
    found = score_intervals(rows)
    assert found.keys() == {"mrr", "recall_at_1", "recall_at_10"} < scores.keys()
    assert all(found[name].low <= scores[name] <= found[name].high for name in found)


def labelled(task, golds, answers):
    rows = []
    for gold, answer in zip(golds, answers, strict=True):
        prediction = {"label": answer, "score": answer, "probabilities": {}}
        rows.append(row_of(task, example(0, label=gold), prediction))
    return rows


RIGHT = ClassificationTask(name="sst2", labels=("a", "b"), metric=accuracy)


def test_intervals_are_equal_for_equal_seeds_and_narrow_with_the_root_of_the_rows():
    rng = np.random.default_rng(0)
    widths = {}
    for count in (200, 3200):
        answers = np.where(rng.random(count) < 0.8, "a", "b").tolist()
        measure = measure_of(RIGHT, labelled(RIGHT, ["a"] * count, answers))
        first, second = (intervals(measure, range(count))["accuracy"] for _ in range(2))
        assert first == second != intervals(measure, range(count), seed=1)["accuracy"]
        widths[count] = first.high - first.low
    assert widths[200] == pytest.approx(4 * widths[3200], rel=0.3)


def test_all_right_leaves_room_for_the_errors_that_so_few_rows_do_not_show():
    measure = measure_of(RIGHT, labelled(RIGHT, ["a"] * 100, ["a"] * 100))
    interval = intervals(measure, range(100))["accuracy"]
    assert interval == pytest.approx((0.025**0.01, 1.0))  # Clopper and Pearson: 96.4 %
    measure = measure_of(RIGHT, labelled(RIGHT, ["a"] * 100, ["b"] * 100))
    assert intervals(measure, range(100))["accuracy"] == pytest.approx((0.0, 1 - 0.025**0.01))
    constant = RegressionTask(name="regress", metric=pearson_spearman)
    measure = measure_of(constant, labelled(constant, [1.0, 2.0, 3.0], [0.0] * 3))
    assert "pearson" not in intervals(measure, range(3))  # it is not defined


def tagged(labels, answers):
    rows = []
    for label, answer in zip(labels, answers, strict=True):
        found = example(0, words=("w",), label=(label,))
        rows.append(row_of(TAGGER, found, {"labels": [answer]}))
    return rows


def asked(answers):
    """Returns the rows of questions without an answer, {answer: questions}, among 97 others."""
    task, _ = pairs_of("squad2", 1)
    rows = []
    for index, answer in enumerate([*answers, *["cat", "mat"] * 48]):
        impossible = index < len(answers)
        found = example(index, answers=() if impossible else (("cat", 0),))
        found = dataclasses.replace(found, label=IMPOSSIBLE if impossible else None)
        rows.append(row_of(task, found, {"answer": answer}))
    return task, rows


def test_a_score_counts_only_the_groups_that_have_what_it_counts():
    rest = ["O"] * 990
    rows = tagged(["B-PER"] * 10 + rest, ["B-PER"] * 10 + rest)
    found = intervals(measure_of(TAGGER, rows), range(1000))
    for name in ("precision", "recall", "f1"):
        assert found[name] == pytest.approx((0.025**0.1, 1.0))
    rows = tagged(["B-PER"] * 2 + rest, ["O"] * 2 + rest)
    found = intervals(measure_of(TAGGER, rows), range(992))
    assert found["recall"] == pytest.approx((0.0, 1 - 0.025**0.5))
    assert "precision" not in found  # nothing is predicted
    for answer, expected in (("cat", (0.0, 1 - 0.025 ** (1 / 3))), ("", (0.025 ** (1 / 3), 1.0))):
        task, rows = asked([answer] * 3)
        measure = measure_of(task, rows)
        for of_runs in (measure, mean_of([measure] * 2, same_units=True)):
            found = intervals(of_runs, range(len(rows)))
            assert found["NoAns_exact"] == pytest.approx(expected)


def test_draws_without_a_question_of_a_kind_do_not_count_for_its_score():
    task, rows = asked(["", "", "cat"])
    measure = measure_of(task, rows)
    weights = np.ones((2, len(rows)))
    weights[1, :3] = 0
    whole, without = measure.scores(weights)["NoAns_exact"]
    assert whole == pytest.approx(2 / 3) and np.isnan(without)
    low, high = intervals(measure, range(len(rows)))["NoAns_exact"]
    assert low <= 2 / 3 <= high


def test_a_model_that_predicts_nothing_is_compared_with_one_that_does():
    golds = ["B-PER"] * 20 + ["O"] * 20
    rows = tagged(golds, ["O"] * 40) + tagged(golds, ["B-PER"] * 15 + ["O"] * 25)
    found = compare(measure_of(TAGGER, rows), range(40))["precision"]
    assert (found.first, found.second, found.difference) == (0.0, 1.0, -1.0)
    assert found.p_value < 0.01


def test_intervals_over_seeds_stay_where_the_score_can_be():
    assert interval_of_mean("dev/accuracy", [0.0, 1.0]) == (0.0, 1.0)
    assert interval_of_mean("dev/matthews", [-0.9, 0.9]) == (-1.0, 1.0)
    assert interval_of_mean("dev/loss", [0.1, 9.0]).low == 0.0
    low, high = interval_of_mean("dev/r2", [-5.0, 0.9])
    assert low < -1 and high == 1.0
    both = of_both("dev/accuracy", 0.9, Interval(0.5, 1.0), Interval(0.5, 0.99))
    assert both.high == 1.0


def test_one_group_has_no_interval():
    measure = measure_of(RIGHT, labelled(RIGHT, ["a"] * 10, ["a", "b"] * 5))
    assert intervals(measure, [0] * 10) == {}


def test_groups_widen_an_interval_as_the_design_effect_says():
    rng = np.random.default_rng(0)
    groups = np.repeat(np.arange(200), 10)
    shared, own = rng.random(200) < 0.7, rng.random(2000) < 0.7
    is_right = np.where(rng.random(2000) < 0.6, shared[groups], own)  # correlated by .36
    answers = np.where(is_right, "a", "b").tolist()
    measure = measure_of(RIGHT, labelled(RIGHT, ["a"] * 2000, answers))
    widths = []
    for units in (range(2000), groups):
        interval = intervals(measure, units)["accuracy"]
        widths.append(interval.high - interval.low)
    # Kish 1965: the variance grows by 1 + (rows per group - 1) * correlation.
    assert widths[1] / widths[0] == pytest.approx(math.sqrt(1 + 9 * 0.36), rel=0.1)


def test_rows_of_one_patient_are_one_group_and_passages_of_one_query_one_unit():
    for kind, units in (("classes", 12), ("ranking", 6)):
        task, pairs = pairs_of(kind, 12)
        source = Dataset(name=kind, files={}, rows={}, group_columns=("patient",))
        rows = ScoredRows(dataclasses.replace(task, source=source))
        patients = "aabbccddeeaa"
        of_patients = []
        for patient, (found, prediction) in zip(patients, pairs, strict=True):
            of_patients.append((dataclasses.replace(found, row={"patient": patient}), prediction))
        assert list(rows.observe(of_patients)) == of_patients
        assert len(rows.units()) == units
        expected = [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 0, 0]
        assert rows.groups() == (expected if kind == "classes" else expected[::2])


def test_the_bounds_are_those_of_scipy():
    stats = pytest.importorskip("scipy.stats")
    values = np.random.default_rng(0).exponential(size=60)
    expected = stats.bootstrap((values,), np.mean, n_resamples=20_000, rng=0).confidence_interval
    rng = np.random.default_rng(1)
    draws = rng.choice(values, (20_000, 60)).mean(1)
    left_out = (values.sum() - values) / 59
    found = bca(float(values.mean()), draws, left_out)
    assert found == pytest.approx((expected.low, expected.high), rel=0.01)


def test_a_comparison_of_equal_predictions_finds_no_difference():
    rows = labelled(RIGHT, ["a"] * 30, ["a", "b", "a"] * 10)
    found = compare(measure_of(RIGHT, rows + rows), range(30))["accuracy"]
    assert found == (20 / 30, 20 / 30, 0.0, (0.0, 0.0), 1.0)


def test_a_clear_difference_is_found_and_has_the_sign_of_the_first():
    rng = np.random.default_rng(0)
    good = np.where(rng.random(500) < 0.95, "a", "b").tolist()
    bad = np.where(rng.random(500) < 0.7, "a", "b").tolist()
    rows = [labelled(RIGHT, ["a"] * 500, answers) for answers in (good, bad)]
    found = compare(measure_of(RIGHT, rows[0] + rows[1]), range(500))["accuracy"]
    assert found.difference == pytest.approx(found.first - found.second)
    assert 0 < found.interval.low < found.difference < found.interval.high
    assert found.p_value == pytest.approx(1 / (EXCHANGES + 1))
    again = compare(measure_of(RIGHT, rows[1] + rows[0]), range(500))["accuracy"]
    assert again.difference == -found.difference
    assert again.interval.high < 0


def test_mcnemar_is_the_binomial_test_of_scipy():
    stats = pytest.importorskip("scipy.stats")
    first = np.array([True] * 12 + [False] * 3 + [True] * 5)
    second = np.array([False] * 12 + [True] * 8)
    assert mcnemar(first, second) == pytest.approx(stats.binomtest(3, 15).pvalue)
    assert mcnemar(first, first) == 1.0


@pytest.mark.parametrize("kind", others_weekly(TASKS, "entities"))
def test_ten_thousand_rows_take_less_than_five_seconds(kind):
    task, pairs = pairs_of(kind, 10_000)
    rows = ScoredRows(task)
    for _ in rows.observe(pairs):
        pass
    start = time.process_time()
    score_intervals(rows)
    assert time.process_time() - start < 5


def simulated(name, count, rng):
    """Returns a task with labels and predictions, and the names of the metrics of interest."""
    golds = np.where(rng.random(count) < 0.3, "b", "a")
    answers = np.where(rng.random(count) < 0.12, "b", golds)
    answers = np.where(rng.random(count) < 0.08, "a", answers)
    if name == "f1":
        metric = functools.partial(accuracy_and_f1, positive="b")
        task = dataclasses.replace(RIGHT, metric=metric)
        return task, labelled(task, golds.tolist(), answers.tolist())
    if name == "matthews":
        task = dataclasses.replace(RIGHT, metric=matthews)
        return task, labelled(task, golds.tolist(), answers.tolist())
    if name == "pearson":
        task = RegressionTask(name="stsb", metric=pearson_spearman)
        x, noise = rng.standard_normal((2, count))
        return task, labelled(task, x.tolist(), (0.8 * x + 0.6 * noise).tolist())
    task, rows = TAGGER, []
    for length in rng.integers(5, 25, count):
        tags = rng.choice(["O", "B-PER", "B-LOC"], length, p=[0.8, 0.12, 0.08])
        errs = rng.random(length) < rng.choice([0.02, 0.3])  # some sentences are hard
        answers = np.where(errs, rng.choice(["O", "B-PER", "B-LOC"], length), tags)
        pair = example(0, words=("w",) * length, label=tuple(tags)), {"labels": answers.tolist()}
        rows.append(row_of(task, *pair))
    return task, rows


TAGGER = TASKS["entities"][0]


@pytest.mark.slow
@pytest.mark.parametrize("count", [100, pytest.param(1000, marks=pytest.mark.exhaustive)])
@pytest.mark.parametrize(
    ("name", "metric"),
    [
        ("f1", "accuracy"),
        pytest.param("f1", "f1", marks=pytest.mark.exhaustive),
        pytest.param("matthews", "matthews", marks=pytest.mark.exhaustive),
        pytest.param("pearson", "pearson", marks=pytest.mark.exhaustive),
        pytest.param("entities", "f1", marks=pytest.mark.exhaustive),
    ],
)
def test_intervals_cover_the_true_score_in_90_to_98_per_cent(name, metric, count):
    rng = np.random.default_rng(0)
    task, rows = simulated(name, 30_000, rng)
    truth = measure_of(task, rows).scores(np.ones((1, len(rows))))[metric][0]
    covered, runs = 0, 400
    for run in range(runs):
        task, rows = simulated(name, count, rng)
        interval = intervals(measure_of(task, rows), range(count), seed=run)[metric]
        covered += interval.low <= truth <= interval.high
    print(f"{name} {metric} n={count}: covered {covered / runs:.3f}")
    assert 0.9 <= covered / runs <= 0.98


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.parametrize(("name", "metric"), [("f1", "accuracy"), ("matthews", "matthews")])
def test_models_that_are_equally_good_differ_in_3_to_7_per_cent_of_comparisons(name, metric):
    rng = np.random.default_rng(0)
    alarms, runs, count = 0, 1000, 200
    for run in range(runs):
        golds = np.where(rng.random(count) < 0.3, "b", "a")
        rows = []
        for _ in range(2):
            is_wrong = rng.random(count) < 0.15
            answers = np.where(is_wrong, np.where(golds == "a", "b", "a"), golds)
            task = dataclasses.replace(
                RIGHT,
                metric=matthews
                if name == "matthews"
                else functools.partial(accuracy_and_f1, positive="b"),
            )
            rows.append(labelled(task, golds.tolist(), answers.tolist()))
        found = compare(measure_of(task, rows[0] + rows[1]), range(count), seed=run)[metric]
        alarms += found.p_value <= 0.05
    print(f"{name} {metric}: false alarms {alarms / runs:.3f}")
    assert 0.03 <= alarms / runs <= 0.07
