"""Training objectives: functions that compute losses and metrics as sums over a batch.

Every loss and metric is a pair (sum of weighted values, sum of weights), which can be added over
microbatches, devices and evaluation batches. The objectives are those of BERT (Devlin et al. 2018,
3.1, 4 and 5). Losses are in nats.

The distillation losses are soft-target losses, the Kullback-Leibler divergence KL(teacher ||
student) of the distributions at temperature T, times T^2. The factor T^2 keeps the magnitude of the
gradients about the same for all T (Hinton et al. 2015, 2). The cosine loss compares hidden states
(Sanh et al. 2019, 3).

Array shapes: B rows, L tokens per row, K sequences packed into a row, P masked positions per row, V
words of the vocabulary, C classes, or choices of a multiple-choice example.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

# This is added to squared norms, as in PyTorch's CosineEmbeddingLoss, to avoid division by zero.
SMALLEST_SQUARE = 1e-12


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def soft_targets_loss(student: jax.Array, teacher: jax.Array, temperature: float) -> jax.Array:
    """Computes KL(teacher || student) * T^2 at temperature T from logits [..., C]; returns [...].

    The teacher's logits receive no gradient.
    """
    return _soft_targets_forward(student, teacher, temperature)[0]


def _soft_targets_forward(student: jax.Array, teacher: jax.Array, temperature: float):
    # Logits over a vocabulary are large. No other array of their size is stored for the backward
    # pass; automatic differentiation of two log-softmaxes would store three.
    s = student / temperature
    t = teacher / temperature
    log_zs = jax.nn.logsumexp(s, axis=-1, keepdims=True)
    log_zt = jax.nn.logsumexp(t, axis=-1, keepdims=True)
    p = jnp.exp(t - log_zt)
    difference = jnp.sum(p * (t - s), axis=-1)
    loss = temperature**2 * (difference + (log_zs - log_zt)[..., 0])
    return loss, (student, teacher, log_zs, log_zt)


def _soft_targets_gradient(temperature: float, residuals, gradient: jax.Array):
    student, teacher, log_zs, log_zt = residuals
    p = jnp.exp(teacher / temperature - log_zt)
    q = jnp.exp(student / temperature - log_zs)
    return temperature * gradient[..., None] * (q - p), None


soft_targets_loss.defvjp(_soft_targets_forward, _soft_targets_gradient)


def binary_soft_targets_loss(
    student: jax.Array, teacher: jax.Array, temperature: float
) -> jax.Array:
    """Computes KL(teacher || student) * T^2 elementwise, of a Bernoulli distribution per logit."""
    teacher = teacher / temperature
    student = student / temperature
    yes = jax.nn.log_sigmoid(teacher) - jax.nn.log_sigmoid(student)
    no = jax.nn.log_sigmoid(-teacher) - jax.nn.log_sigmoid(-student)
    divergence = jax.nn.sigmoid(teacher) * yes + jax.nn.sigmoid(-teacher) * no
    return temperature**2 * divergence


def margin_loss(student: jax.Array, teacher: jax.Array) -> jax.Array:
    """Computes the mean squared error of differences of scores (Hofstätter et al. 2020).

    They are those between the positive, the first of the scores [..., C], and each negative.
    """
    errors = student - teacher
    errors_of_differences = errors[..., :1] - errors[..., 1:]
    return jnp.square(errors_of_differences).mean(-1)


def scores_loss(student: jax.Array, teacher: jax.Array, temperature: float | None) -> jax.Array:
    """Computes `soft_targets_loss` of scores [..., C], or without a temperature, `margin_loss`."""
    if temperature is None:
        return margin_loss(student, teacher)
    # Only differences of scores count, of which large scores would leave few digits.
    student -= student[..., :1]
    teacher -= teacher[..., :1]
    return soft_targets_loss(student, teacher, temperature)


def cosine_loss(student: jax.Array, teacher: jax.Array) -> jax.Array:
    """Computes 1 - the cosine of vectors [..., D] in float32 (Sanh et al. 2019); returns [...]."""
    x = student.astype(jnp.float32)
    y = teacher.astype(jnp.float32)
    x_square = jnp.sum(jnp.square(x), axis=-1) + SMALLEST_SQUARE
    y_square = jnp.sum(jnp.square(y), axis=-1) + SMALLEST_SQUARE
    product = jnp.sum(x * y, axis=-1)
    return 1.0 - product * jax.lax.rsqrt(x_square * y_square)


# The key, in the total weights of the losses, of the number of steps so far.
STEP = "step"
Arrays = Mapping[str, Any]
Sums = dict[str, tuple[jax.Array, jax.Array]]

# The logit of a token outside the sequence. Unlike the most negative float32 number, it remains
# finite when it is divided by a low temperature.
OUTSIDE = -1e30


class Objective(NamedTuple):
    """A training objective of a head.

    Attributes:
        sums: a function (outputs, batch) -> {name of a loss or metric: (sum of weighted values, sum
            of weights)}.
        weights: a function batch -> {name of a loss: its total weight in the batch}.
        loss_weights: {name of a loss to minimise: the factor of this loss in the total loss, or a
            function that computes it from the number of steps so far, None in an evaluation}.
        inputs: keys of the batch arrays, such as "masked_positions", that the model takes besides
            the encoder's inputs, `MODEL_INPUTS`.
        min_weight: lower bound of the total weights that losses are divided by, so that a batch
            without labels has loss 0 and not NaN.
        soft_losses: a function (outputs of the student, outputs of the teacher, batch, temperature)
            -> distillation losses, an array of the shape of the batch's "label_weights"; or None.
        best_metric: the name of the held-out loss that selects the best checkpoint.
        description: the name of the objective in model cards.
        metric_names: {key of a metric: its name in model cards}.
        named_classes: whether the last axis of the logits is over named classes, whose order may
            differ between models.
        compares_examples: whether the loss of an example depends on other examples of the global
            batch. `sums` then takes the outputs per sequence, labels and weights example by
            example, [n, ...] instead of [B, K, ...], the whole global batch under the key
            "global", and the indices of the n examples as "example_ids".
    """

    sums: Callable[[Arrays, Arrays], Sums]
    weights: Callable[[Arrays], dict[str, jax.Array]]
    loss_weights: Mapping[str, Any]
    inputs: tuple[str, ...] = ()
    min_weight: float = 1.0
    soft_losses: Callable[[Arrays, Arrays, Arrays, float], jax.Array] | None = None
    named_classes: bool = False
    compares_examples: bool = False
    best_metric: str = "loss"
    description: str = ""
    metric_names: Mapping[str, str] = {}

    def loss(self, sums: Sums, weights: Arrays) -> jax.Array:
        """Returns the scalar to minimise: the sum of the mean losses times their `loss_weights`.

        `sums` belong to a batch or a microbatch, `weights` the total weights in the whole batch,
        so that the losses of the microbatches add up to the loss of the batch.
        """
        terms = []
        for name, factor in self.loss_weights.items():
            total, _ = sums[name]
            if not isinstance(factor, float):
                total = factor(weights.get(STEP)) * total
            elif factor != 1:
                total = factor * total
            terms.append(total / jnp.maximum(weights[name], self.min_weight))
        return sum(terms[1:], terms[0])


def pretraining_weights(batch: Arrays) -> dict[str, jax.Array]:
    """Returns the numbers of masked tokens and of labelled sequences in the batch.

    The batch has masked_weights float [B, P] (0 for an unused entry), labels int [B, K] (-1: none).
    """
    return {
        "mlm_loss": jnp.sum(batch["masked_weights"]),
        "nsp_loss": jnp.sum(batch["labels"] >= 0).astype(jnp.float32),
    }


def mlm_key(outputs: Arrays) -> str:
    """Returns the key of the MLM logits: "prediction_logits" if in `outputs`, else "logits"."""
    if "prediction_logits" in outputs:
        return "prediction_logits"
    return "logits"


def pretraining_sums(outputs: Arrays, batch: Arrays) -> Sums:
    """Sums losses and accuracies of masked language modelling and next sentence prediction.

    `outputs` are prediction_logits [B, P, V] and seq_relationship_logits [B, K, 2], or the logits
    [B, P, V] of a masked LM; the batch has masked_labels int [B, P], the ids of the masked tokens,
    masked_weights float [B, P] and labels int [B, K], as in `pretraining_weights`.
    """
    mlm_loss, mlm_right = _cross_entropy(outputs[mlm_key(outputs)], batch["masked_labels"])
    mlm_weights = batch["masked_weights"]
    weights = pretraining_weights(batch)
    masked = weights["mlm_loss"]
    sums = {
        "mlm_loss": (jnp.sum(mlm_loss * mlm_weights), masked),
        "mlm_accuracy": (jnp.sum(mlm_right * mlm_weights), masked),
    }
    if "seq_relationship_logits" not in outputs:
        return sums
    nsp_labels = batch["labels"]
    nsp_weights = (nsp_labels >= 0).astype(jnp.float32)
    nsp_logits = outputs["seq_relationship_logits"]
    nsp_loss, nsp_right = _cross_entropy(nsp_logits, jnp.maximum(nsp_labels, 0))
    labelled = weights["nsp_loss"]
    sums["nsp_loss"] = (jnp.sum(nsp_loss * nsp_weights), labelled)
    sums["nsp_accuracy"] = (jnp.sum(nsp_right * nsp_weights), labelled)
    return sums


def _rtd_weights(batch: Arrays) -> dict[str, jax.Array]:
    real = jnp.sum(batch["sequence_ids"] > 0).astype(jnp.float32)
    return pretraining_weights(batch) | {"rtd_loss": real}


def _rtd_sums(outputs: Arrays, batch: Arrays) -> Sums:
    """Sums the losses of the generator's masked LM and of the discriminator, over all tokens.

    `outputs` has prediction_logits [B, P, V] of the generator, logits [B, L] of the discriminator,
    and replaced float [B, L], 1 for the tokens that the generator has changed.
    """
    real = (batch["sequence_ids"] > 0).astype(jnp.float32)
    logits = outputs["logits"]
    replaced = outputs["replaced"]
    losses = optax.sigmoid_binary_cross_entropy(logits, replaced)
    predicted = (logits > 0) * real
    right = jnp.sum((predicted == replaced) * real)
    true_positives = jnp.sum(predicted * replaced)
    count = jnp.sum(real)
    return pretraining_sums(outputs, batch) | {
        "rtd_loss": (jnp.sum(losses * real), count),
        "rtd_accuracy": (right, count),
        "rtd_precision": (true_positives, jnp.sum(predicted)),
        "rtd_recall": (true_positives, jnp.sum(replaced)),
    }


def label_weights(batch: Arrays) -> dict[str, jax.Array]:
    """Returns the total weight of the loss: the sum of the batch's "label_weights"."""
    return {"loss": jnp.sum(batch["label_weights"])}


