"""Classifies whether a text entails another (GLUE's RTE; 2,490 pairs).

    python -m bertjax.finetune --task=rte

The batch size is 32, with 3 epochs, warm-up over 10 % of the steps, and the dropout of the model
(BERT: 0.1); these values are in the grid of Devlin et al. 2018, A.3.
In Hugging Face's PyTorch run, BERT-base, cased, reaches 65.7 on dev at 2e-5.
"""

from bertjax.config import FinetuneConfig

config = FinetuneConfig(task="rte")
