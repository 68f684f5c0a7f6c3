"""The story of a run, from top to bottom: where it stands, its phases, its steps, its end.

`train` trains a `Job`, a pretraining or a fine-tuning, from the newest checkpoint (or from the
start) to the last step, early stopping or a stop signal, and exports its model. Everything that a
run does in time stands here in its order: after each step, `Saver` evaluates and saves where that
is due. What happens is told as events to readers (`bertjax.record.events`), which show, log and
check it. What differs between jobs stands first.
"""

import abc
import contextlib
import glob
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax

from bertjax.base.addresses import naming_bucket_errors, place
from bertjax.base.files import refuse_links_outside
from bertjax.base.outputs import check_paths
from bertjax.base.run_file import holds_run
from bertjax.base.signals import Interrupted, StopSignal
from bertjax.base.workdir_files import HOSTS
from bertjax.cloud.hub import create_repository
from bertjax.config import Phase, TrainingConfig, defaults_of
from bertjax.devices import activity, host_watch, hosts
from bertjax.devices.activity import Clock
from bertjax.devices.compilation import (
    check_devices,
    use_compilation_cache,
    use_deterministic_operations,
)
from bertjax.devices.flops import peak_flops
from bertjax.devices.host_watch import HostWatch
from bertjax.record.events import (
    Closed,
    Evaluated,
    EventStream,
    Exported,
    Finished,
    Saved,
    Started,
    StepDone,
)
from bertjax.record.ledger import Ledger, has_finished
from bertjax.record.metrics import MetricLogger, MetricWriter
from bertjax.record.report_writer import ReportWriter
from bertjax.record.terminal import Terminal
from bertjax.record.trackers import check_installed, open_trackers
from bertjax.tokenization import Tokenizer
from bertjax.train.bad_steps import BadSteps, NotFinite, Rollbacks, check_finite
from bertjax.train.checkpoint import Checkpointer, move_damaged
from bertjax.train.run_plan import RunPlan, described, facts_of_program, first_line
from bertjax.train.step import TrainState
from bertjax.train.workdir import Workdir, opened, unopened

# Names of config fields whose values may differ between the hosts of a run.
PER_HOST = (
    "data",
    "data_cache",
    "eval_data",
    "workdir",
    "distributed",
    "reader_threads",
    "machine",
)


class EvaluationStopped(Exception):
    """Raised to end an evaluation early because a stop signal (such as SIGTERM) has come."""


def never_stopped() -> None:
    """The `check` of an evaluation that no stop signal ends."""


