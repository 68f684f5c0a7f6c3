"""The reports that runs write: every figure of the pages, as a browser shows them, is logged."""

import csv
import dataclasses
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import bertjax
from bertjax import pretrain, report
from bertjax.base.run_file import write_run
from bertjax.config import OptimizerConfig, Phase, PretrainConfig
from bertjax.inference.attribution import Attribution
from bertjax.record import report_writer
from bertjax.record.metrics import read_lines, to_line
from bertjax.record.predictions import read_scores
from bertjax.record.report import report_page, run_data
from bertjax.tasks import finetune_config
from tests.browser import data_of, needs_chromium, used
from tests.cases import WEEKLY


@pytest.fixture(scope="module")
def config(prepared, one_layer_config, tokenizer):
    """60 steps, with three evaluations."""
    return PretrainConfig(
        data=str(prepared),
        model=dataclasses.replace(one_layer_config, vocab_size=tokenizer.vocab_size),
        phases=(Phase(num_steps=60, max_length=16, batch_size=8),),
        optimizer=OptimizerConfig(learning_rate=1e-2, warmup_steps=5),
        log_every=5,
        eval_every=20,
        eval_rows=16,
        save_every=60,
        reader_threads=1,
        peak_tflops=0.1,
    )


@pytest.fixture(scope="module")
def pretrained(config, tmp_path_factory):
    """A workdir, and all reports that were written while the run went on."""
    folder, pages = tmp_path_factory.mktemp("pretraining") / "run", []
    with pytest.MonkeyPatch.context() as patch:
        write = report_writer.write_text
        patch.setattr(
            report_writer, "write_text", lambda *args: (pages.append(args[1]), write(*args))
        )
        pretrain.run(dataclasses.replace(config, workdir=str(folder)))
    return folder, pages


@pytest.fixture(scope="module")
def tuned(one_layer, files, tmp_path_factory):
    folder = tmp_path_factory.mktemp("tuning") / "run"
    data = files["classify"]
    bertjax.finetune(
        finetune_config(
            **{"task": "classify", "train": data["train"], "dev": data["dev"]},
            **{"init": str(one_layer), "workdir": str(folder), "max_length": 32},
            **{"num_epochs": 2.0, "batch_size": 16, "log_every": 1},
        )
    )
    return folder


@pytest.mark.slow
@pytest.mark.exhaustive
def test_a_run_writes_its_report_while_it_goes_on(pretrained):
    folder, pages = pretrained
    states = [data_of(page)["runs"][0]["status"] for page in pages]
    # The start, the first log line, three evaluations, and the end.
    assert [status["step"] for status in states] == [0, 5, 20, 40, 60, 60]
    assert [status["state"] for status in states] == ["running"] * 5 + ["finished"]
    assert states[2]["sentence"] == "Running: step 20 of 60 (33 %)."
    assert (folder / "report.html").read_text() == pages[-1]
    # While the run goes on, the page has exactly the lines that were logged by then.
    logged = read_lines(folder / "metrics.jsonl").lines
    early = data_of(pages[3])["runs"][0]
    wanted = [line for line in logged if line["step"] <= 40 and "train/loss" in line]
    assert early["train"]["train/loss"]["values"] == [line["train/loss"] for line in wanted]
    assert early["eval"]["steps"] == [20, 40]
    last = data_of(pages[-1])["runs"][0]
    assert last["processes"][0]["ended"]["state"] == "finished" and not last["notes"]
    (line,) = (folder / "goodput.jsonl").read_text().splitlines()
    seconds = json.loads(line)["seconds"]
    assert {key: last["ledger"]["seconds"][key] for key in seconds} == seconds


@needs_chromium
def test_the_first_page_of_a_run_shows_what_it_has(pretrained, tmp_path):
    page = pretrained[1][0]
    seen = used(page, 'seen.text = document.querySelector("main").textContent;', tmp_path)
    assert not seen["errors"] and not seen["requests"]
    assert "Running: step 0 of 60 (0 %)." in seen["text"] and "no curves yet" in seen["text"]
    assert "Point at a chart" not in seen["text"] and "log_every" in seen["text"]


