"""The models that a server has loaded: what each can answer, and what it computes for a request.

A request is prepared (`Asked`): its texts become inputs of the model, and a function makes the
answer of their results. What computes is the same as elsewhere: encoders and `Predictor`.
"""

import abc
import dataclasses
import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bertjax.base.files import brief, listed
from bertjax.config.serve_config import Backend
from bertjax.data.batches.batch import Feature
from bertjax.inference.embedder import LINE_CHARACTERS
from bertjax.inference.indexes import encoder_kind, encoder_of
from bertjax.inference.late_interaction import TokenEmbedder
from bertjax.inference.onnx_export import FOLDER, exported, exported_encoder
from bertjax.inference.onnx_session import open_program
from bertjax.inference.predictor import every_shape
from bertjax.inference.pretrained import Pretrained
from bertjax.inference.serving.batching import Input
from bertjax.inference.sparse import SparseEmbedder
from bertjax.inference.texts import from_text
from bertjax.tasks import Example, Prediction, Task
from bertjax.tasks.classification import TextTask, mean_logits
from bertjax.tasks.embedding import EmbeddingTask
from bertjax.tasks.late_interaction import MEAN_MAXSIM, maxsim
from bertjax.tasks.reranking import RerankTask, ranking_task
from bertjax.tasks.tagging import TagTask
from bertjax.tasks.task import Outputs
from bertjax.weights import LoadedModel, load_model
from bertjax.weights.sentence_transformers import SentenceModules

# Maximum number of numbers in an answer, whose JSON is in memory.
MOST_NUMBERS = 4_000_000
# What a token counts in an answer of tokens: an id, a text and places take as much as these.
NUMBERS_OF_TOKEN = 10


class Refused(Exception):
    """A request that gets no answer: an HTTP status, and a type of text-embeddings-inference."""

    def __init__(self, status: int, kind: str, message: str):
        super().__init__(message)
        self.status = status
        self.kind = kind


def too_much(message: str) -> Refused:
    """Returns the refusal of a request that is larger than what is allowed."""
    return Refused(413, "validation", message)


class Asked(NamedTuple):
    """What a request asks of a model: the inputs, and a function of their results, the answer."""

    inputs: list[Input]
    answer: Callable[[list[Any]], Any]

    @property
    def tokens(self) -> int:
        """The number of tokens of all inputs."""
        return sum(item.tokens for item in self.inputs)


class Limits(NamedTuple):
    """How texts are truncated: `truncate` as the request says, or else the server."""

    truncate: bool
    where: str = "inputs"

    def too_long(self, index: int, most: int) -> Refused:
        """Returns the refusal of the text `index` of more than `most` tokens."""
        return too_much(
            f"{self.where}[{index}] has more than {most} tokens: shorten it, or ask for "
            '"truncate": true.'
        )

    def cut(self, text: str, index: int, side: str = "right") -> str:
        """Keeps as many characters as the longest model reads, or refuses a longer text.

        They are the first ones, or the last ones if the model truncates at the `side` "left".
        """
        if len(text) > LINE_CHARACTERS and not self.truncate:
            raise too_much(
                f"{self.where}[{index}] has {len(text)} characters, more than {LINE_CHARACTERS}: "
                'shorten it, or ask for "truncate": true.'
            )
        if side == "left":
            return text[-LINE_CHARACTERS:]
        return text[:LINE_CHARACTERS]


