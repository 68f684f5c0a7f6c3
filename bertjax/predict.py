"""python -m bertjax.predict: what a model makes of texts: answers, words for gaps, vectors."""

import contextlib
import dataclasses
import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import jax
from rich.console import Console
from rich.table import Table
from rich.text import Text

from bertjax import command_line
from bertjax.config import MeshConfig
from bertjax.config.finetune_config import SHORTEST
from bertjax.devices import sharding
from bertjax.devices.compilation_cache import use_compilation_cache
from bertjax.inference.embed import Embedder, embed_file
from bertjax.inference.fill_mask import fill_mask
from bertjax.inference.predictor import Predictor
from bertjax.inference.saved_task import load_with_task
from bertjax.tasks import TASKS, Example, Prediction, Task, TaskOptions, check_task, make_task
from bertjax.tasks.prediction_inputs import from_file, from_text
from bertjax.tasks.question_answering import SpanTask
from bertjax.tasks.sources.columns import Columns
from bertjax.weights import load_model

# What to predict, and which other flags then mean something.
_COLUMNS = ("text_column", "pair_column", "label_column", "id_column", "choice_columns")
MODES = {
    "input": (*_COLUMNS, "label_separator", "output", "max_length"),
    "text": ("pair", "output", "max_length"),
    "task": ("data_dir", "tfds_data_dir", "submission", "output", "max_length"),
    "fill_mask": ("top_k",),
    "embed": ("output", "pooling", "layers"),
}
# How a model that answers questions was fine-tuned to read passages and to choose.
SPAN_OPTIONS = ("doc_stride", "max_query_length", "max_answer_length", "null_threshold")


