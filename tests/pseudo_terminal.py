"""Runs a program on a pseudo-terminal, as a user sees it."""

import os
import pty
import subprocess
from collections.abc import Sequence


def shown_on_terminal(command: Sequence[str], *, stdout: int | None = None, **env: str) -> str:
    """Runs a program and returns what its terminal shows, with all control codes.

    Args:
        command: the program and its arguments, which must end with status 0.
        stdout: the file descriptor of its standard output; None: the terminal.
        env: environment variables besides those of this process.
    """
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        command,
        stdout=theirs if stdout is None else stdout,
        stderr=theirs,
        env=os.environ | {"TERM": "xterm-256color"} | env,
    )
    os.close(theirs)
    shown = b""
    try:
        while part := os.read(ours, 1 << 16):
            shown += part
    except OSError:  # how Linux says that the other side is closed
        pass
    os.close(ours)
    assert process.wait() == 0
    return shown.decode()
