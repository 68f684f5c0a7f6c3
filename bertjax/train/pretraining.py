"""Pretraining: trains an encoder on prepared data, evaluates it, and writes a model directory.

A run consists of phases, each with its own number of steps, row length and batch size. The prepared
data consists of rows of token ids, each with one sequence or, in packed data, several.
"""

import dataclasses
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from bertjax.base.addresses import place
from bertjax.base.files import is_remote
from bertjax.base.lock import scratch_folder
from bertjax.cloud.copies import local_copy
from bertjax.cloud.hub import create_repository, push_folder
from bertjax.cloud.mirror import upload
from bertjax.config import Phase, PretrainConfig, model_at
from bertjax.config.model import BertConfig
from bertjax.data.batches.pretraining_batches import train_batches
from bertjax.data.metadata import row_sources
from bertjax.devices import hosts, sharding
from bertjax.devices.activity import Clock
from bertjax.record.events import EventStream
from bertjax.record.hub_pushes import HubPushes
from bertjax.tokenization import Tokenizer
from bertjax.train.bad_steps import check_finite
from bertjax.train.facts import PretrainingFacts, gather_pretraining, lengths_after
from bertjax.train.held_out_evaluation import HeldOutEvaluation
from bertjax.train.program import PretrainingProgram, row_format
from bertjax.train.run import (
    Job,
    looked_at_run,
    never_stopped,
    opened_run,
    print_plans,
    say,
    train,
)
from bertjax.train.run_plan import PretrainingPlan, plan_pretraining, random_parts
from bertjax.train.step import TrainState
from bertjax.train.workdir import Workdir
from bertjax.weights import load_model, save_hf
from bertjax.weights.fill import part_in_words, with_training_parts
from bertjax.weights.hf import model_card, training_facts


class PretrainingJob(Job):
    """A pretraining run: its data, initial parameters and evaluation.

    Args:
        plan: what the run will do.
        facts: what it is planned from.
        workdir: the workdir of the run.
    """

    config: PretrainConfig
    program: PretrainingProgram
    name = "pretraining"
    higher_is_better = False

    def __init__(self, plan: PretrainingPlan, facts: PretrainingFacts, workdir: Workdir):
        super().__init__(plan, facts.tokenizer)
        self.workdir = workdir
        self.initial = facts.initial
        self.evaluates_at_start = plan.config.eval_at_start
        self.keep_checkpoints = plan.config.keep_checkpoints
        self._data = facts.data
        self.metadata = facts.data.metadata
        # The rows of later phases may come later.
        self._data.require_in_background(lengths_after(plan.config, plan.newest_step)[1:])
        self._evaluation = HeldOutEvaluation(
            plan.config, self.program, facts.tokenizer, facts.data, facts.others
        )

    def initial_params(self) -> Any:
        """Returns the parameters of --init or those copied from the teacher; None: random ones.

        The first call drops them to free memory; later calls return None.
        """
        initial = self.initial
        self.initial = None
        if initial is None:
            return None
        source = self.config.init or (self.config.distillation and self.config.distillation.teacher)
        for part in random_parts(initial, self.program.model):
            hosts.say(f"{source} has no {part_in_words(part)}: it is initialised at random")
        return with_training_parts(initial.params, self.program.model, self.config.seed)

    def batches(self, index: int, first_batch: int) -> Iterator[Any]:
        phase, first_row, _ = self.config.phases[index].stage_of(first_batch)
        self._data.require(phase.max_length)
        host_rows = sharding.host_rows(self.program.rows, phase.batch_size)
        batches = train_batches(
            row_sources(self.config.data, "train", phase.max_length),
            *row_format(self.config, phase, self.tokenizer, self.metadata.max_sequences),
            seed=self.config.seed,
            phase=index,
            batch_size=phase.batch_size,
            first_row=first_row,
            host_rows=host_rows,
            num_threads=self.config.reader_threads,
        )
        for batch in batches:
            yield sharding.to_devices(batch, host_rows, self.program.rows, phase.batch_size)

    def rows_of_batch(self, index: int, batch: int) -> tuple[int, int]:
        stage, row, _ = self.phases[index].stage_of(batch)
        return row, row + stage.batch_size - 1

    def add_readers(self, run: EventStream, progress: Mapping[str, Any]) -> None:
        if (repository := self.config.push_to_hub) is not None:
            every = self.config.push_every
            write = self._write_model_of
            run.add(HubPushes, self.workdir.path, repository, every, write, run.clock)

    def write_results(self, state: TrainState) -> dict[str, float]:
        self._write_model_of(state, self.num_steps, self.workdir.model)
        return {}

    def _write_model_of(self, state: TrainState, step: int, folder: Path) -> None:
        params = hosts.fetch(self.program.final_params(state), self.program.mesh)
        hosts.on_first(lambda: self._write_model(folder, params, step))

    def _write_model(self, folder: Path, params: Any, step: int) -> None:
        phases = [dataclasses.asdict(phase) for phase in self.config.phases]
        is_new = not (self.config.init or self.config.student_layers)
        model = model_at(self.config.model, phases, step, is_new=is_new)
        parts = params, model, self.tokenizer, str(self.config.head)
        write_model(self.workdir, folder, *parts, step)
        if "generator" in params:
            generator = params["generator"], self.config.generator.generator_of(model)
            folder /= "generator"
            write_model(self.workdir, folder, *generator, self.tokenizer, "masked_lm", step)

    def progress(self, index: int, next_batch: int) -> dict[str, Any]:
        """Returns {"phase": index, "row": first row, within the phase, of the next batch}."""
        _, row, _ = self.config.phases[index].stage_of(next_batch)
        return {"phase": index, "row": row}

    def evaluate(
        self, params: Any, phase: Phase, check: Callable[[], None] = never_stopped
    ) -> dict[str, float]:
        """Returns {"eval/...": value}, the mean losses and metrics over held-out rows.

        "eval/unigram_entropy" is the entropy, in nats, of the token frequencies in these rows: the
        lowest loss that a model without context could have. The rows have the length of the phase;
        {}: the data has none of this length. In a mixture, the means are over rows drawn by the
        weights, and "eval/..._loss_NAME" are the losses of each source, and of the other data of
        `config.eval_data`.
        """
        metrics = self._evaluation.evaluate(params, phase, check)
        return {f"eval/{key}": value for key, value in metrics.items()}

    def compile_evaluation(self, state: TrainState, phase: Phase) -> bool:
        self._evaluation.compile(self.program.final_params(state), phase)
        return True

    def flops_per_row(self, phase: Phase) -> float:
        """Returns the FLOP (floating-point operations) per row of an update.

        In rows of several sequences, attention is counted only within each sequence.
        """
        packed = self.metadata.max_sequences > 1
        attended = None
        if packed:
            attended = self.metadata.attended(phase.max_length)
        return self.program.flops_per_row(phase, attended)

    def flops_per_step(self, phase: Phase) -> float:
        return self.flops_per_row(phase) * phase.batch_size


