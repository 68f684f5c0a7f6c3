"""Trains sparse embeddings (SPLADE) on pairs or triplets of texts in files of your own.

python -m bertjax.finetune --task=sparse --init=MASKED_LM --train=a.csv --dev=b.csv
"""

import dataclasses

from bertjax.config import FinetuneConfig

# The learning rate of SPLADE (Formal et al. 2021, 4), and without weight decay, as
# sentence-transformers trains.
config = FinetuneConfig(
    task="sparse",
    batch_size=64,
    num_epochs=1,
    optimizer=dataclasses.replace(FinetuneConfig.optimizer, learning_rate=2e-5, weight_decay=0.0),
)
