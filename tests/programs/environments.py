"""Runs the tests in environments that differ from a developer's terminal.

    python -m tests.programs.environments [--only NAME ...] [-- ARGUMENTS OF PYTEST]

`--only "all at once"` takes the time of one run.

As under `nohup` and in the background of a script, where signals are ignored; without a terminal;
in one that shows nothing, or a column; with colours; with another folder for temporary files;
without a home folder; and as a user without a name, as in a container. The status is 0 if all tests
pass in each.
"""

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time

# A process that a program starts ignores what the program has ignored.
IGNORING = """
import os, signal, sys
for name in ("SIGHUP", "SIGINT", "SIGPIPE"):
    signal.signal(getattr(signal, name), signal.SIG_IGN)
os.execvp(sys.argv[1], sys.argv[1:])
"""
NAMELESS = ["unshare", "--user", "--map-user=12345", "--map-group=12345"]
OF_USER = ("HOME", "USER", "LOGNAME", "XDG_CACHE_HOME")


def environments(folder):
    """{name: (command in front of pytest, variables to set, variables to leave out)}."""
    return {
        "signals ignored": ([sys.executable, "-c", IGNORING], {}, ()),
        "nohup": (["nohup"], {}, ()),
        "no terminal": (["setsid", "--wait"], {}, ("TERM",)),
        "TERM=dumb": ([], {"TERM": "dumb"}, ()),
        "COLUMNS=1": ([], {"COLUMNS": "1", "LINES": "1"}, ()),
        "colours": ([], {"FORCE_COLOR": "1"}, ()),
        "another TMPDIR": ([], {"TMPDIR": folder}, ()),
        "no HOME": ([], {}, ("HOME",)),
        "no name": (NAMELESS, {"PYTHONDONTWRITEBYTECODE": "1"}, OF_USER),
        "all at once": (
            [sys.executable, "-c", IGNORING, "setsid", "--wait", *NAMELESS],
            {"TERM": "dumb", "COLUMNS": "1", "LINES": "1", "TMPDIR": folder},
            OF_USER,
        ),
    }


def run(name, environment, arguments):
    """Runs pytest, prints a line about it, and returns its status."""
    command, given, missing = environment
    variables = {key: value for key, value in os.environ.items() if key not in missing}
    start = time.monotonic()
    done = subprocess.run(
        [*command, sys.executable, "-m", "pytest", "-q", *arguments],
        env=variables | given,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    lines = done.stdout.strip().splitlines()
    for line in lines:
        if line.startswith(("FAILED", "ERROR")):
            print(f"  {line}")
    result = "passed" if done.returncode == 0 else f"status {done.returncode}"
    last = lines[-1] if lines else ""
    print(f"{name}: {result}, {time.monotonic() - start:.0f} s: {last}", flush=True)
    return done.returncode


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", help="names of environments; default: all")
    options, arguments = parser.parse_known_args()
    arguments = [word for word in arguments if word != "--"]
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with tempfile.TemporaryDirectory(prefix="another-folder-") as folder:
        places = environments(folder)
        names = options.only or list(places)
        statuses = [run(name, places[name], arguments) for name in names]
    return 1 if any(statuses) else 0


if __name__ == "__main__":
    sys.exit(main())
