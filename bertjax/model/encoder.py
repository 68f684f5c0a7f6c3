"""The transformer layers of the encoder: a scan over layers with parameters stacked on axis 0.

`Encoder` has the layers of Vaswani et al. 2017, 3.1; ALBERT repeats one layer (Lan et al. 2019,
3.1). `PreNormEncoder` has the layers of ModernBERT (Warner et al. 2024, 2.1). Its local and global
layers have parameters of the same shapes, which are stacked as well, but different programs. So
layer 0, if it has no LayerNorm before attention, stands alone; then follows a scan over periods of
n = `global_attn_every_n_layers` layers, n - 1 local layers and a global layer; layers that are left
over follow at the end. A scan over single layers would have to contain both kinds of
attention, and its backward pass would store the intermediate results of both for every layer.

All modules map x [B, L, D] to [B, L, D]. `sequence_ids` int [B, L] numbers the sequences of a row
from 1; padding is 0. `dropout_rows` int [B] are the rows' indices in the global batch; None: no
dropout. `dtype` is the dtype of the activations; parameters are always float32.
"""

import functools
import math
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax.traverse_util import flatten_dict, unflatten_dict
from jax.ad_checkpoint import checkpoint_name
from jax.typing import DTypeLike

from bertjax.config.model import BertConfig
from bertjax.model.attention import (
    CONTEXT,
    Rotation,
    SelfAttention,
    position_table,
    rotation,
    rotation_rates,
    slowed_rotation,
)
from bertjax.model.dropout import Dropout, rate_of
from bertjax.model.embeddings import layer_norm
from bertjax.model.linear import NORMALIZER, OUTPUT, PROJECTION, Linear, platform, residual_stddev
from bertjax.model.relative_attention import (
    Convolution,
    RelativeBias,
    RelativeEmbeddings,
)


def _gelu(x: jax.Array) -> jax.Array:
    # With erf as in PyTorch; jax.nn.gelu uses erfc, which is slower. In bfloat16, 1 + erf(x) would
    # lose most of the 8 bits of precision for negative x.
    y = x.astype(jnp.float32)
    result = 0.5 * y * (1.0 + jax.lax.erf(y * 0.5**0.5))
    return result.astype(x.dtype)


def _gelu_of_tanh(x: jax.Array) -> jax.Array:
    return jax.nn.gelu(x, approximate=True)


_ACTIVATIONS = {
    "gelu": _gelu,
    "gelu_new": _gelu_of_tanh,
    "gelu_pytorch_tanh": _gelu_of_tanh,
    "relu": jax.nn.relu,
    "silu": jax.nn.silu,
    "swish": jax.nn.silu,
    "tanh": jnp.tanh,
}


RESIDUAL = "residual_sum"
# Rematerialisation policies: what a layer stores for the backward pass. All intermediate results
# ("none"), what it needs of linear layers, attention and residual sums ("selective", Korthikanti et
# al. 2022, 4), results of matrix multiplications with parameters ("dots"), or nothing ("full").
REMAT_POLICIES: dict[str, Any] = {
    "none": None,
    "selective": jax.checkpoint_policies.save_only_these_names(
        PROJECTION, RESIDUAL, CONTEXT, OUTPUT, NORMALIZER
    ),
    "dots": jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
    "full": jax.checkpoint_policies.nothing_saveable,
}


def activation(name: str, x: jax.Array) -> jax.Array:
    """Applies to x the activation function that transformers calls `name`; x has any shape."""
    return _ACTIVATIONS[name](x)


class EncoderLayer(nn.Module):
    """Self-attention and feed-forward network, each followed by dropout, residual and LayerNorm.

    Vaswani et al. 2017, 3.1, with the activation and dropout of BERT (Devlin et al. 2018, 3, A.2).
    """

    config: BertConfig
    dtype: DTypeLike = jnp.float32
    attention_kernel: str = "xla"

    @nn.compact
    def __call__(
        self,
        x: jax.Array,
        sequence_ids: jax.Array,
        dropout_rows: jax.Array | None,
        rotation: Rotation | None = None,
        relative: jax.Array | None = None,
        queries: jax.Array | None = None,
    ) -> jax.Array:
        """Applies the layer to x [B, L, D]; the other arguments are those of `SelfAttention`."""
        config = self.config
        attention = SelfAttention(config, self.dtype, self.attention_kernel, name="attention")
        attended = attention(x, sequence_ids, dropout_rows, rotation, relative, queries)
        if queries is not None:
            x = queries
        rate = rate_of(config.attention_output_dropout, config.hidden_dropout_prob)
        attended = Dropout(rate)(attended, dropout_rows)
        x = checkpoint_name(x + attended, RESIDUAL)
        x = layer_norm(config, self.dtype, "attention_layer_norm")(x)
        inner = _inner_activations(config, self.dtype, x)
        # Its name leaves the other dropouts theirs, from which their random numbers are made.
        inner = Dropout(config.mlp_dropout, name="mlp_dropout")(inner, dropout_rows)
        outer = _output_layer(config, self.dtype)(inner)
        rate = rate_of(config.mlp_output_dropout, config.hidden_dropout_prob)
        outer = Dropout(rate)(outer, dropout_rows)
        x = checkpoint_name(x + outer, RESIDUAL)
        return layer_norm(config, self.dtype, "output_layer_norm")(x)


