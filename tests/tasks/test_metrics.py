"""Metrics against values worked out by hand, and against independent restatements."""

import functools
import itertools

import numpy as np
import pytest
from scipy import stats
from sklearn.metrics import (
    cohen_kappa_score,
    f1_score,
    matthews_corrcoef,
    mean_absolute_error,
    r2_score,
)
from sklearn.preprocessing import MultiLabelBinarizer

from bertjax.tasks.metrics import (
    accuracy,
    accuracy_and_f1,
    average_precision,
    class_metrics,
    entities,
    entity_f1,
    matthews,
    mrr,
    multi_label,
    ndcg,
    ordinal_metrics,
    pearson_spearman,
    ranked_gains,
    recall,
    regression_metrics,
    targets_metrics,
    word_accuracy,
)


def test_accuracy_is_the_share_of_equal_pairs():
    assert accuracy(["a", "b", "c", "a"], ["a", "b", "b", "b"]) == {"accuracy": 0.5}


def test_f1_is_that_of_the_positive_class_and_the_mean_is_given():
    golds, answers = [1, 1, 1, 0, 0], [1, 1, 0, 1, 0]  # precision 2/3, recall 2/3
    values = accuracy_and_f1(golds, answers, positive=1)
    assert values == pytest.approx({"accuracy": 0.6, "f1": 2 / 3, "accuracy_f1": (0.6 + 2 / 3) / 2})
    assert accuracy_and_f1(golds, answers, positive=0)["f1"] == pytest.approx(0.5)
    assert accuracy_and_f1([0, 0], [0, 0], positive=1)["f1"] == 0.0


def test_rare_classes_count_as_much_as_frequent_ones_in_macro_f1():
    golds = ["a"] * 50 + ["b"]
    found = class_metrics(golds, ["a"] * 51)
    assert found["accuracy"] == 50 / 51
    assert found["macro_f1"] == pytest.approx((2 * 50 / 101) / 2)
    assert found["weighted_f1"] == pytest.approx(50 / 51 * 2 * 50 / 101)


def test_errors_of_regression_have_the_unit_of_the_labels():
    golds, predictions = [100.0, 200.0, 300.0], [110.0, 190.0, 330.0]
    found = regression_metrics(golds, predictions)
    assert found["mae"] == pytest.approx(50 / 3)
    assert found["rmse"] == pytest.approx((1100 / 3) ** 0.5)
    assert found["r2"] == pytest.approx(1 - 1100 / 20000)
    assert regression_metrics([1.0, 1.0], [1.0, 2.0])["r2"] == 0.0


def test_matthews_follows_its_formula_and_is_0_for_constants():
    rng = np.random.default_rng(0)
    gold, answer = rng.integers(0, 2, (2, 50))
    tp, tn = sum(gold & answer), sum((1 - gold) & (1 - answer))
    fp, fn = sum((1 - gold) & answer), sum(gold & (1 - answer))
    expected = (tp * tn - fp * fn) / np.sqrt((tp + fp) * (tp + fn) * (tn + fp) * (tn + fn))
    assert matthews(gold.tolist(), answer.tolist())["matthews"] == pytest.approx(expected)
    assert matthews([0, 1, 0], [0, 0, 0]) == {"matthews": 0.0}
    assert matthews(["x", "x"], ["x", "x"]) == {"matthews": 0.0}


def test_correlations_follow_their_formulas_and_are_0_for_constants():
    rng = np.random.default_rng(0)
    x = rng.integers(0, 5, 40).astype(float)  # with ties
    y = x + rng.normal(size=40)
    ranks = [[(np.sum(v < a) + np.sum(v <= a) + 1) / 2 for a in v] for v in (x, y)]
    pearson, spearman = np.corrcoef(x, y)[0, 1], np.corrcoef(*ranks)[0, 1]
    expected = {
        "pearson": pearson,
        "spearman": spearman,
        "pearson_spearman": (pearson + spearman) / 2,
    }
    assert pearson_spearman(x.tolist(), y.tolist()) == pytest.approx(expected)
    zero = dict.fromkeys(expected, 0.0)
    assert pearson_spearman([1.0, 2.0], [3.0, 3.0]) == zero
    assert pearson_spearman([1.0], [3.0]) == zero
    assert pearson_spearman([1.0, 2.0, 3.0], [1.0, float("nan"), 2.0]) == zero
    almost = pearson_spearman([1.0, 2.0, 3.0], [1.0, 1.0 + 1e-15, 1.0])
    assert all(np.isfinite(value) for value in almost.values())


def test_multi_label_counts_decisions_classes_and_whole_examples():
    golds = [("a", "b"), (), ("c",), ("a",)]
    answers = [("b", "a"), ("a",), (), ("a",)]
    # a: 2 right, 1 too many; b: right; c: missed
    expected = {"micro_f1": 6 / 8, "macro_f1": (4 / 5 + 1 + 0) / 3, "subset_accuracy": 0.5}
    assert multi_label(golds, answers) == pytest.approx(expected)
    nothing = {"micro_f1": 0.0, "macro_f1": 0.0, "subset_accuracy": 1.0}
    assert multi_label([(), ()], [(), ()]) == nothing


