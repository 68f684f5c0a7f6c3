"""Stop signals, from the handler to the exit status 75; `train/run.py` saves between the two.

While a command imports its modules, signals wait (`hold_signals`). From then on, a
signal raises `Interrupted` (`signals_raise`). In a training run, a first signal only sets a flag,
at which the loop looks after each step (`StopSignal`); while Orbax writes, signals wait
(`signals_deferred`). `run_reporting_errors` turns `Interrupted` into the exit status `STOPPED`,
with which `leave` ends the process.
"""

import contextlib
import os
import select
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

from bertjax.base import process
from bertjax.base.printable import printable_output

# The exit status of a command that was stopped by a signal and that resumes if it is run again
# (EX_TEMPFAIL of sysexits.h).
STOPPED = 75
# When a signal that was dropped is sent again, and when a process that handles none is ended.
AGAIN_SECONDS = 0.1
END_SECONDS = 6.0
# The run looks at a signal within this time, unless it starts or compiles, and Python handles one.
GRACE_SECONDS = 2.0
# The number of calls of `StopSignal` after which the result of a call is read. By then the device
# has computed the result, so that no host waits for it.
READ_AFTER = 2


class Interrupted(KeyboardInterrupt):
    """Raised when a stop signal ends a command; running the command again resumes its work.

    `on_all_hosts` is whether all hosts have agreed to end after the same step; if not, this
    host must tell the others that it ends. The message begins with `BEGINNING`.
    """

    BEGINNING = "stopped "

    def __init__(self, message: str, *, on_all_hosts: bool = False):
        super().__init__(message)
        self.on_all_hosts = on_all_hosts


_held: list[int] = []


def hold_signals() -> None:
    """Makes signals wait in `_held` for `run_reporting_errors`.

    The package calls this when a command imports it, which is the first thing that a command does.
    A second signal ends the process at once.
    """
    for number in stop_signals():
        signal.signal(number, _hold)


def _hold(number: int, frame: Any) -> None:
    del frame
    if _held:
        os._exit(STOPPED)
    _held.append(number)


@contextlib.contextmanager
def _handled_by(receive: Callable[[int, Any], None]) -> Iterator[tuple[dict[Any, Any], int]]:
    """Sets `receive` as the handler of the signals that stop a process.

    Yields {number of a signal: its handler before}, and a pipe that tells numbers of signals.
    """
    before = {number: signal.signal(number, receive) for number in stop_signals()}
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    fd_before = -1
    if before:
        fd_before = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    try:
        yield before, reader
    finally:
        if before:
            signal.set_wakeup_fd(fd_before)
        os.close(writer)
        for number, handler in before.items():
            signal.signal(number, handler)


# Signals of this process that `signals_raise` has received and that nothing has handled yet, and
# what ends the threads that watch over them.
_received = list[int]()
_watched = list[threading.Event]()
# A signal is not sent again after the context whose handler would raise it.
_sending = threading.Lock()


