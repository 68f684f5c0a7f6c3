"""Multiple choice: which of several endings follows a text (Devlin et al. 2018, 4.4)."""

import dataclasses
from collections.abc import Iterable, Sequence
from typing import ClassVar

import numpy as np

from bertjax.data.batches.features import Feature, LabelKind
from bertjax.tasks.classification import Metric, softmax
from bertjax.tasks.task import Example, Outputs, Prediction, Task
from bertjax.tokenization import Tokenizer


@dataclasses.dataclass(frozen=True, kw_only=True)
class ChoiceTask(Task):
    """Each choice is a sequence `[CLS] text [SEP] choice [SEP]`; the best score wins."""

    metric: Metric
    num_choices: int

    head: ClassVar[str] = "multiple_choice"
    label_kind: ClassVar[LabelKind] = "choice"

    def features(self, example: Example, tokenizer: Tokenizer, max_length: int) -> list[Feature]:
        """One feature of as many sequences as there are choices."""
        if len(example.choices) != self.num_choices:
            raise ValueError(
                f"{example.where}: {len(example.choices)} choices, expected {self.num_choices}; "
                "every example needs as many."
            )
        if not example.text.strip() or not all(choice.strip() for choice in example.choices):
            raise ValueError(f"{example.where}: a text is empty; fill it or remove the row.")
        rows = [tokenizer.encode_pair(example.text, c, max_length) for c in example.choices]
        return [
            Feature(
                np.array([token for ids, _ in rows for token in ids], np.int32),
                tuple(len(ids) for ids, _ in rows),
                tuple(len(types) - sum(types) for _, types in rows),
                self._label_of(example),
            )
        ]

    def _label_of(self, example: Example) -> np.ndarray | None:
        if example.label is None:
            return None
        if not isinstance(example.label, int) or not 0 <= example.label < self.num_choices:
            raise ValueError(
                f"{example.where}: label {example.label!r} is none of the choices "
                f"0..{self.num_choices - 1}."
            )
        return np.array([example.label], np.int32)

    def predict(
        self, example: Example, features: Sequence[Feature], outputs: Sequence[Outputs]
    ) -> Prediction:
        """The number of the best choice, and the probability of each."""
        probabilities = softmax(outputs[0]["logits"])
        return {"label": int(probabilities.argmax()), "probabilities": probabilities.tolist()}

    def score(self, pairs: Iterable[tuple[Example, Prediction]]) -> dict[str, float]:
        """The task's metrics over the labelled examples."""
        known = [(e.label, p["label"]) for e, p in pairs if e.label is not None]
        return self.metric(*zip(*known, strict=True)) if known else {}
