"""Rule-based sentence splitting for English, and for Chinese and Japanese by their punctuation.

Rules suit pretraining better than a learned sentence splitter: rules need no download and process
tens of MB/s, and rare mistakes do not matter to a language model.
"""

import re

from bertjax.data.text.lines import cut_at_spaces

# Longer "sentences" are tables, lists or text without full stops; a training example would contain
# only their beginning.
MAX_SENTENCE_CHARACTERS = 1000

# Abbreviations that are never the last word of a sentence.
_TITLES = frozenset(
    "mr mrs ms mx dr prof rev fr hon st ste mt messrs mme mlle gen col lt maj capt cmdr sgt cpl "
    "pvt adm gov sen rep pres supt insp vs viz cf al eg ie e.g i.e approx ca c fl b d r née resp "
    "fig figs eq eqs sec ch vol vols pp p pt nos ed eds trans dept univ assn bros incl "
    "jan feb mar apr jun jul aug sep sept oct nov dec".split()
)
# Words that are abbreviations only before a number.
_BEFORE_NUMBERS = frozenset("no art op cat ex para §".split())
# Abbreviations that may end a sentence or not: the next word decides.
_AMBIGUOUS = frozenset(
    "etc inc ltd co corp llc plc jr sr bhd esq ph.d m.d b.a m.a d.c a.m p.m u.s u.k u.n e.u a.d "
    "b.c ave blvd rd mi ft lb lbs oz hr hrs min cm mm km kg".split()
)
_STARTERS = frozenset(
    "the a an this that these those he she it they we i you his her its their our my your there "
    "here in on at by for from to with as after before during when while if although though "
    "since because however but and or so then thus also another some many most all both each "
    "no not one two what who where why how it's he's she's".split()
)

# A full stop, closing quotes, space, then something that may begin a sentence. The look-behind and
# the possessive "++" avoid quadratic time for a long run of dots.
_LATIN_END = re.compile(
    r"""(?<![.!?…])[.!?…]++["'”’»)\]]*+(?:\[\d+\])?(\s++)(?=["'“‘«(\[¿¡—–-]*+([^\W_a-z]))"""
)
_CJK_END = re.compile(r"[。！？｡]+[”’」』）)\"']*()")
_HAS_CJK_END = re.compile(r"[。！？｡]")
_LAST_WORD = re.compile(r"[^\s(\[{\"'“‘«/—–-]*$")
_NEXT_WORD = re.compile(r"[\"'“‘«(\[¿¡—–-]*([\w'’]+)")


def split_sentences(paragraph: str) -> list[str]:
    """Splits a paragraph into sentences; each run of white space becomes one space."""
    sentences = []
    start = 0
    for end in _boundaries(paragraph):
        sentences.append(paragraph[start:end])
        start = end
    sentences.append(paragraph[start:])
    return [piece for sentence in sentences for piece in normalise(sentence)]


def normalise(sentence: str) -> list[str]:
    """Replaces runs of white space in a sentence by single spaces; splits a very long sentence.

    Returns:
        A list with the sentence; an empty list for a blank sentence; and pieces of at most
        MAX_SENTENCE_CHARACTERS characters for a longer sentence.
    """
    sentence = " ".join(sentence.split())
    if len(sentence) <= MAX_SENTENCE_CHARACTERS:
        return [sentence] if sentence else []
    return [piece.strip() for piece in cut_at_spaces(sentence, MAX_SENTENCE_CHARACTERS)]


def _boundaries(paragraph: str) -> list[int]:
    ends = [
        match.start(1)
        for match in _LATIN_END.finditer(paragraph)
        if _ends_sentence(paragraph, match)
    ]
    if not paragraph.isascii() and _HAS_CJK_END.search(paragraph):
        ends = sorted({*ends, *(match.end() for match in _CJK_END.finditer(paragraph))})
    return ends


def _ends_sentence(paragraph: str, match: re.Match) -> bool:
    after = match[2]
    if after.islower():  # non-ASCII letters, which the pattern does not exclude
        return False
    stop = match.start()
    if paragraph[stop] != "." or paragraph[stop + 1 : stop + 2] == ".":
        return True  # "!", "?", "…" or an ellipsis before a capital
    before = paragraph[max(0, stop - 24) : stop]
    match_before = _LAST_WORD.search(before)
    word = match_before[0] if match_before else ""
    if len(word) == 1 and word.isupper() and word != "I":
        return False  # an initial
    lower = word.lower()
    if lower in _TITLES:
        return False
    if lower in _BEFORE_NUMBERS:
        return not after.isdigit()
    if lower in _AMBIGUOUS or (len(word) > 2 and word[1] == "." and word[0].isalpha()):
        following = _NEXT_WORD.match(paragraph, match.end())
        return following is not None and following[1].lower() in _STARTERS
    return True
