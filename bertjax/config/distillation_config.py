"""What a student learns from a teacher in pretraining (Sanh et al. 2019)."""

import dataclasses
from typing import Literal


@dataclasses.dataclass(frozen=True, kw_only=True)
class DistillationConfig:
    """A teacher, and how much each of its lessons weighs; without a teacher, nothing of it."""

    teacher: str | None = None
    """Model with an MLM head: a directory, the workdir of a run, a hub name."""
    layers: tuple[int, ...] = ()
    """Layers of the teacher, counted from 0, that those of the student start as, with the
    teacher's embeddings and heads; none: the student starts from --init or at random."""
    temperature: float = 2.0
    """Both models' logits are divided by it; the loss is multiplied by its square."""
    soft_targets: float = 5.0
    """Weight of the Kullback-Leibler divergence of the student's words from the teacher's."""
    mlm: float = 2.0
    """Weight of the masked LM."""
    cosine: float = 1.0
    """Weight of 1 - cosine of the last hidden states; above 0 they must be equally wide."""
    nsp: float = 0.0
    """Weight of next sentence prediction, which the paper leaves out; at 0 the student is a masked
    LM alone."""
    soft_targets_on: Literal["all", "masked"] = "all"
    """All tokens, as in the paper: both models' logits are then [rows, tokens, vocabulary], which
    accumulation keeps small; or the masked ones alone."""

    def __post_init__(self):
        if self.teacher is None:
            plain = {f.name: f.default for f in dataclasses.fields(self)}
            given = {k: getattr(self, k) for k, v in plain.items() if getattr(self, k) != v}
            if given:
                raise ValueError(
                    f"distillation: {', '.join(f'{k}={v!r}' for k, v in given.items())} without "
                    "effect, for there is no teacher: give --distillation.teacher, or leave it out."
                )
            return
        weights = (self.soft_targets, self.mlm, self.cosine, self.nsp)
        if min(weights) < 0 or not self.soft_targets + self.cosine > 0:
            raise ValueError(
                f"soft_targets={self.soft_targets}, mlm={self.mlm}, cosine={self.cosine}, "
                f"nsp={self.nsp}: weights must be at least 0, and soft_targets or cosine above 0, "
                "else the teacher teaches nothing."
            )
        if not self.temperature > 0:
            raise ValueError(f"temperature={self.temperature}: it must be positive.")
        if not self.soft_targets and (self.temperature != 2.0 or self.soft_targets_on != "all"):
            raise ValueError(
                f"temperature={self.temperature}, soft_targets_on={self.soft_targets_on!r} without "
                "effect at soft_targets=0: leave them out."
            )
