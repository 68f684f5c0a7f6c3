"""Preparation by Beam's direct runner is that of one process, however many workers there are."""

import dataclasses
import hashlib
import importlib.util
import sys
from pathlib import Path

import pytest

from bertjax import prepare
from bertjax.config import PrepareConfig
from bertjax.data import beam

pytestmark = pytest.mark.filterwarnings("default")  # Beam's own
needs_beam = pytest.mark.skipif(
    importlib.util.find_spec("apache_beam") is None, reason="apache_beam is not installed"
)


@pytest.fixture
def config(tmp_path, sentences, tokenizer):
    tokenizer.save(tmp_path / "tokenizer")
    documents = ["\n".join(sentences[i : i + 10]) for i in range(0, len(sentences), 10)]
    (tmp_path / "text.txt").write_text("\n\n".join(documents))
    return PrepareConfig(
        input=(str(tmp_path / "text.txt"),),
        tokenizer=str(tmp_path / "tokenizer"),
        output=str(tmp_path / "local"),
        max_length=(16,),
        chunk_mb=0.002,
        eval_fraction=0.1,
    )


def contents(folder: str) -> dict[str, str]:
    files = sorted(Path(folder).rglob("*.*"))
    return {
        str(f.relative_to(folder)): hashlib.sha256(f.read_bytes()).hexdigest()
        for f in files
        if "-of-" not in f.name
    }


@needs_beam
@pytest.mark.parametrize("workers", [1, 4])
def test_the_direct_runner_gives_the_same_files(config, workers, tmp_path):
    prepare.run(dataclasses.replace(config, num_processes=1))
    options = f"--direct_num_workers={workers} --direct_running_mode=multi_processing"
    on_beam = dataclasses.replace(
        config,
        output=str(tmp_path / "beam"),
        runner="direct",
        parts=4,
        runner_options=options if workers > 1 else "",
    )
    metadata = prepare.run(on_beam)
    assert metadata is not None and metadata.chunks > 4
    assert contents(on_beam.output) == contents(config.output)
    # And it is complete.
    assert prepare.run(on_beam) == metadata


@needs_beam
def test_an_unknown_runner_and_a_failing_part_are_said(config):
    with pytest.raises(ValueError, match="--runner NoRunner: Beam gives no such runner"):
        prepare.run(dataclasses.replace(config, runner="NoRunner"))

    with pytest.raises(ValueError, match="Beam does not take them"):
        options = "--direct_num_workers=many"
        prepare.run(dataclasses.replace(config, runner="direct", runner_options=options))

    def fail(part: int) -> None:
        raise RuntimeError(f"part {part} is broken")

    with pytest.raises(OSError, match="A part failed on DirectRunner"):
        beam.run_parts(fail, 1, runner="direct", options="")


def test_without_beam_the_extra_is_named(config, monkeypatch):
    monkeypatch.setitem(sys.modules, "apache_beam", None)
    with pytest.raises(ImportError, match=r"pip install 'bertjax\[beam\]'"):
        prepare.run(dataclasses.replace(config, runner="direct"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"runner": "direct", "shard": "0/2"}, "Beam shares out the work itself"),
        ({"runner": "direct", "num_processes": 2}, "Beam shares out the work itself"),
        ({"parts": 3}, "have an effect with --runner alone"),
        ({"runner": "direct", "parts": 0}, "parts=0 must be at least 1"),
    ],
)
def test_flags_without_effect_are_refused(config, change, message):
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(config, **change)
