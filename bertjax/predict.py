"""Predicts with a fine-tuned model: `python -m bertjax.predict --model DIR --input FILE`."""

import dataclasses
import itertools
import json
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from bertjax.base import command_line, signals
from bertjax.base.checked import Checked
from bertjax.base.files import naming_write_errors

if TYPE_CHECKING:
    from bertjax.inference.evaluation import TrainingOverlap
    from bertjax.inference.pretrained import Pretrained
    from bertjax.tasks.sources.columns import Columns

SUFFIXES = (".jsonl", ".ndjson", ".json", ".csv", ".tsv", ".parquet")
# Flags that only one kind of input has.
OF_INPUT = {
    "pair": "text",
    "data_dir": "task",
    "tfds_data_dir": "task",
    "submission": "task",
    "text_column": "input",
    "pair_column": "input",
    "label_column": "input",
    "label_separator": "input",
    "id_column": "input",
    "choice_columns": "input",
    "spreadsheet_safe": "input",
}
# Flags of other commands that `predict` might be given, and what to give there.
ELSEWHERE = {
    "embed": "embed --input",
    "pooling": "embed --pooling",
    "prompt": "embed --prompt",
    "normalize": "embed --normalize",
    "layers": "embed --layers",
    "truncate_dim": "embed --truncate_dim",
    "fill_mask": "fill_mask",
    "top_k": "fill_mask --top_k",
    "html": "fill_mask --html",
    "retrieval_dir": "search --retrieval_dir",
    "keep_same_id": "search --keep_same_id",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class PredictConfig(Checked):
    """Config of `bertjax.predict`: the model, the examples, and where their predictions go.

    Raises:
        ValueError: not exactly one of `input`, `text` and `task` is set, a flag of another of them
            is, or the suffix of `output` does not tell the format.
    """

    model: str
    """Model: a directory, the workdir of a finished fine-tuning, or a hub name."""
    input: str | None = None
    """File or folder of examples, in a format of the model's task, also in a bucket; - reads texts,
    one per line, or JSON from standard input; None: --text or --task is predicted."""
    text: str | None = None
    """Single text to predict, or question; None: --input or --task is predicted."""
    pair: str | None = None
    """Second text of a pair whose first text is --text, or passage of the question; None: --text is
    a single text."""
    task: str | None = None
    """Official task, such as mnli or squad, whose dev and test splits are predicted; its labels
    must be those of the model; None: --input or --text is predicted."""
    data_dir: str | None = None
    """Folder with the official files of --task; None: the data is downloaded from the Hugging Face
    hub, unless TensorFlow Datasets has prepared it."""
    tfds_data_dir: str | None = None
    """Data folder of TensorFlow Datasets, which prepares the task there if necessary; None: its
    default folder, which is used only if it has the task already."""
    submission: str | None = None
    """Zip file for GLUE's server, to which the predictions of --task are added; None: the file
    submission.zip in the folder of the predictions."""
    text_column: str | None = None
    """Column of the text in --input, or of the first text of a pair; None: as in fine-tuning, or
    guessed and printed if the file lacks a column of the fine-tuning."""
    pair_column: str | None = None
    """Column of the second text of a pair or, in multiple choice, of a text before every choice;
    None: as for --text_column."""
    label_column: str | None = None
    """Column of the labels, with which the predictions are compared; None: as for --text_column, or
    the columns that have the names of the model's labels. Without labels, no metrics are
    computed."""
    label_separator: str | None = None
    """String that separates the labels of an example with several labels; None: the separator used
    in fine-tuning, if any."""
    id_column: str | None = None
    """Column of the example ids, which the predictions contain; None: as in fine-tuning, or a
    column such as id or idx. Without ids, the examples are numbered from 0."""
    choice_columns: tuple[str, ...] = ()
    """Columns of the choices in multiple choice, or of the candidates to rerank, or the one column
    with lists of them; empty: chosen as for --text_column."""
    output: str | None = None
    """Output: a .jsonl, .json, .csv, .tsv or .parquet file, which has the columns of the input,
    too, or a folder for --task; None: standard output, or the folder predictions/TASK."""
    spreadsheet_safe: bool = False
    """Whether texts in a .csv or .tsv that spreadsheets would take as formulas get a ' in front;
    off, so that texts stay as they are."""
    max_length: int | None = None
    """Maximum number of tokens per sequence; None: as in fine-tuning (for models of other
    libraries, the maximum length of the model; question answering: 384)."""
    doc_stride: int | None = None
    """Maximum number of tokens between the starts of two windows of a text of more than max_length
    tokens; None: as in fine-tuning, where a classifier may truncate texts instead."""

    def __post_init__(self):
        super().__post_init__()
        kinds = [name for name in ("input", "text", "task") if getattr(self, name) is not None]
        if len(kinds) != 1:
            raise ValueError(
                "Give one of --input, --text and --task; given: "
                f"{', '.join(f'--{name}' for name in kinds) or 'none'}."
            )
        for name, kind in OF_INPUT.items():
            if getattr(self, name) not in (None, False, ()) and kind not in kinds:
                raise ValueError(f"--{name} belongs to --{kind}: leave it out with --{kinds[0]}.")
        if self.output is not None and self.task is None:
            suffix = Path(self.output).suffix.lower()
            if suffix not in SUFFIXES:
                raise ValueError(
                    f"--output {self.output}: the suffix {suffix!r} tells no format: use one of "
                    f"{', '.join(SUFFIXES)}."
                )

    @property
    def columns(self) -> "Columns":
        """The column names of --input that are set by flags."""
        from bertjax.tasks.sources.columns import Columns

        return Columns(
            text=self.text_column,
            pair=self.pair_column,
            label=self.label_column,
            id=self.id_column,
            choices=self.choice_columns,
        )


def predict_file(config: PredictConfig, model: "Pretrained") -> None:
    """Predicts --text or all examples of --input; writes the predictions to --output.

    The predictions are JSON lines or a table, as the suffix of --output says; without --output,
    JSON lines are printed. If the examples have labels, the metrics are printed as well, to
    standard error: in per cent on a terminal, else as JSON. If the model was fine-tuned with
    examples of the input, a warning says so. If the command is killed, running it again with the
    same input, model and flags predicts only the examples without a prediction yet, so that
    --output has one line or row per example.

    Raises:
        ValueError: the input cannot be read, or no row of it can be predicted.
    """
    from bertjax.inference.evaluation import TrainingOverlap, from_file
    from bertjax.inference.output_files import PredictionWriter, prediction_lines
    from bertjax.inference.texts import from_text
    from bertjax.tasks.intervals import score_intervals
    from bertjax.tasks.measures import ScoredRows

    task = model.task_with(config.max_length, config.doc_stride)
    overlap = None
    if config.text is not None:
        examples = [from_text(task, config.text, config.pair)]
    else:
        path = str(config.input)
        separator = config.label_separator
        task, examples, note = from_file(
            task, path, config.columns, separator, model.description, "report"
        )
        if note:
            print(note, file=sys.stderr)
        overlap = TrainingOverlap(model)
        examples = overlap.observe(task, examples)
    writer = PredictionWriter(model.predictions, config.input, config.output)
    settings = {**dataclasses.asdict(config), "output": None}
    with prediction_lines(config.output, config.input, model.identity, settings) as lines:
        rows = ScoredRows(task)
        predictions = writer(task, iter(examples), lines)
        if sys.stderr.isatty():  # intervals are shown
            predictions = rows.observe(predictions)
        scores = task.score(predictions)
    notes = []
    if task.source is not None:
        notes = task.source.change_notes()
    for message in (*writer.messages(scored=bool(scores)), *notes):
        print(message, file=sys.stderr)
    if config.output is not None:
        print(f"predictions written to {config.output}")
    if scores:
        if overlap is not None and overlap.repeated:
            print(_warning(overlap), file=sys.stderr)
        text = json.dumps(scores)
        if sys.stderr.isatty():
            from bertjax.record.labels import scores_text

            text = scores_text(scores, score_intervals(rows))
        print(text, file=sys.stderr)
    writer.check()


def _warning(overlap: "TrainingOverlap") -> str:
    """Returns a warning that examples are scored with which the model was fine-tuned."""
    from bertjax.record.labels import scores_text

    text = (
        f"warning: {overlap.repeated:,} of the {overlap.labelled:,} examples are in "
        f"{overlap.train}, with which the model was fine-tuned, so that the scores are better than "
        "those of new texts would be."
    )
    if not overlap.is_divided:
        text += (
            " It cannot be told which of its rows were held out or left out, because files of the "
            "training were changed or moved since, or --shots drew some rows: these count as well."
        )
    if overlap.held_out:
        text += f" On the examples held out from the training: {scores_text(overlap.held_out)}."
    return text


def predict_task(config: PredictConfig, model: "Pretrained") -> None:
    """Predicts all splits of a benchmark task except train; writes predictions, prints metrics.

    Raises ValueError if the task does not fit the model, and FileNotFoundError without its data.
    """
    from bertjax.base.outputs import check_replaceable
    from bertjax.config.task_options import OfficialOptions
    from bertjax.inference.evaluation import official_task
    from bertjax.tasks.sources.glue import GlueRegressionOptions

    options = OfficialOptions(data_dir=config.data_dir, tfds_data_dir=config.tfds_data_dir)
    if config.submission is not None:
        options = GlueRegressionOptions(**vars(options), submission=config.submission)
    limits = config.max_length, config.doc_stride
    task = official_task(model, str(config.task), options, *limits)
    folder = Path(config.output or f"predictions/{task.name}")
    source = task.data
    for split in source.splits:
        check_replaceable("--output", folder / f"{split}.jsonl")
    with naming_write_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    for split in source.splits:
        if split == "train":
            continue
        count = itertools.count()
        predictions = model.predictions(task, source.examples(split))
        counted = (pair for pair, _ in zip(predictions, count, strict=False))
        scores = task.score(task.write_predictions(folder, split, counted))
        print(json.dumps({"split": split, "examples": next(count), **scores}))
    print(f"predictions written to {folder}")


def run(config: PredictConfig) -> None:
    """Predicts the examples that the config names; prints or writes their predictions.

    Raises FileNotFoundError, and ValueError if the input or a flag does not fit the model.
    """
    from bertjax import weights
    from bertjax.devices.compilation import start_command
    from bertjax.inference.output_files import standard_input_as_file
    from bertjax.inference.pretrained import Pretrained

    config = start_command(config, "input")
    model = Pretrained(weights.load_model(config.model, None))
    if config.task is not None:
        predict_task(config, model)
    elif config.input == "-":
        with standard_input_as_file() as path:
            predict_file(dataclasses.replace(config, input=str(path)), model)
    else:
        predict_file(config, model)


def parse(argv: Sequence[str] | None = None) -> PredictConfig:
    """Parses the command-line flags.

    Raises:
        SystemExit: a flag is unknown or has a wrong value, or --help was requested.
    """
    words = command_line.arguments(argv)
    _refuse_flags_of_other_commands(words)
    _refuse_several_texts(words)
    return command_line.parse(
        PredictConfig,
        argv,
        command="predict",
        description="Predicts with a fine-tuned model: the examples of a file, one text, or an "
        "official task. One of --input, --text and --task is required.",
    )


def _refuse_flags_of_other_commands(words: Sequence[str]) -> None:
    for word in words:
        flag = word.partition("=")[0].removeprefix("--")
        name = flag.replace("-", "_")
        if word.startswith("--") and name in ELSEWHERE:
            there = ELSEWHERE[name]
            value = command_line.value_of(flag, words)
            example = "" if value is None else f" {shlex.quote(value)}"
            command_line.refuse(
                f"--{name} belongs to bertjax.{there.partition(' ')[0]}: python -m "
                f"bertjax.{there}{example} ..."
            )


def _refuse_several_texts(words: Sequence[str]) -> None:
    """Ends the process if --text, which takes one text, has several or is given several times."""
    count = 0
    for index, word in enumerate(words):
        name, equals, _ = word.partition("=")
        if name != "--text":
            continue
        count += len(equals)
        for value in words[index + 1 :]:
            if value.startswith("--"):
                break
            count += 1
    if count > 1:
        command_line.refuse(
            f"--text takes one text, but {count} were given: put a text with spaces in quotes; "
            "for several texts, write one per line to a .txt file and give it with --input."
        )


def main(argv: Sequence[str] | None = None) -> int:
    """Parses the flags and runs the command; returns the exit status."""
    return signals.run_reporting_errors(
        lambda: run(parse(argv)), "Use a smaller --max_length or a smaller model."
    )


if __name__ == "__main__":
    signals.leave(main())
