"""Slices are the scores of their rows, and the model card has the numbers of evaluation.json."""

import dataclasses
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from sklearn.metrics import recall_score, roc_auc_score

import bertjax
from bertjax.config import FinetuneConfig
from bertjax.record.evaluation import (
    FEWEST_ROWS,
    baselines_in_words,
    card_of,
    cautions,
    class_scores,
    data_facts,
    diagnostics,
    mean_baselines,
    methods,
    slices_in_words,
    slices_of,
    verdict,
)
from bertjax.record.predictions import ClassReport, label_errors_in_words
from bertjax.tasks import make_task
from bertjax.tasks.classification import ClassificationTask, ClassifyOptions
from bertjax.tasks.dataset import Dataset, Leak, Lengths
from bertjax.tasks.measures import NO_VALUE, scored_rows
from bertjax.tasks.sources.label_columns import LabelForm, form_in_words
from tests.scored_pairs import TASKS, pairs_of


def sliced(kind, count, values, columns=("source",)):
    """Returns a task with a column of slices, and random pairs with these values in turn."""
    task, pairs = pairs_of(kind, count)
    source = Dataset(name="own", files={}, rows={}, slice_columns=columns)
    given = []
    for number, (example, prediction) in enumerate(pairs):
        row = {"source": values[number % len(values)]}
        given.append((dataclasses.replace(example, row=row), prediction))
    return dataclasses.replace(task, source=source), given


@pytest.mark.parametrize("kind", TASKS)
def test_the_score_of_a_slice_is_that_of_its_rows(kind):
    task, pairs = sliced(kind, 120, ["news", "mail", "17", "17.0"])
    (found,) = slices_of(scored_rows(task, pairs), task.best_metric).values()
    if kind == "ranking":  # their units are queries
        assert found["rows"]
        return
    assert {row["value"]: row["rows"] for row in found["rows"]} == {
        "news": 30,
        "mail": 30,
        "17": 60,
    }
    for row in found["rows"]:
        values = {row["value"], f"{row['value']}.0"}
        own = task.score([pair for pair in pairs if pair[0].row["source"] in values])
        for name in own.keys() & row["scores"].keys():
            assert row["scores"][name] == pytest.approx(own[name]), name
        assert set(row["intervals"]) <= set(row["scores"])


def test_the_worst_slice_is_first_and_rare_values_are_named():
    task, pairs = sliced("classes", 200, ["a", "b", "c"])
    few = [dataclasses.replace(example, row={"source": ""}) for example, _ in pairs[:4]]
    pairs += [(example, pairs[0][1]) for example in few]
    (found,) = slices_of(scored_rows(task, pairs), "accuracy").values()
    scores = [row["scores"]["accuracy"] for row in found["rows"]]
    assert scores == sorted(scores) and len(scores) == 3 and found["metric"] == "accuracy"
    assert found["few"] == {NO_VALUE: 4} and FEWEST_ROWS > 4
    (found,) = slices_of(scored_rows(task, pairs), "loss").values()
    losses = [row["scores"]["loss"] for row in found["rows"]]
    assert losses == sorted(losses, reverse=True)


def test_columns_of_slices_are_found_in_all_evaluated_files(tmp_path, capsys):
    rows = "".join(f"text {n},{'ab'[n % 2]},{'xy'[n % 3 % 2]}\n" for n in range(40))
    for name, head in (("a", "text,label,origin"), ("b", "text,label,other")):
        (tmp_path / f"{name}.csv").write_text(f"{head}\n{rows}")
    a, b = (str(tmp_path / f"{name}.csv") for name in "ab")
    task = make_task("classify", ClassifyOptions(train=a, slice_column=("origin",)))
    assert task.data.slice_columns == ("origin",)
    with pytest.raises(ValueError, match="no column 'orign'.*origin"):
        make_task("classify", ClassifyOptions(train=a, slice_column=("orign",)))
    with pytest.raises(ValueError, match="b.csv has no column 'origin'"):
        make_task("classify", ClassifyOptions(train=a, dev=b, slice_column=("origin",)))
    capsys.readouterr()
    make_task("classify", ClassifyOptions(train=a, dev=a, test=b, slice_column=("origin",)))
    assert "b.csv has no column 'origin'" in capsys.readouterr().out


