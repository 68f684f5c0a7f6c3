"""ELECTRA-base by the recipe of its paper (Clark et al. 2020, appendix A).

    python -m bertjax.prepare --input 'text/*' --tokenizer bert-base-uncased --output D \\
        --max_length 512 --objective full_sentences
    python -m bertjax.pretrain --config configs/pretrain/electra_base.py --data D --workdir W

The generator is a third of the size. This file has not been run to its end.
"""

from bertjax.config import OptimizerConfig, Phase, PretrainConfig, RtdConfig, named_config

config = PretrainConfig(
    head="rtd",
    model=named_config("electra-base"),
    rtd=RtdConfig(hidden_size=256, num_attention_heads=4),
    phases=(Phase(num_steps=766_000, max_length=512, batch_size=256),),
    optimizer=OptimizerConfig(recipe="google", learning_rate=2e-4, warmup_steps=10_000),
    dtype="bfloat16",
    eval_every=10_000,
    save_every=5_000,
)
