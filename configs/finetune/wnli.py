"""Whether a sentence with its pronoun replaced follows (GLUE's WNLI; 635 pairs).

    python -m bertjax.finetune --task=wnli

Few examples, and hardly a model beats the majority's 56.3 % on dev.
"""

from bertjax.config import FinetuneConfig

config = FinetuneConfig(task="wnli", num_epochs=5)
