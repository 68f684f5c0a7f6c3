"""Tags words, in files of your own: CoNLL's columns, or JSON lines.

python -m bertjax.finetune --task=tag --train=a.txt --dev=b.txt
"""

from bertjax.config import FinetuneConfig

config = FinetuneConfig(task="tag")
