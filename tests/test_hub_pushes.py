"""Models pushed to the Hugging Face Hub: equal to the directory, also after failed requests."""

import os
import shutil
import subprocess
import sys

import numpy as np
import pytest

import bertjax
from bertjax import convert, pretrain
from bertjax.base import addresses
from bertjax.cloud.hub import create_repository, push_folder
from bertjax.config import OptimizerConfig, Phase, PretrainConfig
from bertjax.convert import ConvertConfig
from bertjax.devices.activity import Clock
from bertjax.record.events import StepDone
from bertjax.record.hub_pushes import HubPushes
from tests.hub_server import TOKEN, Repository, unique

# huggingface_hub's own call of httpx.
pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")


@pytest.fixture(autouse=True)
def logged_in(monkeypatch, hub, tmp_path):
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(addresses, "FIRST_WAIT", 0.01)


def on_hub(hub, name, branch="main"):
    return hub.repositories[f"models/{name}"].at(branch)[1]


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def test_a_converted_model_is_pushed_and_loads(hub, one_layer, tmp_path, sentences):
    name = unique("model")
    config = ConvertConfig(src=str(one_layer), dst=str(tmp_path / "model"), push_to_hub=name)
    convert.run(config)
    assert on_hub(hub, name) == contents(tmp_path / "model")
    local, pushed = (bertjax.load_pretrained(m)(sentences[:2]) for m in (str(one_layer), name))
    for key, values in local.items():
        assert np.array_equal(values, pushed[key])


def test_failed_requests_are_repeated_and_nothing_is_stored_twice(hub, one_layer, capsys):
    name = unique("model")
    create_repository(name)
    hub.fail.update(preupload=2, batch=1, store=3, commit=2)
    push_folder(one_layer, name)
    assert on_hub(hub, name) == contents(one_layer)
    assert "could not be written (OSError: the Hub answered with status 503)" in (
        capsys.readouterr().out
    )
    large = hub.requests["store"]
    push_folder(one_layer, name)  # all is there
    push_folder(one_layer, name, branch="step-7")
    assert hub.requests["store"] == large
    assert on_hub(hub, name, "step-7") == contents(one_layer)


@pytest.mark.slow
def test_a_push_that_fails_is_continued_by_the_same_command(hub, one_layer):
    name = unique("model")
    create_repository(name)
    hub.fail.update(commit=1000)
    with pytest.raises(OSError, match="could not be written in 5 attempts.*the same command again"):
        push_folder(one_layer, name)
    assert on_hub(hub, name) == {}  # all files become visible at once, or none
    stored = hub.requests["store"]
    hub.fail.clear()
    push_folder(one_layer, name)
    assert on_hub(hub, name) == contents(one_layer)
    assert hub.requests["store"] == stored  # the weights were there already


def test_files_of_an_older_model_are_removed_and_others_remain(hub, one_layer, tmp_path):
    name = unique("model")
    create_repository(name)
    old = {"tagger.safetensors": b"old", "photo.png": b"png", ".gitattributes": b"x"}
    hub.repositories[f"models/{name}"].commit("main", old)
    push_folder(one_layer, name)
    assert on_hub(hub, name).keys() - contents(one_layer).keys() == {"photo.png", ".gitattributes"}


def test_a_gated_model_and_a_missing_one_are_told_apart(hub, one_layer, monkeypatch):
    name = unique("model")
    hub.repositories[f"models/{name}"] = Repository(contents(one_layer), gated=True)
    assert bertjax.load_pretrained(name).config.num_hidden_layers == 1
    monkeypatch.delenv("HF_TOKEN")
    hub.repositories[f"models/{name}-large"] = Repository(contents(one_layer), gated=True)
    with pytest.raises(PermissionError, match="is gated: accept its conditions.*hf auth login"):
        bertjax.load_pretrained(f"{name}-large")
    with pytest.raises(FileNotFoundError, match="the hub gave no model of that name"):
        bertjax.load_pretrained("me/absent")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(FileNotFoundError, match="the hub was not asked, because HF_HUB_OFFLINE"):
        bertjax.load_pretrained("me/absent")