def test_entities_start_where_conlleval_starts_them():
    assert entities(["B-PER", "I-PER", "O", "B-LOC"]) == [(0, 2, "PER"), (3, 4, "LOC")]
    assert entities(["I-PER", "I-PER", "O", "I-LOC"]) == [(0, 2, "PER"), (3, 4, "LOC")]
    assert entities(["B-PER", "B-PER"]) == [(0, 1, "PER"), (1, 2, "PER")]
    assert entities(["B-PER", "I-LOC"]) == [(0, 1, "PER"), (1, 2, "LOC")]
    assert entities(["B-a-b", "I-a-b"]) == [(0, 2, "a-b")]
    assert entities(["B", "I", "O", "I", "B"]) == [(0, 2, ""), (3, 4, ""), (4, 5, "")]
    assert entities(["O", "NN", "O"]) == entities([]) == []


def _entities_by_boundaries(tags):
    """conlleval's way: is there a chunk's end, or its start, between two neighbours?"""
    parts = [("O", "")] + [t.split("-", 1) if "-" in t else (t, "") for t in tags] + [("O", "")]
    starts, ends = [], []
    for index, ((a, kind_a), (b, kind_b)) in enumerate(itertools.pairwise(parts)):
        if a != "O" and (b in "BO" or kind_a != kind_b):
            ends.append((index, kind_a))
        if b == "B" or (b == "I" and (a == "O" or kind_a != kind_b)):
            starts.append((index, kind_b))
    pairs = zip(starts, ends, strict=True)
    return {(start, end, kind) for (start, kind), (end, _) in pairs}


def test_entity_f1_equals_a_restatement_on_random_tags():
    rng = np.random.default_rng(0)
    known = ["O", "O", "B-PER", "I-PER", "B-LOC", "I-LOC"]
    sentences = [rng.choice(known, rng.integers(0, 12)).tolist() for _ in range(400)]
    guesses = [
        [tag if rng.random() < 0.7 else str(rng.choice(known)) for tag in tags]
        for tags in sentences
    ]
    golds = {(i, *e) for i, tags in enumerate(sentences) for e in _entities_by_boundaries(tags)}
    found = {(i, *e) for i, tags in enumerate(guesses) for e in _entities_by_boundaries(tags)}
    precision, recall = len(golds & found) / len(found), len(golds & found) / len(golds)
    values = entity_f1(sentences, guesses)
    assert values["precision"] == pytest.approx(precision)
    assert values["recall"] == pytest.approx(recall)
    assert values["f1"] == pytest.approx(2 * precision * recall / (precision + recall))
    words = [a == b for s, g in zip(sentences, guesses, strict=True) for a, b in zip(s, g)]  # noqa: B905
    assert values["accuracy"] == pytest.approx(np.mean(words))
    assert 0.2 < values["f1"] < 0.8


def test_entity_f1_without_entities_is_0():
    zero = {"precision": 0.0, "recall": 0.0, "f1": 0.0, "accuracy": 1.0}
    assert entity_f1([["O", "O"]], [["O", "O"]]) == zero


def test_entity_f1_names_the_sentence_with_too_few_tags():
    with pytest.raises(ValueError, match="Sentence 2 has 2 words but 1 predicted tags"):
        entity_f1([["O"], ["O", "O"]], [["O"], ["O"]])


CLASSES, TAGS = ["x", "y", "x", "y"], [["B-X", "O"], ["O", "I-Y"]]
LABELS = {
    accuracy: CLASSES,
    functools.partial(accuracy_and_f1, positive="x"): CLASSES,
    matthews: CLASSES,
    pearson_spearman: [1.0, 2.5, 4.0],
    multi_label: [("a", "b"), ("b",), ()],
    entity_f1: TAGS,
    word_accuracy: TAGS,
}


@pytest.mark.parametrize("metric", LABELS)
def test_every_metric_refuses_other_lengths_and_nothing(metric):
    with pytest.raises(ValueError, match="2 labels, but 1 predictions"):
        metric(["1", "2"], ["1"])
    with pytest.raises(ValueError, match="nothing to score"):
        metric([], [])


def test_every_metric_of_perfect_predictions_is_1():
    for metric, golds in LABELS.items():
        values = metric(golds, golds)
        assert values and list(values.values()) == pytest.approx([1.0] * len(values)), metric


def test_macro_f1_counts_classes_that_are_only_predicted_as_scikit_learn_does():
    golds, answers = ["a", "a", "b", "b"], ["a", "c", "b", "b"]
    found = class_metrics(golds, answers)
    assert found["macro_f1"] == pytest.approx((2 / 3 + 1 + 0) / 3)
    assert found["weighted_f1"] == pytest.approx((2 / 3 + 1) / 2)


