"""Text embeddings: one vector per text, pooled from the hidden states of the encoder."""

import abc
import contextlib
import dataclasses
import json
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import jax
import numpy as np

import bertjax
from bertjax.base.checked import Count, check
from bertjax.base.files import writing
from bertjax.base.progress import Progress, progress
from bertjax.config.model import Pooling
from bertjax.data.batches.batch import Feature
from bertjax.inference.output_files import (
    PartialVectors,
    continued,
    file_identity,
)
from bertjax.inference.predictor import (
    Layout,
    Piece,
    Program,
    compiled_program,
    for_inference,
    inference_params,
    packed_pieces,
    read_behind,
)
from bertjax.model import BertWithHead
from bertjax.model.embedding_losses import unit
from bertjax.model.sentence_embedding import BertForSentenceEmbedding
from bertjax.tasks import Task
from bertjax.tasks.embedding import EmbeddingTask, lower_cased, prompt_length
from bertjax.tasks.late_interaction import LateInteractionTask
from bertjax.tasks.sources.columns import Columns, TableKind, find_columns
from bertjax.tasks.sources.data_files import (
    NAMED_COLUMNS,
    TSV_SUFFIXES,
    open_text,
    row_name,
    suffix_of,
)
from bertjax.tasks.sources.tables import Table
from bertjax.tasks.sparse import SparseTask
from bertjax.weights import LoadedModel
from bertjax.weights.late_interaction import check_expansion, fields_of, with_options
from bertjax.weights.sentence_transformers import LENGTHS, Read, SentenceModules
from bertjax.weights.sparse_modules import NO_FILES, following_sparse

ROLES = ("query", "document")
Head = TypeVar("Head", bound=BertWithHead)


class Encoder(abc.ABC):
    """Base class of what encodes texts by a loaded model: an `Embedder`, and those of other kinds.

    Args:
        loaded: the model, and `modules` are what its files say.
        role: "query" or "document", which may have a length of its own, or None.
        prompt: the name of a prompt, or a text to put before each text; None: the default prompt.
        batch_size: as in `Pretrained.predict`.
        max_length: as the attribute; None: as the files say.

    Attributes:
        max_length: the maximum number of tokens per text.
        prompt: the text before each text.
        program: the compiled program (`compiled_program`).
        similarity: how two texts are compared.
        truncated: the number of texts so far that have `max_length` tokens and may have been
            truncated.
        after_batch: called with the number of texts of each batch that is finished.
        model: the module with the head that computes them.
        tokenizer: the tokenizer of the texts.
        settings: everything besides model and text that determines the result, as JSON values.
        layout: as of `packed_pieces`.

    Raises:
        ValueError: an argument does not fit the model.
    """

    noun = "vectors"  # what an output holds
    layout: Layout = "packed"
    model: BertWithHead

    _params: Any
    program: Program

    def __init__(
        self,
        loaded: LoadedModel,
        modules: SentenceModules,
        *,
        role: str | None,
        prompt: str | None,
        batch_size: int | None,
        max_length: int | None,
    ):
        check("batch_size", batch_size, Count | None)
        check("prompt", prompt, str | None)
        longest = loaded.config.max_length
        if max_length is not None and not 2 <= max_length <= longest:
            raise ValueError(
                f"max_length={max_length}, but {loaded.source.where} reads 2 to {longest} tokens: "
                "choose a value in this range."
            )
        lengths: dict[Any, int | None] = {
            "query": modules.query_length,
            "document": modules.document_length,
        }
        usual = lengths.get(role) or modules.max_length or loaded.max_length
        self.max_length = max_length or min(usual, longest)
        self.similarity = modules.similarity
        self.truncated = 0
        self.after_batch: Callable[[int], None] = lambda count: None
        self._limit = longest
        self._batch_size = batch_size
        self.prompt = modules.prompt(prompt)
        self.tokenizer = loaded.tokenizer
        if modules.lower_case:
            self.tokenizer = lower_cased(self.tokenizer)
        self.settings: dict[str, Any] = {
            "version": bertjax.__version__,
            "modules": [*modules.after_pooling, *map(zlib.crc32, jax.tree.leaves(modules.params))],
            "prompt": [self.prompt, modules.lower_case],
            "device": jax.local_devices()[0].device_kind,
        }

    def __call__(self, texts: Sequence[str]) -> Any:
        """Returns what `of_ids` computes of texts; truncates long texts."""
        rows = self.ids_of(texts, self.max_length)
        self.truncated += sum(len(row) >= self.max_length for row in rows)
        return self.of_ids(rows)

    def ids_of(self, texts: Sequence[str], max_length: int) -> list[list[int]]:
        """Returns the token ids of texts after the prompt, truncated to `max_length` tokens."""
        return self.tokenizer.encode_prompts([self.prompt + x for x in texts], max_length)

    @abc.abstractmethod
    def of_ids(self, rows: Sequence[Sequence[int]]) -> Any:
        """Returns what the encoder computes of token ids, for each of `rows`."""

    def compute_by(self, program: Program) -> None:
        """Computes by a program for rows of one text, which has the parameters itself."""
        self.program = program
        self.layout = "single"
        self._params = None

    def _outputs(
        self, rows: Sequence[Sequence[int]], firsts: Sequence[int] | None = None
    ) -> Iterator[tuple[Piece, Any]]:
        """Yields what the program computes of token ids, in pieces.

        The first tokens of each row, as many as `firsts` says, have the type 0; None: all have.
        """
        features = []
        for row, first in zip(rows, firsts or map(len, rows), strict=True):
            ids = np.asarray(row, np.int32)
            features.append(Feature(ids, (len(ids),), (first,), None))
        pieces = packed_pieces(
            features,
            limit=self._limit,
            pad_token_id=self.tokenizer.pad_token_id,
            batch_size=self._batch_size,
            layout=self.layout,
        )
        started = ((piece, self.program(self._params, piece.batch)) for piece in pieces)
        for piece, outputs in read_behind(started):
            yield piece, outputs
            self.after_batch(len(piece.placements))


