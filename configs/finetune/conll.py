"""Tags names of persons, organisations, places and others (CoNLL-2003; 14,041 sentences).

    python -m bertjax.finetune --task=conll

As in Devlin et al. 2018, 5.3, the first piece of each word is classified. There, BERT-base, cased,
reads the whole document around each sentence and reaches 92.4 entity F1 on the test split; single
sentences, as here, give about one point less.
"""

from bertjax.config import FinetuneConfig

config = FinetuneConfig(task="conll", max_length=128)