class ServedModel(abc.ABC):
    """Base class of the loaded models.

    Attributes:
        name: the name by which requests ask for it.
        kind: what it is, in the words of text-embeddings-inference.
        endpoints: the paths that it answers, without "/"; the first one is for requests to "/".
        max_length: the maximum number of tokens per text.
        truncation_side: where longer texts are truncated, "left" or "right".
    """

    kind: str
    endpoints: tuple[str, ...]
    max_length: int

    def __init__(self, name: str, model: Pretrained):
        self.name = name
        self.where = model.where
        self._tokenizer = model.loaded.tokenizer
        self.truncation_side = self._tokenizer.truncation_side

    @abc.abstractmethod
    def warm_up(self) -> None:
        """Compiles the programs of all shapes that requests can need."""

    @abc.abstractmethod
    def compute_by_onnx(self, loaded: LoadedModel, file: Path | None) -> None:
        """Computes by ONNX Runtime, which needs no compilation, from a file of `open_program`.

        Raises FileNotFoundError, and ValueError if that is not possible.
        """

    def details(self) -> dict[str, Any]:
        """Returns what `/info` says of the kind of model."""
        return {}

    def text_with_prompt(self, text: str, prompt_name: str | None) -> str:
        """Returns a text as it is tokenized."""
        if prompt_name is not None:
            raise Refused(422, "validation", f"{self.name} has no prompts: leave prompt_name out.")
        return text

    def tokenize(self, texts: Sequence[str], special: bool, prompt_name: str | None) -> Asked:
        """Prepares the tokens of texts, with ids, places and whether they are special."""
        limits = Limits(truncate=False)
        tokens = []
        count = 0
        for index, text in enumerate(texts):
            whole = self.text_with_prompt(limits.cut(text, index), prompt_name)
            tokens.append(self._tokens(whole, special))
            count += len(tokens[-1])
            check_size(NUMBERS_OF_TOKEN * count)
        return Asked([], lambda results: tokens)

    def _tokens(self, text: str, special: bool) -> list[dict[str, Any]]:
        tokenizer = self._tokenizer
        ids, offsets = tokenizer.encode_with_offsets(text, is_prompt=True)
        tokens = []
        for token, (start, stop) in zip(ids.tolist(), offsets.tolist(), strict=True):
            tokens.append(_token(token, text[start:stop], start, stop))
        if not special:
            return tokens
        first = _token(tokenizer.cls_token_id, tokenizer.tokens[tokenizer.cls_token_id])
        last = _token(tokenizer.sep_token_id, tokenizer.tokens[tokenizer.sep_token_id])
        return [first, *tokens, last]


def _token(
    token: int, text: str, start: int | None = None, stop: int | None = None
) -> dict[str, Any]:
    """Returns a token of a text, or without a place, a special one."""
    return {"id": token, "text": text, "special": start is None, "start": start, "stop": stop}


class EncoderModel(ServedModel):
    """Base class of models of embeddings, which have an encoder for each of their prompts."""

    kind = "embedding"
    options: dict[str, Any] = {}

    def __init__(self, name: str, model: Pretrained, max_length: int | None):
        super().__init__(name, model)
        loaded = model.loaded
        self._modules = loaded.source.usage.modules.result() or SentenceModules()
        self._encoders: dict[str | None, Any] = {}
        for prompt in (None, *self._modules.prompts):
            encoder = encoder_of(loaded, prompt=prompt, max_length=max_length, **self.options)
            encoder.layout = "fixed"
            self._encoders[prompt] = encoder
        self._tokenizer = self._encoders[None].tokenizer
        self._limit = loaded.config.max_length
        self.max_length = self._encoders[None].max_length
        self.size = self._encoders[None].size

    def warm_up(self) -> None:
        programs = set()
        token = self._tokenizer.unk_token_id
        for encoder in self._encoders.values():
            if encoder.program not in programs:
                programs.add(encoder.program)
                for lengths in every_shape(self._limit):
                    encoder.of_ids([[token] * length for length in lengths])

    def compute_by_onnx(self, loaded: LoadedModel, file: Path | None) -> None:
        program = open_program(exported_encoder(loaded, self._encoders[None]), file)
        for encoder in self._encoders.values():
            encoder.compute_by(program)

    def details(self) -> dict[str, Any]:
        return {"pooling": self._modules.pooling}

    def encoder(self, prompt_name: str | None) -> Any:
        """Returns the encoder of a prompt; None: the default one."""
        if prompt_name not in self._encoders:
            known = listed(sorted(self._modules.prompts))
            raise Refused(
                422,
                "validation",
                f"{self.name} has no prompt named {brief(repr(prompt_name), 60)}. Known: {known}.",
            )
        return self._encoders[prompt_name]

    def text_with_prompt(self, text: str, prompt_name: str | None) -> str:
        return self.encoder(prompt_name).prompt + text

    def inputs(self, texts: Sequence[str], prompt_name: str | None, limits: Limits) -> list[Input]:
        """Tokenizes texts; refuses those that are too long unless they are truncated."""
        encoder = self.encoder(prompt_name)
        side = self.truncation_side
        texts = [limits.cut(text, index, side) for index, text in enumerate(texts)]
        longest = encoder.max_length
        if not limits.truncate:
            longest += 1
        rows = encoder.ids_of(texts, longest)
        for index, row in enumerate(rows):
            if len(row) > encoder.max_length:
                raise limits.too_long(index, encoder.max_length)
        return [Input(encoder.of_ids, row, len(row)) for row in rows]


