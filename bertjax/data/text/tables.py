"""Reads text from Parquet files and TensorFlow Datasets.

A dataset that TensorFlow Datasets has already prepared as ArrayRecord is read without TensorFlow.
"""

import contextlib
import importlib.util
import os
import re
import types
from collections.abc import Iterator, Sequence
from typing import Any

from bertjax.base.files import brief, did_you_mean
from bertjax.base.printable import printable_output

ROWS_PER_READ = 256
TFDS_PREFIX = "tfds:"
# Names of the column with the documents in datasets on the Hugging Face Hub.
USUAL_TEXT_COLUMNS = ("text", "content", "document", "body", "article", "raw_content")
# Maximum size of the strings and lists in the footer of a Parquet file, which describes its data.
MAX_FOOTER_BYTES = 1 << 24
# Arrow's file format begins with these bytes; its stream format, which `datasets` writes, does not.
ARROW_SUFFIX = ".arrow"
ARROW_MAGIC = b"ARROW1"


def read_parquet(path: str, text_field: str) -> Iterator[str | None]:
    """Yields the values of the text column `text_field` of a Parquet file; a missing one is None.

    Raises ValueError if the file has no such text column, or is damaged.
    """
    with open_parquet(path) as file:
        texts = _text_columns(file)
        if text_field not in texts:
            raise ValueError(
                f"{path} has no text column {text_field!r}. Its text columns: {brief(texts)}. "
                "Name one with --text_field."
            )
        for rows in parquet_batches(path, file, [text_field]):
            yield from (field_of(row, text_field) for row in rows)


def field_of(record: Any, name: str) -> Any:
    """Returns the value of a field of a record, or of a path of fields such as "data.text".

    Raises LookupError if the record has no such field. A part of a path that is null is null.
    """
    if not isinstance(record, dict):
        raise KeyError(name)
    first, _, rest = name.partition(".")
    if name in record or not rest:
        return record[name]
    return record[first] and field_of(record[first], rest)


def text_fields(record: Any, prefix: str = "") -> list[str]:
    """Returns the names and paths, see `field_of`, of the texts in a record."""
    if not isinstance(record, dict):
        if isinstance(record, str | bytes):
            return [prefix[:-1]]
        return []
    return [
        field for name in sorted(record) for field in text_fields(record[name], f"{prefix}{name}.")
    ]


def guess_text_column(path: str) -> str | None:
    """Returns the text column that most likely holds the documents of a Parquet file.

    It is the first of USUAL_TEXT_COLUMNS that the file has, else its only text column, else None.
    Raises ValueError if the file is damaged.
    """
    with open_parquet(path) as file:
        texts = _text_columns(file)
    for name in USUAL_TEXT_COLUMNS:
        if name in texts:
            return name
    return texts[0] if len(texts) == 1 else None


def _text_columns(file: Any) -> list[str]:
    import pyarrow

    def texts(fields: Any, prefix: str = "") -> Iterator[str]:
        for field in fields:
            if pyarrow.types.is_struct(field.type):
                yield from texts(field.type, f"{prefix}{field.name}.")
            elif pyarrow.types.is_string(field.type) or pyarrow.types.is_large_string(field.type):
                yield prefix + field.name

    return list(texts(file.schema_arrow))


def open_parquet(path: str) -> Any:
    """Opens a Parquet file as a `pyarrow.parquet.ParquetFile`, whose checksums are verified.

    A file whose suffix is .arrow has Arrow's file or stream format; the result has the same
    `schema_arrow` and `iter_batches`.

    Raises ValueError if the file is damaged, or has a footer above `MAX_FOOTER_BYTES`.
    """
    import pyarrow.parquet

    with explained_parquet(path):
        if path.lower().endswith(ARROW_SUFFIX):
            return contextlib.nullcontext(_open_arrow(path))
        return pyarrow.parquet.ParquetFile(
            path,
            memory_map=False,
            pre_buffer=False,
            page_checksum_verification=True,
            thrift_string_size_limit=MAX_FOOTER_BYTES,
            thrift_container_size_limit=MAX_FOOTER_BYTES,
        )


def _open_arrow(path: str) -> Any:
    import pyarrow

    file = pyarrow.memory_map(path)
    is_stream = file.read(len(ARROW_MAGIC)) != ARROW_MAGIC
    file.seek(0)
    reader = pyarrow.ipc.open_stream(file) if is_stream else pyarrow.ipc.open_file(file)
    table = reader.read_all()
    table.validate(full=True)  # wrong offsets would read outside of the file
    return types.SimpleNamespace(
        schema_arrow=table.schema,
        iter_batches=lambda batch_size, **_: iter(table.to_batches(batch_size)),
    )


