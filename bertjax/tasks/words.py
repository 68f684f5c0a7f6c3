"""Splits running text into words for tagging, in the way of the Penn Treebank and of CoNLL-2003.

Punctuation marks are words of their own, except within abbreviations (U.N., a.m.), numbers (1,000,
1996-08-22) and compounds (18-year-old). English clitics are split off: "Germany's" has two words.
A Chinese character is a word. Texts in other scripts without spaces, such as Thai, should be given
as lists of words instead.
"""

import functools
import re
import sys
import unicodedata
from typing import NamedTuple

# Abbreviations to which a following period belongs, unless the text ends there.
_ABBREVIATIONS = (
    "Mr Mrs Ms Dr Prof St Gen Col Lt Sgt Capt Gov Sen Rep Rev Hon Pres Jr Sr Inc Corp Ltd Co Bros "
    "Mt Ft No vs Jan Feb Mar Apr Jun Jul Aug Sep Sept Oct Nov Dec"
)
_CLITIC = r"(?i:s|re|ve|ll|d|m)\b"
_CHINESE = "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0002fa1f"


class Word(NamedTuple):
    """A word of a running text.

    Attributes:
        text: the characters of the word.
        start: the index in the running text of the word's first character.
        end: the index in the running text of the character after the word's last.
    """

    text: str
    start: int
    end: int


def split_words(text: str) -> list[Word]:
    """Splits running text into words, which are returned in the order of the text."""
    return [Word(match[0], *match.span()) for match in _pattern().finditer(text)]


@functools.cache
def _pattern() -> re.Pattern[str]:
    """Returns the regular expression that matches one word; its first matching alternative wins."""
    # Marks, such as the vowel signs of Hindi, and joiners belong to the character before them, but
    # \w does not match them.
    marks = "".join(
        re.escape(chr(code))
        for code in range(min(sys.maxunicode, 0x20000))
        if unicodedata.category(chr(code)).startswith("M")
    )
    letter = rf"[\w{marks}\u200c\u200d]"
    return re.compile(
        rf"""
        [()\[\]{{}},;:!?"](?=[\x00-\x7f]|\Z)                 # first, because these are found fast
        | (?:https?://|www\.)[^\s<>"]*[^\s<>".,;:!?)'\]]          # addresses of pages
        | [\w.+-]{{1,64}}@\w[\w-]*(?:\.\w[\w-]*)+               # addresses of mail
        | [{_CHINESE}]
        | (?:[^\W\d_]\.){{2,}}(?:-\w+)*                         # U.N., a.m., U.S.-led
        | (?:[A-Z]\.)+[A-Z]\b                                   # U.S without its last period
        | [A-Z]\.(?=\s+\S)                                      # the initial in J. Smith
        | (?:{"|".join(_ABBREVIATIONS.split())})\.(?=\s+\S)
        | \A\d+\.(?=\s+\S)                                      # the number of an entry of a list
        | (?i:n['’]t\b) | ['’]{_CLITIC}
        | (?<!\w)[+-]?\.?\d+(?:[.,:/\-]\d+)*(?!\w|-\w)          # 1,000, .500, 1996-08-22
        | (?:US|HK|NZ|[AC])\$
        | {letter}(?:(?!n['’]t\b)[^\W{_CHINESE}]|[{marks}\u200c\u200d]
            |[-&/.’'](?!{_CLITIC})(?=\w))*                      # 18-year-old, AT&T, O'Brien
        | \.{{2,}}|-{{2,}}|\*{{2,}}|={{2,}}
        | [^\w\s](?:[{marks}\U0001f3fb-\U0001f3ff]|\u200d[^\w\s])*  # an emoji with its modifiers
        """,
        re.VERBOSE,
    )
