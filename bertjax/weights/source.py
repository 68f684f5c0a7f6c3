"""Opens model directories, workdirs of runs, TF1 checkpoints, and models of the hub and package."""

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import orbax.checkpoint as ocp

from bertjax.base.checksums import damaged_steps, without_older_checkpoints
from bertjax.base.files import brief, is_remote, listed, read_json, refuse_links_outside
from bertjax.base.run_file import checked_run_id, holds_run, read_run
from bertjax.base.workdir_files import CHECKPOINTS
from bertjax.cloud.copies import local_copy
from bertjax.cloud.hub import fetch, may_be_hub_name
from bertjax.config import RtdConfig, model_at
from bertjax.model import HEADS, BertConfig, BertWithHead
from bertjax.model.recipe import flattened, nested
from bertjax.shipped import shipped_model
from bertjax.tokenization import TOKENIZER_FILES, VOCABULARY_FILES, Tokenizer, load_tokenizer
from bertjax.tokenization.static import StaticTokenizer
from bertjax.weights import (
    adapters,
    hf,
    late_interaction,
    names,
    originals,
    sentence_transformers,
    sparse_modules,
)
from bertjax.weights.families import FAMILIES, architecture
from bertjax.weights.fill import param_shapes
from bertjax.weights.sentence_transformers import Read, SentenceModules
from bertjax.weights.tf1 import open_tf1

_SMALL_FILES = [
    "config.json",
    "task.json",
    adapters.SETTINGS,
    *TOKENIZER_FILES,
    *sentence_transformers.SENTENCE_FILES,
    late_interaction.METADATA,
]


class Usage(NamedTuple):
    """How a model is used, according to files beside its weights, which are read when it is opened.

    Attributes:
        description: the content of `task.json`; {} if there is none.
        modules: the modules of sentence-transformers; None if there are none.
        sentence_files: {relative path: content} of the files of sentence-transformers.
        tagger: {PyTorch name: tensor} in `tagger.safetensors`; None if there is none.
    """

    description: Read[dict[str, Any]]
    modules: Read[SentenceModules | None]
    sentence_files: Read[dict[str, bytes]]
    tagger: Read[dict[str, np.ndarray] | None]


def usage_of(directory: Path) -> Usage:
    """Reads the files in the directory of a model that say how it is used."""
    task = directory / "task.json"
    tagger = directory / hf.TAGGER
    return Usage(
        _read(lambda: read_json(task) if task.is_file() else {}),
        _read(lambda: _modules_in(directory)),
        _read(lambda: sentence_transformers.sentence_files(directory)),
        _read(lambda: dict(hf.open_weights([tagger])) if tagger.is_file() else None),
    )


def _modules_in(directory: Path) -> SentenceModules | None:
    if late_interaction.reads(directory):
        return late_interaction.read_token_modules(directory)
    if sparse_modules.reads(directory):
        return sparse_modules.read_sparse_modules(directory)
    return sentence_transformers.read_sentence_modules(directory)


def _read(read: Callable[[], Any]) -> Read[Any]:
    try:
        return Read(read())
    except Exception as error:
        return Read(error=error)


class Source(NamedTuple):
    """An opened model directory, workdir or TF1 checkpoint, from which a model can be loaded.

    Attributes:
        kind: "hf" (Hugging Face), "run" (the workdir of a pretraining run), "tf1", or "static"
            (a table of embeddings).
        where: the path of the directory or checkpoint.
        config: the fields of `config.json` or `bert_config.json`; for a run or table, of
            `BertConfig`.
        tensors: {PyTorch name: tensor} of the parameters.
        tokenizer: the tokenizer; None if there is none and `open_source` need not have one.
    """

    kind: str
    where: Path
    config: dict[str, Any]
    tensors: Mapping[str, np.ndarray]
    tokenizer: Tokenizer
    usage: Usage


