"""Trains sentence embeddings on pairs, triplets or scored pairs of texts in files of your own.

python -m bertjax.finetune --task=embed --train=a.csv --dev=b.csv
"""

from bertjax.config import FinetuneConfig, OptimizerConfig

# As in Sentence-BERT (Reimers and Gurevych 2019, 4), but with larger batches, which have more
# negatives, and without weight decay, as sentence-transformers trains.
config = FinetuneConfig(
    task="embed",
    batch_size=64,
    num_epochs=1,
    optimizer=OptimizerConfig(
        recipe="adamw",
        learning_rate=2e-5,
        schedule="hf",
        warmup_steps=0,
        warmup_proportion=0.1,
        weight_decay=0.0,
    ),
)
