"""Pretraining: trains an encoder on prepared data, evaluates it, and writes a model directory.

A run consists of phases, each with its own number of steps, row length and batch size. The prepared
data consists of rows of token ids, each with one sequence or, in packed data, several.
"""

import contextlib
import dataclasses
import functools
import hashlib
import itertools
import os
import re
import shutil
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from bertjax.base.addresses import place
from bertjax.base.files import is_remote, listed
from bertjax.base.workdir_files import PENDING
from bertjax.cloud.copies import local_copy
from bertjax.cloud.hub import create_repository, push_folder
from bertjax.cloud.mirror import upload
from bertjax.config import Phase, PretrainConfig, RtdConfig, differences, model_at
from bertjax.config.model import DROPOUT_FIELDS, BertConfig
from bertjax.data.batches.masking import Masking, unspaced_tokens
from bertjax.data.batches.pretraining_batches import HeldOutRows, RowFormat, Rows, train_batches
from bertjax.data.metadata import Metadata, RowSource, row_sources, unigram_entropy
from bertjax.data.mixture import rows_of_sources
from bertjax.devices import hosts, sharding
from bertjax.devices.activity import SAVING, Clock
from bertjax.record.metrics import add_sums, means
from bertjax.tokenization import Tokenizer, load_tokenizer
from bertjax.train.bad_steps import check_finite
from bertjax.train.distillation import load_masked_lm_teacher, student_of_teacher
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
from bertjax.weights.load import with_new_words, with_positions

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
                sizes = {name: saved["rtd"][name] for name in rtd.SIZES}
                rtd = dataclasses.replace(rtd, **sizes)
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
        program = PretrainingProgram(
            config, mesh, teacher and teacher.model, teacher and teacher.params
        )
        super().__init__(config, program, config.phases, tokenizer)
        self.workdir, identity = workdir, identity_of(config, teacher)
        weights = {"teacher_weights": identity.pop("teacher_weights", None)}
        self.identity = identity | {"distillation": teacher and identity["distillation"] | weights}
        self.data_fingerprint = hashlib.sha256(self.metadata.to_json().encode()).hexdigest()
        self.eval_every, self.save_every = config.eval_every, config.save_every
        self.evaluates_at_start, self.push_every = config.eval_at_start, config.push_every
        self.program: PretrainingProgram = program
        self.best_metric = f"eval/{program.objective.best_metric}"
        self.keep_checkpoints = config.keep_checkpoints
        if config.distillation.layers and not resumes:
            self.initial = student_of_teacher(config, program.model)
        self._evaluation = HeldOutEvaluation(config, program, tokenizer, self._data, others)
        self._pushes: HubPushes | None = None
        if config.push_to_hub is not None and hosts.is_first():
            self._pushes = HubPushes(workdir.path, config.push_to_hub)
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
            how = "words are those of ICU" if by_icu else how
            hosts.say(f"{100 * share:.1f} % of the tokens are in scripts without spaces: {how}")

    def _check_data(self, tokenizer: Tokenizer) -> None:
        model = self.config.model
        if tokenizer.fingerprint != self.metadata.tokenizer_fingerprint:
            raise ValueError(
                f"The tokenizer in {self.config.data} is not the one that the rows were made with: "
                "restore the original tokenizer, or prepare the data again."
            )
        multiple = -(-tokenizer.vocab_size // 64) * 64  # as that of an extended model
        if tokenizer.vocab_size > model.vocab_size:
            raise ValueError(
                f"The data was prepared with {tokenizer.vocab_size} tokens, but the model has "
                f"vocab_size={model.vocab_size}: use --model.vocab_size={multiple}."
            )
        idle = model.vocab_size - tokenizer.vocab_size
        if idle > tokenizer.vocab_size and self.initial is None:
            hosts.say(
                f"warning: the tokenizer has {tokenizer.vocab_size:,} entries: {idle:,} more rows "
                f"would only make the run slower; give --model.vocab_size {multiple}"
            )
        lengths = sorted({phase.max_length for phase in self.config.phases})
        if not {*lengths} <= {*self.metadata.max_lengths}:
            raise ValueError(
                f"{self.config.data} holds rows of {self.metadata.max_lengths} tokens, but the "
                f"config has max_length={', '.join(map(str, lengths))}: prepare the data in a new "
                f"--output with --max_length {' '.join(map(str, lengths))}."
            )

    def initial_params(self) -> Any:
        """Returns the parameters of --init or those copied from the teacher; None: random ones.

        The first call drops them to free memory; later calls return None.
        """
        initial, self.initial = self.initial, None
        if initial is None:
            return None
        source = self.config.init or self.config.distillation.teacher
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

    def push(self, step: int, state: TrainState) -> None:
        params = hosts.fetch(state.params, self.program.mesh)

        def write() -> None:
            assert self._pushes is not None
            self._write_model(self._pushes.folder_of(step), params, step)
            self._pushes.start()

        hosts.on_first(write)

    def write_model(self, state: TrainState) -> None:
        """Writes the model directory of the finished run, and pushes it if that is asked for."""
        params = hosts.fetch(state.params, self.program.mesh)
        model, repository = self.workdir.model, self.config.push_to_hub
        hosts.on_first(lambda: self._write_model(model, params, self.num_steps))

        def push() -> None:
            assert self._pushes is not None and repository is not None
            self._pushes.finish()
            push_folder(model, repository)

        if repository is not None:
            hosts.on_first_patiently(push)

    def _write_model(self, folder: Path, params: Any, step: int) -> None:
        phases = map(dataclasses.asdict, self.config.phases)
        is_new = not (self.config.init or self.config.distillation.layers)
        model = model_at(self.config.model, phases, step, is_new=is_new)
        params = jax.device_get(self.program.model.joined(params))
        parts = params, model, self.tokenizer, str(self.config.head)
        write_model(self.workdir, folder, *parts, step)
        if "generator" in params:
            generator = params["generator"], self.config.rtd.generator_of(model)
            folder /= "generator"
            write_model(self.workdir, folder, *generator, self.tokenizer, "masked_lm", step)

    def progress(self, index: int, next_batch: int) -> dict[str, Any]:
        """Returns {"phase": index, "row": first row, within the phase, of the next batch}."""
        _, row, _ = self.config.phases[index].stage_of(next_batch)
        return {"phase": index, "row": row}

    def refused_changes(self, changed: list[str], saved: dict[str, Any], step: int) -> list[str]:
        """The phases may differ if rows and learning rates of all finished steps stay the same."""
        refused = [change for change in changed if not change.startswith("phases.")]
        if len(refused) < len(changed):
            try:
                before = tuple(Phase(**phase) for phase in saved["phases"])
            except (TypeError, ValueError):  # written by a version with other fields
                return changed
            reason = difference_before(self.config.optimizer, before, self.config.phases, step)
            refused += [] if reason is None else [c for c in changed if c not in refused] + [reason]
        return refused

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

    def compile_evaluation(self, params: Any, phase: Phase) -> bool:
        self._evaluation.compile(params, phase)
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
        job, state = train(
            lambda: PretrainingJob(config, workdir), workdir, session, overwrite=config.overwrite
        )
        with clock.doing(SAVING):
            job.write_model(state)
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


def initial_model(config: PretrainConfig, tokenizer: Tokenizer) -> LoadedModel:
    """Loads the model `config.init` (not None) with the head of the run, and extends it.

    Raises:
        MissingHead: transformers lacks the head for the model's family.
        FileNotFoundError: there is no model.
        ValueError: the tokenizer is neither the model's nor an extension of it, or the model is
            damaged.
    """
    loaded = load_model(str(config.init), config.head)
    if config.head == "rtd" and "predictions" in loaded.unused and loaded.absent:
        raise ValueError(
            f"--init {config.init} is a generator: it has a masked LM head and none that detects "
            "replaced tokens. Give the discriminator."
        )
    return extended(loaded, config, tokenizer, "--init", str(config.init))


def with_generator(
    loaded: LoadedModel, config: PretrainConfig, tokenizer: Tokenizer
) -> tuple[LoadedModel, RtdConfig]:
    """Adds the parameters of the generator `config.generator_init` to a discriminator.

    Returns both, and `config.rtd` with the sizes of the generator. Raises the errors of
    `initial_model`, and ValueError if the generator is not one of this discriminator.
    """
    name, rtd = str(config.generator_init), config.rtd
    generator = extended(load_model(name, "masked_lm"), config, tokenizer, "--generator_init", name)
    if generator.absent:
        raise ValueError(
            f"--generator_init {name} has no {listed(generator.absent)}, so it is no masked LM: "
            "give the generator that was trained with the discriminator."
        )
    rtd = dataclasses.replace(rtd, **{x: getattr(generator.config, x) for x in rtd.SIZES})
    found, expected = map(dataclasses.asdict, (generator.config, rtd.generator_of(loaded.config)))
    if changes := differences(found, expected, (*DROPOUT_FIELDS, "initializer_range")):
        raise ValueError(
            f"--generator_init {name} is no generator of --init {config.init}: they differ in "
            f"{listed(changes)}. Give the generator that was trained with the discriminator."
        )
    params = loaded.params | {"generator": generator.params}
    model: Any = loaded.model
    model = model.with_generator(rtd)
    shared = model.joined(model.stored(params))["generator"] if rtd.sharing == "es" else None
    if shared and not jax.tree.all(jax.tree.map(np.array_equal, shared, generator.params)):
        raise ValueError(
            f"--generator_init {name} and --init {config.init} have other embeddings, which cannot "
            "be shared: add --rtd.sharing gdes or none."
        )
    return loaded._replace(params=params), rtd


def extended(
    loaded: LoadedModel, config: PretrainConfig, tokenizer: Tokenizer, flag: str, name: str
) -> LoadedModel:
    """Extends the model `name` of a flag by the words of the tokenizer and the positions of rows.

    Words that the tokenizer of the data has beyond the model's get embeddings, and so do positions
    for longer rows. What is extended is printed.

    Raises:
        ValueError: the tokenizer is neither the model's nor an extension of it.
    """
    old = loaded.tokenizer
    if old.fingerprint != tokenizer.fingerprint:
        if difference := tokenizer.difference_from(old):
            raise ValueError(
                f"The tokenizer of {flag} {name} is not the one that {config.data} was prepared "
                f"with, nor has that one only further entries ({difference}): prepare the data "
                f"with --tokenizer {name}, or with the --output of bertjax.train_tokenizer "
                f"--extend {name}."
            )
        loaded = with_new_words(loaded, tokenizer, config.seed)
        hosts.say(
            f"{tokenizer.vocab_size - old.vocab_size:,} new words start from the mean of the "
            "embeddings of their old pieces, or that of the unknown token if these were unknown; "
            f"vocab_size is {loaded.config.vocab_size:,}"
        )
    before, asked = loaded.config.max_position_embeddings, config.model.max_position_embeddings
    longest = max(phase.max_length for phase in config.phases) + loaded.config.position_offset
    rows = max(longest, asked if asked > BertConfig.max_position_embeddings else 0)
    trained = loaded.config.trained_positions
    trained = before if trained is None else trained + loaded.config.position_offset
    if rows > trained:
        before, rows = trained, max(rows, before)
        loaded = with_positions(loaded, rows, config.new_positions)
        how = "interpolated" if config.new_positions == "interpolate" else "tiled"
        if loaded.config.global_rope_theta:  # there is no embedding
            hosts.say(f"max_position_embeddings: {before:,} -> {rows:,}")
        else:
            hosts.say(f"position embeddings: {before:,} -> {rows:,} ({how})")
    return loaded


def architecture_of_run(config: PretrainConfig, model: BertConfig) -> BertConfig:
    """Returns the architecture of --init with the dropout of the run; prints differences."""
    new, old = dataclasses.asdict(model), dataclasses.asdict(config.model)
    if changes := differences(new, old, () if config.dropout is None else DROPOUT_FIELDS):
        hosts.say(f"--init {config.init} determines the architecture: {', '.join(changes)}")
    return model.with_dropout(config.dropout)


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


class HubPushes:
    """The models to be pushed to `repository`, OWNER/NAME on the Hub: a folder `step-N` of each.

    Models that an earlier process of the run could not push are pushed, too.
    """

    def __init__(self, workdir: Path, repository: str):
        self._folder, self._repository = workdir / PENDING, repository
        self._thread: threading.Thread | None = None

    def folder_of(self, step: int) -> Path:
        """Returns the folder to which the model of a step is to be written before `start`."""
        return self._folder / f"step-{step}"

    def start(self) -> None:
        """Starts to push all pending models in a thread, unless it does so already."""
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._push_all, daemon=True)
            self._thread.start()

    def finish(self) -> None:
        """Waits for pushes in progress, and tries those that have failed once more.

        Models that cannot be pushed now are named in a warning, and remain in the workdir.
        """
        if self._thread is not None:
            self._thread.join()
        self._push_all()

    def _push_all(self) -> None:
        # Others are folders that are still being written, or were when a process was killed.
        names = (path.name[5:] for path in self._folder.glob("step-*"))
        for folder in map(self.folder_of, sorted(int(name) for name in names if name.isdigit())):
            try:
                push_folder(folder, self._repository, branch=folder.name)
            except OSError as error:
                print(
                    f"warning: {folder.name} is not pushed ({error}). It is kept in {folder} and "
                    "tried again later.",
                    flush=True,
                )
                return
            shutil.rmtree(folder)


