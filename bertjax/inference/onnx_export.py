"""Exports models to ONNX, for other runtimes: traces the Flax module, and translates the trace.

The model is traced for any number of rows and any length, as inference applies it, so that what a
config means stands in `bertjax.model` alone. Layers that ONNX has as one operator are named while
the model is traced (`_as_operators`).
"""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from bertjax.config.model import BertConfig
from bertjax.inference.embedder import Embedder, Encoder
from bertjax.inference.indexes import encoder_of
from bertjax.inference.late_interaction import TokenEmbedder
from bertjax.inference.onnx_graph import Graph
from bertjax.inference.onnx_operators import OPERATORS, SIMPLIFICATIONS
from bertjax.inference.onnx_translation import Translator, normalized
from bertjax.inference.saved_task import description_of
from bertjax.model import BertWithHead
from bertjax.model.base_head import Outputs, Rows
from bertjax.model.heads import BertForSparseEmbedding
from bertjax.model.linear import Linear
from bertjax.model.sparse_embedding import word_weights
from bertjax.weights import LoadedModel
from bertjax.weights.families import family_of
from bertjax.weights.fill import param_shapes
from bertjax.weights.load import with_saved_tagger

# The file names of optimum and of transformers.js, by the number format.
FILES = {"float32": "model.onnx", "float16": "model_fp16.onnx", "int8": "model_quantized.onnx"}
FOLDER = "onnx"
# The oldest version of the operators that the translation writes, and the usual one.
OLDEST_OPSET = 18
OPSET = 20
ENCODERS = ("sentence_embedding", "sparse", "late_interaction")  # heads that embed texts
# Names of all inputs that a graph can have.
ALL_INPUTS = ("input_ids", "attention_mask", "token_type_ids")
# The symbols of the dimensions, {symbol: name in the files of optimum}.
AXES = {"b": "batch_size", "c": "num_choices", "l": "sequence_length"}


@dataclasses.dataclass(frozen=True)
class Exported:
    """A model as a function of arrays with names, which are those of optimum.

    Attributes:
        params: the parameters, a tree of numpy arrays.
        inputs: names of the inputs, and `axes` their symbolic shape.
        outputs: {name: name of the output of the model}.
        read: as of `compiled_program`, for sentence_embedding; None: the model computes it.
        prompt_length: the number of tokens of the prompt that the pooling leaves out.
    """

    model: BertWithHead
    params: Any
    inputs: Sequence[str]
    outputs: Mapping[str, str]
    axes: str = "b, l"
    read: Callable[[BertWithHead, Any], dict[str, jax.Array]] | None = None
    prompt_length: int = 0

    def apply(self, params: Any, arrays: Mapping[str, jax.Array]) -> dict[str, jax.Array]:
        """Returns the outputs by their names; `arrays` are the inputs, int32."""
        *lead, length = arrays["input_ids"].shape
        rows: dict[str, Any] = {name: x.reshape(-1, length) for name, x in arrays.items()}
        if self.prompt_length:  # the tokens of type 0 are those of the prompt
            is_text = jnp.arange(length) >= self.prompt_length
            rows["token_type_ids"] = jnp.broadcast_to(is_text, rows["input_ids"].shape).astype(int)
        found: Any = self.model.apply({"params": params}, **rows)
        outputs = {}
        for name, key in self.outputs.items():
            value = found[key]
            if key == "sentence_embedding" and self.read is not None:
                value = self.read(self.model, found)[key]
            if len(lead) == 2:
                value = value.reshape(*lead)
            if value.dtype == self.model.dtype:
                value = value.astype(jnp.float32)
            outputs[name] = value
        return outputs

    def in_float16(self) -> "Exported":
        """Returns the same model with activations and matrices in float16."""

        def convert(path: Sequence[Any], leaf: np.ndarray) -> np.ndarray:
            keys = [part.key for part in path]
            # The modules of embeddings compute in float32.
            if keys[-1] in ("kernel", "embedding") and keys[0] != "modules":
                return leaf.astype(np.float16)
            return leaf

        params = jax.tree_util.tree_map_with_path(convert, self.params)
        model = self.model.clone(dtype=jnp.float16)
        return dataclasses.replace(self, model=model, params=params)


def exported(loaded: LoadedModel, prompt: str | None = None) -> Exported:
    """Returns what is exported of a loaded model: what its head or its files of embeddings compute.

    `prompt` is the prompt that is put before texts, as of `Pretrained.embed`. It matters only to
    embedders that leave its tokens out of the mean.

    Raises:
        ValueError: the files of the model cannot be followed, or `prompt` has no effect.
    """
    config = loaded.config
    if loaded.head == "encoder" and loaded.source.usage.tagger.value is not None:
        loaded = with_saved_tagger(loaded, description_of(loaded))
    if loaded.head in ENCODERS:
        export = exported_encoder(loaded, encoder_of(loaded, prompt=prompt))
    else:
        model = loaded.model
        names = model.outputs or ("last_hidden_state",)
        outputs = {family_of(config).outputs.get(name, name): name for name in names}
        params = _only_used(model, loaded.params)
        axes = "b, c, l" if loaded.head == "multiple_choice" else "b, l"
        export = Exported(model, params, _inputs_of(config), outputs, axes)
    if prompt is not None and not export.prompt_length:
        raise ValueError(
            f"prompt={prompt!r} has no effect on the graph of {loaded.source.where}: leave it out, "
            "and put it before the texts."
        )
    return export


