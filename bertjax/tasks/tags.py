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
_USUAL = "(?P<mark>[A-Z])-(?P<type>.+)"
_BARE = "(?P<mark>[A-Z])(?P<type>)"
# {layout of a tag: what the name of its scheme ends with}
_LAYOUTS = {
    _USUAL: "",
    "(?P<mark>[A-Z])_(?P<type>.+)": " (B_X)",
    "(?P<type>.+)-(?P<mark>[A-Z])": " (X-B)",
    "(?P<type>.+)_(?P<mark>[A-Z])": " (X_B)",
    _BARE: "",
}
_TYPE = re.compile(r"[^\W\d_][\w .:&/-]*\w")
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
            meaning = (OUTSIDE, "")
            if tag in self.meanings:
                meaning = self.meanings[tag]
            elif re.fullmatch("[BI](-.+)?", tag):
                meaning = (tag[0], tag[2:])
            mark, kind = meaning
            prefix = mark
            if mark in "BS" or (mark in "IE" and kind != inside):
                prefix = "B"
            elif mark != OUTSIDE:
                prefix = "I"
            if kind:
                prefix += f"-{kind}"
            converted.append(prefix)
            inside = kind
            if mark in "OES":
                inside = None
        return tuple(converted)

    def from_iob2(self, tags: Sequence[str]) -> tuple[str, ...]:
        """Converts the tags of a sentence from IOB2; tags of types without a tag stay."""
        written = {meaning: tag for tag, meaning in reversed(self.meanings.items())}
        converted = list(tags)
        for first, end, kind in entities(tags):
            last = end - 1
            for index in range(first, end):
                marks = "IB"
                if first == last:
                    marks = "SBI"
                elif index == first:
                    marks = "BI"
                elif index == last:
                    marks = "EIB"
                for mark in reversed(marks):  # the first one that has a tag
                    converted[index] = written.get((mark, kind), converted[index])
        return tuple(converted)


def tag_scheme(tags: Iterable[str]) -> TagScheme | None:
    """Recognises the scheme of all tags of a file or model; None if they mark no entities.

    Marks without types need an O, because they may be parts of speech, except those of segments
    (B and I, or B, M, E and S). Types without marks need an O, too.
    """
    every = set(tags)
    marked = sorted(every - {OUTSIDE} - _NO_WORDS) or sorted(every - {OUTSIDE})
    meanings: dict[str, tuple[str, str]] = dict.fromkeys(every.difference(marked), (OUTSIDE, ""))
    only_words = _NO_WORDS.isdisjoint(every)
    for layout in _LAYOUTS:
        parts = _parts(marked, layout)
        marks = {mark for mark, _ in parts.values()}
        name = _scheme_of(marks)
        if len(parts) < len(marked) or not name:
            continue
        is_likely = OUTSIDE in every or "B" in marks or layout == _USUAL
        if layout == _BARE:
            is_likely = OUTSIDE in every and ("B" in marks or marks == {"I"})
            is_likely = only_words and (is_likely or marks in _SEGMENTS)
        if is_likely:
            for tag, (mark, kind) in parts.items():
                meanings[tag] = (_MARKS[mark], kind)
            name += _LAYOUTS[layout]
            return TagScheme(name, meanings, is_iob=name == "IOB" and only_words)
    if OUTSIDE not in every or not all(map(_TYPE.fullmatch, marked)):
        return None
    if len(PARTS_OF_SPEECH.intersection(marked)) > 1:
        return None
    for tag in marked:  # as in pipelines of transformers
        mark, _, kind = tag.partition("-")
        meanings[tag] = ("I", tag)
        if mark in ("B", "I") and kind:
            meanings[tag] = (mark, kind)
    return TagScheme("IO", meanings, is_iob=False)


def _parts(tags: Iterable[str], layout: str) -> dict[str, tuple[str, str]]:
    """Returns {tag: (mark, type)} of the tags that are laid out so."""
    parts = {}
    for tag in tags:
        if match := re.fullmatch(layout, tag):
            parts[tag] = (match["mark"], match["type"])
    return parts


def _scheme_of(marks: set[str]) -> str:
    """Returns the name of the first scheme that has all `marks`, or ""."""
    for name, known in _SCHEMES.items():
        if marks.issubset(known):
            return name
    return ""


def marked_scheme(counts: Mapping[str, int]) -> TagScheme | None:
    """Returns the scheme of the tags of a file, {tag: number of words}, if they mark entities.

    Unlike in `tag_scheme`, `PLACEHOLDERS` do not prevent it, nor do tags without a mark that are
    rarer than marks; and types without marks are no scheme.
    """
    usual = set()
    marks = others = 0
    for tag in counts.keys() - PLACEHOLDERS:
        if tag in _NO_WORDS or any(re.fullmatch(layout, tag) for layout in _LAYOUTS):
            usual.add(tag)
            if tag != OUTSIDE:
                marks += counts[tag]
        else:
            others += counts[tag]
    if not usual or marks < others:
        return None
    scheme = tag_scheme(usual)
    if scheme is None or scheme.name == "IO":
        return None
    return scheme


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
