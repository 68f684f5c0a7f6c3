"""Predictions as GLUE's server takes them: a TSV a task, all of them in one zip."""

import os
import zipfile
from collections.abc import Mapping
from pathlib import Path

from bertjax.tasks.sources.glue import GlueSpec, read_label
from bertjax.tasks.sources.table_files import place, read_tsv

HEADER = ("index", "prediction")
# The server takes similarities in the range of the gold scores.
LOWEST_SCORE, HIGHEST_SCORE = 0.0, 5.0


def format_glue_predictions(spec: GlueSpec, predictions: Mapping[str, str | float]) -> str:
    """The text of a submission's file: a header, and a row for each id in the order given.

    Raises:
        ValueError: a label is none of the task's.
    """
    lines = ["\t".join(HEADER)]
    for id, prediction in predictions.items():
        if not spec.labels:
            written = f"{min(max(float(prediction), LOWEST_SCORE), HIGHEST_SCORE):.4f}"
        elif prediction in spec.labels:
            written = spec.codes[spec.labels.index(str(prediction))]
        else:
            raise ValueError(
                f"Prediction {prediction!r} of example {id} is no class of {spec.name}: "
                f"{', '.join(spec.labels)}."
            )
        lines.append(f"{id}\t{written}")
    return "\n".join(lines) + "\n"


def write_glue_predictions(
    path: Path | str, spec: GlueSpec, predictions: Mapping[str, str | float]
) -> None:
    """Writes a task's file of a submission: the class or score of each id."""
    Path(path).write_text(format_glue_predictions(spec, predictions), encoding="utf-8")


def read_glue_predictions(path: Path | str, spec: GlueSpec) -> dict[str, str | float]:
    """The class, or score, of each id; classes are written as GLUE does or by their names.

    Raises:
        ValueError: a row has another form, an id occurs twice, or a class is unknown.
    """
    predictions: dict[str, str | float] = {}
    for number, fields in read_tsv(Path(path)):
        where = place(path, number)
        if len(fields) != len(HEADER):
            raise ValueError(
                f"{where} has {len(fields)} fields, expected an index and a prediction with a tab "
                "between them."
            )
        id, code = (field.strip() for field in fields)
        if not predictions and (id, code) == HEADER:
            continue
        if id in predictions:
            raise ValueError(f"{where}: index {id} has a prediction already. Leave one out.")
        predictions[id] = code if code in spec.labels else read_label(spec, code, where)
    return predictions


def add_to_submission_zip(zip_path: Path | str, files: Mapping[str, str]) -> None:
    """Puts files into a zip, in place of those of the same names; the others stay.

    Args:
        zip_path: created if need be. It is replaced as a whole, so it is never half written.
        files: name -> text.
    """
    zip_path = Path(zip_path)
    kept: dict[str, bytes] = {}
    if zip_path.is_file():
        with zipfile.ZipFile(zip_path) as old:
            kept = {name: old.read(name) for name in old.namelist() if name not in files}
    zip_path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = zip_path.with_name(f"{zip_path.name}.tmp")
    with zipfile.ZipFile(unfinished, "w", zipfile.ZIP_DEFLATED) as new:
        for name, content in sorted({**kept, **files}.items()):
            new.writestr(name, content)
    os.replace(unfinished, zip_path)
