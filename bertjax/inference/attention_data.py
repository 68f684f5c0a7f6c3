"""What `bertjax.visualize` shows of a model and a text, in the form in which a page holds it."""

import base64
import dataclasses
import gzip
from typing import Any

import numpy as np

from bertjax.inference.pretrained import Pretrained
from bertjax.inference.saved_task import with_task
from bertjax.inference.text_view import encoded, text_view
from bertjax.tasks import Example

# Integers that probabilities are stored as; 16 bits are used if the page stays small.
LEVELS_16, LEVELS_8 = 65535, 255
# Up to this number of bytes, probabilities are compressed in 16 bits to see whether they fit.
TRIED_BYTES = 32_000_000
# A page must not exceed 5 MB, of which this number of bytes is for the attention.
MAX_ATTENTION_BYTES = 4_500_000
CLASSIFIER = "sequence_classification"
# The parts of predictions that a page shows.
SHOWN_KEYS = ("label", "labels", "probabilities", "score", "words", "answer", "probability")


@dataclasses.dataclass(frozen=True)
class Attention:
    """The attention of a model on a text.

    Attributes:
        ids: the token ids, L of them.
        types: the token types, L of them.
        is_pair: whether the tokens are those of a text pair.
        tokens: the tokens, as people read them, L of them.
        probabilities: the attention probabilities, float32 [layers, heads, L, L]; row i holds the
            probabilities with which token i attends to each token.
        hidden_states: float32 [layers + 1, L, D], that of the embeddings first.
        logits: those of a sequence classifier, [classes]; None: the model has another head.
    """

    ids: list[int]
    types: list[int]
    is_pair: bool
    tokens: list[str]
    probabilities: np.ndarray
    hidden_states: np.ndarray
    logits: np.ndarray | None


def attention_of(model: Pretrained, text: str, pair: str | None = None) -> Attention:
    """Applies a model to a text or a text pair, and returns its attention and hidden states.

    Args:
        model: a model with a tokenizer.
        text: the text; it may contain [MASK].
        pair: a second text; None: a single text.

    Raises:
        ValueError: the text is empty, or longer than the model can read.
    """
    tokenizer = model.loaded.tokenizer
    ids, types = encoded(model.loaded, text, pair)
    outputs = model(
        input_ids=np.asarray(ids, np.int32)[None],
        token_type_ids=np.asarray(types, np.int32)[None],
        output_attentions=True,
        output_hidden_states=True,
    )
    return Attention(
        ids=ids,
        types=types,
        is_pair=pair is not None,
        tokens=[tokenizer.readable(tokenizer.tokens[i]) for i in ids],
        probabilities=outputs["attentions"][:, 0],
        hidden_states=outputs["hidden_states"][:, 0],
        logits=outputs["logits"][0] if model.head == CLASSIFIER else None,
    )


def attention_data(model: Pretrained, text: str, pair: str | None = None) -> dict[str, Any]:
    """Computes attention, words at masked tokens, changes of the hidden states, and predictions.

    Args:
        model: a model with a tokenizer.
        text: the text; it may contain [MASK].
        pair: a second text; None: a single text.

    Returns:
        A dict of JSON values, namely the items of `text_view`; the numbers of "layers" and "heads";
        "attention", the result of `packed`; "change", lists [layers, L] of 1 - cosine between the
        hidden states before and after a layer; "shared_layers", whether layers share parameters;
        and "prediction", that of a fine-tuned head, or None.

    Raises:
        ValueError: the text is empty, or longer than the model can read.
    """
    shown = attention_of(model, text, pair)
    layers, heads = shown.probabilities.shape[:2]
    view = text_view(model.masked_lm, shown.ids, shown.types, is_pair=shown.is_pair)
    return view | {
        "layers": layers,
        "heads": heads,
        "attention": packed(shown.probabilities),
        "change": _changes(shown.hidden_states),
        "shared_layers": model.config.groups < layers,
        "prediction": _prediction(model, text, pair, shown),
    }


def packed(attention: np.ndarray) -> dict[str, Any]:
    """Compresses attention probabilities for a page.

    Args:
        attention: the probabilities, float [layers, heads, L, L].

    Returns:
        A dict of "levels" n, "power" k, "threshold" t, and "gzip", compressed integers in base64. A
        probability p is stored as round(p ** (1 / k) * n), in 16 bits (little endian) if n > 255,
        else in 8 bits; probabilities below t, which is 0 unless the page would exceed its maximum
        size, as 0.
    """
    if 2 * attention.size <= TRIED_BYTES:
        text = _compressed(np.round(attention * LEVELS_16).astype("<u2"))
        if len(text) <= MAX_ATTENTION_BYTES:
            return {"levels": LEVELS_16, "power": 1, "threshold": 0.0, "gzip": text}
    # Most probabilities of a long text are small. Their square roots are not.
    values = np.round(np.sqrt(attention) * LEVELS_8).astype(np.uint8)
    smallest = _smallest(values.reshape(-1, *values.shape[2:]))
    while True:
        values[values < smallest] = 0
        text = _compressed(values)
        if len(text) <= MAX_ATTENTION_BYTES:
            threshold = ((smallest - 0.5) / LEVELS_8) ** 2 if smallest > 1 else 0.0
            return {"levels": LEVELS_8, "power": 2, "threshold": threshold, "gzip": text}
        smallest += 1


def _smallest(values: np.ndarray) -> int:
    """Returns the smallest integer to keep in uint8 [heads, L, L], estimated from some heads."""
    sample = values[:: max(1, len(values) // 12)].copy()
    limit = 0.98 * MAX_ATTENTION_BYTES * len(sample) / len(values)
    low, high = 1, 255
    while low < high:
        middle = (low + high) // 2
        if len(_compressed(np.where(sample < middle, 0, sample).astype(np.uint8))) <= limit:
            high = middle
        else:
            low = middle + 1
    return low


def _compressed(values: np.ndarray) -> str:
    # Higher levels of gzip take several times as long and save few percent.
    return base64.b64encode(gzip.compress(values.tobytes(), 4, mtime=0)).decode()


def _changes(hidden_states: np.ndarray) -> list[list[float]]:
    """Returns 1 - cosine of hidden states [layers + 1, L, D] before and after each layer."""
    before, after = hidden_states[:-1].astype(np.float64), hidden_states[1:].astype(np.float64)
    norms = np.linalg.norm(before, axis=-1) * np.linalg.norm(after, axis=-1)
    cosines = (before * after).sum(-1) / np.maximum(norms, 1e-12)
    return np.round(1 - cosines, 4).tolist()


def _prediction(
    model: Pretrained, text: str, pair: str | None, shown: Attention
) -> dict[str, Any] | None:
    """Returns the prediction of a fine-tuned head for the text or pair, or None.

    None means that the model has no such head, that parts of it are untrained, or that it takes
    other inputs: question answering reads a question and a passage, and tagging a single text,
    both without masks.
    """
    if not set(model.absent).isdisjoint(model.model.parts):
        return None
    if shown.logits is not None:
        _, task, _ = with_task(model.loaded)
        prediction = task.predict(Example(id="", where=""), (), [{"logits": shown.logits}])
    elif model.head == ("token_classification" if pair is None else "question_answering"):
        if model.loaded.tokenizer.mask_token_id in shown.ids:
            return None
        texts = text if pair is None else (text, pair)
        (prediction,) = model.predict([texts], max_length=model.config.max_length)
    else:
        return None
    return {key: value for key, value in prediction.items() if key in SHOWN_KEYS}
