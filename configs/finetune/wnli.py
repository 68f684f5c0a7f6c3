"""Classifies whether a text entails a sentence that names its pronoun (GLUE's WNLI; 635 pairs).

    python -m bertjax.finetune --task=wnli

There are few examples, and hardly any model beats the majority class, which is right in 56.3 % of
dev. The run has 5 epochs, as in Hugging Face's example.
"""

from bertjax.config import FinetuneConfig

config = FinetuneConfig(task="wnli", num_epochs=5)
