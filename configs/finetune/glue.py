"""Fine-tunes on all tasks of GLUE, one after the other, and averages their scores.

    python -m bertjax.finetune --task=glue

Each task has the settings of its own config in this folder, such as cola.py, unless flags replace
them; with --config=glue, all tasks have the settings below.
"""

from bertjax.config import FinetuneConfig

config = FinetuneConfig(task="glue")
