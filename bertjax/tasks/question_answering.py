"""Extractive question answering as in SQuAD 1.1 and 2.0 (Devlin et al. 2018, 4.2 and 4.3).

A long passage is split into overlapping windows. The windows, the labels of windows and the
selection of an answer follow `run_squad.py` of Google's BERT release, with two differences:

- The text of a predicted answer is cut from the passage at the character offsets of its tokens.
  `run_squad.py` instead maps word pieces back to words of the passage, which sometimes fails.
- All spans of a window are candidates for the answer. `run_squad.py` only combines the 20 best
  start tokens with the 20 best end tokens, which may leave no valid span.
"""

import dataclasses
import functools
import json
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from bertjax.base.checked import Count
from bertjax.base.files import write_text
from bertjax.config.task_options import OfficialOptions, OwnFilesOptions
from bertjax.data.batches.batch import Feature, LabelKind
from bertjax.tasks.classification import softmax
from bertjax.tasks.definition import WindowOptions
from bertjax.tasks.metrics import (
    Ratios,
    Words,
    squad1,
    squad1_ratios,
    squad2,
    squad2_ratios,
    words_and_characters,
)
from bertjax.tasks.task import (
    GOLD,
    Example,
    Export,
    Outputs,
    Pairs,
    Prediction,
    Task,
    check_stride,
    feature_of,
    widest_contexts,
    windows,
)
from bertjax.tokenization import Tokenizer

IMPOSSIBLE = "impossible"
NOWHERE = -1


@dataclasses.dataclass(frozen=True, kw_only=True)
class SpanOptions(WindowOptions):
    """Options of question answering."""

    max_query_length: Count = 64
    """Maximum number of tokens of a question; longer questions are truncated."""
    max_answer_length: Count = 30
    """Maximum number of tokens of a predicted answer."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ImpossibleOptions(SpanOptions):
    """Options of question answering with questions that have no answer."""

    null_threshold: float = 0.0
    """No answer is predicted if its logit exceeds that of the best answer by more than this
    threshold."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class SquadOptions(SpanOptions, OfficialOptions):
    """Options of --task=squad."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Squad2Options(ImpossibleOptions, OfficialOptions):
    """Options of --task=squad2."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class QaOptions(ImpossibleOptions, OwnFilesOptions):
    """Options of --task=qa: questions on passages, in SQuAD's format or its columns."""


# Fields of `SpanTask` that are saved in task.json.
SAVED_FIELDS = (
    *("doc_stride", "max_query_length", "max_answer_length"),
    *("with_impossible", "null_threshold"),
)
# Number of candidate spans per answer: of several spans with the same text, only the best is kept.
CANDIDATES_PER_ANSWER = 5
LARGEST = 1e6


