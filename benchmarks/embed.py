"""Compares the throughput of sentence embeddings with PyTorch on the same device.

    python benchmarks/embed.py --model DIR [--sentences 2000] [--rounds 5]

The sentences have mixed lengths. Both sides sort them by length, tokenize, pad, run the encoder and
apply mean pooling, after a warm-up. Needs the extra `parity`.
"""

import argparse
import statistics
import time

import numpy as np
import torch
import transformers

from bertjax.data.text.corpus import Corpus
from bertjax.data.text.documents import sentences_of
from bertjax.inference.embed import Embedder
from bertjax.weights import load_model

BATCH = 32


def sentences(count: int) -> list[str]:
    """Returns sentences of the documentation of Python, evenly spaced."""
    every = [s for d in Corpus(["pydocs"]).documents() for s in sentences_of(d)]
    return every[:: len(every) // count][:count]


class PyTorchEmbedder:
    """Embeds with transformers in float32; batches are padded to their longest sentence."""

    def __init__(self, directory: str):
        self._tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
        self._model = transformers.AutoModel.from_pretrained(directory).eval()

    def __call__(self, texts: list[str]) -> np.ndarray:
        rows = self._tokenizer(texts, truncation=True)["input_ids"]
        order = np.argsort([len(row) for row in rows], kind="stable")
        vectors = np.empty((len(texts), self._model.config.hidden_size), np.float32)
        with torch.inference_mode():
            for start in range(0, len(order), BATCH):
                chosen = order[start : start + BATCH]
                batch = self._tokenizer.pad(
                    {"input_ids": [rows[i] for i in chosen]}, return_tensors="pt"
                )
                hidden = self._model(**batch).last_hidden_state
                weights = batch["attention_mask"][:, :, None].float()
                vectors[chosen] = ((hidden * weights).sum(1) / weights.sum(1)).numpy()
        return vectors


def main() -> None:
    """Prints sentences per second of both sides, and their ratio."""
    parser = argparse.ArgumentParser(description="Compares embedding throughput with PyTorch.")
    parser.add_argument("--model", required=True)
    parser.add_argument("--sentences", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    texts = sentences(args.sentences)
    sides = {
        "bertjax": Embedder(load_model(args.model, "encoder"), pooling="mean"),
        "PyTorch": PyTorchEmbedder(args.model),
    }
    first = {name: embed(texts) for name, embed in sides.items()}  # compiles, warms up
    print(f"largest difference {np.abs(first['bertjax'] - first['PyTorch']).max():.2e}")
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(args.rounds):
        for name, embed in sides.items():
            start = time.perf_counter()
            embed(texts)
            seconds[name].append(time.perf_counter() - start)
    for name, times in seconds.items():
        print(f"{name}: {len(texts) / statistics.median(times):.0f} sentences/s (median)")
    ratios = [b / a for a, b in zip(seconds["bertjax"], seconds["PyTorch"], strict=True)]
    print(f"bertjax / PyTorch: {statistics.median(ratios):.2f}, rounds {np.round(ratios, 2)}")


if __name__ == "__main__":
    main()