def _inner_activations(config: BertConfig, dtype: DTypeLike, x: jax.Array) -> jax.Array:
    """Computes the inner activations of a feed-forward layer of the module that calls it.

    With `gated_linear_unit`, they are those of a gated linear unit (Shazeer 2020).
    """
    linear = functools.partial(
        Linear, config, config.intermediate_size, dtype, use_bias=config.mlp_bias
    )
    inner = activation(config.hidden_act, linear(name="intermediate")(x))
    if config.gated_linear_unit:
        inner *= linear(name="gate")(x)
    return inner


def _output_layer(config: BertConfig, dtype: DTypeLike) -> Linear:
    """Returns the last linear layer of a feed-forward layer of the module that calls it."""
    has_bias = config.mlp_bias if config.mlp_output_bias is None else config.mlp_output_bias
    stddev = residual_stddev(config)
    return Linear(
        config, config.hidden_size, dtype, use_bias=has_bias, stddev=stddev, name="output"
    )


def rotation_of(
    config: BertConfig,
    position_ids: jax.Array,
    theta: float | None,
    stored: jax.Array | None = None,
    *,
    slowed: bool = True,
) -> Rotation | None:
    """Returns the rotations for `position_ids` int [B, L]; None: there are none.

    `theta` is the base of the rotary positions, and `stored` are rates that replace those that
    follow from it. `slowed` says whether `config.rope_type` has an effect.
    """
    if theta is None:
        return None
    if stored is not None:
        return rotation(position_ids, stored)
    if config.rope_interleaved:
        table = position_table(config.max_position_embeddings, config.head_size, theta)
        sin, cos = jnp.split(jnp.asarray(table)[position_ids][:, :, None], 2, axis=-1)
        return Rotation(cos, sin)
    if slowed and config.rope_type not in ("default", "dynamic"):
        return slowed_rotation(config, position_ids, theta)
    return rotation(position_ids, rotation_rates(config.head_size, theta))


