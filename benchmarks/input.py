"""Measures the throughput of the input pipeline of pretraining: reading, masking, batching.

    python benchmarks/input.py --data D [--max_length 512] [--batch_size 64] [--seconds 10]
        [--whole_word_masking] [--max_ngram 3]

Prints a line of JSON: rows per second of wall time, and per second of CPU time over all threads.
The input of n rows is hidden if it takes less time than a step, and if there are idle cores.
"""

import time
from collections.abc import Iterator
from typing import Any

import numpy as np
from reporting import parser_of, report

from bertjax.config import Phase, PretrainConfig
from bertjax.data.batches.batch import Batch
from bertjax.data.batches.masking import Masking
from bertjax.data.batches.pretraining_batches import train_batches
from bertjax.data.metadata import read_metadata, row_sources
from bertjax.tokenization import load_tokenizer
from bertjax.train.program import row_format


def masked_batches(
    data: str, max_length: int, batch_size: int, num_threads: int, **words: Any
) -> tuple[Iterator[Batch], Masking, int]:
    """Returns the training batches of prepared data, their masking, and the sequences per row.

    `words` are the fields of the config that choose the masked words.
    """
    most, tokenizer = read_metadata(data).max_sequences, load_tokenizer(data)
    phase = Phase(num_steps=1, max_length=max_length, batch_size=batch_size)
    masking, form = row_format(PretrainConfig(**words), phase, tokenizer, most)
    batches = train_batches(
        row_sources(data, "train", max_length),
        masking,
        form,
        seed=0,
        phase=0,
        batch_size=batch_size,
        first_row=0,
        host_rows=np.arange(batch_size),
        num_threads=num_threads,
    )
    return batches, masking, most


def main() -> None:
    """Reads batches for some seconds and prints the throughput."""
    parser = parser_of(__doc__)
    parser.add_argument("--data", required=True)
    parser.add_argument("--max_length", type=int, default=512)
    parser.add_argument("--batch_size", type=int, default=64)
    parser.add_argument("--threads", type=int, default=PretrainConfig.reader_threads)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--whole_word_masking", action="store_true")
    parser.add_argument("--max_ngram", type=int, default=1)
    args = parser.parse_args()
    words = {"whole_word_masking": args.whole_word_masking, "max_ngram": args.max_ngram}
    batches, _, most = masked_batches(
        args.data, args.max_length, args.batch_size, args.threads, **words
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
