"""`Example`, `Source` and `Task`, the interface of tasks; windows on long texts.

A `Source` reads examples; its subclasses are in `sources`. A `Task` encodes examples as features
(token ids and labels), converts outputs of the model to predictions, and computes metrics; its
subclasses are in `classification`, `tagging`, `question_answering` and `embedding`.
"""

import abc
import bisect
import dataclasses
import hashlib
import io
import itertools
import json
import pickle
import re
import tempfile
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np

from bertjax.base.files import brief, did_you_mean, write_text, writing
from bertjax.data.batches.batch import Feature, LabelKind
from bertjax.tasks.metrics import Metric, accuracy
from bertjax.tokenization import Tokenizer

Span = tuple[int, int]
# What R, pandas, spreadsheets and SQL write where a value is missing, in lower case.
MISSING = frozenset({"na", "n/a", "#n/a", "nan", "null", "none", "<na>", r"\n"})


def check_stride(doc_stride: int | None) -> None:
    """Raises ValueError if `doc_stride`, an option of a task, is below 1."""
    if doc_stride is not None and doc_stride < 1:
        raise ValueError(f"doc_stride={doc_stride}: it must be at least 1.")


def windows(length: int, room: int, stride: int, starts: Sequence[int] | None = None) -> list[Span]:
    """Splits a text into windows; returns (first token, last token + 1) of each window.

    Args:
        length: number of tokens of the text.
        room: maximum number of tokens of a window.
        stride: maximum number of tokens between the starts of two consecutive windows.
        starts: the tokens with which a window may start, ascending and beginning with 0: the first
            tokens of the words, each of which is in a window then. Where the next of them is more
            than `stride` tokens away, it starts the next window nevertheless. None: any token.
    """
    spans, start = [], 0
    while True:
        end = min(start + room, length)
        spans.append((start, end))
        if end == length:
            return spans
        following = start + min(end - start, stride)
        if starts is not None:
            last = bisect.bisect_right(starts, following) - 1
            last += starts[last] == start
            if last == len(starts):  # all other tokens are of the last word, which is longer than
                return spans  # a window
            following = starts[last]
        start = following


def widest_contexts(spans: Sequence[Span]) -> list[np.ndarray]:
    """Assigns each token of a text to the window with the most context around the token.

    The context of a token in a window is the smaller of the numbers of tokens before and after the
    token, plus a hundredth of the length of the window, as in Google's `run_squad.py`. Earlier
    windows win ties.

    Returns a bool array [number of tokens] per window, True at the tokens that are assigned to it.
    Each token that is in a window is True in exactly one array.
    """
    best = np.full(spans[-1][1], -1.0)
    window_of = np.zeros(len(best), np.int64)
    for window, (begin, end) in enumerate(spans):
        left = np.arange(end - begin)
        context = np.minimum(left, left[::-1]) + 0.01 * len(left)
        part = slice(begin, end)
        window_of[part][context > best[part]] = window
        best[part] = np.maximum(best[part], context)
    return [window_of[begin:end] == window for window, (begin, end) in enumerate(spans)]


def feature_of(
    sequences: Sequence[tuple[Sequence[int], Sequence[int]]],
    labels: np.ndarray | None,
    origins: np.ndarray | None = None,
) -> Feature:
    """Makes the feature of one or several sequences, each of which is (token ids, token types)."""
    return Feature(
        np.concatenate([np.array(ids, np.int32) for ids, _ in sequences]),
        tuple(len(ids) for ids, _ in sequences),
        tuple(len(types) - sum(types) for _, types in sequences),
        labels,
        origins,
    )


