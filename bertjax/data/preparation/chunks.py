"""Groups documents into chunks, and converts each chunk, with its own random seed, to shards.

The text of a chunk depends only on the input and the chunk size; the examples of a chunk depend
only on the text, the index of the chunk and the settings. The output is therefore the same for any
number of processes or machines, and a finished chunk is not prepared again. Besides its shards
(ArrayRecord files of training rows), each chunk has a summary, a JSON file.

BERT's WordPiece splits text at spaces and ASCII punctuation marks, so the token ids of a sentence
are those of its words, of which about 98 % are in a cache: this is several times as fast as the
tokenizer alone. Other tokenizers, and a WordPiece with added tokens, encode whole sentences.
"""

import json
import operator
import re
import unicodedata
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from itertools import accumulate, chain, compress, islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bertjax.base.addresses import place, written_locally
from bertjax.base.files import read_json_or_empty, write_text
from bertjax.data.checksums import Remembered, describe, is_intact
from bertjax.data.metadata import Shard
from bertjax.data.preparation.exclusion import Excluded
from bertjax.data.preparation.packing import pack
from bertjax.data.preparation.segments import (
    OBJECTIVES,
    ExampleOptions,
    ObjectiveName,
    Pair,
    Segments,
)
from bertjax.data.records import NO_LABEL, has_records, row_head, write_shard
from bertjax.data.text.corpus import Corpus
from bertjax.data.text.sentences import Document, ends_like_sentence, sentences_of
from bertjax.tokenization import Tokenizer, WordPieceTokenizer
from bertjax.tokenization.wordpiece import MAX_CHARACTERS_PER_WORD

# Number of words, about 150 MB, above which the cache is cleared.
MOST_WORDS = 1_000_000
LARGEST_UINT16 = (1 << 16) - 1
_WORDS = re.compile(r"[^ !-/:-@\[-`{-~]+|[!-/:-@\[-`{-~]")


class SentenceEncoder:
    """Encodes each sentence as an array of its token ids.

    `typecode` is their type: "H" (uint16) if the vocabulary has at most 65536 entries, else "I"
    (uint32).
    """

    def __init__(self, tokenizer: Tokenizer):
        self._tokenizer = tokenizer
        is_usual = isinstance(tokenizer, WordPieceTokenizer) and tokenizer.is_usual
        self._splits_words = is_usual and not tokenizer.added_tokens
        self._words: dict[str, array] = {}
        self.typecode = "H" if tokenizer.vocab_size - 1 <= LARGEST_UINT16 else "I"

    def encode(
        self, sentences: Sequence[str], following: Sequence[bool] | None = None
    ) -> list[array]:
        """Returns the token ids of each sentence.

        The words of a sentence are separated by single spaces. `following` says of each sentence if
        it follows another one and a space, which byte-level BPE encodes with its first word.
        """
        if not self._splits_words:
            # Pieces of other tokenizers contain the space before a word: encode whole sentences.
            return self._encode_whole(sentences, following or [False] * len(sentences))
        if self._tokenizer.do_lower_case:
            # Non-ASCII text is lower-cased by the tokenizer's own rules.
            sentences = [s.lower() if s.isascii() else s for s in sentences]
        split = list(map(_WORDS.findall, sentences))
        words = set(chain.from_iterable(split))
        self._learn(words - self._words.keys())
        get = self._words.__getitem__
        return [array(self.typecode, b"".join(map(get, words))) for words in split]

    def _encode_whole(self, sentences: Sequence[str], following: Sequence[bool]) -> list[array]:
        after_space = list(compress(sentences, following))
        others = list(compress(sentences, map(operator.not_, following)))
        ids_after_space = iter(self._tokenizer.encode_after_space(after_space))
        ids_of_others = iter(self._tokenizer.encode(others))
        encoded = []
        for follows in following:
            ids = next(ids_after_space if follows else ids_of_others)
            encoded.append(array(self.typecode, ids))
        return encoded

    def _learn(self, new_words: Iterable[str]) -> None:
        new_words = list(new_words)
        for word, ids in zip(new_words, self._tokenizer.encode(new_words), strict=True):
            self._words[word] = array(self.typecode, ids)

    def forget_if_full(self) -> None:
        """Clears the cache of words if it has more than MOST_WORDS words."""
        if len(self._words) > MOST_WORDS:
            self._words.clear()


CHUNK_FOLDER = "chunks"
TRAIN = "train"
EVAL = "eval"
DOCUMENTS_PER_BATCH = 256
SHORT_SENTENCE = 20  # characters; sentences such as "No." are repeated in any text