def open_source(path: str | Path, *, tokenizer_required: bool = True) -> Source:
    """Opens a model directory, the workdir of a run, a TF1 checkpoint or a model on the hub.

    `bertjax:NAME` is a model that comes with bertjax, such as `bertjax:tiny`. If `path` is a file
    `.bin` or `.safetensors`, the weights are read from this file, and all else from its directory.
    Raises FileNotFoundError if there is no model, or no tokenizer although one is required, and
    ValueError if a file is damaged, or a link to a place outside of its directory.
    """
    if not isinstance(path, str | os.PathLike) or not str(path):
        raise ValueError(
            f"The model is {brief(repr(path), 60)}: give a directory, a checkpoint, or the name of "
            "a model on the hub."
        )
    address = shipped_model(path) or path
    path = local_copy(address, choose=without_older_checkpoints)
    place = Path(path)
    if is_remote(address) and damaged_steps(place / CHECKPOINTS):
        local_copy(address)  # an older checkpoint may be undamaged
    if place.is_dir():
        if holds_run(place):
            refuse_links_outside(place)
        if holds_run(place) and not _is_fine_tuned(place):
            return _open_run(place, tokenizer_required)
        folder = sentence_transformers.transformer_folder(place)
        if sentence_transformers.is_static(place):
            return _open_static(folder, place)
        if (folder / adapters.SETTINGS).is_file():
            return _open_adapter(folder, tokenizer_required, place)
        if (folder / "config.json").is_file() and hf.has_weights(folder):
            return _open_hf(folder, None, tokenizer_required, place)
        if (place / "bert_config.json").is_file():
            return _open_tf1(place, place, tokenizer_required)
        if (place / "model" / "config.json").is_file():
            return open_source(place / "model", tokenizer_required=tokenizer_required)
    elif place.is_file() and place.name in adapters.MATRICES:
        return _open_adapter(place.parent, tokenizer_required, place.parent)
    elif place.is_file() and place.suffix in hf.WEIGHT_SUFFIXES:
        return _open_hf(place.parent, place, tokenizer_required)
    elif Path(f"{path}.index").is_file():
        return _open_tf1(place, place.parent, tokenizer_required)
    elif place.name == "model" and holds_run(place.parent):
        raise FileNotFoundError(
            f"The run in {place.parent} has not written its model: repeat its command to finish it."
        )
    elif may_be_hub_name(path):
        return open_source(_fetch(str(path)), tokenizer_required=tokenizer_required)
    sentence_transformers.check_first_module(place)
    message = (
        f"No model at {path}: expected a directory with config.json and weights "
        "(model.safetensors, its shards and index, or pytorch_model.bin), the workdir of a run, a "
        "TF1 checkpoint beside its bert_config.json, a name on the hub, or bertjax:tiny."
    )
    others = [x.name for x in sorted(place.glob("*")) if x.suffix in hf.WEIGHT_SUFFIXES]
    if others:
        message += f" Or give one of its files by its path: {listed(others)}."
    raise FileNotFoundError(message)


def _open_hf(
    directory: Path, weights: Path | None, tokenizer_required: bool, whole: Path | None = None
) -> Source:
    """Opens a model directory; `whole` holds it and other modules of sentence-transformers."""
    whole = whole or directory
    if whole == sentence_transformers.transformer_folder(whole.parent):
        print(f"note: give {whole.parent} to follow its {sentence_transformers.MODULES}")
    if weights is not None and (directory / adapters.SETTINGS).is_file():
        print(f"warning: the adapter beside {weights} is not read: give {directory} to merge it")
    refuse_links_outside(whole)
    hf.check_files(whole)
    config = {}
    if (directory / "config.json").is_file():
        config = read_json(directory / "config.json")
    tokenizer = _open_tokenizer(directory, tokenizer_required)
    tensors = hf.open_hf(directory) if weights is None else hf.open_weights([weights])
    tensors, config = originals.in_transformers(tensors, config, weights or directory, tokenizer)
    if not config:
        raise FileNotFoundError(
            f"{directory} has no config.json, which describes the architecture of {weights}: copy "
            "it there."
        )
    model_type = config.get("model_type", "bert")
    if isinstance(model_type, str) and model_type in FAMILIES:  # others are refused later
        tensors = names.without_wrapper(tensors, model_type, weights or directory)
    tensors = late_interaction.without_linear(tensors, config)
    return Source("hf", whole, config, tensors, tokenizer, usage_of(whole))


