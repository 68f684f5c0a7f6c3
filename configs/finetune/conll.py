"""Names of persons, organisations, places and others (CoNLL-2003; 14,041 sentences).

    python -m bertjax.finetune --task=conll

Devlin et al. 2018, 5.3: the first piece of a word is classified. BERT-base, cased and with the
whole document around each sentence, reaches 92.4 entity F1 on the test split; a sentence a time,
as here, gives about a point less.
"""

from bertjax.config import FinetuneConfig

config = FinetuneConfig(task="conll", max_length=128)