class EmbeddingModel(EncoderModel):
    """A model with one vector per text."""

    endpoints = ("embed", "v1/embeddings", "similarity", "tokenize")
    options = {"normalize": False}  # which is done after the program: requests ask for either
    # Whether an exported file divides the vectors by their length, so that none can ask for others.
    always_normalized = False

    def compute_by_onnx(self, loaded: LoadedModel, file: Path | None) -> None:
        if file is not None:
            self.always_normalized = self._modules.normalize
            if any(encoder.prompt_length for encoder in self._encoders.values()):
                raise ValueError(
                    f"{self.where} leaves its prompts out of the pooling, and {file} is exported "
                    "for one of them: leave --onnx_file out."
                )
        super().compute_by_onnx(loaded, file)

    def embed(
        self,
        texts: Sequence[str],
        limits: Limits,
        *,
        prompt_name: str | None = None,
        normalize: bool = True,
        dimensions: int | None = None,
    ) -> Asked:
        """Prepares the embeddings of texts, float32 [n, D], of which `dimensions` are kept."""
        if dimensions is not None and not 1 <= dimensions <= self.size:
            raise Refused(
                422,
                "validation",
                f"dimensions={dimensions}, but the vectors of {self.name} have {self.size} "
                f"numbers: choose 1 to {self.size}.",
            )
        if self.always_normalized and not normalize:
            raise Refused(
                422,
                "validation",
                f"{self.name} is served from an ONNX file, whose vectors have the length 1: leave "
                "normalize out.",
            )
        check_size(len(texts) * self.size)

        def answer(vectors: list[Any]) -> np.ndarray:
            embeddings = np.stack(vectors)[:, :dimensions]
            if normalize:
                embeddings = unit_vectors(embeddings)
            return finite(embeddings, self.name)

        return Asked(self.inputs(texts, prompt_name, limits), answer)


def unit_vectors(vectors: np.ndarray) -> np.ndarray:
    """Divides vectors [n, D] by their Euclidean length, as `embedding_losses.unit` does."""
    squares = np.square(vectors).sum(axis=-1, keepdims=True)
    return vectors / np.sqrt(np.maximum(squares, np.float32(1e-24)))


def finite(values: np.ndarray, name: str) -> np.ndarray:
    """Returns `values`, or refuses the request if one is no number, which JSON does not have."""
    if not np.isfinite(values).all():
        raise Refused(424, "backend", f"{name} computed NaN or infinity for these texts.")
    return np.ascontiguousarray(values)


def check_size(numbers: int) -> None:
    """Refuses an answer of too many numbers."""
    if numbers > MOST_NUMBERS:
        raise too_much(
            f"The answer would have {numbers:,} numbers, more than {MOST_NUMBERS:,}: ask for fewer "
            "texts at once."
        )


class SparseModel(EncoderModel):
    """A model with weights of words."""

    endpoints = ("embed_sparse", "tokenize")

    def details(self) -> dict[str, Any]:
        return {"pooling": "splade"}

    def embed_sparse(
        self, texts: Sequence[str], limits: Limits, prompt_name: str | None = None
    ) -> Asked:
        """Prepares lists of {"index": id of a word, "value": its weight}."""

        def answer(rows: list[Any]) -> list[list[dict[str, Any]]]:
            check_size(sum(row.nnz for row in rows))
            embeddings = []
            for row in rows:  # a sparse array of the weights of all words
                row.sort_indices()
                values = finite(row.data, self.name)
                pairs = zip(row.indices.tolist(), values, strict=True)
                embeddings.append([{"index": index, "value": value} for index, value in pairs])
            return embeddings

        return Asked(self.inputs(texts, prompt_name, limits), answer)


