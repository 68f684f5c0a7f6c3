"""Fine-tuning in one run or several: seeds, BERT's published grid, folds, few shots.

All are plain loops over `train`. Cross-validation (`--folds`) divides the train split: run `foldI`
is trained on the other folds and predicts fold I with the model of its last step, so that the fold
selects nothing; the run `all` is trained on all examples, its model is exported, and the mean over
the folds estimates its score. With few examples (`--shots`), scores differ much from draw to draw,
so several draws are trained on, and no dev split that is larger than the training data selects a
checkpoint or a draw (Perez et al. 2021, "True Few-Shot Learning with Language Models").
"""

import contextlib
import dataclasses
import functools
import hashlib
import itertools
import json
import shutil
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from bertjax.base.files import (
    is_remote,
    listed,
    read_json_or_empty,
    write_json,
    write_text,
    writing,
)
from bertjax.base.lock import scratch_folder
from bertjax.base.outputs import replacing_folder
from bertjax.base.workdir_files import (
    CALIBRATION,
    EVALUATION,
    LABEL_ERRORS,
    LEAKS,
    METRICS,
    MODEL,
    PREDICTIONS,
    SCORES,
)
from bertjax.cloud.hub import push_folder
from bertjax.config import FinetuneConfig, defaults_of, differences
from bertjax.config.finetune_config import LAST
from bertjax.data.batches.batch import decode_feature
from bertjax.data.records import ShardReader, write_shard
from bertjax.devices import hosts
from bertjax.devices.activity import Clock
from bertjax.inference.pretrained import Pretrained, load_pretrained
from bertjax.record.evaluation import (
    baselines_in_words,
    cautions,
    class_scores,
    in_paragraphs,
    mean_baselines,
    mean_scores,
    methods,
    scores_card,
    slices_in_words,
    slices_of,
    verdict,
)
from bertjax.record.metrics import read_lines
from bertjax.record.predictions import (
    BASELINES,
    BY_CLASS,
    INTERVALS,
    ClassReport,
    Intervals,
    best_run,
    grading_metric,
    label_errors_in_words,
    print_scores,
    read_intervals,
    read_scores,
    shown_label_errors,
    splits_of,
    write_label_errors,
)
from bertjax.tasks import Task, with_task_options
from bertjax.tasks.baselines import Baselines
from bertjax.tasks.dataset import Lengths
from bertjax.tasks.definition import Fold, change_times
from bertjax.tasks.label_errors import LabelErrors
from bertjax.tasks.measures import ScoredRows
from bertjax.tasks.sources.glue import SUBMISSION, GlueRegressionOptions, add_to_submission_zip
from bertjax.tasks.training_data import TrainingData
from bertjax.train import run_intervals
from bertjax.train.facts import FinetuningFacts, gather_finetuning, reinitialized
from bertjax.train.finetuning import FinetuningJob
from bertjax.train.run import Session, looked_at_run, opened_run, print_plans, say, train
from bertjax.train.run_plan import FinetuningPlan, plan_finetuning
from bertjax.train.workdir import Workdir
from bertjax.weights.hf import CARD, TRAINING, in_markdown

if TYPE_CHECKING:
    import pandas

# The grid of the sweep (Devlin et al. 2018, A.3).
SWEEP_BATCH_SIZES = (16, 32)
SWEEP_LEARNING_RATES = (5e-5, 3e-5, 2e-5)
SWEEP_EPOCHS = (2, 3, 4)


@dataclasses.dataclass(frozen=True)
class FinetuneResult:
    """The result of `finetune`: the scores of all runs, and the model of the best run.

    Attributes:
        runs: {name of a run: {split/metric: score}}; a single run has the name "".
        best: the name of the run whose model is in `directory`.
        directory: the path of the model directory.
    """

    runs: dict[str, dict[str, float]]
    best: str
    directory: Path

    @property
    def scores(self) -> dict[str, float]:
        """The scores of the best run by split and metric, such as {"dev/accuracy": 0.9}."""
        return self.runs[self.best]

    @functools.cached_property
    def metrics(self) -> list[dict[str, Any]]:
        """The metrics.jsonl of the best run: one dictionary of metrics per line of the file."""
        return read_lines(self.directory.parent / self.best / METRICS).lines

    @functools.cached_property
    def history(self) -> "pandas.DataFrame":
        """`metrics` as a table with a column per metric, whose index is the step.

        A step that was evaluated has one row with its training and its evaluation metrics.

        Raises:
            ImportError: pandas is not installed.
        """
        try:
            import pandas
        except ImportError as error:
            raise ImportError(
                "The history is a pandas DataFrame: pip install pandas, or read `metrics`, a list "
                "of dictionaries with the same content."
            ) from error
        return pandas.DataFrame(self.metrics).groupby("step").last()

    @functools.cached_property
    def model(self) -> Pretrained:
        """The fine-tuned model of the best run, which is loaded on first access."""
        return load_pretrained(self.directory, head=None)


