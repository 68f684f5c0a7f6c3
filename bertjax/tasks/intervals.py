"""Confidence intervals of scores, and comparisons of two models, by resampling.

The bootstrap draws the examples of a split anew, with replacement, and computes the metrics of each
draw (Efron and Tibshirani 1993); the interval is corrected for bias and skewness (BCa, Efron 1987).
Where examples belong to groups, such as the notes of a patient, whole groups are drawn, because the
examples of a group tell less than as many independent ones (Field and Welsh 2007).

Two models are compared on the same examples: the interval of the difference is that of draws in
which both are scored, and approximate randomisation exchanges their predictions for random examples
(Noreen 1989; Yeh 2000).
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from bertjax.tasks.measures import ScoredRows, means, measure_of
from bertjax.tasks.metrics import Measure, Values, Weights, is_fraction, measure_of_ratios

# scipy is imported where it is used: its import would delay `--help`.

LEVEL = 0.95
# Exchanges of approximate randomisation; the smallest possible p-value is 1 / 2,000.
EXCHANGES = 1999
# The skewness of a score is estimated from so many parts of the examples.
PARTS = 200
# Weights that are computed at a time: 2 MB, which fit into caches.
CELLS = 1 << 18
# Differences of scores that are nearer than this are equal but for rounding.
ROUNDING = 1e-12
# Fewer groups than this are too few for a bootstrap (Cameron, Gelbach and Miller 2008).
FEW_GROUPS = 10
CORRELATIONS = ("matthews", "pearson", "spearman", "r2", "kappa")


class Interval(NamedTuple):
    """The lower and the upper end of a confidence interval."""

    low: float
    high: float


def intervals(measure: Measure, groups: Sequence[int], seed: int = 0) -> dict[str, Interval]:
    """Computes 95 % intervals of the metrics by a bootstrap over groups.

    Args:
        measure: the metrics of the predictions.
        groups: the group of each unit, from 0; where units are independent, each has its own.
        seed: the seed of the draws.

    Returns {metric: interval}, without metrics that are undefined or the same in all draws. Where
    all units are right, or all wrong, the other end is the bound of Clopper and Pearson (1934) for
    a fraction of as many groups as the metric counts, because no draw differs then. There are no
    intervals of fewer than two groups.
    """
    ids = np.asarray(groups, np.int64)
    resampled = _Resampled(measure, ids, seed)
    found = {}
    for name, value in resampled.values.items():
        interval = resampled.interval(name)
        if interval is None:
            _, counts = measure.ratios.get(name, np.ones((2, len(ids))))
            of_counted = np.unique(ids[counts > 0])
            interval = _bound(name, value, len(of_counted))
        if interval is not None:
            found[name] = interval
    return found


def score_intervals(rows: ScoredRows) -> dict[str, Interval]:
    """Computes the `intervals` of the scores of collected rows; {} if there are none."""
    units = rows.units()
    if not units:
        return {}
    measure = measure_of(rows.task, units)
    return intervals(measure, rows.groups())


def intervals_of_means(
    names: Sequence[str], values: Sequence[Sequence[float]]
) -> dict[str, Interval]:
    """Computes the `intervals` of means over units; `values` are float [units, names]."""
    units = [unit.ratios for unit in means(names, values)]
    return intervals(measure_of_ratios(units), range(len(units)))


def _bound(name: str, value: float, groups: int) -> Interval | None:
    """Returns the interval of a fraction that is the same in all draws, if it is 0 or 1.

    `groups` is how many groups the fraction counts; None if it counts none.
    """
    if not groups:
        return None
    tail = (1 - LEVEL) / 2
    bound = tail ** (1 / groups)
    if value == 1.0 and is_fraction(name):
        return Interval(bound, 1.0)
    # A correlation of 0 is undefined: that of predictions that are all the same.
    if value == 0.0 and is_fraction(name) and not name.endswith(CORRELATIONS):
        return Interval(0.0, 1.0 - bound)
    return None


def few_groups_in_words(count: int) -> str:
    """Warns of intervals of fewer than `FEW_GROUPS` groups."""
    return f"Intervals of only {count} groups are rough, and often too narrow."


class _Resampled:
    """The metrics of a measure for all units, for draws of groups, and without parts of them."""

    def __init__(self, measure: Measure, groups: np.ndarray, seed: int):
        rng = np.random.default_rng(seed)
        self.groups = int(groups.max(initial=-1)) + 1
        self.values: dict[str, float] = {}
        if self.groups > 1:
            self.values = measure.once()
            weights = _draws(groups, measure.draws, rng)
            self.draws = _evaluated(measure, weights)
            weights = _left_out(groups, rng)
            self.left_out = _evaluated(measure, weights)

    def interval(self, name: str) -> Interval | None:
        """Returns the interval of a metric; None if it is undefined or the same in all draws."""
        draws = _defined(self.draws[name])
        if not len(draws) or not np.isfinite(draws).all() or np.ptp(draws) == 0:
            return None
        return bca(self.values[name], draws, _defined(self.left_out[name]))


def _defined(values: np.ndarray) -> np.ndarray:
    """Leaves out NaN, of draws without a unit that the metric counts."""
    return values[~np.isnan(values)]


def bca(value: float, draws: np.ndarray, left_out: np.ndarray) -> Interval:
    """Returns the bias-corrected and accelerated interval (Efron 1987, section 3).

    Args:
        value: the score of all examples.
        draws: the scores of the draws, [draws].
        left_out: the scores without one part of the examples each, [parts].
    """
    from scipy.special import ndtr, ndtri

    below = np.mean(draws < value)
    equal = np.mean(draws == value)
    share = below + equal / 2
    lowest = 1 / (2 * len(draws))
    bias = ndtri(np.clip(share, lowest, 1 - lowest))
    change = left_out.mean() - left_out
    spread = np.sum(change**2) ** 1.5
    acceleration = 0.0
    if spread:
        acceleration = np.sum(change**3) / (6 * spread)
    tail = (1 - LEVEL) / 2
    normal = bias + ndtri([tail, 1 - tail])
    corrected = bias + normal / (1 - acceleration * normal)
    shares = ndtr(corrected)
    low, high = np.quantile(draws, shares).tolist()
    return Interval(low, high)


def _sizes(draws: int, units: int) -> Iterator[int]:
    """Yields how many draws are computed at a time."""
    size = max(1, CELLS // units)
    for first in range(0, draws, size):
        yield min(size, draws - first)


def _draws(groups: np.ndarray, draws: int, rng: np.random.Generator) -> Iterator[Weights]:
    """Yields the weights of draws of groups with replacement, [some draws, units]."""
    count = int(groups.max()) + 1
    for size in _sizes(draws, len(groups)):
        drawn = rng.integers(count, size=(size, count))
        draw = np.arange(size)[:, None]
        cells = drawn + count * draw
        times = np.bincount(cells.ravel(), minlength=size * count)
        times = times.reshape(size, count)
        yield times[:, groups].astype(np.float64)


def _left_out(groups: np.ndarray, rng: np.random.Generator) -> Iterator[Weights]:
    """Yields weights without one part of the groups each, [some parts, units]."""
    count = int(groups.max()) + 1
    parts = min(count, PARTS)
    part_of_group = rng.permutation(count) % parts
    part = part_of_group[groups]
    first = 0
    for size in _sizes(parts, len(groups)):
        omitted = np.arange(first, first + size)
        is_kept = part != omitted[:, None]
        yield is_kept.astype(np.float64)
        first += size


def _evaluated(measure: Measure, weights: Iterable[Weights]) -> Values:
    blocks = [measure.scores(block) for block in weights]
    values = {}
    for name in blocks[0]:
        values[name] = np.concatenate([block[name] for block in blocks])
    return values


class Difference(NamedTuple):
    """The scores of two models, the first minus the second with its interval, and the p-value."""

    first: float
    second: float
    difference: float
    interval: Interval
    p_value: float


def exchanges_of(measure: Measure) -> int:
    """Returns the number of exchanges of `compare`: 1 / (1 + it) is the smallest p-value."""
    return min(EXCHANGES, 2 * measure.draws - 1)


def compare(measure: Measure, groups: Sequence[int], seed: int = 0) -> dict[str, Difference]:
    """Compares the scores of two models on the same examples.

    Args:
        measure: the metrics of the predictions of both; the units of the first model come first,
            those of the second are in the same order.
        groups: the group of each unit of one model, as for `intervals`.
        seed: the seed of the draws.

    Returns {metric: difference}; {} if there are fewer than two groups. The p-value is that of
    approximate randomisation: the share of exchanges of the predictions of random groups in which
    the scores differ at least as much. Where all draws have the same difference, the interval is
    this difference.
    """
    ids = np.asarray(groups, np.int64)

    def differences(of_first: Weights, of_second: Weights) -> Values:
        weights = np.concatenate([of_first, of_second], axis=1)
        first = measure.scores(weights)
        exchanged = np.concatenate([of_second, of_first], axis=1)
        second = measure.scores(exchanged)
        return {name: _difference(first[name], second[name]) for name in first}

    def of_both(weights: Weights) -> Values:
        return differences(weights, np.zeros_like(weights))

    def of_exchanged(exchanged: Weights) -> Values:
        return differences(1 - exchanged, exchanged)

    both = Measure(len(ids), {}, of_both, measure.draws)
    resampled = _Resampled(both, ids, seed)
    if not resampled.values:
        return {}
    alone = np.zeros((1, measure.units))
    alone[:, : len(ids)] = 1
    scores = measure.scores(alone)
    exchanges = _exchanges(ids, exchanges_of(measure), seed)
    of_exchanges = Measure(len(ids), {}, of_exchanged)
    exchanged = _evaluated(of_exchanges, exchanges)
    found = {}
    for name, difference in resampled.values.items():
        first = float(np.nan_to_num(scores[name][0]))
        second = first - difference
        interval = resampled.interval(name) or Interval(difference, difference)
        smallest = abs(difference) - ROUNDING
        as_large = int(np.sum(np.abs(exchanged[name]) >= smallest))
        p_value = (1 + as_large) / (1 + len(exchanged[name]))
        found[name] = Difference(first, second, difference, interval, p_value)
    return found


def _difference(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Subtracts; a score that is undefined for one model alone is 0.0 by its definition."""
    is_undefined = np.isnan(first) & np.isnan(second)
    difference = np.nan_to_num(first) - np.nan_to_num(second)
    return np.where(is_undefined, np.nan, difference)


