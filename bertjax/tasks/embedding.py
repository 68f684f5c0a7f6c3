"""Sentence embeddings: texts with the same meaning get vectors with a high cosine similarity.

The training examples are pairs (anchor, positive), the same with hard negatives (triplets) and
perhaps a teacher's scores, pairs with a score (Reimers and Gurevych 2019), or single texts, which
are pairs by two dropout masks (SimCSE, Gao et al. 2021). Retrieval metrics tell how well the texts
of pairs and triplets find each other: every anchor is a query, and the positives and hard negatives
of all examples are the candidates.
"""

import abc
import dataclasses
import functools
import operator
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Literal

import numpy as np
from tokenizers import normalizers

from bertjax.base.checked import Positive
from bertjax.config.model import Pooling
from bertjax.data.batches.batch import Feature, LabelKind
from bertjax.tasks.dataset import By, Fold
from bertjax.tasks.definition import RetrievalOptions, TaskDefinition
from bertjax.tasks.metrics import Metric, pearson_spearman
from bertjax.tasks.sources import held_out
from bertjax.tasks.sources.columns import COMPARED_WORDS, RETRIEVED, TOGETHER, TableKind
from bertjax.tasks.sources.own_files import OwnDataset, own_tables
from bertjax.tasks.task import Example, Outputs, Pairs, Prediction, Task, feature_of
from bertjax.tokenization import Tokenizer

VECTORS = "vectors"
SIMCSE = "simcse"
# Of the evaluation over a whole corpus.
RETRIEVAL_METRICS = ("ndcg_at_10", "mrr_at_10", "recall_at_100")


@dataclasses.dataclass(frozen=True, kw_only=True)
class EmbedderOptions(RetrievalOptions):
    """Options of all tasks that learn to find texts: temperature, prompts, a collection to search.

    Raises:
        ValueError: an option has no effect without another one.
    """

    table = TableKind(
        "embed",
        labels=(
            *("score", "similarity", "similarityscore", "sim", "relatedness", "relatednessscore"),
            *("rating", *TOGETHER, "label", "y"),
        ),
        pairs=RETRIEVED,
        label="score",
        words=COMPARED_WORDS,
    )

    temperature: Positive | None = None
    """Temperature by which the loss divides similarities; --loss kl: scores; None: 0.05 for
    cosines, 1 for dot products and kl."""
    query_prompt: str | None = None
    """Text before the anchor, or the name of a prompt in --init; None: its prompt "query"."""
    document_prompt: str | None = None
    """The same for all other texts; None: the prompt "document"."""
    retrieval_dir: str | None = None
    """Folder with a collection in BEIR's files, which each evaluation searches; None: none."""
    keep_same_id: bool = False
    """Whether --retrieval_dir ranks the passage that has the id of the query."""

    def __post_init__(self):
        super().__post_init__()
        if self.retrieval_dir is None and self.keep_same_id:
            raise ValueError("keep_same_id has no effect without --retrieval_dir: add it.")


