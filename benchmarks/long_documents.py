"""Compares the tags of long documents within the first window with those behind it.

    python benchmarks/long_documents.py --data_dir conll2003 --init my-bert --workdir runs/long

Joins the documents of CoNLL-2003, which -DOCSTART- lines separate, to texts of 2,000 words, trains
a tagger on those of the train split, and reports the entity-level F1 on those of the test split:
of the words in the first window, which are those that a truncated text would have, and of all
words behind it. Different words are not equally hard, so the documents of the test split are also
joined anew from each of them on, round the end of the file. Then nearly all words are in a first
window once, and `f1_same_words_behind` is the score of these words where they are behind one.
"""

import argparse
import itertools
import json
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from reporting import report

import bertjax
from bertjax import predict
from bertjax.config import FinetuneConfig, OptimizerConfig
from bertjax.tasks.sources.conll import DOCUMENT_START
from bertjax.tasks.tag_schemes import entities, to_iob2
from bertjax.tokenization import load_tokenizer

FILES = {"train": "train.txt", "dev": "valid.txt", "test": "test.txt"}
# A word of the test split: its number in the file, itself and its tag.
Word = tuple[int, str, str]


def documents(path: Path) -> list[list[Word]]:
    """Reads the documents of a file, whose first and last columns are the words and the tags."""
    found: list[list[Word]] = []
    number, rows = itertools.count(), []
    for line in [*path.read_text(encoding="utf-8").splitlines(), DOCUMENT_START]:
        fields = line.split()
        if fields and fields[0] == DOCUMENT_START:
            words, tags = [row[0] for row in rows], to_iob2(row[-1] for row in rows)
            if rows:
                found.append([(next(number), w, t) for w, t in zip(words, tags, strict=True)])
            rows = []
        elif fields:
            rows.append(fields)
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


def rotated(parts: list[list[Word]], size: int) -> Iterator[list[Word]]:
    """Joins, for each document, it and the next ones, round the end, to a text of `size` words."""
    for first in range(len(parts)):
        yield next(joined(parts[first:] + parts[:first], size))


def write(path: Path, texts: list[list[Word]]) -> str:
    """Writes texts in CoNLL's format, without blank lines in a text; returns the path."""
    blocks = ("\n".join(f"{word} {tag}" for _, word, tag in text) for text in texts)
    path.write_text("\n\n".join(blocks) + "\n", encoding="utf-8")
    return str(path)


def f1(texts: list[list[Word]], tags: list[Any], counts: Callable[[int, int], bool]) -> float:
    """Returns the F1, in per cent, of entities whose first word (text, word) satisfies `counts`."""
    total: Counter[str] = Counter()
    for number, (text, predicted) in enumerate(zip(texts, tags, strict=True)):
        sets = [
            {entity for entity in entities(marked) if counts(number, entity[0])}
            for marked in ([tag for _, _, tag in text], predicted)
        ]
        total.update(right=len(sets[0] & sets[1]), all=len(sets[0]) + len(sets[1]))
    return round(200 * total["right"] / max(total["all"], 1), 2)


def trained(args: argparse.Namespace) -> Path:
    """Trains the tagger, unless it is trained already; returns its model directory."""
    files = {
        split: write(
            args.workdir / f"{split}.conll",
            [*joined(documents(args.data_dir / FILES[split]), args.words)],
        )
        for split in ("train", "dev")
    }
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
        train=files["train"],
        dev=files["dev"],
    )
    return bertjax.finetune(config).directory


def predicted(model: Path, file: str) -> list[Any]:
    """Returns the tags that a model predicts for each text of a file."""
    output = Path(file).with_suffix(".jsonl")
    if predict.main(["--model", str(model), "--input", file, "--output", str(output)]):
        raise SystemExit(1)
    return [json.loads(line)["labels"] for line in output.read_text("utf-8").splitlines()]


def scores(texts: list[list[Word]], tags: list[Any], model: Path) -> dict[str, float]:
    """Returns the F1 within the first window, behind it, and of the same words behind it."""
    tokenizer = load_tokenizer(model)
    room = json.loads((model / "task.json").read_text())["max_length"] - 2
    first = []  # number of words that begin within the first window of each text
    for text in texts:
        lengths = map(len, tokenizer.encode_after_space([word for _, word, _ in text]))
        first.append(sum(start < room for start in itertools.accumulate(lengths, initial=0)))
    seen = {
        word
        for text, count in zip(texts, first, strict=True)
        for word, _, _ in text[: min(count, len(text))]
    }
    return {
        "words_within": sum(map(min, first, map(len, texts))),
        "f1_within": f1(texts, tags, lambda text, word: word < first[text]),
        "f1_behind": f1(texts, tags, lambda text, word: word >= first[text]),
        "f1_same_words_behind": f1(
            texts, tags, lambda text, word: word >= first[text] and texts[text][word][0] in seen
        ),
    }


def main() -> None:
    """Trains the tagger and reports the scores."""
    parser = argparse.ArgumentParser(description="Tags of long documents.")
    parser.add_argument("--data_dir", type=Path, required=True)
    parser.add_argument("--init", required=True)
    parser.add_argument("--workdir", type=Path, required=True)
    parser.add_argument("--words", type=int, default=2000)
    parser.add_argument("--max_length", type=int, default=128)
    parser.add_argument("--batch_size", type=int, default=16)
    parser.add_argument("--max_steps", type=int, default=400)
    parser.add_argument("--learning_rate", type=float, default=2e-4)
    parser.add_argument("--output", type=Path)
    args = parser.parse_args()
    args.workdir.mkdir(parents=True, exist_ok=True)
    model = trained(args)
    parts = documents(args.data_dir / FILES["test"])
    figures: dict[str, Any] = {"max_length": args.max_length, "documents": len(parts)}
    for name, join in (("joined", joined), ("rotated", rotated)):
        texts = [*join(parts, args.words)]
        tags = predicted(model, write(args.workdir / f"{name}.conll", texts))
        figures[name] = {"texts": len(texts), **scores(texts, tags, model)}
    report(figures, args.output)


if __name__ == "__main__":
    main()