class Chunk(NamedTuple):
    """A chunk of text: its number, counted from 0, and (UTF-8 text, layout) of each document.

    `text_bytes` is the size of all texts. All documents are from the source with the index
    `source` of a mixture, else 0; `is_first` is whether the chunk is the first one of its source.
    """

    number: int
    documents: list[tuple[bytes, str]]
    text_bytes: int
    source: int
    is_first: bool


def chunks_of(corpus: Corpus, chunk_bytes: int) -> Iterator[Chunk]:
    """Yields chunks of whole documents of one source each; errors as `Corpus.documents`.

    A chunk has at least `chunk_bytes` of text, except the last one of each source.
    """
    number = 0
    for source in range(len(corpus.sources or "1")):
        first = number
        size = 0
        held: list[tuple[bytes, str]] = []
        for document in corpus.documents(source if corpus.sources else None):
            text = document.text.encode("utf-8")
            held.append((text, document.layout))
            size += len(text)
            if size >= chunk_bytes:
                yield Chunk(number, held, size, source, number == first)
                number += 1
                size = 0
                held = []
        if held:
            yield Chunk(number, held, size, source, number == first)
            number += 1


@dataclass(frozen=True, kw_only=True)
class ChunkSettings:
    """Settings of `ChunkPreparer`: fields of `PrepareConfig`, with the same names and meanings."""

    output: str
    objective: ObjectiveName
    max_length: tuple[int, ...]
    dupe_factor: int
    short_seq_prob: float
    seed: int
    eval_fraction: float
    pack: bool
    max_sequences: int
    normalize: str = "none"


class _Sequence(NamedTuple):
    """A sequence: the bytes of its token ids; length, a_length and label as in `records.Row`."""

    ids: bytes
    length: int
    a_length: int
    label: int


@dataclass
class _Tokens:
    """Token ids of a chunk's documents, positions of sentences, and text statistics."""

    ids: array
    documents: list[list[int]] = field(default_factory=list)  # boundaries, see `segments.py`
    text_bytes: list[int] = field(default_factory=list)
    counts: Counter = field(default_factory=Counter)
    seen: set[str] = field(default_factory=set)  # sentences