class Encoder(nn.Module):
    """A stack of `num_hidden_layers` transformer layers, whose parameters have shape [groups, ...].

    The module scans over groups of layers. In BERT, each layer is a group of its own. In ALBERT,
    the layers of a group share their parameters (Lan et al. 2019, 3.1), and an inner scan runs over
    the layers of a group.

    Attributes:
        unroll: the unroll factor of the scan.
        remat: a key of `REMAT_POLICIES`, which determines what the backward pass recomputes.
        attention_kernel: the `kernel` of `SelfAttention`.
    """

    config: BertConfig
    dtype: DTypeLike = jnp.float32
    unroll: int = 1
    remat: str = "none"
    attention_kernel: str = "xla"

    @nn.compact
    def __call__(
        self,
        x: jax.Array,
        sequence_ids: jax.Array,
        dropout_rows: jax.Array | None,
        position_ids: jax.Array,
        *,
        output_hidden_states: bool = False,
    ) -> tuple[jax.Array, jax.Array | None]:
        """Returns the output of the last layer, and the outputs of all layers [layers, B, L, D].

        The latter are None unless `output_hidden_states` is set. `position_ids` int [B, L] are the
        positions of the tokens in their sequences, from 0.
        """
        config = self.config
        first_biases, next_biases = self._biases()
        relative = self._relative(x.shape[1])
        theta = config.global_rope_theta
        rotation = rotation_of(config, position_ids, theta, self._stored_rates())
        convolve = is_first = None
        if config.conv_kernel_size:
            convolve = self._convolve(x, sequence_ids, dropout_rows)
            is_first = jnp.arange(config.num_hidden_layers) == 0

        def body(layer: EncoderLayer, carry: tuple[jax.Array, Any], of_layer: Any):
            x, biases = carry
            next_biases, is_first = of_layer
            x = _with_biases(layer, biases)(x, sequence_ids, dropout_rows, rotation, relative)
            if convolve is not None:
                x = jnp.where(is_first, convolve(x), x)
            return (x, next_biases), x if output_hidden_states else None

        if self.remat != "none":
            # Without a loop, common subexpression elimination would undo the recomputation.
            body = nn.remat(body, prevent_cse=self.unroll > 1, policy=REMAT_POLICIES[self.remat])
        groups = config.groups
        repeats = config.num_hidden_layers // groups
        if repeats > 1:
            body = nn.scan(
                body,
                variable_axes={"intermediates": 0},
                variable_broadcast="params",
                split_rngs={"params": False, "dropout": True},
                length=repeats,
                unroll=min(self.unroll, repeats),
            )
        scan = nn.scan(
            body,
            variable_axes={"params": 0, "intermediates": 0},
            split_rngs={"params": True, "dropout": True},
            length=groups,
            unroll=min(self.unroll, groups) if repeats == 1 else 1,
        )
        layer = EncoderLayer(config, self.dtype, self.attention_kernel, name="layers")
        (x, _), layers = scan(layer, (x, first_biases), (next_biases, is_first))
        if layers is not None:
            layers = layers.reshape(-1, *x.shape)  # [groups, repeats, ...] -> [layers, ...]
        return x, layers

    def _stored_rates(self) -> jax.Array | None:
        """Returns the rates of the rotations that are stored with the parameters, if any."""
        config = self.config
        if not config.stored_rope:
            return None
        theta = float(config.global_rope_theta or 0)  # `BertConfig` requires it
        rates = self.param("rope_rates", lambda key: rotation_rates(config.head_size, theta))
        return jax.lax.stop_gradient(rates)

    def _relative(self, length: int) -> jax.Array | None:
        """Returns what `SelfAttention` takes as `relative`."""
        config = self.config
        if config.relative_attention:
            return RelativeEmbeddings(config, self.dtype, name="relative")()
        if config.relative_attention_num_buckets:
            return RelativeBias(config, name="relative")(length)
        return None

    def _convolve(
        self, embedded: jax.Array, sequence_ids: jax.Array, dropout_rows: jax.Array | None
    ) -> Callable[[jax.Array], jax.Array]:
        """Convolves the embeddings; returns a function that adds the result to x."""
        config = self.config
        convolution = Convolution(config, self.dtype, name="convolution")
        convolved, norm = convolution(embedded, sequence_ids, dropout_rows)
        convolved = activation(config.conv_act, convolved)
        apply_norm = functools.partial(layer_norm(config, self.dtype).apply, {"params": norm})
        return lambda x: jnp.asarray(apply_norm(x + convolved))

    def decode(
        self,
        x: jax.Array,
        queries: jax.Array,
        sequence_ids: jax.Array,
        dropout_rows: jax.Array | None,
    ) -> jax.Array:
        """Applies the last layer twice to keys and values of x, to `queries` and what they become.

        This is the enhanced mask decoder (He et al. 2020, 3.2), as in Microsoft's code.
        """
        params = self.variables["params"]
        last = jax.tree.map(lambda leaf: leaf[-1], params["layers"])
        embeddings = RelativeEmbeddings(self.config, self.dtype, parent=None)
        relative = embeddings.apply({"params": params["relative"]})
        layer = EncoderLayer(self.config, self.dtype, self.attention_kernel, parent=None)
        drops = dropout_rows is not None and self.has_rng("dropout")

        def run(params: Any, queries: jax.Array, key: jax.Array | None) -> jax.Array:
            rngs = None if key is None else {"dropout": key}
            inputs = (x, sequence_ids, dropout_rows, None, relative, queries)
            return jnp.asarray(layer.apply({"params": params}, *inputs, rngs=rngs))

        if self.remat != "none":
            run = jax.checkpoint(run, policy=REMAT_POLICIES[self.remat])
        for _ in range(2):
            key = self.make_rng("dropout") if drops else None
            queries = run(last, queries, key)
        return queries

    def _biases(self) -> tuple[Any, Any]:
        """Returns the biases of layer 0, and for each layer the biases of the next one.

        On GPUs, they are passed from layer to layer: XLA adds a bias within the kernel of the
        matrix multiplication if it is a variable of the loop, but not if the loop slices it.
        """
        shared = self.config.groups < self.config.num_hidden_layers
        if self.is_initializing() or shared or platform() in ("cpu", "tpu"):
            return None, None
        params: dict[Any, Any] = flatten_dict(self.variables["params"]["layers"])
        biases = {}
        for path in params:
            *layer, name = path
            if name == "bias" and (*layer, "kernel") in params:
                biases[path] = params[path].astype(self.dtype)
        first = {path: bias[0] for path, bias in biases.items()}
        following = {path: jnp.roll(bias, -1, 0) for path, bias in biases.items()}
        return first, following


