"""Means, spreads and intervals of a few values, by Student's t and by the bootstrap.

    sample standard deviation  s = sqrt(sum (x_i - m)^2 / (n - 1)), m the mean
    95 % t-interval            m +- t(0.975; n - 1) s / sqrt(n)
    paired                     the same of d_i = x_i - y_i; t = mean(d) sqrt(n) / s_d, two-sided
    bootstrap                  quantiles of the statistic over samples drawn with replacement
    interquartile mean         the mean without the lowest and the highest quarter

One value has no spread, so it has no interval. Differences that are all equal and not zero leave
their spread unknown, so there is no test. Differences that are all zero are no difference: p = 1.
With few values the percentile bootstrap is too narrow, for it cannot draw what it has not seen: it
is shown beside the t-interval and never in its place.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Literal, NamedTuple

from .distributions import stats

LEVEL = 0.95
# Below this share of the largest value, a spread is what subtracting rounded numbers leaves.
ROUNDING = 1e-12
RESAMPLES = 10_000
_CUT = 0.25  # of each end, in an interquartile mean
Kind = Literal["percentile", "bca"]


class Interval(NamedTuple):
    """A mean, and how sure it is. What n values cannot tell is None."""

    n: int
    mean: float
    sd: float | None
    low: float | None
    high: float | None


class Paired(NamedTuple):
    """A mean difference over common seeds, its interval, and the p-value of the paired t-test."""

    n: int
    mean: float
    sd: float | None
    low: float | None
    high: float | None
    p: float | None


def interval(values: Sequence[float], *, level: float = LEVEL) -> Interval:
    """Mean, sample standard deviation and t-interval of one value or more."""
    n, middle = len(values), mean(values)
    if n == 1:
        return Interval(1, middle, None, None, None)
    sd = math.sqrt(math.fsum((value - middle) ** 2 for value in values) / (n - 1))
    if sd <= ROUNDING * max(map(abs, values)):
        return Interval(n, middle, 0.0, middle, middle)
    half = _quantile(n - 1, level) * sd / math.sqrt(n)
    return Interval(n, middle, sd, middle - half, middle + half)


def paired(ours: Mapping[int, float], theirs: Mapping[int, float]) -> Paired | None:
    """Ours minus theirs, over the seeds that both have; None if there is no such seed."""
    seeds = sorted(ours.keys() & theirs.keys())
    if not seeds:
        return None
    found = interval([ours[seed] - theirs[seed] for seed in seeds])
    largest = max(abs(side[seed]) for side in (ours, theirs) for seed in seeds)
    if found.sd is None:
        return Paired(*found, p=None)
    if found.sd <= ROUNDING * largest:
        if abs(found.mean) <= ROUNDING * largest:
            return Paired(found.n, 0.0, 0.0, 0.0, 0.0, p=1.0)
        return Paired(found.n, found.mean, 0.0, None, None, p=None)
    statistic = found.mean * math.sqrt(found.n) / found.sd
    return Paired(*found, p=_two_sided(found.n - 1, statistic))


def bootstrap(
    values: Sequence[float],
    *,
    statistic: Callable[[Sequence[float]], float] | None = None,
    kind: Kind = "bca",
    level: float = LEVEL,
    resamples: int = RESAMPLES,
) -> tuple[float, float] | None:
    """The bootstrap interval of the mean, or of another statistic; None where there is no spread.

    The draws are seeded, so the same values give the same interval. "bca" corrects for bias and
    for skewness; where all that leaves one value out are equal it is the percentile interval.
    """
    import numpy as np

    if len(values) < 2 or max(values) - min(values) <= ROUNDING * max(map(abs, values)):
        return None
    function = statistic or mean
    left_out = [function([*values[:i], *values[i + 1 :]]) for i in range(len(values))]
    flat = max(left_out) - min(left_out) <= ROUNDING * max(map(abs, left_out))
    found = (
        stats()
        .bootstrap(
            (np.asarray(values, float),),
            np.mean if statistic is None else statistic,
            vectorized=statistic is None,
            n_resamples=resamples,
            confidence_level=level,
            method="percentile" if flat or kind == "percentile" else "BCa",
            rng=np.random.default_rng(0),
        )
        .confidence_interval
    )
    return float(found.low), float(found.high)


def interquartile_mean(values: Sequence[float]) -> float:
    """The mean of the middle half: a quarter of the values is cut from each end, rounded down."""
    if not values:
        raise ValueError("there is no value to take a mean of; give at least one")
    cut = int(_CUT * len(values))
    return mean(sorted(values)[cut : len(values) - cut])


def mean(values: Sequence[float]) -> float:
    """The mean, exactly rounded."""
    if not values:
        raise ValueError("there is no value to take a mean of; give at least one")
    return math.fsum(values) / len(values)


def _quantile(degrees: int, level: float) -> float:
    from scipy.special import stdtrit  # pyright: ignore[reportMissingTypeStubs]

    return float(stdtrit(degrees, (1 + level) / 2))


def _two_sided(degrees: int, statistic: float) -> float:
    from scipy.special import stdtr  # pyright: ignore[reportMissingTypeStubs]

    return float(2 * stdtr(degrees, -abs(statistic)))
