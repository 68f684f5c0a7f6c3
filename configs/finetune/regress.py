"""Predicts a number for each text, or pair of texts, in files of your own.

python -m bertjax.finetune --task=regress --train=a.csv --dev=b.csv
"""

from bertjax.config import FinetuneConfig

config = FinetuneConfig(task="regress")
