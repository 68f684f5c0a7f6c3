"""Tagging: predicts one class per word of a sentence (Devlin et al. 2018, 5.3).

A running text is split into words as in the Penn Treebank and in CoNLL-2003: punctuation marks are
words of their own, except within abbreviations (U.N., a.m.), numbers (1,000, 1996-08-22) and
compounds (18-year-old); English clitics are split off ("Germany's" has two words); a Chinese
character is a word, and so is one of any other script without spaces, such as Thai.

The words of an entity of type X, here of three words, have these tags in each scheme (Ramshaw and
Marcus 1995; Ratinov and Roth 2009):

    IOB1    I-X I-X I-X, but B-X I-X I-X after another entity of type X (official CoNLL files)
    IOB2    B-X I-X I-X
    IOBES   B-X I-X E-X, but S-X for an entity of one word (BILOU: L-X for E-X, U-X for S-X;
            BMES: M-X for I-X; BMEWO: W-X for S-X as well)
    IO      X X X, where O marks other words, as in pipelines of transformers

Instead of B-X, a set of tags may have B_X, X-B, X_B or, without types, B.
"""

import dataclasses
import functools
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import regex

from bertjax.base.files import brief, writing
from bertjax.data.batches.batch import Feature, LabelKind
from bertjax.tasks.classification import softmax
from bertjax.tasks.metrics import Metric, entities, entity_f1, word_accuracy
from bertjax.tasks.task import (
    Example,
    Export,
    Outputs,
    Pairs,
    Prediction,
    Task,
    check_stride,
    feature_of,
    widest_contexts,
    windows,
)
from bertjax.tokenization import Tokenizer
from bertjax.tokenization.base import CHARACTER, UNSPACED

OUTSIDE = "O"
# The tag of a word without a label, which is neither trained on nor scored.
UNLABELLED = ""
# How files mark such a word: as transformers do or, where tags mark entities, by other signs.
NO_TAG = "-100"
PLACEHOLDERS = frozenset("-100 -1 _ - * ? -X- UNK [UNK] <unk> nan NaN N/A".split())
_MARKS = dict(zip("BIMELSUW", "BIIEESSS", strict=True))
_SCHEMES = {"IOB": "BI", "IOBES": "BIES", "BILOU": "BILU", "BMES": "BMES", "BMEWO": "BMEW"}
_SCHEMES |= {"IOBES and BILOU": "BIESLU"}
_USUAL, _BARE = "([A-Z])-(.+)", "([A-Z])()"
_UNUSUAL = {"([A-Z])_(.+)": "B_X", "(.+)-([A-Z])": "X-B", "(.+)_([A-Z])": "X_B"}
_MARKED = re.compile("|".join(("[A-Z]", _USUAL, *_UNUSUAL)))
# Marks that are usual without types and O, of segments such as words.
_SEGMENTS = ({"B", "I"}, {"B", "M", "E", "S"})
_NO_WORDS = frozenset({"[CLS]", "[SEP]", "[PAD]", "<PAD>", "<pad>", "PAD", "X"})
PARTS_OF_SPEECH = frozenset(
    "ADJ ADP ADV AUX CCONJ DET INTJ NOUN NUM PART PRON PROPN PUNCT SCONJ SYM VERB "
    "CC CD DT IN JJ NN NNP NNS PRP RB TO VB VBD VBG VBN VBP VBZ".split()
)


class TagScheme(NamedTuple):
    """How a set of tags marks entities.

    Attributes:
        name: such as "IOB" (IOB1 or IOB2), "BILOU" or "IOB (X-B)".
        meanings: {tag: (mark, type)}, where the mark is one of O, B, I, E and S, as in IOBES.
        is_iob: whether the tags are O, B-X and I-X, or O, B and I, so that `entities` reads them.
    """

    name: str
    meanings: dict[str, tuple[str, str]]
    is_iob: bool

    def to_iob2(self, tags: Iterable[str]) -> tuple[str, ...]:
        """Converts the tags of a sentence to IOB2; those of IOB2 mean the same in every scheme."""
        converted = []
        inside = None  # type of the entity that the next word may continue
        for tag in tags:
            if tag == UNLABELLED:
                converted.append(tag)
                continue
            is_iob = re.fullmatch("[BI](-.+)?", tag)
            mark, kind = self.meanings.get(tag, (tag[0], tag[2:]) if is_iob else (OUTSIDE, ""))
            begins = mark in "BS" or kind != inside
            prefix = OUTSIDE if mark == OUTSIDE else "B" if begins else "I"
            converted.append(f"{prefix}-{kind}" if kind else prefix)
            inside = None if mark in "OES" else kind
        return tuple(converted)

    def from_iob2(self, tags: Sequence[str]) -> tuple[str, ...]:
        """Converts the tags of a sentence from IOB2; tags of types without a tag stay."""
        written = {meaning: tag for tag, meaning in reversed(self.meanings.items())}
        converted = list(tags)
        for first, end, kind in entities(tags):
            for index in range(first, end):
                marks = ("SBI" if end - first == 1 else "BI") if index == first else "IB"
                marks = "E" + marks if index == end - 1 > first else marks
                names = (written[mark, kind] for mark in marks if (mark, kind) in written)
                converted[index] = next(names, tags[index])
        return tuple(converted)


