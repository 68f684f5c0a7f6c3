"""A server on this machine that speaks the protocol of the Hugging Face Hub, as far as it is used.

It holds models and datasets with their branches in memory, and can fail on purpose.
"""

import base64
import hashlib
import json
import re
import threading
import time
import uuid
from collections import Counter
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace
from urllib.parse import unquote, urlsplit

import pytest

TOKEN = "hf_test"
# Files of these types are uploaded to the storage of large files, all others in the commit itself.
LARGE = (".safetensors", ".bin", ".parquet")


def sha256(content):
    return hashlib.sha256(content).hexdigest()


def blob_id(content):
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


class Repository:
    """A model or dataset: {branch or commit: {path: content}}."""

    def __init__(self, files=None, *, gated=False, card=None):
        self.revisions, self.heads = {}, {}
        self.gated, self.card = gated, card
        self.commit("main", files or {})

    def commit(self, branch, files):
        content = [(name, sha256(content)) for name, content in sorted(files.items())]
        commit = hashlib.sha1(repr((branch, content, len(self.revisions))).encode())
        self.heads[branch] = commit.hexdigest()
        self.revisions[commit.hexdigest()] = dict(files)

    def at(self, revision):
        commit = self.heads.get(revision, revision)
        return commit, self.revisions.get(commit)


