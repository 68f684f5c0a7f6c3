"""Trains tokenizers of four kinds for many languages, and measures what they make of the text.

    python benchmarks/languages.py --texts FOLDER --workdir W --output results.jsonl
    python benchmarks/languages.py --table results.jsonl

FOLDER has a file per language, which `bertjax.prepare` reads: text, or JSON lines with the field
`text`. Its name is the name of the language. A tenth of the documents is held out; the rest is what
the vocabularies are learnt from. Numbers are those of held-out lines:

- unknown: the share of the characters in unknown tokens;
- per_word, per_token: tokens per word (between spaces), and characters per token;
- exact, letters: the share of lines that decoding gives back, exactly or, without spaces, as the
  tokenizer normalises them; lines with unknown tokens count as lost;
- equal: of `lines` lines, those with the ids of the tokenizer that transformers loads; where fewer
  are held out, others are taken as well.

`sentences` per document and the share of `true` pairs are those of `prepare --objective nsp` with
the unigram tokenizer, rows of 128 tokens, and all documents.
"""

import argparse
import contextlib
import io
import json
import unicodedata
from pathlib import Path
from typing import Any

from reporting import parser_of, report

import bertjax
from bertjax.data.text.corpus import Corpus
from bertjax.tokenization import Tokenizer

KINDS: dict[str, dict[str, Any]] = {
    "wordpiece": {},
    "wordpiece cased": {"do_lower_case": False},
    "bpe": {"kind": "bpe"},
    "unigram": {"kind": "unigram"},
}


def without_spaces(text: str) -> str:
    return "".join(unicodedata.normalize("NFC", text).replace("\u2581", " ").split())


def measure(
    tokenizer: Tokenizer, folder: Path, lines: list[str], compare: list[str]
) -> dict[str, Any]:
    from transformers import AutoTokenizer

    rows = tokenizer.encode(lines)
    tokens, characters = sum(map(len, rows)), sum(map(len, lines))
    unknown = [tokenizer.unk_token_id in row for row in rows]
    decoded = [tokenizer.decode(row) for row in rows]
    letters = [without_spaces(tokenizer.normalise(line)) for line in lines]
    exact = [line == text for line, text in zip(lines, decoded, strict=True)]
    back = [
        without_spaces(text) == letter and not lost
        for text, letter, lost in zip(decoded, letters, unknown, strict=True)
    ]
    theirs = AutoTokenizer.from_pretrained(folder)
    expected = theirs(compare, verbose=False)["input_ids"]
    ours = tokenizer.encode_prompts(compare, 10**6)
    return {
        "entries": tokenizer.vocab_size,
        "unknown": sum(map(len, tokenizer.unknown_parts(lines))) / characters,
        "per_word": tokens / sum(len(line.split()) for line in lines),
        "per_token": characters / tokens,
        "exact": sum(exact) / len(lines),
        "letters": sum(back) / len(lines),
        "lines": len(compare),
        "equal": sum(a == b for a, b in zip(ours, expected, strict=True)),
    }


def measure_language(file: Path, args: argparse.Namespace) -> None:
    documents = [document.text for document in Corpus([str(file)]).documents()]
    folder = Path(args.workdir) / file.stem
    folder.mkdir(parents=True)
    text, held_out = folder / "train.jsonl", []
    with text.open("w", encoding="utf-8") as opened:
        for number, document in enumerate(documents):
            if number % 10 == 5:
                held_out += [" ".join(line.split()) for line in document.split("\n")]
            else:
                opened.write(json.dumps({"text": document}) + "\n")
    held_out = list(dict.fromkeys(line for line in held_out if line))
    lines = (" ".join(line.split()) for document in documents for line in document.split("\n"))
    compare = list(dict.fromkeys([*held_out, *filter(None, lines)]))[: args.lines]
    result: dict[str, Any] = {"language": file.stem, "kinds": {}}
    for kind, fields in KINDS.items():
        output = folder / kind
        said = io.StringIO()
        with contextlib.redirect_stdout(said):
            tokenizer = bertjax.train_tokenizer(
                input=(str(text),), output=str(output), vocab_size=args.vocab_size, **fields
            )
        (letters,) = (x for x in said.getvalue().splitlines() if x.startswith("Letters "))
        measured = measure(tokenizer, output, held_out, compare)
        result["kinds"][kind] = {"letters_said": letters, **measured}
    with contextlib.redirect_stdout(io.StringIO()):
        metadata = bertjax.prepare(
            input=(str(file),), tokenizer=str(folder / "unigram"), output=str(folder / "data"),
            num_processes=1, eval_fraction=0.0,
        )  # fmt: skip
    assert metadata is not None
    train = metadata.splits["train"]
    labels = train.lengths["128"].labels
    result |= {
        "characters": sum(map(len, documents)),
        "documents": train.documents,
        "sentences": train.sentences / train.documents,
        "true": labels.get("0", 0) / max(sum(labels.values()), 1),
    }
    report(result, args.output)


def print_table(results: str) -> None:
    """Prints a table in Markdown; cells are unknown, per_token and letters."""
    print(f"| language | sentences per document | true pairs | {' | '.join(KINDS)} |")
    print("|---" * (3 + len(KINDS)) + "|")
    with open(results, encoding="utf-8") as opened:
        for row in sorted(map(json.loads, opened), key=lambda row: row["language"]):
            cells = [
                f"{x['unknown']:.2%}, {x['per_token']:.1f}, {x['letters']:.1%}"
                for x in row["kinds"].values()
            ]
            first = f"| {row['language']} | {row['sentences']:.1f} | {row['true']:.0%} | "
            print(f"{first}{' | '.join(cells)} |")


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--texts")
    parser.add_argument("--workdir")
    parser.add_argument("--vocab_size", type=int, default=4000)
    parser.add_argument("--lines", type=int, default=2000)
    parser.add_argument("--table")
    args = parser.parse_args()
    if args.table:
        print_table(args.table)
        return
    for file in sorted(Path(args.texts).iterdir()):
        measure_language(file, args)


if __name__ == "__main__":
    main()
