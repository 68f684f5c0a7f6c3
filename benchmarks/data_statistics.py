"""Compares statistics of masked training rows with the expected values of the masking rules.

    python benchmarks/data_statistics.py --data DIR --max_length 128 [--rows 100000]
        [--whole_word_masking] [--max_ngram 3]

Deviations are in sigma of the expected share; labels and lengths are those of the rows read.
"""

import argparse
import itertools

import numpy as np
from input import masked_batches

from bertjax.data.batches.batch import Batch
from bertjax.data.batches.masking import Masking

BATCH = 100


def broken_words(batch: Batch, masking: Masking) -> int:
    """Returns how many words of the batch are predicted in part; 0 without whole words."""
    if masking.word_starts is None:
        return 0
    broken = 0
    for ids, sequences, positions, labels, weights in zip(
        *(batch[key] for key in ("input_ids", "sequence_ids", "masked_positions")),
        *(batch[key] for key in ("masked_labels", "masked_weights")),
        strict=True,
    ):
        ids, predicted = ids.copy(), np.zeros(len(ids), bool)
        positions, labels = positions[weights > 0], labels[weights > 0]
        ids[positions], predicted[positions] = labels, True
        maskable = np.flatnonzero((sequences > 0) & masking.maskable[ids])
        first = np.diff(sequences[maskable], prepend=0) > 0
        words = np.cumsum(masking.word_starts[ids[maskable]] | first)
        size, hits = np.bincount(words), np.bincount(words, predicted[maskable])
        broken += int(((hits > 0) & (hits < size)).sum())
    return broken


def print_replacements(new: np.ndarray, old: np.ndarray, masking: Masking) -> None:
    """Prints shares of the kinds of replacements; `new` replaces the predicted tokens `old`."""
    same = 0.1 / masking.vocab_size
    is_mask, is_old = new == masking.mask_token_id, new == old
    for name, hits, expected in (
        ("[MASK]", is_mask, 0.8 + same),
        ("kept", is_old, 0.1 + same),
        ("random", ~is_mask & ~is_old, 0.1 - 2 * same),
    ):
        sigma = np.sqrt(expected * (1 - expected) / len(new))
        deviation = (hits.mean() - expected) / sigma
        print(f"{name:8} {hits.mean():.4%}, expected {expected:.4%}: {deviation:+.2f} sigma")
    random_words = new[~is_mask & ~is_old]
    cells = np.delete(
        np.bincount(random_words, minlength=masking.vocab_size), masking.mask_token_id
    )
    chi_square = ((cells - cells.mean()) ** 2 / cells.mean()).sum()
    deviation = (chi_square - len(cells)) / np.sqrt(2 * len(cells))
    print(
        f"random words: {np.count_nonzero(cells):,} of {len(cells):,} drawn, "
        f"deviation from uniform {deviation:+.2f} sigma"
    )


def main() -> None:
    """Reads the rows and prints one line per statistic."""
    parser = argparse.ArgumentParser(description="Statistics of masked training rows.")
    parser.add_argument("--data", required=True)
    parser.add_argument("--max_length", type=int, default=128)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--whole_word_masking", action="store_true")
    parser.add_argument("--max_ngram", type=int, default=1)
    args = parser.parse_args()
    words = {"whole_word_masking": args.whole_word_masking, "max_ngram": args.max_ngram}
    batches, masking, most = masked_batches(args.data, args.max_length, BATCH, 2, **words)
    lengths, labels, became, was, predictions, wanted = [], [], [], [], [], []
    broken = 0
    for batch in itertools.islice(batches, args.rows // BATCH):
        real = batch["masked_weights"] > 0
        # The number of tokens of each sequence [rows, sequences]; 0: no such sequence.
        places = np.arange(1, most + 1)
        length = (batch["sequence_ids"][:, None] == places[:, None]).sum(2)
        lengths.append(length.sum(1))
        labels.append(batch["labels"].ravel())
        predictions.append(real.sum(1))
        each = np.where(length, np.maximum(1, np.rint(0.15 * length)), 0)
        wanted.append(np.minimum(masking.max_predictions, each.sum(1)))
        broken += broken_words(batch, masking)
        became.append(np.take_along_axis(batch["input_ids"], batch["masked_positions"], 1)[real])
        was.append(batch["masked_labels"][real])
    n, new, old = (np.concatenate(x) for x in (lengths, became, was))
    share = np.concatenate(predictions).sum() / n.sum()
    print(f"rows {len(n):,}, tokens {n.sum():,}, masked {len(new):,}: {share:.4%} of the tokens")
    missing = np.concatenate(wanted) - np.concatenate(predictions)
    print(
        "rows that predict fewer tokens than max(1, round(0.15 n)) of each sequence: "
        f"{(missing > 0).sum():,} ({missing.sum() / np.concatenate(wanted).sum():.3%} of the "
        f"tokens); more: {(missing < 0).sum():,}"
    )
    if masking.word_starts is not None:
        print(f"words that are predicted in part: {broken:,}")
    print_replacements(new, old, masking)
    classes, counts = np.unique(np.concatenate(labels), return_counts=True)
    print(
        "labels", {int(c): f"{k / counts.sum():.4%}" for c, k in zip(classes, counts, strict=True)}
    )
    print(
        "lengths", {q: int(np.percentile(n, q)) for q in (1, 5, 10, 25, 50, 100)}, "by percentile"
    )


if __name__ == "__main__":
    main()
