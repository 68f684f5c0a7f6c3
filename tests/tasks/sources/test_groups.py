"""Rows of one group, such as a patient, are in one split; newer rows are evaluated, not learnt."""

import csv
import dataclasses
import time

import numpy as np
import pytest
from sklearn.model_selection import GroupKFold, StratifiedGroupKFold, TimeSeriesSplit

from bertjax.tasks import make_task
from bertjax.tasks.classification import ChoiceOptions, ClassifyOptions, RegressOptions
from bertjax.tasks.dataset import Fold, connected
from bertjax.tasks.question_answering import QaOptions
from bertjax.tasks.reranking import RerankOptions
from bertjax.tasks.sources.advice import cramers_v, names_owner, variance_explained
from bertjax.tasks.sources.held_out import group_folds, group_share, time_cuts, times_of
from tests.cases import WEEKLY


def random_groups(rng):
    """Returns groups, int [N], of random sizes, and a class of each example."""
    count = int(rng.integers(1, 25))
    sizes = rng.geometric(rng.uniform(0.1, 0.9), count)
    groups = rng.permutation(np.repeat(np.arange(count), sizes))
    of_group = rng.integers(0, 4, count)
    noise = rng.integers(0, 4, len(groups))
    return groups, np.where(rng.random(len(groups)) < 0.7, of_group[groups], noise).tolist()


def test_no_group_is_in_two_folds_of_100_random_tables_and_no_fold_is_empty():
    rng = np.random.default_rng(0)
    for seed in range(100):
        groups, classes = random_groups(rng)
        most = len(np.unique(groups))
        count = int(rng.integers(2, 7))
        if count > most:
            continue
        groups = connected([[group] for group in groups.tolist()])
        for given in (classes, None):
            folds = group_folds(groups, given, count, seed)
            assert len({*zip(groups, folds, strict=True)}) == most
            assert set(folds.tolist()) == set(range(count))
            assert (folds == group_folds(groups, given, count, seed)).all()


def test_folds_are_those_of_scikit_learn():
    rng = np.random.default_rng(1)
    groups = connected([[int(x)] for x in rng.integers(0, 40, 400)])
    classes = rng.integers(0, 3, 400)
    theirs = StratifiedGroupKFold(5, shuffle=True, random_state=7).split(groups, classes, groups)
    folds = group_folds(groups, classes.tolist(), 5, 7)
    for fold, (_, held_out) in enumerate(theirs):
        assert np.flatnonzero(folds == fold).tolist() == held_out.tolist()
    folds = group_folds(groups, None, 5, 7)
    sizes = [len(held_out) for _, held_out in GroupKFold(5).split(groups, groups=groups)]
    assert sorted(np.bincount(folds)) == sorted(sizes)  # it deals equal groups in another order


@pytest.mark.parametrize("fraction", [0.05, 0.1, 0.15, 0.3, 0.5, 0.8])
def test_the_held_out_share_is_counted_in_rows_and_classes_are_balanced(fraction):
    rng = np.random.default_rng(2)
    sizes = rng.integers(1, 30, 300)
    groups = np.repeat(np.arange(300), sizes)
    classes = (rng.random(300) < 0.2)[groups].tolist()
    chosen = group_share(groups, classes, fraction)
    assert not set(groups[chosen]) & set(groups[~chosen])
    assert abs(chosen.mean() - fraction) < 0.02
    assert abs(np.mean(np.array(classes)[chosen]) - np.mean(classes)) < 0.05


def test_one_group_cannot_be_held_out_and_of_two_the_nearer_one_is():
    assert not group_share(np.zeros(10, int), None, 0.1).any()
    groups = np.repeat([0, 1], [80, 20])
    assert set(groups[group_share(groups, None, 0.1)]) == {1}


def test_rows_that_share_a_key_directly_or_through_others_are_one_group():
    keys = [[("patient", "1")], [("patient", "2"), ("site", "x")], [], [("site", "x")], []]
    keys += [[("patient", "1"), ("site", "y")]]
    assert connected(keys).tolist() == [0, 1, 2, 1, 3, 0]


def write(path, rows):
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return str(path)


