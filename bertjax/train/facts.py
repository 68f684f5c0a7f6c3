"""What a run is planned from: its facts, which are read here alone, and read once.

The facts are the data, the model to start from, the teacher, the devices, and what the workdir
holds. `run_plan` makes a plan of them, and the job of the run takes what was read.
"""

import contextlib
import dataclasses
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from bertjax.base.files import brief, naming_read_errors
from bertjax.config import FinetuneConfig, PretrainConfig, RtdConfig
from bertjax.config.model import BertConfig
from bertjax.config.task_options import OfficialOptions
from bertjax.data.batches.masking import unspaced_tokens
from bertjax.data.batches.pretraining_batches import Rows
from bertjax.data.metadata import Metadata, row_sources
from bertjax.data.preparation.workers import available_cores
from bertjax.devices import hosts
from bertjax.devices.compilation import bits_settings
from bertjax.inference.embedder import following
from bertjax.inference.late_interaction import in_training
from bertjax.inference.retrieval import Collection, beir_collection
from bertjax.inference.saved_task import check_class_ids, stated_length, with_task
from bertjax.model import HEADS
from bertjax.model.recipe import flattened, nested
from bertjax.record.predictions import selected_by, splits_of
from bertjax.tasks import Task, make_task
from bertjax.tasks.baselines import Baselines
from bertjax.tasks.classification import ClassificationTask, MultiLabelTask, RegressionTask
from bertjax.tasks.definition import Fold
from bertjax.tasks.embedding import RETRIEVAL_METRICS, EmbedderOptions
from bertjax.tasks.late_interaction import LateInteractionTask
from bertjax.tasks.reranking import RerankTask
from bertjax.tasks.sources.leaks import without_leaks
from bertjax.tasks.training_data import TrainingData, check_splits, write_training_data
from bertjax.tokenization import Tokenizer, load_tokenizer
from bertjax.train.distillation import (
    Teacher,
    check_length,
    load_masked_lm_teacher,
    load_task_teacher,
    student_of_teacher,
)
from bertjax.train.held_out_evaluation import other_data
from bertjax.train.initial_model import Say, initial_model, with_generator
from bertjax.train.program import make_masking, with_head
from bertjax.train.run_data import RunData
from bertjax.train.workdir import SavedRun, Workdir
from bertjax.weights import LoadedModel, load_model
from bertjax.weights.families import MissingHead, config_to_hf
from bertjax.weights.fill import fresh
from bertjax.weights.load import class_order, with_class_order, with_tagger

_SAMPLED_ROWS = 1_000


class Machine(NamedTuple):
    """The devices of a run, in words too, and the settings of jax that change bits."""

    devices: Sequence[Any]
    text: str
    environment: dict[str, str]


def this_machine() -> Machine:
    """Returns the devices of all processes of the run, and the number of cores of this host."""
    devices = jax.devices()
    text = device_text(devices[0].device_kind, len(devices), jax.process_count())
    return Machine(devices, f"{text} and {available_cores()} cores", bits_settings())


def device_text(kind: str, count: int, processes: int) -> str:
    """Returns the devices of a run in words: "1 CPU", "8 x TPU v4 in 2 processes"."""
    if kind.lower() == "cpu":
        kind = "CPU"
    text = f"1 {kind}"
    if count > 1:
        text = f"{count} x {kind}"
    if processes > 1:
        text += f" in {processes} processes"
    return text


@dataclasses.dataclass(frozen=True, kw_only=True)
class PretrainingFacts:
    """What a pretraining is planned from.

    Attributes:
        data: the prepared data; the rows of the next phase are there.
        others: (label for metrics, data) of the data that are only evaluated.
        tokenizer: the tokenizer of the data.
        head: the head that the model gets.
        model: the architecture of --init or, if the run resumes, of the run; else of the config.
        rtd: the generator and the losses of the head "rtd", with the sizes of --generator_init.
        initial: the model to start from, extended to the data; None: random weights, or the run
            resumes.
        teacher: the teacher for distillation; None: no distillation.
        machine: the devices.
        workdir: what the workdir holds.
        has_segmenter: whether words of scripts without spaces are found by ICU.
        unspaced: the share of the tokens of the next phase that are in such scripts, if words
            matter; estimated from a sample.
        notes: what the reading has found that the user should know.
    """

    data: RunData
    others: list[tuple[str, RunData]]
    tokenizer: Tokenizer
    head: Any
    model: BertConfig
    rtd: RtdConfig | None
    initial: LoadedModel | None
    teacher: Teacher | None
    machine: Machine
    workdir: SavedRun
    has_segmenter: bool
    unspaced: float
    notes: Sequence[str]


