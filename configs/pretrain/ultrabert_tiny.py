"""An UltraBERT of the size of BERT-tiny, in minutes on a laptop.

    python -m bertjax.prepare --input 'text/*' --tokenizer DIR --output D \\
        --max_length 64 128 --objective mlm --pack
    python -m bertjax.pretrain --config configs/pretrain/ultrabert_tiny.py --data D --workdir W

Layers and heads are those of UltraBERT in transformers: every third layer has global attention, the
last one of three, and the masked LM has two linear layers and an output matrix of its own. Sizes
and recipe are not those of the released models: phases, learning rate and masking are those of
modernbert_tiny.py. For other sizes, change the fields of `model`.
"""

from bertjax.config import OptimizerConfig, Phase, PretrainConfig, named_config

config = PretrainConfig(
    model=named_config(
        "ultrabert",
        vocab_size=30522,
        hidden_size=128,
        num_hidden_layers=3,
        num_attention_heads=2,
        intermediate_size=344,
        prediction_head_size=128,
        max_position_embeddings=128,
        local_attention=32,
        initializer_range=0.05,
    ),
    phases=(
        Phase(
            num_steps=2_700,
            max_length=64,
            batch_size=32,
            warmup_batch_sizes=(8, 16, 24),
            batch_size_warmup_steps=150,
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
