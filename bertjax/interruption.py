"""Interruption of commands: `Interrupted`, its exit status, and the signals that raise it."""

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from typing import Any

# The exit status of a command that was stopped by a signal and that resumes if it is run again
# (EX_TEMPFAIL of sysexits.h).
STOPPED = 75


class Interrupted(KeyboardInterrupt):
    """Raised when a stop signal ends a command; running the command again resumes its work.

    Args:
        message: what happened, for the user.
        on_all_hosts: see the attribute.

    Attributes:
        on_all_hosts: whether all hosts of a multi-host run have agreed to end after the same step;
            if False, this host must tell the other hosts that it ends.
    """

    def __init__(self, message: str, *, on_all_hosts: bool = False):
        super().__init__(message)
        self.on_all_hosts = on_all_hosts


@contextlib.contextmanager
def signals_raise() -> Iterator[None]:
    """A context in which SIGTERM and SIGHUP raise `Interrupted`, so that files are cleaned up.

    Without this context, SIGTERM and SIGHUP end the process at once. In forked child processes,
    they still do. The context has no effect if a thread other than the main thread enters it.
    """
    process = os.getpid()

    def receive(number: int, frame: Any) -> None:
        del frame
        if os.getpid() == process:
            raise Interrupted(f"stopped by {signal_name(number)}")
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)

    numbers = _numbers("SIGTERM", "SIGHUP")
    before = {number: signal.signal(number, receive) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def signals_deferred() -> Iterator[None]:
    """A context at whose end the first SIGINT, SIGTERM or SIGHUP in it is handled.

    A second signal is handled at once. The context has no effect on signals without a handler in
    Python, or if a thread other than the main thread enters it.
    """
    received: list[int] = []

    def receive(number: int, frame: Any) -> None:
        if received:
            before[signal.Signals(number)](number, frame)
        received.append(number)

    numbers = _numbers("SIGINT", "SIGTERM", "SIGHUP")
    handlers = {number: signal.getsignal(number) for number in numbers}
    before = {number: handler for number, handler in handlers.items() if callable(handler)}
    for number in before:
        signal.signal(number, receive)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if len(received) == 1:
        before[signal.Signals(received[0])](received[0], None)


def signal_name(number: int) -> str:
    """Returns what a user knows the signal `number` by, such as "Ctrl-C" or "SIGTERM"."""
    return "Ctrl-C" if number == signal.SIGINT else signal.Signals(number).name


def _numbers(*names: str) -> list[signal.Signals]:
    """Returns the signals of these names that the system has; only the main thread has any."""
    if threading.current_thread() is not threading.main_thread():
        return []
    return [getattr(signal, name) for name in names if hasattr(signal, name)]
