"""Measures peak anonymous memory of `bertjax.convert`, without imports (Linux).

    python benchmarks/convert.py [--size bert-base-uncased]

Writes a model with random weights, converts it in a new process, and prints the peak and the size
of the weights.
"""

import argparse
import tempfile
from pathlib import Path

from memory import peak_of

from bertjax.model import BertForPreTraining, named_config
from bertjax.tokenization import WordPieceTokenizer
from bertjax.tokenization.base import SPECIAL_TOKENS
from bertjax.weights import init_params, save_hf


def main() -> None:
    """Prints the size of the weights, the peak and their ratio."""
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
        peak = peak_of("bertjax.convert", [str(source), str(Path(folder) / "target")])
    print(f"weights {size / 1e6:.0f} MB, peak {peak / 1e6:.0f} MB: {peak / size:.2f} x")


if __name__ == "__main__":
    main()
