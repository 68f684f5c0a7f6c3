"""Classifies whether two sentences have the same meaning (GLUE's MRPC; 3,668 pairs).

    python -m bertjax.finetune --task=mrpc

The batch size is 32, with warm-up over 10 % of the steps and the dropout of the model (BERT: 0.1),
as in Devlin et al. 2018, A.3, but with 5 epochs instead of 2 to 4, as in Hugging Face's example.
In Hugging Face's PyTorch run, BERT-base, cased, reaches 88.9 F1, 84.1 accuracy on dev at 2e-5.
"""

from bertjax.config import FinetuneConfig

config = FinetuneConfig(task="mrpc", num_epochs=5)
