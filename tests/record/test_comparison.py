"""Comparisons of two files of predictions, of every kind of task."""

import dataclasses
import json
import random

import pytest
from scipy import stats

from bertjax import score
from bertjax.record.comparison import compare_files
from tests.scored_pairs import TASKS, pairs_of

NAMES = {"matthews": "cola", "accuracy": "sst2", "squad2": "squad2", "squad": "squad"}


def write(folder, task, pairs):
    folder.mkdir(exist_ok=True)
    for _ in task.write_predictions(folder, "dev", pairs):
        pass
    return folder / "dev.jsonl"


def two_files(tmp_path, kind, count=80):
    """Writes the predictions of two models for the same examples; returns task, pairs and paths."""
    task, pairs = pairs_of(kind, count)
    _, others = pairs_of(kind, count, seed=1)
    again = [(example, other) for (example, _), (_, other) in zip(pairs, others, strict=True)]
    if kind in ("entities", "words"):
        again = [(example, {"labels": [*example.label]}) for example, _ in pairs]
    for example, prediction in [*pairs, *again]:
        if example.words:
            prediction["words"] = [*example.words]
    first, second = write(tmp_path / "a", task, pairs), write(tmp_path / "b", task, again)
    return task, pairs, again, (first, second)


@pytest.mark.parametrize("kind", [kind for kind in TASKS if kind not in ("ranking", "positive")])
def test_both_scores_are_those_of_the_task(kind, tmp_path):
    task, pairs, again, files = two_files(tmp_path, kind)
    found = compare_files(*files, name=NAMES.get(kind, ""))
    assert found["examples"] == 80
    scores, others = task.score(pairs), task.score(again)
    for name, values in found["metrics"].items():
        if name in scores:
            assert values["first"] == pytest.approx(scores[name])
            assert values["second"] == pytest.approx(others[name])
            assert values["difference"] == pytest.approx(scores[name] - others[name])
    assert task.best_metric in found["metrics"] or kind in ("matthews",)
    assert found["sentence"]


def test_the_order_of_the_second_file_does_not_matter(tmp_path):
    _, _, _, (first, second) = two_files(tmp_path, "classes")
    expected = compare_files(first, second)
    lines = second.read_text().splitlines()
    random.Random(0).shuffle(lines)
    second.write_text("\n".join(lines) + "\n")
    assert compare_files(first, second) == expected


def test_mcnemar_is_the_test_of_what_only_one_model_has_right(tmp_path):
    _, pairs, again, files = two_files(tmp_path, "classes")
    found = compare_files(*files)["metrics"]["accuracy"]["p_value_mcnemar"]
    right = [[e.label == p["label"] for e, p in model] for model in (pairs, again)]
    only = [sum(a and not b for a, b in zip(*order, strict=True)) for order in (right, right[::-1])]
    assert found == pytest.approx(stats.binomtest(only[0], sum(only)).pvalue)


def test_labels_come_from_another_file(tmp_path):
    _, pairs, _, (first, second) = two_files(tmp_path, "classes")
    expected = compare_files(first, second)
    for path in (first, second):
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        for line in lines:
            del line["gold"]
        path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    with pytest.raises(ValueError, match="has no labels.*give --gold"):
        compare_files(first, second)
    rows = [f"{example.id},some text,{example.label}" for example, _ in pairs]
    gold = tmp_path / "gold.csv"
    gold.write_text("\n".join(["id,text,label", *rows]) + "\n")
    assert compare_files(first, second, gold)["metrics"] == expected["metrics"]


def test_rankings_are_compared_with_their_passages(tmp_path):
    task, pairs, again, (first, second) = two_files(tmp_path, "ranking", 40)
    with pytest.raises(ValueError, match="give --gold"):
        compare_files(first, second, name="rerank")
    gold = tmp_path / "gold.jsonl"
    with gold.open("w") as file:
        for example, _ in pairs:
            row = {"id": example.id, "query": example.text, "positive": example.pair}
            row |= {f"negative_{i}": text for i, text in enumerate(example.choices)}
            file.write(json.dumps(row) + "\n")
    found = compare_files(first, second, gold, "rerank")["metrics"]["ndcg_at_10"]
    assert found["first"] == pytest.approx(task.score(pairs)["ndcg_at_10"])
    assert found["second"] == pytest.approx(task.score(again)["ndcg_at_10"])


