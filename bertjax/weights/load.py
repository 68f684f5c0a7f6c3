"""Loads models with a head, adds taggers, words and positions to them, initialises students."""

import dataclasses
import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from bertjax.base.files import brief, did_you_mean, listed, naming_read_errors
from bertjax.model import HEADS, BertConfig, BertWithHead, FeatureTagger, TaggerConfig
from bertjax.model.heads import PRETRAINING_HEADS, BertForSparseEmbedding
from bertjax.model.late_interaction import BertForLateInteraction
from bertjax.model.recipe import flattened, nested
from bertjax.tokenization import Tokenizer
from bertjax.weights import names
from bertjax.weights.families import (
    architecture,
    config_from_hf,
    family_of,
    heads_of,
    unknown_fields,
)
from bertjax.weights.fill import fill, fresh, param_shapes
from bertjax.weights.hf import TAGGER
from bertjax.weights.late_interaction import with_token_modules
from bertjax.weights.sentence_transformers import with_head_fields
from bertjax.weights.source import Source, open_source
from bertjax.weights.sparse_modules import with_sparse_fields

AUTO = "auto"
HEAD_FIELDS = "head_fields"  # key of task.json: settings of the head


class LoadedModel(NamedTuple):
    """A Flax module with its parameters, tokenizer and labels.

    Attributes:
        head: the name of the head in `bertjax.model.HEADS`.
        params: the parameters, a tree of numpy arrays (float32).
        tokenizer: the tokenizer; None only if the caller of `load_model` does not require one.
        labels: the class names in `id2label` of the source's config; None: it has none that fit.
        absent: the parts of the model that the source lacks and that were initialised at random.
        unused: the parts of the source that the model does not have.
        source: the directory or checkpoint that the model was loaded from.
        left_out: the head of the source that "auto" left out, since it is one of pretraining.
    """

    model: BertWithHead
    head: str
    params: dict[str, Any]
    absent: list[str]
    unused: list[str]
    tokenizer: Tokenizer
    labels: list[str] | None
    source: Source
    left_out: str | None = None

    @property
    def config(self) -> BertConfig:
        """The config of the encoder."""
        return self.model.config

    @property
    def max_length(self) -> int:
        """The number of tokens to which texts are truncated: the smaller maximum of model and
        tokenizer."""
        if self.tokenizer is None:
            return self.config.max_length
        return min(self.tokenizer.model_max_length, self.config.max_length)


