"""Classifies pairs as entailment, contradiction or neutral (GLUE's MNLI; 392,702 pairs).

    python -m bertjax.finetune --task=mnli

Batches of 32, 3 epochs, warm-up over 10 % of the steps, and the dropout of the model (BERT: 0.1):
within the grid of Devlin et al. 2018, A.3.
Hugging Face's PyTorch run of BERT-base, cased, at 2e-5: 83.9 matched, 84.1 mismatched on dev.
"""

from bertjax.config import FinetuneConfig

config = FinetuneConfig(task="mnli")
