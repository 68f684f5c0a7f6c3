"""Compares statistics of masked training rows with the expected values of the masking rules.

    python benchmarks/data_statistics.py --data DIR --max_length 128 [--rows 100000]

Deviations are in sigma of the expected share; labels and lengths are those of the rows read.
"""

import argparse
import itertools

import numpy as np

from bertjax.config import Phase, PretrainConfig
from bertjax.data.batches.pretraining_batches import RowFormat, train_batches
from bertjax.data.metadata import shard_paths
from bertjax.tokenization import load_tokenizer
from bertjax.training.pretraining_program import make_masking

BATCH = 100


def main() -> None:
    """Reads the rows and prints one line per statistic."""
    parser = argparse.ArgumentParser(description="Statistics of masked training rows.")
    parser.add_argument("--data", required=True)
    parser.add_argument("--max_length", type=int, default=128)
    parser.add_argument("--rows", type=int, default=100_000)
    args = parser.parse_args()
    tokenizer = load_tokenizer(args.data)
    phase = Phase(num_steps=1, max_length=args.max_length, batch_size=BATCH)
    masking = make_masking(PretrainConfig(), phase, tokenizer)
    batches = train_batches(
        shard_paths(args.data, "train", args.max_length),
        masking,
        RowFormat(args.max_length, tokenizer.pad_token_id),
        seed=0,
        phase=0,
        batch_size=BATCH,
        first_row=0,
        host_rows=np.arange(BATCH),
        num_threads=2,
    )
    lengths, labels, became, was, predictions, wanted = [], [], [], [], [], []
    for batch in itertools.islice(batches, args.rows // BATCH):
        real = batch["masked_weights"] > 0
        length = (batch["sequence_ids"] > 0).sum(1)
        lengths.append(length)
        labels.append(batch["labels"].ravel())
        predictions.append(real.sum(1))
        wanted += [min(masking.max_predictions, max(1, round(0.15 * n))) for n in length.tolist()]
        became.append(np.take_along_axis(batch["input_ids"], batch["masked_positions"], 1)[real])
        was.append(batch["masked_labels"][real])
    n, new, old = (np.concatenate(x) for x in (lengths, became, was))
    share = np.concatenate(predictions).sum() / n.sum()
    print(f"rows {len(n):,}, tokens {n.sum():,}, masked {len(new):,}: {share:.4%} of the tokens")
    other = int((np.concatenate(predictions) != wanted).sum())
    print(f"rows whose number is not min(max, max(1, round(0.15 n))): {other}")
    same = 0.1 / tokenizer.vocab_size
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
        np.bincount(random_words, minlength=tokenizer.vocab_size), masking.mask_token_id
    )
    chi_square = ((cells - cells.mean()) ** 2 / cells.mean()).sum()
    deviation = (chi_square - len(cells)) / np.sqrt(2 * len(cells))
    print(
        f"random words: {np.count_nonzero(cells):,} of {len(cells):,} drawn, "
        f"deviation from uniform {deviation:+.2f} sigma"
    )
    classes, counts = np.unique(np.concatenate(labels), return_counts=True)
    print("labels", {int(c): f"{k / len(n):.4%}" for c, k in zip(classes, counts, strict=True)})
    print(
        "lengths", {q: int(np.percentile(n, q)) for q in (1, 5, 10, 25, 50, 100)}, "by percentile"
    )


if __name__ == "__main__":
    main()
