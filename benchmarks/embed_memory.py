"""Measures peak memory of `python -m bertjax.predict --embed` for several file lengths (Linux).

    python benchmarks/embed_memory.py --model DIR [--lines 10000 60000]

The peak should not depend on the number of lines.
"""

import argparse
import tempfile
from pathlib import Path

from memory import peak_of


def main() -> None:
    """Prints the peak, without imports, for each number of lines and each output format."""
    parser = argparse.ArgumentParser(description="Peak memory of embedding a file.")
    parser.add_argument("--model", required=True)
    parser.add_argument("--lines", type=int, nargs="+", default=[10_000, 60_000])
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for ending in (".npy", ".jsonl"):
            for count in args.lines:
                source = Path(folder) / "lines.txt"
                with source.open("w", encoding="utf-8") as file:
                    file.writelines(f"line {i} of {count}\n" for i in range(count))
                output = Path(folder) / f"vectors{ending}"
                flags = ["--model", args.model, "--embed", str(source), "--output", str(output)]
                peak = peak_of("bertjax.predict", flags)
                size = output.stat().st_size
                print(f"{count:,} lines to {ending}: peak {peak / 1e6:.0f} MB", end=", ")
                print(f"output {size / 1e6:.0f} MB", flush=True)


if __name__ == "__main__":
    main()