@contextlib.contextmanager
def signals_raise(*, trains: bool = False) -> Iterator[None]:
    """A context in which SIGTERM, SIGHUP and SIGINT raise `Interrupted`, so that files are closed.

    SIGINT raises KeyboardInterrupt unless the command `trains`. In forked child processes, signals
    still end the process at once. A signal waits for the end of imports, because C++ code does not
    survive exceptions there. It is not lost if Python drops its exception, as it does in callbacks
    of the garbage collector and in `__del__`, or if other code catches or replaces it: it is sent
    again while the main thread handles none, and raised again at the end of the context. A process
    whose main thread handles none within `END_SECONDS`, as it waits in C++ code, is ended. The
    context has no effect in a thread other than the main thread.
    """
    process = os.getpid()
    received = _received
    hook = sys.unraisablehook
    main = threading.main_thread().ident or 0
    over = threading.Event()

    def stopped(number: int) -> KeyboardInterrupt:
        kind = KeyboardInterrupt
        if trains or number != signal.SIGINT:
            kind = Interrupted
        return kind(f"stopped by {signal_name(number)}")

    def receive(number: int, frame: Any) -> None:
        if os.getpid() == process:
            received.append(number)
            if _is_importing(frame):
                return
            raise stopped(number)
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)

    def watch(pipe: int) -> None:
        number = os.read(pipe, 1)
        end = time.monotonic() + END_SECONDS
        while number and not over.wait(AGAIN_SECONDS):
            if signal.getsignal(number[0]) is not receive or _handles_interrupt(main):
                continue
            if time.monotonic() > end:
                os.write(2, f"{stopped(number[0])}; run the same command again\n".encode())
                os._exit(_status(stopped(number[0])))
            with _sending:
                if received and not over.is_set():
                    signal.pthread_kill(main, number[0])
        os.close(pipe)

    def report(dropped: Any) -> None:
        if not isinstance(dropped.exc_value, KeyboardInterrupt):
            hook(dropped)

    error = None
    if not _watched:
        received.clear()  # what was raised while another context ended
    with _handled_by(receive) as (before, pipe):
        if before:
            sys.unraisablehook = report
        _watched.append(over)
        threading.Thread(target=watch, args=(pipe,), daemon=True).start()
        try:
            yield
        except Exception as raised:
            if not received:
                raise
            error = raised
        except BaseException:
            received.clear()
            raise
        finally:
            _watched.remove(over)
            if sys.unraisablehook is report:  # a context of another thread has not changed it
                sys.unraisablehook = hook
            with _sending:
                over.set()
    if received:
        last = received[-1]
        received.clear()
        raise stopped(last) from error


