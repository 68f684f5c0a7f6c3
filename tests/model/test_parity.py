"""Outputs equal PyTorch's: against golden files always, against transformers where it is there."""

import dataclasses
from pathlib import Path

import jax
import numpy as np
import pytest

from bertjax.model import BertConfig, BertForPreTraining, named_config
from bertjax.weights import load_model, save_hf
from tests.cases import WEEKLY

# test_pretrained.py compares models of this size head by head.
GOLDEN = Path(__file__).parent.parent / "golden" / "tiny_bert"


def outputs_of(model, params, input_ids, attention_mask, token_type_ids):
    """What the model makes of arrays as transformers takes them, [B, L] each."""
    rows, length = input_ids.shape
    positions = np.broadcast_to(np.arange(length), (rows, length))
    return jax.jit(model.apply, static_argnames="output_hidden_states")(
        {"params": params},
        input_ids,
        token_type_ids,
        positions,
        attention_mask,
        np.zeros((rows, 1), np.int32),
        output_hidden_states=True,
    )


def assert_equal_at_real_tokens(found, expected, attention_mask, atol=1e-5):
    real = attention_mask.astype(bool)
    for layer, (a, b) in enumerate(
        zip(found["hidden_states"], expected["hidden_states"], strict=True)
    ):
        np.testing.assert_allclose(a[real], b[real], atol=atol, rtol=0, err_msg=f"layer {layer}")
    for key in ("prediction_logits",):
        np.testing.assert_allclose(
            found[key][real], expected[key][real], atol=atol, rtol=0, err_msg=key
        )
    for key in ("pooler_output", "seq_relationship_logits"):
        np.testing.assert_allclose(found[key][:, 0], expected[key], atol=atol, rtol=0, err_msg=key)


def test_a_golden_model_gives_what_pytorch_gave():
    loaded = load_model(GOLDEN)
    expected = dict(np.load(GOLDEN / "expected.npz"))
    inputs = [expected[k] for k in ("input_ids", "attention_mask", "token_type_ids")]
    found = outputs_of(loaded.model, loaded.params, *inputs)
    assert_equal_at_real_tokens(found, expected, expected["attention_mask"])


CONFIGS = {
    "tiny": named_config("bert-tiny"),
    "base": named_config("bert-base-uncased"),
    "odd": BertConfig(
        vocab_size=300,
        hidden_size=48,
        num_hidden_layers=7,
        num_attention_heads=3,
        intermediate_size=100,
        hidden_act="gelu_new",
        type_vocab_size=3,
        layer_norm_eps=1e-5,
        tie_word_embeddings=False,
    ),
}


@pytest.mark.parity
@pytest.mark.parametrize(
    "name", [pytest.param(x, marks=() if x == "odd" else WEEKLY) for x in CONFIGS]
)
def test_random_weights_give_what_transformers_gives(name, tmp_path, tokenizer, random_params):
    torch = pytest.importorskip("torch", reason="the extra `parity` is not installed")
    transformers = pytest.importorskip("transformers", reason="the extra `parity` is not installed")
    config = CONFIGS[name]
    model = BertForPreTraining(config, unroll=2)
    params = random_params(model)
    save_hf(tmp_path / "model", params, config, tokenizer)
    theirs, info = transformers.BertForPreTraining.from_pretrained(
        tmp_path / "model", output_loading_info=True
    )
    assert not any(info.values()), info
    rng = np.random.default_rng(0)
    lengths = np.array([48, 31, 9])
    inputs = {
        "input_ids": rng.integers(5, config.vocab_size, (3, 48)),
        "attention_mask": (np.arange(48) < lengths[:, None]).astype(np.int64),
        "token_type_ids": (np.arange(48) >= lengths[:, None] // 2).astype(np.int64),
    }
    with torch.no_grad():
        tensors = {key: torch.tensor(value) for key, value in inputs.items()}
        outputs = theirs.eval()(**tensors, output_hidden_states=True)
        pooled = theirs.bert(**tensors).pooler_output.numpy()
    expected = {
        "hidden_states": [x.numpy() for x in outputs.hidden_states],
        "pooler_output": pooled,
        "prediction_logits": outputs.prediction_logits.numpy(),
        "seq_relationship_logits": outputs.seq_relationship_logits.numpy(),
    }
    found = outputs_of(model, params, *inputs.values())
    assert_equal_at_real_tokens(found, expected, inputs["attention_mask"])


@pytest.mark.parity
def test_the_tokenizer_that_is_written_works_in_transformers(
    tmp_path, tiny_config, sentences, random_params
):
    transformers = pytest.importorskip("transformers", reason="the extra `parity` is not installed")
    from bertjax.tokenization import train_wordpiece

    for do_lower_case in (True, False):
        texts = [s.title() for s in sentences[:50]]
        ours = train_wordpiece(texts, vocab_size=80, do_lower_case=do_lower_case)
        config = dataclasses.replace(tiny_config, vocab_size=ours.vocab_size)
        params = random_params(BertForPreTraining(config))
        directory = tmp_path / f"lower-{do_lower_case}"
        save_hf(directory, params, config, ours)
        theirs = transformers.AutoTokenizer.from_pretrained(directory)
        for a, b in zip(texts, texts[1:], strict=False):
            found = theirs(a, b)
            assert (found["input_ids"], found["token_type_ids"]) == ours.encode_prompt(a, b)
