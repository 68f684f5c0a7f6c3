"""RoBERTa-base by the recipe of its paper (Liu et al. 2019, 4 and table 9).

    python -m bertjax.prepare --input 'text/*' --tokenizer roberta-base --output D \\
        --max_length 512 --objective full_sentences
    python -m bertjax.pretrain --config configs/pretrain/roberta_base.py --data D --workdir W

The run has 500,000 updates on 8,192 rows of 512 tokens, in 32 microbatches of 256 rows. Raise
--phases.0.accumulation_steps until a microbatch fits. As in fairseq, every parameter is decayed,
gradients are not clipped, and random words are never special tokens. This file has not been run to
its end.
"""

from bertjax.config import OptimizerConfig, Phase, PretrainConfig, named_config

config = PretrainConfig(
    model=named_config("roberta-base"),
    phases=(Phase(num_steps=500_000, max_length=512, batch_size=8192, accumulation_steps=32),),
    optimizer=OptimizerConfig(
        recipe="adamw",
        schedule="hf",
        learning_rate=6e-4,
        warmup_steps=24_000,
        b2=0.98,
        weight_decay=0.01,
        decay_all=True,
        max_grad_norm=0.0,
    ),
    random_words="ordinary",
    dtype="bfloat16",
    eval_every=5_000,
    save_every=1_000,
)
