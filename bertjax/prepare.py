"""Prepares pretraining data: `python -m bertjax.prepare --input ... --tokenizer ... --output ...`.

One process reads the input and divides it into chunks: whole documents with --chunk_mb MB of text.
Worker processes turn each chunk into shards, which are files of examples. The output does not
depend on the number of workers; see `bertjax.data.preparation.chunks`. With weighted inputs, each
chunk has documents of one source only, and a training draws rows of the sources by their weights.
"""

import dataclasses
import functools
import hashlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertjax.base import command_line, printable, progress, signals
from bertjax.base.addresses import folder_written_locally, is_remote, naming_bucket_errors, place
from bertjax.base.checked import part_of
from bertjax.base.files import brief
from bertjax.config import PrepareConfig, config_from

if TYPE_CHECKING:
    from bertjax.data.metadata import Metadata
    from bertjax.data.text.corpus import Corpus
    from bertjax.tokenization import Tokenizer

sys.modules[__name__].__class__ = command_line.CallableModule

# Fields of the config that do not affect the output.
_NOT_SETTINGS = (
    "input",
    "output",
    "tokenizer",
    "num_processes",
    "shard",
    "merge",
    "overwrite",
    "runner",
    "parts",
    "runner_options",
    "exclude",
)
# The fraction of unknown tokens above which a warning is printed; usual are less than 0.1 %.
MANY_UNKNOWN = 0.01
MANY_COPIES = (0.05, 0.2)
USUAL_PAIRS = (0.2, 0.8)
FEW_SENTENCES = 1.5
MANY_WITHOUT_END = 0.8
# Losses on fewer tokens, of which about 15 % are masked, are too noisy to be compared.
FEW_HELD_OUT = 5_000
LARGE_EVAL_FRACTION = 0.1


def prepare(config: PrepareConfig | None = None, **fields: Any) -> "Metadata | None":
    """Prepares pretraining data; returns its metadata, the content of metadata.json.

        bertjax.prepare(input="text/*", tokenizer="bert-base-uncased", output="data")

    A script must call this function under `if __name__ == "__main__":` unless `num_processes=1`,
    because worker processes import the script. If `shard` is "i/n", only part i of n of the input
    is prepared, and the result is None as long as another part is not finished.

    `fields` are values of `PrepareConfig` fields, which replace those in `config`.

    Raises:
        ValueError: the input, the tokenizer or the output directory cannot be used.
        OSError: a file cannot be read or written.
        TypeError: a name in `fields` is not a field of `PrepareConfig`.
    """
    return run(config_from(PrepareConfig, config, fields))


def run(config: PrepareConfig) -> "Metadata | None":
    """Prepares pretraining data, or continues it; returns and raises what `prepare` does."""
    from bertjax.base.outputs import check_paths
    from bertjax.data.preparation.prepared_dir import locked

    check_paths(config)
    with naming_bucket_errors(config.output):
        directory = place(config.output)
        with locked(directory, config.shard):
            return _run(config, directory)


def _run(config: PrepareConfig, directory: Path) -> "Metadata | None":
    from bertjax.data.preparation import prepared_dir
    from bertjax.data.preparation.workers import run_parts
    from bertjax.tokenization import load_tokenizer

    if config.merge:
        metadata = prepared_dir.join_parts(directory)
        if metadata is None:
            raise ValueError(
                f"{directory} lacks chunks of some parts: run prepare with --shard for each of "
                "these parts again."
            )
        _print_summary(metadata, directory)
        return metadata
    tokenizer = load_tokenizer(config.tokenizer)
    corpus = _open_corpus(config)
    if corpus.note:
        print(corpus.note, flush=True)
    contents = prepared_dir.contents_of(corpus.files, directory)
    plan = _plan(config, tokenizer, corpus) | contents
    metadata = prepared_dir.claim(directory, plan, overwrite=config.overwrite, part=config.part())
    if metadata is not None:
        print(f"{directory} is already complete with these settings: nothing to do.")
        return metadata
    corpus.check_sources()
    with folder_written_locally(directory) as local:
        tokenizer.save(local)
    if config.runner is not None:
        # Beam workers can only load functions of imported modules: their `__main__` is another.
        from bertjax.prepare import _prepare_part as prepare_part

        run_parts(
            functools.partial(
                prepare_part, dataclasses.replace(config, input=tuple(corpus.pinned_inputs))
            ),
            config.parts,
            runner=config.runner,
            options=config.runner_options,
        )
        metadata = prepared_dir.join_parts(directory)
        if metadata is None:
            raise ValueError(f"{directory} lacks chunks: run the same command again.")
    else:
        metadata = _prepare_here(config, corpus, plan, directory)
    if metadata is None:
        index, parts = config.part()
        print(f"Part {index} of {parts} is finished; the last part to finish writes metadata.json.")
    else:
        _print_summary(metadata, directory)
    return metadata


