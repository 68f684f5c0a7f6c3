"""Preparation by Beam's direct runner is that of one process, however many workers there are."""

import dataclasses
import hashlib
import importlib.util
import sys
from pathlib import Path

import pytest

from bertjax import prepare
from bertjax.data.preparation.workers import run_parts

pytestmark = pytest.mark.filterwarnings("default")  # Beam's own
needs_beam = pytest.mark.skipif(
    importlib.util.find_spec("apache_beam") is None, reason="apache_beam is not installed"
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
def test_the_direct_runner_gives_the_same_files(small_chunks, workers, tmp_path):
    prepare.run(dataclasses.replace(small_chunks, num_processes=1))
    options = f"--direct_num_workers={workers} --direct_running_mode=multi_processing"
    on_beam = dataclasses.replace(
        small_chunks,
        output=str(tmp_path / "beam"),
        runner="direct",
        parts=4,
        runner_options=options if workers > 1 else "",
    )
    metadata = prepare.run(on_beam)
    assert metadata is not None and metadata.chunks > 4
    assert contents(on_beam.output) == contents(small_chunks.output)
    # And it is complete.
    assert prepare.run(on_beam) == metadata


@needs_beam
def test_an_unknown_runner_and_a_failing_part_are_said(small_chunks):
    with pytest.raises(ValueError, match="--runner NoRunner: Beam has no such runner"):
        prepare.run(dataclasses.replace(small_chunks, runner="NoRunner"))

    with pytest.raises(ValueError, match="Beam rejects them"):
        options = "--direct_num_workers=many"
        prepare.run(dataclasses.replace(small_chunks, runner="direct", runner_options=options))

    def fail(part: int) -> None:
        raise RuntimeError(f"part {part} is broken")

    with pytest.raises(OSError, match="A part failed on DirectRunner"):
        run_parts(fail, 1, runner="direct", options="")


def test_without_beam_the_extra_is_named(small_chunks, monkeypatch):
    monkeypatch.setitem(sys.modules, "apache_beam", None)
    with pytest.raises(ImportError, match=r"pip install 'bertjax\[beam\]'"):
        prepare.run(dataclasses.replace(small_chunks, runner="direct"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"runner": "direct", "shard": "0/2"}, "Beam distributes the work itself"),
        ({"runner": "direct", "num_processes": 2}, "Beam distributes the work itself"),
        ({"parts": 3}, "parts=3 has no effect without --runner"),
        ({"runner": "direct", "parts": 0}, "parts=0: it must be at least 1"),
    ],
)
def test_flags_without_effect_are_refused(small_chunks, change, message):
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(small_chunks, **change)
