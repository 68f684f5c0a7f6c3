"""The encoder and its heads as flax.linen modules. Imports nothing else of bertjax."""

from bertjax.model.bert import BertForPreTraining, BertModel
from bertjax.model.config import MODEL_SIZES, BertConfig, named_config

__all__ = ["MODEL_SIZES", "BertConfig", "BertForPreTraining", "BertModel", "named_config"]
