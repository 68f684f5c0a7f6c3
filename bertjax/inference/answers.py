"""Writes the predictions for the rows of a file or for a text, and reports rows without one.

Predictions are written while they are computed, so that an interrupted command can continue.
"""

import contextlib
import dataclasses
import itertools
import json
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax

import bertjax
from bertjax.files import writing
from bertjax.inference.answer_files import is_converted, write_converted
from bertjax.inference.partial_output import PartialLines, continued, file_identity
from bertjax.inference.saved_task import TaskModel
from bertjax.tasks import Example, Prediction, Task


class Answers:
    """Predicts examples, writes the predictions, and counts the rows that have none or no label.

    Args:
        model: the model.
        input: the path of the file with the examples, for messages; None: they are a text of the
            user, whose problems raise ValueError.
        output: the file of the predictions; None: they are printed as JSON lines.

    Attributes:
        rows: the number of examples so far.
        errors: the number of those without a prediction.
        unlabelled: the number of those without a label that can be used.
        problems: why examples could not be predicted or scored.
    """

    def __init__(self, model: TaskModel, input: str | None, output: str | None):
        self._model, self._input, self._output = model, input, output
        self.rows = self.errors = self.unlabelled = 0
        self.problems: list[str] = []

    def __call__(
        self, task: Task, examples: Iterator[Example], lines: "PartialLines | _Printed"
    ) -> Iterator[tuple[Example, Prediction]]:
        """Yields (example, prediction) for each of `examples`, and writes predictions to `lines`.

        Predictions that an interrupted run has written are read from `lines` instead of computed.
        Examples of `task` that cannot be predicted or scored are yielded without labels.

        Raises:
            ValueError: the input changed since an interrupted command read it, or it is a text of
                the user that cannot be predicted.
        """
        for example, prediction in self._pairs(task, examples, lines):
            if problem := prediction.get("error") or prediction.get("problem"):
                self.problems.append(problem)
                example = dataclasses.replace(example, label=None, answers=())
            self.rows += 1
            self.errors += "error" in prediction
            self.unlabelled += example.label is None and not example.answers
            yield example, prediction

    def _pairs(
        self, task: Task, examples: Iterator[Example], lines: "PartialLines | _Printed"
    ) -> Iterator[tuple[Example, Prediction]]:
        groups, kept = self._model.groups(task), 0
        group: list[tuple[Example, Prediction]] = []
        for line in lines.finished():
            example = next(examples, None)
            if example is None or line.pop("id") != example.id:
                raise ValueError(
                    f"{self._input} changed during the prediction: run the command again."
                )
            line.pop("input", None)
            group.append((example, line))
            if groups.ends_with(example):
                kept += len(group)
                yield from group
                group = []
        lines.keep(kept)
        if kept:
            print(f"continuing {self._output} after {kept:,} lines", flush=True)
        pairs = self._model(
            task,
            itertools.chain((example for example, _ in group), examples),
            report_problems=self._input is not None,
            # A terminal that shows the predictions shows the progress.
            shows_progress=self._output is not None or not sys.stdout.isatty(),
        )
        for example, prediction in pairs:
            given = {"input": dict(example.row)} if example.row and self._output else {}
            lines.write({"id": example.id, **given, **prediction})
            yield example, prediction

    def messages(self, *, scored: bool) -> Iterator[str]:
        """Yields what the user should know about rows; `scored`: whether there are metrics."""
        if not self.rows:
            yield f"{self._input} has no rows, so that there are no predictions."
        elif scored and self.unlabelled:
            yield (
                f"{self.unlabelled:,} of the {self.rows:,} rows have no label, or none that can be "
                "used, and are left out of the metrics."
            )
        if self.problems:
            unscored = len(self.problems) - self.errors
            counts = (
                f"{self.errors:,} could not be predicted" if self.errors else "",
                f"{unscored:,} were predicted, but could not be scored" if unscored else "",
            )
            yield (
                f"Of the {self.rows:,} rows, {' and '.join(filter(None, counts))}; their lines say "
                f"why, the first: {self.problems[0]}"
            )

    def check(self) -> None:
        """Checks that some example could be predicted, if there are examples.

        Raises:
            ValueError: none of the examples could be predicted.
        """
        if self.rows and self.errors == self.rows:
            raise ValueError(
                f"No row of {self._input} could be predicted; the first: {self.problems[0]}"
            )


@contextlib.contextmanager
def answer_lines(
    output: str | None, input: str | None, model: str, settings: Mapping[str, Any]
) -> "Iterator[PartialLines | _Printed]":
    """Yields a writer of predictions to the file `output` or, if `output` is None, to stdout.

    If an interrupted command with the same input, model and settings wrote a part of `output`, the
    writer continues after this part.

    Args:
        output: the path of the file, whose suffix determines the format.
        input: the path of the file with the examples; None: there is no such file.
        model: the path of the model.
        settings: all that determines the predictions besides input and model, as JSON values.
    """
    if output is None:
        yield _Printed()
        return
    identity = {
        "version": bertjax.__version__,
        "config": dict(settings),
        "input": None if input is None else file_identity(input),
        "model": file_identity(model),
        "device": jax.local_devices()[0].device_kind,
    }

    def finish(partial: Path, output: Path) -> None:
        if is_converted(output):
            with writing(output) as temporary:
                notes = write_converted(partial, temporary, output.suffix.lower())
            for note in notes:
                print(f"{output}: {note}", file=sys.stderr)
            partial.unlink()
        else:
            os.replace(partial, output)

    with continued(output, identity, PartialLines, finish) as lines:
        yield lines


class _Printed:
    """Writes JSON lines to standard output, as `PartialLines` writes them to a file."""

    def finished(self) -> Iterator[dict[str, Any]]:
        """Returns an empty iterator: no lines of an interrupted run can be read back."""
        return iter(())

    def keep(self, count: int) -> None:
        """Does nothing, because there are no lines of an interrupted run."""

    def write(self, line: Mapping[str, Any]) -> None:
        """Prints `line` as one line of JSON."""
        print(json.dumps(line, ensure_ascii=False))