def _exchanges(groups: np.ndarray, count: int, seed: int) -> Iterator[Weights]:
    """Yields which units are exchanged, 0 or 1, [some exchanges, units]: each group or not."""
    rng = np.random.default_rng(seed)
    number = int(groups.max()) + 1
    for size in _sizes(count, len(groups)):
        is_exchanged = rng.integers(2, size=(size, number))
        yield is_exchanged[:, groups].astype(np.float64)


def mean_of(measures: Sequence[Measure], *, same_units: bool) -> Measure:
    """Returns the measure of the mean score of several runs.

    With `same_units`, all runs predict the same units, as with several seeds; else each has its
    own, those of the first run first, as in a cross-validation. The metrics are those that all
    runs have.
    """
    units = 0
    parts = []
    for measure in measures:
        start = 0 if same_units else units
        units = start + measure.units
        parts.append(slice(start, units))

    def scores(weights: Weights) -> Values:
        runs = []
        for measure, part in zip(measures, parts, strict=True):
            of_run = weights[:, part]
            runs.append(measure.scores(of_run))
        shared = set.intersection(*map(set, runs))
        values = {}
        for name in sorted(shared):
            values[name] = np.mean([run[name] for run in runs], axis=0)
        return values

    draws = min(measure.draws for measure in measures)
    ratios = {}
    for name in set.intersection(*(set(measure.ratios) for measure in measures)):
        of_runs = [measure.ratios[name] for measure in measures]
        if same_units:
            ratios[name] = np.sum(of_runs, axis=0)
        else:
            ratios[name] = np.concatenate(of_runs, axis=1)
    return Measure(units, ratios, scores, draws)