def export_answers(folder: Path, split: str, pairs: Pairs) -> Iterator[tuple[Example, Prediction]]:
    """Writes two JSON files for SQuAD's official scripts to `folder`.

    SPLIT_answers.json maps each question id to the predicted answer, and SPLIT_null_odds.json to
    the log-odds that the question has no answer. Of several questions with one id, they have the
    last one, which a warning says.
    """
    answers = {}
    null_odds = {}
    repeated = 0
    for example, prediction in pairs:
        repeated += example.id in answers
        answers[example.id] = prediction["answer"]
        null_odds[example.id] = prediction["null_odds"]
        yield example, prediction
    for name, content in (("answers", answers), ("null_odds", null_odds)):
        text = json.dumps(content, ensure_ascii=False, indent=0)
        write_text(folder / f"{split}_{name}.json", text + "\n")
    if repeated:
        print(
            f"warning: {repeated:,} questions of {split} have the id of an earlier one, whose "
            f"answer they replace in {split}_answers.json; {split}.jsonl has a row for each."
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class SpanTask(Task):
    """Task that predicts which span of a passage answers a question.

    The logit of an answer is the sum of the start logit of its first token and the end logit of its
    last token. The logit of no answer is the sum of the two logits of [CLS], in the window of the
    passage where this sum is lowest.

    Attributes:
        doc_stride: maximum number of tokens between the starts of two consecutive windows.
        max_query_length: maximum number of question tokens; a longer question is truncated.
        max_answer_length: maximum number of tokens of an answer.
        n_best: maximum number of candidates in `nbest` of a prediction, besides "" (no answer).
        with_impossible: whether a question may have no answer, as in SQuAD 2.0 (predicted as "").
        null_threshold: if `with_impossible`, the prediction is "" if the logit of no answer exceeds
            the logit of the best answer by more than this value.

    Raises:
        ValueError: a number is below 1, or `null_threshold` is set without `with_impossible`.
    """

    doc_stride: int = 128
    max_query_length: int = 64
    max_answer_length: int = 30
    n_best: int = 20
    with_impossible: bool = False
    null_threshold: float = 0.0
    max_length: int = 384
    best_metric: str = "f1"
    export: Export | None = export_answers

    head: ClassVar[str] = "question_answering"
    label_kind: ClassVar[LabelKind] = "span"

    def description(self, max_length: int) -> dict[str, Any]:
        return super().description(max_length) | {x: getattr(self, x) for x in SAVED_FIELDS}

    def __post_init__(self):
        check_stride(self.doc_stride)
        for field in ("max_query_length", "max_answer_length", "n_best"):
            if getattr(self, field) < 1:
                raise ValueError(f"{field}={getattr(self, field)}: it must be at least 1.")
        if self.null_threshold and not self.with_impossible:
            raise ValueError(
                f"null_threshold={self.null_threshold} has no effect, because every question of "
                f"{self.name} has an answer: leave it out."
            )

    @property
    def reads_windows(self) -> bool:
        return True

    def features(self, example: Example, tokenizer: Tokenizer, max_length: int) -> list[Feature]:
        """Encodes each window of the passage as a `Feature`, `[CLS] question [SEP] window [SEP]`.

        `Feature.origins`, int [number of tokens, 2], holds the character offsets (start, end) of
        each passage token in the passage, and -1 for all other tokens. The label of a window is the
        positions, among the tokens of the feature, of the first and last token of the answer: the
        first accepted answer that occurs in the passage. The label is (0, 0) if the window does not
        contain the whole answer or the question has no answer, and None if the question is
        unlabelled or no accepted answer occurs in the passage.

        Raises:
            ValueError: the question or the passage is empty, or `max_length` leaves no room for the
                passage.
        """
        # Some questions of SQuAD begin with spaces, which a byte-level BPE encodes as tokens.
        (question,) = tokenizer.encode([example.text.strip()])
        question = question[: self.max_query_length]
        passage = example.pair or ""
        ids, offsets = _encode_passage(tokenizer, passage)
        if not question or not len(ids) or not passage.strip():
            what = "question"
            if question:
                what = "passage"
            raise ValueError(f"{example.where}: the {what} is empty; fill it or remove the row.")
        layout = tokenizer.layout
        room = max_length - len(question) - layout.num_special_tokens(pair=True)
        if room < 1:
            raise ValueError(
                f"{example.where}: max_length={max_length} has no room for a passage after a "
                f"question of {len(question)} tokens: raise max_length or lower max_query_length."
            )
        answer = _answer_tokens(example, offsets)
        begin = 1 + len(question) + layout.separators  # where a window stands in its feature
        features = []
        for start, end in windows(len(ids), room, self.doc_stride):
            input_ids, types = tokenizer.join(question, ids[start:end].tolist())
            origins = np.full((len(input_ids), 2), -1, np.int32)
            origins[begin:-1] = offsets[start:end]
            labels = None
            if answer is not None:
                labels = np.zeros(2, np.int32)
                first, last = answer
                if start <= first <= last < end:
                    labels[:] = answer
                    labels += begin - start
            features.append(feature_of([(input_ids, types)], labels, origins))
        return features

    def predict(
        self, example: Example, features: Sequence[Feature], outputs: Sequence[Outputs]
    ) -> Prediction:
        """Selects the best answer to a question over all windows of the passage.

        `outputs` has start_logits and end_logits, [number of tokens] each, of each window.

        Returns:
            A dict with `answer` ("" for no answer); `answer_start` and `answer_end`, characters
            such that passage[answer_start:answer_end] is the answer (-1: no answer); the answer's
            `probability`, from a softmax over the candidates; `null_odds`, the logit of no answer
            minus the logit of the best answer; and `nbest`, the candidates from best to worst, each
            a dict of text, answer_start, answer_end, probability, start_logit and end_logit. The
            logit of an answer is the sum of its start_logit and end_logit.
        """
        outputs = [{key: _finite(logits) for key, logits in output.items()} for output in outputs]
        nbest = self._best_answers(example.pair or "", features, outputs)
        answer = nbest[0]
        # In each window, [CLS] stands for no answer; the window where its logit is lowest counts.
        no_answers = []
        for output in outputs:
            logits = output["start_logits"][0], output["end_logits"][0]
            no_answers.append(_entry("", NOWHERE, *logits))
        no_answer = min(no_answers, key=_logit)
        null_odds = _logit(no_answer) - _logit(answer)
        if self.with_impossible:
            ranked = sorted([*nbest, no_answer], key=_logit, reverse=True)
            # The entry for no answer is always listed, at the end if it is not among the n best.
            nbest = ranked[: self.n_best]
            if no_answer not in nbest:
                nbest.append(no_answer)
            if null_odds > self.null_threshold:
                answer = no_answer
        probabilities = softmax(np.array([_logit(entry) for entry in nbest])).tolist()
        for entry, probability in zip(nbest, probabilities, strict=True):
            entry["probability"] = probability
        shown = {key: answer[key] for key in ("answer_start", "answer_end", "probability")}
        return {"answer": answer["text"], **shown, "null_odds": null_odds, "nbest": nbest}

    def _best_answers(
        self, passage: str, features: Sequence[Feature], outputs: Sequence[Outputs]
    ) -> list[dict[str, Any]]:
        """Returns up to `n_best` answers with the highest logits and distinct texts, best first.

        A span is a candidate only in the window in which its first token has the most context.
        """
        slices = [_passage_slice(feature) for feature in features]
        spans = []  # of the windows, in tokens of the passage
        begin = 0
        for part in slices:
            length = part.stop - part.start
            spans.append((begin, begin + length))
            begin += min(length, self.doc_stride)
        widest = widest_contexts(spans)
        count = CANDIDATES_PER_ANSWER * self.n_best
        candidates = []
        for feature, output, part, is_widest in zip(features, outputs, slices, widest, strict=True):
            starts = np.where(is_widest, output["start_logits"][part], -np.inf)
            ends = output["end_logits"][part]
            first, last = best_spans(starts, ends, self.max_answer_length, count)
            assert feature.origins is not None
            begins, stops = feature.origins[part].T
            columns = [starts[first], ends[last], begins[first], stops[last]]
            candidates.append(np.stack(columns, axis=-1))
        rows = np.concatenate(candidates)  # [spans, 4]
        logits = rows[:, 0] + rows[:, 1]
        rows = rows[np.argsort(-logits, kind="stable")]
        entries: dict[str, dict[str, Any]] = {}
        for start_logit, end_logit, begin, end in rows.tolist():
            text = _cut(passage, int(begin), int(end))
            if text not in entries:
                entries[text] = _entry(text, int(begin), start_logit, end_logit)
            if len(entries) == self.n_best:
                break
        return list(entries.values())

    def gold(self, example: Example) -> dict[str, Any]:
        if example.answers or example.label == IMPOSSIBLE:
            return {GOLD: [text for text, _ in example.answers]}
        return {}

    def with_gold(self, example: Example, line: Mapping[str, Any]) -> Example:
        answers = tuple((text, NOWHERE) for text in line[GOLD])
        label = None if answers else IMPOSSIBLE
        return dataclasses.replace(example, answers=answers, label=label)

    def metric_names(self) -> list[str]:
        golds = {"": ["a"]}
        answers = {"": "a"}
        if self.with_impossible:
            return [*squad2(golds, answers, {"": 0.0})]
        return [*squad1(golds, answers)]

    def score(self, pairs: Pairs) -> dict[str, float]:
        golds = {}
        answers = {}
        null_odds = {}
        for example, prediction in pairs:
            if example.answers or example.label == IMPOSSIBLE:
                name = str(len(golds))  # not the id, which several questions may have
                golds[name] = [text for text, _ in example.answers]
                answers[name] = prediction["answer"]
                null_odds[name] = prediction["null_odds"]
        if not golds:
            return {}
        if not self.with_impossible:
            return squad1(golds, answers, self._words)
        # `predict` has applied `null_threshold`. The odds only serve to find the best threshold.
        return squad2(golds, answers, null_odds, np.inf, self._words)

    def ratios(self, texts: Sequence[str], answer: str) -> Ratios:
        """Returns the ratios of an answer to a question with accepted `texts`."""
        if self.with_impossible:
            return squad2_ratios(texts, answer, self._words)
        return squad1_ratios(texts, answer, self._words)

    @property
    def _words(self) -> Words:
        """How answers are split into words; SQuAD's own scores split them at spaces alone."""
        if self.name in ("squad", "squad2"):
            return str.split
        return words_and_characters


def span_task(options: SpanOptions, **fields: Any) -> SpanTask:
    """Makes a task of question answering with the user's `options` and other `fields`."""
    if options.doc_stride is not None:
        fields["doc_stride"] = options.doc_stride
    return SpanTask(
        max_query_length=options.max_query_length,
        max_answer_length=options.max_answer_length,
        null_threshold=getattr(options, "null_threshold", 0.0),
        **fields,
    )


def best_spans(
    starts: np.ndarray, ends: np.ndarray, max_length: int, count: int
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the first and last tokens of the `count` spans with the highest sums of logits.

    `starts` and `ends` are logits [number of tokens]; `starts` is -inf where no span may start.
    The spans have at most `max_length` tokens and are in no particular order. There are fewer than
    `count` if there are not as many spans.
    """
    beyond = np.full(max_length - 1, -np.inf)
    padded = np.concatenate([ends, beyond])
    sums = starts[:, None] + np.lib.stride_tricks.sliding_window_view(padded, max_length)
    sums = sums.ravel()  # ordered by first token, then by length
    chosen = np.arange(len(sums))
    if count < len(sums):
        chosen = np.argpartition(sums, -count)[-count:]
    chosen = chosen[sums[chosen] > -np.inf]
    first, more = np.divmod(chosen, max_length)
    return first, first + more


@functools.lru_cache(maxsize=64)
def _encode_passage(tokenizer: Tokenizer, text: str) -> tuple[np.ndarray, np.ndarray]:
    """Returns ids and character offsets; cached for further questions about the same passage."""
    return tokenizer.encode_with_offsets(text)


def _passage_slice(feature: Feature) -> slice:
    assert feature.origins is not None
    (tokens,) = np.nonzero(feature.origins[:, 0] >= 0)
    return slice(int(tokens[0]), int(tokens[-1]) + 1)


def _answer_tokens(example: Example, offsets: np.ndarray) -> tuple[int, int] | None:
    """Returns the first and last token of the first answer that occurs in the passage, or None.

    For a question labelled as impossible, the result is (-1, -1), which lies in no window.
    """
    for text, start in example.answers:
        if start != NOWHERE:
            # The answer covers all tokens that share a character with it.
            first = int(np.searchsorted(offsets[:, 1], start, side="right"))
            last = int(np.searchsorted(offsets[:, 0], start + len(text), side="left")) - 1
            return first, last
    if example.label == IMPOSSIBLE:
        return (-1, -1)
    return None


def _cut(passage: str, begin: int, end: int) -> str:
    """Returns passage[begin:end] and what completes its last character.

    These are combining accents, which tokenizers strip, and vowels and jamo that NFC merges with
    the character before them, so that their token ends at its first part.
    """
    nfc = functools.partial(unicodedata.normalize, "NFC")
    while end < len(passage):
        text = passage[begin:end]
        following = passage[end]
        merges = not following.isascii() and nfc(text + following) != nfc(text) + nfc(following)
        if not merges and unicodedata.category(following) != "Mn":
            break
        end += 1
    return passage[begin:end]


def _finite(logits: np.ndarray) -> np.ndarray:
    return np.nan_to_num(logits.astype(np.float64), nan=-LARGEST, posinf=LARGEST, neginf=-LARGEST)


def _entry(text: str, start: int, start_logit: float, end_logit: float) -> dict[str, Any]:
    logits = {"start_logit": float(start_logit), "end_logit": float(end_logit)}
    # Without an answer, both positions are NOWHERE.
    return {"text": text, "answer_start": start, "answer_end": start + len(text), **logits}


def _logit(entry: dict[str, Any]) -> float:
    return entry["start_logit"] + entry["end_logit"]