# The most tokens of a text of which static embeddings make a vector.
STATIC_LENGTH = 8192


def _open_static(folder: Path, whole: Path) -> Source:
    """Opens a StaticEmbedding of sentence-transformers as an encoder without layers."""
    refuse_links_outside(whole)
    hf.check_files(whole)
    tokenizer = StaticTokenizer.load(folder / "tokenizer.json", STATIC_LENGTH)
    table = sentence_transformers.read_table(folder)
    config = static_config(*table.shape).to_dict()
    tensors = {"bert.embeddings.word_embeddings.weight": table}
    return Source("static", whole, config, tensors, tokenizer, usage_of(whole))


def static_config(rows: int, size: int) -> BertConfig:
    """Returns the config of a table of embeddings."""
    return BertConfig(
        vocab_size=rows,
        hidden_size=size,
        num_hidden_layers=0,
        num_attention_heads=1,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        max_position_embeddings=STATIC_LENGTH,
        type_vocab_size=0,
        pad_token_id=None,
        add_pooling_layer=False,
        position_biased_input=False,
    )


def _open_adapter(folder: Path, tokenizer_required: bool, whole: Path) -> Source:
    """Opens an adapter of PEFT, merged with the model beside it, or that its settings name."""
    settings = adapters.read_settings(folder)
    tokenizer = _open_tokenizer(folder, required=False)
    required = tokenizer_required and tokenizer is None
    if (folder / "config.json").is_file() and hf.has_weights(folder):
        base = _open_hf(folder, None, required, whole)
    else:
        base = _open_base(folder, settings.get("base_model_name_or_path"), required)
        refuse_links_outside(whole)
    tensors, config = adapters.merged(base.tensors, base.config, folder)
    print(f"note: the adapter in {folder} is merged with its base model, {base.where}")
    used = whole
    described = folder.parent / "config.json"
    if folder.name == "adapter" and described.is_file():  # in the model that a fine-tuning wrote
        used = folder.parent
        for key, value in read_json(described).items():
            if key in ("architectures", "id2label", "label2id", "problem_type"):
                config[key] = value
    return Source(
        kind=base.kind,
        where=whole,
        config=config,
        tensors=tensors,
        tokenizer=tokenizer or base.tokenizer,
        usage=usage_of(used),
    )


def _open_base(folder: Path, name: Any, tokenizer_required: bool) -> Source:
    """Opens the model that the settings of the adapter in `folder` name."""
    path = str(name)
    if (folder / path).exists() and not Path(path).exists():
        path = str(folder / path)
    try:
        if (Path(path) / adapters.SETTINGS).is_file() and not hf.has_weights(Path(path)):
            raise FileNotFoundError("it is an adapter itself")
        return open_source(path, tokenizer_required=tokenizer_required)
    except OSError as error:
        raise FileNotFoundError(
            f"The adapter in {folder} needs its base model, {brief(name, 80)}, which cannot be "
            f"opened ({brief(error, 90)}): write its path or name into {adapters.SETTINGS} as "
            "base_model_name_or_path."
        ) from error


def _open_tokenizer(directory: Path, required: bool) -> Any:
    if not required and not any((directory / name).is_file() for name in VOCABULARY_FILES):
        return None
    return load_tokenizer(directory)


def _open_tf1(checkpoint: Path, directory: Path, tokenizer_required: bool) -> Source:
    file = directory / "bert_config.json"
    if not file.is_file():
        raise FileNotFoundError(f"{directory} has no bert_config.json: copy it there.")
    refuse_links_outside(directory)
    config = read_json(file)
    tokenizer = _open_tokenizer(directory, tokenizer_required)
    return Source("tf1", checkpoint, config, open_tf1(checkpoint), tokenizer, usage_of(checkpoint))