def _class_sums(
    outputs: Arrays,
    batch: Arrays,
    label_smoothing: float = 0.0,
    class_weights: Sequence[float] | None = None,
) -> Sums:
    """Sums cross entropy and, for labels of positive weight, accuracy of logits [..., C].

    The logits of choices are [B, K], of which C consecutive ones belong to an example.
    `label_smoothing` is that of PyTorch's CrossEntropyLoss; it needs the `class_weights`, of which
    those of the labels are in "label_weights".
    """
    logits = outputs["logits"]
    labels = batch["labels"]
    weights = batch["label_weights"]
    logits = logits.reshape(*labels.shape, -1)
    losses, right = _cross_entropy(logits, jnp.maximum(labels, 0))
    sums = _weighted(losses, weights)
    if label_smoothing:
        of_classes = -jax.nn.log_softmax(logits)
        if class_weights is not None:
            lead = (1,) * losses.ndim
            of_classes *= jnp.asarray(class_weights).reshape(*lead, -1)
        spread = jnp.where(labels >= 0, of_classes.mean(-1), 0.0)
        spread = jnp.sum(spread)
        total, weight = sums["loss"]
        total = (1.0 - label_smoothing) * total + label_smoothing * spread
        sums["loss"] = (total, weight)
    counted = (weights > 0).astype(jnp.float32)
    return sums | _weighted(right, counted, "accuracy")


