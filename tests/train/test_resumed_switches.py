"""Runs of encoders with other layers than BERT's, stopped and resumed, leave the same bits."""

import dataclasses

import pytest

from bertjax import pretrain
from bertjax.config import OptimizerConfig, Phase, PretrainConfig
from tests.cases import others_weekly
from tests.lines import metrics_of
from tests.steps import run_until

# Together they have every switch: the LayerNorm before, RMSNorm, gates, grouped key heads, sizes of
# heads, slowed and stored rotations, rotated values, scaled residuals, LayerNorms of queries and
# keys, token dropout, embeddings of their own size, global layers at the end of each period, and
# two linear layers of the masked LM.
CHANGES = {
    "eurobert": {
        **{"num_key_value_heads": 2, "head_dim": 16, "rope_type": "llama3", "rope_factor": 4.0},
        "rope_original_max_position_embeddings": 16,
    },
    "esmc": {"rope_type": "yarn", "rope_factor": 4.0, "rope_original_max_position_embeddings": 16},
    "esm": {"token_dropout": True},
    "roformer": {"rotary_value": True, "embedding_size": 16},
    "ultrabert": {"num_hidden_layers": 4, "local_attention": 8},
}


@pytest.mark.slow
@pytest.mark.parametrize("family", others_weekly(CHANGES, "ultrabert"))
def test_a_resumed_run_equals_an_uninterrupted_one(
    family, prepared, tokenizer, tiny_family, tmp_path, monkeypatch
):
    sizes = {"vocab_size": tokenizer.vocab_size, "pad_token_id": tokenizer.pad_token_id}
    model = tiny_family(family, **sizes, **CHANGES[family]).with_dropout(0.1)
    config = PretrainConfig(
        data=str(prepared),
        workdir=str(tmp_path / "whole"),
        model=model,
        phases=(Phase(num_steps=6, max_length=16, batch_size=16),),
        optimizer=OptimizerConfig(warmup_steps=2),
        head="masked_lm",
        unroll=1,
        log_every=1,
        eval_every=0,
        eval_rows=16,
    )
    pretrain.run(config)
    here = dataclasses.replace(config, workdir=str(tmp_path / "resumed"))
    run_until(3, lambda: pretrain.run(here), monkeypatch)
    assert not (tmp_path / "resumed" / "model").exists()
    pretrain.run(here)
    assert metrics_of(tmp_path / "resumed") == metrics_of(tmp_path / "whole")
    files = [tmp_path / run / "model" / "model.safetensors" for run in ("resumed", "whole")]
    found, expected = (file.read_bytes() for file in files)
    assert found == expected
