"""Compares the tags of long documents within the first window with those behind it.

    python benchmarks/long_documents.py --data_dir conll2003 --init my-bert --workdir runs/long

Joins the documents of CoNLL-2003, which -DOCSTART- lines separate, to texts of 2,000 words, trains
a tagger on those of the train split, and reports the entity-level F1 on those of the test split:
of the words in the first window, which are those that a truncated text would have, and of all
words behind it; `f1_truncated` is that of all words if those behind it are tagged "O". Those
within and behind are different words, and only a few are in a first window. So the documents
are also predicted one by one: `same_words` has the F1 of the words that are in the first window of
their document and behind the first window of the text that it is joined to, in both places.
"""

import argparse
import itertools
import json
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from reporting import parser_of, report

import bertjax
from bertjax import predict
from bertjax.config import FinetuneConfig, OptimizerConfig
from bertjax.tasks.metrics import entities
from bertjax.tasks.sources.conll import DOCUMENT_START
from bertjax.tasks.tagging import tag_scheme
from bertjax.tokenization import load_tokenizer

TRAIN, TEST = "train.txt", "test.txt"
# A word: its number in the file, itself and its tag.
Word = tuple[int, str, str]


def documents(path: Path) -> list[list[Word]]:
    """Reads the documents of a file, whose first and last columns are the words and the tags."""
    found: list[list[Word]] = []
    number, rows = itertools.count(), []
    lines = [line.split() for line in path.read_text(encoding="utf-8").splitlines()]
    lines = [fields for fields in lines if fields]
    scheme = tag_scheme(fields[-1] for fields in lines if fields[0] != DOCUMENT_START)
    for fields in [*lines, [DOCUMENT_START]]:
        if fields[0] != DOCUMENT_START:
            rows.append(fields)
            continue
        words, tags = [row[0] for row in rows], tuple(row[-1] for row in rows)
        tags = scheme.to_iob2(tags) if scheme else tags
        if rows:
            found.append([(next(number), w, t) for w, t in zip(words, tags, strict=True)])
        rows = []
    return found


def joined(parts: list[list[Word]], size: int) -> Iterator[list[Word]]:
    """Joins documents in their order to texts of up to `size` words; a longer one is one text."""
    text: list[Word] = []
    for part in parts:
        if text and len(text) + len(part) > size:
            yield text
            text = []
        text = text + part
    yield text


def write(path: Path, texts: list[list[Word]]) -> str:
    """Writes texts in CoNLL's format, without blank lines in a text; returns the path."""
    blocks = ("\n".join(f"{word} {tag}" for _, word, tag in text) for text in texts)
    path.write_text("\n\n".join(blocks) + "\n", encoding="utf-8")
    return str(path)


def f1(texts: list[list[Word]], tags: list[Any], counts: Callable[[int, int], bool]) -> float:
    """Returns the F1, in per cent, of entities whose first word (text, word) satisfies `counts`."""
    total: Counter[str] = Counter()
    for number, (text, predicted) in enumerate(zip(texts, tags, strict=True)):
        golds, found = (
            {entity for entity in entities(marked) if counts(number, entity[0])}
            for marked in ([tag for _, _, tag in text], predicted)
        )
        total.update(right=len(golds & found), all=len(golds) + len(found))
    return round(200 * total["right"] / max(total["all"], 1), 2)


def trained(args: argparse.Namespace) -> Path:
    """Trains the tagger, unless it is trained already; returns its model directory."""
    texts = joined(documents(args.data_dir / TRAIN), args.words)
    config = FinetuneConfig(
        task="tag",
        init=args.init,
        workdir=str(args.workdir / "run"),
        max_length=args.max_length,
        batch_size=args.batch_size,
        max_steps=args.max_steps,
        optimizer=OptimizerConfig(
            recipe="adamw",
            learning_rate=args.learning_rate,
            schedule="hf",
            warmup_steps=0,
            warmup_proportion=0.1,
        ),
        train=write(args.workdir / "train.conll", [*texts]),
        dev_fraction=0.0,
    )
    return bertjax.finetune(config).directory


def predicted(model: Path, file: str) -> list[Any]:
    """Returns the tags that a model predicts for each text of a file."""
    output = Path(file).with_suffix(".jsonl")
    if predict.main(["--model", str(model), "--input", file, "--output", str(output)]):
        raise SystemExit(1)
    return [json.loads(line)["labels"] for line in output.read_text("utf-8").splitlines()]


def first_windows(texts: list[list[Word]], model: Path) -> list[int]:
    """Returns the number of words of each text that begin within its first window."""
    tokenizer = load_tokenizer(model)
    room = json.loads((model / "task.json").read_text())["max_length"] - 2
    counts = []
    for text in texts:
        lengths = map(len, tokenizer.encode_after_space([word for _, word, _ in text]))
        starts = [*itertools.accumulate(lengths, initial=0)][:-1]
        counts.append(sum(start < room for start in starts))
    return counts


def main() -> None:
    """Trains the tagger and reports the scores."""
    parser = parser_of(__doc__)
    parser.add_argument("--data_dir", type=Path, required=True)
    parser.add_argument("--init", required=True)
    parser.add_argument("--workdir", type=Path, required=True)
    parser.add_argument("--words", type=int, default=2000)
    parser.add_argument("--max_length", type=int, default=128)
    parser.add_argument("--batch_size", type=int, default=16)
    parser.add_argument("--max_steps", type=int, default=80)
    parser.add_argument("--learning_rate", type=float, default=5e-4)
    args = parser.parse_args()
    args.workdir.mkdir(parents=True, exist_ok=True)
    model = trained(args)
    single = documents(args.data_dir / TEST)
    texts = [*joined(single, args.words)]
    tags = predicted(model, write(args.workdir / "joined.conll", texts))
    single_tags = predicted(model, write(args.workdir / "single.conll", single))
    first, single_first = first_windows(texts, model), first_windows(single, model)
    behind = {word[0] for text, n in zip(texts, first, strict=True) for word in text[n:]}
    within = {word[0] for text, n in zip(single, single_first, strict=True) for word in text[:n]}
    both = behind & within
    # The tags of a model that reads only the beginnings of texts.
    cut = [found[:n] + ["O"] * (len(found) - n) for found, n in zip(tags, first, strict=True)]
    figures = {
        "max_length": args.max_length,
        "texts": len(texts),
        "words_within": sum(first),
        "words_behind": len(behind),
        "f1": f1(texts, tags, lambda *_: True),
        "f1_truncated": f1(texts, cut, lambda *_: True),
        "f1_within": f1(texts, tags, lambda text, word: word < first[text]),
        "f1_behind": f1(texts, tags, lambda text, word: word >= first[text]),
        "same_words": {
            "words": len(both),
            "f1_within": f1(single, single_tags, lambda text, word: single[text][word][0] in both),
            "f1_behind": f1(texts, tags, lambda text, word: texts[text][word][0] in both),
        },
    }
    report(figures, args.output)


if __name__ == "__main__":
    main()
