"""Loads `bertjax serve` with many connections, and compares every answer with `embed`.

    python benchmarks/serving.py --model runs/embed/model --requests 10000 --output serving.jsonl

Requests of one text of 2 to 200 words each come from --connections connections, one after the other
on each. The other side is sentence-transformers behind the same starlette and uvicorn, which
computes one text at a time, in a thread of its own. `--onnx` adds a server with --backend onnx,
and `--alone` leaves out sentence-transformers. The sides take turns, in --rounds. A line of
--output has the seconds to the start, the requests that were lost or had a wrong answer (by more
than 1e-5), the largest difference, median and 99th percentile of the milliseconds to an answer,
answers per second, and the megabytes of the server's resident memory after each tenth of its
requests.
"""

import http.client
import json
import random
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import psutil
from reporting import parser_of, report

TEXTS = 400
WORDS = 2, 200
TOLERANCE = 1e-5
OTHER = """
import asyncio, sys
from concurrent.futures import ThreadPoolExecutor
import uvicorn
from sentence_transformers import SentenceTransformer
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Route

model = SentenceTransformer(sys.argv[1], device="cpu")
thread = ThreadPoolExecutor(1)

async def embed(request):
    texts = (await request.json())["inputs"]
    loop = asyncio.get_running_loop()
    encode = lambda: model.encode(texts, normalize_embeddings=True)
    vectors = await loop.run_in_executor(thread, encode)
    return JSONResponse(vectors.tolist())

async def health(request):
    return JSONResponse({})

routes = [Route("/embed", embed, methods=["POST"]), Route("/health", health)]
uvicorn.run(Starlette(routes=routes), port=int(sys.argv[2]), log_level="warning")
"""


def drawn_texts(count: int) -> list[str]:
    """Returns texts of words of this program's documentation, of lengths from WORDS."""
    rng = random.Random(0)
    words = (__doc__ or "").split()
    texts = []
    for _ in range(count):
        low, high = WORDS
        length = round(low * (high / low) ** rng.random())
        texts.append(" ".join(rng.choices(words, k=length)))
    return texts


class Connection(threading.Thread):
    """Asks for the embeddings of texts, one after the other on one connection."""

    def __init__(self, port: int, work: Iterator[int], texts: Sequence[str], expected: np.ndarray):
        super().__init__()
        self._port = port
        self._work = work
        self._texts = texts
        self._expected = expected
        self.seconds: list[float] = []
        self.lost: list[str] = []
        self.difference = 0.0

    def run(self) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=300)
        for index in self._work:
            start = time.perf_counter()
            body = json.dumps({"inputs": [self._texts[index]], "truncate": True})
            try:
                connection.request("POST", "/embed", body, {"Content-Type": "application/json"})
                response = connection.getresponse()
                content = response.read()
            except (OSError, http.client.HTTPException) as error:
                self.lost.append(repr(error))
                connection.close()
                continue
            self.seconds.append(time.perf_counter() - start)
            if response.status != 200:
                self.lost.append(content.decode())
                continue
            difference = np.abs(np.array(json.loads(content)[0]) - self._expected[index]).max()
            self.difference = max(self.difference, float(difference))


class Shared:
    """An iterator for several threads; calls `after_tenth` after each tenth of `items`."""

    def __init__(self, items: Sequence[int], after_tenth: Any):
        self._items = items
        self._taken = 0
        self._lock = threading.Lock()
        self._after_tenth = after_tenth

    def __iter__(self) -> Iterator[int]:
        return self

    def __next__(self) -> int:
        with self._lock:
            if self._taken == len(self._items):
                raise StopIteration
            self._taken += 1
            if self._taken % max(1, len(self._items) // 10) == 0:
                self._after_tenth()
            return self._items[self._taken - 1]


class Server:
    """A server in a process of its own."""

    def __init__(self, command: Sequence[str], port: int):
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        self._memory = psutil.Process(self._process.pid)
        self.port = port
        self.megabytes: list[int] = []
        self.connections: list[Connection] = []
        self.seconds = 0.0
        start = time.perf_counter()
        while not self._is_ready():
            if self._process.poll() is not None:
                raise RuntimeError(f"{command[0]} ended with status {self._process.returncode}")
            time.sleep(0.1)
        self.seconds_to_start = time.perf_counter() - start
        self.cpu_seconds_to_start = sum(self._memory.cpu_times()[:2])

    def _is_ready(self) -> bool:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)
        try:
            connection.request("GET", "/health")
            return connection.getresponse().status == 200
        except OSError:
            return False
        finally:
            connection.close()

    def note_memory(self) -> None:
        """Notes the resident memory."""
        self.megabytes.append(round(self._memory.memory_info().rss / 1e6))

    def load(
        self, count: int, requests: Sequence[int], texts: Sequence[str], expected: np.ndarray
    ) -> list[Connection]:
        """Sends requests, indices of texts, from `count` connections."""
        work = Shared(requests, self.note_memory)
        connections = [Connection(self.port, work, texts, expected) for _ in range(count)]
        for connection in connections:
            connection.start()
        for connection in connections:
            connection.join()
        return connections

    def end(self) -> int:
        """Ends the process; returns its status."""
        self._process.terminate()
        return self._process.wait(60)


