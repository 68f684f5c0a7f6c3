"""Reports of runs: their data are the files of the run, thinned honestly, in every state."""

import dataclasses
import json
import math
import random
import shlex
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import jax
import numpy as np
import pytest

from bertjax import report
from bertjax.base.run_file import write_run
from bertjax.base.signals import STOPPED
from bertjax.base.workdir_files import LEDGER, PRESENT
from bertjax.devices import host_watch
from bertjax.devices.activity import Clock
from bertjax.inference.texts import from_text
from bertjax.record import ledger as ledgers
from bertjax.record.events import Closed, Evaluated, Line, Started
from bertjax.record.ledger import process_ended, process_started, read_ledger
from bertjax.record.metrics import to_line
from bertjax.record.predictions import MOST_POINTS, PredictionSummary, best_in_words
from bertjax.record.report import (
    MOST_BUCKETS,
    RESUMING,
    Curve,
    RunMetrics,
    hints_of,
    read_metrics,
    report_page,
    run_data,
)
from bertjax.record.report_writer import ReportWriter
from bertjax.tasks import Example, finetune_config, make_task
from bertjax.tasks.classification import (
    ChoiceTask,
    ClassificationTask,
    MultiLabelTask,
    RegressionTask,
)
from bertjax.tasks.question_answering import SpanTask
from bertjax.tasks.tagging import TagTask
from bertjax.train.run import Session
from tests.browser import data_of
from tests.lines import json_lines

CONFIG = {"data": "d", "workdir": "w", "phases": [{"num_steps": 60, "max_length": 16}]}
SECONDS = dict.fromkeys(
    ("start-up", "compiling", "restoring", "stepping", "waiting for input", "evaluating", "saving"),
    1.0,
)


def ledger_line(start, end, last_step):
    return {
        **{"start": start, "end": end, "first_step": 0, "last_step": last_step},
        **{"lost_steps": 0, "lost_seconds": 0.0, "seconds": SECONDS},
    }


@pytest.fixture
def workdir(tmp_path):
    """A pretraining run that has logged 40 of 60 steps."""
    folder = tmp_path / "run"
    folder.mkdir()
    write_run(folder, CONFIG, "data")
    lines = []
    for step in range(5, 45, 5):
        lines.append(to_line(step, {"train/loss": 9 - step / 10, "train/grad_norm": 1.5}))
        if step % 20 == 0:
            lines.append(to_line(step, {"eval/mlm_loss": 9 - step / 11, "eval/mlm_accuracy": 0.1}))
    (folder / "metrics.jsonl").write_text("".join(lines))
    return folder


