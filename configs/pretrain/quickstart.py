"""A BERT of 2 layers on the documentation of Python, in minutes on a laptop: launch/quickstart.sh.

    python -m bertjax.pretrain --config configs/pretrain/quickstart.py --data D --workdir W

Weights start five times as wide as in large models (BERT's 0.02 suits a width of 768; narrow
layers then attend to all tokens alike for long), and the rate is thirty times higher.
"""

from bertjax.config import OptimizerConfig, Phase, PretrainConfig
from bertjax.model.config import BertConfig

config = PretrainConfig(
    model=BertConfig(
        vocab_size=4096,
        hidden_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=512,
        max_position_embeddings=128,
        initializer_range=0.08,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    ),
    phases=(Phase(num_steps=3000, max_length=64, batch_size=32),),
    optimizer=OptimizerConfig(
        recipe="adamw", learning_rate=3e-3, warmup_steps=300, schedule="hf", b2=0.98
    ),
    unroll=2,
    log_every=100,
    eval_every=500,
    save_every=1000,
)
