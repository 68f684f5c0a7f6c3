"""One fine-tuning: a config with one seed, from its data to a model directory."""

import dataclasses
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bertjax.config import FinetuneConfig, Phase
from bertjax.config.model import DROPOUT_FIELDS
from bertjax.data.batches.finetuning_batches import FeatureBatches, feature_batches, plan_rows
from bertjax.data.preparation.chunks import write_whole
from bertjax.devices import sharding
from bertjax.devices.kernels import choose_unroll
from bertjax.inference.predictor import Predictor, labels_of
from bertjax.tasks import Task
from bertjax.tasks.sources.custom import CustomSource
from bertjax.tasks.training_data import TrainingData
from bertjax.training.checkpoint import Checkpointer
from bertjax.training.distillation import distilled_task
from bertjax.training.early_stopping import EarlyStopping
from bertjax.training.finetuning_teacher import Teacher, run_identity
from bertjax.training.hooks import EvaluateAndSave, Interrupted, MetricLogger, StopSignal
from bertjax.training.loop import fit
from bertjax.training.objective import TASK_OBJECTIVES, TEACHER, make_loss_fn
from bertjax.training.optimizer import make_optimizer, make_schedule
from bertjax.training.state import TrainState, create_train_state, split_params
from bertjax.training.step import compile_train_step, make_train_step, with_seed
from bertjax.training.variants import (
    best_metric,
    counted,
    model_facts,
    print_confusion,
    split_prefix,
    splits_of,
)
from bertjax.training.workdir import Workdir
from bertjax.training.writers import MetricWriter
from bertjax.weights import LoadedModel, load_model, save_hf
from bertjax.weights.card import model_card
from bertjax.weights.tagger_weights import with_new_tagger

SCORES = "scores.json"


