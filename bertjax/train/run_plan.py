"""The plan of a run, made before the run is opened: what it will do, say and refuse.

Plans are functions of a config and its facts (`bertjax.train.facts`): they open, print, download
and compile nothing. `--dry_run` prints them; the job of a run takes its plan and its facts.
"""

import dataclasses
import functools
import hashlib
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar, Self, TypeVar

import jax
import numpy as np

from bertjax.base.files import counted, listed
from bertjax.base.workdir_files import (
    BAD_ROWS,
    CHECKPOINTS,
    METRICS,
    MODEL,
    PREDICTIONS,
    REPORT,
    SCORES,
)
from bertjax.config import (
    FinetuneConfig,
    Phase,
    PretrainConfig,
    TaskOptions,
    TrainingConfig,
    defaults_of,
    differences,
)
from bertjax.config.finetune_config import LAST
from bertjax.config.model import DROPOUT_FIELDS, BertConfig
from bertjax.data.metadata import Metadata
from bertjax.data.mixture import rows_of_sources
from bertjax.devices import sharding
from bertjax.inference.predictor import labels_of
from bertjax.model import BertWithHead
from bertjax.model.losses import Objective
from bertjax.model.sparse_embedding import with_warmup
from bertjax.record.predictions import best_metric
from bertjax.tasks import Task
from bertjax.tasks.embedding import SIMCSE, EmbedderOptions
from bertjax.tasks.sources.advice import similar_classes
from bertjax.tasks.training_data import Labels, RowShape, TrainingData, plan_rows, rows_in_words
from bertjax.train.distillation import distilled_task
from bertjax.train.facts import (
    FinetuningFacts,
    Machine,
    PretrainingFacts,
    device_text,
    explained_head,
)
from bertjax.train.optimizer import difference_before, learning_rate_curves
from bertjax.train.program import PretrainingProgram, Program
from bertjax.train.recipes import make_recipe
from bertjax.train.workdir import SavedRun, another_run, changes_of
from bertjax.weights import LoadedModel
from bertjax.weights.families import architecture, config_to_hf, with_pad_token
from bertjax.weights.fill import part_in_words

Result = TypeVar("Result")


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunPlan:
    """What a run will do.

    Attributes:
        config: the config of the run, with what the data and the model determine.
        phases: the phases of the run; fine-tuning has one.
        made: the model, the optimizer and the steps, of which nothing is compiled; None: they are
            refused.
        identity: the config as stored in run.json, with a hash of the teacher's weights, if any.
        data_fingerprint: a hash of the training data.
        best_metric: the name of the evaluation metric that determines the best checkpoint.
        eval_every: number of steps between evaluations; 0: only at the end of each phase.
        save_every: number of steps between checkpoints.
        epochs: how often each phase reads the data.
        newest_step: the step of the newest checkpoint; 0: the run starts from the beginning.
        deletes: whether another run in the workdir is deleted.
        unit: what a batch consists of.
        outputs: the files and folders in the workdir that the user looks at.
        random_parts: the parts of the model that are initialised at random.
        lines: what is said before the run is opened.
        refusals: why the run cannot be made; empty: it can.
    """

    config: TrainingConfig
    phases: tuple[Phase, ...]
    made: Program | None
    identity: dict[str, Any]
    data_fingerprint: str
    best_metric: str
    eval_every: int
    save_every: int
    random_parts: tuple[str, ...]
    lines: tuple[str, ...]
    refusals: tuple[str, ...]
    epochs: tuple[float, ...]
    newest_step: int = 0
    deletes: bool = False

    unit: ClassVar[str] = "rows"
    outputs: ClassVar[tuple[str, ...]] = (CHECKPOINTS, METRICS, MODEL, REPORT)

    @property
    def num_steps(self) -> int:
        """The number of updates of all phases."""
        return sum(phase.num_steps for phase in self.phases)

    @property
    def program(self) -> Program:
        """The model, the optimizer and the steps.

        Raises:
            ValueError: the run is refused.
        """
        if self.refusals or self.made is None:
            raise ValueError("\n".join(self.refusals))
        return self.made

    def in_workdir(self, saved: SavedRun) -> Self:
        """Returns the plan in a workdir, whose run it continues, replaces or is refused for."""
        step = saved.newest_step
        refusals = [*self.refusals]
        deletes = False
        if saved.problem:
            refusals.append(saved.problem)
        elif saved.content is not None and step:
            changed = changes_of(
                saved.content,
                step,
                self.identity,
                self.data_fingerprint,
                defaults=defaults_of(self.config),
                refused=self.refused_changes,
            )
            if changed and self.config.overwrite:
                step = 0
                deletes = True
            elif changed:
                refusals.append(another_run(saved.address, changed))
        return dataclasses.replace(
            self, newest_step=step, deletes=deletes, refusals=tuple(refusals)
        )

    def refused_changes(self, changed: list[str], saved: dict[str, Any], step: int) -> list[str]:
        """Returns the config fields in `changed` that prevent the run from resuming, and why.

        `changed` describes the differences from `saved`, the config in run.json; `step` is the step
        of the newest checkpoint.
        """
        del saved, step
        return changed