class Job(abc.ABC):
    """What a run trains: the members in which pretraining and fine-tuning differ.

    Attributes:
        plan: what the run will do.
        config: the config of the run.
        program: the model, the optimizer and the compiled steps.
        phases: the phases of the run; fine-tuning has one.
        name: the name of the run in the progress bar.
        identity: the config as stored in run.json, with a hash of the teacher's weights, if any.
        data_fingerprint: a hash of the training data.
        run_id: the random name of the run, which run.json and each checkpoint have.
        best_metric: the name of the evaluation metric that determines the best checkpoint.
        higher_is_better: whether its highest value is the best.
        keep_checkpoints: how many of the last checkpoints are kept in addition to the best one.
        eval_every: number of steps between evaluations; 0: only at the end of each phase.
        save_every: number of steps between checkpoints.
        evaluates_at_start: whether the state before the first step is evaluated.
    """

    name: str
    run_id: str
    higher_is_better: bool
    keep_checkpoints: int
    evaluates_at_start: bool = False

    def __init__(self, plan: RunPlan, tokenizer: Tokenizer):
        self.plan = plan
        self.config = plan.config
        self.program = plan.program
        self.phases = plan.phases
        self.tokenizer = tokenizer
        self.num_steps = plan.num_steps
        self.identity = plan.identity
        self.data_fingerprint = plan.data_fingerprint
        self.best_metric = plan.best_metric
        self.eval_every = plan.eval_every
        self.save_every = plan.save_every

    @abc.abstractmethod
    def initial_params(self) -> Any:
        """Returns the initial parameters (numpy); None if they are to be initialised at random."""

    @abc.abstractmethod
    def batches(self, index: int, first_batch: int) -> Iterator[Any]:
        """Yields the global batches of phase `index` on the devices, from `first_batch` on.

        Batches and phases are counted from 0. If the batch size changes in the phase
        (`Phase.stages`), all yielded batches have the size of `first_batch`.
        """

    @abc.abstractmethod
    def rows_of_batch(self, index: int, batch: int) -> tuple[int, int]:
        """Returns (first row, last row), both inclusive, of the batch number `batch` of a phase."""

    @abc.abstractmethod
    def evaluate(
        self, params: Any, phase: Phase, check: Callable[[], None] = never_stopped
    ) -> dict[str, float]:
        """Evaluates `params`; returns {"eval/...": value}, or {} if there is no evaluation data.

        `phase` is the phase of the run, whose row length the evaluation has. `check` is called
        before each batch, equally often on all hosts, and ends the evaluation by
        `EvaluationStopped` if a stop signal has come.
        """

    @abc.abstractmethod
    def progress(self, index: int, next_batch: int) -> dict[str, Any]:
        """Returns the JSON values that a checkpoint stores, such as the position in the data.

        `next_batch` is the first batch of phase `index` after the checkpoint.
        """

    def claimed(self) -> None:  # noqa: B027
        """Is called on the first host when the workdir is locked, before the first step."""

    def add_readers(self, run: EventStream, progress: Mapping[str, Any]) -> None:  # noqa: B027
        """Adds readers of this job alone, which remember their part of `progress`."""

    def compile_evaluation(self, state: TrainState, phase: Phase) -> bool:
        """Compiles the evaluation of a phase, before its first step, if that is possible.

        Returns whether later evaluations of the phase need no compilation.
        """
        return False

    def flops_per_step(self, phase: Phase) -> float:
        """Returns the number of FLOP per update, to compute the MFU; 0 if the number is unknown."""
        return 0.0

    def choose_state(self, checkpoints: Checkpointer, state: TrainState) -> TrainState:
        """Returns the state to export: the last `state`, or one of `checkpoints`."""
        return state

    @abc.abstractmethod
    def write_results(self, state: TrainState) -> dict[str, float]:
        """Writes the model of the finished run and all of its results; returns its scores."""

    def new_state(self) -> TrainState:
        """Creates the training state before the first step, placed on the devices."""
        return self.program.new_state(self.initial_params())


class Segment(NamedTuple):
    """A part of a phase with one batch size, in which no rollback leaves out batches.

    Attributes:
        phase_index: the index of the phase.
        phase: the phase.
        stage: the phase with the batch size and the microbatches of the segment.
        first: the step after which the segment begins.
        last: the last step of the segment.
        end: the last step of the phase.
        first_batch: the batch, within the data of the phase, after step `first`.
    """

    phase_index: int
    phase: Phase
    stage: Phase
    first: int
    last: int
    end: int
    first_batch: int

    def batch_after(self, step: int) -> int:
        """Returns the batch, within the data of the phase, that follows `step`."""
        return self.first_batch + step - self.first


def segments(phases: Sequence[Phase], rollbacks: Rollbacks, step: int) -> Iterator[Segment]:
    """Yields the segments of a run from `step` to its last step."""
    start = 0
    for index, phase in enumerate(phases):
        end = start + phase.num_steps
        while step < end:
            batch = step - start + rollbacks.left_out(index, step)
            stage, _, batches_left = phase.stage_of(batch)
            cuts = [to for to in rollbacks.targets(index) if step < to < end]
            last = min(end, step + batches_left, *cuts)
            yield Segment(index, phase, stage, step, last, end, batch)
            step = last
        start = end


class Session:
    """What a process keeps while it trains one run or several, one after the other.

    At the end of the `with` block, the ledger is closed and, unless an error has lost steps, its
    table printed; and the last reports are written.

    Args:
        folder: the workdir, or the parent folder of several runs, whose report.html compares them.
        clock: what this process is doing.
        watch: tells the other hosts if this one ends.
    """

    def __init__(self, folder: Path, clock: Clock, watch: HostWatch):
        self.clock = clock
        self.watch = watch
        self.ledger = Ledger(clock)
        self.report = ReportWriter(folder, clock)
        watch.at_end.append(self.close)

    def close(self, error: BaseException | None) -> None:
        """Ends ledger and report; `error` is why the process ends before its work is done."""
        self.ledger.close(error)
        self.report.close(error)

    def __enter__(self) -> "Session":
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self.close(error)