def _soft_class_losses(outputs: Arrays, teacher: Arrays, batch: Arrays, t: float) -> jax.Array:
    shape = batch["label_weights"].shape
    student_logits = outputs["logits"].reshape(*shape, -1)
    return soft_targets_loss(student_logits, teacher["logits"].reshape(*shape, -1), t)


def _multi_label_sums(
    outputs: Arrays, batch: Arrays, class_weights: Sequence[float] | None = None
) -> Sums:
    """Sums the binary cross entropy, averaged over the classes, of logits and labels [B, K, C].

    `class_weights` are the `pos_weight` of PyTorch's BCEWithLogitsLoss.
    """
    labels = batch["labels"]
    losses = optax.sigmoid_binary_cross_entropy(outputs["logits"], labels)
    if class_weights is not None:
        losses *= jnp.where(labels > 0, jnp.asarray(class_weights)[None, None], 1.0)
    return _weighted(losses.mean(-1), batch["label_weights"])


def _distribution_sums(outputs: Arrays, batch: Arrays, label_smoothing: float = 0.0) -> Sums:
    """Sums the cross entropy of logits with the probabilities in labels, both float [B, K, C]."""
    labels = optax.smooth_labels(batch["labels"], label_smoothing)
    losses = optax.softmax_cross_entropy(outputs["logits"], labels)
    return _weighted(losses, batch["label_weights"])


