"""Scores how similar two sentences are, from 0 to 5 (GLUE's STS-B; 5,749 pairs).

    python -m bertjax.finetune --task=stsb

Batches of 32, 3 epochs, warm-up over 10 % of the steps, and the dropout of the model (BERT: 0.1):
within the grid of Devlin et al. 2018, A.3.
Hugging Face's PyTorch run of BERT-base, cased, at 2e-5: 88.6 Pearson, 88.5 Spearman on dev.
"""

from bertjax.config import FinetuneConfig

config = FinetuneConfig(task="stsb")
