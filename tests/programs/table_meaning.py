"""Changes one thing of a user's table at a time, and compares what it means here and there.

    python -m tests.programs.table_meaning --count 1000 [--task TASK ...] [--show silent]

The tables are those of all tasks on the user's own files, of `search --retrieval_dir` and of
`mine`, in CSV, TSV, JSON lines, JSON, Parquet and CoNLL's columns. A change is of one column
(renamed, added, reordered, of another type) or of one row (`table_changes`). Then the readers read
the files as a fine-tuning does before its first step, and pandas, pyarrow or json read the changed
file:

- *equal*: the examples are those that the rows of the other program are by the task's definition;
- *refused*: a ValueError names the column, the row or the value;
- *told*: the examples are others, and a line that begins with `warning:` or counts the changed rows
  names the column, the row or the value;
- *nameless*: a ValueError names none of them;
- *traceback*: any other error;
- *silent*: everything else: another meaning, or one of several, without a word. There must be none.

Prints the outcomes of each task by kind of change; `--show OUTCOME` prints the changes of an
outcome, and `--first I --count 1` repeats change I of a task. Exits with status 1 if a change is
silent, nameless or a traceback.
"""

import argparse
import collections
import contextlib
import functools
import io
import json
import os
import random
import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

os.environ.setdefault("JAX_PLATFORMS", "cpu")  # before the readers import jax

import numpy as np  # noqa: E402

from bertjax import mine  # noqa: E402
from bertjax.inference import indexes, pretrained, retrieval  # noqa: E402
from bertjax.tasks.registry import make_task, options_class  # noqa: E402
from bertjax.tokenization import load_tokenizer  # noqa: E402
from tests.programs.seeds import TINY_BERT  # noqa: E402
from tests.programs.table_changes import (  # noqa: E402
    TASKS,
    Change,
    File,
    Undefined,
    change_files,
    meaning,
    read_again,
    vector,
    write,
)

OUTCOMES = ("equal", "refused", "told", "nameless", "traceback", "silent")
WRONG = OUTCOMES[3:]


@functools.cache
def _tokenizer() -> Any:
    return load_tokenizer(TINY_BERT)


# What bertjax reads.


def examples_of(task: str, paths: dict[str, Path], options: dict[str, Any], split: str) -> Any:
    """Returns (the meaning of a split, what is printed), as a fine-tuning reads it."""
    files = {name: str(path) for name, path in paths.items()}
    whole = {} if "dev" in files else {"dev_fraction": 0.0}
    made = make_task(task, options_class(task)(**files, **whole | options))
    found = []
    for part in dict.fromkeys(("train", split)):
        for example in made.data.examples(part):
            encode = made.features if part == "train" else made.features_to_predict
            features = encode(example, _tokenizer(), 128)
            if part == "train" and any(feature.labels is None for feature in features):
                raise ValueError(f"{example.where} has no label, but training needs one.")
            if part == split:
                found.append(_meaning(task, example, split))
    return tuple(found), made.data.change_notes()


def _meaning(task: str, example: Any, split: str) -> tuple:
    if task == "tag":
        return example.words, example.label
    if task == "qa":
        placed = split == "train"
        return example.text, example.pair, frozenset(a if placed else a[0] for a in example.answers)
    if task == "choice":
        return example.text, example.choices, example.label
    if task in ("classify", "regress"):
        label = example.label
        return (
            example.text,
            example.pair,
            tuple(sorted(label)) if isinstance(label, tuple) else label,
        )
    number = None if task == "rerank" and example.choices else example.label
    scores = example.scores if split == "train" else ()
    negatives = example.choices if scores else tuple(sorted(example.choices))
    return example.text, example.pair, negatives, number, scores


def _vectors(texts: Any) -> np.ndarray:
    return np.stack([vector(text) for text in texts])


def _dense(embed: Any) -> retrieval.IndexKind:
    embedders = {"query": embed, "document": embed}
    open_index = functools.partial(retrieval.DenseIndex, embedders, cosine=True)
    return retrieval.IndexKind(embedders, open_index)