# A prediction is a dict of JSON values. Its keys depend on the `label_kind` of the task:
#   classes      label, probabilities {label: p}
#   multi_label  labels, probabilities {label: p}
#   regression   score
#   tokens       words, labels and probabilities, one of each per word; if the labels mark entities,
#                entities: type, text, probability, first_word, last_word of each, and, if the words
#                are those of a running text, start and end of its characters
#   span         answer, answer_start, answer_end (in characters), probability, null_odds, nbest
#   choice       label (index of the choice, from 0), probabilities
#   similarity   similarity of text and pair and, if there are hard negatives, negatives: the
#                similarities of text and each of them; also for contrastive and distilled
#   ranking      score of the pair and, if there are any, of the negatives; or, of a list of
#                candidates, ranking: index, score and text of each, the best first
# The prediction for an example that could not be read or encoded has only the key `error`.
Prediction = dict[str, Any]
# The model's outputs for one feature, under the names of the head's outputs. The arrays cover only
# the feature's own sequences or tokens, without padding or other sequences of a packed row.
Outputs = Mapping[str, np.ndarray]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Example:
    """One example as read from a file; fields that the task does not use stay empty.

    Attributes:
        id: identifies the example in the official files and in predictions.
        where: the file and row of the example, for error messages.
        text: the text, the first text of a pair, the question, or the text before every choice.
        pair: the second text, or the passage that a question is about.
        words: the words of a sentence whose words are to be tagged.
        offsets: (start, end) of each of `words` in `text`; empty for a list of words.
        choices: in multiple choice, the continuations of `text` to choose from; for embeddings, the
            hard negatives.
        scores: a teacher's score of each text that is compared with `text`: of `pair`, then of
            `choices`; empty if there are none.
        label: a class name, a number, a tuple of names (several labels, or one tag per word), or
            the index of the correct choice, from 0; None if the example is unlabelled.
        row: the row of a user's file with named columns, {column: value}; else empty.
        problem: why the example could not be read, if the source reports bad rows. If only the
            label could not be read, `label` is None; else, all other fields but `id`, `where` and
            `row` are empty.
        answers: (text, start in characters) for each accepted answer; the start is -1 if the text
            is not in the passage. Empty, with `label="impossible"`, if there is no answer.
        cut: the first words of the entities that begin or end within a word.
    """

    id: str
    where: str
    text: str = ""
    pair: str | None = None
    words: tuple[str, ...] = ()
    offsets: tuple[tuple[int, int], ...] = ()
    choices: tuple[str, ...] = ()
    scores: tuple[float, ...] = ()
    label: str | float | int | tuple[str, ...] | None = None
    answers: tuple[tuple[str, int], ...] = ()
    cut: tuple[int, ...] = ()
    row: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    problem: str = ""


class KeptExamples:
    """The examples of an iterator, which can be read many times; the iterator is read once.

    They are kept pickled, about as large as the file that they come from: up to `MEMORY` bytes in
    memory, and more in a temporary file without a name, which the system removes with the process.
    """

    MEMORY = 64 << 20
    BLOCK = 256

    def __init__(self, examples: Iterable[Example]):
        self._unread = iter(examples)
        self._error: BaseException | None = None
        self._file = tempfile.SpooledTemporaryFile(self.MEMORY)
        self._blocks: list[int | list[Example]] = []  # the start in the file, or the examples

    def __iter__(self) -> Iterator[Example]:
        for index in itertools.count():
            block = self._kept(index) if index < len(self._blocks) else self._read()
            if not block:
                return
            yield from block

    def _read(self) -> list[Example]:
        if self._error is not None:
            raise self._error
        try:
            block = list(itertools.islice(self._unread, self.BLOCK))
        except BaseException as error:
            self._error = error
            raise
        if block:
            try:
                # Of the fields, not of the examples: nothing but built-in types is unpickled.
                data = pickle.dumps([vars(example) for example in block], pickle.HIGHEST_PROTOCOL)
                self._blocks.append(self._file.seek(0, io.SEEK_END))
                self._file.write(data)
            except RecursionError:  # a column with deeply nested JSON
                self._blocks.append(block)
        return block

    def _kept(self, index: int) -> list[Example]:
        block = self._blocks[index]
        if isinstance(block, list):
            return block
        self._file.seek(block)
        examples = []
        for fields in pickle.load(self._file):
            examples.append(object.__new__(Example))  # half the time of `Example(**fields)`
            examples[-1].__dict__.update(fields)
        return examples

    def __del__(self):
        self._file.close()


# refuse: one error names the bad rows; skip: the other rows are used; report: a bad row becomes an
# example whose `problem` is the reason, without content unless only the label is bad.
BadRows = Literal["refuse", "skip", "report"]
# The most problems in an error, and the most characters of a problem's rows and description.
PROBLEMS = 20
ROWS_LENGTH = 100
LINE_LENGTH = 200
# Names of columns (in '...'), quoted values, and numbers that are not a part of a word.
_VALUES = r"""'[^']*'|"[^"]*"|(?<![\w.])-?\d+(\.\d+)?(?!\w)"""


