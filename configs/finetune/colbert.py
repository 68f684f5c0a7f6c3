"""Trains a late-interaction model, one vector per token, on pairs of texts in files of your own.

python -m bertjax.finetune --task=colbert --train=a.csv --dev=b.csv
"""

import dataclasses

from bertjax.config import FinetuneConfig

# The learning rate of ColBERT's projects (Khattab and Zaharia 2020, 4.2, had 3e-6 with one negative
# per query), for batches whose documents are all negatives.
config = FinetuneConfig(
    task="colbert",
    batch_size=32,
    num_epochs=1,
    optimizer=dataclasses.replace(FinetuneConfig.optimizer, learning_rate=1e-5, weight_decay=0.0),
)