class Refusals(list[str]):
    """Why a run cannot be made, as sentences."""

    def result_of(self, check: Callable[..., Result], *arguments: Any) -> Result | None:
        """Returns the result of `check`, or None if it raises ValueError, which is noted."""
        try:
            return check(*arguments)
        except ValueError as error:
            self.append(str(error))
            return None


def identity_of(config: TrainingConfig, machine: Machine) -> dict[str, Any]:
    """Returns `config` as stored in run.json.

    "environment" are the settings of jax that change bits, and "machine" is what may change on the
    way, and is said then.
    """
    identity = dataclasses.asdict(config) | {"environment": machine.environment}
    return identity | {"machine": machine.text}


def facts_of_program(config: TrainingConfig, program: Program) -> dict[str, Any]:
    """Returns what is said about the program of a run: its size, its devices and its kernel."""
    kernel, reason = program.attention
    if config.attention not in ("auto", kernel):
        reason += f"; warning: {config.attention} was requested"
    shapes = program.state_shapes
    return {
        "parameters": _size(shapes.params) + _size(shapes.fixed),
        "dtype": config.dtype,
        "mesh": " x ".join(f"{axis}={size}" for axis, size in program.mesh.shape.items()),
        "attention": f"{kernel} ({reason})",
    }


def _size(shapes: Any) -> int:
    return sum(leaf.size for leaf in jax.tree.leaves(shapes))


def first_line(plan: RunPlan, step: int) -> str:
    """Returns the line about model, devices and steps with which the run begins at `step`."""
    program = plan.made
    assert program is not None
    facts = facts_of_program(plan.config, program)
    count = jax.device_count()
    where = device_text(jax.devices()[0].device_kind, count, jax.process_count())
    if count > 1:
        where += f" ({facts['mesh']})"
    # The kernel of small runs without a choice is of no interest.
    if count > 1 or program.attention.kernel != "xla" or plan.config.attention != "auto":
        where += f", attention kernel {facts['attention']}"
    steps = f"{plan.num_steps:,} steps"
    if plan.num_steps == 1:
        steps = "1 step"
    if step == plan.num_steps:
        steps = f"all {steps} are done already"
    elif step:
        steps += f", resuming at step {step}"
    size = f"{facts['parameters']:,} parameters"
    shapes = program.state_shapes
    if shapes.fixed:
        moments = sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(shapes.opt_state))
        size += f", of which {_size(shapes.params):,} are trained with {moments:,} bytes of"
        size += " optimizer state"
    return f"{size}, {facts['dtype']}, on {where}; {steps}"


def described(plan: RunPlan) -> Iterator[str]:
    """Yields what `--dry_run` says about a plan, besides its lines and its refusals."""
    config = plan.config
    yield f"{config.workdir}:"
    if plan.made is not None:
        yield first_line(plan, plan.newest_step)
        for curve in learning_rate_curves(config.optimizer, plan.phases):
            yield (
                f"learning rate from step {curve.start:,} to {curve.start + curve.num_steps:,}: "
                f"peak {curve.peak(config.optimizer):g}, warm-up steps "
                f"{curve.warmup_steps(config.optimizer):,}"
            )
    if plan.deletes:
        yield "the run that is there is deleted (--overwrite)"
    if plan.random_parts and not plan.newest_step:
        yield f"initialised at random: {listed([*map(part_in_words, plan.random_parts)])}"
    for index, (phase, epochs) in enumerate(zip(plan.phases, plan.epochs, strict=True)):
        yield (
            f"phase {index}: {phase.num_steps:,} steps of {phase.batch_size:,} {plan.unit} of "
            f"{phase.max_length} tokens, {epochs:,.2f} epochs"
        )
    evaluations = "at the end of each phase"
    if plan.eval_every:
        evaluations = f"every {plan.eval_every:,} steps and {evaluations}"
    yield f"evaluated {evaluations}, saved every {plan.save_every:,} steps"
    yield f"written: {', '.join(plan.outputs)}"
    if config.push_to_hub is not None:
        yield f"uploaded: the model, to {config.push_to_hub} on the Hub"


