"""Scores of simple models on the data of a task: they show what a fine-tuned encoder adds.

One knows no text: it answers with the most frequent class, with every label that most examples
have, or with the mean of the targets. The other is a bag of words: logistic or ridge regression on
the TF-IDF of words (of characters in scripts without spaces), as scikit-learn computes them.
"""

import dataclasses
import functools
import itertools
import time
import warnings
from collections.abc import Iterable, Mapping
from typing import Any

from bertjax.tasks.dataset import Example
from bertjax.tasks.definition import changed
from bertjax.tasks.metrics import words_and_characters
from bertjax.tasks.task import Task
from bertjax.tasks.training_data import TrainingData

# scikit-learn is imported where it is used: its import would delay `--help`.

# Above it, rows at equal distances are trained on, to bound the time.
MOST_ROWS = 20_000
# Texts are cut to this number of characters, a multiple of what encoders usually read.
MOST_CHARACTERS = 5_000
MOST_WORDS = 50_000
# Bounds the memory with many classes.
MOST_WEIGHTS = 5_000_000
BAG_OF_WORDS = "bag of words"
# What answers without a look at the text, by the kind of labels.
WITHOUT_TEXT: Mapping[str, str] = {
    "classes": "majority",
    "distribution": "majority",
    "multi_label": "majority",
    "regression": "mean",
}


@dataclasses.dataclass(frozen=True)
class Baselines:
    """The baselines of a task, which are computed when they are first asked for.

    Attributes:
        task: the task, with its examples.
        data: the encoded train split.
        began: when it was read, in seconds since 1970: the file is read again, if it is the same.
    """

    task: Task
    data: TrainingData
    began: float = dataclasses.field(default_factory=time.time)

    @functools.cached_property
    def content(self) -> dict[str, Any]:
        """The scores as JSON values, {"rows", "splits", "skipped"}.

        "rows" is how many training examples the baselines are trained on, and "splits" has {split:
        {baseline: {metric: score}}} of the labelled splits other than train. If there are no
        baselines, "skipped" is the reason as a sentence; else "".
        """
        reason = (
            f"{self.task.name} has several targets, or is about the order or the pairs of texts, "
            "which a bag of words does not know"
        )
        if self.task.label_kind in WITHOUT_TEXT:
            try:
                with warnings.catch_warnings():
                    # Of labels that no example has, and of a search that ends after max_iter steps.
                    warnings.simplefilter("ignore")
                    return self._content()
            except (OSError, TypeError, ValueError) as error:  # one class, or a file that is gone
                reason = str(error)
        return {"rows": 0, "splits": {}, "skipped": f"There are no baselines: {reason}."}

    def _content(self) -> dict[str, Any]:
        task = self.task
        path = task.data.path("train")
        if path.exists() and changed(path) > self.began:  # that of a dataset of the Hub is no file
            raise ValueError(f"{path} has changed since the run began")
        examples: Iterable[Example] = task.data.examples("train")
        if self.data.chosen is not None:
            drawn = {*self.data.chosen.tolist()}
            examples = (x for index, x in enumerate(examples) if index in drawn)
        stride = -(-self.data.examples // MOST_ROWS)
        texts, labels = _columns(itertools.islice(examples, 0, None, stride))
        task.data.rows["train"].forget()
        targets = labels
        if self._binarizer:
            targets = self._binarizer.fit_transform(labels)
        if task.label_kind == "distribution":
            targets = [max(label, key=label.get) for label in labels]
        without_text, bag_of_words = _models(task)
        models = {
            WITHOUT_TEXT[task.label_kind]: without_text.fit(texts, targets),
            BAG_OF_WORDS: bag_of_words.fit(texts, targets),
        }
        splits = {}
        for split in task.data.splits:
            if split == "train":
                continue
            scores = self._scores(split, models)
            if scores:
                splits[split] = scores
        return {"rows": len(texts), "splits": splits, "skipped": ""}

    @functools.cached_property
    def _binarizer(self) -> Any:
        from sklearn.preprocessing import MultiLabelBinarizer

        if self.task.label_kind != "multi_label":
            return None
        return MultiLabelBinarizer(classes=self.task.labels)

    def _scores(self, split: str, models: Mapping[str, Any]) -> dict[str, dict[str, float]]:
        texts, golds = _columns(self.task.data.examples(split))
        scores = {}
        for name, model in models.items() if golds else ():
            answers = model.predict(texts)
            if self._binarizer:
                answers = self._binarizer.inverse_transform(answers)
            pairs = zip(golds, answers, strict=True)
            scored = [self.task.scored_label(gold, {"label": answer}) for gold, answer in pairs]
            scores[name] = self.task.metric(scored, list(answers))
        return scores


def _models(task: Task) -> tuple[Any, Any]:
    from sklearn.dummy import DummyClassifier, DummyRegressor
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression, Ridge
    from sklearn.multiclass import OneVsRestClassifier
    from sklearn.pipeline import make_pipeline

    features = min(MOST_WORDS, MOST_WEIGHTS // max(len(task.labels), 1))
    analyzer: Any = words_and_characters  # its type hint says str, but it accepts functions
    words = TfidfVectorizer(analyzer=analyzer, sublinear_tf=True, max_features=features)
    if task.label_kind == "regression":
        return DummyRegressor(), make_pipeline(words, Ridge())
    classifier = LogisticRegression(max_iter=200)
    if task.label_kind == "multi_label":
        classifier = OneVsRestClassifier(classifier)
    return DummyClassifier(strategy="most_frequent"), make_pipeline(words, classifier)


def _columns(examples: Iterable[Example]) -> tuple[list[str], list[Any]]:
    """Returns the texts, those of a pair as one, and the labels of the labelled examples."""
    texts = []
    labels = []
    for example in examples:
        if example.label is not None:
            text = f"{example.text} {example.pair or ''}"
            texts.append(text[:MOST_CHARACTERS].lower())
            labels.append(example.label)
    return texts, labels