def make_job(config: PretrainConfig, workdir: Workdir | None = None) -> PretrainingJob:
    """Reads the data and the models of a run, plans it, says what it will do, and makes its job.

    Args:
        config: the config of the run.
        workdir: the workdir of the run; None: the config's workdir.
    """
    workdir = workdir or Workdir(Path(config.workdir))
    facts = gather_pretraining(config, workdir)
    plan = plan_pretraining(config, facts)
    say(plan)
    return PretrainingJob(plan, facts, workdir)


def pretrain(config: PretrainConfig, clock: Clock | None = None) -> Path:
    """Trains all phases from the newest checkpoint, or from the start, and writes the model.

    `clock` counts the time of the run; None: from now.

    Returns:
        The path of the model directory.

    Raises:
        Interrupted: a stop signal (such as SIGTERM) came; the same call resumes the run.
        NotFinite: in `config.max_bad_steps` steps in a row, the loss or the gradient was not finite
            or, with `config.skip_spikes`, far above its last values; or a parameter is not finite.
        ValueError: the config cannot be used with the data, the models or the devices, or the
            workdir belongs to another run.
    """
    clock = clock or Clock()
    with opened_run(config, clock, direct=True) as (workdir, session):
        train(lambda: make_job(config, workdir), workdir, session, overwrite=config.overwrite)
    return place(workdir.address) / workdir.model.name


def dry_run(config: PretrainConfig) -> None:
    """Prints the plan of a run, without a step and without a file; errors as in `pretrain`."""
    with scratch_folder() as folder:
        facts = gather_pretraining(config, looked_at_run(config, folder))
        plan = plan_pretraining(config, facts)
        say(plan)
        print_plans([plan])


def export(
    workdir: str | Path, push_to_hub: str | None = None, *, hub_private: bool = False
) -> Path:
    """Exports the model of a run's newest checkpoint, even while the run is in progress.

    Args:
        workdir: the workdir of the run.
        push_to_hub: a repository OWNER/NAME on the Hub, to whose branch step-N the model of step N
            is uploaded; None: it is not uploaded.
        hub_private: whether the repository is private if it must be created.

    Returns:
        The path of the model directory.

    Raises:
        FileNotFoundError: there is no run in `workdir`, or the run has no checkpoint yet.
    """
    loaded = load_model(workdir, None)
    if loaded.source.kind != "run":
        raise FileNotFoundError(f"There is no run in {workdir}: give the --workdir of a run.")
    # The run in a bucket may be in progress, so that only a copy of its files is opened here.
    run = Workdir(Path(local_copy(workdir)))
    step = int(loaded.source.config["step"])
    parts = (loaded.params, loaded.config, loaded.tokenizer, loaded.head)
    write_model(run, run.model, *parts, step)
    if push_to_hub is not None:
        create_repository(push_to_hub, private=hub_private)
        push_folder(run.model, push_to_hub, branch=f"step-{step}")
    if not is_remote(workdir):
        return run.model
    target = place(workdir) / run.model.name
    upload(run.model, os.fspath(target))
    print(f"the model was uploaded to {target}")
    return target


def write_model(
    workdir: Workdir,
    folder: Path,
    params: Any,
    model: BertConfig,
    tokenizer: Tokenizer,
    head: str,
    step: int,
) -> None:
    """Writes a model directory to `folder`, a folder in the workdir, with a model card.

    The parameters are numpy arrays, saved after `step` steps.
    """
    check_finite(params, f"The model of step {step}")
    facts = training_facts(workdir.read()["config"], step, workdir.last_evaluation())
    card = model_card(workdir.path.name, head, model, tokenizer.do_lower_case, facts)
    save_hf(folder, params, model, tokenizer, head=head, card=card)
    name = folder.relative_to(workdir.path)
    print(f"model of step {step:,} written to {workdir.address}/{name}")
