"""Losses of late interaction: values are those of their formulas."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import log_softmax

from bertjax.model.embedding_losses import GLOBAL
from bertjax.model.late_interaction import late_interaction_objective

EXAMPLES, TEXTS, TOKENS, SIZE, TEMPERATURE = 4, 3, 6, 5, 0.7


def score(query, document, mean):
    """Of the vectors of the tokens that count, in float64 (Khattab and Zaharia 2020, 3.3)."""
    highest = (query @ document.T).max(1)
    return highest.mean() if mean else highest.sum()


def formula(loss, texts, teacher, mean):
    """The values of the examples of `texts`, each a list of arrays [tokens, D]."""
    if loss == "contrastive":
        documents = [text for example in texts for text in example[1:]]
        ours = [[score(example[0], document, mean) for document in documents] for example in texts]
        found = log_softmax(np.array(ours) / TEMPERATURE, axis=1)
        return -np.array([found[i, i * (TEXTS - 1)] for i in range(len(texts))])
    ours = np.array([[score(x[0], document, mean) for document in x[1:]] for x in texts])
    if loss == "margin":
        errors = (ours[:, :1] - ours[:, 1:]) - (teacher[:, :1] - teacher[:, 1:])
        return np.square(errors).mean(1)
    wanted, found = (log_softmax(x / TEMPERATURE, axis=1) for x in (teacher, ours))
    return TEMPERATURE**2 * (np.exp(wanted) * (wanted - found)).sum(1)


@pytest.mark.parametrize("mean", [False, True])
@pytest.mark.parametrize("loss", ["contrastive", "margin", "kl"])
def test_values_are_those_of_the_formulas(loss, mean):
    rng = np.random.default_rng(0)
    vectors = rng.normal(size=(EXAMPLES, TEXTS, TOKENS, SIZE))
    mask = rng.random(vectors.shape[:-1]) < 0.6
    mask[..., 2] = True
    teacher = rng.normal(size=(EXAMPLES, TEXTS - 1))
    weights = np.array([1, 0.5, 2, 0], np.float32)
    if loss == "contrastive":
        labels = np.arange(EXAMPLES * TEXTS, dtype=np.int32).reshape(EXAMPLES, TEXTS)
        batch = {"labels": labels, "label_weights": weights}
        batch |= {"example_ids": np.arange(EXAMPLES), GLOBAL: dict(batch)}
        shape = (EXAMPLES, TEXTS, TOKENS)
    else:
        batch = {"labels": np.float32(teacher)[None], "label_weights": weights[None]}
        shape = (1, EXAMPLES * TEXTS, TOKENS)
    temperature = None if loss == "margin" else TEMPERATURE
    objective = late_interaction_objective(loss, temperature=temperature, mean=mean)

    @jax.jit
    def loss_of(vectors, mask):
        outputs = {"text_vectors": vectors.reshape(*shape, SIZE), "text_mask": mask.reshape(shape)}
        outputs[GLOBAL] = dict(outputs)
        return objective.loss(objective.sums(outputs, batch), objective.weights(batch))

    texts = [[x[m] for x, m in zip(*one, strict=True)] for one in zip(vectors, mask, strict=True)]
    found = loss_of(jnp.float32(vectors), jnp.float32(mask))
    exists = 4 if loss != "contrastive" else 3  # the last one is no negative of the others
    values = formula(loss, texts[:exists], teacher[:exists], mean)
    expected = np.average(values, weights=weights[:exists])
    np.testing.assert_allclose(found, expected, rtol=1e-5)