def finetune(config: FinetuneConfig, clock: Clock | None = None) -> FinetuneResult:
    """Fine-tunes a model in a single run, in one run per seed, in a sweep, or in folds.

    A sweep has one run per combination of batch size, learning rate and epochs in BERT's grid. The
    best run of a cross-validation is `all`, which is trained on all examples. `clock` counts the
    time of the runs; None: from now.

    Raises:
        Interrupted: a stop signal arrived; the same call resumes the run.
        NotFinite: in too many steps in a row, the loss or gradient was not finite or a spike; or
            the model is not finite.
        ValueError: the config cannot be used with the data, the models or the devices, or the
            workdir belongs to another run.
    """
    config = _resolved(config)
    with opened_run(config, clock or Clock(), direct=False) as (workdir, session):
        run_all = _finetune
        if config.folds:
            run_all = _cross_validate
        result = run_all(dataclasses.replace(config, workdir=str(workdir.path)), session)
        if (repository := config.push_to_hub) is not None:
            hosts.on_first_patiently(lambda: push_folder(result.directory, repository))
    if is_remote(config.workdir):
        hosts.say(f"{workdir.path} was uploaded to {workdir.address}")
    return result


def planned_runs(
    config: FinetuneConfig, folder: Path
) -> Iterator[tuple[str, FinetuningPlan, FinetuningFacts]]:
    """Yields the name, the plan and the facts of each run, whose lines are said before.

    Each cross-validated run has data of its own, which are read when the run is next; other runs
    share what the first one has read, and say nothing more. `folder` is for encoded data.
    """
    if config.folds:
        for name, run, fold in _folds_of(config):
            part = folder / name
            hosts.on_all(functools.partial(part.mkdir, exist_ok=True))
            gather = functools.partial(gather_finetuning, run, part, [run.workdir], fold)
            facts = hosts.on_all(gather)
            plan = plan_finetuning(run, facts)
            say(plan)
            yield name, plan, facts
        return
    runs = variants(config)
    first = runs[0][1]
    workdirs = [run.workdir for _, run in runs]
    shared = hosts.on_all(
        lambda: gather_finetuning(first, folder, workdirs, needs_dev=config.sweep)
    )
    for name, run in runs:
        facts = shared
        if run.seed != first.seed:
            facts = dataclasses.replace(facts, loaded=reinitialized(shared.loaded, run.seed))
        for shots in run.shot_counts:  # one, or none
            data = shots_of(shared.task, shared.data, shots, run.seed)
            baselines = Baselines(shared.task, data)
            facts = dataclasses.replace(facts, data=data, baselines=baselines)
        plan = plan_finetuning(run, facts)
        if run is first:
            say(plan)
        yield name, plan, facts


def dry_run(
    config: FinetuneConfig,
    on_first: Callable[[FinetuneConfig, FinetuningFacts], None] | None = None,
) -> None:
    """Prints the plans of all runs, without a step and without a file; errors as in `finetune`.

    `on_first` is called with the config and the facts of the first run, after its plan.
    """
    config = _resolved(config)
    with scratch_folder() as folder:
        workdir = looked_at_run(config, folder)
        config = dataclasses.replace(config, workdir=str(workdir.path))

        def plans() -> Iterator[FinetuningPlan]:
            for number, (_, plan, facts) in enumerate(planned_runs(config, folder)):
                yield plan
                if on_first is not None and number == 0:
                    on_first(plan.config, facts)

        print_plans(plans())


def _resolved(config: FinetuneConfig) -> FinetuneConfig:
    config = with_task_options(config)
    return dataclasses.replace(config, workdir=config.workdir or f"runs/{config.task}")


def _trained(
    config: FinetuneConfig, session: Session
) -> Iterator[tuple[str, Task, dict[str, float]]]:
    """Trains the runs one after the other; yields the name, the task and the scores of each."""
    with scratch_folder() as folder:
        for name, plan, facts in planned_runs(config, folder):
            yield name, facts.task, train_run(plan, facts, name, session)


