"""The endpoints that ask a model: which fields a request has, and the form of its answer.

Fields, answers and errors are those of text-embeddings-inference, and of OpenAI for v1/embeddings.
Nothing here knows HTTP: pydantic checks a request, and an answer is what orjson can write.
"""

import abc
import base64
import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import numpy as np
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PositiveInt, ValidationError

from bertjax.base.files import brief
from bertjax.config.serve_config import ServeConfig
from bertjax.inference.serving.models import Asked, Limits, Refused, ServedModel, too_much


def _lower(value: Any) -> Any:
    return value.lower() if isinstance(value, str) else value


def _listed(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


# A list is read up to its first mistake: errors for all items would fill the memory.
_AT_MOST_ONE_ERROR = Field(fail_fast=True)
Strings = Annotated[list[str], _AT_MOST_ONE_ERROR]
Texts = Annotated[Strings, BeforeValidator(_listed)]
Word = BeforeValidator(_lower)


class Reading(BaseModel):
    """How texts are read: truncated or not, and after which prompt."""

    model_config = ConfigDict(strict=True)

    truncate: bool | None = None
    truncation_direction: Annotated[Literal["left", "right"] | None, Word] = None
    prompt_name: str | None = None


class Question(Reading, abc.ABC):
    """Base class of requests.

    Fields that none has are ignored, as by text-embeddings-inference, because clients send some for
    other servers. `of_texts` is the name of the field with the texts.
    """

    of_texts: ClassVar[str] = "inputs"

    model: str | None = None

    @property
    def reading(self) -> Reading:
        """How the texts are read."""
        return self

    @property
    def asked_texts(self) -> Sequence[Any]:
        """The texts, or lists of one or two texts."""
        return getattr(self, self.of_texts)

    @abc.abstractmethod
    def asked(self, model: Any, limits: Limits) -> Asked:
        """Prepares what is asked of a model."""


class OfInputs(Question):
    """Base class of requests with `inputs`."""

    inputs: Texts


class Embed(OfInputs):
    """One vector per text: [[number, ...], ...]."""

    normalize: bool = True
    dimensions: int | None = None

    def asked(self, model: Any, limits: Limits) -> Asked:
        return model.embed(
            self.inputs,
            limits,
            prompt_name=self.prompt_name,
            normalize=self.normalize,
            dimensions=self.dimensions,
        )


class EmbedSparse(OfInputs):
    """The weights of words of each text: [[{index, value}, ...], ...]."""

    def asked(self, model: Any, limits: Limits) -> Asked:
        return model.embed_sparse(self.inputs, limits, self.prompt_name)


class EmbedAll(OfInputs):
    """One vector per token of each text: [[[number, ...], ...], ...]."""

    def asked(self, model: Any, limits: Limits) -> Asked:
        return model.embed_all(self.inputs, limits, self.prompt_name)


class Tokenize(OfInputs):
    """The tokens of each text: [[{id, text, special, start, stop}, ...], ...]."""

    add_special_tokens: bool = True

    def asked(self, model: Any, limits: Limits) -> Asked:
        return model.tokenize(self.inputs, self.add_special_tokens, self.prompt_name)


class OpenAiEmbeddings(Question):
    """OpenAI's list of embeddings, of length 1, as numbers or as float32 in base64."""

    of_texts = "input"

    input: Texts
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: int | None = None

    def asked(self, model: Any, limits: Limits) -> Asked:
        asked = model.embed(
            self.input, limits, prompt_name=self.prompt_name, dimensions=self.dimensions
        )
        usage = {"prompt_tokens": asked.tokens, "total_tokens": asked.tokens}

        def answer(results: list[Any]) -> dict[str, Any]:
            data = []
            for index, vector in enumerate(asked.answer(results)):
                if self.encoding_format == "base64":
                    vector = base64.b64encode(vector.astype("<f4").tobytes()).decode()
                data.append({"object": "embedding", "embedding": vector, "index": index})
            return {"object": "list", "data": data, "model": model.name, "usage": usage}

        return Asked(asked.inputs, answer)


class Sentences(BaseModel):
    """A sentence and those that it is compared with."""

    source_sentence: str
    sentences: Strings


class Similarity(Question):
    """The cosines of a sentence with others: [number, ...]."""

    inputs: Sentences
    parameters: Reading | None = None

    @property
    def reading(self) -> Reading:
        return self.parameters or self

    @property
    def asked_texts(self) -> Sequence[Any]:
        return self.inputs.sentences

    def asked(self, model: Any, limits: Limits) -> Asked:
        texts = [self.inputs.source_sentence, *self.inputs.sentences]
        asked = model.embed(texts, limits, prompt_name=self.reading.prompt_name)

        def answer(results: list[Any]) -> np.ndarray:
            source, *others = asked.answer(results)
            return np.stack(others) @ source

        return Asked(asked.inputs, answer)


class Parameters(BaseModel):
    """What Hugging Face's Inference API sends with a text to classify."""

    top_k: PositiveInt | None = None
    function_to_apply: Literal["none"] | None = None


class Predict(Question):
    """The score of each class, the highest first: [{score, label}, ...]; of a batch, such lists.

    With `parameters`, the answer is a list of lists for one text as well, unless it is of a tagger:
    [{entity_group, score, word, start, end}, ...].
    """

    inputs: str | Strings | Annotated[list[Strings], _AT_MOST_ONE_ERROR]
    raw_scores: bool = False
    parameters: Parameters | None = None

    @property
    def asked_texts(self) -> Sequence[Any]:
        if self._is_batch:
            return self.inputs
        return [_listed(self.inputs)]

    @property
    def _is_batch(self) -> bool:
        return not isinstance(self.inputs, str) and not any(isinstance(x, str) for x in self.inputs)

    def asked(self, model: Any, limits: Limits) -> Asked:
        for index, parts in enumerate(self.asked_texts):
            if not 1 <= len(parts) <= 2:
                raise Refused(
                    422,
                    "validation",
                    f"inputs[{index}] has {len(parts)} texts: inputs is a text, a pair [text, "
                    "text], or a list of these as lists, [[text], [text, text], ...].",
                )
        parameters = self.parameters or Parameters()
        raw_scores = self.raw_scores or parameters.function_to_apply == "none"
        asked = model.predict(self.asked_texts, limits, raw_scores=raw_scores)

        def answer(results: list[Any]) -> Any:
            predictions = [elements[: parameters.top_k] for elements in asked.answer(results)]
            has_lists = self.parameters is not None and model.kind != "tagger"
            if self._is_batch or has_lists:
                return predictions
            return predictions[0]

        return Asked(asked.inputs, answer)


class Rerank(Question):
    """The score of each passage for a query, the best first: [{index, score}, ...]."""

    of_texts = "texts"

    query: str
    texts: Strings
    raw_scores: bool = False
    return_text: bool = False

    def asked(self, model: Any, limits: Limits) -> Asked:
        asked = model.rerank(self.query, self.texts, limits, self.raw_scores)

        def answer(results: list[Any]) -> list[dict[str, Any]]:
            scores = asked.answer(results)
            ranks = []
            for index in np.argsort(-scores, kind="stable").tolist():
                rank = {"index": index, "score": scores[index]}
                if self.return_text:
                    rank["text"] = self.texts[index]
                ranks.append(rank)
            return ranks

        return Asked(asked.inputs, answer)


ENDPOINTS: Mapping[str, type[Question]] = {
    "embed": Embed,
    "embed_sparse": EmbedSparse,
    "embed_all": EmbedAll,
    "similarity": Similarity,
    "predict": Predict,
    "rerank": Rerank,
    "tokenize": Tokenize,
    "v1/embeddings": OpenAiEmbeddings,
}


class Models(NamedTuple):
    """The models of a server, in the order in which they were given."""

    models: tuple[ServedModel, ...]

    def named(self, name: str | None) -> ServedModel:
        """Returns the model of a name; None: the first one."""
        for model in self.models:
            if name in (None, model.name):
                return model
        known = ", ".join(model.name for model in self.models)
        raise Refused(
            404, "model_not_found", f"No model is named {brief(repr(name), 60)}. Known: {known}."
        )

    def choose(self, name: str | None, endpoint: str) -> ServedModel:
        """Returns the model of a name, or the first one that answers an endpoint."""
        if name is None:
            for model in self.models:
                if endpoint in model.endpoints:
                    return model
        model = self.named(name)
        if endpoint not in model.endpoints:
            paths = ", ".join(f"/{path}" for path in model.endpoints)
            raise Refused(
                424,
                "backend",
                f"{model.name} ({model.kind}) does not answer /{endpoint}, but {paths}.",
            )
        return model


def prepare(
    models: Models, endpoint: str, body: bytes, config: ServeConfig, name: str | None = None
) -> tuple[ServedModel, Asked]:
    """Reads the body of a request; returns the model, and what is asked of it.

    The endpoint "" is that of the model. `name` is the model in the path; None: that of the field
    `model`, or, if one model is served, always that one.

    Raises:
        Refused: the body is no JSON, or asks for what the model does not answer.
    """
    if not endpoint:  # as clients of Hugging Face's Inference API send
        endpoint = models.named(name).endpoints[0]
        if endpoint == "embed" and re.search(rb'"source_sentence"\s*:', body):
            endpoint = "similarity"
    question = _read(ENDPOINTS[endpoint], body)
    if name is None and len(models.models) > 1:
        name = question.model
    model = models.choose(name, endpoint)
    texts = question.asked_texts
    if not texts:
        message = f"{question.of_texts} is an empty list: send at least one text."
        raise Refused(400, "empty", message)
    if len(texts) > config.max_texts:
        raise too_much(
            f"{question.of_texts} has {len(texts)} texts, more than {config.max_texts}: send fewer "
            "at once, or start the server with a higher --max_texts."
        )
    truncate = question.reading.truncate
    if truncate is None:
        truncate = config.auto_truncate
    side = question.reading.truncation_direction
    if truncate and side not in (None, model.truncation_side):
        raise Refused(
            422,
            "validation",
            f"truncation_direction is {side}, but {model.name} truncates texts at their "
            f"{model.truncation_side}: leave it out.",
        )
    try:
        asked = question.asked(model, Limits(truncate, question.of_texts))
    except ValueError as error:  # of a task or a tokenizer
        raise Refused(422, "tokenizer", str(error)) from error
    return model, asked


def _read(kind: type[Question], body: bytes) -> Question:
    try:
        return kind.model_validate_json(body)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
    if first["type"] == "json_invalid":
        raise Refused(400, "validation", f"The body is no JSON in UTF-8: {first['msg']}.")
    where = ""
    for part in first["loc"]:
        if isinstance(part, int):
            where += f"[{part}]"
        elif part != "str":  # the first type of a union
            where += f".{part}"
    where = where.lstrip(".") or "The body"
    found = f"is {brief(repr(first['input']), 60)}"
    if first["type"] == "missing":
        found = "is missing"
    raise Refused(422, "validation", f"{where} {found}: {first['msg']}.")
