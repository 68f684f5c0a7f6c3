"""Whether a text entails another one (GLUE's RTE; 2,490 pairs).

    python -m bertjax.finetune --task=rte

Batches of 32, 3 epochs, 10 % warm-up and the model's own dropout (BERT: 0.1): within the grid of
Devlin et al. 2018, A.3.
Hugging Face's PyTorch run of BERT-base, cased, at 2e-5: 65.7 on dev.
"""

from bertjax.config import FinetuneConfig

config = FinetuneConfig(task="rte")
