"""Questions answered by a part of a passage, or not at all (Devlin et al. 2018, 4.2 and 4.3).

A long passage is read in windows that overlap. Windows, their labels and the choice of an answer
follow `run_squad.py` of Google's release, with two things done otherwise:

- An answer is cut out of the passage by the characters of its tokens, so it needs no search for the
  words of the passage that the pieces came from, which that program gives up on at times.
- The best spans are found among all of them, not among those of the 20 best first and the 20 best
  last tokens: so there always is one.
"""

import dataclasses
import functools
import unicodedata
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

import numpy as np

from bertjax.data.batches.features import Feature, LabelKind
from bertjax.tasks.classification import softmax
from bertjax.tasks.sources.squad import IMPOSSIBLE, NOWHERE
from bertjax.tasks.squad_metrics import squad1, squad2
from bertjax.tasks.task import Example, Outputs, Prediction, Task
from bertjax.tokenization import Tokenizer

# Two spans may read the same, and only the better one is kept: so many are looked at for each of
# the n best.
CANDIDATES_PER_ANSWER = 5
# What stands for infinity among logits.
LARGEST = 1e6


@dataclasses.dataclass(frozen=True, kw_only=True)
class SpanTask(Task):
    """A part of the passage that answers the question.

    Attributes:
        doc_stride: tokens between the beginnings of two windows.
        max_query_length: tokens of a question; the rest is cut.
        max_answer_length: tokens of an answer at most.
        n_best: how many answers a prediction lists.
        with_impossible: there may be no answer (SQuAD 2.0); it is predicted as "".
        null_threshold: of `null_odds`, above which there is no answer.
    """

    doc_stride: int = 128
    max_query_length: int = 64
    max_answer_length: int = 30
    n_best: int = 20
    with_impossible: bool = False
    null_threshold: float = 0.0
    max_length: int = 384
    best_metric: str = "f1"

    head: ClassVar[str] = "question_answering"
    label_kind: ClassVar[LabelKind] = "span"

    def description(self, max_length: int) -> dict[str, Any]:
        """Also how passages are cut and answers chosen."""
        return super().description(max_length) | {
            "doc_stride": self.doc_stride,
            "max_query_length": self.max_query_length,
            "max_answer_length": self.max_answer_length,
            "with_impossible": self.with_impossible,
            "null_threshold": self.null_threshold,
        }

    def __post_init__(self):
        for field in ("doc_stride", "max_query_length", "max_answer_length", "n_best"):
            if getattr(self, field) < 1:
                raise ValueError(f"{field}={getattr(self, field)}: it must be at least 1.")
        if self.null_threshold and not self.with_impossible:
            raise ValueError(
                f"null_threshold={self.null_threshold}: it decides where a question may have no "
                f"answer, as in SQuAD 2.0, and in {self.name} each has one: leave it out."
            )

    def features(self, example: Example, tokenizer: Tokenizer, max_length: int) -> list[Feature]:
        """Windows `[CLS] question [SEP] part of the passage [SEP]`, with `origins` int [n, 2].

        Special tokens and types are those of the tokenizer's family.

        Their labels are the first answer that stands in the passage, where a window holds it whole.

        Raises:
            ValueError: the question or the passage is empty, or they do not fit `max_length`.
        """
        # Some questions of SQuAD begin with spaces, which are tokens to a byte-level BPE.
        question = tokenizer.encode([example.text.strip()])[0][: self.max_query_length]
        ids, offsets = _encode_passage(tokenizer, example.pair or "")
        if not question or not len(ids) or not (example.pair or "").strip():
            what = "passage" if question else "question"
            raise ValueError(f"{example.where}: the {what} is empty; fill it or remove the row.")
        room = max_length - len(question) - tokenizer.layout.num_special_tokens(pair=True)
        if room < 1:
            raise ValueError(
                f"{example.where}: max_length={max_length} has no room for a passage beside a "
                f"question of {len(question)} tokens: raise it, or lower max_query_length."
            )
        answer = _answer_tokens(example, offsets)
        begin = 1 + len(question) + tokenizer.layout.separators
        features = []
        for start, end in windows(len(ids), room, self.doc_stride):
            input_ids, types = tokenizer.join(question, ids[start:end].tolist())
            origins = np.full((len(input_ids), 2), -1, np.int32)
            origins[begin:-1] = offsets[start:end]
            labels = None
            if answer is not None:
                first, last = answer
                shift = begin - start
                inside = start <= first <= last < end
                span = (first + shift, last + shift) if inside else (0, 0)
                labels = np.array(span, np.int32)
            size = len(input_ids)
            of_type_0 = size - sum(types)
            features.append(
                Feature(np.array(input_ids, np.int32), (size,), (of_type_0,), labels, origins)
            )
        return features

    def predict(
        self, example: Example, features: Sequence[Feature], outputs: Sequence[Outputs]
    ) -> Prediction:
        """The best answer over all windows.

        Args:
            example: holds the passage.
            features: its windows.
            outputs: start_logits and end_logits, [n] each, of each window.

        Returns:
            `answer` ("" for none); its `probability` among the `nbest`, which are dicts of text,
            answer_start (-1: no answer), probability and the two logits, the best first; and
            `null_odds`, by how much no answer is better than the best one, in logits.
        """
        outputs = [{key: _finite(logits) for key, logits in output.items()} for output in outputs]
        nbest = self._best_answers(example.pair or "", features, outputs)
        answer = nbest[0]
        # The window that is least sure of holding no answer has the say.
        no_answers = [
            _entry("", NOWHERE, o["start_logits"][0], o["end_logits"][0]) for o in outputs
        ]
        no_answer = min(no_answers, key=_logit)
        null_odds = _logit(no_answer) - _logit(answer)
        if self.with_impossible:
            ranked = sorted([*nbest, no_answer], key=_logit, reverse=True)
            # It is always listed, beyond the n best if need be.
            nbest = ranked[: self.n_best]
            if all(entry is not no_answer for entry in nbest):
                nbest.append(no_answer)
            if null_odds > self.null_threshold:
                answer = no_answer
        probabilities = softmax(np.array([_logit(entry) for entry in nbest])).tolist()
        for entry, probability in zip(nbest, probabilities, strict=True):
            entry["probability"] = probability
        return {
            "answer": answer["text"],
            "probability": answer["probability"],
            "null_odds": null_odds,
            "nbest": nbest,
        }

    def _best_answers(
        self, passage: str, features: Sequence[Feature], outputs: Sequence[Outputs]
    ) -> list[dict[str, Any]]:
        """The n best answers of different texts; each starts in the window that knows it best."""
        parts = [_part_of_passage(feature) for feature in features]
        lengths = [part.stop - part.start for part in parts]
        found = []
        for feature, output, part, is_widest in zip(
            features, outputs, parts, widest_contexts(lengths, self.doc_stride), strict=True
        ):
            starts = np.where(is_widest, output["start_logits"][part], -np.inf)
            ends = output["end_logits"][part]
            count = CANDIDATES_PER_ANSWER * self.n_best
            first, last = best_spans(starts, ends, self.max_answer_length, count)
            assert feature.origins is not None
            origins = feature.origins[part]
            places = (origins[first, 0], origins[last, 1])
            found.append(np.stack([starts[first], ends[last], *places], axis=-1))
        rows = np.concatenate(found)  # [spans, 4]
        rows = rows[np.argsort(-(rows[:, 0] + rows[:, 1]), kind="stable")]
        entries: dict[str, dict[str, Any]] = {}
        for start_logit, end_logit, begin, end in rows.tolist():
            text = _cut(passage, int(begin), int(end))
            entries.setdefault(text, _entry(text, int(begin), start_logit, end_logit))
            if len(entries) == self.n_best:
                break
        return list(entries.values())

    def score(self, pairs: Iterable[tuple[Example, Prediction]]) -> dict[str, float]:
        """The official metrics over the questions whose answer, or lack of one, is known."""
        golds, answers, null_odds = {}, {}, {}
        for example, prediction in pairs:
            if example.answers or example.label == IMPOSSIBLE:
                golds[example.id] = [text for text, _ in example.answers]
                answers[example.id] = prediction["answer"]
                null_odds[example.id] = prediction["null_odds"]
        if not golds:
            return {}
        if not self.with_impossible:
            return squad1(golds, answers)
        # The odds decided already, by `null_threshold`; here they serve to find a better one.
        return squad2(golds, answers, null_odds, threshold=np.inf)


