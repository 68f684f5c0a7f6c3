"""Measures the speed of `bertjax.prepare`, and its peak memory for growing input.

    python benchmarks/prepare.py --input text.tar.xz --tokenizer vocab.txt [--first_mb 20]
    python benchmarks/prepare.py --input text.tar.xz --tokenizer vocab.txt --runner direct --parts 4

Prepares a quarter and a half of the input, copied to text files, and then the whole input, each in
new processes, and prints one line for each. With --first_mb only the first megabytes are used. The
time includes start-up and, for the whole input, decompression. Other flags are passed to
`bertjax.prepare`.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import psutil

from bertjax.data.text.corpus import Corpus
from bertjax.data.text.sentences import Document

SHARES = (0.25, 0.5, 1.0)
SECONDS_BETWEEN_SAMPLES = 0.05


def main() -> None:
    """Writes the shares of the input and runs `prepare` on each."""
    parser = argparse.ArgumentParser(
        description="Speed and peak memory of bertjax.prepare.", allow_abbrev=False
    )
    parser.add_argument("--input", nargs="+", required=True, help="as for bertjax.prepare")
    parser.add_argument("--tokenizer", required=True)
    parser.add_argument("--first_mb", type=float, default=None, help="maximum megabytes of text")
    args, flags = parser.parse_known_args()
    flags += ["--tokenizer", args.tokenizer]
    with tempfile.TemporaryDirectory() as folder:
        shares, whole_bytes = write_shares(Corpus(args.input), Path(folder), args.first_mb)
        print(
            f"{'text MB':>8} {'seconds':>8} {'MB/s':>6} {'seq/s':>8}  peak RSS of each process, MB"
        )
        for number, path in enumerate(shares):
            measure([str(path)], path.stat().st_size, Path(folder) / f"out{number}", flags)
        if args.first_mb is None:
            measure(args.input, whole_bytes, Path(folder) / "out", flags)


def write_shares(corpus: Corpus, folder: Path, first_mb: float | None) -> tuple[list[Path], int]:
    """Writes all documents, and the shares; returns their paths and the total bytes."""
    whole = folder / "whole.txt"
    limit = float("inf") if first_mb is None else first_mb * 1e6
    ends = [0]
    with whole.open("wb") as file:
        for document in corpus.documents():
            file.write(as_wiki(document))
            ends.append(file.tell())
            if ends[-1] >= limit:
                break
    paths = []
    for share in SHARES[:-1]:
        size = max(end for end in ends if end <= share * ends[-1])
        paths.append(folder / f"{share:.0%}.txt")
        with whole.open("rb") as source, paths[-1].open("wb") as target:
            while size and (block := source.read(min(size, 1 << 20))):
                size -= target.write(block)
    if first_mb is not None:
        paths.append(whole)
    return paths, ends[-1]


def as_wiki(document: Document) -> bytes:
    """Returns the document in WikiExtractor's format, so that it is read as one document."""
    return f'<doc id="0">\n{document.text}\n</doc>\n'.encode()


def measure(inputs: list[str], size: int, output: Path, flags: list[str]) -> None:
    """Runs `prepare` and prints time, speed and memory."""
    command = [sys.executable, "-m", "bertjax.prepare", "--input", *inputs]
    command += ["--output", str(output), *flags]
    begin = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    peaks: dict[int, int] = {}
    sampler = threading.Thread(target=watch, args=(process.pid, peaks))
    sampler.start()
    status = process.wait()
    seconds = time.perf_counter() - begin
    sampler.join()
    if status:
        sys.exit(status)
    metadata = json.loads((output / "metadata.json").read_text())
    sequences = sum(
        content["sequences"]
        for split in metadata["splits"].values()
        for content in split["lengths"].values()
    )
    megabytes = size / 1e6
    memory = " ".join(f"{peak / 1e6:.0f}" for peak in sorted(peaks.values(), reverse=True))
    print(
        f"{megabytes:8.1f} {seconds:8.2f} {megabytes / seconds:6.2f} {sequences / seconds:8.0f}  "
        f"{memory}"
    )


def watch(pid: int, peaks: dict[int, int]) -> None:
    """Records the peak resident memory of a process and its children until it ends."""
    try:
        parent = psutil.Process(pid)
        while parent.is_running() and parent.status() != psutil.STATUS_ZOMBIE:
            for process in (parent, *parent.children(recursive=True)):
                try:
                    peaks[process.pid] = max(peaks.get(process.pid, 0), process.memory_info().rss)
                except psutil.NoSuchProcess:
                    continue
            time.sleep(SECONDS_BETWEEN_SAMPLES)
    except psutil.NoSuchProcess:
        return


if __name__ == "__main__":
    main()
