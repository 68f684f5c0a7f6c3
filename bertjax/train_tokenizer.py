"""Trains or extends a tokenizer: `python -m bertjax.train_tokenizer --input ... --output ...`."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertjax.base import command_line, progress, signals
from bertjax.base.checked import part_of
from bertjax.base.files import naming_write_errors
from bertjax.config import TrainTokenizerConfig, config_from

if TYPE_CHECKING:
    from bertjax.data.text.corpus import Corpus
    from bertjax.tokenization import Tokenizer

sys.modules[__name__].__class__ = command_line.CallableModule

_SAMPLED_TEXTS = 10_000
# As long as this file is in the output, not all others are, and the same command may replace them.
UNFINISHED = ".unfinished"


def train_tokenizer(config: TrainTokenizerConfig | None = None, **fields: Any) -> "Tokenizer":
    """Trains or extends a tokenizer, saves it in the folder `output`, and returns it.

        bertjax.train_tokenizer(input="text/*", vocab_size=30522, output="tokenizer")
        bertjax.train_tokenizer(input="text/*", extend="my-bert", add=5_000, output="tokenizer")

    `fields` are values of `TrainTokenizerConfig` fields, which replace those in `config`.

    Raises:
        FileNotFoundError: there is no tokenizer at `extend`.
        ValueError: the output directory is not empty, or the corpus does not fit the config.
        TypeError: a name in `fields` is not a field of `TrainTokenizerConfig`.
    """
    return run(config_from(TrainTokenizerConfig, config, fields))


def run(config: TrainTokenizerConfig) -> "Tokenizer":
    """Learns or extends a vocabulary; errors are those of `train_tokenizer`."""
    from bertjax.base.outputs import check_paths
    from bertjax.data.text.corpus import Corpus, ReadOptions
    from bertjax.tokenization import TOKENIZER_FILES
    from bertjax.tokenization.letters import about_letters

    check_paths(config)
    output = Path(config.output)
    names = {path.name for path in output.iterdir()} if output.exists() else set()
    if UNFINISHED in names:
        names -= {UNFINISHED, *TOKENIZER_FILES}
    if names:
        raise ValueError(
            f"{output} is not empty: choose another --output, so that no existing vocabulary is "
            "overwritten."
        )
    corpus = Corpus(config.input, part_of(config, ReadOptions))
    if corpus.sources is not None:
        print("note: the weights of --input are ignored: the vocabulary is learnt from all text.")
    sample: list[str] = []
    texts = _texts(corpus, sample)
    if config.extend is not None:
        return _extend(config, texts, sample)
    tokenizer = _train(config, texts)
    _save(tokenizer, output)
    print(*about_letters(tokenizer, sample), sep="\n")
    print(f"{tokenizer.vocab_size} entries written to {output}")
    if tokenizer.vocab_size < config.vocab_size:
        print(
            f"The corpus has too few words for --vocab_size {config.vocab_size}. Pretrain with "
            f"--model.vocab_size {-(-tokenizer.vocab_size // 64) * 64}, the next multiple of 64."
        )
    return tokenizer


def _save(tokenizer: "Tokenizer", output: Path) -> None:
    """Writes a tokenizer, so that after a full disk or a kill the same command can be repeated."""
    with naming_write_errors(output):
        output.mkdir(parents=True, exist_ok=True)
        (output / UNFINISHED).touch()
        tokenizer.save(output)
        (output / UNFINISHED).unlink()


def _train(config: TrainTokenizerConfig, texts: Iterator[str]) -> "Tokenizer":
    from bertjax import tokenization
    from bertjax.tokenization import train_unigram, train_wordpiece
    from bertjax.tokenization.letters import first_normalizer

    by_bytes = {"bpe": tokenization.train_bpe, "modernbert": tokenization.train_modernbert_bpe}
    strips = config.kind in by_bytes and bool(config.strip_accents)
    first = first_normalizer(strips, config.normalize)
    if first is not None:
        texts = map(first.normalize_str, texts)
    common: dict[str, Any] = {
        "vocab_size": config.vocab_size,
        "model_max_length": config.model_max_length,
        "report": print,
    }
    letters = {"do_lower_case": config.do_lower_case, "strip_accents": config.strip_accents}
    if config.kind != "unigram":
        common["min_frequency"] = config.min_frequency
    if config.kind == "unigram":
        tokenizer = train_unigram(texts, **letters, **common)
    elif config.kind in by_bytes:
        tokenizer = by_bytes[config.kind](texts, **common)
    else:
        tokenizer = train_wordpiece(texts, split=config.split, **letters, **common)
    if first is None:
        return tokenizer
    return tokenizer.normalised_first(first)


def _extend(config: TrainTokenizerConfig, texts: Iterator[str], sample: list[str]) -> "Tokenizer":
    """Extends the tokenizer of the model `config.extend`, saves it, and prints what it saves."""
    from bertjax.tokenization import UnigramTokenizer, extend, load_tokenizer
    from bertjax.tokenization.letters import about_letters, first_normalizer

    if first := first_normalizer(False, config.normalize):
        texts = map(first.normalize_str, texts)
    old = load_tokenizer(_place_of_tokenizer(str(config.extend)))
    extension = extend(old, texts, config.add, min_frequency=config.min_frequency, report=print)
    _save(extension.tokenizer, Path(config.output))
    print(*about_letters(old, sample), sep="\n")
    entries = extension.entries
    before = extension.tokens_before
    after = extension.tokens_after
    print(
        f"{len(entries):,} entries added to the {old.vocab_size:,} of {config.extend}: "
        f"{extension.tokenizer.vocab_size:,} entries written to {config.output}"
    )
    if len(entries) < config.add:
        print(f"No other word of the text occurs {config.min_frequency} times in several pieces.")
    known = " with the new characters alone"
    if extension.characters == 0:
        known = ""
    shares = " before, ".join(f"{share:.2%}" for share in extension.unknown)
    if any(extension.unknown):
        print(
            f"Characters added that the vocabulary lacked: {extension.characters:,}. Characters of "
            f"the text in unknown tokens: {shares} now."
        )
    if extension.unknown[1] > 0.01:
        print(
            "warning: more characters become known with a larger --add, a smaller --min_frequency "
            "and, as WordPiece knows no word of more than 100 characters, another kind of model."
        )
    words = entries[extension.characters :] or entries
    print(f"Among them: {', '.join(map(old.readable, words[:10]))}")
    fewest = f"; one token per word would be {1 - extension.words / before:.1%} fewer"
    print(
        f"Tokens of the text: {before:,} before{known}, {after:,} now, "
        f"{1 - after / before:.1%} fewer"
        f"{'' if isinstance(old, UnigramTokenizer) else fewest}."
    )
    return extension.tokenizer


def _place_of_tokenizer(model: str) -> str:
    """Returns the place of a model's tokenizer: the folder in a workdir, or beside a checkpoint."""
    from bertjax.base.run_file import holds_run

    if holds_run(Path(model)):
        return str(Path(model) / "tokenizer")
    if Path(f"{model}.index").is_file():
        return str(Path(model).parent)
    return model


def _texts(corpus: "Corpus", sample: list[str]) -> Iterator[str]:
    """Yields the texts of a corpus, and shows how much of it has been read.

    The first texts are put in `sample`. Characters that were replaced are counted.
    """
    from bertjax.data.text.sentences import sentences_of

    with progress.progress("counting words", corpus.total_bytes, progress.BYTES) as state:
        for document in corpus.documents():
            state.update(corpus.bytes_read)
            sentences = sentences_of(document)
            if len(sample) < _SAMPLED_TEXTS:
                sample += sentences[:_SAMPLED_TEXTS]
            yield from sentences
    if replaced := corpus.counts["replaced_characters"]:
        print(f"replaced characters: {replaced:,}")


parse, main = command_line.command_of(
    TrainTokenizerConfig,
    run,
    "train_tokenizer",
    "Learns a WordPiece, byte-level BPE or unigram vocabulary from text, or "
    "extends the vocabulary of a model.",
)


if __name__ == "__main__":
    signals.leave(main())
