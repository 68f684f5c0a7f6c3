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
    """Config of distillation during pretraining: the teacher, and the weights of the losses.

    Raises:
        ValueError: a weight is negative, the temperature is not positive, or a setting has no
            effect with the others.
    """

    teacher: str | None = None
    """Teacher model, which must have an MLM head: a model directory, the workdir of a run, a TF1
    checkpoint or a hub name; None: no distillation."""
    layers: tuple[int, ...] = ()
    """Indices (from 0) of the teacher's layers that initialise the student's layers, one per
    student layer; the teacher's embeddings and heads are copied as well; empty: the student starts
    from --init of bertjax.pretrain, which cannot be combined with layers, or from random
    weights."""
    temperature: Positive = 2.0
    """Temperature by which the logits of teacher and student are divided; the soft-target loss is
    multiplied by the square of the temperature."""
    soft_targets: NonNegative = 5.0
    """Weight of the soft-target loss: the Kullback-Leibler divergence KL(teacher || student) of the
    predicted token distributions."""
    mlm: NonNegative = 2.0
    """Weight of the masked LM loss, whose targets are the true tokens."""
    cosine: NonNegative = 1.0
    """Weight of the cosine loss: 1 - cosine similarity between the last hidden states of teacher
    and student; if above 0, both models must have the same hidden size."""
    nsp: NonNegative = 0.0
    """Weight of the sentence-pair loss (NSP or SOP), which Sanh et al. 2019 leave out; 0: the
    student has no sentence-pair head."""
    soft_targets_on: Literal["all", "masked"] = "all"
    """Tokens on which the soft-target loss is computed: all tokens, as in Sanh et al. 2019, or only
    masked tokens; all keeps the logits of both models, each of shape [rows, tokens, vocabulary], in
    memory."""

    def __post_init__(self):
        super().__post_init__()
        if self.teacher is None:
            everything = " ".join(field.name for field in dataclasses.fields(self))
            self.refuse_idle(
                everything,
                "without a teacher: set --distillation.teacher, or leave these settings out.",
            )
        if not self.soft_targets + self.cosine > 0:
            raise ValueError(
                f"soft_targets={self.soft_targets}, cosine={self.cosine}: one of them must be "
                "above 0, otherwise the teacher has no effect."
            )
        if not self.soft_targets:
            self.refuse_idle("temperature soft_targets_on", "with soft_targets=0: leave it out.")


