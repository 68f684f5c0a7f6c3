"""Finds answers in a passage, in files of your own in SQuAD's JSON.

python -m bertjax.finetune --task=qa --train=a.json --dev=b.json
"""

from bertjax.config import FinetuneConfig

config = FinetuneConfig(task="qa")
