"""Rule-based sentence splitting for English, and for other languages by their punctuation.

The marks that end sentences have Unicode's property Sentence_Terminal, such as the
Devanagari danda, with the exceptions stated below. Text of languages that do not mark the ends of
sentences, such as Thai, is not split.

Rules suit pretraining better than a learned sentence splitter: rules need no download and process
tens of MB/s, and rare mistakes do not matter to a language model.
"""

import itertools
import re
from collections.abc import Iterable, Iterator
from typing import Literal, NamedTuple

import regex  # for Unicode's property Sentence_Terminal

from bertjax.data.text.streams import cut_at_spaces

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
# Those of German and Slavic languages, as they are written within a sentence.
_FOREIGN = frozenset(
    "abb abs abt bd bde bzw dipl evtl exkl geb gest ggf hl hrsg inkl jh mrd nr sog tsd usf vgl "
    "čes čís hab inż mgr např np npr nám resp sv sw św tzn tzv tzw ul акад бул вв вул гг гл гр "
    "доц др им изд ин кв корп млн млрд н.э напр обл оз пер пл пос пр просп проф рис руб св см ср "
    "ст стр т.е т.к т.н т.ч табл тов тт тыс ул".split()
)
# Words that are abbreviations only before a number.
_BEFORE_NUMBERS = frozenset("no art op cat ex para §".split())
# Abbreviations that may end a sentence or not: the next word decides.
_AMBIGUOUS = frozenset(
    "etc inc ltd co corp llc plc jr sr bhd esq ph.d m.d b.a m.a d.c a.m p.m u.s u.k u.n e.u a.d "
    "b.c ave blvd rd mi ft lb lbs oz hr hrs min cm mm km kg".split()
)
_LISTED = _TITLES | _FOREIGN | _BEFORE_NUMBERS | _AMBIGUOUS
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
# Marks that end a sentence without white space after them: Sentence_Terminal, less the marks of the
# other patterns, the Burmese comma, and full stops of other widths than "."; and Tibetan shads. In
# Chinese and Japanese, such full stops also stand in names and numbers.
_MARK = r"[[\p{Sentence_Terminal}།༎]--[\x00-\x7f\u203c-\u2e7f。！？｡၊․﹒．]]"
_SIGN = r"[\p{Sentence_Terminal}&&[\u203c-\u2e7f]]"  # those of no script, such as "‼"
# What ends a sentence besides the first pattern in text of other scripts than Latin:
# - the marks of Chinese and Japanese, and their double ellipsis unless a comma follows;
# - marks not between two digits, two Ethiopic word separators, which are typed for a full stop,
#   Khmer's "etc.", and the full-width full stop after hiragana; other marks may follow;
# - before white space, as in the first pattern: marks of no script, the Armenian question mark, the
#   Greek one, typed as a semicolon, and the Armenian full stop, often typed as a colon.
# The look-ahead at the beginning makes the search faster.
_OTHER_END = regex.compile(
    rf"""(?V1)(?=[\p{{Sentence_Terminal}}།༎፡:;\u037e՞…⋯])(?|
     (?:[。！？｡]|(?<=[\p{{Han}}\p{{Hiragana}}\p{{Katakana}}。！？])[…⋯]{{2,}}+(?![，、；：]))++
     [”’」』）)"']*()
    |(?:(?:(?<!\d)|(?!.\d)){_MARK}(?:\s?ល\s?។)?|፡፡|(?<=\p{{Hiragana}})．)(?:\s*+{_MARK}|[.!?…])*+
     [”’」』）)»\]"']*+()
    |(?:(?<!{_SIGN}){_SIGN}++
       |՞|(?<=\p{{Greek}}{{2}})[;\u037e](?=\W+\p{{Greek}})|(?<=\p{{Armenian}}):(?=\W+\p{{Armenian}}))
     [”’»)\]"']*+(\s++)(?=["'“‘«(\[¿¡—–-]*+([^\W_])))""",
    regex.VERBOSE,
)
# That pattern needs characters other than Latin, Cyrillic and their usual punctuation.
_HAS_OTHER = re.compile(r"[^\x00-\u036f\u0400-\u052f\u2000-\u203b]")
_ENDS = regex.compile(r"""[\p{Sentence_Terminal}…:;།༎՞]["'”’»)\]」』）》】]*$""")
_WIDE = regex.compile(r"[\p{EA=W}\p{EA=F}]")  # EA: East Asian
_MARKS = regex.compile(r"\p{Mn}")
_SPACELESS = r"[[\p{EA=W}\p{EA=F}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}]--[\p{Hangul}\s]]"
_SPACELESS_BREAK = regex.compile(
    rf"(?V1)(?<={_SPACELESS})\s*\n\s*(?={_SPACELESS}|[“”‘’…—])|(?<=[“”‘’…—])\s*\n\s*(?={_SPACELESS})"
)
_SPACED = re.compile(
    r"\b(?:[zZ]\. ?(?:B|T)|[dD]\. ?h|u\. ?(?:a|U|v\. ?a)|o\. ?[äg]|i\. ?d\. ?R|s\. ?[ou]|[vV]\. ?a"
    r"|[vn]\. ?Chr|[тТ]\. ?[екнч]|до н\. ?э)\."
)
_ETC = re.compile(r"\b(?:usw|itd|itp|т\. ?[дп])$")
_ORDINAL = re.compile(
    r"(?:^|\W)(?:(?<!\bI )am|im|vom|zum|der|des|dem|den|das|bis|ab|seit|u|dana|dne)\s\d{1,2}$", re.I
)
_GERMAN_MONTHS = frozenset(
    "Januar Jänner Februar März Mai Juni Juli Oktober Dezember Jahrhundert Jahrhunderts".split()
)
_LAST_WORD = re.compile(r"[^\s(\[{\"'“‘«/—–-]*$")
_NEXT_WORD = re.compile(r"[\"'“‘«(\[¿¡—–-]*([\w'’]+)")


