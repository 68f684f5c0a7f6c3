"""Maps parameter names of Google's TF1 checkpoints to PyTorch names and back.

Most names in TF1 and PyTorch differ only in spelling: TF1 has `/` instead of `.`, `layer_0` instead
of `layer.0`, `kernel` and `gamma` instead of `weight`, and `beta` instead of `bias`. TF1 variables
named `kernel` have the shape [in, out]; TF1 variables named `output_weights` are [out, in].
"""

import re
from typing import NamedTuple


class Tf1Name(NamedTuple):
    """The names of a parameter in TF1 and in PyTorch.

    Attributes:
        tf1: the name in checkpoints of google-research/bert.
        pytorch: the name in PyTorch's BERT.
        transposed: whether TF1 has PyTorch's matrix transposed.
    """

    tf1: str
    pytorch: str
    transposed: bool = False


_LAYER = "bert/encoder/layer_{layer}"
_DENSE = (
    *(f"{_LAYER}/attention/self/{name}" for name in ("query", "key", "value")),
    *(f"{_LAYER}/{name}" for name in ("attention/output/dense", "intermediate/dense")),
    f"{_LAYER}/output/dense",
    "bert/pooler/dense",
    "cls/predictions/transform/dense",
)
_LAYER_NORMS = (
    "bert/embeddings/LayerNorm",
    f"{_LAYER}/attention/output/LayerNorm",
    f"{_LAYER}/output/LayerNorm",
    "cls/predictions/transform/LayerNorm",
)


def _spelled(tf1: str) -> str:
    return tf1.replace("/layer_", "/layer/").replace("/", ".")


NAMES: tuple[Tf1Name, ...] = (
    *(
        Tf1Name(f"bert/embeddings/{name}", f"bert.embeddings.{name}.weight")
        for name in ("word_embeddings", "position_embeddings", "token_type_embeddings")
    ),
    *(Tf1Name(f"{m}/kernel", f"{_spelled(m)}.weight", transposed=True) for m in _DENSE),
    *(Tf1Name(f"{m}/bias", f"{_spelled(m)}.bias") for m in _DENSE),
    *(Tf1Name(f"{m}/gamma", f"{_spelled(m)}.weight") for m in _LAYER_NORMS),
    *(Tf1Name(f"{m}/beta", f"{_spelled(m)}.bias") for m in _LAYER_NORMS),
    # These matrices are [out, in] both in TF1 and in PyTorch.
    Tf1Name("cls/predictions/output_bias", "cls.predictions.bias"),
    Tf1Name("cls/seq_relationship/output_weights", "cls.seq_relationship.weight"),
    Tf1Name("cls/seq_relationship/output_bias", "cls.seq_relationship.bias"),
    Tf1Name("output_weights", "classifier.weight"),
    Tf1Name("output_bias", "classifier.bias"),
    Tf1Name("cls/squad/output_weights", "qa_outputs.weight"),
    Tf1Name("cls/squad/output_bias", "qa_outputs.bias"),
)


def _pattern(name: str) -> re.Pattern[str]:
    return re.compile(re.escape(name).replace(r"\{layer\}", r"(0|[1-9]\d*)"))


_PATTERNS = [(_pattern(entry.tf1), _pattern(entry.pytorch), entry) for entry in NAMES]


def from_tf1(tf1: str) -> Tf1Name | None:
    """Returns the `Tf1Name` of a TF1 variable; None if the variable is not a parameter of BERT."""
    return _find(tf1, 0)


def from_pytorch(pytorch: str) -> Tf1Name | None:
    """Returns the `Tf1Name` of a PyTorch tensor; None if the tensor has no name in TF1."""
    return _find(pytorch, 1)


def _find(name: str, side: int) -> Tf1Name | None:
    for *patterns, entry in _PATTERNS:
        if match := patterns[side].fullmatch(name):
            layer = match[1] if match.groups() else ""
            return entry._replace(
                tf1=entry.tf1.format(layer=layer), pytorch=entry.pytorch.format(layer=layer)
            )
    return None


# Names of training state in checkpoints: moments of Adam and LAMB, counters and loss scaling.
_NOT_PARAMETERS = re.compile(
    r"global_step|(.*/)?(adam_[mv]|lamb_[mv]|Adam(_\d+)?|LAMB(_\d+)?|Momentum)"
    r"|(.*/)?(beta\d_power(_\d+)?|(current_)?loss_scale|good_steps|bad_steps)"
)


def is_parameter(tf1: str) -> bool:
    """Whether a TF1 variable is a model parameter, not training state such as Adam's moments."""
    return _NOT_PARAMETERS.fullmatch(tf1) is None