def gather_pretraining(config: PretrainConfig, workdir: Workdir) -> PretrainingFacts:
    """Reads what a run is planned from, and waits for the rows of its next phase.

    Raises:
        FileNotFoundError: the data or a model does not exist.
        ValueError: the config lacks data, workdir or phases, or cannot be used with the data, the
            model of --init or the teacher.
    """
    if not config.data or not config.workdir or not config.phases:
        raise ValueError(
            f"The config lacks data, workdir or phases (data={config.data!r}, "
            f"workdir={config.workdir!r}, {len(config.phases)} phases): give --config, --data "
            "and --workdir."
        )
    data = RunData(config.data, config.data_cache)
    notes = []
    config = dataclasses.replace(config, data=data.directory)
    tokenizer = load_tokenizer(config.data)
    if tokenizer.fingerprint != data.metadata.tokenizer_fingerprint:
        raise ValueError(
            f"The tokenizer in {config.data} is not the one that the rows were made with: "
            "restore the original tokenizer, or prepare the data again."
        )
    # The model will read rows of this length, so that programs must not truncate to fewer.
    longest = max(phase.max_length for phase in config.phases)
    tokenizer.model_max_length = max(tokenizer.model_max_length, longest)
    config = with_head(config, data.metadata.has_sentence_pairs)
    saved = workdir.look()
    # A run that resumes from a checkpoint does not need the model that it started from.
    starts = saved.newest_step == 0 or config.overwrite
    initial = None
    model = config.model
    rtd = config.rtd
    if config.init is not None and not starts:
        model, rtd = _saved_architecture(config, workdir.read()["config"])
    elif config.init is not None:
        with explained_head(data.metadata):
            initial = initial_model(config, tokenizer, notes.append)
        if config.generator_init is not None:
            initial, rtd = with_generator(initial, config, tokenizer, notes.append)
        model = initial.config
    elif config.student_layers and starts:
        initial = student_of_teacher(config, HEADS[str(config.head)].for_pretraining(config))
    others = other_data(config, data.metadata)
    masking = make_masking(config, config.phases[0], tokenizer)
    unspaced = 0.0
    for length in lengths_after(config, saved.newest_step)[:1]:
        if length in data.metadata.max_lengths:
            data.require(length)
            if masking.word_starts is not None:
                unspaced = _unspaced_share(config, length, tokenizer)
    return PretrainingFacts(
        data=data,
        others=others,
        tokenizer=tokenizer,
        head=config.head,
        model=model,
        rtd=rtd,
        initial=initial,
        teacher=load_masked_lm_teacher(config, model, tokenizer),
        machine=this_machine(),
        workdir=saved,
        has_segmenter=masking.segment is not None,
        unspaced=unspaced,
        notes=notes,
    )


def _saved_architecture(
    config: PretrainConfig, saved: dict[str, Any]
) -> tuple[BertConfig, RtdConfig | None]:
    """Returns the architecture, and the config of the generator, of a run in run.json."""
    rtd = config.rtd
    if config.generator_init is not None:
        sizes = {name: saved["rtd"][name] for name in RtdConfig.SIZES}
        rtd = dataclasses.replace(config.generator, **sizes)
    return BertConfig.from_dict(saved["model"]), rtd


@contextlib.contextmanager
def explained_head(metadata: Metadata) -> Iterator[None]:
    """A context that replaces `MissingHead` if transformers lacks the sentence-pair head."""
    try:
        yield
    except MissingHead as error:
        if error.head != "pretraining":
            raise
        raise ValueError(
            f"{error.family} has no head for sentence pairs in transformers, but the run needs "
            f"this head (the data was prepared with --objective {metadata.objective}). Give --head "
            "masked_lm, which trains only masked LM on the same data and does not use the labels "
            "of sentence pairs, or prepare the data with --objective mlm."
        ) from error


def lengths_after(config: PretrainConfig, step: int) -> list[int]:
    """Returns the row lengths of the phases that do not end before `step`, in their order."""
    lengths = []
    end = 0
    for phase in config.phases:
        end += phase.num_steps
        if end > step:
            lengths.append(phase.max_length)
    return lengths


