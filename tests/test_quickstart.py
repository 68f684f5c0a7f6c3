"""`bertjax quickstart` shows commands that can be copied, runs and resumes them, and checks."""

import importlib
import json
import shlex

import pytest

from bertjax import __main__ as entry
from bertjax import quickstart
from bertjax.base.files import read_json


@pytest.fixture(scope="module")
def text(sentences, tmp_path_factory):
    """Documents of a made-up language, in a folder whose name needs quotes in a shell."""
    file = tmp_path_factory.mktemp("a text") / "text.txt"
    documents = ["\n".join(sentences[start : start + 10]) for start in range(0, 400, 10)]
    file.write_text("\n\n".join(documents))
    return file


def commands_in(printed):
    lines = (line.strip() for line in printed.splitlines() if line.startswith("   "))
    return [shlex.split(line) for line in lines if line.startswith(("bertjax", "python -m"))]


@pytest.mark.slow
def test_all_steps_run_and_a_repetition_resumes_them(text, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    flags = ["--input", str(text), "--steps", "3", "--output", "a run"]
    status = quickstart.main(flags)
    printed = capsys.readouterr().out
    # Three steps teach nothing, so that the checks must say so.
    assert status == 1 and "FAIL held-out MLM loss" in printed
    shown = commands_in(printed)
    assert [command[command.index("bertjax") + 1] for command in shown] == [
        *("train_tokenizer", "prepare", "pretrain", "fill_mask"),
        *("visualize", "embed", "finetune", "--help"),
    ]
    assert read_json(tmp_path / "a run" / "run" / "run.json")["config"]["phases"] == [
        {**read_json(tmp_path / "a run/run/run.json")["config"]["phases"][0], "num_steps": 3}
    ]
    metrics = (tmp_path / "a run/run/metrics.jsonl").read_text()
    vocabulary = (tmp_path / "a run/tokenizer/vocab.txt").stat().st_mtime_ns
    assert quickstart.main(flags) == 1
    printed = capsys.readouterr().out
    assert "a run/tokenizer exists already" in printed
    assert "is already complete" in printed
    assert (tmp_path / "a run/run/metrics.jsonl").read_text() == metrics
    assert (tmp_path / "a run/tokenizer/vocab.txt").stat().st_mtime_ns == vocabulary


def test_every_command_that_it_shows_is_understood(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config = quickstart.QuickstartConfig(output="out")
    shown = [step.command for step in quickstart.steps(config)]
    shown += [command for _, command in quickstart.next_commands(config)]
    for name, *flags in shown:
        if name != "--help":
            assert name in entry.COMMANDS
            importlib.import_module(f"bertjax.{name}").parse(flags)


def test_the_first_step_that_fails_ends_it_with_its_status(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert quickstart.main(["--input", "nothing.txt"]) == 1
    output = capsys.readouterr()
    assert "nothing.txt" in output.err and "ended in step 1 (train_tokenizer)" in output.err
    _, began, rest = output.out.partition("1. ")
    assert began and "prepare" not in rest


@pytest.mark.parametrize(
    ("loss", "accuracy", "passed"), [(5.0, 0.9, [True, True]), (6.1, 0.5, [False, False])]
)
def test_checks_compare_with_what_ignores_context(
    loss, accuracy, passed, tmp_path, monkeypatch, text
):
    out = tmp_path / "out"
    (out / "run").mkdir(parents=True)
    values = {"mlm_loss": loss, "unigram_entropy": 6.0, "nsp_accuracy": accuracy}
    line = json.dumps({"step": 1, **{f"eval/{name}": value for name, value in values.items()}})
    (out / "run" / "metrics.jsonl").write_text(line + "\n")
    from bertjax import prepare

    prepare(
        input=str(text),
        tokenizer="bertjax:tiny",
        output=str(out / "data"),
        max_length=(64,),
        eval_fraction=0.5,
        num_processes=1,
    )
    results = quickstart.checks(out)
    assert [next(results).passed, next(results).passed] == passed


def test_no_steps_are_refused():
    with pytest.raises(ValueError, match="steps=0: it must be at least 1"):
        quickstart.QuickstartConfig(steps=0)