@contextlib.contextmanager
def embedding_progress(encoder: Any, total: int) -> Iterator[Progress]:
    """Shows after each batch of an encoder how many of `total` texts it has encoded.

    What the encoder calls after each batch is still called.
    """
    before = encoder.after_batch
    with progress("embedding", total, "texts") as state:

        def after_batch(count: int) -> None:
            state.advance(count)
            before(count)

        encoder.after_batch = after_batch
        try:
            yield state
        finally:
            encoder.after_batch = before


def head_of(loaded: LoadedModel, kind: type[Head], **fields: Any) -> Head:
    """Returns the head of a kind for the encoder of a loaded model."""
    return kind(
        dataclasses.replace(loaded.config, add_pooling_layer=False),
        loaded.model.dtype,
        attention_kernel=loaded.model.attention_kernel,
        **fields,
    )


class Embedder(Encoder):
    """Computes an embedding vector for each text; the head of the model is not used.

    The arguments are as in `Pretrained.embed` and `Encoder`; `size` is the dimension of the
    vectors, `cut` what is done with the outputs of the model, and `prompt_length` the number of
    tokens of the prompt that the pooling leaves out. Raises ValueError if an argument does not fit
    the model, or the files of sentence-transformers cannot be followed and `pooling` is None.
    """

    suffixes = (".npy", ".jsonl", ".parquet")

    def __init__(
        self,
        loaded: LoadedModel,
        pooling: str | None = None,
        layers: Sequence[int] = (-1,),
        batch_size: int | None = None,
        normalize: bool | None = None,
        max_length: int | None = None,
        truncate_dim: int | None = None,
        prompt: str | None = None,
    ):
        modes: Sequence[Any] = [pooling]
        if isinstance(pooling, str):
            modes = pooling.split("+")
        for mode in modes:
            check("pooling", mode, Pooling | None)
        check("normalize", normalize, bool | None)
        check("truncate_dim", truncate_dim, int | None)
        modules = SentenceModules(pooling=pooling or "mean")
        if pooling is None:
            modules = loaded.source.usage.modules.result() or modules
        only_last = _reads_last_layer_only(layers, loaded, modules)
        super().__init__(
            loaded,
            modules,
            role=prompt,
            prompt=prompt,
            batch_size=batch_size,
            max_length=max_length,
        )
        # What sentence-transformers truncates has been normalised before.
        follows = normalize is None and truncate_dim is None
        if normalize is None:
            normalize = modules.normalize
        model = head_of(
            loaded,
            BertForSentenceEmbedding,
            pooling=modules.pooling,
            after_pooling=modules.after_pooling,
            include_prompt=modules.include_prompt,
            hidden_layers=(-1,) if only_last else tuple(layers),
            normalize=follows and normalize,
        )
        if truncate_dim is not None and not 1 <= truncate_dim <= model.size:
            raise ValueError(
                f"truncate_dim={truncate_dim}, but the vectors have {model.size} numbers: choose 1 "
                f"to {model.size}."
            )
        self.size = min(truncate_dim or modules.truncate_dim or model.size, model.size)
        self.prompt_length = 0
        if self.prompt and not modules.include_prompt:
            self.prompt_length = prompt_length(self.tokenizer, self.prompt, self.max_length)
        params = {"bert": loaded.params["bert"]}
        for name, stored in modules.params.items():
            params[name] = loaded.params.get(name, stored)  # as trained, if they were
        self._params = inference_params(params, loaded.model)
        self.model = model
        self.cut = Cut(self.size, normalize and not follows)
        self.program = compiled_program(for_inference(model), self.cut, hidden_states=not only_last)
        self.settings |= {
            "pooling": [modules.pooling, self.prompt_length],
            "layers": list(layers),
            "normalize": [model.normalize, self.cut.normalize],
            "size": self.size,
            "max_length": self.max_length,
        }

    def of_ids(self, rows: Sequence[Sequence[int]]) -> np.ndarray:
        """Returns the embeddings of token ids, float32 [len(rows), size]."""
        vectors = np.empty((len(rows), self.size), np.float32)
        firsts = [self.prompt_length] * len(rows) if self.prompt_length else None
        for piece, outputs in self._outputs(rows, firsts):
            values = np.asarray(outputs["sentence_embedding"])
            for text, place in piece.placements.items():
                vectors[text] = values[place.row, place.slot]
        return vectors

    def partial(self, path: Path) -> PartialVectors:
        """Opens the file of the vectors of a command that may be interrupted."""
        return PartialVectors(path, self.size)

    def finish(self, partial: Path, output: Path, texts: Iterable[str]) -> None:
        """Writes `output` from the complete file of vectors; `texts` are their texts."""
        if output.suffix == ".npy":
            partial.replace(output)
            return
        vectors = np.load(partial, mmap_mode="r")
        with writing(output) as temporary:
            if output.suffix == ".parquet":
                _write_parquet(vectors, temporary, texts)
            else:
                _write_lines(vectors, temporary)
        partial.unlink()


