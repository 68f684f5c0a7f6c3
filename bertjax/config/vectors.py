"""How a model turns a text into a vector: the flags that `embed` and `search` share."""

import dataclasses

from bertjax.base.checked import Checked
from bertjax.config.model import Pooling


@dataclasses.dataclass(frozen=True, kw_only=True)
class VectorConfig(Checked):
    """Pooling, layers and size of the vectors; None: as in the files of sentence-transformers.

    With `pooling`, nothing is taken from these files. Without them, pooling is "mean".

    Raises:
        ValueError: a value is not of the type of its field.
    """

    pooling: Pooling | None = None
    """How the hidden states of the tokens become one vector, by the names of
    sentence-transformers; None: as its files in --model say, or mean without such files."""
    normalize: bool | None = None
    """Whether each vector is divided by its Euclidean length; None: as the files of
    sentence-transformers say, or False without such files or with --pooling."""
    layers: tuple[int, ...] = (-1,)
    """Layers whose hidden states are pooled: 0 = embeddings, -1 = last layer; vectors of several
    layers are concatenated."""
    truncate_dim: int | None = None
    """Number of dimensions to keep, the first ones, for models trained with --matryoshka; None: as
    the files of sentence-transformers say, or all."""
    max_length: int | None = None
    """Maximum number of tokens per text; None: as the files of sentence-transformers say, or the
    maximum length of the model."""
