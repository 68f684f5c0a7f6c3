"""Distillation: PyTorch's formulas, and one update for any devices; the teacher stays itself."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax.config import DistillationConfig, MeshConfig, OptimizerConfig, Phase, TeacherConfig
from bertjax.data.batches.batch import layout, pad_to, stack
from bertjax.devices import sharding
from bertjax.model import BertForPreTraining
from bertjax.model.heads import HEADS, BertForMaskedLM
from bertjax.model.losses import soft_targets_loss
from bertjax.train.distillation import distilled_pretraining, distilled_task
from bertjax.train.optimizer import make_optimizer, make_schedule
from bertjax.train.step import (
    TEACHER,
    Steps,
    create_train_state,
    make_loss_fn,
)
from bertjax.weights import init_params

ROWS, LENGTH, VOCAB, WIDTH, PREDICTIONS = 16, 8, 11, 6, 3


def pretraining_outputs(rng):
    """What both models might say of rows with padding, and the batch they were asked about."""
    lengths = [8, 5, 3]
    batch = stack(
        [
            {
                **layout([n], LENGTH, 1),
                "masked_positions": pad_to(np.sort(rng.permutation(n)[: i + 1]), PREDICTIONS, 0),
                "masked_labels": pad_to(rng.integers(0, VOCAB, i + 1), PREDICTIONS, 0),
                "masked_weights": pad_to(np.ones(i + 1), PREDICTIONS, 0).astype(np.float32),
                "labels": np.array([-1], np.int32),
            }
            for i, n in enumerate(lengths)
        ]
    )

    def said(*names):
        words = {
            name: (3 * rng.normal(size=(3, LENGTH, VOCAB))).astype(np.float32) for name in names
        }
        hidden = rng.normal(size=(3, LENGTH, WIDTH)).astype(np.float32)
        return words | {"last_hidden_state": hidden}

    nsp = np.zeros((3, 1, 2), np.float32)
    outputs = said("prediction_logits") | {"seq_relationship_logits": nsp}
    return {**outputs, TEACHER: said("logits")}, batch


def at(x, positions):
    return np.take_along_axis(x, positions[:, :, None], axis=1)


@pytest.mark.parity
@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_the_gradient_of_soft_targets_is_pytorchs(temperature):
    torch = pytest.importorskip("torch")
    f = torch.nn.functional
    rng = np.random.default_rng(0)
    student, teacher = (
        (10 * rng.normal(size=(5, VOCAB))).astype(np.float32) + shift for shift in (100.0, -100.0)
    )
    weights = rng.normal(size=5).astype(np.float32)
    theirs = torch.tensor(student, requires_grad=True)
    kl = f.kl_div(
        f.log_softmax(theirs / temperature, -1),
        f.softmax(torch.tensor(teacher) / temperature, -1),
        reduction="none",
    ).sum(-1)
    (temperature**2 * (kl * torch.tensor(weights)).sum()).backward()

    def loss(student):
        return jnp.sum(soft_targets_loss(student, teacher, temperature) * weights)

    np.testing.assert_allclose(jax.jit(jax.grad(loss))(student), theirs.grad, atol=1e-5)


@pytest.mark.parity
@pytest.mark.parametrize("on", [pytest.param("all", marks=pytest.mark.slow), "masked"])
def test_the_loss_of_pretraining_is_that_of_pytorchs_formulas(on):
    torch = pytest.importorskip("torch")
    f = torch.nn.functional
    outputs, batch = pretraining_outputs(np.random.default_rng(0))
    teacher, positions = outputs[TEACHER], batch["masked_positions"]
    chosen, is_real = batch["masked_weights"] > 0, batch["sequence_ids"] > 0
    at_masks = at(outputs["prediction_logits"], positions)
    pairs = (outputs["prediction_logits"][is_real], teacher["logits"][is_real])
    if on == "masked":
        pairs = (at_masks[chosen], at(teacher["logits"], positions)[chosen])
    student, taught = (torch.tensor(x) / 2 for x in pairs)
    kl = torch.nn.KLDivLoss(reduction="batchmean")
    soft = 4 * kl(f.log_softmax(student, -1), f.softmax(taught, -1))
    mlm = f.cross_entropy(
        torch.tensor(at_masks[chosen]), torch.tensor(batch["masked_labels"][chosen]).long()
    )
    states = [torch.tensor(x["last_hidden_state"][is_real]) for x in (outputs, teacher)]
    cosine = torch.nn.CosineEmbeddingLoss()(*states, torch.ones(len(states[0])))
    objective = distilled_pretraining(DistillationConfig(teacher="t", soft_targets_on=on))
    if on == "masked":  # there the models are asked at the masks alone
        outputs["prediction_logits"] = at_masks
        outputs[TEACHER] = teacher | {"logits": at(teacher["logits"], positions)}
    sums = jax.jit(objective.sums)(outputs, batch)
    for name, expected in (("soft_loss", soft), ("mlm_loss", mlm), ("cosine_loss", cosine)):
        np.testing.assert_allclose(sums[name][0] / sums[name][1], expected.item(), rtol=1e-5)
    loss = objective.loss(sums, objective.weights(batch))
    np.testing.assert_allclose(loss, (5 * soft + 2 * mlm + cosine).item(), rtol=1e-5)


OBJECTIVES = {
    kind: objective for head in HEADS.values() for kind, objective in head.objectives.items()
}
SHAPES = {
    "classes": ((2, 3, 4), (2, 3)),
    "multi_label": ((2, 3, 4), (2, 3)),
    "distribution": ((2, 3, 4), (2, 3)),
    "regression": ((2, 3, 1), (2, 3)),
    "targets": ((2, 3, 4), (2, 3)),
    "tokens": ((2, 6, 4), (2, 6)),
    "choice": ((2, 6), (2, 3)),
    "span": ((2, 6), (2, 3)),
}


def task_outputs(kind, rng):
    """Logits of both models, and a batch with an empty slot in each row."""
    of_logits, of_labels = SHAPES[kind]
    keys = ("start_logits", "end_logits") if kind == "span" else ("logits",)
    student, teacher = (
        {key: (2 * rng.normal(size=of_logits)).astype(np.float32) for key in keys} for _ in "st"
    )
    weights = rng.uniform(0.5, 2, of_labels).astype(np.float32)
    weights[:, -1] = 0
    labels = rng.integers(0, 2, of_labels).astype(np.int32)
    if kind == "multi_label":
        labels = rng.integers(0, 2, of_logits).astype(np.float32)
    elif kind == "distribution":
        labels = rng.dirichlet(np.ones(4), (2, 3)).astype(np.float32)
    elif kind == "targets":
        labels = np.where(rng.random(of_logits) < 0.3, np.nan, 1.0).astype(np.float32)
    elif kind == "regression":
        labels = rng.normal(size=of_labels).astype(np.float32)
    elif kind == "span":
        labels = np.array([[[0, 1], [3, 3], [0, 0]]] * 2, np.int32)
    sequence_ids = np.array([[1, 1, 1, 2, 2, 0]] * 2, np.int32)
    batch = {"labels": labels, "label_weights": weights, "sequence_ids": sequence_ids}
    return {**student, TEACHER: teacher}, batch


def soft_losses_of_torch(torch, kind, student, teacher, temperature):
    """PyTorch's formulas, where the places of the labels are [2, 3], or [2, 6] for tokens."""
    f = torch.nn.functional

    def kl(x, y):
        terms = f.kl_div(
            f.log_softmax(x / temperature, -1), f.softmax(y / temperature, -1), reduction="none"
        )
        return temperature**2 * terms.sum(-1)

    if kind == "span":
        found = torch.zeros(2, 3)
        for slot, tokens in enumerate((slice(0, 3), slice(3, 5))):
            for key in ("start_logits", "end_logits"):
                found[:, slot] += kl(student[key][:, tokens], teacher[key][:, tokens]) / 2
        return found
    x, y = student["logits"], teacher["logits"]
    if kind in ("regression", "targets"):
        return f.mse_loss(x, y, reduction="none").mean(-1)
    if kind == "multi_label":  # yes and no are two classes, whose logits differ by the one
        zeros = torch.zeros_like(x)
        return kl(torch.stack([x, zeros], -1), torch.stack([y, zeros], -1)).mean(-1)
    if kind == "choice":
        x, y = x.reshape(2, 3, 2), y.reshape(2, 3, 2)
    return kl(x, y)


