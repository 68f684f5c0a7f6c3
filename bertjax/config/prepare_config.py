"""What prepares text: `bertjax.prepare` and `bertjax.train_tokenizer`."""

import dataclasses
from typing import Literal

from bertjax.data.preparation.objectives import ObjectiveName


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainTokenizerConfig:
    """Learns a vocabulary."""

    input: tuple[str, ...]
    """What bertjax.prepare reads, too: files, directories, globs, tfds:NAME, pydocs."""
    output: str
    """Directory for the tokenizer; a new one."""
    kind: Literal["wordpiece", "bpe", "unigram"] = "wordpiece"
    """wordpiece: BERT's; bpe: RoBERTa's, of bytes; unigram: ALBERT's. Where a corpus has more than
    about a million words, the rarest are forgotten on the way, which bounds the memory."""
    vocab_size: int = 30522
    """Entries at most, special tokens included; a small corpus may give fewer."""
    do_lower_case: bool = True
    """Lower-case the text and strip its accents; bpe never does."""
    min_frequency: int = 2
    """How often a pair must occur to be joined (wordpiece, bpe)."""
    model_max_length: int = 512
    """Longest input of the model that the tokenizer is for."""
    text_format: Literal["auto", "lines", "prose"] = "auto"
    """As for bertjax.prepare."""
    text_field: str = "text"
    """The field or column that holds the text in JSON lines, Parquet and TFDS."""
    errors: Literal["strict", "replace"] = "strict"
    """What to do at bytes that are not UTF-8: stop, or put U+FFFD in their place."""

    def __post_init__(self):
        # Five special tokens, and a character or all bytes.
        smallest = 261 if self.kind == "bpe" else 6
        if self.vocab_size < smallest:
            raise ValueError(f"vocab_size={self.vocab_size} must be at least {smallest}.")


@dataclasses.dataclass(frozen=True, kw_only=True)
class PrepareConfig:
    """Turns text into rows of token ids on disk.

    Running the same command again goes on where it stopped.
    """

    input: tuple[str, ...] = ()
    """Files, directories, globs in quotes (text, JSON lines, WikiExtractor, Parquet; also inside
    gz, bz2, xz, zst, tar), tfds:NAME[/CONFIG][:VERSION], or pydocs."""
    tokenizer: str = ""
    """Directory of a tokenizer, a vocab.txt or tokenizer.json, or the name of a hub model."""
    output: str
    """Directory for the shards, also in a bucket (gs://, extra gcs): a new one, or one that this
    command began."""
    max_length: tuple[int, ...] = (128,)
    """Longest example in tokens, [CLS] and [SEP] included; several lengths share a directory."""
    objective: ObjectiveName = "nsp"
    """nsp: next-sentence pairs (BERT); sop: sentence-order pairs (ALBERT); full_sentences: rows
    filled with sentences that go on in the next document (RoBERTa); mlm: the same, but of one
    document each."""
    dupe_factor: int = 1
    """How many times the text is cut into examples, at different places; masks are drawn anew in
    every epoch anyway."""
    short_seq_prob: float = 0.1
    """Share of documents whose pairs aim at a random shorter length (nsp and sop)."""
    pack: bool = False
    """Put several examples side by side in a row, each with its own positions and attention: none
    of the row is wasted on padding. A batch of as many rows then holds more examples."""
    max_sequences: int = 12
    """With --pack: examples of a row at most."""
    seed: int = 0
    """Seed of all randomness."""
    eval_fraction: float = 0.01
    """Share of documents held out for evaluation; 0 for none."""
    text_format: Literal["auto", "lines", "prose"] = "auto"
    """lines: one sentence a line, blank lines between documents; prose: a file is a document, and
    is split into sentences; auto: decided by the beginning of each file."""
    text_field: str = "text"
    """The field or column that holds the text in JSON lines, Parquet and TFDS."""
    errors: Literal["strict", "replace"] = "strict"
    """What to do at bytes that are not UTF-8: stop, or put U+FFFD in their place."""
    tfds_data_dir: str | None = None
    """Where TensorFlow Datasets keeps its data; its own default if not given."""
    chunk_mb: float = 8.0
    """Text per chunk, the unit of work and of randomness: other values give other examples."""
    num_processes: int | None = None
    """Worker processes; by default one per core. The output does not depend on it."""
    shard: str | None = None
    """i/n: prepare the i-th of n parts (from 0), on several machines with one output directory;
    the last to finish joins them."""
    runner: str | None = None
    """Prepare on a runner of Apache Beam (extra beam): direct for this machine, DataflowRunner, or
    another that Beam knows; its workers must see input and output under the same names."""
    parts: int = 16
    """With --runner: parts that the work is cut into, each one element for a worker."""
    runner_options: str = ""
    """With --runner: Beam's own flags, as --runner_options='--project=P --region=R'."""
    merge: bool = False
    """Prepare nothing, join the parts that --shard made."""
    overwrite: bool = False
    """Delete what an earlier run of prepare wrote in the output directory, and start anew."""

    def __post_init__(self):
        for name in ("input", "tokenizer"):
            if not getattr(self, name) and not self.merge:
                raise ValueError(f"--{name} is missing: only --merge does without it.")
        shortest = 8
        longest = (1 << 16) - 1
        if not self.max_length or not all(shortest <= n <= longest for n in self.max_length):
            raise ValueError(
                f"max_length={self.max_length}: every length must be {shortest} to {longest}."
            )
        if len(set(self.max_length)) != len(self.max_length):
            raise ValueError(f"max_length={self.max_length} names a length twice.")
        if self.dupe_factor < 1:
            raise ValueError(f"dupe_factor={self.dupe_factor} must be at least 1.")
        if not 0 <= self.short_seq_prob <= 1:
            raise ValueError(f"short_seq_prob={self.short_seq_prob} must lie in 0..1.")
        if not 0 <= self.eval_fraction <= 0.5:
            raise ValueError(f"eval_fraction={self.eval_fraction} must lie in 0..0.5.")
        if self.seed < 0:
            raise ValueError(f"seed={self.seed} must not be negative.")
        if self.max_sequences < 1:
            raise ValueError(f"max_sequences={self.max_sequences} must be at least 1.")
        if not self.pack and self.max_sequences != PrepareConfig.max_sequences:
            raise ValueError(
                f"max_sequences={self.max_sequences} has an effect with --pack alone: add it."
            )
        if not self.chunk_mb > 0:
            raise ValueError(f"chunk_mb={self.chunk_mb} must be positive.")
        if self.num_processes is not None and self.num_processes < 1:
            raise ValueError(f"num_processes={self.num_processes} must be at least 1.")
        if self.shard is not None:
            self.part()
        if self.parts < 1:
            raise ValueError(f"parts={self.parts} must be at least 1.")
        if self.runner is not None and (self.shard is not None or self.num_processes is not None):
            raise ValueError(
                f"--runner {self.runner} with --shard or --num_processes: Beam shares out the work "
                "itself; leave them out."
            )
        if self.runner is None and (self.runner_options or self.parts != PrepareConfig.parts):
            raise ValueError("--parts and --runner_options have an effect with --runner alone.")

    def part(self) -> tuple[int, int]:
        """(i, n) of `shard`; (0, 1) without it.

        Raises:
            ValueError: it is not i/n with 0 <= i < n.
        """
        if self.shard is None:
            return 0, 1
        index, slash, count = self.shard.partition("/")
        if not (slash and index.isdecimal() and count.isdecimal() and int(index) < int(count)):
            raise ValueError(f"shard={self.shard!r} must be i/n with 0 <= i < n, as in 0/4.")
        return int(index), int(count)
