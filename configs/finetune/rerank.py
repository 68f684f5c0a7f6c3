"""Trains a reranker, a cross-encoder, on queries and passages in files of your own.

python -m bertjax.finetune --task=rerank --train=a.jsonl --dev=b.jsonl
"""

from bertjax.config import FinetuneConfig, OptimizerConfig

# As sentence-transformers trains cross-encoders.
config = FinetuneConfig(
    task="rerank",
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