class HeldOutSources:
    """The held-out rows of the sources of a mixture, or of data that are no mixture.

    Each source contributes its share of at most `max_rows` rows, and at least one; means count it
    by its weight, however many rows it contributes. `rows` are the rows of each source.
    """

    def __init__(
        self,
        sources: Sequence[RowSource],
        masking: Masking,
        form: RowFormat,
        *,
        seed: int,
        max_rows: int,
    ):
        self._weights = [source.weight for source in sources]
        self._labels = source_labels([source.name for source in sources])
        counts = rows_of_sources(max_rows, self._weights)
        self.rows = [
            HeldOutRows(source.paths, masking, form, seed=seed, max_rows=max(count, 1))
            for source, count in zip(sources, counts, strict=True)
        ]

    def evaluate(
        self,
        eval_step: Callable[[Any, Any], Any],
        params: Any,
        batches: Callable[[HeldOutRows], Iterable[Any]],
    ) -> dict[str, float]:
        """Returns {metric: mean} over all sources, and {loss_LABEL: mean} of each of several.

        The result contains "unigram_entropy"; losses and the entropy are in nats.
        `eval_step(params, batch)` returns {metric: (weighted sum, sum of weights)}, and
        `batches(rows)` the batches of a source's rows on the devices.
        """
        sums = [evaluation_sums(eval_step, params, batches(rows)) for rows in self.rows]
        if len(sums) == 1:
            return means(sums[0]) | {"unigram_entropy": self.unigram_entropy}
        scaled = (
            {key: (value * share, weight * share) for key, (value, weight) in of_source.items()}
            for of_source, share in zip(sums, self._shares, strict=True)
        )
        result = means(add_sums(scaled)) | {"unigram_entropy": self.unigram_entropy}
        for label, of_source in zip(self._labels, sums, strict=True):
            losses = _only_losses(means(of_source))
            result |= {f"{key}_{label}": mean for key, mean in losses.items()}
        return result

    @property
    def _shares(self) -> list[float]:
        """The factors by which sums over the rows of each source are multiplied."""
        return [weight / len(rows) for weight, rows in zip(self._weights, self.rows, strict=True)]

    @functools.cached_property
    def unigram_entropy(self) -> float:
        """Entropy, in nats, of the token frequencies in the rows that are evaluated.

        A model that ignores the context cannot have a lower loss. [CLS] and [SEP] do not count.
        """
        counts: Any = self.rows[0].token_counts
        if len(self.rows) > 1:
            pairs = zip(self.rows, self._shares, strict=True)
            counts = sum(rows.token_counts * share for rows, share in pairs)
        return unigram_entropy(counts.tolist())


