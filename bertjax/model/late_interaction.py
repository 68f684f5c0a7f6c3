"""Late interaction: one vector per token, and the scores and losses of them (ColBERT).

Array shapes: B rows, L tokens per row, K texts packed into a row, T tokens of a text, D dimensions
of a vector, n examples of C texts each, N examples of the global batch. The texts of an example are
the query and C - 1 documents, of which the first is the positive.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from bertjax.config.model import EMPTY_DOCUMENT
from bertjax.model import losses
from bertjax.model.attention import BY_HEAD
from bertjax.model.base_head import Outputs, Rows, TokenHead
from bertjax.model.embedding_losses import GLOBAL, no_negatives
from bertjax.model.losses import OUTSIDE, Arrays, Objective, Sums, label_weights
from bertjax.model.sentence_embedding import SentenceModule, SentenceModules

IDENTITY = "torch.nn.modules.linear.Identity"
NORMALIZE = SentenceModule("Normalize")


def projection_to(size: int) -> tuple[SentenceModule, ...]:
    """Returns the usual modules: a linear layer without bias, and the division by the length."""
    dense = SentenceModule("Dense", size, bias=False, activation_function=IDENTITY)
    return dense, NORMALIZE


class TokenMask(NamedTuple):
    """Which tokens of a text have a vector, as a MultiVectorMask of sentence-transformers says.

    Attributes:
        skipped: ids of tokens without a vector, such as punctuation, in the texts of the roles
            `skipped_in`, "query" or "document" or both.
        kept: ids of the only tokens of documents with a vector; empty: all.
        expansion: whether the tokens that fill up a query have vectors.
    """

    skipped: tuple[int, ...] = ()
    skipped_in: tuple[str, ...] = ("document",)
    kept: tuple[int, ...] = ()
    expansion: bool = True

    def __call__(
        self, ids: jax.Array, is_token: jax.Array, is_document: jax.Array, is_filled: jax.Array
    ) -> jax.Array:
        """Returns bool [B, L]; `ids` int [B, L], the others bool [B, L] of each token."""
        mask = is_token
        if not self.expansion:
            mask &= ~is_filled
        if self.skipped:
            is_skipped = jnp.isin(ids, jnp.array(self.skipped))
            if "document" not in self.skipped_in:
                is_skipped &= ~is_document
            if "query" not in self.skipped_in:
                is_skipped &= is_document
            mask &= ~is_skipped
        if self.kept:
            mask &= jnp.isin(ids, jnp.array(self.kept)) | ~is_document
        return mask


class BertForLateInteraction(TokenHead):
    """Computes a vector for each token (Khattab and Zaharia 2020, 3.2): token_vectors [B, L, D].

    is_scored, bool [B, L], tells which of the tokens have a vector that scores use. Token types
    are not for the encoder: they are 1 for all tokens of documents, and in queries for the tokens,
    usually [MASK], that fill them up ("query augmentation", 3.2).

    Attributes:
        projection: the modules that make vectors of hidden states.
        mask: which tokens have a vector.
        attend_expansion: whether tokens attend to those that fill up a query; if not, these attend
            to the tokens of the query alone.
        mean: whether scores are means over the tokens of a query, and not sums.
        tokens_per_text: the maximum number of tokens of a text in training, where the vectors are
            also given text by text: text_vectors [B, K, T, D], and text_mask float [B, K, T].
    """

    projection: tuple[SentenceModule, ...] = ()
    mask: TokenMask = TokenMask()
    attend_expansion: bool = False
    mean: bool = False
    tokens_per_text: int = 0

    separate_parts = ("modules",)
    outputs = ("token_vectors", "is_scored")
    sequence_outputs = ("text_vectors", "text_mask")

    @property
    def size(self) -> int:
        """The number of dimensions of a vector."""
        sizes = [module.out_features for module in self.projection if module.out_features]
        return [self.config.hidden_size, *sizes][-1]

    @property
    def types_mark_prompts(self) -> bool:
        return True

    @property
    def usable_kernel(self) -> str:
        # Fused kernels have one number per token, by which queries and keys find each other.
        if self.attend_expansion or self.attention_kernel == BY_HEAD:
            return self.attention_kernel
        return "xla"

    def setup(self):
        super().setup()
        self.modules = SentenceModules(self.projection)

    def objective(self, kind: str, options: Any = None) -> Objective:
        return late_interaction_objective(
            getattr(options, "loss", None) or kind,
            temperature=getattr(options, "temperature", None),
            mean=self.mean,
        )

    def attended_ids(
        self, sequence_ids: jax.Array, token_type_ids: jax.Array, sequence_starts: jax.Array
    ) -> jax.Array:
        if self.attend_expansion:
            return sequence_ids
        _, is_filled = _roles(sequence_ids, token_type_ids, sequence_starts)
        return jnp.where(is_filled, -sequence_ids, sequence_ids)

    def head_outputs(self, encoded: Outputs, rows: Rows) -> Outputs:
        states = encoded["last_hidden_state"].astype(jnp.float32)
        vectors = self.modules(states)
        is_document, is_filled = _roles(
            rows.sequence_ids, rows.token_type_ids, rows.sequence_starts
        )
        is_token = rows.sequence_ids > 0
        mask = self.mask(rows.input_ids, is_token, is_document, is_filled)
        outputs = {"token_vectors": vectors, "is_scored": mask}
        if self.tokens_per_text:
            numbers = jnp.arange(self.tokens_per_text)
            places = rows.sequence_starts[:, :, None] + numbers[None, None]
            number = jnp.arange(1, places.shape[1] + 1)[None, :, None]
            is_inside = _at(rows.sequence_ids, places) == number
            outputs["text_vectors"] = _at(vectors, places)
            outputs["text_mask"] = (is_inside & _at(mask, places)).astype(jnp.float32)
        return outputs


def _at(x: jax.Array, places: jax.Array) -> jax.Array:
    """Returns the values of x [B, L, ...] at places int [B, K, T]: [B, K, T, ...]."""
    return jax.vmap(lambda row, at: row.at[at].get(mode="clip"))(x, places)


def _roles(
    sequence_ids: jax.Array, token_type_ids: jax.Array, starts: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Returns which tokens are of documents, and which fill up a query, bool [B, L] each."""
    first_types = jnp.take_along_axis(token_type_ids, starts, axis=1)  # [B, K]
    texts = jnp.maximum(sequence_ids - 1, 0)
    is_document = jnp.take_along_axis(first_types, texts, axis=1) > 0
    return is_document, (token_type_ids > 0) & ~is_document


