"""The process of a server: it listens, loads and reloads models, and ends without a lost request.

SIGTERM and Ctrl-C end the server after the running requests, with the status 0. SIGHUP loads the
models and keys again, while the old ones answer.
"""

import asyncio
import contextlib
import datetime
import functools
import ipaddress
import logging
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import h11
import orjson
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from bertjax.base.signals import signals_call
from bertjax.config.serve_config import ServeConfig
from bertjax.inference.serving.application import LOGGER, MOST_CONNECTIONS, Service, make_app
from bertjax.inference.serving.batching import work
from bertjax.inference.serving.endpoints import Models
from bertjax.inference.serving.models import load_served

# Seconds in which a client may send another request on a connection that is about to be closed.
DRAIN_SECONDS = 1.0
# Seconds after which an idle connection is closed: more than in proxies (60 s), because a request
# that is sent in this moment is lost.
IDLE_SECONDS = 75
# Bytes of a connection that are read at once; then others have their turn. A body in chunks of one
# byte takes 35 microseconds for each.
READ_BYTES = 4096
# Files that a process has open besides its connections.
OTHER_FILES = 100


def serve(config: ServeConfig) -> None:
    """Serves models until a signal ends the process.

    Raises:
        OSError: the address is in use or not of this machine, or there is no model at a path.
        ValueError: a model cannot be served, two have one name, or the file of keys has none.
    """
    named_models(config.models)
    start_log()
    service = Service(config)
    service.keys = read_keys(config.api_key_file)
    server = Server(service)
    loader = Loader(service, server.end)
    worker = threading.Thread(
        target=work, args=(service.queue, service.metrics.batch), name="model", daemon=True
    )

    def on_signal(number: int) -> None:
        if number == signal.SIGHUP:
            loader.load()
        else:
            server.handle_exit(number, None)

    with signals_call(on_signal), listening_socket(config) as listener:
        host, port, *_ = listener.getsockname()
        LOGGER.info("listening", extra={"fields": {"host": host, "port": port}})
        if service.keys is None and not ipaddress.ip_address(host).is_loopback:
            LOGGER.warning("the network can use the models without a key: give --api_key_file")
        worker.start()
        loader.load()
        server.run(sockets=[listener])
    service.text_threads.shutdown(wait=False, cancel_futures=True)
    service.queue.close()
    worker.join(DRAIN_SECONDS)
    if loader.failure is not None:
        raise loader.failure
    LOGGER.info("ended")
    if loader.is_loading or worker.is_alive():
        # Threads of XLA that are still at work would crash in Python's shutdown.
        sys.stdout.flush()
        os._exit(0)


def named_models(words: tuple[str, ...]) -> dict[str, str]:
    """Returns {name: path} of models that are given as PATH or NAME=PATH.

    Raises ValueError if two have one name, or a name has a slash.
    """
    paths: dict[str, str] = {}
    for word in words:
        name, separator, path = word.partition("=")
        if not separator or Path(word).exists():
            name, path = Path(word).name, word
        if not name or "/" in name:
            raise ValueError(f"The model {word!r} has no name: give NAME={word}.")
        if name in paths:
            raise ValueError(
                f"The models {paths[name]} and {path} have one name, {name}: give NAME=PATH."
            )
        paths[name] = path
    return paths


def read_keys(file: str | None) -> tuple[str, ...] | None:
    """Reads the keys in a file, one per line; None without a file.

    Raises OSError, and ValueError if it has no key, or is no text.
    """
    if file is None:
        return None
    try:
        lines = Path(file).read_text(encoding="utf-8-sig").split("\n")
    except UnicodeDecodeError as error:
        raise ValueError(f"--api_key_file {file} is not UTF-8 ({error.reason}).") from error
    keys = tuple(filter(None, map(str.strip, lines)))
    if not keys:
        raise ValueError(f"--api_key_file {file} has no key: write one per line.")
    return keys


def listening_socket(config: ServeConfig) -> socket.socket:
    """Listens at the address of a config; raises OSError if it is in use, or of no machine."""
    family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
    try:
        return socket.create_server((config.host, config.port), family=family, backlog=2048)
    except OSError as error:
        raise OSError(
            f"Cannot listen at --host {config.host} --port {config.port} ({error.strerror or error}"
            "): choose another port, 0 for a free one, or an address of this machine."
        ) from error


class Loader:
    """Loads the models of a service in a thread of its own, at the start and after SIGHUP.

    Attributes:
        is_loading: whether a thread loads models now.
        failure: the error of the first loading, after which `on_failure` is called.
    """

    def __init__(self, service: Service, on_failure: Callable[[], None]):
        self._service = service
        self._on_failure = on_failure
        self._lock = threading.Lock()
        self._is_asked = False
        self.is_loading = False
        self.failure: Exception | None = None

    def load(self) -> None:
        """Starts to load the models; if that is being done, it is done again afterwards."""
        with self._lock:
            self._is_asked = True
            if not self.is_loading:
                self.is_loading = True
                threading.Thread(target=self._run, name="loader", daemon=True).start()

    def _run(self) -> None:
        while True:
            with self._lock:
                if not self._is_asked:
                    self.is_loading = False
                    return
                self._is_asked = False
            self._load()

    def _load(self) -> None:
        service = self._service
        config = service.config
        is_first = service.models is None
        start = time.monotonic()
        try:
            keys = read_keys(config.api_key_file)
            loaded = []
            for name, path in named_models(config.models).items():
                model = load_served(
                    name,
                    path,
                    config.max_length,
                    backend=config.backend,
                    onnx_file=config.onnx_file,
                )
                loaded.append(model)
        except Exception as error:
            if is_first:
                self.failure = error
                self._on_failure()
            else:
                service.metrics.reloads.labels("failed").inc()
                LOGGER.error(f"not reloaded, the models before answer: {error}")
            return
        service.keys = keys
        service.models = Models(tuple(loaded))
        if not is_first:
            service.metrics.reloads.labels("done").inc()
        fields = {
            "models": {model.name: model.kind for model in loaded},
            "seconds": round(time.monotonic() - start, 3),
        }
        LOGGER.info("ready" if is_first else "reloaded", extra={"fields": fields})


