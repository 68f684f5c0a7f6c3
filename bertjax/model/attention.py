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
from bertjax.model.linear import Linear, residual_stddev
from bertjax.model.local_attention import attend_locally, is_in_blocks
from bertjax.model.masked_softmax import masked_softmax
from bertjax.model.matmul import matmul
from bertjax.model.rotary import Rotation, rotate

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
    "rbg"). With a `window`, every kernel is replaced by `local_attention`, or in short rows by
    "xla".

    Attributes:
        config: the config of the model.
        dtype: the dtype of the activations; parameters are always float32.
        kernel: the attention kernel, see above.
        window: the window of local attention in tokens; None: global attention.
    """

    config: BertConfig
    dtype: DTypeLike = jnp.float32
    kernel: str = "xla"
    window: int | None = None

    @nn.compact
    def __call__(
        self,
        x: jax.Array,
        sequence_ids: jax.Array,
        dropout_rows: jax.Array | None,
        rotation: Rotation | None = None,
    ) -> jax.Array:
        """Applies self-attention to x [B, L, D] -> [B, L, D].

        `sequence_ids` int [B, L] numbers the sequences of a row from 1; padding is 0.
        `dropout_rows` int [B] are the rows' indices in the global batch; None: no dropout.
        `rotation` holds the rotary position embeddings of the tokens; None: there are none.
        """
        config = self.config
        head_size = config.hidden_size // config.num_attention_heads

        def project(name: str) -> jax.Array:
            heads = (config.num_attention_heads, head_size)
            bias = config.attention_bias
            return Linear(config, heads, self.dtype, use_bias=bias, name=name)(x)  # [B, L, N, H]

        query, key, value = project("query"), project("key"), project("value")
        if rotation is not None:
            query, key = rotate(query, rotation), rotate(key, rotation)
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
        elif self.window is not None and self._is_in_blocks(x.shape[1], self.window):
            drop = functools.partial(dropout, rows=dropout_rows)
            context = attend_locally(query, key, value, sequence_ids, self.window, drop)
        else:
            probs = self._probs(query, key, sequence_ids)
            self.sow("intermediates", "attention_probs", probs)
            probs = dropout(probs, dropout_rows)
            context = matmul(probs, value.swapaxes(1, 2)).astype(self.dtype).swapaxes(1, 2)
        if not (fused and fused.dropout):  # which names its result itself
            context = checkpoint_name(context, CONTEXT)
        return Linear(
            *(config, config.hidden_size, self.dtype),
            axes=2,
            use_bias=config.attention_bias,
            stddev=residual_stddev(config),
            name="output",
        )(context)

    def _fused_kernel(self, length: int, dropout: Dropout | None) -> Kernel | None:
        """Returns the fused kernel if it can compute rows of `length` tokens with `dropout`."""
        fused = FUSED.get(self.kernel) if self.window is None else None  # none has a window
        if not fused or length % fused.tokens or self.is_mutable_collection("intermediates"):
            return None
        if dropout and not (fused.dropout and dropout.has_row_keys()):
            return None
        return fused

    def _is_by_head(self, length: int) -> bool:
        sown = self.is_mutable_collection("intermediates") or self.window is not None
        return self.kernel == BY_HEAD and length >= SHORTEST_BY_HEAD and not sown

    def _is_in_blocks(self, length: int, window: int) -> bool:
        return is_in_blocks(length, window) and not self.is_mutable_collection("intermediates")

    def _probs(self, query: jax.Array, key: jax.Array, sequence_ids: jax.Array) -> jax.Array:
        """Computes attention probabilities [B, N, L, L] from query and key [B, L, N, head size]."""
        query, key = query.swapaxes(1, 2), key.swapaxes(1, 2)  # [B, N, L, H]
        scores = matmul(query, key, transposed=True) * query.shape[-1] ** -0.5
        probs = masked_softmax(scores, sequence_ids, self.config.is_decoder, self.window)
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