def _with_biases(layer: EncoderLayer, biases: Any) -> Callable[..., jax.Array]:
    """Returns `layer` with other biases, {path in its parameters: array}; None: with its own."""
    if biases is None:
        return layer

    def replaced(collections: Any) -> Any:
        params = flatten_dict(collections["params"]) | biases
        return {"params": unflatten_dict(params)}

    apply = nn.map_variables(lambda layer, *args: layer(*args), "params", replaced)
    return functools.partial(apply, layer)


class PreNormLayer(nn.Module):
    """Self-attention and feed-forward network, each with a LayerNorm before it and a residual.

    This is the encoder layer of ModernBERT (Warner et al. 2024, 2.1.1). Attention is global if
    `is_global`, else it has the window `config.local_attention`. The `first` layer has no LayerNorm
    before attention, unless `config.first_attention_norm` is set.
    """

    config: BertConfig
    dtype: DTypeLike = jnp.float32
    attention_kernel: str = "xla"
    is_global: bool = True
    first: bool = False

    @nn.compact
    def __call__(
        self,
        x: jax.Array,
        sequence_ids: jax.Array,
        dropout_rows: jax.Array | None,
        rotation: Rotation | None = None,
    ) -> jax.Array:
        """Applies the layer to x [B, L, D]."""
        config = self.config
        dtype = self.dtype
        rate = rate_of(config.attention_output_dropout, config.hidden_dropout_prob)
        window = None if self.is_global else config.local_attention
        normed = x
        if not self.first or config.first_attention_norm:
            normed = layer_norm(config, dtype, "attention_norm")(x)
        attention = SelfAttention(config, dtype, self.attention_kernel, window, name="attention")
        attended = attention(normed, sequence_ids, dropout_rows, rotation)
        attended = Dropout(rate)(attended, dropout_rows)
        x = checkpoint_name(self._sum(x, attended), RESIDUAL)
        normed = layer_norm(config, dtype, "mlp_norm")(x)
        inner = _inner_activations(config, dtype, normed)
        inner = Dropout(config.mlp_dropout)(inner, dropout_rows)
        rate = rate_of(config.mlp_output_dropout, config.hidden_dropout_prob)
        outer = Dropout(rate)(_output_layer(config, dtype)(inner), dropout_rows)
        return self._sum(x, outer)

    def _sum(self, x: jax.Array, branch: jax.Array) -> jax.Array:
        """Adds the output of attention or of the feed-forward layer to the residual stream x."""
        reference = self.config.residual_scale_layers
        if reference is not None:
            branch /= math.sqrt(self.config.num_hidden_layers / reference)
        return x + branch


