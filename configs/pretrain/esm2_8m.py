"""ESM-2 with 8 million parameters, a language model of proteins (Lin et al. 2022).

    python -m bertjax.prepare --input 'proteins/*.fasta' --tokenizer facebook/esm2_t6_8M_UR50D \\
        --output D --max_length 1024 --objective mlm --pack
    python -m bertjax.pretrain --config configs/pretrain/esm2_8m.py --data D --workdir W

The run has 500,000 updates on 2 million tokens, here 2,048 rows of 1,024, with the settings of the
paper's supplement. The learning rate falls on its line, which reaches a tenth of the peak after
90 % of the steps: there it stays in the paper, and goes on to 0 here. Whether the paper clips
gradients is not known to us: their norm is clipped to 1 here. The paper draws clusters of UniRef50
and then a protein of each; here, every sequence of the input is read equally often. This file has
not been run to its end.
"""

from bertjax.config import OptimizerConfig, Phase, PretrainConfig, named_config

config = PretrainConfig(
    model=named_config("esm2-t6-8m"),
    phases=(Phase(num_steps=500_000, max_length=1024, batch_size=2048, accumulation_steps=4),),
    optimizer=OptimizerConfig(
        recipe="adamw",
        schedule="hf",
        learning_rate=4e-4,
        warmup_steps=2_000,
        b2=0.98,
        eps=1e-8,
        weight_decay=0.01,
    ),
    dtype="bfloat16",
    eval_every=5_000,
    save_every=1_000,
)