def test_what_prevents_a_push_is_said_before_the_run(hub, monkeypatch):
    with pytest.raises(ValueError, match="write OWNER/NAME"):
        create_repository("model")
    hub.repositories["models/other/model"] = Repository()
    for taken in ("someone/model", "other/model"):
        with pytest.raises(PermissionError, match="may not be accessed with this token.*hf auth"):
            create_repository(taken)
    monkeypatch.delenv("HF_TOKEN")
    with pytest.raises(PermissionError, match="There is no token.*hf auth login"):
        create_repository("me/model")
    config = PretrainConfig(
        data="d",
        workdir="w",
        push_to_hub="me/model",
        phases=(Phase(num_steps=1, max_length=16, batch_size=8),),
    )
    with pytest.raises(PermissionError, match="There is no token"):
        pretrain.run(config)  # before the data is looked for
    with pytest.raises(ValueError, match="hub_private=True has no effect without --push_to_hub"):
        PretrainConfig(hub_private=True)
    with pytest.raises(ValueError, match="push_every=5 has no effect without --push_to_hub"):
        PretrainConfig(push_every=5)


def run_of(prepared, workdir, name, model):
    return PretrainConfig(
        data=str(prepared),
        workdir=str(workdir),
        model=model,
        phases=(Phase(num_steps=5, max_length=16, batch_size=8),),
        optimizer=OptimizerConfig(warmup_steps=1),
        unroll=1,
        eval_every=0,
        eval_rows=8,
        save_every=2,
        peak_tflops=0.1,
        push_to_hub=name,
        push_every=2,
    )


@pytest.mark.slow
def test_a_run_pushes_its_steps_and_its_model(hub, prepared, one_layer_config, tmp_path, capsys):
    name = unique("run")
    config = run_of(prepared, tmp_path / "run", name, one_layer_config)
    pretrain.run(config)
    repository = hub.repositories[f"models/{name}"]
    assert set(repository.heads) == {"main", "step-2", "step-4"}
    assert on_hub(hub, name) == contents(tmp_path / "run" / "model")
    weights = {
        branch: on_hub(hub, name, branch)["model.safetensors"] for branch in repository.heads
    }
    assert len(set(weights.values())) == 3
    # The branches hold what a run of as many steps ends with.
    pretrain.export(str(tmp_path / "run"), name)
    assert on_hub(hub, name, "step-5")["model.safetensors"] == weights["main"]
    requests = hub.requests["commit"]
    pretrain.run(config)  # a finished run: nothing changes on the Hub
    assert hub.requests["commit"] == requests
    assert not [*(tmp_path / "run" / "push").iterdir()]


@pytest.mark.slow
def test_steps_that_could_not_be_pushed_are_pushed_later(hub, one_layer, tmp_path, capsys):
    name = unique("run")
    create_repository(name)
    hub.fail.update(branch=1000)

    def pushes_of_a_process():
        copy = lambda state, step, folder: shutil.copytree(one_layer, folder)  # noqa: E731
        return HubPushes(tmp_path, name, 2, copy, Clock())

    pushes = pushes_of_a_process()
    for step in (2, 3, 10):
        pushes.read(StepDone(step, {}, None, 0, 0, 0.0))
    pushes.finish()
    assert "warning: step-2 is not pushed" in capsys.readouterr().out
    (tmp_path / "push" / "step-3.writing").mkdir()  # of a process that was killed
    hub.fail.clear()
    pushes_of_a_process().finish()  # those of the process that resumes the run
    assert {*hub.repositories[f"models/{name}"].heads} - {"main"} == {"step-2", "step-10"}
    assert on_hub(hub, name, "step-10") == contents(one_layer)
    assert [path.name for path in (tmp_path / "push").iterdir()] == ["step-3.writing"]


LOAD = """
import sys, torch, transformers
tokenizer = transformers.AutoTokenizer.from_pretrained(sys.argv[1], revision=sys.argv[2])
model = transformers.AutoModel.from_pretrained(sys.argv[1], revision=sys.argv[2])
with torch.no_grad():
    output = model(**tokenizer("abc def", return_tensors="pt"))
print(output.last_hidden_state.double().sum().item())
"""


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.parity
def test_transformers_loads_each_revision(hub, prepared, one_layer_config, tmp_path):
    pytest.importorskip("transformers")
    name = unique("run")
    pretrain.run(run_of(prepared, tmp_path / "run", name, one_layer_config))
    sums = {}
    for branch in ("main", "step-2", "step-4"):
        local = tmp_path / branch
        local.mkdir()
        for file, content in on_hub(hub, name, branch).items():
            (local / file).write_bytes(content)
        for model, revision in ((name, branch), (str(local), "main")):
            done = subprocess.run(
                [sys.executable, "-c", LOAD, model, revision],
                env=os.environ, capture_output=True, text=True, check=True,
            )  # fmt: skip
            sums[branch, revision if model == name else "local"] = float(done.stdout)
        assert sums[branch, branch] == sums[branch, "local"]
    assert len(set(sums.values())) == 3
