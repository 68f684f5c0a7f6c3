"""Measures peak memory of `python -m bertjax.mine` on many passages, killed and resumed (Linux).

    python benchmarks/mine_memory.py --model DIR [--passages 1000000] [--queries 2000] [--kills 4]

The passages are random words. One run is never killed; another is killed while it embeds, and while
it mines, and run again until it ends. Both must write the same bytes.
"""

import argparse
import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

LETTERS = "aabcdeeefghiijklmnnooprrssttuvwyz"


def write_inputs(folder: Path, passages: int, queries: int) -> None:
    """Writes corpus.txt, and pairs.jsonl with a passage as the positive of each query."""
    rng = random.Random(0)
    words = ["".join(rng.choices(LETTERS, k=rng.randint(2, 7))) for _ in range(5000)]
    with (folder / "corpus.txt").open("w") as file, (folder / "pairs.jsonl").open("w") as pairs:
        for number in range(passages):
            text = " ".join(rng.choices(words, k=rng.randint(4, 8)))
            file.write(text + "\n")
            if number < queries:
                query = " ".join(text.split()[:3])
                pairs.write(json.dumps({"query": query, "positive": text}) + "\n")


def written(output: Path) -> int:
    """Returns the bytes of the partial files of an output."""
    return sum(path.stat().st_size for path in output.parent.glob("*.partial"))


def run(command: list[str], output: Path, until: int | None) -> tuple[int, bool]:
    """Runs a command, and kills it when its partial files have `until` bytes, if not None.

    Returns its peak resident memory in bytes, imports included, and whether it came to its end.
    """
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    status = usage = None
    while status is None:
        pid, code, usage = os.wait4(process.pid, os.WNOHANG)
        status = code if pid else None
        if pid == 0 and until is not None and written(output) >= until:
            os.kill(process.pid, signal.SIGKILL)
            until = None
        time.sleep(0.05)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode not in (0, -signal.SIGKILL):
        raise SystemExit(f"{' '.join(command)} failed with status {process.returncode}.")
    assert usage is not None
    return usage.ru_maxrss * 1024, process.returncode == 0


def main() -> None:
    """Prints the peaks and whether the outputs are equal."""
    parser = argparse.ArgumentParser(description="Peak memory of mining hard negatives.")
    parser.add_argument("--model", required=True)
    parser.add_argument("--passages", type=int, default=1_000_000)
    parser.add_argument("--queries", type=int, default=2000)
    parser.add_argument("--kills", type=int, default=4)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_inputs(folder, args.passages, args.queries)
        hashes, total = [], 0
        for kind in ("whole", "killed"):
            output = folder / kind / "mined.jsonl"
            output.parent.mkdir()
            command = [sys.executable, "-m", "bertjax.mine", "--model", args.model]
            command += ["--queries", f"{folder}/pairs.jsonl", "--corpus", f"{folder}/corpus.txt"]
            command += ["--output", str(output), "--num_negatives", "5"]
            begin, peaks, kills, ended = time.monotonic(), [], 0, False
            while not ended:
                # The vectors are written first, and most of the bytes.
                share = (
                    (kills + 1) / args.kills if kind == "killed" and kills < args.kills else None
                )
                peak, ended = run(command, output, share and int(share * total))
                peaks.append(peak)
                kills += not ended
            if kind == "whole":
                config = json.loads((Path(args.model) / "config.json").read_text())
                # Vectors, and half of the lines.
                total = 4 * args.passages * config["hidden_size"] + output.stat().st_size // 2
            data = output.read_bytes()
            hashes.append(hashlib.sha256(data).hexdigest())
            print(
                f"{kind}: {len(data.splitlines()):,} lines, killed {kills} times, peak RSS "
                f"{max(peaks) / 1e6:,.0f} MB, {time.monotonic() - begin:.0f} s, "
                f"files left {len(list(output.parent.iterdir())) - 1}",
                flush=True,
            )
        print("the same bytes" if hashes[0] == hashes[1] else "DIFFERENT BYTES")


if __name__ == "__main__":
    main()
