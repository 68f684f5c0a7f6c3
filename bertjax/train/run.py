"""The story of a run, from top to bottom: where it stands, its phases, its steps, its end.

`train` trains a `Job`, a pretraining or a fine-tuning, from the newest checkpoint (or from the
start) to the last step, early stopping or a stop signal. Everything that a run does in time stands
here in its order. Evaluations and checkpoints are the business of `Saver`, and updates that were
not finite the business of `BadSteps`.
"""

import collections
import contextlib
import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

import jax

from bertjax.base.signals import Interrupted
from bertjax.config import defaults_of
from bertjax.devices import activity, hosts
from bertjax.devices.flops import peak_flops
from bertjax.devices.stop import StopSignal
from bertjax.record import journal
from bertjax.record.logger import STEPS_AHEAD, MetricLogger
from bertjax.record.metrics import MetricWriter
from bertjax.record.session import Session
from bertjax.record.trackers import Listener, open_trackers
from bertjax.train.bad_steps import BadSteps, NotFinite, Rollbacks
from bertjax.train.checkpoint import Checkpointer
from bertjax.train.job import Job, segments
from bertjax.train.save import Saver
from bertjax.train.step import TrainState
from bertjax.train.workdir import Workdir

# Names of config fields whose values may differ between the hosts of a run.
PER_HOST = ("data", "data_cache", "eval_data", "workdir", "distributed", "reader_threads")
NOTHING = contextlib.nullcontext()


SomeJob = TypeVar("SomeJob", bound=Job)


