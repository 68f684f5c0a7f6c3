"""Whether two sentences say the same (GLUE's MRPC; 3,668 pairs).

    python -m bertjax.finetune --task=mrpc

Batches of 32, 5 epochs, 10 % warm-up and the model's own dropout (BERT: 0.1): within the grid of
Devlin et al. 2018, A.3.
Hugging Face's PyTorch run of BERT-base, cased, at 2e-5: 88.9 F1, 84.1 accuracy on dev.
"""

from bertjax.config import FinetuneConfig

config = FinetuneConfig(task="mrpc", num_epochs=5)
