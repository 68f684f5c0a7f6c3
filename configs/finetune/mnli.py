"""Classifies pairs as entailment, contradiction or neutral (GLUE's MNLI; 392,702 pairs).

    python -m bertjax.finetune --task=mnli

The batch size is 32, with 3 epochs, warm-up over 10 % of the steps, and the dropout of the model
(BERT: 0.1); these values are in the grid of Devlin et al. 2018, A.3.
In Hugging Face's PyTorch run, BERT-base, cased, reaches 83.9, mismatched 84.1, on dev at 2e-5.
"""

from bertjax.config import FinetuneConfig

config = FinetuneConfig(task="mnli")
