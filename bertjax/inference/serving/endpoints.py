"""The endpoints that ask a model: which fields a request has, and the form of its answer.

Fields, answers and errors are those of text-embeddings-inference, and of OpenAI for v1/embeddings.
Nothing here knows HTTP: a request is a dict of JSON, and an answer is what orjson can write.
"""

import base64
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

import numpy as np
import orjson

from bertjax.base.files import brief
from bertjax.config.serve_config import ServeConfig
from bertjax.inference.serving.models import Asked, Limits, Refused, ServedModel, too_much


def wrong(message: str) -> Refused:
    """Returns the refusal of a request with a field of another type than it should have."""
    return Refused(422, "validation", message)


class Fields:
    """The fields of a request, which are checked when they are read.

    Fields that nothing reads are ignored, as by text-embeddings-inference, because clients send
    some for other servers.
    """

    def __init__(self, content: Any, config: ServeConfig):
        if not isinstance(content, dict):
            raise wrong(f"The body is {brief(repr(content), 60)}: send a JSON object.")
        self._content = content
        self._config = config

    def __contains__(self, name: str) -> bool:
        return self._content.get(name) is not None

    def raw(self, name: str) -> Any:
        """Returns a field that must be there, of any type."""
        if name not in self:
            raise wrong(f"The field {name!r} is missing.")
        return self._content[name]

    def _typed(self, name: str, kind: type, default: Any, what: str) -> Any:
        value = self._content.get(name)
        if value is None:
            return default
        if type(value) is not kind:
            raise wrong(f"{name} is {brief(repr(value), 60)}: it must be {what}.")
        return value

    def flag(self, name: str, default: bool = False) -> bool:
        """Returns true or false."""
        return self._typed(name, bool, default, "true or false")

    def number(self, name: str) -> int | None:
        """Returns a whole number; None if it is not given."""
        return self._typed(name, int, None, "a whole number")

    def text(self, name: str) -> str | None:
        """Returns a text; None if it is not given."""
        return self._typed(name, str, None, "a text")

    def nested(self, name: str) -> "Fields":
        """Returns the fields of an object in a field; it has none if it is not given."""
        return Fields(self._typed(name, dict, {}, "an object"), self._config)

    def required_text(self, name: str) -> str:
        """Returns a text that must be there."""
        self.raw(name)
        return self.text(name) or ""

    def one_of(self, name: str, values: tuple[str, ...]) -> str | None:
        """Returns a word of `values`, in lower case; None if it is not given."""
        word = self.text(name)
        if word is not None and word.lower() not in values:
            raise wrong(f"{name} is {brief(repr(word), 60)}: it must be {' or '.join(values)}.")
        return word and word.lower()

    def texts(self, name: str) -> list[str]:
        """Returns a list of texts; a single text becomes a list."""
        value = self.raw(name)
        if isinstance(value, str):
            return [value]
        self.check_count(name, value)
        for index, text in enumerate(value):
            if not isinstance(text, str):
                found = brief(repr(text), 40)
                raise wrong(f"{name}[{index}] is {found}: it must be a text, not token ids.")
        return value

    def check_count(self, name: str, value: Any) -> None:
        """Refuses what is no list, an empty one, and one of too many texts."""
        if not isinstance(value, list):
            found = brief(repr(value), 60)
            raise wrong(f"{name} is {found}: it must be a text or a list of texts.")
        if not value:
            raise Refused(400, "empty", f"{name} is an empty list: send at least one text.")
        if len(value) > self._config.max_texts:
            raise too_much(
                f"{name} has {len(value)} texts, more than {self._config.max_texts}: send fewer at "
                "once, or start the server with a higher --max_texts."
            )

    def limits(self, name: str, model: ServedModel) -> Limits:
        """Returns how the texts of the field `name` are truncated."""
        truncate = self.flag("truncate", self._config.auto_truncate)
        side = self.one_of("truncation_direction", ("left", "right"))
        if truncate and side not in (None, model.truncation_side):
            raise wrong(
                f"truncation_direction is {side}, but {model.name} truncates texts at their "
                f"{model.truncation_side}: leave it out."
            )
        return Limits(truncate, name)


def embed(model: Any, fields: Fields) -> Asked:
    """One vector per text: [[number, ...], ...]."""
    return model.embed(
        fields.texts("inputs"),
        fields.limits("inputs", model),
        prompt_name=fields.text("prompt_name"),
        normalize=fields.flag("normalize", True),
        dimensions=fields.number("dimensions"),
    )


def openai_embeddings(model: Any, fields: Fields) -> Asked:
    """OpenAI's list of embeddings, of length 1, as numbers or as float32 in base64."""
    encoding = fields.one_of("encoding_format", ("float", "base64"))
    asked = model.embed(
        fields.texts("input"),
        fields.limits("input", model),
        prompt_name=fields.text("prompt_name"),
        dimensions=fields.number("dimensions"),
    )
    usage = {"prompt_tokens": asked.tokens, "total_tokens": asked.tokens}

    def answer(results: list[Any]) -> dict[str, Any]:
        data = []
        for index, vector in enumerate(asked.answer(results)):
            if encoding == "base64":
                vector = base64.b64encode(vector.astype("<f4").tobytes()).decode()
            data.append({"object": "embedding", "embedding": vector, "index": index})
        return {"object": "list", "data": data, "model": model.name, "usage": usage}

    return Asked(asked.inputs, answer)


