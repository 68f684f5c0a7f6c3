"""The config of a pretraining run: `bertjax.pretrain`."""

import dataclasses
import itertools
import sys
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, ClassVar, Literal

from bertjax.base.checked import AtLeast0, Checked, Count, NonNegative, Positive
from bertjax.config.model import BertConfig, Size
from bertjax.config.training import TrainingConfig


@dataclasses.dataclass(frozen=True, kw_only=True)
class DistillationConfig(Checked):
    """Config of distillation during pretraining (Sanh et al. 2019): the teacher, and the losses.

    Raises:
        ValueError: a value is out of its range, or the losses make no use of the teacher.
    """

    teacher: str
    """Teacher with an MLM head: a model directory, the workdir of a run, a TF1 checkpoint or a hub
    name."""
    layers: tuple[int, ...] = ()
    """Layers (from 0) of the teacher that initialise the student, one per student layer, with
    embeddings and heads; empty: the student starts from --init or from random weights."""
    temperature: Positive = 2.0
    """Temperature by which the logits of teacher and student are divided."""
    soft_targets: NonNegative = 5.0
    """Weight of the soft-target loss, KL(teacher || student) of the predicted tokens."""
    mlm: NonNegative = 2.0
    """Weight of the masked LM loss, whose targets are the true tokens."""
    cosine: NonNegative = 1.0
    """Weight of 1 minus the cosine of the last hidden states; above 0, both models must have the
    same hidden size."""
    nsp: NonNegative = 0.0
    """Weight of the sentence-pair loss (NSP or SOP); 0: the student has no sentence-pair head."""
    soft_targets_on: Literal["all", "masked"] = "all"
    """Tokens of the soft-target loss: all, as in Sanh et al. 2019, or masked ones, which saves
    memory."""

    def __post_init__(self):
        super().__post_init__()
        if not self.soft_targets + self.cosine > 0:
            raise ValueError(
                f"soft_targets={self.soft_targets}, cosine={self.cosine}: one of them must be "
                "above 0, otherwise the teacher has no effect."
            )
        if not self.soft_targets:
            self.refuse_set(
                ("temperature", "soft_targets_on"), "with soft_targets=0", "there is no such loss"
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class RtdConfig(Checked):
    """Config of replaced-token detection (Clark et al. 2020): the generator, and the losses.

    The model to be trained is the discriminator; the generator, a masked LM, is smaller.
    """

    SIZES: ClassVar[tuple[str, ...]] = (
        "hidden_size",
        "num_hidden_layers",
        "num_attention_heads",
        "intermediate_size",
    )

    hidden_size: Size | None = None
    """Dimension of the hidden states of the generator; None: a quarter of that of --model."""
    num_hidden_layers: Size | None = None
    """Number of layers of the generator; None: as in --model (DeBERTa-v3: half as many)."""
    num_attention_heads: Size | None = None
    """Number of attention heads of the generator; None: heads as large as in --model."""
    intermediate_size: Size | None = None
    """Inner dimension of the feed-forward layers of the generator; None: in the proportion of
    --model."""
    sharing: Literal["es", "gdes", "none"] = "es"
    """What the embeddings have in common: es all of them, as in ELECTRA; gdes all but a difference
    that the discriminator trains, as in DeBERTa-v3; none nothing."""
    weight: Positive = 50.0
    """Weight of the discriminator's loss; that of the generator's masked LM loss is 1."""
    masked: Annotated[float, "(0, 1]"] = 1.0
    """Share of the chosen tokens that become [MASK] in the input of the generator; the others are
    unchanged: 1 in the paper, 0.85 in Google's code."""

    def generator_of(self, model: BertConfig) -> BertConfig:
        """Returns the config of the generator of a discriminator.

        Raises:
            ValueError: a size does not fit the others.
        """
        hidden = self.hidden_size or self._quarter(model)
        head_size = model.hidden_size // model.num_attention_heads
        width = model.embedding_size or model.hidden_size
        return dataclasses.replace(
            model,
            hidden_size=hidden,
            num_hidden_layers=self.num_hidden_layers or model.num_hidden_layers,
            num_attention_heads=self.num_attention_heads or max(1, hidden // head_size),
            intermediate_size=self.intermediate_size
            or max(1, model.intermediate_size * hidden // model.hidden_size),
            embedding_size=None if width == hidden else width,
            num_hidden_groups=None,
            enhanced_mask_decoder=model.relative_attention and not model.position_biased_input,
        )

    def _quarter(self, model: BertConfig) -> int:
        heads = self.num_attention_heads or max(1, model.num_attention_heads // 4)
        return max(1, model.hidden_size // 4 // heads) * heads


@dataclasses.dataclass(frozen=True, kw_only=True)
class Phase(Checked):
    """Config of one phase of a pretraining run; in a phase, all batch rows have the same length.

    Raises:
        ValueError: a number is below 1, `batch_size` is not a multiple of `accumulation_steps`, the
            learning rate is set for a phase that continues the schedule, or the batch sizes of the
            warm-up do not increase to `batch_size`.
    """

    num_steps: Count
    """Number of updates in this phase."""
    max_length: Count
    """Number of tokens per row, with which the data must have been prepared."""
    batch_size: Count
    """Number of rows per update, over all devices."""
    accumulation_steps: Count = 1
    """Number of microbatches per update, which save memory and give the same gradient."""
    warmup_batch_sizes: tuple[int, ...] = ()
    """Batch-size warm-up: ascending numbers of rows per update at the start of the phase; empty:
    batch_size from the first step on."""
    batch_size_warmup_steps: AtLeast0 = 0
    """Number of updates of the batch-size warm-up, divided equally among its sizes."""
    max_predictions: Count | None = None
    """Largest number of masked tokens per row; None: max_length * mlm_probability, rounded up (more
    in packed rows)."""
    global_rope_theta: Positive | None = None
    """Base of the rotary positions of layers with global attention in this phase; None:
    model.global_rope_theta."""
    learning_rate_curve: Literal["continue", "restart"] = "continue"
    """continue keeps the schedule of the previous phase; restart begins a new one with its own
    warm-up."""
    learning_rate: Positive | None = None
    """Peak learning rate of a restarted schedule; None: optimizer.learning_rate."""
    warmup_steps: AtLeast0 | None = None
    """Number of warm-up steps of a restarted schedule; None: as in the optimizer config."""
    decay_steps: AtLeast0 | None = None
    """Number of decay steps of a restarted trapezoidal schedule; None: optimizer.decay_steps."""

    def __post_init__(self):
        super().__post_init__()
        if self.batch_size % (number := self.accumulation_steps):
            raise ValueError(
                f"batch_size={self.batch_size} does not divide into accumulation_steps={number} "
                f"equal microbatches: use a multiple of {number}."
            )
        if self.learning_rate_curve == "continue":
            self.refuse_set(
                ("learning_rate", "warmup_steps", "decay_steps"),
                "with learning_rate_curve='continue'",
                "the phase continues the learning-rate schedule",
            )
        sizes = self.warmup_batch_sizes
        steps = self.batch_size_warmup_steps
        ascending = (0, *sizes, self.batch_size)
        if any(larger <= size for size, larger in itertools.pairwise(ascending)):
            raise ValueError(
                f"warmup_batch_sizes={sizes} with batch_size={self.batch_size}: give positive "
                "numbers in ascending order, all below batch_size."
            )
        if bool(sizes) != bool(steps) or not len(sizes) <= steps <= self.num_steps:
            raise ValueError(
                f"batch_size_warmup_steps={steps} with {len(sizes)} warmup_batch_sizes and "
                f"num_steps={self.num_steps}: set both or neither, with at least one step for each "
                "batch size and at most num_steps."
            )

    @property
    def stages(self) -> tuple["Phase", ...]:
        """The phase in parts of constant batch size: the batch-size warm-up's parts, and the rest.

        Each part is a `Phase` without batch-size warm-up, with its own `num_steps`, `batch_size`
        and `accumulation_steps`. A phase without batch-size warm-up is its only part.
        """
        sizes = self.warmup_batch_sizes
        steps = self.batch_size_warmup_steps
        ends = [steps * i // len(sizes) for i in range(1, len(sizes) + 1)]
        counts = [end - start for start, end in itertools.pairwise((0, *ends))]
        rows = self.batch_size // self.accumulation_steps
        parts = [
            *zip(counts, sizes, (_microbatches(size, rows) for size in sizes), strict=True),
            (self.num_steps - steps, self.batch_size, self.accumulation_steps),
        ]
        return tuple(
            dataclasses.replace(
                self,
                num_steps=num_steps,
                batch_size=size,
                accumulation_steps=microbatches,
                warmup_batch_sizes=(),
                batch_size_warmup_steps=0,
            )
            for num_steps, size, microbatches in parts
            if num_steps
        )

    def stage_of(self, batch: int) -> tuple["Phase", int, int]:
        """Returns (stage, first row, batches left) of the batch number `batch` of the phase.

        Batches and rows are counted from 0 within the phase. The stage is the part of `stages` that
        has the batch; "batches left" is the number of its batches from `batch` on. The last stage
        also has the batches beyond `num_steps`, which a run reads if rollbacks left out others.
        """
        stages = self.stages
        start = 0
        row = 0
        for stage in stages[:-1]:
            if batch < start + stage.num_steps:
                break
            start = start + stage.num_steps
            row = row + stage.num_steps * stage.batch_size
        else:
            stage = stages[-1]
        left = start + stage.num_steps - batch
        if stage is stages[-1]:
            left = sys.maxsize
        return stage, row + (batch - start) * stage.batch_size, left

    @property
    def num_rows(self) -> int:
        """Total number of rows of all updates of the phase."""
        return sum(stage.num_steps * stage.batch_size for stage in self.stages)


def _microbatches(batch_size: int, most_rows: int) -> int:
    """Returns the smallest number of equal microbatches of at most `most_rows` rows."""
    least = -(-batch_size // most_rows)
    return next(n for n in range(least, batch_size + 1) if batch_size % n == 0)


@dataclasses.dataclass(frozen=True, kw_only=True)
class PretrainConfig(TrainingConfig):
    """Config of a pretraining run: the model, the data and the training settings.

    Raises:
        ValueError: a value is out of its range, or values contradict each other, such as a phase
            with longer rows than the model can read.
    """

    data: str = ""
    """Directory of bertjax.prepare, also in a bucket; empty, in bertjax.benchmark: random rows."""
    data_cache: str | None = None
    """Folder for the copy of --data in a bucket; None: ~/.cache/bertjax/buckets."""
    eval_data: tuple[str, ...] = ()
    """Directories of other prepared data whose held-out rows are evaluated as well, for example of
    the text that --init was trained on."""
    init: str | None = None
    """Model to start from, which determines the architecture: a model directory, the workdir of
    another run, a TF1 checkpoint, a hub name or bertjax:tiny; None: random weights."""
    generator_init: str | None = None
    """Generator that --init, a discriminator, was trained with (--head rtd); None: random
    weights."""
    new_positions: Literal["tile", "interpolate"] = "tile"
    """Embeddings of positions that --init lacks: tile repeats its own, as in Longformer;
    interpolate spreads them."""
    model: BertConfig = BertConfig()
    """Architecture of the model; with --init, max_position_embeddings alone can be set."""
    head: Literal["pretraining", "masked_lm", "rtd"] | None = None
    """Heads: pretraining predicts masked tokens and sentence pairs, masked_lm masked tokens, rtd
    replaced tokens, as ELECTRA; None: by the data, pretraining or masked_lm."""
    phases: tuple[Phase, ...] = ()
    """Phases of the run, in order; the config file determines their number."""
    distillation: DistillationConfig | None = None
    """Distillation from a teacher; None: the model learns from the text alone."""
    rtd: RtdConfig | None = None
    """Generator and losses of --head rtd; None: the defaults of RtdConfig with this head."""
    mlm_probability: Annotated[float, "(0, 1)"] = 0.15
    """Fraction of the tokens that are predicted: 80 % of them become [MASK], 10 % random tokens,
    and 10 % are unchanged (--head rtd: see --rtd.masked)."""
    whole_word_masking: bool = False
    """Mask either all tokens of a word or none."""
    max_ngram: Count = 1
    """Maximum number of consecutive words that are masked together (ALBERT: 3)."""
    random_words: Literal["all", "ordinary"] = "all"
    """Tokens from which random replacements are drawn: the whole vocabulary, as in Google's BERT,
    or all but special tokens, as in fairseq."""
    predict: Literal["masked", "next_token"] = "masked"
    """Tokens that the model predicts: masked ones, or with --model.is_decoder, next_token: each
    from the tokens before it."""
    eval_every: AtLeast0 = 1_000
    """Number of steps between evaluations on the held-out rows; 0: at the end of phases only."""
    eval_rows: Count = 10_000
    """Maximum number of held-out rows per evaluation; of more rows, a fixed random sample."""
    eval_at_start: bool = False
    """Evaluate before the first step as well."""
    save_every: Count = 1_000
    """Number of steps between checkpoints, besides those at the best evaluation, at the end of each
    phase and when a signal stops the run."""
    keep_checkpoints: Count = 3
    """Number of newest checkpoints to keep, besides the best one."""
    push_every: AtLeast0 = 0
    """Number of steps after which the model is also uploaded to the branch step-N of --push_to_hub;
    0: at the end of the run alone."""

    def __post_init__(self):
        super().__post_init__()
        if self.push_to_hub is None:
            self.refuse_set(("push_every",), "without --push_to_hub", "there is no repository")
        layers = self.student_layers
        if layers and self.init is not None:
            raise ValueError(
                f"init={self.init!r} and distillation.layers={layers}: the student can start from "
                "only one of them; leave out --init or --distillation.layers."
            )
        if layers and len(layers) != self.model.num_hidden_layers:
            raise ValueError(
                f"distillation.layers={layers} names {len(layers)} layers of the teacher, but the "
                f"student has num_hidden_layers={self.model.num_hidden_layers}: name one layer of "
                "the teacher for each layer of the student."
            )
        self._check_predict()
        if self.init is None:
            self.refuse_set(
                ("dropout",),
                "without --init",
                "set --model.hidden_dropout_prob instead",
            )
            self.refuse_set(("generator_init",), "without --init", "that is its discriminator")
        if self.head == "rtd":
            self.generator.generator_of(self.model)
        else:
            self.refuse_set(
                ("rtd", "generator_init"), "without --head rtd", "only this head has a generator"
            )
        for index, phase in enumerate(self.phases):
            if phase.decay_steps and self.optimizer.schedule != "trapezoidal":
                raise ValueError(
                    f"phases.{index}.decay_steps={phase.decay_steps} with optimizer.schedule="
                    f"{self.optimizer.schedule!r}: only the schedule 'trapezoidal' has decay steps."
                )
        # A model of --init gets the positions that it lacks.
        for index, phase in enumerate(self.phases if self.init is None else ()):
            self.check_rope(index)
            if phase.max_length > self.model.max_length:
                raise ValueError(
                    f"max_length={phase.max_length} exceeds the {self.model.max_length} tokens "
                    "that the model can read (max_position_embeddings minus position_offset): "
                    "reduce max_length of the phase, or increase model.max_position_embeddings."
                )

    def check_rope(self, index: int) -> None:
        """Checks that phase `index` sets the base of rotary positions only if the model has them.

        Raises:
            ValueError: the model has a position embedding matrix instead, or stores its rotations.
        """
        theta = self.phases[index].global_rope_theta
        if theta is not None and self.model.stored_rope:
            raise ValueError(
                f"phases.{index}.global_rope_theta={theta:g}, but the rotations of the model are "
                "stored with its weights (model.stored_rope): leave it out."
            )
        if theta is not None and self.model.global_rope_theta is None:
            raise ValueError(
                f"phases.{index}.global_rope_theta={theta:g}, but the model has no rotary "
                "positions (model.global_rope_theta is None): leave it out, or train a model of "
                "the family modernbert."
            )

    def _check_predict(self) -> None:
        next_token = self.predict == "next_token"
        is_decoder = self.model.is_decoder
        if next_token != is_decoder:
            raise ValueError(
                f"predict={self.predict!r} with model.is_decoder={is_decoder}: the next token is "
                "predicted by a model that sees only the tokens before it (is_decoder=True), "
                "masked tokens by a model that sees all tokens; change predict or model.is_decoder."
            )
        if next_token and self.head == "rtd":
            raise ValueError("--head rtd replaces masked tokens: leave predict at 'masked'.")
        if next_token:
            mode = "with predict='next_token'"
            reason = "it masks no tokens"
            masking = ("whole_word_masking", "max_ngram", "random_words", "mlm_probability")
            self.refuse_set(masking, mode, reason)
            for phase in self.phases:
                phase.refuse_set(("max_predictions",), mode, reason)

    @property
    def generator(self) -> RtdConfig:
        """The config of the generator and the losses of --head rtd."""
        return self.rtd or RtdConfig()

    @property
    def student_layers(self) -> tuple[int, ...]:
        """The layers of the teacher that initialise the student, if there are any."""
        if self.distillation is None:
            return ()
        return self.distillation.layers

    @property
    def num_steps(self) -> int:
        """Total number of updates of all phases."""
        return sum(phase.num_steps for phase in self.phases)


# Fields that change nothing about a single train step, or only where --init is given.
NO_STEP_FIELDS = (
    "workdir",
    "overwrite",
    "log_every",
    "track",
    "track_project",
    "stall_seconds",
    "eval_every",
    "eval_rows",
    "eval_at_start",
    "save_every",
    "keep_checkpoints",
    "push_to_hub",
    "push_every",
    "hub_private",
    "eval_data",
    "init",
    "generator_init",
    "dropout",
    "new_positions",
    "max_bad_steps",
    "rollback_steps",
    "deterministic",
    "distributed",
)


def model_at(
    model: BertConfig, phases: Iterable[Mapping[str, Any]], step: int, *, is_new: bool = False
) -> BertConfig:
    """Returns the config of a run's model after `step` steps: the phases change two fields.

    They are the rotary base and the number of trained positions.

    Args:
        model: the architecture of the run.
        phases: the phases, as dictionaries of their fields, such as those in run.json.
        step: the number of steps; the last step of a phase belongs to the phase.
        is_new: whether the positions were initialised at random, and not from another model.
    """
    end = 0
    theta = None
    trained = model.trained_positions or (0 if is_new else model.max_length)
    for phase in phases:
        theta = phase.get("global_rope_theta")
        end = end + phase["num_steps"]
        trained = max(trained, phase.get("max_length", 0))
        if step <= end:
            break
    if theta is not None:
        model = dataclasses.replace(model, global_rope_theta=theta)
    has_table = model.global_rope_theta is None and model.position_biased_input
    partly = None
    if has_table and 0 < trained < model.max_length:
        partly = trained
    return dataclasses.replace(model, trained_positions=partly)
