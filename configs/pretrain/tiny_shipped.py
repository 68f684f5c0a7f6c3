"""The model `bertjax:tiny`, which comes with bertjax: 3 layers, on the documentation of Python.

`python benchmarks/shipped_model.py WORK` trains it in about 20 minutes of one CPU core:

    python -m bertjax.pretrain --config configs/pretrain/tiny_shipped.py --data D --workdir W

The settings are those of quickstart.py, with one more layer, four heads, which give attention maps
more to show, twice as many steps, in bfloat16, and a last phase on rows of 128 tokens, which trains
all positions.
"""

from bertjax.config import BertConfig, OptimizerConfig, Phase, PretrainConfig

config = PretrainConfig(
    model=BertConfig(
        vocab_size=4096,
        hidden_size=128,
        num_hidden_layers=3,
        num_attention_heads=4,
        intermediate_size=512,
        max_position_embeddings=128,
        initializer_range=0.05,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    ),
    phases=(
        Phase(num_steps=6_000, max_length=64, batch_size=32),
        Phase(num_steps=500, max_length=128, batch_size=16),
    ),
    optimizer=OptimizerConfig(
        recipe="adamw", learning_rate=2e-3, warmup_steps=300, schedule="hf", b2=0.98
    ),
    mlm_probability=0.25,
    dtype="bfloat16",
    log_every=100,
    eval_every=500,
    save_every=500,
)
