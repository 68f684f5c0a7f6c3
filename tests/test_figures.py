"""The figures of the documentation show what their scripts compute."""

import importlib
import sys
from pathlib import Path

import pytest

FIGURES = Path(__file__).parent.parent / "docs/figures"
NAMES = sorted(file.stem for file in FIGURES.glob("*.svg"))


@pytest.fixture
def scripts(monkeypatch):
    """Imports the scripts of docs/figures by name, as they import each other."""
    monkeypatch.syspath_prepend(FIGURES)
    yield importlib.import_module
    for name in ("figure", *NAMES):
        sys.modules.pop(name, None)


def test_every_script_has_its_figure():
    assert NAMES == sorted({file.stem for file in FIGURES.glob("*.py")} - {"figure"})


@pytest.mark.parametrize("name", NAMES)
def test_a_figure_shows_the_data_that_its_script_computes(name, scripts):
    assert scripts("figure").stored(name) == scripts(name).compute()


@pytest.mark.slow
@pytest.mark.exhaustive
def test_the_same_matplotlib_draws_the_same_bytes(scripts, tmp_path):
    matplotlib = pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    old = (FIGURES / "memory.svg").read_bytes()
    if f"Matplotlib v{matplotlib.__version__},".encode() not in old:
        pytest.skip("another version of matplotlib drew the figures")
    script, path = scripts("memory"), tmp_path / "memory.svg"
    scripts("figure").write(path, scripts("figure").stored("memory"), script.draw, script.HEIGHT)
    assert path.read_bytes() == old
