"""BERT encoders and their heads as flax.linen modules."""

from bertjax.config.model import MODEL_SIZES, BertConfig, TaggerConfig, named_config
from bertjax.model.base_head import BertWithHead
from bertjax.model.bert import BertModel
from bertjax.model.heads import HEADS, BertForPreTraining
from bertjax.model.tagger import FeatureTagger

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