@dataclasses.dataclass(frozen=True, kw_only=True)
class RtdConfig(Checked):
    """Config of replaced-token detection (Clark et al. 2020): the generator, and the losses.

    The model to be trained is the discriminator; the generator, a masked LM, is smaller.
    """

    SIZES: ClassVar[tuple[str, ...]] = (
        *("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size"),
    )

    hidden_size: Size | None = None
    """Dimension of the hidden states of the generator; None: a quarter of that of --model (in the
    paper, a quarter, or a third for the base size)."""
    num_hidden_layers: Size | None = None
    """Number of layers of the generator; None: as in --model (DeBERTa-v3: half as many)."""
    num_attention_heads: Size | None = None
    """Number of attention heads of the generator; None: such that heads are as large as in
    --model."""
    intermediate_size: Size | None = None
    """Inner dimension of the feed-forward layers of the generator; None: in the proportion of
    --model."""
    sharing: Literal["es", "gdes", "none"] = "es"
    """What the embeddings have in common: es shares the embeddings of words, positions and token
    types and their LayerNorm, as in ELECTRA; gdes, of DeBERTa-v3 (He et al. 2021, 3.2), adds to the
    generator's embeddings of words and positions a difference that the discriminator trains, and
    gives the generator no gradient of the discriminator; none shares nothing. Except with es, the
    gradient of each model is clipped by its own norm, as in Microsoft's code."""
    weight: Positive = 50.0
    """Weight of the discriminator's loss; the weight of the generator's masked LM loss is 1."""
    masked: Annotated[float, "(0, 1]"] = 1.0
    """Share of the chosen tokens (mlm_probability) that become [MASK] in the input of the
    generator, which samples all chosen tokens; the others are unchanged: 1 in the paper, 0.85 in
    Google's code."""

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
    """Number of tokens per row; the data must have been prepared with this maximum length."""
    batch_size: Count
    """Number of rows per update, over all devices."""
    accumulation_steps: Count = 1
    """Number of microbatches per update (gradient accumulation); more microbatches need less memory
    and give the same gradient (with dropout_prng threefry2x32)."""
    warmup_batch_sizes: tuple[int, ...] = ()
    """Batch-size warm-up: numbers of rows per update at the start of the phase, in ascending order
    and below batch_size; each is used for equally many of the batch_size_warmup_steps updates. Each
    number compiles the train step once more. A microbatch has at most as many rows as one of
    batch_size rows in accumulation_steps microbatches. Empty: batch_size from the first step on."""
    batch_size_warmup_steps: AtLeast0 = 0
    """Number of updates of the batch-size warm-up (see warmup_batch_sizes), after which an update
    has batch_size rows."""
    max_predictions: Count | None = None
    """Largest number of masked tokens per row; None: max_length * mlm_probability, rounded up.
    Packed rows have max_sequences / 2 more than either (the sum is rounded down), because the
    number is rounded for each of their sequences; max_sequences is the --max_sequences with which
    bertjax.prepare packed the rows. Must be None with predict next_token."""
    global_rope_theta: Positive | None = None
    """Base of the rotary positions of layers with global attention in this phase, which replaces
    the model's base; a phase of longer rows has a larger one, so that distant tokens keep distinct
    rotations (ModernBERT: 10,000 at 1,024 tokens and 160,000 at 8,192). Exported models have the
    base of their last step. None: model.global_rope_theta."""
    learning_rate_curve: Literal["continue", "restart"] = "continue"
    """Learning-rate schedule of the phase: continue keeps the schedule of the previous phase (in
    the first phase, of the optimizer config); restart begins a new schedule with its own
    warm-up. The optimizer state of the previous phase is always kept."""
    learning_rate: Positive | None = None
    """Peak learning rate of a restarted schedule; None: optimizer.learning_rate."""
    warmup_steps: AtLeast0 | None = None
    """Number of warm-up steps of a restarted schedule; None: optimizer.warmup_proportion of its
    steps if that is set, else optimizer.warmup_steps."""
    decay_steps: AtLeast0 | None = None
    """Number of decay steps at the end of a restarted trapezoidal schedule; None:
    optimizer.decay_steps."""

    def __post_init__(self):
        super().__post_init__()
        if self.batch_size % (number := self.accumulation_steps):
            raise ValueError(
                f"batch_size={self.batch_size} does not divide into accumulation_steps={number} "
                f"equal microbatches: use a multiple of {number}."
            )
        if self.learning_rate_curve == "continue":
            self.refuse_idle(
                "learning_rate warmup_steps decay_steps",
                "in a phase that continues the learning-rate schedule: set "
                "learning_rate_curve='restart', or change the optimizer config.",
            )
        sizes, steps = self.warmup_batch_sizes, self.batch_size_warmup_steps
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
        sizes, steps = self.warmup_batch_sizes, self.batch_size_warmup_steps
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
        start, row = 0, 0
        for stage in stages[:-1]:
            if batch < start + stage.num_steps:
                break
            start, row = start + stage.num_steps, row + stage.num_steps * stage.batch_size
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

    GROUPS: ClassVar[dict[str, str]] = {
        "data": "data data_cache eval_data mlm_probability whole_word_masking max_ngram "
        "random_words predict reader_threads",
        "model": "init generator_init dropout new_positions head model",
        "training": "phases optimizer distillation rtd seed max_bad_steps skip_spikes "
        "rollback_steps",
        "hardware": "dtype attention remat unroll dropout_prng deterministic peak_tflops mesh "
        "distributed",
        "output": "workdir overwrite log_every track track_project stall_seconds eval_every "
        "eval_rows eval_at_start save_every keep_checkpoints push_to_hub push_every hub_private",
    }

    data: str = ""
    """Directory of training data from bertjax.prepare, which bertjax.pretrain requires for
    training; data in a bucket (gs://, s3://) is copied to --data_cache; empty, in
    bertjax.benchmark: rows of random tokens (not with --distillation.teacher)."""
    data_cache: str | None = None
    """Folder on a disk of each machine for the copy of --data in a bucket; a copy that was
    interrupted continues, and later runs use it again; None: ~/.cache/bertjax/buckets."""
    eval_data: tuple[str, ...] = ()
    """Directories of other prepared data whose held-out rows are evaluated as well, for example of
    the text that --init was trained on, to see what is forgotten; the losses are named after the
    folders; prepared with the same tokenizer as --data."""
    init: str | None = None
    """Model to start from: a model directory, a .bin or .safetensors file, the workdir of another
    run, a TF1 checkpoint, a hub name or bertjax:tiny; its architecture and dropout replace all
    --model.* flags except a max_position_embeddings above 512 and above the model's own. If the
    tokenizer of the data is the model's with further entries (bertjax.train_tokenizer --extend),
    these get the mean of the embeddings of their old pieces. None: random weights."""
    generator_init: str | None = None
    """Generator to start from if --init is a discriminator (--head rtd): its own, such as the
    folder generator of a pretrained model; it determines the sizes in --rtd; None: random
    weights."""
    new_positions: Literal["tile", "interpolate"] = "tile"
    """Position embeddings if rows or --model.max_position_embeddings are longer than the model of
    --init can read: tile keeps the model's and repeats them for new positions, as in
    Longformer; interpolate spreads the model's over all positions."""
    model: BertConfig = BertConfig()
    """Architecture of the model."""
    head: Literal["pretraining", "masked_lm", "rtd"] | None = None
    """Heads of the model: pretraining has a masked LM head and a sentence-pair head; masked_lm has
    only a masked LM head; rtd has the head of ELECTRA's discriminator, which detects the tokens
    that a generator has replaced (--rtd). None: with a teacher, pretraining if --distillation.nsp
    is above 0; without a teacher, pretraining if the data has sentence pairs (bertjax.prepare
    --objective nsp or sop) or, where there is no data, if --model.type_vocab_size is above 1;
    otherwise masked_lm."""
    phases: tuple[Phase, ...] = ()
    """Phases of the run, in order. Flags can change the phases of the config file, but not the
    number of phases."""
    distillation: DistillationConfig = DistillationConfig()
    """Teacher and loss weights of distillation."""
    rtd: RtdConfig = RtdConfig()
    """Generator and loss weight of replaced-token detection, --head rtd."""
    mlm_probability: Annotated[float, "(0, 1)"] = 0.15
    """Fraction of the tokens that are predicted; 80 % of the predicted tokens are replaced by
    [MASK], 10 % are replaced by random tokens and 10 % are unchanged (--head rtd: see
    --rtd.masked)."""
    whole_word_masking: bool = False
    """Whole-word masking: mask either all tokens of a word or none."""
    max_ngram: Count = 1
    """Maximum number of consecutive words that are masked together; a span of n words is drawn with
    probability proportional to 1/n (ALBERT: 3); above 1, whole words are masked."""
    random_words: Literal["all", "ordinary"] = "all"
    """Tokens from which random replacements are drawn: all draws from the whole vocabulary, as in
    Google's BERT; ordinary excludes special tokens, as in fairseq."""
    predict: Literal["masked", "next_token"] = "masked"
    """Tokens that the model predicts: masked predicts masked tokens; next_token predicts every
    token from the tokens before it, without masking, and requires --model.is_decoder, which masked
    does not allow; with next_token, the options of masking must keep their defaults."""
    eval_every: AtLeast0 = 1_000
    """Number of steps between evaluations on the held-out rows; each phase also ends with one; 0:
    evaluate only then."""
    eval_rows: Count = 10_000
    """Maximum number of held-out rows per evaluation; of more rows, a fixed random sample is
    used."""
    eval_at_start: bool = False
    """Evaluate before the first step as well, to compare later evaluations with --init."""
    save_every: Count = 1_000
    """Number of steps between checkpoints; a checkpoint is also written after each evaluation with
    the lowest held-out masked LM loss of the phase so far, at the end of each phase and when a
    signal stops the run."""
    keep_checkpoints: Count = 3
    """Number of newest checkpoints to keep; the checkpoint with the lowest held-out masked LM loss
    in the last evaluated phase is also kept."""
    push_every: AtLeast0 = 0
    """Number of steps after which the model is also uploaded to the branch step-N of --push_to_hub,
    in the background; 0: only at the end of the run, to the branch main."""

    def __post_init__(self):
        super().__post_init__()
        if self.push_to_hub is None:
            self.refuse_idle("push_every", "without --push_to_hub OWNER/NAME.")
        layers = self.distillation.layers
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
            self.refuse_idle(
                "dropout",
                "without --init: set --model.hidden_dropout_prob and "
                "--model.attention_probs_dropout_prob.",
            )
            self.refuse_idle("generator_init", "without --init: give its discriminator.")
        if self.head == "rtd":
            self.rtd.generator_of(self.model)
        else:
            self.refuse_idle(
                "rtd generator_init", "without replaced-token detection: add --head rtd."
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
            ValueError: the model has a position embedding matrix instead.
        """
        theta = self.phases[index].global_rope_theta
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
            reason = "with predict='next_token', which masks no tokens; leave it out."
            self.refuse_idle("whole_word_masking max_ngram random_words mlm_probability", reason)
            for phase in self.phases:
                phase.refuse_idle("max_predictions", reason)

    @property
    def num_steps(self) -> int:
        """Total number of updates of all phases."""
        return sum(phase.num_steps for phase in self.phases)


# Fields that change nothing about a single train step, or only where --init is given.
NO_STEP_FIELDS = (
    *PretrainConfig.GROUPS["output"].split(),
    *("eval_data", "init", "generator_init", "dropout", "new_positions", "max_bad_steps"),
    *("rollback_steps", "deterministic", "distributed"),
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
        theta, end = phase.get("global_rope_theta"), end + phase["num_steps"]
        trained = max(trained, phase.get("max_length", 0))
        if step <= end:
            break
    if theta is not None:
        model = dataclasses.replace(model, global_rope_theta=theta)
    has_table = model.global_rope_theta is None and model.position_biased_input
    partly = trained if has_table and 0 < trained < model.max_length else None
    return dataclasses.replace(model, trained_positions=partly)
