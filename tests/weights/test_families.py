"""Each family from a tokenizer to a fine-tuned model: pretraining, masks, a task, predictions."""

import dataclasses
import json

import numpy as np
import pytest

from bertjax import finetune, predict, prepare, pretrain
from bertjax.config import (
    OptimizerConfig,
    Phase,
    PrepareConfig,
    PretrainConfig,
)
from bertjax.data.preparation.segments import OBJECTIVES
from bertjax.inference.masks import fill_mask
from bertjax.predict import PredictConfig
from bertjax.tasks import finetune_config, make_task
from bertjax.tokenization import (
    train_bpe,
    train_modernbert_bpe,
    train_unigram,
    train_wordpiece,
)
from bertjax.train.facts import load_for_task
from bertjax.weights import load_model
from tests.lines import json_lines

# Family: how its tokenizer is trained, and what its examples are.
RECIPES = {
    "roberta": (train_bpe, 300, "mlm"),
    "albert": (train_unigram, 90, "sop"),
    "distilbert": (train_wordpiece, 90, "mlm"),
    "electra": (train_wordpiece, 90, "mlm"),
    "deberta-v2": (train_unigram, 90, "mlm"),
    "modernbert": (train_modernbert_bpe, 300, "mlm"),
    "eurobert": (train_modernbert_bpe, 300, "mlm"),
    "ultrabert": (train_modernbert_bpe, 300, "mlm"),
    "nomic_bert": (train_wordpiece, 90, "mlm"),
    "esm": (train_wordpiece, 90, "mlm"),
    "esmc": (train_wordpiece, 90, "mlm"),
}
RATE = OptimizerConfig(recipe="adamw", learning_rate=3e-3, warmup_steps=1, schedule="hf")


# CI trains that with most parts of its own: tokenizers are tested alone, and what models compute is
# compared with transformers.
FAMILIES = [
    pytest.param(name, marks=() if name == "deberta-v2" else pytest.mark.exhaustive)
    for name in RECIPES
]


@pytest.fixture(scope="module")
def pretrained(request, tmp_path_factory, sentences, tiny_family):
    """(family, workdir) of a few steps of pretraining."""
    family = request.param
    train, vocab_size, objective = RECIPES[family]
    folder = tmp_path_factory.mktemp(family)
    (folder / "text.txt").write_text(
        "\n\n".join("\n".join(sentences[i : i + 10]) for i in range(0, 200, 10))
    )
    tokenizer = train(sentences, vocab_size=vocab_size, model_max_length=64)
    tokenizer.save(folder / "tokenizer")
    prepare.run(
        PrepareConfig(
            input=(str(folder / "text.txt"),),
            tokenizer=str(folder / "tokenizer"),
            output=str(folder / "data"),
            max_length=(32,),
            objective=objective,
            eval_fraction=0.1,
            num_processes=1,
        )
    )
    pretrain.run(
        PretrainConfig(
            data=str(folder / "data"),
            workdir=str(folder / "run"),
            model=tiny_family(family, vocab_size=tokenizer.vocab_size),
            phases=(Phase(num_steps=4, max_length=32, batch_size=16),),
            optimizer=RATE,
            unroll=1,
            log_every=2,
            eval_every=4,
            save_every=4,
            peak_tflops=0.1,
        )
    )
    return family, folder / "run"


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.parametrize("pretrained", FAMILIES, indirect=True)
def test_pretraining_leaves_a_model_of_its_family(pretrained, sentences):
    family, run = pretrained
    config = json.loads((run / "model" / "config.json").read_text())
    assert config["model_type"] == family
    of_run, of_directory = load_model(run, None), load_model(run / "model", None)
    has_pairs = OBJECTIVES[RECIPES[family][2]].has_sentence_pairs
    assert of_run.head == of_directory.head == ("pretraining" if has_pairs else "masked_lm")
    line = json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])
    assert ("eval/nsp_loss" in line) == has_pairs
    mask = of_run.tokenizer.layout.special_tokens.mask
    text = f"{sentences[0].split()[0]} {mask} {sentences[0].split()[2]}."
    (words,) = fill_mask(load_model(run, "masked_lm"), text, top_k=3)
    assert len(words) == 3 and 0 < sum(p for _, p in words) <= 1


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind",
    ["classify", *(pytest.param(kind, marks=pytest.mark.exhaustive) for kind in ("tag", "qa"))],
)
@pytest.mark.parametrize("pretrained", FAMILIES, indirect=True)
def test_a_task_is_learnt_saved_and_answered(pretrained, kind, files, tmp_path):
    family, run = pretrained
    config = finetune_config(
        task=kind,
        init=str(run / "model"),
        **files[kind],
        workdir=str(tmp_path / "run"),
        max_length=60,
        batch_size=8,
        num_epochs=1,
        unroll=1,
        optimizer=dataclasses.replace(RATE, warmup_steps=0),
    )
    scores = finetune.run(config)[""]
    output = tmp_path / "predictions.jsonl"
    predict.run(
        PredictConfig(model=str(tmp_path / "run"), input=files[kind]["dev"], output=str(output))
    )
    written = json_lines(output)
    of_run = json_lines(tmp_path / "run" / "predictions" / "dev.jsonl")
    assert [p["id"] for p in written] == [p["id"] for p in of_run]
    key = {"classify": "label", "tag": "labels", "qa": "answer"}[kind]
    assert [p[key] for p in written] == [p[key] for p in of_run]
    assert scores and all(np.isfinite(list(scores.values())))


def test_dropout_is_that_of_the_flag_wherever_the_family_has_some(
    tmp_path, tiny_family, tokenizer, written, files
):
    folder = written(tmp_path / "m", tiny_family("distilbert"), "encoder", tokenizer)
    for rate in (0.0, 0.3):
        config = finetune_config(
            task="classify", init=str(folder), dropout=rate, max_length=60, **files["classify"]
        )
        found = load_for_task(config, make_task("classify", config.options)).config
        assert found.hidden_dropout_prob == found.attention_probs_dropout_prob == rate
        assert found.qa_dropout == found.token_classifier_dropout == rate
        assert (found.classifier_dropout, found.attention_output_dropout) == (None, 0.0)
