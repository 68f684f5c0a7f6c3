"""Whether a text entails another one (GLUE's RTE; 2,490 pairs): Devlin et al. 2018, 4.1.

python -m bertjax.finetune --task=rte
"""

from bertjax.config import FinetuneConfig

config = FinetuneConfig(task="rte")