def _open_corpus(config: PrepareConfig) -> "Corpus":
    from bertjax.data.text.corpus import Corpus, ReadOptions

    return Corpus(config.input, part_of(config, ReadOptions))


def _plan(config: PrepareConfig, tokenizer: "Tokenizer", corpus: "Corpus") -> dict[str, Any]:
    """Returns all that determines the output (settings, inputs, tokenizer) as JSON values."""
    plan = {
        "settings": {
            field.name: getattr(config, field.name)
            for field in dataclasses.fields(config)
            if field.name not in _NOT_SETTINGS
        },
        "inputs": corpus.identity,
        **({} if corpus.sources is None else {"sources": corpus.sources}),
        "tokenizer_fingerprint": tokenizer.fingerprint,
        "vocab_size": tokenizer.vocab_size,
    }
    if config.exclude:
        runs = "\n".join(sorted(_excluded(config.exclude)))
        plan["excluded"] = hashlib.sha256(runs.encode(errors="replace")).hexdigest()
    return plan


@functools.cache
def _excluded(files: tuple[str, ...]) -> frozenset[str]:
    """Returns the runs of words of all texts in test files."""
    if not files:
        return frozenset()
    from bertjax.data.preparation.exclusion import FEWEST_WORDS, runs_of
    from bertjax.tasks.sources.tables import Table

    texts = []
    for file in files:
        for _, row in Table(file).rows():
            texts.extend(_texts_in(row))
    runs = runs_of(texts)
    places = brief(", ".join(files))
    print(
        f"--exclude: documents with one of {len(runs):,} runs of words in {places} are left out; "
        f"texts of fewer than {FEWEST_WORDS} words, such as labels, are not searched"
    )
    return runs


def _texts_in(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list) and all(isinstance(part, str) for part in value):
        yield " ".join(value)  # the words of a sentence
    elif isinstance(value, list | dict):
        for part in value.values() if isinstance(value, dict) else value:
            yield from _texts_in(part)


def _prepare_here(
    config: PrepareConfig, corpus: "Corpus", plan: dict[str, Any], directory: Path
) -> "Metadata | None":
    """Prepares part `config.shard` on this machine; None if another part is not finished."""
    from bertjax.data.preparation import prepared_dir
    from bertjax.data.text.corpus import TooLittleText

    chunks = _prepare_chunks(config, corpus)
    counts = dict(corpus.counts)
    if config.shard is not None:
        prepared_dir.write_part(directory, config.part(), chunks, counts)
        return prepared_dir.join_parts(directory)
    try:
        return prepared_dir.finish(directory, plan, chunks, counts)
    except TooLittleText:
        prepared_dir.clear(directory)  # no training data can be made from the input
        raise


def _prepare_part(config: PrepareConfig, part: int) -> int:
    """Prepares a part of the input in a Beam worker; returns the number of all chunks."""
    from bertjax.data.preparation import prepared_dir

    config = dataclasses.replace(
        config,
        **{"runner": None, "runner_options": "", "parts": type(config).parts, "num_processes": 1},
        shard=f"{part}/{config.parts}",
    )
    corpus = _open_corpus(config)
    chunks = _prepare_chunks(config, corpus)
    prepared_dir.write_part(place(config.output), config.part(), chunks, dict(corpus.counts))
    return chunks


