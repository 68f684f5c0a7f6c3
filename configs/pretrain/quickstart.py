"""A BERT of 2 layers on the documentation of Python, in minutes on a laptop: `bertjax quickstart`.

    python -m bertjax.pretrain --config configs/pretrain/quickstart.py --data D --workdir W

Small models learn little but word frequencies for many steps. These settings shorten that time:
a larger initializer_range than 0.02 (which suits a width of 768), a high learning rate, short rows,
25 % of the tokens masked instead of 15 %, and no dropout.
"""

from bertjax.config import BertConfig, OptimizerConfig, Phase, PretrainConfig

config = PretrainConfig(
    model=BertConfig(
        vocab_size=4096,
        hidden_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=512,
        max_position_embeddings=128,
        initializer_range=0.05,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    ),
    phases=(Phase(num_steps=3000, max_length=64, batch_size=32),),
    optimizer=OptimizerConfig(
        recipe="adamw", learning_rate=2e-3, warmup_steps=300, schedule="hf", b2=0.98
    ),
    mlm_probability=0.25,
    log_every=100,
    eval_every=500,
    save_every=1000,
)
