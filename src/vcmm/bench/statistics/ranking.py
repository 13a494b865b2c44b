"""Arms over several data sets: interquartile mean, probability of improvement, ranks.

    interquartile mean          of all runs of an arm, over all data sets together
    probability of improvement  P(X > Y) + P(X = Y) / 2 for a run of each on the same data set, the
                                mean over data sets (Mann-Whitney's U over the number of pairs)
    intervals of both           percentile bootstrap, drawn within each data set
    ranks                       1 is best; of equals the mean
    critical difference         q(k) sqrt(k (k + 1) / (6 n)), k arms on n data sets; q is that of
                                the studentized range with infinite degrees, over sqrt(2)

Two arms whose mean ranks are closer than the critical difference (Nemenyi's) are not
distinguishable. Where Friedman's test finds no difference at all, none are. Demsar (2006) and
Agarwal et al. (2021) say why, and that a few data sets tell little.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from .distributions import stats
from .intervals import LEVEL, RESAMPLES, interquartile_mean, mean
from .tests import friedman

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    _Array = NDArray[np.float64]

Samples = Sequence[Sequence[float]]  # runs by data set


class Bound(NamedTuple):
    """A number over data sets, and its bootstrap interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Ranking:
    """Arms from the best mean rank down."""

    arms: tuple[str, ...]
    ranks: tuple[float, ...]  # mean over data sets
    data: int  # how many data sets
    p: float | None  # of Friedman's test
    critical: float  # Nemenyi's critical difference
    cliques: tuple[tuple[int, int], ...]  # first and last of arms that are not distinguishable


def ranking(scores: Mapping[str, Sequence[float]], *, level: float = LEVEL) -> Ranking:
    """Rank arms by a score on each of the same data sets, the larger the better."""
    names = sorted(scores)
    counts = {len(scores[name]) for name in names}
    if len(names) < 2 or len(counts) != 1 or counts == {0}:
        raise ValueError(
            f"{len(names)} arms with {sorted(counts)} scores cannot be ranked; give two arms or "
            "more, each with a score on each of the same data sets"
        )
    rows = list(zip(*(scores[name] for name in names), strict=True))
    by_data = [stats().rankdata([-score for score in row]) for row in rows]
    found = {name: mean([float(row[i]) for row in by_data]) for i, name in enumerate(names)}
    order = sorted(names, key=lambda name: (found[name], name))
    ranks = [found[name] for name in order]
    p = friedman(rows)
    critical = _critical(len(names), len(rows), level)
    alike = p is not None and p >= 1 - level
    groups = [(0, len(ranks) - 1)] if alike else cliques(ranks, critical)
    return Ranking(tuple(order), tuple(ranks), len(rows), p, critical, tuple(groups))


def cliques(ranks: Sequence[float], critical: float) -> list[tuple[int, int]]:
    """The longest stretches of sorted ranks that are no wider than the critical difference."""
    found: list[tuple[int, int]] = []
    for first, rank in enumerate(ranks):
        last = max(i for i in range(first, len(ranks)) if ranks[i] - rank <= critical)
        if last > first and (not found or last > found[-1][1]):
            found.append((first, last))
    return found


def overall(runs: Samples, *, level: float = LEVEL) -> Bound:
    """The interquartile mean of all runs of an arm over all data sets."""
    import numpy as np

    drawn = _drawn(runs)
    pooled = np.sort(np.concatenate(drawn, axis=1), axis=1)
    cut = int(pooled.shape[1] / 4)
    means = pooled[:, cut : pooled.shape[1] - cut].mean(axis=1)
    value = interquartile_mean([score for row in runs for score in row])
    return Bound(value, *_between(means, level))


def improvement(ours: Samples, theirs: Samples, *, level: float = LEVEL) -> Bound:
    """How likely a run of ours is better than one of theirs, on a data set drawn at random."""
    import numpy as np

    if len(ours) != len(theirs):
        raise ValueError(f"{len(ours)} and {len(theirs)} data sets; both must have the same ones")
    value = mean([_above(x, y) for x, y in zip(ours, theirs, strict=True)])
    drawn = zip(_drawn(ours, seed=0), _drawn(theirs, seed=1), strict=True)
    shares = [(np.sign(x[:, :, None] - y[:, None, :]).mean(axis=(1, 2)) + 1) / 2 for x, y in drawn]
    return Bound(value, *_between(np.mean(shares, axis=0), level))


def _above(ours: Sequence[float], theirs: Sequence[float]) -> float:
    return mean([(x > y) + 0.5 * (x == y) for x in ours for y in theirs])


def _drawn(runs: Samples, seed: int = 0) -> list[_Array]:
    """The runs of each data set, drawn again with replacement, a row for each draw."""
    import numpy as np

    source = np.random.default_rng(seed)
    each = [np.asarray(row, float) for row in runs]
    return [row[source.integers(0, len(row), (RESAMPLES, len(row)))] for row in each]


def _between(values: _Array, level: float) -> tuple[float, float]:
    import numpy as np

    low, high = np.quantile(values, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def _critical(arms: int, data: int, level: float) -> float:
    q = float(stats().studentized_range.ppf(level, arms, math.inf)) / math.sqrt(2)
    return q * math.sqrt(arms * (arms + 1) / (6 * data))
