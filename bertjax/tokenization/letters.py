"""What a tokenizer does to letters: case, marks such as accents and vowel signs, composition."""

import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from itertools import islice

import regex
from tokenizers import normalizers

from bertjax.tokenization.base import Report, Tokenizer
from bertjax.tokenization.bpe import ByteLevelBPETokenizer

MARKED_SHARE = 0.01
"""Lower-casing strips no marks if a larger share of the letters has marks outside of Latin, Greek
and Cyrillic, whose marks are vowels or tell letters apart; syllables of Hangul count as well, which
stripping takes apart."""
_LETTER = regex.compile(r"\p{L}")
_MARK = regex.compile(r"\p{M}")
_MARKED = regex.compile(
    r"[\p{L}--[\p{Latin}\p{Greek}\p{Cyrillic}]]\p{M}+|[\u1100-\u115f][\u1160-\u11ff]+", regex.V1
)
_WORD = regex.compile(r"\p{L}[\p{L}\p{M}]{1,29}")
_DECOMPOSED_SHARE = 0.01
# Of the words, above which stripping marks is warned of: more have marks in Vietnamese or Czech.
_STRIPPED_SHARE = 0.2
_SAMPLED = 300_000
_RARE_SHARE = 0.0005
"""Texts in Latin script alone have fewer letters with marks of other scripts, in quotations."""


def marked_share(words: Mapping[str, int]) -> float:
    """Returns the share of letters in {word: count} that have marks of other scripts."""
    letters = marked = 0
    for word, count in words.items():
        if word.isascii():
            letters += count * sum(map(str.isalpha, word))
            continue
        word = unicodedata.normalize("NFD", word)
        letters += count * len(_LETTER.findall(word))
        marked += count * len(_MARKED.findall(word))
    return marked / max(letters, 1)


def strip_by_default(
    words: Counter[str], split: Callable[[str], Iterable[str]], report: Report | None
) -> tuple[bool, Counter[str]]:
    """Decides from the words of a text with marks if these are stripped, and returns the words.

    `split` normalises a word, without marks, and splits the result into words.
    """
    share = marked_share(words)
    if share <= MARKED_SHARE:
        if report and share > _RARE_SHARE:
            word = max((x for x in words if marked_share({x: 1})), key=words.__getitem__)
            report(
                f"warning: {share:.2%} of the letters have marks outside of Latin, Greek and "
                "Cyrillic, such as vowel signs, or are syllables of Hangul, which lower-casing "
                f"strips or splits, as in {word!r}: --no_strip_accents keeps them."
            )
        stripped: Counter[str] = Counter()
        for word, count in words.items():
            for part in split(word):
                stripped[part] += count
        return True, stripped
    if report:
        report(
            f"Marks are kept: {share:.1%} of the letters have marks outside of Latin, Greek and "
            "Cyrillic, such as vowel signs, or are syllables of Hangul, which lower-casing would "
            "strip or split. --strip_accents does so."
        )
    return False, words


def first_normalizer(strip_accents: bool, normalize: str) -> normalizers.Normalizer | None:
    """Returns what a byte-level BPE does to a text first; None: nothing."""
    if strip_accents:
        strip = normalizers.BertNormalizer(
            clean_text=False, handle_chinese_chars=False, strip_accents=True, lowercase=False
        )
        return normalizers.Sequence([strip, normalizers.NFC()])
    if normalize == "nfc":
        return normalizers.NFC()
    return None


def about_letters(tokenizer: Tokenizer, texts: Iterable[str], normalize: str = "") -> list[str]:
    """Says what `tokenizer` does to letters, with a word of the beginning of `texts`.

    If `normalize` is "nfc", the tokenizer gets texts in Unicode's composed form.
    """
    words = Counter(_WORD.findall("\n".join(islice(texts, 10_000))[:_SAMPLED]))
    if not words:
        return []

    @cache
    def normal(word: str) -> str:
        if normalize == "nfc":
            word = unicodedata.normalize("NFC", word)
        return "".join(tokenizer.normalise(word).split())

    total = words.total()
    strips = normal("\u00e9") == "e"
    said = [_about_case_and_marks(words, normal, strips)]
    if strips and (share := marked_share(words)) > MARKED_SHARE:
        said.append(
            f"warning: the tokenizer strips marks, which {share:.1%} of the letters have outside "
            "of Latin, Greek and Cyrillic, such as vowel signs, or takes syllables of Hangul "
            "apart: take a tokenizer that keeps them."
        )
    signs = 0
    decomposed: Counter[str] = Counter()
    for word, count in words.items():
        composed = unicodedata.normalize("NFC", word)
        signs += count * len(_MARK.findall(composed))
        if word != composed and normal(word) != normal(composed):
            decomposed[word] = count
    if isinstance(tokenizer, ByteLevelBPETokenizer) and signs > MARKED_SHARE * total:
        said.append(
            f"warning: byte-level BPE splits words at marks, of which {signs / total:.2f} "
            "are in a word: wordpiece or unigram make fewer tokens of it."
        )
    share = decomposed.total() / total
    if share > _DECOMPOSED_SHARE:
        example = next(iter(decomposed))
        said.append(
            f"warning: {share:.1%} of the words are not in Unicode's composed form (NFC), such as "
            f"{ascii(example)}: the same letters in two forms are different tokens. Add "
            "--normalize nfc, which composes them."
        )
    return said


def _about_case_and_marks(words: Counter[str], normal: Callable[[str], str], strips: bool) -> str:
    """Says if letters keep their case and marks, with the word that shows the most."""

    def loses_marks(word: str) -> bool:
        after = normal(word)
        return _marks(after) < _marks(word) or (_is_composed(word) and not _is_composed(after))

    def interest(word: str) -> tuple[bool, bool, bool, int]:
        return loses_marks(word), _marks(word) > 0, word.lower() != word, words[word]

    case = "keep their case"
    marks = "keep"
    flags = []
    if normal("A") == "a":
        case = "are lower-cased"
        flags.append("--no_do_lower_case keeps case")
    if strips:
        marks = "lose"
        flags.append("--no_strip_accents keeps marks")
    remedy = ""
    if flags:
        remedy = f"; train_tokenizer {', '.join(flags)}"
    word = max(words, key=interest)
    changed = sum(count for other, count in words.items() if normal(other) != other)
    stripped = sum(count for other, count in words.items() if loses_marks(other))
    letters = "Letters"
    if stripped > _STRIPPED_SHARE * words.total():
        letters = "warning: letters"
    example = f"{word!r} {_becomes(word, normal(word), changed / words.total())}"
    return f"{letters} {case} and {marks} their marks: {example}{remedy}."


def _becomes(word: str, after: str, changed: float) -> str:
    if after == word:
        return f"stays {word!r}"
    apart = ""
    if _is_composed(word) and not _is_composed(after):
        apart = " (decomposed)"
    return f"becomes {after!r}{apart} ({changed:.1%} of the words change)"


def _is_composed(word: str) -> bool:
    return unicodedata.is_normalized("NFC", word)


def _marks(word: str) -> int:
    return sum(unicodedata.category(c)[0] == "M" for c in unicodedata.normalize("NFD", word))