def train(
    make_job: Callable[[], SomeJob], workdir: Workdir, session: Session, *, overwrite: bool = False
) -> tuple[SomeJob, TrainState]:
    """Trains a job in `workdir` to its end; returns the job and the state to export.

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
        hosts.on_first(lambda: workdir.set_damaged_aside(overwrite=overwrite))
        job = hosts.on_all(make_job)
        try:
            claim(job, workdir)
            return job, _train(job, workdir, session)
        except NotFinite as bad:
            if not _roll_back(job, workdir, bad):
                raise
        finally:
            workdir.release()
        hosts.on_first(workdir.publish)
        hosts.on_all(workdir.refresh)


def claim(job: Job, workdir: Workdir) -> None:
    """Locks the workdir, and writes the config and the tokenizer to it."""
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
            overwrite=job.settings.overwrite,
            defaults=defaults_of(job.settings),
            allow=job.refused_changes,
        )
        job.tokenizer.save(workdir.tokenizer)
        job.claimed()
        workdir.publish()

    hosts.on_first(claim_here)
    hosts.on_all(workdir.check_shared)


def _train(job: Job, workdir: Workdir, session: Session) -> TrainState:
    checkpointer = Checkpointer(
        workdir.checkpoints,
        clock=session.clock,
        watch=session.watch,
        keep=job.keep_checkpoints,
        metric=job.best_metric,
        higher_is_better=job.higher_is_better,
    )
    # Trackers may wait for a server, so that the last checkpoint is finished before.
    with contextlib.ExitStack() as trackers, checkpointer as checkpoints:
        with StopSignal(checkpoints, session.watch) as stop:
            state, stop.step, progress = _resume_or_start(job, checkpoints, session)
            rollbacks = Rollbacks(workdir.path)
            recording = _recording(
                job, workdir, session, stop.step, progress, rollbacks.count, trackers
            )
            with recording as record:
                state, step, is_done = _loop(
                    job, state, stop, checkpoints, record, rollbacks, session, progress
                )
            # A signal after the last step stops what follows, such as other folds.
            is_done = not stop.agree() and is_done
        if not is_done:
            checkpoints.close()
            saved = "which is saved" if step else "so that there was nothing to save"
            message = f"stopped after step {step} of {job.num_steps}, {saved}"
            raise Interrupted(message, on_all_hosts=True)
        return job.choose_state(checkpoints, state)


def _resume_or_start(
    job: Job, checkpoints: Checkpointer, session: Session
) -> tuple[TrainState, int, Mapping[str, Any]]:
    """Returns (state, its step, progress) of the newest checkpoint, or of a new run."""
    progress: Mapping[str, Any] = {}
    if checkpoints.latest_step is None:
        # The step is not read from the state, because that would wait for its computation.
        state, step = job.new_state(), 0
    else:
        with session.clock.doing(activity.RESTORING):
            state, progress = checkpoints.restore(job.program.state_shapes)
            checkpoints.delete_superseded()
            step = int(state.step)
    job.resume(progress)
    return state, step, progress


def _loop(
    job: Job,
    state: TrainState,
    stop: StopSignal,
    checkpoints: Checkpointer,
    record: MetricLogger,
    rollbacks: Rollbacks,
    session: Session,
    progress: Mapping[str, Any],
) -> tuple[TrainState, int, bool]:
    """Trains from `stop.step` on; returns (last state, its step, whether nothing cut it short)."""
    step, phase, clock = stop.step, -1, session.clock
    bad = BadSteps(record.report, job.rows_of_batch, job.settings, progress)
    save = Saver(job, checkpoints, record, bad, stop, session, progress)
    if save.evaluation_due:  # a signal had cut it off
        (done,) = (s for s in segments(job.phases, rollbacks, 0) if s.first < step <= s.last)
        save.finish_due_evaluation(step, state, done)
    in_flight: collections.deque[Any] = collections.deque()
    segment = None
    for segment in segments(job.phases, rollbacks, step):
        if save.evaluation_due or job.stops_early() or stop.agree():
            break
        if segment.phase_index != phase:
            phase = segment.phase_index
            save.compile_evaluation(state, segment)  # while everything is saved
            if step == 0 and job.evaluates_at_start and save.evaluate(0, state, segment) is None:
                break
        flops = job.flops_per_step(segment.stage)
        record.start_phase(flops, peak_flops(job.settings.peak_tflops) if flops else 1.0)
        train_step = job.program.seeded_step(segment.stage)
        with clock.doing(activity.STEPPING):
            for batch in clock.waiting_for(job.batches(segment.phase_index, segment.first_batch)):
                is_first = step == segment.first
                with clock.compiling("the training step") if is_first else NOTHING:
                    state, metrics = train_step(state, batch)
                stop.step = step = step + 1
                clock.progressed(step)
                in_flight.append(metrics)
                if len(in_flight) > STEPS_AHEAD:  # so far, the host may be ahead of the device
                    jax.block_until_ready(in_flight.popleft())
                bad.see(step, metrics, segment.phase_index, segment.batch_after(step - 1))
                record(step, metrics)
                session.did_step(step)
                save.after(step, state, segment)
                if job.push_every and step % job.push_every == 0:
                    with clock.doing(activity.SAVING):
                        job.push(step, state)
                if step == segment.last or stop() or job.stops_early():
                    break
    if stop.agreed and segment is not None:
        save.stopped(step, state, segment)
    is_done = step == job.num_steps or job.stops_early()
    return state, step, is_done and not save.evaluation_due


def _roll_back(job: Job, workdir: Workdir, bad: NotFinite) -> bool:
    """Returns the run to a checkpoint before bad steps, if the config says so and it helps."""
    steps = job.settings.rollback_steps
    if not steps or bad.last_step is None:
        return False
    hosts.say(f"warning: {bad}")
    target = Rollbacks(workdir.path).roll_back(
        workdir.checkpoints, job.phases, bad.first_step, bad.last_step, steps
    )
    return target is not None


@contextlib.contextmanager
def _recording(
    job: Job,
    workdir: Workdir,
    session: Session,
    step: int,
    progress: Mapping[str, Any],
    rollbacks: int,
    trackers: contextlib.ExitStack,
) -> Iterator[MetricLogger]:
    """Opens the files, terminal, trackers, report and ledger of a run that goes on from `step`."""
    # A finished run writes no report and no ledger line.
    is_done = hosts.is_first() and _is_done(job, workdir, step, progress)
    if not is_done:
        session.begin_run(workdir.path, step)
    hosts.say(_said_when_done(job, workdir, step) if is_done else first_line(job, step))
    writer, listeners, last = None, list[Listener](), None
    if hosts.is_first():
        # Without a checkpoint, an evaluation before the first step is repeated.
        due = step == 0 or bool(progress.get("evaluation_due"))
        writer = MetricWriter(
            workdir.path, step, evaluation_due=due, publish=workdir.publish_if_possible
        )
        for tracker in open_trackers(job.settings, workdir.path, rollbacks):
            listeners.append(tracker)
            trackers.push(lambda kind, *_, tracker=tracker: tracker.close(complete=kind is None))
        if not is_done:
            facts = facts_of(job, step) | {"rollbacks": rollbacks}
            listeners.append(session.report(workdir.path, workdir.address, facts))
        logged = workdir.last_evaluation() or {}
        last = {key[5:]: value for key, value in logged.items() if key.startswith("eval/")}
    record = MetricLogger(
        writer,
        clock=session.clock,
        trackers=listeners,
        every=job.settings.log_every,
        num_steps=job.num_steps,
        step=step,
        pending=progress.get("pending"),
        name=job.name,
        loss_weights=job.program.objective.loss_weights,
        last_evaluation=last,
    )
    try:
        yield record
    finally:
        record.close()


def _is_done(job: Job, workdir: Workdir, step: int, progress: Mapping[str, Any]) -> bool:
    """Returns whether an earlier process has finished the run, with its model and scores."""
    if progress.get("evaluation_due") or (step < job.num_steps and not job.stops_early()):
        return False
    return journal.has_finished(workdir.path)


def _said_when_done(job: Job, workdir: Workdir, step: int) -> str:
    return (
        f"The run in {workdir.address} is finished (step {step:,} of {job.num_steps:,}): nothing "
        "is left to train. To train again, choose another --workdir or delete that folder."
    )


def facts_of(job: Job, step: int) -> dict[str, Any]:
    """Returns what the report says about this process, which trains from `step`."""
    attention, requested = job.program.attention, job.settings.attention
    ignored = requested not in ("auto", attention.kernel)
    warning = f"; warning: {requested} was requested" if ignored else ""
    sizes = job.program.mesh.shape.items()
    return {
        "step": step,
        "num_steps": job.num_steps,
        "best_metric": job.best_metric,
        "higher_is_better": job.higher_is_better,
        "parameters": sum(x.size for x in jax.tree.leaves(job.program.state_shapes.params)),
        "dtype": job.settings.dtype,
        "mesh": " x ".join(f"{axis}={size}" for axis, size in sizes),
        "attention": f"{attention.kernel} ({attention.reason}{warning})",
    }


def first_line(job: Job, step: int) -> str:
    """Returns the line about model, devices and steps with which the run begins at `step`."""
    facts = facts_of(job, step)
    where = device_text(jax.devices()[0].device_kind, jax.device_count(), jax.process_count())
    if jax.device_count() > 1:
        where += f" ({facts['mesh']})"
    # The kernel of small runs without a choice is of no interest.
    kernel, requested = job.program.attention.kernel, job.settings.attention
    if jax.device_count() > 1 or kernel != "xla" or requested != "auto":
        where += f", attention kernel {facts['attention']}"
    if step == job.num_steps:
        steps = f"all {job.num_steps:,} steps are done already"
    else:
        plural = "s" if job.num_steps > 1 else ""
        steps = f"{job.num_steps:,} step{plural}"
        steps += f", resuming at step {step}" if step else ""
    return f"{facts['parameters']:,} parameters, {facts['dtype']}, on {where}; {steps}"


def device_text(kind: str, count: int, processes: int) -> str:
    """Returns the devices of a run in words: "1 CPU", "8 x TPU v4 in 2 processes"."""
    name = "CPU" if kind.lower() == "cpu" else kind
    text = f"1 {name}" if count == 1 else f"{count} x {name}"
    return text + (f" in {processes} processes" if processes > 1 else "")