def tag_scheme(tags: Iterable[str]) -> TagScheme | None:
    """Recognises the scheme of all tags of a file or model; None if they mark no entities.

    Marks without types need an O, because they may be parts of speech, except those of segments
    (B and I, or B, M, E and S). Types without marks need an O, too.
    """
    every = set(tags)
    marked = sorted(every - {OUTSIDE} - _NO_WORDS) or sorted(every - {OUTSIDE})
    meanings: dict[str, tuple[str, str]] = dict.fromkeys(every - {*marked}, (OUTSIDE, ""))
    for layout in (_USUAL, *_UNUSUAL, _BARE):
        found = [match.groups() for tag in marked if (match := re.fullmatch(layout, tag))]
        parts = [pair[::-1] if layout.startswith("(.") else pair for pair in found]
        marks = {mark for mark, _ in parts}
        name = next((name for name, known in _SCHEMES.items() if marks <= {*known}), "")
        if len(parts) < len(marked) or not name:
            continue
        if layout == _BARE:
            is_likely = OUTSIDE in every and ("B" in marks or marks == {"I"}) or marks in _SEGMENTS
            is_likely = is_likely and _NO_WORDS.isdisjoint(every)
        else:
            is_likely = layout == _USUAL or OUTSIDE in every or "B" in marks
        if not is_likely:
            continue
        pairs = zip(marked, parts, strict=True)
        meanings |= {tag: (_MARKS[mark], kind) for tag, (mark, kind) in pairs}
        name += f" ({_UNUSUAL[layout]})" if layout in _UNUSUAL else ""
        is_iob = name == "IOB" and _NO_WORDS.isdisjoint(every)
        return TagScheme(name, meanings, is_iob)
    named = all(re.fullmatch(r"[^\W\d_][\w .:&/-]*\w", tag) for tag in marked)
    if OUTSIDE not in every or not named or len(PARTS_OF_SPEECH.intersection(marked)) > 1:
        return None
    for tag in marked:  # as in pipelines of transformers
        mark, _, kind = tag.partition("-")
        meanings[tag] = (mark, kind) if mark in ("B", "I") and kind else ("I", tag)
    return TagScheme("IO", meanings, is_iob=False)


def marked_scheme(counts: Mapping[str, int]) -> TagScheme | None:
    """Returns the scheme of the tags of a file, {tag: number of words}, if they mark entities.

    Unlike in `tag_scheme`, `PLACEHOLDERS` do not prevent it, nor do tags without a mark that are
    rarer than marks; and types without marks are no scheme.
    """
    usual = {tag for tag in counts if tag in _NO_WORDS or _MARKED.fullmatch(tag)} - PLACEHOLDERS
    scheme = tag_scheme(usual) if usual else None
    others = sum(counts[tag] for tag in counts.keys() - usual - PLACEHOLDERS)
    marks = sum(counts[tag] for tag in usual - {OUTSIDE})
    return scheme if scheme and scheme.name != "IO" and marks >= others else None


def order_tags(tags: Iterable[str]) -> tuple[str, ...]:
    """Returns the tags in the order of their class ids: O, then B-X and I-X for each type X.

    Both B-X and I-X are included, even if `tags` has only one of them. Tags that are not in IOB,
    such as parts of speech, are sorted alphabetically.
    """
    scheme = tag_scheme(tags := set(tags))
    if scheme is None or not scheme.is_iob:
        return tuple(sorted(tags))
    kinds = sorted({tag[1:] for tag in tags if tag != OUTSIDE})
    return (OUTSIDE, *(mark + kind for kind in kinds for mark in "BI"))


