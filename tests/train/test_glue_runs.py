"""All tasks of GLUE in one command are the runs of its tasks, however often it is interrupted."""

import json
import shutil
import zipfile
from pathlib import Path

import pytest

import bertjax
from bertjax import finetune
from bertjax.base.addresses import place
from bertjax.base.signals import Interrupted
from bertjax.tasks import finetune_config
from bertjax.tasks.sources.glue import PAPER_COLUMNS
from bertjax.train import finetuning
from bertjax.train import glue as glue_runs
from bertjax.train.run import Saver
from tests.bucket_servers import first_with

NLI = ("entailment", "neutral", "contradiction")


def write(folder: Path, name: str, head: str, rows: list[str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.tsv").write_text("\n".join([*([head] if head else []), *rows]) + "\n")


@pytest.fixture(scope="module")
def data(tmp_path_factory, sentences) -> Path:
    """CoLA, STS-B and MNLI in the formats of GLUE's files, and the diagnostic set."""
    folder, texts = tmp_path_factory.mktemp("glue"), sentences[:24]
    for split in ("train", "dev"):
        rows = [f"gj\t{i % 2}\t\t{text}" for i, text in enumerate(texts)]
        write(folder / "CoLA", split, "", rows)
        rows = [f"{i}\t{text}\t{text[:9]}\t{i % 6}" for i, text in enumerate(texts)]
        write(folder / "STS-B", split, "index\tsentence1\tsentence2\tscore", rows)
    write(folder / "CoLA", "test", "index\tsentence", [f"{i}\t{x}" for i, x in enumerate(texts)])
    for split in ("train", "dev_matched", "dev_mismatched", "test_matched"):
        label = "" if split.startswith("test") else "\tgold_label"
        rows = [
            f"{i}\t{text}\t{text[:9]}" + (f"\t{NLI[i % 3]}" if label else "")
            for i, text in enumerate(texts)
        ]
        write(folder / "MNLI", split, f"index\tsentence1\tsentence2{label}", rows)
    rows = [f"{i}\t{text}\t{text[:9]}" for i, text in enumerate(texts[:5])]
    write(folder / "diagnostic", "diagnostic", "index\tsentence1\tsentence2", rows)
    return folder


@pytest.fixture(scope="module")
def flags(data, one_layer) -> list[str]:
    return [
        *("--task=glue", f"--data_dir={data}", f"--init={one_layer}", "--max_length=48"),
        *("--max_steps=3", "--batch_size=8", "--unroll=1"),
    ]


# The files that must be of the same bytes.
def results(workdir: Path) -> dict[str, bytes]:
    files = [
        *workdir.glob("scores.json"),
        *workdir.glob("predictions/*"),
        *workdir.glob("model/*"),
    ]
    return {str(file.relative_to(workdir)): file.read_bytes() for file in files}


@pytest.fixture(scope="module")
def whole(flags, tmp_path_factory) -> Path:
    """The workdir of an uninterrupted run."""
    workdir = tmp_path_factory.mktemp("whole") / "glue"
    assert finetune.main([*flags, f"--workdir={workdir}"]) == 0
    return workdir


@pytest.mark.slow
@pytest.mark.exhaustive
def test_a_dry_run_of_all_tasks_lists_each_and_writes_nothing(flags, tmp_path, capsys):
    assert finetune.main([*flags, f"--workdir={tmp_path / 'glue'}", "--dry_run"]) == 0
    printed = capsys.readouterr().out.splitlines()
    for task in ("cola", "stsb", "mnli"):
        assert f"{tmp_path / 'glue' / task}:" in printed
    assert not [*tmp_path.iterdir()]


@pytest.mark.slow
@pytest.mark.exhaustive
def test_all_tasks_in_one_command_are_the_runs_of_the_tasks(flags, whole, tmp_path):
    for task in ("stsb", "mnli"):
        alone = [f"--task={task}", *flags[1:], f"--workdir={tmp_path / task}"]
        assert finetune.main(alone) == 0
        made = results(tmp_path / task)
        assert {"scores.json", "model/model.safetensors"} < made.keys()
        assert made == results(whole / task)


@pytest.mark.slow
def test_the_table_has_every_score_and_says_what_is_missing(flags, whole, capsys):
    assert finetune.main([*flags, f"--workdir={whole}"]) == 0  # prints the finished runs again
    printed = capsys.readouterr().out
    assert printed.count("is finished: there is nothing to do") == 3
    assert "GLUE: rte is missing: " in printed
    summary = json.loads((whole / "glue.json").read_text())
    rows = {row["column"]: row["score"] for row in summary["rows"]}
    scores = json.loads((whole / "scores.json").read_text())
    assert rows["CoLA Matthews"] == scores["cola"]["dev/matthews"]
    assert rows["MNLI-mm accuracy"] == scores["mnli"]["dev_mismatched/accuracy"]
    assert rows["RTE accuracy"] is None
    there = [rows[name] for name in PAPER_COLUMNS if rows[name] is not None]
    paper = summary["averages"]["paper"]
    assert paper["complete"] is None and paper["present"] == pytest.approx(sum(there) / 4)
    assert paper["missing"] == [
        "QQP F1",
        "QNLI accuracy",
        "SST-2 accuracy",
        "MRPC F1",
        "RTE accuracy",
    ]
    assert set(summary["missing_tasks"]) == {"sst2", "mrpc", "qqp", "qnli", "rte", "wnli"}
    table = (whole / "glue.md").read_text()
    assert f"| CoLA Matthews | {100 * rows['CoLA Matthews']:.2f} |" in table
    for text in (table, printed.replace("\n", " ")):
        assert "mean of the 4 of 9 that are there, which is not comparable" in text
    assert (whole / "report.html").stat().st_size > 10_000


@pytest.mark.slow
def test_the_submission_has_the_predictions_of_all_tasks_and_of_the_diagnostic_set(
    whole, flags, tmp_path
):
    archive = whole / "submission.zip"
    with zipfile.ZipFile(archive) as files:
        assert files.namelist() == ["AX.tsv", "CoLA.tsv", "MNLI-m.tsv"]
        own = (whole / "cola/predictions/CoLA.tsv").read_text()
        assert files.read("CoLA.tsv").decode() == own
        assert len(files.read("AX.tsv").decode().splitlines()) == 6
    before = archive.read_bytes()
    archive.unlink()
    assert finetune.main([*flags, f"--workdir={whole}"]) == 0
    assert archive.read_bytes() == before
    other = tmp_path / "other.zip"
    with zipfile.ZipFile(other, "w") as files:
        files.writestr("RTE.tsv", "from elsewhere")
    assert finetune.main([*flags, f"--workdir={whole}", f"--submission={other}"]) == 0
    with zipfile.ZipFile(other) as files:
        assert files.namelist() == ["AX.tsv", "CoLA.tsv", "MNLI-m.tsv", "RTE.tsv"]


@pytest.mark.slow
@pytest.mark.exhaustive
def test_an_interrupted_command_resumes_with_the_same_bytes(flags, whole, tmp_path, monkeypatch):
    """It stops within the second task, at its results, and within the third task."""
    command = [*flags, f"--workdir={tmp_path / 'glue'}"]
    original, steps = Saver.after, []

    def stopping(self, state, segment):
        original(self, state, segment)
        step = self.run.step
        steps.append((name := self.job.name, step))
        if name in ("stsb", "mnli") and steps.count((name, step)) == 1 and step == 2:
            raise Interrupted("killed")

    def killed(self, state):
        raise Interrupted("killed")

    monkeypatch.setattr(Saver, "after", stopping)
    assert finetune.main(command) == 75
    with monkeypatch.context() as patch:
        patch.setattr(finetuning.FinetuningJob, "write_results", killed)
        assert finetune.main(command) == 75
    assert not (tmp_path / "glue/stsb/scores.json").exists()
    assert finetune.main(command) == 75  # in mnli
    with monkeypatch.context() as patch:
        patch.setattr(glue_runs, "_markdown", lambda summary: killed(summary, None))
        assert finetune.main(command) == 75
    assert not (tmp_path / "glue/glue.json").exists()
    shutil.rmtree(tmp_path / "glue/cola/predictions")
    assert finetune.main(command) == 0
    for task in ("cola", "stsb", "mnli"):
        assert results(tmp_path / "glue" / task) == results(whole / task)
    for file in ("glue.json", "glue.md", "scores.json", "submission.zip"):
        assert (tmp_path / "glue" / file).read_bytes() == (whole / file).read_bytes()


@pytest.mark.slow
@pytest.mark.exhaustive
def test_python_and_seeds(data, one_layer, tmp_path):
    settings = {"init": str(one_layer), "max_length": 48, "max_steps": 1, "unroll": 1}
    only = tmp_path / "data"
    shutil.copytree(data / "CoLA", only / "CoLA")
    result = bertjax.finetune(
        task="glue", data_dir=str(only), seeds=2, workdir=str(tmp_path / "run"), **settings
    )
    assert set(result.tasks) == {"cola"} and len(result.missing) == 8
    runs = result.tasks["cola"].runs
    assert set(runs) == {"seed0", "seed1"} and set(result.runs["cola"]) == set(runs["seed0"])
    (row,) = [
        row
        for row in json.loads((tmp_path / "run/glue.json").read_text())["rows"]
        if row["column"] == "CoLA Matthews"
    ]
    values = [run["dev/matthews"] for run in runs.values()]
    assert row["runs"]["count"] == 2 and row["runs"]["mean"] == pytest.approx(sum(values) / 2)
    assert "mean ± sd of runs" in (tmp_path / "run/glue.md").read_text()


@pytest.mark.slow
@pytest.mark.exhaustive
@first_with("gs")
def test_a_workdir_in_a_bucket_has_the_table_and_the_submission(
    data, flags, whole, bucket, tmp_path, monkeypatch
):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    shutil.copytree(data / "CoLA", tmp_path / "data" / "CoLA")
    command = [*flags, f"--data_dir={tmp_path / 'data'}", f"--workdir={bucket}/runs/glue"]
    assert finetune.main(command) == 0
    folder = place(f"{bucket}/runs/glue")
    summary = json.loads((folder / "glue.json").read_text())
    scores = json.loads((whole / "scores.json").read_text())
    assert summary["rows"][0]["score"] == scores["cola"]["dev/matthews"]
    assert json.loads((folder / "scores.json").read_text()) == {"cola": scores["cola"]}
    (tmp_path / "submission.zip").write_bytes((folder / "submission.zip").read_bytes())
    with zipfile.ZipFile(tmp_path / "submission.zip") as files:
        assert files.namelist() == ["CoLA.tsv"]
    assert (folder / "cola" / "model" / "model.safetensors").is_file()


def test_each_task_has_the_settings_of_its_own_config_unless_a_flag_replaces_them(monkeypatch):
    seen = {}

    def spy(config, config_of, clock):
        names = ("cola", "mrpc", "wnli")
        seen.update({name: config_of(name) for name in names}, glue=config)
        return glue_runs.GlueResult({}, {}, {}, None, None, "")  # type: ignore[arg-type]

    monkeypatch.setattr(glue_runs, "finetune_glue", spy)
    finetune.main(["--task=glue", "--batch_size", "16"])
    assert [seen[name].num_epochs for name in ("cola", "mrpc", "wnli")] == [3, 5, 5]
    assert {config.batch_size for config in seen.values()} == {16}
    finetune.main(["--task=GLUE", "--num_epochs=3"])
    assert {config.num_epochs for config in seen.values()} == {3}
    bertjax.finetune(task="glue", dropout=0.2)
    assert seen["mrpc"].num_epochs == 5 and seen["mrpc"].dropout == 0.2


def test_only_tasks_with_classes_are_calibrated(monkeypatch, tmp_path, capsys):
    seen = {}

    def spy(config, clock):
        seen[config.task] = getattr(config.options, "calibrate", False)
        if len(seen) == 2:
            raise Interrupted("enough")

    monkeypatch.setattr(glue_runs, "tasks_in", lambda folder: (("stsb", "cola"), {}))
    monkeypatch.setattr(glue_runs.experiments, "finetune", spy)
    with pytest.raises(Interrupted):
        bertjax.finetune(task="glue", calibrate=True, workdir=str(tmp_path))
    assert seen == {"stsb": False, "cola": True}
    assert "stsb predicts numbers and is not calibrated" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"train": "a.csv"}, "--train belongs to --task=.*; --task=glue"),
        ({"push_to_hub": "a/b"}, "push_to_hub=.* --task glue"),
        ({"shots": 8, "folds": 0}, "shots=8 .* --task glue"),
        ({"select_by": "f1"}, "select_by=.* --task glue"),
        ({"class_weights": "balanced"}, "--class_weights belongs to"),
    ],
)
def test_settings_of_a_single_task_are_refused_for_all(fields, message):
    with pytest.raises((ValueError, TypeError), match=message):
        finetune_config(task="glue", **fields)
    finetune_config(task="glue", select_by="last", seeds=5)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"folds": 1}, "folds=1: give at least 2"),
        ({"folds": 5, "dev": "a.csv"}, "dev=.* --folds 5"),
        ({"folds": 5, "dev_fraction": 0.2}, "dev_fraction=.* --folds 5"),
        ({"folds": 5, "seeds": 3}, "seeds=.* --folds 5"),
        ({"folds": 5, "sweep": True}, "folds=.* --sweep"),
        ({"folds": 5, "calibrate": True}, "calibrate=.* --folds 5"),
        ({"folds": 5, "patience": 2}, "patience=.* --folds 5"),
        ({"folds": 5, "select_by": "macro_f1"}, "select_by=.* --folds 5"),
        ({"shots": 0}, "shots=0: it must be at least 1"),
        ({"shots": 8, "sweep": True}, "shots=.* --sweep"),
        ({"shots": 8, "doc_stride": 64}, "doc_stride=.* --shots 8"),
        ({"select_by": "last", "patience": 3}, "patience=.* --select_by last"),
        ({"select_by": "last", "evals_per_epoch": 2}, "evals_per_epoch=.* --select_by last"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(fields, message):
    with pytest.raises(ValueError, match=message):
        finetune_config(task="classify", **fields)
