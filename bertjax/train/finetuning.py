"""Fine-tuning: trains a model on a task and exports it (Devlin et al. 2018, section 4).

`RegressionTask` standardises its targets, since with targets far from 0, such as prices, a new head
would need thousands of updates to reach their scale; the last layer of the exported model contains
the original scale.
"""

import dataclasses
import functools
import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict

from bertjax.base.files import (
    brief,
    naming_read_errors,
    naming_write_errors,
    read_json,
    write_json,
)
from bertjax.base.workdir_files import BAD_ROWS, CALIBRATION, PREDICTIONS, SCORES
from bertjax.config import FinetuneConfig, Phase, TaskOptions
from bertjax.config.finetune_config import LAST
from bertjax.devices import hosts, sharding
from bertjax.inference.embedder import ROLES, Embedder
from bertjax.inference.predictor import Predictor, labels_of
from bertjax.inference.retrieval import Collection, beir_collection
from bertjax.inference.saved_task import check_class_ids
from bertjax.model import HEADS
from bertjax.model.recipe import flattened
from bertjax.record.early_stopping import EarlyStopping
from bertjax.record.events import EventStream
from bertjax.record.predictions import (
    SUFFIX,
    ClassReport,
    PredictionSummary,
    best_in_words,
    best_metric,
    model_facts,
    split_label,
    split_prefix,
    splits_of,
)
from bertjax.record.report import read_metrics
from bertjax.tasks import Task
from bertjax.tasks.calibration import HeldOutProbabilities
from bertjax.tasks.classification import ClassificationTask, MultiLabelTask, RegressionTask
from bertjax.tasks.embedding import SIMCSE, EmbedOptions
from bertjax.tasks.metrics import higher_is_better
from bertjax.tasks.training_data import FeatureBatches, TrainingData, feature_batches, plan_rows
from bertjax.train.bad_steps import check_finite
from bertjax.train.checkpoint import Checkpointer
from bertjax.train.distillation import Teacher, check_length, distilled_task
from bertjax.train.program import Program
from bertjax.train.recipes import Lora, make_recipe
from bertjax.train.run import Job, identity_of, never_stopped
from bertjax.train.step import TrainState
from bertjax.train.workdir import Workdir
from bertjax.weights import LoadedModel, load_model, save_hf
from bertjax.weights.adapters import adapter_files
from bertjax.weights.families import config_to_hf
from bertjax.weights.fill import fresh
from bertjax.weights.hf import model_card
from bertjax.weights.load import class_order, with_class_order, with_tagger
from bertjax.weights.sentence_transformers import files_of_head


