"""The config of knowledge distillation during pretraining (Sanh et al. 2019)."""

import dataclasses
from typing import Literal


@dataclasses.dataclass(frozen=True, kw_only=True)
class DistillationConfig:
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
    temperature: float = 2.0
    """Temperature by which the logits of teacher and student are divided; the soft-target loss is
    multiplied by the square of the temperature."""
    soft_targets: float = 5.0
    """Weight of the soft-target loss: the Kullback-Leibler divergence KL(teacher || student) of the
    predicted token distributions."""
    mlm: float = 2.0
    """Weight of the masked LM loss, whose targets are the true tokens."""
    cosine: float = 1.0
    """Weight of the cosine loss: 1 - cosine similarity between the last hidden states of teacher
    and student; if above 0, both models must have the same hidden size."""
    nsp: float = 0.0
    """Weight of the sentence-pair loss (NSP or SOP), which Sanh et al. 2019 leave out; 0: the
    student has no sentence-pair head."""
    soft_targets_on: Literal["all", "masked"] = "all"
    """Tokens on which the soft-target loss is computed: all tokens, as in Sanh et al. 2019, or only
    masked tokens; all keeps the logits of both models, each of shape [rows, tokens, vocabulary], in
    memory."""

    def __post_init__(self):
        if self.teacher is None:
            plain = {f.name: f.default for f in dataclasses.fields(self)}
            changed = {k: getattr(self, k) for k, v in plain.items() if getattr(self, k) != v}
            if changed:
                raise ValueError(
                    f"distillation: {', '.join(f'{k}={v!r}' for k, v in changed.items())} has no "
                    "effect without a teacher: set --distillation.teacher, or leave out "
                    f"{', '.join(changed)}."
                )
            return
        weights = (self.soft_targets, self.mlm, self.cosine, self.nsp)
        if min(weights) < 0 or not self.soft_targets + self.cosine > 0:
            raise ValueError(
                f"soft_targets={self.soft_targets}, mlm={self.mlm}, cosine={self.cosine}, "
                f"nsp={self.nsp}: weights must be at least 0, and soft_targets or cosine above 0, "
                "otherwise the teacher has no effect."
            )
        if not self.temperature > 0:
            raise ValueError(f"temperature={self.temperature}: it must be positive.")
        if not self.soft_targets and (self.temperature != 2.0 or self.soft_targets_on != "all"):
            raise ValueError(
                f"temperature={self.temperature}, soft_targets_on={self.soft_targets_on!r} have no "
                "effect with soft_targets=0: leave them out."
            )
