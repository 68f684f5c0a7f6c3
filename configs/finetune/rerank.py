"""Trains a reranker, a cross-encoder, on queries and passages in files of your own.

python -m bertjax.finetune --task=rerank --train=a.jsonl --dev=b.jsonl
"""

import dataclasses

from bertjax.config import FinetuneConfig

# As sentence-transformers trains cross-encoders.
config = FinetuneConfig(
    task="rerank",
    num_epochs=1,
    optimizer=dataclasses.replace(FinetuneConfig.optimizer, learning_rate=2e-5, weight_decay=0.0),
)