class ChunkPreparer:
    """Converts chunks to shards one after the other, with a cache of the token ids of words.

    Documents that hold one of the runs of words `excluded` are left out.
    """

    def __init__(
        self,
        settings: ChunkSettings,
        tokenizer: Tokenizer,
        excluded: frozenset[str] = frozenset(),
    ):
        self._settings = settings
        self._objective = OBJECTIVES[settings.objective]
        self._encoder = SentenceEncoder(tokenizer)
        self._excluded = Excluded(excluded) if excluded else None
        self._tokenizer = tokenizer
        self._typecode = self._encoder.typecode
        self._cls = array(self._typecode, [tokenizer.cls_token_id])
        self._sep = array(self._typecode, [tokenizer.sep_token_id])

    def prepare(self, chunk: Chunk) -> None:
        """Writes the shards of a chunk, then its summary, which marks the chunk as finished."""
        tokens = self._tokenize(chunk)
        held_out = held_out_documents(
            len(tokens.documents),
            self._settings.eval_fraction,
            self._settings.seed,
            chunk.number,
            is_first=chunk.is_first,
        )
        of_train = [n for n in range(len(tokens.documents)) if n not in held_out]
        of_eval = sorted(held_out)
        summary = {
            "number": chunk.number,
            "counts": dict(tokens.counts),
            "source": chunk.source,
            "splits": {
                TRAIN: self._write_split(chunk.number, TRAIN, tokens, of_train),
                EVAL: self._write_split(chunk.number, EVAL, tokens, of_eval),
            },
            "eval_unigrams": self._unigrams(tokens, of_eval),
        }
        self._encoder.forget_if_full()
        write_summary(self._settings.output, summary)

    def _write_split(
        self, number: int, split: str, tokens: _Tokens, chosen: list[int]
    ) -> dict[str, Any]:
        """Writes the shards of the `chosen` documents; returns its part of the chunk's summary."""
        documents = [tokens.documents[n] for n in chosen]
        lengths = {}
        for length in self._settings.max_length:
            lengths[str(length)] = self._write(number, split, length, documents, tokens.ids)
        return {
            "documents": len(documents),
            "sentences": sum(len(bounds) - 1 for bounds in documents),
            "text_bytes": sum(tokens.text_bytes[n] for n in chosen),
            "text_tokens": sum(bounds[-1] - bounds[0] for bounds in documents),
            "lengths": lengths,
        }

    def _tokenize(self, chunk: Chunk) -> _Tokens:
        tokens = _Tokens(array(self._typecode))
        documents = chunk.documents
        if self._excluded is not None:
            documents = [x for x in documents if not self._excluded.is_in(x[0].decode())]
            tokens.counts["excluded_documents"] = len(chunk.documents) - len(documents)
        for start in range(0, len(documents), DOCUMENTS_PER_BATCH):
            self._add(documents[start : start + DOCUMENTS_PER_BATCH], tokens)
        return tokens

    def _add(self, documents: Sequence[tuple[bytes, str]], tokens: _Tokens) -> None:
        split = [self._sentences(text.decode(), layout, tokens) for text, layout in documents]
        sentences = list(chain.from_iterable(split))
        # Unless a sentence is the first of its document, a space precedes it.
        following: list[bool] = []
        for of_document in split:
            following += [number > 0 for number in range(len(of_document))]
        encoded = self._encoder.encode(sentences, following)
        position = len(tokens.ids)
        tokens.ids.frombytes(b"".join(encoded))
        self._count_unknown(tokens.counts, sentences, encoded)
        sizes = map(len, encoded)
        for (text, _), of_document in zip(documents, split, strict=True):
            lengths = list(islice(sizes, len(of_document)))
            filled = list(filter(None, lengths))
            if not filled:
                tokens.counts["documents_without_text"] += 1
                continue
            tokens.counts["sentences_without_tokens"] += len(lengths) - len(filled)
            bounds = list(accumulate(filled, initial=position))
            position = bounds[-1]
            tokens.documents.append(bounds)
            tokens.text_bytes.append(len(text))

    def _sentences(self, text: str, layout: Any, tokens: _Tokens) -> list[str]:
        """Splits a document, and counts its characters and some kinds of sentences."""
        counts = tokens.counts
        counts["characters"] += len(text)
        if self._settings.normalize == "nfc":
            text = unicodedata.normalize("NFC", text)
        sentences = sentences_of(Document(text, layout))
        if layout != "lines":
            ends = sum(map(ends_like_sentence, sentences))
            counts["sentences_without_end_mark"] += len(sentences) - ends
        known = len(tokens.seen)
        long = [sentence for sentence in sentences if len(sentence) > SHORT_SENTENCE]
        tokens.seen.update(long)
        counts["repeated_sentences"] += len(long) - (len(tokens.seen) - known)
        return sentences

    def _count_unknown(self, counts: Counter, sentences: list[str], encoded: list[array]) -> None:
        unknown = self._tokenizer.unk_token_id
        if unknown not in np.frombuffer(b"".join(encoded), self._typecode):
            return
        numbers = [ids.count(unknown) for ids in encoded]
        with_unknown = list(compress(sentences, numbers))
        sizes = list(map(len, self._tokenizer.unknown_parts(with_unknown)))
        counts["unknown_tokens"] += sum(numbers)
        counts["unknown_characters"] += sum(sizes)
        of_long_words = [size for size in sizes if size > MAX_CHARACTERS_PER_WORD]
        counts["characters_of_long_words"] += sum(of_long_words)

    def _write(
        self, number: int, split: str, length: int, documents: list[list[int]], ids: array
    ) -> dict[str, Any]:
        """Writes one shard, if there are rows; returns its part of the chunk's summary."""
        lengths: list[int] = []
        labels: Counter = Counter()

        def records() -> Iterator[bytes]:
            for duplicate in range(self._settings.dupe_factor):
                sequences = self._sequences(number, split, length, duplicate, documents, ids)
                for row in self._rows(sequences, length):
                    ids_of_row, lengths_of_row, _, labels_of_row = zip(*row, strict=True)
                    lengths.extend(lengths_of_row)
                    labels.update(labels_of_row)
                    head = row_head(ids.itemsize, [sequence[1:] for sequence in row])
                    yield b"".join([head, *ids_of_row])

        name = f"{split}-{length}-{number:05d}.array_record"
        file = place(self._settings.output) / name
        shard: dict[str, Any] = {"file": None, "records": 0, "size": None, "sha256": None}
        length_counts: list[int] = []
        with written_locally(file) as local:
            written = write_shard(local, records())
            if written:
                shard = asdict(describe(local, written))  # before it is uploaded to a bucket
                length_counts = np.bincount(lengths, minlength=length + 1).tolist()
        is_alone = len(documents) == 1 and self._objective.needs_second_document
        return {
            **shard,
            "tokens": sum(lengths),
            "labels": {str(label): labels[label] for label in sorted(labels)},
            "random_from_same_document": labels[1] if is_alone else 0,
            "length_counts": length_counts,
        }

    def _rows(self, sequences: Iterator[_Sequence], length: int) -> Iterator[list[_Sequence]]:
        """Yields each row's sequences; packed rows are in the order of their first sequences."""
        if not self._settings.pack:
            for sequence in sequences:
                yield [sequence]
            return
        # Duplicates are packed separately, so a row seldom contains the same text twice.
        held = list(sequences)
        rows = pack([sequence.length for sequence in held], length, self._settings.max_sequences)
        for row in sorted(map(sorted, rows)):
            yield [held[item] for item in row]

    def _sequences(
        self,
        number: int,
        split: str,
        length: int,
        duplicate: int,
        documents: list[list[int]],
        ids: array,
    ) -> Iterator[_Sequence]:
        settings = self._settings
        objective = self._objective
        seeds = (settings.seed, number, duplicate, length, split == EVAL)
        rng = np.random.default_rng(seeds)
        layout = self._tokenizer.layout
        special = layout.num_special_tokens(pair=objective.has_sentence_pairs)
        options = ExampleOptions(length - special, settings.short_seq_prob, shift=duplicate > 0)
        build = self._pair if objective.has_sentence_pairs else self._single
        for example in objective.make_examples(documents, options, rng):
            yield build(example, ids)

    def _single(self, segments: Segments, ids: array) -> _Sequence:
        """Builds `[CLS] segment [SEP] segment [SEP] ...`, in which all tokens have token type 0."""
        parts = [self._cls]
        size = 1
        for start, end in segments:
            parts += [ids[start:end], self._sep]
            size += end - start + 1
        return _Sequence(b"".join(parts), size, size, NO_LABEL)

    def _pair(self, pair: Pair, ids: array) -> _Sequence:
        """Builds `[CLS] A [SEP] B [SEP]`, with two [SEP] tokens after A in some model families."""
        a_start, a_end, b_start, b_end, label = pair
        between = self._sep * self._tokenizer.layout.separators
        a_length = a_end - a_start + 1 + len(between)
        size = a_length + b_end - b_start + 1
        parts = (self._cls, ids[a_start:a_end], between, ids[b_start:b_end], self._sep)
        if not self._tokenizer.second_type:
            a_length = size
        return _Sequence(b"".join(parts), size, a_length, label)

    def _unigrams(self, tokens: _Tokens, chosen: list[int]) -> dict[str, int]:
        counts: Counter = Counter()
        for n in chosen:
            bounds = tokens.documents[n]
            counts.update(tokens.ids[bounds[0] : bounds[-1]])
        return {str(token): counts[token] for token in sorted(counts)}


