"""Classifies whether two questions ask the same (GLUE's QQP; 363,846 pairs).

    python -m bertjax.finetune --task=qqp

Batches of 32, 3 epochs, warm-up over 10 % of the steps, and the dropout of the model (BERT: 0.1):
within the grid of Devlin et al. 2018, A.3.
Hugging Face's PyTorch run of BERT-base, cased, at 2e-5: 90.7 accuracy, 87.5 F1 on dev.
"""

from bertjax.config import FinetuneConfig

config = FinetuneConfig(task="qqp")