def notes(patients=40, each=10, seed=0):
    """Returns notes of patients, whose label belongs to the patient and nothing else tells it."""
    rng = np.random.default_rng(seed)
    rows = []
    for patient in range(patients):
        label = "ab"[int(rng.integers(2))]
        for _ in range(each):
            text = f"{patient * 7919} " + " ".join(rng.choice(list("cdefghijk"), 8))
            rows.append({"patient": f"p{patient}", "text": text, "label": label})
    return [rows[i] for i in rng.permutation(len(rows))]


def values_of(task, column="patient"):
    splits = task.source.splits
    return {s: {e.row.get(column) for e in task.source.examples(s)} for s in splits}


def test_the_only_column_named_as_an_id_and_different_in_each_row_gives_the_ids(tmp_path):
    rows = notes()
    for index, row in enumerate(rows):
        row["patient_id"] = row.pop("patient")
        row["note_id"] = f"N{index:04}"

    def ids(**options):
        path = write(tmp_path / "notes.csv", rows)
        source = make_task(
            "classify", ClassifyOptions(train=path, dev_fraction=0, **options)
        ).source
        return [example.id for example in source.examples("train")]

    assert ids()[:2] == ["N0000", "N0001"]
    assert ids(ignore_columns=("note_id",))[:2] == ids(group_column=("note_id",))[:2] == ["0", "1"]
    rows[3]["note_id"] = "N0000"
    assert ids()[:2] == ["0", "1"]
    rows[3]["note_id"] = ""
    assert ids()[:2] == ["0", "1"]


def test_no_patient_is_in_two_splits_or_folds(tmp_path, capsys):
    path = write(tmp_path / "notes.csv", notes())
    options = ClassifyOptions(train=path, group_column=("patient",))
    values = values_of(make_task("classify", options))
    assert len(values["dev"]) == 4 and values["dev"].isdisjoint(values["train"])
    printed = capsys.readouterr().out
    assert "40 of the 400 examples in notes.csv are not trained on" in printed
    assert "4 of the 40 groups by patient;" in printed
    assert "warning" not in printed
    seen = []
    for index in range(5):
        task = make_task("classify", options, Fold(index, 5, 3))
        values = values_of(task)
        assert values["dev"].isdisjoint(values["train"])
        seen += task.source.held_out_indices()
    assert sorted(seen) == list(range(400))


def test_rows_of_train_whose_patient_is_in_dev_or_test_are_left_out(tmp_path, capsys):
    rows = notes()
    files = {
        "train": write(tmp_path / "train.csv", rows[:300]),
        "dev": write(
            tmp_path / "dev.csv", [r for r in rows[300:] if "p30" <= r["patient"] < "p35"]
        ),
        "test": write(
            tmp_path / "test.csv", [r for r in rows[300:] if "p34" <= r["patient"] < "p38"]
        ),
    }
    task = make_task("classify", ClassifyOptions(**files, group_column=("patient",)))
    values = values_of(task)
    assert values["test"] and values["dev"].isdisjoint(values["test"])
    assert values["train"].isdisjoint(values["dev"] | values["test"])
    assert (
        "examples of the train split are left out: their patient is in" in capsys.readouterr().out
    )
    assert not task.source.all_bad_rows()


def test_rows_without_a_patient_are_a_group_each_and_17_is_17_0(tmp_path, capsys):
    rows = notes()
    for number, row in enumerate(rows):
        patient = row["patient"][1:]
        row["patient"] = ("", "NA", patient, f"{patient}.0")[number % 4]
    path = write(tmp_path / "notes.csv", rows)
    task = make_task("classify", ClassifyOptions(train=path, group_column=("patient",)))
    of_split = {
        split: {x.removesuffix(".0") for x in values} - {"", "NA"}
        for split, values in values_of(task).items()
    }
    assert of_split["train"].isdisjoint(of_split["dev"])
    assert "where 200 examples without patient are one each" in capsys.readouterr().out