def split_sentences(paragraph: str) -> list[str]:
    """Splits a paragraph into sentences; each run of white space becomes one space."""
    sentences = []
    start = 0
    for end in _boundaries(paragraph):
        sentences += normalise(paragraph[start:end])
        start = end
    return sentences + normalise(paragraph[start:])


def ends_like_sentence(line: str) -> bool:
    """Returns whether a line ends with a mark that ends sentences, and closing quotes."""
    return line.endswith((".", "!", "?")) or _ENDS.search(line.rstrip()[-8:]) is not None


def normalise(sentence: str) -> list[str]:
    """Replaces runs of white space in a sentence by single spaces; splits a very long sentence.

    Returns [] for a blank sentence, and pieces of at most MAX_SENTENCE_CHARACTERS for a long one.
    """
    sentence = " ".join(sentence.split())
    if len(sentence) <= MAX_SENTENCE_CHARACTERS:
        return [sentence] if sentence else []
    return [piece.strip() for piece in cut_at_spaces(sentence, MAX_SENTENCE_CHARACTERS)]


def _boundaries(paragraph: str) -> list[int]:
    stops = _LATIN_END.finditer(paragraph)
    ends = [stop.start(1) for stop in stops if _ends_sentence(paragraph, stop)]
    if paragraph.isascii() or not _HAS_OTHER.search(paragraph):
        return ends
    for match in _OTHER_END.finditer(paragraph):
        if not _is_lower(match[2] or ""):
            ends.append(match.start(1))
    return sorted(set(ends))


def _ends_sentence(paragraph: str, match: re.Match) -> bool:
    after = match[2]
    if after.islower() and _is_lower(after):  # non-ASCII letters, which the pattern allows
        return False
    stop = match.start()
    if paragraph[stop] != "." or paragraph[stop + 1 : stop + 2] == ".":
        return True  # "!", "?", "…" or an ellipsis before a capital
    before = paragraph[max(0, stop - 24) : stop]
    match_before = _LAST_WORD.search(before)
    assert match_before is not None  # the pattern matches the empty string, too
    word = match_before[0]
    lower = word.lower()
    size = len(word)
    has_dot = "." in word
    if size > 3 and not has_dot and lower not in _LISTED:
        return True
    if word.endswith(("usw", "itd", "itp", "д", "п")) and _ETC.search(before):
        return True
    is_initial = word.isupper() or (word.islower() and word >= "\u0400")
    if size == 1 and is_initial and word != "I":
        return False
    if lower in _FOREIGN and word[1:] == lower[1:]:
        return False
    if size == 1 or has_dot or word == "Chr":
        for spaced in _SPACED.finditer(paragraph, max(0, stop - 8), stop + 8):
            if spaced.start() < stop < spaced.end():
                return False
    if lower in _TITLES:
        return False
    following = _NEXT_WORD.match(paragraph, match.end())
    if size < 3 and word.isdecimal():
        is_month = following is not None and following[1] in _GERMAN_MONTHS
        return not is_month and not _ORDINAL.search(before)
    if lower in _BEFORE_NUMBERS:
        return not after.isdigit()
    is_dotted = size > 2 and word[1] == "." and word[0].isalpha()
    if is_dotted or lower in _AMBIGUOUS:
        return following is not None and following[1].lower() in _STARTERS
    return True


