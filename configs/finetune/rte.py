"""Classifies whether a text entails another (GLUE's RTE; 2,490 pairs).

    python -m bertjax.finetune --task=rte

Batches of 32, 3 epochs, warm-up over 10 % of the steps, and the dropout of the model (BERT: 0.1):
within the grid of Devlin et al. 2018, A.3.
Hugging Face's PyTorch run of BERT-base, cased, at 2e-5: 65.7 on dev.
"""

from bertjax.config import FinetuneConfig

config = FinetuneConfig(task="rte")