def load_model(
    path: str | Path,
    head: str | None = "pretraining",
    *,
    num_labels: int | None = None,
    new_labels: bool = False,
    vocab_size: int | None = None,
    dtype: DTypeLike = jnp.float32,
    seed: int = 0,
    tokenizer_required: bool = True,
    head_fields: Mapping[str, Any] | None = None,
) -> LoadedModel:
    """Loads a model with one of the heads in `bertjax.model.HEADS`.

    Args:
        path: a directory, checkpoint or name that `open_source` accepts.
        head: the name of the head, which is initialised at random if the source lacks it; None and
            "auto" are as in `bertjax.load_pretrained`.
        num_labels: the number of classes; None: as in the source, or 2 if it has none.
        new_labels: whether a stored classifier with another number of classes is replaced by a
            newly initialised one; if False, the difference raises ValueError.
        vocab_size: the vocabulary size to resize the model to.
        dtype: the dtype of the activations.
        seed: the seed for the random initialisation of parameters that the source lacks.
        tokenizer_required: whether a model without a tokenizer raises FileNotFoundError.
        head_fields: settings of the head, {name of a field of its class: value}; None: as in the
            source, or the defaults.

    Errors are those of `bertjax.load_pretrained`.
    """
    if head is not None and head not in (*HEADS, AUTO):
        raise ValueError(
            f"Unknown head {head!r}. {did_you_mean(head, HEADS)}Known: {', '.join(HEADS)}."
        )
    source = open_source(path, tokenizer_required=tokenizer_required)
    config = _architecture(source)
    left_out = None
    if head == AUTO:
        head, left_out = _usable_head(source, config)
    elif head is None:
        head = find_head(source, config)
    architecture(config, head)  # raises if the family does not have the head
    tokens = []
    if source.tokenizer:
        tokens = source.tokenizer.tokens
    size = vocab_size or config.vocab_size
    if len(tokens) > size:
        raise ValueError(
            f"The tokenizer in {source.where} has {len(tokens)} tokens, but the model has "
            f"vocab_size={size}, without {brief(', '.join(tokens[size:]), 60)}: use the tokenizer "
            "of this model."
        )
    _check_padding(source, config)
    names.check_unread(source.tensors, config, source.where)
    labels = _labels(source.config, source.where)
    if labels is not None and num_labels not in (None, len(labels)):
        labels = None
    stored = _classes(source, head)
    num_labels = num_labels or len(labels or ()) or stored
    model = HEADS[head](config, jnp.dtype(dtype), num_labels=num_labels)
    bias = param_shapes(model).get(f"{model.class_part}/bias")
    skip = None
    if new_labels and bias is not None and bias.size != stored:
        skip = model.class_part
    modules = source.usage.modules
    own: dict[str, Any] = {}
    if isinstance(model, BertForLateInteraction):
        model, own = with_token_modules(model, modules, source.tokenizer, head_fields or {})
    filled = fill(source.tensors, model, str(source.where), seed, skip=skip)
    params = {**filled.params, **own}
    if set(filled.absent).isdisjoint(model.parts):  # else task.json describes another head
        described = source.usage.description.value or {}
        with naming_read_errors(source.where / "task.json"):
            model = model.clone(**described.get(HEAD_FIELDS, {}))
    if isinstance(model, BertForSparseEmbedding):
        model, params = with_sparse_fields(model, params, modules, head_fields or {})
    elif not isinstance(model, BertForLateInteraction):
        model, params = with_head_fields(model, params, modules, head_fields or {})
    absent = [part for part in filled.absent if part.partition("/")[0] not in own]
    filled = filled._replace(params=params, absent=absent)
    loaded = LoadedModel(
        model, head, *filled, source.tokenizer, labels=labels, source=source, left_out=left_out
    )
    return resize_vocabulary(loaded, size, seed)


def _usable_head(source: Source, config: BertConfig) -> tuple[str, str | None]:
    """Returns the head of a fine-tuned source, or "encoder" and the head of pretraining, if any."""
    try:
        head = find_head(source, config)
    except ValueError:
        return "encoder", None
    if head not in PRETRAINING_HEADS:
        return head, None
    if _is_whole(source, config, head):
        return "encoder", head
    return "encoder", None


def with_masked_lm(loaded: LoadedModel, head: str = "masked_lm") -> LoadedModel:
    """Replaces the head of a loaded model by a head of pretraining, from the model's source.

    The head gets the vocabulary size of the loaded model. If the source has no such head, the new
    one is initialised at random and named in `absent`.
    """
    if "predictions" in loaded.model.parts:
        return loaded
    source = loaded.source
    size = loaded.config.vocab_size
    stored_size = source.config.get("vocab_size", size)
    config = dataclasses.replace(loaded.config, vocab_size=stored_size)
    model = HEADS[head](config, loaded.model.dtype)
    encoder = flattened({"bert": loaded.params["bert"]})
    tensors = {name: source.tensors[name] for name in head_tensors(source, config)}
    filled = fill(tensors, model, str(source.where), known=encoder)
    loaded = loaded._replace(model=model, head=head, **filled._asdict())
    return resize_vocabulary(loaded, size)


