"""What a student minimises beside its teacher: soft targets and cosines, as mergeable sums.

Soft targets are the Kullback-Leibler divergence of the student's distribution from the teacher's,
KL(teacher || student), both at a temperature T, times T^2: then its gradients keep their size
whatever T is (Hinton et al. 2015, 2). Hidden states are compared as by Sanh et al. 2019, 3.

The teacher's outputs stand under `TEACHER` among the student's.
"""

import functools
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from bertjax.config.distillation_config import DistillationConfig
from bertjax.model import losses
from bertjax.model.heads import take_positions
from bertjax.training.objective import TASK_OBJECTIVES, TEACHER, Objective

Arrays = Mapping[str, Any]
# Below it a vector has no direction; as in PyTorch's CosineEmbeddingLoss.
SMALLEST_SQUARE = 1e-12
# The logit of a token that is none of its sequence's: nothing is left of it at any temperature, and
# divided by a low one it is still finite.
OUTSIDE = -1e30


def soft_targets_loss(student: jax.Array, teacher: jax.Array, temperature: float) -> jax.Array:
    """KL(teacher || student) * T^2 of logits [..., C] at the temperature T -> [...].

    The teacher is a constant: it gets no gradient.
    """
    return _soft_targets(student, teacher, temperature)


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def _soft_targets(student: jax.Array, teacher: jax.Array, temperature: float) -> jax.Array:
    return _soft_targets_forward(student, teacher, temperature)[0]


def _soft_targets_forward(student: jax.Array, teacher: jax.Array, temperature: float):
    """The loss, and what its gradient needs: both logits as they are, and their normalisers.

    Logits of a vocabulary are large: nothing of their size is kept besides them, where the
    derivative of log-softmaxes would keep three such arrays.
    """
    s, t = student / temperature, teacher / temperature
    log_zs, log_zt = (jax.nn.logsumexp(x, axis=-1, keepdims=True) for x in (s, t))
    difference = jnp.sum(jnp.exp(t - log_zt) * (t - s), axis=-1)
    loss = temperature**2 * (difference + (log_zs - log_zt)[..., 0])
    return loss, (student, teacher, log_zs, log_zt)


def _soft_targets_gradient(temperature: float, kept, gradient: jax.Array):
    """T * (q - p): by how much the student finds each class likelier than the teacher does."""
    student, teacher, log_zs, log_zt = kept
    p, q = jnp.exp(teacher / temperature - log_zt), jnp.exp(student / temperature - log_zs)
    return temperature * gradient[..., None] * (q - p), None


_soft_targets.defvjp(_soft_targets_forward, _soft_targets_gradient)


def binary_soft_targets_loss(
    student: jax.Array, teacher: jax.Array, temperature: float
) -> jax.Array:
    """KL * T^2 of yes and no, a logit [...] each -> [...]."""
    teacher, student = teacher / temperature, student / temperature
    yes = jax.nn.log_sigmoid(teacher) - jax.nn.log_sigmoid(student)
    no = jax.nn.log_sigmoid(-teacher) - jax.nn.log_sigmoid(-student)
    return temperature**2 * (jax.nn.sigmoid(teacher) * yes + jax.nn.sigmoid(-teacher) * no)


def cosine_loss(student: jax.Array, teacher: jax.Array) -> jax.Array:
    """1 - cosine of vectors [..., D] -> [...], in float32."""
    x, y = student.astype(jnp.float32), teacher.astype(jnp.float32)
    squares = [jnp.sum(jnp.square(v), axis=-1) + SMALLEST_SQUARE for v in (x, y)]
    return 1.0 - jnp.sum(x * y, axis=-1) * jax.lax.rsqrt(squares[0] * squares[1])


