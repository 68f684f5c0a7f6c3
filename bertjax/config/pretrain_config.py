"""A pretraining run: `bertjax.pretrain`."""

import dataclasses
from typing import Literal

from bertjax.config.distillation_config import DistillationConfig
from bertjax.config.model import BertConfig
from bertjax.config.training import TrainingConfig


@dataclasses.dataclass(frozen=True, kw_only=True)
class Phase:
    """Steps at one sequence length; a run has one or several, in order."""

    num_steps: int
    max_length: int
    """Tokens a row; the data must have been prepared at this length."""
    batch_size: int
    """Rows an update, over all devices."""
    accumulation_steps: int = 1
    """Microbatches that an update is computed in: less memory, the same gradient."""
    max_predictions: int | None = None
    """Masked tokens a row at most; None: the share `mlm_probability` of the row, rounded up."""
    learning_rate_curve: Literal["continue", "restart"] = "continue"
    """Go on along the run's curve, or begin a new one (of this phase and those that continue it)
    with its own warm-up; the moments of the optimizer are kept in any case."""
    learning_rate: float | None = None
    """Peak of the new curve, where it restarts; None: the optimizer's."""
    warmup_steps: int | None = None
    """Warm-up of the new curve, where it restarts; None: the optimizer's."""

    def __post_init__(self):
        for field in (
            *("num_steps", "max_length", "batch_size", "accumulation_steps"),
            *(("max_predictions",) if self.max_predictions is not None else ()),
        ):
            if getattr(self, field) < 1:
                raise ValueError(f"{field}={getattr(self, field)}: it must be at least 1.")
        if self.batch_size % self.accumulation_steps:
            raise ValueError(
                f"batch_size={self.batch_size} does not divide into "
                f"accumulation_steps={self.accumulation_steps} equal microbatches."
            )
        if self.learning_rate_curve == "continue" and (
            self.learning_rate is not None or self.warmup_steps is not None
        ):
            raise ValueError(
                f"learning_rate={self.learning_rate}, warmup_steps={self.warmup_steps} of a phase "
                "hold only for a new curve: set learning_rate_curve='restart', or change the "
                "optimizer's."
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class PretrainConfig(TrainingConfig):
    """A pretraining run: which model, on what data, by which recipe."""

    data: str = ""
    """Directory that bertjax.prepare wrote."""
    init: str | None = None
    """Model to start from: a model directory, or the workdir of another run."""
    model: BertConfig = BertConfig()
    head: Literal["pretraining", "masked_lm"] | None = None
    """pretraining: masked LM and sentence pairs; masked_lm: without pairs. None: as the objective
    of the data says."""
    phases: tuple[Phase, ...] = ()
    distillation: DistillationConfig = DistillationConfig()
    mlm_probability: float = 0.15
    """Share of the tokens that are predicted."""
    whole_word_masking: bool = False
    """Mask all pieces of a word together."""
    max_ngram: int = 1
    """Mask up to so many whole words together, n of them with a probability ~ 1/n (ALBERT: 3)."""
    random_words: Literal["all", "ordinary"] = "all"
    """Random replacements come from the whole vocabulary (google), or all but its special tokens
    (fairseq)."""
    predict: Literal["masked", "next_token"] = "masked"
    """next_token: mask nothing, predict each token from those before it (for model.is_decoder)."""
    eval_every: int = 1_000
    """Steps between evaluations on the held-out rows; 0: only at the end of each phase."""
    eval_rows: int = 10_000
    """Held-out rows used at most."""
    save_every: int = 1_000
    """Steps between checkpoints; one is also written at the end and on interruption."""
    keep_checkpoints: int = 3
    """The last N are kept, and besides the one of the lowest held-out loss."""

    def __post_init__(self):
        super().__post_init__()
        self.check_positive("save_every", "eval_rows", "keep_checkpoints", "max_ngram")
        if not 0.0 < self.mlm_probability < 1.0:
            raise ValueError(f"mlm_probability={self.mlm_probability}: choose it in (0, 1).")
        layers = self.distillation.layers
        if layers and self.init is not None:
            raise ValueError(
                f"init={self.init!r} and distillation.layers={layers}: the student starts from one "
                "of them; leave the other out."
            )
        if layers and len(layers) != self.model.num_hidden_layers:
            raise ValueError(
                f"distillation.layers={layers} are {len(layers)}, the student has num_hidden_layers"
                f"={self.model.num_hidden_layers}: name a layer of the teacher for each."
            )
        self._check_predict()
        for phase in self.phases:
            if phase.max_length > self.model.max_length:
                raise ValueError(
                    f"max_length={phase.max_length} exceeds the {self.model.max_length} tokens "
                    "that the model reads (max_position_embeddings, less RoBERTa's offset): "
                    "shorten the phase, or give the model more positions."
                )

    def _check_predict(self) -> None:
        next_token = self.predict == "next_token"
        is_decoder = self.model.is_decoder
        if next_token != is_decoder:
            raise ValueError(
                f"predict={self.predict!r} with model.is_decoder={is_decoder}: the next token is "
                "predicted by a model that sees only those before it (is_decoder=True), masked "
                "ones by a model that sees all; change one of the two."
            )
        idle = [
            name
            for name in ("whole_word_masking", "max_ngram", "random_words", "mlm_probability")
            if next_token and getattr(self, name) != getattr(PretrainConfig, name)
        ] + ["max_predictions" for p in self.phases if next_token and p.max_predictions is not None]
        if idle:
            raise ValueError(
                f"{', '.join(idle)}: without effect where predict='next_token', which masks "
                "nothing; leave it out."
            )

    @property
    def num_steps(self) -> int:
        """Updates of all phases together."""
        return sum(phase.num_steps for phase in self.phases)