@pytest.mark.slow
def test_the_report_of_a_fine_tuning_has_the_files_of_its_predictions(tuned):
    run = data_of((tuned / "report.html").read_text())["runs"][0]
    scores = read_scores(tuned / "scores.json")
    (split,) = run["splits"]
    assert split["split"] == "dev" and run["scores"] == scores
    assert {f"dev/{name}": value for name, value in split["scores"].items()} == scores
    assert split["step"] == run["best"]["step"] and run["best"]["value"] == scores["dev/accuracy"]
    rows = list(csv.reader((tuned / "predictions" / "dev.confusion.csv").read_text().splitlines()))
    assert split["confusion"]["labels"] == rows[0][1:]
    assert split["confusion"]["counts"] == [[int(n) for n in row[1:]] for row in rows[1:]]
    assert split["classes"] == json.loads((tuned / "predictions" / "dev.report.json").read_text())
    lines = (tuned / "predictions" / "dev.jsonl").read_text().splitlines()
    predictions = {line["id"]: line for line in map(json.loads, lines)}
    (dev,) = (json.loads(row["value"]) for row in run["config"] if row["field"] == "dev")
    table = list(csv.reader(Path(dev).read_text().splitlines()))
    assert split["has_ids"] is False and split["mistakes"]
    for mistake in split["mistakes"]:
        line = predictions[mistake["id"]]
        assert mistake["predicted"] == line["label"] != mistake["gold"] == line["input"]["label"]
        assert mistake["probability"] == line["probabilities"][line["label"]]
        assert mistake["text"] == line["input"]["text"]
        row = re.fullmatch(rf"row (\d+) of {Path(dev).name}", mistake["place"])
        assert row and mistake["text"] in table[int(row[1]) - 1]  # as a spreadsheet counts
    assert split["wrong"] == sum(x["label"] != x["input"]["label"] for x in predictions.values())


# Reads all values of all charts with the keyboard, and presses each kind of button.
SCRIPT = """
  Object.assign(seen, { values: {}, width: document.documentElement.scrollWidth });
  const all = (selector) => [...document.querySelectorAll(selector)];
  for (const chart of all("figure.chart")) {
    const svg = chart.querySelector("svg");
    const press = (key) => svg.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true }));
    press("Home");
    for (let last = null; ; press("ArrowRight")) {
      const step = chart.querySelector(".tip strong").textContent;
      if (step === last) break;
      last = step;
      for (const row of chart.querySelectorAll(".tip .row")) {
        const { metric, run, step, value } = row.dataset;
        seen.values[`${run} ${metric} ${step}`] = [Number(value),
          row.querySelector("b").textContent];
      }
    }
    press("Escape");
  }
  seen.charts = all("figure.chart").map((chart) => chart.dataset.chart);
  seen.paths = all(".plot path").some((path) => /NaN|Infinity/.test(path.getAttribute("d")));
  const log = document.querySelector("button.small[aria-pressed]");
  const drawn = () => log.closest("figure").querySelector("path").getAttribute("d");
  const before = drawn();
  log.click();
  seen.log = log.getAttribute("aria-pressed");
  seen.redrawn = before !== drawn();
  const series = document.querySelector(".series");
  series.click();
  seen.hidden = series.getAttribute("aria-pressed");
  seen.states = all("[data-state]").map((run) => run.querySelector(".said").textContent);
  seen.scores = Object.fromEntries(all("[data-score]").map((cell) => [cell.dataset.score,
    [Number(cell.dataset.value), cell.textContent]]));
  seen.cells = all(".matrix td").map((cell) => Number(cell.firstChild.textContent));
  seen.seconds = Object.fromEntries(all("[data-activity]").map((cell) => [cell.dataset.activity,
    Number(cell.dataset.value)]));
  document.querySelectorAll("details").forEach((one) => { one.open = true; });
  const dark = document.documentElement.dataset.theme;
  document.getElementById("theme").click();
  seen.themes = dark !== document.documentElement.dataset.theme;
  seen.text = document.querySelector("main").textContent;
"""


def shown_by_browser(page, tmp_path):
    """What a reader sees on the page, with all values of all charts."""
    assert "://" not in re.sub(r'id="data">.*?</script>', "", page, flags=re.S).replace(
        "http://www.w3.org/2000/svg", ""
    )
    seen = used(page, SCRIPT, tmp_path)
    assert not seen["errors"] and not seen["requests"] and not seen["paths"]
    assert (seen["log"], seen["hidden"]) == ("true", "false") and seen["themes"]
    return seen