@dataclasses.dataclass(frozen=True, kw_only=True)
class EmbedOptions(EmbedderOptions):
    """Options of --task=embed: pairs of texts that belong together, or pairs with scores.

    Raises:
        ValueError: an option has no effect with the loss or without another one.
    """

    loss: (
        Literal["contrastive", "symmetric", "simcse", "similarity", "cosent", "margin", "kl"] | None
    ) = None
    """Training loss, see docs/embeddings.md; None: contrastive, or similarity with scores."""
    false_negative_margin: float | None = None
    """Texts of the batch nearer to the anchor than the positive minus this margin are no negatives;
    None: all are."""
    matryoshka: tuple[int, ...] = ()
    """Sizes to which embeddings can be cut afterwards, such as 256 128; empty: none."""
    pooling: Pooling | None = None
    """How hidden states become an embedding; None: as in the files of --init, or mean."""
    normalize: bool | None = None
    """Whether the embeddings have length 1; None: as in the files of --init, or False."""

    @property
    def can_hold_out(self) -> bool:
        return self.loss != SIMCSE  # without dropout, the texts of a pair are equal

    def __post_init__(self):
        super().__post_init__()
        if self.dev_fraction is not None and not self.can_hold_out:
            raise ValueError(
                f"dev_fraction={self.dev_fraction}: the single texts of --loss simcse cannot be "
                "evaluated; give --dev with pairs."
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class EmbeddingTask(Task):
    """Base class of the tasks that train sentence embeddings; predicts similarities of texts.

    The texts of an example are encoded one by one, as `[CLS] text [SEP]`: the anchor, the positive
    (the second text of a pair), and the hard negatives.

    Attributes:
        num_texts: the number of texts of a training example.
        options: the user's options of the training.
        query_prompt: the text before the anchor; None: as the model to start from says.
        document_prompt: the text before the other texts; None: as the model to start from says.
        query_length: maximum number of tokens of the anchor; None: as of all sequences.
        document_length: maximum number of tokens of the other texts; None: as of all sequences.
        include_prompt: whether the pooling includes the tokens of the prompts.
        lower_case: whether texts are lower-cased, whatever the tokenizer does.
        similarity: how vectors are compared in predictions, as in `similarities`.
        truncate_dim: the number of dimensions that predictions compare; None: all.
        scored: whether the examples of the dev split are pairs with scores.
        lowest: the score of pairs with cosine 0; `highest` is the score of pairs with cosine 1.
    """

    num_texts: int = 2
    options: Any = EmbedOptions()
    query_prompt: str | None = None
    document_prompt: str | None = None
    query_length: int | None = None
    document_length: int | None = None
    include_prompt: bool = True
    lower_case: bool = False
    similarity: str = "cosine"
    truncate_dim: int | None = None
    scored: bool = True
    lowest: float = 0.0
    highest: float = 1.0
    metric: Metric = pearson_spearman
    best_metric: str = "spearman"

    head: ClassVar[str] = "sentence_embedding"
    objectives: ClassVar[tuple[str, ...]]
    """The values of --loss; the first is the usual one."""

    @property
    def sequences_per_example(self) -> int:
        return self.num_texts

    @property
    def head_fields(self) -> Mapping[str, Any]:
        fields = {"pooling": self.options.pooling, "normalize": self.options.normalize}
        return {name: value for name, value in fields.items() if value is not None}

    def objective(self, head: Any) -> Any:
        return head.objective(self.label_kind, self.options)

    def features(self, example: Example, tokenizer: Tokenizer, max_length: int) -> list[Feature]:
        """Encodes a training example as one `Feature` with `num_texts` sequences, one per text.

        Raises:
            ValueError: a text is empty, or the example has no second text, or more or fewer hard
                negatives than other examples.
        """
        texts = texts_of(example)
        if len(texts) != self.num_texts:
            raise ValueError(
                f"{example.where} has {len(texts) - 2} hard negatives, but the first row has "
                f"{self.num_texts - 2}: give every row the same number."
            )
        sequences = plain = self._encoded(texts, tokenizer, max_length)
        if self.query_prompt or self.document_prompt:
            plain = self._encoded(texts, tokenizer, max_length, prompts=False)
        return [feature_of(sequences, self._labels(example, [ids for ids, _ in plain]))]

    def features_to_predict(
        self, example: Example, tokenizer: Tokenizer, max_length: int
    ) -> list[Feature]:
        """Encodes each text of an example as a `Feature` of its own."""
        texts = texts_of(example)
        sequences = self._encoded(texts, tokenizer, max_length)
        return [feature_of([sequence], None) for sequence in sequences]

    def _encoded(
        self, texts: Sequence[str], tokenizer: Tokenizer, max_length: int, prompts: bool = True
    ) -> list[tuple[list[int], list[int]]]:
        """Returns (ids, token types) of each text; without `prompts`, of the texts alone."""
        tokenizer = lower_cased(tokenizer) if self.lower_case else tokenizer
        sequences = []
        for index, text in enumerate(texts):
            prompt = (self.document_prompt if index else self.query_prompt) if prompts else ""
            length = self.length_of("document" if index else "query", max_length)
            ids, types = tokenizer.encode_prompt(f"{prompt or ''}{text}", max_length=length)
            if prompt and not self.include_prompt:
                first = prompt_length(tokenizer, prompt, length)
                types = [int(place >= first) for place in range(len(ids))]
            sequences.append((ids, types))
        return sequences

    def length_of(self, role: str, max_length: int) -> int:
        """Returns the maximum number of tokens of a "query" or "document"."""
        return min(getattr(self, f"{role}_length") or max_length, max_length)

    @abc.abstractmethod
    def _labels(self, example: Example, ids: Sequence[Sequence[int]]) -> np.ndarray | None:
        """Returns the labels of a training example, whose texts, without prompts, are `ids`."""

    def predict(
        self, example: Example, features: Sequence[Feature], outputs: Sequence[Outputs]
    ) -> Prediction:
        """Returns a dict: `similarity`, that of the first text and the second one.

        If there are hard negatives, `negatives` are those of the first text and each of them.
        """
        vectors = self._vectors(outputs)
        values = self.compare(vectors[:1], vectors[1:])[0].tolist()
        negatives = {}
        if len(values) > 1:
            negatives = {"negatives": values[1:]}
        return {"similarity": values[0], **negatives}

    def compare(self, a: Any, b: Any) -> np.ndarray:
        """Returns the similarities of n texts and m texts, as `_vectors` returns them: [n, m]."""
        return similarities(a, b, self.similarity)

    def _vectors(self, outputs: Sequence[Outputs]) -> Any:
        """Returns the embeddings of several texts, of length 1 for cosines: float32 [C, D]."""
        vectors = np.stack([output["sentence_embedding"] for output in outputs])
        vectors = vectors[:, : self.truncate_dim]
        if self.similarity != "cosine":
            return vectors
        return vectors / np.maximum(np.linalg.norm(vectors, axis=-1, keepdims=True), 1e-12)

    def predicted_label(self, prediction: Prediction) -> float:
        """Returns the similarity on the scale of the scores."""
        return self.lowest + prediction["similarity"] * (self.highest - self.lowest)

    def metric_names(self) -> list[str]:
        return ["pearson", "spearman", "pearson_spearman"]

    def description(self, max_length: int) -> dict[str, Any]:
        """Describes a saved model, which predicts similarities of pairs."""
        return super().description(max_length) | {"label_kind": SimilarityTask.label_kind}


@dataclasses.dataclass(frozen=True, kw_only=True)
class SimilarityTask(EmbeddingTask):
    """Embeddings whose cosines are the scores of pairs of texts; the loss is the squared error.

    In training, the scores are scaled such that `lowest` becomes 0 and `highest` becomes 1. CoSENT
    compares the order alone, and divides cosines by the temperature of the options.
    """

    label_kind: ClassVar[LabelKind] = "similarity"
    objectives: ClassVar[tuple[str, ...]] = ("similarity", "cosent")

    def _labels(self, example: Example, ids: Sequence[Sequence[int]]) -> np.ndarray | None:
        if example.label is None:
            return None
        value: Any = example.label
        return np.array([(value - self.lowest) / (self.highest - self.lowest)], np.float32)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ContrastiveTask(EmbeddingTask):
    """Embeddings with which an anchor finds its positive among all texts of the batch.

    Dev examples without scores are evaluated by `Retrieval`, which needs all of their embeddings.
    """

    best_metric: str = "mrr"

    label_kind: ClassVar[LabelKind] = "contrastive"
    objectives: ClassVar[tuple[str, ...]] = ("contrastive", "symmetric", SIMCSE)
    unwritten: ClassVar[str] = VECTORS

    def _labels(self, example: Example, ids: Sequence[Sequence[int]]) -> np.ndarray:
        """Returns a hash of the tokens of each text, int32 [C]: equal texts are no negatives."""
        hashes = [zlib.crc32(np.array(row, np.int32).tobytes()) for row in ids]
        return np.array(hashes, np.uint32).view(np.int32)

    def predict(
        self, example: Example, features: Sequence[Feature], outputs: Sequence[Outputs]
    ) -> Prediction:
        """Returns the similarities and, unless the example has a score, `vectors`, for `score`."""
        prediction = super().predict(example, features, outputs)
        if example.label is not None:
            return prediction
        return prediction | {VECTORS: self._vectors(outputs)}

    def score(self, pairs: Pairs) -> dict[str, float]:
        """Computes the correlations of scored pairs, and the retrieval metrics of all others."""
        retrieval = Retrieval(self.compare)

        def scored() -> Iterator[tuple[Example, Prediction]]:
            for example, prediction in pairs:
                if VECTORS in prediction:
                    retrieval.add(texts_of(example), prediction[VECTORS])
                yield example, prediction

        return super().score(scored()) | retrieval.scores()

    def metric_names(self) -> list[str]:
        if self.scored:
            return super().metric_names()
        return [*PAIR_METRICS, *([TRIPLET_METRIC] if self.num_texts > 2 else [])]


@dataclasses.dataclass(frozen=True, kw_only=True)
class DistilledTask(ContrastiveTask):
    """Embeddings whose dot products are like a teacher's scores of the same texts."""

    label_kind: ClassVar[LabelKind] = "distilled"
    objectives: ClassVar[tuple[str, ...]] = ("margin", "kl")

    def _labels(self, example: Example, ids: Sequence[Sequence[int]]) -> np.ndarray:
        return np.array(example.scores, np.float32)


def texts_of(example: Example) -> list[str]:
    """Returns the texts of an example; raises ValueError if one is empty or there is only one."""
    if example.pair is None:
        raise ValueError(
            f"{example.where}: this model compares two texts, but there is only one: give the "
            "second text as well (--pair_column, --pair, or a pair in Python), or compute the "
            "vector of the text with bertjax.embed."
        )
    texts = [example.text, example.pair, *example.choices]
    if not all(text.strip() for text in texts):
        raise ValueError(f"{example.where}: a text is empty; fill it or remove the row.")
    return texts


def dot_products(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Returns the dot products of vectors a [n, D] and b [m, D]: float [n, m]."""
    return a @ b.T


def similarities(a: np.ndarray, b: np.ndarray, name: str) -> np.ndarray:
    """Compares vectors a [n, D] with b [m, D], as `similarity_fn_name` says: float [n, m].

    "cosine" takes vectors of length 1; "euclidean" and "manhattan" are negative distances.
    """
    if name in ("cosine", "dot"):
        return dot_products(a, b)
    from scipy.spatial import distance  # a slow import, which `--help` would wait for

    metric: Any = name.replace("manhattan", "cityblock")
    return -distance.cdist(a, b, metric)


@functools.lru_cache(maxsize=8)
def lower_cased(tokenizer: Tokenizer) -> Tokenizer:
    """Returns a tokenizer that lower-cases texts and is otherwise `tokenizer`."""
    first = normalizers.Lowercase()
    if tokenizer.do_lower_case:
        return tokenizer
    return tokenizer.normalised_first(first)


def prompt_length(tokenizer: Tokenizer, prompt: str, max_length: int) -> int:
    """Returns the number of tokens of a prompt, with [CLS] and without [SEP]."""
    return len(tokenizer.encode_prompt(prompt, max_length=max_length)[0]) - 1


RECALLS = (1, 10)
PAIR_METRICS = ("mrr", *(f"recall_at_{k}" for k in RECALLS))
TRIPLET_METRIC = "triplet_accuracy"
BLOCK = 512


class Retrieval:
    """Collects the embeddings of pairs and triplets, and ranks the candidates of each anchor.

    `compare` is that of an `EmbeddingTask`.

    A candidate that is the positive of another example with the same anchor, or has the text of the
    anchor, does not count as wrong, and texts that occur several times are one candidate.
    """

    def __init__(self, compare: Callable[[Any, Any], np.ndarray] = dot_products):
        self._compare = compare  # as of `EmbeddingTask`
        self._texts: dict[str, int] = {}  # candidate -> its index
        self._candidates: list[Any] = []
        self._anchors: list[Any] = []
        self._queries: list[str] = []
        self._positives: list[int] = []
        self._right: dict[str, set[int]] = {}  # anchor -> all of its positives
        self._triplets: list[bool] = []

    def add(self, texts: Sequence[str], vectors: Sequence[np.ndarray]) -> None:
        """Adds an example: anchor, positive, hard negatives, and what `compare` takes of them."""
        anchor, *others = texts
        anchor_vector = vectors[0]
        other_vectors = vectors[1:]
        indices = []
        for text, vector in zip(others, other_vectors, strict=True):
            if text not in self._texts:
                self._texts[text] = len(self._candidates)
                self._candidates.append(vector)
            indices.append(self._texts[text])
        positive = indices[0]
        self._anchors.append(anchor_vector)
        self._queries.append(anchor)
        self._positives.append(positive)
        self._right.setdefault(anchor, set()).add(positive)
        if len(others) > 1:
            (values,) = self._compare(vectors[:1], other_vectors)
            self._triplets.append(bool(values[0] > values[1:].max()))

    def scores(self) -> dict[str, float]:
        """Returns the metrics of the examples, as fractions; {} if there are none.

        `mrr` is the mean reciprocal rank of an anchor's positive among the candidates, of which
        those with the same cosine count half; `recall_at_1` and `recall_at_10` are the fractions of
        anchors whose positive is among the first. `triplet_accuracy`, if there are hard negatives,
        is the fraction of examples whose positive is nearer than all of them.
        """
        return {name: float(np.mean(values)) for name, values in self.columns().items()}

    def columns(self) -> dict[str, np.ndarray]:
        """Returns the values of the examples, of which `scores` are the means."""
        if not self._anchors:
            return {}
        ranks = self._ranks()
        values = {"mrr": 1 / ranks}
        values |= {f"recall_at_{k}": ranks <= k for k in RECALLS}
        if self._triplets:
            values[TRIPLET_METRIC] = np.array(self._triplets)
        return values

    def _ranks(self) -> np.ndarray:
        """Returns the rank of each anchor's positive among the candidates, from 1, float [n]."""
        candidates = _stacked(self._candidates)
        anchors = _stacked(self._anchors)
        ranks = []
        for start in range(0, len(anchors), BLOCK):
            for values in self._compare(anchors[start : start + BLOCK], candidates):
                number = len(ranks)
                query = self._queries[number]
                own = values[self._positives[number]]
                values[list(self._right[query])] = -np.inf
                if query in self._texts:
                    values[self._texts[query]] = -np.inf
                above = np.sum(values > own)
                equal = np.sum(values == own)
                ranks.append(1 + above + equal / 2)
        return np.array(ranks)


def _stacked(vectors: list[np.ndarray]) -> Any:
    """Returns an array of one vector per text, or as it is a list of one array per text."""
    if vectors[0].ndim == 1:
        return np.stack(vectors)
    return vectors


def make_embedding(options: EmbedOptions, fold: Fold | None) -> EmbeddingTask:
    """Makes the task of the user's pairs or triplets of texts, or pairs with scores."""
    data = own_tables(options, single_texts=options.loss == SIMCSE)
    scored = data.has_scores("train")
    loss = options.loss
    kind = ContrastiveTask
    if loss in DistilledTask.objectives:
        kind = DistilledTask
    check_loss(SimilarityTask if scored else kind, data, options)
    if scored:
        data = held_out.divide(data, options, fold, held_out.BY_TARGET)
    elif options.can_hold_out:
        data = held_out.divide(data, options, fold, BY_ANCHOR)
    if scored and "dev" in data.splits and not data.has_scores("dev"):
        raise ValueError(
            f"{data.path('dev')} has no scores, but {data.path('train')} has: a model that "
            "learns scores is evaluated by them. Name the column of the scores of both files with "
            "--label_column, or leave --dev out."
        )
    fields: dict[str, Any] = {
        "name": "embed",
        "options": options,
        "source": data,
        "scored": data.has_scores("dev"),
    }
    if scored:
        return SimilarityTask(**fields, **_range(data))
    return kind(**fields, **_of_examples(data))


def make_of_pairs(
    name: str,
    options: Any,
    fold: Fold | None,
    contrastive: type[ContrastiveTask],
    distilled: type[ContrastiveTask],
) -> EmbeddingTask:
    """Makes a task that learns from pairs or triplets of texts, and perhaps a teacher's scores.

    Args:
        name: the name of the task, and `options` are its options.
        contrastive: the kind of task without scores of a teacher, and `distilled` with them.

    Raises:
        ValueError: the train split has scores of pairs, or lacks those of a teacher; or the
            temperature has no effect.
    """
    data = own_tables(options)
    if data.has_scores("train"):
        label = data.columns.label
        raise ValueError(
            f"--task={name}: {data.path('train')} has scores of pairs ({label!r}), but this task "
            "learns which texts belong together: give --ignore_columns with this name, if all of "
            "them do."
        )
    kind = distilled if options.loss in distilled.objectives else contrastive
    check_loss(kind, data, options)
    data = held_out.divide(data, options, fold, BY_ANCHOR)
    return kind(
        name=name,
        options=options,
        source=data,
        scored=data.has_scores("dev"),
        **_of_examples(data),
    )


def _of_examples(data: OwnDataset) -> dict[str, Any]:
    """Returns the fields of a task that its examples tell."""
    first = next(data.examples("train"), None)
    fields: dict[str, Any] = {"num_texts": 2 + (len(first.choices) if first else 0)}
    if data.has_scores("dev"):
        fields["best_metric"] = SimilarityTask.best_metric
    return fields


def check_loss(kind: Any, data: OwnDataset, options: Any) -> None:
    """Raises ValueError if the loss does not fit the columns, or an option the loss."""
    columns = data.columns
    loss = options.loss or kind.objectives[0]
    lacks_scores = issubclass(kind, DistilledTask) and not columns.scores
    if loss not in kind.objectives or lacks_scores:
        what = "no scores"
        if lacks_scores:
            what = "no scores of a teacher"
        if columns.label:
            what = f"scores of pairs ({columns.label!r})"
        raise ValueError(
            f"--loss {loss}: {data.path('train')} has {what}: similarity and cosent take scores "
            "of pairs, margin and kl those of a teacher (--score_columns). Choose another."
        )
    unused = {
        "temperature": loss in ("similarity", "margin"),
        "false_negative_margin": kind is not ContrastiveTask,
    }
    for name, is_unused in unused.items():
        value = getattr(options, name, None)
        if is_unused and value is not None:
            raise ValueError(f"{name}={value} has no effect on --loss {loss}: leave it out.")


def _range(data: OwnDataset) -> dict[str, Any]:
    """Returns the lowest and the highest score of the train split, and prints them."""
    scores = [float(example.label) for example in data.examples("train")]  # type: ignore[arg-type]
    lowest, highest = (min(scores), max(scores)) if scores else (0.0, 0.0)
    if scores and lowest == highest:
        raise ValueError(
            f"{data.path('train')}: all scores are {lowest:g}, so there is nothing to learn. If "
            "another column holds the scores, name it with --label_column; to train on the pairs "
            f"as texts that belong together, give --ignore_columns {data.columns.label}."
        )
    if {score for score in scores if score < 0} == {-1.0} and highest > 1:
        raise ValueError(
            f"{data.path('train')}: the scores are from 0 to {highest:g}, but for some that are "
            "-1, which marks missing ones: remove their rows, or add 1 to all scores."
        )
    print(
        f"scores: {lowest:g} to {highest:g}; the model learns cosines of 0 for {lowest:g} and of 1 "
        f"for {highest:g}"
    )
    return {"lowest": lowest, "highest": highest if scores else 1.0}


# The most pairs that are held out if there is no dev file: each is compared with all others.
MOST_HELD_OUT = 10_000


def _held_out(anchors: Sequence[Any], fraction: float) -> frozenset[int]:
    """Chooses all examples of some anchors, about `fraction` of them, or `MOST_HELD_OUT`."""
    return held_out.grouped(anchors, min(fraction, MOST_HELD_OUT / max(len(anchors), 1)))


BY_ANCHOR = By(
    operator.attrgetter("text"),
    _held_out,
    held_out.grouped_folds,
    "all pairs with the same first text together",
    "group",
)
EMBED = TaskDefinition(
    name="embed",
    kinds=(SimilarityTask, ContrastiveTask, DistilledTask),  # saved models are the first
    options=EmbedOptions,
    make=make_embedding,
)