class HeldOutEvaluation:
    """Evaluates parameters on the held-out rows of prepared data, whose length a phase gives.

    The rows are read when a phase is evaluated for the first time. `others` are (label, data) that
    the run does not train on, of which only losses are reported.
    """

    def __init__(
        self,
        config: PretrainConfig,
        program: PretrainingProgram,
        tokenizer: Tokenizer,
        data: RunData,
        others: Sequence[tuple[str, RunData]],
    ):
        self._config, self._tokenizer, self._program = config, tokenizer, program
        self._data = [("", data), *others]
        self._steps = {  # phases may differ in the rotary base of their model
            phase.global_rope_theta: program.for_phase(phase).eval_step() for phase in config.phases
        }
        self._held_out: dict[Phase, list[HeldOutSources]] = {}

    def evaluate(self, params: Any, phase: Phase, check: Callable[[], None]) -> dict[str, float]:
        """Returns the values of `PretrainingJob.evaluate`, without "eval/"."""
        step = self._step(phase)
        metrics: dict[str, float] = {}
        for (label, _), sources in zip(self._data, self._sources(phase), strict=False):
            values = sources.evaluate(
                step, params, lambda rows: _checked(self.batches(rows, phase), check)
            )
            if label:
                values = {f"{key}_{label}": x for key, x in _only_losses(values).items()}
            metrics |= values
        return metrics

    def compile(self, params: Any, phase: Phase) -> None:
        """Compiles the evaluation step by evaluating one batch of held-out rows, if any."""
        for sources in self._sources(phase):
            for batch in itertools.islice(self.batches(sources.rows[0], phase), 1):
                jax.block_until_ready(self._step(phase)(params, batch))

    def _step(self, phase: Phase) -> Callable[[Any, Any], Any]:
        step = self._steps[phase.global_rope_theta]
        return lambda params, batch: step(params, batch, *self._program.constants)

    def batches(self, held_out: HeldOutRows, phase: Phase) -> Iterator[Any]:
        """Yields the batches of `held_out`, each of one microbatch of `phase`, on the devices."""
        count = phase.batch_size // phase.accumulation_steps
        host_rows = sharding.host_rows(self._program.rows, count)
        for batch in held_out.batches(count, host_rows):
            yield sharding.to_devices(batch, host_rows, self._program.rows, count)

    def _sources(self, phase: Phase) -> list[HeldOutSources]:
        """Returns the held-out rows of the data and of the other data; []: the data has none."""
        if not self._data[0][1].metadata.has_held_out(phase.max_length):
            return []
        if phase not in self._held_out:
            self._held_out[phase] = [self._open(data, phase) for _, data in self._data]
        return self._held_out[phase]

    def _open(self, data: RunData, phase: Phase) -> HeldOutSources:
        data.require(phase.max_length)
        return HeldOutSources(
            row_sources(data.directory, "eval", phase.max_length),
            *row_format(self._config, phase, self._tokenizer, data.metadata.max_sequences),
            seed=self._config.seed,
            max_rows=self._config.eval_rows,
        )