def find_head(source: Source, config: BertConfig) -> str:
    """Returns the name of the head whose layers are exactly the head layers stored in a source.

    Of several, the head that the config names under "architectures" is preferred, and otherwise one
    that needs a pooler exactly if there is one. A model without a head that has files of
    sentence-transformers has the head of dense, sparse or late-interaction embeddings that these
    describe. If no head fits, but all layers of the one that the config names are there, it is
    returned, and a note names the others. Raises ValueError if there is no such head.
    """
    parts = set(head_tensors(source, config).values())
    stored = {head: HEADS[head](config).present_parts for head in heads_of(config)}
    fitting = [head for head in stored if parts == stored[head]]
    named = None
    architectures = source.config.get("architectures")
    if isinstance(architectures, list) and architectures:
        named = architectures[0]
    meant = next((head for head in stored if architecture(config, head) == named), None)
    if not fitting:
        if meant and stored[meant] and stored[meant] < parts:
            others = listed(sorted(parts - stored[meant]))
            print(f"note: {source.where} is read as {meant}, and its {others} left out")
            return meant
        raise ValueError(
            f"{source.where} holds weights of the heads {sorted(parts)}, which no single model "
            f"has: load it with one of the heads {', '.join(stored)}."
        )
    modules = source.usage.modules.value
    if modules and modules.sparse and "sparse" in fitting:
        return "sparse"
    if modules and "sentence_embedding" in fitting:
        if modules.tokens:
            return "late_interaction"
        return "sentence_embedding"
    fitting = [head for head in fitting if head != "sparse"]
    if meant in fitting:
        return str(meant)
    head = fitting[0]
    if len(fitting) == 1 or not parts:
        return head
    paths = names.paths(source.tensors, config)
    has_pooler = any(path.startswith("bert/pooler/") for path in paths)
    for candidate in fitting:
        if HEADS[candidate](config).needs_pooler == has_pooler:
            head = candidate
            break
    if named:
        print(f"note: {source.where} names the architecture {brief(named, 60)}: read as {head}")
    return head


def head_tensors(source: Source, config: BertConfig) -> dict[str, str]:
    """Returns {tensor name: head layer, such as "classifier"} of tensors outside the encoder."""
    parts = {}
    for name, targets in names.located(source.tensors, config).items():
        if targets:
            part, _, _ = targets[0].path.partition("/")
            if part != "bert":
                parts[name] = part
    return parts


def _is_whole(source: Source, config: BertConfig, head: str) -> bool:
    stored = names.paths(source.tensors, config)
    needed = param_shapes(HEADS[head](config))
    return all(path in stored for path in needed if not path.startswith("bert/"))


def _architecture(source: Source) -> BertConfig:
    try:
        # run.json has the field names of BertConfig.
        read = config_from_hf
        if source.kind in ("run", "static"):
            read = BertConfig.from_dict
        config = read(source.config)
    except (ValueError, TypeError, AttributeError, OverflowError) as error:
        raise ValueError(f"The config of {source.where} is invalid: {brief(error, 250)}") from error
    if read is config_from_hf and (unknown := unknown_fields(source.config)):
        print(
            f"warning: {source.where} has in its config {listed(unknown)}, which is ignored, as "
            "its meaning is unknown here: compare with transformers by convert --verify"
        )
    if not names.is_untied(source.tensors, config):
        return config
    print(
        f"note: the output matrix in {source.where} differs from the word embedding, so it is read "
        "as with tie_word_embeddings=false, as transformers does"
    )
    return dataclasses.replace(config, tie_word_embeddings=False)


def _check_padding(source: Source, config: BertConfig) -> None:
    """Refuses a padding token that is in every text, where it has another position than here."""
    tokenizer = source.tokenizer
    if tokenizer is None or not family_of(config).positions_after_padding:
        return
    pad = config.pad_token_id
    if pad in (tokenizer.cls_token_id, tokenizer.sep_token_id):
        own = tokenizer.pad_token_id
        raise ValueError(
            f"pad_token_id={pad} in the config of {source.where} is the id of "
            f"{tokenizer.tokens[pad]}, which is in every text, and positions count from the "
            f"padding token: set it to {own}, the tokenizer's."
        )


def _classes(source: Source, head: str) -> int:
    """Returns the length of the bias of the last layer, or 2, the default of transformers."""
    part = HEADS[head].class_part
    for name in (f"{part}.bias", f"{part}.out_proj.bias"):
        if name in source.tensors:
            return max(source.tensors[name].size, 1)
    return 2


def _labels(config: Mapping[str, Any], where: Path) -> list[str] | None:
    """Returns the labels in id2label of a config, sorted by id; None if transformers ignores them.

    It does so if there are none, or if num_labels is another number.
    """
    stored = config.get("id2label")
    count = config.get("num_labels")
    if stored is None:
        return None
    by_id = {}
    try:
        for number, label in stored.items():
            if not isinstance(label, str):
                label = json.dumps(label)
            by_id[int(number)] = label
    except (AttributeError, TypeError, ValueError) as error:
        raise ValueError(
            f"id2label={brief(stored)} in {where / 'config.json'} is not a mapping of ids to "
            'labels: correct it to the form {"0": "no", "1": "yes"}.'
        ) from error
    if count not in (None, len(by_id)):
        return None
    return [by_id[number] for number in sorted(by_id)]


