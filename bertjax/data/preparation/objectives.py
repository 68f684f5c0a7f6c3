"""The pretraining objectives for which `prepare` makes examples.

They are next sentence prediction (Devlin et al. 2018, 3.1), sentence order prediction (Lan et al.
2019, 3.1), and masked language modelling alone (Liu et al. 2019, 4.2).

A new objective needs a name in the type `ObjectiveName`, an entry in OBJECTIVES, and a function in
`segments.py` that makes the examples.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import Any, Literal

from bertjax.data.preparation.segments import full_sentences, sentence_pairs, single_segments

ObjectiveName = Literal["nsp", "sop", "mlm", "full_sentences"]


@dataclasses.dataclass(frozen=True)
class Objective:
    """A pretraining objective: the function that makes examples, and the structure of examples.

    Attributes:
        make_examples: function of the documents, the `ExampleOptions` and a NumPy random generator
            that returns an iterator of examples; see `segments.py`.
        has_sentence_pairs: True if an example is a `Pair` with a label to predict; False if an
            example is a list of segments, which becomes `[CLS] segment [SEP] segment [SEP] ...`.
        needs_second_document: whether the input must have at least two documents, as for NSP, which
            draws random segments from other documents.
    """

    make_examples: Callable[..., Iterator[Any]]
    has_sentence_pairs: bool = False
    needs_second_document: bool = False


OBJECTIVES: dict[ObjectiveName, Objective] = {
    "nsp": Objective(
        functools.partial(sentence_pairs, negatives="random"),
        has_sentence_pairs=True,
        needs_second_document=True,
    ),
    "sop": Objective(
        functools.partial(sentence_pairs, negatives="swapped"), has_sentence_pairs=True
    ),
    "mlm": Objective(single_segments),
    "full_sentences": Objective(full_sentences),
}