def test_leaks_that_were_left_out_are_no_leaks_of_the_scores():
    lengths = Lengths(*range(len(Lengths._fields)))
    leaks = tuple(Leak("dev", f"row {n}", f"copy {n}", 1.0) for n in range(4))
    source = SimpleNamespace(
        lengths={},
        files={},
        note="",
        warning="",
        group_columns=(),
        leaks=leaks,
        left_out={},
        all_bad_rows=list,
    )
    task = SimpleNamespace(data=source, labels=(), label_kind="classes", reads_windows=False)
    data = SimpleNamespace(lengths=lengths, groups=None, class_counts=np.zeros(0), examples=0)
    facts = data_facts(task, data, 16)
    assert facts["leaked_rows"] == {"dev": 4} and facts["dropped_leaks"] == {}
    source.left_out = {"train": {"copy 0": "", "copy 1": "", "another": "bad"}}
    facts = data_facts(task, data, 16)
    assert facts["leaked_rows"] == {"dev": 2} and facts["dropped_leaks"] == {"train": 2}
    assert [leak["where"] for leak in facts["leaks"]] == ["row 2", "row 3"]
    said = [*cautions(facts)]
    assert any("2 rows of dev" in line for line in said)
    assert any("Left out of train" in line and "2 rows" in line for line in said)


EVALUATION = {
    "data": {
        "file": "notes.csv",
        "note": "",
        "warning": "warning: 3 of 9 values of patient are in train and dev",
        "group_columns": ["ward"],
        "classes": {f"label {n}": n for n in range(25)},
        "leaked_rows": {"dev": 1},
        "max_length": 128,
        "splits": {
            "train": {
                **{"examples": 1200, "groups": None, "shortest": 3, "median": 9, "most": 20},
                **{"longest": 40, "truncated": 0},
            }
        },
    },
    "scores": {"dev/accuracy": 0.91, "dev/loss": 0.25},
    "intervals": {"dev/accuracy": (0.9, 0.92)},
    "baselines": {
        "splits": {"dev": {"majority": {"accuracy": 0.523}, "bag of words": {"accuracy": 0.781}}}
    },
    "slices": {
        "dev": {
            "source": {
                "metric": "accuracy",
                "rows": [
                    {"value": "a|<b>", "rows": 50, "scores": {"accuracy": 0.5}, "intervals": {}}
                ],
            }
        }
    },
}


def test_the_model_card_has_the_scores_as_tables():
    lines = card_of(EVALUATION).splitlines()
    assert "| train | 1,200 | – | 9 | 20 | 40 | 0 |" in lines
    row = (
        "| held-out accuracy | 91.00 % | 90.00 to 92.00 | majority 52.30 %, bag of words 78.10 % |"
    )
    assert row in lines and "| held-out loss | 0.25 |  |  |" in lines
    assert r"| a\|&lt;b> | 50 | 50.00 % |  |" in lines
    tables = [line for line in lines if line.startswith("|")]
    assert {line.replace(r"\|", "").count("|") for line in tables} == {5, 8}
    text = "\n".join(lines)
    assert "label 24 (24), label 23" in text and "25 labels" in text and "label 4 (" not in text
    assert "notes.csv" in text and "one value of ward" in text and "1 row of dev" in text
    assert "warning: 3 of 9 values of patient" in text


def test_the_card_has_the_scores_of_labels_and_what_the_dev_split_has_chosen():
    row = {"name": "a|b", "precision": 0.5, "recall": 0.25, "f1": 0.333, "support": 1}
    others = [{**row, "name": f"other {n}", "support": 2} for n in range(20)]
    changed = {**EVALUATION, "by_class": {"dev": [row]}, "choices": ["dev chose the checkpoint"]}
    card = card_of(changed)
    assert r"| a\|b | 50.00% | 25.00% | 33.30% | 1 |" in card and "dev chose" in card
    card = card_of({**changed, "by_class": {"dev": [row, *others]}})
    assert r"a\|b" not in card and "other 19" in card


def test_a_column_without_slices_is_one_sentence_instead_of_an_empty_table():
    slices = {"dev": {"visit_date": {"metric": "accuracy", "rows": [], "few": {"May": 1}}}}
    (sentence,) = slices_in_words(slices)
    assert "visit_date" in sentence and slices_in_words(EVALUATION["slices"]) == []
    card = card_of({**EVALUATION, "slices": slices})
    assert sentence in card and "by visit_date" not in card


