"""Predictions in the forms that the official scorers and GLUE's server read.

An export passes (example, prediction) pairs on and writes them as they pass; see `Task.written`.
"""

import json
from collections.abc import Iterator
from pathlib import Path

from bertjax.tasks.sources.glue import GlueSpec
from bertjax.tasks.submission import add_to_submission_zip, format_glue_predictions
from bertjax.tasks.task import Example, Export, Pairs, Prediction

SUBMISSION = "submission.zip"


def glue_export(spec: GlueSpec, submission: str | None) -> Export:
    """Test splits as GLUE's TSV files, and these in a zip: `submission`, or one in the folder."""

    def export(folder: Path, split: str, pairs: Pairs) -> Iterator[tuple[Example, Prediction]]:
        name = spec.submission.get(split)
        found: dict[str, str | float] = {}
        for example, prediction in pairs:
            if name is not None:
                found[example.id] = prediction["label" if spec.labels else "score"]
            yield example, prediction
        if name is not None:
            text = format_glue_predictions(spec, found)
            (folder / name).write_text(text, encoding="utf-8")
            add_to_submission_zip(submission or folder / SUBMISSION, {name: text})

    return export


def squad_export(folder: Path, split: str, pairs: Pairs) -> Iterator[tuple[Example, Prediction]]:
    """What SQuAD's evaluation reads: id -> answer, and id -> odds that there is none."""
    answers, null_odds = {}, {}
    for example, prediction in pairs:
        answers[example.id] = prediction["answer"]
        null_odds[example.id] = prediction["null_odds"]
        yield example, prediction
    for name, content in (("answers", answers), ("null_odds", null_odds)):
        text = json.dumps(content, ensure_ascii=False, indent=0)
        (folder / f"{split}_{name}.json").write_text(text + "\n", encoding="utf-8")


def conll_export(folder: Path, split: str, pairs: Pairs) -> Iterator[tuple[Example, Prediction]]:
    """Columns as conlleval reads them: word, tag if it is known, predicted tag."""
    with (folder / f"{split}.conll").open("w", encoding="utf-8") as lines:
        for example, prediction in pairs:
            known = example.label if isinstance(example.label, tuple) else None
            columns = [example.words, *([known] if known else []), prediction["labels"]]
            lines.writelines(" ".join(row) + "\n" for row in zip(*columns, strict=True))
            lines.write("\n")
            yield example, prediction