@contextlib.contextmanager
def signals_call(handler: Callable[[int], None]) -> Iterator[None]:
    """A context in which SIGTERM, SIGHUP and SIGINT call `handler` with their number, and no more.

    The handler gets a signal that has waited for the end of an import as well. SIGHUP calls it even
    if it was ignored when the process started. The context has no effect in a thread other than the
    main thread.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    # A thread of `signals_raise` would end the process, because the handler raises nothing.
    signal.set_wakeup_fd(-1)
    for over in _watched:
        over.set()
    before = {}
    for number in {*stop_signals(), signal.SIGHUP}:
        before[number] = signal.signal(number, lambda received, frame: handler(received))
    while _received:
        handler(_received.pop())
    try:
        yield
    finally:
        for number, usual in before.items():
            signal.signal(number, usual)


def _status(interrupt: KeyboardInterrupt) -> int:
    if isinstance(interrupt, Interrupted):
        return STOPPED
    return 128 + signal.SIGINT


def _is_importing(frame: Any) -> bool:
    """Returns whether `frame` or a frame that called it imports a module."""
    names = (frame.f_globals.get("__name__") for frame, _ in traceback.walk_stack(frame))
    return "importlib._bootstrap" in names


def _handles_interrupt(thread: int) -> bool:
    """Returns whether `thread` is in an `except` or `finally` block because of an interrupt."""
    error: Any = sys._current_exceptions().get(thread)
    error = error[1] if isinstance(error, tuple) else error  # a tuple in Python 3.11
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__context__
    return error is not None


class StopSignal:
    """A context in which a first signal is a request to stop, and a second signal ends the process.

    Every host must call the `StopSignal` equally often, at the same points of the program; each
    call tells the other hosts whether this host got a signal. All hosts therefore stop after the
    same step. A request to stop is never lost, because every call after the signal sends it again.

    `saved.saved_step` is the step of the newest complete checkpoint (0: none, None: it changes
    now). If it is `clock.step`, the last step, a signal ends the run within `GRACE_SECONDS`, or
    later during compilation. `hosts` is the `HostWatch` of the run. `received` is whether this
    process got a signal, and `agreed` whether all hosts have agreed to stop.
    """

    def __init__(self, saved: Any, hosts: Any, clock: Any) -> None:
        self.received = self.agreed = False
        self._saved = saved
        self._hosts = hosts
        self._clock = clock
        self._is_alone = not hosts.is_watching
        self._unread: list[Any] = []
        self._over = threading.Event()
        self._is_overdue = False
        self._handlers = contextlib.ExitStack()

    @property
    def nothing_to_lose(self) -> bool:
        """Whether all finished training steps are saved in a checkpoint."""
        return self._saved.saved_step == self._clock.step

    def __call__(self, *, waits: bool = False) -> bool:
        """Returns whether to stop now.

        With several hosts, the result becomes True on all of them at the same call, a few calls
        after a signal; if it `waits` for the calls of all hosts, at this call.
        """
        self._unread.append(self.received if self._is_alone else self._hosts.any(self.received))
        while len(self._unread) > (0 if waits or self._is_alone else READ_AFTER):
            self.agreed |= bool(self._unread.pop(0))
        return self.agreed

    def _receive(self, number: int, frame: Any) -> None:
        # A first signal sets a flag and raises nothing: Python would drop an exception that is
        # raised in a callback, and threads of XLA, Orbax and Grain would not survive others.
        if self._is_overdue:  # `_watch` has sent the signal again
            self._is_overdue = False
            if self.nothing_to_lose and not _is_importing(frame):
                raise Interrupted(self._stopped_by(number))
            return
        name = signal_name(number)
        if self.received:
            raise Interrupted(f"stopped by a second signal ({name}) without saving a checkpoint")
        self.received = True
        what = "saving a checkpoint, then stopping"
        if self.nothing_to_lose:
            what = "stopping"
        # This does not call print, since the signal may have interrupted a call of print.
        os.write(2, f"{name}: {what}\n".encode())

    def _stopped_by(self, number: int) -> str:
        saved = "no training step was done yet, so there was nothing to save"
        if self._clock.step:
            saved = f"everything up to step {self._clock.step:,} is saved"
        return f"stopped by {signal_name(number)} ({saved})"

    def _watch(self, pipe: int) -> None:
        """Ends the run after a signal, read from `pipe`, as soon as `nothing_to_lose` is True.

        If the run goes on, the signal is sent again, to be raised as `Interrupted`; if the main
        thread does not handle that either, since it compiles, the process is ended.
        """
        while number := os.read(pipe, 1):
            while not self._over.wait(GRACE_SECONDS) and not self.nothing_to_lose:
                pass
            if self._over.is_set():
                break
            if number[0] not in self._before:
                continue
            if self._is_alone and not self._is_overdue:
                self._is_overdue = True
                # To the main thread, which wakes up if it sleeps.
                signal.pthread_kill(threading.main_thread().ident or 0, number[0])
            else:
                text = self._stopped_by(number[0])
                with contextlib.suppress(Exception):
                    self._hosts.announce(text)
                    self._hosts.leave(Interrupted(text))
                    self._hosts.stay(is_stop=True)
                os.write(2, f"{text}; run the same command again to resume\n".encode())
                os._exit(STOPPED)
        os.close(pipe)

    def __enter__(self) -> "StopSignal":
        self._before, pipe = self._handlers.enter_context(_handled_by(self._receive))
        threading.Thread(target=self._watch, args=(pipe,), daemon=True).start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._over.set()
        self._handlers.close()


@contextlib.contextmanager
def signals_deferred() -> Iterator[None]:
    """A context at whose end the first SIGINT, SIGTERM or SIGHUP in it is handled.

    A second signal is handled at once. The context has no effect on signals without a handler in
    Python, or if a thread other than the main thread enters it.
    """
    received = list[int]()
    before = dict[int, Any]()

    def receive(number: int, frame: Any) -> None:
        received.append(number)
        if len(received) > 1:
            before[number](number, frame)

    for number in stop_signals():
        if callable(signal.getsignal(number)):
            before[number] = signal.signal(number, receive)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if len(received) == 1:
        before[received[0]](received[0], None)


def signal_name(number: int) -> str:
    """Returns what a user knows the signal `number` by, such as "Ctrl-C" or "SIGTERM"."""
    if number == signal.SIGINT:
        return "Ctrl-C"
    return signal.Signals(number).name


def stop_signals() -> list[signal.Signals]:
    """Returns the signals that stop a process; only the main thread gets any.

    A signal that was ignored when the process started, as SIGHUP is under `nohup` and SIGINT in a
    job in the background of a script, remains ignored and is left out.
    """
    if threading.current_thread() is not threading.main_thread():
        return []
    names = ("SIGINT", "SIGTERM", "SIGHUP")
    numbers = [getattr(signal, name) for name in names if hasattr(signal, name)]
    return [number for number in numbers if signal.getsignal(number) is not signal.SIG_IGN]


# What `pretrain` and `benchmark` advise if the memory does not suffice.
MEMORY_REMEDY = (
    "Pretraining needs less memory with a larger --phases.0.accumulation_steps (the results are "
    "the same), --remat full, --dtype bfloat16, --mesh.fsdp on several devices, or a smaller "
    "--phases.0.batch_size or model."
)


@printable_output()
def run_reporting_errors(
    run: Callable[[], Any], memory_remedy: str = "", *, trains: bool = False
) -> int:
    """Calls `run` and returns the exit status; prints expected errors on standard error.

    Expected errors are ValueError, OSError, ImportError, and a lack of memory, for which
    `memory_remedy` names flags; BERTJAX_TRACEBACK=1 prints their traceback as well. `trains` gives
    Ctrl-C the exit status of SIGTERM; what is printed is then a mere log, of which a part may be
    lost.

    The status is 0 for success; 1 for an expected error; 75 (`STOPPED`) after a signal to a command
    that resumes its work if it is run again; 130 if Ctrl-C stopped any other work; and 141 if the
    reader of standard output ended, as in `bertjax predict ... | head`.
    """
    try:
        with signals_raise(trains=trains):
            while _held:
                signal.raise_signal(_held.pop())
            if trains:
                process.check_address_space()
            try:
                run()
            except SystemExit:  # after --help
                process.check_output(is_log=False)
                raise
            process.check_output(is_log=trains)
    except BrokenPipeError as error:
        if not _reader_ended():
            return _report(str(error))
        # Python would complain about the closed pipe when it flushes standard output at the end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    except (ValueError, OSError, ImportError) as error:
        unnamed = isinstance(error, OSError) and error.errno and not error.filename
        where = ""
        if unnamed:
            where = " (BERTJAX_TRACEBACK=1 in front of the command shows where)"
        return _report(f"{error}{where}")
    except (RuntimeError, MemoryError) as error:
        text = str(error)
        if text == "can't start new thread":
            return _report(
                "The system starts no more threads for this process: raise the limits of processes "
                "(ulimit -u) and of address space (ulimit -v), or those of the container."
            )
        if not isinstance(error, MemoryError) and "RESOURCE_EXHAUSTED" not in text:
            raise
        what = text.strip().partition("\n")[0][:300] or "no memory is left on this host"
        return _report(f"Out of memory ({what}). {memory_remedy or 'Use a smaller model.'}")
    except KeyboardInterrupt as interrupt:
        resumes = isinstance(interrupt, Interrupted)
        advice = "run the same command again" + (" to resume" if resumes else "")
        print(f"{str(interrupt) or 'interrupted'}; {advice}", file=sys.stderr)
        sys.last_value = interrupt
        return _status(interrupt)
    return 0


def leave(status: int) -> NoReturn:
    """Ends the process with the exit status of a command.

    An interrupted process ends without Python's shutdown, in which threads of XLA, Orbax and Grain
    that are still at work would crash, as would half-made objects of C++ code in the frames of the
    interrupt, which `sys.last_value` keeps. Signals that arrive from now on change nothing.
    """
    for number in stop_signals():
        signal.signal(number, signal.SIG_IGN)
    if status in (STOPPED, 128 + signal.SIGINT):
        with contextlib.suppress(OSError):  # the readers of the output may have ended
            sys.stdout.flush()
        os._exit(status)
    sys.exit(status)


def _reader_ended() -> bool:
    poll = select.poll()
    poll.register(sys.stdout.fileno(), select.POLLOUT)
    return any(event & select.POLLERR for _, event in poll.poll(0))


def _report(message: str) -> int:
    """Prints an error message, after the traceback if BERTJAX_TRACEBACK is set; returns 1."""
    if os.environ.get("BERTJAX_TRACEBACK"):
        traceback.print_exc()
    sys.stdout.flush()
    print(f"error: {message}", file=sys.stderr)
    return 1
