"""Retrieval metrics: how well the texts of pairs and triplets find each other by their embeddings.

Every anchor is a query, and the positives and hard negatives of all examples are the candidates.
"""

from collections.abc import Sequence

import numpy as np

RECALLS = (1, 10)
PAIR_METRICS = ("mrr", *(f"recall_at_{k}" for k in RECALLS))
TRIPLET_METRIC = "triplet_accuracy"
# Number of queries that are compared with all candidates at once.
BLOCK = 512


class Retrieval:
    """Collects the embeddings of pairs and triplets, and ranks the candidates of each anchor.

    A candidate that is the positive of another example with the same anchor, or has the text of the
    anchor, does not count as wrong, and texts that occur several times are one candidate.
    """

    def __init__(self):
        self._texts: dict[str, int] = {}  # candidate -> its index
        self._candidates: list[np.ndarray] = []
        self._anchors: list[np.ndarray] = []
        self._queries: list[str] = []
        self._positives: list[int] = []
        self._right: dict[str, set[int]] = {}  # anchor -> all of its positives
        self._triplets: list[bool] = []

    def add(self, texts: Sequence[str], vectors: np.ndarray) -> None:
        """Adds an example: anchor, positive and hard negatives, with their vectors of length 1.

        Args:
            texts: the C texts.
            vectors: float32 [C, D].
        """
        anchor, *others = texts
        indices = []
        for text, vector in zip(others, vectors[1:], strict=True):
            indices.append(self._texts.setdefault(text, len(self._texts)))
            if len(self._texts) > len(self._candidates):
                self._candidates.append(vector)
        self._anchors.append(vectors[0])
        self._queries.append(anchor)
        self._positives.append(indices[0])
        self._right.setdefault(anchor, set()).add(indices[0])
        if len(others) > 1:
            cosines = vectors[1:] @ vectors[0]
            self._triplets.append(bool(cosines[0] > cosines[1:].max()))

    def scores(self) -> dict[str, float]:
        """Returns the metrics of the examples, as fractions; {} if there are none.

        `mrr` is the mean reciprocal rank of an anchor's positive among the candidates,
        `recall_at_1` and `recall_at_10` are the fractions of anchors whose positive is among the
        first; candidates with the same cosine count as half of them before the positive.
        `triplet_accuracy` is the fraction of examples whose positive is nearer than all of their
        hard negatives; it is left out if there are none.
        """
        if not self._anchors:
            return {}
        ranks = self._ranks()
        values = {"mrr": float(np.mean(1 / ranks))}
        values |= {f"recall_at_{k}": float(np.mean(ranks <= k)) for k in RECALLS}
        if self._triplets:
            values[TRIPLET_METRIC] = float(np.mean(self._triplets))
        return values

    def _ranks(self) -> np.ndarray:
        """Returns the rank of each anchor's positive among the candidates, from 1, float [n]."""
        candidates, anchors = np.stack(self._candidates), np.stack(self._anchors)
        ranks = np.empty(len(anchors))
        for start in range(0, len(anchors), BLOCK):
            cosines = anchors[start : start + BLOCK] @ candidates.T
            for row, values in enumerate(cosines):
                index = start + row
                own = values[self._positives[index]]
                values[list(self._right[self._queries[index]])] = -np.inf
                if (anchor := self._texts.get(self._queries[index])) is not None:
                    values[anchor] = -np.inf
                ranks[index] = 1 + np.sum(values > own) + np.sum(values == own) / 2
        return ranks
