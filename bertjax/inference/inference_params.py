"""The form of a model's parameters in which inference programs read them fastest.

A model stacks the parameters of its layers in arrays [groups, ...]. A program whose layers are
unrolled takes slices of these arrays, and XLA copies every slice, in every call: for BERT-base 340
MB. In the form of this module, the parameters of each layer are arrays of their own, and kernels
have the data type in which the model multiplies. `stacked` restores the form of the model inside of
the program, where the compiler removes the stacking and slicing.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from bertjax.model import BertWithHead

LAYERS = "layers"
KERNEL = "kernel"


def inference_params(params: Any, dtype: DTypeLike) -> Any:
    """Returns the parameters of a model on the device, in the form for inference.

    Args:
        params: the parameters of the model, or those that this function returned.
        dtype: the data type in which the model multiplies.

    Returns:
        The tree of `params`, in which each array of the layers is a tuple with one array for each
        group of layers.
    """

    def convert(path: tuple[Any, ...], x: Any) -> Any:
        keys = [part.key for part in path if isinstance(part, jax.tree_util.DictKey)]
        if keys[-1] == KERNEL:
            x = jnp.asarray(x, dtype)
        is_whole = LAYERS in keys and not isinstance(path[-1], jax.tree_util.SequenceKey)
        return jax.device_put(tuple(x) if is_whole else x)

    return jax.tree_util.tree_map_with_path(convert, params)


def stacked(params: Any) -> Any:
    """Returns the form of the model of parameters in either form; for use inside of a program."""
    return jax.tree.map(
        lambda x: jnp.stack(x) if isinstance(x, tuple) else x,
        params,
        is_leaf=lambda x: isinstance(x, tuple),
    )


def unrolled(model: BertWithHead) -> BertWithHead:
    """Returns a model whose program reads parameters in the form for inference without copies."""
    return model.clone(unroll=model.config.num_hidden_layers)
