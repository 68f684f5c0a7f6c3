"""Measures peak memory of commands in separate processes (Linux)."""

import os
import subprocess
import sys
import time
from collections.abc import Sequence

CHILD = """
import importlib, sys, threading, time
command = importlib.import_module(sys.argv[1])

def anonymous():
    lines = open("/proc/self/status").read().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon"))

peak = before = anonymous()
done = False

def watch():
    global peak
    while not done:
        peak = max(peak, anonymous())
        time.sleep(0.002)

threading.Thread(target=watch, daemon=True).start()
status = command.main(sys.argv[2:])
done = True
print("peak", peak - before)
sys.exit(status)
"""


def peak_of(module: str, argv: Sequence[str]) -> int:
    """Returns the peak anonymous memory of `python -m module argv`, in bytes, without imports."""
    child = [sys.executable, "-c", CHILD, module, *argv]
    done = subprocess.run(child, stdout=subprocess.PIPE, text=True, check=True)
    return int(done.stdout.split("peak")[-1])


def peak_rss(command: Sequence[str]) -> tuple[float, int]:
    """Runs a command; returns its seconds and peak resident memory in bytes, imports included."""
    begin = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} failed with status {process.returncode}.")
    return time.perf_counter() - begin, usage.ru_maxrss * 1024