def _start(config: TrainingConfig) -> None:
    """Sets up jax as the config says, and checks the names of outputs."""
    use_deterministic_operations(config.deterministic)
    use_compilation_cache()
    if not config.workdir:
        return
    refuse_links_outside(config.workdir)
    path = os.path.abspath(config.workdir)
    if "\\udc" in ascii(path):
        raise ValueError(f"{path} is not UTF-8, as names of checkpoints must be: rename it.")
    if glob.escape(path) != path:
        raise ValueError(
            f"{path} has one of the characters *, ? and [, with which checkpoints could not be "
            "read again: choose another --workdir, or rename its folders."
        )
    check_paths(config)


def looked_at_run(config: TrainingConfig, folder: Path) -> Workdir:
    """Returns the workdir of a run that is planned by this process alone, for `--dry_run`.

    Nothing is connected, locked or written but copies, in `folder`, of a run in a bucket.
    """
    _start(config)
    check_devices()
    check_installed(config.track)
    return unopened(config.workdir, folder)


def say(plan: RunPlan) -> None:
    """Prints, on the first host, what a plan says before its run is opened."""
    for line in plan.lines:
        hosts.say(line)


def print_plans(plans: Iterable[RunPlan]) -> None:
    """Prints the plans of one or several runs."""
    refusals: dict[str, None] = {}
    for plan in plans:
        heading, *lines = described(plan)
        print(heading, *lines, sep="\n  ")
        refusals |= dict.fromkeys(plan.refusals)
    if refusals:
        raise ValueError("\n".join(refusals))
    print("Nothing was trained or written (--dry_run).")


@contextlib.contextmanager
def opened_run(
    config: TrainingConfig, clock: Clock, *, direct: bool
) -> Iterator[tuple[Workdir, Session]]:
    """Connects the hosts of a run, and yields (its workdir, what records it).

    `clock` counts the time of the run, and `direct` is whether checkpoints in gs:// buckets are
    read and written without local copies.
    """
    _start(config)
    if config.workdir:
        with naming_bucket_errors(config.workdir, "written"):  # the hosts meet in the workdir
            hosts.connect(config.distributed, place(config.workdir) / HOSTS)
    check_devices()
    with (
        host_watch.watching(clock, config.stall_seconds) as watch,
        opened(config.workdir, direct=direct, watch=watch) as workdir,
        Session(workdir.path, clock, watch) as session,
    ):
        hosts.on_first(lambda: check_installed(config.track))
        if (repository := config.push_to_hub) is not None:
            hosts.on_first_patiently(
                lambda: create_repository(repository, private=config.hub_private)
            )
        yield workdir, session


def train(
    make_job: Callable[[], Job], workdir: Workdir, session: Session, *, overwrite: bool = False
) -> dict[str, float]:
    """Trains a job in `workdir` to its end, and exports its model; returns the scores of the job.

    Args:
        make_job: makes the job; it is called again after each rollback.
        workdir: the workdir of the run.
        session: records the run.
        overwrite: whether a run of another config in the workdir is deleted.

    Raises:
        Interrupted: a stop signal arrived; a checkpoint of the last step was saved, unless a
            second signal came.
        NotFinite: in too many consecutive steps, the loss or gradient was not finite or a spike,
            and the run cannot be rolled back; or the state is not finite.
        ValueError: the workdir holds another run or is not shared by all hosts, or the hosts
            differ in code, config or data.
    """
    while True:
        run = EventStream(session.clock)
        try:
            hosts.on_first(lambda: put_in_order(workdir, overwrite=overwrite))
            job = hosts.on_all(make_job)
            claim(job, workdir)
            try:
                state = _train(job, workdir, session, run)
            except NotFinite as bad:
                steps = job.config.rollback_steps
                if not Rollbacks(workdir.path).roll_back(
                    workdir.checkpoints, job.phases, bad, steps
                ):
                    raise
            else:
                with session.clock.doing(activity.SAVING):
                    scores = job.write_results(state)
                run.emit(Exported())
                run.emit(Closed())
                return scores
        finally:
            workdir.release()
        hosts.on_first(workdir.publish)
        hosts.on_all(workdir.refresh)