# Abbreviations to which a following period belongs, unless the text ends there.
_ABBREVIATIONS = (
    "Mr Mrs Ms Dr Prof St Gen Col Lt Sgt Capt Gov Sen Rep Rev Hon Pres Jr Sr Inc Corp Ltd Co Bros "
    "Mt Ft No vs Jan Feb Mar Apr Jun Jul Aug Sep Sept Oct Nov Dec"
)
_CLITIC = r"(?i:s|re|ve|ll|d|m)\b"


class Word(NamedTuple):
    """A word of a running text: text[start:end]."""

    text: str
    start: int
    end: int


def split_words(text: str) -> list[Word]:
    """Splits running text into words, which are returned in the order of the text."""
    return [Word(match[0], *match.span()) for match in _pattern().finditer(text)]


@functools.cache
def _pattern() -> regex.Pattern[str]:
    """Returns the regular expression that matches one word; its first matching alternative wins."""
    # Marks, such as the vowel signs of Hindi, and joiners belong to the character before them.
    letter = rf"[[\w\p{{N}}]--{UNSPACED}]"
    return regex.compile(
        rf"""(?V1)
        [()\[\]{{}},;:!?"](?=[\x00-\x7f]|\Z)                 # first, because these are found fast
        | (?:https?://|www\.)[^\s<>"{UNSPACED}]*[^\s<>".,;:!?)'\]{UNSPACED}]  # addresses of pages
        | [{letter}.+-]{{1,64}}@{letter}[{letter}-]*(?:\.{letter}[{letter}-]*)+  # of mail
        | {CHARACTER}
        | (?:[{letter}--[\d_]]\.){{2,}}(?:-{letter}+)*            # U.N., a.m., U.S.-led
        | (?:[A-Z]\.)+[A-Z]\b                                   # U.S without its last period
        | [A-Z]\.(?=\s+\S)                                      # the initial in J. Smith
        | (?:{"|".join(_ABBREVIATIONS.split())})\.(?=\s+\S)
        | \A\d+\.(?=\s+\S)                                      # the number of an entry of a list
        | (?i:n['’]t\b) | ['’]{_CLITIC}
        | (?<![\w\p{{N}}])[+-]?\.?\d+(?:[.,:/\-]\d+)*(?![\w\p{{N}}]|-{letter})  # .500, 1996-08-22
        | (?:US|HK|NZ|[AC])\$
        | {letter}(?:(?!n['’]t\b){letter}|[-&/.’'](?!{_CLITIC})(?={letter}))*  # AT&T, O'Brien
        | \.{{2,}}|-{{2,}}|\*{{2,}}|={{2,}}
        | [^\w\p{{N}}\s](?:[\p{{M}}\U0001f3fb-\U0001f3ff]|\u200d[^\w\p{{N}}\s])*  # emoji, modified
        """,
        regex.VERBOSE,
    )


def export_columns(folder: Path, split: str, pairs: Pairs) -> Iterator[tuple[Example, Prediction]]:
    """Writes SPLIT.conll as conlleval reads it: a word, its tag (if known), the predicted tag."""
    path = folder / f"{split}.conll"
    with writing(path) as temporary, temporary.open("x", encoding="utf-8") as lines:
        for example, prediction in pairs:
            tags: Any = example.label
            gold = [[tag or "_" for tag in tags]] if isinstance(tags, tuple) else []
            columns = [example.words, *gold, prediction["labels"]]
            lines.writelines(" ".join(row) + "\n" for row in zip(*columns, strict=True))
            lines.write("\n")
            yield example, prediction