def logged_values(folder, name):
    """{run, metric and step: value} of metrics.jsonl."""
    return {
        f"{name} {key} {line['step']}": value
        for line in read_lines(folder / "metrics.jsonl").lines
        for key, value in line.items()
        if key != "step"
    }


@needs_chromium
def test_every_figure_of_two_overlaid_runs_is_logged(pretrained, tmp_path, capsys):
    folder, _ = pretrained
    other = shutil.copytree(folder, tmp_path / "other", ignore=lambda *_: ["checkpoints"])
    lines = read_lines(other / "metrics.jsonl").lines
    halved = [
        {key: value if key == "step" else value / 2 for key, value in line.items()}
        for line in lines
    ]
    (other / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in halved))
    output = tmp_path / "both.html"
    assert report.main([str(folder), str(other), "--output", str(output)]) == 0
    seen = shown_by_browser(output.read_text(), tmp_path)
    wanted = logged_values(folder, "run") | logged_values(other, "other")
    assert {key: value for key, (value, _) in seen["values"].items()} == wanted
    # What is written there is the number with all its digits.
    assert all(float(text.split(" (")[0]) == value for value, text in seen["values"].values())
    assert seen["charts"][0] == "mlm_loss" and "2 runs compared" in seen["text"]
    assert len(seen["states"]) == 2 and seen["redrawn"]


@needs_chromium
def test_every_figure_of_a_fine_tuning_is_in_its_files(tuned, tmp_path):
    seen = shown_by_browser((tuned / "report.html").read_text(), tmp_path)
    wanted = logged_values(tuned, "run")
    assert {key: value for key, (value, _) in seen["values"].items()} == wanted
    scores = read_scores(tuned / "scores.json")
    assert {key: value for key, (value, _) in seen["scores"].items()} == scores
    assert seen["scores"]["dev/accuracy"][1] == f"{100 * scores['dev/accuracy']:.2f} %"
    rows = list(csv.reader((tuned / "predictions" / "dev.confusion.csv").read_text().splitlines()))
    assert seen["cells"] == [int(n) for row in rows[1:] for n in row[1:]]
    (line,) = (tuned / "goodput.jsonl").read_text().splitlines()
    times = json.loads(line)["seconds"]
    assert seen["seconds"] == {key: value for key, value in times.items() if value > 0}
    assert seen["states"] == ["finishedFinished after step 8 of 8."]
    (split,) = data_of((tuned / "report.html").read_text())["runs"][0]["splits"]
    assert all(f" · {mistake['place']}" in seen["text"] for mistake in split["mistakes"][:8])
    assert "are wrong; here are all of them, the most confident first" in seen["text"]
    assert shlex.join(sys.orig_argv) in seen["text"]  # the command


READ = """
  const all = (selector) => [...document.querySelectorAll(selector)];
  seen.headings = all("h2").map((heading) => heading.textContent);
  seen.baselines = Object.fromEntries(all("[data-baseline]").map((cell) => [
    cell.dataset.baseline, [Number(cell.title), cell.textContent]]));
  seen.rows = all("tr").map((row) => [...row.children].map((cell) => cell.textContent));
  seen.unnamed = all('svg[role="img"]').filter((one) => !one.getAttribute("aria-label")).length;
  seen.heads = all("thead th:not(.corner)").filter((one) => one.scope !== "col").length;
  seen.text = document.querySelector("main").textContent;
"""


