"""Finds answers in a passage, if it has one (SQuAD 2.0; 130,319 questions, a third without).

    python -m bertjax.finetune --task=squad2

The recipe of Google's release for one device of 12 GB: batches of 12, rate 3e-5, 2 epochs.
BERT-large reaches 81.9 F1 and 78.7 EM on dev in Devlin et al. 2018, with batches of 48 at 5e-5.
"""

from bertjax.config import FinetuneConfig, OptimizerConfig

config = FinetuneConfig(
    task="squad2",
    batch_size=12,
    num_epochs=2,
    optimizer=OptimizerConfig(
        recipe="adamw",
        learning_rate=3e-5,
        schedule="hf",
        warmup_steps=0,
        warmup_proportion=0.1,
    ),
)