def _soft_multi_label_losses(
    outputs: Arrays, teacher: Arrays, batch: Arrays, t: float
) -> jax.Array:
    return binary_soft_targets_loss(outputs["logits"], teacher["logits"], t).mean(-1)


def _regression_sums(outputs: Arrays, batch: Arrays) -> Sums:
    """Sums the squared error of logits [B, K, 1] for labels and label_weights float [B, K]."""
    errors = jnp.square(outputs["logits"][..., 0] - batch["labels"])
    return _weighted(errors, batch["label_weights"])


def _targets_sums(outputs: Arrays, batch: Arrays) -> Sums:
    """Sums the squared errors of logits for labels, float [B, K, C], that are not NaN.

    The losses are the means of an example's targets, and "label_weights" the shares of the targets
    that are present, so that the mean loss is the mean over all targets that are present.
    """
    is_present = jnp.isfinite(batch["labels"])
    labels = jnp.where(is_present, batch["labels"], 0.0)
    errors = jnp.square(outputs["logits"] - labels) * is_present
    losses = errors.sum(-1) / jnp.maximum(is_present.sum(-1), 1)
    return _weighted(losses, batch["label_weights"])


def _soft_regression_losses(outputs: Arrays, teacher: Arrays, batch: Arrays, t: float) -> jax.Array:
    return jnp.square(outputs["logits"] - teacher["logits"]).mean(-1)


def _ranking_sums(outputs: Arrays, batch: Arrays, *, loss: str, temperature: float) -> Sums:
    labels = batch["labels"]  # [B, K/C, C], of a query's passages, the positive first
    logits = outputs["logits"].reshape(labels.shape)
    losses: Any
    if loss == "binary":
        losses = optax.sigmoid_binary_cross_entropy(logits, labels).mean(-1)
    elif loss == "listwise":
        losses = optax.softmax_cross_entropy(logits, labels)
    elif loss == "margin":
        losses = margin_loss(logits, labels)
    else:
        losses = soft_targets_loss(logits, labels, temperature)
    return _weighted(losses, batch["label_weights"])


def tokens_of_sequences(sequence_ids: jax.Array, count: int) -> jax.Array:
    """Returns a bool mask [B, K, L]: whether token l has the sequence id k + 1 (k from 0)."""
    numbers = jnp.arange(1, count + 1)
    return sequence_ids[:, None, :] == numbers[None, :, None]


def _span_sums(outputs: Arrays, batch: Arrays) -> Sums:
    """Sums the mean of the cross entropies of the answer's first and last token.

    The softmax of start_logits or end_logits [B, L] runs over the tokens of one sequence of a
    packed row. labels int [B, K, 2] are the positions in the row of each answer's two tokens.
    """
    labels = batch["labels"]
    weights = batch["label_weights"]
    inside = tokens_of_sequences(batch["sequence_ids"], labels.shape[1])
    losses = jnp.zeros(())
    for end, key in enumerate(("start_logits", "end_logits")):
        logits = jnp.where(inside, outputs[key][:, None, :], jnp.finfo(jnp.float32).min)
        entropies, _ = _cross_entropy(logits, labels[..., end])
        losses += entropies / 2
    # If a row has fewer than K sequences, the missing ones have no tokens: their losses are
    # meaningless but finite, and their weights are 0.
    losses = jnp.where(weights > 0, losses, 0.0)
    return _weighted(losses, weights)


