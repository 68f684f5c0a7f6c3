"""Reads taggers on frozen encoders from `tagger.safetensors`.

A tagger is a linear classifier, or a BiLSTM and a linear classifier, that tags words from hidden
states of an encoder that was not trained with it. transformers has no taggers on frozen encoders,
and loads only the encoder from the directory of such a model. The parameters of the tagger are in
`tagger.safetensors`, under the names of `torch.nn.LSTM` (lstm.weight_ih_l0, ...) and
`torch.nn.Linear` (classifier.weight); `task.json` describes the tagger.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from flax.traverse_util import flatten_dict

from bertjax.base.files import brief, listed
from bertjax.model import FeatureTagger, TaggerConfig
from bertjax.weights.fill import fill
from bertjax.weights.hf import TAGGER
from bertjax.weights.load_model import LoadedModel

# Maximum number of units of a saved BiLSTM; the memory grows with the square of this number.
MAX_UNITS = 1 << 13


def with_new_tagger(
    encoder: LoadedModel, tagger: TaggerConfig, num_labels: int, seed: int
) -> LoadedModel:
    """Adds a randomly initialised tagger (classifier of words, `num_labels` classes) to `encoder`.

    The parameters of the tagger, whose config is `tagger`, are drawn from `seed`.

    Raises:
        ValueError: the tagger uses an encoder layer twice, or a layer that the encoder lacks.
    """
    loaded = _with_tagger(encoder, tagger, num_labels, {}, str(encoder.source.where), seed)
    return loaded._replace(absent=encoder.absent + loaded.absent)


def with_saved_tagger(encoder: LoadedModel, description: Mapping[str, Any]) -> LoadedModel:
    """Adds the tagger (classifier of words) in the model directory of `encoder` to `encoder`.

    If the directory holds no tagger, `encoder` is returned unchanged.

    Args:
        encoder: the encoder, loaded from a model directory.
        description: the content of the directory's `task.json`; if there is a tagger, its entry
            "tagger" holds the fields of a `TaggerConfig`.

    Raises:
        FileNotFoundError: `task.json` describes a tagger, but there is no `tagger.safetensors`.
        ValueError: `tagger.safetensors` is damaged, or holds another tagger than `task.json`
            describes, or the entry "tagger" is invalid.
    """
    where = Path(encoder.source.where)
    file, described = where / TAGGER, description.get("tagger")
    tensors = encoder.source.usage.tagger.result()
    if described is None and tensors is None:
        return encoder
    try:
        tagger = TaggerConfig(**{**described, "layers": tuple(described["layers"])})  # type: ignore
        _check_types(tagger)
    except (TypeError, KeyError, ValueError) as error:
        raise ValueError(
            f"{where / 'task.json'} must describe {TAGGER}, but its entry tagger="
            f"{brief(described, 80)} is invalid ({brief(error, 80)}): copy the model directory "
            "again."
        ) from error
    if tensors is None:
        raise FileNotFoundError(
            f"{where} lacks {TAGGER}, the tagger that its task.json describes: copy the model "
            "directory again."
        )
    count = len(encoder.labels or ()) or encoder.model.num_labels
    loaded = _with_tagger(encoder, tagger, count, tensors, str(file), seed=0)
    if loaded.absent or loaded.unused:
        raise ValueError(
            f"{file} is not the {tagger.kind} tagger that task.json describes. Missing: "
            f"{listed(loaded.absent)}. Unexpected: {listed(loaded.unused)}. Copy the "
            "model directory again."
        )
    return loaded


def _check_types(tagger: TaggerConfig) -> None:
    numbers = (*tagger.layers, tagger.size)
    if any(type(n) is not int for n in numbers) or tagger.size > MAX_UNITS:
        raise ValueError(f"layers and size must be integers, and size at most {MAX_UNITS}")


def _with_tagger(
    encoder: LoadedModel,
    tagger: TaggerConfig,
    num_labels: int,
    tensors: Mapping[str, np.ndarray],
    where: str,
    seed: int,
) -> LoadedModel:
    """Adds a tagger with the parameters in `tensors` {PyTorch name: tensor} to an encoder.

    If `tensors` is empty, the tagger is initialised at random. The fields `absent` and `unused` of
    the result name only parts of the tagger.
    """
    tagger.check_layers(encoder.config.num_hidden_layers)
    base = encoder.model
    model = FeatureTagger(
        base.config, base.dtype, base.unroll, base.remat, num_labels=num_labels, tagger=tagger
    )
    known: Any = flatten_dict(encoder.params, sep="/")
    filled = fill(tensors, model, where, seed, known=known)
    return encoder._replace(model=model, head="token_classification", **filled._asdict())
