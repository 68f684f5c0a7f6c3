"""Classifies phrases of film reviews as positive or negative (GLUE's SST-2; 67,349 phrases).

    python -m bertjax.finetune --task=sst2

Batches of 32, 3 epochs, warm-up over 10 % of the steps, and the dropout of the model (BERT: 0.1):
within the grid of Devlin et al. 2018, A.3.
Hugging Face's PyTorch run of BERT-base, cased, at 2e-5: 92.3 on dev.
"""

from bertjax.config import FinetuneConfig

config = FinetuneConfig(task="sst2")