def _reads_last_layer_only(
    layers: Sequence[int], loaded: LoadedModel, modules: SentenceModules
) -> bool:
    """Returns whether `layers` name the last hidden states alone.

    Raises:
        ValueError: the model lacks a layer, or `modules` read no other hidden states.
    """
    check("layers", layers, tuple[int, ...] | list[int] | range)
    count = loaded.config.num_hidden_layers + 1
    if not layers or min(layers) < -count or max(layers) >= count:
        raise ValueError(
            f"layers={list(layers)}: choose from the hidden states {-count} to {count - 1}."
        )
    only_last = tuple(layers) in ((-1,), (count - 1,))
    if modules.after_pooling and not only_last:
        raise ValueError(
            f"layers={list(layers)}: {loaded.source.where} has modules after the pooling, which "
            "read the last hidden states alone: give --pooling to embed without the modules."
        )
    return only_last


class Cut(NamedTuple):
    """Cuts the embeddings of a program to [B, K, size], and perhaps normalises them."""

    size: int
    normalize: bool

    def __call__(self, model: BertWithHead, outputs: dict[str, Any]) -> dict[str, jax.Array]:
        vectors = outputs["sentence_embedding"][..., : self.size]
        if self.normalize:
            vectors = unit(vectors)
        return {"sentence_embedding": vectors}


