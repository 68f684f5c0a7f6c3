"""Classifies texts, or pairs of texts, in files of your own.

python -m bertjax.finetune --task=classify --train=a.csv --dev=b.csv
"""

from bertjax.config import FinetuneConfig

config = FinetuneConfig(task="classify")
