"""Attributions: how much each word of a text adds to an output of the model, or takes from it.

They are integrated gradients over the word embeddings (Sundararajan et al. 2017), from a baseline
in which every token but [CLS] and [SEP] is [PAD] or [MASK], to the text. The path integral is taken
by Gauss-Legendre quadrature, and so equals captum's `LayerIntegratedGradients` of the layer of word
embeddings with its default method and the same number of steps.

An output is a weighted sum of logits: the logit of a class, a number of a regression, the score
of a reranker before its activation, or the logit of the tag of a word. Of a long text that is read
in windows, it is the mean of the windows' logits, as in the prediction, and a word gets the sum of
what it has in all windows.
"""

import dataclasses
import difflib
import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from bertjax.base.checked import Count, check
from bertjax.base.files import brief, did_you_mean, in_json
from bertjax.data.batches.batch import Feature, pad_to
from bertjax.inference.predictor import for_inference, length_bucket, stacked, token_budget
from bertjax.model import BertWithHead
from bertjax.tasks import Example, Prediction, Task
from bertjax.tasks.classification import ClassificationTask, MultiLabelTask, RegressionTask
from bertjax.tasks.reranking import RerankTask
from bertjax.tasks.tagging import TagTask
from bertjax.tasks.tags import OUTSIDE, split_words
from bertjax.tokenization import Tokenizer

Baseline = Literal["pad", "mask"]
STEPS = 32
# Of a text with more tagged words, the first ones are attributed.
MOST_TARGETS = 20
ATTRIBUTED = (ClassificationTask, MultiLabelTask, RegressionTask, RerankTask, TagTask)
# The gradients keep the activations of all layers, so that fewer tokens are computed at once.
BUDGET_SHARE = 4


@dataclasses.dataclass(frozen=True, kw_only=True)
class Attribution:
    """What the words of a text, or pair of texts, add to one output of the model.

    Attributes:
        target: the name of the output, such as a class.
        words: W words, each with the characters up to the next one: joined, they are the texts.
        values: the value of each word, float [W], the sum over its tokens; NaN for words that the
            model has not read, such as those behind the cut of a truncated text.
        pair_start: the index of the first word of the second text; W if there is no second one.
        word: the index of the word whose tag the output is; None for other outputs.
        tokens: the N tokens that the model has read, special ones too, window after window.
        token_values: the value of each token, float32 [N]; [CLS] and [SEP] have 0.
        output: the output for the texts.
        baseline_output: the output for the baseline.
        remark: what else to say of the target, such as that no label is predicted; or "".
    """

    target: str
    words: Sequence[str]
    values: np.ndarray
    pair_start: int
    word: int | None
    tokens: Sequence[str]
    token_values: np.ndarray
    output: float
    baseline_output: float
    remark: str = ""

    @property
    def completeness_error(self) -> float:
        """The sum of all values, minus the difference of the outputs for texts and baseline.

        It would be 0 with infinitely many steps (Sundararajan et al. 2017, 3).
        """
        return float(self.token_values.sum()) - (self.output - self.baseline_output)

    def page_data(self) -> dict[str, Any]:
        """Returns the JSON values of which pages show the attribution."""
        fields = {**vars(self), "values": self.values.tolist(), "error": self.completeness_error}
        for of_tokens in ("tokens", "token_values"):
            del fields[of_tokens]
        return in_json(fields)