def error_of(problems: Sequence[str], where: str, *, can_skip: bool = False) -> ValueError:
    """Returns one ValueError about bad rows of a file or split, `where`.

    Rows with the same problem are listed together. Problems that differ only in quoted values and
    numbers count as similar; the values of the first row are shown. The message describes the
    `PROBLEMS` most frequent problems; if `can_skip`, it recommends --skip_bad_rows.
    """
    if len(problems) == 1:
        return ValueError(problems[0] + " Or give --skip_bad_rows to leave it out." * can_skip)
    groups: dict[str, list[tuple[str, str]]] = {}  # problem without its values -> (row, problem)s
    for problem in problems:
        text = problem.removeprefix(where).lstrip(", ")
        row = re.match(r"row (\d+):? ?", text)
        if row:  # which names the question, too
            text = re.sub(r"^,? ?question \S+:? ", "", text[row.end() :])
        # Without a row number, the numbers in the text may tell the place.
        values = _VALUES if row else r'"[^"]*"'
        kind = re.sub(values, lambda found: found[0] if found[0][0] == "'" else '""', text)
        groups.setdefault(kind, []).append((row[1] if row else "", text))
    skip = ", or leave them out with --skip_bad_rows" if can_skip else ""
    message = f"{where}: {len(problems):,} rows cannot be used. Correct them{skip}:"
    by_frequency = sorted(groups.values(), key=len, reverse=True)
    for group in by_frequency[:PROBLEMS]:
        similar = len({text for _, text in group}) > 1
        rows = _rows_of([row for row, _ in group if row], similar=similar)
        message += f"\n  {rows}{brief(group[0][1], LINE_LENGTH)}"
    if others := sum(map(len, by_frequency[PROBLEMS:])):
        message += f"\n  and {others:,} rows with other problems"
    return ValueError(message)


def _rows_of(numbers: Sequence[str], *, similar: bool) -> str:
    if not numbers:
        return ""
    if similar and len(numbers) > 1:
        return f"row {numbers[0]} (similar: {_listed(numbers[1:])}): "
    return f"row {_listed(numbers)}: "


def _listed(numbers: Sequence[str]) -> str:
    """Joins the first of `numbers`, in about `ROWS_LENGTH` characters, and counts the others."""
    for shown in range(len(numbers), 0, -1):
        rest = f" and {len(numbers) - shown:,} more" if shown < len(numbers) else ""
        text = ", ".join(numbers[:shown]) + rest
        if len(text) <= ROWS_LENGTH:
            return text
    return brief(", ".join(numbers), ROWS_LENGTH)


def text_digest(example: Example) -> bytes:
    """Returns a hash of the texts of an example, which is small where texts are long."""
    texts = (example.text, example.pair, example.words, example.choices)
    return hashlib.blake2b(repr(texts).encode(errors="replace"), digest_size=12).digest()


class ChangeCounts(Counter[str]):
    """Counts changed or omitted examples by "SPLIT: REASON"; `first` has the first row of each."""

    def __init__(self) -> None:
        super().__init__()
        self.first: dict[str, str] = {}

    def add(self, reason: str, where: str) -> None:
        """Counts an example, at `where`, that was changed or left out for `reason`."""
        self.first.setdefault(reason, where)
        self[reason] += 1


