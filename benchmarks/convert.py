"""Peak anonymous memory of a conversion, above what stood after the imports (Linux).

    python benchmarks/convert.py [--size bert-base-uncased]

Writes a model with random weights, converts it in a fresh process, and prints the peak beside the
size of the weights.
"""

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

from bertjax.model import BertForPreTraining, named_config
from bertjax.tokenization import WordPieceTokenizer
from bertjax.tokenization.wordpiece import SPECIAL_TOKENS
from bertjax.weights import init_params, save_hf

CHILD = """
import sys, threading, time
from bertjax import convert

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
status = convert.main(sys.argv[1:])
done = True
print("peak", peak - before)
sys.exit(status)
"""


def main() -> None:
    """Prints the weights' size, the peak and their ratio."""
    parser = argparse.ArgumentParser(description="Peak memory of bertjax.convert.")
    parser.add_argument("--size", default="bert-base-uncased")
    args = parser.parse_args()
    config = named_config(args.size)
    words = [f"w{i}" for i in range(config.vocab_size - len(SPECIAL_TOKENS))]
    vocab = {token: i for i, token in enumerate([*SPECIAL_TOKENS, *words])}
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "source"
        params = init_params(BertForPreTraining(config), 0)
        save_hf(source, params, config, WordPieceTokenizer(vocab, do_lower_case=True))
        size = (source / "model.safetensors").stat().st_size
        done = subprocess.run(
            [sys.executable, "-c", CHILD, str(source), str(Path(folder) / "target")],
            capture_output=True,
            text=True,
            check=True,
        )
    peak = int(done.stdout.split("peak")[-1])
    print(f"weights {size / 1e6:.0f} MB, peak {peak / 1e6:.0f} MB: {peak / size:.2f} x")


if __name__ == "__main__":
    main()