def _finetune(config: FinetuneConfig, session: Session) -> FinetuneResult:
    workdir = Path(config.workdir)
    runs = list(_trained(config, session))
    scores = {name: run_scores for name, _, run_scores in runs}
    task = runs[0][1]
    groups = _by_shots(config, scores)
    best = best_run(scores, grading_metric(task))
    if config.shots:  # the dev split, which is many times as large, must not choose the draw
        best = next(iter(groups[-1]))
    of_mean: Mapping[str, Intervals] = {}
    for group in groups if hosts.is_first() else ():
        if len(group) > 1 and not config.sweep:
            of_mean = run_intervals.of_seeds(workdir, task, group)
        found = {name: read_intervals(workdir / name / SCORES) for name in group}
        print_scores(group, task, None if config.shots else best, found, of_mean)
    if len(scores) > 1:
        submission = getattr(config.options, "submission", None)
        of_all = of_mean if len(groups) == 1 else {}
        sections = _runs_card(config, scores, best, of_mean.get("both", {}))
        hosts.on_first(lambda: publish(workdir, best, scores, submission, of_all, sections))
    if config.shots and len(scores) > 1:
        hosts.say(f"exported: {best}, the model of the first draw, which no score has chosen")
    return FinetuneResult(scores, best, workdir / MODEL)


def _runs_card(
    config: FinetuneConfig, scores: dict[str, dict[str, float]], best: str, of_mean: Intervals
) -> str:
    """Returns the section of a model card on several runs, of which `best` is exported."""
    chosen = "the best on the dev split, so that its scores there are a little too good"
    if config.shots or not any(key.startswith("dev") for key in scores[best]):
        chosen = "which no score has chosen"
    about = in_paragraphs([f"This is the model of {best} of {len(scores)} runs, {chosen}."])
    if config.sweep or len(config.shot_counts) > 1:  # a mean of different settings says nothing
        return f"\n## Several runs\n{about}"
    evaluation = {"scores": mean_scores(scores.values()), INTERVALS: of_mean, "slices": {}}
    return scores_card(evaluation, f"Means over {len(scores)} runs", "mean") + about


def _by_shots(
    config: FinetuneConfig, scores: dict[str, dict[str, float]]
) -> list[dict[str, dict[str, float]]]:
    """Divides the scores of runs by the number of shots, of which each has as many runs."""
    runs = [*scores.items()]
    size = len(runs) // max(len(config.shot_counts), 1)
    return [dict(runs[start : start + size]) for start in range(0, len(runs), size)]


def train_run(
    plan: FinetuningPlan, facts: FinetuningFacts, name: str, session: Session
) -> dict[str, float]:
    """Trains one run and returns its scores, {split/metric: score}.

    If the run has finished before, and is one of several (`name` is not "") or has nothing left to
    do, its stored scores are returned instead.
    """
    config = plan.config
    workdir = Workdir(Path(config.workdir))
    finished = workdir.path / SCORES
    if name and finished.is_file():
        try:
            workdir.check(plan.identity, plan.data_fingerprint, defaults=defaults_of(config))
            return read_scores(finished)
        except ValueError:
            if not config.overwrite:
                raise
    if _has_nothing_to_do(workdir, plan, facts.task):
        print(
            f"{config.workdir} is finished: there is nothing to do. To train again, choose another "
            "--workdir or delete that folder."
        )
        return read_scores(finished)
    scores = train(
        lambda: FinetuningJob(plan, facts, workdir),
        workdir,
        session,
        overwrite=config.overwrite,
    )
    if name:  # The run is one of several; its checkpoints are not needed again.
        hosts.on_first(lambda: shutil.rmtree(workdir.checkpoints, ignore_errors=True))
    return scores


