"""How sure a number is. Over seeds: intervals and paired tests. Over data sets: ranks and means.

Runs that differ in their seed alone are a sample. Two methods are compared seed by seed, for a seed
fixes the initial weights and the order of the data of both: what it does to both alike cancels.
All distributions are scipy's, which is imported when it is needed.
"""

from __future__ import annotations

from .intervals import (
    LEVEL,
    Interval,
    Paired,
    bootstrap,
    interquartile_mean,
    interval,
    mean,
    paired,
)
from .ranking import Bound, Ranking, cliques, improvement, overall, ranking
from .tests import Signed, friedman, holm, least, wilcoxon

__all__ = [
    "LEVEL",
    "Bound",
    "Interval",
    "Paired",
    "Ranking",
    "Signed",
    "bootstrap",
    "cliques",
    "friedman",
    "holm",
    "improvement",
    "interquartile_mean",
    "interval",
    "least",
    "mean",
    "overall",
    "paired",
    "ranking",
    "wilcoxon",
]
