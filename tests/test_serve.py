"""`bertjax serve` over real connections: clients, signals, and clients that are slow or hostile."""

import contextlib
import http.client
import json
import os
import re
import select
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time

import numpy as np
import psutil
import pytest

import bertjax
from bertjax import serve
from bertjax.config.serve_config import ServeConfig
from bertjax.inference.serving.models import load_served
from tests.cases import others_weekly
from tests.served_models import few_shapes, write_models, write_tagger
from tests.test_readme import ROOT

for package in ("starlette", "uvicorn", "orjson", "pydantic", "prometheus_client"):
    pytest.importorskip(package)

from bertjax.inference.serving import server as module  # noqa: E402
from bertjax.inference.serving.application import Service  # noqa: E402
from bertjax.inference.serving.batching import work  # noqa: E402
from bertjax.inference.serving.endpoints import Models  # noqa: E402

TOLERANCE = 1e-5


@pytest.fixture(scope="module", autouse=True)
def _few_shapes():
    with few_shapes():
        yield


@pytest.fixture(scope="module")
def directories(tmp_path_factory, one_layer):
    return write_models(tmp_path_factory.mktemp("served"), one_layer)


@pytest.fixture(scope="module")
def loaded(directories):
    return {name: load_served(name, str(directories[name]), None) for name in ("dense", "class")}


@contextlib.contextmanager
def running(models, **settings):
    """A server in a thread of this process; yields (its service, its port)."""
    config = ServeConfig(models=("m",), port=0, **settings)
    service = Service(config)
    service.models = Models(tuple(models))
    worker = threading.Thread(target=work, args=(service.queue, service.metrics.batch))
    worker.start()
    with module.listening_socket(config) as listener:
        server = module.Server(service)
        thread = threading.Thread(target=server.run, args=([listener],))
        thread.start()
        try:
            yield service, listener.getsockname()[1]
        finally:
            server.end()
            thread.join(30)
            service.queue.close()
            worker.join(30)
    assert not thread.is_alive() and not worker.is_alive()


