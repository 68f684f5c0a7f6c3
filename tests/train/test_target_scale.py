"""Targets of regression are standardised in training, and the model predicts the original scale."""

import dataclasses
import types

import numpy as np
import pytest

import bertjax
from bertjax import finetune
from bertjax.config import FinetuneConfig
from bertjax.model import HEADS
from bertjax.tasks import finetune_config, make_task
from bertjax.tasks.classification import RegressionTask, RegressOptions
from bertjax.tasks.dataset import Example
from bertjax.train.facts import to_original, to_standardized

TASK = RegressionTask(name="regress", mean=250_000.0, std=140_000.0)


class OtherRegression(RegressionTask):
    """A regression with a head whose last layer has a name of its own."""

    head = "another"


@pytest.mark.parametrize("kind", [RegressionTask, OtherRegression])
def test_a_head_converted_to_the_original_scale_predicts_what_the_task_predicts(kind, monkeypatch):
    other = types.SimpleNamespace(class_part="regressor")
    monkeypatch.setitem(HEADS, "another", other)  # type: ignore[arg-type]
    task, part = kind(**dataclasses.asdict(TASK)), HEADS[kind.head].class_part
    rng = np.random.default_rng(0)
    layer = {"kernel": rng.normal(size=(8, 1)), "bias": rng.normal(size=1)}
    params = {"bert": {}, part: {k: v.astype(np.float32) for k, v in layer.items()}}
    hidden = rng.normal(size=(5, 8))

    def logits(params):
        return hidden @ params[part]["kernel"] + params[part]["bias"]

    raw = to_original(params, task)
    predicted = [
        task.predict(Example(id="", where=""), [], [{"logits": x}]) for x in logits(params)
    ]
    np.testing.assert_allclose(logits(raw)[:, 0], [p["score"] for p in predicted], rtol=1e-6)
    again = to_standardized(raw, task)
    np.testing.assert_allclose(logits(again), logits(params), atol=1e-5)


def test_the_scale_is_that_of_the_train_split_and_equal_targets_are_refused(tmp_path, capsys):
    rows = [f"text {i},{100_000 + 1000 * i}\n" for i in range(100)]
    (tmp_path / "train.csv").write_text("text,price\n" + "".join(rows))
    task = make_task("regress", RegressOptions(train=str(tmp_path / "train.csv"), dev_fraction=0.0))
    values = 100_000 + 1000.0 * np.arange(100)
    assert (task.mean, task.std) == (values.mean(), values.std())
    said = "targets: 100,000 to 199,000, mean 149,500, standard deviation 28,866.1"
    assert said in capsys.readouterr().out
    (tmp_path / "train.csv").write_text("text,price\n" + "".join([*rows, "text,1e9\n"]))
    make_task("regress", RegressOptions(train=str(tmp_path / "train.csv"), dev_fraction=0.0))
    said = "train.csv, row 102: the target 1e+09 alone causes 99.0% of the variance"
    assert said in capsys.readouterr().out
    (tmp_path / "train.csv").write_text("text,price\na,5\nb,5\n")
    with pytest.raises(ValueError, match="all targets are 5, so there is nothing to learn"):
        make_task("regress", RegressOptions(train=str(tmp_path / "train.csv"), dev_fraction=0.0))


@pytest.mark.slow
@pytest.mark.exhaustive
def test_prices_are_learnt_as_well_as_standardised_ones_and_saved_in_their_scale(
    encoder, sentences, tmp_path
):
    # The price depends on the length of the text, which the model can learn.
    prices = np.array([50_000.0 + 30_000 * len(text.split()) for text in sentences])
    standard = (prices - prices[:350].mean()) / prices[:350].std()
    scores = {}
    for name, targets in (("raw", prices), ("standard", standard)):
        for split, part in (("train", slice(350)), ("dev", slice(350, 400))):
            pairs = zip(sentences[part], targets[part].tolist(), strict=True)
            rows = [f"{text},{target!r}\n" for text, target in pairs]
            (tmp_path / f"{split}.csv").write_text("text,price\n" + "".join(rows))
        config = finetune_config(
            task="regress",
            init=str(encoder),
            train=str(tmp_path / "train.csv"),
            dev=str(tmp_path / "dev.csv"),
            workdir=str(tmp_path / name),
            max_length=32,
            num_epochs=4,
            unroll=1,
            optimizer=dataclasses.replace(FinetuneConfig.optimizer, learning_rate=3e-3),
        )
        result = bertjax.finetune(finetune_config(config, select_by="r2"))
        scores[name] = result.scores
        if name == "raw":
            found = bertjax.evaluate(result.model, data=tmp_path / "dev.csv")
            assert found["r2"] == pytest.approx(result.scores["dev/r2"], abs=1e-4)
            assert found["rmse"] == pytest.approx(result.scores["dev/rmse"], rel=1e-3)
    assert scores["raw"]["dev/r2"] > 0.4
    assert scores["raw"]["dev/r2"] == pytest.approx(scores["standard"]["dev/r2"], abs=0.02)
    assert finetune.parse(["--task=regress", "--select_by", "r2"]).select_by == "r2"
