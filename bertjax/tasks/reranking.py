"""Reranking: a cross-encoder reads a query and a passage together, and scores how they match.

The training examples are queries with a labelled passage, or with a positive and negatives, perhaps
with a teacher's scores of them (Nogueira and Cho 2019; Hofstatter et al. 2020). The metrics are
those of the rankings of all passages with the same query.
"""

import dataclasses
import operator
from collections.abc import Sequence
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np

from bertjax.base.checked import Positive
from bertjax.base.files import brief
from bertjax.data.batches.batch import Feature, LabelKind
from bertjax.tasks.classification import ClassificationTask, sigmoid
from bertjax.tasks.dataset import By, Fold
from bertjax.tasks.definition import RetrievalOptions, TaskDefinition
from bertjax.tasks.metrics import (
    RELEVANT,
    average_precision,
    mrr,
    ndcg,
    pearson_spearman,
    ranked_gains,
    regression_metrics,
)
from bertjax.tasks.sources import held_out
from bertjax.tasks.sources.columns import (
    COMPARED_WORDS,
    RETRIEVED,
    TEXTS,
    TOGETHER,
    TableKind,
    plain,
)
from bertjax.tasks.sources.own_files import OwnDataset, own_tables
from bertjax.tasks.sources.tables import shorten
from bertjax.tasks.task import Example, Outputs, Pairs, Prediction, Task, feature_of
from bertjax.tokenization import Tokenizer