@needs_chromium
def test_a_reviewer_reads_data_and_scores_first_and_the_model_card_has_the_same(tuned, tmp_path):
    folder = shutil.copytree(tuned, tmp_path / "run", ignore=lambda *_: ["checkpoints"])
    evaluation = json.loads((folder / "evaluation.json").read_text())
    news = {"value": "news", "rows": 20, "scores": {"accuracy": 0.75}}
    news["intervals"] = {"accuracy": (0.5, 0.9)}
    source = {"metric": "accuracy", "rows": [news], "few": {"mail": 3}}
    changed = {**evaluation, "slices": {"dev": {"source": source}}}
    (folder / "evaluation.json").write_text(json.dumps(changed))
    seen = used(report_page([run_data(folder)]), READ, tmp_path)
    assert not seen["errors"] and not seen["requests"]
    assert [heading.split(",")[0] for heading in seen["headings"]] == [
        *("Data", "Scores", "Scores of slices", "Predictions of dev", "Curves", "The run")
    ]
    assert (seen["unnamed"], seen["heads"]) == (0, 0)
    assert ["news", "20", "75.00 %", "50.00 % to 90.00 %"] in seen["rows"]
    assert "Too few rows for a score: mail (3)." in seen["text"]
    baselines = evaluation["baselines"]["splits"]["dev"]
    assert baselines.keys() == {"majority", "bag of words"}
    card = (folder / "model/README.md").read_text()
    for model, values in baselines.items():
        for metric, value in values.items():
            assert seen["baselines"][f"dev/{model}/{metric}"] == [value, f"{100 * value:.2f} %"]
            assert f"{model} {100 * value:.2f} %" in card
    data = evaluation["data"]["splits"]
    for split in ("train", "dev"):
        facts = data[split]
        numbers = [facts[x] for x in ("shortest", "median", "most", "longest", "truncated")]
        assert [split, *map(str, (facts["examples"], *numbers))] in seen["rows"]
        assert f"| {split} | {facts['examples']} | – | {facts['median']} |" in card


@needs_chromium
@pytest.mark.parametrize("kind", ["folds", "shots", "seeds", "tasks"])
def test_the_page_of_several_runs_begins_with_their_mean_and_spread(kind, tuned, tmp_path):
    names = {
        "folds": ("fold1", "fold2"),
        "shots": ("shots8_seed0", "shots8_seed1", "shots32_seed0", "shots32_seed1"),
        "seeds": ("seed0", "seed1"),
        "tasks": ("rte", "sst2"),
    }[kind]
    parent = tmp_path / "runs"
    scores = {}
    for number, name in enumerate(names):
        folder = shutil.copytree(tuned, parent / name, ignore=lambda *_: ["checkpoints"])
        scores[name] = {"dev/accuracy": 0.5 + 0.1 * number, "dev/loss": 0.3}
        run = json.loads((folder / "run.json").read_text())
        if kind == "shots":
            run["config"]["shots"] = int(name[5:].split("_")[0])
        if kind == "tasks":
            run["config"]["task"] = name
        write_run(folder, run["config"], run["data_fingerprint"])
    stored = {**scores, "intervals": {"mean": {"rows": {"dev/accuracy": (0.4, 0.8)}}}}
    (parent / "scores.json").write_text(json.dumps(stored))
    output = tmp_path / "page.html"
    assert report.main([str(parent), "--output", str(output)]) == 0
    seen = used(output.read_text(), READ, tmp_path)
    assert not seen["errors"] and not seen["requests"] and not seen["unnamed"]
    if kind == "tasks":  # of which a mean would say nothing
        assert seen["headings"][0] == "The runs side by side"
        return
    first = {"folds": "Cross-validation", "shots": "A few examples per class"}
    assert seen["headings"][0] == first.get(kind, "Several runs")
    rows = {row[0]: row[1:] for row in seen["rows"] if row}
    if kind == "shots":
        assert rows["8"][:3] == ["2", "55.00 %", "7.07 %"]
        assert rows["32"][:3] == ["2", "75.00 %", "7.07 %"]
        return
    assert rows["mean"] == ["55.00 %", "0.3"] and rows["standard deviation"][0] == "7.07 %"
    assert rows["95 % interval of the mean: rows"][0] == "40.00 % to 80.00 %"
    assert "bag of words, mean" in rows
    assert ("Leaks between the folds" in seen["text"]) == (kind == "folds")