def post(port, path, fields, timeout=30):
    """Returns (status, answer) of a request on a connection of its own."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout)
    headers = {"content-type": "application/json"}
    connection.request("POST", path, json.dumps(fields), headers)
    response = connection.getresponse()
    content = json.loads(response.read())
    connection.close()
    return response.status, content


@pytest.mark.slow
def test_clients_of_openai_get_what_they_expect(loaded, sentences):
    openai = pytest.importorskip("openai")
    expected = None
    with running(loaded.values()) as (service, port):
        service.keys = ("secret",)
        client = openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="secret")
        for encoding in (openai.omit, "float", "base64"):
            answer = client.embeddings.create(
                model="dense", input=sentences[:3], encoding_format=encoding
            )
            vectors = np.array([entry.embedding for entry in answer.data])
            if encoding == "base64":
                continue  # the client leaves it as it is if it was asked for
            expected = vectors if expected is None else expected
            np.testing.assert_allclose(vectors, expected, atol=1e-6)
            assert answer.usage.total_tokens == answer.usage.prompt_tokens > 0
        assert [model.id for model in client.models.list()] == ["dense", "class"]
        short = client.embeddings.create(model="dense", input="a", dimensions=4)
        assert len(short.data[0].embedding) == 4
        with pytest.raises(openai.NotFoundError, match="Known: dense, class"):
            client.embeddings.create(model="x", input="a")
        with pytest.raises(openai.UnprocessableEntityError, match="Input should be a valid string"):
            client.embeddings.create(model="dense", input=[1, 2])
        with pytest.raises(openai.AuthenticationError):
            openai.OpenAI(base_url=client.base_url, api_key="x").models.list()


@pytest.mark.slow
def test_the_inference_client_of_hugging_face_gets_what_it_expects(loaded, directories, sentences):
    from huggingface_hub import InferenceClient

    bert = bertjax.load_pretrained(directories["dense"])
    classifier = bertjax.load_pretrained(directories["class"])
    with running(loaded.values()) as (_, port):
        url = f"http://127.0.0.1:{port}"
        for address in (url, f"{url}/embed", f"{url}/models/dense/"):
            client = InferenceClient(model=address)
            found = client.feature_extraction(sentences[:3])
            expected = bert.embed(sentences[:3], normalize=True)
            np.testing.assert_allclose(found, expected, atol=TOLERANCE)
        found = client.feature_extraction("a", prompt_name="query", normalize=False, truncate=True)
        expected = bert.embed(["a"], prompt="query", normalize=False)
        np.testing.assert_allclose(found, expected, atol=TOLERANCE)
        cosines = client.sentence_similarity(sentences[0], other_sentences=sentences[:3])
        vectors = bert.embed(sentences[:3], normalize=True)
        np.testing.assert_allclose(cosines, vectors @ vectors[0], atol=TOLERANCE)
        client = InferenceClient(model=f"{url}/models/class/")
        (prediction,) = classifier.predict(sentences[:1])
        elements = client.text_classification(sentences[0])
        assert {x.label: x.score for x in elements} == pytest.approx(
            prediction["probabilities"], abs=TOLERANCE
        )
        assert len(client.text_classification(sentences[0], top_k=1)) == 1


@pytest.mark.slow
def test_the_inference_client_gets_entities(one_layer, sentences, tmp_path):
    from huggingface_hub import InferenceClient

    directory = write_tagger(tmp_path / "tag", one_layer)
    text = " ".join(sentences[:9])
    (prediction,) = bertjax.load_pretrained(directory).predict([text])
    with running([load_served("tag", str(directory))]) as (_, port):
        elements = InferenceClient(model=f"http://127.0.0.1:{port}").token_classification(text)
    assert elements
    for element, entity in zip(elements, prediction["entities"], strict=True):
        assert element.entity_group == entity["type"]
        assert text[element.start : element.end] == element.word == entity["text"]
        assert element.score == pytest.approx(entity["probability"], abs=TOLERANCE)


PAGE = (ROOT / "docs" / "serving.md").read_text(encoding="utf-8")


def blocks(language):
    """The code of the section about the server."""
    section = PAGE.partition("## A server")[2].partition("\n## ")[0]
    return re.findall(rf"^```{language}\n(.*?)^```", section, re.MULTILINE | re.DOTALL)


def test_the_clients_on_the_page_work(loaded, capsys):
    pytest.importorskip("openai")
    with running([loaded["dense"]]) as (_, port):
        (python,) = blocks("python")
        (javascript,) = blocks("javascript")
        exec(compile(python.replace("8080", str(port)), "serving.md", "exec"), {})
        assert f"(1, {loaded['dense'].size})" in capsys.readouterr().out
        node = shutil.which("node")
        if node is not None:
            code = javascript.replace("8080", str(port))
            done = subprocess.run(
                [node, "--input-type=module", "-e", code], capture_output=True, text=True
            )
            assert not done.returncode and -1.001 < float(done.stdout) < 1.001, done.stderr


# What the scripts of a page need of a browser, in node; the answers are printed.
BROWSER = """
const nodes = {};
const node = (id) => ({ id, value: "", textContent: "", hidden: false, dataset: {}, children: [],
  setAttribute(name, value) { this[name] = value; }, addEventListener() {},
  append(...added) { this.children.push(...added); },
  replaceChildren(...added) {
    this.children = added;
    if (added.length && "value" in added[0]) this.value = added[0].value;
  } });
globalThis.document = { getElementById: (id) => (nodes[id] ||= node(id)), createElement: node,
  documentElement: node(), title: "" };
