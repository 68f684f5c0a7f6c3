"""Processes of a benchmark, each with environment variables of its own."""

import contextlib
import multiprocessing
import os
from collections.abc import Callable, Iterator
from typing import Any

# Started anew, and not forked: variables like LD_PRELOAD are read when a program starts.
_CONTEXT = multiprocessing.get_context("spawn")


class Worker:
    """Makes a function in a process of its own, and calls it there.

    Args:
        make: a function of a module; called in the process with `args`, it returns the function.
        variables: of the process's environment, besides those of this one.

    Raises:
        EOFError: the process ended; what it printed says why.
    """

    def __init__(self, make: Callable[..., Callable[..., Any]], *args: Any, **variables: str):
        self._connection, theirs = _CONTEXT.Pipe()
        self._process = _CONTEXT.Process(target=_serve, args=(theirs, make, args), daemon=True)
        with _environment(variables):
            self._process.start()
        theirs.close()

    def __call__(self, *args: Any) -> Any:
        """What the function returns."""
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
