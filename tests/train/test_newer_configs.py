"""The configs of the newer encoders train, in sizes for a test, a model that transformers loads."""

import json
import math

import numpy as np
import pytest

import bertjax
from bertjax import prepare, pretrain
from bertjax.config import PrepareConfig, PretrainConfig, load_config_file
from bertjax.tokenization import load_tokenizer, train_modernbert_bpe, train_wordpiece
from bertjax.train.optimizer import make_schedule
from tests.cases import others_weekly
from tests.tokenization.test_esm_tokenizer import VOCABULARY

SIZES = (
    "--model.num_hidden_layers=2 --model.hidden_size=32 --model.num_attention_heads=4 "
    "--model.intermediate_size=64 --model.initializer_range=0.1"
).split()
STEPS = 24
CONFIGS = ("esm2_8m", "esm2_150m", "nomic_bert_base", "eurobert_210m")


def make_text(family, folder, sentences):
    """Writes a tokenizer of the family, and text with a rule that a model can learn."""
    if family != "esm":
        train = train_wordpiece if family == "nomic_bert" else train_modernbert_bpe
        train(sentences, vocab_size=300, model_max_length=64).save(folder / "tokenizer")
        documents = ["\n".join(sentences[i : i + 10]) for i in range(0, len(sentences), 10)]
        (folder / "text").write_text("\n\n".join(documents))
        return
    (folder / "tokenizer").mkdir()
    (folder / "tokenizer" / "vocab.txt").write_text("\n".join(VOCABULARY))
    (folder / "tokenizer" / "tokenizer_config.json").write_text(
        '{"tokenizer_class": "EsmTokenizer"}'
    )
    rng = np.random.default_rng(0)
    repeated = ["MKTAY", "IAKQR", "GGSLV", "DEWFP"]
    lines = []
    for i in range(200):
        lines += [f">p{i}", "".join(rng.choice(repeated, rng.integers(4, 12)))]
    (folder / "text").write_text("\n".join(lines))


def test_the_learning_rate_of_esm2_is_a_tenth_after_nine_tenths_of_the_steps():
    config = load_config_file("esm2_8m", PretrainConfig)
    schedule = make_schedule(config.optimizer, config.phases)
    assert float(schedule(2_000)) == np.float32(4e-4)
    assert float(schedule(450_000)) == pytest.approx(4e-5, rel=0.01)


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.parity
@pytest.mark.parametrize("name", others_weekly(CONFIGS, "esm2_8m"))
def test_a_config_in_small_trains_a_model_that_transformers_loads(name, tmp_path, sentences):
    transformers = pytest.importorskip("transformers", reason="the extra `parity` is not installed")
    import torch

    config = load_config_file(name, PretrainConfig)
    family = config.model.model_type
    make_text(family, tmp_path, sentences)
    lengths = (32, 64)[: len(config.phases)]
    prepare.run(
        PrepareConfig(
            input=(str(tmp_path / "text"),),
            tokenizer=str(tmp_path / "tokenizer"),
            output=str(tmp_path / "data"),
            max_length=lengths,
            objective="mlm",
            pack=True,
            eval_fraction=0.1,
            num_processes=1,
        )
    )
    flags = ["--config", name, "--data", str(tmp_path / "data")]
    flags += ["--workdir", str(tmp_path / "run"), *SIZES, "--optimizer.learning_rate=1e-2"]
    flags += ["--log_every=1", "--eval_every=0", "--eval_rows=8", "--unroll=1"]
    tokenizer = load_tokenizer(tmp_path / "tokenizer")
    flags += [f"--model.vocab_size={tokenizer.vocab_size}"]
    flags += [f"--model.pad_token_id={tokenizer.pad_token_id}"]
    if config.optimizer.warmup_steps:
        flags += ["--optimizer.warmup_steps=2"]
    if config.optimizer.decay_steps:
        flags += ["--optimizer.decay_steps=4"]
    for i, length in enumerate(lengths):
        steps = STEPS if i == 0 else 4
        flags += [f"--phases.{i}.num_steps={steps}", f"--phases.{i}.max_length={length}"]
        flags += [f"--phases.{i}.batch_size=16", f"--phases.{i}.accumulation_steps=1"]
    pretrain.main(flags)

    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    losses = [entry["train/loss"] for entry in map(json.loads, lines) if "train/loss" in entry]
    assert len(losses) >= STEPS and all(map(math.isfinite, losses))
    assert np.mean(losses[STEPS - 4 : STEPS]) < np.mean(losses[:4]) - 0.1

    folder = tmp_path / "run" / "model"
    theirs = transformers.AutoModelForMaskedLM.from_pretrained(folder).eval()
    assert theirs.config.model_type == family
    ids = np.random.default_rng(0).integers(5, tokenizer.vocab_size, (2, 20))
    with torch.no_grad():
        expected = theirs(torch.tensor(ids)).logits.numpy()
    found = bertjax.load_pretrained(folder, "masked_lm")(input_ids=ids)["logits"]
    np.testing.assert_allclose(found, expected, atol=1e-5)