class _Embedder:
    """Gives each text a vector of its own, in place of a model."""

    settings, size = "stand-in", 16
    after_batch = staticmethod(lambda count: None)

    def __call__(self, texts: Any) -> np.ndarray:
        return _vectors(texts)


def retrieved(paths: dict[str, Path]) -> Any:
    """Returns (the rankings and nDCG@10 of a collection, [])."""
    collection = retrieval.beir_collection(paths["corpus"].parent, "test")
    ranking = collection.rank(_dense(_Embedder()))
    found = sorted((query, tuple(passages)) for query, passages in ranking.items())
    return (*found, round(collection.score(ranking)["ndcg_at_10"], 6)), []


def mined(paths: dict[str, Path]) -> Any:
    """Returns (the lines that `mine` writes, [])."""
    output = paths["queries"].parent / "mined.jsonl"
    model = SimpleNamespace(loaded=None, identity="stand-in")
    kind = _dense(_Embedder())
    with (
        mock.patch("bertjax.weights.load_model"),
        mock.patch.object(pretrained, "Pretrained", lambda _: model),
        mock.patch.object(indexes, "index_of", lambda *_, **__: kind),
    ):
        queries, corpus = str(paths["queries"]), str(paths["corpus"])
        mine.run(
            mine.MineConfig(model="stand-in", queries=queries, corpus=corpus, output=str(output))
        )
    lines = map(json.loads, output.read_text(encoding="utf-8").splitlines())
    return tuple((line["query"], line["positive"], tuple(line["negatives"])) for line in lines), []


# Outcomes.


def _alike(task: str, found: tuple, expected: tuple) -> bool:
    """Returns whether two meanings are equal, but for the way in which classes are written."""
    if task != "classify" or len(found) != len(expected):
        return found == expected
    if [x[:2] for x in found] != [x[:2] for x in expected]:
        return False
    pairs = set()
    for (*_, ours), (*_, theirs) in zip(found, expected, strict=True):
        if isinstance(ours, tuple) != isinstance(theirs, tuple):
            return False
        several = isinstance(ours, tuple)
        if several and len(ours) != len(theirs):
            return False
        pairs |= {*zip(ours, theirs, strict=True)} if several else {(ours, theirs)}
    one_to_one = len({a for a, _ in pairs}) == len({b for _, b in pairs}) == len(pairs)
    return one_to_one and all(re.sub(r"\.0\Z", "", str(a)).lower() == b.lower() for a, b in pairs)


def _named(text: str, change: Change, number: int | None, *, refused: bool = False) -> bool:
    """Returns whether a message names what is changed; a refusal may name other rows, or a flag."""
    if refused and re.search(r"\brow \d|--[a-z]+_columns?\b", text):
        return True
    if number is not None and re.search(
        rf"\b(rows?|line|element) [^\n]*?(?<!\d){number}(?!\d)", text
    ):
        return True
    short = (name.strip("'") for name in change.names)
    words = [name for name in short if 0 < len(name) < 3 and name.isalpha()]  # such as the tag X
    if any(re.search(rf"(?<!\w){re.escape(word)}(?!\w)", text) for word in words):
        return True
    return any(name and name in text for name in change.names)


