"""The configs of `bertjax.prepare` and `bertjax.train_tokenizer`."""

import dataclasses
from typing import Annotated, Literal

from bertjax.base.checked import AtLeast0, Checked, Count, Positive
from bertjax.data.preparation.segments import ObjectiveName


def _check_encoding(name: str) -> None:
    try:
        "".encode(name)
    except LookupError as error:
        raise ValueError(
            f"encoding={name!r} is not an encoding of text that Python knows: use a name such as "
            "utf-8, cp1251, gb18030 or shift_jis."
        ) from error


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainTokenizerConfig(Checked):
    """Config of `bertjax.train_tokenizer`, which learns or extends a vocabulary from text.

    Raises:
        ValueError: `vocab_size` is below 6 (bpe and modernbert: 261), the special tokens and one
            character; `add` is below 1; or a setting has no effect with or without `extend`.
    """

    input: tuple[str, ...]
    """Input text: files, directories, globs in quotes, hf:OWNER/NAME, tfds:NAME or pydocs, see
    bertjax.prepare; the weights of a mixture are ignored."""
    output: str
    """New or empty directory to write the tokenizer to."""
    kind: Literal["wordpiece", "bpe", "unigram", "modernbert"] = "wordpiece"
    """Kind of tokenizer: wordpiece as in BERT, byte-level bpe as in RoBERTa, unigram as in ALBERT,
    or modernbert, a byte-level bpe with NFC normalisation and the special tokens of BERT. If the
    text has more than about a million different words, the rarest words are dropped to bound the
    memory."""
    split: Literal["words", "residues"] = "words"
    """What wordpiece makes tokens of: words and their pieces or, with residues, each character but
    spaces, of any case, as for proteins and DNA (ProtBERT)."""
    vocab_size: int = 30522
    """Maximum vocabulary size, special tokens included; a small corpus may yield fewer tokens."""
    do_lower_case: bool = True
    """Lower-case the text; has no effect on bpe and modernbert, and with --split residues, which
    keep the case."""
    strip_accents: bool | None = None
    """Strip accents and other marks from letters, as in Größe or हिन्दी; None: wordpiece and unigram
    strip them if they lower-case, unless more than 1 % of the letters have marks outside of Latin,
    Greek and Cyrillic or are syllables of Hangul; bpe and modernbert keep them."""
    normalize: Literal["none", "nfc"] = "none"
    """nfc composes letters and marks that the text writes as several characters (Unicode's NFC),
    here and in all texts that the tokenizer gets later; with --extend, only here (see
    bertjax.prepare). modernbert does so without it."""
    min_frequency: int = 2
    """Number of times that a pair of tokens must occur to be merged (wordpiece, bpe and modernbert;
    no effect on unigram) or, with --extend, that a character or word must occur to be added (all
    kinds)."""
    model_max_length: Count = 512
    """Maximum input length, in tokens, of the models that will use the tokenizer."""
    extend: str | None = None
    """Model whose vocabulary is extended by the characters of the text that it lacks, and then by
    those words that save the most tokens; all old ids keep their tokens. A model directory, a
    vocabulary file, the workdir of a run, a hub name or bertjax:tiny; None: a new vocabulary is
    learnt."""
    add: Count = 5_000
    """Largest number of entries, characters and words, that --extend adds to the vocabulary."""
    text_format: Literal["auto", "lines", "prose", "documents"] = "auto"
    """Layout of text files: lines has one sentence per line and blank lines between documents;
    prose has one document per file, and documents one per line, which are split into sentences;
    auto detects the layout from the beginning of each file. A record of JSON lines, Parquet or TFDS
    is one document: lines has one sentence per line of it, the others split it into sentences.
    WikiExtractor's files and pydocs ignore the layout. Sentences end at the marks of the script:
    give languages without such marks, such as Thai, as lines."""
    text_field: str = "text"
    """Field or column that holds the text in JSON lines, Parquet and TFDS, or a path such as
    data.text."""
    errors: Literal["strict", "replace"] = "strict"
    """Bytes that are not in the encoding: strict stops with an error; replace reads U+FFFD instead,
    but stops if more than 0.1 % of the characters of a file are replaced."""
    encoding: str = "utf-8"
    """Encoding of text files and JSON lines, such as cp1251, gb18030 or utf-16-le, unless they have
    a byte order mark of UTF-8, UTF-16 or UTF-32."""
    tfds_data_dir: str | None = None
    """Folder where TensorFlow Datasets keeps its data; None: the default of TensorFlow Datasets."""

    def __post_init__(self):
        super().__post_init__()
        _check_encoding(self.encoding)
        # A vocabulary has five special tokens and at least one character (bpe: all 256 bytes).
        smallest = 6
        if self.kind in ("bpe", "modernbert"):
            smallest = 261
        if self.vocab_size < smallest:
            raise ValueError(f"vocab_size={self.vocab_size} must be at least {smallest}.")
        if self.kind != "wordpiece":
            self.refuse_set(("split",), f"with --kind {self.kind}", "it is for wordpiece")
        if self.kind == "modernbert":
            self.refuse_set(("normalize",), "with --kind modernbert", "it composes anyway")
        if self.split == "residues":
            self.refuse_set(("strip_accents",), "with --split residues", "it keeps marks")
        if self.extend is None:
            self.refuse_set(("add",), "without --extend", "it names the model to extend")
        else:
            self.refuse_set(
                (
                    "kind",
                    "split",
                    "vocab_size",
                    "do_lower_case",
                    "strip_accents",
                    "model_max_length",
                ),
                f"with --extend {self.extend}",
                "the tokenizer to extend determines it",
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class PrepareConfig(Checked):
    """Config of `bertjax.prepare`, which turns text into rows of token ids on disk.

    A row is a training example or, with `pack`, several examples.

    Raises:
        ValueError: `input` or `tokenizer` is missing, a value is out of its range, or a setting has
            no effect with the others.
    """

    input: tuple[str, ...] = ()
    """Text: files, directories and globs in quotes (text, JSON lines, WikiExtractor, dumps of
    Wikipedia, WET, CoNLL-U, FASTA, Parquet; also in gz, bz2, xz, zst and tar), also in buckets, a
    dataset of the Hugging Face Hub (hf:OWNER/NAME@REVISION:CONFIG:SPLIT, of which all but
    OWNER/NAME may be left out), a dataset of TensorFlow Datasets (tfds:NAME/CONFIG:VERSION, where
    NAME suffices), or pydocs (the docstrings of Python and installed packages); required unless
    --merge is set. With weights, as in wiki=0.7,books=0.3 (or as several arguments), each input is
    a source of a mixture: in training, exactly these shares of the rows are drawn from the sources,
    each of which has its own shuffled epochs. Other weights for the same sources only change
    metadata.json. A file that exists is always read as such, even if its name is x=1."""
    tokenizer: str = ""
    """Tokenizer: a tokenizer directory, a vocab.txt or tokenizer.json file, a hub name, or
    bertjax:tiny, which comes with bertjax; required unless --merge is set."""
    output: str
    """Directory to which the training data are written, also in a bucket (gs:// needs the extra
    gcs, s3:// the extra s3): a new or empty directory, or one from an earlier run with the same
    settings, which is continued if it was interrupted and checked if it is complete; other settings
    need --overwrite."""
    max_length: tuple[Annotated[int, "[8, 65535]"], ...] = (128,)
    """Maximum number of tokens per example and, with --pack, per row; special tokens are included.
    With several lengths, the text is prepared once for each length."""
    objective: ObjectiveName = "nsp"
    """Kind of examples: nsp makes next-sentence pairs (BERT); sop makes sentence-order pairs
    (ALBERT); full_sentences joins consecutive sentences, also across documents (RoBERTa); mlm joins
    consecutive sentences of one document."""
    dupe_factor: Count = 1
    """Number of times that the text is split into examples, each time at different places; masks
    are drawn during training, so masks differ in every epoch even if dupe_factor is 1."""
    short_seq_prob: Annotated[float, "[0, 1]"] = 0.1
    """Fraction of documents whose sentence pairs have a random target length below max_length (nsp
    and sop)."""
    pack: bool = False
    """Put several examples into each row, so that almost no tokens are padding. Each example has
    its own position ids, and its tokens attend only to tokens of the same example. Packed batches
    contain more examples than unpacked batches with the same number of rows."""
    max_sequences: Count = 12
    """Largest number of examples per row if --pack is set."""
    seed: AtLeast0 = 0
    """Seed of all random choices."""
    eval_fraction: Annotated[float, "[0, 0.5]"] = 0.01
    """Fraction of documents held out for evaluation; 0: no documents are held out."""
    text_format: Literal["auto", "lines", "prose", "documents"] = "auto"
    """Layout of text files: lines has one sentence per line and blank lines between documents;
    prose has one document per file, and documents one per line, which are split into sentences;
    auto detects the layout from the beginning of each file. A record of JSON lines, Parquet or TFDS
    is one document: lines has one sentence per line of it, the others split it into sentences.
    WikiExtractor's files and pydocs ignore the layout. Sentences end at the marks of the script:
    languages without such marks, such as Thai, need lines, or --objective full_sentences or mlm."""
    text_field: str = "text"
    """Field or column that holds the text in JSON lines, Parquet and TFDS, or a path such as
    data.text; if a dataset of the Hugging Face Hub has no column text, its usual name is guessed
    and printed."""
    errors: Literal["strict", "replace"] = "strict"
    """Bytes that are not in the encoding: strict stops with an error; replace reads U+FFFD instead,
    but stops if more than 0.1 % of the characters of a file are replaced."""
    encoding: str = "utf-8"
    """Encoding of text files and JSON lines, such as cp1251, gb18030 or utf-16-le, unless they have
    a byte order mark of UTF-8, UTF-16 or UTF-32."""
    normalize: Literal["none", "nfc"] = "none"
    """nfc composes letters and marks that the text writes as several characters (Unicode's NFC),
    for a tokenizer that does not."""
    tfds_data_dir: str | None = None
    """Folder where TensorFlow Datasets keeps its data; None: the default of TensorFlow Datasets."""
    exclude: tuple[str, ...] = ()
    """Test files (CSV, TSV, JSON, Parquet or a text per line): documents that hold one of their
    texts are left out and counted, which are those with a run of 13 words in common, or of all
    words of a text of 8 to 12; empty: none."""
    chunk_mb: Positive = 8.0
    """Minimum size, in MB (10^6 bytes) of text, of the chunks of documents that the text is divided
    into. Each chunk is prepared separately with its own random seed, so the examples depend on the
    chunk size."""
    num_processes: Count | None = None
    """Number of worker processes, which does not change the output; None: one process per core."""
    shard: str | None = None
    """Part of the data to prepare on this machine, as i/n with i from 0 to n - 1, so that several
    machines can fill one output directory; the machine that finishes last joins all parts; None:
    prepare all data."""
    runner: str | None = None
    """Apache Beam runner to prepare the data on (extra beam): direct for this machine,
    DataflowRunner or another runner; all workers must reach input and output by the same paths;
    None: no Beam."""
    parts: Count = 16
    """Number of parts that --runner splits the data into; a worker prepares one part at a time."""
    runner_options: str = ""
    """Pipeline options of Beam for --runner, such as --runner_options='--project=P --region=R';
    empty: none."""
    merge: bool = False
    """Prepare no data; only join the parts that earlier runs with --shard prepared, if the last run
    was interrupted before it joined them; only --output is needed."""
    overwrite: bool = False
    """Delete what an earlier run of prepare wrote to the output directory, and start from the
    beginning."""

    def __post_init__(self):
        super().__post_init__()
        _check_encoding(self.encoding)
        for name in ("input", "tokenizer"):
            if not getattr(self, name) and not self.merge:
                raise ValueError(f"--{name} is missing: only --merge works without it.")
        if not self.max_length or len(set(self.max_length)) != len(self.max_length):
            raise ValueError(f"max_length={self.max_length}: give every length once.")
        if not self.pack:
            self.refuse_set(("max_sequences",), "without --pack", "rows have one sequence")
        self.part()
        if self.runner is not None and (self.shard is not None or self.num_processes is not None):
            raise ValueError(
                f"--runner {self.runner}: Beam distributes the work itself; leave out --shard and "
                "--num_processes."
            )
        if self.runner is None:
            self.refuse_set(("parts", "runner_options"), "without --runner", "they are Beam's")

    def part(self) -> tuple[int, int]:
        """Returns (i, n), for part i of n, if `shard` is "i/n"; (0, 1), all data, if it is None.

        Raises:
            ValueError: `shard` is not i/n with 0 <= i < n.
        """
        if self.shard is None:
            return 0, 1
        index, slash, count = self.shard.partition("/")
        if not (slash and index.isdecimal() and count.isdecimal() and int(index) < int(count)):
            raise ValueError(f"shard={self.shard!r} must be i/n with 0 <= i < n, such as 0/4.")
        return int(index), int(count)