def publish(
    workdir: Path,
    best: str,
    scores: dict[str, dict[str, float]],
    submission: str | None,
    of_mean: Mapping[str, Intervals],
    sections: str,
) -> None:
    """Copies model and predictions of the run `best` to the workdir, and writes all scores.

    The model card has the name of the workdir, and `sections` on all runs. The predictions of the
    run for the test split are added to the zip file `submission`, if any.
    `of_mean` are the intervals of the mean scores, by what they cover.
    """
    run = workdir / best
    predictions = workdir / PREDICTIONS
    with replacing_folder(workdir / MODEL, keeping=True) as folder:
        shutil.copytree(run / MODEL, folder, dirs_exist_ok=True)
    for file in (run / PREDICTIONS).glob("*"):  # none without a dev or test split
        predictions.mkdir(exist_ok=True)
        with writing(predictions / file.name) as temporary:
            shutil.copyfile(file, temporary)
    for name in (CALIBRATION, EVALUATION, LABEL_ERRORS, LEAKS):
        if (run / name).is_file():
            shutil.copyfile(run / name, workdir / name)
    card = workdir / MODEL / CARD
    if card.is_file():  # a user may have deleted it
        text = card.read_text(encoding="utf-8")
        title = f"\n# {in_markdown(workdir.name)}\n"
        text = text.replace(f"\n# {in_markdown(best)}\n", title, 1)
        write_text(card, text.replace(TRAINING, f"{sections}{TRAINING}", 1))
    stored: dict[str, Any] = dict(scores)
    found = {name: read_intervals(workdir / name / SCORES) for name in scores}
    if any(found.values()):
        stored[INTERVALS] = {**found, "mean": of_mean}
    write_json(workdir / SCORES, stored)
    made = predictions / SUBMISSION
    if submission and made.is_file():  # There is no file if the task has no test split.
        with zipfile.ZipFile(made) as files:
            texts = {name: files.read(name).decode() for name in files.namelist()}
        add_to_submission_zip(submission, texts)


def variants(config: FinetuneConfig) -> list[tuple[str, FinetuneConfig]]:
    """Returns (folder name, config) of each run; the folder name of a single run is empty."""
    if config.sweep:
        grid = itertools.product(SWEEP_BATCH_SIZES, SWEEP_LEARNING_RATES, SWEEP_EPOCHS)
        return [
            variant_of(
                config,
                f"batch{batch_size}_rate{rate:g}_epochs{epochs}",
                batch_size=batch_size,
                num_epochs=float(epochs),
                optimizer=dataclasses.replace(config.optimizer, learning_rate=rate),
            )
            for batch_size, rate, epochs in grid
        ]
    seeds = range(config.seed, config.seed + config.seeds)
    if len(config.shot_counts) > 1:
        return [
            variant_of(config, f"shots{shots}_seed{seed}", shots=shots, seed=seed)
            for shots, seed in itertools.product(config.shot_counts, seeds)
        ]
    if config.seeds > 1:
        return [variant_of(config, f"seed{seed}", seed=seed) for seed in seeds]
    return [("", config)]


def variant_of(config: FinetuneConfig, name: str, **changes: Any) -> tuple[str, FinetuneConfig]:
    """Returns (name, config) of one of several runs: in WORKDIR/name, with the fields `changes`."""
    alone: dict[str, Any] = {"sweep": False, "seeds": 1, "workdir": f"{config.workdir}/{name}"}
    options = config.options
    if isinstance(options, GlueRegressionOptions):  # a submission is made of the best run alone
        alone["options"] = dataclasses.replace(options, submission=None)
    return name, dataclasses.replace(config, **alone | changes)


def _has_nothing_to_do(workdir: Workdir, plan: FinetuningPlan, task: Task) -> bool:
    """Returns whether the run in a workdir has written all that the same command would write.

    This is so if the config is exactly the run's, the model, the scores and the predictions are
    there, and no file of examples was changed since the scores were written. Otherwise, a finished
    run is opened nevertheless, for example to predict another test file; so is a run on several
    hosts.
    """
    if jax.process_count() > 1:  # the hosts might not see the files at the same time
        return False
    try:
        saved = workdir.read()
        written = (workdir.path / SCORES).stat().st_mtime
    except (OSError, ValueError):
        return False
    config = plan.config
    changed = differences(
        plan.identity,
        saved["config"],
        ignore=("overwrite", "workdir"),
        defaults=defaults_of(config),
    )
    if changed or plan.data_fingerprint != saved["data_fingerprint"]:
        return False
    submission = getattr(config.options, "submission", None)
    wanted = [(workdir.model, "config.json"), (workdir.model, "*.safetensors")]
    for split in (*splits_of(task, "dev"), *splits_of(task, "test")):
        wanted.append((workdir.path / PREDICTIONS, f"{split}.*"))
    return (
        all(any(folder.glob(pattern)) for folder, pattern in wanted)
        and (submission is None or Path(submission).is_file())
        and all(time < written for time in change_times(config.options))
    )