def class_order(stored: Sequence[str], wanted: Sequence[str]) -> list[int] | None:
    """Returns the index in `stored` of each of the classes `wanted`; None if the names differ.

    Names are the same if they are equal or, where this leaves no doubt, if they only differ in case
    or in spaces, hyphens and underscores.
    """
    for form in (str, _spelling):
        names = [form(name) for name in stored]
        sought = [form(name) for name in wanted]
        if sorted(names) == sorted(sought) and len(set(names)) == len(names):
            return [names.index(name) for name in sought]
    return None


def _spelling(name: str) -> str:
    return re.sub("[ _-]+", " ", name.casefold())


def with_class_order(loaded: LoadedModel, order: Sequence[int]) -> LoadedModel:
    """Returns a model whose output i is the output `order[i]` of `loaded`."""
    part = str(loaded.model.class_part)
    layer = {}
    for name, value in loaded.params[part].items():
        layer[name] = np.asarray(value)[..., order]
    return loaded._replace(params={**loaded.params, part: layer})


# Maximum number of units of a saved BiLSTM; the memory grows with the square of this number.
MAX_UNITS = 1 << 13


def with_tagger(
    encoder: LoadedModel,
    tagger: TaggerConfig,
    num_labels: int,
    seed: int = 0,
    tensors: Mapping[str, np.ndarray] | None = None,
    where: str = "the tagger",
) -> LoadedModel:
    """Adds a tagger (classifier of words, `num_labels` classes) to `encoder`.

    Its parameters are read from `tensors` at `where`, or drawn from `seed`. Raises ValueError if
    the tagger uses a layer twice, or one that the encoder lacks.
    """
    tagger.check_layers(encoder.config.num_hidden_layers)
    base = encoder.model
    model = FeatureTagger(
        base.config, base.dtype, base.unroll, base.remat, num_labels=num_labels, tagger=tagger
    )
    known = flattened(encoder.params)
    filled = fill(tensors or {}, model, where, seed, known=known)
    filled = filled._replace(absent=encoder.absent + filled.absent)
    return encoder._replace(model=model, head="token_classification", **filled._asdict())


def with_saved_tagger(encoder: LoadedModel, description: Mapping[str, Any]) -> LoadedModel:
    """Adds the tagger in the model directory of `encoder`, if there is one.

    A tagger is a linear classifier, or a BiLSTM and a linear classifier, that tags words from
    hidden states of an encoder that was not trained with it; transformers loads only the encoder.
    `tagger.safetensors` has the names of `torch.nn.LSTM` and `torch.nn.Linear`. `description` is
    the content of `task.json`, whose entry "tagger" holds the fields of a `TaggerConfig`. Raises
    FileNotFoundError or ValueError if the two do not fit.
    """
    where = encoder.source.where
    described = description.get("tagger")
    tensors = encoder.source.usage.tagger.result()
    if described is None and tensors is None:
        return encoder
    try:
        fields: Any = {**described, "layers": tuple(described["layers"])}  # type: ignore
        tagger = TaggerConfig(**fields)
        if tagger.size > MAX_UNITS:
            raise ValueError(f"size={tagger.size} must be at most {MAX_UNITS}")
    except (TypeError, KeyError, ValueError) as error:
        raise ValueError(
            f"{where / 'task.json'} has tagger={brief(described, 80)}, which is invalid "
            f"({brief(error, 80)}): copy the model directory again."
        ) from error
    if tensors is None:
        raise FileNotFoundError(
            f"{where} lacks {TAGGER}, the tagger that its task.json describes: copy the model "
            "directory again."
        )
    count = len(encoder.labels or ()) or encoder.model.num_labels
    encoder = encoder._replace(absent=[])
    loaded = with_tagger(encoder, tagger, count, tensors=tensors, where=str(where / TAGGER))
    if loaded.absent or loaded.unused:
        raise ValueError(
            f"{where / TAGGER} is not the {tagger.kind} tagger that task.json describes. Missing: "
            f"{listed(loaded.absent)}. Unexpected: {listed(loaded.unused)}. Copy the "
            "model directory again."
        )
    return loaded


