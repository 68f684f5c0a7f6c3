"""Fine-tuning: trains a model on a task and exports it (Devlin et al. 2018, section 4).

`RegressionTask` standardises its targets, since with targets far from 0, such as prices, a new head
would need thousands of updates to reach their scale; the last layer of the exported model contains
the original scale.
"""

import dataclasses
import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from bertjax.base.files import (
    naming_write_errors,
    read_json,
    write_json,
)
from bertjax.base.workdir_files import (
    BAD_ROWS,
    CALIBRATION,
    EVALUATION,
    LABEL_ERRORS,
    LEAKS,
    PREDICTIONS,
    SCORES,
)
from bertjax.config import FinetuneConfig, Phase
from bertjax.config.finetune_config import LAST
from bertjax.devices import hosts, sharding
from bertjax.inference.embedder import ROLES
from bertjax.inference.indexes import index_of
from bertjax.inference.predictor import Predictor
from bertjax.inference.retrieval import Collection
from bertjax.model.recipe import flattened
from bertjax.record.early_stopping import EarlyStopping
from bertjax.record.evaluation import (
    baselines_in_words,
    card_of,
    class_scores,
    data_facts,
    methods,
    slices_in_words,
    slices_of,
    verdict,
)
from bertjax.record.events import EventStream
from bertjax.record.predictions import (
    BASELINES,
    BY_CLASS,
    INTERVALS,
    SUFFIX,
    ClassReport,
    PredictionSummary,
    add_to_summary,
    best_in_words,
    grading_metric,
    label_errors_in_words,
    model_facts,
    shown_label_errors,
    split_label,
    split_prefix,
    splits_of,
    write_label_errors,
)
from bertjax.record.report import read_metrics
from bertjax.tasks.calibration import HeldOutProbabilities
from bertjax.tasks.intervals import FEW_GROUPS, Interval, few_groups_in_words, score_intervals
from bertjax.tasks.label_errors import LabelErrors, by_margin
from bertjax.tasks.measures import ScoredRows, has_diagnostics
from bertjax.tasks.metrics import higher_is_better
from bertjax.tasks.training_data import FeatureBatches, feature_batches
from bertjax.train.bad_steps import check_finite
from bertjax.train.checkpoint import Checkpointer
from bertjax.train.facts import FinetuningFacts, to_original
from bertjax.train.recipes import Lora
from bertjax.train.run import Job, never_stopped
from bertjax.train.run_plan import FinetuningPlan
from bertjax.train.step import TrainState
from bertjax.train.workdir import Workdir
from bertjax.weights import save_hf
from bertjax.weights.adapters import adapter_files
from bertjax.weights.hf import model_card
from bertjax.weights.late_interaction import files_of_head
from bertjax.weights.load import HEAD_FIELDS
from bertjax.weights.sparse_modules import sparse_files