def judge(
    task: str,
    files: dict[str, File],
    options: dict[str, Any],
    name: str,
    change: Change,
    folder: Path,
) -> tuple[str, str]:
    """Returns (outcome, detail) of a change of the file `name`."""
    paths, rows, expected = {}, {}, []
    for each, file in files.items():
        place = folder / "qrels" if each == "qrels" else folder
        place.mkdir(exist_ok=True)
        paths[each] = write(file, place, "test" if each == "qrels" else each)
    number = None if change.row is None else files[name].number(change.row)
    lines, error = [], None
    try:
        for each, file in files.items():
            rows[each] = read_again(file, paths[each])
        whole = meaning(task, files, rows, name)
        expected = [] if change.unclear else [whole]
        expected += [read(whole) for read in change.others]
        why = "the change needs a word" if change.unclear else ""
    except Undefined as undefined:
        why = str(undefined)
    shown = io.StringIO()
    found: Any = None
    try:
        with contextlib.redirect_stdout(shown), contextlib.redirect_stderr(shown):
            if task == "retrieval":
                found, notes = retrieved(paths)
            elif task == "mine":
                found, notes = mined(paths)
            else:
                found, notes = examples_of(task, paths, options, name)
        lines = [line for line in shown.getvalue().splitlines() if line.startswith("warning:")]
        lines += notes
    except (ValueError, OSError) as caught:
        error = caught
    except Exception as caught:
        return "traceback", f"{type(caught).__name__}: {caught}"
    if error is not None:
        named = _named(str(error), change, number, refused=True)
        return "refused" if named else "nameless", str(error)
    if any(_alike(task, found, reading) for reading in expected):
        return "equal", ""
    if any(_named(line, change, number) for line in lines):
        return "told", "; ".join(lines)
    return (
        "silent",
        f"{why or _difference(found, expected[0])}; printed: {shown.getvalue().strip()[:400]}",
    )


def _difference(found: tuple, expected: tuple) -> str:
    if len(found) != len(expected):
        return f"{len(found)} examples, not {len(expected)}"
    for index, (a, b) in enumerate(zip(found, expected, strict=True)):
        if a != b:
            return f"example {index}: {a!r:.200}, not {b!r:.200}"
    return "no difference"


def run(task: str, count: int, seed: int, first: int = 0) -> Iterator[dict[str, Any]]:
    """Yields what came of each change: index, kind, what, outcome, detail."""
    for index in range(first, first + count):
        rng = random.Random(f"{seed}/{task}/{index}")
        files, options, name, change = change_files(rng, task)
        with tempfile.TemporaryDirectory(prefix="bertjax-tables-") as folder:
            outcome, detail = judge(task, files, options, name, change, Path(folder))
        file = files[name]
        detail = re.sub(r"\S*bertjax-tables-[^/]*/", "", detail)
        where = f"{name}.{file.format} ({', '.join(file.roles)})"
        yield {
            "task": task,
            "index": index,
            "kind": change.kind,
            "file": where,
            "what": change.what,
            "outcome": outcome,
            "detail": detail,
        }


def table(results: list[dict[str, Any]], by: str = "kind") -> str:
    """Returns a line per kind of change, with the number of each outcome."""
    rows: list[list[str]] = [[by, "changes", *OUTCOMES]]
    for key in (*sorted({result[by] for result in results}), "all"):
        of = [result for result in results if key in (result[by], "all")]
        counts = collections.Counter(result["outcome"] for result in of)
        rows.append([key, str(len(of)), *(str(counts[outcome]) for outcome in OUTCOMES)])
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if i else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    )


def main(argv: list[str] | None = None) -> int:
    """Runs the changes and prints the tables; returns 1 if an outcome is one of `WRONG`."""
    parser = argparse.ArgumentParser(prog="python -m tests.programs.table_meaning")
    parser.add_argument("--count", type=int, default=1000, help="number of changes per task")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="index of the first change")
    parser.add_argument("--task", action="append", choices=TASKS, help="default: all")
    parser.add_argument("--show", choices=OUTCOMES, action="append", default=[])
    flags = parser.parse_args(argv)
    results = []
    for task in flags.task or TASKS:
        own = []
        for result in run(task, flags.count, flags.seed, flags.first):
            own.append(result)
            if result["outcome"] in flags.show:
                print(json.dumps(result, ensure_ascii=False), flush=True)
        print(f"\n{task}\n{table(own)}", flush=True)
        results += own
    print(f"\n{table(results, 'task')}")
    return int(any(result["outcome"] in WRONG for result in results))


if __name__ == "__main__":
    sys.exit(main())
