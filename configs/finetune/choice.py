"""Chooses which of several choices fits a text, in files of your own.

python -m bertjax.finetune --task=choice --train=a.csv --dev=b.csv
"""

from bertjax.config import FinetuneConfig

config = FinetuneConfig(task="choice")
