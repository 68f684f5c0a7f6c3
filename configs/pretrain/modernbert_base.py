"""ModernBERT-base by the recipe of its paper (Warner et al. 2024, 2.2 and A.1).

    python -m bertjax.prepare --input 'text/*' --tokenizer answerdotai/ModernBERT-base --output D \\
        --max_length 1024 8192 --objective mlm --pack
    python -m bertjax.pretrain --config configs/pretrain/modernbert_base.py --data D --workdir W

The run reads 1.72 trillion tokens in rows of 1,024 (50 billion of them with growing batches), and
then 300 billion in rows of 8,192 with a larger rotary base; the learning rate decays over the last
50 billion. The paper took ten days on 8 H100. There, a microbatch has 96 rows per GPU, and batches
grow by single rows; here in ten stages. This file has not been run to its end.
"""

from bertjax.config import OptimizerConfig, Phase, PretrainConfig, named_config

config = PretrainConfig(
    model=named_config("modernbert-base", attention_output_dropout=0.1),
    phases=(
        Phase(
            num_steps=373_270,
            max_length=1024,
            batch_size=4608,
            accumulation_steps=6,
            warmup_batch_sizes=tuple(range(768, 4608, 384)),
            batch_size_warmup_steps=19_560,
            global_rope_theta=10_000.0,
        ),
        Phase(
            num_steps=63_580,
            max_length=8192,
            batch_size=576,
            accumulation_steps=6,
            learning_rate_curve="restart",
            learning_rate=3e-4,
            warmup_steps=0,
            decay_steps=10_600,
        ),
    ),
    optimizer=OptimizerConfig(
        recipe="stable_adamw",
        learning_rate=8e-4,
        warmup_steps=3_200,
        schedule="trapezoidal",
        decay="one_minus_sqrt",
        b2=0.98,
        weight_decay=1e-5,
        fully_decoupled_decay=True,
        max_grad_norm=0.0,
    ),
    mlm_probability=0.3,
    dtype="bfloat16",
    eval_every=4_000,
    save_every=1_000,
)