class TokenModel(EncoderModel):
    """A model with one vector per token, as of late interaction."""

    endpoints = ("embed_all", "rerank", "tokenize")

    def details(self) -> dict[str, Any]:
        return {"pooling": "late_interaction"}

    def embed_all(
        self, texts: Sequence[str], limits: Limits, prompt_name: str | None = None
    ) -> Asked:
        """Prepares the vectors of the tokens of each text, float32 [T, D]."""
        asked = Asked(self.inputs(texts, prompt_name, limits), self._vectors)
        check_size(asked.tokens * self.size)
        return asked

    def _vectors(self, vectors: list[Any]) -> list[np.ndarray]:
        return [finite(of_text, self.name) for of_text in vectors]

    def rerank(self, query: str, texts: Sequence[str], limits: Limits, raw_scores: bool) -> Asked:
        """Prepares the scores of passages for a query, float [n], by MaxSim."""
        asked = self.inputs([query], "query", limits._replace(where="query"))
        asked += self.inputs(texts, "document", limits)
        mean = self._modules.similarity == MEAN_MAXSIM

        def answer(vectors: list[Any]) -> np.ndarray:
            query_vectors, *passages = vectors
            return finite(maxsim([query_vectors], passages, mean=mean)[0], self.name)

        return Asked(asked, answer)


class ScoringModel(ServedModel):
    """A classifier, a regression model, a reranker or a tagger of entities."""

    def __init__(self, name: str, model: Pretrained, max_length: int | None):
        super().__init__(name, model)
        self._task: Any = model.task_with(max_length)
        self.max_length = self._task.max_length
        self._predictor, self._params = model.predictor(self._task)
        self._predictor.layout = "fixed"
        self._names = model.labels or ["LABEL_0"]
        self.kind = "classifier"
        self.endpoints = ("predict", "tokenize")
        if isinstance(self._task, TagTask):
            self.kind = "tagger"
        self._ranking: RerankTask | None = None
        try:
            self._ranking, _ = ranking_task(self._task, name)
        except ValueError:
            return
        self.endpoints = ("predict", "rerank", "tokenize")
        if isinstance(self._task, RerankTask):
            self.kind = "reranker"
            self.endpoints = ("rerank", "predict", "tokenize")

    def warm_up(self) -> None:
        token = self._tokenizer.unk_token_id
        for lengths in every_shape(self.max_length):
            features = []
            for length in lengths:
                ids = np.full(length, token, np.int32)
                features.append(Feature(ids, (length,), (length,), None))
            self._compute(features)

    def compute_by_onnx(self, loaded: LoadedModel, file: Path | None) -> None:
        self._predictor.compute_by(open_program(exported(loaded), file))
        self._params = None

    def details(self) -> dict[str, Any]:
        return {
            "id2label": dict(enumerate(self._names)),
            "label2id": {label: index for index, label in enumerate(self._names)},
        }

    def _compute(self, features: list[Feature]) -> list[Outputs]:
        return list(self._predictor.outputs(self._params, features))

    def _features(self, task: Task, example: Example, limits: Limits) -> list[Feature]:
        """Encodes an example; refuses what is too long unless it is truncated."""
        longest = self.max_length
        if not limits.truncate and not task.reads_windows:
            longest += 1
        features = task.features_to_predict(example, self._tokenizer, longest)
        for index, feature in enumerate(features):
            if len(feature.input_ids) > self.max_length:
                raise limits.too_long(int(example.id) + index, self.max_length)
        return list(features)

    def _inputs(self, features: Sequence[Feature]) -> list[Input]:
        return [Input(self._compute, x, len(x.input_ids)) for x in features]

    def predict(
        self, texts: Sequence[tuple[str, ...]], limits: Limits, raw_scores: bool = False
    ) -> Asked:
        """Prepares a list of {"score", "label"} of each text or pair, the highest scores first.

        Scores are probabilities, or the logits. Taggers have the lists of `found_entities`.
        """
        if raw_scores and self.kind == "tagger":
            raise Refused(422, "validation", "Entities have no raw scores: leave raw_scores out.")
        examples = []
        for index, parts in enumerate(texts):
            parts = [limits.cut(part, index, self.truncation_side) for part in parts]
            where = f"{limits.where}[{index}]"
            examples.append(from_text(self._task, *parts, id=str(index), where=where))
        features = [self._features(self._task, example, limits) for example in examples]

        def answer(results: list[Outputs]) -> list[list[dict[str, Any]]]:
            answers = []
            outputs = iter(results)
            for example, own in zip(examples, features, strict=True):
                of_example = list(itertools.islice(outputs, len(own)))
                answers.append(self._answer(example, own, of_example, raw_scores))
            return answers

        return Asked(self._inputs([*itertools.chain.from_iterable(features)]), answer)

    def _answer(
        self,
        example: Example,
        features: Sequence[Feature],
        outputs: Sequence[Outputs],
        raw_scores: bool,
    ) -> list[dict[str, Any]]:
        for output in outputs:
            finite(output["logits"], self.name)
        if raw_scores:
            logits = np.atleast_1d(mean_logits(outputs)).tolist()
            scores = dict(zip(self._names, logits, strict=True))
        else:
            prediction: Prediction = self._task.predict(example, features, outputs)
            if "entities" in prediction:
                return found_entities(prediction)
            scores = prediction.get("probabilities", prediction.get("scores"))
            if scores is None:
                scores = {self._names[0]: prediction["score"]}
        ordered = sorted(scores.items(), key=lambda item: -item[1])
        return [{"score": score, "label": label} for label, score in ordered]

    def rerank(self, query: str, texts: Sequence[str], limits: Limits, raw_scores: bool) -> Asked:
        """Prepares the scores of passages for a query, float [n]; raw ones have no activation."""
        task: Any = self._ranking
        if raw_scores:
            task = dataclasses.replace(task, activation="Identity")
        side = self.truncation_side
        query = limits._replace(where="query").cut(query, 0, side)
        passages = tuple(limits.cut(text, index, side) for index, text in enumerate(texts))
        example = Example(id="0", where=limits.where, text=query, choices=passages)
        features = self._features(task, example, limits)

        def answer(outputs: list[Outputs]) -> np.ndarray:
            scores = np.empty(len(texts))
            for rank in task.predict(example, features, outputs)["ranking"]:
                scores[rank["index"]] = rank["score"]
            return finite(scores, self.name)

        return Asked(self._inputs(features), answer)


