"""Measures peak anonymous memory of a command in a separate process (Linux)."""

import subprocess
import sys
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
    """Returns the peak memory of `python -m module argv` in bytes, without its imports."""
    child = [sys.executable, "-c", CHILD, module, *argv]
    done = subprocess.run(child, stdout=subprocess.PIPE, text=True, check=True)
    return int(done.stdout.split("peak")[-1])