@pytest.mark.parametrize(
    "divided",
    [
        {"group_column": ("sentence1",)},
        {"group_column": ("sentence2",)},
        {"group_column": ("id",)},
        {"time_column": "id"},
    ],
)
def test_columns_of_groups_and_of_the_time_may_be_texts_or_ids_as_well(divided, tmp_path):
    rows = []
    for number in range(40):
        row = {"id": 100 + number, "sentence1": f"a text about {number // 2}"}
        row |= {"sentence2": f"another one of {number // 2}", "label": "ab"[number % 2]}
        rows.append(row)
    path = write(tmp_path / "a.csv", rows)
    task = make_task("classify", ClassifyOptions(train=path, **divided))
    for example in task.source.examples("train"):
        assert example.id == str(example.row["id"])
        assert example.text == example.row["sentence1"]
        assert example.pair == example.row["sentence2"]


def test_a_code_of_a_document_is_no_text_because_of_its_name(tmp_path):
    rows = [
        {"document": f"d{n // 4}", "note": f"note {n} of it", "mood": "ab"[n % 2]}
        for n in range(40)
    ]
    path = write(tmp_path / "a.csv", rows)
    task = make_task("classify", ClassifyOptions(train=path, group_column=("document",)))
    assert next(task.source.examples("train")).text == "note 0 of it"


@pytest.mark.parametrize("kind", ["rerank", "qa"])
def test_queries_and_passages_may_be_groups(kind, tmp_path):
    rows = []
    for number in range(40):
        of_two = number // 2
        if kind == "qa":
            row = {"question": f"what is {number}?", "context": f"{of_two} is it", "answer": "it"}
        else:
            row = {"query": f"q{of_two}", "passage": f"it is {number}", "label": number % 2}
        rows.append(row)
    path = write(tmp_path / "a.csv", rows)
    column = "context" if kind == "qa" else "query"
    made = {"qa": QaOptions, "rerank": RerankOptions}[kind](train=path, group_column=(column,))
    source = make_task(kind, made).source
    values = {split: {e.row[column] for e in source.examples(split)} for split in source.splits}
    assert values["dev"] and values["dev"].isdisjoint(values["train"])


@pytest.mark.parametrize(
    ("balanced", "fraction"),
    [
        (False, 0.005),
        (False, 0.02),
        (False, 0.03),
        (False, 0.98),
        (True, 0.005),
        pytest.param(True, 0.02, marks=WEEKLY),
        pytest.param(True, 0.03, marks=WEEKLY),
        pytest.param(True, 0.98, marks=WEEKLY),
    ],
)
def test_small_fractions_of_many_groups_are_held_out_as_they_are(fraction, balanced):
    groups = np.repeat(np.arange(1000), 5)
    classes = (groups % 2).tolist() if balanced else None
    assert abs(group_share(groups, classes, fraction).mean() - fraction) < 0.003


def test_a_test_file_without_the_column_of_groups_is_read_with_a_warning(tmp_path, capsys):
    path = write(tmp_path / "a.csv", notes())
    unlabelled = [{"text": f"unlabelled {number}"} for number in range(5)]
    test = write(tmp_path / "test.csv", unlabelled)
    options = ClassifyOptions(train=path, test=test, group_column=("patient",))
    source = make_task("classify", options).source
    assert len([*source.examples("test")]) == 5
    said = capsys.readouterr().out
    assert "test.csv has no column 'patient'" in said and "other groups than all others" in said
    dev = write(tmp_path / "dev.csv", [{**row, "label": "a"} for row in unlabelled])
    with pytest.raises(ValueError, match="dev.csv has no column 'patient'"):
        make_task("classify", dataclasses.replace(options, dev=dev))


def test_more_folds_than_groups_and_unknown_columns_are_refused(tmp_path):
    path = write(tmp_path / "notes.csv", notes(patients=3))
    options = ClassifyOptions(train=path, group_column=("patient",))
    with pytest.raises(ValueError, match="has 3 groups by patient, .*: give at most --folds 3"):
        make_task("classify", options, Fold(0, 5, 0))
    options = dataclasses.replace(options, group_column=("patients",))
    with pytest.raises(ValueError, match="has no column 'patients'. Did you mean 'patient'"):
        make_task("classify", options)


def test_one_group_of_all_rows_is_said_and_not_held_out(tmp_path, capsys):
    rows = [{**row, "patient": "p"} for row in notes()]
    path = write(tmp_path / "notes.csv", rows)
    task = make_task("classify", ClassifyOptions(train=path, group_column=("patient",)))
    assert task.source.splits == ("train",)
    assert (
        "none of the 400 examples in notes.csv can be held out (0 of the 1 groups by patient)"
        in capsys.readouterr().out
    )


