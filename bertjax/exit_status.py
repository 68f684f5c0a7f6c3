"""Runs a command: prints expected errors in one line, and returns the exit status."""

import contextlib
import os
import select
import signal
import sys
import traceback
from collections.abc import Callable
from typing import Any, NoReturn

from bertjax.interruption import STOPPED, Interrupted, signals_raise, stop_signals

# What `pretrain` and `benchmark` advise if the memory does not suffice.
MEMORY_REMEDY = (
    "Pretraining needs less memory with a larger --phases.0.accumulation_steps (the results are "
    "the same), --remat full, --dtype bfloat16, --mesh.fsdp on several devices, or a smaller "
    "--phases.0.batch_size or model."
)


def run_reporting_errors(
    run: Callable[[], Any], memory_remedy: str = "", *, trains: bool = False
) -> int:
    """Calls `run` and returns the exit status; prints expected errors on standard error.

    Expected errors are ValueError, OSError, ImportError, and a lack of memory on the host or on a
    device; other errors are raised. With the environment variable BERTJAX_TRACEBACK=1, the
    traceback of an expected error is printed as well.

    Args:
        run: a function that parses the flags and runs the command.
        memory_remedy: a sentence that names the flags with which the command needs less memory.
        trains: whether the command trains, so that Ctrl-C has the exit status of SIGTERM.

    Returns:
        0 for success; 1 for an expected error; 75 (`STOPPED`) if SIGTERM, SIGHUP or, in training,
        Ctrl-C stopped the command, which resumes its work if it is run again; 130 if Ctrl-C stopped
        any other work; and 141 if the reader of standard output ended, as in
        `bertjax predict ... | head`.
    """
    try:
        with signals_raise(*(["SIGINT"] if trains else [])):
            run()
        sys.stdout.flush()
    except BrokenPipeError as error:
        if not _reader_ended():
            return _report(str(error))
        # Python would complain about the closed pipe when it flushes standard output at the end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    except (ValueError, OSError, ImportError) as error:
        return _report(str(error))
    except (RuntimeError, MemoryError) as error:
        text = str(error)
        if not isinstance(error, MemoryError) and "RESOURCE_EXHAUSTED" not in text:
            raise
        what = text.strip().partition("\n")[0][:300] or "no memory is left on this host"
        return _report(f"Out of memory ({what}). {memory_remedy or 'Use a smaller model.'}")
    except KeyboardInterrupt as interrupt:
        resumes = isinstance(interrupt, Interrupted)
        advice = "run the same command again" + (" to resume" if resumes else "")
        print(f"{str(interrupt) or 'interrupted'}; {advice}", file=sys.stderr)
        return STOPPED if resumes else 128 + signal.SIGINT
    return 0


def leave(status: int) -> NoReturn:
    """Ends the process with the exit status of a command.

    An interrupted process ends without Python's shutdown, in which threads of XLA, Orbax and Grain
    that are still at work would crash. Signals that arrive from now on change nothing.
    """
    for number in stop_signals():
        signal.signal(number, signal.SIG_IGN)
    if status in (STOPPED, 128 + signal.SIGINT):
        with contextlib.suppress(OSError):  # the readers of the output may have ended
            sys.stdout.flush()
        os._exit(status)
    sys.exit(status)


def _reader_ended() -> bool:
    """Returns whether standard output is a pipe whose reader has ended."""
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
