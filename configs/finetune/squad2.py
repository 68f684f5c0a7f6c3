"""Finds answers in a passage, if any (SQuAD 2.0; 130,319 questions, a third without answer).

    python -m bertjax.finetune --task=squad2

The recipe is that of Google's release for one device of 12 GB: batch size 12, learning rate 3e-5,
2 epochs. In Devlin et al. 2018, BERT-large reaches 81.9 F1, 78.7 EM (batch size 48, 5e-5).
"""

import dataclasses

from bertjax.config import FinetuneConfig

config = FinetuneConfig(
    task="squad2",
    batch_size=12,
    num_epochs=2,
    optimizer=dataclasses.replace(FinetuneConfig.optimizer, learning_rate=3e-5),
)
