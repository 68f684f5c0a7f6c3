"""Fine-tuning: trains a model on a task and exports it (Devlin et al. 2018, section 4)."""

import dataclasses
import json
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from bertjax.base.files import naming_write_errors, write_json
from bertjax.base.workdir_files import BAD_ROWS, SCORES
from bertjax.config import FinetuneConfig, Phase
from bertjax.config.finetune_config import LAST
from bertjax.data.batches.finetuning_batches import FeatureBatches, feature_batches, plan_rows
from bertjax.devices import hosts, sharding
from bertjax.inference.predictor import Predictor, labels_of
from bertjax.record.predictions import (
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
from bertjax.tasks.metrics import higher_is_better
from bertjax.tasks.sources.own_files import OwnFiles, TableSource, write_bad_rows
from bertjax.tasks.temperature import HeldOutProbabilities
from bertjax.tasks.training_data import TrainingData
from bertjax.train.calibrated import with_temperature, write_calibration
from bertjax.train.checkpoint import Checkpointer
from bertjax.train.distillation import distilled_task
from bertjax.train.early_stopping import EarlyStopping
from bertjax.train.program import Program
from bertjax.train.run import Run, identity_of
from bertjax.train.save import check_stop
from bertjax.train.skipped_updates import check_finite
from bertjax.train.state import TrainState, split_params
from bertjax.train.target_scale import to_original
from bertjax.train.teacher import Teacher
from bertjax.weights import LoadedModel, save_hf
from bertjax.weights.hf import model_card
from bertjax.weights.sentence_transformers import files_of_head


class FinetuningRun(Run):
    """A fine-tuning run with one seed: its task, data, evaluation and results.

    Args:
        config: the config of a single run, in which `seeds` is 1 and `sweep` is False.
        task: the task, with the source of its examples.
        loaded: the model to start from, with the head of the task.
        data: the train split, encoded as features; a feature is the input and the labels of the
            model for one example, or for one window of a long text.
        teacher: the teacher for distillation; None: no distillation.

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
        teacher: Teacher | None = None,
    ):
        self.config, self.task, self.loaded, self.data = config, task, loaded, data
        self.name, self.best_metric = config.task, f"eval/{best_metric(task)}"
        self.higher_is_better = higher_is_better(task.best_metric)
        self.max_length = config.max_length or task.max_length
        counts = data.class_counts if task.label_kind != "multi_label" else np.zeros(0)
        self.labels = labels_of(task, _class_weights(config, counts))._replace(
            num_choices=task.sequences_per_example
        )
        mesh = sharding.make_mesh(config.mesh)
        self.shape = plan_rows(
            data.sizes,
            batch_size=config.batch_size,
            num_choices=self.labels.num_choices,
            multiple_of=mesh.shape["data"] * mesh.shape["fsdp"] * config.accumulation_steps,
        )
        self.batches_per_epoch = -(-len(data.sizes) // config.batch_size)
        steps = max(1, round(config.num_epochs * self.batches_per_epoch))
        phase = Phase(
            num_steps=config.max_steps or steps,
            max_length=self.shape.row_length,
            batch_size=config.batch_size,
        )
        objective = loaded.model.objective(task.label_kind)
        if teacher is not None:
            objective = distilled_task(
                objective, config.distillation_temperature, config.distillation_weight
            )
        program = Program(
            config,
            loaded.model.clone(config=loaded.config),
            objective,
            (phase,),
            mesh,
            teacher and teacher.model,
        )
        super().__init__(config, program, (phase,), loaded.tokenizer, teacher)
        self.early_stopping = EarlyStopping(
            config.patience, self.best_metric, higher_is_better=self.higher_is_better
        )
        self.updates = 0  # the number of updates with which the exported parameters were trained
        self.dev_scores: dict[str, dict[str, float]] | None = None
        self.reports: dict[str, ClassReport] = {}  # split -> report of its last predictions
        self.held_out: dict[str, HeldOutProbabilities] = {}  # split -> those of its predictions
        self.predictor = self._predictor()

    def _predictor(self) -> Predictor:
        predictor = Predictor(
            self.task, self.program.model, self.tokenizer, self.max_length, self.program.mesh
        )
        predictor.before_batch = lambda: check_stop(self.stop)
        return predictor

    @property
    def identity(self) -> dict[str, Any]:
        return identity_of(self.config, self.teacher)

    @property
    def data_fingerprint(self) -> str:
        """A hash of the encoded train split: of the token ids and labels of all examples."""
        return self.data.fingerprint

    def claim_workdir(self) -> None:
        """Locks the workdir, and writes the config, the tokenizer and bad_rows.jsonl to it.

        bad_rows.jsonl names the rows of the user's data files that cannot be used and are left out;
        it is not written if there are no such rows.
        """
        super().claim_workdir()
        source = self.task.source
        bad = source.all_bad_rows() if isinstance(source, OwnFiles) else []
        if bad:
            hosts.on_first(lambda: write_bad_rows(self.workdir.path / BAD_ROWS, bad))

    def initial_params(self) -> Any:
        """Returns the parameters to start from: those of the model that --init names."""
        return self.loaded.params

    def batches(self, phase_index: int, first_batch: int) -> Iterator[Any]:
        del phase_index
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

    def rows_of_batch(self, phase_index: int, batch: int) -> tuple[int, int]:
        """Returns (index of the first feature, index of the last feature) of a batch.

        Features are encoded examples or windows. They are numbered from 0 in the order of training,
        through the shuffled features of all epochs, one epoch after the other. The last batch of an
        epoch may be smaller than the other batches.
        """
        del phase_index
        count, size = len(self.data.sizes), self.config.batch_size
        epoch, within = divmod(batch, self.batches_per_epoch)
        first = epoch * count + within * size
        return first, min(first + size, (epoch + 1) * count) - 1

    def accumulation_steps(self, phase: Phase) -> int:
        """Returns the number of microbatches per update, `accumulation_steps` of the config.

        `phase.accumulation_steps` is not used: it would have to divide `phase.batch_size`, a number
        of examples, but microbatches consist of rows, into which several examples each are packed.
        """
        del phase
        return self.config.accumulation_steps

    def eval_and_save_every(self) -> tuple[int, int]:
        """Returns (steps between evaluations, steps between checkpoints), which are equal.

        If the last step is selected, it alone is evaluated, and there are about ten checkpoints.
        """
        every = max(1, round(self.batches_per_epoch / self.config.evals_per_epoch))
        if self.config.select_by == LAST:
            return 0, max(every, -(-self.num_steps // 10))
        return every, every

    def progress(self, phase_index: int, next_batch: int) -> dict[str, Any]:
        """Returns values to store in a checkpoint.

        These are the index of the next batch and the state of early stopping.
        """
        del phase_index
        return {"batch": next_batch, "patience": self.early_stopping.state}

    def resume(self, progress: Mapping[str, Any]) -> None:
        """Restores the state of early stopping from the `progress` that a checkpoint stored."""
        if progress.get("patience"):
            self.early_stopping.state = dict(progress["patience"])

    def refused_changes(self, changed: list[str], saved: dict[str, Any], step: int) -> list[str]:
        """Returns all of `changed`, because each of these changes prevents the run from resuming.

        `changed` describes the config fields, without those that may always change, that differ
        from `saved`. If `num_epochs` or `max_steps` differs, the returned list ends with the reason
        why this difference prevents resuming.
        """
        refused = super().refused_changes(changed, saved, step)
        if any(change.startswith(("num_epochs:", "max_steps:")) for change in refused):
            refused.append(
                "the learning rate decays over all steps, so a different number of steps would "
                "change the learning rates of the steps that are already done"
            )
        return refused

    def is_finished(self) -> bool:
        """Returns whether training should end now, because the dev metric has stopped improving."""
        return self.early_stopping()

    def evaluate(self, params: Any, phase: Phase | None = None) -> dict[str, float]:
        """Predicts all dev splits; returns {metric: value} with names such as "eval/accuracy".

        The metrics of a split such as "dev_mismatched" have names such as
        "eval/mismatched_accuracy". The result is {} if the task has no dev split.
        """
        del phase
        self.dev_scores = {
            split: self.predict_split(params, split) for split in splits_of(self.task, "dev")
        }
        evaluation = {
            f"eval/{split_prefix(split)}{key}": value
            for split, scores in self.dev_scores.items()
            for key, value in scores.items()
        }
        return self.early_stopping.see(evaluation)

    def predict_split(self, params: Any, split: str) -> dict[str, float]:
        """Predicts a split, writes the predictions, and returns {metric: value}.

        `params` are the parameters. The result is {} if the examples of the split have no labels.
        """
        assert self.task.source is not None
        predictions = self.predictor(params, self.task.source.examples(split))
        if hosts.is_first():
            folder = self.workdir.path / "predictions"
            with naming_write_errors(folder):
                folder.mkdir(exist_ok=True)
            predictions = self.task.write_predictions(folder, split, predictions)
        if self.config.calibrate:
            held_out = self.held_out[split] = HeldOutProbabilities(self.task)
            predictions = held_out.observe(predictions)
        report = self.reports[split] = ClassReport(self.task)
        summary = PredictionSummary(self.task)
        scores = self.task.score(summary.observe(report.observe(predictions)))
        if hosts.is_first():
            summary.write(self.workdir.path / "predictions", split, scores, report)
        return scores

    def choose_state(self, checkpointer: Checkpointer, state: TrainState) -> TrainState:
        """Returns the state of the checkpoint that is best by `best_metric` on the dev split.

        If there is no dev split, the last `state` is returned. Afterwards, `dev_scores` and the
        prediction files of dev splits are those of the returned state.
        """
        best = checkpointer.best_step
        if best not in (None, int(state.step)):
            state, _ = checkpointer.restore(self.program.state_shapes, best)
            self.dev_scores = None
        if self.dev_scores is None:
            self.evaluate(state.params)
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
        if self.config.calibrate:
            self._calibrate()
        for split in splits_of(self.task, "test"):
            splits[split] = self.predict_split(state.params, split)
        scores = {
            f"{split}/{key}": value
            for split, metrics in splits.items()
            for key, value in metrics.items()
        }
        params = to_original(hosts.fetch(state.params, self.program.mesh), self.task)

        def write() -> None:
            self._save_model(params, scores)
            write_json(self.workdir.path / SCORES, scores)
            for split, report in self.reports.items():
                if report:
                    report.write(self.workdir.path / "predictions", split)
                    report.print(f"{self.task.name}, {split_label(split)} examples")

        hosts.on_first(write)
        return scores

    def _calibrate(self) -> None:
        """Fits a temperature on the (first) dev split, which later predictions are scaled by."""
        split = splits_of(self.task, "dev")[0]
        calibration = self.held_out[split].calibration()
        hosts.on_first(lambda: write_calibration(self.workdir.path, split, calibration))
        hosts.say(calibration.sentence())
        self.task = with_temperature(self.task, calibration)
        self.predictor = self._predictor()

    def _save_model(self, params: Any, scores: dict[str, float]) -> None:
        check_finite(params, f"The model of step {self.updates}")
        config, tagger = self.loaded.config, self.config.feature_tagger
        head = "encoder" if tagger else self.task.head
        description = self.task.description(self.max_length)
        if isinstance(self.task.source, TableSource):
            description |= self.task.source.description
        tagger_params = None
        if tagger is not None:
            description["tagger"] = dataclasses.asdict(tagger)
            tagger_params, params = split_params(params, self.program.model.frozen)
        card = model_card(
            self.workdir.path.name,
            head,
            config,
            self.tokenizer.do_lower_case,
            model_facts(self.config, self.updates, len(self.data.sizes), scores),
            tagger,
        )
        save_hf(
            self.workdir.model,
            params,
            config,
            self.tokenizer,
            head=head,
            extra=self.task.hf_config(),
            card=card,
            files={
                "task.json": json.dumps(description, indent=2),
                **files_of_head(self.program.model, self.max_length),
            },
            tagger=tagger_params,
        )
        print(f"model written to {self.workdir.model}")


def _class_weights(config: FinetuneConfig, counts: np.ndarray) -> tuple[float, ...] | None:
    weights = config.class_weights
    if weights is None:
        return None
    if not counts.size:
        raise ValueError(
            f"class_weights={weights!r}: only tasks with one class per example or word support "
            "class weights. Leave them out."
        )
    if weights == "balanced":
        return tuple((counts.sum() / (len(counts) * np.maximum(counts, 1))).tolist())
    if len(weights) != len(counts):
        raise ValueError(
            f"class_weights has {len(weights)} values, but there are {len(counts)} classes: give "
            "one value for each class."
        )
    return tuple(float(weight) for weight in weights)
