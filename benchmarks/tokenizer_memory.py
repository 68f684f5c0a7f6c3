"""Measures peak memory of `python -m bertjax.train_tokenizer` on large text (Linux).

    python benchmarks/tokenizer_memory.py --text FILE_OR_FOLDER [--megabytes 1000] [--varied 0.1]

The text is repeated until it is large enough. In each repetition a share of the words is replaced
by random words, so that the number of distinct words grows as in text without repetition.
"""

import argparse
import random
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from memory import peak_rss

from bertjax.data.text.corpus import Corpus
from bertjax.data.text.sentences import sentences_of

KINDS = ("wordpiece", "bpe", "unigram")
LETTERS = "aabcdeeefghiijklmnnooprrssttuvwyz"


def sentences(text: str) -> Iterator[str]:
    """Yields the sentences of the text in an endless loop."""
    while True:
        for document in Corpus([text]).documents():
            yield from sentences_of(document)


def vary(sentence: str, share: float, rng: random.Random) -> str:
    """Replaces a share of the words of a sentence by random letters."""
    return " ".join(
        "".join(rng.choices(LETTERS, k=max(4, len(word)))) if rng.random() < share else word
        for word in sentence.split()
    )


def write(path: Path, text: str, megabytes: int, varied: float) -> tuple[int, int]:
    """Writes the varied text; returns its number of words and an estimate of distinct words."""
    rng = random.Random(0)
    size = words = 0
    seen: set[int] = set()
    with path.open("w", encoding="utf-8") as file:
        for sentence in sentences(text):
            line = vary(sentence, varied, rng) + "\n"
            file.write(line)
            size += len(line.encode())
            split = line.split()
            words += len(split)
            seen.update(h for word in split if not (h := hash(word)) % 64)
            if size >= megabytes * 1_000_000:
                return words, 64 * len(seen)
    raise AssertionError("sentences never end")


def main() -> None:
    """Prints peak memory and time for each kind of tokenizer."""
    parser = argparse.ArgumentParser(description="Peak memory of training a tokenizer.")
    parser.add_argument("--text", required=True)
    parser.add_argument("--megabytes", type=int, default=1000)
    parser.add_argument("--varied", type=float, default=0.1)
    parser.add_argument("--kinds", nargs="+", default=KINDS, choices=KINDS)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "text.txt"
        words, distinct = write(path, args.text, args.megabytes, args.varied)
        print(f"{args.megabytes} MB, {words:,} words, about {distinct:,} distinct", flush=True)
        for kind in args.kinds:
            command = [sys.executable, "-m", "bertjax.train_tokenizer", f"--input={path}"]
            command += [f"--kind={kind}", f"--output={folder}/{kind}", "--vocab_size=30000"]
            seconds, peak = peak_rss([*command, "--text_format=lines"])
            print(f"{kind}: peak RSS {peak / 1e6:,.0f} MB, {seconds:.0f} s", flush=True)


if __name__ == "__main__":
    main()
