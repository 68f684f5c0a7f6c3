"""Documents out of Parquet files and TensorFlow Datasets, without TensorFlow."""

import os
from collections.abc import Iterator
from typing import Any

# One batch of rows is held at a time.
ROWS_PER_READ = 256
TFDS_PREFIX = "tfds:"


def read_parquet(path: str, text_field: str) -> Iterator[str | None]:
    """The text column, a few rows at a time.

    Raises:
        ValueError: there is no such column of text, or the file is damaged.
    """
    import pyarrow
    import pyarrow.parquet

    try:
        file = pyarrow.parquet.ParquetFile(path, memory_map=False, pre_buffer=False)
    except pyarrow.ArrowInvalid as error:
        raise ValueError(f"{path} is not a whole Parquet file: {error}") from error
    with file:
        schema = file.schema_arrow
        texts = [
            field.name
            for field in schema
            if pyarrow.types.is_string(field.type) or pyarrow.types.is_large_string(field.type)
        ]
        if text_field not in texts:
            raise ValueError(
                f"{path} has no column {text_field!r} of text. Columns of text: {texts}. "
                "Name one with --text_field."
            )
        for batch in file.iter_batches(
            batch_size=ROWS_PER_READ, columns=[text_field], use_threads=False
        ):
            try:
                yield from batch.column(0).to_pylist()
            except UnicodeDecodeError as error:
                raise ValueError(f"{path}, column {text_field!r} is not UTF-8: {error}") from error


def open_tfds(name: str, data_dir: str | None) -> tuple[str, Any]:
    """(full name, random-access source) of the train split of `tfds:NAME[/CONFIG][:VERSION]`.

    Raises:
        ValueError: the dataset is unknown, or cannot be read without TensorFlow.
    """
    import tensorflow_datasets as tfds
    from tensorflow_datasets.core.registered import DatasetNotFoundError

    if data_dir is not None:
        data_dir = os.path.expanduser(data_dir)
    name = name.removeprefix(TFDS_PREFIX)
    try:
        builder = _tfds_builder(tfds, name, data_dir)
        if not builder.data_dir or not os.path.isdir(builder.data_dir):
            builder.download_and_prepare(file_format="array_record")
        source = builder.as_data_source(split="train")
    except ImportError as error:
        raise ValueError(
            f"tfds:{name} needs TensorFlow to be prepared or read ({error}): install "
            "bertjax[tf], or prepare it once elsewhere with file_format='array_record' and "
            "pass its folder as --tfds_data_dir."
        ) from error
    except (NotImplementedError, DatasetNotFoundError) as error:
        raise ValueError(
            f"tfds:{name} cannot be read from {data_dir or 'the default data folder'}: {error}"
        ) from error
    return f"tfds:{builder.info.full_name}", source


def _tfds_builder(tfds: Any, name: str, data_dir: str | None) -> Any:
    """The prepared dataset on disk if there is one, else the builder that can prepare it."""
    from tensorflow_datasets.core.registered import DatasetNotFoundError

    try:
        return tfds.core.read_only_builder.builder_from_files(name, data_dir=data_dir)
    except DatasetNotFoundError:
        return tfds.builder(name, data_dir=data_dir, file_format="array_record")


def read_tfds(name: str, source: Any, text_field: str) -> Iterator[str]:
    """The text of each example.

    Raises:
        ValueError: examples have no such field of text.
    """
    for index in range(len(source)):
        example = source[index]
        text = example.get(text_field) if isinstance(example, dict) else None
        if not isinstance(text, bytes | str):
            known = sorted(example) if isinstance(example, dict) else type(example).__name__
            raise ValueError(
                f"{name} has no field {text_field!r} of text. Its fields: {known}. "
                "Name one with --text_field."
            )
        yield text.decode("utf-8", "replace") if isinstance(text, bytes) else text
