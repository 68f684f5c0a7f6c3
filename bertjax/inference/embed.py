"""Text embeddings: one vector per text, pooled from the hidden states of the encoder."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import bertjax
from bertjax.data.batches.features import Feature
from bertjax.inference.buckets import cached_program, read_behind
from bertjax.inference.inference_params import for_inference, inference_params, stacked
from bertjax.inference.packed_pieces import packed_pieces
from bertjax.inference.partial_output import file_identity
from bertjax.model import BertWithHead
from bertjax.model.pooling import pooled, unit
from bertjax.weights import LoadedModel
from bertjax.weights.sentence_modules import SentenceModules


class Embedder:
    """Computes an embedding vector for each text.

    Args:
        loaded: the model, whose head is not used.
        pooling: "cls" for the hidden state of [CLS], or "mean" for the mean over all tokens; None:
            as the files of sentence-transformers in the model directory say, or "mean" if there
            are none. If `pooling` is set, these files are not read.
        layers: indices of the hidden states to pool (0: embeddings, -1: last layer); the vectors of
            several layers are concatenated.
        batch_size: maximum number of rows in one call of the model, where a row may hold
            several short texts; None: enough rows to keep the device busy.
        normalize: whether to divide each vector by its Euclidean length; None: as the files of
            sentence-transformers say, or False if they are not read.
        max_length: maximum number of tokens per text; None: as the files of sentence-transformers
            say, or the maximum length of the model if they are not read.
        truncate_dim: number of dimensions to keep of each vector, the first ones, before it is
            normalised; None: all.

    Attributes:
        size: the dimension of the embedding vectors.
        max_length: the maximum number of tokens per text.
        truncated: the number of texts so far that have `max_length` tokens, of which longer ones
            were truncated.
        identity: dict of JSON values with everything besides the text that determines an embedding
            vector (model, pooling, layers, ...).

    Raises:
        ValueError: `layers` is empty or contains a layer that the model does not have, `max_length`
            is below 2 or exceeds the maximum length of the model, `truncate_dim` is below 1 or
            exceeds the dimension of the vectors, or `pooling` is None and the
            directory has modules of sentence-transformers that bertjax lacks.
    """

    def __init__(
        self,
        loaded: LoadedModel,
        pooling: str | None = None,
        layers: Sequence[int] = (-1,),
        batch_size: int | None = None,
        normalize: bool | None = None,
        max_length: int | None = None,
        truncate_dim: int | None = None,
    ):
        count = loaded.config.num_hidden_layers + 1
        wrong = [layer for layer in layers if not -count <= layer < count]
        if wrong or not layers:
            raise ValueError(
                f"layers={list(layers)}: choose from the hidden states {-count} to {count - 1}."
            )
        longest = loaded.config.max_length
        if max_length is not None and not 2 <= max_length <= longest:
            raise ValueError(
                f"max_length={max_length}, but {loaded.source.where} reads 2 to {longest} tokens: "
                "choose a value in this range."
            )
        modules = SentenceModules()
        if pooling is None:
            modules = loaded.source.usage.modules.result() or modules
        pooling = pooling or modules.pooling
        normalize = modules.normalize if normalize is None else normalize
        self.max_length = max_length or min(modules.max_length or longest, longest)
        self.truncated = 0
        # Called with the number of texts of each batch that is finished.
        self.after_batch: Callable[[int], None] = lambda count: None
        self._loaded, self._batch_size = loaded, batch_size
        self._params = inference_params(loaded.params, loaded.model)
        whole = loaded.config.hidden_size * len(layers)
        if truncate_dim is not None and not 1 <= truncate_dim <= whole:
            raise ValueError(
                f"truncate_dim={truncate_dim}, but the vectors have {whole} numbers: choose 1 to "
                f"{whole}."
            )
        self.size = truncate_dim or whole
        self._program = compiled_program(loaded.model, pooling, tuple(layers), normalize, self.size)
        self.identity = {
            "version": bertjax.__version__,
            "model": file_identity(loaded.source.where),
            "pooling": pooling,
            "layers": list(layers),
            "normalize": normalize,
            "size": self.size,
            "max_length": self.max_length,
            "device": jax.local_devices()[0].device_kind,
        }

    def __call__(self, texts: Sequence[str]) -> np.ndarray:
        """Returns the embeddings of texts, float32 [len(texts), size]; truncates long texts."""
        rows = self._loaded.tokenizer.encode_prompts(texts, self.max_length)
        self.truncated += sum(len(row) >= self.max_length for row in rows)
        vectors = np.empty((len(texts), self.size), np.float32)

        features = [
            Feature(np.asarray(row, np.int32), (len(row),), (len(row),), None) for row in rows
        ]
        pieces = packed_pieces(
            features,
            limit=self._loaded.config.max_length,
            pad_token_id=self._loaded.tokenizer.pad_token_id,
            batch_size=self._batch_size,
        )
        started = ((piece, self._program(self._params, piece.batch)) for piece in pieces)
        for piece, values in read_behind(started):
            members = list(piece.placements)
            places = [(place.row, place.slot) for place in piece.placements.values()]
            vectors[members] = np.asarray(values)[tuple(np.transpose(places))]
            self.after_batch(len(members))
        return vectors


@cached_program
def compiled_program(
    model: BertWithHead, pooling: str, layers: tuple[int, ...], normalize: bool, size: int
) -> Callable[..., jax.Array]:
    """Returns a jitted function (params, batch) -> embeddings float32 [B, K, size].

    The batch has the arrays `MODEL_INPUTS`, with B rows of at most K sequences each.

    Args:
        model: the model, of which the encoder is used.
        pooling: "cls" or "mean".
        layers: the indices of the hidden states to pool.
        normalize: whether to divide each embedding by its Euclidean length.
        size: the dimension of the embeddings: the first numbers of the pooled hidden states are
            taken, at most number of layers times hidden size.
    """
    depth = model.config.num_hidden_layers
    encoder = for_inference(model)
    only_last = layers in ((-1,), (depth,))

    def apply(params: Any, batch: dict[str, Any]) -> jax.Array:
        outputs: Any = encoder.apply(
            {"params": stacked(params)}, **batch, output_hidden_states=not only_last
        )
        states = (
            [outputs["last_hidden_state"]]
            if only_last
            else [outputs["hidden_states"][layer] for layer in layers]
        )
        x = jnp.concatenate(states, axis=-1)  # [B, L, D]
        vectors = pooled(x, batch["sequence_ids"], batch["sequence_starts"], pooling)[..., :size]
        return unit(vectors) if normalize else vectors

    return jax.jit(apply)
