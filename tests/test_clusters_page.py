"""Every command of docs/clusters.md is executed by a test, or says what it needs.

A command below a comment "# Needs ..." is only checked: its flags are parsed.
"""

import importlib
import re
import shlex
import tomllib

import pytest

from tests import test_launch_clusters, test_launch_runs
from tests.launch_commands import ROOT, executes, page_commands, replaced

SMALL = (
    "--model.num_hidden_layers 1 --model.hidden_size 16 --model.num_attention_heads 2 "
    "--model.intermediate_size 32 --model.vocab_size {vocab} --dtype float32 --unroll 1 "
    "--optimizer.warmup_steps 1 --eval_rows 8 --phases.0.num_steps 2 --phases.0.max_length 16 "
    "--phases.0.batch_size 8 --phases.1.num_steps 2 --phases.1.max_length 32 "
    "--phases.1.batch_size 8"
)


def run_program(command):
    """Runs `python -m bertjax.X FLAGS` in this process."""
    program, *flags = shlex.split(command.removeprefix("python -m bertjax."))
    assert importlib.import_module(f"bertjax.{program}").main(flags) == 0


@pytest.mark.slow
@pytest.mark.exhaustive
@executes("python -m bertjax.pretrain --config configs/pretrain/bert_large.py")
def test_one_node_with_several_devices(prepared, tokenizer, tmp_path):
    changes = {"--data data": f"--data {prepared}", "--workdir large": f"--workdir {tmp_path}/run"}
    command = replaced("python -m bertjax.pretrain --config configs/pretrain/bert_large", changes)
    run_program(f"{command} {SMALL.format(vocab=tokenizer.vocab_size)}")
    assert (tmp_path / "run" / "model" / "model.safetensors").is_file()


@pytest.mark.slow
@pytest.mark.exhaustive
@executes("JAX_NUM_CPU_DEVICES=8 python -m bertjax.benchmark")
def test_simulated_devices_are_used(capsys):
    start = "JAX_NUM_CPU_DEVICES=8 python -m bertjax.benchmark"
    command = replaced(start, {"JAX_NUM_CPU_DEVICES=8 ": ""})  # conftest.py sets it
    run_program(f"{command} {SMALL.format(vocab=64).replace('--eval_rows 8', '')}")
    assert "8 x cpu" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.exhaustive
@executes("python -m bertjax.prepare --input 'text/*' --tokenizer bert-base-uncased --max_length")
@pytest.mark.parametrize("bucket_server", ["gs"], indirect=True)  # as in the command
def test_preparation_into_a_bucket(bucket, corpus, prepared):
    import fsspec

    changes = {
        "'text/*'": f"'{corpus}/*.txt'",
        "bert-base-uncased": f"{corpus}/tokenizer",
        "128 512": "16 32 --eval_fraction 0.1 --num_processes 1",
        "gs://BUCKET": bucket,
    }
    start = "python -m bertjax.prepare --input 'text/*' --tokenizer bert-base-uncased --max_length"
    run_program(replaced(start, changes))
    system = fsspec.filesystem("gs")
    for file in prepared.glob("*.array_record"):
        assert system.cat_file(f"{bucket[5:]}/data/{file.name}") == file.read_bytes()


@executes("python -m bertjax.prepare --input 'text/*' --tokenizer bert-base-uncased --output")
def test_preparation_on_beam(corpus, tmp_path):
    pytest.importorskip("apache_beam")
    changes = {
        "'text/*'": f"'{corpus}/*.txt'",
        "bert-base-uncased": f"{corpus}/tokenizer",
        "--output data": f"--output {tmp_path}/data --max_length 16 --eval_fraction 0.1",
    }
    start = "python -m bertjax.prepare --input 'text/*' --tokenizer bert-base-uncased --output"
    run_program(replaced(start, changes))
    assert (tmp_path / "data" / "metadata.json").is_file()


def executed():
    """The beginnings of commands that tests execute."""
    return [
        start
        for values in (globals(), vars(test_launch_clusters), vars(test_launch_runs))
        for name, test in values.items()
        if name.startswith("test_") and callable(test)
        for start in getattr(test, "executes", ())
    ]


@pytest.mark.parametrize("command", page_commands(), ids=lambda command: command.text[:60])
def test_every_command_is_executed_or_says_what_it_needs(command):
    tests = [start for start in executed() if command.text.startswith(start)]
    if command.needs:
        assert not tests, "a test executes this command: remove the comment"
        assert len(command.needs) > len("Needs ")
    else:
        assert len(tests) == 1, f"no test executes it, or several do: {tests}"


def test_no_test_executes_what_the_page_no_longer_has():
    texts = [command.text for command in page_commands()]
    for start in executed():
        assert len([text for text in texts if text.startswith(start)]) == 1, start


@pytest.mark.parametrize(
    "command", [c for c in page_commands() if c.needs], ids=lambda command: command.text[:60]
)
def test_what_is_not_executed_is_understood(command, monkeypatch):
    monkeypatch.chdir(ROOT)
    words = shlex.split(command.text)
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    if words[:2] == ["python", "-m"]:
        importlib.import_module(words[2]).parse(words[3:])
    elif words[:2] == ["pip", "install"]:
        named = re.findall(r"\[(.*?)\]", command.text)[0].split(",")
        assert set(named) <= set(extras["optional-dependencies"])
    elif words[0].startswith("launch/"):
        pytest.fail("launch scripts are executed with stand-ins")
    else:  # test_launch_image.py checks the build, and docker run has a command of ours
        assert words[0] == "docker"
        if words[1] == "run":
            image = next(i for i, word in enumerate(words) if word.startswith("registry."))
            importlib.import_module(f"bertjax.{words[image + 1]}").parse(words[image + 2 :])