globalThis.matchMedia = () => ({ matches: false });
const usual = fetch;
globalThis.fetch = (path, options) => usual(`${BASE}/${path}`, options);
document.getElementById("data").textContent = DATA;
"""
ASK = """
startServe();
$("texts").value = "a text\\nanother text\\n\\n";
$("query").value = "a";
const seen = {};
const models = data.models.length ? data.models : [];
for (const model of models) {
  $("model").value = model.name;
  $("model").onchange();
  for (const endpoint of model.endpoints) {
    $("endpoint").value = endpoint;
    await ask({ preventDefault() {} });
    const textOf = (part) => part.children.join("");
    const bars = $("bars").children.map((bar) => bar.children.map(textOf));
    seen[`${model.name}/${endpoint}`] = [$("said").textContent, bars, $("json").textContent.length];
  }
}
globalThis.fetch = async () => new Response("<html>", { status: 502 });
await ask({ preventDefault() {} });
seen.proxy = [$("said").textContent, [], 99];
globalThis.fetch = async () => { throw new Error("refused"); };
await ask({ preventDefault() {} });
seen.gone = [$("said").textContent + $("json").textContent, [], 99];
globalThis.fetch = async () => Response.json({ error: "The key is wrong" }, { status: 401 });
await readModels();
seen.key = [$("said").textContent, [], 99];
console.log(JSON.stringify(seen));
"""


@pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")
def test_the_page_asks_every_endpoint_and_shows_the_answer(loaded):
    with running(loaded.values()) as (_, port):
        connection = http.client.HTTPConnection("127.0.0.1", port)
        connection.request("GET", "/")
        page = connection.getresponse().read().decode()
        connection.close()
        assert "http" not in page.partition("<script>")[2]  # no other server
        data = page.partition('id="data">')[2].partition("</script>")[0]
        script = page.rpartition("<script>")[2].partition("startTheme(() =>")[0]
        settings = f"const BASE = 'http://127.0.0.1:{port}', DATA = {json.dumps(data)};"
        code = settings + BROWSER + script.replace('"use strict";', "") + ASK
        done = subprocess.run(
            ["node", "--input-type=module", "-e", code], capture_output=True, text=True, timeout=60
        )
        assert not done.returncode, done.stderr[-2000:]
        seen = json.loads(done.stdout)
        assert seen.pop("proxy")[0].startswith("Status 502")
        assert "no answer" in (gone := seen.pop("gone")[0]) and "refused" in gone
        assert seen.pop("key")[0] == "The key is wrong"
        asked = {f"{x.name}/{endpoint}" for x in loaded.values() for endpoint in x.endpoints}
        assert seen.keys() == asked
        for name, (said, bars, length) in seen.items():
            assert said.startswith("Status 200"), (name, said)
            assert length > 10
            if name.endswith(("embed", "similarity")):
                assert [bar[0] for bar in bars] == ["a text", "another text"]
            if name == "dense/embed":
                assert float(bars[0][1]) == pytest.approx(1, abs=1e-3)
            if name.endswith("predict"):
                assert len(bars) == 6


def test_the_pod_on_the_page_is_valid():
    validate = pytest.importorskip("kubernetes_validate")
    yaml = pytest.importorskip("yaml")
    (text,) = blocks("yaml")
    pod = yaml.safe_load(text)
    validate.validate(pod, "1.31", strict=True)
    words = pod["spec"]["containers"][0]["args"]
    assert serve.parse(words).api_key_file == "/keys/keys"


def raw(port, content=b""):
    connection = socket.create_connection(("127.0.0.1", port), timeout=30)
    connection.sendall(content)
    return connection


def head(length="content-length: 100", path="/embed"):
    lines = [f"POST {path} HTTP/1.1", "host: x", "content-type: application/json", length]
    return "\r\n".join([*lines, "", ""]).encode()


def answer_on(connection):
    """Everything that the server sends until it closes the connection."""
    parts = []
    with contextlib.suppress(ConnectionResetError):
        while part := connection.recv(65536):
            parts.append(part)
    connection.close()
    return b"".join(parts)


def trickle(connection, stop):
    """Sends a byte now and then, as a client that wants to keep a connection for ever."""
    with contextlib.suppress(OSError):
        while not stop.wait(0.1):
            connection.sendall(b"a")


def test_slow_and_hostile_clients_are_refused_while_others_are_served(loaded, sentences):
    expected = None
    with running(loaded.values(), read_timeout=1.0, max_body=100_000) as (service, port):
        status, expected = post(port, "/embed", {"inputs": sentences[:2]})
        assert status == 200
        silent = [raw(port) for _ in range(20)]
        no_end_of_headers = raw(port, b"POST /embed HTTP/1.1\r\nhost: x\r\na: ")
        no_body = raw(port, head())
        slow_body = raw(port, head() + b'{"inputs": "')
        never = threading.Event()
        slow = [no_end_of_headers, slow_body]
        threads = [threading.Thread(target=trickle, args=(x, never)) for x in slow]
        for thread in threads:
            thread.start()
        huge = raw(port, head("content-length: 1000000000") + b"{" * 1000)
        endless = raw(port, head("transfer-encoding: chunked"))
        with contextlib.suppress(OSError):
            for _ in range(200):
                endless.sendall(b"400\r\n" + b"a" * 1024 + b"\r\n")
        garbage = raw(port, b"\x16\x03\x01\x00\xff" * 50 + b"\r\n\r\n")
        large_headers = raw(port, b"GET / HTTP/1.1\r\na: " + b"b" * 200_000)
        start = time.monotonic()
        for _ in range(5):
            assert post(port, "/embed", {"inputs": sentences[:2]})[1] == expected
        assert time.monotonic() - start < 5
        for connection in (no_body, slow_body):
            answer = answer_on(connection)
            assert b" 408 " in answer.split(b"\r\n")[0] and b"did not arrive within 1 s" in answer
        for connection in (huge, endless):
            answer = answer_on(connection)
            assert b" 413 " in answer and b"more than 100000 bytes" in answer
        assert b" 400 " in answer_on(garbage) and b" 400 " in answer_on(large_headers)
        for connection in (*silent, no_end_of_headers):
            assert answer_on(connection) == b""
        never.set()
        for thread in threads:
            thread.join()
        assert post(port, "/embed", {"inputs": sentences[:2]})[1] == expected


def test_a_body_in_chunks_of_a_byte_leaves_time_for_others(loaded):
    with running(loaded.values()) as (_, port):
        slow = raw(port)
        body = b"1\r\n \r\n" * 120_000 + b"0\r\n\r\n"
        thread = threading.Thread(
            target=slow.sendall, args=(head("transfer-encoding: chunked") + body,)
        )
        thread.start()
        served = 0
        while not select.select([slow], [], [], 0)[0]:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
            connection.request("GET", "/health")
            served += connection.getresponse().status == 200
            connection.close()
        assert served > 9
        assert b" 400 " in slow.recv(100)
        thread.join()
        slow.close()


@pytest.mark.slow
def test_a_client_that_does_not_take_its_answer_is_cut_off(loaded, sentences):
    with running(loaded.values(), read_timeout=1.0) as (service, port):
        fields = json.dumps({"inputs": sentences[:200] * 5}).encode()
        connection = socket.socket()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
        connection.connect(("127.0.0.1", port))
        one = head(f"content-length: {len(fields)}") + fields
        connection.sendall(one)
        time.sleep(0.5)
        with contextlib.suppress(OSError):
            connection.settimeout(1.0)
            for _ in range(20):
                connection.sendall(one)
        assert post(port, "/embed", {"inputs": "a"})[0] == 200
        assert _is_open(port, connection)
        _wait(lambda: not _is_open(port, connection), 60)
        # The rest is gone: less arrives than was asked for.
        connection.settimeout(10)
        answers = answer_on(connection)
        assert answers.count(b" 200 OK") < 20


def _is_open(port, connection):
    """Whether this process, as the server, has its end of a client's connection open."""
    client = connection.getsockname()
    for other in psutil.Process().net_connections("tcp"):
        if other.laddr.port == port and other.raddr == client:
            return True
    return False


