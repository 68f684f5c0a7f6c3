"""A ModernBERT of the size of BERT-tiny, by ModernBERT's recipe, in minutes on a laptop.

    python -m bertjax.prepare --input 'text/*' --tokenizer DIR --output D \\
        --max_length 64 128 --objective mlm
    python -m bertjax.pretrain --config configs/pretrain/modernbert_tiny.py --data D --workdir W

The phases are those of modernbert_base.py (Warner et al. 2024) for a corpus of 100 MB: batches
that grow, a trapezoidal learning rate, and a last phase of longer rows with a larger rotary base.
Learning rate and initializer_range suit a hidden size of 128, and the window rows of 64 tokens.
"""

from bertjax.config import OptimizerConfig, Phase, PretrainConfig, named_config

config = PretrainConfig(
    model=named_config(
        "modernbert-base",
        vocab_size=30522,
        pad_token_id=0,
        hidden_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=344,
        max_position_embeddings=128,
        local_attention=32,
        global_attn_every_n_layers=2,
        initializer_range=0.05,
    ),
    phases=(
        Phase(
            num_steps=2_700,
            max_length=64,
            batch_size=32,
            warmup_batch_sizes=(8, 16, 24),
            batch_size_warmup_steps=150,
            global_rope_theta=10_000.0,
        ),
        Phase(num_steps=300, max_length=128, batch_size=16),
    ),
    optimizer=OptimizerConfig(
        recipe="stable_adamw",
        learning_rate=2e-3,
        warmup_steps=100,
        schedule="trapezoidal",
        decay_steps=600,
        decay="one_minus_sqrt",
        b2=0.98,
        weight_decay=1e-5,
        fully_decoupled_decay=True,
        max_grad_norm=0.0,
    ),
    mlm_probability=0.3,
    log_every=100,
    eval_every=500,
    eval_rows=2_000,
    save_every=500,
)