def distilled_pretraining(config: DistillationConfig) -> Objective:
    """Soft targets and cosine over the real tokens, masked LM over the masked ones.

    The means are over the whole batch, weighed as `config` says; the student is a masked LM, with
    sentence pairs or without, the teacher a `BertForMaskedLM`.
    """
    everywhere = bool(config.soft_targets) and config.soft_targets_on == "all"

    def sums(outputs: Arrays, batch: Arrays) -> losses.Sums:
        teacher, positions = outputs[TEACHER], batch["masked_positions"]
        real = (batch["sequence_ids"] > 0).astype(jnp.float32)  # [B, L]
        name = "prediction_logits" if "prediction_logits" in outputs else "logits"
        logits = outputs[name]  # [B, L or P, V]
        found: losses.Sums = {}
        if config.soft_targets:
            weights = real if everywhere else batch["masked_weights"]
            soft = soft_targets_loss(logits, teacher["logits"], config.temperature)
            found["soft_loss"] = (jnp.sum(soft * weights), jnp.sum(weights))
        if config.cosine:
            of_hidden = cosine_loss(outputs["last_hidden_state"], teacher["last_hidden_state"])
            found["cosine_loss"] = (jnp.sum(of_hidden * real), jnp.sum(real))
        at_masks = take_positions(logits, positions) if everywhere else logits
        of_labels = losses.pretraining_sums({**outputs, name: at_masks}, batch)
        return found | of_labels

    def weights(batch: Arrays) -> dict[str, jax.Array]:
        of_labels = losses.pretraining_weights(batch)
        real = jnp.sum(batch["sequence_ids"] > 0).astype(jnp.float32)
        return {
            "soft_loss": real if everywhere else of_labels["mlm"],
            "cosine_loss": real,
            **{f"{name}_loss": weight for name, weight in of_labels.items()},
        }

    def loss(sums: losses.Sums, weights: Arrays) -> jax.Array:
        total = jnp.zeros(())
        for name, weight in config.loss_weights.items():
            total += weight * sums[name][0] / jnp.maximum(weights[name], 1.0)
        return total

    return Objective(() if everywhere else ("masked_positions",), weights, sums, loss)


def distilled_task(kind: str, temperature: float, soft_weight: float) -> Objective:
    """(1 - soft_weight) * the loss of a kind of labels + soft_weight * what the teacher says of it.

    Both are the mean over what has a label, weighed as the labels are. Numbers are compared by
    their squared difference.
    """
    hard = TASK_OBJECTIVES[kind]

    def sums(outputs: Arrays, batch: Arrays) -> losses.Sums:
        found = hard.sums(outputs, batch)
        of_labels, weight = found.pop("loss")
        soft = _soft_losses(kind, outputs, batch, temperature)
        # An empty slot's value is finite, but means nothing.
        soft = jnp.where(batch["label_weights"] > 0, soft, 0.0)
        of_teacher = jnp.sum(soft * batch["label_weights"])
        return found | {
            "hard_loss": (of_labels, weight),
            "soft_loss": (of_teacher, weight),
            "loss": ((1.0 - soft_weight) * of_labels + soft_weight * of_teacher, weight),
        }

    return hard._replace(sums=sums)


def _soft_losses(kind: str, outputs: Arrays, batch: Arrays, temperature: float) -> jax.Array:
    """What each label's place has of the teacher, of the shape of label_weights."""
    teacher = outputs[TEACHER]
    if kind == "span":
        sequences = jnp.arange(1, batch["labels"].shape[1] + 1)
        inside = batch["sequence_ids"][:, None, :] == sequences[None, :, None]  # [B, K, L]

        def within(logits: jax.Array) -> jax.Array:
            return jnp.where(inside, logits[:, None, :], OUTSIDE)

        ends = [
            soft_targets_loss(within(outputs[key]), within(teacher[key]), temperature)
            for key in ("start_logits", "end_logits")
        ]
        return (ends[0] + ends[1]) / 2
    student, taught = outputs["logits"], teacher["logits"]
    if kind == "regression":
        return jnp.square(student[..., 0] - taught[..., 0])
    if kind == "multi_label":
        return binary_soft_targets_loss(student, taught, temperature).mean(-1)
    if kind == "choice":
        rows, examples = batch["labels"].shape
        student, taught = (x.reshape(rows, examples, -1) for x in (student, taught))
    return soft_targets_loss(student, taught, temperature)
