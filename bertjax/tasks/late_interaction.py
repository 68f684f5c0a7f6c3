"""Late interaction, --task=colbert: queries and documents with one vector per token.

The training examples, their held-out evaluation and the search of a collection are those of
--task=embed; texts are compared by MaxSim (Khattab and Zaharia 2020).
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np

from bertjax.base.checked import Count
from bertjax.config.model import EMPTY_DOCUMENT
from bertjax.tasks.dataset import Fold
from bertjax.tasks.definition import TaskDefinition
from bertjax.tasks.embedding import (
    ContrastiveTask,
    DistilledTask,
    EmbedderOptions,
    EmbeddingTask,
    SimilarityTask,
    make_of_pairs,
)
from bertjax.tasks.task import Outputs
from bertjax.tokenization import Tokenizer

MAXSIM, MEAN_MAXSIM = "maxsim", "meanmaxsim"


@dataclasses.dataclass(frozen=True, kw_only=True)
class LateInteractionOptions(EmbedderOptions):
    """Options of --task=colbert: pairs of queries and documents, with one vector per token."""

    loss: Literal["contrastive", "margin", "kl"] | None = None
    """Training loss: in-batch negatives, or a teacher's differences of scores or distribution;
    None: contrastive."""
    similarity: Literal["maxsim", "meanmaxsim"] | None = None
    """Sum over the tokens of a query of their highest dot products, or the mean; None: as in the
    files of --init, or maxsim."""
    vector_size: Count | None = None
    """Dimensions of a new linear layer that makes the vectors; None: that of --init, or a new one
    with 128."""
    query_expansion: Literal["fixed", "min", "none"] | None = None
    """Whether [MASK] fills up queries to --query_length tokens, which longer ones are truncated to
    (fixed) or not (min); None: as in the files of --init, or fixed."""
    attend_expansion: bool | None = None
    """Whether tokens attend to those that fill up a query; None: as in the files of --init, or only
    in DeBERTa."""
    query_length: Count | None = None
    """Number of tokens of queries that are filled up, else the maximum; None: as in the files of
    --init, or 32."""
    document_length: Count | None = None
    """Maximum number of tokens of documents; None: as in the files of --init, or --max_length."""
    skip_punctuation: bool | None = None
    """Whether punctuation in documents has no vectors; None: as in the files of --init, or True."""

    def __post_init__(self):
        super().__post_init__()
        if self.query_expansion == "none" and self.attend_expansion is not None:
            raise ValueError(
                f"attend_expansion={self.attend_expansion} has no effect with --query_expansion "
                "none: leave it out."
            )


class Expansion(NamedTuple):
    """The tokens that fill up short queries (Khattab and Zaharia 2020, 3.2).

    Attributes:
        strategy: "fixed", if longer queries are truncated to `length`, or "min", if not.
        length: the number of tokens of a query, [CLS] and [SEP] included.
        attend: whether the tokens of a query attend to those that fill it up.
        token: the token that fills up queries; None: the mask token.
    """

    strategy: str
    length: int
    attend: bool = False
    token: str | None = None

    def longest(self, max_length: int) -> int:
        """Returns to how many tokens a query is truncated, of the `max_length` of other texts."""
        return self.length if self.strategy == "fixed" else max_length

    def filled(self, ids: Sequence[int], tokenizer: Tokenizer) -> list[int]:
        """Returns the ids of a query with those that fill it up."""
        return [*ids, *[self.token_id(tokenizer)] * (self.length - len(ids))]

    def token_id(self, tokenizer: Tokenizer) -> int:
        """Returns the id of the token that fills up queries."""
        if self.token is None:
            return tokenizer.mask_token_id
        return tokenizer.vocab[self.token]


class TokenPooling(NamedTuple):
    """How the vectors of a text are pooled, as by HierarchicalTokenPooling.

    Attributes:
        factor: the number of tokens per vector.
        protected: the number of the first tokens that keep their vectors.
        normalize: whether vectors are divided by their length afterwards.
        roles: the roles of the texts whose vectors are pooled.
    """

    factor: float
    protected: int = 1
    normalize: bool = True
    roles: tuple[str, ...] = ("document",)


def pool_tokens(vectors: np.ndarray, pooling: TokenPooling) -> np.ndarray:
    """Replaces vectors [T, D] of length 1 by the means of groups of similar ones.

    The groups are those of Ward's clustering of cosine distances (Clavié et al. 2024), about
    `factor` tokens per group. The first `protected` tokens stay as they are.
    """
    from scipy.cluster import hierarchy  # slow imports, which `--help` would wait for
    from scipy.spatial.distance import squareform

    protected = vectors[: pooling.protected]
    others = vectors[pooling.protected :]
    count = max(int(len(others) // pooling.factor), 1)
    if count < len(others):
        distances = np.clip(1 - others @ others.T, 0, 2)
        tree = hierarchy.linkage(squareform(distances, checks=False), "ward")
        labels = hierarchy.fcluster(tree, count, "maxclust")
        groups, group_of = np.unique(labels, return_inverse=True)
        sums = np.zeros((len(groups), vectors.shape[1]), np.float32)
        np.add.at(sums, group_of, others)
        means = sums / np.bincount(group_of)[:, None].astype(np.float32)
        vectors = np.concatenate([protected, means])
    if pooling.normalize:
        lengths = np.linalg.norm(vectors, axis=-1, keepdims=True)
        vectors = vectors / np.maximum(lengths, 1e-12)
    return vectors


def maxsim(
    queries: Sequence[np.ndarray], documents: Sequence[np.ndarray], *, mean: bool = False
) -> np.ndarray:
    """Scores documents for queries, vectors [T, D] each; returns float32 [queries, documents].

    As `maxsim_of_query` in `model.late_interaction`, on texts of any number of tokens.
    """
    scores = np.full((len(queries), len(documents)), EMPTY_DOCUMENT, np.float32)
    lengths = np.array([len(document) for document in documents], int)
    present = np.flatnonzero(lengths).tolist()
    if present:
        tokens = np.concatenate([documents[place] for place in present])
        starts = np.cumsum(lengths[present]) - lengths[present]
        for row, query in enumerate(queries):
            highest = np.maximum.reduceat(query @ tokens.T, starts, axis=1)
            scores[row, present] = highest.sum(0)
    if mean:
        counts = [max(len(query), 1) for query in queries]
        scores /= np.array(counts, np.float32)[:, None]
    return scores


@dataclasses.dataclass(frozen=True, kw_only=True)
class LateInteractionTask(EmbeddingTask):
    """Base class of the tasks whose texts have one vector per token.

    Token types tell the model what a token is: 1 for all tokens of documents, and for those that
    fill up a query.

    Attributes:
        expansion: the tokens that fill up queries; None: none do.
        pooling: how the vectors of a text are pooled in predictions; None: they are not.
    """

    options: Any = LateInteractionOptions()
    similarity: str = MAXSIM
    expansion: Expansion | None = None
    pooling: TokenPooling | None = None

    head: ClassVar[str] = "late_interaction"

    @property
    def head_fields(self) -> Mapping[str, Any]:
        if self.options.vector_size is None:
            return {}
        return {"vector_size": self.options.vector_size}

    def length_of(self, role: str, max_length: int) -> int:
        length = super().length_of(role, max_length)
        if role == "query" and self.expansion is not None:
            return self.expansion.longest(length)
        return length

    def _encoded(
        self, texts: Sequence[str], tokenizer: Tokenizer, max_length: int, prompts: bool = True
    ) -> list[tuple[list[int], list[int]]]:
        (query, _), *documents = super()._encoded(texts, tokenizer, max_length, prompts)
        filled = query
        if self.expansion is not None:
            filled = self.expansion.filled(query, tokenizer)
        sequences = [(filled, [int(place >= len(query)) for place in range(len(filled))])]
        for ids, _ in documents:
            sequences.append((ids, [1] * len(ids)))
        return sequences

    def compare(self, a: Any, b: Any) -> np.ndarray:
        return maxsim(a, b, mean=self.similarity == MEAN_MAXSIM)

    def _vectors(self, outputs: Sequence[Outputs]) -> Any:
        """Returns the vectors of the tokens of each text, float32 [T, D]."""
        vectors = []
        for index, output in enumerate(outputs):
            of_text = output["token_vectors"][output["is_scored"]]
            role = "document" if index else "query"
            if self.pooling is not None and role in self.pooling.roles:
                of_text = pool_tokens(of_text, self.pooling)
            vectors.append(of_text)
        return vectors


@dataclasses.dataclass(frozen=True, kw_only=True)
class TokenSimilarityTask(LateInteractionTask, SimilarityTask):
    """A saved model, which predicts the similarities of queries and documents."""

    objectives: ClassVar[tuple[str, ...]] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class TokenContrastiveTask(LateInteractionTask, ContrastiveTask):
    """Queries find their positives among all documents of the batch."""

    objectives: ClassVar[tuple[str, ...]] = ("contrastive",)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TokenDistilledTask(LateInteractionTask, DistilledTask):
    """The scores of documents are like a teacher's."""


def make_late_interaction(options: LateInteractionOptions, fold: Fold | None) -> EmbeddingTask:
    """Makes the task of the user's pairs of queries and documents, perhaps with hard negatives."""
    return make_of_pairs("colbert", options, fold, TokenContrastiveTask, TokenDistilledTask)


COLBERT = TaskDefinition(
    name="colbert",
    kinds=(TokenSimilarityTask, TokenContrastiveTask, TokenDistilledTask),
    options=LateInteractionOptions,
    make=make_late_interaction,
)