def similarity(model: Any, fields: Fields) -> Asked:
    """The cosines of a sentence with others: [number, ...]."""
    inputs = fields.nested("inputs")
    sentences = inputs.texts("sentences")
    options = fields.nested("parameters")
    asked = model.embed(
        [inputs.required_text("source_sentence"), *sentences],
        options.limits("inputs", model),
        prompt_name=options.text("prompt_name"),
    )

    def answer(results: list[Any]) -> np.ndarray:
        source, *others = asked.answer(results)
        return np.stack(others) @ source

    return Asked(asked.inputs, answer)


def embed_sparse(model: Any, fields: Fields) -> Asked:
    """The weights of words of each text: [[{index, value}, ...], ...]."""
    prompt_name = fields.text("prompt_name")
    return model.embed_sparse(fields.texts("inputs"), fields.limits("inputs", model), prompt_name)


def embed_all(model: Any, fields: Fields) -> Asked:
    """One vector per token of each text: [[[number, ...], ...], ...]."""
    prompt_name = fields.text("prompt_name")
    return model.embed_all(fields.texts("inputs"), fields.limits("inputs", model), prompt_name)


def predict(model: Any, fields: Fields) -> Asked:
    """The score of each class, the highest first: [{score, label}, ...]; of a batch, such lists.

    Hugging Face's Inference API sends `parameters`, and gets a list of lists for one text as well.
    """
    options = fields.nested("parameters")
    top_k = options.number("top_k")
    raw = fields.flag("raw_scores") or options.text("function_to_apply") == "none"
    texts, is_batch = _texts_or_pairs(fields)
    asked = model.predict(texts, fields.limits("inputs", model), raw_scores=raw)

    def answer(results: list[Any]) -> Any:
        predictions = []
        for scores in asked.answer(results):
            ordered = sorted(scores.items(), key=lambda item: -item[1])[:top_k]
            predictions.append([{"score": score, "label": label} for label, score in ordered])
        if is_batch or "parameters" in fields:
            return predictions
        return predictions[0]

    return Asked(asked.inputs, answer)


def _texts_or_pairs(fields: Fields) -> tuple[list[tuple[str, ...]], bool]:
    """Returns texts and pairs of texts, and whether they are a batch: a list of lists."""
    value = fields.raw("inputs")
    if isinstance(value, str):
        return [(value,)], False
    fields.check_count("inputs", value)
    is_batch = isinstance(value[0], list)
    elements = value if is_batch else [value]
    texts = []
    for index, parts in enumerate(elements):
        is_list = isinstance(parts, list) and 1 <= len(parts) <= 2
        if not is_list or not all(isinstance(part, str) for part in parts):
            found = brief(repr(parts), 60)
            raise wrong(
                f"inputs[{index}] is {found}: inputs is a text, a pair [text, text], or a list of "
                "these as lists, [[text], [text, text], ...]."
            )
        texts.append(tuple(parts))
    return texts, is_batch


def rerank(model: Any, fields: Fields) -> Asked:
    """The score of each passage for a query, the best first: [{index, score}, ...]."""
    query = fields.required_text("query")
    texts = fields.texts("texts")
    limits = fields.limits("texts", model)
    asked = model.rerank(query, texts, limits, fields.flag("raw_scores"))
    with_text = fields.flag("return_text")

    def answer(results: list[Any]) -> list[dict[str, Any]]:
        scores = asked.answer(results)
        ranks = []
        for index in np.argsort(-scores, kind="stable").tolist():
            rank = {"index": index, "score": scores[index]}
            if with_text:
                rank["text"] = texts[index]
            ranks.append(rank)
        return ranks

    return Asked(asked.inputs, answer)


def tokenize(model: Any, fields: Fields) -> Asked:
    """The tokens of each text: [[{id, text, special, start, stop}, ...], ...]."""
    special = fields.flag("add_special_tokens", True)
    return model.tokenize(fields.texts("inputs"), special, fields.text("prompt_name"))


ENDPOINTS: Mapping[str, Callable[[Any, Fields], Asked]] = {
    "embed": embed,
    "embed_sparse": embed_sparse,
    "embed_all": embed_all,
    "similarity": similarity,
    "predict": predict,
    "rerank": rerank,
    "tokenize": tokenize,
    "v1/embeddings": openai_embeddings,
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
) -> tuple[ServedModel, str, Asked]:
    """Reads the body of a request; returns the model, the endpoint, and what it asks.

    The endpoint "" is that of the model. `name` is the model in the path; None: that of the field
    `model`, or, if one model is served, always that one.

    Raises:
        Refused: the body is no JSON, or asks for what the model does not answer.
    """
    try:
        content = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise Refused(400, "validation", f"The body is no JSON in UTF-8: {error}.") from error
    fields = Fields(content, config)
    if name is None and len(models.models) > 1:
        name = fields.text("model")
    if not endpoint:  # as clients of Hugging Face's Inference API send
        endpoint = models.named(name).endpoints[0]
        if isinstance(content.get("inputs"), dict):
            endpoint = "similarity"
    model = models.choose(name, endpoint)
    return model, endpoint, ENDPOINTS[endpoint](model, fields)


def written(answer: Any) -> bytes:
    """Returns an answer as JSON."""
    return orjson.dumps(answer, option=orjson.OPT_SERIALIZE_NUMPY)


ErrorForm = Literal["tei", "openai"]


def error_content(error: Refused, form: ErrorForm) -> dict[str, Any]:
    """Returns the body of a refusal, in the form of text-embeddings-inference or of OpenAI."""
    message = str(error)
    if form == "tei":
        return {"error": message, "error_type": error.kind}
    kind = "invalid_request_error"
    if error.status >= 500:
        kind = "server_error"
    return {"error": {"message": message, "type": kind, "param": None, "code": error.kind}}
