"""Converts the parameters of a model to the form that inference programs read fastest.

A model stacks the parameters of its layers in arrays [groups, ...]. A program whose layers are
unrolled, as on CPUs, takes slices of these arrays, and XLA copies every slice, in every call: for
BERT-base 340 MB. In the form of this module, the parameters of each layer are then arrays of their
own; on all devices, kernels have the data type in which the model multiplies. `stacked` restores
the form of the model inside of the program, where the compiler removes the stacking and slicing.
"""

from typing import Any

import jax
import jax.numpy as jnp

from bertjax.config import MeshConfig
from bertjax.devices import sharding
from bertjax.devices.kernels import choose_unroll
from bertjax.model import BertWithHead
from bertjax.model.attention import BY_HEAD

LAYERS = "layers"
KERNEL = "kernel"


def inference_params(params: Any, model: BertWithHead) -> Any:
    """Returns the parameters of a model on the device, in the form for inference.

    Args:
        params: the parameters of the model, or those that this function returned.
        model: the model, which determines the data type of kernels.

    Returns:
        The tree of `params`. If `for_inference` unrolls the layers, each array of the layers is a
        tuple with one array for each group of layers.
    """
    # In a loop over the layers, the compiler could not remove the stacking.
    splits = for_inference(model).unroll > 1

    def convert(path: tuple[Any, ...], x: Any) -> Any:
        keys = [part.key for part in path if isinstance(part, jax.tree_util.DictKey)]
        if keys[-1] == KERNEL:
            x = jnp.asarray(x, model.dtype)
        is_whole = splits and LAYERS in keys and not isinstance(path[-1], jax.tree_util.SequenceKey)
        return jax.device_put(tuple(x) if is_whole else x)

    return jax.tree_util.tree_map_with_path(convert, params)


def stacked(params: Any) -> Any:
    """Returns `params` with stacked layers, as the model expects; for use inside of a program.

    `params` may be the parameters of the model, or those that `inference_params` returned.
    """
    return jax.tree.map(
        lambda x: jnp.stack(x) if isinstance(x, tuple) else x,
        params,
        is_leaf=lambda x: isinstance(x, tuple),
    )


def for_inference(model: BertWithHead) -> BertWithHead:
    """Returns the model whose programs read parameters in the form for inference.

    Its layers are unrolled on CPUs, and a loop elsewhere, where unrolled ones take long to compile.
    On CPUs, long rows are computed one attention head at a time.
    """
    mesh = sharding.make_mesh(MeshConfig(data=1), jax.local_devices()[:1])
    layers = model.config.num_hidden_layers
    return model.clone(
        unroll=choose_unroll(None, "none", layers, mesh),
        attention_kernel=BY_HEAD if jax.default_backend() == "cpu" else model.attention_kernel,
    )