class Source(abc.ABC):
    """Base class of the sources, which read the examples of a task.

    A split is parsed once: all of its examples are kept, because a fine-tuning reads the user's
    train split several times before its first step, and the dev split at each evaluation. Examples
    that are held out of the train split are kept apart, so that an evaluation reads only them. What
    is kept of the train split is forgotten after it has been encoded.

    Args:
        name: what messages call the source.
        files: {split: its file, folder or data}.
        bad_rows: "refuse": one ValueError names the rows that cannot be used; "skip": they are left
            out; "report": each becomes an example whose `problem` says why.
        keep: whether examples are kept; else, a split is parsed whenever it is read, so that
            predictions begin before a file has been read.

    Attributes:
        splits: the splits that have a file, such as "train", "dev", "test" or (MNLI) "dev_matched",
            and "dev" if a part of the train split is held out.
        counts: {"SPLIT: REASON": number of changed or omitted examples} of all splits read.
        note: a message about the files for the user; it may be empty.
        can_skip: whether errors about bad rows recommend --skip_bad_rows.
    """

    note: str = ""
    can_skip: bool = False

    def __init__(
        self, name: str, files: Mapping[str, Any], bad_rows: BadRows = "refuse", keep: bool = True
    ):
        self.name, self.files = name, dict(files)
        self.splits = tuple(self.files)
        self.counts = ChangeCounts()
        self._bad_rows_are, self._keeps = bad_rows, keep
        self._kept: dict[str, KeptExamples] = {}
        self._bad_rows: dict[str, list[str]] = {}  # split -> problems
        self._left_out: dict[str, dict[str, str]] = {}  # split -> {where: problem}
        self._held_out: frozenset[int] = frozenset()
        self._missing: dict[str, str] = {}  # split -> what is counted, with the first text

    @abc.abstractmethod
    def parse(self, split: str) -> Iterable[Example]:
        """Parses the file of a split; a row that cannot be used is an example with a `problem`.

        Raises:
            ValueError: the rows after a malformed one cannot be read, or a row of an official file
                is malformed.
        """

    @property
    def description(self) -> dict[str, Any]:
        """What task.json of a saved model says about the files that it was trained on."""
        return {}

    def path(self, split: str) -> Any:
        """Returns the file that has a split.

        Raises:
            ValueError: there is none; the message suggests the nearest name.
        """
        split = "train" if split == "dev" and self._held_out else split
        if split in self.files:
            return self.files[split]
        hint = did_you_mean(split, self.files)
        known = ", ".join(self.files)
        raise ValueError(f"{self.name} has no split {split!r}. {hint}There are: {known}.")

    def examples(self, split: str) -> Iterator[Example]:
        """Reads the examples of a split, in the order of its file, without those left out.

        Raises:
            ValueError: the split has no file, or a row is malformed; the message names the row.
        """
        self.path(split)  # refuses a split without a file
        held_out = self._held_out if split == "train" else ()
        left_out = self._left_out.get(split, {})
        numbered = enumerate(self.usable(split))
        return (e for i, e in numbered if i not in held_out and e.where not in left_out)

    def all_examples(self, split: str) -> Iterable[Example]:
        """Returns the examples of a split that `parse` yields, parsed now or kept."""
        if split in self._kept:
            return self._kept[split]
        for reason in [key for key in self.counts if key.startswith(f"{split}: ")]:
            del self.counts[reason]
        if not self._keeps:
            return self._parsed(split)
        return self._kept.setdefault(split, KeptExamples(self._parsed(split)))

    def _parsed(self, split: str) -> Iterator[Example]:
        """Parses a split; counts the user's rows with a text that may stand for a missing one."""
        for example in self.parse(split):
            # Of several choices, "None" may be one.
            texts = [example.text, example.pair, *(example.choices if example.pair else ())]
            if example.row and (
                text := next((x for x in texts if x and x.strip().lower() in MISSING), "")
            ):
                reason = (
                    f"{split}: rows with a text such as {text!r}, which other programs write where "
                    "a value is missing, read as it stands"
                )
                self.counts.add(self._missing.setdefault(split, reason), example.where)
            yield example

    def usable(self, split: str) -> Iterator[Example]:
        """Yields the examples without a problem, also held-out ones of the train split.

        If `bad_rows` is "report", those with a problem are yielded as well.

        Raises:
            ValueError: examples have a problem and `bad_rows` is "refuse". After the first problem,
                nothing is yielded; the error is raised at the end and names the rows.
        """
        self._bad_rows[split] = problems = []
        refuses, reports = (self._bad_rows_are == way for way in ("refuse", "report"))
        for example in self.all_examples(split):
            if example.problem:
                problems.append(example.problem)
            if reports or not (example.problem or (refuses and problems)):
                yield example
        if refuses:
            self.refuse(split, problems)

    def hold_out(self, indices: frozenset[int]) -> None:
        """Makes the usable examples of the train split with these `indices` the dev split."""
        numbered = enumerate(self.usable("train"))
        self._kept["dev"] = KeptExamples(e for i, e in numbered if i in indices)
        deque(self._kept["dev"], maxlen=0)  # now, because the train split will be forgotten
        self._held_out, self.splits = indices, (*self.splits, "dev")

    def held_out_indices(self) -> list[int]:
        """Returns the index of each "dev" example among the usable examples of the train file."""
        left_out = self._left_out.get("dev", {})
        held_out = sorted(self._held_out)
        numbered = zip(held_out, self.usable("dev") if held_out else (), strict=True)
        return [index for index, example in numbered if example.where not in left_out]

    def forget(self, split: str) -> None:
        """Frees what is kept of a split, which is parsed again if it is read again."""
        self._kept.pop(split, None)

    def refuse(self, split: str, problems: Sequence[str]) -> None:
        """Raises one ValueError about all bad rows of a split, unless `problems` is empty."""
        if problems:
            raise error_of(problems, str(self.path(split)), can_skip=self.can_skip)

    def leave_out(self, split: str, example: Example, problem: str) -> bool:
        """Leaves an example out of later reads if `bad_rows` is "skip"; returns whether it does."""
        if self._bad_rows_are != "skip":
            return False
        self._left_out.setdefault(split, {})[example.where] = problem
        return True

    def all_bad_rows(self) -> list[tuple[str, str]]:
        """Returns (split, problem) of each row that could not be read or encoded."""
        read = [(split, text) for split, texts in self._bad_rows.items() for text in texts]
        left_out = self._left_out.items()
        return read + [(split, text) for split, rows in left_out for text in rows.values()]

    def write_bad_rows(self, path: Path) -> None:
        """Writes `all_bad_rows` to a file of JSON lines, if there are any."""
        if bad := self.all_bad_rows():
            lines = [{"split": split, "problem": problem} for split, problem in bad]
            write_text(path, "".join(json.dumps(x, ensure_ascii=False) + "\n" for x in lines))

    def change_notes(self) -> list[str]:
        """Returns a sentence per reason for which examples were changed or left out so far."""
        first = self.counts.first
        return [
            f"{reason}: {count:,}" + (f" (the first: {first[reason]})" if reason in first else "")
            for reason, count in self.counts.items()
        ]


