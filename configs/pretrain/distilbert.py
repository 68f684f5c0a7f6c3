"""DistilBERT: 6 of BERT-base's 12 layers, distilled from BERT-base (Sanh et al. 2019).

    python -m bertjax.prepare --input 'text/*' --tokenizer bert-base-uncased --output D \\
        --max_length 512 --objective mlm
    python -m bertjax.pretrain --config configs/pretrain/distilbert.py --data D --workdir W

The steps are 3 epochs of Wikipedia and books, about 4 billion tokens, at 4,096 rows per update;
change --phases.0.num_steps for your own corpus. The paper's training took 90 hours on 8 V100 of 16
GB and kept 97 % of BERT-base's GLUE score; this file has not been run to its end. The logits of all
tokens take 250 MB per model for 4 rows of 512 tokens: raise --phases.0.accumulation_steps until a
microbatch fits, or use --distillation.soft_targets_on masked. Unlike in the paper, rare words are
not masked more often (count^-0.7).
"""

from bertjax.config import DistillationConfig, OptimizerConfig, Phase, PretrainConfig, named_config

config = PretrainConfig(
    model=named_config("distilbert-base-uncased"),
    distillation=DistillationConfig(teacher="bert-base-uncased", layers=(0, 2, 4, 7, 9, 11)),
    phases=(Phase(num_steps=6_000, max_length=512, batch_size=4096, accumulation_steps=128),),
    optimizer=OptimizerConfig(
        recipe="adamw",
        schedule="hf",
        learning_rate=5e-4,
        warmup_steps=0,
        warmup_proportion=0.05,
        b2=0.98,
        max_grad_norm=5.0,
    ),
    dtype="bfloat16",
    eval_every=500,
    save_every=500,
)