def test_a_class_of_one_patient_is_trained_on(tmp_path):
    rows = notes()
    for row in rows:
        if row["patient"] in ("p3", "p5", "p8", "p9"):
            row["label"] = f"only {row['patient']}"
    path = write(tmp_path / "notes.csv", rows)
    task = make_task("classify", ClassifyOptions(train=path, group_column=("patient",)))
    trained = {example.label for example in task.source.examples("train")}
    assert trained >= {"only p3", "only p5", "only p8", "only p9", "a", "b"}


@pytest.mark.parametrize("kind", ["regress", "rerank", "choice"])
def test_all_kinds_of_tasks_keep_groups_and_their_own_together(kind, tmp_path):
    rng = np.random.default_rng(5)
    rows = []
    for number in range(200):
        row = {"site": f"s{number // 7}", "query": f"query {number // 2}"}
        if kind == "regress":
            row = {"site": row["site"], "text": f"text {number}", "score": float(rng.random())}
        elif kind == "choice":
            row |= {"choice0": f"a {number}", "choice1": f"b {number}", "label": "01"[number % 2]}
        else:
            row |= {"passage": f"passage {number}", "label": number % 2}
        rows.append(row)
    path = write(tmp_path / "a.csv", rows)
    classes = {"regress": RegressOptions, "rerank": RerankOptions, "choice": ChoiceOptions}
    options = {"text_column": "query"} if kind == "choice" else {}
    made = classes[kind](train=path, group_column=("site",), **options)
    task = make_task(kind, made)
    sites = values_of(task, "site")
    assert sites["dev"] and sites["dev"].isdisjoint(sites["train"])
    if kind == "rerank":
        queries = values_of(task, "query")
        assert queries["dev"].isdisjoint(queries["train"])


def test_a_column_whose_values_are_in_train_and_dev_is_named_with_its_share(tmp_path, capsys):
    rows = notes()
    path = write(tmp_path / "notes.csv", rows)
    task = make_task("classify", ClassifyOptions(train=path))
    said = capsys.readouterr().out
    assert " of 40 values of patient are in train and dev; give --group_column patient" in said
    assert task.data.warning and task.data.warning in said
    make_task("classify", ClassifyOptions(train=path, ignore_columns=("patient",)))
    assert "--group_column" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("column", "depends", "named"),
    [
        ("x", True, True),
        ("x", False, False),
        ("PatientID", False, True),
        ("author_no", False, True),
    ],
)
def test_a_column_is_named_if_the_label_depends_on_it_or_its_name_says_so(
    column, depends, named, tmp_path, capsys
):
    rng = np.random.default_rng(3)
    rows = [
        {
            column: row["patient"],
            "text": row["text"],
            "label": row["label"] if depends else "ab"[int(rng.integers(2))],
        }
        for row in notes()
    ]
    make_task("classify", ClassifyOptions(train=write(tmp_path / "a.csv", rows)))
    assert ("--group_column" in capsys.readouterr().out) == named


def visits(patients=80, each=3, seed=1, own=0.9):
    """Returns a physician's table: a patient has one diagnosis, in most of a few rows."""
    rng = np.random.default_rng(seed)
    rows = []
    for row in notes(patients, each, seed):
        diagnosis = row["label"]
        if rng.random() > own:
            diagnosis = "ab"[int(rng.integers(2))]
        day = f"2024-{rng.integers(1, 13):02}-{rng.integers(1, 29):02}"
        station = f"Innere {rng.integers(1, 4)}"
        described = {"Datum": day, "Station": station, "Nr": f"N{len(rows)}"}
        rows.append({"code": row["patient"], **described, "text": row["text"], "label": diagnosis})
    return rows


def test_a_column_of_small_groups_is_named_if_their_labels_agree_more_than_by_chance(
    tmp_path, capsys
):
    path = write(tmp_path / "a.csv", visits())
    make_task("classify", ClassifyOptions(train=path))
    said = capsys.readouterr().out
    assert "of 80 values of code are in train and dev; give --group_column code" in said
    assert "of Datum" not in said and "of Station" not in said and "of Nr" not in said


