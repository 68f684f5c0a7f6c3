"""What a command settles for its own process, before any other module of the package is imported.

Standard streams that are closed lead to /dev/null, so that no file that is opened later gets their
numbers; what a full disk or a closed stream does not take is left out, and `check_output` says so.
Variables of JAX that would change results in silence are taken out of the environment. Scripts that
import the package keep their streams and their environment.
"""

import atexit
import errno
import os
import shutil
import sys
from collections.abc import Callable, Iterable
from typing import Any

from bertjax.base.printable import unfiltered

# rich would never end in a terminal, or with a variable COLUMNS, of less than 5 columns.
LEAST_WIDTH = 20
# The bytes of address space with which a training on two cores has room for all of its threads.
LEAST_ADDRESS_SPACE = 3_000_000_000
# Variables that change numbers, or refuse copies to devices: a command has no use for them.
IGNORED = (
    "JAX_ENABLE_X64",
    "JAX_EXPLICIT_X64_DTYPES",
    "JAX_NUMPY_DTYPE_PROMOTION",
    "JAX_DEFAULT_PRNG_IMPL",
    "JAX_ENABLE_CUSTOM_PRNG",
    "JAX_RANDOM_SEED_OFFSET",
    "JAX_THREEFRY_PARTITIONABLE",
    "JAX_THREEFRY_GPU_KERNEL_LOWERING",
    "JAX_LEGACY_PRNG_KEY",
    "JAX_HIGH_DYNAMIC_RANGE_GUMBEL",
    "JAX_SOFTMAX_CUSTOM_JVP",
    "JAX_DISABLE_JIT",
    "JAX_TRANSFER_GUARD",
    "JAX_TRANSFER_GUARD_HOST_TO_DEVICE",
    "JAX_TRANSFER_GUARD_DEVICE_TO_HOST",
    "JAX_TRANSFER_GUARD_DEVICE_TO_DEVICE",
)


def is_command() -> bool:
    """Returns whether this process is `bertjax ...` or `python -m bertjax...`."""
    program = (sys.orig_argv[-len(sys.argv) :] or [""])[0]  # the module, or the script `bertjax`
    return os.path.basename(program).removeprefix("-m").partition(".")[0] == "bertjax"


def settle() -> None:
    """Settles the streams, the width of texts and the environment of a command."""
    _open_streams()
    if 0 < shutil.get_terminal_size().columns < LEAST_WIDTH:
        os.environ["COLUMNS"] = str(LEAST_WIDTH)
    ignored = [f"{name}={os.environ.pop(name)}" for name in IGNORED if name in os.environ]
    if ignored:
        print(
            f"note: {', '.join(ignored)} in the environment is ignored: results of a command do "
            "not depend on it (docs/reliability.md, Equal bits)",
            file=sys.stderr,
        )


def check_address_space() -> None:
    """Raises OSError if this process may use too little address space to train.

    jax and the readers of the data start threads, which reserve much more than they use. Without
    it, some of them wait forever for threads that do not start.
    """
    if sys.platform == "win32":
        return
    import resource

    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    if 0 <= limit < LEAST_ADDRESS_SPACE:  # -1: no limit
        raise OSError(
            f"This process may reserve {limit:,} bytes of address space (ulimit -v); a training "
            f"needs {LEAST_ADDRESS_SPACE:,}, most of which it never uses: raise the limit (ulimit "
            "-v unlimited), and limit the memory by a container or a job of the cluster."
        )


class _Output:
    """A standard stream of a command; what it cannot write is left out, and `lost` says why.

    If it `is_needed`, because its text is the result of the command, the error is raised.
    """

    def __init__(self, stream: Any):
        self._stream = stream
        self.lost = None
        self.is_needed = False

    def write(self, text: str) -> int:
        self._try(self._stream.write, text)
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        self.write("".join(lines))

    def flush(self) -> None:
        self._try(self._stream.flush)

    def _try(self, write: Callable[..., Any], *text: str) -> None:
        try:
            write(*text)
        except BrokenPipeError:  # which ends the command, as in `bertjax predict ... | head`
            raise
        except OSError as error:
            self.lost = error
            if self.is_needed:
                raise _output_error(error) from error

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def _open_streams() -> None:
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            # This gets the least number that is free. What is written there is an error (EBADF).
            os.open(os.devnull, os.O_RDONLY)
            os.set_inheritable(number, True)
        if number:
            stream = getattr(sys, name) or open(number, "w", encoding="utf-8", closefd=False)
            output = _Output(stream)
            setattr(sys, name, output)
            atexit.register(_discard_lost, output, number)


def _discard_lost(output: _Output, number: int) -> None:
    """Sends to nowhere what a stream could not write: Python 3.13 would report it once more."""
    if output.lost is not None:
        os.dup2(os.open(os.devnull, os.O_WRONLY), number)


def need_output() -> None:
    """Makes a command whose result is printed end at once if standard output cannot be written."""
    if isinstance(stream := unfiltered(sys.stdout), _Output):
        stream.is_needed = True


def check_output(*, is_log: bool) -> None:
    """Says that a part of what was printed is lost, if it is, after the work is done.

    If it `is_log`, which somebody may do without, this is a warning, and nothing if standard output
    was closed when the command started.

    Raises:
        OSError: standard output could not be written, and it is no log.
    """
    sys.stdout.flush()
    lost = getattr(sys.stdout, "lost", None)
    if lost is not None and not is_log:
        raise _output_error(lost)
    if lost is not None and lost.errno != errno.EBADF:
        print(f"warning: {_output_error(lost)} The run itself is complete.", file=sys.stderr)


def _output_error(error: OSError) -> OSError:
    return OSError(
        f"Standard output could not be written ({error}), so that a part of what was printed is "
        "lost: make room, or send it to another place, as with > FILE or > /dev/null."
    )