def held_out_documents(
    count: int, fraction: float, seed: int, chunk: int, *, is_first: bool
) -> set[int]:
    """Draws the indices of the documents of a chunk that are held out for evaluation.

    Their number is rounded at random, so that on average a share of `fraction` is held out. It is
    even, so that next-sentence prediction can draw from a second held-out document, but at most
    `count // 2`; of the first chunk of a source, it is not 0.
    """
    if fraction == 0 or count < 2:
        return set()
    # The seed of the examples has more components, so the two random streams differ.
    rng = np.random.default_rng((seed, chunk))
    pairs = int(fraction * count / 2 + rng.random())
    chosen = 2 * pairs
    if is_first:
        chosen = max(chosen, 2)
    chosen = min(chosen, count // 2)
    return set(rng.choice(count, size=chosen, replace=False).tolist())


def summary_path(output: str, chunk: int) -> Path:
    """Returns the path of the summary of a chunk in the prepared directory `output`."""
    return place(output) / CHUNK_FOLDER / f"{chunk:05d}.json"


def write_summary(output: str, summary: dict[str, Any]) -> None:
    """Writes the summary of a chunk atomically."""
    write_text(summary_path(output, summary["number"]), json.dumps(summary))


def read_summary(
    output: str,
    chunk: int,
    remembered: Remembered | None = None,
    joined: frozenset[str] = frozenset(),
) -> dict[str, Any] | None:
    """Returns the summary of a chunk, which `ChunkPreparer.prepare` wrote.

    Returns None if the chunk is unfinished, or one of its shards is missing or damaged, but for
    those `joined` already. Checksums are verified of shards that are not in `remembered`.
    """
    summary = read_json_or_empty(summary_path(output, chunk))
    if not summary:
        return None
    for split in summary["splits"].values():
        for content in split["lengths"].values():
            shard = shard_of(content)
            if shard is None or shard.file in joined:
                continue
            if not has_records(place(output) / shard.file, shard.records):
                return None
            if remembered is not None and not is_intact(output, shard, remembered):
                return None
    return summary


def shard_of(content: dict[str, Any]) -> Shard | None:
    """Returns the shard that a part of a chunk's summary describes; None if it has no rows.

    In summaries that older versions of bertjax wrote, shards have no checksums.
    """
    if not content["file"]:
        return None
    names = ("file", "records", "size", "sha256")
    return Shard(**{name: content[name] for name in names if name in content})