def put_in_order(workdir: Workdir, *, overwrite: bool = False) -> None:
    """Locks the workdir, if it holds a run, and moves damaged checkpoints of the run away.

    If all of them are damaged and `overwrite` is True, the run is deleted.

    Raises:
        Locked: another process has locked the workdir.
        ValueError: all checkpoints of the run are damaged, and `overwrite` is False.
    """
    if not holds_run(workdir.path):
        return
    workdir.lock()
    try:
        move_damaged(workdir.checkpoints)
    except ValueError as error:
        if not overwrite:
            raise
        print(error, flush=True)
        workdir.delete_run()


def claim(job: Job, workdir: Workdir) -> None:
    """Locks the workdir, writes the config and the tokenizer to it, and names the run."""
    if jax.process_count() > 1:
        shared = {key: value for key, value in job.identity.items() if key not in PER_HOST}
        hosts.check_equal(
            {
                "the code or its versions": hosts.code_fingerprint(),
                "the config": json.dumps(shared, sort_keys=True),
                "the data": job.data_fingerprint,
            }
        )

    def claim_here() -> None:
        workdir.claim(
            job.identity,
            job.data_fingerprint,
            overwrite=job.config.overwrite,
            defaults=defaults_of(job.config),
            refused=job.plan.refused_changes,
        )
        job.tokenizer.save(workdir.tokenizer)
        job.claimed()
        workdir.publish()

    hosts.on_first(claim_here)
    hosts.on_all(workdir.check_shared)
    job.run_id = workdir.read()["run_id"]


def _train(job: Job, workdir: Workdir, session: Session, run: EventStream) -> TrainState:
    clock = session.clock
    clock.step = 0
    checkpointer = Checkpointer(
        workdir.checkpoints,
        clock=clock,
        watch=session.watch,
        keep=job.keep_checkpoints,
        metric=job.best_metric,
        higher_is_better=job.higher_is_better,
    )
    # Readers are told of the end when the last checkpoint is complete, since trackers may wait for
    # a server then.
    with run, checkpointer as checkpoints:
        with StopSignal(checkpoints, session.watch, clock) as stop:
            # 1. Where does the run stand?
            progress: Mapping[str, Any] = {}
            if checkpoints.latest_step is None:
                # The step is not read from the state, because that would wait for its computation.
                state = job.new_state()
            else:
                with clock.doing(activity.RESTORING):
                    state, progress = checkpoints.restore(job.program.state_shapes)
                    checkpoints.delete_superseded()
                    clock.step = int(state.step)
            rollbacks = Rollbacks(workdir.path)
            _open_readers(run, job, workdir, session, progress, rollbacks.count)
            save = Saver(job, checkpoints, run, stop, is_due=bool(progress.get("evaluation_due")))
            if save.evaluation_due:  # a signal had cut it off
                done = [s for s in segments(job.phases, rollbacks, 0) if s.first < run.step]
                save.finish_due_evaluation(state, done[-1])
            # 2. The phases, in segments of one batch size
            segment = None
            phase = -1
            for upcoming in segments(job.phases, rollbacks, run.step):
                if save.evaluation_due or run.should_stop() or stop(waits=True):
                    break  # what is saved belongs to the segment of the last step, not to this
                segment = upcoming
                if segment.phase_index != phase:
                    phase = segment.phase_index
                    save.compile_evaluation(state, segment)  # while everything is saved
                    evaluates = run.step == 0 and job.evaluates_at_start
                    if evaluates and save.evaluate(state, segment) is None:
                        break
                with run.doing(activity.STEPPING):
                    state = _train_segment(job, state, segment, run, save, stop)
            # 4. The end
            if stop.agreed and segment is not None:
                save.stopped(state, segment)
            # A signal after the last step stops what follows, such as other folds.
            is_stopped = stop(waits=True)
        is_done = run.step == job.num_steps or run.should_stop()
        if is_stopped or not is_done or save.evaluation_due:
            checkpoints.close()
            saved = "so that there was nothing to save"
            if run.step:
                saved = "which is saved"
            message = f"stopped after step {run.step} of {job.num_steps}, {saved}"
            raise Interrupted(message, on_all_hosts=True)
        checkpoints.wait()
        run.emit(Finished())
        return job.choose_state(checkpoints, state)


