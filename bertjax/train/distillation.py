"""Objectives for distillation, in which a student learns from a teacher's outputs.

They are those of Hinton et al. 2015 and, in pretraining, of DistilBERT (Sanh et al. 2019, 3).

The function `sums` of these objectives computes the losses of a batch from the dictionary `outputs`
of the student's outputs; `outputs[TEACHER]` holds the teacher's outputs for the same batch.
"""

import jax
import jax.numpy as jnp

from bertjax.config.pretrain_config import DistillationConfig
from bertjax.model import losses
from bertjax.model.embeddings import take_positions
from bertjax.model.losses import Arrays, Objective
from bertjax.model.soft_targets import cosine_loss, soft_targets_loss
from bertjax.train.objective import TEACHER


def distilled_pretraining(config: DistillationConfig) -> Objective:
    """Returns the objective, a set of losses, of DistilBERT's pretraining (Sanh et al. 2019, 2).

    The total loss is the weighted sum of the soft-target, masked-LM, cosine and NSP losses, with
    the weights in `config`. The losses are means over a whole batch: masked-LM over masked tokens,
    NSP over labelled sequences, cosine over all tokens but padding, and soft-target over the former
    or the latter tokens, as `config.soft_targets_on` says. The student has the head "masked_lm" or
    "pretraining"; the teacher has the head "masked_lm".
    """
    everywhere = bool(config.soft_targets) and config.soft_targets_on == "all"

    def sums(outputs: Arrays, batch: Arrays) -> losses.Sums:
        teacher, positions = outputs[TEACHER], batch["masked_positions"]
        real = (batch["sequence_ids"] > 0).astype(jnp.float32)  # [B, L]
        key = losses.mlm_key(outputs)
        logits = outputs[key]  # [B, L or P, V]
        distilled: losses.Sums = {}
        if config.soft_targets:
            weights = real if everywhere else batch["masked_weights"]
            soft = soft_targets_loss(logits, teacher["logits"], config.temperature)
            distilled["soft_loss"] = (jnp.sum(soft * weights), jnp.sum(weights))
        if config.cosine:
            cosine = cosine_loss(outputs["last_hidden_state"], teacher["last_hidden_state"])
            distilled["cosine_loss"] = (jnp.sum(cosine * real), jnp.sum(real))
        at_masks = take_positions(logits, positions) if everywhere else logits
        return distilled | losses.pretraining_sums({**outputs, key: at_masks}, batch)

    def weights(batch: Arrays) -> dict[str, jax.Array]:
        label_weights = losses.pretraining_weights(batch)
        real = jnp.sum(batch["sequence_ids"] > 0).astype(jnp.float32)
        soft = real if everywhere else label_weights["mlm_loss"]
        return {"soft_loss": soft, "cosine_loss": real, **label_weights}

    loss_weights = {
        "soft_loss": config.soft_targets,
        "mlm_loss": config.mlm,
        "cosine_loss": config.cosine,
        "nsp_loss": config.nsp,
    }
    return Objective(
        sums,
        weights,
        {name: weight for name, weight in loss_weights.items() if weight},
        inputs=() if everywhere else losses.PRETRAINING.inputs,
        best_metric="mlm_loss",
    )


def distilled_task(hard: Objective, temperature: float, soft_weight: float) -> Objective:
    """Adds a distillation loss to the fine-tuning objective `hard`, which uses only the labels.

    The total loss is (1 - soft_weight) * label loss + soft_weight * distillation loss. The label
    loss and the distillation loss are means over the labelled sequences or tokens, weighted by the
    array "label_weights" of the batch. The distillation loss is KL(teacher || student) * T^2, where
    `temperature`, T, divides the logits of both; in regression, it is the squared difference of the
    logits, without a temperature.
    """
    assert hard.soft_losses is not None
    soft_losses = hard.soft_losses

    def sums(outputs: Arrays, batch: Arrays) -> losses.Sums:
        metrics = hard.sums(outputs, batch)
        hard_loss, weight = metrics.pop("loss")
        soft = soft_losses(outputs, outputs[TEACHER], batch, temperature)
        # Where there is no label, the label weight is 0, and the meaningless loss is set to 0.
        soft = jnp.where(batch["label_weights"] > 0, soft, 0.0)
        soft_loss = jnp.sum(soft * batch["label_weights"])
        return metrics | {
            "hard_loss": (hard_loss, weight),
            "soft_loss": (soft_loss, weight),
            "loss": ((1.0 - soft_weight) * hard_loss + soft_weight * soft_loss, weight),
        }

    return hard._replace(sums=sums)