@needs_chromium
def test_two_cross_validations_stand_side_by_side(tuned, tmp_path):
    row = {"name": "fever", "precision": 0.5, "recall": 0.25, "f1": 0.3, "support": 8}
    row |= {"specificity": 0.875, "auroc": 0.75, "intervals": {"auroc": (0.625, 0.8)}}
    addresses = []
    for number, parent in enumerate((tmp_path / "small", tmp_path / "large")):
        scores = {}
        for fold in ("fold1", "fold2"):
            shutil.copytree(tuned, parent / fold, ignore=lambda *_: ["checkpoints"])
            scores[fold] = {"dev/accuracy": 0.5 + 0.1 * number}
        intervals = {"mean": {"rows": {"dev/accuracy": (0.4, 0.8)}}}
        (parent / "scores.json").write_text(json.dumps({**scores, "intervals": intervals}))
        evaluation = {"by_class": {"dev": [row]}, "slices": {}, "verdict": f"Verdict {number}."}
        (parent / "evaluation.json").write_text(json.dumps(evaluation))
        addresses.append(str(parent))
    output = tmp_path / "page.html"
    assert report.main([*addresses, "--output", str(output)]) == 0
    seen = used(output.read_text(), READ, tmp_path)
    assert not seen["errors"] and not seen["requests"]
    assert seen["headings"][:3] == [
        *("Side by side", "Cross-validation: small", "Cross-validation: large")
    ]
    accuracy = ["50.00 % 40.00 % to 80.00 %", "60.00 % 40.00 % to 80.00 %"]
    assert ["dev: accuracy", *accuracy] in seen["rows"]
    fever = ["fever", "50.00 %", "25.00 %", "30.00 %", "8", "–", "87.50 %"]
    assert [*fever, "75.00 % 62.50 % to 80.00 %"] in seen["rows"]
    assert "Verdict 0." in seen["text"] and "Verdict 1." in seen["text"]


@needs_chromium
def test_warnings_about_the_data_are_among_the_warnings(tuned, tmp_path):
    folder = shutil.copytree(tuned, tmp_path / "run", ignore=lambda *_: ["checkpoints"])
    evaluation = json.loads((folder / "evaluation.json").read_text())
    evaluation["data"]["warnings"].append("warning: rough intervals")
    evaluation["data"]["leaked_rows"] = {"dev": 3}
    (folder / "evaluation.json").write_text(json.dumps(evaluation))
    script = 'seen.notes = [...document.querySelectorAll(".notes li")].map((x) => x.textContent);'
    seen = used(report_page([run_data(folder)]), script, tmp_path)
    assert "warning: rough intervals" in seen["notes"]
    assert any("3 examples of dev" in note for note in seen["notes"])


@needs_chromium
def test_figures_are_rounded_and_an_axis_of_fractions_ends_at_100_percent(tmp_path):
    write_run(tmp_path, {"task": "classify", "init": "m", "log_every": 50}, "data")
    losses = {50: 0.00044836, 100: 0.00033912, 102: 0.7}
    lines = [
        to_line(step, {"train/loss": loss, "train/tokens_per_second": 573.04})
        + to_line(step, {"eval/accuracy": 0.65, "eval/loss": 12.5})
        for step, loss in losses.items()
    ]
    (tmp_path / "metrics.jsonl").write_text("".join(lines))
    script = """
      const texts = (selector) => [...document.querySelectorAll(selector)].map((x)=>x.textContent);
      seen.tiles = texts(".tile");
      seen.captions = texts('[data-chart="loss"] figcaption');
      seen.axis = texts('[data-chart="accuracy"] text');
      const svg = document.querySelector('[data-chart="loss"] svg');
      press("End", svg);
      seen.tip = texts('[data-chart="loss"] .tip .row');
    """
    seen = used(report_page([run_data(tmp_path)]), script, tmp_path)
    assert not seen["errors"] and "100 %" in seen["axis"]
    assert seen["tiles"][:3] == [
        "65.00 %highest held-out accuracy, at step 102, one of 3 evaluations with this value",
        "0.7last training loss, at step 102, a mean of only 2 steps",
        "573last throughput in tokens per second, at step 102, a mean of only 2 steps",
    ]
    assert seen["captions"] == [
        "Train: each point is the mean of 50 steps, but the last one of only 2."
    ]
    assert seen["tip"][0] == "train (mean of only 2 steps)0.7"


