"""Pretraining on packed rows: losses and gradients are those of their sequences alone."""

import dataclasses
import json

import jax
import numpy as np
import pytest

from bertjax import prepare, pretrain
from bertjax.config import OptimizerConfig, Phase, PrepareConfig, PretrainConfig
from bertjax.data.batches.batch import layout, pad_to, stack
from bertjax.model import BertForPreTraining
from bertjax.model.losses import pretraining_weights
from bertjax.train.pretraining import PretrainingJob, make_job
from bertjax.train.program import max_predictions
from bertjax.train.step import make_loss_fn
from bertjax.weights import init_params


def one_a_row(batch):
    """The same sequences with the same masks, a row each, in arrays of the same length."""
    rows = []
    length, most, slots = (
        batch[key].shape[1] for key in ("input_ids", "masked_positions", "sequence_starts")
    )
    for row in range(len(batch["input_ids"])):
        own = {key: values[row] for key, values in batch.items()}
        for slot in range(own["sequence_ids"].max()):
            inside = np.flatnonzero(own["sequence_ids"] == slot + 1)
            start, size = inside[0], len(inside)
            assert start == own["sequence_starts"][slot]
            masked = (own["masked_weights"] > 0) & np.isin(own["masked_positions"], inside)
            positions = own["masked_positions"][masked] - start
            rows.append(
                {
                    "input_ids": pad_to(own["input_ids"][inside], length, 0),
                    "token_type_ids": pad_to(own["token_type_ids"][inside], length, 0),
                    **layout([size], length, slots),
                    "masked_positions": pad_to(positions, most, 0),
                    "masked_labels": pad_to(own["masked_labels"][masked], most, 0),
                    "masked_weights": pad_to(masked[masked], most, 0).astype(np.float32),
                    "labels": pad_to(own["labels"][slot : slot + 1], slots, -1),
                }
            )
    return stack(rows)


def with_empty_rows(batch, count):
    """As many rows as the other batch has, so that one program computes both."""
    unused = dict.fromkeys(batch, 0) | {"labels": -1}
    return {
        key: np.concatenate([x, np.full((count - len(x), *x.shape[1:]), unused[key], x.dtype)])
        for key, x in batch.items()
    }


def packed_run(documents, tokenizer, folder, model, length) -> PretrainingJob:
    """A run on packed rows of documents that are shorter than a row."""
    input_file = folder / "text.txt"
    input_file.write_text("\n\n".join(documents))
    data = PrepareConfig(
        input=(str(input_file),),
        tokenizer=str(tokenizer),
        output=str(folder / "data"),
        max_length=(length,),
        eval_fraction=0.1,
        num_processes=1,
        pack=True,
        text_format="lines",
    )
    prepare.run(data)
    return make_job(
        PretrainConfig(
            data=data.output,
            workdir=str(folder / "run"),
            model=model,
            phases=(Phase(num_steps=30, max_length=length, batch_size=8),),
            optimizer=OptimizerConfig(learning_rate=1e-2, warmup_steps=3),
            peak_tflops=0.1,
        )
    )


def check_equal_to_sequences_alone(run: PretrainingJob) -> None:
    batch = jax.device_get(next(run.batches(0, 0)))
    alone = one_a_row(batch)
    assert len(alone["input_ids"]) > 1.5 * len(batch["input_ids"])
    assert alone["masked_weights"].sum() == batch["masked_weights"].sum()
    model = BertForPreTraining(
        dataclasses.replace(
            run.config.model, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0
        )
    )
    params, loss_fn = init_params(model, 0), make_loss_fn(model)

    @jax.jit
    def loss_and_grads(params, batch):
        return jax.value_and_grad(loss_fn, has_aux=True)(
            params, batch, pretraining_weights(batch), None
        )

    packed = with_empty_rows({key: batch[key] for key in alone}, len(alone["input_ids"]))
    (loss, sums), grads = loss_and_grads(params, packed)
    (loss_alone, sums_alone), grads_alone = loss_and_grads(params, alone)
    np.testing.assert_allclose(loss, loss_alone, rtol=0, atol=1e-5)
    for key in sums:
        np.testing.assert_allclose(sums[key], sums_alone[key], rtol=1e-5)
    for a, b in zip(jax.tree.leaves(grads), jax.tree.leaves(grads_alone), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=2e-6)


@pytest.fixture(scope="module")
def run(corpus, sentences, tmp_path_factory, tiny_config, tokenizer) -> PretrainingJob:
    model = dataclasses.replace(tiny_config, vocab_size=tokenizer.vocab_size)
    folder = tmp_path_factory.mktemp("packed")
    short = [" ".join(sentence.split()[:5]) for sentence in sentences]
    documents = ["\n".join(short[i : i + 1 + i % 3]) for i in range(len(short))]
    return packed_run(documents, corpus / "tokenizer", folder, model, 64)


def test_losses_and_gradients_are_those_of_the_sequences_alone(run):
    check_equal_to_sequences_alone(run)


def test_every_sequence_has_its_share_of_masked_tokens(run):
    batch = jax.device_get(next(run.batches(0, 0)))
    for ids, positions, weights in zip(
        batch["sequence_ids"], batch["masked_positions"], batch["masked_weights"], strict=True
    ):
        lengths = np.bincount(ids)[1:]
        found = np.bincount(ids[positions[weights > 0]], minlength=len(lengths) + 1)[1:]
        assert found.tolist() == [max(1, round(0.15 * n)) for n in lengths]


@pytest.mark.slow
@pytest.mark.exhaustive
def test_max_predictions_leaves_room_for_every_sequence_of_a_packed_row(run):
    count = run.metadata.max_sequences
    phase = dataclasses.replace(run.config.phases[0], max_predictions=10)  # 64 * .15 is 9.6
    assert count > 1 and max_predictions(run.config, phase, count) == 10 + count // 2
    assert max_predictions(run.config, phase) == 10
    # So every sequence of the batch has its share, and not only the first ones of full rows.
    run = make_job(dataclasses.replace(run.config, phases=(phase,)))
    batch = jax.device_get(next(run.batches(0, 0)))
    for row in one_a_row(batch)["masked_weights"]:
        assert row.sum() >= 1


@pytest.mark.slow
@pytest.mark.exhaustive
def test_a_run_on_packed_rows_learns(run, tmp_path):
    config = dataclasses.replace(run.config, workdir=str(tmp_path / "run"))
    before = make_job(config).evaluate(run.new_state().params, config.phases[0])
    pretrain.run(config)
    metrics = (tmp_path / "run" / "metrics.jsonl").read_text()
    lines = [json.loads(line) for line in metrics.splitlines()]
    after = next(line for line in reversed(lines) if "eval/mlm_loss" in line)
    assert after["eval/mlm_loss"] < before["eval/mlm_loss"] - 0.2


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.real
def test_rows_of_wikipedia_equal_their_sequences_alone(shared, tmp_path, tiny_config):
    tokenizer = shared / "vocab" / "bert-base-uncased"
    model = dataclasses.replace(tiny_config, vocab_size=30522, max_position_embeddings=512)
    text = (shared / "text" / "wikitext-2.valid.raw").read_text()
    paragraphs = [line.replace(" . ", " .\n") for line in text.split("\n") if len(line) > 80]
    run = packed_run(paragraphs[:400], tokenizer, tmp_path, model, 512)
    content = run.metadata.splits["train"].lengths["512"]
    assert content.tokens / (512 * content.records) > 0.95
    check_equal_to_sequences_alone(run)