def shots_of(task: Task, data: TrainingData, shots: int, seed: int) -> TrainingData:
    """Draws `shots` examples of each class from `data`, to a file beside the file of `data`."""
    if task.label_kind != "classes":
        raise ValueError(
            f"--shots {shots}: {task.name} does not have one class per example. Leave it out, or "
            "use --task=classify or a benchmark task with classes."
        )
    with contextlib.closing(ShardReader(data.path)) as reader:
        records = reader.read(0, len(reader))
    labels: Any = [decode_feature(record).labels for record in records]  # the train split has them
    classes = np.array([int(label[0]) for label in labels])
    candidates = np.arange(len(classes))
    what = "examples"
    if data.groups is not None:
        candidates = _one_per_group(classes, data.groups, seed)
        what = "groups"
    counts = np.bincount(classes[candidates], minlength=len(task.labels))
    rare = []
    for name, count in zip(task.labels, counts, strict=True):
        if count < shots:
            rare.append(f"{name} ({count:,})")
    if rare:
        raise ValueError(
            f"--shots {shots}: the training data has fewer {what} of {listed(rare)}: give at most "
            f"--shots {int(counts.min())}."
        )
    chosen = candidates[draw(classes[candidates], shots, seed)]
    path = data.path.with_name(f"shots{shots}_{seed}{data.path.suffix}")
    drawn = [records[index] for index in chosen]
    write_shard(path, drawn)
    sizes = data.sizes[chosen]
    longest = data.lengths.longest  # those of the maximum length, if any are
    truncated = 0
    if data.lengths.truncated:
        truncated = np.sum(sizes == longest)
    return TrainingData(
        path,
        sizes,
        np.full(len(task.labels), shots, np.int64),
        hashlib.sha256(b"".join(drawn)).hexdigest(),
        examples=len(chosen),
        groups=None if data.groups is None else data.groups[chosen],
        lengths=Lengths.of(sizes, int(truncated)),
        chosen=chosen,
    )


def draw(classes: np.ndarray, shots: int, seed: int) -> np.ndarray:
    """Draws `shots` examples of each of `classes`, int [examples]; returns their sorted indices."""
    rng = np.random.default_rng(seed)
    drawn = []
    for name in np.unique(classes):
        drawn.append(rng.choice(np.flatnonzero(classes == name), shots, replace=False))
    return np.sort(np.concatenate(drawn))


def _one_per_group(classes: np.ndarray, groups: np.ndarray, seed: int) -> np.ndarray:
    """Draws an example of each group of each class; returns their sorted indices."""
    shuffled = np.random.default_rng(seed).permutation(len(classes))
    pairs = np.stack([classes[shuffled], groups[shuffled]])
    _, firsts = np.unique(pairs, axis=1, return_index=True)
    return np.sort(shuffled[firsts])


ALL = "all"
CROSS_VALIDATION = "cross_validation.json"
OUT_OF_FOLD = "out_of_fold.jsonl"


def _folds_of(config: FinetuneConfig) -> Iterator[tuple[str, FinetuneConfig, Fold | None]]:
    """Yields (name, config, fold that is held out) of each run of a cross-validation."""
    for index in range(config.folds):
        options = dataclasses.replace(config.options, test=None)  # type: ignore[call-arg]
        name, run = variant_of(config, f"fold{index + 1}", options=options, select_by=LAST)
        yield name, run, Fold(index, config.folds, config.seed)
    options = dataclasses.replace(config.options, dev_fraction=0.0)  # type: ignore[call-arg]
    name, run = variant_of(config, ALL, options=options, folds=0, select_by=None)
    hosts.say(f"The model that is exported is trained on all examples, in {run.workdir}")
    yield name, run, None


