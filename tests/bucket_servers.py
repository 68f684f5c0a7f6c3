"""Servers on this machine that speak the protocols of Cloud Storage and S3."""

import contextlib
import socket
import subprocess
import sys
import time
import urllib.request
import uuid

import pytest

GCS = """
import sys
from gcp_storage_emulator.server import create_server
create_server("127.0.0.1", int(sys.argv[1]), in_memory=True).run()
"""
SERVERS = {
    "gs": [sys.executable, "-c", GCS],
    "s3": [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p"],
}


def _free_port():
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


@pytest.fixture(scope="session", params=["gs", "s3"])
def bucket_server(request):
    """(scheme, address) of an empty server of Cloud Storage or S3."""
    pytest.importorskip("gcp_storage_emulator" if request.param == "gs" else "moto")
    pytest.importorskip("gcsfs" if request.param == "gs" else "s3fs")
    port = _free_port()
    process = subprocess.Popen(
        [*SERVERS[request.param], str(port)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    address = f"http://127.0.0.1:{port}"
    try:
        _wait_for(
            f"{address}/" + ("storage/v1/b?project=p" if request.param == "gs" else "moto-api/"),
            process,
        )
        yield request.param, address
    finally:
        process.kill()
        process.wait()


@pytest.fixture
def bucket(bucket_server, monkeypatch):
    """The address of an empty bucket, such as gs://bucket-1a2b; all clients find its server."""
    import fsspec

    scheme, address = bucket_server
    if scheme == "gs":
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", address)
    else:
        monkeypatch.setenv("AWS_ENDPOINT_URL", address)
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            monkeypatch.setenv(name, "test")
        monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    system_class = fsspec.get_filesystem_class(scheme)
    system_class.clear_instance_cache()
    name = f"bucket-{uuid.uuid4().hex[:8]}"
    fsspec.filesystem(scheme).mkdir(name)
    yield f"{scheme}://{name}"
    system_class.clear_instance_cache()