class Hub:
    """The content of the server and what was asked of it.

    Attributes:
        repositories: {"models/OWNER/NAME" or "datasets/OWNER/NAME": repository}.
        stored: {sha256: content} of the large files that were uploaded.
        requests: how often each kind of request came.
        sent: the number of bytes of files that were sent.
        fail: {kind of request: number of next requests that fail with `status`}.
        status: the status of requests that fail.
        cut: {kind of request: number of next answers that are cut in the middle}.
        delay: the seconds that each request takes longer.
    """

    def __init__(self):
        self.repositories, self.stored = {}, {}
        self.requests, self.fail, self.cut = Counter(), Counter(), Counter()
        self.sent, self.delay, self.status = 0, 0.0, 503
        self.address = ""

    def dataset(self, name, files, **options):
        self.repositories[f"datasets/{name}"] = repository = Repository(files, **options)
        return repository


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: Hub

    def log_message(self, *_):
        pass

    def answer(self, content=b"", status=200, headers=(), *, cut=False):
        if not isinstance(content, bytes):
            content = json.dumps(content).encode()
        self.send_response(status)
        for name, value in dict(headers).items():
            self.send_header(name, value)
        if "Content-Length" not in dict(headers):
            self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content[: len(content) // 2] if cut else content)
            self.hub.sent += len(content) // (2 if cut else 1)
        if cut:
            self.close_connection = True
            self.wfile.flush()
            self.connection.shutdown(2)

    def refuse(self, status, code, message):
        self.answer({"error": message}, status, {"X-Error-Code": code, "X-Error-Message": message})

    def repository(self, kind, name):
        """Returns the repository, or None after an answer that refuses the request."""
        found = self.hub.repositories.get(f"{kind}/{name}")
        if found is None:
            self.refuse(401, "RepoNotFound", "Repository not found")
        elif found.gated and self.headers.get("Authorization") != f"Bearer {TOKEN}":
            self.refuse(403, "GatedRepo", "Access to this repository is restricted")
            found = None
        return found

    def handle_any(self):
        path = unquote(urlsplit(self.path).path).lstrip("/")
        size = int(self.headers.get("Content-Length") or 0)
        body = self.rfile.read(size)
        for kind, pattern, method in ROUTES:
            match = re.fullmatch(pattern, path)
            if match:
                self.hub.requests[kind] += 1
                time.sleep(self.hub.delay)
                if self.hub.cut[kind] > 0 and kind != "resolve":
                    self.hub.cut[kind] -= 1
                    self.close_connection = True
                    return self.connection.shutdown(2)
                if self.hub.fail[kind] > 0:
                    self.hub.fail[kind] -= 1
                    return self.answer({"error": "unavailable"}, self.hub.status)
                return method(self, body, **match.groupdict())
        return self.answer({"error": f"no such page: {path}"}, 404)

    do_GET = do_HEAD = do_POST = do_PUT = handle_any

    def whoami(self, _):
        if self.headers.get("Authorization") != f"Bearer {TOKEN}":
            return self.refuse(401, "", "Invalid credentials")
        return self.answer({"name": "me", "type": "user", "auth": {"accessToken": {}}})

    def validate_yaml(self, _):
        return self.answer({"errors": [], "warnings": []})

    def auth_check(self, _, kind, name):
        if self.repository(kind, name) is None:
            return None
        if name.partition("/")[0] != "me":
            return self.refuse(403, "", "Forbidden: write access is needed")
        return self.answer({})

    def info(self, _, kind, name, revision="main"):
        repository = self.repository(kind, name)
        if repository is None:
            return None
        commit, files = repository.at(revision or "main")
        if files is None:
            return self.refuse(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        siblings = [
            {"rfilename": path, "size": len(content), "blobId": blob_id(content)}
            for path, content in sorted(files.items())
        ]
        return self.answer(
            {"id": name, "sha": commit, "private": False, "gated": repository.gated and "manual",
             "siblings": siblings, "cardData": repository.card, "tags": []}
        )  # fmt: skip

    def tree(self, _, kind, name, revision):
        repository = self.repository(kind, name)
        if repository is None:
            return None
        files = repository.at(revision)[1] or {}
        return self.answer(
            [{"type": "file", "path": path, "size": len(content), "oid": blob_id(content)}
             for path, content in sorted(files.items())]
        )  # fmt: skip

    def resolve(self, _, kind, name, revision, path):
        repository = self.repository(kind or "models", name)
        if repository is None:
            return None
        commit, files = repository.at(revision)
        if files is None:
            return self.refuse(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        if path not in files:
            headers = {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": commit}
            return self.answer({"error": "Entry not found"}, 404, headers)
        content = files[path]
        headers = {
            "ETag": f'"{sha256(content)}"',
            "X-Repo-Commit": commit,
            "Accept-Ranges": "bytes",
        }
        start = re.match(r"bytes=(\d+)-", self.headers.get("Range") or "")
        status = 200
        if start and int(start[1]) < len(content):
            headers["Content-Range"] = f"bytes {start[1]}-{len(content) - 1}/{len(content)}"
            content, status = content[int(start[1]) :], 206
        headers["Content-Length"] = str(len(content))
        cut = self.command == "GET" and self.hub.cut["resolve"] > 0
        self.hub.cut["resolve"] -= cut
        return self.answer(content, status, headers, cut=cut)

    def create(self, body):
        if self.headers.get("Authorization") != f"Bearer {TOKEN}":
            return self.refuse(401, "", "Invalid username or password.")
        asked = json.loads(body)
        owner = asked.get("organization") or "me"
        if owner != "me":
            return self.refuse(403, "", f"You don't have the rights to create in {owner}")
        key = f"{asked.get('type') or 'model'}s/{owner}/{asked['name']}"
        exists = key in self.hub.repositories
        self.hub.repositories.setdefault(key, Repository())
        return self.answer(
            {"url": f"{self.hub.address}/{owner}/{asked['name']}"}, 409 if exists else 200
        )

    def branch(self, body, kind, name, revision):
        repository = self.repository(kind, name)
        if repository is None:
            return None
        if revision in repository.heads:
            return self.refuse(409, "", "Reference already exists")
        start = json.loads(body or b"{}").get("startingPoint") or "main"
        repository.commit(revision, repository.at(start)[1])
        return self.answer({})

    def preupload(self, body, kind, name, revision):
        repository = self.repository(kind, name)
        if repository is None:
            return None
        files = repository.at(revision)[1]
        if files is None:
            return self.refuse(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        answers = []
        for file in json.loads(body)["files"]:
            path, large = file["path"], file["path"].endswith(LARGE)
            oid = None
            if path in files:
                oid = sha256(files[path]) if large else blob_id(files[path])
            mode = "lfs" if large else "regular"
            answers.append({"path": path, "uploadMode": mode, "shouldIgnore": False, "oid": oid})
        return self.answer({"files": answers})

    def batch(self, body, name):
        objects = []
        for item in json.loads(body)["objects"]:
            actions = {}
            if item["oid"] not in self.hub.stored:
                actions = {"upload": {"href": f"{self.hub.address}/storage/{item['oid']}"}}
            objects.append(item | ({"actions": actions} if actions else {}))
        return self.answer({"transfer": "basic", "objects": objects})

    def store(self, body, oid):
        if sha256(body) != oid:
            return self.answer({"error": "incomplete"}, 400)
        self.hub.stored[oid] = body
        return self.answer()

    def commit(self, body, kind, name, revision):
        repository = self.repository(kind, name)
        if repository is None:
            return None
        files = dict(repository.at(revision)[1])
        for line in body.splitlines():
            entry = json.loads(line)
            value = entry["value"]
            if entry["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif entry["key"] == "lfsFile":
                files[value["path"]] = self.hub.stored[value["oid"]]
            elif entry["key"] == "deletedFile":
                del files[value["path"]]
        repository.commit(revision, files)
        commit = repository.heads[revision]
        url = f"{self.hub.address}/{name}/commit/{commit}"
        return self.answer({"success": True, "commitOid": commit, "commitUrl": url})


_API = r"api/(?P<kind>models|datasets)/(?P<name>[^/]+/[^/]+)"
ROUTES = [
    ("whoami", r"api/whoami-v2", Handler.whoami),
    ("validate", r"api/validate-yaml", Handler.validate_yaml),
    ("create", r"api/repos/create", Handler.create),
    ("auth", _API + r"/auth-check/write", Handler.auth_check),
    ("tree", _API + r"/tree/(?P<revision>.+?)/?", Handler.tree),
    ("branch", _API + r"/branch/(?P<revision>.+)", Handler.branch),
    ("preupload", _API + r"/preupload/(?P<revision>.+)", Handler.preupload),
    ("commit", _API + r"/commit/(?P<revision>.+)", Handler.commit),
    ("info", _API + r"(/revision/(?P<revision>.+))?", Handler.info),
    ("batch", r"(?P<name>[^/]+/[^/]+)\.git/info/lfs/objects/batch", Handler.batch),
    ("store", r"storage/(?P<oid>\w+)", Handler.store),
    (
        "resolve",
        r"((?P<kind>datasets)/)?(?P<name>[^/]+/[^/]+)/resolve/"
        r"(?P<revision>refs/\w+/\w+|[^/]+)/(?P<path>.+)",
        Handler.resolve,
    ),
]


@contextmanager
def running():
    """Yields a `Hub` whose server runs on a free port of this machine."""
    hub = Hub()
    handler = type("HubHandler", (Handler,), {"hub": hub})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    hub.address = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """A Hub on this machine, for this process and for those that it starts."""
    from huggingface_hub import constants
    from huggingface_hub.utils import _http

    with running() as hub:
        values = {
            "HF_ENDPOINT": hub.address,
            "HF_HOME": str(tmp_path / "hf"),
            "HF_HUB_CACHE": str(tmp_path / "hf" / "hub"),
            "HF_TOKEN_PATH": str(tmp_path / "hf" / "token"),
            "HF_HUB_DISABLE_XET": "1",
            "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        }
        for name, value in values.items():
            monkeypatch.setenv(name, value)
        monkeypatch.delenv("HF_TOKEN", raising=False)
        monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
        template = hub.address + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr(constants, "ENDPOINT", hub.address)
        # The library waits for seconds before it repeats a request.
        monkeypatch.setattr(_http, "time", SimpleNamespace(sleep=lambda _: None, time=time.time))
        monkeypatch.setattr(constants, "HF_HUB_CACHE", values["HF_HUB_CACHE"])
        monkeypatch.setattr(constants, "HF_TOKEN_PATH", values["HF_TOKEN_PATH"])
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        yield hub


def unique(name="corpus"):
    """Returns a name of a repository that no other test uses."""
    return f"me/{name}-{uuid.uuid4().hex[:8]}"
