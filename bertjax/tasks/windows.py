"""Overlapping windows on texts that are longer than the input of a model (Devlin et al. 2018, 4.2).

A text of n tokens is split into windows of at most `room` tokens, whose starts are at most `stride`
tokens apart, as in `run_squad.py` of Google's BERT release. What a model says about a token is
taken from the window in which the token has the most context.
"""

import bisect
from collections.abc import Sequence

import numpy as np

Span = tuple[int, int]


def check_stride(doc_stride: int | None) -> None:
    """Checks the option `doc_stride` of a task, which may be None.

    Raises:
        ValueError: it is a number below 1.
    """
    if doc_stride is not None and doc_stride < 1:
        raise ValueError(f"doc_stride={doc_stride}: it must be at least 1.")


def windows(length: int, room: int, stride: int, starts: Sequence[int] | None = None) -> list[Span]:
    """Splits a text into windows; returns (first token, last token + 1) of each window.

    Args:
        length: number of tokens of the text.
        room: maximum number of tokens of a window.
        stride: maximum number of tokens between the starts of two consecutive windows.
        starts: the tokens with which a window may start, ascending and beginning with 0: the first
            tokens of the words, each of which is in a window then. Where the next of them is more
            than `stride` tokens away, it starts the next window nevertheless. None: a window may
            start with any token.
    """
    spans, start = [], 0
    while True:
        end = min(start + room, length)
        spans.append((start, end))
        if end == length:
            return spans
        following = start + min(end - start, stride)
        if starts is not None:
            last = bisect.bisect_right(starts, following) - 1
            last += starts[last] == start
            if last == len(starts):  # all other tokens are of the last word, which is longer than
                return spans  # a window
            following = starts[last]
        start = following


def widest_contexts(spans: Sequence[Span]) -> list[np.ndarray]:
    """Assigns each token of a text to the window with the most context around the token.

    The context of a token in a window is the smaller of the numbers of tokens before and after the
    token, plus a hundredth of the length of the window, as in Google's `run_squad.py`. Earlier
    windows win ties.

    Args:
        spans: the windows of the text, as `windows` returns them.

    Returns:
        One bool array [number of tokens] per window, True at the tokens that are assigned to the
        window. Each token that is in a window is True in exactly one array.
    """
    best = np.full(spans[-1][1], -1.0)
    window_of = np.zeros(len(best), np.int64)
    for window, (begin, end) in enumerate(spans):
        left = np.arange(end - begin)
        context = np.minimum(left, left[::-1]) + 0.01 * len(left)
        part = slice(begin, end)
        window_of[part][context > best[part]] = window
        best[part] = np.maximum(best[part], context)
    return [window_of[begin:end] == window for window, (begin, end) in enumerate(spans)]