def windows(length: int, room: int, stride: int) -> list[tuple[int, int]]:
    """(first token, the one behind the last) of each window on a passage of `length` tokens."""
    found, start = [], 0
    while True:
        end = min(start + room, length)
        found.append((start, end))
        if end == length:
            return found
        start += min(end - start, stride)


def widest_contexts(lengths: Sequence[int], stride: int) -> list[np.ndarray]:
    """Which tokens of each window have more around them there than in any other window.

    Args:
        lengths: tokens of the passage in each window, as `windows` cuts it.
        stride: of the windows.

    Returns:
        bool [n] for each; a token of the passage is True in one window alone.
    """
    begins = np.cumsum([0, *(min(length, stride) for length in lengths[:-1])])
    best = np.full(begins[-1] + lengths[-1], -1.0)
    window_of = np.zeros(len(best), np.int64)
    for window, (begin, length) in enumerate(zip(begins, lengths, strict=True)):
        left = np.arange(length)
        # What lies on the scarcer side counts; then, a little, the length of the window.
        context = np.minimum(left, left[::-1]) + 0.01 * length
        part = slice(begin, begin + length)
        window_of[part][context > best[part]] = window  # the first of equals stays
        best[part] = np.maximum(best[part], context)
    return [
        window_of[begin : begin + length] == window
        for window, (begin, length) in enumerate(zip(begins, lengths, strict=True))
    ]