def exported_encoder(loaded: LoadedModel, encoder: Encoder) -> Exported:
    """Returns what is exported of a loaded model for what an encoder of it computes."""
    model = encoder.model
    modules = loaded.source.usage.modules.result()
    params = {**(modules.params if modules else {}), **loaded.params}
    outputs = {name: name for name in model.outputs}
    inputs = _inputs_of(loaded.config)
    read = None
    skipped = 0
    if isinstance(encoder, TokenEmbedder):
        inputs = ALL_INPUTS
    elif isinstance(encoder, Embedder):
        outputs = {"token_embeddings": "last_hidden_state", **outputs}
        read = encoder.cut
        skipped = encoder.prompt_length
    used = _only_used(model, params)
    return Exported(model, used, inputs, outputs, read=read, prompt_length=skipped)


def _inputs_of(config: BertConfig) -> Sequence[str]:
    if config.type_vocab_size > 1:
        return ALL_INPUTS
    return ALL_INPUTS[:2]


def left_to_readers(loaded: LoadedModel) -> list[str]:
    """Returns what the programs that read the file of a sparse encoder have to do, a line each."""
    if loaded.head != "sparse":
        return []
    own: Any = loaded.source.usage.modules.result()
    lines = []
    if own.sparse.query_weights is not None:
        lines.append(
            "The file encodes documents. The weights of queries are a table of words, which "
            "bertjax and sentence-transformers read."
        )
    if own.sparse.max_active_dims is not None:
        lines.append(
            f"All weights of a text are in the output: keep the {own.sparse.max_active_dims} "
            "highest (max_active_dims)."
        )
    return lines


def _only_used(model: BertWithHead, params: Any) -> Any:
    """Returns the parameters that a model has, as numpy arrays."""
    names = {path.partition("/")[0] for path in param_shapes(model)}
    return jax.tree.map(np.asarray, {name: params[name] for name in sorted(names)})


def write_onnx(export: Exported, path: Path, opset: int = OPSET) -> None:
    """Writes a model as an ONNX file, with `DATA_SUFFIX` beside it if it is larger than 2 GB.

    The numbers are those of `model.dtype` in the graph, and float32 in its outputs. Raises
    ValueError if the model has an operation without a translation.
    """
    longest = export.model.config.max_length
    # jax needs to be told the second one to compare sizes of relative positions.
    bounds = [f"l <= {longest}", "l^2 >= l"]
    shape = tuple(jax.export.symbolic_shape(export.axes, constraints=bounds))
    arrays = {name: jax.ShapeDtypeStruct(shape, jnp.int32) for name in export.inputs}
    with nn.intercept_methods(_as_operators):
        traced = jax.make_jaxpr(export.apply)(export.params, arrays)
    graph = Graph(AXES)
    translator = Translator(graph, opset, OPERATORS, SIMPLIFICATIONS)
    constants = []
    for path_of_leaf, array in jax.tree_util.tree_leaves_with_path(export.params):
        name = ".".join(key.key for key in path_of_leaf)
        constants.append(graph.constant(array, name))
    inputs = {name: graph.add_input(name, shape, np.int64) for name in export.inputs}
    # The arguments and outputs are in the order of jax, which sorts the names.
    arguments = [translator.cast(inputs[name], np.int32) for name in sorted(inputs)]
    found = translator.outputs(traced.jaxpr, traced.consts, [*constants, *arguments])
    outputs = dict(zip(sorted(export.outputs), found, strict=True))
    graph.write({name: outputs[name] for name in export.outputs}, opset, path)


def _as_operators(call: Callable[..., Any], args: Any, kwargs: Any, context: Any) -> Any:
    """Calls a method of a module, or what stands for it in a graph."""
    module = context.module
    if isinstance(module, BertForSparseEmbedding) and context.method_name == "head_outputs":
        return _sparse_outputs(module, *args)
    if context.method_name != "__call__" or module.is_initializing():
        return call(*args, **kwargs)
    if isinstance(module, nn.LayerNorm | nn.RMSNorm):
        return _normalized(module, *args)
    if isinstance(module, Linear):
        return _linear(module, *args)
    return call(*args, **kwargs)


def _parameter(module: nn.Module, name: str) -> jax.Array:
    return module.get_variable("params", name)


def _normalized(module: nn.LayerNorm | nn.RMSNorm, x: jax.Array) -> jax.Array:
    x = x.astype(module.dtype or x.dtype)
    scale = _parameter(module, "scale").astype(x.dtype)
    bias = None
    kind = "rms_norm"
    if isinstance(module, nn.LayerNorm):
        kind = "layer_norm"
        if module.use_bias:
            bias = _parameter(module, "bias").astype(x.dtype)
    return normalized(x, scale, bias, epsilon=module.epsilon, kind=kind)


def _linear(module: Linear, x: jax.Array) -> jax.Array:
    """Computes a linear layer as a product with one matrix, and then a sum with one vector."""
    kernel = _parameter(module, "kernel")
    lead = x.shape[: x.ndim - module.axes]
    inputs = math.prod(x.shape[x.ndim - module.axes :])
    matrix = kernel.reshape(inputs, -1).astype(module.dtype)
    y = x.astype(module.dtype).reshape(*lead, inputs) @ matrix
    if module.use_bias:
        bias = _parameter(module, "bias").reshape(-1).astype(y.dtype)
        y += jnp.expand_dims(bias, range(y.ndim - 1))
    if module.float32:
        y = y.astype(jnp.float32)
    return y.reshape(*lead, *kernel.shape[module.axes :])


def _sparse_outputs(module: BertForSparseEmbedding, encoded: Outputs, rows: Rows) -> Outputs:
    """Computes the weights of all words at once, and not in blocks as in training."""
    logits = module.predictions(module.states(encoded, rows), module.bert.attend)  # [B, L, V]
    is_token = (rows.sequence_ids > 0)[..., None]
    weights = jnp.where(is_token, word_weights(logits, module.activation), 0)
    pooled = weights.max(1) if module.pooling == "max" else weights.sum(1)
    return {"sentence_embedding": pooled[:, None]}