def teacher_of(temperature, weight):
    return TeacherConfig(model="t", temperature=temperature, weight=weight)


@pytest.mark.parity
@pytest.mark.parametrize(
    "kind",
    [
        *("classes", "span"),
        *(pytest.param(x, marks=pytest.mark.slow) for x in SHAPES if x not in ("classes", "span")),
    ],
)
def test_the_loss_of_a_task_is_that_of_pytorchs_formulas(kind):
    torch = pytest.importorskip("torch")
    outputs, batch = task_outputs(kind, np.random.default_rng(1))
    temperature, share, weights = 3.0, 0.3, batch["label_weights"]
    objective = distilled_task(OBJECTIVES[kind], teacher_of(temperature, share))
    loss = objective.loss(jax.jit(objective.sums)(outputs, batch), objective.weights(batch))
    tensors = [
        {key: torch.tensor(x) for key, x in said.items() if key != TEACHER}
        for said in (outputs, outputs[TEACHER])
    ]
    soft = soft_losses_of_torch(torch, kind, *tensors, temperature).numpy()
    hard = OBJECTIVES[kind]
    of_labels = hard.loss(hard.sums(outputs, batch), hard.weights(batch))
    expected = (1 - share) * of_labels + share * (soft * weights).sum() / weights.sum()
    np.testing.assert_allclose(loss, expected, rtol=1e-5)