@dataclasses.dataclass(frozen=True)
class Attributor:
    """Attributes the predictions of a model to the words of their texts.

    `params` are in the form of `predictor.inference_params`; `baseline` and `steps` are described
    at `Pretrained.attribute`. Raises ValueError if the task has no outputs that can be attributed.
    """

    task: Task
    model: BertWithHead
    params: Any
    tokenizer: Tokenizer
    baseline: Baseline = "pad"
    steps: int = STEPS

    def __post_init__(self):
        check("baseline", self.baseline, Baseline)
        check("steps", self.steps, Count)
        if not isinstance(self.task, ATTRIBUTED):
            raise ValueError(
                "Attributions are those of classes, numbers, scores of rerankers and tags, but "
                f"the task of the model is {self.task.name} ({self.task.label_kind})."
            )

    def __call__(
        self,
        example: Example,
        prediction: Prediction,
        label: str | None = None,
        word: int | None = None,
    ) -> list[Attribution]:
        """Returns an attribution for each output that `Pretrained.attribute` describes.

        Raises ValueError if the task has no such `label`, or the example no such `word`.
        """
        task = self.task
        if label is not None and label not in task.labels:
            raise ValueError(
                f"label={label!r}: the model has no such label. "
                f"{did_you_mean(label, task.labels)}Its labels are: "
                f"{brief(', '.join(task.labels) or 'none', 200)}."
            )
        unlabelled = dataclasses.replace(example, label=None)
        features = task.features_to_predict(unlabelled, self.tokenizer, task.max_length)
        words = _words_of(task, example, self.tokenizer)
        attributions = []
        for target in targets(task, prediction, features, label, word):
            attributions.append(self._attribution(words, features, target))
        return attributions

    def _attribution(
        self, words: "_Words", features: Sequence[Feature], target: "Target"
    ) -> Attribution:
        tokens = []
        values = []
        numbers = []  # of the words of all tokens
        outputs = np.zeros(2)
        for feature, weights in zip(features, target.weights, strict=True):
            if weights.any():
                of_feature, of_outputs = self.integrated_gradients(feature, weights)
                tokens += [self.tokenizer.tokens[i] for i in feature.input_ids]
                values.append(of_feature)
                numbers.append(_numbers(feature, words))
                outputs += of_outputs
        token_values = np.concatenate(values)
        # The sum over special tokens, whose number is -1, comes first.
        of_tokens = np.concatenate(numbers) + 1
        size = 1 + len(words.words)
        sums = np.bincount(of_tokens, token_values, size)[1:]
        is_read = np.bincount(of_tokens, minlength=size)[1:] > 0
        return Attribution(
            target=target.name,
            words=words.words,
            values=np.where(is_read, sums, np.nan),
            pair_start=words.pair_start,
            word=target.word,
            tokens=tokens,
            token_values=token_values,
            output=float(outputs[1]),
            baseline_output=float(outputs[0]),
            remark=target.remark,
        )

    def integrated_gradients(
        self, feature: Feature, weights: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Returns the values of L tokens, float32 [L], and the outputs for baseline and text, [2].

        `weights` are as in `Target`. The length is padded, so that texts share compiled programs.
        """
        tokenizer = self.tokenizer
        # A loop over the layers compiles in a third of the time, and is as fast for gradients.
        model = for_inference(self.model).clone(unroll=1)
        count = len(feature.input_ids)
        length = length_bucket(count, model.config.max_length)
        places = np.arange(length)
        ids = pad_to(feature.input_ids, length, tokenizer.pad_token_id)
        row = {
            "input_ids": ids,
            "token_type_ids": places >= feature.a_lengths[0],
            "attention_mask": places < count,
        }
        kept = np.isin(ids, _specials(tokenizer)) | (places >= count)
        replacing = tokenizer.pad_token_id
        if self.baseline == "mask":
            replacing = tokenizer.mask_token_id
        baseline = np.where(kept, ids, replacing)
        if len(weights) > 1:  # of tokens
            weights = np.pad(weights, ((0, length - count), (0, 0)))
        nodes, shares = np.polynomial.legendre.leggauss(self.steps)
        # The last two points are the baseline and the text themselves.
        alphas = [*(1 + nodes) / 2, 0, 1]
        shares = [*shares / 2, 0, 0]
        points = np.array([alphas, shares], np.float32)
        size = len(alphas)
        budget = token_budget(length, None, share=BUDGET_SHARE)
        chunks = -(-size * length // max(budget, length))
        padding = -size % chunks
        points = np.pad(points, ((0, 0), (padding, 0)))
        points = points.reshape(2, chunks, -1)
        program: Any = _program
        values, outputs = program(model)(
            self.params,
            row,
            baseline,
            weights.astype(np.float32),
            *points,
        )
        of_points = np.asarray(outputs).reshape(-1)
        return np.asarray(values)[:count], of_points[-2:]


class Target(NamedTuple):
    """An output to attribute: its name, the word that it is about, if any, and weights of logits.

    `remark` says, after the name, why it is attributed although it is not predicted.
    `weights` are [1, C] for each feature of the example, or [L, C] for the C logits of L tokens.
    """

    name: str
    word: int | None
    weights: Sequence[np.ndarray]
    remark: str = ""


def targets(
    task: Task,
    prediction: Prediction,
    features: Sequence[Feature],
    label: str | None = None,
    word: int | None = None,
) -> list[Target]:
    """Returns the outputs that `Pretrained.attribute` describes, for an example's prediction."""
    if isinstance(task, TagTask):
        return _tag_targets(task, prediction, features, label, word)
    if word is not None:
        raise ValueError(f"word={word}: the task {task.name} has no tags of words: leave it out.")
    if isinstance(task, RerankTask):
        logit = np.array([task.weights])
        # Further features are those of other passages.
        weights = [0 * logit for _ in features]
        weights[0] = logit
        return [Target("score", None, weights)]
    names: Sequence[str] = task.labels or ["score"]  # of a regression, all numbers
    remark = ""
    if label is not None:
        names = [label]
    elif isinstance(task, MultiLabelTask):
        probabilities = prediction["probabilities"]
        names = prediction["labels"]
        if not names:
            names = [max(probabilities, key=probabilities.__getitem__)]
            remark = " (no label is predicted; this one is the most probable)"
    elif isinstance(task, ClassificationTask):
        names = [prediction["label"]]
    labels = list(task.labels or names)
    # The logits of a text are the mean of those of its windows.
    logits = np.eye(len(labels))[:, None] / len(features)
    found = []
    for name in names:
        logit = logits[labels.index(name)]
        found.append(Target(name, None, [logit] * len(features), remark))
    return found


def _tag_targets(
    task: TagTask,
    prediction: Prediction,
    features: Sequence[Feature],
    label: str | None,
    word: int | None,
) -> list[Target]:
    words = prediction["words"]
    tags = prediction["labels"]
    # Unknown symbols of a running text are not read.
    origins: Any = [feature.origins for feature in features]
    read = np.unique(np.concatenate(origins))
    chosen = [index for index in read.tolist() if index >= 0 and tags[index] != OUTSIDE]
    if word is not None:
        chosen = [word - 1]
        if word < 1 or word - 1 not in read:
            raise ValueError(f"word={word}: the model reads no such word of the {len(words)}.")
    found = []
    for index in chosen[:MOST_TARGETS]:
        tag = label or tags[index]
        weights = []
        for feature in features:
            of_feature = np.zeros((len(feature.input_ids), len(task.labels)))
            of_feature[feature.origins == index, task.labels.index(tag)] = 1
            weights.append(of_feature)
        found.append(Target(f"{tag}: {words[index]}", index, weights))
    return found


class _Words(NamedTuple):
    """The words of an example, as in `Attribution`, and its whole input before any cut.

    `numbers` holds the word of each of the token ids `sequence`, -1 for special tokens.
    """

    words: list[str]
    pair_start: int
    sequence: list[int]
    numbers: np.ndarray


def _words_of(task: Task, example: Example, tokenizer: Tokenizer) -> _Words:
    if isinstance(task, TagTask):
        texts = [[f"{word} " for word in example.words]]
    else:
        texts = [_split(getattr(task, "prompt", "") + example.text)]
        if example.pair is not None:
            texts.append(_split(example.pair))
    special = _specials(tokenizer)
    words = []
    ids_of_texts = []
    numbers = []
    for of_text in texts:
        ids, offsets = tokenizer.encode_with_offsets("".join(of_text))
        ends = np.cumsum([len(word) for word in of_text])
        word_of_token = np.searchsorted(ends, offsets[:, 0], "right")
        ids_of_texts.append(ids)
        numbers.append(len(words) + word_of_token)
        words += of_text
    sequence, _ = tokenizer.join(*ids_of_texts)
    # In the text of a user, no token is a special one.
    is_of_text = ~np.isin(sequence, special)
    of_sequence = np.full(len(sequence), -1)
    of_sequence[is_of_text] = np.concatenate(numbers)
    return _Words(words, len(texts[0]), sequence, of_sequence)


def _split(text: str) -> list[str]:
    """Splits a text where words start; the first one gets what is before it."""
    starts = [word.start for word in split_words(text)]
    return [text[a:b] for a, b in itertools.pairwise([0, *starts[1:], len(text)])]


def _specials(tokenizer: Tokenizer) -> tuple[int, int]:
    return tokenizer.cls_token_id, tokenizer.sep_token_id


def _numbers(feature: Feature, words: _Words) -> np.ndarray:
    """Returns the word of each token of a feature, int [L]: a window of the input, or all of it."""
    numbers = np.full(len(feature.input_ids), -1)
    matcher = difflib.SequenceMatcher(
        None, words.sequence, feature.input_ids.tolist(), autojunk=False
    )
    for start, place, size in matcher.get_matching_blocks():
        numbers[place : place + size] = words.numbers[start : start + size]
    return numbers


@functools.lru_cache(maxsize=64)
def _program(model: BertWithHead) -> Callable[..., Any]:
    """Returns the jitted function that sums the gradients of all points of the path.

    Its arguments are the parameters, one row of a batch, the ids of the baseline [L], weights of
    the logits [1, C] or [L, C], and the points: their places between baseline (0) and text (1), and
    their shares in the integral, [chunks, points] each. It returns the values of the tokens [L],
    and the outputs [chunks, points]. The points of a chunk are computed together.
    """

    def integrate(
        params: Any,
        row: Any,
        baseline_ids: jax.Array,
        weights: jax.Array,
        alphas: jax.Array,
        shares: jax.Array,
    ) -> tuple[jax.Array, jax.Array]:
        params = stacked(params)
        table = params["bert"]["embeddings"]["word_embeddings"]["embedding"]
        start = table[baseline_ids]  # [L, size]
        change = table[row["input_ids"]] - start
        batch = {}
        for key, values in row.items():
            batch[key] = jnp.tile(values.astype(jnp.int32), (alphas.shape[1], 1))

        def outputs_of(embedded: jax.Array) -> jax.Array:
            """Returns the outputs [points] for word embeddings [points, L, size]."""

            def intercept(method: Any, args: Any, kwargs: Any, context: Any) -> Any:
                name = (context.module.name, context.method_name)
                is_lookup = name == ("word_embeddings", "__call__")
                if is_lookup:
                    return embedded
                return method(*args, **kwargs)

            with nn.intercept_methods(intercept):
                outputs: Any = model.apply({"params": params}, **batch)
            logits = outputs["logits"].reshape(-1, *weights.shape)
            return (logits * weights[None]).sum(axis=(1, 2))

        def add(total: jax.Array, points: Any) -> tuple[jax.Array, jax.Array]:
            alpha, share = points
            outputs, pull_back = jax.vjp(
                outputs_of, start[None] + alpha[:, None, None] * change[None]
            )
            (gradients,) = pull_back(share)
            return total + gradients.sum(axis=0), outputs

        total, outputs = jax.lax.scan(add, jnp.zeros_like(change), (alphas, shares))
        return (total * change).sum(axis=-1), outputs

    return jax.jit(integrate)