def _unspaced_share(config: PretrainConfig, length: int, tokenizer: Tokenizer) -> float:
    """Returns the share, in a sample of the train rows, of tokens in scripts without spaces."""
    sources = row_sources(config.data, "train", length)
    rows = Rows([path for source in sources for path in source.paths])
    sample = range(0, len(rows), len(rows) // _SAMPLED_ROWS + 1)
    ids = np.concatenate([rows[index].input_ids for index in sample])
    return float(unspaced_tokens(tokenizer).tokens[ids].mean())


@dataclasses.dataclass(frozen=True, kw_only=True)
class FinetuningFacts:
    """What a fine-tuning is planned from.

    Attributes:
        task: the task, with the source of its examples.
        loaded: the model to start from, with the head of the task.
        data: the train split as features: inputs and labels of an example, or of a window of a long
            text.
        teacher: the teacher for distillation; None: no distillation.
        collection: the collection that evaluations search; None: none.
        baselines: the scores of simple models, which the first run computes.
        machine: the devices.
        workdirs: what the workdirs of all runs with these facts hold.
        notes: what the reading has found that the user should know.
    """

    task: Task
    loaded: LoadedModel
    data: TrainingData
    teacher: Teacher | None = None
    collection: Collection | None = None
    baselines: Baselines
    machine: Machine
    workdirs: Mapping[str, SavedRun]
    notes: Sequence[str] = ()


def gather_finetuning(
    config: FinetuneConfig,
    folder: Path,
    workdirs: Sequence[str],
    fold: Fold | None = None,
    *,
    needs_dev: bool = False,
) -> FinetuningFacts:
    """Reads task, model, train split and teacher, which all runs share, and encodes the split.

    What can be refused before the model is read is refused first.

    Args:
        config: the config of the first run.
        folder: the folder to write the encoded train split to.
        workdirs: the workdirs of all runs.
        fold: the fold that is held out; None: no cross-validation.
        needs_dev: whether the dev split chooses among the runs.
    """
    task = _checked_task(config, make_task(config.task, config.options, fold), needs_dev=needs_dev)
    if isinstance(config.options, OfficialOptions):
        task = dataclasses.replace(task, source=without_leaks(task.data))
    notes: list[str] = []
    loaded = load_for_task(config, task, notes.append)
    if config.max_length is None and (length := stated_length(task, loaded)):
        task = dataclasses.replace(task, max_length=length)
        notes.append(f"texts are cut after {length} tokens, as the files of {config.init} say")
    check_length(config, task, config.init, loaded)
    task, loaded = following(task, loaded)
    max_length = config.max_length or task.max_length
    if isinstance(task, RerankTask):
        task = _as_cross_encoder(task, loaded, max_length)
    if isinstance(task, LateInteractionTask):
        loaded = in_training(task, loaded, max_length)
    teacher = load_task_teacher(config, task, loaded)
    path = folder / "train.array_record"
    data = write_training_data(task, loaded.tokenizer, max_length, path)
    left_out = task.data.without("train", data.left_out)
    task = dataclasses.replace(task, source=left_out)
    task = check_splits(task, loaded.tokenizer, max_length)
    return FinetuningFacts(
        task=task,
        loaded=loaded,
        data=data,
        teacher=teacher,
        collection=_collection(config),
        baselines=Baselines(task, data),
        machine=this_machine(),
        workdirs={name: Workdir(Path(name)).look() for name in workdirs},
        notes=notes,
    )


def _checked_task(config: FinetuneConfig, task: Task, *, needs_dev: bool) -> Task:
    """Returns the task with the metric that selects; raises ValueError if it lacks what a flag
    needs.
    """
    has_dev = bool(splits_of(task, "dev"))
    if (needs_dev or config.patience) and not has_dev:
        raise ValueError(
            "--sweep and --patience need a dev split: give a dev split, or leave these flags out."
        )
    check_calibration(config, task)
    if config.teacher and isinstance(task, RegressionTask):  # the teacher predicts other targets
        task = task.unscaled()
    searched = getattr(config.options, "retrieval_dir", None)
    if searched and not has_dev:
        raise ValueError(
            f"--retrieval_dir {searched}: a collection is searched at evaluations, which need a "
            "dev split: give --dev, or leave it out."
        )
    return selected_by(task, config.select_by, RETRIEVAL_METRICS if searched else ())


def _collection(config: FinetuneConfig) -> Collection | None:
    options = config.options
    if not isinstance(options, EmbedderOptions) or options.retrieval_dir is None:
        return None
    same = options.keep_same_id
    return beir_collection(options.retrieval_dir, "dev", or_only=True, keep_same_id=same)


def _as_cross_encoder(task: RerankTask, loaded: LoadedModel, max_length: int) -> RerankTask:
    """Gives a task the activation of the reranker that it starts from, and its model the length.

    A new head has a sigmoid with the binary loss, else none, since only differences of its logits
    are trained. CrossEncoder truncates at the length of the tokenizer.
    """
    loaded.tokenizer.model_max_length = max_length
    before = None if loaded.model.class_part in loaded.absent else with_task(loaded)[1]
    activation = "Identity"
    if task.options.loss == "binary":
        activation = "Sigmoid"
    return dataclasses.replace(task, activation=getattr(before, "activation", activation))


def check_calibration(config: FinetuneConfig, task: Task) -> None:
    """Raises ValueError if a task has other labels than `config` calibrates, or no dev split."""
    one = "one class per example (with several labels, give --tune_thresholds)"
    several = "several labels per example (with one class, give --calibrate)"
    for flag, kind, needed in (
        ("calibrate", ClassificationTask, one),
        ("tune_thresholds", MultiLabelTask, several),
    ):
        if not getattr(config.options, flag, False):
            continue
        if not isinstance(task, kind) or task.label_kind == "distribution":
            raise ValueError(f"--{flag}: {task.name} does not have {needed}: leave it out.")
        if not splits_of(task, "dev"):
            raise ValueError(
                f"--{flag} needs the probabilities of a dev split, but there is none: give --dev, "
                "or leave it out."
            )


def load_for_task(config: FinetuneConfig, task: Task, say: Say = hosts.say) -> LoadedModel:
    """Loads the model that --init names, with the head of the task.

    With `config.tagger`, the model is an encoder, which stays frozen, and a new tagger on
    its hidden states. `config.dropout`, if not None, replaces the dropout rates of the model.
    """
    tagger = config.tagger
    loaded = load_model(
        config.init,
        "encoder" if tagger else task.head,
        num_labels=task.num_labels,
        new_labels=True,
        seed=config.seed,
        head_fields=task.head_fields,
    )
    if tagger is not None:
        loaded = with_tagger(loaded, tagger, len(task.labels), config.seed)
    elif task.labels and loaded.model.class_part not in loaded.absent:
        loaded = _with_classes_of(config, task, loaded, say)
    if loaded.model.class_part not in loaded.absent:
        loaded = loaded._replace(params=to_standardized(loaded.params, task))
    encoder_config = loaded.config.with_dropout(config.dropout)
    config_to_hf(encoder_config)  # what could not be saved is refused before the training
    return loaded._replace(model=loaded.model.clone(config=encoder_config))


def _with_classes_of(
    config: FinetuneConfig, task: Task, loaded: LoadedModel, say: Say
) -> LoadedModel:
    """Gives each class of the task the weights of the class of the same name.

    If the names differ, the classifier is drawn at random, unless they are LABEL_0 and so on, which
    say nothing: then the order stays.
    """
    with naming_read_errors(loaded.source.where):
        check_class_ids(loaded.labels, loaded.source.config)
    stored = loaded.labels or [f"LABEL_{i}" for i in range(len(task.labels))]
    if stored == [*task.labels]:
        return loaded
    order = class_order(stored, task.labels)
    name = f"The classifier of {config.init}"
    before, now = (brief(", ".join(names), 200) for names in (stored, task.labels))
    if order is not None:
        say(
            f"{name} is kept, with its classes in the order and under the names of the task: each "
            f"class has its weights by its name. Before: {before}; now: {now}"
        )
        return with_class_order(loaded, order)
    if all(re.fullmatch(r"LABEL_\d+", label) for label in stored):
        say(
            f"{name} is kept, and so is the order of its classes, whose names say nothing: "
            f"{before} are now called {now}. If it was trained with another order, write the names "
            "into id2label in its config.json"
        )
        return loaded
    say(
        f"{name} is not used, since its classes {before} are not those of the task, {now}. If only "
        "their names differ, correct id2label in its config.json"
    )
    absent = [*loaded.absent, str(loaded.model.class_part)]
    return reinitialized(loaded._replace(absent=absent), config.seed)


def reinitialized(loaded: LoadedModel, seed: int) -> LoadedModel:
    """Initialises again, with `seed`, those parameters of `loaded` that are initialised at random.

    The returned model equals the model that is loaded from the same checkpoint with `seed`.
    """
    flat = flattened(loaded.params)
    paths = frozenset(path for path in flat if path.startswith(tuple(loaded.absent)))
    params = nested({**flat, **fresh(loaded.model, paths, seed)})
    return loaded._replace(params=params)


def to_standardized(params: Any, task: Task) -> Any:
    """Converts a head that predicts targets to one that predicts the standardised targets.

    The parameters of tasks other than regression are returned unchanged.
    """

    def change(kernel: Any, bias: Any, mean: Any, std: Any) -> tuple[Any, Any]:
        return kernel / std, (bias - mean) / std

    return _with_last_layer(params, task, change)


def to_original(params: Any, task: Task) -> Any:
    """Converts a head that predicts standardised targets to one that predicts the targets.

    `params` and `task` are as in `to_standardized`.
    """

    def change(kernel: Any, bias: Any, mean: Any, std: Any) -> tuple[Any, Any]:
        return kernel * std, bias * std + mean

    return _with_last_layer(params, task, change)


def _with_last_layer(params: Any, task: Task, change: Callable[..., tuple[Any, Any]]) -> Any:
    if not isinstance(task, RegressionTask):
        return params
    part = HEADS[task.head].class_part
    layer = [np.asarray(params[part][name]) for name in ("kernel", "bias")]
    kernel, bias = change(*(x.astype(np.float64) for x in layer), *task.scale)
    dtype = layer[0].dtype
    return {**params, part: {"kernel": kernel.astype(dtype), "bias": bias.astype(dtype)}}