def following(task: Task, loaded: LoadedModel, foreign: bool = False) -> tuple[Task, LoadedModel]:
    """Makes a task of embeddings and its model follow the files of sentence-transformers.

    Nothing is taken from them if the task sets the pooling. Prompts that the task does not set are
    the prompts "query" and "document" of the files, or if these are empty, the default prompt. A
    `foreign` model, which another library has trained, gets the default prompt for all texts, and
    no lengths of queries and documents, as from `encode` there; not if it has one vector per token.
    The returned model has the prompts of the task in its `usage`.
    """
    if not isinstance(task, EmbeddingTask):
        return task, loaded
    usage = loaded.source.usage
    model: Any = loaded.model
    if isinstance(task, LateInteractionTask):
        modules = with_options(usage.modules, task.options, model)
        check_expansion(modules.tokens.expansion, loaded.config, loaded.tokenizer)
        foreign = False
    else:
        modules = _default_modules(task)
        if not getattr(task.options, "pooling", None):
            read = usage.modules.result() or modules
            if read.head == task.head:
                modules = read
    lengths = {}
    if not foreign:
        lengths = {name: getattr(modules, name) for name in LENGTHS}
    query = prompt_of_role(modules, "query", task.options.query_prompt, foreign)
    document = prompt_of_role(modules, "document", task.options.document_prompt, foreign)
    task = dataclasses.replace(
        task,
        include_prompt=modules.include_prompt,
        lower_case=modules.lower_case,
        similarity=modules.similarity,
        truncate_dim=modules.truncate_dim,
        query_prompt=query,
        document_prompt=document,
        **lengths,
    )
    modules = modules._replace(prompts={**modules.prompts, "query": query, "document": document})
    if isinstance(task, SparseTask):
        task, modules = following_sparse(task, modules, model, loaded.params)
    elif isinstance(task, LateInteractionTask):
        tokens = modules.tokens
        task = dataclasses.replace(task, expansion=tokens.expansion, pooling=tokens.pooling)
        model = model.clone(**fields_of(modules, loaded.tokenizer))
    else:
        model = model.clone(include_prompt=modules.include_prompt)
        modules = modules._replace(pooling=model.pooling, normalize=model.normalize)
    source = loaded.source._replace(usage=usage._replace(modules=Read(modules)))
    return task, loaded._replace(model=model, source=source)


def _default_modules(task: EmbeddingTask) -> SentenceModules:
    if isinstance(task, SparseTask):
        return NO_FILES
    return SentenceModules()


def prompt_of_role(modules: SentenceModules, role: str, prompt: str | None, foreign: bool) -> str:
    """Returns the text before the texts of a role, for the option `prompt` of a task."""
    if prompt is not None:
        return modules.prompt(prompt)
    if foreign:
        return modules.prompt(None)
    return modules.prompts[role] or modules.prompt(None)


# The texts of a file are sorted by length in windows of at most so many texts; a window ends when
# it has so many characters.
WINDOW = 8192
WINDOW_CHARACTERS = 1 << 22
# Number of characters after which a line is cut off; no model reads so many.
LINE_CHARACTERS = 1 << 16


def embed_file(
    embedder: Any,
    source: Path,
    output: Path,
    text_column: str | None = None,
    *,
    model: Sequence[Any] = (),
) -> int:
    """Writes an embedding vector for each text of a file, in order; returns the number of texts.

    The suffix of `output` is the format. Of an `Embedder`, it is `.npy`, an array [texts, size];
    `.jsonl`, one JSON list per line; or `.parquet`, the column "embedding" beside the column
    "text".

    Args:
        embedder: an `Embedder`, or another encoder with its methods.
        source: a table with a column of texts, or else a file with one text per line, in which
            blank lines are texts as well.
        text_column: the column of the texts in a table; None: the column is guessed and printed.
        model: `Pretrained.identity`; vectors of another model are not continued.

    Raises ValueError if `source` cannot be read, and FileNotFoundError if it is no file. After a
    full disk or a kill, `output` has its old content, and the same call continues.
    """
    text_column = text_column_of(source, text_column)
    identity = {
        **embedder.settings,
        "model": model,
        "source": file_identity(source),
        "column": text_column,
    }

    def finish(partial: Path, output: Path) -> None:
        embedder.finish(partial, output, texts_of(source, text_column))

    total = sum(1 for _ in texts_of(source, text_column))
    with (
        continued(output, identity, embedder.partial, finish) as vectors,
        embedding_progress(embedder, total) as state,
    ):
        texts = texts_of(source, text_column)
        count, empty = write_vectors(embedder, texts, vectors, output, state)
    if embedder.truncated:
        print(
            f"{embedder.truncated:,} texts have {embedder.max_length} tokens or more, and longer "
            "ones are truncated."
        )
    if empty:
        print(f"{empty:,} of the {count:,} texts are empty; their vectors represent no words.")
    return count


