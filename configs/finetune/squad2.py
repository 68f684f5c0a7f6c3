"""Answers that stand in a passage, or not (SQuAD 2.0; 130,319 questions, a third without answer).

    python -m bertjax.finetune --task=squad2

The recipe of Google's release for one device of 12 GB: batches of 12, rate 3e-5, 2 epochs.
BERT-large reaches 81.8 F1 and 79.0 EM with batches of 24.
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
