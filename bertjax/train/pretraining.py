"""Pretraining: trains an encoder on prepared data, evaluates it, and writes a model directory.

A run consists of phases, each with its own number of steps, row length and batch size. The prepared
data consists of rows of token ids, each with one sequence or, in packed data, several.
"""

import contextlib
import dataclasses
import hashlib
import itertools
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bertjax.base.addresses import place
from bertjax.base.files import is_remote
from bertjax.cloud.copies import local_copy
from bertjax.cloud.hub import create_repository, push_folder
from bertjax.cloud.mirror import upload
from bertjax.config import Phase, PretrainConfig, RtdConfig, model_at
from bertjax.config.model import BertConfig
from bertjax.data.batches.masking import unspaced_tokens
from bertjax.data.batches.pretraining_batches import Rows, train_batches
from bertjax.data.metadata import Metadata, row_sources
from bertjax.data.mixture import rows_of_sources
from bertjax.devices import hosts, sharding
from bertjax.devices.activity import Clock
from bertjax.record.events import EventStream
from bertjax.record.hub_pushes import HubPushes
from bertjax.tokenization import Tokenizer, load_tokenizer
from bertjax.train.bad_steps import check_finite
from bertjax.train.distillation import load_masked_lm_teacher, student_of_teacher
from bertjax.train.held_out_evaluation import HeldOutEvaluation, other_data
from bertjax.train.initial_model import architecture_of_run, initial_model, with_generator
from bertjax.train.optimizer import difference_before
from bertjax.train.program import PretrainingProgram, make_masking, row_format, with_head
from bertjax.train.run import Job, identity_of, never_stopped, opened_run, train
from bertjax.train.run_data import RunData
from bertjax.train.step import TrainState
from bertjax.train.workdir import Workdir
from bertjax.weights import LoadedModel, load_model, save_hf
from bertjax.weights.families import MissingHead, architecture, config_to_hf, with_pad_token
from bertjax.weights.fill import part_in_words, with_training_parts
from bertjax.weights.hf import model_card, training_facts

_SAMPLED_ROWS = 1_000


