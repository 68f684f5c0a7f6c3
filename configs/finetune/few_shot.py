"""Classifies after training on a few examples of each class, such as 8; scores over 10 draws.

    python -m bertjax.finetune --task=sst2 --shots=8

These are the defaults of --shots. They follow Mosbach et al. 2021 and Zhang et al. 2021: small data
needs many more updates than three epochs have, a small learning rate with bias correction, and a
warm-up. The model is that of the last step, because a dev split of hundreds of examples would be
more data than the training has, and would flatter the scores (Perez et al. 2021). Every seed draws
other examples; report the mean and the standard deviation.
"""

import dataclasses

from bertjax.config import FinetuneConfig

config = FinetuneConfig(
    task="classify",
    shots=8,
    seeds=10,
    batch_size=16,
    max_steps=200,
    select_by="last",
    optimizer=dataclasses.replace(FinetuneConfig.optimizer, learning_rate=2e-5),
)