def test_baselines_of_folds_are_means_of_the_scores_that_all_folds_have():
    folds = []
    for score in (0.5, 0.7):
        models = {"majority": {"accuracy": score, f"only {score}": 1.0}}
        folds.append({"baselines": {"splits": {"dev": models}, "skipped": ""}})
    assert mean_baselines(folds)["splits"] == {"dev": {"majority": {"accuracy": 0.6}}}
    assert mean_baselines([{}, folds[0]])["splits"] == {}


def test_one_line_says_what_the_encoder_adds():
    line = "baseline, held-out accuracy: majority 52.30 %, bag of words 78.10 %; this model 91.00 %"
    assert baselines_in_words(EVALUATION, "dev/accuracy") == line
    # Without a dev split, or with a metric of probabilities, it is about another score.
    assert {baselines_in_words(EVALUATION, key) for key in (None, "dev/loss")} == {line}
    without = {**EVALUATION, "baselines": {"splits": {}, "skipped": "There are none."}}
    assert baselines_in_words(without, "dev/accuracy") == "There are none."
    assert np.isfinite(EVALUATION["scores"]["dev/loss"])


def test_the_methods_say_groups_folds_the_interval_the_seed_and_the_versions():
    config = FinetuneConfig(task="classify", init="a-bert", seed=7, folds=5)
    said = methods(config, {"group_columns": ["Patienten-ID"]})
    assert said.startswith(
        "Methods: a-bert was fine-tuned with seed 7; the scores are of groups of"
    )
    assert "by Patienten-ID that were not trained on, in 5 folds." in said
    assert "bootstrap of up to 1,000 draws of groups of examples by Patienten-ID" in said
    assert f"jax {jax.__version__}, " in said and f"bertjax {bertjax.__version__}, " in said
    said = methods(dataclasses.replace(config, folds=0), {"group_columns": []})
    assert "scores are of examples that were not trained on. The 95 %" in said


def test_the_card_says_which_rows_are_used():
    data = {**EVALUATION["data"], "rows": "727 rows: 685 used, 42 left out (42: no text)"}
    assert "\n727 rows: 685 used, 42 left out" in card_of({**EVALUATION, "data": data})


def test_one_is_singular(tmp_path):
    said = label_errors_in_words([{"place": "a"}], 8, tmp_path)
    assert said.startswith("1 label of held-out examples may be wrong, in 12.5% of 8: ")
    rows = [{"place": f"row {number // 2}"} for number in range(1200)]
    said = label_errors_in_words(rows, 2400, tmp_path)
    assert said.startswith("1,200 labels of held-out examples may be wrong, in 25.0% of 2,400: ")
    assert "Look at the first ones" in said
    assert form_in_words(LabelForm("multi_label", ("fever",))).startswith("1 label (fever)")


@pytest.mark.parametrize(
    "bag_of_words, told", [(0.781, ""), (0.905, "cannot be told"), (0.91, "not better"), (1, "not")]
)
def test_a_sentence_says_where_the_bag_of_words_is_as_good(bag_of_words, told):
    models = {"majority": {"accuracy": 0.523}, "bag of words": {"accuracy": bag_of_words}}
    evaluation = {**EVALUATION, "baselines": {"splits": {"dev": models}}}
    sentence = verdict(evaluation, "dev/accuracy")
    assert told in sentence and bool(told) == bool(sentence)
    assert sentence in card_of({**evaluation, "verdict": sentence})


def test_the_lower_error_is_the_better_one_and_a_task_without_baselines_has_no_verdict():
    models = {"bag of words": {"loss": 0.2}}
    evaluation = {**EVALUATION, "baselines": {"splits": {"dev": models}}}
    assert "not better" in verdict(evaluation, "dev/loss")
    models["bag of words"]["loss"] = 0.3
    assert verdict(evaluation, "dev/loss") == ""
    assert verdict({**EVALUATION, "baselines": {}}, None) == ""


def test_the_card_names_what_the_author_must_fill_in():
    lines = card_of(EVALUATION).splitlines()
    assert lines[1] == "## Intended use and limits"
    assert any("train 1,200" in line for line in lines)
    assert any("To be filled in by the author" in line for line in lines)