def best_spans(
    starts: np.ndarray, ends: np.ndarray, max_length: int, count: int
) -> tuple[np.ndarray, np.ndarray]:
    """First and last tokens of the spans with the highest sums of two logits, in any order.

    Args:
        starts: logit of each token as the first one, [n]; -inf where none may start.
        ends: logit of each token as the last one, [n].
        max_length: tokens of a span at most.
        count: how many to find.

    Returns:
        int [k] each, with k <= count.
    """
    beyond = np.full(max_length - 1, -np.inf)
    of_start = np.lib.stride_tricks.sliding_window_view(np.concatenate([ends, beyond]), max_length)
    sums = (starts[:, None] + of_start).ravel()  # by first token, then by length
    chosen = np.arange(len(sums))
    if count < len(sums):
        chosen = np.argpartition(sums, -count)[-count:]
    chosen = chosen[sums[chosen] > -np.inf]
    first, more = np.divmod(chosen, max_length)
    return first, first + more


@functools.lru_cache(maxsize=64)
def _encode_passage(tokenizer: Tokenizer, text: str) -> tuple[np.ndarray, np.ndarray]:
    """`encode_with_offsets`, once for all the questions on a passage: they follow each other."""
    return tokenizer.encode_with_offsets(text)


def _part_of_passage(feature: Feature) -> slice:
    """Which tokens of a window are the passage's: those that come from characters."""
    assert feature.origins is not None
    (places,) = np.nonzero(feature.origins[:, 0] >= 0)
    return slice(int(places[0]), int(places[-1]) + 1)


def _answer_tokens(example: Example, offsets: np.ndarray) -> tuple[int, int] | None:
    """First and last token of the first answer that stands in the passage.

    (-1, -1), which is in no window, if there is none; None if that is not known.
    """
    for text, start in example.answers:
        if start != NOWHERE:
            # The tokens that share a character with the answer.
            first = int(np.searchsorted(offsets[:, 1], start, side="right"))
            last = int(np.searchsorted(offsets[:, 0], start + len(text), side="left")) - 1
            return first, last
    return (-1, -1) if example.label == IMPOSSIBLE else None


def _cut(passage: str, begin: int, end: int) -> str:
    """The characters of a span, with the accents that the tokenizer took off the last one."""
    while end < len(passage) and unicodedata.category(passage[end]) == "Mn":
        end += 1
    return passage[begin:end]


def _finite(logits: np.ndarray) -> np.ndarray:
    """Logits in double precision; those of a model that has diverged become numbers, too."""
    return np.nan_to_num(logits.astype(np.float64), nan=-LARGEST, posinf=LARGEST, neginf=-LARGEST)


def _entry(text: str, start: int, start_logit: float, end_logit: float) -> dict[str, Any]:
    logits = {"start_logit": float(start_logit), "end_logit": float(end_logit)}
    return {"text": text, "answer_start": start, **logits}


def _logit(entry: dict[str, Any]) -> float:
    return entry["start_logit"] + entry["end_logit"]