@pytest.mark.slow
@pytest.mark.exhaustive
def test_the_report_of_a_killed_run_goes_on_where_it_resumes(config, small_run, tmp_path):
    command = [sys.executable, "-m", "bertjax.pretrain", "--config", str(small_run(60, 20))]
    command += ["--data", config.data, "--workdir", str(tmp_path / "run"), "--eval_every", "10"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    page, deadline = tmp_path / "run" / "report.html", time.monotonic() + 240
    while time.monotonic() < deadline:
        if page.is_file() and data_of(page.read_text())["runs"][0]["status"]["step"] >= 30:
            break
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    killed = data_of(page.read_text())["runs"][0]
    assert killed["status"]["state"] == "running" and 30 <= killed["status"]["step"] < 60
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    run = data_of(page.read_text())["runs"][0]
    assert run["status"]["sentence"] == "Finished after step 60 of 60."
    (event,) = run["events"]
    # A page is written before the checkpoint of its step is complete.
    assert event["kind"] == "resumed" and 0 < event["step"] <= killed["status"]["step"]
    assert run["train"]["train/loss"]["steps"] == list(range(1, 61))
    assert run["eval"]["steps"] == list(range(10, 70, 10))
    assert len(run["processes"]) == 2 and run["ledger"]["processes"] == 2


@pytest.mark.slow
@pytest.mark.exhaustive
@needs_chromium
@pytest.mark.parametrize(
    ("kind", "figures"),
    [
        ("regress", ["Predictions and labels", "Largest errors"]),
        ("multi", ["Scores by label", "Reliability diagram", "Most confident mistakes"]),
        ("tag", ["Scores by entity type", "Reliability diagram", "Most confident mistakes"]),
        ("choice", ["Reliability diagram", "Most confident mistakes"]),
        ("qa", ["Reliability diagram", "Most confident mistakes"]),
    ],
)
def test_every_kind_of_task_has_its_figures(kind, figures, one_layer, files, tmp_path):
    bertjax.finetune(
        finetune_config(
            **{"task": "classify" if kind == "multi" else kind},
            **{"train": files[kind]["train"], "dev": files[kind]["dev"], "init": str(one_layer)},
            **{"workdir": str(tmp_path / "run"), "max_length": 32, "num_epochs": 2.0},
            **({"doc_stride": 8, "max_query_length": 16} if kind == "qa" else {}),
        )
    )
    page = (tmp_path / "run" / "report.html").read_text()
    seen = shown_by_browser(page, tmp_path)
    (split,) = data_of(page)["runs"][0]["splits"]
    assert all(title in seen["text"] for title in figures)
    scores = read_scores(tmp_path / "run" / "scores.json")
    assert {key: value for key, (value, _) in seen["scores"].items()} == scores
    if kind == "regress":
        lines = (tmp_path / "run" / "predictions" / "dev.jsonl").read_text().splitlines()
        rows = [json.loads(line) for line in lines]
        assert split["points"] == [[row["input"]["score"], row["score"]] for row in rows]
    else:
        assert sum(bin["count"] for bin in split["calibration"]["bins"]) == split["decisions"]


@needs_chromium
def test_mistakes_run_in_the_direction_of_their_text_and_are_marked_in_all_scripts(tmp_path):
    write_run(tmp_path, {"task": "tag", "init": "m", "log_every": 50}, "data")
    line = to_line(50, {"train/loss": 1.0})
    (tmp_path / "metrics.jsonl").write_text(line)
    texts = ["שלום 𞤀𞤣 עולם", "ذهب إلى القاهرة", "ދިވެހި މާލެ", "I 🙂 saw Rome", "ಠ मुंबई में"]
    marked = [[5, 7], [9, 16], [7, 11], [8, 12], [2, 7]]
    mistakes = [{"text": text, "marked": part} for text, part in zip(texts, marked, strict=True)]
    script = f"""
      const made = {json.dumps(mistakes)}.map(mistakeText);
      document.body.append(...made);
      seen.directions = made.map((text) => getComputedStyle(text).direction);
      seen.marked = made.map((text) => text.querySelector("mark").textContent);
    """
    seen = used(report_page([run_data(tmp_path)]), script, tmp_path)
    assert not seen["errors"]
    assert seen["directions"] == ["rtl"] * 3 + ["ltr"] * 2
    places = zip(texts, marked, strict=True)
    assert seen["marked"] == [text[start:end] for text, (start, end) in places]


SLOW_KIND = WEEKLY


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param("classify", marks=pytest.mark.slow),
        pytest.param("regress", marks=SLOW_KIND),
        pytest.param("multi", marks=SLOW_KIND),
        pytest.param("tag", marks=SLOW_KIND),
        pytest.param("qa", marks=SLOW_KIND),
    ],
)
def test_the_first_mistakes_of_a_run_are_attributed_to_their_words(
    kind, one_layer, files, tmp_path, capsys
):
    folder = tmp_path / "run"
    config = finetune_config(
        **{"task": "classify" if kind == "multi" else kind, "max_steps": 2, "batch_size": 8},
        **{"train": files[kind]["train"], "dev": files[kind]["dev"], "init": str(one_layer)},
        **{"workdir": str(folder), "max_length": 60, "log_every": 1, "seed": 1},
    )
    model = bertjax.finetune(config).model
    command = [str(folder), "--attribute", "--output", str(tmp_path / "report.html")]
    assert report.main(command) == 0
    (split,) = data_of((tmp_path / "report.html").read_text())["runs"][0]["splits"]
    if kind == "qa":
        assert "no mistakes of texts in" in capsys.readouterr().out
        assert "attributions" not in split
        return
    whys = split["attributions"]
    assert len(whys) == min(len(split["mistakes"]), 10) > 0
    for why, mistake in zip(whys, split["mistakes"], strict=False):
        text = "".join(why["words"][: why["pair_start"]]).strip()
        assert text[:100] == mistake["text"][:100] or kind == "tag"
        change = why["output"] - why["baseline_output"]
        assert abs(why["error"]) < 0.01 * max(abs(change), 0.1)
        if kind == "classify":
            assert why["target"] == mistake["predicted"]
            assert abs(why["output"] - model([text])["logits"][0].max()) < 1e-4
        elif kind == "multi":
            assert why["target"] == mistake["predicted"].removeprefix("not ")
        elif kind == "tag":
            start, end = mistake["marked"]
            word = mistake["text"][start:end]
            assert why["target"] == f"{mistake['predicted']}: {word}"
            assert why["words"][why["word"]].strip() == word
    stored = json.loads((folder / "predictions/dev.summary.json").read_text())
    assert stored["attributions"] == whys  # later reports have them without another look


