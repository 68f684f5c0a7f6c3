"""Trains sentence embeddings on pairs, triplets or scored pairs of texts in files of your own.

python -m bertjax.finetune --task=embed --train=a.csv --dev=b.csv
"""

import dataclasses

from bertjax.config import FinetuneConfig

# As in Sentence-BERT (Reimers and Gurevych 2019, 4), but with larger batches, which have more
# negatives, and without weight decay, as sentence-transformers trains.
config = FinetuneConfig(
    task="embed",
    batch_size=64,
    num_epochs=1,
    optimizer=dataclasses.replace(FinetuneConfig.optimizer, learning_rate=2e-5, weight_decay=0.0),
)
