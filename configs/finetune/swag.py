"""Chooses the sentence that continues a text, among four (SWAG; 73,546 examples).

    python -m bertjax.finetune --task=swag --data_dir DIR

The recipe of Devlin et al. 2018, 4.4, has batch size 16, rate 2e-5, 3 epochs. BERT-base reaches
81.6.
"""

import dataclasses

from bertjax.config import FinetuneConfig

config = FinetuneConfig(
    task="swag",
    batch_size=16,
    optimizer=dataclasses.replace(FinetuneConfig.optimizer, learning_rate=2e-5),
)
