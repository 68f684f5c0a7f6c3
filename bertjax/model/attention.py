"""Multi-head self-attention within each sequence of a row that may hold several sequences.

It is the scaled dot-product attention of Vaswani et al. 2017, 3.2.
"""

import functools
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jax.typing import DTypeLike

from bertjax.config.model import BertConfig
from bertjax.model.dropout import Dropout
from bertjax.model.fused_attention import FUSED, Kernel
from bertjax.model.linear import Linear
from bertjax.model.matmul import matmul

# The name by which rematerialisation policies know the result of attention, the weighted mean of
# the values, before the output projection.
CONTEXT = "attention_context"
# The kernel that computes long rows one head at a time, and its shortest row in tokens. On CPUs,
# the scores of one head stay in the caches; for short rows, the loop takes longer than it saves.
BY_HEAD = "by_head"
SHORTEST_BY_HEAD = 128


class SelfAttention(nn.Module):
    """Attention of every token to the tokens of its own sequence (Vaswani et al. 2017, 3.2).

    If `config.is_decoder` is set, a token attends only to itself and to earlier tokens.

    `kernel` selects the attention kernel: "xla", `BY_HEAD` (without gradients and dropout, the
    fastest on CPUs) or a key of `fused_attention.FUSED`. The module
    sows `attention_probs` [B, N, L, L], for N attention heads, into the collection "intermediates"
    if the collection is mutable. The kernel "xla" replaces a fused kernel if the attention
    probabilities are sown, or if the fused kernel does not support the row length or the dropout of
    the probabilities ("splash" and "cudnn" support no dropout, "flash" all but that of jax's PRNG
    "rbg").

    Attributes:
        config: the config of the model.
        dtype: the dtype of the activations; parameters are always float32.
        kernel: the attention kernel, see above.
    """

    config: BertConfig
    dtype: DTypeLike = jnp.float32
    kernel: str = "xla"

    @nn.compact
    def __call__(
        self, x: jax.Array, sequence_ids: jax.Array, dropout_rows: jax.Array | None
    ) -> jax.Array:
        """Applies self-attention to x [B, L, D] -> [B, L, D].

        `sequence_ids` int [B, L] numbers the sequences of a row from 1; padding is 0.
        `dropout_rows` int [B] are the rows' indices in the global batch; None: no dropout.
        """
        config = self.config
        head_size = config.hidden_size // config.num_attention_heads

        def project(name: str) -> jax.Array:
            heads = (config.num_attention_heads, head_size)
            return Linear(config, heads, self.dtype, name=name)(x)  # [B, L, N, H]

        query, key, value = project("query"), project("key"), project("value")
        dropout = Dropout(config.attention_probs_dropout_prob)
        drops = dropout_rows is not None and dropout.rate > 0
        fused = self._fused_kernel(x.shape[1], dropout if drops else None)
        if fused:
            options: dict[str, Any] = {"causal": config.is_decoder}
            if dropout_rows is not None and drops:
                options |= {"row_keys": dropout.row_keys(dropout_rows), "rate": dropout.rate}
            context = fused.attend(query, key, value, sequence_ids, **options)
        elif self._is_by_head(x.shape[1]) and not drops:
            context = attend_by_head(query, key, value, sequence_ids, config.is_decoder)
        else:
            probs = self._probs(query, key, sequence_ids)
            self.sow("intermediates", "attention_probs", probs)
            probs = dropout(probs, dropout_rows)
            context = matmul(probs, value.swapaxes(1, 2)).astype(self.dtype).swapaxes(1, 2)
        if not (fused and fused.dropout):  # which names its result itself
            context = checkpoint_name(context, CONTEXT)
        return Linear(config, config.hidden_size, self.dtype, axes=2, name="output")(context)

    def _fused_kernel(self, length: int, dropout: Dropout | None) -> Kernel | None:
        """Returns the fused kernel if it can compute rows of `length` tokens with `dropout`."""
        fused = FUSED.get(self.kernel)
        if not fused or length % fused.tokens or self.is_mutable_collection("intermediates"):
            return None
        if dropout and not (fused.dropout and dropout.has_row_keys()):
            return None
        return fused

    def _is_by_head(self, length: int) -> bool:
        sown = self.is_mutable_collection("intermediates")
        return self.kernel == BY_HEAD and length >= SHORTEST_BY_HEAD and not sown

    def _probs(self, query: jax.Array, key: jax.Array, sequence_ids: jax.Array) -> jax.Array:
        """Computes attention probabilities [B, N, L, L] from query and key [B, L, N, head size]."""
        query, key = query.swapaxes(1, 2), key.swapaxes(1, 2)  # [B, N, L, H]
        scores = matmul(query, key, transposed=True) * query.shape[-1] ** -0.5
        probs = masked_softmax(scores, sequence_ids, self.config.is_decoder)
        return probs.astype(self.dtype)


def attend_by_head(
    query: jax.Array, key: jax.Array, value: jax.Array, sequence_ids: jax.Array, causal: bool
) -> jax.Array:
    """Computes the attention of one head after the other; its memory is that of one head's scores.

    query, key, value and the result are [B, L, N, H]; `sequence_ids` is int [B, L], 0 for padding.
    If `causal` is set, a token attends only to itself and to earlier tokens.
    """

    def attend(head: tuple[jax.Array, jax.Array, jax.Array]) -> jax.Array:
        query, key, value = head  # [B, 1, L, H]
        scores = matmul(query, key, transposed=True) * query.shape[-1] ** -0.5
        probs = masked_softmax(scores, sequence_ids, causal).astype(query.dtype)
        return matmul(probs, value).astype(query.dtype)

    heads = [x.transpose(2, 0, 1, 3)[:, :, None] for x in (query, key, value)]
    context = jax.lax.map(attend, tuple(heads))  # [N, B, 1, L, H]
    return context[:, :, 0].transpose(1, 2, 0, 3)


@functools.partial(jax.custom_jvp, nondiff_argnums=(2,))
def masked_softmax(scores: jax.Array, sequence_ids: jax.Array, causal: bool) -> jax.Array:
    """Computes the float32 softmax of scores [B, N, L, L] over the keys of the query's sequence.

    `sequence_ids` int [B, L] numbers the sequences of a row from 1; padding is 0. With `causal`, a
    query attends only to itself and to earlier keys. The scores have any floating-point type.
    """
    # The barrier makes the mask depend on the layer: otherwise JAX computes the mask, and the
    # constant in its place, once before the loop over the layers, as arrays [B, N, L, L] that every
    # layer reads from memory.
    lowest = jnp.asarray(jnp.finfo(jnp.float32).min, jnp.float32)
    sequence_ids, lowest, _ = jax.lax.optimization_barrier(
        (sequence_ids, lowest, scores[:, 0, 0, 0])
    )
    # Padding has sequence id 0 and attends to padding, so every query has at least one key.
    mask = sequence_ids[:, None, :, None] == sequence_ids[:, None, None, :]
    if causal:
        mask &= jnp.tri(mask.shape[-1], dtype=bool)[None, None]
    return jax.nn.softmax(jnp.where(mask, scores.astype(jnp.float32), lowest))


@masked_softmax.defjvp
def _masked_softmax_jvp(
    causal: bool, primals: tuple, tangents: tuple
) -> tuple[jax.Array, jax.Array]:
    (scores, sequence_ids), (tangent, _) = primals, tangents
    probs = masked_softmax(scores, sequence_ids, causal)
    # Masked probabilities are 0, and so are their tangents.
    product = probs * tangent.astype(jnp.float32)
    return probs, product - probs * product.sum(-1, keepdims=True)