@contextlib.contextmanager
def blocked(model):
    """An event until which a model computes nothing; it is set in the end."""
    block = threading.Event()
    encoder = model._encoders[None]
    usual = encoder.of_ids

    def blocks(rows):
        block.wait(30)
        return [np.zeros(model.size, np.float32)] * len(rows)

    encoder.of_ids = blocks
    try:
        yield block
    finally:
        block.set()
        encoder.of_ids = usual


def test_a_request_that_is_not_computed_in_time_for_the_end_is_refused(loaded):
    with blocked(loaded["dense"]) as block:
        with running(loaded.values(), stop_timeout=1) as (service, port):
            fields = json.dumps({"inputs": "a"}).encode()
            connection = raw(port, head(f"content-length: {len(fields)}") + fields)
            _wait(lambda: service.queue._taken)
            threading.Timer(1.3, block.set).start()
        answer = answer_on(connection)
    assert answer.startswith(b"HTTP/1.1 503") and b"The server stopped before" in answer


def test_texts_of_clients_that_have_gone_leave_the_queue(loaded):
    with running(loaded.values(), max_waiting=8, max_texts=7) as (service, port):
        with blocked(loaded["dense"]) as block:
            fields = json.dumps({"inputs": ["a"] * 4}).encode()
            content = head(f"content-length: {len(fields)}") + fields
            computed = raw(port, content)
            _wait(lambda: service.metrics.requests and not len(service.queue))
            time.sleep(0.3)
            gone = [raw(port, content) for _ in range(2)]
            _wait(lambda: len(service.queue) == 8)
            assert post(port, "/embed", {"inputs": "a"})[0] == 429
            for connection in gone:
                connection.close()
            _wait(lambda: not len(service.queue))
            block.set()
            assert post(port, "/embed", {"inputs": ["a"] * 7})[0] == 200
            assert computed.recv(100).startswith(b"HTTP/1.1 200")
            computed.close()


