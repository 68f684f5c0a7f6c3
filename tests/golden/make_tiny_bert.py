"""Writes tiny_bert/: a small random model of transformers, and what PyTorch computes with it.

    python tests/golden/make_tiny_bert.py     (needs the extra `parity`)

The files keep the comparison with PyTorch alive where torch is not installed.
"""

from pathlib import Path

import numpy as np
import torch
import transformers

from bertjax.tokenization import WordPieceTokenizer
from bertjax.tokenization.base import SPECIAL_TOKENS

DIRECTORY = Path(__file__).parent / "tiny_bert"
ROWS, LENGTH, VOCAB = 3, 20, 60


def main() -> None:
    """Writes the model directory and expected.npz."""
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=VOCAB,
        hidden_size=24,
        num_hidden_layers=3,
        num_attention_heads=3,
        intermediate_size=40,
        max_position_embeddings=32,
        initializer_range=0.3,
    )
    model = transformers.BertForPreTraining(config).eval()
    for name, parameter in model.named_parameters():
        if name.endswith("bias") or "LayerNorm" in name:  # which otherwise start as 0 and 1
            parameter.data += 0.1 * torch.randn_like(parameter)
    model.save_pretrained(DIRECTORY)
    words = [f"w{i}" for i in range(VOCAB - len(SPECIAL_TOKENS))]
    vocab = {token: i for i, token in enumerate([*SPECIAL_TOKENS, *words])}
    WordPieceTokenizer(vocab, do_lower_case=True).save(DIRECTORY)

    rng = np.random.default_rng(0)
    lengths = np.array([20, 13, 6])
    inputs = {
        "input_ids": rng.integers(5, VOCAB, (ROWS, LENGTH)),
        "attention_mask": (np.arange(LENGTH) < lengths[:, None]).astype(np.int64),
        "token_type_ids": (np.arange(LENGTH) >= lengths[:, None] // 2).astype(np.int64),
    }
    with torch.no_grad():
        outputs = model(
            **{k: torch.tensor(v) for k, v in inputs.items()}, output_hidden_states=True
        )
        pooled = model.bert(**{k: torch.tensor(v) for k, v in inputs.items()}).pooler_output
    np.savez_compressed(
        DIRECTORY / "expected.npz",
        **inputs,
        hidden_states=torch.stack(outputs.hidden_states).numpy(),
        pooler_output=pooled.numpy(),
        prediction_logits=outputs.prediction_logits.numpy(),
        seq_relationship_logits=outputs.seq_relationship_logits.numpy(),
    )


if __name__ == "__main__":
    main()
