"""Classifies whether two questions ask the same (GLUE's QQP; 363,846 pairs).

    python -m bertjax.finetune --task=qqp

The batch size is 32, with 3 epochs, warm-up over 10 % of the steps, and the dropout of the model
(BERT: 0.1); these values are in the grid of Devlin et al. 2018, A.3.
In Hugging Face's PyTorch run, BERT-base, cased, reaches 90.7 accuracy, 87.5 F1 on dev at 2e-5.
"""

from bertjax.config import FinetuneConfig

config = FinetuneConfig(task="qqp")