def _prepare_chunks(config: PrepareConfig, corpus: "Corpus") -> int:
    """Prepares the unfinished chunks of `config.part()`; returns the number of all chunks."""
    from bertjax.data.checksums import Remembered
    from bertjax.data.preparation.chunks import ChunkSettings, chunks_of, read_summary
    from bertjax.data.preparation.prepared_dir import joined_files, remove_damaged
    from bertjax.data.preparation.workers import Workers, available_cores
    from bertjax.tokenization import load_tokenizer
    from bertjax.tokenization.letters import about_letters

    part, parts = config.part()
    chunks = text_bytes = 0
    # Shards of an earlier run are read and verified, because a disk may have damaged them.
    remembered = None if is_remote(config.output) else Remembered(config.output)
    if remembered is not None:
        remove_damaged(place(config.output), remembered)
    joined = joined_files(place(config.output))
    processes = config.num_processes or available_cores()
    workers = Workers(part_of(config, ChunkSettings), processes, _excluded(config.exclude))
    with workers, progress.progress("preparing", corpus.total_bytes, progress.BYTES) as state:
        for chunk in chunks_of(corpus, int(config.chunk_mb * 1e6)):
            if chunk.number == 0 and part == 0:
                texts = (text.decode() for text, _ in chunk.documents)
                tokenizer = load_tokenizer(config.tokenizer)
                print(*about_letters(tokenizer, texts, config.normalize), sep="\n", flush=True)
            chunks += 1
            in_part = chunk.number % parts == part
            if in_part and read_summary(config.output, chunk.number, remembered, joined) is None:
                workers.submit(chunk)
            text_bytes += chunk.text_bytes
            speed = text_bytes / 1e6 / max(state.seconds, 1e-3)
            state.update(corpus.bytes_read, f"{text_bytes / 1e6:,.0f} MB of text, {speed:.1f} MB/s")
        workers.finish()
    return chunks


def _print_summary(metadata: "Metadata", directory: Path) -> None:
    from rich.table import Table

    from bertjax.data.preparation.segments import OBJECTIVES

    table = Table("split", "length", "documents", "sentences", "sequences", "tokens")
    pairs = []
    for split, summary in metadata.splits.items():
        for length, content in summary.lengths.items():
            numbers = (summary.documents, summary.sentences, content.sequences, content.tokens)
            table.add_row(split, length, *(f"{number:,}" for number in numbers))
            kinds = enumerate(OBJECTIVES[metadata.objective].pairs)
            labels = ", ".join(f"{content.labels.get(str(i), 0):,} {name}" for i, name in kinds)
            if labels:
                pairs.append(f"{split} pairs of length {length}: {labels}")
    printable.console().print(table)
    for line in pairs:
        print(line)
    _print_sources(metadata)
    _print_counts(metadata)
    _print_unknown(metadata)
    if metadata.has_sentence_pairs:
        _print_pairs(metadata)
    _print_copies(metadata)
    if "eval" in metadata.splits:
        _print_few_held_out(metadata)
        entropy = metadata.splits["eval"].unigram_entropy_nats
        print(
            "unigram entropy of the held-out text, the least loss of a model that ignores context: "
            f"{entropy:.3f} nats per token"
        )
    elif metadata.settings["eval_fraction"]:
        print(
            "No document is held out for evaluation: the input is a single document. If it holds "
            "one document per line, give --text_format documents."
        )
    for split, summary in metadata.splits.items():
        for length, content in summary.lengths.items():
            if same := content.random_from_same_document:
                print(
                    f"note: in {same:,} of {content.sequences:,} {split} pairs of length {length}, "
                    "the random segment is from the same document, because the chunk has only one "
                    "document: add documents, or increase --chunk_mb."
                )
    print(f"written to {directory}")


def _print_counts(metadata: "Metadata") -> None:
    for name, count in metadata.counts.items():
        print(f"{name.replace('_', ' ')}: {count:,}")
    excluded = metadata.counts.get("excluded_documents", 0)
    kept = sum(summary.documents for summary in metadata.splits.values())
    if excluded:
        print(f"excluded are {excluded / (excluded + kept):.1%} of the documents")


def _print_few_held_out(metadata: "Metadata") -> None:
    tokens = metadata.splits["eval"].text_tokens
    fraction = metadata.settings["eval_fraction"]
    if tokens < FEW_HELD_OUT and fraction < LARGE_EVAL_FRACTION:
        print(
            f"warning: only {tokens:,} tokens are held out for evaluation, so its losses will be "
            f"noisy: give --eval_fraction {LARGE_EVAL_FRACTION}."
        )


