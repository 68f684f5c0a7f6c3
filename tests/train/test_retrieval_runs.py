"""Runs of sparse models and of late interaction: resumed, in folds, with a report, on the Hub."""

import json

import pytest

import bertjax
from bertjax import report
from bertjax.base import addresses
from bertjax.tasks import finetune_config
from bertjax.train import experiments
from tests.hub_server import TOKEN, unique
from tests.lines import json_lines
from tests.rows import short_run
from tests.steps import after_each_step, run_until

RUNS = {
    "sparse": ("sparse", {}),
    "static": ("sparse", {"queries": "static"}),
    "colbert": ("colbert", {"vector_size": 16, "query_length": 20}),
}
STEPS = 6

pytestmark = [
    pytest.mark.slow,
    # huggingface_hub's own call of httpx.
    pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning"),
]


@pytest.fixture(
    scope="module",
    params=[
        "colbert",
        *(pytest.param(x, marks=pytest.mark.exhaustive) for x in ("sparse", "static")),
    ],
)
def config(request, one_layer, tmp_path_factory, sentences):
    rows = []
    for text, other in zip(sentences[:40], sentences[40:80], strict=True):
        reverse = " ".join(text.split()[::-1])
        rows.append({"anchor": text, "positive": reverse, "negative": other})
    folder = tmp_path_factory.mktemp(request.param)
    task, settings = RUNS[request.param]
    config = short_run(task, one_layer, rows, folder, **settings)
    return finetune_config(config, batch_size=20)


@pytest.fixture(scope="module")
def result(config):
    return experiments.finetune(config)


def files_of(folder):
    files = (file for file in folder.rglob("*") if file.is_file())
    return {str(file.relative_to(folder)): file.read_bytes() for file in files}


@pytest.mark.parametrize("last", [1, pytest.param(3, marks=pytest.mark.exhaustive)])
def test_a_run_that_was_stopped_ends_as_an_uninterrupted_one(
    last, result, config, tmp_path, monkeypatch
):
    config = finetune_config(config, workdir=str(tmp_path / "run"))
    run_until(last, lambda: experiments.finetune(config), monkeypatch)
    steps = []
    after_each_step(monkeypatch, steps.append)
    again = experiments.finetune(config)
    assert steps == [*range(last + 1, STEPS + 1)]
    assert again.scores == result.scores
    whole, resumed = files_of(result.directory), files_of(again.directory)
    assert {name for name in whole if name.endswith(".safetensors")}
    for name in whole:
        assert name == "README.md" or resumed[name] == whole[name], name
    assert resumed.keys() == whole.keys()


@pytest.mark.exhaustive
def test_folds_have_scores_and_the_model_of_all_rows(config, tmp_path):
    result = bertjax.finetune(finetune_config(config, workdir=str(tmp_path / "run"), folds=2))
    assert set(result.runs) == {"fold1", "fold2", "all"} and result.best == "all"
    summary = json.loads((tmp_path / "run/cross_validation.json").read_text())
    assert 0 < summary["metrics"]["mrr"]["mean"] <= 1
    assert len(json_lines(tmp_path / "run/predictions/out_of_fold.jsonl")) == 40
    expected = (tmp_path / "run/all/model/model.safetensors").read_bytes()
    assert (result.directory / "model.safetensors").read_bytes() == expected


@pytest.mark.exhaustive
def test_the_report_shows_the_scores(result, config, tmp_path):
    output = tmp_path / "report.html"
    assert report.main([config.workdir, "--output", str(output)]) == 0
    for page in (output.read_text(), (result.directory.parent / "report.html").read_text()):
        assert config.task in page
        for name in result.scores:
            assert name.removeprefix("dev/") in page


@pytest.mark.exhaustive
def test_a_pushed_model_is_loaded_with_all_of_its_files(
    result, config, hub, monkeypatch, sentences, tmp_path
):
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(addresses, "FIRST_WAIT", 0.01)
    name = unique(config.task)
    bertjax.finetune(finetune_config(config, workdir=str(tmp_path / "run"), push_to_hub=name))
    pushed = bertjax.load_pretrained(name)
    pair = (sentences[0], sentences[1])
    assert pushed.predict([pair]) == result.model.predict([pair])
