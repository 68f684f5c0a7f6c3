"""BERT-tiny (2 layers, hidden size 128) for a corpus of about 100 MB, on a laptop.

    python -m bertjax.prepare --input 'text/*' --tokenizer DIR --max_length 64 128 --output D
    python -m bertjax.pretrain --config configs/pretrain/bert_tiny.py --data D --workdir W

docs/results.md shows the loss curve on 146 MB of Wikipedia. 90 % of the steps are on short rows, as
in the paper; initializer_range is above 0.02, which suits a hidden size of 768.
"""

from bertjax.config import OptimizerConfig, Phase, PretrainConfig, named_config

config = PretrainConfig(
    model=named_config(
        "bert-tiny",
        initializer_range=0.05,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    ),
    phases=(
        Phase(num_steps=9_000, max_length=64, batch_size=32),
        Phase(num_steps=1_000, max_length=128, batch_size=32),
    ),
    optimizer=OptimizerConfig(
        recipe="adamw", learning_rate=2e-3, warmup_steps=1_000, schedule="hf", b2=0.98
    ),
    log_every=100,
    eval_every=1_000,
    eval_rows=2_000,
    save_every=1_000,
)