def _wait(condition, seconds=20):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


class Process:
    """A server in a process of its own, whose log lines are read as they come."""

    def __init__(self, *words, **env):
        command = [sys.executable, "-m", "bertjax", "serve", *map(str, words), "--port=0"]
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=os.environ | env
        )
        self.lines = []
        self.rest = b""
        self.port = self.until("listening")["port"]

    def until(self, event, seconds=120):
        """Reads log lines up to an event, and returns it."""
        end = time.monotonic() + seconds
        while True:
            while b"\n" in self.rest:
                line, _, self.rest = self.rest.partition(b"\n")
                self.lines.append(json.loads(line))
                if event in self.lines[-1]["event"]:
                    return self.lines[-1]
            assert time.monotonic() < end, (event, self.lines[-5:])
            if select.select([self.process.stdout], [], [], 1)[0]:
                part = os.read(self.process.stdout.fileno(), 65536)
                assert part, (event, self.lines[-5:], self.rest)
                self.rest += part

    def end(self):
        """Reads the output to its end, and returns the exit status."""
        with self.process.stdout as stdout:
            output = self.rest + stdout.read()
        self.lines += [json.loads(line) for line in output.splitlines()]
        return self.process.wait(60)


class Load(threading.Thread):
    """A client that asks again and again, until it is refused a connection.

    It `keeps` a connection as long as the server does, or makes one for each request.
    """

    def __init__(self, port, texts, keeps):
        super().__init__()
        self.port, self.texts, self.keeps = port, texts, keeps
        self.answers = []  # (text, status, answer)
        self.lost = []

    def run(self):
        connection = None
        for number in range(10**6):
            text = self.texts[number % len(self.texts)]
            try:
                if connection is None:
                    connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
                    connection.connect()
            except ConnectionError:
                return
            try:
                body = json.dumps({"inputs": text})
                connection.request("POST", "/embed", body, {"content-type": "application/json"})
                response = connection.getresponse()
                answer = json.loads(response.read())
                self.answers.append((text, response.status, answer))
                if response.will_close or not self.keeps:
                    connection.close()
                    connection = None
            except Exception as error:
                self.lost.append(repr(error))
                connection = None


