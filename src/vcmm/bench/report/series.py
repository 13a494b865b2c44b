"""Curves over training, from several seeds to one line with a band."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from ..arms import Arm
from ..statistics import interval
from .figure import Series
from .style import Look

POINTS = 400  # of a line; a screen has not many more


def over_seeds(
    label: str, look: Look, curves: Iterable[Mapping[float, float]], *, log: bool = False
) -> Series | None:
    """The mean over seeds and one standard deviation to either side, of logarithms if asked.

    A curve maps a step or an epoch to a value. What is not finite, or has no logarithm, is left
    out.
    """
    gathered: dict[float, list[float]] = {}
    for curve in curves:
        for x, y in curve.items():
            if math.isfinite(y) and (not log or y > 0):
                gathered.setdefault(x, []).append(math.log(y) if log else y)
    if not gathered:
        return None
    back = math.exp if log else float
    found = [(x, interval(gathered[x])) for x in thinned(sorted(gathered))]
    spread = [(one.mean, one.sd or 0.0) for _, one in found]
    return Series(
        label,
        look,
        x=[x for x, _ in found],
        y=[back(mean) for mean, _ in spread],
        low=[back(mean - sd) for mean, sd in spread],
        high=[back(mean + sd) for mean, sd in spread],
    )


def thinned(values: Sequence[float], points: int = POINTS) -> list[float]:
    """At most so many of them, evenly, the first and the last among them."""
    if len(values) <= points:
        return list(values)
    step = (len(values) - 1) / (points - 1)
    return [values[round(index * step)] for index in range(points)]


def logged(arm: Arm, metric: str) -> list[dict[float, float]]:
    """What the steps of each seed logged under a name."""
    return [
        {row.step: row.values[metric] for row in run.steps if metric in row.values}
        for run in arm.runs.values()
    ]


def judged(arm: Arm, split: str, metric: str, scale: float = 1.0) -> list[dict[float, float]]:
    """What each epoch of each seed gave on a split; the first epoch is 1."""
    return [
        {
            row.epoch + 1: scale * row.values[metric]
            for row in run.evals
            if row.split == split and metric in row.values
        }
        for run in arm.runs.values()
    ]


def modalities(arms: Iterable[Arm], quantity: str) -> list[str]:
    """The modalities of which a quantity was logged or judged, by name."""
    ending = f"/{quantity}"
    names = {
        name
        for arm in arms
        for run in arm.runs.values()
        for row in (*run.steps[-1:], *run.evals[-1:])
        for name in row.values
        if name.endswith(ending)
    }
    return sorted(name.removesuffix(ending) for name in names)