def found_entities(prediction: Prediction) -> list[dict[str, Any]]:
    """Returns the entities of a text in the form of transformers' pipeline "token-classification".

    It is that with an `aggregation_strategy`; `TagTask.predict` says what the score is.
    """
    return [
        {
            "entity_group": entity["type"],
            "score": entity["probability"],
            "word": entity["text"],
            "start": entity["start"],
            "end": entity["end"],
        }
        for entity in prediction["entities"]
    ]


_ENCODERS = {SparseEmbedder: SparseModel, TokenEmbedder: TokenModel}


def load_served(
    name: str,
    path: str,
    max_length: int | None = None,
    *,
    backend: Backend = "jax",
    onnx_file: str | None = None,
) -> ServedModel:
    """Loads a model to serve, and compiles its programs; the options are those of `ServeConfig`.

    Raises FileNotFoundError, and ValueError if it is damaged, or of a kind that is not served.
    """
    loaded = load_model(path, "auto")
    model = Pretrained(loaded)
    served = _kind_of(model, path)(name, model, max_length)
    if backend == "jax":
        served.warm_up()
    else:
        served.compute_by_onnx(loaded, Path(path, FOLDER, onnx_file) if onnx_file else None)
    return served


def _kind_of(model: Pretrained, path: str) -> Any:
    if model.head != "encoder":
        task = model.task
        is_tagger = isinstance(task, TagTask) and task.marks_entities
        if is_tagger or isinstance(task, TextTask | RerankTask):
            if model.absent:
                raise ValueError(
                    f"{path} has no {listed(model.absent)}, which would be random: train it first."
                )
            return ScoringModel
        if not isinstance(task, EmbeddingTask):
            raise ValueError(
                f"{path} is a model of the task {task.name}, but only embedders, rerankers, "
                "classifiers, regressions of texts and taggers of entities are served: use bertjax "
                "predict."
            )
    return _ENCODERS.get(encoder_kind(model.loaded, None), EmbeddingModel)