def test_columns_that_tell_nothing_are_not_named_in_20_random_tables(tmp_path, capsys):
    for seed in range(20):
        rows = visits(patients=20 + 8 * seed, each=2 + seed % 4, seed=seed, own=0)
        make_task("classify", ClassifyOptions(train=write(tmp_path / "a.csv", rows)))
        assert "--group_column" not in capsys.readouterr().out, seed


@pytest.mark.parametrize("name", ["Patienten-ID", "code"])
def test_patients_of_a_test_file_who_are_in_the_training_file_are_named(name, tmp_path, capsys):
    rows = []
    for row in visits():
        rows.append({name: row.pop("code"), **row})
    files = {
        "train": write(tmp_path / "train.csv", rows[:160]),
        "test": write(tmp_path / "test.csv", rows[160:]),
    }
    make_task("classify", ClassifyOptions(**files, dev_fraction=0.0))
    said = capsys.readouterr().out
    assert f"values of {name} are in train and test; give --group_column {name}" in said
    make_task("classify", ClassifyOptions(**files, dev=files["test"]))
    assert f"values of {name} are in train and dev or test;" in capsys.readouterr().out
    others = [{**row, name: f"other {number}"} for number, row in enumerate(rows[160:])]
    files["test"] = write(tmp_path / "test.csv", others)
    make_task("classify", ClassifyOptions(**files, dev_fraction=0.0))
    assert "--group_column" not in capsys.readouterr().out


def test_columns_whose_values_do_not_repeat_or_name_the_classes_are_not_named(tmp_path, capsys):
    rows = [
        {**row, "patient": f"note {number}", "label_text": {"a": "good", "b": "bad"}[row["label"]]}
        for number, row in enumerate(notes())
    ]
    path = write(tmp_path / "a.csv", rows)
    make_task("classify", ClassifyOptions(train=path, label_column="label"))
    assert "--group_column" not in capsys.readouterr().out


def test_names_of_owners_are_known_in_many_languages_but_not_what_describes_them():
    owners = "patient PatientID user_id Autor Séance hastane_no пациент 患者ID caseNumber"
    in_one_word = "Patienten-ID PatID Patientennummer PID Pat.-Nr. patnr Fallnummer MRN Proband"
    others = "ProbandenNr USUBJID userid Kundennummer Benutzername Patientenkürzel caseid"
    for name in f"{owners} {in_one_word} {others}".split():
        assert names_owner(name), name
    for (
        name
    ) in "document_type patient_age text caseload label x casein cases Datum Station".split():
        assert not names_owner(name), name


def test_independent_variables_are_not_associated_and_dependent_ones_are():
    rng = np.random.default_rng(0)
    groups = np.repeat(np.arange(40), 5)
    v, explained = [], []
    for _ in range(50):
        v.append(cramers_v(groups, rng.integers(0, 2, 200)))
        explained.append(variance_explained(groups, rng.normal(size=200)))
    assert np.mean(np.array(v) > 0.3) < 0.1 and np.mean(np.array(explained) > 0.3) < 0.02
    assert cramers_v(groups, groups % 2) == pytest.approx(1, abs=0.11)
    assert variance_explained(groups, groups * 1.0) == pytest.approx(1)


def test_the_association_is_the_weighted_mean_over_classes_and_fast_for_many_of_them():
    rng = np.random.default_rng(1)
    groups = rng.integers(0, 30, 300)
    classes = (groups % 4 + rng.integers(0, 2, 300)).tolist()
    explained, weights = [], []
    for name in {*classes}:
        is_name = np.array([float(other == name) for other in classes])
        explained.append(variance_explained(groups, is_name))
        weights.append(1 - is_name.mean())
    expected = np.sqrt(np.average(explained, weights=weights))
    assert cramers_v(groups, classes) == pytest.approx(expected)
    assert cramers_v(groups, ["only"] * 300) == 0
    many = [f"class {number}" for number in rng.integers(0, 1000, 20_000)]
    start = time.process_time()
    cramers_v(rng.integers(0, 4000, 20_000), many)
    assert time.process_time() - start < 1


