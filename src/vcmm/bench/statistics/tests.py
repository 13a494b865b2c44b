"""Tests without a normal distribution, and Holm's correction for many tests.

    Wilcoxon  ranks of |d_i|, d_i the paired differences; W the sum of the ranks of d_i > 0
    Friedman  ranks of k arms on each of n data sets; chi^2 with k - 1 degrees of freedom
    Holm, p_(1) <= ... <= p_(k)  p'_(i) = max over j <= i of min(1, (k - j + 1) p_(j))

Wilcoxon's p-value is exact: all 2^n signs are counted, ties included. It cannot be small where
there are few pairs. With n of them the least there is, two-sided, is 2 / 2^n: with 5 seeds .0625,
so with 5 seeds this test can never find a difference at .05, however large; with 6 it can, with one
comparison, and Holm's correction for k of them takes log2(k) seeds more. `least` says so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from .distributions import stats
from .intervals import ROUNDING

EXACT = 20  # pairs, above which counting all signs takes long and the normal law is close


class Signed(NamedTuple):
    """Wilcoxon's signed-rank test over the seeds that both have."""

    n: int  # pairs that differ; those that do not are left out, as Wilcoxon did
    statistic: float  # the smaller of the two rank sums
    p: float
    least: float  # the smallest two-sided p that n pairs can give


def wilcoxon(ours: Mapping[int, float], theirs: Mapping[int, float]) -> Signed | None:
    """Two-sided, over common seeds; None where no pair differs."""
    seeds = sorted(ours.keys() & theirs.keys())
    largest = max((abs(side[seed]) for side in (ours, theirs) for seed in seeds), default=0.0)
    differences = [ours[seed] - theirs[seed] for seed in seeds]
    differences = [one for one in differences if abs(one) > ROUNDING * largest]
    if not differences:
        return None
    # Equal differences shall tie though subtracting has rounded them.
    sizes = [float(f"{abs(one):.12g}") for one in differences]
    ranks = [float(rank) for rank in stats().rankdata(sizes)]
    above = sum(rank for rank, one in zip(ranks, differences, strict=True) if one > 0)
    n, statistic = len(ranks), min(above, sum(ranks) - above)
    p = _exact(ranks, statistic) if n <= EXACT else _normal(differences)
    return Signed(n, statistic, p, least(n))


def least(pairs: int) -> float:
    """The smallest two-sided p-value of a signed-rank test of so many pairs."""
    return min(1.0, 2.0 ** (1 - pairs))


def friedman(scores: Sequence[Sequence[float]]) -> float | None:
    """The p-value for no difference at all among arms; a row of scores for each data set.

    None with fewer than three arms or two data sets, for which there is no such test.
    """
    if len(scores) < 2 or len(scores[0]) < 3:
        return None
    if all(len(set(row)) == 1 for row in scores):
        return 1.0
    return float(stats().friedmanchisquare(*zip(*scores, strict=True)).pvalue)


def holm(p_values: Sequence[float | None]) -> list[float | None]:
    """Holm's adjusted p-values, in the order given; None, a test not made, does not count."""
    order = sorted((p, index) for index, p in enumerate(p_values) if p is not None)
    adjusted: list[float | None] = [None] * len(p_values)
    highest = 0.0
    for rank, (p, index) in enumerate(order):
        highest = max(highest, min(1.0, (len(order) - rank) * p))
        adjusted[index] = highest
    return adjusted


def _exact(ranks: Sequence[float], statistic: float) -> float:
    """The share of all signs that give a rank sum as extreme, by counting: ranks are halves."""
    counts = {0: 1}
    for rank in ranks:
        step = round(2 * rank)
        for total, count in list(counts.items()):
            counts[total + step] = counts.get(total + step, 0) + count
    below = sum(count for total, count in counts.items() if total <= round(2 * statistic))
    return min(1.0, 2 * below / 2 ** len(ranks))


def _normal(differences: Sequence[float]) -> float:
    return float(stats().wilcoxon(differences, method="asymptotic").pvalue)