def _is_fine_tuned(workdir: Path) -> bool:
    """Whether a workdir holds the exported model of a finished fine-tuning run."""
    has_task = "task" in read_run(workdir)["config"]
    return has_task and (workdir / "model" / "config.json").is_file()


def _open_run(workdir: Path, tokenizer_required: bool) -> Source:
    """Reads the parameters, but no optimizer state, from a run's newest undamaged checkpoint."""
    content = read_run(workdir)
    run: Any = content["config"]
    if "task" in run:
        raise ValueError(
            f"The fine-tuning in {workdir} is not finished, so it has no model yet: repeat its "
            "command to finish it."
        )
    try:
        config = run["model"]
    except (KeyError, TypeError) as error:
        raise ValueError(
            f"{workdir / 'run.json'} has no config of a model: give the workdir of a pretraining "
            "run, or of a finished fine-tuning."
        ) from error
    checked_run_id(workdir / "checkpoints", content.get("run_id", ""))
    head = run.get("head") or "pretraining"
    model: Any = HEADS[head](BertConfig.from_dict(config))
    if head == "rtd":
        model = model.with_generator(RtdConfig(**run["rtd"]))
    # The manager must not create or delete anything, because the run may be in progress.
    options = ocp.CheckpointManagerOptions(create=False)
    with ocp.CheckpointManager((workdir / "checkpoints").absolute(), options=options) as manager:
        damaged = damaged_steps(workdir / "checkpoints")
        step = max((step for step in manager.all_steps() if step not in damaged), default=None)
        if step is None:
            why = ""
            if damaged:
                why = f" that is whole ({max(damaged.items())[1]})"
            raise FileNotFoundError(
                f"The run in {workdir} has no checkpoint yet{why}: start the run again with its "
                "command."
            )
        if any(other > step for other in damaged):
            print(f"warning: newer checkpoints of {workdir} are damaged; step {step} is read")
        try:
            params = _restored_params(manager, step, model)
        except Exception as error:  # Orbax raises many types, with long messages.
            summary = str(error).partition("\n")[0]
            raise ValueError(
                f"Checkpoint {step} of the run in {workdir} cannot be read ({summary}): remove "
                f"{workdir / 'checkpoints' / str(step)} to use the previous one."
            ) from error
    params = model.recipe.join(params, {})
    exported = {name: part for name, part in params.items() if name not in model.training_parts}
    tensors = dict(names.to_hf(flattened(exported), model.config))
    distillation = run.get("distillation") or {}
    is_new = not run.get("init") and not distillation.get("layers")
    config = model_at(model.config, run.get("phases") or (), step, is_new=is_new).to_dict()
    config |= {"step": step, "architectures": [architecture(model.config, head)]}
    tokenizer = _open_tokenizer(workdir / "tokenizer", tokenizer_required)
    return Source("run", workdir, config, tensors, tokenizer, usage_of(workdir))


def _restored_params(manager: ocp.CheckpointManager, step: int, model: BertWithHead) -> Any:
    shapes, _ = jax.eval_shape(model.recipe.split, nested(param_shapes(model)))
    like = {"params": shapes}
    restore = ocp.args.PyTreeRestore(
        like,
        restore_args=ocp.checkpoint_utils.construct_restore_args(
            jax.tree.map(lambda _: np.zeros(0, np.float32), like)
        ),
        partial_restore=True,
    )
    return manager.restore(step, args=ocp.args.Composite(state=restore))["state"]["params"]


def _fetch(name: str) -> Path:
    for weights in (
        ["*.safetensors", f"*{hf.INDEX}"],
        [hf.BIN, "pytorch_model-*.bin", hf.BIN_INDEX, adapters.MATRICES[1]],
    ):
        folder = fetch(name, _SMALL_FILES + weights)
        if hf.has_weights(folder):
            break
    return folder