@pytest.mark.parametrize("count", [3, 1000, 30_011])
def test_a_thinned_curve_keeps_the_first_last_lowest_and_highest_value_of_every_bucket(count):
    rng = random.Random(count)
    logged = [(step, rng.gauss(0, 1)) for step in range(7, 7 + 3 * count, 3)]
    curve = Curve()
    for step, value in logged:
        curve.add(step, value)
    points = curve.points()
    assert curve.count == count and set(points) <= set(logged)
    assert len(points) <= 8 * MOST_BUCKETS and (count > 1000 or points == logged)
    buckets = {}
    for step, value in logged:
        buckets.setdefault(step // curve.width, []).append((step, value))
    by_value = lambda point: point[1]  # noqa: E731
    expected = {
        point
        for bucket in buckets.values()
        for point in (bucket[0], bucket[-1], min(bucket, key=by_value), max(bucket, key=by_value))
    }
    assert set(points) == expected


def page_of_steps(count, folder):
    metrics, rng = RunMetrics(), random.Random(0)
    names = "loss mlm_loss nsp_loss mlm_accuracy nsp_accuracy learning_rate grad_norm mfu".split()
    for step in range(1, count + 1):
        metrics.add(step, {f"train/{name}": rng.random() for name in names})
        if step % (count // 1000) == 0:
            metrics.add(step, {f"eval/{name}": rng.random() for name in names[:5]})
    data = run_data(folder, metrics=metrics)
    assert len(data["eval"]["steps"]) == 1000
    assert all(len(values) == 1000 for values in data["eval"]["values"].values())
    return report_page([data])


@pytest.mark.slow
def test_the_page_of_a_long_run_is_small(workdir):
    assert len(page_of_steps(20_000, workdir)) < 2.5e6


@pytest.mark.slow
@pytest.mark.exhaustive
def test_the_page_of_a_million_logged_steps_has_less_than_5_mb(workdir):
    assert len(page_of_steps(1_000_000, workdir)) < 5e6


def test_the_data_of_a_run_are_its_lines(workdir):
    data = run_data(workdir)
    lines = json_lines(workdir / "metrics.jsonl")
    for name in ("train/loss", "train/grad_norm"):
        curve = data["train"][name]
        wanted = [(line["step"], line[name]) for line in lines if name in line]
        assert [*zip(curve["steps"], curve["values"], strict=True)] == wanted
    values = data["eval"]["values"]["eval/mlm_loss"]
    assert values == [line["eval/mlm_loss"] for line in lines if "eval/mlm_loss" in line]
    assert data["eval"]["steps"] == [20, 40]
    best = {"metric": "eval/mlm_loss", "value": values[1], "step": 40, "higher_is_better": False}
    assert data["best"] == best | {"equal": 1}
    assert data["kind"] == "pretraining" and data["phases"][0]["end"] == 60


def test_the_page_has_the_results_of_each_command_with_several_runs(tmp_path):
    parents = {}
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "scores.json").write_text(json.dumps({"fold1": {"dev/loss": 1.0}}))
        parents[f"gs://bucket/{name}"] = tmp_path / name
    several = data_of(report_page([], parents))["several"]
    assert [command["address"] for command in several] == [*parents]
    assert several[0]["scores"] == {"fold1": {"dev/loss": 1.0}} and several[0]["evaluation"] == {}


def test_the_page_names_all_metrics_and_says_which_are_fractions(workdir):
    names = data_of(report_page([run_data(workdir)]))["names"]
    assert [name for name in names if names[name]["percent"]] == ["mlm_accuracy"]
    assert names["mlm_loss"]["label"] == "MLM loss"
    assert names["grad_norm"] == {"label": "gradient norm", "percent": False}


def test_the_best_value_is_that_of_the_last_phase(workdir):
    phase = {"num_steps": 30, "max_length": 16}
    write_run(workdir, CONFIG | {"phases": [phase, phase | {"max_length": 32}]}, "data")
    text = (workdir / "metrics.jsonl").read_text()
    (workdir / "metrics.jsonl").write_text(to_line(20, {"eval/mlm_loss": 0.1}) + text)
    assert run_data(workdir)["best"]["step"] == 40


def test_the_best_of_equal_evaluations_is_the_last_and_says_how_many_there_are(workdir):
    write_run(workdir, {"task": "classify", "train": "a.csv", "init": "m"}, "data")
    accuracies = {5: 0.5, 10: 0.75, 15: 0.75, 20: 0.625, 25: 0.75, 30: 0.25}
    lines = [to_line(step, {"eval/accuracy": value}) for step, value in accuracies.items()]
    (workdir / "metrics.jsonl").write_text("".join(lines))
    best = run_data(workdir)["best"]
    assert (best["step"], best["equal"]) == (25, 3)
    values = read_metrics(workdir / "metrics.jsonl").values_by_step("eval/accuracy")
    assert values == accuracies
    said = best_in_words(values, 25, "eval/accuracy")
    assert said.startswith("the one of step 25, one of 3 evaluations with the best held-out")
    said = best_in_words({**values, 35: 0.8}, 35, "eval/accuracy")
    assert said == "the one of step 35, which has the best held-out accuracy"


def test_the_best_of_equal_evaluations_is_the_one_with_the_lowest_loss(workdir):
    write_run(workdir, {"task": "classify", "train": "a.csv", "init": "m"}, "data")
    accuracies = {5: 0.5, 10: 0.75, 15: 0.75, 20: 0.75}
    losses = {5: 0.1, 10: 0.6, 15: 0.5, 20: 0.9}
    lines = [
        to_line(step, {"eval/accuracy": accuracies[step], "eval/loss": losses[step]})
        for step in losses
    ]
    (workdir / "metrics.jsonl").write_text("".join(lines))
    best = run_data(workdir)["best"]
    assert (best["step"], best["equal"]) == (15, 3)


@pytest.mark.parametrize(
    ("steps", "partial"),
    [
        ((50, 100, 102), {"step": 102, "steps": 2, "every": 50}),
        ((50, 100, 150), None),
        ((34,), None),  # there is no other point that it differs from
    ],
)
def test_a_last_mean_of_fewer_steps_is_marked(workdir, steps, partial):
    write_run(workdir, {"task": "classify", "init": "m", "log_every": 50}, "data")
    lines = [to_line(step, {"train/loss": 1.0}) for step in steps]
    (workdir / "metrics.jsonl").write_text("".join(lines))
    assert run_data(workdir)["partial"] == partial


def hints_with(held_out, train, splits=(), first_step=0):
    metrics = RunMetrics()
    for step, (loss, other) in enumerate(zip(held_out, train, strict=True), 1):
        metrics.add(10 * step, {"train/loss": other})
        metrics.add(10 * step, {"eval/loss": loss})
    return hints_of(metrics, splits, first_step)


def test_only_a_held_out_loss_that_rises_while_the_training_loss_falls_is_over_fitting():
    (hint,) = hints_with([0.9, 0.67, 1.5, 2.13], [0.9, 0.6, 0.1, 0.01])
    for number in ("step 20 (0.67)", "2.13 at step 40", "from 0.6 to 0.01"):
        assert number in hint
    falls, rises = [0.9, 0.6, 0.1, 0.01], [0.9, 0.67, 1.5, 2.13]
    assert not hints_with(falls, falls)  # both fall
    assert not hints_with([0.9, 0.67, 0.68, 0.7], falls)  # rises a little
    assert not hints_with(rises, [0.9, 0.6, 1.2, 2.0])  # the training diverges: no memory
    assert not hints_with([0.001, 0.001, 0.002, 0.003], falls)  # both are next to nothing
    assert not hints_with(rises[1:3], falls[1:3])  # two evaluations are no trend
    assert not hints_with(rises, falls, first_step=20)  # an earlier phase had the lowest


def test_predictions_no_better_than_the_most_frequent_class_are_said():
    def split(counts):
        return {"split": "dev", "confusion": {"labels": ["bad", "good"], "counts": counts}}

    (hint,) = hints_with([], [], [split([[0, 40], [0, 60]])])
    assert "All 100 predictions of dev are 'good', and 60.00 %" in hint
    (hint,) = hints_with([], [], [split([[10, 30], [12, 48]])])
    assert "58.00 % of the 100 predictions" in hint and "'good', the most frequent" in hint
    assert "right in 60.00 %" in hint and "All" not in hint and "not learned" not in hint
    assert not hints_with([], [], [split([[20, 20], [15, 45]])])  # 65 %
    assert not hints_with([], [], [split([[0, 0], [0, 60]])])  # there is only one class
    assert not hints_with([], [], [{"split": "dev"}])


@pytest.mark.parametrize(("loss", "count"), [(6.5, 0), (7.0, 1), (7.5, 1)])
def test_a_masked_lm_loss_at_the_unigram_entropy_is_said(loss, count):
    metrics = RunMetrics()
    metrics.add(10, {"eval/mlm_loss": 9.0, "eval/unigram_entropy": 7.0})
    metrics.add(20, {"eval/mlm_loss": loss, "eval/unigram_entropy": 7.0})
    hints = hints_of(metrics, [])
    assert len(hints) == count and all(f"({loss:.3f})" in hint for hint in hints)


def test_states_of_a_run_are_said_in_plain_words(workdir):
    def sentence():
        return run_data(workdir)["status"]["sentence"]

    now = time.time()
    (workdir / PRESENT).write_text(json.dumps(ledger_line(now - 9, now, 42)) + " " * 99)
    assert sentence() == "Running: step 42 of 60 (70 %)."
    (workdir / PRESENT).write_text(json.dumps(ledger_line(now - 9000, now - 8000, 42)))
    assert sentence() == (
        "Stopped after step 42 of 60 (70 %): its process was killed, or its machine failed. The "
        "same command resumes it."
    )
    (workdir / PRESENT).unlink()
    (workdir / LEDGER).write_text(json.dumps(ledger_line(now - 9000, now - 8000, 40)) + "\n")
    process_started(workdir, {"step": 0, "num_steps": 60})
    process_ended(workdir, "stopped", "NotFinite: the loss is NaN.")
    assert sentence().startswith("Stopped after step 40 of 60 (67 %): NotFinite: the loss is NaN.")
    process_started(workdir, {"step": 30, "num_steps": 60})
    process_started(workdir, {"step": 20, "num_steps": 60, "rollbacks": 1})
    process_ended(workdir, "finished")
    data = run_data(workdir)
    assert data["status"]["state"] == "finished" and "step 40 of 60" in sentence()
    events = [(event["kind"], event["step"]) for event in data["events"]]
    assert events == [("resumed", 30), ("rolled back", 20)]
    # No step was lost, so that none is said to have been computed again.
    assert data["notes"] == [
        "The run was resumed at step 30. The process before had stopped: NotFinite: the loss is "
        "NaN."
    ]
    assert data["processes"][0]["versions"]["jax"] == jax.__version__
    assert data["processes"][0]["command"] == shlex.join(sys.orig_argv)


def test_every_stop_and_only_steps_that_were_lost_are_said(workdir, monkeypatch):
    clock = iter(range(1000, 9000, 10))
    monkeypatch.setattr(ledgers, "time", SimpleNamespace(time=lambda: float(next(clock))))
    process_started(workdir, {"step": 0, "num_steps": 60})  # at 1000
    process_ended(workdir, "stopped", "stopped by Ctrl-C (everything up to step 34 is saved)")
    lines = [ledger_line(995, 1009, 34)]
    (workdir / LEDGER).write_text(json.dumps(lines[0]) + "\n")
    data = run_data(workdir)
    said = data["status"]["sentence"]
    assert said.endswith("(67 %): Ctrl-C (everything up to step 34 is saved). " + RESUMING)
    assert data["notes"] == [said]  # a stopped run is not called uninterrupted
    process_started(workdir, {"step": 34, "num_steps": 60})  # at 1020, is killed
    process_started(workdir, {"step": 40, "num_steps": 60})  # at 1030
    process_ended(workdir, "finished")
    process_started(workdir, {"step": 60, "num_steps": 60})  # finds that nothing is to be done
    process_ended(workdir, "finished")
    lines += [ledger_line(1015, 1025, 57) | {"lost_steps": 17}, ledger_line(1028, 1039, 60)]
    (workdir / LEDGER).write_text("".join(json.dumps(line) + "\n" for line in lines))
    data = run_data(workdir)
    assert [event["kind"] for event in data["events"]] == ["resumed", "resumed"]
    first, second = data["notes"]
    assert "resumed at step 34" in first and "Ctrl-C" in first and "again" not in first
    assert "resumed at step 40" in second and "was killed" in second
    assert "17 steps that it had done after its last checkpoint were computed again" in second
    process_started(workdir, {"step": 60, "num_steps": 90})
    assert run_data(workdir)["events"][-1]["kind"] == "extended"


def test_damage_and_warnings_are_said(workdir, capsys):
    with (workdir / "metrics.jsonl").open("ab") as file:
        file.write(b"\0\0\0garbage\n")
        file.write(to_line(41, {"train/loss": float("nan"), "train/grad_norm": 2.0}).encode())
        skipped = {"in_a_row": 1, "loss": 9.0, "grad_norm": 5.0, "phase": 0}
        skipped |= {"first_row": 8, "last_row": 15}
        file.write(to_line(42, {f"skipped/{k}": v for k, v in skipped.items()}).encode())
        file.write(b'{"step": 43, "train/lo')
    (workdir / "run.json").write_text("{")
    (workdir / ".run.json").unlink()
    (workdir / "bad_rows.jsonl").write_text("{}\n{}\n")
    output = workdir / "page.html"
    assert report.main([str(workdir), "--output", str(output)]) == 0
    printed = capsys.readouterr().out
    for text in (
        *("1 lines of metrics.jsonl are damaged", "the 12 readable lines are shown"),
        *("train/loss is not finite in 1 log lines, the first at step 41", "1 updates were"),
        *("The config of the run is not known", "2 bad rows"),
    ):
        assert text in printed
    data = run_data(workdir)
    assert data["train"]["train/grad_norm"]["steps"][-1] == 41
    assert data["skipped"]["rows"] == [{"step": 42, **skipped}]


def test_errors_name_the_remedy(tmp_path, workdir, capsys):
    def error(*flags):
        assert report.main([*flags, "--output", str(tmp_path / "x.html")]) != 0
        return capsys.readouterr().err

    assert "There is no run in" in (said := error(str(tmp_path / "absent"))) and "--workdir" in said
    assert "no run.json and no metrics.jsonl" in error(str(Path(__file__).parent))
    (workdir / "metrics.jsonl").unlink()
    assert "has logged no metrics yet: wait" in error(str(workdir))
    assert "No run is given" in error()
    assert not (tmp_path / "x.html").exists()


def test_runs_are_compared_and_found_in_a_parent_folder(tmp_path, workdir, capsys):
    for name, rate in (("seed0", 1e-3), ("seed1", 2e-3)):
        folder = tmp_path / "sweep" / name
        folder.mkdir(parents=True)
        write_run(folder, CONFIG | {"optimizer": {"learning_rate": rate}, "workdir": name}, "data")
        (folder / "metrics.jsonl").write_text(to_line(1, {"train/loss": rate}))
    output = tmp_path / "all.html"
    assert report.main([str(tmp_path / "sweep"), str(workdir), "--output", str(output)]) == 0
    data = data_of(output.read_text())
    assert [run["name"] for run in data["runs"]] == ["seed0", "seed1", "run"]
    rows = {row["field"]: row["values"] for row in data["differences"]}
    assert rows == {"optimizer.learning_rate": ["0.001", "0.002", None]}
    assert "3 runs: written to" in capsys.readouterr().out


def test_a_report_that_cannot_be_written_is_one_warning(workdir, capsys):
    (workdir / "report.html").mkdir()  # cannot be replaced by a file
    writer = ReportWriter(workdir, Clock())
    writer.read(Started(workdir, "the workdir", 0, {"step": 0}))
    for step in (45, 50):
        writer.read(Evaluated(step, {"eval/mlm_loss": 1.0}))
    writer.read(Closed())
    writer.close()
    printed = capsys.readouterr().out
    assert printed.count("warning:") == 1 and "The run goes on" in printed


@pytest.mark.parametrize("message, is_stop", [("no memory", False), ("stopped by SIGTERM", True)])
def test_a_run_that_ends_because_another_host_has_ended_does_not_seem_to_run(
    workdir, monkeypatch, message, is_stop
):
    statuses = []
    monkeypatch.setattr(host_watch.os, "_exit", statuses.append)
    watch = host_watch.HostWatch(clock := Clock())
    watch.over = SimpleNamespace(wait=lambda seconds: False)
    session = Session(workdir, clock, watch)
    started = Started(workdir, "the workdir", 40, {"step": 40, "num_steps": 60})
    for reader in (session.ledger, session.report):
        reader.read(started)
    said = f"process 1 ended: {message}"
    watch._end_with(said, is_stop=is_stop)
    assert statuses == [STOPPED if is_stop else 1]
    sentence = data_of((workdir / "report.html").read_text())["runs"][0]["status"]["sentence"]
    assert sentence == f"Stopped after step 40 of 60 (67 %): {said}. {RESUMING}"
    assert not (workdir / PRESENT).exists() and read_ledger(workdir)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_writer_adds_lines_without_reading_the_log_again(workdir, bad):
    log = workdir / "metrics.jsonl"
    writer = ReportWriter(workdir, Clock())
    writer.read(Started(workdir, str(workdir), 40, {}))
    lines = [(step, {"train/loss": 1 / step, "eval/mlm_loss": 1 / step}) for step in (45, 50, 60)]
    skipped = {"in_a_row": 1, "loss": bad, "grad_norm": bad, "phase": 0}
    lines.insert(1, (47, {f"skipped/{name}": value for name, value in skipped.items()}))
    with log.open("a") as file:
        file.write(to_line(*lines[0]))
    writer.read(Line(*lines[0]))
    aside = log.rename(workdir / "aside")
    for step, line in lines[1:]:
        writer.read(Line(step, line))
    writer.read(Closed())
    with aside.open("a") as file:
        file.writelines(to_line(step, line) for step, line in lines[1:])
    aside.rename(log)
    page = (workdir / "report.html").read_text()
    data = data_of(page)["runs"][0]
    again = run_data(workdir, metrics=read_metrics(log), state="finished")
    assert all(data[part] == again[part] for part in ("train", "eval", "skipped"))
    assert data["skipped"]["rows"] == [{"step": 47, **skipped, "loss": None, "grad_norm": None}]
    assert data["status"]["sentence"] == "Finished after step 60 of 60."


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_no_number_of_a_run_keeps_its_report_from_being_written(workdir, bad):
    (workdir / "scores.json").write_text(json.dumps({"dev/f1": bad, "dev/accuracy": 0.5}))
    (workdir / "predictions").mkdir(exist_ok=True)
    scores = {"pearson": bad, "mse": 0.25}
    (workdir / "predictions" / "dev.summary.json").write_text(json.dumps({"scores": scores}))
    process_started(workdir, {"step": 40, "num_steps": 60, "parameters": bad})
    data = data_of(report_page([run_data(workdir)]))["runs"][0]
    assert data["scores"] == {"dev/f1": None, "dev/accuracy": 0.5}
    assert data["splits"][0]["scores"] == {"pearson": None, "mse": 0.25}
    assert data["processes"][-1]["parameters"] is None


def summary_of(task, pairs):
    summary, pairs = PredictionSummary(task), list(pairs)
    assert list(summary.observe(pairs)) == pairs
    return summary.content({"score": 0.5})


def test_the_calibration_error_is_that_of_its_definition_and_mistakes_are_sorted():
    rng = np.random.default_rng(0)
    task = ClassificationTask(name="c", labels=("no", "yes"))
    pairs = []
    for i in range(500):
        p = rng.uniform(0.5, 1)
        answer, gold = (str(rng.choice(["no", "yes"])) for _ in range(2))
        other = {"no": "yes", "yes": "no"}[answer]
        prediction = {"label": answer, "probabilities": {answer: p, other: 1 - p}}
        pairs.append((Example(id=str(i), where="", text="t" * 900, label=gold), prediction))
    content = summary_of(task, pairs)
    confidence = np.array([max(p["probabilities"].values()) for _, p in pairs])
    right = np.array([e.label == p["label"] for e, p in pairs])
    bins = np.minimum((confidence * 10).astype(int), 9)
    expected = sum(
        (bins == b).mean() * abs(confidence[bins == b].mean() - right[bins == b].mean())
        for b in range(5, 10)
    )
    assert abs(content["calibration"]["ece"] - expected) < 1e-12
    assert content["wrong"] == (~right).sum() and len(content["mistakes"]) == 50
    wanted = sorted(confidence[~right], reverse=True)[:50]
    assert [mistake["probability"] for mistake in content["mistakes"]] == wanted
    assert len(content["mistakes"][0]["text"]) == 600
    assert sum(map(sum, content["confusion"]["counts"])) == 500


def test_mistakes_of_other_tasks_say_what_is_wrong():
    multi = MultiLabelTask(name="m", labels=("a", "b"))
    example = Example(id="", where="", text="x", label=("a",))
    prediction = {"labels": ["a", "b"], "probabilities": {"a": 0.6, "b": 0.9}}
    (mistake,) = summary_of(multi, [(example, prediction)])["mistakes"]
    assert (mistake["gold"], mistake["predicted"], mistake["probability"]) == ("not b", "b", 0.9)

    tags = TagTask.of_labels(("O", "B-X"), name="tag")
    example = Example(id="", where="", words=("of", "Rome"), label=("O", "B-X"))
    prediction = {"labels": ["O", "O"], "probabilities": [0.9, 0.7]}
    content = summary_of(tags, [(example, prediction)])
    (mistake,) = content["mistakes"]
    start, end = mistake["marked"]
    assert mistake["text"][start:end] == "Rome" and mistake["gold"] == "B-X"
    assert content["calibration"]["unit"] == "words" and content["decisions"] == 2

    span = SpanTask(name="squad")
    example = Example(id="q", where="", text="Who?", pair="Ada.", answers=(("Ada", 0),))
    predictions = [{"answer": answer, "probability": 0.8} for answer in ("the ada", "Eve")]
    content = summary_of(span, [(example, prediction) for prediction in predictions])
    (mistake,) = content["mistakes"]
    assert (mistake["gold"], mistake["predicted"], mistake["pair"]) == ("Ada", "Eve", "Ada.")

    choice = ChoiceTask(name="choice", num_choices=2)
    example = Example(id="", where="", text="He", choices=("ran", "fell"), label=1)
    prediction = {"label": 0, "probabilities": [0.7, 0.3]}
    (mistake,) = summary_of(choice, [(example, prediction)])["mistakes"]
    assert (mistake["gold"], mistake["predicted"]) == ("fell", "ran")


@pytest.mark.parametrize(
    ("text", "word"),
    [("我在北京", "北"), ("ไปกรุงเทพ", "รุ"), ("in  New\nYork", "New"), ("🙂 トヨタ", "ヨ")],
)
def test_mistakes_in_running_text_show_the_text_as_it_is(text, word):
    tags = TagTask.of_labels(("O", "B-X"), name="tag")
    example = from_text(tags, text, None)
    gold = tuple("B-X" if found == word else "O" for found in example.words)
    example = dataclasses.replace(example, label=gold)
    prediction = {"labels": ["O"] * len(gold), "probabilities": [0.9] * len(gold)}
    (mistake,) = summary_of(tags, [(example, prediction)])["mistakes"]
    start, end = mistake["marked"]
    assert (mistake["text"], mistake["text"][start:end]) == (text, word)


@pytest.mark.parametrize("id_column", [None, "nr"])
def test_mistakes_have_the_row_of_their_file_and_the_id_only_of_an_id_column(tmp_path, id_column):
    rows = "\n".join(f"7{i},text {i},{'no' if i % 2 else 'yes'}" for i in range(4))
    for split in ("train", "dev"):
        (tmp_path / f"{split}.csv").write_text(f"nr,text,label\n{rows}\n")
    options = finetune_config(
        **{"task": "classify", "train": str(tmp_path / "train.csv"), "id_column": id_column},
        **{"dev": str(tmp_path / "dev.csv"), "text_column": "text", "label_column": "label"},
    )
    task = make_task("classify", options.options)
    prediction = {"label": "no", "probabilities": {"no": 0.9, "yes": 0.1}}
    content = summary_of(task, [(example, prediction) for example in task.source.examples("dev")])
    assert content["has_ids"] is (id_column is not None)
    places = [(mistake["place"], mistake["id"]) for mistake in content["mistakes"]]
    ids = ["0", "2"] if id_column is None else ["70", "72"]
    # The header is row 1.
    assert places == [("row 2 of dev.csv", ids[0]), ("row 4 of dev.csv", ids[1])]


def test_points_of_a_regression_are_thinned_and_the_largest_errors_kept():
    task = RegressionTask(name="regress")
    count = 2 * MOST_POINTS + 3
    pairs = [
        (Example(id=str(i), where="", text="", label=float(i)), {"score": i + (i % 7) / 10})
        for i in range(count)
    ]
    content = summary_of(task, pairs)
    assert content["every"] == 4
    assert content["points"] == [(float(i), i + (i % 7) / 10) for i in range(0, count, 4)]
    assert len(content["mistakes"]) == 50 and "calibration" not in content
    assert all(abs(mistake["error"] - 0.6) < 1e-9 for mistake in content["mistakes"])