def parquet_batches(
    path: str, file: Any, columns: Sequence[str] | None = None
) -> Iterator[list[dict[str, Any]]]:
    """Yields the rows of `file`, opened from `path`, in lists of up to ROWS_PER_READ dictionaries.

    The keys are `columns`, or all. Raises ValueError if the file is damaged or not UTF-8.
    """
    batches = file.iter_batches(batch_size=ROWS_PER_READ, columns=columns, use_threads=False)
    while True:
        with explained_parquet(path):
            batch = next(batches, None)
        if batch is None:
            return
        try:
            rows = batch.to_pylist()
        except UnicodeDecodeError as error:
            raise ValueError(
                f"{path} has a text that is not UTF-8: {brief(error)}. Convert the file."
            ) from error
        yield rows


@contextlib.contextmanager
def explained_parquet(path: str) -> Iterator[None]:
    """Converts errors of pyarrow, which have many types, to a ValueError that names the file."""
    import pyarrow

    try:
        yield
    except (pyarrow.ArrowException, OSError, ValueError, TypeError, LookupError) as error:
        raise ValueError(
            f"{path} is not a complete Parquet file, or one of Arrow: {brief(error)}. Copy or "
            "download it again."
        ) from error


def is_prepared(name: str) -> bool:
    """Returns whether TFDS has prepared NAME[/CONFIG][:VERSION] in its default folder."""
    from tensorflow_datasets.core import read_only_builder
    from tensorflow_datasets.core.registered import DatasetNotFoundError

    try:
        read_only_builder.builder_from_files(name, data_dir=None)
    except DatasetNotFoundError:
        return False
    return True


def open_tfds_splits(
    name: str,
    data_dir: str | None,
    splits: Sequence[str] | None = None,
    *,
    hint: str = "",
) -> tuple[str, dict[str, Any]]:
    """Opens a TensorFlow Dataset; returns ("tfds:NAME[/CONFIG]/VERSION", {split: data source}).

    A data source is a random-access sequence of examples. A dataset already prepared as ArrayRecord
    is read from its folder. A dataset not yet prepared is first downloaded and prepared, which
    needs TensorFlow for many datasets.

    Args:
        name: the dataset, as `NAME[/CONFIG][:VERSION]`.
        data_dir: folder of prepared TensorFlow Datasets; None: the default of TensorFlow Datasets.
        splits: names of the splits to open; None: all splits.
        hint: text appended to every error message, such as another way to get the data.

    Raises ValueError if the dataset is unknown, cannot be downloaded or read, or must be prepared
    with a package that is not installed, such as TensorFlow.
    """
    import tensorflow_datasets as tfds
    from tensorflow_datasets.core import read_only_builder
    from tensorflow_datasets.core.download.download_manager import NonMatchingChecksumError
    from tensorflow_datasets.core.download.util import DownloadError
    from tensorflow_datasets.core.registered import DatasetNotFoundError

    data_dir = os.path.expanduser(data_dir) if data_dir else None
    try:
        try:
            builder = read_only_builder.builder_from_files(name, data_dir=data_dir)
        except DatasetNotFoundError:
            builder: Any = tfds.builder(name, data_dir=data_dir, file_format="array_record")
            with printable_output(wanted=False):  # its bars move the cursor
                builder.download_and_prepare()
        splits = list(builder.info.splits) if splits is None else splits
        sources = {split: builder.as_data_source(split=split) for split in splits}
    except (ImportError, NotImplementedError, DatasetNotFoundError) as error:
        raise ValueError(_why_unreadable(name, data_dir, error) + hint) from error
    except (OSError, DownloadError, NonMatchingChecksumError) as error:
        raise ValueError(
            f"tfds:{name} cannot be downloaded ({_first_line(error)}): prepare it on a machine "
            f"with network access, and name its folder with --tfds_data_dir.{hint}"
        ) from error
    return f"{TFDS_PREFIX}{builder.info.full_name}", sources


def _why_unreadable(name: str, data_dir: str | None, error: Exception) -> str:
    folder = data_dir or "the default data folder"
    if importlib.util.find_spec("tensorflow") is None or isinstance(error, ImportError):
        # Without TensorFlow many builders cannot even be imported.
        return (
            f"tfds:{name} is not in {folder} as ArrayRecord, and cannot be prepared here "
            f"({_first_line(error)}): install bertjax[tf], or prepare it elsewhere with "
            "tfds build --file_format=array_record and name its folder with --tfds_data_dir."
        )
    import tensorflow_datasets as tfds

    hint = did_you_mean(re.split("[/:]", name)[0], tfds.list_builders())
    return f"tfds:{name} cannot be read from {folder} ({_first_line(error)}). {hint}".rstrip()


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)


def read_tfds(name: str, source: Any, text_field: str) -> Iterator[str]:
    """Yields the text in the field `text_field` of each example of the data source `source`.

    Raises ValueError, which says `name`, if an example has no such text field.
    """
    for index in range(len(source)):
        example = source[index]
        text = None
        with contextlib.suppress(LookupError):
            text = field_of(example, text_field)
        if not isinstance(text, bytes | str):
            raise ValueError(
                f"{name} has no text field {text_field!r}. Its text fields: "
                f"{text_fields(example)}. Name one with --text_field."
            )
        yield text.decode("utf-8", "replace") if isinstance(text, bytes) else text
