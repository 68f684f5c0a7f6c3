"""Distillation losses between the outputs of a student and those of its teacher.

The soft-target loss is the Kullback-Leibler divergence KL(teacher || student) of the distributions
at temperature T, times T^2. The factor T^2 keeps the magnitude of the gradients about the same for
all T (Hinton et al. 2015, 2). The cosine loss compares hidden states (Sanh et al. 2019, 3).
"""

import functools

import jax
import jax.numpy as jnp

# This is added to squared norms, as in PyTorch's CosineEmbeddingLoss, to avoid division by zero.
SMALLEST_SQUARE = 1e-12


def soft_targets_loss(student: jax.Array, teacher: jax.Array, temperature: float) -> jax.Array:
    """Computes KL(teacher || student) * T^2 at temperature T from the logits of C classes.

    The logits have the shape [..., C], the result has the shape [...]. The teacher's logits receive
    no gradient.
    """
    return _soft_targets(student, teacher, temperature)


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def _soft_targets(student: jax.Array, teacher: jax.Array, temperature: float) -> jax.Array:
    return _soft_targets_forward(student, teacher, temperature)[0]


def _soft_targets_forward(student: jax.Array, teacher: jax.Array, temperature: float):
    """Returns the loss, and the residuals for its gradient: both logits, and logsumexp(logits / T).

    T is the temperature. Logits over a vocabulary are large. Apart from the logits, no array of
    their size is stored for the backward pass; automatic differentiation of two log-softmaxes would
    store three such arrays.
    """
    s, t = student / temperature, teacher / temperature
    log_zs, log_zt = (jax.nn.logsumexp(x, axis=-1, keepdims=True) for x in (s, t))
    difference = jnp.sum(jnp.exp(t - log_zt) * (t - s), axis=-1)
    loss = temperature**2 * (difference + (log_zs - log_zt)[..., 0])
    return loss, (student, teacher, log_zs, log_zt)


def _soft_targets_gradient(temperature: float, residuals, gradient: jax.Array):
    """Returns the gradient for the student's logits, T * (q - p) * `gradient`, and None.

    The teacher's logits receive no gradient, hence None. T is the temperature; q and p are the
    probabilities of student and teacher at temperature T; `gradient` is the incoming gradient with
    respect to the loss.
    """
    student, teacher, log_zs, log_zt = residuals
    p, q = jnp.exp(teacher / temperature - log_zt), jnp.exp(student / temperature - log_zs)
    return temperature * gradient[..., None] * (q - p), None


_soft_targets.defvjp(_soft_targets_forward, _soft_targets_gradient)


def binary_soft_targets_loss(
    student: jax.Array, teacher: jax.Array, temperature: float
) -> jax.Array:
    """Computes KL(teacher || student) * T^2 elementwise: each logit gives a Bernoulli distribution.

    The student's logits, the teacher's logits and the result have the same shape; T is
    `temperature`.
    """
    teacher, student = teacher / temperature, student / temperature
    yes = jax.nn.log_sigmoid(teacher) - jax.nn.log_sigmoid(student)
    no = jax.nn.log_sigmoid(-teacher) - jax.nn.log_sigmoid(-student)
    return temperature**2 * (jax.nn.sigmoid(teacher) * yes + jax.nn.sigmoid(-teacher) * no)


def cosine_loss(student: jax.Array, teacher: jax.Array) -> jax.Array:
    """Computes 1 - the cosine of two vectors in float32, a loss of DistilBERT (Sanh et al. 2019).

    `student` and `teacher` are hidden states [..., D]; the result is [...].
    """
    x, y = student.astype(jnp.float32), teacher.astype(jnp.float32)
    squares = [jnp.sum(jnp.square(v), axis=-1) + SMALLEST_SQUARE for v in (x, y)]
    return 1.0 - jnp.sum(x * y, axis=-1) * jax.lax.rsqrt(squares[0] * squares[1])