def write_vectors(
    embedder: Any, texts: Iterable[str], vectors: Any, output: Path, state: Progress
) -> tuple[int, int]:
    """Writes those vectors that `vectors` lacks; returns how many texts there are, and are empty.

    `output` is the name in the message about an interrupted command, and `state` the progress of
    `embedder`.
    """
    done = None
    count = empty = 0
    for window in windows(texts):
        # Only whole windows are kept, because the texts of a window are batched together.
        if done is None and count + len(window) > vectors.done:
            done = _start_at(vectors, count, output)
        if done is None:
            state.total = (state.total or 0) - len(window)
        else:
            vectors.write(embedder(window))
        count += len(window)
        empty += sum(not text.strip() for text in window)
    if done is None:
        _start_at(vectors, count, output)
    vectors.finish(count)
    return count, empty


def _start_at(vectors: Any, count: int, output: Path) -> int:
    vectors.keep(count)
    if count:
        print(f"continuing {output} after {count:,} texts", flush=True)
    return count


def text_column_of(source: Path, text_column: str | None) -> str | None:
    """Returns the column of the texts in a table, which is guessed for None; None: it is no table.

    Raises FileNotFoundError if `source` is no file, and ValueError if no column can be chosen.
    """
    if not source.is_file():
        what = "does not exist"
        if source.is_dir():
            what = "is a folder"
        raise FileNotFoundError(
            f"{source} {what}: --input takes one file, a table or one text per line."
        )
    if suffix_of(source) not in (*NAMED_COLUMNS, *TSV_SUFFIXES):
        if text_column is not None:
            raise ValueError(f"{source} has one text per line: leave --text_column out.")
        return None
    columns, note = find_columns(
        Table(source), TableKind("embed"), Columns(text=text_column), labelled=False, pairs=False
    )
    if text_column is not None:
        return columns.text
    if columns.pair is not None:
        raise ValueError(
            f"{source} has two columns of texts, {columns.text!r} and {columns.pair!r}: name one "
            "with --text_column."
        )
    if note:
        print(f"{source.name}: texts from column {columns.text!r}; give --text_column for another")
    return columns.text


def texts_of(source: Path, text_column: str | None) -> Iterator[str]:
    """Yields the texts of a file in order, each cut to its first LINE_CHARACTERS characters."""
    if text_column is None:
        yield from _lines(source)
        return
    for number, row in Table(source).rows():
        text = row.get(text_column)
        if not isinstance(text, str | None):
            raise ValueError(
                f"{row_name(source, number)}: {text_column!r} should be a text, but is a "
                f"{type(text).__name__}. Correct the row."
            )
        yield (text or "")[:LINE_CHARACTERS]


def _lines(source: Path) -> Iterator[str]:
    with open_text(source, newline=None, errors="strict") as file:
        try:
            while line := file.readline(LINE_CHARACTERS):
                yield line.rstrip("\n")
                while line and not line.endswith("\n"):
                    line = file.readline(LINE_CHARACTERS)
        except UnicodeDecodeError as error:
            raise ValueError(
                f"{source} is not UTF-8 ({error.reason}): convert the file to UTF-8."
            ) from error


def windows(texts: Iterable[str]) -> Iterator[list[str]]:
    """Yields the texts in lists of at most `WINDOW` texts and about `WINDOW_CHARACTERS`."""
    window: list[str] = []
    characters = 0
    for text in texts:
        window.append(text)
        characters += len(text)
        if len(window) == WINDOW or characters >= WINDOW_CHARACTERS:
            yield window
            window = []
            characters = 0
    if window:
        yield window


def _write_lines(vectors: np.ndarray, output: Path) -> None:
    with output.open("x", encoding="utf-8") as file:
        for vector in vectors:
            file.write(json.dumps(vector.tolist()) + "\n")


def _write_parquet(vectors: np.ndarray, output: Path, texts: Iterable[str]) -> None:
    import pyarrow
    import pyarrow.parquet

    size = vectors.shape[1]
    kind = pyarrow.list_(pyarrow.float32(), size)
    schema = pyarrow.schema([("text", pyarrow.string()), ("embedding", kind)])
    start = 0
    with pyarrow.parquet.ParquetWriter(output, schema) as writer:
        for window in windows(texts):
            end = start + len(window)
            numbers = pyarrow.array(np.asarray(vectors[start:end]).ravel())
            embedding = pyarrow.FixedSizeListArray.from_arrays(numbers, size)
            columns = [pyarrow.array(window, pyarrow.string()), embedding]
            writer.write_table(pyarrow.Table.from_arrays(columns, schema=schema))
            start = end