MARKED = """
  const words = [...document.querySelectorAll(".mistake .w")];
  seen.words = words.map((word) => word.textContent);
  seen.values = words.map((word) => word.dataset.value);
  seen.said = document.querySelector(".mistake .read").textContent;
  seen.rows = document.querySelectorAll(".mistake tbody tr").length;
"""


@needs_chromium
def test_words_of_mistakes_are_coloured_in_a_browser(tmp_path):
    write_run(tmp_path, {"task": "classify", "init": "m", "log_every": 50}, "data")
    (tmp_path / "metrics.jsonl").write_text(to_line(50, {"train/loss": 1.0}))
    why = Attribution(
        target="good",
        words=["Not ", "ok", ". "],
        values=np.array([1.5, -0.25, np.nan]),
        pair_start=3,
        word=None,
        tokens=[],
        token_values=np.array([1.25]),
        output=1.0,
        baseline_output=-0.2,
    )
    mistake = {"text": "Not ok.", "gold": "bad", "predicted": "good", "probability": 0.9}
    calibration = {"unit": "examples", "ece": 0.1, "bins": [{"count": 0}]}
    content = {"label_kind": "classes", "examples": 1, "decisions": 1, "wrong": 1, "scores": {}}
    content |= {"mistakes": [mistake], "calibration": calibration, "has_ids": False}
    (tmp_path / "predictions").mkdir()
    summary = json.dumps({**content, "attributions": [why.page_data()]})
    (tmp_path / "predictions/dev.summary.json").write_text(summary)
    seen = used(report_page([run_data(tmp_path)]), MARKED, tmp_path)
    assert not seen["errors"]
    assert seen["words"] == ["Not", "ok", "."] and seen["values"] == ["1.5", "-0.25", None]
    assert seen["said"].startswith("good: Output 1.000, of the baseline -0.2000")
    assert "completeness error +0.0500 (4.2 % of the difference)" in seen["said"]
    assert seen["rows"] == 2
