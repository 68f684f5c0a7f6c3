"""Examples out of TensorFlow Datasets, read without TensorFlow."""

import difflib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from bertjax.data.text.tables import open_tfds_splits
from bertjax.tasks.sources.conll import CONLL_LABELS
from bertjax.tasks.sources.glue import GLUE, GlueSpec, legible
from bertjax.tasks.sources.squad import IMPOSSIBLE, nearest
from bertjax.tasks.task import Example

# Four times as fast as one by one.
ROWS_PER_READ = 256
# Names of splits there -> here; "train" and "test" are the same, and so is what follows "_".
_SPLITS = {"validation": "dev"}
OFFICIAL_FILES = " Or give --data_dir a folder with the official files."

Fields = Mapping[str, Any]
# (fields, id if they have none, where) -> example
Maker = Callable[[Fields, str, str], Example]


class TfdsSource:
    """Examples of a TensorFlow Dataset: `glue/NAME`, `squad/v1.1`, `squad/v2.0`, `conll2003`.

    What was prepared as ArrayRecord is read as it is; the rest is downloaded and prepared first,
    for which glue and conll2003 need TensorFlow. Examples come in the order of the prepared files.

    Attributes:
        name: of the dataset, with its version.
        splits: those that there are.
    """

    def __init__(self, builder: str, data_dir: str | None = None):
        """Opens the dataset, prepared first if need be.

        Args:
            builder: its name.
            data_dir: where TensorFlow Datasets keeps its data, its own default if None.

        Raises:
            ValueError: it is not one of the above, cannot be downloaded, or TensorFlow is missing.
        """
        self._make = maker_of(builder)
        self.name, sources = open_tfds_splits(builder, data_dir, otherwise=OFFICIAL_FILES)
        self._sources = {_our_split(split): source for split, source in sources.items()}
        self.splits = tuple(sorted(self._sources, key=_split_order))

    def examples(self, split: str) -> Iterator[Example]:
        """The examples of a split, read as they are asked for.

        Raises:
            ValueError: there is no such split.
        """
        if split not in self._sources:
            raise ValueError(
                f"{self.name} has no split {split!r}. There are: {', '.join(self.splits)}."
            )
        return self._read(split, self._sources[split])

    def _read(self, split: str, source: Any) -> Iterator[Example]:
        for start in range(0, len(source), ROWS_PER_READ):
            rows = range(start, min(start + ROWS_PER_READ, len(source)))
            for index, fields in zip(rows, source.__getitems__(rows), strict=True):
                example = self._make(fields, str(index), f"{self.name}, {split} {index}")
                # The builder of CoNLL-2003 ends every split with a sentence of no words.
                if example.text or example.pair or example.words:
                    yield example


def maker_of(builder: str) -> Maker:
    """What makes examples of the fields of a dataset.

    Raises:
        ValueError: it is none that is known; the nearest is named.
    """
    name = builder.partition(":")[0]
    makers: dict[str, Maker] = {f"glue/{spec.name}": _glue(spec) for spec in GLUE.values()}
    makers |= {"squad/v1.1": _squad, "squad/v2.0": _squad, "conll2003": _conll}
    if name not in makers:
        near = difflib.get_close_matches(name, makers, 1, 0.0)[0]
        raise ValueError(
            f"Examples of tfds:{builder} cannot be read. Did you mean {near!r}? Known: "
            f"{', '.join(makers)}."
        )
    return makers[name]


def _glue(spec: GlueSpec) -> Maker:
    def make(fields: Fields, _: str, where: str) -> Example:
        texts = [legible(spec, _text(fields[name])) for name in spec.tfds_fields]
        label = fields["label"]
        # Test splits hold -1, in place of a score as well.
        known = label >= 0
        return Example(
            id=str(fields["idx"]),
            where=where,
            text=texts[0],
            pair=texts[1] if len(texts) > 1 else None,
            label=(spec.labels[label] if spec.labels else float(label)) if known else None,
        )

    return make


def _squad(fields: Fields, _: str, where: str) -> Example:
    context, answers = _text(fields["context"]), fields["answers"]
    texts = [_text(text) for text in answers["text"]]
    return Example(
        id=_text(fields["id"]),
        where=where,
        text=_text(fields["question"]),
        pair=context,
        label=IMPOSSIBLE if fields.get("is_impossible", False) else None,
        answers=tuple(
            (text, nearest(text, context, int(start)))
            for text, start in zip(texts, answers["answer_start"], strict=True)
        ),
    )


def _conll(fields: Fields, id: str, where: str) -> Example:
    return Example(
        id=id,
        where=where,
        words=tuple(_text(word) for word in fields["tokens"]),
        label=tuple(CONLL_LABELS[tag] for tag in fields["ner"]),
    )


def _text(value: Any) -> str:
    return value.decode("utf-8") if isinstance(value, bytes) else str(value)


def _our_split(split: str) -> str:
    name, mark, rest = split.partition("_")
    return _SPLITS.get(name, name) + mark + rest


def _split_order(split: str) -> tuple[int, str]:
    names = ("train", "dev", "test")
    first = split.partition("_")[0]
    return (names.index(first) if first in names else len(names), split)