def _clipped(name: str, low: float, high: float) -> Interval:
    """Returns the interval of a score without the values that the score cannot have."""
    lowest = 0.0
    if not is_fraction(name):
        return Interval(max(low, lowest), high)
    if name.endswith(CORRELATIONS):
        lowest = -math.inf if name.endswith("r2") else -1.0
    return Interval(max(low, lowest), min(high, 1.0))


def interval_of_mean(name: str, values: Sequence[float]) -> Interval:
    """Returns the interval of the mean of a score over several runs by Student's t."""
    from scipy.stats import sem, t

    mean = float(np.mean(values))
    half = float(sem(values) * t.ppf((1 + LEVEL) / 2, len(values) - 1))
    return _clipped(name, mean - half, mean + half)


def of_both(name: str, value: float, first: Interval, second: Interval) -> Interval:
    """Returns the interval of a score that varies for two reasons, from those of each alone.

    The squares of the distances to the ends are added (Zou and Donner 2008).
    """
    low = np.hypot(value - first.low, value - second.low)
    high = np.hypot(first.high - value, second.high - value)
    return _clipped(name, float(value - low), float(value + high))


def mcnemar(first: np.ndarray, second: np.ndarray) -> float:
    """Returns the p-value of McNemar's exact test, of which examples two models have right."""
    from scipy.stats import binomtest

    only_first = int(np.sum(first > second))
    only_second = int(np.sum(second > first))
    differing = only_first + only_second
    if not differing:
        return 1.0
    return float(binomtest(only_first, differing).pvalue)
