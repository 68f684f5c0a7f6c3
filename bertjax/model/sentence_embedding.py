"""Sentence embeddings: pooling, the modules behind it, and the head that applies both.

Array shapes: B rows, K sequences packed into a row, L tokens per row, D dimensions of an embedding.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple, get_args

import flax.linen as nn
import jax
import jax.numpy as jnp

from bertjax.base.checked import check
from bertjax.config.model import Pooling
from bertjax.data.batches.batch import SeveralTexts
from bertjax.model.base_head import BertWithHead, Outputs, Rows
from bertjax.model.embedding_losses import embedding_objective, unit
from bertjax.model.embeddings import take_positions
from bertjax.model.losses import Objective, tokens_of_sequences


def pooled(
    x: jax.Array,
    sequence_ids: jax.Array,
    sequence_starts: jax.Array,
    pooling: str,
    skipped: jax.Array | None = None,
) -> jax.Array:
    """Pools the hidden states of each of the K sequences of a row (Reimers and Gurevych 2019, 3).

    The hidden states x are float [B, L, D]; `sequence_ids` and `sequence_starts` are as in
    `Rows`. The result is float32 [B, K, D], with D for each of several kinds, also for unused
    entries of a row.

    `pooling` is "mean" over all tokens of a sequence; "mean_sqrt_len_tokens", their sum divided by
    the square root of their number; "weightedmean", where the n-th token has the weight n
    (Muennighoff 2022); "max" of each dimension; the hidden state of the first token ("cls") or of
    the last one ("lasttoken"). Several, joined by "+", are concatenated. `skipped` int [B, K] are
    first tokens of each sequence that are left out, but count for "weightedmean"; None: 0.
    """
    x = x.astype(jnp.float32)
    firsts = sequence_starts if skipped is None else sequence_starts + skipped
    inside = whole = tokens_of_sequences(sequence_ids, sequence_starts.shape[1])
    positions = jnp.arange(x.shape[1])[None, None]
    if skipped is not None:
        inside = whole & (positions >= firsts[:, :, None])
    vectors = []
    for mode in pooling.split("+"):
        check("pooling", mode, Pooling)
        if mode == "cls":
            vector = take_positions(x, firsts)
        elif mode == "lasttoken":
            lasts = jnp.where(whole, positions, 0).max(-1)
            vector = take_positions(x, lasts)
        elif mode == "max":
            highest = jnp.where(inside[..., None], x[:, None], -jnp.inf).max(2)
            has_tokens = inside.any(-1, keepdims=True)
            vector = jnp.where(has_tokens, highest, 0)
        else:
            weights = inside.astype(jnp.float32)
            counts: jax.Array = inside.sum(-1, keepdims=True)
            if mode == "weightedmean":
                weights *= 1 + positions - sequence_starts[:, :, None]
                counts = weights.sum(-1, keepdims=True)
            sums = jnp.einsum("bkl,bld->bkd", weights, x, precision="highest")
            counts = jnp.maximum(counts, 1)
            if mode == "mean_sqrt_len_tokens":
                counts = jnp.sqrt(counts)
            vector = sums / counts
        vectors.append(vector)
    if len(vectors) == 1:
        return vectors[0]
    return jnp.concatenate(vectors, axis=-1)


ACTIVATIONS: dict[str, Callable[[jax.Array], jax.Array]] = {
    "CELU": jax.nn.celu,
    "ELU": jax.nn.elu,
    "GELU": functools.partial(jax.nn.gelu, approximate=False),
    "Hardsigmoid": jax.nn.hard_sigmoid,
    "Hardswish": jax.nn.hard_swish,
    "Hardtanh": jax.nn.hard_tanh,
    "Identity": jax.nn.identity,
    "LeakyReLU": jax.nn.leaky_relu,
    "LogSigmoid": jax.nn.log_sigmoid,
    "Mish": jax.nn.mish,
    "ReLU": jax.nn.relu,
    "ReLU6": jax.nn.relu6,
    "SELU": jax.nn.selu,
    "SiLU": jax.nn.silu,
    "Sigmoid": jax.nn.sigmoid,
    "Softplus": jax.nn.softplus,
    "Softsign": jax.nn.soft_sign,
    "Tanh": jax.nn.tanh,
}
"""The activations of `torch.nn` by their classes, with the default arguments of these."""


def activation(path: str) -> Callable[[jax.Array], jax.Array] | None:
    """Returns the activation whose class in torch.nn has this path; None if there is none."""
    if not path.startswith("torch.nn."):
        return None
    return ACTIVATIONS.get(path.rpartition(".")[2])


class SentenceModule(NamedTuple):
    """A module of sentence-transformers that follows the pooling: Dense, LayerNorm or Normalize.

    The fields have the names of a Dense's config, and are unused in the other kinds. With
    `use_residual`, the input is added to the output, by a matrix if their sizes differ.
    """

    kind: str
    out_features: int = 0
    bias: bool = True
    activation_function: str = "torch.nn.modules.activation.Tanh"
    use_residual: bool = False


class SentenceModules(nn.Module):
    """Applies modules to vectors, [..., D] -> [..., size], as sentence-transformers does.

    The parameters of module i, from 0, are under "i", and those of its residual under "i_residual".
    """

    modules: tuple[SentenceModule, ...]

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        dense = functools.partial(nn.Dense, precision="highest")
        for index, module in enumerate(self.modules):
            if module.kind == "Normalize":
                x = unit(x)
            elif module.kind == "LayerNorm":
                x = nn.LayerNorm(epsilon=1e-5, use_fast_variance=False, name=str(index))(x)
            else:
                size = module.out_features
                y = dense(size, use_bias=module.bias, name=str(index))(x)
                y = activation(module.activation_function)(y)  # type: ignore[misc]
                if module.use_residual:
                    if x.shape[-1] != size:
                        x = dense(size, use_bias=False, name=f"{index}_residual")(x)
                    y = x + y
                x = y
        return x


class BertForSentenceEmbedding(BertWithHead):
    """Computes the embedding of each sequence: sentence_embedding [B, K, D].

    The vectors are pooled from the last hidden states (Reimers and Gurevych 2019, 3). The pooler of
    the encoder, if there is one, is kept and not trained, so that transformers loads it unchanged.

    Attributes:
        pooling: as in `pooled`.
        after_pooling: the modules that follow the pooling.
        normalize: whether vectors are divided by their Euclidean length in the end.
        include_prompt: if False, the pooling leaves out the prompts, which are the tokens of type 0
            in sequences that have tokens of type 1; the encoder gets the type 0 for all tokens.
        hidden_layers: indices of the hidden states that are concatenated and pooled; others than
            the last need `output_hidden_states`.
    """

    pooling: str = "mean"
    after_pooling: tuple[SentenceModule, ...] = ()
    normalize: bool = False
    include_prompt: bool = True
    hidden_layers: tuple[int, ...] = (-1,)

    separate_parts = ("modules",)
    outputs = sequence_outputs = ("sentence_embedding",)
    objectives = {x: embedding_objective(x) for x in get_args(SeveralTexts)}

    @property
    def size(self) -> int:
        """The number of dimensions of an embedding."""
        modes = self.pooling.split("+")
        size = self.config.hidden_size * len(self.hidden_layers) * len(modes)
        for module in self.after_pooling:
            if module.out_features:
                size = module.out_features
        return size

    @property
    def types_mark_prompts(self) -> bool:
        return not self.include_prompt

    def setup(self):
        super().setup()
        self.modules = SentenceModules(self.after_pooling)

    def objective(self, kind: str, options: Any = None) -> Objective:
        if options is None:
            return super().objective(kind)
        for size in options.matryoshka:
            if not 1 <= size <= self.size:
                raise ValueError(
                    f"matryoshka={list(options.matryoshka)}: choose sizes from 1 to {self.size}, "
                    f"the size of the embeddings, which cannot be cut to {size}."
                )
        return embedding_objective(
            options.loss or kind,
            temperature=options.temperature,
            matryoshka=options.matryoshka,
            margin=options.false_negative_margin,
        )

    def head_outputs(self, encoded: Outputs, rows: Rows) -> Outputs:
        x = encoded["last_hidden_state"]
        skipped = None
        if self.hidden_layers != (-1,):
            states = encoded["hidden_states"]
            x = jnp.concatenate([states[layer] for layer in self.hidden_layers], axis=-1)
        if not self.include_prompt:
            inside = tokens_of_sequences(rows.sequence_ids, rows.sequence_starts.shape[1])
            is_text = (rows.token_type_ids > 0)[:, None]
            texts = (inside & is_text).sum(-1)
            prompts = inside.sum(-1) - texts
            skipped = jnp.where(texts > 0, prompts, 0)
        vectors = pooled(x, rows.sequence_ids, rows.sequence_starts, self.pooling, skipped)
        vectors = self.modules(vectors)
        if self.normalize:
            vectors = unit(vectors)
        return {"sentence_embedding": vectors}
