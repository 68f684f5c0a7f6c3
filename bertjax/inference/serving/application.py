"""The HTTP application of a server: routes, access, refusals, metrics and log lines.

The loop of asyncio only passes requests on: threads tokenize texts and write answers as JSON, one
thread computes (`batching.work`).
"""

import asyncio
import contextlib
import functools
import hmac
import ipaddress
import logging
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import urlsplit

import orjson
from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    generate_latest,
)
from starlette.applications import Starlette
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

import bertjax
from bertjax.base.files import brief
from bertjax.config.serve_config import ServeConfig
from bertjax.inference.predictor import SMALLEST_ROW, token_budget
from bertjax.inference.serving.batching import BatchQueue, Full, Job
from bertjax.inference.serving.endpoints import ENDPOINTS, Models, prepare
from bertjax.inference.serving.models import Asked, Refused, too_much
from bertjax.pages import fill

LOGGER = logging.getLogger("bertjax.serve")
# Connections that are open at once; further ones get the status 503.
MOST_CONNECTIONS = 1000
TEXT_THREADS = 4
# The status in log lines and metrics of a request whose client has gone.
CLIENT_GONE = 499
# What is read without the key: probes of Kubernetes have none, and the page asks for it.
_PUBLIC = ("/health", "/")
# Paths that programs ask for every few seconds, which is not worth a log line.
_PROBED = ("/health", "/metrics")
_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
_TOKENS = (16, 64, 256, 1024, 4096, 16384, 65536)


class Metrics:
    """What `/metrics` tells, under the names of text-embeddings-inference."""

    def __init__(self, queue: BatchQueue):
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self.requests = Counter(
            "te_request_count",
            "Requests that were answered or refused",
            ("endpoint", "status"),
            registry=self.registry,
        )
        histogram = functools.partial(Histogram, registry=self.registry)
        self.duration = histogram(
            "te_request_duration", "Seconds from a request to its answer", ("endpoint",)
        )
        self.tokenization = histogram(
            "te_request_tokenization_duration", "Seconds to read and tokenize a request"
        )
        self.queued = histogram(
            "te_request_queue_duration", "Seconds that a request waited for the model"
        )
        self.inference = histogram(
            "te_request_inference_duration", "Seconds of the batches with texts of a request"
        )
        self.batch_size = histogram("te_batch_next_size", "Texts in a batch", buckets=_SIZES)
        self.batch_tokens = histogram("te_batch_next_tokens", "Tokens in a batch", buckets=_TOKENS)
        waiting = Gauge("te_queue_size", "Texts that wait", registry=self.registry)
        waiting.set_function(lambda: len(queue))
        self.reloads = Counter(
            "te_reload_count", "Reloads of the models", ("result",), registry=self.registry
        )

    def batch(self, inputs: int, tokens: int) -> None:
        """Counts a batch."""
        self.batch_size.observe(inputs)
        self.batch_tokens.observe(tokens)


