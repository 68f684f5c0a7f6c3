"""Scores how similar two sentences are, from 0 to 5 (GLUE's STS-B; 5,749 pairs).

    python -m bertjax.finetune --task=stsb

The batch size is 32, with 3 epochs, warm-up over 10 % of the steps, and the dropout of the model
(BERT: 0.1); these values are in the grid of Devlin et al. 2018, A.3.
In Hugging Face's PyTorch run, BERT-base, cased, reaches 88.6 Pearson, 88.5 Spearman on dev at 2e-5.
"""

from bertjax.config import FinetuneConfig

config = FinetuneConfig(task="stsb")