@pytest.mark.parametrize("kind", ["classes", "multi_label", "span"])
def test_a_student_that_agrees_has_no_soft_loss_and_no_gradient(kind):
    outputs, batch = task_outputs(kind, np.random.default_rng(2))
    student = {key: x for key, x in outputs.items() if key != TEACHER}
    objective = distilled_task(OBJECTIVES[kind], teacher_of(0.05, 1.0))

    @jax.jit
    def loss_and_grads(student, teacher):
        def loss(student):
            sums = objective.sums({**student, TEACHER: teacher}, batch)
            return objective.loss(sums, objective.weights(batch))

        return jax.value_and_grad(loss)(student)

    value, grads = loss_and_grads(student, student)
    assert abs(value) < 1e-5
    assert all(np.abs(g).max() < 1e-5 for g in jax.tree.leaves(grads))
    value, grads = loss_and_grads(student, outputs[TEACHER])
    assert value > 1e-3 and all(np.isfinite(g).all() for g in jax.tree.leaves(grads))


class Distilled:
    """Two updates of a student of one layer beside a teacher of two, dropout on."""

    def __init__(self, config, devices, mesh=None, accumulation=1):
        config = dataclasses.replace(
            config, hidden_dropout_prob=0.3, attention_probs_dropout_prob=0.0
        )
        student = dataclasses.replace(config, num_hidden_layers=1)
        teacher = BertForMaskedLM(config)
        objective = distilled_pretraining(DistillationConfig(teacher="t"))
        self.mesh = sharding.make_mesh(mesh or MeshConfig(), jax.devices()[:devices])
        self.rows = sharding.batch_sharding(self.mesh)
        optimizer = OptimizerConfig(
            recipe="adamw", learning_rate=1e-2, warmup_steps=1, eps=1e-3, schedule="hf"
        )
        phase = Phase(num_steps=10, max_length=LENGTH, batch_size=ROWS)
        schedule = make_schedule(optimizer, [phase])
        self.tx = make_optimizer(optimizer, schedule)
        model = BertForPreTraining(student)
        self.steps = Steps(
            make_loss_fn(model, objective, teacher),
            objective.weights,
            self.tx,
            schedule,
            self.mesh,
            accumulation_steps=accumulation,
        )
        self.params, self.teacher = init_params(model, 0), init_params(teacher, 1)

    def run(self, batch, steps=2):
        """Parameters and metrics of the last step, the state, and the teacher afterwards."""
        state = create_train_state(self.params, {}, self.tx)
        where = sharding.state_sharding(self.mesh, state)
        of_teacher = sharding.state_sharding(self.mesh, self.teacher)
        step = self.steps.compiled(where, self.rows, of_teacher)
        teacher = jax.device_put(self.teacher, of_teacher)
        # A copy, for the step takes what it is given.
        state = jax.device_put(jax.tree.map(jnp.copy, state), where)
        rows = sharding.host_rows(self.rows, ROWS)
        placed = sharding.to_devices(batch, rows, self.rows, ROWS)
        metrics = {}
        for _ in range(steps):
            state, metrics = step(state, placed, np.uint32(0), teacher)
        return jax.device_get((state.params, metrics)), state, teacher


