"""Sparse embeddings, --task=sparse: texts that belong together have words of high weight in common.

The weights are those of all words of the vocabulary (SPLADE, Formal et al. 2021). The training
examples, their held-out evaluation and the search of a collection are those of --task=embed, but
texts are compared by dot products.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

import numpy as np

from bertjax.base.checked import NonNegative, Rate
from bertjax.data.batches.batch import Feature
from bertjax.tasks.dataset import Fold
from bertjax.tasks.definition import TaskDefinition
from bertjax.tasks.embedding import (
    VECTORS,
    ContrastiveTask,
    DistilledTask,
    EmbedderOptions,
    make_of_pairs,
)
from bertjax.tasks.task import Example, Outputs, Pairs, Prediction
from bertjax.tokenization import Tokenizer

STATIC = ("static", "frozen")


@dataclasses.dataclass(frozen=True, kw_only=True)
class SparseOptions(EmbedderOptions):
    """Options of --task=sparse: pairs of texts that belong together, hard negatives, scores of a
    teacher."""

    table = EmbedderOptions.table._replace(task="sparse")

    loss: Literal["contrastive", "margin", "kl"] | None = None
    """Training loss, see docs/sparse.md; margin and kl take a teacher's scores; None:
    contrastive."""
    queries: Literal["model", "static", "frozen"] | None = None
    """What encodes queries: the model; a static weight per word, which is trained, or not
    (frozen); None: as in the files of --init, or the model."""
    splade_pooling: Literal["max", "sum"] | None = None
    """How the weights of a word at the tokens become one; None: as in the files of --init, or
    max."""
    splade_activation: Literal["relu", "log1p_relu"] | None = None
    """Weight of a word with a logit: relu is log(1 + relu(logit)), and log1p_relu log(1 + that of
    relu); None: as in the files of --init, or relu."""
    query_regularizer_weight: NonNegative | None = None
    """Weight of the FLOPS of queries in the loss; None: 5e-5, or 0 if their weights are static."""
    document_regularizer_weight: NonNegative = 3e-5
    """Weight of the FLOPS of documents in the loss."""
    regularizer_warmup: Rate = 1 / 3
    """Share of the steps in which both weights rise quadratically from 0."""

    def __post_init__(self):
        super().__post_init__()
        if self.queries == "frozen":
            self.refuse_set(
                ["query_regularizer_weight"], "with --queries frozen", "they are not trained"
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class SparseTask(ContrastiveTask):
    """Sparse embeddings with which a query finds its positive among all texts of the batch.

    Attributes:
        static_queries: whether queries have static weights, so that the model does not encode them.
        max_active_dims: the number of the highest weights of a text that predictions compare; None:
            all.
    """

    options: Any = SparseOptions()
    similarity: str = "dot"
    static_queries: bool = False
    max_active_dims: int | None = None

    head: ClassVar[str] = "sparse"
    objectives: ClassVar[tuple[str, ...]] = ("contrastive",)

    @property
    def head_fields(self) -> Mapping[str, Any]:
        options = self.options
        fields = {"pooling": options.splade_pooling, "activation": options.splade_activation}
        if options.queries is not None:
            fields["static_queries"] = options.queries in STATIC
            fields["frozen_queries"] = options.queries == "frozen"
        return {name: value for name, value in fields.items() if value is not None}

    def _encoded(
        self, texts: Sequence[str], tokenizer: Tokenizer, max_length: int, prompts: bool = True
    ) -> list[tuple[list[int], list[int]]]:
        sequences = super()._encoded(texts, tokenizer, max_length, prompts)
        if self.static_queries:
            ids, types = sequences[0]
            sequences[0] = ids, [1] * len(types)
        return sequences

    def kept(self, output: np.ndarray) -> Any:
        from scipy.sparse import csr_array  # a slow import

        return most_active(csr_array(output[None]), self.max_active_dims)

    def compare(self, a: Sequence[Any], b: Sequence[Any]) -> np.ndarray:
        from scipy.sparse import vstack

        rows, columns = vstack(a, "csr"), vstack(b, "csr")
        if self.similarity == "cosine":
            rows, columns = normalized(rows), normalized(columns)
        return (rows @ columns.T).toarray()

    def _vectors(self, outputs: Sequence[Outputs]) -> list[Any]:
        return [output["sentence_embedding"] for output in outputs]

    def predict(
        self, example: Example, features: Sequence[Feature], outputs: Sequence[Outputs]
    ) -> Prediction:
        """Returns the similarities, and `active_dims`, the number of active words of each text."""
        prediction = super().predict(example, features, outputs)
        vectors = self._vectors(outputs)
        prediction |= {"active_dims": [vector.nnz for vector in vectors]}
        if self.scored:  # or a saved model, whose predictions are all written
            prediction.pop(VECTORS, None)
        return prediction

    def score(self, pairs: Pairs) -> dict[str, float]:
        """Computes the scores of the base class, and how many words are active."""
        activity = Activity()

        def observed() -> Any:
            for example, prediction in pairs:
                if VECTORS in prediction:
                    query, *documents = prediction[VECTORS]
                    activity.add("query", query)
                    for document in documents:
                        activity.add("document", document)
                yield example, prediction

        return super().score(observed()) | activity.metrics()

    def metric_names(self) -> list[str]:
        return [*super().metric_names(), *([] if self.scored else ACTIVITY)]

    def description(self, max_length: int) -> dict[str, Any]:
        return super().description(max_length) | {"label_kind": SparseTask.label_kind}


@dataclasses.dataclass(frozen=True, kw_only=True)
class SparseDistilledTask(SparseTask, DistilledTask):
    """Sparse embeddings whose dot products are like a teacher's scores of the same texts."""

    objectives: ClassVar[tuple[str, ...]] = DistilledTask.objectives