@dataclasses.dataclass(frozen=True, kw_only=True)
class PretrainingPlan(RunPlan):
    """What a pretraining will do."""

    config: PretrainConfig

    def refused_changes(self, changed: list[str], saved: dict[str, Any], step: int) -> list[str]:
        """The phases may differ if rows and learning rates of all finished steps stay the same."""
        others = [change for change in changed if not change.startswith("phases.")]
        if len(others) == len(changed):
            return changed
        try:
            before = tuple(Phase(**phase) for phase in saved["phases"])
        except (TypeError, ValueError):  # written by a version with other fields
            return changed
        reason = difference_before(self.config.optimizer, before, self.phases, step)
        if reason is None:
            return others
        return [*changed, reason]


def plan_pretraining(config: PretrainConfig, facts: PretrainingFacts) -> PretrainingPlan:
    """Plans a run; what `facts` could not be read with is refused by `gather_pretraining`."""
    refusals = Refusals()
    lines = [*facts.notes]
    model = facts.model
    metadata = facts.data.metadata
    if config.init is not None and facts.initial is not None:
        lines += _lines_of_architecture(config, model)
        model = model.with_dropout(config.dropout)
    if model.token_dropout:
        model = dataclasses.replace(model, mask_token_id=facts.tokenizer.mask_token_id)
    config = dataclasses.replace(
        config,
        data=facts.data.directory,
        head=facts.head,
        model=with_pad_token(model, facts.tokenizer.pad_token_id),
        rtd=facts.rtd,
    )
    refusals.result_of(_check_model, config, metadata)
    refusals.result_of(_check_vocabulary, config, facts.tokenizer.vocab_size)
    refusals.result_of(_check_lengths, config, metadata)
    if facts.initial is None:
        lines += _lines_of_vocabulary(config.model.vocab_size, facts.tokenizer.vocab_size)
    program = refusals.result_of(_pretraining_program, config, facts)
    if facts.unspaced:
        how = "tokens are masked one by one (pip install 'bertjax[icu]' finds the words)"
        if facts.has_segmenter:
            how = "words are those of ICU"
        share = f"{100 * facts.unspaced:.1f} % of the tokens"
        lines.append(f"{share} are in scripts without spaces: {how}")
    metric = ""
    random = ()
    if program is not None:
        metric = program.objective.best_metric
        random = random_parts(facts.initial, program.model)
    plan = PretrainingPlan(
        config=config,
        phases=config.phases,
        made=program,
        identity=_identity_of_pretraining(config, facts),
        data_fingerprint=hashlib.sha256(metadata.to_json().encode()).hexdigest(),
        best_metric=f"eval/{metric}",
        eval_every=config.eval_every,
        save_every=config.save_every,
        random_parts=random,
        lines=(*lines, *epochs_of_sources(metadata, config.phases)),
        refusals=tuple(refusals),
        epochs=tuple(phase.num_rows / _rows(metadata, phase.max_length) for phase in config.phases),
    )
    return plan.in_workdir(facts.workdir)


def _rows(metadata: Metadata, length: int) -> float:
    """Returns the number of train rows of a length; infinite: the data have no such rows."""
    rows = metadata.splits["train"].lengths.get(str(length))
    if rows is None:
        return math.inf
    return max(rows.records, 1)


def _lines_of_architecture(config: PretrainConfig, model: BertConfig) -> list[str]:
    """Returns a line on how the model of --init differs from the architecture in the config."""
    ignored = DROPOUT_FIELDS
    if config.dropout is None:
        ignored = ()
    changes = differences(dataclasses.asdict(model), dataclasses.asdict(config.model), ignored)
    if not changes:
        return []
    return [f"--init {config.init} determines the architecture: {', '.join(changes)}"]


def _check_model(config: PretrainConfig, metadata: Metadata) -> None:
    """Refuses a model that has no form in transformers, or phases that do not fit it."""
    config_to_hf(config.model)
    for index in range(len(config.phases)):
        config.check_rope(index)
    with explained_head(metadata):
        architecture(config.model, str(config.head))


