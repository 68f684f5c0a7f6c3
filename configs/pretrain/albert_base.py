"""ALBERT-base by the recipe of its paper (Lan et al. 2019, 4.1).

    python -m bertjax.prepare --input 'text/*' --tokenizer albert-base-v2 --output D \\
        --max_length 512 --objective sop
    python -m bertjax.pretrain --config configs/pretrain/albert_base.py --data D --workdir W

LAMB makes 125,000 updates on 4,096 rows of 512 tokens, in 16 microbatches, with sentence-order
prediction and up to three words masked together. The paper used 64 to 512 Cloud TPU V3 chips. The
dropout is 0, as in version 2 of ALBERT. This file has not been run to its end.
"""

from bertjax.config import OptimizerConfig, Phase, PretrainConfig, named_config

config = PretrainConfig(
    model=named_config("albert-base-v2"),
    phases=(Phase(num_steps=125_000, max_length=512, batch_size=4096, accumulation_steps=16),),
    optimizer=OptimizerConfig(recipe="albert_lamb", learning_rate=1.76e-3, warmup_steps=3_125),
    max_ngram=3,
    dtype="bfloat16",
    eval_every=2_500,
    save_every=1_000,
)