@dataclasses.dataclass(frozen=True, kw_only=True)
class TagTask(Task):
    """Task that predicts one tag per word, at the first word piece of the word.

    A text of more than `max_length` tokens is split into overlapping windows, which begin with
    whole words. Each word counts once: its tag is trained and predicted in the window in which its
    first piece has the most context.

    Attributes:
        doc_stride: maximum number of tokens between the starts of two consecutive windows of a long
            text; None: half of a window, so that every word has at least a quarter of a window of
            context on both sides, except at the ends of the text.
    """

    doc_stride: int | None = None
    metric: Metric = entity_f1
    best_metric: str = "f1"
    export: Export | None = export_columns

    head: ClassVar[str] = "token_classification"
    label_kind: ClassVar[LabelKind] = "tokens"

    def __post_init__(self):
        check_stride(self.doc_stride)

    def description(self, max_length: int) -> dict[str, Any]:
        return {**super().description(max_length), "doc_stride": self.doc_stride}

    @property
    def reads_windows(self) -> bool:
        return True

    @classmethod
    def of_labels(cls, labels: tuple[str, ...], **fields: Any) -> "TagTask":
        """Creates a task whose metric is entity F1 if `labels` mark entities, else accuracy."""
        scheme = tag_scheme(labels)
        if scheme is None:
            fields = {"metric": word_accuracy, "best_metric": "accuracy", **fields}
            odd = [x for x in labels if x in PLACEHOLDERS or re.fullmatch("[BI]-.+", x)]
            if odd:
                print(
                    f"warning: no entities are scored, because tags such as {odd[0]!r} mark none: "
                    f"correct them, or write {NO_TAG} for a word without a label."
                )
        elif not scheme.is_iob:
            print(
                f"The tags of the model ({brief(', '.join(labels), 60)}) are read as entities in "
                f"the scheme {scheme.name}.",
                file=sys.stderr,
            )
        return cls(labels=labels, **fields)

    def features(self, example: Example, tokenizer: Tokenizer, max_length: int) -> list[Feature]:
        """Encodes each window of the text as an input of the model, `[CLS] pieces [SEP]`.

        `Feature.origins` holds the index of a word at the first piece of the word, in the window in
        which this piece has the most context, and -1 at all other tokens. Every word, including the
        first, is encoded as if a space preceded the word, like transformers with
        `is_split_into_words` (and `add_prefix_space`).

        Emoji and other symbols of a running text that are not in the vocabulary are left out,
        because models tend to take unknown words for names. No word of a list of words is left out.

        Raises:
            ValueError: the example has no words, a tag is unknown, or there is not one per word.
        """
        if not example.words:
            raise ValueError(f"{example.where}: the sentence has no words; remove it.")
        ids, origins, starts = _pieces(example, tokenizer)
        word_labels = self._word_labels(example)
        room = max_length - tokenizer.layout.num_special_tokens(pair=False)
        spans = windows(len(ids), room, self.doc_stride or max(1, room // 2), starts)
        features = []
        for (start, end), is_widest in zip(spans, widest_contexts(spans), strict=True):
            sequence = tokenizer.join(ids[start:end])
            words = np.full(len(sequence[0]), -1, np.int32)
            words[1:-1] = np.where(is_widest, origins[start:end], -1)
            labels = None if word_labels is None else word_labels[words]
            features.append(feature_of([sequence], labels, words))
        return features

    def _word_labels(self, example: Example) -> np.ndarray | None:
        """Returns the label of each word and, at the end, the label -1 for tokens of no word."""
        if not isinstance(example.label, tuple):
            return None
        if len(example.label) != len(example.words):
            raise ValueError(
                f"{example.where} has {len(example.words)} words, but {len(example.label)} tags: "
                "give one tag per word."
            )
        tags = example.label
        if self.scheme and not self.scheme.is_iob:
            written = self.scheme.from_iob2(self.iob2(tags))
            outside = {tag for tag, (mark, _) in self.scheme.meanings.items() if mark == OUTSIDE}
            # A tag that the scheme does not have is refused below, and not taken for O.
            pairs = zip(written, tags, strict=True)
            tags = [tag if tag != OUTSIDE or given in outside else given for tag, given in pairs]
        ids = (self.label_id(tag, example.where) if tag else -1 for tag in tags)
        return np.array([*ids, -1], np.int32)

    def predict(
        self, example: Example, features: Sequence[Feature], outputs: Sequence[Outputs]
    ) -> Prediction:
        """Returns a dict of the lists words, labels (tags) and probabilities, one entry per word.

        The tag of a word is the most probable one in the window in which the word has the most
        context. A word that the model has not read, because it is an unknown symbol, has the
        probability None, and the tag O or, if no label is O, the first label. If the labels mark
        entities, the key entities holds a list of dicts with the keys type, text, probability,
        first_word, last_word and, for a running text, start and end (in characters).
        """
        unread = OUTSIDE if OUTSIDE in self.labels else self.labels[0]
        tags = [unread] * len(example.words)
        confidences: list[float | None] = [None] * len(example.words)
        for feature, output in zip(features, outputs, strict=True):
            assert feature.origins is not None
            (tokens,) = np.nonzero(feature.origins >= 0)
            probabilities = softmax(output["logits"][tokens])  # [words, C]
            best = probabilities.argmax(-1)
            chosen = probabilities[np.arange(len(tokens)), best].tolist()
            words = feature.origins[tokens].tolist()
            for word, label, probability in zip(words, best.tolist(), chosen, strict=True):
                tags[word], confidences[word] = self.labels[label], probability
        prediction: Prediction = {"words": [*example.words], "labels": tags}
        prediction["probabilities"] = confidences
        if self.marks_entities:
            read = [word for word, confidence in enumerate(confidences) if confidence is not None]
            self._tag_symbols_within_entities(read, tags, confidences)
            prediction["entities"] = [*_entities(example, self.iob2(tags), confidences)]
        return prediction

    def _tag_symbols_within_entities(
        self, read: Sequence[int], tags: list[str], probabilities: list[float | None]
    ) -> None:
        """Tags unread symbols, such as emoji, within an entity of type X as I-X.

        The symbol gets the probability of the entity's first tag.
        """
        for first, end, kind in entities(self.iob2([tags[word] for word in read])):
            written = [f"{mark}-{kind}" if kind else mark for mark in "BII"]
            if self.scheme and not self.scheme.is_iob:
                written = self.scheme.from_iob2(written)
            for word in {*range(read[first], read[end - 1])} - {*read}:
                tags[word], probabilities[word] = written[1], probabilities[read[first]]

    @functools.cached_property
    def scheme(self) -> TagScheme | None:
        """How the labels mark entities; None if they are, for example, parts of speech."""
        return tag_scheme(self.labels)

    @property
    def marks_entities(self) -> bool:
        """Whether the labels mark entities, and are not, for example, parts of speech."""
        return self.scheme is not None

    def iob2(self, tags: Sequence[str]) -> Sequence[str]:
        """Converts tags of the task to IOB2, unless they are in IOB or mark no entities."""
        return tags if self.scheme is None or self.scheme.is_iob else self.scheme.to_iob2(tags)

    def score(self, pairs: Pairs) -> dict[str, float]:
        rows = [
            (*self.scored_tags(e, p), e.cut)
            for e, p in pairs
            if isinstance(e.label, tuple) and any(e.label)
        ]
        return self.metric(*zip(*rows, strict=True)) if rows else {}

    def scored_tags(
        self, example: Example, prediction: Prediction
    ) -> tuple[Sequence[str], Sequence[str]]:
        """Returns the tags and the predicted tags of the words with a label, as by `iob2`."""
        golds: Any = example.label
        known = [word for word, tag in enumerate(golds) if tag != UNLABELLED]
        golds, answers = ([tags[i] for i in known] for tags in (golds, prediction["labels"]))
        return self.iob2(golds), self.iob2(answers)


def _pieces(example: Example, tokenizer: Tokenizer) -> tuple[list[int], np.ndarray, list[int]]:
    """Encodes the words of an example, without the symbols of a running text that are unknown.

    Returns the ids of all pieces; for each piece, int32 [pieces], the index of the word that starts
    with it, or -1; and the indices of the pieces that start a word.
    """
    ids: list[int] = []
    origins: list[int] = []
    starts: list[int] = []
    for word, pieces in enumerate(tokenizer.encode_after_space(example.words)):
        # A word that consists only of control characters has no pieces, but needs a position.
        pieces = pieces or [tokenizer.unk_token_id]
        if example.offsets and _is_unknown_symbol(example.words[word], pieces, tokenizer):
            continue
        starts.append(len(ids))
        ids += pieces
        origins += [word] + [-1] * (len(pieces) - 1)
    return ids, np.array(origins, np.int32), starts


def _is_unknown_symbol(word: str, pieces: Sequence[int], tokenizer: Tokenizer) -> bool:
    return set(pieces) == {tokenizer.unk_token_id} and not any(map(str.isalnum, word))


def _entities(
    example: Example, tags: Sequence[str], probabilities: Sequence[float | None]
) -> Iterator[dict[str, Any]]:
    """Yields a dict for each entity that the predicted tags mark, in the order of the words.

    The probability is the mean over the tags; None if the model has read none of the words.
    """
    for first, end, kind in entities(tags):
        entity = {"type": kind, "text": " ".join(example.words[first:end])}
        read = [p for p in probabilities[first:end] if p is not None]
        entity |= {"probability": float(np.mean(read)) if read else None}
        entity |= {"first_word": first, "last_word": end - 1}
        if example.offsets:
            start, stop = example.offsets[first][0], example.offsets[end - 1][1]
            entity |= {"text": example.text[start:stop], "start": start, "end": stop}
        yield entity