# Fields in which student and teacher must agree although they do not affect shapes of weights.
_SAME_FIELDS = ("hidden_act", "mlm_activation", "layer_norm_eps", "position_offset")


def student_params(
    teacher: LoadedModel, model: BertWithHead, layers: Sequence[int], seed: int
) -> tuple[dict[str, Any], list[str]]:
    """Initialises a student with parameters of its teacher (DistilBERT: Sanh et al. 2019, 3).

    `layers` are the indices, from 0, of the teacher's layers that become those of the student, the
    Flax module `model`, with whose head the teacher is loaded. Returns the parameters (numpy), and
    what is initialised from `seed`: the parts (such as "bert/pooler") that the teacher's files lack
    and the paths that only the student has.

    Raises:
        ValueError: `layers` does not name one layer of the teacher for each layer of the student,
            or student and teacher do not fit. The message lists all differences.
    """
    teacher_params = flattened(teacher.params)
    depth = min(len(x) for path, x in teacher_params.items() if _is_stacked(path))
    outside = [layer for layer in layers if not 0 <= layer < depth]
    if outside or len(layers) != model.config.num_hidden_layers:
        raise ValueError(
            f"layers={tuple(layers)}: the teacher has the layers 0 to {depth - 1}; give one for "
            f"each of the {model.config.num_hidden_layers} layers of the student."
        )
    problems = []
    for name in _SAME_FIELDS:
        own = getattr(model.config, name)
        teachers = getattr(teacher.config, name)
        if own != teachers:
            problems.append(f"{name}: {own!r}, the teacher's {teachers!r}")
    taken: dict[str, np.ndarray] = {}
    shapes = param_shapes(model)
    for path, like in shapes.items():
        if path not in teacher_params:
            continue
        value = np.asarray(teacher_params[path])
        if _is_stacked(path):
            value = value[list(layers)]
        taken[path] = value
        if value.shape != like.shape:
            problems.append(f"{path}: {like.shape}, the teacher's {value.shape}")
    if problems:
        raise ValueError(
            f"The student cannot start from layers of its teacher: {'; '.join(problems)}. Give the "
            "student the teacher's values."
        )
    lacking = frozenset(shapes.keys() - taken.keys())
    params = nested({**taken, **fresh(model, lacking, seed)})
    return params, [*teacher.absent, *sorted(lacking)]


def _is_stacked(path: str) -> bool:
    return "/encoder/layers/" in path


def fingerprint(params: dict[str, Any]) -> str:
    """Returns the hexadecimal SHA-256 of all parameters and their paths, to identify a model."""
    digest = hashlib.sha256()
    flat = flattened(params)
    for path in sorted(flat):
        value = np.ascontiguousarray(flat[path])
        digest.update(f"{path} {value.dtype} {value.shape}\n".encode())
        digest.update(value.data)
    return digest.hexdigest()


# Vocabularies that grow are padded to a multiple of this number, which divides over the axes of
# usual meshes and fills the tiles of accelerators.
PADDED_TO = 64
NewPositions = Literal["tile", "interpolate"]


