"""Tagging: predicts one class per word of a sentence (Devlin et al. 2018, 5.3)."""

import dataclasses
import functools
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from bertjax.base.files import brief, writing
from bertjax.config.task_options import OfficialOptions
from bertjax.data.batches.batch import Feature, LabelKind
from bertjax.tasks.classification import softmax
from bertjax.tasks.dataset import Fold
from bertjax.tasks.definition import (
    ClassOptions,
    TableOptions,
    TaskDefinition,
    WindowOptions,
)
from bertjax.tasks.metrics import Metric, entities, entity_f1, word_accuracy
from bertjax.tasks.sources import held_out
from bertjax.tasks.sources.columns import TEXTS, TableKind
from bertjax.tasks.sources.conll import CONLL_LABELS, read_conll2003, read_dataset_row, score_files
from bertjax.tasks.sources.official import official_dataset
from bertjax.tasks.sources.own_files import learn_labels, own_tables
from bertjax.tasks.tags import (
    NO_TAG,
    OUTSIDE,
    PLACEHOLDERS,
    UNLABELLED,
    TagScheme,
    tag_scheme,
)
from bertjax.tasks.task import (
    GOLD,
    GOLD_CUT,
    Example,
    Export,
    Outputs,
    Pairs,
    Prediction,
    Task,
    check_stride,
    feature_of,
    widest_contexts,
    windows,
)
from bertjax.tokenization import Tokenizer


def export_columns(folder: Path, split: str, pairs: Pairs) -> Iterator[tuple[Example, Prediction]]:
    """Writes SPLIT.conll as conlleval reads it: a word, its tag (if known), the predicted tag."""
    path = folder / f"{split}.conll"
    with writing(path) as temporary, temporary.open("x", encoding="utf-8") as lines:
        for example, prediction in pairs:
            tags: Any = example.label
            gold = []
            if isinstance(tags, tuple):
                gold = [[tag or "_" for tag in tags]]
            columns = [example.words, *gold, prediction["labels"]]
            lines.writelines(" ".join(row) + "\n" for row in zip(*columns, strict=True))
            lines.write("\n")
            yield example, prediction