def _soft_span_losses(outputs: Arrays, teacher: Arrays, batch: Arrays, t: float) -> jax.Array:
    inside = tokens_of_sequences(batch["sequence_ids"], batch["labels"].shape[1])

    def within(logits: jax.Array) -> jax.Array:
        return jnp.where(inside, logits[:, None, :], OUTSIDE)

    def of_end(key: str) -> jax.Array:
        return soft_targets_loss(within(outputs[key]), within(teacher[key]), t)

    return (of_end("start_logits") + of_end("end_logits")) / 2


def _weighted(values: jax.Array, weights: jax.Array, name: str = "loss") -> Sums:
    return {name: (jnp.sum(values * weights), jnp.sum(weights))}


def _cross_entropy(logits: jax.Array, labels: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Computes cross entropies [...] and hits [...] (1.0 if argmax = label) of logits [..., C]."""
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
    return losses, (jnp.argmax(logits, axis=-1) == labels).astype(jnp.float32)


MASKED_LM = Objective(
    pretraining_sums,
    pretraining_weights,
    {"mlm_loss": 1.0},
    inputs=("masked_positions",),
    best_metric="mlm_loss",
    description="masked language modelling",
    metric_names={
        "mlm_loss": "held-out MLM loss (nats)",
        "unigram_entropy": "unigram entropy of the held-out text (nats)",
        "mlm_accuracy": "held-out MLM accuracy",
        "nsp_accuracy": "held-out NSP accuracy",
    },
)
# The two losses are averaged over the whole batch, whereas Google's code averages in each replica.
PRETRAINING = MASKED_LM._replace(
    loss_weights={"mlm_loss": 1.0, "nsp_loss": 1.0},
    description="masked language modelling and sentence pairs",
)


def replaced_token_detection(weight: float) -> Objective:
    """Returns the objective of ELECTRA (Clark et al. 2020, 2): masked LM, and replaced tokens.

    The total loss is the masked LM loss of the generator plus `weight` times the mean binary cross
    entropy of the discriminator over all tokens but padding.
    """
    return MASKED_LM._replace(
        sums=_rtd_sums,
        weights=_rtd_weights,
        loss_weights={"mlm_loss": 1.0, "rtd_loss": weight},
        inputs=("masked_positions", "masked_labels", "masked_weights"),
        description="replaced-token detection",
        metric_names={
            **MASKED_LM.metric_names,
            "rtd_loss": "held-out loss of replaced-token detection (nats)",
            "rtd_precision": "held-out precision of replaced tokens",
            "rtd_recall": "held-out recall of replaced tokens",
        },
    )


# Label weights that depend on the class may be small, so their sum has a smaller lower bound.
CLASSES = Objective(
    _class_sums,
    label_weights,
    {"loss": 1.0},
    min_weight=1e-12,
    soft_losses=_soft_class_losses,
    named_classes=True,
)
MULTI_LABEL = CLASSES._replace(sums=_multi_label_sums, soft_losses=_soft_multi_label_losses)
DISTRIBUTION = CLASSES._replace(sums=_distribution_sums)
TARGETS = CLASSES._replace(sums=_targets_sums, soft_losses=_soft_regression_losses)
REGRESSION = CLASSES._replace(
    sums=_regression_sums, soft_losses=_soft_regression_losses, named_classes=False
)


def ranking(loss: str, temperature: float) -> Objective:
    """Returns the objective of passages that are scored for a query by logits [B, K, 1].

    The labels, float [B, K/C, C], are relevances in "binary", the mean of the binary cross
    entropies, and "listwise", the cross entropy of the softmax. In "margin", the mean squared error
    of the differences between the positive and each negative (Hofstatter et al. 2020), and "kl",
    `soft_targets_loss`, they are a teacher's scores. Their weights are float [B, K/C].
    """
    sums = functools.partial(_ranking_sums, loss=loss, temperature=temperature)
    return REGRESSION._replace(sums=sums, soft_losses=None)


CHOICE = CLASSES._replace(named_classes=False)
SPAN = REGRESSION._replace(sums=_span_sums, soft_losses=_soft_span_losses)
