"""Whether a phrase of a film review is positive (GLUE's SST-2; 67,349 phrases).

    python -m bertjax.finetune --task=sst2

Batches of 32, 3 epochs, 10 % warm-up and the model's own dropout (BERT: 0.1): within the grid of
Devlin et al. 2018, A.3.
Hugging Face's PyTorch run of BERT-base, cased, at 2e-5: 92.3 on dev.
"""

from bertjax.config import FinetuneConfig

config = FinetuneConfig(task="sst2")
