"""Scores of simple models on the data of a task: they show what a fine-tuned encoder adds.

One knows no text: it answers with the most frequent class, with every label that most examples
have, or with the mean of the targets. The other is a bag of words: logistic or ridge regression on
the TF-IDF of words (of characters in scripts without spaces), as scikit-learn computes them.
"""

import dataclasses
import functools
import itertools
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from bertjax.tasks.dataset import Example
from bertjax.tasks.metrics import words_and_characters
from bertjax.tasks.task import Task

# scikit-learn is imported where it is used: its import would delay `--help`.

# Above it, rows at equal distances are trained on, to bound the time.
MOST_ROWS = 20_000
# Texts are cut to this number of characters, a multiple of what encoders usually read.
MOST_CHARACTERS = 5_000
MOST_FEATURES = 50_000
# Bounds the memory with many classes.
MOST_WEIGHTS = 5_000_000
BLOCK = 1024  # examples that are predicted together
BAG_OF_WORDS = "bag_of_words"
# What answers without a look at the text, by the kind of labels.
WITHOUT_TEXT: Mapping[str, str] = {
    "classes": "majority",
    "multi_label": "majority",
    "regression": "mean",
}


@dataclasses.dataclass(frozen=True)
class Baselines:
    """The baselines of a task, which are computed when they are first asked for.

    Attributes:
        task: the task, with its examples.
        chosen: the indices of the examples of the train split that are trained on, int [examples];
            None: all.
    """

    task: Task
    chosen: np.ndarray | None = None

    @functools.cached_property
    def content(self) -> dict[str, Any]:
        """The scores as JSON values, {"rows", "of", "splits", "skipped"}.

        "rows" is how many of the training examples the baselines are trained on, "of" how many
        there are, and "splits" has {split: {baseline: {metric: score}}} of the labelled splits
        other than train. "skipped" says what is not there, and why, as a sentence; "" if all is.
        """
        if self.task.label_kind not in WITHOUT_TEXT:
            return _nothing(
                "There are no baselines: a bag of words knows neither the order nor the pairs that "
                f"--task={self.task.name} is about."
            )
        texts, labels = [], []
        try:
            total = sum(1 for _ in self._training_examples())
            stride = -(-total // MOST_ROWS) or 1
            for example in itertools.islice(self._training_examples(), 0, None, stride):
                texts.append(_texts(example))
                labels.append(example.label)
            self.task.data.rows["train"].forget()
        except (OSError, ValueError) as error:  # the run has what it needs of the file
            return _nothing(f"There are no baselines: the train split cannot be read: {error}")
        if not _are_known(labels):
            return _nothing("There are no baselines of several targets or of soft labels.")
        models, skipped = self._fitted(texts, labels)
        splits = {}
        for split in self.task.data.splits:
            if split != "train" and (scores := self._scores(split, models)):
                splits[split] = scores
        return {"rows": len(texts), "of": total, "splits": splits, "skipped": skipped}

    def _training_examples(self) -> Iterator[Example]:
        examples = self.task.data.examples("train")
        if self.chosen is None:
            return examples
        wanted = {*self.chosen.tolist()}
        return (example for index, example in enumerate(examples) if index in wanted)

    def _fitted(self, texts: list[Any], labels: list[Any]) -> tuple[dict[str, Any], str]:
        """Returns the trained models, and why the bag of words is not among them."""
        targets = np.array(labels)
        if self.task.label_kind == "multi_label":
            targets = self._binarizer.transform(labels)
        without_text, bag_of_words = _models(self.task)
        without_text.fit(texts, targets)
        models = {WITHOUT_TEXT[self.task.label_kind]: without_text}
        try:
            with warnings.catch_warnings():
                # Of labels that no example has, and of a search that ends after max_iter steps.
                warnings.simplefilter("ignore")
                models[BAG_OF_WORDS] = bag_of_words.fit(texts, targets)
        except ValueError as error:  # one class, or no word
            return models, f"There is no bag of words: {error}"
        return models, ""

    @functools.cached_property
    def _binarizer(self) -> Any:
        from sklearn.preprocessing import MultiLabelBinarizer

        return MultiLabelBinarizer(classes=self.task.labels).fit([])

    def _scores(self, split: str, models: Mapping[str, Any]) -> dict[str, dict[str, float]]:
        golds: list[Any] = []
        answers: dict[str, list[Any]] = {name: [] for name in models}
        labelled = (x for x in self.task.data.examples(split) if x.label is not None)
        while block := list(itertools.islice(labelled, BLOCK)):
            golds += [example.label for example in block]
            texts = [_texts(example) for example in block]
            for name, model in models.items():
                predicted = model.predict(texts)
                if self.task.label_kind == "multi_label":
                    predicted = self._binarizer.inverse_transform(predicted)
                answers[name] += list(predicted)
        if not golds:
            return {}
        return {name: self.task.metric(golds, given) for name, given in answers.items()}


def _nothing(reason: str) -> dict[str, Any]:
    return {"rows": 0, "of": 0, "splits": {}, "skipped": reason}


def _are_known(labels: list[Any]) -> bool:
    """Returns whether there are labels, all of them classes, tuples of classes or numbers."""
    for label in labels:
        parts = label if isinstance(label, tuple) else (label,)
        if not all(isinstance(part, str) for part in parts) and not isinstance(label, float):
            return False
    return bool(labels)


def _models(task: Task) -> tuple[Any, Any]:
    from sklearn.dummy import DummyClassifier, DummyRegressor
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression, Ridge
    from sklearn.multiclass import OneVsRestClassifier
    from sklearn.pipeline import make_pipeline

    features = min(MOST_FEATURES, MOST_WEIGHTS // max(len(task.labels), 1))
    analyzer: Any = _words  # its type hint says str, but it accepts functions
    words = TfidfVectorizer(analyzer=analyzer, sublinear_tf=True, max_features=features)
    if task.label_kind == "regression":
        return DummyRegressor(), make_pipeline(words, Ridge())
    classifier = LogisticRegression(max_iter=200)
    if task.label_kind == "multi_label":
        classifier = OneVsRestClassifier(classifier)
    return DummyClassifier(strategy="most_frequent"), make_pipeline(words, classifier)


def _texts(example: Example) -> tuple[str, str]:
    return example.text[:MOST_CHARACTERS], (example.pair or "")[:MOST_CHARACTERS]


def _words(texts: tuple[str, str]) -> list[str]:
    """Returns the words of a text, and those of a second text as words of their own."""
    first, second = (words_and_characters(text.lower()) for text in texts)
    return [*first, *(f"\t{word}" for word in second)]