@pytest.mark.slow
@pytest.mark.parametrize("backend", others_weekly(("jax", "onnx"), "jax"))
def test_reload_and_stop_under_load_lose_nothing(directories, sentences, tmp_path, backend):
    if backend == "onnx":
        pytest.importorskip("onnx")
        pytest.importorskip("onnxruntime")
    texts = [" ".join(sentences[i : i + 1 + i % 3]) for i in range(12)]
    place = tmp_path / "model"
    old, new = (bertjax.load_pretrained(directories[name]) for name in ("dense", "sparse"))
    old.save(place)
    keep = dict(truncate_dim=None, normalize=True)
    before = old.embed(texts, **keep)
    process = Process(f"mine={place}", "--auto_truncate", f"--backend={backend}")
    assert process.until("ready")["models"] == {"mine": "embedding"}
    loads = [Load(process.port, texts, keeps=number % 2 == 0) for number in range(12)]
    for load in loads:
        load.start()
    _wait(lambda: sum(len(load.answers) for load in loads) > 200)

    (place / "modules.json").write_text("[damaged")
    process.process.send_signal(signal.SIGHUP)
    assert "modules.json" in process.until("not reloaded")["event"]
    changed = bertjax.load_pretrained(directories["dense"])
    changed.params = _shifted(changed.params)
    changed.save(tmp_path / "other")
    (place / "modules.json").write_bytes((tmp_path / "other" / "modules.json").read_bytes())
    os.replace(tmp_path / "other" / "model.safetensors", place / "model.safetensors")
    (place / "checksums.json").unlink(missing_ok=True)
    process.process.send_signal(signal.SIGHUP)
    process.until("reloaded")
    count = sum(len(load.answers) for load in loads)
    _wait(lambda: sum(len(load.answers) for load in loads) > count + 200)

    process.process.send_signal(signal.SIGTERM)
    assert process.end() == 0, process.lines[-5:]
    for load in loads:
        load.join(60)
    after = changed.embed(texts, **keep)
    assert np.abs(before - after).max() > 0.01
    is_new = []
    for load in loads:
        assert load.lost == []
        for text, status, answer in load.answers:
            assert status == 200
            index = texts.index(text)
            matches = []
            for vectors in (before, after):
                matches.append(np.abs(vectors[index] - answer[0]).max() < TOLERANCE)
            assert any(matches)
            is_new.append(matches[1])
        assert is_new[-1]
    assert not all(is_new)
    events = [line["event"] for line in process.lines]
    assert events[-1] == "ended" and "stopping" in events
    requests = [line for line in process.lines if line["event"] == "request"]
    assert {line["status"] for line in requests} == {200}
    assert {"method", "path", "seconds", "client", "model", "texts", "tokens"} <= {*requests[0]}
    assert not any(text in json.dumps(process.lines) for text in texts)


def _shifted(params):
    import jax

    return jax.tree.map(lambda x: np.asarray(x) + 0.02 * np.sign(np.asarray(x)), params)


def test_a_server_that_is_stopped_while_it_loads_ends_at_once(directories):
    process = Process(directories["dense"])
    process.process.send_signal(signal.SIGTERM)
    assert process.end() == 0
    assert process.lines[-1]["event"] == "ended"


def test_idle_connections_are_kept_longer_than_proxies_keep_theirs():
    assert module.Server(Service(ServeConfig(models=("m",)))).config.timeout_keep_alive > 60


def test_what_cannot_be_served_ends_with_one_line(directories, tmp_path, capsys):
    def refused(*words):
        status = serve.main([*words, "--port=0"])
        captured = capsys.readouterr()
        return status, captured.err.strip().splitlines()[-1]

    missing = str(tmp_path / "none")
    assert refused(missing)[0] == 1
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as taken:
        port = taken.getsockname()[1]
        status = serve.main([str(directories["dense"]), f"--port={port}"])
        assert status == 1 and f"--port {port}" in capsys.readouterr().err
    (tmp_path / "keys").write_text("\n \n")
    status, line = refused(str(directories["dense"]), "--api_key_file", str(tmp_path / "keys"))
    assert status == 1 and "has no key" in line
    (tmp_path / "keys").write_bytes("\ufeffone key\r\n\r\nclé\r\n".encode())
    assert module.read_keys(str(tmp_path / "keys")) == ("one key", "clé")
    same = [str(directories["dense"]), f"dense={directories['class']}"]
    assert "have one name, dense" in refused(*same)[1]
    with pytest.raises(ValueError, match="No model is given"):
        ServeConfig(models=())
    with pytest.raises(ValueError, match="--max_texts 8 is not below"):
        ServeConfig(models=("m",), max_texts=8, max_waiting=8)


def test_models_have_the_names_of_their_folders_unless_they_are_given(tmp_path):
    (tmp_path / "a=b").mkdir()
    words = ("x=runs/a", "runs/b", str(tmp_path / "a=b"), "bertjax:tiny")
    assert module.named_models(words) == {
        "x": "runs/a",
        "b": "runs/b",
        "a=b": str(tmp_path / "a=b"),
        "bertjax:tiny": "bertjax:tiny",
    }
    with pytest.raises(ValueError, match="has no name"):
        module.named_models(("a/b=c",))