class FinetuningJob(Job):
    """A fine-tuning run with one seed: its task, data, evaluation and results.

    Args:
        plan: what the run will do.
        facts: what it is planned from.
        workdir: the workdir of the run.
    """

    plan: FinetuningPlan
    config: FinetuneConfig
    keep_checkpoints = 1

    def __init__(self, plan: FinetuningPlan, facts: FinetuningFacts, workdir: Workdir):
        super().__init__(plan, facts.loaded.tokenizer)
        assert plan.shape is not None
        self.max_length = plan.max_length
        self.shape = plan.shape
        self.task = facts.task
        self.loaded = facts.loaded
        self.data = facts.data
        self.collection = facts.collection
        self.baselines = facts.baselines
        self.workdir = workdir
        self.name = plan.config.task
        self.higher_is_better = higher_is_better(facts.task.best_metric)
        self.updates = 0  # the number of updates with which the exported parameters were trained
        self.dev_scores: dict[str, dict[str, float]] | None = None
        self.reports: dict[str, ClassReport] = {}  # split -> report of its last predictions
        self.scored: dict[str, ScoredRows] = {}  # split -> what its scores are computed from
        self.judged: dict[str, LabelErrors] = {}  # dev split -> its labels and their probabilities
        self.held_out: dict[str, HeldOutProbabilities] = {}  # split -> its probabilities
        self.choices: list[str] = []  # sentences on what the dev split has chosen
        options = plan.config.options
        self.calibrates = bool(getattr(options, "calibrate", False))
        self.tunes_thresholds = bool(getattr(options, "tune_thresholds", False))
        self.predictor = self._predictor()

    def _predictor(self) -> Predictor:
        return Predictor(
            self.task, self.program.model, self.tokenizer, self.max_length, self.program.mesh
        )

    def claimed(self) -> None:
        """Writes facts on the data: rows that are left out, or are in several splits."""
        self.task.data.write_bad_rows(self.workdir.path / BAD_ROWS)
        self.task.data.write_leaks(self.workdir.path / LEAKS)
        self.data_facts = data_facts(self.task, self.data, self.max_length)
        warnings = [line for line in self.plan.lines if line.startswith("warning:")]
        self.data_facts["warnings"] = warnings
        write_json(self.workdir.path / EVALUATION, {"data": self.data_facts})

    def initial_params(self) -> Any:
        return self.loaded.params

    def batches(self, index: int, first_batch: int) -> Iterator[Any]:
        source = FeatureBatches(
            str(self.data.path),
            self.data.sizes,
            self.config.batch_size,
            self.shape,
            self.plan.labels,
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
        count = len(self.data.sizes)
        size = self.config.batch_size
        epoch, within = divmod(batch, self.plan.batches_per_epoch)
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

    def evaluate(
        self, params: Any, phase: Phase | None = None, check: Callable[[], None] = never_stopped
    ) -> dict[str, float]:
        """Predicts all dev splits; returns values with names such as "eval/mismatched_f1"."""
        self.predictor.before_batch = check
        self.dev_scores = {
            split: self.predict_split(params, split) for split in splits_of(self.task, "dev")
        }
        if self.collection is not None:
            searched = self._search(self.collection, params, check)
            # recall_at_10 is that of the pairs.
            self.dev_scores["dev"] = searched | self.dev_scores["dev"]
        evaluation = {}
        for split, scores in self.dev_scores.items():
            prefix = split_prefix(split)
            for key, value in scores.items():
                evaluation[f"eval/{prefix}{key}"] = value
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
            scored = self.scored[split] = ScoredRows(self.task)
            predictions = scored.observe(predictions)
            if split in splits_of(self.task, "dev"):
                judged = self.judged[split] = LabelErrors(self.task)
                predictions = judged.observe(predictions)
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
        lengths = {role: task.length_of(role, self.max_length) for role in ROLES}
        kind = index_of(loaded, max_length=lengths)
        for encoder in kind.encoders.values():
            encoder.after_batch = lambda _: check()
        scores = collection.score(collection.rank(kind))
        return scores | kind.metrics()

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
            chosen = f"the model is {best_in_words(values, best, self.best_metric)}"
            print(chosen)
            if len(values) > 1:
                self.choices.append(
                    f"The dev split has chosen the checkpoint ({chosen}): scores on it are a "
                    "little too good."
                )
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
        scores = {}
        for split, metrics in splits.items():
            for key, value in metrics.items():
                scores[f"{split}/{key}"] = value
        params = to_original(hosts.fetch(final, self.program.mesh), self.task)
        lora = self.config.lora
        adapters = {}
        if lora is not None and lora.export == "adapter":
            adapters = self._adapters(state, params)

        def write() -> None:
            evaluation = self._evaluation(scores)
            self._save_model(params, card_of(evaluation), adapters)
            self._write_scores(scores, evaluation)
            self._write_label_errors()
            for split, report in self.reports.items():
                if report:
                    report.write(self.workdir.path / PREDICTIONS, split)
                    report.print(f"{self.task.name}, {split_label(split)} examples")

        hosts.on_first(write)
        return scores

    def _evaluation(self, scores: dict[str, float]) -> dict[str, Any]:
        """Returns the data, the scores with their intervals, and those of baselines and slices.

        The intervals are also added to the report's data.
        """
        data = self.data_facts
        found: dict[str, Interval] = {}
        slices = {}
        for split, rows in self.scored.items():
            slices[split] = slices_of(rows, self.task.best_metric)
            if self.task.data.group_columns:
                data["splits"][split]["groups"] = count = len({*rows.groups()})
                if 1 < count < FEW_GROUPS:
                    warning = f"{split_label(split)} scores: {few_groups_in_words(count)}"
                    print(warning)
                    data["warnings"].append(warning)
            of_split = {}
            for name, interval in score_intervals(rows).items():
                if f"{split}/{name}" in scores:
                    of_split[name] = found[f"{split}/{name}"] = interval
            add_to_summary(self.workdir.path / PREDICTIONS, split, {INTERVALS: of_split})
        models = {split: [rows] for split, rows in self.scored.items()}
        choices = self.choices
        if scores:
            choices = [*choices, methods(self.config, data)]
        evaluation = {
            "data": data,
            "scores": scores,
            INTERVALS: found,
            BASELINES: self.baselines.content if scores else {},
            "choices": choices,
            BY_CLASS: class_scores(self.reports, models),
            "slices": slices,
        }
        return {**evaluation, "verdict": verdict(evaluation, grading_metric(self.task))}

    def _write_scores(self, scores: dict[str, float], evaluation: dict[str, Any]) -> None:
        """Writes evaluation.json and scores.json."""
        write_json(self.workdir.path / EVALUATION, evaluation)
        for sentence in slices_in_words(evaluation["slices"]):
            print(sentence)
        stored: dict[str, Any] = dict(scores)
        if scores:
            print(baselines_in_words(evaluation, grading_metric(self.task)))
        if evaluation["verdict"]:
            print(evaluation["verdict"])
        for key, content in (
            (INTERVALS, evaluation[INTERVALS]),
            (BASELINES, evaluation[BASELINES].get("splits")),
            (BY_CLASS, evaluation[BY_CLASS] if has_diagnostics(self.task) else {}),
        ):
            if content:
                stored[key] = content
        write_json(self.workdir.path / SCORES, stored)

    def _write_label_errors(self) -> None:
        """Writes label_errors.csv, and its first rows to the report's data."""
        rows = []
        examples = 0
        for split, judged in self.judged.items():
            examples += len(judged)
            if judged:
                of_split = judged.rows()
                shown = {"label_errors": shown_label_errors(of_split)}
                add_to_summary(self.workdir.path / PREDICTIONS, split, shown)
                rows += of_split
        if examples:
            rows.sort(key=by_margin)
            path = self.workdir.path / LABEL_ERRORS
            write_label_errors(path, rows, self.task.data)
            print(label_errors_in_words(rows, examples, path))

    def _calibrate(self) -> None:
        """Fits a temperature or thresholds on the (first) dev split, for later predictions.

        They are written to calibration.json, and a temperature to the data of the report.
        """
        split = splits_of(self.task, "dev")[0]
        field = "thresholds"
        if self.calibrates:
            field = "temperature"
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
        self.choices.append(f"The dev split was used for {fitted.sentence()}.")
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

    def _save_model(self, params: Any, sections: str, adapters: dict[str, Any]) -> None:
        check_finite(params, f"The model of step {self.updates}")
        config = self.loaded.config
        tagger = self.config.tagger
        head = "encoder" if tagger else self.task.head
        description = {**self.task.description(self.max_length), **self.task.data.description}
        tagger_params = None
        if tagger is not None:
            description["tagger"] = dataclasses.asdict(tagger)
            tagger_params, params = self.program.recipe.split(params)
        facts = model_facts(self.config, self.updates, len(self.data.sizes))
        card = model_card(
            self.workdir.path.name,
            head,
            config,
            self.tokenizer.do_lower_case,
            [*facts.items()],
            tagger,
            sections,
        )
        read = self.loaded.source.usage.modules
        described = self.program.model, params, self.max_length, read
        modules = {**files_of_head(*described), **sparse_files(*described, self.tokenizer)}
        if not modules:  # which say the settings of the head
            before = self.loaded.source.usage.description.value or {}
            names = {*before.get(HEAD_FIELDS, {}), *self.task.head_fields}
            model = self.program.model
            kept = {name: getattr(model, name) for name in sorted(names) if hasattr(model, name)}
            if kept:
                description[HEAD_FIELDS] = kept
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
                **modules,
                **adapters,
            },
            tagger=tagger_params,
        )
        print(f"model written to {self.workdir.model}")