def _train_segment(
    job: Job,
    state: TrainState,
    segment: Segment,
    run: EventStream,
    save: "Saver",
    stop: StopSignal,
) -> TrainState:
    # 3. The steps
    train_step = job.program.seeded_step(segment.stage)
    peak_seconds = 0.0
    if flops := job.flops_per_step(segment.stage):
        peak_seconds = flops / peak_flops(job.config.peak_tflops)
    batches = job.batches(segment.phase_index, segment.first_batch)
    for batch in run.clock.waiting_for(batches):
        compiling = contextlib.nullcontext()
        if run.step == segment.first:
            compiling = run.clock.compiling("the training step")
        with compiling:
            state, metrics = train_step(state, batch)
        number = segment.batch_after(run.step)
        run.clock.did_step()
        run.emit(StepDone(run.step, metrics, state, segment.phase_index, number, peak_seconds))
        save.after(state, segment)
        if run.step == segment.last or stop() or run.should_stop():
            break
    return state


class Saver:
    """Evaluates and saves the states of a run, where they are due.

    Both are due at the last step of each phase, evaluations also every `job.eval_every` and saves
    every `job.save_every` steps. A checkpoint is also saved after each evaluation that is the best
    so far. After a stop signal, the state of the last step is saved without an evaluation; if one
    was due there, it is made when the run resumes.

    If both are due at the same step, the evaluation comes first, so that the checkpoint stores its
    metrics. If the evaluation is not compiled yet, the state is saved before it as well, so that a
    signal can end the process during the compilation without loss.

    `evaluation_due` is whether an evaluation was due at the last step but was not completed,
    because a stop signal came; `is_due` is the same of the step at which the run resumes.
    """

    def __init__(
        self,
        job: Job,
        checkpoints: Checkpointer,
        run: EventStream,
        stop: StopSignal,
        *,
        is_due: bool,
    ):
        self.job = job
        self._checkpoints = checkpoints
        self.run = run
        self._stop = stop
        self.evaluation_due = is_due
        self._compiled = -1  # the last phase whose evaluation is compiled

    def compile_evaluation(self, state: TrainState, segment: Segment) -> None:
        """Compiles the evaluation of a phase before its first step.

        The newest checkpoint is then usually of the last step, so that a stop signal can end
        the process at once, even during compilation, without loss.
        """
        self._checkpoints.wait()
        with self.run.clock.compiling("the evaluation"):
            if self.job.compile_evaluation(state, segment.phase):
                self._compiled = segment.phase_index

    def after(self, state: TrainState, segment: Segment) -> None:
        """Evaluates and saves the state after a step, where that is due."""
        step = self.run.step
        every = self.job.eval_every
        saves = step == segment.end or step % self.job.save_every == 0
        evaluates = step == segment.end or (every > 0 and step % every == 0)
        if not evaluates:
            if saves:
                self._save(state, segment)
        elif saves and self._compiled != segment.phase_index:
            self.evaluation_due = True
            self._save(state, segment)
            self._checkpoints.wait()
            self.finish_due_evaluation(state, segment)
        else:
            metrics = self.evaluate(state, segment)
            if metrics is None:
                return  # the run stops after this step, which `stopped` saves
            if saves or self._checkpoints.would_be_best(_of_phase(metrics, segment)):
                self._save(state, segment, metrics)

    def evaluate(self, state: TrainState, segment: Segment) -> dict[str, float] | None:
        """Evaluates `state`; returns the metrics, or None after a stop signal."""

        def check() -> None:  # all hosts must call it equally often
            self.run.clock.progressed()
            if self._stop():
                raise EvaluationStopped

        self.evaluation_due = True
        if self._stop():
            return None
        try:
            with self.run.doing(activity.EVALUATING):
                params = self.job.program.final_params(state)
                metrics = self.job.evaluate(params, segment.phase, check)
        except EvaluationStopped:
            return None
        self.evaluation_due = False
        if metrics:
            self.run.emit(Evaluated(self.run.step, metrics))
        return metrics

    def finish_due_evaluation(self, state: TrainState, segment: Segment) -> None:
        """Evaluates the state of the newest checkpoint, which was saved without an evaluation.

        Afterwards, the checkpoint is replaced by one that also stores the metrics.
        """
        metrics = self.evaluate(state, segment)
        if metrics is not None:
            self._compiled = segment.phase_index
            self._save(state, segment, metrics, replaces=True)

    def stopped(self, state: TrainState, segment: Segment) -> None:
        """Saves a checkpoint of `state` after a stop signal, unless it is saved already."""
        self._checkpoints.wait()
        if self._checkpoints.saved_step != self.run.step:
            self._save(state, segment)

    def _save(
        self,
        state: TrainState,
        segment: Segment,
        metrics: dict[str, float] | None = None,
        *,
        replaces: bool = False,
    ) -> None:
        step = self.run.step
        kept = _of_phase(metrics or {}, segment)
        with self.run.doing(activity.SAVING, "saving a checkpoint"):
            progress = {
                **self.job.progress(segment.phase_index, segment.batch_after(step)),
                **self.run.remembered(),
                "evaluation_due": self.evaluation_due,
                "run_id": self.job.run_id,
            }
            if replaces:
                self._checkpoints.replace(step, state, progress, kept)
            else:
                check_finite(state, f"The checkpoint of step {step}")
                self._checkpoints.save(step, state, progress, kept)
        self.run.emit(Saved(step))