def _cross_validate(config: FinetuneConfig, session: Session) -> FinetuneResult:
    """Trains a model per fold and one on all examples, in WORKDIR/foldI and WORKDIR/all."""
    workdir = Path(config.workdir)
    scores = {}
    indices = {}
    held_out: list[ScoredRows] = []  # of each fold
    observers: Any = ()  # of all folds
    task: Any = None
    for name, task, run_scores in _trained(config, session):
        scores[name] = run_scores
        if name != ALL:
            indices[name] = task.data.held_out_indices()
        if name != ALL and hosts.is_first():
            observers = observers or (ScoredRows(task), ClassReport(task), LabelErrors(task))
            held_out.append(ScoredRows(task))
            for pair in run_intervals.stored_pairs(task, workdir / name, "dev"):
                for observer in (held_out[-1], *observers):
                    observer.add(*pair)
    folds = {name: scores[name] for name in indices}

    def publish_all() -> None:
        pooled, report, judged = observers
        of_mean = run_intervals.of_folds(held_out)
        of_rows = of_mean.get("rows", {})
        of_folds = [read_json_or_empty(workdir / name / EVALUATION) for name in folds]
        evaluation = {
            "data": _data_of_folds(read_json_or_empty(workdir / ALL / EVALUATION), of_folds),
            "scores": mean_scores(folds.values()),
            INTERVALS: of_rows,
            BASELINES: mean_baselines(of_folds),
            "choices": [
                f"These scores are means over {config.folds} folds, predicted by models of the "
                "others. Scores of labels and slices are of the examples of all folds together; "
                "AUROC compares examples of the same fold.",
                methods(config, of_folds[0]["data"]),
            ],
            BY_CLASS: class_scores({"dev": report}, {"dev": held_out}),
            "slices": {"dev": slices_of(pooled, task.best_metric)},
        }
        metric = f"dev/{task.best_metric}"
        evaluation["verdict"] = verdict(evaluation, metric)
        sentences = in_paragraphs(cautions(evaluation["data"]))
        table = scores_card(evaluation, "Cross-validation", "mean")
        publish(workdir, ALL, scores, None, of_mean, f"{table}{sentences}")
        _write_predictions(workdir, indices)
        write_json(workdir / CROSS_VALIDATION, _summary(config, folds, of_rows))
        found = {name: read_intervals(workdir / name / SCORES) for name in folds}
        print_scores(folds, task, None, found, of_mean)
        if report:
            report.print(f"{task.name}, held-out examples of all folds together")
        for sentence in slices_in_words(evaluation["slices"]):
            print(sentence)
        print(f"{config.folds} folds: {baselines_in_words(evaluation, metric)}")
        if evaluation["verdict"]:
            print(evaluation["verdict"])
        if judged:
            rows = judged.rows()
            write_label_errors(workdir / LABEL_ERRORS, rows, task.data)
            print(label_errors_in_words(rows, len(judged), workdir / LABEL_ERRORS))
            evaluation["label_errors"] = shown_label_errors(rows)
        write_json(workdir / EVALUATION, evaluation)
        print(
            f"{workdir}/model was trained on all examples. The mean over the folds estimates its "
            f"score; each held-out example's prediction is in {workdir}/predictions/{OUT_OF_FOLD}."
        )

    hosts.on_first(publish_all)
    return FinetuneResult(scores, ALL, workdir / MODEL)


def _data_of_folds(
    of_all: Mapping[str, Any], of_folds: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """Returns the facts on all examples, with the leaks between the folds and their warning."""
    facts = [fold.get("data", {}) for fold in of_folds]
    leaked = sum(of_fold.get("leaked_rows", {}).get("dev", 0) for of_fold in facts)
    between = {"leaked_rows": {"a fold": leaked} if leaked else {}}
    return {**of_all.get("data", {}), **between, "warning": facts[0].get("warning", "")}


def _write_predictions(workdir: Path, indices: dict[str, list[int]]) -> None:
    """Writes the predictions of all folds to one file, in the order of the examples."""
    lines = {}
    for name, rows in indices.items():
        # In text mode, lines end at "\n" alone: texts may contain other line separators.
        with (workdir / name / PREDICTIONS / "dev.jsonl").open(encoding="utf-8") as file:
            for index, line in zip(rows, file, strict=True):
                lines[index] = {**json.loads(line), "fold": name}
    path = workdir / PREDICTIONS / OUT_OF_FOLD
    path.parent.mkdir(exist_ok=True)
    with writing(path) as temporary, temporary.open("x", encoding="utf-8") as file:
        for index in sorted(lines):
            file.write(json.dumps(lines[index], ensure_ascii=False) + "\n")


def _summary(
    config: FinetuneConfig, folds: dict[str, dict[str, float]], of_mean: Intervals
) -> dict[str, Any]:
    metrics: dict[str, dict[str, Any]] = {}
    # A rare kind of examples, such as questions without an answer, may be in some folds alone.
    for key in sorted(set.intersection(*map(set, folds.values()))):
        values = [scores[key] for scores in folds.values()]
        metrics[key.removeprefix("dev/")] = {
            "mean": float(np.mean(values)),
            "std": float(np.std(values, ddof=1)),
            "folds": values,
        }
        if key in of_mean:
            metrics[key.removeprefix("dev/")]["interval"] = of_mean[key]
    return {"folds": config.folds, "seed": config.seed, "metrics": metrics}