@dataclasses.dataclass(frozen=True, kw_only=True)
class PredictConfig:
    """What to predict, by which model."""

    model: str
    """Model directory, or the workdir of a finished run."""
    input: str | None = None
    """A file to answer: CSV, TSV, JSON lines, a text a line (.txt); SQuAD's JSON; CoNLL's columns.
    The task is in the model directory."""
    text: str | None = None
    """A text to answer, instead of a file; the question, for a model that answers questions."""
    pair: str | None = None
    """Its second text; the passage, for a model that answers questions."""
    task: str | None = None
    """Answer the dev and test splits of this official task, as ax with a model of mnli."""
    data_dir: str | None = None
    """Folder of the task's official files; without it TensorFlow Datasets fetches them."""
    tfds_data_dir: str | None = None
    """Where TensorFlow Datasets keeps its data; its own default if not given."""
    submission: str | None = None
    """GLUE's zip, which the predictions of --task are put in; None: one in --output."""
    text_column: str | None = None
    """Column of the text, or of the first of two; guessed, and said so, if not given."""
    pair_column: str | None = None
    label_column: str | None = None
    """Column of the label, if there is one: then the metrics are printed, too."""
    label_separator: str | None = None
    """What stands between the labels of an example that may have several."""
    id_column: str | None = None
    choice_columns: tuple[str, ...] = ()
    fill_mask: str | None = None
    """A text with one or several [MASK] (<mask> for RoBERTa's kind); prints the words that fit
    best."""
    top_k: int = 5
    """How many words."""
    embed: str | None = None
    """A file with a text a line; writes a vector for each."""
    output: str | None = None
    """Where to write: JSON lines of --input, .npy or .jsonl of --embed, a folder of --task."""
    max_length: int | None = None
    """Tokens of a sequence at most; None: as the model was fine-tuned."""
    pooling: Literal["mean", "cls"] = "mean"
    """Vector of a text: the mean over its tokens, or that of [CLS]."""
    layers: tuple[int, ...] = (-1,)
    """Hidden states to pool, 0 = embeddings, -1 = the last layer; several are joined."""

    def __post_init__(self):
        if self.top_k < 1:
            raise ValueError(f"top_k={self.top_k}: it must be at least 1.")
        given = [name for name in MODES if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError(
                f"Give one of --input FILE, --text TEXT, --task NAME, --fill_mask TEXT and --embed "
                f"FILE; given: {', '.join(f'--{name}' for name in given) or 'none'}."
            )
        known = ("model", *given, *MODES[given[0]])
        idle = [
            f"--{field.name}"
            for field in dataclasses.fields(self)
            if field.name not in known and getattr(self, field.name) != field.default
        ]
        if idle:
            raise ValueError(
                f"{', '.join(idle)}: without effect beside --{given[0]}, which takes "
                f"{', '.join(f'--{name}' for name in MODES[given[0]])}. Leave it out."
            )

    @property
    def columns(self) -> Columns:
        """The columns of --input."""
        return Columns(
            text=self.text_column,
            pair=self.pair_column,
            label=self.label_column,
            id=self.id_column,
            choices=self.choice_columns,
        )


class _Answers:
    """A model directory ready to answer examples."""

    def __init__(self, config: PredictConfig):
        self._loaded, self.task, self.description = load_with_task(config.model)
        self._max_length = config.max_length or self.task.max_length
        longest = self._loaded.config.max_length
        if not SHORTEST <= self._max_length <= longest:
            raise ValueError(
                f"max_length={self._max_length}: {config.model} reads {SHORTEST} to {longest} "
                "tokens."
            )
        self._params = jax.device_put(self._loaded.params)

    def __call__(
        self, task: Task, examples: Iterable[Example]
    ) -> Iterator[tuple[Example, Prediction]]:
        predictor = Predictor(
            task,
            self._loaded.model,
            self._loaded.tokenizer,
            self._max_length,
            sharding.make_mesh(MeshConfig(data=1), jax.local_devices()[:1]),
        )
        return predictor(self._params, examples)


def answer(config: PredictConfig) -> None:
    """Answers a text, or every example of a file; prints JSON lines or writes them."""
    answers = _Answers(config)
    if config.text is not None:
        task, examples = answers.task, [from_text(answers.task, config.text, config.pair)]
    else:
        task, examples, note = from_file(
            answers.task,
            Path(str(config.input)).expanduser(),
            config.columns,
            config.label_separator,
            answers.description,
        )
        if note:
            print(note, file=sys.stderr)
    with _lines(config.output) as lines:

        def written() -> Iterator[tuple[Example, Prediction]]:
            for example, prediction in answers(task, examples):
                line = {"id": example.id, **prediction}
                print(json.dumps(line, ensure_ascii=False), file=lines)
                yield example, prediction

        scores = task.score(written())
    if scores:
        print(json.dumps(scores), file=sys.stderr)


@contextlib.contextmanager
def _lines(output: str | None) -> Iterator[Any]:
    """Standard output, or a file that gets its name when it is whole."""
    if output is None:
        yield sys.stdout
        return
    beside = Path(output + ".writing")
    with beside.open("w", encoding="utf-8") as lines:
        yield lines
    beside.replace(output)
    print(f"predictions written to {output}")


def answer_task(config: PredictConfig) -> None:
    """Answers the dev and test splits of an official task; writes what its scorer reads.

    Raises:
        ValueError: the model's labels are not the task's.
    """
    check_task(str(config.task))
    if TASKS[str(config.task)].own_files:
        raise ValueError(f"--task={config.task} has no official files: give yours by --input.")
    answers = _Answers(config)
    own = answers.task
    options = TaskOptions(
        data_dir=config.data_dir,
        tfds_data_dir=config.tfds_data_dir,
        submission=config.submission,
        span_options={key: getattr(own, key) for key in SPAN_OPTIONS}
        if isinstance(own, SpanTask) and SpanTask in TASKS[str(config.task)].kinds
        else {},
    )
    task = make_task(str(config.task), options)
    if task.head != answers.task.head or set(task.labels) != set(answers.task.labels):
        raise ValueError(
            f"--task={task.name} has the labels {list(task.labels)}, {config.model} answers "
            f"{list(answers.task.labels)} ({answers.task.name}): they do not fit together."
        )
    task = dataclasses.replace(task, labels=answers.task.labels)
    folder = Path(config.output or f"predictions/{task.name}")
    folder.mkdir(parents=True, exist_ok=True)
    assert task.source is not None
    for split in task.source.splits:
        if split != "train":
            pairs = answers(task, task.source.examples(split))
            scores = task.score(task.write_predictions(folder, split, pairs))
            print(json.dumps({"split": split, **scores}))
    print(f"predictions written to {folder}")


def run(config: PredictConfig) -> None:
    """Prints answers or words, or writes answers or a vector for each line.

    Raises:
        ValueError: the model does not do what is asked for, or the input is damaged.
    """
    use_compilation_cache()
    if config.fill_mask is not None:
        loaded = load_model(config.model, "masked_lm")
        words = fill_mask(loaded, config.fill_mask, config.top_k)
        _print_words(words, loaded.tokenizer.layout.special_tokens.mask)
    elif config.embed is not None:
        if config.output is None:
            raise ValueError("--embed needs --output FILE.npy or FILE.jsonl.")
        embedder = Embedder(load_model(config.model, "encoder"), config.pooling, config.layers)
        count = embed_file(embedder, Path(config.embed), Path(config.output))
        print(f"{count:,} vectors of {embedder.size} written to {config.output}")
    elif config.task is not None:
        answer_task(config)
    else:
        answer(config)


def _print_words(answers: list[list[tuple[str, float]]], mask: str) -> None:
    console = Console()
    for index, words in enumerate(answers):
        table = Table("word", "probability", title=Text(f"{mask} {index + 1}"))
        for word, probability in words:
            table.add_row(Text(word), f"{probability:.4f}")
        console.print(table)


def parse(argv: Sequence[str] | None = None) -> PredictConfig:
    """Reads the flags."""
    return command_line.parse(
        PredictConfig,
        argv,
        prog="python -m bertjax.predict",
        description="Answers texts with a fine-tuned model, fills the masks of a text, or writes "
        "vectors of texts.",
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Reads the flags and runs."""
    return command_line.run_reporting_errors(lambda: run(parse(argv)))


if __name__ == "__main__":
    sys.exit(main())
