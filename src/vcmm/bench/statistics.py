"""How sure a number is: means, spreads, t-intervals, paired tests, and Holm's correction.

Runs that differ in their seed alone are a sample. Two methods are compared seed by seed, for a seed
fixes the initial weights and the order of the data of both: what it does to both alike cancels.

    sample standard deviation  s = sqrt(sum (x_i - m)^2 / (n - 1)), m the mean
    95 % t-interval            m +- t(0.975; n - 1) s / sqrt(n)
    paired                     the same of d_i = x_i - y_i; t = mean(d) sqrt(n) / s_d, two-sided
    Holm, p_(1) <= ... <= p_(k)  p'_(i) = max over j <= i of min(1, (k - j + 1) p_(j))

One value has no spread, so it has no interval. Differences that are all equal and not zero leave
their spread unknown, so there is no test. Differences that are all zero are no difference: p = 1.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

LEVEL = 0.95
# Below this share of the largest value, a spread is what subtracting rounded numbers leaves.
_ROUNDING = 1e-12


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
    if not values:
        raise ValueError("there is no value to take a mean of; give at least one")
    n, mean = len(values), math.fsum(values) / len(values)
    if n == 1:
        return Interval(1, mean, None, None, None)
    sd = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (n - 1))
    if sd <= _ROUNDING * max(map(abs, values)):
        return Interval(n, mean, 0.0, mean, mean)
    half = _quantile(n - 1, level) * sd / math.sqrt(n)
    return Interval(n, mean, sd, mean - half, mean + half)


def paired(ours: Mapping[int, float], theirs: Mapping[int, float]) -> Paired | None:
    """Ours minus theirs, over the seeds that both have; None if there is no such seed."""
    seeds = sorted(ours.keys() & theirs.keys())
    if not seeds:
        return None
    found = interval([ours[seed] - theirs[seed] for seed in seeds])
    largest = max(abs(side[seed]) for side in (ours, theirs) for seed in seeds)
    if found.sd is None:
        return Paired(*found, p=None)
    if found.sd <= _ROUNDING * largest:
        if abs(found.mean) <= _ROUNDING * largest:
            return Paired(found.n, 0.0, 0.0, 0.0, 0.0, p=1.0)
        return Paired(found.n, found.mean, 0.0, None, None, p=None)
    statistic = found.mean * math.sqrt(found.n) / found.sd
    return Paired(*found, p=_two_sided(found.n - 1, statistic))


def holm(p_values: Sequence[float | None]) -> list[float | None]:
    """Holm's adjusted p-values, in the order given; None, a test not made, does not count."""
    order = sorted((p, index) for index, p in enumerate(p_values) if p is not None)
    adjusted: list[float | None] = [None] * len(p_values)
    highest = 0.0
    for rank, (p, index) in enumerate(order):
        highest = max(highest, min(1.0, (len(order) - rank) * p))
        adjusted[index] = highest
    return adjusted


def _quantile(degrees: int, level: float) -> float:
    from scipy.special import stdtrit  # pyright: ignore[reportMissingTypeStubs]

    return float(stdtrit(degrees, (1 + level) / 2))


def _two_sided(degrees: int, statistic: float) -> float:
    from scipy.special import stdtr  # pyright: ignore[reportMissingTypeStubs]

    return float(2 * stdtr(degrees, -abs(statistic)))
