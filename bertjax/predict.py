"""Inference with `python -m bertjax.predict`: predictions, mask filling and embeddings."""

import dataclasses
import itertools
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from bertjax.base import command_line, printable, signals
from bertjax.base.files import brief, naming_write_errors
from bertjax.config.model import Pooling

if TYPE_CHECKING:
    from bertjax.inference.evaluation import TrainingOverlap
    from bertjax.inference.pretrained import Pretrained
    from bertjax.tasks.sources.columns import Columns
    from bertjax.weights import LoadedModel

# Maps each flag that selects a kind of inference to the flags that it can be combined with.
MODES = {
    "input": (
        *("text_column", "pair_column", "label_column", "id_column", "choice_columns"),
        *("label_separator", "output", "spreadsheet_safe", "max_length", "doc_stride"),
    ),
    "text": ("pair", "output", "max_length", "doc_stride"),
    "task": ("data_dir", "tfds_data_dir", "submission", "output", "max_length", "doc_stride"),
    "fill_mask": ("top_k", "html"),
    "embed": (
        *("text_column", "output", "pooling", "prompt", "normalize", "layers"),
        *("truncate_dim", "max_length"),
    ),
    "retrieval_dir": (
        *("id_column", "keep_same_id", "output"),
        *("pooling", "normalize", "layers", "truncate_dim", "max_length"),
    ),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class PredictConfig:
    """Config of `bertjax.predict`: the model, the input and the kind of inference.

    Raises:
        ValueError: not exactly one kind of input is set, a set flag has no effect with this input,
            or `top_k` is below 1.
    """

    GROUPS: ClassVar[dict[str, str]] = {
        "data": "input text pair task fill_mask embed retrieval_dir data_dir tfds_data_dir "
        "text_column pair_column label_column id_column choice_columns label_separator "
        "keep_same_id",
        "model": "model max_length doc_stride pooling prompt normalize layers truncate_dim top_k",
        "output": "output spreadsheet_safe html submission",
    }

    model: str
    """Model: a directory, the workdir of a pretraining or of a finished fine-tuning, a TF1
    checkpoint, a hub name, or bertjax:tiny, a small model that comes with bertjax."""
    input: str | None = None
    """File or folder of examples to predict, in a format of the model's task: CSV, TSV, JSON, JSON
    lines, Parquet, .txt with one text per line, SQuAD's JSON or, in tagging, CoNLL's columns (also
    as .txt). All but Parquet may be compressed. None: the input is that of --text, --task,
    --fill_mask, --embed or --retrieval_dir; - reads standard input: JSON if it begins with { or
    [{, else one text per line."""
    text: str | None = None
    """Single text to predict (not for multiple choice); for question answering, the question; None:
    the input is that of another flag (see --input)."""
    pair: str | None = None
    """Second text of a pair whose first text is --text; for question answering, the passage, which
    is required; None: --text is a single text."""
    task: str | None = None
    """Benchmark task whose dev and test splits (squad, squad2: dev; ax: test) are predicted: cola,
    sst2, mrpc, stsb, qqp, mnli, qnli, rte, wnli, ax, squad, squad2, swag or conll; its labels must
    be those of the model, such as ax with an MNLI model; None: the input is that of another flag
    (see --input)."""
    data_dir: str | None = None
    """Folder with the official files of --task; None: the data is downloaded from the Hugging Face
    hub, unless TensorFlow Datasets has prepared it."""
    tfds_data_dir: str | None = None
    """Data folder of TensorFlow Datasets, which prepares the task there if necessary; None: the
    default folder of TensorFlow Datasets, which is used only if it has the task already."""
    submission: str | None = None
    """Zip file to upload to GLUE's server, to which the predictions of --task are added; None: the
    file submission.zip in the folder of the predictions."""
    text_column: str | None = None
    """Column of the text, of the first text of a pair or, in tagging, of the words or the running
    text (in files with a word per line, its number, from 1); not for question answering, whose
    columns are named as in SQuAD; None: with --input, the column used in fine-tuning, provided that
    the file has all text columns of the fine-tuning; otherwise, and with --embed, a column is
    guessed from the names, and the guess is printed."""
    pair_column: str | None = None
    """Column of the second text of a pair or, in multiple choice, of a text that is put before
    every choice; None: chosen as for --text_column, if the input has such a column."""
    label_column: str | None = None
    """Column of the labels, with which the predictions are compared to compute metrics (in files
    with a word per line, its number, from 1; -1: the last); None: the column used in fine-tuning;
    if the file lacks a text column of the fine-tuning, a column with a usual name, such as label or
    score. If --input has no labels, no metrics are computed."""
    label_separator: str | None = None
    """String that separates the labels of an example with several labels; None: the separator used
    in fine-tuning, if any."""
    id_column: str | None = None
    """Column of the example ids, which the predictions contain; None: the id column used in
    fine-tuning, else a column with a usual name, such as id or idx. If --input has no ids, the
    examples are numbered from 0. With --retrieval_dir, the column of the ids of passages, of
    queries, or of both; None: _id, else the only one with a usual name, such as id or docid."""
    choice_columns: tuple[str, ...] = ()
    """Columns of the choices in multiple choice, or of the candidates to rerank, or the one column
    with lists of them; empty: chosen as for --text_column."""
    fill_mask: str | None = None
    """Text with one or more [MASK] tokens (`<mask>` for RoBERTa); the most probable tokens for each
    mask are printed; None: the input is that of another flag (see --input)."""
    top_k: int = 5
    """Number of tokens to print per mask of --fill_mask."""
    embed: str | None = None
    """File with one text per line, or table (CSV, TSV, JSON, Parquet) with a column of texts; the
    embedding of each text is written to --output; None: the input is that of another flag (see
    --input)."""
    retrieval_dir: str | None = None
    """Folder of a collection in BEIR's files, corpus.jsonl, queries.jsonl and qrels/test.tsv: the
    passages are ranked by the model's embeddings, and nDCG@10, MRR@10 and recall@100 are printed;
    the flags of --embed apply; None: the input is that of another flag (see --input)."""
    keep_same_id: bool = False
    """Whether --retrieval_dir ranks the passage that has the id of the query; off, as in BEIR,
    where such a passage is the query itself."""
    output: str | None = None
    """Output: a .jsonl, .json, .csv, .tsv or .parquet file for --input and --text, which has the
    columns of the input, too; an .npy, .jsonl or .parquet file for --embed, with the vectors in the
    order of the texts (in .parquet, the texts as well); a run file of TREC with the ranking for
    --retrieval_dir; a folder for --task; None: standard output for --input and --text, the folder
    predictions/TASK for --task; --embed requires it."""
    spreadsheet_safe: bool = False
    """Whether texts in a .csv or .tsv that begin with =, +, -, @, a tab or a carriage return, which
    spreadsheets would take as formulas, get a ' in front; off, so that texts stay as they are."""
    html: str | None = None
    """Page to write for --fill_mask, a file that ends in .html and needs neither a network nor
    other files: the tokens of the text, and the most probable tokens for each mask as bars; None:
    the tokens are only printed."""
    max_length: int | None = None
    """Maximum number of tokens per sequence; None: the value used in fine-tuning (for a model that
    another library fine-tuned, the maximum length of the model; question answering: 384); with
    --embed, the value in the files of sentence-transformers in --model, or the maximum length of
    the model if there are no such files or --pooling is given."""
    doc_stride: int | None = None
    """Maximum number of tokens between the starts of two consecutive windows of a text of more than
    max_length tokens; None: as in fine-tuning (for a classifier that was fine-tuned on truncated
    texts, they are truncated here, too)."""
    pooling: Pooling | None = None
    """How --embed computes the embedding of a text from the hidden states of its tokens: their
    mean, the one of [CLS] (cls), and so on, with the names of sentence-transformers; None: as the
    files of sentence-transformers in --model say, with all of their modules and prompts, or mean if
    there are none."""
    prompt: str | None = None
    """What --embed puts before each text: the name of a prompt in the files of
    sentence-transformers in --model, such as query or document, or a text; None: the default prompt
    of these files, if there is one and --pooling is not given."""
    normalize: bool | None = None
    """Whether --embed divides each vector by its Euclidean length; None: as the files of
    sentence-transformers in --model say, or False if there are none or --pooling is given."""
    layers: tuple[int, ...] = (-1,)
    """Layers whose hidden states --embed uses: 0 = embeddings, -1 = last layer; hidden states of
    several layers are concatenated."""
    truncate_dim: int | None = None
    """Number of dimensions that --embed keeps of each vector, the first ones, before it is
    normalised, for models trained with --matryoshka; None: as the files of sentence-transformers
    in --model say, or all."""

    def __post_init__(self):
        if self.top_k < 1:
            raise ValueError(f"top_k={self.top_k}: it must be at least 1.")
        if self.html is not None and not self.html.lower().endswith((".html", ".htm")):
            raise ValueError(f"--html {self.html}: the file must end in .html.")
        modes = [name for name in MODES if getattr(self, name) is not None]
        if len(modes) != 1:
            raise ValueError(
                f"Give one of {', '.join(f'--{name}' for name in MODES)}; given: "
                f"{', '.join(f'--{name}' for name in modes) or 'none'}."
            )
        known = ("model", *modes, *MODES[modes[0]])
        idle = [
            f"--{field.name}"
            for field in dataclasses.fields(self)
            if field.name not in known and getattr(self, field.name) != field.default
        ]
        if idle:
            raise ValueError(
                f"{', '.join(idle)}: without effect with --{modes[0]}, which takes "
                f"{', '.join(f'--{name}' for name in MODES[modes[0]])}. Leave it out."
            )

    @property
    def columns(self) -> "Columns":
        """The column names of --input that are set by flags."""
        from bertjax.tasks.sources.columns import Columns

        single = {name: getattr(self, f"{name}_column") for name in ("text", "pair", "label", "id")}
        return Columns(**single, choices=self.choice_columns)


def _loaded(config: PredictConfig, head: str | None) -> "Pretrained":
    from bertjax.inference.pretrained import Pretrained
    from bertjax.weights import load_model

    return Pretrained(load_model(config.model, head))


def predict_file(config: PredictConfig) -> None:
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
    from bertjax.inference.output_files import (
        PredictionWriter,
        check_suffix,
        prediction_lines,
    )
    from bertjax.inference.pretrained import from_text

    if config.output is not None:
        check_suffix(config.output)
    model = _loaded(config, None)
    task, overlap = model.task_with(config.max_length, config.doc_stride), None
    if config.text is not None:
        examples = [from_text(task, config.text, config.pair)]
    else:
        path, separator = str(config.input), config.label_separator
        task, examples, note = from_file(
            task, path, config.columns, separator, model.description, "report"
        )
        if note:
            print(note, file=sys.stderr)
        overlap = TrainingOverlap(model, path)
        examples = overlap.observe(task, examples)
    writer = PredictionWriter(model.predictions, config.input, config.output)
    settings = {**dataclasses.asdict(config), "output": None}
    with prediction_lines(config.output, config.input, model.identity, settings) as lines:
        scores = task.score(writer(task, iter(examples), lines))
    notes = task.source.change_notes() if task.source is not None else []
    for message in (*writer.messages(scored=bool(scores)), *notes):
        print(message, file=sys.stderr)
    if config.output is not None:
        print(f"predictions written to {config.output}")
    if scores:
        if overlap is not None and overlap.repeated:
            print(_warning(overlap), file=sys.stderr)
        print(scores_text(scores) if sys.stderr.isatty() else json.dumps(scores), file=sys.stderr)
    writer.check()


def scores_text(scores: Mapping[str, float]) -> str:
    """Returns scores as a line of text: "accuracy 96.25 %, macro F1 95.90 %"."""
    from bertjax.record.labels import label, number
    from bertjax.tasks.metrics import is_fraction

    values = (
        (key, f"{100 * x:.2f} %" if is_fraction(key) else number(x)) for key, x in scores.items()
    )
    return ", ".join(f"{label(key)} {value}" for key, value in values)


def _warning(overlap: "TrainingOverlap") -> str:
    """Returns a warning that examples are scored with which the model was fine-tuned."""
    text = (
        f"warning: {overlap.repeated:,} of the {overlap.labelled:,} examples are in "
        f"{overlap.train}, with which the model was fine-tuned, so that the scores are better than "
        "those of new texts would be."
    )
    if overlap.held_out:
        text += f" On the examples held out from the training: {scores_text(overlap.held_out)}."
    return text


def predict_task(config: PredictConfig) -> None:
    """Predicts all splits of a benchmark task except train; writes predictions, prints metrics.

    Raises:
        ValueError: the task is unknown or reads the user's own files, or the model has another head
            or other labels than the task.
        FileNotFoundError: the data of the task does not exist.
    """
    from bertjax.base.outputs import check_replaceable
    from bertjax.inference.evaluation import official_task
    from bertjax.tasks import TaskOptions

    model = _loaded(config, None)
    options = TaskOptions(
        data_dir=config.data_dir, tfds_data_dir=config.tfds_data_dir, submission=config.submission
    )
    limits = config.max_length, config.doc_stride
    task = official_task(model, str(config.task), options, *limits)
    folder = Path(config.output or f"predictions/{task.name}")
    source = task.data
    for split in source.splits:
        check_replaceable("--output", folder / f"{split}.jsonl")
    with naming_write_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    for split in source.splits:
        if split != "train":
            count, pairs = itertools.count(), model.predictions(task, source.examples(split))
            predictions = (pair for pair, _ in zip(pairs, count, strict=False))
            scores = task.score(task.write_predictions(folder, split, predictions))
            print(json.dumps({"split": split, "examples": next(count), **scores}))
    print(f"predictions written to {folder}")


def search_collection(config: PredictConfig) -> None:
    """Ranks the passages of --retrieval_dir, writes the ranking to --output, prints the metrics."""
    from bertjax.inference.retrieval import Collection, embedders, write_ranking

    options = {name: getattr(config, name) for name in MODES["retrieval_dir"]}
    ids = {name: options.pop(name) for name in ("id_column", "keep_same_id")}
    collection = Collection(str(config.retrieval_dir), "test", **ids)
    model, output = _loaded(config, "encoder"), options.pop("output")
    embed = embedders(model.loaded, **options)
    if (similarity := embed["query"].similarity) not in ("cosine", "dot"):
        raise ValueError(f"{config.model} has similarity_fn_name={similarity}: give --pooling.")
    ranking = collection.rank(embed, cosine=similarity == "cosine")
    if output is not None:
        write_ranking(ranking, Path(output))
    print(json.dumps(collection.score(ranking)))


def run(config: PredictConfig) -> None:
    """Predicts, fills masks or embeds, as the config says; prints or writes the results.

    Raises:
        ValueError: the model lacks the required head, the input cannot be read, or a flag has a
            value that the model or the input does not support.
    """
    from bertjax.base.outputs import check_paths
    from bertjax.cloud.copies import local_copy
    from bertjax.devices.compilation import start_jax
    from bertjax.inference.embed import Embedder, embed_file
    from bertjax.inference.fill_mask import fill_mask
    from bertjax.inference.output_files import standard_input_as_file
    from bertjax.weights import load_model

    check_paths(config)
    start_jax()
    given = [name for name in ("input", "embed") if getattr(config, name) is not None]
    copies = {name: str(local_copy(getattr(config, name))) for name in given}
    config = dataclasses.replace(config, **copies)
    if config.fill_mask is not None:
        loaded = load_model(config.model, "masked_lm")
        words = fill_mask(loaded, config.fill_mask, config.top_k)
        _print_words(words, loaded.tokenizer.layout.special_tokens.mask)
        if config.html is not None:
            _write_words(config, loaded)
    elif config.embed is not None:
        if config.output is None:
            raise ValueError("--embed needs --output FILE.npy, FILE.jsonl or FILE.parquet.")
        model = _loaded(config, "encoder")
        embedder = Embedder(
            model.loaded,
            config.pooling,
            config.layers,
            normalize=config.normalize,
            max_length=config.max_length,
            truncate_dim=config.truncate_dim,
            prompt=config.prompt,
        )
        source, output = Path(config.embed), Path(config.output)
        count = embed_file(embedder, source, output, config.text_column, model=model.identity)
        print(f"{count:,} vectors of dimension {embedder.size} written to {config.output}")
    elif config.retrieval_dir is not None:
        search_collection(config)
    elif config.task is not None:
        predict_task(config)
    elif config.input == "-":
        with standard_input_as_file() as path:
            predict_file(dataclasses.replace(config, input=str(path)))
    else:
        predict_file(config)


def _write_words(config: PredictConfig, loaded: "LoadedModel") -> None:
    """Writes the page of --html."""
    from bertjax.base.files import write_text
    from bertjax.inference.fill_mask import encoded, model_name, text_view
    from bertjax.pages.templates import fill

    ids, types = encoded(loaded, str(config.fill_mask), None)
    view = text_view(loaded, ids, types, top_k=config.top_k)
    page = fill("fill_mask.html", view | {"model": model_name(config.model)})
    write_text(Path(str(config.html)), page)
    print(f"page written to {config.html}, which any browser opens")


def _print_words(answers: list[list[tuple[str, float]]], mask: str) -> None:
    from rich.table import Table
    from rich.text import Text

    console = printable.console()
    for index, words in enumerate(answers):
        table = Table("word", "probability", title=Text(f"{mask} {index + 1}"))
        for word, probability in words:
            table.add_row(Text(brief(word)), f"{probability:.4f}")
        console.print(table)


def parse(argv: Sequence[str] | None = None) -> PredictConfig:
    """Parses the command-line flags.

    Raises:
        SystemExit: a flag is unknown or has a wrong value, or --help was requested.
    """
    _refuse_several_texts(command_line.arguments(argv))
    return command_line.parse(
        PredictConfig,
        argv,
        command="predict",
        description="Predicts with a fine-tuned model, fills the masks of a text, or computes "
        "embeddings of texts. Exactly one of --input, --text, --task, --fill_mask, --embed and "
        "--retrieval_dir is required.",
    )


def _refuse_several_texts(words: Sequence[str]) -> None:
    """Ends the process if --text, which takes one text, has several or is given several times."""
    given = 0
    for index, word in enumerate(words):
        name, equals, _ = word.partition("=")
        following = itertools.takewhile(lambda x: not x.startswith("--"), words[index + 1 :])
        given += len(list(following)) + len(equals) if name == "--text" else 0
        if given > 1:
            command_line.refuse(
                f"--text takes one text, but {given} were given: put a text with spaces in quotes; "
                "for several texts, write one per line to a .txt file and give it with --input."
            )


def main(argv: Sequence[str] | None = None) -> int:
    """Parses the flags and runs the command; returns the exit status."""
    return signals.run_reporting_errors(
        lambda: run(parse(argv)), "Use a smaller --max_length or a smaller model."
    )


if __name__ == "__main__":
    signals.leave(main())
