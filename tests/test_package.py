"""The sdist and the wheel: built without warnings from sources alone, complete, small, installable.

They are built as for a release: the wheel from the sdist, here without a network.
"""

import email
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest

import bertjax

ROOT = Path(__file__).parent.parent
# Templates, models and all else in the package that is no Python module: all must be installed.
DATA = {
    str(file.relative_to(ROOT))
    for file in (ROOT / "bertjax").rglob("*")
    if file.is_file() and file.suffix not in (".py", ".pyc")
}


def build(work: Path, umask: int = 0o022, mode: int = 0o644):
    """(sdist, wheel, output of the build), from a copy of the checkout that is no checkout."""
    pytest.importorskip("build", reason="pip install build")
    unneeded = (
        *(".git", ".venv*", "__pycache__", "*.egg-info", "build", "dist", "runs", ".*_cache"),
        "docs",
    )
    shutil.copytree(ROOT, work / "sources", ignore=shutil.ignore_patterns(*unneeded))
    for file in (work / "sources").rglob("*.*"):
        if file.is_file():
            file.chmod(mode)
    env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    command = [sys.executable, ROOT / ".ci" / "distributions.py", "--no-isolation"]
    done = subprocess.run(
        [*command, "--output", "dist", "--source", "sources"],
        cwd=work,
        env=env | {"SOURCE_DATE_EPOCH": "1700000000"},
        capture_output=True,
        text=True,
        umask=umask,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    (sdist,), (wheel,) = (work / "dist").glob("*.tar.gz"), (work / "dist").glob("*.whl")
    return sdist, wheel, done.stdout + done.stderr


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    return build(tmp_path_factory.mktemp("package"))


@pytest.mark.slow
def test_they_are_built_without_warnings_and_twine_finds_nothing(built):
    sdist, wheel, output = built
    assert not re.findall(r"(?i).*(?:warning|deprecat).*", output)
    pytest.importorskip("twine", reason="pip install twine")
    command = [sys.executable, "-m", "twine", "check", "--strict", sdist, wheel]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


@pytest.mark.slow
def test_the_wheel_has_every_module_and_data_file_and_nothing_else(built):
    _, wheel, _ = built
    info = f"bertjax-{bertjax.__version__}.dist-info"
    with zipfile.ZipFile(wheel) as file:
        names = {name for name in file.namelist() if not name.endswith("/")}
        assert file.read(f"{info}/top_level.txt").decode().split() == ["bertjax"]
    assert {name.split("/")[0] for name in names} == {"bertjax", info}
    modules = {str(path.relative_to(ROOT)) for path in (ROOT / "bertjax").rglob("*.py")}
    configs = {f"bertjax/{path.relative_to(ROOT)}" for path in (ROOT / "configs").rglob("*.py")}
    content = {name for name in names if name.startswith("bertjax/")}
    assert content == modules | configs | DATA
    assert {"bertjax/py.typed", "bertjax/shipped/tiny/model.safetensors"} <= content
    assert f"{info}/licenses/LICENSE" in names
    assert wheel.stat().st_size < 4e6


@pytest.mark.slow
def test_the_sdist_has_the_sources_of_the_wheel_and_the_documents_but_no_tests(built):
    sdist, _, _ = built
    with tarfile.open(sdist) as file:
        files = {member.name for member in file.getmembers() if member.isfile()}
    top = f"bertjax-{bertjax.__version__}/"
    assert all(name.startswith(top) for name in files)
    names = {name.removeprefix(top) for name in files}
    assert {name.split("/")[0] for name in names} == {
        *("bertjax", "configs", "bertjax.egg-info", "pyproject.toml", "setup.cfg", "MANIFEST.in"),
        *("PKG-INFO", "README.md", "LICENSE", "CHANGELOG.md", "CITATION.cff", "SECURITY.md"),
    }
    assert DATA <= names
    assert sdist.stat().st_size < 4e6


@pytest.mark.slow
def test_another_build_of_the_same_sources_has_the_same_bytes(built, tmp_path):
    again = build(tmp_path, umask=0o077, mode=0o600)  # in another folder, at another time
    for one, other in zip(built[:2], again[:2], strict=True):
        assert one.name == other.name and one.read_bytes() == other.read_bytes()


@pytest.mark.slow
def test_the_metadata_says_what_the_package_is(built):
    _, wheel, _ = built
    with zipfile.ZipFile(wheel) as file:
        text = file.read(f"bertjax-{bertjax.__version__}.dist-info/METADATA").decode()
    metadata = email.message_from_string(text)
    assert metadata["Version"] == bertjax.__version__
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata["Requires-Python"] == ">=3.11"
    labels = {line.split(",")[0] for line in metadata.get_all("Project-URL", [])}
    assert labels >= {"Documentation", "Source", "Issues", "Changelog"}
    classifiers = metadata.get_all("Classifier", [])
    for minor in (11, 12, 13):
        assert f"Programming Language :: Python :: 3.{minor}" in classifiers


@pytest.mark.slow
def test_links_of_the_page_on_pypi_lead_to_the_files_of_the_release(built):
    """PyPI shows README.md alone, as the description in the metadata."""
    _, wheel, _ = built
    with zipfile.ZipFile(wheel) as file:
        info = f"bertjax-{bertjax.__version__}.dist-info"
        metadata = email.message_from_bytes(file.read(f"{info}/METADATA"))
    source = dict(line.split(", ") for line in metadata.get_all("Project-URL", []))["Source"]
    page = metadata.get_payload(decode=True).decode()
    links, ours = (
        re.findall(r"\]\(([^#].*?)\)", text)
        for text in (page, (ROOT / "README.md").read_text(encoding="utf-8"))
    )
    assert len(links) == len(ours) > 20
    for link in links:
        place = re.fullmatch(rf"{source}/(blob|raw)/v{bertjax.__version__}/([^#]+)(#.+)?", link)
        assert place, link
        assert (ROOT / place[2]).is_file(), link
        assert (place[1] == "raw") == place[2].endswith(".png"), link


@pytest.mark.slow
def test_the_installed_wheel_works_in_an_empty_folder(built, tmp_path):
    """Dependencies are those of the Python that runs the tests, so that no network is needed."""
    _, wheel, _ = built
    site, empty = tmp_path / "site", tmp_path / "empty"
    empty.mkdir()
    with zipfile.ZipFile(wheel) as file:
        file.extractall(site)
    packages = sysconfig.get_paths()["purelib"]
    env = os.environ | {"PYTHONPATH": f"{site}:{packages}", "PYTHONDONTWRITEBYTECODE": "1"}

    def bertjax_command(*words):
        command = [sys.executable, "-m", "bertjax", *words]
        return subprocess.run(command, cwd=empty, env=env, capture_output=True, text=True)

    where = subprocess.run(
        [sys.executable, "-c", "import bertjax; print(bertjax.__file__)"],
        cwd=empty,
        env=env,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert Path(where.strip()).is_relative_to(site)
    assert bertjax_command("--version").stdout == f"bertjax {bertjax.__version__}\n"
    done = bertjax_command("visualize", "The file does not [MASK].")
    assert done.returncode == 0, done.stderr
    assert "</html>" in (empty / "attention.html").read_text()
    done = bertjax_command("benchmark", "--config", "quickstart", "--help")
    assert done.returncode == 0 and "--phases.0.num-steps" in done.stdout.replace("_", "-")


def test_the_version_and_the_date_of_a_release_are_the_same_everywhere():
    citation, changelog = (
        (ROOT / name).read_text(encoding="utf-8") for name in ("CITATION.cff", "CHANGELOG.md")
    )
    assert re.findall(r"^version: \"?([^\"\n]+)", citation, re.MULTILINE) == [bertjax.__version__]
    newest, date = re.findall(r"^## ([\d.]+) - ([\d-]+)$", changelog, re.MULTILINE)[0]
    assert newest == bertjax.__version__
    assert re.findall(r"^date-released: \"(.*)\"$", citation, re.MULTILINE) == [date]