ACTIVITY = ("query_active_dims", "document_active_dims", "flops")


class Activity:
    """Counts how many words of queries and documents are active."""

    def __init__(self):
        self._words: dict[str, np.ndarray] = {}
        self._texts = {"query": 0, "document": 0}

    def add(self, role: str, vectors: Any) -> None:
        """Adds texts of a role, the rows of a SciPy CSR array [n, V]."""
        counts = np.bincount(vectors.indices, minlength=vectors.shape[1])
        self._words[role] = self._words.get(role, 0) + counts
        self._texts[role] += vectors.shape[0]

    def merge(self, other: "Activity") -> None:
        """Adds the texts that `other` has counted."""
        for role, counts in other._words.items():
            self._words[role] = self._words.get(role, 0) + counts
            self._texts[role] += other._texts[role]

    def metrics(self) -> dict[str, float]:
        """Returns the mean numbers of active words of queries and documents, and `flops`.

        FLOPS is the mean number of active words that a query and a document have in common, the
        multiplications of their dot product (Paria et al. 2020). {}: there are no texts.
        """
        if len(self._words) < 2:
            return {}
        shares = {role: count / self._texts[role] for role, count in self._words.items()}
        values = [shares[role].sum() for role in ("query", "document")]
        values.append(shares["query"] @ shares["document"])
        return dict(zip(ACTIVITY, map(float, values), strict=True))


def most_active(vectors: Any, count: int | None) -> Any:
    """Returns a SciPy CSR array with the `count` largest absolute values of each row; None: all."""
    if count is None or not len(vectors.indptr) or np.diff(vectors.indptr).max(initial=0) <= count:
        return vectors
    vectors = vectors.copy()
    for start, end in zip(vectors.indptr[:-1], vectors.indptr[1:], strict=True):
        if end - start > count:
            values = np.abs(vectors.data[start:end])
            others = np.argsort(-values, kind="stable")[count:]
            vectors.data[start + others] = 0
    vectors.eliminate_zeros()
    return vectors


def normalized(vectors: Any) -> Any:
    """Returns the rows of a SciPy CSR array divided by their lengths."""
    vectors = vectors.copy()
    squares = vectors.multiply(vectors).sum(axis=1)
    lengths = np.sqrt(np.maximum(squares, 1e-24))
    vectors.data /= np.repeat(lengths, np.diff(vectors.indptr))
    return vectors


def make_sparse(options: SparseOptions, fold: Fold | None) -> Any:
    """Makes the task of the user's pairs or triplets of texts."""
    return make_of_pairs("sparse", options, fold, SparseTask, SparseDistilledTask)


SPARSE = TaskDefinition(
    name="sparse",
    kinds=(SparseTask, SparseDistilledTask),
    options=SparseOptions,
    make=make_sparse,
)
