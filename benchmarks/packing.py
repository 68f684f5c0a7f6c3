"""Compares training on packed and unpacked rows: efficiency, and real tokens per second.

    python benchmarks/packing.py --input wiki.tar.xz --tokenizer DIR --workdir W
        [--model bert-mini] [--max_length 512] [--batch_size 8] [--steps 4] [--rounds 5]

Prepares the text with and without packing, then runs alternating blocks of training steps, after
compilation. Prints a line of JSON: efficiency is the share of real tokens among all positions; the
ratio is the median over the rounds of tokens per second, packed over unpacked.
"""

import argparse
import statistics
from pathlib import Path

from reporting import parser_of, report

from bertjax import prepare
from bertjax.config import OptimizerConfig, Phase, PrepareConfig, PretrainConfig
from bertjax.data.metadata import read_metadata
from bertjax.model import named_config
from bertjax.tokenization import load_tokenizer
from bertjax.train.throughput import Subject


def prepared(args: argparse.Namespace, pack: bool) -> Path:
    """Prepares the text; returns the directory of rows."""
    folder = args.workdir / ("packed" if pack else "unpacked")
    prepare(
        PrepareConfig(
            input=tuple(args.input),
            tokenizer=args.tokenizer,
            output=str(folder),
            max_length=(args.max_length,),
            pack=pack,
        )
    )
    return folder


class Contender:
    """A compiled training step on rows of one kind, and statistics of the rows."""

    def __init__(self, args: argparse.Namespace, pack: bool):
        data = prepared(args, pack)
        config = PretrainConfig(
            data=str(data),
            model=named_config(args.model, vocab_size=load_tokenizer(data).vocab_size),
            phases=(Phase(num_steps=1, max_length=args.max_length, batch_size=args.batch_size),),
            optimizer=OptimizerConfig(warmup_steps=0),
            dtype=args.dtype,
        )
        content = read_metadata(data).splits["train"].lengths[str(args.max_length)]
        self.efficiency = content.tokens / (content.records * args.max_length)
        self.sequences_per_row = content.sequences / content.records
        self.subject = Subject(config, 0)
        self.subject.block(1)

    def tokens_per_second(self, steps: int) -> float:
        """Returns real tokens per second over a block of steps, input pipeline included."""
        block = self.subject.block(steps)
        return block["tokens"] / block["seconds"]


def main() -> None:
    """Prepares the data, measures both kinds of rows, and prints the result."""
    parser = parser_of(__doc__)
    parser.add_argument("--input", nargs="+", required=True, help="as for bertjax.prepare")
    parser.add_argument("--tokenizer", required=True)
    parser.add_argument("--workdir", type=Path, required=True)
    parser.add_argument("--model", default="bert-mini")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--max_length", type=int, default=512)
    parser.add_argument("--batch_size", type=int, default=8)
    parser.add_argument("--steps", type=int, default=4, help="steps per block")
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    packed, unpacked = Contender(args, True), Contender(args, False)
    rounds = [
        (packed.tokens_per_second(args.steps), unpacked.tokens_per_second(args.steps))
        for _ in range(args.rounds)
    ]
    ratios = [fast / slow for fast, slow in rounds]
    line = {
        "model": args.model,
        "dtype": args.dtype,
        "rows": [args.batch_size, args.max_length],
        "packed_efficiency": round(packed.efficiency, 4),
        "unpacked_efficiency": round(unpacked.efficiency, 4),
        "sequences_a_row": round(packed.sequences_per_row, 2),
        "packed_tokens_per_second": round(statistics.median(fast for fast, _ in rounds)),
        "unpacked_tokens_per_second": round(statistics.median(slow for _, slow in rounds)),
        "packed_over_unpacked": round(statistics.median(ratios), 2),
        "rounds": [round(ratio, 2) for ratio in ratios],
    }
    report(line, args.output)


if __name__ == "__main__":
    main()
