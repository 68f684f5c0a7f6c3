"""DeBERTa-v3-base (He et al. 2021), by the settings of Microsoft's code for 256 rows per step.

    python -m bertjax.prepare --input 'text/*' --tokenizer microsoft/deberta-v3-base --output D \\
        --max_length 512 --objective full_sentences
    python -m bertjax.pretrain --config configs/pretrain/deberta_v3_base.py --data D --workdir W

The generator has half of the layers and an enhanced mask decoder. This file has not been run to its
end.
"""

from bertjax.config import OptimizerConfig, Phase, PretrainConfig, RtdConfig, named_config

config = PretrainConfig(
    head="rtd",
    model=named_config("deberta-v3-base"),
    rtd=RtdConfig(hidden_size=768, num_attention_heads=12, num_hidden_layers=6, sharing="gdes"),
    phases=(Phase(num_steps=1_000_000, max_length=512, batch_size=256),),
    optimizer=OptimizerConfig(recipe="adamw", learning_rate=1e-4, warmup_steps=10_000),
    dtype="bfloat16",
    eval_every=10_000,
    save_every=5_000,
)
