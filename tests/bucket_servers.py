"""Servers on this machine that speak the protocols of Cloud Storage and S3."""

import contextlib
import os
import socket
import subprocess
import sys
import time
import urllib.request
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cases import WEEKLY

# The emulator has neither zonal nor hierarchical buckets, for which gcsfs would ask with
# credentials; and there are none.
os.environ.setdefault("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")
os.environ.setdefault("NO_GCE_CHECK", "true")

# The emulator has neither the header with an object's generation nor conditional requests, both of
# which TensorStore needs: https://cloud.google.com/storage/docs/request-preconditions
GCS = """
import random
import sys
import time
from http import HTTPStatus

from gcp_storage_emulator.exceptions import NotFound
from gcp_storage_emulator.handlers import objects

def generation(request, storage, name):
    try:
        return storage.get_file_obj(request.params["bucket_name"], name)["generation"]
    except NotFound:
        return "0"

def asked(request, condition):
    return request.query.get(condition, [None])[0]

def get(request, response, storage, *args, original=objects.get, **kwargs):
    found = generation(request, storage, request.params["object_id"])
    if found != "0" and asked(request, "ifGenerationNotMatch") == found:
        response.status = HTTPStatus.NOT_MODIFIED
        return
    if found != "0":
        response["x-goog-generation"] = found
    original(request, response, storage, *args, **kwargs)

def insert(request, response, storage, *args, original=objects.insert, **kwargs):
    expected = asked(request, "ifGenerationMatch")
    if expected and expected != generation(request, storage, request.query["name"][0]):
        response.status = HTTPStatus.PRECONDITION_FAILED
        return
    original(request, response, storage, *args, **kwargs)

objects.get, objects.insert = get, insert
from gcp_storage_emulator import server
from gcp_storage_emulator.server import create_server

# The share of requests that fail is in a file: half of them with status 503, half by a cut
# connection. Behind it may be the seconds that each request takes.
chance, handle = random.Random(0), server.Router.handle

def unreliable(self, method):
    with open(sys.argv[2]) as file:
        faults, *seconds = map(float, file.read().split() or [0])
    time.sleep(sum(seconds))
    if chance.random() < faults:
        handler = self._request_handler
        if chance.random() < 0.5:
            handler.close_connection = True
            handler.connection.close()
            return
        handler.send_response(503)
        handler.send_header("Content-Length", "0")
        handler.end_headers()
        return
    handle(self, method)

server.Router.handle = unreliable
create_server("127.0.0.1", int(sys.argv[1]), in_memory=True).run()
"""
SERVERS = {
    "gs": [sys.executable, "-c", GCS],
    "s3": [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p"],
}


def free_port() -> int:
    """Returns a port of this machine on which nobody listens."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def _wait_for(address, process):
    for _ in range(600):
        with contextlib.suppress(OSError):
            urllib.request.urlopen(address, timeout=5)
            return
        if process.poll() is not None:
            break
        time.sleep(0.1)
    raise RuntimeError(f"the server {process.args} did not start")


def first_with(protocol: str) -> pytest.MarkDecorator:
    """Runs a test with one protocol in CI, and with the other before a release.

    Whole runs differ between protocols in nothing that the tests of copies, locks and mirrors do
    not cover with both, and they take seconds each.
    """
    cases = [
        name if name == protocol else pytest.param(name, marks=WEEKLY) for name in ("gs", "s3")
    ]
    return pytest.mark.parametrize("bucket_server", cases, indirect=True)


@contextlib.contextmanager
def serving(protocol: str, faults: Path) -> Iterator[str]:
    """Yields the address of a server; `faults` is a file for the share of requests that fail."""
    faults.write_text("0")
    command = [*SERVERS[protocol], str(port := free_port())]
    if protocol == "gs":
        command.append(str(faults))
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    address = f"http://127.0.0.1:{port}"
    try:
        _wait_for(
            f"{address}/" + ("storage/v1/b?project=p" if protocol == "gs" else "moto-api/"), process
        )
        yield address
    finally:
        process.kill()
        process.wait()


def client_environment(protocol: str, address: str) -> dict[str, str]:
    """Returns the environment variables by which all clients find the server at an address."""
    if protocol == "gs":
        names = ("STORAGE_EMULATOR_HOST", "TENSORSTORE_GCS_HTTP_URL")
        return {**dict.fromkeys(names, address), "GOOGLE_CLOUD_PROJECT": "project"}
    keys = dict.fromkeys(("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"), "test")
    return {"AWS_ENDPOINT_URL": address, **keys, "AWS_DEFAULT_REGION": "us-east-1"}


@pytest.fixture(scope="session", params=["gs", pytest.param("s3", marks=pytest.mark.slow)])
def bucket_server(request, tmp_path_factory):
    """(scheme, address, file with the share of failing requests) of a server of a protocol."""
    pytest.importorskip("gcp_storage_emulator" if request.param == "gs" else "moto")
    pytest.importorskip("gcsfs" if request.param == "gs" else "s3fs")
    faults = tmp_path_factory.mktemp("faults") / "share"
    with serving(request.param, faults) as address:
        yield request.param, address, faults


@pytest.fixture
def bucket(bucket_server, monkeypatch):
    """The address of an empty bucket, such as gs://bucket-1a2b; all clients find its server."""
    import fsspec

    scheme, address, _ = bucket_server
    for name, value in client_environment(scheme, address).items():
        monkeypatch.setenv(name, value)
    system_class = fsspec.get_filesystem_class(scheme)
    system_class.clear_instance_cache()
    name = f"bucket-{uuid.uuid4().hex[:8]}"
    fsspec.filesystem(scheme).mkdir(name)
    yield f"{scheme}://{name}"
    system_class.clear_instance_cache()


@pytest.fixture
def unreliable(bucket_server):
    """Makes a share of the requests to the server fail, where the server can do so (gs://)."""
    scheme, _, faults = bucket_server
    if scheme != "gs":
        pytest.skip("the server of S3 has no faults")
    yield lambda share: faults.write_text(str(share))
    faults.write_text("0")


def upload(folder, address):
    """Copies the files of a folder to an address in a bucket, and returns the address."""
    import fsspec

    system = fsspec.filesystem(address.partition(":")[0])
    for file in folder.rglob("*"):
        if file.is_file():
            target = f"{address}/{file.relative_to(folder).as_posix()}"
            system.pipe_file(target.partition("://")[2], file.read_bytes())
    return address
