"""ELECTRA-small by the recipe of its paper (Clark et al. 2020, 3.2 and appendix A).

    python -m bertjax.prepare --input 'text/*' --tokenizer bert-base-uncased --output D \\
        --max_length 128 --objective full_sentences
    python -m bertjax.pretrain --config configs/pretrain/electra_small.py --data D --workdir W

The generator is a quarter of the size. The paper's run took 4 days on one V100 and had 79.9 on
GLUE; this file has not been run to its end. W/model is the discriminator, which is fine-tuned, and
W/model/generator the masked LM.
"""

from bertjax.config import OptimizerConfig, Phase, PretrainConfig, named_config

config = PretrainConfig(
    head="rtd",
    model=named_config("electra-small"),
    phases=(Phase(num_steps=1_000_000, max_length=128, batch_size=128),),
    optimizer=OptimizerConfig(recipe="google", learning_rate=5e-4, warmup_steps=10_000),
    dtype="bfloat16",
    eval_every=10_000,
    save_every=5_000,
)