def figures(server: Server) -> dict[str, Any]:
    """Returns what was measured on a server."""
    seconds = np.concatenate([connection.seconds for connection in server.connections])
    differences = [connection.difference for connection in server.connections]
    lost = sum(len(connection.lost) for connection in server.connections)
    return {
        "seconds_to_start": round(server.seconds_to_start, 1),
        "cpu_seconds_to_start": round(server.cpu_seconds_to_start, 1),
        "answers": len(seconds) - lost,
        "lost": lost,
        "largest_difference": max(differences),
        "milliseconds": {
            "median": round(1000 * float(np.median(seconds)), 1),
            "p99": round(1000 * float(np.percentile(seconds, 99)), 1),
        },
        "answers_per_second": round(len(seconds) / server.seconds, 1),
        "megabytes": server.megabytes,
    }


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--model", required=True, help="directory of an embedder")
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--connections", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--port", type=int, default=8461, help="and the next two")
    parser.add_argument("--onnx", action="store_true")
    parser.add_argument("--alone", action="store_true")
    args = parser.parse_args()
    import bertjax

    texts = drawn_texts(TEXTS)
    expected = bertjax.load_pretrained(args.model).embed(texts, normalize=True)
    serve = [sys.executable, "-m", "bertjax", "serve", args.model, f"--port={args.port}"]
    servers = {"bertjax": Server(serve, args.port)}
    if args.onnx:
        words = [f"--port={args.port + 2}", "--backend=onnx"]
        servers["bertjax, onnx"] = Server([*serve[:-1], *words], args.port + 2)
    if not args.alone:
        other = [sys.executable, "-c", OTHER, args.model, str(args.port + 1)]
        servers["sentence-transformers"] = Server(other, args.port + 1)
    rng = np.random.default_rng(0)
    for server in servers.values():
        first = rng.integers(0, TEXTS, args.connections).tolist()
        server.load(args.connections, first, texts, expected)
        server.megabytes.clear()
    for _ in range(args.rounds):
        requests = rng.integers(0, TEXTS, args.requests // args.rounds).tolist()
        for server in servers.values():
            start = time.perf_counter()
            server.connections += server.load(args.connections, requests, texts, expected)
            server.seconds += time.perf_counter() - start
    values = {name: figures(server) for name, server in servers.items()}
    statuses = {name: server.end() for name, server in servers.items()}
    table = [
        ("", "start s", "lost", "largest difference", "median ms", "p99 ms", "answers/s", "MB")
    ]
    for name, value in values.items():
        times = value["milliseconds"]
        table.append(
            (
                name,
                str(value["seconds_to_start"]),
                str(value["lost"]),
                f"{value['largest_difference']:.1e}",
                str(times["median"]),
                str(times["p99"]),
                str(value["answers_per_second"]),
                f"{value['megabytes'][0]} to {value['megabytes'][-1]}",
            )
        )
    for row in table:
        print(" | ".join(row))
    line = {
        "connections": args.connections,
        "requests": args.requests,
        "sides": values,
        "statuses": statuses,
    }
    packages = ["starlette", "uvicorn"]
    if not args.alone:
        packages += ["torch", "sentence-transformers"]
        theirs = values["sentence-transformers"]["milliseconds"]
        line["ratios"] = {
            name: round(theirs[name] / values["bertjax"]["milliseconds"][name], 2)
            for name in theirs
        }
    report(line, args.output, packages)
    for name, value in values.items():
        if not name.startswith("bertjax"):
            continue
        if value["lost"] or value["largest_difference"] > TOLERANCE or statuses[name]:
            sys.exit(f"{name}: an answer was lost or wrong, or the status at the end was not 0.")


if __name__ == "__main__":
    main()