# The number of batches that the host prepares while the device computes earlier ones.
BATCHES_AHEAD = 2


def evaluation_sums(
    eval_step: Callable[[Any, Any], Any], params: Any, batches: Iterable[Any]
) -> dict[str, tuple[float, float]]:
    """Evaluates `params` on `batches`; returns {metric: (weighted sum, sum of weights)}.

    The sums are copied to the host once, at the end, so that the device never waits for the host.
    """
    sums: list[Any] = []
    for batch in batches:
        sums.append(eval_step(params, batch))
        if len(sums) > BATCHES_AHEAD:
            # Without this wait, the inputs of all batches could be in memory at once.
            jax.block_until_ready(sums[-1 - BATCHES_AHEAD])
    return add_sums(jax.device_get(sums))


MAX_LABEL = 40


def other_data(config: PretrainConfig, metadata: Metadata) -> list[tuple[str, RunData]]:
    """Opens the prepared data of `config.eval_data`; returns (label for metrics, data) of each.

    Raises:
        FileNotFoundError: a directory has no metadata.json, or lacks shards.
        ValueError: other data has another tokenizer than the run's (`metadata`), or either has no
            held-out rows of the length of a phase.
    """
    opened = [RunData(address, config.data_cache) for address in config.eval_data]
    names = [address.rstrip("/").rpartition("/")[2] for address in config.eval_data]
    own = [source.name for source in metadata.sources or ()]
    labels = source_labels([*own, *names])[len(own) :]
    for address, data in zip(config.eval_data, opened, strict=True):
        if data.metadata.tokenizer_fingerprint != metadata.tokenizer_fingerprint:
            raise ValueError(
                f"eval_data: {address} was prepared with another tokenizer "
                f"({data.metadata.vocab_size:,} entries) than {config.data} "
                f"({metadata.vocab_size:,} entries): prepare it with --tokenizer {config.data}."
            )
    addresses = (config.data, *config.eval_data) if opened else ()
    all_metadata = (metadata, *(data.metadata for data in opened))
    for address, held_out in zip(addresses, all_metadata, strict=False):
        for phase in config.phases:
            if not held_out.has_held_out(phase.max_length):
                raise ValueError(
                    f"eval_data={list(config.eval_data)}: {address} has no held-out rows of "
                    f"{phase.max_length} tokens: prepare it with --max_length {phase.max_length} "
                    "and a positive --eval_fraction, or leave out --eval_data."
                )
    return list(zip(labels, opened, strict=True))


