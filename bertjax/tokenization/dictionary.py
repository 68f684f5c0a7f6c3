"""The dictionary of fairseq, `dict.txt`, which says what the rows of a model's embedding belong to.

A line holds a symbol and its count. Lines have the ids after those of four special tokens, and
`<mask>` has the last id, unless it is among them. Symbols `madeupword0000` and so on, which no text
has, pad the embedding. A symbol is a piece of SentencePiece, or the id of a token in GPT-2's
byte-level BPE: GPT-2 numbers the bytes and then what the merges lead to, unless `encoder.json` says
otherwise.
"""

import itertools
from collections.abc import Sequence
from pathlib import Path

from tokenizers import pre_tokenizers

from bertjax.base.files import brief, read_json
from bertjax.tokenization.base import Tokenizer, numbered
from bertjax.tokenization.bpe import ROBERTA_ORDER
from bertjax.tokenization.tokenizer_files import lines_of, warn

DICTIONARY = "dict.txt"


def check_dictionary(tokenizer: Tokenizer, directory: Path) -> int:
    """Returns the number of ids of the dictionary in `directory`; without it, of the tokenizer.

    Raises ValueError if the tokenizer gives other ids than the dictionary. It need not have the
    symbols that pad the embedding behind its last token.
    """
    file = directory / DICTIONARY
    if not file.is_file():
        warn(f"{directory} has no {DICTIONARY}, by which the ids of its tokenizer could be checked")
        return tokenizer.vocab_size
    expected = read_dictionary(file, getattr(tokenizer, "merges", None))
    # CamemBERT has its special tokens twice; those that no text has end in NOTUSED.
    tokens = [token.removesuffix("NOTUSED") for token in tokenizer.tokens]
    for index, (token, own) in enumerate(itertools.zip_longest(expected, tokens)):
        is_padding = own is None and token.startswith("madeupword")
        if token != own and not is_padding:
            raise ValueError(
                f"{file} gives the id {index} to {brief(repr(token), 40)}, but the tokenizer "
                f"beside it to {brief(repr(own), 40)}: use the tokenizer of this model."
            )
    return len(expected)


def read_dictionary(file: Path, merges: Sequence[tuple[str, str]] | None) -> list[str]:
    """Returns the tokens in the order of their ids; `merges`: those of a byte-level BPE."""
    names = {}
    if merges is not None:
        encoder = file.with_name("encoder.json")
        if encoder.is_file():
            ids = read_json(encoder)
        else:
            known = sorted(pre_tokenizers.ByteLevel.alphabet())
            ids = numbered([*known, *map("".join, merges), "<|endoftext|>"])
        names = {str(index): token for token, index in ids.items()}
    tokens = [*ROBERTA_ORDER[:4]]
    for line in lines_of(file):
        symbol, _, count = line.removesuffix(" #fairseq:overwrite").rpartition(" ")
        if names and symbol.isdigit() and symbol not in names:
            raise ValueError(
                f"{file} has the id {brief(symbol)}, which no token of its byte-level BPE has: "
                "copy its encoder.json there."
            )
        if symbol and count.isdigit():
            tokens.append(names.get(symbol, symbol))
        elif line:
            raise ValueError(
                f"{file}: {brief(line)!r} is not a symbol and its count: copy it again."
            )
    mask = ROBERTA_ORDER[4]
    if mask not in tokens:
        tokens.append(mask)
    return tokens
