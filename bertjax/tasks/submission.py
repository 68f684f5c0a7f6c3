"""Reads, writes and scores predictions in the format of GLUE's server: a zip of TSV files."""

import zipfile
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

from bertjax.files import explaining, write_text, writing
from bertjax.tasks.sources.glue_files import GlueSpec, read_glue_file, read_label
from bertjax.tasks.sources.row_readers import place, read_tsv
from bertjax.tasks.task import Example, Export, Pairs, Prediction

SUBMISSION = "submission.zip"
HEADER = ("index", "prediction")
# The server accepts only STS-B scores in the range of the gold scores.
LOWEST_SCORE, HIGHEST_SCORE = 0.0, 5.0


def format_glue_predictions(spec: GlueSpec, predictions: Mapping[str, str | float]) -> str:
    """Formats `predictions` as the text of a submission's TSV file, with a header.

    `predictions` is {id: class name or score}, and `spec` describes the task. Scores are limited to
    the range of STS-B's gold scores, 0 to 5.

    Raises:
        ValueError: a prediction is not a class of the task.
    """
    lines = ["\t".join(HEADER)]
    for id, prediction in predictions.items():
        if not spec.labels:
            written = f"{min(max(float(prediction), LOWEST_SCORE), HIGHEST_SCORE):.4f}"
        elif prediction in spec.labels:
            written = spec.codes[spec.labels.index(str(prediction))]
        else:
            raise ValueError(
                f"Prediction {prediction!r} of example {id} is not a class of {spec.name}: "
                f"{', '.join(spec.labels)}."
            )
        lines.append(f"{id}\t{written}")
    return "\n".join(lines) + "\n"


def read_glue_predictions(path: Path | str, spec: GlueSpec) -> dict[str, str | float]:
    """Reads {id: class name or score} from the TSV file `path` of predictions for the task `spec`.

    The file may also give the codes of GLUE's files, such as "1", for classes.

    Raises:
        ValueError: a row does not consist of an id and a prediction, an id occurs twice, or a
            prediction is not a class of the task (for regression: not a number).
    """
    predictions: dict[str, str | float] = {}
    for number, fields in read_tsv(Path(path)):
        where = place(path, number)
        if len(fields) != len(HEADER):
            raise ValueError(
                f"{where} has {len(fields)} fields, but must have an index and a prediction with a "
                "tab between them."
            )
        id, code = (field.strip() for field in fields)
        if not predictions and (id, code) == HEADER:
            continue
        if id in predictions:
            raise ValueError(
                f"{where}: index {id} has a prediction already. Remove one of the two rows."
            )
        predictions[id] = code if code in spec.labels else read_label(spec, code, where)
    return predictions


def add_to_submission_zip(zip_path: Path | str, files: Mapping[str, str]) -> None:
    """Adds files to a zip; replaces files of the same names in the zip and keeps other files.

    Args:
        zip_path: path of the zip, which is created if missing, and replaced atomically otherwise.
        files: {file name: text of the file}.

    Raises:
        ValueError: the file at `zip_path` is not a zip.
        OSError: the zip cannot be written.
    """
    zip_path = Path(zip_path)
    kept: dict[str, bytes] = {}
    _check_zip(zip_path)
    if zip_path.is_file():
        with zipfile.ZipFile(zip_path) as old:
            kept = {name: old.read(name) for name in old.namelist() if name not in files}
    with explaining(zip_path):
        zip_path.parent.mkdir(parents=True, exist_ok=True)
    with (
        writing(zip_path) as temporary,
        zipfile.ZipFile(temporary, "w", zipfile.ZIP_DEFLATED) as new,
    ):
        for name, content in sorted({**kept, **files}.items()):
            # Without the present time, the same predictions are the same bytes.
            entry = zipfile.ZipInfo(name)
            entry.external_attr = 0o644 << 16
            new.writestr(entry, content, zipfile.ZIP_DEFLATED)


def _check_zip(path: Path) -> None:
    """Raises ValueError if `path` is a file, but not a zip file."""
    if path.is_file() and not zipfile.is_zipfile(path):
        raise ValueError(f"{path} is not a zip file: delete it, or choose another --submission.")


def export_submission(spec: GlueSpec, zip_path: str | None) -> Export:
    """Returns a function that writes test predictions to a TSV file and to a zip.

    The function takes (folder, split, pairs) and yields the (example, prediction) pairs unchanged.
    It writes no file for splits that are not part of a submission, such as dev.

    Args:
        spec: the description of the task, with the class names and the names of the TSV files.
        zip_path: path of the zip; if None, submission.zip in the folder of the predictions.
    """

    def export(folder: Path, split: str, pairs: Pairs) -> Iterator[tuple[Example, Prediction]]:
        name = spec.submission.get(split)
        predictions: dict[str, str | float] = {}
        for example, prediction in pairs:
            if name is not None:
                predictions[example.id] = prediction["label" if spec.labels else "score"]
            yield example, prediction
        if name is not None:
            text = format_glue_predictions(spec, predictions)
            write_text(folder / name, text)
            add_to_submission_zip(zip_path or folder / SUBMISSION, {name: text})

    return export


def score_submission(spec: GlueSpec, gold: Path, predictions: Path) -> dict[str, float]:
    """Computes the metrics of the file `predictions` against `gold`, an official labelled file.

    `spec` describes the task.

    Raises:
        ValueError: a file is not in GLUE's format, `gold` has no labels, or the files contain
            different examples.
    """
    # The gold file is read as a dev split, because in CoLA only labelled splits lack a header.
    split = next((name for name in spec.files if name.startswith("dev")), "test")
    left_out: Counter[str] = Counter()
    labels = {}
    for example in read_glue_file(spec, gold, split, left_out):
        if example.label is None:
            raise ValueError(
                f"{gold} has no column {spec.label[0]!r}: give a file with labels, such as dev.tsv."
            )
        if example.id in labels:
            raise ValueError(
                f"{example.where}: index {example.id} occurs twice. Remove one of the rows."
            )
        labels[example.id] = example.label
    answers = read_glue_predictions(predictions, spec)
    if left_out.total():  # Rows without a gold label may have predictions.
        answers = {id: answer for id, answer in answers.items() if id in labels}
    missing = [id for id in labels if id not in answers]
    unknown = sorted(answers.keys() - labels.keys())
    if missing or unknown:
        faults = []
        if missing:
            faults.append(f"{len(missing):,} rows have no prediction (such as index {missing[0]})")
        if unknown:
            faults.append(f"{len(unknown):,} predictions have no row (such as index {unknown[0]})")
        raise ValueError(
            f"{predictions} must have one prediction for each of the {len(labels):,} labelled rows "
            f"of {gold}, but {' and '.join(faults)}. Use the index column of the official file or, "
            "if there is none, count its rows from 0, without the header."
        )
    return spec.metric(list(labels.values()), [answers[id] for id in labels])