class Server(uvicorn.Server):
    """A server of uvicorn with the signals and timeouts of this module."""

    def __init__(self, service: Service):
        config = service.config
        self._connection_class = connection_class(config.read_timeout)
        super().__init__(
            uvicorn.Config(
                make_app(service),
                http=self._connection_class,
                loop="asyncio",
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                proxy_headers=False,
                server_header=False,
                limit_concurrency=_most_connections(),
                timeout_keep_alive=IDLE_SECONDS,
                timeout_graceful_shutdown=config.stop_timeout,
            )
        )
        self._service = service

    def end(self) -> None:
        """Ends the server, from any thread."""
        self.should_exit = True

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leaves the signals to `serve`; uvicorn would raise them again in the end."""
        yield

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Refuses new connections, and waits for the running requests."""
        self._service.is_stopping = True
        LOGGER.info(
            "stopping", extra={"fields": {"connections": len(self.server_state.connections)}}
        )
        listeners = [listener.dup() for listener in sockets or ()]
        for server in self.servers:
            server.close()
        protocol = functools.partial(
            self._connection_class, self.config, self.server_state, self.lifespan.state
        )
        for connection in _waiting_connections(listeners):
            await asyncio.get_running_loop().connect_accepted_socket(protocol, connection)
        await super().shutdown(sockets)


def _waiting_connections(listeners: list[socket.socket]) -> list[socket.socket]:
    """Accepts the connections that clients have already made, and closes the sockets.

    Otherwise the system would reset these connections, on which a request may have been sent.
    """
    connections = []
    for listener in listeners:
        with listener, contextlib.suppress(BlockingIOError):
            listener.setblocking(False)
            while True:
                connections.append(listener.accept()[0])
    return connections


def _most_connections() -> int:
    """Returns how many connections may be open, for as many as files may be."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST_CONNECTIONS + OTHER_FILES
    if soft != resource.RLIM_INFINITY and soft < wanted:
        if hard != resource.RLIM_INFINITY:
            wanted = min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return max(1, wanted - OTHER_FILES)


def connection_class(seconds: float) -> type[H11Protocol]:
    """Returns the class of connections on which headers must arrive, and answers be taken, in time.

    The time of the body is that of `Service.answer`, which refuses the request in words.
    """

    class Connection(H11Protocol):
        _headers_due: asyncio.TimerHandle | None = None
        _writing_due: asyncio.TimerHandle | None = None

        def connection_made(self, transport: Any) -> None:
            transport.max_size = READ_BYTES
            super().connection_made(transport)
            self._headers_due = self.loop.call_later(seconds, self._headers_late)

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            if self.conn.their_state is not h11.IDLE:
                self._headers_due = _cancelled(self._headers_due)
            elif self._headers_due is None:
                self._headers_due = self.loop.call_later(seconds, self._headers_late)

        def connection_lost(self, exc: Exception | None) -> None:
            super().connection_lost(exc)
            _cancelled(self._headers_due)
            _cancelled(self._writing_due)

        def pause_writing(self) -> None:
            super().pause_writing()
            self._writing_due = self.loop.call_later(seconds, self.transport.abort)

        def resume_writing(self) -> None:
            super().resume_writing()
            _cancelled(self._writing_due)

        def timeout_keep_alive_handler(self) -> None:
            super().timeout_keep_alive_handler()
            # What is closed waits until the client has taken its answer.
            self._writing_due = self.loop.call_later(seconds, self.transport.abort)

        def shutdown(self) -> None:
            # A request may be on its way; its answer will say that the connection is closed.
            if self.cycle is None or self.cycle.response_complete:
                self.loop.call_later(DRAIN_SECONDS, super().shutdown)
            else:
                super().shutdown()

        def _headers_late(self) -> None:
            if not self.transport.is_closing() and self.conn.their_state is h11.IDLE:
                self.timeout_keep_alive_handler()

    return Connection


def _cancelled(timer: asyncio.TimerHandle | None) -> None:
    if timer is not None:
        timer.cancel()


class JsonLines(logging.Formatter):
    """Formats a log record as one line of JSON."""

    def format(self, record: logging.LogRecord) -> str:
        """Returns time, level and event of a record, and its `fields`."""
        moment = datetime.datetime.fromtimestamp(record.created, datetime.UTC)
        entry: dict[str, Any] = {
            "time": moment.isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "event": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            entry["traceback"] = self.formatException(record.exc_info)
        return orjson.dumps(entry, default=str).decode()


def start_log() -> None:
    """Writes log records to standard output, each as a line of JSON."""
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(JsonLines())
    for name, level in ((LOGGER.name, logging.INFO), ("uvicorn", logging.WARNING)):
        logger = logging.getLogger(name)
        logger.setLevel(level)
        logger.handlers = [handler]
        logger.propagate = False
