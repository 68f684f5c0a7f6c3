"""Multiple choice: predicts which of several endings continues a text (Devlin et al. 2018, 4.4)."""

import dataclasses
from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from bertjax.data.batches.features import Feature, LabelKind
from bertjax.tasks.classification import softmax
from bertjax.tasks.task import Example, Outputs, Prediction, Task
from bertjax.tokenization import Tokenizer


@dataclasses.dataclass(frozen=True, kw_only=True)
class ChoiceTask(Task):
    """Task that predicts which of several choices continues a text.

    The model scores one sequence `[CLS] text [SEP] choice [SEP]` per choice.

    Attributes:
        num_choices: number of choices per example, which is the same for all examples.
    """

    num_choices: int

    head: ClassVar[str] = "multiple_choice"
    label_kind: ClassVar[LabelKind] = "choice"

    @property
    def sequences_per_example(self) -> int:
        """The number of sequences of a feature, one per choice."""
        return self.num_choices

    def features(self, example: Example, tokenizer: Tokenizer, max_length: int) -> list[Feature]:
        """Encodes the example as one `Feature` with `num_choices` sequences, one per choice.

        Raises:
            ValueError: a text is empty, the number of choices is not `num_choices`, or the label is
                not the index of a choice.
        """
        if len(example.choices) != self.num_choices:
            raise ValueError(
                f"{example.where} has {len(example.choices)} choices, but other examples have "
                f"{self.num_choices}: give every example the same number of choices."
            )
        if not example.text.strip() or not all(choice.strip() for choice in example.choices):
            raise ValueError(f"{example.where}: a text is empty; fill it or remove the row.")
        rows = [tokenizer.encode_pair(example.text, c, max_length) for c in example.choices]
        return [
            Feature(
                np.array([token for ids, _ in rows for token in ids], np.int32),
                tuple(len(ids) for ids, _ in rows),
                tuple(len(types) - sum(types) for _, types in rows),
                self._encode_label(example),
            )
        ]

    def _encode_label(self, example: Example) -> np.ndarray | None:
        if example.label is None:
            return None
        if not isinstance(example.label, int) or not 0 <= example.label < self.num_choices:
            raise ValueError(
                f"{example.where}: label {example.label!r} is none of the choices "
                f"0..{self.num_choices - 1}. Correct the row."
            )
        return np.array([example.label], np.int32)

    def predict(
        self, example: Example, features: Sequence[Feature], outputs: Sequence[Outputs]
    ) -> Prediction:
        """Returns a dict: `label`, the index of the most probable choice, and `probabilities`."""
        probabilities = softmax(outputs[0]["logits"])
        return {"label": int(probabilities.argmax()), "probabilities": probabilities.tolist()}