class Service:
    """A server's models and queue, and whether it answers.

    Attributes:
        models: None until all are loaded.
        keys: the keys of which a request must name one; None: it needs none.
        is_stopping: whether the process ends after the running requests.
    """

    def __init__(self, config: ServeConfig):
        self.config = config
        self.models: Models | None = None
        self.keys: tuple[str, ...] | None = None
        self.is_stopping = False
        self.batch_tokens = config.max_batch_tokens or token_budget(SMALLEST_ROW, None)
        self.queue = BatchQueue(config.max_waiting, self.batch_tokens)
        self.metrics = Metrics(self.queue)
        self.text_threads = ThreadPoolExecutor(TEXT_THREADS, "text")

    @property
    def ready_models(self) -> Models:
        """The models; refuses the request until they are loaded."""
        if self.models is None:
            raise Refused(503, "unhealthy", "The model is being loaded: try again in some seconds.")
        return self.models

    async def answer(self, request: Request, endpoint: str) -> Response:
        """Answers a request to a model."""
        models = self.ready_models
        start = time.monotonic()
        body = await self._body(request)
        name = request.path_params.get("name")
        model, asked = await self._in_text_thread(
            prepare, models, endpoint, body, self.config, name
        )
        notes = request.state.notes
        notes |= {"model": model.name, "texts": len(asked.inputs), "tokens": asked.tokens}
        self.metrics.tokenization.observe(time.monotonic() - start)
        results = []
        if asked.inputs:
            results = await self._computed(request, asked)

        def content() -> bytes:
            return orjson.dumps(asked.answer(results), option=orjson.OPT_SERIALIZE_NUMPY)

        return Response(await self._in_text_thread(content), media_type="application/json")

    async def _in_text_thread(self, call: Callable[..., Any], *values: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self.text_threads, call, *values)

    async def _body(self, request: Request) -> bytes:
        kind = request.headers.get("content-type", "")
        if kind.partition(";")[0].strip().lower() != "application/json":
            raise Refused(
                415,
                "validation",
                f"The content type is {brief(kind, 60)!r}: send application/json.",
            )
        most = self.config.max_body
        length = int(request.headers.get("content-length", "0"))  # h11 has checked the number
        body = bytearray()
        try:
            async with asyncio.timeout(self.config.read_timeout):
                if length <= most:
                    async for part in request.stream():
                        body += part
                        if len(body) > most:
                            break
        except TimeoutError as error:
            raise Refused(
                408,
                "validation",
                f"The body did not arrive within {self.config.read_timeout:g} s: send it faster, "
                "or start the server with a higher --read_timeout.",
            ) from error
        if max(length, len(body)) > most:
            raise too_much(
                f"The body has more than {most} bytes: send fewer texts at once, or start the "
                "server with a higher --max_body."
            )
        return bytes(body)

    async def _computed(self, request: Request, asked: Asked) -> list[Any]:
        """Returns the results of the inputs, unless the client goes away before."""
        count = len(asked.inputs)
        if count > self.config.max_waiting:
            raise too_much(f"The request has {count} windows of texts: send fewer texts at once.")
        loop = asyncio.get_running_loop()
        finished = loop.create_future()

        def done() -> None:
            with contextlib.suppress(RuntimeError):  # the loop has ended, after --stop_timeout
                loop.call_soon_threadsafe(finished.set_result, None)

        job = Job(asked.inputs, done)
        try:
            self.queue.put(job)
        except Full as error:
            raise Refused(
                429, "overloaded", f"The model is overloaded ({error}): try again later."
            ) from error
        gone = asyncio.ensure_future(request.receive())
        try:
            await asyncio.wait({gone, finished}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self.queue.cancel(job)
            gone.cancel()
        if not finished.done():
            raise ClientDisconnect
        self.metrics.queued.observe(job.waited or 0.0)
        self.metrics.inference.observe(job.computed)
        if job.error is not None:
            LOGGER.error("batch failed", exc_info=job.error)
            reason = brief(str(job.error).partition("\n")[0], 200)
            raise Refused(424, "backend", f"The model failed on these texts: {reason}")
        return job.results

    async def health(self, request: Request) -> Response:
        """Answers 200 if the models are loaded and the server is not about to end."""
        if self.is_stopping:
            raise Refused(503, "unhealthy", "The server is stopping.")
        _ = self.ready_models
        return Response()

    async def info(self, request: Request) -> Response:
        """Describes the model in the path, or the first one."""
        models = self.ready_models
        model = models.named(request.path_params.get("name"))
        content = {
            "model_id": model.name,
            "model_dtype": "float32",
            "model_type": {model.kind: model.details()},
            "max_concurrent_requests": MOST_CONNECTIONS,
            "max_input_length": model.max_length,
            "max_batch_tokens": self.batch_tokens,
            "max_client_batch_size": self.config.max_texts,
            "auto_truncate": self.config.auto_truncate,
            "tokenization_workers": TEXT_THREADS,
            "version": bertjax.__version__,
            "models": _kinds_of(models),
        }
        return JSONResponse(content)

    async def openai_models(self, request: Request) -> Response:
        """Lists the models as OpenAI does."""
        data = []
        for model in self.ready_models.models:
            entry = {"id": model.name, "object": "model", "created": 0, "owned_by": "bertjax"}
            data.append(entry)
        return JSONResponse({"object": "list", "data": data})

    async def scrape(self, request: Request) -> Response:
        """Returns the metrics in the text format of Prometheus."""
        content = generate_latest(self.metrics.registry)
        return Response(content, headers={"content-type": CONTENT_TYPE_LATEST})

    async def page(self, request: Request) -> Response:
        """Returns the page on which one can try the models; without the key, it names none."""
        models = []
        if self.models is not None and self.keys is None:
            models = _kinds_of(self.models)
        data = {"models": models, "needs_key": self.keys is not None}
        return HTMLResponse(fill("serve.html", data))


def _kinds_of(models: Models) -> list[dict[str, Any]]:
    kinds = []
    for model in models.models:
        kinds.append({"name": model.name, "kind": model.kind, "endpoints": model.endpoints})
    return kinds


class Gate:
    """Middleware that refuses requests without a key or of foreign web pages, and observes all."""

    def __init__(self, app: ASGIApp, service: Service):
        self._app = app
        self._service = service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        start = time.monotonic()
        # Redirecting to the path without its slash would lead out of the https of a proxy.
        scope["path"] = scope["path"].rstrip("/") or "/"
        headers = Headers(scope=scope)
        notes: dict[str, Any] = {}
        scope.setdefault("state", {})["notes"] = notes
        # A body that is not read to its end would be read for ever, while the client sends.
        unread = "transfer-encoding" in headers or headers.get("content-length", "0") != "0"
        status = CLIENT_GONE

        async def receive_noted() -> Message:
            nonlocal unread
            message = await receive()
            unread = unread and message.get("more_body", False)
            return message

        async def send_noted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                if unread or self._service.is_stopping:
                    MutableHeaders(scope=message)["connection"] = "close"
            await send(message)

        try:
            refusal = self._refusal(scope["method"], scope["path"], headers)
            if refusal is None:
                await self._app(scope, receive_noted, send_noted)
            else:
                await refused(scope["path"], refusal)(scope, receive, send_noted)
        except ClientDisconnect:
            pass
        except asyncio.CancelledError:  # after --stop_timeout
            error = Refused(503, "unhealthy", "The server stopped before the answer was computed.")
            await refused(scope["path"], error)(scope, receive, send_noted)
        except Exception:
            status = 500
            raise
        finally:
            self._observe(scope, status, time.monotonic() - start, notes)

    def _refusal(self, method: str, path: str, headers: Headers) -> Refused | None:
        keys = self._service.keys
        if keys is None:
            origin = headers.get("origin")
            if origin is not None and not _is_own_page(origin, headers.get("host", "")):
                message = (
                    f"The web page {brief(origin, 60)!r} is not of this server: start it with "
                    "--api_key_file to answer requests of other pages through a proxy."
                )
                return Refused(403, "validation", message)
            return None
        kind, _, key = headers.get("authorization", "").partition(" ")
        given = key.strip().encode("latin-1")  # the bytes of the header
        is_known = [hmac.compare_digest(given, known.encode()) for known in keys]
        is_public = method in ("GET", "HEAD") and path in _PUBLIC
        if is_public or (kind.lower() == "bearer" and any(is_known)):
            return None
        return Refused(
            401, "unauthorized", "The key is missing or wrong: send Authorization: Bearer KEY."
        )

    def _observe(self, scope: Scope, status: int, seconds: float, notes: dict[str, Any]) -> None:
        route = scope.get("route")
        endpoint = getattr(route, "path", "other")
        metrics = self._service.metrics
        metrics.requests.labels(endpoint, str(status)).inc()
        metrics.duration.labels(endpoint).observe(seconds)
        client = scope.get("client") or ("",)
        fields = {
            "method": scope["method"],
            "path": brief(scope["path"], 200),
            "status": status,
            "seconds": round(seconds, 6),
            "client": client[0],
        }
        level = logging.INFO
        if endpoint in _PROBED and status == 200:
            level = logging.DEBUG
        LOGGER.log(level, "request", extra={"fields": fields | notes})


def _is_own_page(origin: str, host: str) -> bool:
    """Returns whether an origin is this server, named by its address.

    A page of a stranger may give its own name the address of this server after it was loaded.
    """
    try:
        parts = urlsplit(origin)
        if parts.netloc.lower() != host.lower():
            return False
        if parts.hostname == "localhost":
            return True
        ipaddress.ip_address(parts.hostname or "")
    except ValueError:
        return False
    return True


def refused(path: str, error: Refused, headers: Mapping[str, str] | None = None) -> Response:
    """Returns the response to a refused request, in the form of OpenAI for its paths."""
    headers = dict(headers or {})
    if error.status in (429, 503):
        headers["retry-after"] = "1"
    if error.status == 401:
        headers["www-authenticate"] = "Bearer"
    message = brief(str(error), 500)
    content: dict[str, Any] = {"error": message, "error_type": error.kind}
    if path.startswith("/v1/") or path.endswith("/v1/embeddings"):
        kind = "invalid_request_error"
        if error.status >= 500:
            kind = "server_error"
        content = {"error": {"message": message, "type": kind, "param": None, "code": error.kind}}
    return JSONResponse(content, error.status, headers)


def on_error(request: Request, error: Exception) -> Response:
    """Returns the response to a request that was refused, or failed."""
    path = request.url.path
    if isinstance(error, Refused):
        return refused(path, error)
    if isinstance(error, HTTPException):
        message = f"{error.detail}: {request.method} {brief(path, 100)}"
        return refused(path, Refused(error.status_code, "validation", message), error.headers)
    return refused(path, Refused(500, "backend", "The server failed; its log says why."))


def make_app(service: Service) -> Starlette:
    """Makes the application of a service."""
    routes = [
        Route("/health", service.health),
        Route("/metrics", service.scrape),
        Route("/v1/models", service.openai_models),
        Route("/", service.page),
    ]
    for prefix in ("", "/models/{name}"):
        routes.append(Route(f"{prefix}/info", service.info))
        for endpoint in ("", *ENDPOINTS):
            answer = functools.partial(service.answer, endpoint=endpoint)
            path = f"{prefix}/{endpoint}".rstrip("/") or "/"
            routes.append(Route(path, answer, methods=["POST"]))
    return Starlette(
        routes=routes,
        middleware=[Middleware(Gate, service=service)],
        exception_handlers=dict.fromkeys((Refused, HTTPException, Exception), on_error),
    )