def _is_lower(letter: str) -> bool:
    # Georgian letters count as lower case, but begin sentences as well.
    return letter.islower() and letter.title() != letter


# "lines": a line is a sentence. "paragraphs": a line is a paragraph. "prose": blank lines separate
# paragraphs, and lines may be wrapped at a fixed width.
Layout = Literal["lines", "paragraphs", "prose"]

# A longer document is split at its next paragraph: chunks are whole documents, and next-sentence
# prediction needs several of them in a chunk.
LONG_DOCUMENT_CHARACTERS = 1_000_000
WIDEST_WRAPPED_LINE = 120
# Average line length, as a share of the longest, above which text counts as wrapped.
WRAPPED_FILL = 0.6
WRAPPED_FULL = 0.75


class Document(NamedTuple):
    """A document: its text, not yet split into sentences, and its layout."""

    text: str
    layout: Layout


def bounded_documents(lines: Iterable[str], layout: Layout) -> Iterator[Document]:
    """Joins the lines of a document with newlines, and yields it as one or several documents.

    A document of over LONG_DOCUMENT_CHARACTERS characters may be split between lines; if `layout`
    is "prose", at blank lines as long as the document has at most twice as many characters.
    """
    held: list[str] = []
    size = 0
    for line in lines:
        held.append(line)
        size += len(line) + 1
        longest = LONG_DOCUMENT_CHARACTERS
        if layout == "prose" and line.strip():
            longest *= 2
        if size > longest:
            yield Document("\n".join(held), layout)
            held = []
            size = 0
    if held:
        yield Document("\n".join(held), layout)


def sentences_of(document: Document) -> list[str]:
    """Returns the non-empty sentences of `document`; each run of white space becomes one space."""
    text, layout = document
    paragraphs = _paragraphs(text) if layout == "prose" else text.split("\n")
    split = split_sentences
    if layout == "lines":
        split = normalise
    sentences: list[str] = []
    for paragraph in paragraphs:
        sentences += split(paragraph)
    return sentences


def _paragraphs(text: str) -> list[str]:
    lines = text.split("\n")
    if not looks_wrapped(lines):
        return lines
    paragraphs: list[list[str]] = [[]]
    for line in lines:
        if line.strip():
            paragraphs[-1].append(line)
        elif paragraphs[-1]:
            paragraphs.append([])
    if _SPACELESS_BREAK.search(text) is None:
        return ["\n".join(paragraph) for paragraph in paragraphs]
    # A line that is not full ends something, such as an item of a list.
    full_length = WRAPPED_FULL * max(map(len, lines))
    full_width = WRAPPED_FULL * max(map(_width, lines))
    joined = []
    for paragraph in paragraphs:
        text = ""
        for line in paragraph:
            is_full = len(line) >= full_length or _width(line) >= full_width
            text += line + ("\n" if is_full else " ")
        joined.append(_SPACELESS_BREAK.sub("", text))
    return joined


def _width(line: str) -> int:
    return len(line) + len(_WIDE.findall(line)) - len(_MARKS.findall(line))


def looks_wrapped(lines: list[str]) -> bool:
    """Returns whether `lines` look wrapped at a fixed width, so that lines end within sentences."""
    widest = max(map(len, lines))
    if widest > WIDEST_WRAPPED_LINE:
        return False
    pairs = itertools.pairwise(lines)
    inner = [len(line) for line, following in pairs if following.strip() and line.strip()]
    return bool(inner) and sum(inner) / len(inner) >= WRAPPED_FILL * widest
