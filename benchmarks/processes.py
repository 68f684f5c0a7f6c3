"""Worker processes of a benchmark, each with its own environment variables."""

import contextlib
import multiprocessing
import os
from collections.abc import Callable, Iterator
from typing import Any

# Spawned, not forked: variables like LD_PRELOAD take effect when a program starts.
_CONTEXT = multiprocessing.get_context("spawn")


class Worker:
    """Creates a function in a separate process, and calls it there.

    Args:
        make: a module-level function; called with `args` in the process, it returns the function.
        variables: additional environment variables of the process.

    Raises:
        EOFError: the process ended; its output contains the reason.
    """

    def __init__(self, make: Callable[..., Callable[..., Any]], *args: Any, **variables: str):
        self._connection, remote = _CONTEXT.Pipe()
        self._process = _CONTEXT.Process(target=_serve, args=(remote, make, args), daemon=True)
        with _environment(variables):
            self._process.start()
        remote.close()

    def __call__(self, *args: Any) -> Any:
        """Calls the function and returns its result."""
        self._connection.send(args)
        return self._connection.recv()

    def close(self) -> None:
        """Ends the process."""
        self._connection.close()
        self._process.join()


def _serve(connection: Any, make: Callable[..., Callable[..., Any]], args: tuple[Any, ...]) -> None:
    function = make(*args)
    with contextlib.suppress(EOFError):
        while True:
            connection.send(function(*connection.recv()))


@contextlib.contextmanager
def _environment(variables: dict[str, str]) -> Iterator[None]:
    before = dict(os.environ)
    os.environ.update(variables)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)
