"""Random examples and predictions of every kind of task, for tests of scores."""

import functools

import numpy as np

from bertjax.tasks.classification import (
    ChoiceTask,
    ClassificationTask,
    DistributionTask,
    MultiLabelTask,
    RegressionTask,
    TargetsTask,
)
from bertjax.tasks.dataset import Example
from bertjax.tasks.embedding import SimilarityTask
from bertjax.tasks.metrics import (
    accuracy,
    accuracy_and_f1,
    matthews,
    ordinal_metrics,
    pearson_spearman,
)
from bertjax.tasks.question_answering import IMPOSSIBLE, SpanTask
from bertjax.tasks.reranking import RerankTask
from bertjax.tasks.tagging import TagTask

CLASSES = ("a", "b", "c")
TAGS = ("O", "B-PER", "I-PER", "B-LOC", "I-LOC")
WORDS = ("the", "cat", "sat", "mat", "")


def example(index, **fields):
    return Example(id=str(index), where=f"row {index}", **fields)


def of_classes(rng, index):
    logits = rng.standard_normal(3)
    probabilities = np.exp(logits) / np.exp(logits).sum()
    prediction = {
        "label": CLASSES[int(probabilities.argmax())],
        "probabilities": dict(zip(CLASSES, probabilities.tolist(), strict=True)),
    }
    return example(index, text="x", label=str(rng.choice(CLASSES))), prediction


def of_labels(rng, index):
    p = rng.random(3)
    probabilities = dict(zip(CLASSES, p.tolist(), strict=True))
    label = tuple(name for name in CLASSES if rng.random() < 0.4)
    labels = [name for name, value in probabilities.items() if value >= 0.5]
    return example(index, label=label), {"labels": labels, "probabilities": probabilities}


def of_numbers(rng, index):
    gold = float(rng.integers(6))
    return example(index, label=gold), {"score": gold + float(rng.integers(-2, 3))}


def of_distributions(rng, index):
    found, prediction = of_classes(rng, index)
    shares = rng.multinomial(4, np.full(3, 1 / 3)) / 4  # ties are frequent
    label = dict(zip(CLASSES, shares.tolist(), strict=True))
    return example(index, text="x", label=label), prediction


def of_stars(rng, index):
    found, prediction = of_classes(rng, index)
    stars = {name: str(number) for number, name in enumerate(CLASSES, 1)}
    probabilities = {stars[name]: p for name, p in prediction["probabilities"].items()}
    prediction = {"label": stars[prediction["label"]], "probabilities": probabilities}
    return example(index, text="x", label=stars[str(found.label)]), prediction


def of_targets(rng, index):
    gold = {"x": float(rng.integers(6)), "y": rng.random()}
    scores = {"x": gold["x"] + float(rng.integers(-2, 3)), "y": rng.random()}
    if rng.random() < 0.3:
        gold[str(rng.choice(["x", "y"]))] = None
    return example(index, label=gold), {"scores": scores}


def of_similarities(rng, index):
    gold = float(rng.integers(6))
    return example(index, label=gold), {"similarity": float(rng.integers(6)) / 5}


def of_tags(rng, index):
    count = int(rng.integers(1, 9))
    gold, answer = rng.choice(TAGS, (2, count), p=[0.6, 0.1, 0.1, 0.1, 0.1]).tolist()
    words = ("w",) * count
    return example(index, words=words, label=tuple(gold), cut=(0,)), {"labels": answer}


def of_choices(rng, index):
    return example(index, label=int(rng.integers(4))), {
        "label": int(rng.integers(4)),
        "probabilities": [0.25] * 4,
    }


def of_questions(rng, index, impossible=0.0):
    texts = [" ".join(rng.choice(WORDS[:4], 2)) for _ in range(2)]
    answer = " ".join(rng.choice(WORDS, 2)).strip()
    prediction = {"answer": answer, "null_odds": float(rng.integers(5))}
    if rng.random() < impossible:
        return example(index, label=IMPOSSIBLE), prediction
    return example(index, answers=tuple((text, 0) for text in texts)), prediction


def of_passages(rng, index):
    negatives = tuple(f"negative {index} {n}" for n in range(3))
    found = example(
        index, text=f"query {index // 2}", pair=f"p {index}", choices=negatives, label=1.0
    )
    score, *others = rng.random(4).tolist()
    return found, {"score": score, "negatives": others}


TASKS = {
    "classes": (ClassificationTask(name="classify", labels=CLASSES), of_classes),
    "accuracy": (ClassificationTask(name="sst2", labels=CLASSES, metric=accuracy), of_classes),
    "positive": (
        ClassificationTask(
            name="mrpc",
            labels=CLASSES,
            metric=functools.partial(accuracy_and_f1, positive="b"),
        ),
        of_classes,
    ),
    "matthews": (ClassificationTask(name="cola", labels=CLASSES, metric=matthews), of_classes),
    "labels": (MultiLabelTask(name="classify", labels=CLASSES), of_labels),
    "distributions": (DistributionTask(name="classify", labels=CLASSES), of_distributions),
    "stars": (
        ClassificationTask(name="classify", labels=("1", "2", "3"), metric=ordinal_metrics),
        of_stars,
    ),
    "targets": (TargetsTask(name="regress", labels=("x", "y")), of_targets),
    "numbers": (RegressionTask(name="regress"), of_numbers),
    "stsb": (RegressionTask(name="stsb", metric=pearson_spearman), of_numbers),
    "similarities": (SimilarityTask(name="embed"), of_similarities),
    "entities": (TagTask.of_labels(TAGS, name="tag"), of_tags),
    "words": (TagTask.of_labels(("DET", "NOUN"), name="tag"), of_tags),
    "choices": (ChoiceTask(name="choice", num_choices=4), of_choices),
    "squad": (SpanTask(name="squad"), of_questions),
    "squad2": (
        SpanTask(name="squad2", with_impossible=True),
        functools.partial(of_questions, impossible=0.4),
    ),
    "ranking": (RerankTask(name="rerank"), of_passages),
}


def pairs_of(kind, count, seed=0):
    task, make = TASKS[kind]
    rng = np.random.default_rng(seed)
    return task, [make(rng, index) for index in range(count)]
