"""Measures the throughput of the input pipeline of pretraining: reading, masking, batching.

    python benchmarks/input.py --data D [--max_length 512] [--batch_size 64] [--seconds 10]
        [--whole_word_masking] [--max_ngram 3]

Prints a line of JSON: rows per second of wall time, and per second of CPU time over all threads.
The input of n rows is hidden if it takes less time than a step, and if there are idle cores.
"""

import argparse
import time
from pathlib import Path

import numpy as np
from reporting import report

from bertjax.config import Phase, PretrainConfig
from bertjax.data.batches.pretraining_batches import RowFormat, train_batches
from bertjax.data.metadata import read_metadata, row_sources
from bertjax.tokenization import load_tokenizer
from bertjax.train.program import make_masking


def main() -> None:
    """Reads batches for some seconds and prints the throughput."""
    parser = argparse.ArgumentParser(description="Throughput of the input pipeline of pretraining.")
    parser.add_argument("--data", required=True)
    parser.add_argument("--max_length", type=int, default=512)
    parser.add_argument("--batch_size", type=int, default=64)
    parser.add_argument("--threads", type=int, default=PretrainConfig.reader_threads)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--whole_word_masking", action="store_true")
    parser.add_argument("--max_ngram", type=int, default=1)
    parser.add_argument("--output", type=Path)
    args = parser.parse_args()
    metadata, tokenizer = read_metadata(args.data), load_tokenizer(args.data)
    phase = Phase(num_steps=1, max_length=args.max_length, batch_size=args.batch_size)
    most = metadata.max_sequences
    words = {"whole_word_masking": args.whole_word_masking, "max_ngram": args.max_ngram}
    batches = train_batches(
        row_sources(args.data, "train", args.max_length),
        make_masking(PretrainConfig(**words), phase, tokenizer, most),
        RowFormat(args.max_length, tokenizer.pad_token_id, most),
        seed=0,
        phase=0,
        batch_size=args.batch_size,
        first_row=0,
        host_rows=np.arange(args.batch_size),
        num_threads=args.threads,
    )
    next(batches)
    rows, begin, begin_cpu = 0, time.perf_counter(), time.process_time()
    while time.perf_counter() - begin < args.seconds:
        rows += len(next(batches)["input_ids"])
    wall, cpu = time.perf_counter() - begin, time.process_time() - begin_cpu
    line = {
        "rows": [args.batch_size, args.max_length],
        "max_sequences": most,
        **words,
        "rows_per_second": round(rows / wall),
        "rows_per_core_second": round(rows / cpu),
        "threads": args.threads,
    }
    report(line, args.output, ["grain", "array_record"])


if __name__ == "__main__":
    main()
