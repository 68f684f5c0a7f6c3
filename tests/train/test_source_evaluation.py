"""Runs on mixtures: means over rows drawn by the weights, losses and epochs of each source."""

import dataclasses

import numpy as np
import pytest

from bertjax import prepare, pretrain
from bertjax.config import OptimizerConfig, Phase, PretrainConfig
from bertjax.data.batches.masking import Masking
from bertjax.data.batches.pretraining_batches import RowFormat
from bertjax.data.metadata import RowSource, unigram_entropy
from bertjax.data.records import Row, write_shard
from bertjax.train.held_out_evaluation import HeldOutSources, source_labels
from tests.lines import metrics_of
from tests.rows import encode_row
from tests.steps import after_each_step

MASKING = Masking(
    probability=0.15, max_predictions=5, vocab_size=200, mask_token_id=4, never_masked=(2, 3)
)


def held_out(folder, max_rows) -> HeldOutSources:
    """Rows whose first words are 20 in the large source, and 100 in the small one."""
    sources = []
    for name, weight, word, count in (("a/*", 3, 20, 30), ("b", 1, 100, 4)):
        path = str(folder / f"{word}.array_record")
        row = Row(np.array([2, *[word] * 8, 3, 3]), (11,), (10,), (1,))
        write_shard(path, [encode_row(row)] * count)
        sources.append(RowSource(name, weight, [path]))
    return HeldOutSources(sources, MASKING, RowFormat(16, 0), seed=0, max_rows=max_rows)


@pytest.mark.parametrize(("max_rows", "sizes"), [(8, [6, 2]), (1000, [30, 4]), (1, [1, 1])])
def test_a_source_counts_by_its_weight_whatever_the_number_of_its_rows(tmp_path, max_rows, sizes):
    sources = held_out(tmp_path, max_rows)
    assert [len(rows) for rows in sources.rows] == sizes

    def eval_step(_, batch):
        """The loss is 1 on rows of the first source, and 5 on those of the second."""
        real = (batch["sequence_ids"] > 0).any(axis=1)
        small = (batch["masked_labels"] == 100).any(axis=1)
        loss = np.where(small, 5.0, 1.0)[real]
        return {"mlm_loss": (loss.sum(), real.sum()), "mlm_accuracy": (0.0, real.sum())}

    result = sources.evaluate(eval_step, None, lambda rows: rows.batches(4, np.arange(4)))
    assert result == pytest.approx(
        {
            "mlm_loss": 0.75 * 1 + 0.25 * 5,
            "mlm_accuracy": 0,
            "mlm_loss_a": 1,
            "mlm_loss_b": 5,
            "unigram_entropy": unigram_entropy([3, 1]),
        }
    )


def test_labels_are_short_different_and_plain():
    labels = source_labels(["gs://x/wiki/*", "books", "tfds:a/1:2", "a b", "a_b", "你/x" * 30])
    assert labels[:4] == ["gs_x_wiki", "books", "tfds_a_1_2", "a_b_3"] and labels[4] == "a_b_4"
    assert len(set(labels)) == 6 and max(map(len, labels)) <= 42


@pytest.mark.slow
@pytest.mark.exhaustive
def test_a_resumed_run_on_a_mixture_equals_a_whole_one(
    small_chunks, sentences, one_layer_config, tokenizer, tmp_path, monkeypatch, capfd
):
    monkeypatch.chdir(tmp_path)
    for name, part in (("wiki", sentences[:200]), ("books", sentences[200:260])):
        (tmp_path / name).write_text(
            "\n\n".join("\n".join(part[i : i + 10]) for i in range(0, len(part), 10))
        )
    data = dataclasses.replace(
        small_chunks, input=("wiki=0.7,books=0.3",), output=str(tmp_path / "data"), num_processes=1
    )
    metadata = prepare.run(data)
    assert metadata is not None and metadata.sources is not None
    config = PretrainConfig(
        data=data.output,
        model=dataclasses.replace(one_layer_config, vocab_size=tokenizer.vocab_size),
        phases=(Phase(num_steps=6, max_length=16, batch_size=16),),
        optimizer=OptimizerConfig(learning_rate=1e-2, warmup_steps=3),
        unroll=1,
        log_every=1,
        eval_every=3,
        save_every=3,
        peak_tflops=0.1,
    )
    whole, resumed = tmp_path / "whole", tmp_path / "resumed"
    pretrain.run(dataclasses.replace(config, workdir=str(whole)))
    records = [source.splits["train"].lengths["16"].records for source in metadata.sources]
    expected = (
        f"6 steps of 16 rows of 16 tokens read wiki 70.00%, {68 / records[0]:.2f} epochs; "
        f"books 30.00%, {28 / records[1]:.2f} epochs"
    )
    captured = capfd.readouterr()
    assert expected in captured.out + captured.err
    last = [line for line in metrics_of(whole) if "eval/mlm_loss" in line][-1]
    assert {"eval/mlm_loss_wiki", "eval/mlm_loss_books", "eval/unigram_entropy"} <= last.keys()

    def kill(step):
        if step == 3:
            raise MemoryError

    with monkeypatch.context() as patch:
        after_each_step(patch, kill)
        with pytest.raises(MemoryError):
            pretrain.run(dataclasses.replace(config, workdir=str(resumed)))
    pretrain.run(dataclasses.replace(config, workdir=str(resumed)))
    assert metrics_of(resumed) == metrics_of(whole)
    prepare.run(dataclasses.replace(data, input=("wiki=1,books=1",)))
    with pytest.raises(ValueError, match="the data differs from the data of"):
        pretrain.run(dataclasses.replace(config, workdir=str(resumed)))