def binary_pairs(count):
    rng = np.random.default_rng(0)
    pairs = []
    for number in range(count):
        example, _ = pairs_of("classes", 1)[1][0]
        gold = "yes" if rng.random() < 0.3 else "no"
        p = round(float(np.clip(rng.normal(0.5 + 0.1 * (gold == "yes"), 0.2), 0, 1)), 1)
        prediction = {
            "label": "yes" if p >= 0.5 else "no",
            "probabilities": {"no": 1 - p, "yes": p},
        }
        example = dataclasses.replace(example, id=str(number), label=gold)
        pairs.append((example, prediction))
    return ClassificationTask(name="classify", labels=("no", "yes")), pairs


@pytest.mark.parametrize("kind", ["classes", "labels"])
def test_sensitivity_specificity_and_auroc_are_those_of_scikit_learn(kind):
    task, pairs = binary_pairs(300) if kind == "classes" else pairs_of("labels", 300)
    report = ClassReport(task)
    for pair in pairs:
        report.add(*pair)
    (rows,) = class_scores({"dev": report}, {"dev": [scored_rows(task, pairs)]}).values()
    assert [row["name"] for row in rows] == [*task.labels]
    for row in rows:
        name = row["name"]
        golds = [name in np.atleast_1d(example.label) for example, _ in pairs]
        answers = [name in np.atleast_1d(x.get("label", x.get("labels"))) for _, x in pairs]
        probabilities = [prediction["probabilities"][name] for _, prediction in pairs]
        assert row["auroc"] == pytest.approx(roc_auc_score(golds, probabilities))
        assert row["sensitivity"] == pytest.approx(recall_score(golds, answers)) == row["recall"]
        specificity = recall_score(np.invert(golds), np.invert(answers))
        assert row["specificity"] == pytest.approx(specificity)
        for metric, (low, high) in row["intervals"].items():
            assert 0 < low < row[metric] < high < 1, metric
    card = card_of({**EVALUATION, "by_class": {"dev": rows}})
    low, high = rows[0]["intervals"]["auroc"]
    assert f"| {100 * rows[0]['auroc']:.2f} % ({100 * low:.2f} to {100 * high:.2f}) |" in card


def test_the_auroc_of_folds_compares_examples_of_one_model_alone():
    task, pairs = binary_pairs(200)
    shifted = []
    for example, prediction in pairs[120:]:
        p = 0.1 * prediction["probabilities"]["yes"]  # another model, with lower probabilities
        shifted.append((example, {**prediction, "probabilities": {"no": 1 - p, "yes": p}}))
    folds = [pairs[:120], shifted]
    found = diagnostics([scored_rows(task, fold) for fold in folds])["yes"]
    ordered = total = 0.0
    for fold in folds:
        golds = [example.label == "yes" for example, _ in fold]
        count = sum(golds) * (len(golds) - sum(golds))
        ordered += count * roc_auc_score(golds, [x["probabilities"]["yes"] for _, x in fold])
        total += count
    assert found["auroc"] == pytest.approx(ordered / total)


def test_what_no_example_defines_is_left_out():
    task, pairs = binary_pairs(60)
    without = [(dataclasses.replace(example, label="no"), x) for example, x in pairs]
    found = diagnostics([scored_rows(task, without)])
    assert found["yes"].keys() == {"specificity", "intervals"}
    assert found["no"].keys() == {"sensitivity", "intervals"}
    task, pairs = pairs_of("classes", 60)  # three classes
    assert diagnostics([scored_rows(task, pairs)]) == {}
    sure = [(x, {**p, "probabilities": {"no": x.label == "no", "yes": x.label == "yes"}})
            for x, p in binary_pairs(60)[1]]  # fmt: skip
    found = diagnostics([scored_rows(binary_pairs(1)[0], sure)])["yes"]
    assert found["auroc"] == 1 and found["intervals"]["auroc"][0] < 0.9


def test_many_decisions_have_no_intervals(monkeypatch):
    monkeypatch.setattr("bertjax.record.evaluation.MOST_DECISIONS", 100)
    task, pairs = binary_pairs(60)
    assert diagnostics([scored_rows(task, pairs)])["yes"].keys() == {
        *("sensitivity", "specificity", "auroc")
    }