class PreNormEncoder(Encoder):
    """A stack of `PreNormLayer`s and a final LayerNorm (Warner et al. 2024, 2.1).

    The parameters of the layers are arrays [layers, ...] under "layers". Unless
    `config.first_attention_norm` is set, row 0 of "attention_norm" is not used and not exported,
    and has no gradient: so axis 0 of all arrays is the layer.

    The attributes are as in `Encoder`; `unroll` is rounded down to whole periods.
    """

    @nn.compact
    def __call__(
        self,
        x: jax.Array,
        sequence_ids: jax.Array,
        dropout_rows: jax.Array | None,
        position_ids: jax.Array,
        *,
        output_hidden_states: bool = False,
    ) -> tuple[jax.Array, jax.Array | None]:
        """Applies the layers to x [B, L, D].

        `position_ids` int [B, L] are the positions of the tokens in their sequences, from 0.
        Returns the output of the final LayerNorm, and the outputs of all layers [layers, B, L, D],
        the last one after the final LayerNorm (None unless `output_hidden_states` is set).
        """
        config = self.config
        sown = self.is_mutable_collection("intermediates")
        params = self.param("layers", self._init_layers)
        keys = None
        if dropout_rows is not None and self.has_rng("dropout"):
            keys = jax.random.split(self.make_rng("dropout"), config.num_hidden_layers)
        rotations = self._rotations(position_ids, self._stored_rates())

        def run(layer: PreNormLayer, x: jax.Array, params: Any, key: Any) -> tuple[jax.Array, Any]:
            rotation = rotations[layer.is_global]
            x, state = layer.apply(
                {"params": params},
                x,
                sequence_ids,
                dropout_rows,
                rotation,
                rngs=None if key is None else {"dropout": key},
                mutable=["intermediates"] if sown else [],
            )
            return x, (x if output_hidden_states else None, state)

        x, (layers, state) = self._run_all(run, x, (params, keys))
        if sown:
            self.put_variable("intermediates", "layers", state["intermediates"])
        x = layer_norm(config, self.dtype, "final_norm", config.final_norm_bias)(x)
        if layers is not None:
            layers = jnp.concatenate([layers[:-1], x[None]])
        return x, layers

    def _layer(self, index: int) -> PreNormLayer:
        return PreNormLayer(
            self.config,
            self.dtype,
            self.attention_kernel,
            self.config.is_global(index),
            first=index == 0,
            parent=None,
        )

    def _init_layers(self, key: jax.Array) -> Any:
        x = jnp.zeros((1, 1, self.config.hidden_size), self.dtype)
        ids = jnp.zeros((1, 1), int)
        layer = self._layer(1)
        rotations = self._rotations(ids)

        def init(key: jax.Array) -> Any:
            return layer.init(key, x, ids, None, rotations[layer.is_global])["params"]

        keys = jax.random.split(key, self.config.num_hidden_layers)
        return jax.vmap(init)(keys)

    def _rotations(
        self, position_ids: jax.Array, stored: jax.Array | None = None
    ) -> dict[bool, Rotation | None]:
        """Returns {whether attention is global: the rotations of the tokens}."""
        config = self.config
        everywhere = config.global_rope_theta
        nearby = config.local_rope_theta or everywhere
        return {
            True: rotation_of(config, position_ids, everywhere, stored),
            False: rotation_of(config, position_ids, nearby, stored, slowed=False),
        }

    def _run_all(
        self, run: Callable[..., tuple[jax.Array, Any]], x: jax.Array, stacked: Any
    ) -> tuple[jax.Array, Any]:
        """Runs layer 0 if it has no LayerNorm, a scan over whole periods, and what is left.

        `run` is a function (layer, x, parameters, key) -> (x, what is kept of the layer), and
        `stacked` the parameters and keys of the layers, a tree of arrays [layers, ...].
        """
        config = self.config
        period = 1 if config.local_attention is None else config.global_attn_every_n_layers
        alone = 0 if config.first_attention_norm else 1
        periods, left = divmod(config.num_hidden_layers - alone, period)
        unroll = max(1, min(self.unroll // period, periods))
        policy = REMAT_POLICIES[self.remat]

        def consecutive(first: int, x: jax.Array, stacked: Any, count: int, in_loop: bool):
            kept = []
            for i in range(count):
                one = functools.partial(run, self._layer(first + i))
                if self.remat != "none":
                    # Without a loop, common subexpression elimination would undo the recomputation.
                    one = jax.checkpoint(one, prevent_cse=not in_loop, policy=policy)
                params, key = jax.tree.map(lambda leaf, i=i: leaf[i], stacked)
                x, of_layer = one(x, params, key)
                kept.append(of_layer)
            return x, jax.tree.map(lambda *leaves: jnp.stack(leaves), *kept)

        def part(first: int, count: int) -> Any:
            return jax.tree.map(lambda leaf: leaf[first : first + count], stacked)

        parts = []
        if alone:
            x, kept = consecutive(0, x, part(0, 1), 1, False)
            parts.append(kept)
        if periods:
            by_period = jax.tree.map(
                lambda leaf: leaf.reshape(periods, period, *leaf.shape[1:]),
                part(alone, periods * period),
            )
            in_loop = unroll == 1 < periods

            def run_period(x: jax.Array, stacked: Any) -> tuple[jax.Array, Any]:
                return consecutive(alone, x, stacked, period, in_loop)

            x, kept = jax.lax.scan(run_period, x, by_period, unroll=unroll)
            kept = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), kept)
            parts.append(kept)
        if left:
            first = alone + periods * period
            x, kept = consecutive(first, x, part(first, left), left, False)
            parts.append(kept)
        return x, jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *parts)