class Run:
    """One training: a config with one seed, its data, its workdir, and a teacher, if it has one.

    Raises:
        ValueError: model, data, devices and workdir do not fit together.
    """

    def __init__(
        self,
        config: FinetuneConfig,
        task: Task,
        loaded: LoadedModel,
        data: TrainingData,
        teacher: Teacher | None = None,
    ):
        self.config, self.task, self.loaded, self.data = config, task, loaded, data
        self.teacher = teacher
        self.workdir = Workdir(Path(config.workdir))
        self.mesh = sharding.make_mesh(config.mesh)
        self.rows = sharding.batch_sharding(self.mesh)
        self.max_length = config.max_length or task.max_length
        self.model = loaded.model.clone(
            config=loaded.config,
            dtype=jnp.dtype(config.dtype),
            unroll=choose_unroll(
                config.unroll, config.remat, loaded.config.num_hidden_layers, self.mesh
            ),
            remat=config.remat,
        )
        self.labels = labels_of(task, _class_weights(config, data.class_counts))
        self.batches_per_epoch = -(-len(data.sizes) // config.batch_size)
        steps = max(1, round(config.num_epochs * self.batches_per_epoch))
        self.num_steps = min(steps, config.max_steps or steps)
        self.eval_every = max(1, round(self.batches_per_epoch / config.evals_per_epoch))
        phase = Phase(
            num_steps=self.num_steps, max_length=self.max_length, batch_size=config.batch_size
        )
        self.schedule = make_schedule(config.optimizer, [phase])
        self.tx = make_optimizer(config.optimizer, self.schedule)
        shapes = jax.eval_shape(
            lambda: create_train_state(loaded.params, self.tx, self.model.frozen)
        )
        self.state_sharding = sharding.state_sharding(self.mesh, shapes)
        self.state_shapes = jax.tree.map(
            lambda s, where: jax.ShapeDtypeStruct(s.shape, s.dtype, sharding=where),
            shapes,
            self.state_sharding,
        )
        self.updates = 0  # behind the parameters that `train` returned
        self.dev_scores: dict[str, dict[str, float]] | None = None
        self.confusion: dict[str, Counter[tuple[Any, Any]]] = {}
        self.predictor = Predictor(task, self.model, loaded.tokenizer, self.max_length, self.mesh)

    def new_state(self) -> TrainState:
        """The state before the first step, laid out over the devices."""
        create = jax.jit(
            lambda params: create_train_state(params, self.tx, self.model.frozen),
            out_shardings=self.state_sharding,
        )
        return create(jax.device_put(self.loaded.params, self.state_sharding.params))

    def batches(self, first: int) -> Iterator[Any]:
        """Batches from batch `first` on, on the devices."""
        unit = self.mesh.shape["data"] * self.mesh.shape["fsdp"] * self.config.accumulation_steps
        shape = plan_rows(
            self.data.sizes,
            batch_size=self.config.batch_size,
            num_choices=self.labels.num_choices,
            multiple_of=unit,
        )
        source = FeatureBatches(
            str(self.data.path),
            self.config.batch_size,
            shape,
            self.labels,
            self.loaded.tokenizer.pad_token_id,
            seed=self.config.seed,
            first=first,
        )
        for batch in feature_batches(source, self.config.reader_threads):
            size = len(batch["input_ids"])
            held = sharding.host_rows(self.rows, size)
            local = {key: values[held] for key, values in batch.items()}
            yield sharding.to_devices(local, held, self.rows, size)

    def evaluate(self, params: Any) -> dict[str, float]:
        """Metrics on the dev splits, those of the first without its name."""
        self.dev_scores = {
            split: self.answer(params, split) for split in splits_of(self.task, "dev")
        }
        return {
            f"eval/{split_prefix(split)}{key}": value
            for split, found in self.dev_scores.items()
            for key, value in found.items()
        }

    def answer(self, params: Any, split: str) -> dict[str, float]:
        """Writes the predictions of a split; returns the task's metrics, where labels are known."""
        folder = self.workdir.path / "predictions"
        folder.mkdir(exist_ok=True)
        assert self.task.source is not None
        answered = self.predictor(params, self.task.source.examples(split))
        written = self.task.write_predictions(folder, split, answered)
        self.confusion[split] = Counter()
        if self.task.label_kind == "classes":
            written = counted(written, self.confusion[split])
        return self.task.score(written)

    def train(self) -> Any:
        """Trains from the newest checkpoint, or from the start; returns the best parameters.

        `dev_scores` and the predictions on disk are theirs afterwards.

        Raises:
            Interrupted: a signal came; the state is saved.
        """
        config = self.config
        self.workdir.claim(run_identity(config, self.teacher), self.data.fingerprint)
        self.loaded.tokenizer.save(self.workdir.tokenizer)
        metric = f"eval/{best_metric(self.task)}"
        checkpointer = Checkpointer(
            self.workdir.checkpoints, keep=1, metric=metric, higher_is_better=True
        )
        try:
            state, step, done = self._fit(checkpointer, metric)
            if not done:
                raise Interrupted(f"stopped after step {step} of {self.num_steps}")
            best = checkpointer.best_step
            if best not in (None, step):
                print(f"step {best} is the best on the dev split; its parameters are kept")
                state, _ = checkpointer.restore(self.state_shapes, best)
                self.dev_scores = None
        finally:
            checkpointer.close()
            self.workdir.release()
        if self.dev_scores is None:
            self.evaluate(state.params)
        self.updates = int(state.step)
        return state.params

    def _fit(self, checkpointer: Checkpointer, metric: str) -> tuple[TrainState, int, bool]:
        config = self.config
        progress: dict[str, Any] = {"pending": None, "patience": None}
        if checkpointer.latest_step is None:
            state = self.new_state()
        else:
            state, progress = checkpointer.restore(self.state_shapes)
        step = int(state.step)
        logger = MetricLogger(
            MetricWriter(self.workdir.path, step),
            every=config.log_every,
            num_steps=self.num_steps,
            step=step,
            pending=progress["pending"],
            name=config.task,
        )
        logger.start_phase(0.0, 1.0)
        patience = EarlyStopping(config.patience, metric, progress["patience"])
        save = EvaluateAndSave(
            checkpointer,
            logger,
            lambda params: patience.see(self.evaluate(params)),
            lambda step: {"batch": step, "patience": patience.state},
            phase=0,
            eval_every=self.eval_every,
            save_every=self.eval_every,
            last_step=self.num_steps,
        )
        try:
            with StopSignal() as stop:
                if not patience():
                    state, step = fit(
                        state,
                        self.train_step(),
                        self.batches(step),
                        step=step,
                        num_steps=self.num_steps,
                        hooks=(logger, save),
                        should_stop=lambda step: stop(step) or patience(),
                    )
                done = step >= self.num_steps or patience()
                if not done:
                    save.save(step, state)
        finally:
            logger.close()
        return state, step, done

    def train_step(self) -> Any:
        """The compiled update: (state, batch) -> (state, metrics)."""
        objective, constants, where = TASK_OBJECTIVES[self.task.label_kind], (), ()
        if self.teacher is not None:
            objective = distilled_task(
                self.task.label_kind,
                self.config.distillation_temperature,
                self.config.distillation_weight,
            )
            part = {TEACHER: self.teacher.params}
            where = (sharding.state_sharding(self.mesh, part),)
            constants = (jax.device_put(part, where[0]),)
        step = make_train_step(
            make_loss_fn(self.model, objective, self.teacher and self.teacher.model),
            objective.weights,
            self.tx,
            self.schedule,
            mesh=self.mesh,
            accumulation_steps=self.config.accumulation_steps,
            frozen=(*self.model.frozen, TEACHER),
            dropout_prng=self.config.dropout_prng,
        )
        compiled = compile_train_step(step, self.state_sharding, self.rows, *where)
        return with_seed(compiled, self.config.seed, *constants)

    def write_results(self, params: Any) -> dict[str, float]:
        """Writes predictions of the test splits, all scores and the model; returns the scores."""
        found = dict(self.dev_scores or {})
        found |= {split: self.answer(params, split) for split in splits_of(self.task, "test")}
        scores = {
            f"{s}/{key}": value for s, values in found.items() for key, value in values.items()
        }
        self._save_model(params, scores)
        write_whole(self.workdir.path / SCORES, json.dumps(scores, indent=2) + "\n")
        print_confusion(self.confusion, self.task)
        return scores

    def _save_model(self, params: Any, scores: dict[str, float]) -> None:
        config, tokenizer = self.loaded.config, self.loaded.tokenizer
        tagger = self.config.feature_tagger
        head = "encoder" if tagger else self.task.head
        description = self.task.description(self.max_length)
        if isinstance(self.task.source, CustomSource):
            description |= self.task.source.description
        params, of_tagger = jax.device_get(params), None
        if tagger is not None:
            description["tagger"] = dataclasses.asdict(tagger)
            of_tagger, params = split_params(params, self.model.frozen)
        card = model_card(
            self.workdir.path.name,
            head,
            config,
            tokenizer.do_lower_case,
            model_facts(self.config, self.updates, len(self.data.sizes), scores),
            tagger,
        )
        save_hf(
            self.workdir.model,
            params,
            config,
            tokenizer,
            head=head,
            extra=self.task.hf_config(),
            card=card,
            files={"task.json": json.dumps(description, indent=2)},
            tagger=of_tagger,
        )
        print(f"model written to {self.workdir.model}")


def _class_weights(config: FinetuneConfig, counts: np.ndarray) -> tuple[float, ...] | None:
    weights = config.class_weights
    if weights is None:
        return None
    if not counts.size:
        raise ValueError(
            f"class_weights={weights!r}: only tasks with one class an example or word take them."
        )
    if weights == "balanced":
        return tuple((counts.sum() / (len(counts) * np.maximum(counts, 1))).tolist())
    if len(weights) != len(counts):
        raise ValueError(f"{len(weights)} class_weights, but {len(counts)} classes: one for each.")
    return tuple(float(weight) for weight in weights)


def load_for_task(config: FinetuneConfig, task: Task) -> LoadedModel:
    """The model of --init under the task's head or a new tagger, with the dropout of the config.

    Raises:
        ValueError: it does not fit the task or the config.
    """
    tagger = config.feature_tagger
    if tagger is not None and task.label_kind != "tokens":
        raise ValueError(
            f"feature_layers={list(config.feature_layers)}: a frozen encoder with a tagger is for "
            f"tasks of tags, conll and tag; {task.name} is fine-tuned: leave it out."
        )
    loaded = load_model(
        config.init,
        "encoder" if tagger else task.head,
        num_labels=task.num_labels,
        new_labels=True,
        seed=config.seed,
    )
    if tagger is not None:
        loaded = with_new_tagger(loaded, tagger, len(task.labels), config.seed)
    for part in loaded.absent:
        print(f"{config.init} has no {part} for this task: it starts from its initialisation")
    if task.labels and loaded.labels and not loaded.absent and loaded.labels != [*task.labels]:
        print(
            f"The classifier of {config.init} has as many classes as the task, and goes on: "
            f"{', '.join(loaded.labels)} become {', '.join(task.labels)}"
        )
    longest = loaded.config.max_length
    if (config.max_length or task.max_length) > longest:
        raise ValueError(
            f"max_length={config.max_length or task.max_length}, but {config.init} reads at most "
            f"{longest} tokens: give --max_length={longest}."
        )
    if config.dropout is None:
        return loaded
    # Where a family has no dropout, as DistilBERT behind its attention, it stays without.
    rates: dict[str, Any] = {
        name: config.dropout for name in DROPOUT_FIELDS if getattr(loaded.config, name)
    }
    rates |= dict.fromkeys(("hidden_dropout_prob", "attention_probs_dropout_prob"), config.dropout)
    rates["classifier_dropout"] = None
    return loaded._replace(config=dataclasses.replace(loaded.config, **rates))