@pytest.fixture(scope="module")
def batch(tiny_config):
    rng = np.random.default_rng(0)
    rows = []
    for _ in range(ROWS):
        n, p = int(rng.integers(4, LENGTH + 1)), int(rng.integers(1, PREDICTIONS + 1))
        rows.append(
            {
                "input_ids": pad_to(rng.integers(5, tiny_config.vocab_size, n), LENGTH, 0),
                "token_type_ids": np.zeros(LENGTH, np.int32),
                **layout([n], LENGTH, 1),
                "masked_positions": pad_to(np.sort(rng.permutation(n)[:p]), PREDICTIONS, 0),
                "masked_labels": pad_to(rng.integers(5, tiny_config.vocab_size, p), PREDICTIONS, 0),
                "masked_weights": pad_to(np.ones(p), PREDICTIONS, 0).astype(np.float32),
                "labels": rng.integers(-1, 2, 1).astype(np.int32),
            }
        )
    return stack(rows)


@pytest.fixture(scope="module")
def one_device(tiny_config, batch):
    """Parameters and metrics of one device and one batch."""
    return Distilled(tiny_config, 1).run(batch)[0]


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("mesh", "accumulation"),
    [
        (MeshConfig(tensor=2, fsdp=2), 2),
        *(
            pytest.param(*case, marks=pytest.mark.exhaustive)
            for case in ((MeshConfig(), 1), (MeshConfig(), 2), (MeshConfig(fsdp=4), 2))
        ),
    ],
)
def test_eight_devices_and_microbatches_equal_one_device(
    tiny_config, batch, one_device, mesh, accumulation
):
    (params, metrics), _, _ = Distilled(tiny_config, 8, mesh, accumulation).run(batch)
    for a, b in zip(jax.tree.leaves(params), jax.tree.leaves(one_device[0]), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5)
    assert {"soft_loss", "cosine_loss", "mlm_loss"} <= metrics["sums"].keys()
    for key, pair in metrics["sums"].items():
        np.testing.assert_allclose(pair, one_device[1]["sums"][key], rtol=1e-5)


@pytest.mark.slow
def test_the_teacher_stays_itself_and_has_no_part_in_state_or_moments(tiny_config, batch):
    setup = Distilled(tiny_config, 1)
    before = jax.device_get((setup.params, setup.teacher))
    (params, _), state, teacher = setup.run(batch)
    assert jax.tree.all(jax.tree.map(np.array_equal, jax.device_get(teacher), before[1]))
    trained = jax.tree.map(
        lambda a, b: not np.array_equal(a, b),
        params["bert"]["encoder"],
        before[0]["bert"]["encoder"],
    )
    assert jax.tree.all(trained)
    assert params.keys() == before[0].keys()
    size = sum(x.size for x in jax.tree.leaves(params))
    assert sum(x.size for x in jax.tree.leaves(state.opt_state)) < 2 * size + 10


class Table:
    """What a model is to the loss, with an embedding for all of its wisdom."""

    is_random = False

    def apply(self, variables, input_ids, *others, **named):
        logits = variables["params"]["table"][input_ids]
        nsp = jnp.zeros((len(input_ids), 1, 2))
        words = {"logits": logits, "prediction_logits": logits}
        return words | {"last_hidden_state": logits, "seq_relationship_logits": nsp}


def test_no_gradient_reaches_the_teacher(batch, tiny_config):
    model: Any = Table()
    objective = distilled_pretraining(DistillationConfig(teacher="t"))
    loss_fn = make_loss_fn(model, objective, model)
    size = (tiny_config.vocab_size, tiny_config.vocab_size)
    tables = np.random.default_rng(0).normal(size=(2, *size)).astype(np.float32)
    params = {"table": tables[0]}, {"table": tables[1]}
    weights = objective.weights(batch)
    grads = jax.jit(jax.grad(lambda p: loss_fn(p[0], batch, weights, None, p[1])[0]))(params)
    assert np.any(grads[0]["table"]) and not np.any(grads[1]["table"])


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"soft_targets": 0, "cosine": 0}, "soft_targets=0, cosine=0: one of them"),
        ({"mlm": -1}, "mlm=-1"),
        ({"temperature": 0}, "temperature=0"),
        (
            {"soft_targets": 0, "temperature": 3.0},
            "temperature=3.0 has no effect with soft_targets",
        ),
    ],
)
def test_lessons_without_effect_are_refused(fields, message):
    with pytest.raises(ValueError, match=message):
        DistillationConfig(teacher="t", **fields)