def maxsim_of_query(
    query: jax.Array, mask: jax.Array, documents: jax.Array, masks: jax.Array, mean: bool = False
) -> jax.Array:
    """Scores documents [M, S, D] for a query [T, D] (Khattab and Zaharia 2020, 3.3); returns [M].

    A score is the sum over the tokens of the query of their highest dot product with a token of the
    document, or with `mean`, that divided by the number of tokens. The masks, [T] and [M, S], are 1
    for the tokens that count, else 0; documents without such tokens have the score
    `EMPTY_DOCUMENT`.
    """
    products = jnp.einsum("td,msd->mts", query, documents, precision="highest")
    products = jnp.where(masks[:, None] > 0, products, jnp.finfo(jnp.float32).min)
    scores = jnp.where(mask[None] > 0, products.max(-1), 0).sum(-1)
    scores = jnp.where((masks > 0).any(-1), scores, EMPTY_DOCUMENT)
    if mean:
        scores /= jnp.maximum(jnp.sum(mask > 0), 1)
    return scores


def contrastive_sums(outputs: Arrays, batch: Arrays, *, temperature: float, mean: bool) -> Sums:
    """Sums the cross entropies with which queries find their positives in the global batch.

    The logits are the scores of a query with the documents of all examples, divided by the
    temperature. What is no negative is as in `embedding_losses.contrastive_sums`, as are the
    arguments, with text_vectors float [n, C, T, D] and text_mask [n, C, T] as outputs. Returns
    "loss", in nats, and "accuracy".
    """
    own = jax.nn.one_hot(batch["example_ids"], len(batch[GLOBAL]["labels"]), dtype=bool)
    is_positive = jnp.arange(batch["labels"].shape[1] - 1) == 0  # [C - 1]
    target = own[:, :, None] & is_positive[None, None]
    target = target.reshape(len(own), -1)  # [n, N (C - 1)]
    excluded = no_negatives(batch, is_positive) & ~target
    labels = jnp.argmax(target, axis=-1)
    everything = outputs[GLOBAL]
    documents = _joined(everything["text_vectors"][:, 1:])
    masks = _joined(everything["text_mask"][:, 1:])

    # One query at a time, and again in the backward pass: [M, T, S] products of all are too many.
    @jax.checkpoint
    def score(query: tuple[jax.Array, jax.Array]) -> jax.Array:
        return maxsim_of_query(*query, documents, masks, mean)

    queries = outputs["text_vectors"][:, 0], outputs["text_mask"][:, 0]
    logits = jax.lax.map(score, queries) / temperature
    logits = jnp.where(excluded, OUTSIDE, logits)
    entropies = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
    is_nearest = jnp.argmax(logits, axis=-1) == labels
    weights = batch["label_weights"]
    examples = jnp.sum(weights)
    return {
        "loss": (jnp.sum(entropies * weights), examples),
        "accuracy": (jnp.sum(is_nearest * weights), examples),
    }


def _joined(x: jax.Array) -> jax.Array:
    return x.reshape(-1, *x.shape[2:])


def distilled_sums(
    outputs: Arrays, batch: Arrays, *, temperature: float | None, mean: bool
) -> Sums:
    """Sums the losses of scores beside a teacher's scores of the same texts.

    As `embedding_losses.distilled_sums`, with text_vectors float [B, K, T, D] and text_mask
    [B, K, T] as outputs (Santhanam et al. 2022, 3.2; Hofstätter et al. 2020).
    """
    weights = batch["label_weights"]  # [B, K/C]
    texts, masks = outputs["text_vectors"], outputs["text_mask"]
    texts = texts.reshape(*weights.shape, -1, *texts.shape[2:])  # [B, K/C, C, T, D]
    masks = masks.reshape(*weights.shape, -1, masks.shape[-1])
    score = functools.partial(maxsim_of_query, mean=mean)
    of_examples = jax.vmap(jax.vmap(score))
    student = of_examples(texts[:, :, 0], masks[:, :, 0], texts[:, :, 1:], masks[:, :, 1:])
    values = losses.scores_loss(student, batch["labels"], temperature)
    return {"loss": (jnp.sum(values * weights), jnp.sum(weights))}


def late_interaction_objective(
    loss: str, *, temperature: float | None = None, mean: bool = False
) -> Objective:
    """Returns the objective that `--loss` names, or that of a kind of labels.

    Without a temperature, scores are not divided by one.
    """
    in_batch = loss == "contrastive"
    sums: Any = contrastive_sums if in_batch else distilled_sums
    if loss != "margin":
        temperature = temperature or 1.0
    return Objective(
        functools.partial(sums, temperature=temperature, mean=mean),
        label_weights,
        {"loss": 1.0},
        min_weight=1e-12,
        compares_examples=in_batch,
    )
