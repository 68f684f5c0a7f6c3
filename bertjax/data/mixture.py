"""Mixtures of sources: parses their weights, and determines which source each row is drawn from.

The order of the sources is a function of the weights alone. Any prefix of n rows contains
weight x n rows of each source, give or take 1 + ln(number of sources) rows.
"""

import math
import re
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import NamedTuple

_NUMBER = r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d{1,3})?|[+-]?(?:nan|inf)"
_PART = re.compile(rf"(?P<source>.+?)=(?P<weight>{_NUMBER})(?:,|\Z)", re.DOTALL | re.IGNORECASE)
# If exact integer weights add up to more than this number, they are rounded to such parts.
FINEST = 10**9


class WeightedSource(NamedTuple):
    """A source of a mixture; only the ratios of the integer weights matter."""

    name: str
    weight: int


class Mixture(NamedTuple):
    """The `sources` of a mixture, and `total`, the sum of the weights as the user wrote them."""

    sources: list[WeightedSource]
    total: float


def parse_mixture(inputs: Sequence[str], exists: Callable[[str], bool]) -> Mixture | None:
    """Parses inputs such as "wiki=0.7,books=0.3"; returns None if no input has a weight.

    The weights become the smallest integers with the same ratios, such as 7 and 3. An input that
    `exists`, such as a file `x=1`, has no weight. Raises ValueError if a weight is not a positive
    number, or a source has no weight or is named twice.
    """
    weights: dict[str, Fraction] = {}
    without: list[str] = []
    for text in inputs:
        if not re.search(rf"=(?:{_NUMBER})(?:,|\Z)", text, re.IGNORECASE) or exists(text):
            without.append(text)
            continue
        end = 0
        for part in _PART.finditer(text):
            end = part.end()
            name = part["source"]
            if name in weights:
                raise ValueError(
                    f"--input names the source {name!r} twice: name it once, with the sum of its "
                    "weights."
                )
            weights[name] = _positive(part["weight"], name)
        if end < len(text):
            without.append(text[end:])
    if not weights:
        return None
    if without:
        raise ValueError(
            f"--input: {without[0]!r} has no weight, but {next(iter(weights))!r} has one: give "
            f"every source a weight, such as {without[0]}=0.5."
        )
    whole = integer_weights(list(weights.values()))
    sources = [WeightedSource(*item) for item in zip(weights, whole, strict=True)]
    return Mixture(sources, float(sum(weights.values())))


def _positive(text: str, name: str) -> Fraction:
    weight = float(text)
    if not (math.isfinite(weight) and weight > 0):
        raise ValueError(
            f"--input: the weight {text} of {name!r} is not a positive number: leave the source "
            "out."
        )
    return Fraction(text)


def integer_weights(weights: Sequence[Fraction]) -> list[int]:
    """Returns the smallest positive integers with the ratios of `weights`.

    If they would add up to more than FINEST, they are rounded to parts in FINEST.
    """
    common = math.lcm(*(weight.denominator for weight in weights))
    whole = [int(weight * common) for weight in weights]
    if sum(whole) > FINEST:
        total = sum(whole)
        whole = [max(round(Fraction(weight * FINEST, total)), 1) for weight in whole]
    divisor = math.gcd(*whole)
    return [weight // divisor for weight in whole]


def rows_of_sources(rows: int, weights: Sequence[int]) -> list[int]:
    """Returns how many of the first `rows` rows of a mixture are drawn from each source.

    In the order of decreasing weights, each source takes its share of the rows that the sources
    before it leave, rounded up. Counts never decrease with `rows`, and of two successive values of
    `rows`, exactly one count differs.
    """
    counts = [0] * len(weights)
    total = sum(weights)
    heaviest_first = sorted(range(len(weights)), key=lambda source: -weights[source])
    for source in heaviest_first:
        lighter = total - weights[source]
        left = rows * lighter // total
        counts[source] = rows - left
        rows = left
        total = lighter
    return counts


def source_of_row(row: int, weights: Sequence[int]) -> tuple[int, int]:
    """Returns (source, index of the row within the source) for row `row` of the mixture."""
    before = rows_of_sources(row, weights)
    after = rows_of_sources(row + 1, weights)
    source = 0
    while before[source] == after[source]:
        source += 1
    return source, before[source]
