"""Time, measured so that what else the machine is doing matters least.

Two things are compared in pairs, in random order within a pair, and every pair gives one ratio: a
disturbance that lasts longer than a pair falls on both. The median of the ratios is reported with
an interval that holds it with 95 % confidence whatever the distribution (order statistics). How
long to go on is decided by the width of that interval and never by the ratio itself.
"""

from __future__ import annotations

import math
import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

Side = Callable[[], float]  # prepares as it likes, and returns the seconds of what counts


@dataclass(frozen=True)
class Plan:
    """Go on until the interval is `precision` wide (relative), within these limits."""

    least: int
    most: int
    seconds: float
    precision: float

    def goes_on(self, samples: Sequence[float], started: float) -> bool:
        if len(samples) < self.least:
            return True
        if len(samples) >= self.most or time.perf_counter() - started > self.seconds:
            return False
        median, low, high = spread(samples)
        return high - low > self.precision * median


def spread(samples: Sequence[float]) -> tuple[float, float, float]:
    """The median, and the two order statistics that enclose it with 95 % confidence."""
    ordered = sorted(samples)
    n = len(ordered)
    rank = max(0, math.floor((n - 1.96 * math.sqrt(n)) / 2))
    return statistics.median(ordered), ordered[rank], ordered[n - 1 - rank]


def compare(ours: Side, plain: Side, plan: Plan) -> tuple[list[float], list[float]]:
    """Seconds of both, pair by pair."""
    first = random.Random(0)
    for side in (ours, plain):  # not counted: what is made once, and caches
        side(), side()
    a: list[float] = []
    b: list[float] = []
    started = time.perf_counter()
    while plan.goes_on(ratios(a, b), started):
        if first.random() < 0.5:
            a.append(ours())
            b.append(plain())
        else:
            b.append(plain())
            a.append(ours())
    return a, b


def ratios(a: Sequence[float], b: Sequence[float]) -> list[float]:
    return [x / y for x, y in zip(a, b, strict=True)]


def seconds_of(function: Callable[[], Any], device: torch.device) -> float:
    """Of one call; on a GPU until the device has done what was queued, by CUDA events."""
    if device.type == "cuda":
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize(device)
        start.record()
        function()
        end.record()
        torch.cuda.synchronize(device)
        return start.elapsed_time(end) / 1e3
    start = time.perf_counter()
    function()
    return time.perf_counter() - start
