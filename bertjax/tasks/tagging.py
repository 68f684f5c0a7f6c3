"""Tagging: a class for each word of a sentence (Devlin et al. 2018, 5.3)."""

import dataclasses
from collections.abc import Iterable, Sequence
from typing import ClassVar

import numpy as np

from bertjax.data.batches.features import Feature, LabelKind
from bertjax.tasks.classification import Metric, softmax
from bertjax.tasks.task import Example, Outputs, Prediction, Task
from bertjax.tokenization import Tokenizer

# The tag of words that the model did not see, and of what is no entity.
OUTSIDE = "O"


@dataclasses.dataclass(frozen=True, kw_only=True)
class TagTask(Task):
    """The first piece of each word is labelled and asked; the others carry no loss.

    Words that do not fit `max_length` get O, or the first label where there is no O.
    """

    metric: Metric
    best_metric: str = "f1"

    head: ClassVar[str] = "token_classification"
    label_kind: ClassVar[LabelKind] = "tokens"

    def features(self, example: Example, tokenizer: Tokenizer, max_length: int) -> list[Feature]:
        """`[CLS] pieces of all words [SEP]`; `origins` says which word a token begins.

        Every word is encoded as one amid a text, the first one too, as transformers does with
        `is_split_into_words` (and `add_prefix_space`).
        """
        if not example.words:
            raise ValueError(f"{example.where}: a sentence without words; remove it.")
        ids, origins = [tokenizer.cls_token_id], [-1]
        for word, pieces in enumerate(tokenizer.encode_after_space(example.words)):
            # A word of nothing but control characters has no piece; it must keep its place.
            pieces = pieces or [tokenizer.unk_token_id]
            ids += pieces
            origins += [word] + [-1] * (len(pieces) - 1)
        ids, origins = ids[: max_length - 1], origins[: max_length - 1]
        ids, of_token = [*ids, tokenizer.sep_token_id], np.array([*origins, -1], np.int32)
        return [
            Feature(
                np.array(ids, np.int32),
                (len(ids),),
                (len(ids),),
                self._labels_of(example, of_token),
                of_token,
            )
        ]

    def _labels_of(self, example: Example, of_token: np.ndarray) -> np.ndarray | None:
        if not isinstance(example.label, tuple):
            return None
        if len(example.label) != len(example.words):
            raise ValueError(
                f"{example.where}: {len(example.words)} words, but {len(example.label)} tags; each "
                "word needs one."
            )
        of_word = [self.id_of(tag, example.where) for tag in example.label]
        return np.where(of_token >= 0, np.array([*of_word, -1], np.int32)[of_token], -1)

    def predict(
        self, example: Example, features: Sequence[Feature], outputs: Sequence[Outputs]
    ) -> Prediction:
        """The most probable tag of each word, and its probability."""
        probabilities = softmax(outputs[0]["logits"])  # [n, C]
        unseen = OUTSIDE if OUTSIDE in self.labels else self.labels[0]
        tags, certain = [unseen] * len(example.words), [0.0] * len(example.words)
        assert features[0].origins is not None
        for token, word in enumerate(features[0].origins):
            if word >= 0:
                best = int(probabilities[token].argmax())
                tags[word], certain[word] = self.labels[best], float(probabilities[token, best])
        return {"labels": tags, "probabilities": certain}

    def score(self, pairs: Iterable[tuple[Example, Prediction]]) -> dict[str, float]:
        """Metrics over sentences of tags."""
        known = [(e.label, p["labels"]) for e, p in pairs if e.label is not None]
        return self.metric(*zip(*known, strict=True)) if known else {}
