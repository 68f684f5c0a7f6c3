"""The notebooks are valid, name files that exist, and run from beginning to end.

Their executions take some ten seconds each and are slow tests, which the stage "slow tests" of
.ci/run executes.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from bertjax import load_pretrained

ROOT = Path(__file__).parent.parent
NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.py"))
NAMES = [path.stem for path in NOTEBOOKS]


@pytest.fixture(params=NOTEBOOKS, ids=NAMES)
def notebook(request) -> Path:
    return request.param


def test_jupytext_converts_a_notebook_and_back(notebook):
    jupytext = pytest.importorskip("jupytext")
    nbformat = pytest.importorskip("nbformat")
    cells = jupytext.read(notebook).cells
    converted = nbformat.reads(jupytext.writes(jupytext.read(notebook), "ipynb"), as_version=4)
    nbformat.validate(converted)
    assert [(c.cell_type, c.source) for c in converted.cells] == [
        (c.cell_type, c.source) for c in cells
    ]
    assert converted.metadata.kernelspec.name == "python3"
    kinds = [cell.cell_type for cell in cells]
    assert set(kinds) == {"markdown", "code"} and all(cell.source.strip() for cell in cells)
    for cell in cells:
        if cell.cell_type == "code":
            compile(cell.source, notebook.name, "exec")
    # One title, at the top, so that the page has one table of contents.
    titles = [
        line
        for cell in cells
        if cell.cell_type == "markdown"
        for line in re.sub(r"```.*?```", "", cell.source, flags=re.DOTALL).splitlines()
        if line.startswith("# ")
    ]
    assert len(titles) == 1 and cells[0].source.startswith(titles[0])


def test_files_that_a_notebook_names_exist(notebook):
    text = notebook.read_text(encoding="utf-8")
    named = set(re.findall(r"`((?:bertjax|configs|notebooks|docs)/[\w./]+)`", text))
    assert named or notebook.stem == "attention_of_a_finetuned_model"
    assert not [path for path in named if not (ROOT / path).exists()]


def execute(name: str, folder: Path, **settings: str) -> str:
    """Runs a notebook as a script in `folder`, and returns what it prints."""
    variables = {f"BERTJAX_NOTEBOOK_{key.upper()}": value for key, value in settings.items()}
    done = subprocess.run(
        [sys.executable, ROOT / "docs" / "notebooks" / f"{name}.py"],
        cwd=folder,
        env=os.environ | variables | {"MPLBACKEND": "agg", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]
    return done.stdout


@pytest.mark.slow
@pytest.mark.exhaustive
def test_how_bert_works(tmp_path):
    pytest.importorskip("matplotlib")
    output = execute("how_bert_works", tmp_path)
    # Each line is a comparison of arrays that has passed.
    assert len(re.findall(r"^.{28} \(.*\) +equal within ", output, re.MULTILINE)) >= 25
    assert not list(tmp_path.iterdir())  # it only reads


@pytest.mark.slow
@pytest.mark.exhaustive
def test_finetune_your_csv(tmp_path):
    pytest.importorskip("matplotlib")
    output = execute("finetune_your_csv", tmp_path, rows="16")
    assert "held-out accuracy" in output
    run = tmp_path / "runs" / "notebooks" / "finetune_your_csv" / "run"
    model = load_pretrained(run / "model")
    assert model.labels == ["asyncio", "email", "logging", "numbers", "web"]


@pytest.mark.slow
@pytest.mark.exhaustive
def test_pretrain_from_scratch(tmp_path, corpus):
    pytest.importorskip("matplotlib")
    text = str(corpus / "text.txt")
    output = execute("pretrain_from_scratch", tmp_path, steps="12", text=text)
    assert "unigram entropy" in output and "Returns the [MASK] of the array. ->" in output
    run = tmp_path / "runs" / "notebooks" / "pretrain_from_scratch" / "run_12_steps"
    assert load_pretrained(run / "model", "masked_lm").config.num_hidden_layers == 2


@pytest.mark.slow
@pytest.mark.exhaustive
def test_attention_of_a_finetuned_model(tmp_path):
    pytest.importorskip("matplotlib")
    output = execute("attention_of_a_finetuned_model", tmp_path, rows="16")
    assert "occlusion         points to a deciding word in" in output
    page = tmp_path / "runs" / "notebooks" / "attention" / "attention.html"
    assert "exception" in page.read_text(encoding="utf-8")