@dataclasses.dataclass(frozen=True, kw_only=True)
class TagOptions(WindowOptions, ClassOptions, TableOptions):
    """Options of --task=tag: texts with a tag per word, or with entities."""

    recipes = ("lora", "teacher", "tagger")
    table = TableKind(
        "tag",
        labels=tuple(
            "tags labels nertags ner postags label tag entities spans annotations".split()
        ),
        texts=("words", "tokens", *TEXTS),
        pairs=(),
        label="tags",
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class ConllOptions(WindowOptions, ClassOptions, OfficialOptions):
    """Options of --task=conll."""

    recipes = ("lora", "teacher", "tagger")


@dataclasses.dataclass(frozen=True, kw_only=True)
class TagTask(Task):
    """Task that predicts one tag per word, at the first word piece of the word.

    A text of more than `max_length` tokens is split into overlapping windows, which begin with
    whole words. Each word counts once: its tag is trained and predicted in the window in which its
    first piece has the most context.

    Attributes:
        doc_stride: maximum number of tokens between the starts of two consecutive windows of a long
            text; None: half of a window, so that every word has at least a quarter of a window of
            context on both sides, except at the ends of the text.
    """

    doc_stride: int | None = None
    metric: Metric = entity_f1
    best_metric: str = "f1"
    export: Export | None = export_columns

    head: ClassVar[str] = "token_classification"
    label_kind: ClassVar[LabelKind] = "tokens"

    def __post_init__(self):
        check_stride(self.doc_stride)

    def description(self, max_length: int) -> dict[str, Any]:
        return {**super().description(max_length), "doc_stride": self.doc_stride}

    @property
    def reads_windows(self) -> bool:
        return True

    @classmethod
    def of_labels(cls, labels: tuple[str, ...], **fields: Any) -> "TagTask":
        """Creates a task whose metric is entity F1 if `labels` mark entities, else accuracy."""
        scheme = tag_scheme(labels)
        if scheme is None:
            fields = {"metric": word_accuracy, "best_metric": "accuracy", **fields}
            odd = [x for x in labels if x in PLACEHOLDERS or re.fullmatch("[BI]-.+", x)]
            if odd:
                print(
                    f"warning: no entities are scored, because tags such as {odd[0]!r} mark none: "
                    f"correct them, or write {NO_TAG} for a word without a label."
                )
        elif not scheme.is_iob:
            print(
                f"The tags of the model ({brief(', '.join(labels), 60)}) are read as entities in "
                f"the scheme {scheme.name}.",
                file=sys.stderr,
            )
        return cls(labels=labels, **fields)

    def features(self, example: Example, tokenizer: Tokenizer, max_length: int) -> list[Feature]:
        """Encodes each window of the text as an input of the model, `[CLS] pieces [SEP]`.

        `Feature.origins` holds the index of a word at the first piece of the word, in the window in
        which this piece has the most context, and -1 at all other tokens. Every word, including the
        first, is encoded as if a space preceded the word, like transformers with
        `is_split_into_words` (and `add_prefix_space`).

        Emoji and other symbols of a running text that are not in the vocabulary are left out,
        because models tend to take unknown words for names. No word of a list of words is left out.

        Raises:
            ValueError: the example has no words, a tag is unknown, or there is not one per word.
        """
        if not example.words:
            raise ValueError(f"{example.where}: the sentence has no words; remove it.")
        ids, origins, starts = _pieces(example, tokenizer)
        word_labels = self._word_labels(example)
        room = max_length - tokenizer.layout.num_special_tokens(pair=False)
        stride = self.doc_stride or max(1, room // 2)
        spans = windows(len(ids), room, stride, starts)
        features = []
        for (start, end), is_widest in zip(spans, widest_contexts(spans), strict=True):
            sequence = tokenizer.join(ids[start:end])
            input_ids, _ = sequence
            words = np.full(len(input_ids), -1, np.int32)
            words[1:-1] = np.where(is_widest, origins[start:end], -1)
            labels = None
            if word_labels is not None:
                labels = word_labels[words]
            features.append(feature_of([sequence], labels, words))
        return features

    def _word_labels(self, example: Example) -> np.ndarray | None:
        """Returns the label of each word and, at the end, the label -1 for tokens of no word."""
        tags = example.label
        if not isinstance(tags, tuple):
            return None
        if len(tags) != len(example.words):
            raise ValueError(
                f"{example.where} has {len(example.words)} words, but {len(tags)} tags: "
                "give one tag per word."
            )
        if self.scheme and not self.scheme.is_iob:
            outside = {tag for tag, (mark, _) in self.scheme.meanings.items() if mark == OUTSIDE}
            written = []
            for tag, given in zip(self.scheme.from_iob2(self.iob2(tags)), tags, strict=True):
                # A tag that the scheme does not have is refused below, and not taken for O.
                if tag == OUTSIDE and given not in outside:
                    tag = given
                written.append(tag)
            tags = written
        ids = [-1] * (len(tags) + 1)
        for word, tag in enumerate(tags):
            if tag:
                ids[word] = self.label_id(tag, example.where)
        return np.array(ids, np.int32)

    def predict(
        self, example: Example, features: Sequence[Feature], outputs: Sequence[Outputs]
    ) -> Prediction:
        """Returns a dict of the lists words, labels (tags) and probabilities, one entry per word.

        The tag of a word is the most probable one in the window in which the word has the most
        context. A word that the model has not read, because it is an unknown symbol, has the
        probability None, and the tag O or, if no label is O, the first label. If the labels mark
        entities, the key entities holds a list of dicts with the keys type, text, probability,
        first_word, last_word and, for a running text, start and end (in characters). Of a labelled
        example, gold_probabilities are those of the given tags.
        """
        unread = self.labels[0]
        if OUTSIDE in self.labels:
            unread = OUTSIDE
        size = len(example.words)
        tags = [unread] * size
        confidences: list[float | None] = [None] * size
        of_golds: list[float | None] = [None] * size
        golds = self._word_labels(example)
        for feature, output in zip(features, outputs, strict=True):
            assert feature.origins is not None
            (tokens,) = np.nonzero(feature.origins >= 0)
            probabilities = softmax(output["logits"][tokens])  # [words, C]
            best = probabilities.argmax(-1).tolist()
            highest = probabilities.max(-1).tolist()
            for row, word in enumerate(feature.origins[tokens].tolist()):
                tags[word] = self.labels[best[row]]
                confidences[word] = highest[row]
                if golds is not None and golds[word] >= 0:
                    of_golds[word] = float(probabilities[row, golds[word]])
        prediction: Prediction = {"words": [*example.words], "labels": tags}
        prediction["probabilities"] = confidences
        if golds is not None:
            prediction["gold_probabilities"] = of_golds
        if self.marks_entities:
            read = [word for word, confidence in enumerate(confidences) if confidence is not None]
            self._tag_symbols_within_entities(read, tags, confidences)
            prediction["entities"] = [*_entities(example, self.iob2(tags), confidences)]
        return prediction

    def _tag_symbols_within_entities(
        self, read: Sequence[int], tags: list[str], probabilities: list[float | None]
    ) -> None:
        """Tags unread symbols, such as emoji, within an entity of type X as I-X.

        The symbol gets the probability of the entity's first tag.
        """
        for first, end, kind in entities(self.iob2([tags[word] for word in read])):
            start = read[first]
            written = ["B", "I", "I"]
            if kind:
                written = [f"{mark}-{kind}" for mark in written]
            if self.scheme and not self.scheme.is_iob:
                written = self.scheme.from_iob2(written)
            _, inside, _ = written
            for word in {*range(start, read[end - 1])} - {*read}:
                tags[word] = inside
                probabilities[word] = probabilities[start]

    def gold(self, example: Example) -> dict[str, Any]:
        gold = super().gold(example)
        if example.cut:
            gold[GOLD_CUT] = example.cut
        return gold

    def with_gold(self, example: Example, line: Mapping[str, Any]) -> Example:
        cut = tuple(line.get(GOLD_CUT, ()))
        return dataclasses.replace(example, label=tuple(line[GOLD]), cut=cut)

    @functools.cached_property
    def scheme(self) -> TagScheme | None:
        """How the labels mark entities; None if they are, for example, parts of speech."""
        return tag_scheme(self.labels)

    @property
    def marks_entities(self) -> bool:
        """Whether the labels mark entities, and are not, for example, parts of speech."""
        return self.scheme is not None

    def iob2(self, tags: Sequence[str]) -> Sequence[str]:
        """Converts tags of the task to IOB2, unless they are in IOB or mark no entities."""
        if self.scheme is None or self.scheme.is_iob:
            return tags
        return self.scheme.to_iob2(tags)

    def score(self, pairs: Pairs) -> dict[str, float]:
        rows = []
        for example, prediction in pairs:
            if isinstance(example.label, tuple) and any(example.label):
                golds, answers = self.scored_tags(example, prediction)
                rows.append((golds, answers, example.cut))
        if not rows:
            return {}
        return self.metric(*zip(*rows, strict=True))

    def scored_tags(
        self, example: Example, prediction: Prediction
    ) -> tuple[Sequence[str], Sequence[str]]:
        """Returns the tags and the predicted tags of the words with a label, as by `iob2`."""
        tags: Any = example.label
        predicted = prediction["labels"]
        known = [word for word, tag in enumerate(tags) if tag != UNLABELLED]
        golds = [tags[word] for word in known]
        answers = [predicted[word] for word in known]
        return self.iob2(golds), self.iob2(answers)


def _pieces(example: Example, tokenizer: Tokenizer) -> tuple[list[int], np.ndarray, list[int]]:
    """Encodes the words of an example, without the symbols of a running text that are unknown.

    Returns the ids of all pieces; for each piece, int32 [pieces], the index of the word that starts
    with it, or -1; and the indices of the pieces that start a word.
    """
    ids: list[int] = []
    origins: list[int] = []
    starts: list[int] = []
    for word, pieces in enumerate(tokenizer.encode_after_space(example.words)):
        # A word that consists only of control characters has no pieces, but needs a position.
        pieces = pieces or [tokenizer.unk_token_id]
        if example.offsets and _is_unknown_symbol(example.words[word], pieces, tokenizer):
            continue
        starts.append(len(ids))
        ids += pieces
        origins += [word] + [-1] * (len(pieces) - 1)
    return ids, np.array(origins, np.int32), starts


def _is_unknown_symbol(word: str, pieces: Sequence[int], tokenizer: Tokenizer) -> bool:
    return set(pieces) == {tokenizer.unk_token_id} and not any(map(str.isalnum, word))


def _entities(
    example: Example, tags: Sequence[str], probabilities: Sequence[float | None]
) -> Iterator[dict[str, Any]]:
    """Yields a dict for each entity that the predicted tags mark, in the order of the words.

    The probability is the mean over the tags; None if the model has read none of the words.
    """
    for first, end, kind in entities(tags):
        entity: dict[str, Any] = {"type": kind, "text": " ".join(example.words[first:end])}
        read = [p for p in probabilities[first:end] if p is not None]
        entity["probability"] = None
        if read:
            entity["probability"] = float(np.mean(read))
        entity |= {"first_word": first, "last_word": end - 1}
        if example.offsets:
            start = example.offsets[first][0]
            stop = example.offsets[end - 1][1]
            entity |= {"text": example.text[start:stop], "start": start, "end": stop}
        yield entity


def _entity_types(example: Example) -> tuple[str, ...]:
    """Returns "PER" of B-PER and I-PER, or the whole tag where tags mark no entities."""
    tags: Any = example.label
    return tuple(sorted({tag.partition("-")[2] or tag for tag in tags or ()} - {"O", UNLABELLED}))


def make_tagging(options: TagOptions, fold: Fold | None) -> Task:
    """Makes the task of the user's texts with tags or entities."""
    by = held_out.BY_RAREST._replace(key=_entity_types)
    data = held_out.divide(own_tables(options), options, fold, by)
    tags = learn_labels(data, fold)
    return TagTask.of_labels(tags, name="tag", source=data, doc_stride=options.doc_stride)


def make_conll(options: ConllOptions, fold: Fold | None) -> TagTask:
    """Makes the task of CoNLL-2003's named entities."""
    data = official_dataset(options, read_conll2003, "conll2003", read_dataset_row)
    stride = options.doc_stride
    return TagTask(name="conll", source=data, labels=CONLL_LABELS, doc_stride=stride)


TAG = TaskDefinition(name="tag", kinds=(TagTask,), options=TagOptions, make=make_tagging)
CONLL = TaskDefinition(
    name="conll", kinds=(TagTask,), options=ConllOptions, make=make_conll, score_files=score_files
)