Pairs = Iterable[tuple[Example, Prediction]]
Export = Callable[[Path, str, Pairs], Iterator[tuple[Example, Prediction]]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Task(abc.ABC):
    """Base class of tasks, which encode examples, decode predictions and compute metrics.

    Attributes:
        source: reads the examples; None if the task only predicts examples that the caller passes.
        labels: class names in the order of their ids; empty if there are no classes.
        metric: function (labels, predicted labels) -> metrics; unused in question answering.
        best_metric: name of the metric that selects the best checkpoint.
        max_length: default of the maximum number of tokens per sequence.
        export: function (folder, split, pairs) that yields the (example, prediction) pairs
            unchanged and writes them to `folder` in the format of the official scorer.
    """

    name: str
    source: Source | None = None
    labels: tuple[str, ...] = ()
    metric: Metric = accuracy
    best_metric: str = "accuracy"
    max_length: int = 128
    export: Export | None = None

    head: ClassVar[str]
    """The name of the model head that the task needs."""
    label_kind: ClassVar[LabelKind]
    """The kind of labels, which determines how the arrays of features and batches store labels."""
    unwritten: ClassVar[str] = ""
    """The key of predictions that is only for `score` and not written; "": there is none."""
    problem_type: ClassVar[str | None] = None
    """The `problem_type` in config.json, by which transformers chooses the loss of a classifier;
    None if config.json has no `problem_type`."""

    @abc.abstractmethod
    def features(
        self, example: Example, tokenizer: Tokenizer, max_length: int
    ) -> Sequence[Feature]:
        """Encodes an example as features, each with the token ids and labels of a model input.

        A long text that is read in windows has one feature per window, any other example one.
        `max_length` is the maximum number of tokens per feature.

        Raises:
            ValueError: the label is unknown or a text is empty; the message names the row.
        """

    @abc.abstractmethod
    def predict(
        self, example: Example, features: Sequence[Feature], outputs: Sequence[Outputs]
    ) -> Prediction:
        """Converts the model's outputs for each of the features of an example to a prediction."""

    def score(self, pairs: Pairs) -> dict[str, float]:
        """Computes the metrics of the labelled examples, as fractions; {} if none is labelled."""
        labelled = [(e.label, self.predicted_label(p)) for e, p in pairs if e.label is not None]
        return self.metric(*zip(*labelled, strict=True)) if labelled else {}

    def metric_names(self) -> list[str]:
        """Returns the names of the metrics that `score` computes."""
        first = self.labels[0] if self.labels else ""
        examples: dict[LabelKind, Any] = {
            "classes": first,
            "multi_label": (first,),
            "regression": 1.0,
            "tokens": (first,),
            "choice": 0,
        }
        return [*self.metric([examples[self.label_kind]], [examples[self.label_kind]])]

    def predicted_label(self, prediction: Prediction) -> Any:
        """Returns the part of a prediction that the metric compares with the label."""
        return prediction["label"]

    @property
    def data(self) -> Source:
        """The source of a task that has one."""
        assert self.source is not None
        return self.source

    @property
    def reads_windows(self) -> bool:
        """Whether texts of more than `max_length` tokens are read in windows, and not truncated."""
        return False

    @property
    def head_fields(self) -> Mapping[str, Any]:
        """The settings of the model's head that the task changes, {name of a field: value}."""
        return {}

    @property
    def sequences_per_example(self) -> int:
        """The number of sequences of a feature of the train split; 1, except for several texts."""
        return 1

    def features_to_predict(
        self, example: Example, tokenizer: Tokenizer, max_length: int
    ) -> Sequence[Feature]:
        """Encodes an example for `predict`; as `features` does, unless a task overrides this."""
        return self.features(example, tokenizer, max_length)

    @property
    def num_labels(self) -> int | None:
        """The number of classes; None for tasks without classes, such as multiple choice."""
        return len(self.labels) or None

    def write_predictions(
        self, folder: Path, split: str, pairs: Pairs
    ) -> Iterator[tuple[Example, Prediction]]:
        """Yields (example, prediction) pairs unchanged; writes predictions to folder/SPLIT.jsonl.

        If the example is a row of a user's file, "input" holds the columns of the row. If the task
        has a function `export`, it writes further files for the official scorer.
        """
        path = folder / f"{split}.jsonl"
        if self.export is not None:
            pairs = self.export(folder, split, pairs)
        with writing(path) as temporary, temporary.open("x", encoding="utf-8") as lines:
            for example, prediction in pairs:
                given = {"input": dict(example.row)} if example.row else {}
                line = {"id": example.id, **given, **prediction}
                line.pop(self.unwritten, None)
                lines.write(json.dumps(line, ensure_ascii=False) + "\n")
                yield example, prediction

    def hf_config(self) -> dict[str, Any]:
        """Returns the fields of config.json that describe the task: labels and problem_type."""
        if self.num_labels is None:
            return {}
        labels = self.labels or ("LABEL_0",)
        fields: dict[str, Any] = {
            "id2label": {str(i): label for i, label in enumerate(labels)},
            "label2id": {label: i for i, label in enumerate(labels)},
        }
        return fields | ({"problem_type": self.problem_type} if self.problem_type else {})

    def description(self, max_length: int) -> dict[str, Any]:
        """Returns the content of task.json, from which `bertjax.predict` restores the task."""
        return {"task": self.name, "label_kind": self.label_kind, "max_length": max_length}

    def label_id(self, label: Any, where: str) -> int:
        """Returns the index of a class in `labels`; others raise ValueError that names `where`."""
        try:
            return self.labels.index(label)
        except ValueError:
            raise ValueError(
                f"{where}: label {label!r} does not occur in training. The labels of {self.name} "
                f"are {', '.join(self.labels)[:300]}. Correct the row, or train with examples of "
                "this label."
            ) from None


class TruncatedTexts:
    """Counts the examples that may be truncated to `max_length`; none if windows are read."""

    def __init__(self, task: Task, max_length: int):
        self._can_read_windows = hasattr(task, "doc_stride")
        self._is_windowed = task.reads_windows
        self._max_length = max_length
        self._count, self._first = 0, ""

    def add(self, example: Example, features: Sequence[Feature]) -> None:
        """Counts `example`, encoded as `features`, if it has the maximum length."""
        longest = max((max(feature.lengths) for feature in features), default=0)
        if longest >= self._max_length and not self._is_windowed:
            self._count += 1
            self._first = self._first or example.where

    @property
    def message(self) -> str:
        """A sentence with the number of counted examples and the row of the first; "" if none."""
        if not self._count:
            return ""
        remedy = " (--doc_stride reads them in windows)" if self._can_read_windows else ""
        return (
            f"{self._count:,} texts have max_length={self._max_length} tokens or more, and longer "
            f"ones are truncated{remedy}. The first of these texts: {self._first}"
        )