class FinetuningJob(Job):
    """A fine-tuning run with one seed: its task, data, evaluation and results.

    Args:
        config: the config of a single run, in which `seeds` is 1 and `sweep` is False.
        task: the task, with the source of its examples.
        loaded: the model to start from, with the head of the task.
        data: the train split as features: inputs and labels of an example, or of a window of a long
            text.
        teacher: the teacher for distillation; None: no distillation.
        workdir: the workdir of the run.

    Raises:
        ValueError: the class weights, mesh, attention kernel or warm-up in the config cannot be
            used with this task, model, data or devices.
    """

    keep_checkpoints = 1

    def __init__(
        self,
        config: FinetuneConfig,
        task: Task,
        loaded: LoadedModel,
        data: TrainingData,
        teacher: Teacher | None,
        workdir: Workdir,
    ):
        self.config, self.task, self.loaded, self.data = config, task, loaded, data
        self.workdir, self.data_fingerprint = workdir, data.fingerprint
        self.identity = identity_of(config, teacher)
        self.name, self.best_metric = config.task, f"eval/{best_metric(task)}"
        self.higher_is_better = higher_is_better(task.best_metric)
        self.max_length = config.max_length or task.max_length
        weights = _class_weights(config.options, task, data)
        several = task.label_kind == "multi_label"
        self.labels = labels_of(task, None if several else weights)._replace(
            num_choices=task.sequences_per_example
        )
        mesh = sharding.make_mesh(config.mesh)
        self.batches_per_epoch = -(-len(data.sizes) // config.batch_size)
        steps = config.max_steps or max(1, round(config.num_epochs * self.batches_per_epoch))
        self.shape = plan_rows(
            data.sizes,
            batch_size=config.batch_size,
            num_choices=self.labels.num_choices,
            multiple_of=mesh.shape["data"] * mesh.shape["fsdp"] * config.accumulation_steps,
            num_batches=steps,
        )
        phase = Phase(
            num_steps=steps,
            max_length=self.shape.row_length,
            batch_size=config.batch_size,
        )
        objective = loaded.model.objective(task.label_kind, getattr(task, "options", None))
        options: dict[str, Any] = {}
        smoothing = getattr(config.options, "label_smoothing", 0.0)
        if smoothing:
            if task.label_kind not in ("classes", "tokens", "choice"):
                raise ValueError(
                    f"--label_smoothing {smoothing}: {task.name} does not have one class per "
                    "example or word, over which labels could be spread: leave it out."
                )
            options["label_smoothing"] = smoothing
        if weights is not None and (several or options):
            options["class_weights"] = weights
        if options:
            objective = objective._replace(sums=functools.partial(objective.sums, **options))
        if config.teacher is not None:
            objective = distilled_task(objective, config.teacher)
        program = Program(
            config,
            loaded.model.clone(config=loaded.config),
            objective,
            (phase,),
            mesh,
            teacher,
            recipe=make_recipe(config, loaded.model),
            layer_decay=config.layer_decay,
            average_decay=config.average_decay,
            accumulation_steps=config.accumulation_steps,
        )
        embed = config.options if isinstance(config.options, EmbedOptions) else EmbedOptions()
        if embed.loss == SIMCSE and not program.model.is_random:
            raise ValueError("--loss simcse needs dropout: give a rate, such as --dropout 0.1.")
        super().__init__(config, program, (phase,), loaded.tokenizer)
        every = max(1, round(self.batches_per_epoch / config.evals_per_epoch))
        self.eval_every, self.save_every = every, every
        if config.select_by == LAST:  # it alone is evaluated, and there are about ten checkpoints
            self.eval_every, self.save_every = 0, max(every, -(-self.num_steps // 10))
        self.updates = 0  # the number of updates with which the exported parameters were trained
        self.dev_scores: dict[str, dict[str, float]] | None = None
        self.reports: dict[str, ClassReport] = {}  # split -> report of its last predictions
        self.held_out: dict[str, HeldOutProbabilities] = {}  # split -> its probabilities
        self.calibrates = bool(getattr(config.options, "calibrate", False))
        self.tunes_thresholds = bool(getattr(config.options, "tune_thresholds", False))
        self.predictor = self._predictor()
        folder, similarity = embed.retrieval_dir, getattr(task, "similarity", "")
        if folder is not None and similarity not in ("cosine", "dot"):
            raise ValueError(
                f"--retrieval_dir {folder}: {config.init} compares vectors by {similarity!r}, but "
                "a collection is searched by 'cosine' or 'dot': give --pooling, with which the "
                "model has cosines."
            )
        self.collection = None
        if folder is not None:
            self.collection = beir_collection(folder, "dev", keep_same_id=embed.keep_same_id)

    def _predictor(self) -> Predictor:
        return Predictor(
            self.task, self.program.model, self.tokenizer, self.max_length, self.program.mesh
        )

    def claimed(self) -> None:
        """Writes bad_rows.jsonl, which names the rows of the user's files that are left out."""
        self.task.data.write_bad_rows(self.workdir.path / BAD_ROWS)

    def initial_params(self) -> Any:
        return self.loaded.params

    def batches(self, index: int, first_batch: int) -> Iterator[Any]:
        source = FeatureBatches(
            str(self.data.path),
            self.data.sizes,
            self.config.batch_size,
            self.shape,
            self.labels,
            self.tokenizer.pad_token_id,
            seed=self.config.seed,
            first=first_batch,
            host_rows_of=lambda size: sharding.host_rows(self.program.rows, size),
        )
        for size, batch in feature_batches(source, self.config.reader_threads):
            host_rows = sharding.host_rows(self.program.rows, size)
            yield sharding.to_devices(batch, host_rows, self.program.rows, size)

    def rows_of_batch(self, index: int, batch: int) -> tuple[int, int]:
        """Returns (first feature, last feature) of a batch.

        Features are numbered in the order of training, through the shuffled features of all epochs.
        The last batch of an epoch may be smaller than the others.
        """
        count, size = len(self.data.sizes), self.config.batch_size
        epoch, within = divmod(batch, self.batches_per_epoch)
        first = epoch * count + within * size
        return first, min(first + size, (epoch + 1) * count) - 1

    def progress(self, index: int, next_batch: int) -> dict[str, Any]:
        return {"batch": next_batch}

    def add_readers(self, run: EventStream, progress: Mapping[str, Any]) -> None:
        run.add(
            EarlyStopping,
            self.best_metric,
            higher_is_better=self.higher_is_better,
            patience=self.config.patience,
            progress=progress,
        )

    def refused_changes(self, changed: list[str], saved: dict[str, Any], step: int) -> list[str]:
        if not any(change.startswith(("num_epochs:", "max_steps:")) for change in changed):
            return changed
        return [
            *changed,
            "the learning rate decays over all steps, so a different number of steps would change "
            "the learning rates of the steps that are already done",
        ]

    def evaluate(
        self, params: Any, phase: Phase | None = None, check: Callable[[], None] = never_stopped
    ) -> dict[str, float]:
        """Predicts all dev splits; returns values with names such as "eval/mismatched_f1"."""
        self.predictor.before_batch = check
        self.dev_scores = {
            split: self.predict_split(params, split) for split in splits_of(self.task, "dev")
        }
        if self.collection is not None:
            self.dev_scores["dev"] |= self._search(self.collection, params, check)
        evaluation = {
            f"eval/{split_prefix(split)}{key}": value
            for split, scores in self.dev_scores.items()
            for key, value in scores.items()
        }
        return evaluation

    def predict_split(self, params: Any, split: str) -> dict[str, float]:
        """Predicts a split, writes the predictions, and returns {metric: value}.

        `params` are the parameters. The result is {} if the examples of the split have no labels.
        """
        predictions = self.predictor(params, self.task.data.examples(split))
        if hosts.is_first():
            folder = self.workdir.path / PREDICTIONS
            with naming_write_errors(folder):
                folder.mkdir(exist_ok=True)
            predictions = self.task.write_predictions(folder, split, predictions)
        if self.calibrates or self.tunes_thresholds:
            held_out = self.held_out[split] = HeldOutProbabilities(self.task)
            predictions = held_out.observe(predictions)
        summary = PredictionSummary(self.task)
        self.reports[split] = summary.classes
        scores = self.task.score(summary.observe(predictions))
        if hosts.is_first():
            summary.write(self.workdir.path / PREDICTIONS, split, scores)
        return scores

    def _search(self, collection: Collection, params: Any, check: Any) -> dict[str, float]:
        # All hosts search all of it, since each needs the scores.
        params = hosts.fetch(params, self.program.mesh)
        loaded = self.loaded._replace(params=params)
        task: Any = self.task  # of embeddings
        embed = {
            role: Embedder(loaded, prompt=role, max_length=task.length_of(role, self.max_length))
            for role in ROLES
        }
        for embedder in embed.values():
            embedder.after_batch = lambda _: check()
        is_cosine = embed["query"].similarity == "cosine"
        return collection.score(collection.rank(embed, cosine=is_cosine))

    def choose_state(self, checkpoints: Checkpointer, state: TrainState) -> TrainState:
        """Returns the state that is best by `best_metric` on the dev split, if there is one.

        Afterwards, `dev_scores` and the prediction files of dev splits belong to the returned
        state.
        """
        best = checkpoints.best_step
        if best not in (None, int(state.step)):
            state, _ = checkpoints.restore(self.program.state_shapes, best)
            self.dev_scores = None
        if self.dev_scores is None:
            self.evaluate(self.program.final_params(state))
        self.updates = int(state.step)
        if best is not None and self.config.select_by != LAST and hosts.is_first():
            values = read_metrics(self.workdir.metrics).values_by_step(self.best_metric)
            print(f"the model is {best_in_words(values, best, self.best_metric)}")
        return state

    def write_results(self, state: TrainState) -> dict[str, float]:
        """Predicts the test splits; writes predictions, scores and model to the workdir.

        Returns {split/metric: score} for the dev splits and the labelled test splits.
        """
        splits = dict(self.dev_scores or {})
        self.predictor.before_batch = never_stopped
        if self.calibrates or self.tunes_thresholds:
            self._calibrate()
        final = self.program.final_params(state)
        for split in splits_of(self.task, "test"):
            splits[split] = self.predict_split(final, split)
        scores = {
            f"{split}/{key}": value
            for split, metrics in splits.items()
            for key, value in metrics.items()
        }
        params = to_original(hosts.fetch(final, self.program.mesh), self.task)
        lora, adapters = self.config.lora, {}
        if lora is not None and lora.export == "adapter":
            adapters = self._adapters(state, params)

        def write() -> None:
            self._save_model(params, scores, adapters)
            write_json(self.workdir.path / SCORES, scores)
            for split, report in self.reports.items():
                if report:
                    report.write(self.workdir.path / PREDICTIONS, split)
                    report.print(f"{self.task.name}, {split_label(split)} examples")

        hosts.on_first(write)
        return scores

    def _calibrate(self) -> None:
        """Fits a temperature or thresholds on the (first) dev split, for later predictions.

        They are written to calibration.json, and a temperature to the data of the report.
        """
        split = splits_of(self.task, "dev")[0]
        field = "temperature" if self.calibrates else "thresholds"
        held_out = self.held_out[split]
        fitted = held_out.calibration() if self.calibrates else held_out.thresholds()

        def write() -> None:
            content = {"split": split, **dataclasses.asdict(fitted)}
            write_json(self.workdir.path / CALIBRATION, content)
            summary = self.workdir.path / PREDICTIONS / f"{split}{SUFFIX}"
            if self.calibrates:
                shown = read_json(summary)
                shown["calibration"]["scaled"] = content
                write_json(summary, shown)

        hosts.on_first(write)
        hosts.say(fitted.sentence())
        self.task = dataclasses.replace(self.task, **{field: getattr(fitted, field)})
        self.predictor = self._predictor()

    def _adapters(self, state: TrainState, params: Any) -> dict[str, Any]:
        recipe = self.program.recipe
        assert isinstance(recipe, Lora)
        matrices = recipe.matrices(hosts.fetch(self.program.averaged(state), self.program.mesh))
        others = (*recipe.prefixes, *self.program.model.separate_parts)
        flat = flattened(params)
        head = {path: x for path, x in flat.items() if not path.startswith(others)}
        facts = {"r": recipe.rank, "lora_alpha": recipe.scale * recipe.rank}
        facts |= {"base_model_name_or_path": self.config.init}
        return adapter_files(matrices, head, self.loaded.config, facts)

    def _save_model(self, params: Any, scores: dict[str, float], adapters: dict[str, Any]) -> None:
        check_finite(params, f"The model of step {self.updates}")
        config, tagger = self.loaded.config, self.config.tagger
        head = "encoder" if tagger else self.task.head
        description = {**self.task.description(self.max_length), **self.task.data.description}
        tagger_params = None
        if tagger is not None:
            description["tagger"] = dataclasses.asdict(tagger)
            tagger_params, params = self.program.recipe.split(params)
        card = model_card(
            self.workdir.path.name,
            head,
            config,
            self.tokenizer.do_lower_case,
            model_facts(self.config, self.updates, len(self.data.sizes), scores),
            tagger,
        )
        reads_words = self.task.label_kind == "tokens"
        save_hf(
            self.workdir.model,
            params,
            config,
            self.tokenizer.after_space() if reads_words else self.tokenizer,
            head=head,
            extra=self.task.hf_config(),
            card=card,
            files={
                "task.json": json.dumps(description, indent=2),
                **files_of_head(
                    self.program.model, params, self.max_length, self.loaded.source.usage.modules
                ),
                **adapters,
            },
            tagger=tagger_params,
        )
        print(f"model written to {self.workdir.model}")


def load_for_task(config: FinetuneConfig, task: Task) -> LoadedModel:
    """Loads the model that --init names, with the head of the task.

    With `config.tagger`, the model is an encoder, which stays frozen, and a new tagger on
    its hidden states. `config.dropout`, if not None, replaces the dropout rates of the model.

    Raises:
        ValueError: the model cannot be loaded for the task or accepts fewer tokens than the maximum
            length.
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
        loaded = _with_classes_of(config, task, loaded)
    if loaded.model.class_part not in loaded.absent:
        loaded = loaded._replace(params=to_standardized(loaded.params, task))
    check_length(config, task, config.init, loaded)
    encoder_config = loaded.config.with_dropout(config.dropout)
    config_to_hf(encoder_config)  # what could not be saved is refused before the training
    return loaded._replace(model=loaded.model.clone(config=encoder_config))


def _with_classes_of(config: FinetuneConfig, task: Task, loaded: LoadedModel) -> LoadedModel:
    """Gives each class of the task the weights of the class of the same name.

    If the names differ, the classifier is drawn at random, unless they are LABEL_0 and so on, which
    say nothing: then the order stays.
    """
    with naming_read_errors(loaded.source.where):
        check_class_ids(loaded.labels, loaded.source.config)
    stored = loaded.labels or [f"LABEL_{i}" for i in range(len(task.labels))]
    if stored == [*task.labels]:
        return loaded
    order, name = class_order(stored, task.labels), f"The classifier of {config.init}"
    before, now = (brief(", ".join(names), 200) for names in (stored, task.labels))
    if order is not None:
        hosts.say(
            f"{name} is kept, with its classes in the order and under the names of the task: each "
            f"class has its weights by its name. Before: {before}; now: {now}"
        )
        return with_class_order(loaded, order)
    if all(re.fullmatch(r"LABEL_\d+", label) for label in stored):
        hosts.say(
            f"{name} is kept, and so is the order of its classes, whose names say nothing: "
            f"{before} are now called {now}. If it was trained with another order, write the names "
            "into id2label in its config.json"
        )
        return loaded
    hosts.say(
        f"{name} is not used, since its classes {before} are not those of the task, {now}. If only "
        "their names differ, correct id2label in its config.json"
    )
    absent = [*loaded.absent, str(loaded.model.class_part)]
    return reinitialized(loaded._replace(absent=absent), config.seed)


def reinitialized(loaded: LoadedModel, seed: int) -> LoadedModel:
    """Initialises again, with `seed`, those parameters of `loaded` that are initialised at random.

    The returned model equals the model that is loaded from the same checkpoint with `seed`.
    """
    flat: Any = flatten_dict(loaded.params, sep="/")
    paths = frozenset(path for path in flat if path.startswith(tuple(loaded.absent)))
    params = unflatten_dict({**flat, **fresh(loaded.model, paths, seed)}, sep="/")
    return loaded._replace(params=params)


def to_standardized(params: Any, task: Task) -> Any:
    """Converts a head that predicts targets to one that predicts the standardised targets.

    The parameters of tasks other than regression are returned unchanged.
    """

    def change(kernel: Any, bias: Any, mean: float, std: float) -> tuple[Any, Any]:
        return kernel / std, (bias - mean) / std

    return _with_last_layer(params, task, change)


def to_original(params: Any, task: Task) -> Any:
    """Converts a head that predicts standardised targets to one that predicts the targets.

    `params` and `task` are as in `to_standardized`.
    """

    def change(kernel: Any, bias: Any, mean: float, std: float) -> tuple[Any, Any]:
        return kernel * std, bias * std + mean

    return _with_last_layer(params, task, change)


def _with_last_layer(params: Any, task: Task, change: Callable[..., tuple[Any, Any]]) -> Any:
    if not isinstance(task, RegressionTask):
        return params
    part = HEADS[task.head].class_part
    layer = [np.asarray(params[part][name]) for name in ("kernel", "bias")]
    kernel, bias = change(*(x.astype(np.float64) for x in layer), task.mean, task.std)
    dtype = layer[0].dtype
    return {**params, part: {"kernel": kernel.astype(dtype), "bias": bias.astype(dtype)}}


def check_calibration(config: FinetuneConfig, task: Task) -> None:
    """Raises ValueError if a task has other labels than `config` calibrates, or no dev split."""
    one = "one class per example, of which a temperature scales the probabilities"
    several = "several labels per example, of which each could have a threshold"
    for flag, kind, needed in (
        ("calibrate", ClassificationTask, one),
        ("tune_thresholds", MultiLabelTask, several),
    ):
        if not getattr(config.options, flag, False):
            continue
        if not isinstance(task, kind):
            raise ValueError(f"--{flag}: {task.name} does not have {needed}: leave it out.")
        if not splits_of(task, "dev"):
            raise ValueError(
                f"--{flag} needs the probabilities of a dev split, but there is none: give --dev, "
                "or leave it out."
            )


def _class_weights(
    options: TaskOptions, task: Task, data: TrainingData
) -> tuple[float, ...] | None:
    weights: Any = getattr(options, "class_weights", None)
    counts = data.class_counts
    if weights is None:
        return None
    if weights == "balanced":
        if task.label_kind == "multi_label":
            without = np.maximum(len(data.sizes) - counts, 1)
            return tuple((without / np.maximum(counts, 1)).tolist())
        # A class without examples, to which label smoothing gives a share, has the weight 0.
        balanced = counts.sum() / (len(counts) * np.maximum(counts, 1)) * (counts > 0)
        return tuple(balanced.tolist())
    if len(weights) != len(counts):
        raise ValueError(
            f"class_weights has {len(weights)} values, but there are {len(counts)} classes: give "
            "one value for each class."
        )
    return tuple(float(weight) for weight in weights)