# Names of PyTorch's modules after which a score is the function of a logit.
ACTIVATIONS = {"Sigmoid": sigmoid, "Identity": np.asarray, "Tanh": np.tanh}
METRICS = ("ndcg_at_10", "mrr_at_10", "map")
DISTILLED = ("margin", "kl")
# Names, as of `plain`, of the class of pairs that match; the other class has any other name.
MATCHES = frozenset(
    "relevant isrelevant positive 1 true yes entailment entails match matches matching matched "
    "duplicate isduplicate paraphrase isparaphrase equivalent similar related answer isanswer "
    "correct supports supported".split()
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class RerankOptions(RetrievalOptions):
    """Options of --task=rerank: queries with labelled passages, or with positives and negatives."""

    table = TableKind(
        "rerank",
        labels=("label", "score", "grade", "rating", *TOGETHER, "target", "y"),
        texts=("query", "question", "anchor", *TEXTS),
        pairs=(*RETRIEVED, ("query", "text"), ("query", "candidate")),
        label="score",
        ranks=True,
        words={**COMPARED_WORDS, "text": "query", "pair": "passage", "label": "label"},
    )

    loss: Literal["binary", "listwise", "margin", "kl"] | None = None
    """Training loss (docs/finetune.md): binary of each passage, listwise over the passages of a
    query, margin or kl of a teacher's scores; None: listwise if there are negatives, else
    binary."""
    temperature: Positive | None = None
    """Temperature by which --loss kl divides scores; None: 1."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class RerankTask(Task):
    """Task that scores passages for a query; each is read as `[CLS] query [SEP] passage [SEP]`.

    An example has the passage, or the positive, in `pair`, and negatives in `choices`. If there is
    no `pair`, `choices` are candidates to rank.

    Attributes:
        num_texts: the number of passages of a training example.
        highest: the label that becomes 1 in training; others are divided by it.
        options: the user's options of the training, in which `loss` is not None.
        activation: the name of the function of a logit that is the score, in `ACTIVATIONS`.
        weights: the factors of the model's outputs, whose sum is the logit.
        pairs: whether every input is a pair of texts; None if single texts are scored as well.
        prompt: the text that is put before each query.
    """

    num_texts: int = 1
    highest: float = 1.0
    options: RerankOptions = RerankOptions(loss="binary")
    activation: str = "Sigmoid"
    weights: tuple[float, ...] = (1.0,)
    pairs: bool | None = True
    prompt: str = ""
    best_metric: str = METRICS[0]
    max_length: int = 256

    head: ClassVar[str] = "sequence_classification"
    label_kind: ClassVar[LabelKind] = "ranking"

    @property
    def num_labels(self) -> int:
        return 1

    @property
    def sequences_per_example(self) -> int:
        return self.num_texts

    def objective(self, head: Any) -> Any:
        return head.objective(self.label_kind, self.options)

    def features(self, example: Example, tokenizer: Tokenizer, max_length: int) -> list[Feature]:
        """Encodes a training example as one `Feature` with a sequence per passage.

        Raises:
            ValueError: a text is empty, there are more or fewer passages than in other examples, or
                the label is below 0.
        """
        sequences = self._sequences(example, tokenizer, max_length)
        if len(sequences) != self.num_texts:
            raise ValueError(
                f"{example.where} has {len(sequences) - 1} negatives, but the first row has "
                f"{self.num_texts - 1}: give every row the same number."
            )
        label: Any = example.label
        if label is None:
            return [feature_of(sequences, None)]
        if not label >= 0:
            raise ValueError(
                f"{example.where}: the label {label:g} is below 0, the label of passages that do "
                "not answer the query: give higher labels to those that do."
            )
        if self.options.loss in DISTILLED:
            values = example.scores
        else:
            # A dev split may have a higher label than the train split.
            values = (min(label / self.highest, 1.0), *[0.0] * len(example.choices))
        return [feature_of(sequences, np.array(values, np.float32))]

    def features_to_predict(
        self, example: Example, tokenizer: Tokenizer, max_length: int
    ) -> list[Feature]:
        """Encodes each passage of an example, with the query, as a `Feature` of its own."""
        sequences = self._sequences(example, tokenizer, max_length)
        return [feature_of([sequence], None) for sequence in sequences]

    def _sequences(
        self, example: Example, tokenizer: Tokenizer, max_length: int
    ) -> list[tuple[list[int], list[int]]]:
        passages = _passages(example)
        if self.pairs and not passages:
            raise ValueError(
                f"{example.where}: the model scores passages for a query, but there is only one "
                "text: give the passage as the second text (--pair, --pair_column, or a pair in "
                "Python), or a list of candidates (--choice_columns)."
            )
        if not all(text.strip() for text in (example.text, *passages)):
            raise ValueError(f"{example.where}: a text is empty; fill it or remove the row.")
        query = self.prompt + example.text
        if not passages:
            return [tokenizer.encode_prompt(query, None, max_length)]
        return tokenizer.encode_pairs(query, passages, max_length)

    def predict(
        self, example: Example, features: Sequence[Feature], outputs: Sequence[Outputs]
    ) -> Prediction:
        """Returns a dict: the `score` of the pair and, if there are any, of the `negatives`.

        Of a list of candidates, it is `ranking`, the best candidate first: the `index` of each in
        the list, its `score` and its `text`.
        """
        logits = np.array([output["logits"] for output in outputs], np.float64)
        scores = ACTIVATIONS[self.activation](logits @ self.weights).tolist()
        if example.pair is None and example.choices:
            order = sorted(range(len(scores)), key=lambda index: -scores[index])
            texts = example.choices
            return {"ranking": [{"index": i, "score": scores[i], "text": texts[i]} for i in order]}
        return {"score": scores[0]} | ({"negatives": scores[1:]} if scores[1:] else {})

    def score(self, pairs: Pairs) -> dict[str, float]:
        """Computes the means over the queries of nDCG@10, MRR@10 and the average precision.

        The labels of all passages with the same query are the gains of its ranking; negatives have
        0. As in trec_eval, a query without a positive has 0. If no query has two passages, as in
        pairs of sentences with scores, the metrics are those of regression; with labels above 1,
        which have another scale than the scores, correlations alone.
        """
        rows = []
        for example, prediction in pairs:
            passages = ranked_passages(example, prediction)
            if passages is not None:
                rows.append(passages)
        if values := query_scores(rows):
            return dict(zip(METRICS, np.mean(values, axis=0).tolist(), strict=True))
        labels = [row.label for row in rows]
        scores = [row.scores[0] for row in rows]
        if not rows:
            return {}
        if max(labels) > 1:
            return pearson_spearman(labels, scores)
        return regression_metrics(labels, scores)

    def metric_names(self) -> list[str]:
        return [*METRICS]

    def hf_config(self) -> dict[str, Any]:
        """Returns the fields of config.json, with those in which CrossEncoder finds its activation.

        They are those of sentence-transformers from version 4 on, and of older ones.
        """
        module = "activation"
        if self.activation == "Identity":
            module = "linear"
        path = f"torch.nn.modules.{module}.{self.activation}"
        return {
            **super().hf_config(),
            "sentence_transformers": {"activation_fn": path},
            "sbert_ce_default_activation_function": path,
        }

    def description(self, max_length: int) -> dict[str, Any]:
        return {**super().description(max_length), "pairs": self.pairs}


class RankedPassages(NamedTuple):
    """The passages of a labelled example with their scores; `label` is that of the first one."""

    query: str
    passages: tuple[str, ...]
    scores: list[float]
    label: float


def ranked_passages(example: Example, prediction: Prediction) -> RankedPassages | None:
    """Returns the passages of an example; None if it has no label, or no scores were predicted."""
    if example.label is None or "score" not in prediction:
        return None
    scores = [prediction["score"], *prediction.get("negatives", ())]
    label: Any = example.label
    return RankedPassages(example.text, _passages(example) or ("",), scores, float(label))


def query_scores(rows: Sequence[RankedPassages]) -> list[tuple[float, ...]]:
    """Computes the `METRICS` of each query; returns [] if no query has two passages."""
    queries: dict[str, tuple[dict[str, float], dict[str, float]]] = {}
    for row in rows:
        scores, gains = queries.setdefault(row.query, ({}, {}))
        label = row.label
        for passage, score in zip(row.passages, row.scores, strict=True):
            scores[passage] = score
            gains[passage] = max(label, gains.get(passage, 0.0))
            label = 0.0
    if all(len(scores) < 2 for scores, _ in queries.values()):
        return []
    values = []
    for scores, gains in queries.values():
        ranked = ranked_gains(scores, gains)
        judged = gains.values()
        precision = average_precision(ranked, judged)
        values.append((ndcg(ranked, judged, 10), mrr(ranked, 10), precision))
    return values


def ranking_task(task: Task, where: str) -> tuple[RerankTask, str]:
    """Makes the task of a model rank candidates; returns it and a message about it, or "".

    Of two classes, the candidates are ranked by the probability of the one whose name is in
    `MATCHES`. Raises ValueError, beginning with `where`, for other models than that and rerankers.
    """
    if isinstance(task, RerankTask):
        return task, ""
    matches = [name for name in task.labels if plain(name) in MATCHES]
    if (
        not isinstance(task, ClassificationTask)
        or (len(task.labels), len(matches)) != (2, 1)
        or task.pairs is False
    ):
        outputs = "no class"
        if task.labels:
            outputs = f"the classes {brief(', '.join(task.labels), 80)}"
        raise ValueError(
            f"{where} has candidates to rank, but the model ({task.name}) predicts {outputs}: use "
            "a reranker, which has one output, or a model of pairs with two classes, exactly one "
            "of which has a name such as relevant, positive, entailment, yes or 1 (the names are "
            "in id2label of config.json). To classify each candidate, write a row with two texts "
            "for it; to leave the candidates out, give --text_column."
        )
    signs = [1 if name in matches else -1 for name in task.labels]
    ranking = RerankTask(
        name=task.name,
        max_length=task.max_length,
        weights=tuple(sign / task.temperature for sign in signs),
    )
    return ranking, f"candidates are ranked by the probability of the class {matches[0]!r}."


def _passages(example: Example) -> tuple[str, ...]:
    if example.pair is None:
        return example.choices
    return (example.pair, *example.choices)


def make_reranking(options: RerankOptions, fold: Fold | None) -> RerankTask:
    """Makes the task of the user's queries and passages."""
    data = held_out.divide(own_tables(options), options, fold, _BY_QUERY)
    first = next(data.examples("train"), None)
    count, scores = (len(first.choices), first.scores) if first else (0, ())
    loss = options.loss or ("listwise" if count else "binary")
    lacks = ""
    if loss != "binary" and not count:
        lacks = "negatives (--negative_columns)"
    if loss in DISTILLED and not scores:
        lacks = lacks or "a teacher's scores (--score_columns)"
    if lacks:
        raise ValueError(
            f"--loss {loss}: {data.path('train')} lacks {lacks}. binary takes queries, passages "
            "and labels; listwise queries, positives and negatives; margin and kl also a teacher's "
            "scores. Choose another."
        )
    if options.score_columns and loss not in DISTILLED:
        raise ValueError(
            f"score_columns={options.score_columns} has no effect on --loss {loss}: leave it out."
        )
    if options.temperature is not None and loss != "kl":
        raise ValueError(
            f"temperature={options.temperature} has no effect on --loss {loss}: leave it out."
        )
    data = _with_positives(data)
    return RerankTask(
        name="rerank",
        options=dataclasses.replace(options, loss=loss),
        source=data,
        num_texts=1 + count,
        highest=1.0 if loss in DISTILLED else _highest(data),
    )


def _highest(data: OwnDataset) -> float:
    """Returns the highest label of the train split, at least 1; if it is above 1, prints it."""
    highest = 1.0
    for example in data.examples("train"):
        label: Any = example.label
        highest = max(highest, label)
    if highest > 1:
        print(f"labels: 0 to {highest:g}; the model learns scores of label / {highest:g}")
    return highest


def _with_positives(data: OwnDataset) -> OwnDataset:
    """Refuses, or leaves out, the rows of queries without a positive in the train or dev split."""
    for split in sorted({"train", "dev"} & {*data.splits}):
        positive = set()
        for example in data.examples(split):
            if isinstance(example.label, float) and example.label >= RELEVANT:
                positive.add(example.text)
        problems = {}
        for example in data.examples(split):
            if example.text not in positive:
                problems[example.where] = (
                    f"{example.where}: the query {shorten(example.text)} has no positive: give one "
                    "of its passages the label 1, or remove its rows."
                )
        data = data.without(split, problems)
    return data


_BY_QUERY = By(
    operator.attrgetter("text"),
    held_out.grouped,
    held_out.grouped_folds,
    "all rows with the same query together",
    "group",
)
RERANK = TaskDefinition(
    name="rerank", kinds=(RerankTask,), options=RerankOptions, make=make_reranking
)