def test_times_are_numbers_dates_months_and_years():
    assert times_of(["2019", "2021", 2020]).tolist() == [2019, 2021, 2020]
    mixed = times_of(["2020", "2020-03", "2020-03-02", "2020-03-02T12:00:00Z", "2020-03-02 13:00"])
    assert (np.diff(mixed) > 0).all()
    assert np.isnan(times_of(["2020-01-01", "", "soon"])).tolist() == [False, True, True]


def test_cuts_of_time_are_those_of_scikit_learn_and_equal_times_stay_together():
    times = np.arange(103.0)
    folds = TimeSeriesSplit(5).split(times)
    for index, (train, held_out) in enumerate(folds):
        first, end = time_cuts(times, 0.1, Fold(index, 5, 0))
        assert (first, end) == (len(train), held_out[-1] + 1)
    assert time_cuts(times, 0.1, None) == (93, 103)
    assert time_cuts(np.repeat([1.0, 2.0, 3.0], [10, 10, 3]), 0.1, None) == (20, 23)


def test_the_newest_rows_are_the_dev_split_and_folds_learn_from_the_past(tmp_path, capsys):
    rng = np.random.default_rng(1)
    rows = [
        {
            "date": f"20{year:02}-0{month}-15",
            "text": f"text {year} {month}",
            "label": "ab"[month % 2],
        }
        for year in range(20)
        for month in range(1, 8)
    ]
    rows = [rows[i] for i in rng.permutation(len(rows))]
    path = write(tmp_path / "a.csv", rows)
    options = ClassifyOptions(train=path, time_column="date", dev_fraction=0.2)
    values = values_of(make_task("classify", options), "date")
    assert max(values["train"]) < min(values["dev"]) and len(values["dev"]) == 28
    assert (
        "date from 2016-01-15 to 2019-07-15; 112 older ones are trained on"
        in capsys.readouterr().out
    )
    before = ""
    for index in range(4):
        values = values_of(make_task("classify", options, Fold(index, 4, 0)), "date")
        assert before < max(values["train"]) < min(values["dev"])
        before = max(values["train"])
    with pytest.raises(ValueError, match="has 140 different values of date, too few for"):
        make_task("classify", options, Fold(0, 200, 0))


def test_patients_of_the_newest_rows_are_not_trained_on(tmp_path):
    rows = [{**row, "year": 2000 + number // 20} for number, row in enumerate(notes())]
    path = write(tmp_path / "a.csv", rows)
    options = ClassifyOptions(train=path, time_column="year", group_column=("patient",))
    task = make_task("classify", options)
    patients, years = values_of(task), values_of(task, "year")
    assert patients["train"].isdisjoint(patients["dev"])
    assert max(years["train"]) < min(years["dev"])


def test_times_that_cannot_be_read_are_refused_by_place_or_left_out(tmp_path):
    rows = [{**row, "date": f"2020-01-{1 + n % 28:02}"} for n, row in enumerate(notes())]
    rows[5]["date"] = "last spring"
    path = write(tmp_path / "a.csv", rows)
    options = ClassifyOptions(train=path, time_column="date")
    with pytest.raises(ValueError, match='row 7: date is "last spring", which is no date'):
        make_task("classify", options)
    task = make_task("classify", dataclasses.replace(options, skip_bad_rows=True))
    assert len(task.source.all_bad_rows()) == 1
    with pytest.raises(ValueError, match="it chooses the dev split, but --dev"):
        ClassifyOptions(train=path, dev=path, time_column="date")


def test_groups_of_examples_with_several_labels_are_as_balanced_by_their_rarest(tmp_path):
    rng = np.random.default_rng(5)
    rows = ["text,patient,a,b,c"]
    for patient in range(80):
        has = rng.random(3) < (0.5, 0.3, 0.15)
        for note in range(rng.integers(2, 9)):
            cells = ",".join(str(int(label)) for label in has)
            rows.append(f"note {patient} {note},{patient},{cells}")
    path = tmp_path / "train.csv"
    path.write_text("\n".join(rows) + "\n")
    options = ClassifyOptions(train=str(path), group_column=("patient",))
    shares = []
    for index in range(5):
        task = make_task("classify", options, Fold(index, 5, 0))
        labels = [example.label for example in task.data.examples("dev")]
        shares.append(sum("c" in label for label in labels) / len(labels))
    assert max(shares) < 2 * min(shares)