def _of_phase(metrics: dict[str, float], segment: Segment) -> dict[str, float]:
    """Returns metrics as a checkpoint stores them; {} if there are none."""
    if not metrics:
        return {}
    return {**metrics, "phase": segment.phase_index}


def _open_readers(
    run: EventStream,
    job: Job,
    workdir: Workdir,
    session: Session,
    progress: Mapping[str, Any],
    rollbacks: int,
) -> None:
    """Opens the readers of a run that starts, or goes on from a checkpoint with `progress`.

    Each is told of an event after those before it: skipped updates stand in the metric files before
    the log line of their step, and everything is written when the report looks at it.
    """
    step = run.step
    config = job.config
    is_due = bool(progress.get("evaluation_due"))
    run.add(BadSteps, run.emit, job.rows_of_batch, config, progress)
    job.add_readers(run, progress)
    is_done = not is_due and (step == job.num_steps or run.should_stop())
    # A finished run, with its model and scores, writes no report and no ledger line.
    is_finished = is_done and hosts.is_first() and has_finished(workdir.path)
    if is_finished:
        hosts.say(
            f"The run in {workdir.address} is finished (step {step:,} of {job.num_steps:,}): "
            "nothing is left to train. To train again, choose another --workdir."
        )
    else:
        hosts.say(first_line(job.plan, step))
    logger = MetricLogger(
        run.emit,
        run.clock,
        every=config.log_every,
        num_steps=job.num_steps,
        pending=progress.get("pending"),
        loss_weights=job.program.objective.loss_weights,
    )
    run.add(
        MetricWriter,
        workdir.path,
        step,
        # Without a checkpoint, an evaluation before the first step is repeated.
        evaluation_due=is_due or step == 0,
        publish=workdir.publish_if_possible,
    )
    run.add(
        Terminal,
        job.name,
        clock=run.clock,
        num_steps=job.num_steps,
        last_evaluation=workdir.last_evaluation(),
        preview=logger.means_so_far,
    )
    run.readers.append(logger)
    if hosts.is_first():
        run.readers += open_trackers(config, workdir.path, rollbacks)
        if not is_finished:
            run.readers = [session.ledger, *run.readers, session.report]
    facts = facts_of(job, step) | {"rollbacks": rollbacks}
    run.emit(Started(workdir.path, workdir.address, step, facts))


def facts_of(job: Job, step: int) -> dict[str, Any]:
    """Returns what the report says about this process, which trains from `step`."""
    return {
        "step": step,
        "num_steps": job.num_steps,
        "best_metric": job.best_metric,
        "higher_is_better": job.higher_is_better,
        **facts_of_program(job.config, job.program),
    }
