"""Compares entities found in running text with those found in CoNLL's words.

    python benchmarks/running_text.py --model runs/conll/model --data_dir conll2003

Writes the dev split of CoNLL-2003 as running text, with random spaces and emoji between the words,
predicts it and the tagged file with the same model, and reports the entity-level F1 of both,
counted by characters, and how many predicted entities are `text[start:end]`.
"""

import json
import random
import tempfile
from pathlib import Path
from typing import Any

from reporting import parser_of, report

from bertjax import predict
from bertjax.tasks.definition import TaskOptions
from bertjax.tasks.metrics import entities
from bertjax.tasks.sources.conll import CONLL_TASK

SPACES = (" ", "  ", "\t", " 🙂 ", "\u00a0")
Spans = set[tuple[int, int, str]]


def as_text(words: tuple[str, ...], draw: random.Random) -> tuple[str, list[tuple[int, int]]]:
    """Joins words with random spaces and emoji; returns the text and (start, end) of each word."""
    text, places = "", []
    for word in words:
        text += draw.choice(SPACES) if text else ""
        places.append((len(text), len(text) + len(word)))
        text += word
    return text, places


def spans_of(tags: Any, places: list[tuple[int, int]]) -> Spans:
    """Returns (start, end, type) of the entities that tags mark."""
    return {(places[a][0], places[b - 1][1], kind) for a, b, kind in entities(tags)}


def predicted(model: str, source: Path, output: Path) -> list[dict[str, Any]]:
    """Returns the predictions of `bertjax.predict` for a file."""
    if predict.main(["--model", model, "--input", str(source), "--output", str(output)]):
        raise SystemExit(1)
    return [json.loads(line) for line in output.read_text(encoding="utf-8").splitlines()]


def f1(found: list[Spans], golds: list[Spans]) -> float:
    """Returns the micro-averaged F1 of sets of entities."""
    right = sum(len(a & b) for a, b in zip(found, golds, strict=True))
    return 2 * right / (sum(map(len, found)) + sum(map(len, golds)))


def main() -> None:
    """Reports both scores."""
    parser = parser_of(__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--data_dir", required=True)
    args = parser.parse_args()
    source: Any = CONLL_TASK.make(TaskOptions(data_dir=args.data_dir)).source
    draw, golds, texts, places = random.Random(0), [], [], []
    for example in source.examples("dev"):
        text, where = as_text(example.words, draw)
        golds.append(spans_of(example.label, where))
        texts.append(text)
        places.append(where)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "text.jsonl"
        file.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
        of_text = predicted(args.model, file, Path(folder) / "text_output.jsonl")
        of_words = predicted(args.model, source.path("dev"), Path(folder) / "words_output.jsonl")
    pairs = [(e, text) for line, text in zip(of_text, texts, strict=True) for e in line["entities"]]
    same = sum(text[e["start"] : e["end"]] == e["text"] for e, text in pairs)
    by_text = [{(e["start"], e["end"], e["type"]) for e in line["entities"]} for line in of_text]
    by_words = [
        spans_of(line["labels"], where) for line, where in zip(of_words, places, strict=True)
    ]
    scores = f1(by_text, golds), f1(by_words, golds)
    figures: dict[str, Any] = {"entities": len(pairs), "text_is_entity": same}
    figures["gold_entities"] = sum(map(len, golds))
    figures["f1_text"], figures["f1_words"] = (round(100 * score, 2) for score in scores)
    report(figures, args.output)


if __name__ == "__main__":
    main()
