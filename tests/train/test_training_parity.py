"""Gradients and whole training runs equal PyTorch's."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax.traverse_util import flatten_dict

from bertjax.config import OptimizerConfig, Phase
from bertjax.model import BertForPreTraining, named_config
from bertjax.model.losses import pretraining_weights
from bertjax.train.optimizer import make_optimizer, make_schedule
from bertjax.train.step import make_loss_fn
from bertjax.weights import init_params, names, save_hf

pytestmark = pytest.mark.parity

ROWS, LENGTH, PREDICTIONS, STEPS = 8, 24, 4, 50
CONFIG = named_config(
    "bert-tiny", vocab_size=300, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0
)


def random_batch(seed: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    lengths = rng.integers(8, LENGTH + 1, ROWS)
    mask = (np.arange(LENGTH) < lengths[:, None]).astype(np.int32)
    positions = np.sort([rng.permutation(8)[:PREDICTIONS] for _ in range(ROWS)])
    return {
        "input_ids": np.where(mask, rng.integers(5, 300, (ROWS, LENGTH)), 0).astype(np.int32),
        "token_type_ids": ((np.arange(LENGTH) > 4) * mask).astype(np.int32),
        "position_ids": np.broadcast_to(np.arange(LENGTH, dtype=np.int32), (ROWS, LENGTH)),
        "sequence_ids": mask,
        "sequence_starts": np.zeros((ROWS, 1), np.int32),
        "masked_positions": positions.astype(np.int32),
        "masked_labels": rng.integers(5, 300, (ROWS, PREDICTIONS)).astype(np.int32),
        "masked_weights": np.ones((ROWS, PREDICTIONS), np.float32),
        "labels": rng.integers(0, 2, (ROWS, 1)).astype(np.int32),
    }


@pytest.fixture(scope="module")
def torch():
    return pytest.importorskip("torch", reason="the extra `parity` is not installed")


@pytest.fixture
def both(torch, tmp_path, tokenizer):
    """Our model and parameters, and transformers' model with the same ones."""
    transformers = pytest.importorskip("transformers", reason="the extra `parity` is not installed")
    model = BertForPreTraining(CONFIG)
    params = jax.tree.map(jnp.asarray, init_params(model, 0))
    save_hf(tmp_path / "m", jax.device_get(params), CONFIG, tokenizer)
    return model, params, transformers.BertForPreTraining.from_pretrained(tmp_path / "m").train()


def their_loss(torch, theirs, batch):
    """transformers' own loss: labels of -100 where nothing is predicted."""
    labels = np.full((ROWS, LENGTH), -100)
    np.put_along_axis(labels, batch["masked_positions"], batch["masked_labels"], 1)
    return theirs(
        input_ids=torch.tensor(batch["input_ids"], dtype=torch.long),
        attention_mask=torch.tensor(batch["sequence_ids"], dtype=torch.long),
        token_type_ids=torch.tensor(batch["token_type_ids"], dtype=torch.long),
        labels=torch.tensor(labels, dtype=torch.long),
        next_sentence_label=torch.tensor(batch["labels"][:, 0], dtype=torch.long),
    ).loss


def our_loss(model):
    loss_fn = make_loss_fn(model)
    return lambda params, batch: loss_fn(params, batch, pretraining_weights(batch), None)[0]


@pytest.mark.slow
def test_gradients_equal_pytorch(both, torch):
    model, params, theirs = both
    batch = random_batch(0)
    loss, grads = jax.jit(jax.value_and_grad(our_loss(model)))(params, batch)
    expected = their_loss(torch, theirs, batch)
    expected.backward()
    np.testing.assert_allclose(loss, expected.item(), atol=1e-5)
    found = dict(names.to_hf(flatten_dict(jax.device_get(grads), sep="/"), CONFIG))
    wanted = {name: p.grad.numpy() for name, p in theirs.named_parameters()}
    assert found.keys() == wanted.keys()
    norm = np.sqrt(sum((g**2).sum() for g in wanted.values()))
    for name, gradient in wanted.items():
        difference = np.abs(found[name] - gradient).max()
        if name.endswith("key.bias"):  # zero in theory
            assert difference <= 1e-6 * norm, name
        else:
            assert difference <= 1e-4 * np.abs(gradient).max(), name


@pytest.mark.slow
def test_fifty_steps_of_adamw_equal_pytorch(both, torch):
    model, params, theirs = both
    phase = Phase(num_steps=STEPS + 1, max_length=LENGTH, batch_size=ROWS)
    config = OptimizerConfig(recipe="adamw", learning_rate=1e-4, warmup_steps=5, schedule="hf")
    schedule = make_schedule(config, [phase])
    tx = make_optimizer(config, schedule)
    decayed = [p for n, p in theirs.named_parameters() if "LayerNorm" not in n and "bias" not in n]
    others = [p for n, p in theirs.named_parameters() if "LayerNorm" in n or "bias" in n]
    optimizer = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": 0.01}, {"params": others, "weight_decay": 0.0}],
        betas=(0.9, 0.999),
        eps=1e-6,
    )

    @jax.jit
    def step(params, opt_state, batch):
        loss, grads = jax.value_and_grad(our_loss(model))(params, batch)
        updates, opt_state = tx.update(grads, opt_state, params)
        return optax.apply_updates(params, updates), opt_state, loss

    opt_state = tx.init(params)
    for i in range(STEPS):
        batch = random_batch(i)
        params, opt_state, loss = step(params, opt_state, batch)
        for group in optimizer.param_groups:
            group["lr"] = float(schedule(jnp.asarray(i)))
        optimizer.zero_grad()
        expected = their_loss(torch, theirs, batch)
        expected.backward()
        torch.nn.utils.clip_grad_norm_(theirs.parameters(), 1.0, error_if_nonfinite=True)
        optimizer.step()
        np.testing.assert_allclose(loss, expected.item(), atol=1e-5, err_msg=f"step {i}")
    found = dict(names.to_hf(flatten_dict(jax.device_get(params), sep="/"), CONFIG))
    for name, value in theirs.named_parameters():
        np.testing.assert_allclose(found[name], value.detach().numpy(), atol=1e-5, err_msg=name)