def test_groups_are_drawn_as_wholes(tmp_path):
    task, pairs, again, alone = two_files(tmp_path, "classes", 200)
    files = []
    for name, model in (("g", pairs), ("h", again)):
        rows = []
        for index, (example, prediction) in enumerate(model):
            row = {"text": "x", "patient": index % 4}
            rows.append((dataclasses.replace(example, row=row), prediction))
        files.append(write(tmp_path / name, task, rows))
    of_rows = compare_files(*alone)["metrics"]["accuracy"]
    of_groups = compare_files(*files, group_columns=("patient",))["metrics"]["accuracy"]
    assert of_groups["difference"] == of_rows["difference"]
    assert of_groups["interval"] != of_rows["interval"]
    assert "p_value_mcnemar" not in of_groups  # the rows of a group are not independent
    with pytest.raises(ValueError, match="--group_column doctor: no row"):
        compare_files(*files, group_columns=("doctor",))
    run = files[0].parent.parent / "run"
    (run / "predictions").mkdir(parents=True)
    (run / "evaluation.json").write_text(json.dumps({"data": {"group_columns": ["patient"]}}))
    own = files[0].rename(run / "predictions" / "dev.jsonl")
    found = compare_files(own, files[1])
    assert found["metrics"]["accuracy"] == of_groups
    assert "patient" in found["sentence"].split("points")[-1]
    own.write_text(alone[0].read_text())  # as of a test split, whose rows lack the column
    assert compare_files(own, alone[1])["metrics"]["accuracy"] == of_rows


def test_fewer_than_two_labelled_groups_are_refused_and_few_are_called_rough(tmp_path):
    _, _, _, files = two_files(tmp_path, "classes")
    for path in files:
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        for index, line in enumerate(lines):
            line["input"] = {"site": "a", "patient": index % 4}
        path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    with pytest.raises(ValueError, match="80 labelled examples are 1 groups.*at least two"):
        compare_files(*files, group_columns=("site",))
    told = compare_files(*files, group_columns=("patient",))["sentence"]
    assert told.endswith("Intervals of only 4 groups are rough, and often too narrow.")
    lines = [json.loads(line) for line in files[0].read_text().splitlines()]
    for line in lines[1:]:
        del line["gold"]
    files[0].write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    with pytest.raises(ValueError, match="1 labelled examples"):
        compare_files(*files)


def test_ids_may_repeat_if_both_files_have_them_in_the_same_order(tmp_path):
    _, pairs, _, (first, second) = two_files(tmp_path, "classes")
    expected = compare_files(first, second)
    for path in (first, second):
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        for index, line in enumerate(lines):
            line["id"] = str(index // 5)
        path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    assert compare_files(first, second) == expected
    rows = [f"{index // 5},some text,{pair[0].label}" for index, pair in enumerate(pairs)]
    gold = tmp_path / "gold.csv"
    gold.write_text("\n".join(["id,text,label", *rows]) + "\n")
    assert compare_files(first, second, gold)["metrics"] == expected["metrics"]
    second.write_text("".join(second.read_text().splitlines(keepends=True)[::-1]))
    with pytest.raises(ValueError, match="b/dev.jsonl: ids repeat.*same order"):
        compare_files(first, second)


def test_files_that_do_not_belong_together_are_refused(tmp_path):
    _, _, _, (first, second) = two_files(tmp_path, "classes")
    task, pairs = pairs_of("numbers", 80)
    write(tmp_path / "a", task, pairs)
    with pytest.raises(ValueError, match="not hold predictions of the same kind"):
        compare_files(first, second)
    second.write_text(second.read_text().partition("\n")[0] + "\n")
    with pytest.raises(ValueError, match="has 80 examples and .* 1; 79 ids are in one alone"):
        compare_files(first, second)
    second.write_text("label\na\n")
    with pytest.raises(ValueError, match="line 1 is damaged or has no id"):
        compare_files(first, second)
    with pytest.raises(FileNotFoundError, match="does not exist"):
        compare_files(first, tmp_path / "none.jsonl")


def test_the_command_prints_json_and_a_sentence(tmp_path, capsys):
    _, _, _, (first, second) = two_files(tmp_path, "classes")
    assert score.main(["--compare", str(first), str(second)]) == 0
    printed = capsys.readouterr()
    result = json.loads(printed.out)
    assert set(result) == {"examples", "metrics", "sentence"}
    accuracy = result["metrics"]["accuracy"]
    assert 1 < accuracy["first"] < 100  # per cent
    assert accuracy["interval"][0] < accuracy["difference"] < accuracy["interval"][1]
    assert printed.err.strip() == result["sentence"]
    assert str(first) in result["sentence"] and "points (95 % interval" in result["sentence"]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--compare", "a.jsonl"], "takes two files"),
        (["--compare", "a", "b", "--predictions", "c"], "--predictions does not go with"),
        (["--task=sst2"], "--gold, --predictions must be given"),
        (
            ["--task=sst2", "--gold=a", "--predictions=b", "--group_column=c"],
            "no effect without --compare",
        ),
    ],
)
def test_flags_that_do_not_go_together_are_refused(flags, message, capsys):
    with pytest.raises(SystemExit):
        score.main(flags)
    assert message in " ".join(capsys.readouterr().err.split())


def test_the_smallest_p_value_is_an_upper_bound(tmp_path):
    task, pairs = pairs_of("classes", 80)
    right = []
    for example, prediction in pairs:
        right.append((example, {**prediction, "label": example.label}))
    first, second = write(tmp_path / "a", task, right), write(tmp_path / "b", task, pairs)
    found = compare_files(first, second)
    values = found["metrics"]["accuracy"]
    assert values["p_value"] == 1 / 2000
    assert "p ≤ 0.0005" in found["sentence"]
    same = compare_files(first, first)
    assert "p = 1)" in same["sentence"]
