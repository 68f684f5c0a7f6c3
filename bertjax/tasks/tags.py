"""Tags of words: the schemes in which they mark entities, and the words of a running text.

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

import functools
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import regex

from bertjax.tasks.metrics import entities
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