def _only_losses(metrics: dict[str, float]) -> dict[str, float]:
    return {key: value for key, value in metrics.items() if key.endswith("loss")}


def source_labels(names: Sequence[str]) -> list[str]:
    """Returns a short label for metrics for each source: letters, digits, "-", "." and "_" only.

    Sources whose labels would be equal get their number, counted from 0, at the end.
    """
    labels = [
        re.sub(r"[^\w.-]+", "_", name.rstrip("/*")).strip("_.")[-MAX_LABEL:] for name in names
    ]
    return [
        label if label and labels.count(label) == 1 else f"{label}_{number}".lstrip("_")
        for number, label in enumerate(labels)
    ]


def epochs_of_sources(metadata: Metadata, phases: Sequence[Phase]) -> list[str]:
    """Returns lines that say how often each phase reads each source; []: there is no mixture."""
    if metadata.sources is None:
        return []
    lines, weights = [], [source.weight for source in metadata.sources]
    for number, phase in enumerate(phases):
        parts = []
        drawn = rows_of_sources(phase.num_rows, weights)
        for source, rows in zip(metadata.sources, drawn, strict=True):
            epochs = rows / source.splits["train"].lengths[str(phase.max_length)].records
            parts.append(f"{source.name} {source.weight / sum(weights):.2%}, {epochs:,.2f} epochs")
        lines.append(
            f"phase {number}: {phase.num_steps:,} steps of {phase.batch_size} rows of "
            f"{phase.max_length} tokens read {'; '.join(parts)}"
        )
    return lines


def _checked(batches: Iterable[Any], check: Callable[[], None]) -> Iterator[Any]:
    for batch in batches:
        check()
        yield batch
