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
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from tokenizers import normalizers

from bertjax.data.batches.batch import Feature, LabelKind
from bertjax.tasks.metrics import Metric, pearson_spearman
from bertjax.tasks.task import Example, Outputs, Pairs, Prediction, Task, feature_of
from bertjax.tokenization import Tokenizer

VECTORS = "vectors"
SIMCSE = "simcse"
# Of the evaluation over a whole corpus.
RETRIEVAL_METRICS = ("ndcg_at_10", "mrr_at_10", "recall_at_100")


@dataclasses.dataclass(frozen=True, kw_only=True)
class EmbeddingTask(Task):
    """Base class of the tasks that train sentence embeddings; predicts similarities of texts.

    The texts of an example are encoded one by one, as `[CLS] text [SEP]`: the anchor, the positive
    (the second text of a pair), and the hard negatives.

    Attributes:
        num_texts: the number of texts of a training example.
        pooling: as in `pooled`; None: as the model to start from says, or "mean".
        normalize: whether embeddings have length 1; None: as the model to start from says, or not.
        matryoshka: sizes of embeddings that are trained besides the full size.
        loss: the name of the training objective; "": the usual one of the examples.
        temperature: by which it divides cosines or, of a teacher, scores; None: 0.05.
        false_negative_margin: a candidate that is nearer than the positive minus it is no negative;
            None: all are.
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
    pooling: str | None = None
    normalize: bool | None = None
    matryoshka: tuple[int, ...] = ()
    loss: str = ""
    temperature: float | None = None
    false_negative_margin: float | None = None
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
        fields = {
            "pooling": self.pooling,
            "normalize": self.normalize,
            "matryoshka": self.matryoshka or None,
            "loss": self.loss or None,
            "temperature": self.temperature,
            "false_negative_margin": self.false_negative_margin,
        }
        return {name: value for name, value in fields.items() if value is not None}

    def features(self, example: Example, tokenizer: Tokenizer, max_length: int) -> list[Feature]:
        """Encodes a training example as one `Feature` with `num_texts` sequences, one per text.

        Raises:
            ValueError: a text is empty, or the example has no second text, or more or fewer hard
                negatives than other examples.
        """
        texts = _texts(example)
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
        texts = _texts(example)
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
        values = similarities(vectors[:1], vectors[1:], self.similarity)[0].tolist()
        negatives = {"negatives": values[1:]} if len(values) > 1 else {}
        return {"similarity": values[0], **negatives}

    def _vectors(self, outputs: Sequence[Outputs]) -> np.ndarray:
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
    compares the order alone, and divides cosines by `temperature`.
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
        retrieval = Retrieval(self.similarity)

        def scored() -> Iterator[tuple[Example, Prediction]]:
            for example, prediction in pairs:
                if VECTORS in prediction:
                    retrieval.add(_texts(example), prediction[VECTORS])
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


def _texts(example: Example) -> list[str]:
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


def similarities(a: np.ndarray, b: np.ndarray, name: str) -> np.ndarray:
    """Compares vectors a [n, D] with b [m, D], as `similarity_fn_name` says: float [n, m].

    "cosine" takes vectors of length 1; "euclidean" and "manhattan" are negative distances.
    """
    if name in ("cosine", "dot"):
        return a @ b.T
    from scipy.spatial import distance  # a slow import, which `--help` would wait for

    metric: Any = name.replace("manhattan", "cityblock")
    return -distance.cdist(a, b, metric)


@functools.lru_cache(maxsize=8)
def lower_cased(tokenizer: Tokenizer) -> Tokenizer:
    """Returns a tokenizer that lower-cases texts and is otherwise `tokenizer`."""
    first = normalizers.Lowercase()
    return tokenizer if tokenizer.do_lower_case else tokenizer.normalised_first(first)


def prompt_length(tokenizer: Tokenizer, prompt: str, max_length: int) -> int:
    """Returns the number of tokens of a prompt, with [CLS] and without [SEP]."""
    return len(tokenizer.encode_prompt(prompt, max_length=max_length)[0]) - 1


RECALLS = (1, 10)
PAIR_METRICS = ("mrr", *(f"recall_at_{k}" for k in RECALLS))
TRIPLET_METRIC = "triplet_accuracy"
BLOCK = 512


class Retrieval:
    """Collects the embeddings of pairs and triplets, and ranks the candidates of each anchor.

    A candidate that is the positive of another example with the same anchor, or has the text of the
    anchor, does not count as wrong, and texts that occur several times are one candidate.
    """

    def __init__(self, similarity: str = "cosine"):
        self._similarity = similarity
        self._texts: dict[str, int] = {}  # candidate -> its index
        self._candidates: list[np.ndarray] = []
        self._anchors: list[np.ndarray] = []
        self._queries: list[str] = []
        self._positives: list[int] = []
        self._right: dict[str, set[int]] = {}  # anchor -> all of its positives
        self._triplets: list[bool] = []

    def add(self, texts: Sequence[str], vectors: np.ndarray) -> None:
        """Adds an example: anchor, positive, hard negatives; vectors as in `similarities`."""
        anchor, *others = texts
        indices = []
        for text, vector in zip(others, vectors[1:], strict=True):
            indices.append(self._texts.setdefault(text, len(self._texts)))
            if len(self._texts) > len(self._candidates):
                self._candidates.append(vector)
        self._anchors.append(vectors[0])
        self._queries.append(anchor)
        self._positives.append(indices[0])
        self._right.setdefault(anchor, set()).add(indices[0])
        if len(others) > 1:
            values = similarities(vectors[:1], vectors[1:], self._similarity)[0]
            self._triplets.append(bool(values[0] > values[1:].max()))

    def scores(self) -> dict[str, float]:
        """Returns the metrics of the examples, as fractions; {} if there are none.

        `mrr` is the mean reciprocal rank of an anchor's positive among the candidates, of which
        those with the same cosine count half; `recall_at_1` and `recall_at_10` are the fractions of
        anchors whose positive is among the first. `triplet_accuracy`, if there are hard negatives,
        is the fraction of examples whose positive is nearer than all of them.
        """
        if not self._anchors:
            return {}
        ranks = self._ranks()
        values = {"mrr": float(np.mean(1 / ranks))}
        values |= {f"recall_at_{k}": float(np.mean(ranks <= k)) for k in RECALLS}
        if self._triplets:
            values[TRIPLET_METRIC] = float(np.mean(self._triplets))
        return values

    def _ranks(self) -> np.ndarray:
        """Returns the rank of each anchor's positive among the candidates, from 1, float [n]."""
        candidates, anchors = np.stack(self._candidates), np.stack(self._anchors)
        ranks = np.empty(len(anchors))
        for start in range(0, len(anchors), BLOCK):
            block = similarities(anchors[start : start + BLOCK], candidates, self._similarity)
            for row, values in enumerate(block):
                index = start + row
                own = values[self._positives[index]]
                values[list(self._right[self._queries[index]])] = -np.inf
                if (anchor := self._texts.get(self._queries[index])) is not None:
                    values[anchor] = -np.inf
                ranks[index] = 1 + np.sum(values > own) + np.sum(values == own) / 2
        return ranks