def test_rankings_are_scored_as_trec_eval_scores_them():
    trec = pytest.importorskip("pytrec_eval")
    rng = np.random.default_rng(0)
    runs, judged = {}, {}
    for query in map(str, range(1000)):
        ids = [str(i) for i in rng.permutation(150)[: rng.integers(1, 150)]]
        # Ties, also of numbers that only float32 holds to be equal.
        scores = rng.integers(0, rng.integers(2, 200), len(ids)) / 7 + rng.choice(
            [0, 1e-10], len(ids)
        )
        runs[query] = dict(zip(ids, scores.tolist(), strict=True))
        grades = rng.integers(0, rng.integers(1, 5), 20)
        judged[query] = dict(zip(map(str, rng.permutation(160)[:20]), grades.tolist(), strict=True))
    names = {"ndcg_cut.10", "recip_rank", "map", "recall.100"}
    expected = trec.RelevanceEvaluator(judged, names).evaluate(runs)
    for query, scores in runs.items():
        gains = judged[query]
        ranked = ranked_gains(scores, gains)
        reciprocal = expected[query]["recip_rank"]
        found = [
            ndcg(ranked, gains.values(), 10),
            mrr(ranked, 10),
            average_precision(ranked, gains.values()),
            recall(ranked, gains.values(), 100),
        ]
        assert found == pytest.approx(
            [
                expected[query]["ndcg_cut_10"],
                reciprocal if reciprocal >= 0.1 else 0.0,
                expected[query]["map"],
                expected[query]["recall_100"],
            ],
            abs=1e-12,
        )


@pytest.mark.parametrize("seed", range(20))
def test_scores_of_ordinal_classes_are_those_of_scikit_learn(seed):
    rng = np.random.default_rng(seed)
    golds = rng.integers(-1, 4, 30)
    predictions = np.clip(golds + rng.integers(-2, 3, 30), -1, 5) if seed else np.full(30, 2)
    values = ordinal_metrics([*map(str, golds)], [*map(str, predictions)])
    levels = range(-1, 6)
    kappa = cohen_kappa_score(golds, predictions, labels=levels, weights="quadratic")
    assert values["quadratic_kappa"] == pytest.approx(kappa)
    assert values["mae"] == mean_absolute_error(golds, predictions)
    assert values["accuracy"] == np.mean(golds == predictions)
    assert ordinal_metrics(["2"], ["2"])["quadratic_kappa"] == 0  # undefined


def test_scores_of_targets_are_those_of_each_and_their_means():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(2, 2, 20))
    golds = [{"a": a, "b": None if i < 5 else b} for i, (a, b) in enumerate(x.T.tolist())]
    answers = [{"a": a, "b": b} for a, b in y.T.tolist()]
    values = targets_metrics(golds, answers)
    of_a, of_b = regression_metrics(x[0], y[0]), regression_metrics(x[1, 5:], y[1, 5:])
    for name in of_a:
        assert values[name] == pytest.approx((of_a[name] + of_b[name]) / 2)
    assert values["a_pearson_spearman"] == of_a["pearson_spearman"]
    assert values["b_pearson"] == of_b["pearson"] and values["b_mae"] == of_b["mae"]


@pytest.mark.parametrize("seed", range(10))
def test_scores_of_classes_labels_and_numbers_are_those_of_scikit_learn_and_scipy(seed):
    rng = np.random.default_rng(seed)
    golds, answers = rng.choice(list("abcd"), (2, 40)).tolist()
    found = class_metrics(golds, answers) | matthews(golds, answers)
    for average in ("macro", "weighted"):
        expected = f1_score(golds, answers, average=average, zero_division=0.0)
        assert found[f"{average}_f1"] == pytest.approx(expected)
    assert found["matthews"] == pytest.approx(matthews_corrcoef(golds, answers))
    several = [[tuple("abcd"[:k]) for k in rng.integers(0, 5, 40)] for _ in range(2)]
    tables = [MultiLabelBinarizer(classes=list("abcd")).fit_transform(x) for x in several]
    for average in ("macro", "micro"):
        expected = f1_score(*tables, average=average, zero_division=0.0)
        assert multi_label(*several)[f"{average}_f1"] == pytest.approx(expected)
    x, noise = rng.normal(size=(2, 40))
    for scale in (1e-140, 1.0, 1e140):
        gold, answer = np.round(x, 1) * scale, np.round(x + noise, 1) * scale  # with ties
        found = regression_metrics(gold.tolist(), answer.tolist())
        assert found["pearson"] == pytest.approx(stats.pearsonr(x.round(1), answer).statistic)
        assert found["spearman"] == pytest.approx(stats.spearmanr(gold, answer).statistic)
        assert found["r2"] == pytest.approx(r2_score(gold / scale, answer / scale))
