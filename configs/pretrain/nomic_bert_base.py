"""NomicBERT-base, the encoder behind nomic-embed, by its paper (Nussbaum et al. 2024, 4.1).

    python -m bertjax.prepare --input 'text/*' --tokenizer bert-base-uncased --output D \\
        --max_length 2048 --objective full_sentences
    python -m bertjax.pretrain --config configs/pretrain/nomic_bert_base.py --data D --workdir W

The run has 100,000 updates on 4,096 rows of 2,048 tokens, in 8 microbatches: raise
--phases.0.accumulation_steps until one fits. Adam's epsilon is that of the authors' code
(nomic-ai/contrastors), the number of steps that of their model card, and the base of the rotary
positions, 1,000, that of the released model. Rows are filled across documents. This file has not
been run to its end.
"""

from bertjax.config import OptimizerConfig, Phase, PretrainConfig, named_config

config = PretrainConfig(
    head="masked_lm",
    model=named_config("nomic-embed-text-v1.5", classifier_dropout=0.0),
    phases=(Phase(num_steps=100_000, max_length=2048, batch_size=4096, accumulation_steps=8),),
    optimizer=OptimizerConfig(
        recipe="adamw",
        schedule="hf",
        learning_rate=5e-4,
        warmup_steps=0,
        warmup_proportion=0.06,
        b2=0.98,
        weight_decay=1e-5,
        max_grad_norm=0.0,
    ),
    mlm_probability=0.3,
    dtype="bfloat16",
    eval_every=2_000,
    save_every=1_000,
)
