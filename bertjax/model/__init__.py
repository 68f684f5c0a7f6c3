"""The encoder and its heads as flax.linen modules. Imports nothing else of bertjax."""

from bertjax.config.model import MODEL_SIZES, BertConfig, TaggerConfig, named_config
from bertjax.model.bert import BertModel
from bertjax.model.tagger import FeatureTagger
from bertjax.model.tasks import HEADS, BertForPreTraining, BertWithHead

__all__ = [
    "HEADS",
    "MODEL_SIZES",
    "BertConfig",
    "BertForPreTraining",
    "BertModel",
    "BertWithHead",
    "FeatureTagger",
    "TaggerConfig",
    "named_config",
]