def _print_unknown(metadata: "Metadata") -> None:
    """Warns if many tokens are unknown or, as an unknown token may be long, many characters."""
    counts = metadata.counts
    unknown = counts.get("unknown_tokens", 0)
    characters = counts.get("unknown_characters", 0)
    tokens = sum(summary.text_tokens for summary in metadata.splits.values())
    share = characters / max(counts.get("characters", 0), characters, 1)
    if max(unknown / tokens, share) <= MANY_UNKNOWN:
        return
    remedy = (
        "the vocabulary lacks characters of the text. Train a tokenizer on the text "
        "(bertjax.train_tokenizer), add them to the vocabulary (--extend), or take the tokenizer "
        "of a model of its language."
    )
    if counts.get("characters_of_long_words", 0) > characters / 2:
        remedy = (
            "words of more than 100 characters are one unknown token. Train a tokenizer with "
            "--kind bpe or unigram or, for proteins, DNA and the like, with --split residues."
        )
    print(
        f"warning: {share:.1%} of the characters of the text are in unknown tokens, "
        f"{unknown / tokens:.1%} of its tokens, from which a model learns nothing: {remedy}"
    )


def _print_copies(metadata: "Metadata") -> None:
    splits = metadata.splits.values()
    copies = metadata.counts.get("duplicate_documents", 0) / sum(s.documents for s in splits)
    repeated = metadata.counts.get("repeated_sentences", 0) / sum(s.sentences for s in splits)
    if copies > MANY_COPIES[0] or repeated > MANY_COPIES[1]:
        print(
            f"warning: {copies:.1%} of the documents repeat others, and {repeated:.1%} of the "
            "sentences others of their chunk, as menus and licences do. A model learns copies by "
            "heart: remove them, for example with datatrove or text-dedup."
        )


def _print_pairs(metadata: "Metadata") -> None:
    """Warns if the sentence pairs teach little: nearly all of one label, or no real sentences."""
    sources = {f" of the source {s.name}": s.splits for s in metadata.sources or ()}
    for name, splits in (sources or {"": metadata.splits}).items():
        train = splits["train"]
        mean = train.sentences / train.documents
        for length, content in train.lengths.items():
            true = content.labels.get("0", 0)
            pairs = content.sequences
            if pairs and (
                mean < FEW_SENTENCES or not USUAL_PAIRS[0] <= true / pairs <= USUAL_PAIRS[1]
            ):
                print(
                    f"warning: {true / pairs:.1%} of the {pairs:,} {metadata.objective} pairs of "
                    f"length {length}{name} are consecutive text (usual are "
                    f"{USUAL_PAIRS[0]:.0%} to {USUAL_PAIRS[1]:.0%}), and a document has {mean:.2f} "
                    "sentences on average: use text with longer documents (--text_format says how "
                    "they are separated), or --objective full_sentences, which needs no pairs."
                )
    sentences = sum(summary.sentences for summary in metadata.splits.values())
    without = metadata.counts.get("sentences_without_end_mark", 0)
    if without > MANY_WITHOUT_END * sentences:
        print(
            f"warning: {without / sentences:.1%} of the {sentences:,} sentences end with no mark "
            "that ends sentences, but with a line, or after 1,000 characters. Thai, Lao and other "
            "languages have no such marks: use --objective full_sentences or mlm, which need no "
            "sentences, or give one sentence per line with --text_format lines."
        )


def _print_sources(metadata: "Metadata") -> None:
    """Prints the rows of each source of a mixture, and after how many rows its epochs end."""
    sources = metadata.sources or []
    total = sum(source.weight for source in sources)
    for source in sources:
        for length, content in source.splits["train"].lengths.items():
            print(
                f"source {source.name}: {source.weight / total:.2%} of the training rows of length "
                f"{length}; its {content.records:,} rows repeat after "
                f"{content.records * total // source.weight:,} rows of training"
            )
        if "eval" in metadata.splits and "eval" not in source.splits:
            print(f"note: no document of the source {source.name} is held out for evaluation.")


parse, main = command_line.command_of(
    PrepareConfig,
    run,
    "prepare",
    "Turns text into rows of token ids on disk, ready for pretraining.",
)


if __name__ == "__main__":
    signals.leave(main())