def _fitting_rows(size: int) -> int:
    return -(-size // 64) * 64  # as those of an extended model


def _check_vocabulary(config: PretrainConfig, size: int) -> None:
    rows = config.model.vocab_size
    if size > rows:
        raise ValueError(
            f"The data was prepared with {size} tokens, but the model has vocab_size={rows}: "
            f"use --model.vocab_size {_fitting_rows(size)}."
        )


def _check_lengths(config: PretrainConfig, metadata: Metadata) -> None:
    lengths = sorted({phase.max_length for phase in config.phases})
    if not {*lengths} <= {*metadata.max_lengths}:
        raise ValueError(
            f"{config.data} holds rows of {metadata.max_lengths} tokens, but the config has "
            f"max_length={listed(lengths)}: prepare the data in a new --output with these."
        )


def _lines_of_vocabulary(rows: int, size: int) -> list[str]:
    if rows <= max(2 * size, _fitting_rows(size)):
        return []
    return [
        f"warning: the tokenizer has {size:,} entries: {rows - size:,} more rows would "
        f"only make the run slower; give --model.vocab_size {_fitting_rows(size)}"
    ]


def _pretraining_program(config: PretrainConfig, facts: PretrainingFacts) -> PretrainingProgram:
    mesh = sharding.make_mesh(config.mesh, facts.machine.devices)
    return PretrainingProgram(config, mesh, facts.teacher)


def _identity_of_pretraining(config: PretrainConfig, facts: PretrainingFacts) -> dict[str, Any]:
    identity = identity_of(config, facts.machine)
    if facts.teacher is not None:
        identity["distillation"]["teacher_weights"] = facts.teacher.fingerprint
    if facts.has_segmenter:
        identity["word_segmenter"] = "icu"
    return identity


def random_parts(initial: LoadedModel | None, model: BertWithHead) -> tuple[str, ...]:
    """Returns the parts of `model` that the model to start from lacks; None: it lacks all."""
    if initial is None:
        return ("weights",)
    lacking = [part for part in model.training_parts if part not in initial.params]
    return (*initial.absent, *lacking)


@dataclasses.dataclass(frozen=True, kw_only=True)
class FinetuningPlan(RunPlan):
    """What a fine-tuning with one seed will do.

    Attributes:
        max_length: the maximum number of tokens of a sequence.
        batches_per_epoch: the number of batches, and of updates, of an epoch.
        labels: what the batches hold as labels.
        shape: the shape of the rows of training batches; None: it is refused.
    """

    config: FinetuneConfig
    max_length: int
    batches_per_epoch: int
    labels: Labels
    shape: RowShape | None

    unit = "examples in rows"
    outputs = (*RunPlan.outputs, PREDICTIONS, SCORES)

    def refused_changes(self, changed: list[str], saved: dict[str, Any], step: int) -> list[str]:
        if not any(change.startswith(("num_epochs:", "max_steps:")) for change in changed):
            return changed
        return [
            *changed,
            "the learning rate decays over all steps, so a different number of steps would change "
            "the learning rates of the steps that are already done",
        ]


def plan_finetuning(config: FinetuneConfig, facts: FinetuningFacts) -> FinetuningPlan:
    """Plans a run; `config` is that of a single run, in which `seeds` is 1 and `sweep` is False."""
    task = facts.task
    data = facts.data
    refusals = Refusals()
    batches = -(-len(data.sizes) // config.batch_size)
    steps = config.max_steps or max(1, round(config.num_epochs * batches))
    eval_every = save_every = max(1, round(batches / config.evals_per_epoch))
    if config.select_by == LAST:  # it alone is evaluated, and there are about ten checkpoints
        eval_every = 0
        save_every = max(save_every, -(-steps // 10))
    weights = refusals.result_of(class_weights, config.options, task, data)
    several = task.label_kind == "multi_label"
    labels = labels_of(task, None if several else weights)._replace(
        num_choices=task.sequences_per_example
    )
    longest = int(np.max(data.sizes))
    phase = Phase(num_steps=steps, max_length=longest, batch_size=config.batch_size)
    shape = refusals.result_of(_row_shape, config, facts, labels, steps)
    program = None
    if shape is not None:
        phase = dataclasses.replace(phase, max_length=shape.row_length)
        program = refusals.result_of(_finetuning_program, config, facts, phase, weights)
    refusals.result_of(_check_embedding, config, task, program)
    identity = identity_of(config, facts.machine)
    if facts.teacher is not None:
        identity["teacher_weights"] = facts.teacher.fingerprint
    plan = FinetuningPlan(
        config=config,
        phases=(phase,),
        made=program,
        identity=identity,
        data_fingerprint=data.fingerprint,
        best_metric=f"eval/{best_metric(task)}",
        eval_every=eval_every,
        save_every=save_every,
        random_parts=tuple(facts.loaded.absent),
        lines=tuple(_lines_of_finetuning(config, facts)),
        refusals=tuple(refusals),
        max_length=config.max_length or task.max_length,
        batches_per_epoch=batches,
        labels=labels,
        shape=shape,
        epochs=(steps / batches,),
    )
    saved = facts.workdirs.get(config.workdir)
    if saved is None:
        return plan
    return plan.in_workdir(saved)


def _row_shape(
    config: FinetuneConfig, facts: FinetuningFacts, labels: Labels, steps: int
) -> RowShape:
    mesh = sharding.make_mesh(config.mesh, facts.machine.devices).shape
    return plan_rows(
        facts.data.sizes,
        batch_size=config.batch_size,
        num_choices=labels.num_choices,
        multiple_of=mesh["data"] * mesh["fsdp"] * config.accumulation_steps,
        num_batches=steps,
    )


def _finetuning_program(
    config: FinetuneConfig,
    facts: FinetuningFacts,
    phase: Phase,
    weights: tuple[float, ...] | None,
) -> Program:
    model = facts.loaded.model
    return Program(
        config,
        model.clone(config=facts.loaded.config),
        _objective(config, facts, weights, phase.num_steps),
        (phase,),
        sharding.make_mesh(config.mesh, facts.machine.devices),
        facts.teacher,
        recipe=make_recipe(config, model),
        layer_decay=config.layer_decay,
        average_decay=config.average_decay,
        accumulation_steps=config.accumulation_steps,
    )


def _objective(
    config: FinetuneConfig,
    facts: FinetuningFacts,
    weights: tuple[float, ...] | None,
    steps: int,
) -> Objective:
    task = facts.task
    objective = task.objective(facts.loaded.model)
    options: dict[str, Any] = {}
    smoothing = getattr(config.options, "label_smoothing", 0.0)
    if smoothing:
        if task.label_kind not in ("classes", "distribution", "tokens", "choice"):
            raise ValueError(
                f"--label_smoothing {smoothing}: {task.name} does not have one class per "
                "example or word, over which labels could be spread: leave it out."
            )
        options["label_smoothing"] = smoothing
    if weights is not None and (task.label_kind == "multi_label" or options):
        options["class_weights"] = weights
    if options:
        objective = objective._replace(sums=functools.partial(objective.sums, **options))
    warmup = getattr(config.options, "regularizer_warmup", 0.0)
    if warmup:
        objective = with_warmup(objective, int(warmup * steps))
    if config.teacher is not None:
        objective = distilled_task(objective, config.teacher)
    return objective


def _check_embedding(config: FinetuneConfig, task: Task, program: Program | None) -> None:
    options = config.options
    if not isinstance(options, EmbedderOptions):
        return
    is_simcse = getattr(options, "loss", None) == SIMCSE
    if is_simcse and program is not None and not program.model.is_random:
        raise ValueError("--loss simcse needs dropout: give a rate, such as --dropout 0.1.")
    folder = options.retrieval_dir
    similarity = getattr(task, "similarity", "")
    if folder is not None and similarity in ("euclidean", "manhattan"):
        raise ValueError(
            f"--retrieval_dir {folder}: {config.init} compares vectors by {similarity!r}, but "
            "a collection is searched by 'cosine' or 'dot': give --pooling, with which the "
            "model has cosines."
        )


def _lines_of_finetuning(config: FinetuneConfig, facts: FinetuningFacts) -> Iterator[str]:
    """Yields what is said before the first step of a run, or of the first of several."""
    task = facts.task
    loaded = facts.loaded
    data = facts.data
    yield from facts.notes
    if not any(
        run.newest_step or run.is_finished for run in facts.workdirs.values()
    ):  # a resumed run has trained these parts
        for part in loaded.absent:
            yield (
                f"{config.init} has no {part} for this task: it is initialised at random, as is "
                "usual before a fine-tuning"
            )
    trained = loaded.config.trained_positions
    longest = int(np.max(data.sizes))
    longest = min(longest, config.max_length or task.max_length)
    if trained is not None and longest > trained:
        yield (
            f"warning: texts have up to {longest} tokens, but the embeddings of positions after "
            f"{trained} of {config.init} were never trained: give --max_length {trained}, or train "
            f"it further with bertjax.pretrain on rows of {longest} tokens, where --new_positions "
            "says from what they start"
        )
    if rows := rows_in_words(task.data, data):
        yield f"{rows}, as listed in {config.workdir}/{BAD_ROWS}"
    yield from summary(task, data, config)
    yield from task.data.change_notes()


def class_weights(options: TaskOptions, task: Task, data: TrainingData) -> tuple[float, ...] | None:
    """Returns the weight of each class, as the options of the task say; None: all are equal."""
    weights: Any = getattr(options, "class_weights", None)
    if weights is None:
        return None
    if task.label_kind == "distribution":
        raise ValueError(
            f"--class_weights: {task.name} has probabilities of the classes, which weigh them "
            "already: leave it out."
        )
    counts = data.class_counts
    if weights == "balanced":
        with_label = np.maximum(counts, 1)
        if task.label_kind == "multi_label":
            without_label = np.maximum(len(data.sizes) - counts, 1)
            return tuple((without_label / with_label).tolist())
        # A class without examples, to which label smoothing gives a share, has the weight 0.
        balanced = counts.sum() / (len(counts) * with_label) * (counts > 0)
        return tuple(balanced.tolist())
    if len(weights) != len(counts):
        raise ValueError(
            f"class_weights has {len(weights)} values, but there are {len(counts)} classes: give "
            "one value for each class."
        )
    return tuple(map(float, weights))


MOST_CLASSES = 20


def summary(task: Task, data: TrainingData, config: FinetuneConfig) -> list[str]:
    """Returns lines of text that describe the train split `data` of `task`.

    They state the number of examples (or of windows, if texts are long), their lengths in tokens,
    the updates per epoch and the frequencies of the classes. A line beginning with "warning:" names
    classes that differ only in how they are written, or a rare class that may be a misspelling.
    """
    sizes = np.asarray(data.sizes)
    count = len(sizes)
    median, most = np.quantile(sizes, (0.5, 0.95), method="higher").tolist()
    updates = -(-count // config.batch_size)
    plural = "s" if updates > 1 else ""
    unit = "examples"
    if task.label_kind == "span" or count != data.examples:
        unit = "windows"
    lines = [
        f"train: {count:,} {unit} of {sizes.min()} to {sizes.max()} tokens (median {median}, 95 % "
        f"have at most {most}); an epoch has {updates:,} update{plural} of {config.batch_size}"
    ]
    if data.class_counts.size:
        if task.label_kind == "tokens":
            unit = "words"
        lines.append(_classes(task, data.class_counts, count, unit))
        lines += similar_classes(task.labels, data.class_counts)
    return lines


def _classes(task: Task, counts: np.ndarray, count: int, unit: str) -> str:
    kind = counted(len(counts), "class", "es")
    total = int(counts.sum())
    if task.label_kind == "multi_label":
        kind = counted(len(counts), "label")
        total = count
    shown = []
    for index in np.argsort(-counts, kind="stable")[:MOST_CLASSES]:
        share = 100 * counts[index] / max(total, 1)
        shown.append(f"{task.labels[index]} {counts[index]:,} ({share:.1f} %)")
    rest = ""
    if len(counts) > MOST_CLASSES:
        rest = f" and {len(counts) - MOST_CLASSES} more"
    return f"{kind} by {unit}: {', '.join(shown)}{rest}"


def epochs_of_sources(metadata: Metadata, phases: Sequence[Phase]) -> list[str]:
    """Returns lines that say how often each phase reads each source; []: there is no mixture."""
    lines = []
    sources = metadata.sources or ()
    weights = [source.weight for source in sources]
    for number, phase in enumerate(phases if sources else ()):
        parts = []
        drawn = rows_of_sources(phase.num_rows, weights)
        for source, rows in zip(sources, drawn, strict=True):
            epochs = rows / source.splits["train"].lengths[str(phase.max_length)].records
            share = source.weight / sum(weights)
            parts.append(f"{source.name} {share:.2%}, {epochs:,.2f} epochs")
        lines.append(
            f"phase {number}: {phase.num_steps:,} steps of {phase.batch_size} rows of "
            f"{phase.max_length} tokens read {'; '.join(parts)}"
        )
    return lines