class PretrainingJob(Job):
    """A pretraining run: its data, initial parameters and evaluation.

    Args:
        config: the config of the run.
        workdir: the workdir of the run; None: the config's workdir.

    Raises:
        ValueError: the config cannot be used with the prepared data, the model of --init, the
            teacher or the devices.
    """

    name = "pretraining"
    higher_is_better = False

    def __init__(self, config: PretrainConfig, workdir: Workdir | None = None):
        if not config.data or not config.workdir or not config.phases:
            raise ValueError(
                f"The config lacks data, workdir or phases (data={config.data!r}, "
                f"workdir={config.workdir!r}, {len(config.phases)} phases): give --config, --data "
                "and --workdir."
            )
        workdir = workdir or Workdir(Path(config.workdir))
        self._data = RunData(config.data, config.data_cache)
        self.metadata = self._data.metadata
        config = dataclasses.replace(config, data=self._data.directory)
        tokenizer = load_tokenizer(config.data)
        # The model will read rows of this length, so that programs must not truncate to fewer.
        longest = max(phase.max_length for phase in config.phases)
        tokenizer.model_max_length = max(tokenizer.model_max_length, longest)
        resumes = workdir.newest_step > 0
        config = with_head(config, self.metadata.has_sentence_pairs)
        # A run that resumes from a checkpoint does not need the model that it started from.
        self.initial: LoadedModel | None = None
        model, rtd = config.model, config.rtd
        if config.init is not None and resumes:
            saved = workdir.read()["config"]
            model = BertConfig.from_dict(saved["model"])
            if config.generator_init is not None:
                sizes = {name: saved["rtd"][name] for name in RtdConfig.SIZES}
                rtd = dataclasses.replace(config.generator, **sizes)
        elif config.init is not None:
            with self._explained_head():
                self.initial = initial_model(config, tokenizer)
            if config.generator_init is not None:
                self.initial, rtd = with_generator(self.initial, config, tokenizer)
            model = architecture_of_run(config, self.initial.config)
        model = with_pad_token(model, tokenizer.pad_token_id)
        self.config = config = dataclasses.replace(config, model=model, rtd=rtd)
        config_to_hf(model)  # a model that cannot be exported is refused before the training
        for index in range(len(config.phases)):
            config.check_rope(index)
        with self._explained_head():
            architecture(model, str(config.head))
        self._check_data(tokenizer)
        others = other_data(config, self.metadata)
        # Waits for the rows of the next phase; rows of later phases may come later.
        ends = itertools.accumulate(phase.num_steps for phase in config.phases)
        phases = zip(config.phases, ends, strict=True)
        lengths = [phase.max_length for phase, end in phases if end > workdir.newest_step]
        for length in lengths[:1]:
            self._data.require(length)
        self._data.require_in_background(lengths[1:])
        teacher = load_masked_lm_teacher(config, tokenizer)
        mesh = sharding.make_mesh(config.mesh)
        program = PretrainingProgram(config, mesh, teacher)
        super().__init__(config, program, config.phases, tokenizer)
        self.workdir, identity = workdir, identity_of(config, teacher)
        weights = {"teacher_weights": identity.pop("teacher_weights", None)}
        self.identity = identity | {"distillation": teacher and identity["distillation"] | weights}
        self.data_fingerprint = hashlib.sha256(self.metadata.to_json().encode()).hexdigest()
        self.eval_every, self.save_every = config.eval_every, config.save_every
        self.evaluates_at_start = config.eval_at_start
        self.program: PretrainingProgram = program
        self.best_metric = f"eval/{program.objective.best_metric}"
        self.keep_checkpoints = config.keep_checkpoints
        if config.student_layers and not resumes:
            self.initial = student_of_teacher(config, program.model)
        self._evaluation = HeldOutEvaluation(config, program, tokenizer, self._data, others)
        masking = make_masking(config, config.phases[0], tokenizer)
        if masking.segment is not None:
            self.identity["word_segmenter"] = "icu"
        if masking.word_starts is not None and lengths:
            self._say_unspaced_share(lengths[0], masking.segment is not None)
        for line in epochs_of_sources(self.metadata, config.phases):
            hosts.say(line)

    @contextlib.contextmanager
    def _explained_head(self) -> Iterator[None]:
        """A context that replaces `MissingHead` if transformers lacks the sentence-pair head."""
        try:
            yield
        except MissingHead as error:
            if error.head != "pretraining":
                raise
            raise ValueError(
                f"{error.family} has no head for sentence pairs in transformers, but the run needs "
                "this head (the data was prepared with --objective "
                f"{self.metadata.objective}). Give --head masked_lm, "
                "which trains only masked LM on the same data and does not use the labels of "
                "sentence pairs, or prepare the data with --objective mlm."
            ) from error

    def _say_unspaced_share(self, length: int, by_icu: bool) -> None:
        """Says how many tokens, in a sample of the train rows, are in scripts without spaces."""
        sources = row_sources(self.config.data, "train", length)
        rows = Rows([path for source in sources for path in source.paths])
        sample = range(0, len(rows), len(rows) // _SAMPLED_ROWS + 1)
        ids = np.concatenate([rows[index].input_ids for index in sample])
        if share := unspaced_tokens(self.tokenizer).tokens[ids].mean():
            how = "tokens are masked one by one (pip install 'bertjax[icu]' finds the words)"
            if by_icu:
                how = "words are those of ICU"
            hosts.say(f"{100 * share:.1f} % of the tokens are in scripts without spaces: {how}")

    def _check_data(self, tokenizer: Tokenizer) -> None:
        model = self.config.model
        if tokenizer.fingerprint != self.metadata.tokenizer_fingerprint:
            raise ValueError(
                f"The tokenizer in {self.config.data} is not the one that the rows were made with: "
                "restore the original tokenizer, or prepare the data again."
            )
        size, rows = tokenizer.vocab_size, model.vocab_size
        advice = f"--model.vocab_size {-(-size // 64) * 64}"  # as that of an extended model
        if size > rows:
            raise ValueError(
                f"The data was prepared with {size} tokens, but the model has vocab_size={rows}: "
                f"use {advice}."
            )
        if rows > 2 * size and self.initial is None:
            hosts.say(
                f"warning: the tokenizer has {size:,} entries: {rows - size:,} more rows would "
                f"only make the run slower; give {advice}"
            )
        lengths = sorted({phase.max_length for phase in self.config.phases})
        if not {*lengths} <= {*self.metadata.max_lengths}:
            raise ValueError(
                f"{self.config.data} holds rows of {self.metadata.max_lengths} tokens, but the "
                f"config has max_length={', '.join(map(str, lengths))}: prepare the data in a new "
                "--output with these."
            )

    def initial_params(self) -> Any:
        """Returns the parameters of --init or those copied from the teacher; None: random ones.

        The first call drops them to free memory; later calls return None.
        """
        initial, self.initial = self.initial, None
        if initial is None:
            return None
        source = self.config.init or (self.config.distillation and self.config.distillation.teacher)
        lacking = [x for x in self.program.model.training_parts if x not in initial.params]
        for part in (*initial.absent, *lacking):
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
            every, write = self.config.push_every, self._write_model_of
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

    def refused_changes(self, changed: list[str], saved: dict[str, Any], step: int) -> list[str]:
        """The phases may differ if rows and learning rates of all finished steps stay the same."""
        others = [change for change in changed if not change.startswith("phases.")]
        if len(others) == len(changed):
            return changed
        try:
            before = tuple(Phase(**phase) for phase in saved["phases"])
        except (TypeError, ValueError):  # written by a version with other fields
            return changed
        reason = difference_before(self.config.optimizer, before, self.config.phases, step)
        return others if reason is None else [*changed, reason]

    def evaluate(
        self, params: Any, phase: Phase, check: Callable[[], None] = never_stopped
    ) -> dict[str, float]:
        """Returns {"eval/...": value}, the mean losses and metrics over held-out rows.

        "eval/unigram_entropy" is the entropy, in nats, of the token frequencies in these rows: the
        lowest loss that a model without context could have. The rows have the length of the phase;
        {}: the data has none. In a mixture, the means are over rows drawn by the weights, and
        "eval/..._loss_NAME" are the losses of each source, and of the other data of
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
        attended = self.metadata.attended(phase.max_length) if packed else None
        return self.program.flops_per_row(phase, attended)

    def flops_per_step(self, phase: Phase) -> float:
        return self.flops_per_row(phase) * phase.batch_size


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
        train(lambda: PretrainingJob(config, workdir), workdir, session, overwrite=config.overwrite)
    return place(workdir.address) / workdir.model.name


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
    run, step = Workdir(Path(local_copy(workdir))), int(loaded.source.config["step"])
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

    Raises:
        NotFinite: a parameter is NaN or infinite.
    """
    check_finite(params, f"The model of step {step}")
    facts = training_facts(workdir.read()["config"], step, workdir.last_evaluation())
    card = model_card(workdir.path.name, head, model, tokenizer.do_lower_case, facts)
    save_hf(folder, params, model, tokenizer, head=head, card=card)
    name = folder.relative_to(workdir.path)
    print(f"model of step {step:,} written to {workdir.address}/{name}")


def epochs_of_sources(metadata: Metadata, phases: Sequence[Phase]) -> list[str]:
    """Returns lines that say how often each phase reads each source; []: there is no mixture."""
    if metadata.sources is None:
        return []
    lines = []
    weights = np.array([source.weight for source in metadata.sources])
    for number, phase in enumerate(phases):
        parts = []
        shares, drawn = weights / weights.sum(), rows_of_sources(phase.num_rows, weights.tolist())
        for source, share, rows in zip(metadata.sources, shares, drawn, strict=True):
            epochs = rows / source.splits["train"].lengths[str(phase.max_length)].records
            parts.append(f"{source.name} {share:.2%}, {epochs:,.2f} epochs")
        lines.append(
            f"phase {number}: {phase.num_steps:,} steps of {phase.batch_size} rows of "
            f"{phase.max_length} tokens read {'; '.join(parts)}"
        )
    return lines
