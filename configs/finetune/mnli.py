"""Whether a text entails, contradicts or leaves open another (GLUE's MNLI; 392,702 pairs).

    python -m bertjax.finetune --task=mnli

Batches of 32, 3 epochs, 10 % warm-up and the model's own dropout (BERT: 0.1): within the grid of
Devlin et al. 2018, A.3.
Hugging Face's PyTorch run of BERT-base, cased, at 2e-5: 83.9 matched, 84.1 mismatched on dev.
"""

from bertjax.config import FinetuneConfig

config = FinetuneConfig(task="mnli")