def with_new_words(loaded: LoadedModel, tokenizer: Tokenizer, seed: int) -> LoadedModel:
    """Extends the vocabulary of a model to the vocabulary of `tokenizer` (Gee et al. 2022).

    The rows of each new id are the mean of the rows of the pieces into which the model's own
    tokenizer splits the new entry: in the word embedding, in the output bias and, if it is not
    tied, in the output matrix of the masked LM head. New characters, and words of such characters,
    all start from the row of the unknown token. If the embedding has too few rows, it gets as many
    as the new tokenizer has entries, rounded up to a multiple of 64; the rows without an entry are
    initialised at random from `seed`.

    Raises:
        ValueError: `tokenizer` is not the model's tokenizer with further entries.
    """
    old = loaded.tokenizer
    if difference := tokenizer.difference_from(old):
        raise ValueError(
            f"The tokenizer is not the one of {loaded.source.where} with further entries "
            f"({difference})."
        )
    if tokenizer.vocab_size > loaded.config.vocab_size:
        size = -(-tokenizer.vocab_size // PADDED_TO) * PADDED_TO
        loaded = resize_vocabulary(loaded, size, seed)
    pieces = [old.split(token) for token in tokenizer.tokens[old.vocab_size :]]

    def grow(path: str, rows: np.ndarray) -> np.ndarray:
        del path
        grown = rows.copy()
        for index, ids in enumerate(pieces, old.vocab_size):
            grown[index] = rows[ids].mean(axis=0)
        return grown

    loaded = _with_rows(loaded, "vocab_size", loaded.config.vocab_size, grow)
    return loaded._replace(tokenizer=tokenizer)


def resize_vocabulary(loaded: LoadedModel, vocab_size: int, seed: int = 0) -> LoadedModel:
    """Resizes the word embedding and the masked LM head of a model to another vocabulary size.

    The values of token ids below both sizes are kept; the new ones are drawn from `seed`.
    """
    if vocab_size == loaded.config.vocab_size:
        return loaded
    axes = _axes_of(loaded.model, "vocab_size")
    resized = _resized(loaded.model, "vocab_size", vocab_size)
    drawn = fresh(resized, frozenset(axes), seed)

    def grow(path: str, rows: np.ndarray) -> np.ndarray:
        all_rows = np.moveaxis(drawn[path], axes[path], 0)
        return np.concatenate([rows[:vocab_size], all_rows[len(rows) :]])

    return _with_rows(loaded, "vocab_size", vocab_size, grow)


def with_positions(
    loaded: LoadedModel, max_position_embeddings: int, method: NewPositions
) -> LoadedModel:
    """Extends the position embedding of a model to `max_position_embeddings` rows.

    The first `position_offset` rows, which stand for no position, are kept; rows that were never
    trained (`trained_positions`) are left out. A model without position embeddings only gets the
    new number in its config. The method "tile" keeps the old rows, and the new ones repeat them
    from the first position (Beltagy et al. 2020, "Longformer", 5); "interpolate" spreads the old
    rows evenly over all positions, and interpolates between.
    """
    offset = loaded.config.position_offset
    count = max_position_embeddings - offset
    trained = loaded.config.trained_positions or loaded.config.max_length
    config = dataclasses.replace(loaded.config, trained_positions=None)
    loaded = loaded._replace(model=loaded.model.clone(config=config))

    def grow(path: str, rows: np.ndarray) -> np.ndarray:
        del path
        own = rows[offset : offset + trained]
        if method == "tile":
            grown = own[np.arange(count) % len(own)]
        else:
            grown = _interpolated(own, count)
        return np.concatenate([rows[:offset], grown])

    return _with_rows(loaded, "max_position_embeddings", max_position_embeddings, grow)


def _interpolated(rows: np.ndarray, count: int) -> np.ndarray:
    """Spreads rows evenly over `count` rows, with linear interpolation between them."""
    last = len(rows) - 1
    places = np.linspace(0, last, count)
    below = np.minimum(places.astype(int), max(last - 1, 0))
    above = np.minimum(below + 1, last)
    share = (places - below)[:, None].astype(rows.dtype)
    return rows[below] * (1 - share) + rows[above] * share


def _with_rows(
    loaded: LoadedModel, field: str, size: int, grow: Callable[[str, np.ndarray], np.ndarray]
) -> LoadedModel:
    """Returns a model whose config field is `size`; `grow` maps (path, old rows) to new rows."""
    model = _resized(loaded.model, field, size)
    flat = flattened(loaded.params)
    for path, axis in _axes_of(loaded.model, field).items():
        rows = np.moveaxis(np.asarray(flat[path]), axis, 0)
        grown = np.moveaxis(grow(path, rows), 0, axis)
        flat[path] = np.ascontiguousarray(grown)
    return loaded._replace(model=model, params=nested(flat))


def _resized(model: BertWithHead, field: str, size: int) -> BertWithHead:
    return model.clone(config=dataclasses.replace(model.config, **{field: size}))


def _axes_of(model: BertWithHead, field: str) -> dict[str, int]:
    """Returns {path: axis} of the parameters that have an axis of the size `field` of the config.

    Sizes may be equal by chance, so the axes are found by the shapes of a larger model.
    """
    size = getattr(model.config, field)
    larger = param_shapes(_resized(model, field, size + 1))
    axes = {}
    for path, like in param_shapes(model).items():
        for axis, size in enumerate(like.shape):
            if size != larger[path].shape[axis]:
                axes[path] = axis
    return axes
